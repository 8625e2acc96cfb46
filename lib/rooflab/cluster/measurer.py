"""What measures for a Dask worker, in a process of its own: `python -m rooflab.cluster.measurer`.

Orders come on stdin and answers go to stdout, one JSON object a line. A worker's own threads would disturb
what the host's clock measures. The process ends, and what it started with it, when stdin closes, as it does
where the worker is killed, or when no order has come for a while, so that the GPU is free again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rooflab import lab as laboratory
from rooflab import studies
from rooflab.cluster import parcels
from rooflab.errors import MissingTool, RooflabError
from rooflab.lab.session import Lab
from rooflab.records.store import closing_facts

IDLE_S = 60.0


class Measurer:
    """A live lab in a folder of its own, over what was recorded elsewhere before."""

    def __init__(self, root: Path, order: dict[str, Any]):
        parcels.unpack(parcels.Parcel(order["device"], order["files"]), root)
        os.environ |= {"ROOFLAB_STORE": str(root), "ROOFLAB_COMMAND": order["command"]}
        self.lab: Lab = laboratory.open("live", effort=order["effort"])
        if self.lab.device != order["device"]:
            raise RooflabError(
                f"this worker's GPU is of {self.lab.device}, and its resource says {order['device']}: start "
                f"it with the resource {self.lab.device}."
            )
        self.lab.say = lambda line: print(line, file=sys.stderr)
        self.study = studies.get(order["study"])

    def plan(self, order: dict[str, Any]) -> dict[str, Any]:
        """What is to be measured here: groups of case ids, and which of the study's profiles."""
        lab, study = self.lab, self.study
        lab.start()
        groups = [[case.id for case in group] for group in lab.stale_groups(study, lab.cases(study.name))]
        profiles = [
            [number, tool]
            for number, (tool, cases, metrics) in enumerate(study.profiles(lab.effort, lab.sized))
            if lab.unprofiled(study, cases, tool, metrics)[2]
        ]
        return {"groups": groups, "profiles": profiles}

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """Measure a group; what became of its cases."""
        group = [self.study.case(case) for case in order["cases"]]
        outcome = self.lab.measure_group(self.study, group, self.lab.context())
        return {"skipped": dict(outcome.skipped), "files": self._new(self.study.name, set(order["cases"]))}

    def profile(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take one of the study's profiles, or say which tool is missing."""
        tool, cases, metrics = self.study.profiles(self.lab.effort, self.lab.sized)[order["profile"]]
        trouble = ""
        try:
            self.lab.take_profile(self.study.name, cases, tool, metrics)
        except MissingTool as error:
            trouble = str(error)
        ids = {case.id for case in cases}
        return {"trouble": trouble, "files": self._new(f"profiles/{self.study.name}_{tool}", ids)}

    def _new(self, table: str, cases: set[str]) -> dict[str, str]:
        """The files that hold a table's rows of `cases`, as this process measured them."""
        run = str(self.lab.run["run"])
        self.lab.store.finish(run, **closing_facts())

        def mine(of: str, case: str, by: str) -> bool:
            return (of, by) == (table, run) and case in cases

        return parcels.some(self.lab.store, mine).files


def _end_with_parent(orders: SimpleQueue[str], folder: tempfile.TemporaryDirectory[str]) -> None:
    import psutil

    from rooflab.book.execute import kill_tree

    for line in sys.stdin:
        orders.put(line)
    for child in psutil.Process().children():
        kill_tree(child)
    folder.cleanup()
    os._exit(0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    orders: SimpleQueue[str] = SimpleQueue()
    folder = tempfile.TemporaryDirectory(prefix="rooflab-", ignore_cleanup_errors=True)
    threading.Thread(target=_end_with_parent, args=(orders, folder), daemon=True).start()
    measurer: Measurer | None = None
    while True:
        try:
            order = json.loads(orders.get(timeout=IDLE_S))
        except Empty:
            break
        try:
            if measurer is None:
                measurer = Measurer(Path(folder.name), order)
            answer = getattr(measurer, order["do"])(order)
        except RooflabError as error:
            answer = {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    folder.cleanup()
    sys.stderr.flush()
    os._exit(0)  # the thread sits in a read that a normal exit would wait for


if __name__ == "__main__":
    main()
