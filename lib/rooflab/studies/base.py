"""What every study has in common: cases in groups, contestants through the gate and the clock, rows out.

A study says which cases a lesson measures, builds the contestants of a case (buffers, launcher, oracle),
counts the bytes and FLOPs a case is charged with, and predicts its time before it is measured. Everything
else is here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol

import pandas as pd

from rooflab import ops
from rooflab.bench import clock, gate
from rooflab.errors import LaunchError, MissingTool
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.ops import Rung
from rooflab.profile.ncu import BASIC
from rooflab.profile.trace import Trace
from rooflab.records.case import Case, parse_options
from rooflab.records.fingerprint import fresh
from rooflab.studies import buffers
from rooflab.studies.timing import reason_of, timed, turn

# A profiler or another instrument of a recording, the cases it sees, its metrics or None for its usual ones.
Profile = tuple[str, list[Case], Sequence[str] | None]
# Rung, macros and launch rule of an own case.
Described = tuple[Rung, Mapping[str, int], str]


# What a study's prediction is, as words around a time, where it is not the data sheet's bound.
FORETOLD, LITTLE = "predicted {} µs", "at least {} µs (Little's law)"
TOO_LARGE = "it needs"  # so many GiB: how the reason begins why a case is skipped for its memory


class Sized(Protocol):
    """What the list of cases depends on: a Device, or just the number of SMs of one that the table lacks."""

    @property
    def sms(self) -> int: ...


class Unlisted(NamedTuple):
    """A GPU that the table of devices lacks, as its driver describes it; memory in 10^9 bytes, `sm` its
    architecture as compilers name it, "89".
    """

    sms: int
    memory_gb: float | None = None
    sm: str = ""

    @property
    def has_hopper(self) -> bool:
        """Whether sm_90a code runs on it, as far as is known."""
        return self.sm in ("", "90")


class Count(NamedTuple):
    """What a case is charged with by the written convention (rooflab.hardware.roofline): bytes, FLOPs, and
    its ceiling's name.
    """

    bytes: int | None
    flops: int | None
    roof: str


@dataclass(frozen=True)
class Context:
    """What a prediction may use: the device's constants, and what was measured on it before."""

    device: Device | None = None
    sms: int | None = None
    pcie_gb_s: float | None = None
    latency_ns: float | None = None
    effort: str = "full"
    gpus: int = 1


@dataclass
class Outcome:
    """What became of a group: rows to record, and the names of what was skipped with the reason."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def tunables(case: Case) -> dict[str, int]:
    """A case's options as whole numbers."""
    return {name: int(value) for name, value in parse_options(case.options).items()}


def macros_of(case: Case, *others: str) -> dict[str, int]:
    """A case's options as macros of its rung, without the `others`, which are no macros."""
    return {name.upper(): value for name, value in tunables(case).items() if name not in others}


def from_l2(case: Case, moved: int, device: Device) -> bool:
    """Whether a case reads its bytes from the L2, of whose bandwidth the datasheet says nothing."""
    return case.cache == "warm" and moved <= device.l2_mb * 2**20


def package_identity(*packages: str) -> str:
    """Identity of a library's rows: names and versions, "torch-2.11.0"."""
    found = []
    for package in packages:
        try:
            found.append(f"{package}-{version(package).split('+')[0]}")
        except PackageNotFoundError:
            found.append(f"{package}-none")
    return "+".join(found)


class Study:
    """One table of the recording. Subclasses fill in the class attributes and the methods that raise here."""

    name: str = ""
    lesson: str = ""
    needs_gpu: bool = True
    gpus: int = 1  # the least that it measures on; of several GPUs there is a recording of its own, h200-x2
    everywhere: bool = False  # its table depends on no device: one record in data/cpu, read in every mode
    # Studies that its predictions are made from: it is not recorded while another process still records one.
    after: tuple[str, ...] = ()
    trace_repeats: int = 20  # launches of each case that a tracer sees
    # What a case took on the H200 beside the clock, for estimates: buffers, gate before and after; one check.
    setup_s: float = 0.45
    check_s: float = 0.4
    # Operators whose checks read time, power or free memory, which other processes on the GPU would change.
    # None: run every check of the study alone.
    checks_apart: Sequence[str] | None = None

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        """Every case this study records at this effort, "full" or "quick"."""
        raise NotImplementedError

    def case(self, case_id: str) -> Case:
        """The case with this id, which need not be one of `cases`."""
        return Case.parse(self.name, case_id)

    def needs(self, case: Case) -> str | None:
        """Name of the package a case needs beyond CuPy, such as "torch", or None."""
        return "torch" if case.impl.startswith("torch.") else None

    def refuses(self, case: Case, capability: int) -> str | None:
        """Why this case cannot run on a GPU of that compute capability (90 for 9.0), or None if it can."""
        if case.clock == "graph_pdl" and capability < 90:
            return "programmatic dependent launch needs compute capability 9.0"
        return None

    def why_not(self, case: Case, arch: str) -> str | None:
        """Why this case cannot run on the GPU at hand, of `arch`: it is of another generation, or a package
        is not installed; None if it can, memory permitting.
        """
        package = self.needs(case)
        if refusal := self.refuses(case, int(arch)):
            return refusal
        missing = package is not None and importlib.util.find_spec(package) is None
        return f"{package} is not installed" if missing else None

    def copies(self, case: Case) -> int:
        """Copies of the operands that a case rotates over."""
        return buffers.copies(case, self.count(case).bytes or 0)

    def memory_bytes(self, case: Case) -> int:
        """GPU memory of the case's own buffers: here all copies of what it is charged with."""
        return self.copies(case) * (self.count(case).bytes or 0)

    def shared_bytes(self, case: Case) -> int:
        """GPU memory of the buffers that the contestants of the case's group share."""
        return 0

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        """One contestant for each case, in the order of `groups`."""
        return [work for group in self.groups(cases) for work in self.works(group)]

    def works(self, group: Sequence[Case]) -> list[gate.Work]:
        """The contestants of one group, on shared inputs; outputs are each one's own."""
        raise NotImplementedError

    def count(self, case: Case) -> Count:
        """Bytes, FLOPs and roof of a case."""
        raise NotImplementedError

    def predict(self, case: Case, context: Context) -> float | None:
        """The case's bound in microseconds, computed before it is measured: here its bytes at the datasheet's
        bandwidth; None where no bound is known.
        """
        count, device = self.count(case), context.device
        if count.bytes is None or device is None or from_l2(case, count.bytes, device):
            return None
        return count.bytes / device.dram_gb_s / 1e3

    def foretold(self, case: Case) -> str:
        """What `predict` gives of a case, as words around a time."""
        return "at least {} µs (data sheet)"

    @staticmethod
    def own_rung(case: Case) -> Described:
        """Rung, macros and launch rule of an own case: of its operator's ladder, its options as macros."""
        module = ops.module_of(case.operator)
        rung = ops.rung_of(module.LADDERS[case.operator], case.impl, "")
        return rung, rung.with_defaults(macros_of(case)), module.launch_rule(rung)

    def rung(self, case: Case) -> Described | None:
        """Rung, macros and launch rule of an own case; None for peers and baselines."""
        return self.own_rung(case) if case.kind == "own" else None

    def builds(self, case: Case) -> list[tuple[Rung, Mapping[str, int]]]:
        """The rungs, with their macros, that a case launches: a recording compiles them ahead, on all cores.
        None where a study does not say; they are compiled when they are launched.
        """
        described = self.rung(case)
        return [] if described is None else [described[:2]]

    def samples(self, case: Case) -> int:
        """How many samples a clock takes of a case: by the graph clock each is a mean over a chain, and in a
        named state each costs a rest or a neighbour. With 5 instead of 10 as many medians repeated on another
        H200 within 10 %: 99.5 and 99.6 % of some 2,700.
        """
        return 5 if case.state else 10 if case.clock.startswith("graph") else 20

    def launch_us(self, case: Case, device: Device) -> float:
        """About what one launch takes on `device`, for estimates: half as long again as its bound."""
        return 1.5 * (self.predict(case, Context(device=device)) or 2.0)

    def seconds(self, case: Case, device: Device) -> float:
        """About how long measuring a case takes, once what its library compiles is there."""
        launch_us, samples = self.launch_us(case, device), self.samples(case)
        return self.setup_s + clock.seconds(launch_us, samples, case.clock, case.state)

    def group(self, case: Case) -> tuple:
        """Cases with equal keys are contestants of one comparison: measured interleaved in one process."""
        return (case.operator, case.format, case.n, case.k, case.batch, case.cache, turn(case))

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        """What a recording holds beside the timings."""
        return []

    @contextmanager
    def watch(self, gpu: Any, case_ids: Sequence[str], whole: bool) -> Iterator[bool]:
        """Around the launches that a profiler sees (`gpu` is rooflab.profile.child.Gpu): a study whose
        launches have parts names them by gpu.push and gpu.pop. Gives True if the study opens and closes the
        profiler's range itself, around the parts worth counting; never where one range is around all
        (`whole`).
        """
        yield False

    def profile_columns(self, tool: str, metrics: Sequence[str] | None) -> tuple[str, ...]:
        """What a recorded profile holds of a launch (ncu) or an activity (nsys, cupti), beside the case."""
        if tool == "ncu":
            return ("kernel", "grid", "block", *(metrics or BASIC))
        return ("kind", "short", "duration_ns", "grid", "block", "bytes")

    def trimmed(self, tool: str, found: Trace | pd.DataFrame, metrics: Sequence[str] | None) -> pd.DataFrame:
        """What a recording keeps of a Trace or of ncu's launches: the case and `profile_columns`."""
        frame = found.activities if isinstance(found, Trace) else found
        return frame[["case", *self.profile_columns(tool, metrics)]]

    def verdicts(self, cases: Sequence[Case]) -> pd.DataFrame:
        """The instrument "gate": (case, refused, when, sentence), a row for each case that must be refused or
        let pass.
        """
        raise NotImplementedError

    def checks(self, cases: Sequence[Case]) -> pd.DataFrame:
        """The instrument "checks": (case, quantity, value) rows of what a study asks beside the time."""
        raise NotImplementedError

    def timelines(self, cases: Sequence[Case]) -> pd.DataFrame:
        """The instrument "timeline": rows of when a launch's blocks pass the marks of its kernel."""
        raise NotImplementedError

    def replay(self, case: Case) -> str:
        """What ncu repeats to count more than one pass can hold, "kernel" or "application" (see
        profile.ncu.command): the second is slow, and the only way to count a case with its caches warm.
        """
        return "kernel"

    # --- what subclasses inherit ----------------------------------------------------------------------------

    def not_yet_measured(self, wanted: Iterable[Case], recorded: Iterable[str]) -> dict[str, str]:
        """Of the `wanted` cases those of rungs newer than a recording with the cases `recorded`: case id ->
        "operator/rung". Such a rung has no case there, while other contestants of its operator have.
        """
        heads = {case_id.partition(" ")[0] for case_id in recorded}
        operators = {head.partition("/")[0] for head in heads}
        names = tuple(rung.name for _, rung in ops.rungs())
        return {
            case.id: head
            for case in wanted
            if (head := f"{case.operator}/{case.impl}") not in heads
            and (case.kind, case.operator in operators) == ("own", True)
            and case.impl.endswith(names)
        }

    def recordable(self, wanted: Iterable[Case], recorded: Iterable[str]) -> list[Case]:
        """`wanted` without the cases of rungs newer than a recording: see `not_yet_measured`."""
        wanted = list(wanted)
        newer = self.not_yet_measured(wanted, recorded)
        return [case for case in wanted if case.id not in newer]

    def groups(self, cases: Iterable[Case]) -> list[list[Case]]:
        """`cases` in groups, each in the order given."""
        found: dict[tuple, list[Case]] = {}
        for case in cases:
            found.setdefault(self.group(case), []).append(case)
        return list(found.values())

    def identity(self, case: Case, arch: str | None) -> str:
        """What the case's row will be a record of; `arch` None leaves the machine code's part open."""
        described = self.rung(case)
        if described is None:
            return package_identity(self.needs(case) or "cupy-cuda13x")
        rung, options, rule = described
        return rung.identity(rule, options, arch)

    def changed(self, case: Case, recorded: str, arch: str | None) -> str | None:
        """The case's identity now where figures recorded under `recorded` are stale, else None. Compiles for
        `arch` only where the source is another, for then unchanged machine code still makes them fresh.
        """
        now = self.identity(case, None)
        if not fresh(recorded, now) and arch is not None:
            now = self.identity(case, arch)
        return None if fresh(recorded, now) else now

    def measure(self, cases: Sequence[Case], context: Context) -> Iterator[Outcome]:
        """Gate and time the cases, a group at a time; a group's rows come out as soon as it is measured."""
        for group in self.groups(cases):
            yield self.measure_group(group, context)

    def fitting(self, group: Sequence[Case]) -> tuple[list[Case], dict[str, str]]:
        """The cases of a group that can run here, and of the others, by id, why not."""
        import cupy

        ready, skipped = [], {}
        free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
        free -= self.shared_bytes(group[0])
        for case in group:
            size = self.memory_bytes(case)
            if reason := self.why_not(case, ops.this_arch()):
                skipped[case.id] = reason
            elif size > 0.9 * free:
                gib = 2**30
                skipped[case.id] = f"{TOO_LARGE} {size / gib:.1f} GiB and {max(free, 0) / gib:.1f} are free"
            else:
                free -= size
                ready.append(case)
        return ready, skipped

    def measure_group(self, group: Sequence[Case], context: Context) -> Outcome:
        """Gate and time one group of contestants; a case that cannot run here is skipped with the reason."""
        import cupy

        ready, skipped = self.fitting(group)
        outcome = Outcome(skipped=skipped)
        if not ready:
            return outcome
        works = self.contestants(ready)
        admitted: dict[str, gate.Admitted] = {}
        for case, work in zip(list(ready), works, strict=True):
            try:
                # Cases that differ in their state alone share their work, and pass the gate once.
                same = next((entry for entry in admitted.values() if entry.work is work), None)
                admitted[case.id] = same or gate.admit(work)
            except Exception as error:
                if case.kind == "own" and not isinstance(error, LaunchError):
                    raise
                # A library's kernel that is wrong or absent on this GPU gets no time; ours would be a bug,
                # unless its launcher says that this GPU cannot do it.
                ready.remove(case)
                outcome.skipped[case.id] = reason_of(error)
        if not ready:
            return outcome
        predictions = {case.id: self.predict(case, context) for case in ready}  # before anything is measured
        samples = max(self.samples(case) for case in ready)
        for together in {turn(case): None for case in ready}:
            part = [case for case in ready if turn(case) == together and case.id not in outcome.skipped]
            timings, late = timed(part, [admitted[case.id] for case in part], samples=samples)
            outcome.skipped |= late
            for case in part:
                if case.id in timings:
                    timing, predicted = timings[case.id], predictions[case.id]
                    outcome.rows.append(self.row(case, admitted[case.id], timing, predicted))
        del works, admitted
        cupy.get_default_memory_pool().free_all_blocks()
        return outcome

    def row(
        self, case: Case, admitted: gate.Admitted, timing: clock.Timing, predicted_us: float | None
    ) -> dict[str, Any]:
        """The record of one timed case."""
        count = self.count(case)
        row: dict[str, Any] = {
            **case.row(),
            "median_us": timing.median_us,
            "q1_us": timing.q1_us,
            "q3_us": timing.q3_us,
            "samples": timing.samples,
            "predicted_us": predicted_us,
            "predicted_bytes": count.bytes,
            "bytes": count.bytes,
            "flops": count.flops,
            "roof": roofline.in_state(count.roof, case.state),
            "error": admitted.error,
            "error_budget": admitted.work.budget,
            "identity": self.identity(case, ops.this_arch()),
            **(asdict(timing.reading) if timing.reading else {}),
        }
        described = self.rung(case)
        if described is not None:
            rung, options, _ = described
            resources = rung.cubin(ops.this_arch(), options).resources[rung.entry]
            row |= {
                "registers": resources.registers,
                "spill_bytes": resources.spill_bytes,
                "shared_bytes": resources.shared_bytes,
            }
        return row


def in_state(state: str, cases: Iterable[Case]) -> list[Case]:
    """`cases` of the graph clock in a named state of the GPU; those of other clocks as they are."""
    return [replace(case, state=state) if case.clock == "graph" else case for case in cases]


def require_gpu() -> None:
    """MissingTool unless CuPy is installed and sees a GPU."""
    if importlib.util.find_spec("cupy") is None:
        raise MissingTool("Measuring needs CuPy: install the gpu set, `pip install -r requirements-gpu.txt`.")
    import cupy

    if not cupy.cuda.is_available():
        raise MissingTool(
            "Measuring needs an NVIDIA GPU with a working driver; `rooflab doctor` says what is found."
        )
