"""The lab a notebook holds: measure or profile here, or replay a recording.

Replay reads files and nothing else: no GPU, CUDA, torch, CuPy or compiler.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from rooflab import paths, studies
from rooflab.errors import MissingRecording, MissingTool, OutOfTime, UsageError
from rooflab.hardware import device as devices
from rooflab.hardware.roofline import in_state
from rooflab.lab.compiling import compile_ahead
from rooflab.lab.lacking import lacking, require_one
from rooflab.lab.locks import alone
from rooflab.lab.profiles import TOOLS, columns_of, is_skipped, keep_profile, read_profile, take
from rooflab.lab.progress import Progress
from rooflab.lab.roofs import Roofs
from rooflab.ops import this_arch
from rooflab.records import profiles
from rooflab.records.case import Case
from rooflab.records.csv_table import is_blank, plain
from rooflab.records.fingerprint import SKIPPED, fresh
from rooflab.records.store import Store, closing_facts, run_facts
from rooflab.studies import static
from rooflab.studies.bandwidth import Roof, ceiling, roofs
from rooflab.studies.base import Context, Outcome, Sized, Study, Unlisted, require_gpu
from rooflab.studies.environment import latency_ns
from rooflab.studies.estimates import Estimate, slowest


@dataclass
class Lab:
    """Where a lesson's figures come from. `mode` is "live" or "replay"; `device` the recording's name."""

    mode: str
    device: str
    effort: str
    store: Store
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)
    _run: str | None = field(default=None, repr=False)
    _facts: dict[str, Any] = field(default_factory=dict, repr=False)  # of the run that begins next
    # Cases measured by this lab, by study and instrument, and when measuring has to stop (time.monotonic).
    _taken: dict[tuple[str, str], set[str]] = field(default_factory=dict, repr=False)
    _cases: dict[str, list[Case]] = field(default_factory=dict, repr=False)
    until: float = field(default=math.inf, repr=False)

    @cached_property
    def progress(self) -> Progress:
        return Progress(lambda line: self.say(line))

    @cached_property
    def estimate(self) -> Estimate:
        return Estimate(self.spec or slowest())

    @cached_property
    def spec(self) -> devices.Device | None:
        """Vendor constants of the recorded GPU, None for a model that the table lacks."""
        if self.mode == "live":
            return devices.match(str((devices.probe() or {}).get("gpu", "")))
        found = self.store.runs()["gpu"]
        return devices.match(str(found.iloc[-1])) if len(found) else None

    @property
    def gpus(self) -> int:
        """GPUs of one host that this recording is of."""
        return devices.gpus_of(self.device)

    @property
    def roof(self) -> Mapping[str, Roof]:
        """The device's measured ceilings, by the names of rooflab.hardware.roofline.ROOFS. Live, one that is
        asked for by its name is measured first where no lesson has done so yet, by the one case it needs.
        """
        return Roofs(self._roofs, self._take_roof) if self.mode == "live" else self._recorded_roofs

    def _roofs(self) -> dict[str, Roof]:
        return dict(self.store.made_of("bandwidth", roofs))

    @cached_property
    def _recorded_roofs(self) -> dict[str, Roof]:
        return self._roofs()

    @property
    def run(self) -> pd.Series:
        """Facts of the newest run of this recording: GPU, driver, versions, date, clocks. Live, of this very
        run; before anything was measured that is a finished one in the same surroundings, if there is one.
        """
        name = self._run
        if self.mode == "live":
            name = name or self.store.last_run(run_facts("", self.effort)) or self._begin()
        found = self.store.runs()
        if not len(found):
            raise MissingRecording(f"{self.store.folder} holds no run yet.")
        return found.iloc[-1] if name is None else found[found["run"] == name].iloc[0]

    @property
    def peers(self) -> Store:
        """Others' kernels as published for this very GPU model; a store without rows where nothing is."""
        return Store(paths.DATA, f"{devices.slug(str(self.run['gpu']))}-peers")

    def run_of(self, study: str) -> pd.Series:
        """Facts, as `run`'s, of the newest run that a study's rows come from, or `run` without rows."""
        found = self.store.runs()
        mine = found[found["run"].isin(set(self.store.read(study)["run"]))]
        return mine.iloc[-1] if len(mine) else self.run

    @property
    def sm_ghz(self) -> float:
        """The SMs' clock around the runs of this recording, in GHz: the highest, as a run that begins on an
        idle GPU, or on one still hot from the last, shows a lower clock than it measured at.
        """
        around = self.store.runs()[["sm_clock_before_mhz", "sm_clock_after_mhz"]]
        return float(around.max().max()) / 1e3

    def cases(self, study: str) -> list[Case]:
        """Every case that a recording of `study` on this device holds at this effort."""
        if study not in self._cases:
            self._cases[study] = studies.get(study).cases(self.effort, self.sized)
        return list(self._cases[study])

    def held(self, study: str, cases: Sequence[Case], tool: str = "") -> list[Case]:
        """Of `cases` those that `measure` (or `profile`, by `tool`) can give: live all of them, replayed what
        the recording holds, which may be older than a case, beside what `measure` says is not yet measured.
        """
        if self.mode == "live":
            return list(cases)
        table = self.profile_texts(study, tool) if tool else self.store.read(study)
        there = set(table["case"])
        if there.isdisjoint(case.id for case in cases):
            return []
        there |= set(self._newer(study, cases, table))
        return [case for case in cases if case.id in there]

    def _newer(self, study: str, cases: Sequence[Case], table: pd.DataFrame) -> dict[str, str]:
        """Cases of rungs of which `table` has none, nor had the study timed any by the table's last run."""
        held = set(table["case"])
        if held.issuperset(case.id for case in cases):
            return {}
        found = studies.get(study)
        timed = set(static.read()["case"]) if found.everywhere else self.store.timed_by(study, table)
        return found.not_yet_measured(cases, held | timed)

    def profile_texts(self, study: str, tool: str) -> pd.DataFrame:
        """What an instrument's table holds of a study, as texts."""
        return read_profile(self._profile_path(study, tool), tool, None)

    @property
    def sized(self) -> Sized:
        """The device for lists of cases: the table's entry, else what the driver says of it."""
        return self.spec or unlisted(self.run)

    def measure(self, study: str, cases: Sequence[Case]) -> pd.DataFrame:
        """Rows of `cases` in their order, all of record.COLUMNS.

        Live, whatever the store does not already hold fresh is gated, timed and stored first. A case that
        could not run there (a peer not installed, too little memory) is recorded as skipped with its reason
        and left out here. Replay reads the store; MissingRecording names the cases it lacks and the command
        that measures them. A rung newer than the recording is left out and named in the frame's
        attrs["not_yet_measured"].
        """
        if studies.get(study).everywhere:
            frame = static.read()
        else:
            if self.mode == "live":
                self._take_roofs(studies.get(study), cases)
                self.take_timings(studies.get(study), cases)
            frame = self.store.read(study)
        wanted = [case.id for case in cases]
        present = set(frame["case"])
        newer = self._newer(study, cases, frame)
        missing = [case for case in wanted if case not in present and case not in newer]
        if missing and (self.mode == "replay" or studies.get(study).everywhere):
            raise lacking(self, study, "", missing, present)
        rows = frame.set_index("case", drop=False).loc[[case for case in wanted if case in present]]
        timed = rows[~is_skipped(rows)]
        require_one(self, study, cases, rows[is_skipped(rows)])
        own = timed[(timed["kind"] == "own") & (timed["error"] <= timed["error_budget"])]
        self._note(study, "", wanted, timed["case"], gated=[*own["case"]])
        timed = timed.reset_index(drop=True)
        if newer:
            timed.attrs["not_yet_measured"] = sorted(set(newer.values()))
        return timed

    def profile(
        self, study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """What a profiler or another instrument says of `cases`: one or more rows a case, first column
        `case`.

        tool "ncu" counts (columns: kernel, grid, block and the metrics' short names), "nsys" and "cupti"
        trace (one row per GPU activity), "gate" says what is refused, "sass" counts instructions,
        "sanitizer" says what compute-sanitizer and the CPU's watcher report of faulty kernels, "checks" what
        a study asks beside the time (columns: quantity, value), "timeline" when each block passes the marks
        that a kernel has of its own.
        Replay reads data/<device>/profiles/<study>_<tool>.csv. An instrument that is missing or not
        permitted is recorded as skipped and leaves its cases out, as a case that cannot run in `measure`.
        """
        if tool not in TOOLS:
            raise UsageError(f"There is no instrument {tool!r}; there are {', '.join(TOOLS)}.")
        if tool == "sass":
            frame = static.read_sass()
        else:
            if self.mode == "live":
                try:
                    self.take_profile(study, cases, tool, metrics)
                except MissingTool as error:
                    self.say(f"{study} skipped {tool}: {error}")
            path = self._profile_path(study, tool)
            frame = read_profile(path, tool, metrics)
        present = set(frame["case"])
        present |= set(self._newer(study, cases, frame))
        missing = [case.id for case in cases if case.id not in present]
        if missing and (self.mode == "replay" or studies.get(study).everywhere):
            raise lacking(self, study, tool, missing, set(frame["case"]))
        order = {case.id: i for i, case in enumerate(cases)}
        rows = frame[frame["case"].isin(order) & ~is_skipped(frame)]
        if tool != "sass":
            rows = profiles.typed(rows, path)
        self._note(study, tool, list(order), rows["case"])
        return rows.drop(columns="identity").sort_values(
            "case", key=lambda c: c.map(order), kind="stable", ignore_index=True
        )

    def traces(self, study: str) -> pd.DataFrame:
        """How the lines of a study's rungs use memory, as watching small launches on the CPU showed it: the
        recorded table of studies.traces. It depends on no device, so it is the same in every mode.
        """
        from rooflab.studies import traces

        return traces.read(study)

    def take_profile(
        self, study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None = None
    ) -> None:
        """Profile here the cases that the store does not hold fresh; MissingTool, once the cases are
        recorded as skipped, for an instrument that cannot be used.
        """
        path, of = self._profile_path(study, tool), studies.get(study)
        now, unable, chosen = self.unprofiled(of, cases, tool, metrics)
        trouble = None
        if not chosen:
            return
        able = [case for case in chosen if case.id not in unable]
        taken = pd.DataFrame({"case": []})
        try:
            if able:
                with self.progress.over(self.estimate.add_profile(of, able, tool)):
                    self.progress.at(f"{study} by {tool}")
                    with alone():
                        taken = take(study, able, tool, metrics)
                    self.progress.done([(study, tool)])
        except MissingTool as error:
            trouble = error
            now |= {case.id: plain(f"{SKIPPED}{error}") for case in able}
        left_out = [case.id for case in chosen if trouble or case.id in unable]
        taken = pd.concat([taken, pd.DataFrame({"case": left_out})], ignore_index=True)
        taken["identity"] = [now[case] for case in taken["case"]]
        self._taken.setdefault((study, tool), set()).update(case.id for case in chosen)
        taken = profiles.as_texts(taken.assign(run=self._begin()))
        ids = {case.id for case in chosen}
        keep_profile(self.store, path, taken, ids, columns_of(study, tool, metrics))
        if trouble:
            raise trouble

    def unprofiled(
        self,
        study: Study,
        cases: Sequence[Case],
        tool: str,
        metrics: Sequence[str] | None,
        compiled: bool = True,
    ) -> tuple[dict[str, str], dict[str, str], list[Case]]:
        """Identities of cases now, of them those of cases that cannot run here, and the cases that a profile
        does not hold fresh.
        """
        frame, arch = read_profile(self._profile_path(study.name, tool), tool, metrics), this_arch()
        reasons = {case.id: study.why_not(case, arch) for case in cases} if arch else {}
        unable = {case: plain(f"{SKIPPED}{reason}") for case, reason in reasons.items() if reason}
        on = arch if compiled else None
        now = {case.id: unable.get(case.id) or study.identity(case, on) for case in cases}
        held = dict(zip(frame["case"], frame["identity"], strict=True))
        return now, unable, [case for case in cases if not fresh(str(held.get(case.id, "")), now[case.id])]

    def _profile_path(self, study: str, tool: str) -> Path:
        return self.store.folder / "profiles" / f"{study}_{tool}.csv"

    def close(self) -> None:
        """End this lab's run: clocks and temperature after, and the derived columns by the newest roofs."""
        if self._run is not None:
            self.rederive()
            self.store.finish(self._run, **closing_facts())
            self._run, self._facts = None, {}

    # --- live -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Date the run that the first new result begins from now on: what comes before it takes time, too."""
        command = os.environ.get("ROOFLAB_COMMAND") or "rooflab run --mode live"
        self._facts = run_facts(command, self.effort)
        if self.gpus > 1:
            self._facts["note"] = ", ".join(filter(None, [f"{self.gpus} GPUs", devices.links()]))

    def _begin(self) -> str:
        if self._run is None:
            if not self._facts:
                self.start()
            self._run = self.store.begin(self._facts)
        return self._run

    def take_timings(self, study: Study, cases: Sequence[Case]) -> None:
        """Gate, time and store here the cases that the store does not hold fresh."""
        if study.needs_gpu:
            require_gpu()
        groups = self.stale_groups(study, cases)
        asked = [case for group in groups for case in group]
        context = self.context()
        self.progress.drop({(study.name, case.id) for case in cases} - {(study.name, c.id) for c in asked})
        with self.progress.over(self.estimate.add(study, asked, this_arch())):
            for group in groups:
                self.require_time()
                self.progress.at(group[0].id)
                outcome = self.measure_group(study, group, context)
                self.progress.done((study.name, case.id) for case in group)
                for case, reason in outcome.skipped.items():
                    self.say(f"{study.name} skipped {case}: {reason}")
        if groups:
            self.rederive()

    def measure_group(self, study: Study, group: Sequence[Case], context: Context) -> Outcome:
        """Measure the contestants of one comparison, and store what became of them."""
        outcome = self._measured(study, group, context)
        named = {case.id: case for case in group}
        skipped = [
            {**named[case].row(), "identity": plain(f"{SKIPPED}{reason}")}
            for case, reason in outcome.skipped.items()
        ]
        self.store.add(study.name, [*outcome.rows, *skipped], self._begin())
        self._taken.setdefault((study.name, ""), set()).update(named)
        return outcome

    def _measured(self, study: Study, group: Sequence[Case], context: Context) -> Outcome:
        with alone():
            return study.measure_group(group, context)

    def stale_groups(self, study: Study, cases: Sequence[Case]) -> list[list[Case]]:
        """The comparisons with a stale case: contestants are measured together or not at all."""
        stale = self.stale(study, cases)
        return [group for group in study.groups(cases) if any(case.id in stale for case in group)]

    def _take_roofs(self, study: Study, cases: Sequence[Case]) -> None:
        """Measure the ceilings that the cases' rows are held against, where none is recorded yet."""
        if study.name != "bandwidth" and self.gpus == 1:
            for name in dict.fromkeys(in_state(study.count(case).roof, case.state) for case in cases):
                self.roof.get(name)

    def _take_roof(self, name: str) -> None:
        self.take_timings(studies.get("bandwidth"), ceiling(name, self.effort, self.sized))

    def rederive(self) -> None:
        self.store.rederive(lambda: {name: found.value for name, found in self._roofs().items()})

    def stale(self, study: Study, cases: Sequence[Case], compiled: bool = True) -> set[str]:
        """Ids of the cases that a live lab would measure: not recorded, or recorded as other code than now. A
        case that could not run is tried again once its surroundings change. Code is `compiled` to be told
        from other code, else known by its source.
        """
        facts, arch = run_facts("", self.effort), this_arch()
        known_by = arch if compiled else None
        if compiled:
            compile_ahead([(study, cases)], arch, self.progress)
        found = set()
        for case in cases:
            reason = self.store.why_skipped(study.name, case.id, facts)
            if reason is not None:
                package = study.needs(case)
                if package is None or "not installed" not in reason or find_spec(package) is None:
                    continue
            # Of what cannot run here nothing is compiled: measuring it records why.
            if (
                arch
                and study.why_not(case, arch)
                or not self.store.is_fresh(study.name, case.id, study.identity(case, known_by), facts)
            ):
                found.add(case.id)
        return found

    def lacks(self, study: Study) -> bool:
        """Whether cases of a study are still to be measured, or to be profiled for the first time."""
        if self.stale(study, self.cases(study.name)):
            return True
        return any(
            {case.id for case in cases}
            - set(read_profile(self._profile_path(study.name, tool), tool, metrics)["case"])
            for tool, cases, metrics in study.profiles(self.effort, self.sized)
        )

    def require_time(self) -> None:
        if time.monotonic() > self.until:
            raise OutOfTime(
                "the time is up; what was measured is kept; run the same command again to continue."
            )

    def _note(
        self, study: str, tool: str, asked: Sequence[str], given: Iterable[str], gated: Sequence[str] = ()
    ) -> None:
        """Append to the file $ROOFLAB_LEDGER, if set, which cases a lesson asked for and what it got."""
        if path := os.environ.get("ROOFLAB_LEDGER"):
            there, new = set(given), self._taken.get((study, tool), set())
            entry = {"study": study, "tool": tool, "asked": list(asked), "gated": list(gated)}
            entry["measured"] = [case for case in asked if case in new and case in there]
            entry["skipped"] = [case for case in asked if case not in there]
            entry["run"] = (self._run or "") if entry["measured"] else ""
            with Path(path).open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def context(self) -> Context:
        """What predictions may use here."""
        facts = devices.probe() or {}
        lanes, generation = facts.get("pcie_width"), facts.get("pcie_generation")
        return Context(
            device=self.spec,
            sms=facts.get("sms"),
            pcie_gb_s=devices.PCIE_LANE_GB_S[generation] * lanes
            if generation in devices.PCIE_LANE_GB_S and lanes
            else None,
            latency_ns=latency_ns(self.store.read("environment")),
            effort=self.effort,
            gpus=self.gpus,
        )


def unlisted(run: pd.Series) -> Unlisted:
    memory = run["memory_bytes"]
    sm = "" if is_blank(run["compute_capability"]) else str(run["compute_capability"]).replace(".", "")
    return Unlisted(int(run["sms"]), None if is_blank(memory) else float(memory) / 1e9, sm)
