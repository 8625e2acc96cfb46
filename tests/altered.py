"""Recordings of GPUs that do not exist: the committed one, changed, and called another device.

They are what a reader without an H200 may bring: other winners, other roofs, no peers, no torch, no profiler.
`write` lists the cases that such a GPU records, as `rooflab record` would, and takes each from the committed
recording: the case itself, or for a list that depends on the GPU the case that is most like it.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest import mock

from rooflab import paths, studies
from rooflab.hardware import device
from rooflab.records.case import RUN_SCHEMA, SCHEMA, Case, parse_options
from rooflab.records.csv_table import natural_key, read_table, table_text, to_text
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import Store
from rooflab.studies.bandwidth import roofs
from rooflab.studies.base import Sized, Study, Unlisted

SOURCE = paths.DATA / "h200"
RUN = read_table(SOURCE / "runs.csv", RUN_SCHEMA)[-1]["run"]  # that rows added here are of
TIMES = ("median_us", "q1_us", "q3_us")
Row = dict[str, str]


@dataclass(frozen=True)
class Recording:
    """What to make of the committed recording. `skip` gives the reason why a case was not measured, or None;
    `change` alters the timed rows of one comparison in place; `profiled` says if an instrument was there.
    """

    name: str
    gpu: str
    effort: str = "full"
    skip: Callable[[Study, Case], str | None] = lambda study, case: None
    change: Callable[[Sequence[Row]], None] = lambda rows: None
    profiled: Callable[[str], bool] = lambda tool: True
    facts: Mapping[str, str] | None = None  # of the run, beside what the GPU itself decides


def write(recording: Recording, root: Path) -> Path:
    """Write the recording into root/<its name>; that folder."""
    spec = device.match(recording.gpu)
    facts = read_table(SOURCE / "runs.csv", RUN_SCHEMA)
    sized: Sized = spec or Unlisted(int(facts[-1]["sms"]))
    store = Store(root, recording.name)
    (store.folder / "profiles").mkdir(parents=True)
    own = {"device": recording.name, "gpu": recording.gpu, "effort": recording.effort}
    if spec:
        own |= {"compute_capability": "{}.{}".format(*spec.compute_capability), "sms": str(spec.sms)}
        own |= {"l2_bytes": f"{spec.l2_mb * 2**20:.0f}", "memory_bytes": f"{spec.memory_gb * 1e9:.0f}"}
    runs = [{**run, **own, **(recording.facts or {})} for run in facts]
    (store.folder / "runs.csv").write_text(table_text(runs, RUN_SCHEMA), encoding="utf-8")
    capability = int(runs[-1]["compute_capability"].replace(".", ""))
    at_hand = (spec.slug if spec else None, str(capability))
    for name in studies.names():
        study = studies.get(name)
        if study.everywhere:
            continue

        def why(case: Case, study: Study = study) -> str | None:
            with mock.patch("rooflab.ops.this_gpu", lambda: at_hand):
                return study.refuses(case, capability) or recording.skip(study, case)

        rows = [_row(study, case, why(case)) for case in study.cases(recording.effort, sized)]
        for group in _contests(rows):
            recording.change(group)
        if rows:
            rows.sort(key=lambda row: natural_key(row["case"]))
            (store.folder / f"{name}.csv").write_text(table_text(rows, SCHEMA), encoding="utf-8")
        for tool, cases, _ in study.profiles(recording.effort, sized):
            _profile(store.folder, study, tool, cases, recording.profiled(tool), why)
    for _ in range(2):  # the first time rates, by which roofs are found; then shares of the roofs
        store.rederive(lambda: {key: roof.value for key, roof in roofs(store.read("bandwidth")).items()})
    return store.folder


def _row(study: Study, case: Case, reason: str | None) -> Row:
    """The case's row: recorded, of the case most like it, or skipped."""
    own = {name: to_text(name, SCHEMA[name], value) for name, value in case.row().items()}
    held = _recorded(study.name)
    donor = held.get(case.id)
    if donor is None and not reason:
        donor, ratio = _alike(case, held.values())
        if donor is not None:
            count = study.count(case)
            new = {"bytes": count.bytes, "predicted_bytes": count.bytes, "flops": count.flops}
            own |= {name: to_text(name, SCHEMA[name], value) for name, value in new.items()}
            own |= {name: _scaled(donor[name], ratio) for name in (*TIMES, "predicted_us")}
    if donor is None or reason:
        reason = reason or "it was not recorded"
        blank = dict.fromkeys(SCHEMA, "")
        return {**blank, **own, "identity": f"{SKIPPED}{reason}", "run": RUN}
    return {**donor, **own}


@cache
def _recorded(study: str) -> dict[str, Row]:
    return {row["case"]: row for row in read_table(SOURCE / f"{study}.csv", SCHEMA)}


def _alike(case: Case, rows: Iterable[Row]) -> tuple[Row | None, float]:
    """The timed row of the same implementation that differs in the fewest words, and how much larger the
    case is."""
    near = [row for row in rows if (row["operator"], row["impl"]) == (case.operator, case.impl)]
    near = [row for row in near if row["median_us"]]
    if not near:
        return None, 1.0
    words = set(case.id.split())
    row = min(near, key=lambda row: (len(words ^ set(row["case"].split())), natural_key(row["case"])))
    ratio = 1.0
    for name in ("n", "k"):
        mine, theirs = getattr(case, name), row[name]
        if mine and theirs:
            ratio *= mine / int(theirs)
    return row, ratio


def _scaled(value: str, factor: float) -> str:
    return to_text("median_us", SCHEMA["median_us"], float(value) * factor) if value else ""


def scale(row: Row, factor: float) -> None:
    """Multiply the row's times, and what follows from them, by a factor."""
    row.update({name: _scaled(row[name], factor) for name in TIMES})
    row["tok_s"] = to_text("tok_s", SCHEMA["tok_s"], float(row["tok_s"]) / factor) if row["tok_s"] else ""


_CONTEST = ("operator", "model", "weights", "n", "k", "batch", "seq", "heads", "head_dim", "cache", "clock")


def _contests(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Timed rows in comparisons: the same work by several implementations."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["median_us"]:
            found.setdefault(tuple(row[name] for name in _CONTEST), []).append(row)
    return found.values()


def _profile(
    folder: Path,
    study: Study,
    tool: str,
    cases: Sequence[Case],
    there: bool,
    why: Callable[[Case], str | None],
) -> None:
    """Write an instrument's table: of every case the recorded rows, or one that says why there are none."""
    header, held = _profiles(study.name, tool)
    rows: list[list[str]] = []
    for case in cases:
        reason = f"{tool} is not installed" if not there else why(case)
        found = held.get(case.id) or (_like(case, held) if not reason else [])
        if reason or not found:
            blank = {"case": case.id, "identity": f"{SKIPPED}{reason or 'it was not counted'}"}
            found = [{**dict.fromkeys(header, ""), **blank, "run": RUN}]
        rows += [[row[name] for name in header] for row in ({**row, "case": case.id} for row in found)]
    with (folder / "profiles" / f"{study.name}_{tool}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


@cache
def _profiles(study: str, tool: str) -> tuple[list[str], dict[str, list[Row]]]:
    held: dict[str, list[Row]] = {}
    with (SOURCE / "profiles" / f"{study}_{tool}.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            held.setdefault(row["case"], []).append(row)
    return list(reader.fieldnames or ()), held


def _like(case: Case, held: Mapping[str, list[Row]]) -> list[Row]:
    words = set(case.id.split())
    near = [name for name in held if name.split()[0] == case.id.split()[0]]
    return held[min(near, key=lambda name: len(words ^ set(name.split())))] if near else []


# --- the recordings -----------------------------------------------------------------------------------------


Who = tuple[str, str]


def _best(rows: Sequence[Row]) -> dict[Who, float]:
    """The best time of each contestant: what else was measured of it moves along with that."""
    best: dict[Who, float] = {}
    for row in rows:
        who = (row["impl"], row["format"])
        best[who] = min(best.get(who, float("inf")), float(row["median_us"]))
    return best


def _move(rows: Sequence[Row], times: Mapping[Who, float]) -> None:
    best = _best(rows)
    for row in rows:
        who = (row["impl"], row["format"])
        scale(row, times[who] / best[who])


def swap(rows: Sequence[Row]) -> None:
    """Turn a comparison's ranking round: the fastest contestant takes the time of the slowest."""
    best = _best(rows)
    ranked = sorted(best, key=lambda who: best[who])
    _move(rows, dict(zip(ranked, (best[who] for who in reversed(ranked)), strict=True)))


def double(rows: Sequence[Row]) -> None:
    """Everything takes twice as long."""
    for row in rows:
        scale(row, 2.0)


def level(rows: Sequence[Row]) -> None:
    """All contestants take the time of the fastest."""
    best = _best(rows)
    _move(rows, dict.fromkeys(best, min(best.values())))


def geforce(rows: Sequence[Row]) -> None:
    """About an RTX 4090's rates: DRAM a fifth, tensor cores a sixth, FP32 rather more, the launch as long."""
    for row in rows:
        roof = row["roof"]
        bound = 4.8 if roof.startswith("dram_") else 6.0 if roof.endswith("_tensor") else 0.8
        us = float(row["median_us"])
        fixed = min(2.0, us)
        scale(row, (fixed + (us - fixed) * bound) / us)
        row["predicted_us"] = _scaled(row["predicted_us"], bound)


def peerless(study: Study, case: Case) -> str | None:
    package = study.needs(case)
    return f"{package or 'cuBLAS'} is not installed" if case.kind == "peer" else None


def torchless(study: Study, case: Case) -> str | None:
    package = study.needs(case)
    return f"{package} is not installed" if package or case.impl.startswith("torch.") else None


def lacking(word: str) -> Callable[[Study, Case], str | None]:
    """Skip every case of a number format."""

    def skip(study: Study, case: Case) -> str | None:
        said = {case.format, *map(str, parse_options(case.options).values())}
        return f"{word} was left out" if any(each.startswith(word) for each in said) else None

    return skip


GEFORCE = "NVIDIA GeForce RTX 4090"
H100 = "NVIDIA H100 80GB HBM3"
_PLAIN = Recording("plain", H100)
RECORDINGS = (
    replace(_PLAIN, name="swapped", change=swap),
    replace(_PLAIN, name="doubled", change=double),
    replace(_PLAIN, name="geforce", gpu=GEFORCE, change=geforce, profiled=lambda tool: tool != "cupti"),
    replace(_PLAIN, name="no-peers", gpu="NVIDIA Unlisted 1", skip=peerless),
    replace(_PLAIN, name="no-torch", skip=torchless, facts={"torch": "", "cudnn": ""}),
    replace(_PLAIN, name="no-profiles", change=level, profiled=lambda tool: False),
    replace(_PLAIN, name="no-q8_0", skip=lacking("q8_0")),
    replace(_PLAIN, name="quick", effort="quick"),
)
