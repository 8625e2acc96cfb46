"""One lesson in a process of its own: `python -m rooflab.book.execute`, a job as JSON on the first line
of stdin.

The process tells its parent on stdout, one JSON object a line, which cell it is at and how it ended. It
ends, and its kernel with it, when stdin closes: so nothing is left running even where the parent was
killed outright.
"""

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from rooflab.errors import LACKING  # what imports pandas costs each lesson half a second

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """Text without terminal colours."""
    return _ANSI.sub("", text)


def kill_tree(process: Any) -> None:
    """Kill a psutil process's descendants and then itself; those already gone are fine."""
    import psutil

    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family[:-1], timeout=5)


def _end_with_parent() -> None:
    import psutil

    sys.stdin.read()
    kill_tree(psutil.Process())
    os._exit(1)


@contextlib.contextmanager
def _wires() -> Iterator[Any]:
    """Configuration by which process and kernel talk through files of a folder of their own, where there are
    such sockets: two kernels that start at the same time may be given the same free port.
    """
    import shutil
    import tempfile

    from traitlets.config import Config

    if os.name != "posix":
        yield Config()
        return
    folder = tempfile.mkdtemp(prefix="rooflab-")  # short: a socket's path has 100 characters or so
    try:
        yield Config(ConnectionFileMixin={"transport": "ipc", "ip": os.path.join(folder, "wire")})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _execute(job: dict[str, Any], events: TextIO) -> dict[str, Any]:
    """Run the job's notebook with papermill; the ending is "ok", "partly" where cells lacked
    recorded cases, "failed", "died" or "stopped".
    """
    from rooflab.book.notebook_format import nbformat  # before papermill and nbclient import it

    import papermill  # isort: skip
    from nbclient.exceptions import DeadKernelError  # isort: skip

    original = nbformat.read(job["notebook"], as_version=4)
    tagged = [i for i, cell in enumerate(original.cells) if "parameters" in cell.metadata.get("tags", [])]
    injected_at = tagged[0] + 1 if tagged and job["values"] else len(original.cells) + 1
    at = {"cell": 0, "source": ""}

    def number(index: int) -> int:
        return index + 1 if index < injected_at else index

    def started(cell: Any, cell_index: int) -> None:
        at.update(cell=number(cell_index), source=cell.source)
        print(json.dumps({"event": "cell", **at, "of": len(original.cells)}), file=events, flush=True)

    try:
        with _wires() as config:
            executed = papermill.execute_notebook(
                job["notebook"],
                job["output"],
                job["values"],
                kernel_name="python3",
                language="python",  # also of a notebook that does not name it
                cwd=job["folder"],
                progress_bar=False,
                on_cell_start=started,
                extra_arguments=["--IPKernelApp.log_level=50"],
                config=config,
            )
    except papermill.PapermillExecutionError as error:
        found = plain("\n".join(error.traceback)) or f"{error.ename}: {error.evalue}"
        return {"ending": "failed", **at, "source": error.source, "message": found}
    except DeadKernelError:
        return {"ending": "died", **at, "message": "the kernel died: killed, out of memory, or crashed."}
    unrun = [
        c for c in executed.cells if c.cell_type == "code" and c.source.strip() and not c.execution_count
    ]
    if unrun:
        return {
            "ending": "stopped",
            **at,
            "message": f"the kernel was told to exit; {len(unrun)} cells never ran.",
        }
    lacking = [
        output.metadata[LACKING]
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if LACKING in output.get("metadata", {})
    ]
    return {"ending": "partly" if lacking else "ok", **at, "message": "\n".join(dict.fromkeys(lacking))}


def main() -> None:
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        ending = _execute(job, events)
    except Exception as error:
        ending = {"ending": "failed", "cell": 0, "source": "", "message": f"{type(error).__name__}: {error}"}
    print(json.dumps({"event": "end", **ending}), file=events, flush=True)
    # The stdin thread sits in a blocking read that a normal interpreter exit would wait for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
