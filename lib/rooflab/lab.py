"""The one door the notebooks use: measure or profile here, or replay a recording.

`lab = rooflab.lab.open(MODE, DEVICE)` gives a Lab; `lab.measure(study, cases)` returns one DataFrame whether
it measured just now or read data/<device>/<study>.csv. Replay reads files and nothing else: no GPU, CUDA,
torch, CuPy or compiler.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from rooflab import paths, studies
from rooflab.errors import MissingRecording, MissingTool, OutOfTime, RooflabError, UsageError
from rooflab.hardware import device as devices
from rooflab.ops import Rung, as_on
from rooflab.profile import recorded
from rooflab.records import seal
from rooflab.records.case import Case
from rooflab.records.csv_table import is_blank, plain, write_atomically
from rooflab.records.fingerprint import SKIPPED, fresh
from rooflab.records.store import Store, closing_facts, published_devices, run_facts
from rooflab.records.validate import Finding, validate
from rooflab.runtime.nvrtc import in_cache, whole_source
from rooflab.studies import static
from rooflab.studies.bandwidth import Roof, ceilings, roofs
from rooflab.studies.base import Context, Sized, Study, Unlisted, require_gpu
from rooflab.studies.environment import latency_ns

MODES = ("auto", "live", "replay")
EFFORTS = ("full", "quick")
TOOLS = ("ncu", "nsys", "cupti", "gate", "sass", "sanitizer", "checks")


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
    until: float = field(default=math.inf, repr=False)

    @cached_property
    def spec(self) -> devices.Device | None:
        """Vendor constants of the recorded GPU, None for a model that the table lacks."""
        found = self.store.runs()["gpu"]
        name = devices.probe()["gpu"] if self.mode == "live" else (found.iloc[-1] if len(found) else "")  # type: ignore[index]
        return devices.match(str(name))

    @property
    def roof(self) -> dict[str, Roof]:
        """The device's measured ceilings, by the names of rooflab.hardware.roofline.ROOFS. Live, they are
        measured first where no lesson has done so yet; replayed, they are those that are recorded.
        """
        if self.mode == "live" and not self._roofs():
            self._measure(studies.get("bandwidth"), ceilings(self.effort, self.sized))
        return self._roofs()

    def _roofs(self) -> dict[str, Roof]:
        return roofs(self.store.read("bandwidth"))

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
        """Facts, as `run`'s, of the newest run that rows of a study come from: a recording's runs may be of
        several days, and of several GPUs of one model. Before there are rows, `run`.
        """
        found = self.store.runs()
        mine = found[found["run"].isin(set(self.store.read(study)["run"]))]
        return mine.iloc[-1] if len(mine) else self.run

    @property
    def sm_ghz(self) -> float:
        """The SMs' clock when runs of this recording began, in GHz: the highest, as one that begins in the
        heat of another says less of what was measured.
        """
        return float(self.store.runs()["sm_clock_before_mhz"].max()) / 1e3

    def cases(self, study: str) -> list[Case]:
        """Every case that a recording of `study` on this device holds at this effort."""
        return studies.get(study).cases(self.effort, self.sized)

    def held(self, study: str, cases: Sequence[Case], tool: str = "") -> list[Case]:
        """Of `cases` those that `measure` (or `profile`, by `tool`) can give: live all of them, replayed what
        the recording holds, which may be older than a case, beside what `measure` says is not yet measured.
        """
        if self.mode == "live":
            return list(cases)
        path = self._profile_path(study, tool)
        there = set((_read_profile(path, tool, None) if tool else self.store.read(study))["case"])
        if there.isdisjoint(case.id for case in cases):
            return []
        there |= set(studies.get(study).not_yet_measured(cases, there))
        return [case for case in cases if case.id in there]

    def has_profile(self, study: str, tool: str) -> bool:
        """Whether an instrument answered for any case of a study; live, whether that can still be tried."""
        frame = _read_profile(self._profile_path(study, tool), tool, None)
        return bool((~_skipped(frame)).any()) or (self.mode == "live" and frame.empty)

    @property
    def sized(self) -> Sized:
        """The device for lists of cases: the table's entry, else what the driver says of it."""
        return self.spec or _unlisted(self.run)

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
                self._measure(studies.get(study), cases)
            frame = self.store.read(study)
        wanted = [case.id for case in cases]
        present = set(frame["case"])
        newer = studies.get(study).not_yet_measured(cases, present)
        missing = [case for case in wanted if case not in present and case not in newer]
        if missing and (self.mode == "replay" or studies.get(study).everywhere):
            raise MissingRecording(self._lacks(study, missing, _command(study)))
        rows = frame.set_index("case", drop=False).loc[[case for case in wanted if case in present]]
        timed = rows[~_skipped(rows)]
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
        a study asks beside the time (columns: quantity, value).
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
            frame = _read_profile(path, tool, metrics)
        present = set(frame["case"])
        newer = studies.get(study).not_yet_measured(cases, present)
        missing = [case.id for case in cases if case.id not in present and case.id not in newer]
        if missing and (self.mode == "replay" or studies.get(study).everywhere):
            raise MissingRecording(self._lacks(f"{study}_{tool}", missing, _command(study)))
        order = {case.id: i for i, case in enumerate(cases)}
        rows = frame[frame["case"].isin(order) & ~_skipped(frame)]
        if tool != "sass":
            rows = recorded.typed(rows, path)
        self._note(study, tool, list(order), rows["case"])
        return rows.drop(columns="identity").sort_values(
            "case", key=lambda c: c.map(order), kind="stable", ignore_index=True
        )

    def traces(self, study: str) -> pd.DataFrame:
        """How the lines of a study's rungs use memory, as watching small launches on the CPU showed it: the
        recorded table of studies.traces. It hangs on no device, so it is the same in every mode.
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
        frame = _read_profile(path, tool, metrics)
        arch, trouble = _arch(), None
        reasons = {case.id: of.why_not(case, arch) for case in cases} if arch else {}
        unable = {case: plain(f"{SKIPPED}{reason}") for case, reason in reasons.items() if reason}
        now = {case.id: unable.get(case.id) or of.identity(case, arch) for case in cases}
        held = dict(zip(frame["case"], frame["identity"], strict=True))
        chosen = [case for case in cases if not fresh(str(held.get(case.id, "")), now[case.id])]
        if not chosen:
            return
        able = [case for case in chosen if case.id not in unable]
        taken = pd.DataFrame({"case": []})
        try:
            if able:
                with _alone():
                    taken = _profile(study, able, tool, metrics)
        except MissingTool as error:
            trouble = error
            now |= {case.id: plain(f"{SKIPPED}{error}") for case in able}
        left_out = [case.id for case in chosen if trouble or case.id in unable]
        taken = pd.concat([taken, pd.DataFrame({"case": left_out})], ignore_index=True)
        taken["identity"] = [now[case] for case in taken["case"]]
        self._taken.setdefault((study, tool), set()).update(case.id for case in chosen)
        taken = recorded.as_texts(taken.assign(run=self._begin()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.store.lock():
            frame = _read_profile(path, tool, metrics)  # again: it took minutes, in which others may write
            kept = frame[~frame["case"].isin({case.id for case in chosen})]
            columns = frame.columns if len(kept) else _columns(study, tool, metrics)
            frame = pd.concat([kept, taken], ignore_index=True)[[*columns]].fillna("")
            frame = frame.sort_values("case", kind="stable", ignore_index=True)
            seal.unseal(self.store.folder)
            write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))
        if trouble:
            raise trouble

    def _profile_path(self, study: str, tool: str) -> Path:
        return self.store.folder / "profiles" / f"{study}_{tool}.csv"

    def close(self) -> None:
        """End this lab's run: clocks and temperature after, and the derived columns by the newest roofs."""
        if self._run is not None:
            self._rederive()
            self.store.finish(self._run, **closing_facts())
            self._run, self._facts = None, {}

    # --- live -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Date the run that the first new result begins from now on: what comes before it takes time, too."""
        command = os.environ.get("ROOFLAB_COMMAND") or "rooflab run --mode live"
        self._facts = run_facts(command, self.effort)

    def _begin(self) -> str:
        if self._run is None:
            if not self._facts:
                self.start()
            self._run = self.store.begin(self._facts)
        return self._run

    def _measure(self, study: Study, cases: Sequence[Case]) -> None:
        if study.needs_gpu:
            require_gpu()
        stale = self.stale(study, cases)
        # Contestants of one comparison are measured together or not at all.
        groups = [g for g in study.groups(cases) if any(case.id in stale for case in g)]
        total, done, context = sum(map(len, groups)), 0, self._context()
        for group in groups:
            self._in_time()
            with _alone():
                outcome = study.measure_group(group, context)
            named = {case.id: case for case in group}
            skipped = [
                {**named[case].row(), "identity": plain(f"{SKIPPED}{reason}")}
                for case, reason in outcome.skipped.items()
            ]
            self.store.add(study.name, [*outcome.rows, *skipped], self._begin())
            self._taken.setdefault((study.name, ""), set()).update(named)
            done += len(group)
            self.say(f"{study.name} case {done}/{total}: {group[0].id}")
            for case, reason in outcome.skipped.items():
                self.say(f"{study.name} skipped {case}: {reason}")
        if groups:
            self._rederive()

    def _rederive(self) -> None:
        self.store.rederive(lambda: {name: found.value for name, found in self._roofs().items()})

    def stale(self, study: Study, cases: Sequence[Case]) -> set[str]:
        """Ids of the cases that a live lab would measure: not recorded, or as other code than now. What could
        not run stands until its surroundings change.
        """
        facts, arch = run_facts("", self.effort), _arch()
        _compile_ahead([(study, cases)], arch)
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
                or not self.store.is_fresh(study.name, case.id, study.identity(case, arch), facts)
            ):
                found.add(case.id)
        return found

    def lacks(self, study: Study) -> bool:
        """Whether cases of a study are still to be measured, or to be profiled for the first time."""
        if self.stale(study, self.cases(study.name)):
            return True
        return any(
            {case.id for case in cases}
            - set(_read_profile(self._profile_path(study.name, tool), tool, metrics)["case"])
            for tool, cases, metrics in study.profiles(self.effort, self.sized)
        )

    def _in_time(self) -> None:
        if time.monotonic() > self.until:
            raise OutOfTime(
                "the time is up; what was measured is kept, and the same command goes on from it."
            )

    def _note(
        self, study: str, tool: str, asked: Sequence[str], given: Iterable[str], gated: Sequence[str] = ()
    ) -> None:
        """Tell a runner that watches ($ROOFLAB_LEDGER) which cases a lesson asked for and what it got."""
        if path := os.environ.get("ROOFLAB_LEDGER"):
            there, new = set(given), self._taken.get((study, tool), set())
            entry = {"study": study, "tool": tool, "asked": list(asked), "gated": list(gated)}
            entry["measured"] = [case for case in asked if case in new and case in there]
            entry["skipped"] = [case for case in asked if case not in there]
            entry["run"] = (self._run or "") if entry["measured"] else ""
            with Path(path).open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def _context(self) -> Context:
        facts = devices.probe() or {}
        lanes, generation = facts.get("pcie_width"), facts.get("pcie_generation")
        return Context(
            device=self.spec,
            sms=facts.get("sms"),
            pcie_gb_s=_PCIE_LANE_GB_S[generation] * lanes
            if generation in _PCIE_LANE_GB_S and lanes
            else None,
            latency_ns=latency_ns(self.store.read("environment")),
            effort=self.effort,
        )

    def _lacks(self, table: str, missing: Sequence[str], command: str) -> str:
        shown = "; ".join(missing[:5]) + (f"; and {len(missing) - 5} more" if len(missing) > 5 else "")
        return (
            f"The recording {self.store.folder.name}/{table} lacks {len(missing)} case(s): {shown}. "
            f"Measure them on that GPU with `{command}`, or run the lesson with MODE=live."
        )


# Bytes a second and lane after line coding (128b/130b from generation 3 on), PCI Express base specifications.
_PCIE_LANE_GB_S = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def _command(study: str) -> str:
    """The command that makes what a replay lacks."""
    found = studies.get(study)
    return f"rooflab trace {study}" if found.everywhere else f"rooflab record {found.lesson}"


def open(mode: str = "auto", device: str = "h200", effort: str = "full") -> Lab:
    """Open the lab. `mode`: an explicit "live" or "replay" wins, then $ROOFLAB_MODE, then whether a GPU is
    found.

    `device` names a recording (a folder of data/ or a published device) or is the path of one; live, the
    machine's own GPU decides and results go to $ROOFLAB_STORE (default build/data). `effort`: "full" or
    "quick"; $ROOFLAB_EFFORT stands in where it is "full".
    """
    if mode not in MODES:
        raise UsageError(f"MODE is one of {', '.join(MODES)}, not {mode!r}.")
    if mode == "auto":
        mode = os.environ.get("ROOFLAB_MODE", "auto")
        if mode not in MODES:
            raise UsageError(f"ROOFLAB_MODE is one of {', '.join(MODES)}, not {mode!r}.")
    if mode == "auto":
        mode = "live" if devices.has_gpu() else "replay"
    effort = os.environ.get("ROOFLAB_EFFORT", effort) if effort == "full" else effort
    if effort not in EFFORTS:
        raise UsageError(f"EFFORT is one of {', '.join(EFFORTS)}, not {effort!r}.")
    if mode == "live":
        facts = devices.probe()
        if facts is None and devices.has_gpu():
            raise MissingTool(
                "MODE=live asks the GPU for its name and clocks through nvidia-ml-py, which is not installed "
                "or gets no answer: pip install -r requirements.txt."
            )
        if facts is None:
            raise MissingTool("MODE=live needs an NVIDIA GPU with a working driver; MODE=replay needs none.")
        root = Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data")
        slug = devices.slug(facts["gpu"])
        lab = Lab("live", slug, effort, Store(root, slug), _progress())
        import atexit

        atexit.register(lab.close)
        return lab
    return Lab("replay", *_recording(device, effort))


def _recording(device: str, effort: str) -> tuple[str, str, Store]:
    """(name, effort, store) of the recording that `device`, a name or a path, means; UsageError if a file of
    it is not as it was recorded.
    """
    store = _opened(device)
    seal.require(store.folder)
    return store.device, effort, store


def _opened(device: str) -> Store:
    path = Path(device)
    if path.is_dir() and (path / "runs.csv").is_file():
        return Store(path.resolve().parent, path.resolve().name)
    if device not in recordings() and device not in published_devices(paths.DATA):
        known = ", ".join(recordings()) or "none"
        raise UsageError(
            f"There is no recording {device!r}: name one of data/'s ({known}), or a folder that holds a "
            "runs.csv."
        )
    return Store(paths.DATA, device)


def recordings(root: Path | None = None) -> list[str]:
    """Names of the devices recorded by this course in data/ (published figures not among them)."""
    folders = sorted((root or paths.DATA).glob("*/runs.csv"))
    return [path.parent.name for path in folders if path.parent.name != "published"]


def _progress() -> Callable[[str], None]:
    """Where progress lines go: the file that a runner watches, or standard error."""
    path = os.environ.get("ROOFLAB_PROGRESS")

    def say(line: str) -> None:
        if path:
            with Path(path).open("a") as file:
                file.write(line + "\n")
        elif "ipykernel" not in sys.modules:
            print(line, file=sys.stderr)

    return say


def _unlisted(run: pd.Series) -> Unlisted:
    memory = run["memory_bytes"]
    return Unlisted(int(run["sms"]), None if is_blank(memory) else float(memory) / 1e9)


def _skipped(frame: pd.DataFrame) -> pd.Series:
    """Which rows stand for a case that could not be measured on the recorded machine."""
    return frame["identity"].astype(str).str.startswith(SKIPPED)


def _arch() -> str:
    from rooflab.ops import this_arch

    return this_arch()


@contextmanager
def _alone() -> Iterator[None]:
    """Keep every other process of this checkout from measuring on this GPU meanwhile. One that measures on
    another GPU leaves the GPU's clock alone, if not the host's; one that compiles takes all cores, and is
    waited for.
    """
    with _compiling():
        pass
    with FileLock(paths.BUILD / f"measuring-{devices.uuid() or 'none'}.lock"):
        yield


def _compiling() -> FileLock:
    paths.BUILD.mkdir(parents=True, exist_ok=True)
    return FileLock(paths.BUILD / "compiling.lock")


def _compile_ahead(asked: Iterable[tuple[Study, Sequence[Case]]], arch: str | None) -> None:
    """Compile what studies' cases launch, on all cores: NVRTC takes one source at a time in a process."""
    wanted = {}
    builds = (
        study.builds(case)
        for study, cases in asked
        for case in cases
        if arch and not study.why_not(case, arch)
    )
    for rung, chosen in chain.from_iterable(builds):
        macros = rung.with_defaults(chosen)
        wanted[rung.operator, rung.name, tuple(sorted(macros.items()))] = (rung, macros)

    def missing() -> list[tuple[Rung, Mapping[str, int]]]:
        return [
            (rung, macros)
            for rung, macros in wanted.values()
            if not in_cache(rung.path.read_text(), rung.arch_for(str(arch)), macros)
        ]

    if len(missing()) < 4:
        return
    with _compiling():
        left = missing()  # fewer, if it was another process's turn before
        # The longest sources first: whoever begins with one of them last is waited for by all.
        left.sort(key=lambda build: -len(whole_source(build[0].path)))
        workers = min(os.cpu_count() or 1, len(left) // 2)
        if workers > 1:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                list(pool.map(_compiled, left, repeat(str(arch))))


def _compiled(build: tuple[Rung, Mapping[str, int]], arch: str) -> None:
    """Leave a rung's cubin in the cache; whoever launches it hears of what does not compile."""
    with suppress(RooflabError):
        build[0].cubin(arch, build[1])


def _read_profile(path: Path, tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    """A profile's table as texts; an empty one with the tool's columns if there is no file yet."""
    if path.is_file():
        return recorded.texts(path)
    return pd.DataFrame(columns=_columns(path.stem.rpartition("_")[0], tool, metrics), dtype="str")


def _columns(study: str, tool: str, metrics: Sequence[str] | None) -> list[str]:
    """The header of a study's profile by an instrument."""
    from rooflab.studies.faults import COLUMNS as REPORTED

    columns = {
        "gate": ("refused", "when", "sentence"),
        "sanitizer": REPORTED,
        "checks": ("quantity", "value"),
    }
    usual = studies.get(study).profile_columns(tool, metrics)
    return ["case", *columns.get(tool, usual), "identity", "run"]


def _profile(study: str, cases: Sequence[Case], tool: str, metrics: Sequence[str] | None) -> pd.DataFrame:
    if tool == "gate":
        return studies.get(study).verdicts(cases)
    if tool == "sanitizer":
        from rooflab.studies.faults import verdicts as reports

        return reports(cases)
    if tool == "checks":
        return studies.get(study).checks(cases)
    from rooflab.profile import cupti, ncu, nsys

    ids, of = [case.id for case in cases], studies.get(study)
    if tool == "ncu":
        frames = []
        ways = {case.id: (case.cache or "cold", of.replay(case)) for case in cases}
        for cache, replay in sorted(set(ways.values())):
            chosen = [case for case, way in ways.items() if way == (cache, replay)]
            frames.append(ncu.run(study, chosen, metrics or ncu.BASIC, cache, replay=replay))
        return of.trimmed(tool, pd.concat(frames, ignore_index=True), metrics)
    run = nsys.run if tool == "nsys" else cupti.run
    return of.trimmed(tool, run(study, ids, repeat=of.trace_repeats), metrics)


# --- recording ----------------------------------------------------------------------------------------------


def record(
    names: Iterable[str],
    effort: str = "full",
    say: Callable[[str], None] | None = None,
    seconds: float = math.inf,
) -> list[str]:
    """Measure every case and profile of the named studies or lessons ("01") into $ROOFLAB_STORE.

    Rows are kept as they are measured; what is fresh is not measured again. Once `seconds` have passed
    OutOfTime is raised between two comparisons. Returns one sentence per profile that could not be taken (a
    missing tool or permission), which a recording can live without. Processes on several GPUs may record into
    one store; UsageError for a study that another one is recording.
    """
    lab = open("live", effort=effort)
    lab.until = time.monotonic() + seconds
    if say is not None:
        lab.say = say
    # `rooflab trace` records what hangs on no GPU, on any machine.
    wanted = [study for study in _studies(names) if not study.everywhere]
    if wanted:
        require_gpu()
    with ExitStack() as claims:
        held = {}
        for study in wanted:
            held[study.name] = _claim(lab.store, study.name)
            claims.callback(held[study.name].release)
        try:
            return _record(lab, wanted, held)
        finally:
            lab.close()


def _record(lab: Lab, wanted: Sequence[Study], claims: Mapping[str, FileLock]) -> list[str]:
    troubles = []
    lab.start()
    # All of them first, for a study's own few would wait for the slowest with most cores idle.
    _compile_ahead([(study, lab.cases(study.name)) for study in wanted], _arch())
    for study in wanted:
        _wait_for_others(lab, study)
        began = time.monotonic()
        lab.measure(study.name, lab.cases(study.name))
        for tool, cases, metrics in study.profiles(lab.effort, lab.sized):
            lab._in_time()
            try:
                lab.take_profile(study.name, cases, tool, metrics)
                lab.say(f"{study.name} profile {tool}: {len(cases)} cases")
            except MissingTool as error:
                troubles.append(f"{study.name}, {tool}: {error}")
        lab.say(f"{study.name} took {time.monotonic() - began:.0f} s")
        claims[study.name].release()
    lab._rederive()  # for rows of a process that was killed before it could
    return troubles


def _claim_on(store: Store, study: str) -> FileLock:
    store.folder.mkdir(parents=True, exist_ok=True)
    return FileLock(store.folder / f".{study}.lock")


def _claim(store: Store, study: str) -> FileLock:
    """Take a study for this process to record: two that measure it would do so twice."""
    mine = _claim_on(store, study)
    try:
        mine.acquire(timeout=1)  # who only looks whether it is taken holds it for a moment
    except Timeout:
        raise UsageError(
            f"Another process records {study} into {store.folder} already: name other studies for this one."
        ) from None
    return mine


def _wait_for_others(lab: Lab, study: Study) -> None:
    """Wait for what a study is predicted from, where another process records it just now; OutOfTime if that
    takes longer than there is, or ends before it is complete. Nobody waits for one that waits for him: every
    process records in one order, and lets go of what it is done with.
    """
    for name in study.after:
        theirs = _claim_on(lab.store, name)
        try:
            theirs.acquire(timeout=0)
        except Timeout:
            lab.say(f"{study.name} waits for {name}, which another process records")
            left = lab.until - time.monotonic()
            with suppress(Timeout):
                theirs.acquire(timeout=max(0.0, left) if math.isfinite(left) else -1)
            if not theirs.is_locked or lab.lacks(studies.get(name)):
                raise OutOfTime(
                    f"{study.name} is predicted from {name}, which is not complete; the same command goes on."
                ) from None
        finally:
            theirs.release()


def _studies(names: Iterable[str]) -> Iterator[Study]:
    wanted = list(names)
    every = studies.names()
    for name in every:
        study = studies.get(name)
        if not wanted or name in wanted or study.lesson in wanted:
            yield study
    known = {*every, *(studies.get(name).lesson for name in every)}
    for name in wanted:
        if name not in known:
            raise UsageError(f"There is no study or lesson {name!r}; there are {', '.join(sorted(known))}.")


_SAY_EVERY_S = 3.0


def freshness(device: str, say: Callable[[str], None] = lambda line: None) -> list[Finding]:
    """Everything wrong with data/<device> (or the folder `device`): incomplete, ungated, stale or
    implausible.

    With NVRTC installed every rung is compiled again for the recorded GPU and its machine code compared;
    without it only sources and launch rules are. That takes minutes the first time; `say` gets progress.
    """
    store = _opened(device)
    try:
        runs, bandwidth = store.runs(), store.read("bandwidth")
    except UsageError:  # the tables say themselves what is wrong with them
        return validate(store.folder)
    told = time.monotonic()
    capability = str(runs["compute_capability"].iloc[-1]) if len(runs) else ""
    arch: str | None = capability.replace(".", "") or None
    try:
        from rooflab.runtime.nvrtc import compiler_version

        compiler_version()
    except MissingTool:
        arch = None
    spec = devices.match(str(runs["gpu"].iloc[-1])) if len(runs) else None
    sized = spec or (_unlisted(runs.iloc[-1]) if len(runs) else None)
    efforts = {str(e) for e in runs["effort"]} if len(runs) else {"full"}
    effort = "full" if "full" in efforts else "quick"

    newer: dict[str, set[str]] = {}  # rungs that a table has no row of yet, by the table's file

    def recordable(study: str, cases: list[Case], file: str) -> list[Case]:
        """`cases` without those of newer rungs, which are noted; of a missing or damaged file validate says
        what is wrong.
        """
        try:
            held = pd.read_csv(store.folder / file, usecols=["case"], dtype=str)["case"].dropna()
        except (OSError, ValueError):
            return cases
        lacking = studies.get(study).not_yet_measured(cases, held)
        newer.setdefault(file, set()).update(lacking.values())
        return [case for case in cases if case.id not in lacking]

    def expected(study: str) -> list[Case]:
        cases = studies.get(study).cases(effort, sized) if study in studies.names() else []
        return recordable(study, cases, f"{study}.csv")

    def identity(case: Case) -> str | None:
        nonlocal told
        if case.study not in studies.names() or case.kind != "own":
            return None  # a library's version is what it was on the recording machine
        if time.monotonic() - told > _SAY_EVERY_S:
            told = time.monotonic()
            say(f"comparing the code of every case with the recorded one: {case.study}, {case.id}")
        return studies.get(case.study).identity(case, arch)

    found = roofs(bandwidth)
    measured = [study for study in studies.names() if not studies.get(study).everywhere]
    wanted = {}
    for study in measured:
        for tool, cases, metrics in studies.get(study).profiles(effort, sized):
            cases = recordable(study, cases, f"profiles/{study}_{tool}.csv")
            wanted[f"{study}_{tool}.csv"] = (_columns(study, tool, metrics), [case.id for case in cases])
    stale = []
    with as_on(spec.slug if spec else None, capability.replace(".", "") or "90"):
        for path in sorted((store.folder / "profiles").glob("*.csv")):
            study = path.stem.rpartition("_")[0]
            with suppress(UsageError):  # what is damaged, validate says
                table = recorded.texts(path)
                for case, held in sorted(set(zip(table["case"], table["identity"], strict=True))):
                    now = None if held.startswith(SKIPPED) else identity(studies.get(study).case(case))
                    if now is not None and not fresh(held, now):
                        sentence = f"{case} is stale: profiled as {held}, its code is now {now}."
                        stale.append(Finding("error", f"profiles/{path.name}", sentence))
        cpu, reports = studies.get("static"), static.read()["case"]
        newer["cpu/static.csv"] = set(cpu.not_yet_measured(cpu.cases(), reports).values())
        ceilings_found = {key: value.value for key, value in found.items()}
        stale += validate(store.folder, measured, expected, identity, ceilings_found, wanted)
    return stale + [
        Finding("warning", file, f"not yet measured: {', '.join(sorted(names))}.")
        for file, names in newer.items()
        if names
    ]
