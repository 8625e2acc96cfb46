"""What this course asked of itself before it was built, and what it reaches: floors that had to be met, aims
that were hoped for. The bars are those of the H200; on another GPU they say how far it is from that one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd

from rooflab import paths
from rooflab.claims import UNMEASURED, Claim, NoEvidence, judge, least, less, more, most
from rooflab.claims import attention as claims_attention
from rooflab.claims import engine as claims_engine
from rooflab.claims import int4 as claims_int4
from rooflab.claims import q8_0 as claims_q8
from rooflab.claims.scorecard import Asked, Measure
from rooflab.claims.shelf import Shelf
from rooflab.ops import attention as ops_attention
from rooflab.studies import gemv as study_gemv
from rooflab.studies import mutations

GPU = "NVIDIA H200"
FLOOR, AIM, RULE = "floor", "aim", "rule"
MET, MISSED, OPEN = "met", "missed", "not recorded"
COLUMNS = ("lesson", "kind", "says", "asked", "reached", "value", "verdict")


class Goal(NamedTuple):
    """A floor, an aim or a rule of the house: the lesson, what it speaks of, and how it is tested."""

    lesson: str
    kind: str
    says: str
    test: Asked


def judged(goal: Goal, shelf: Shelf) -> dict[str, object]:
    """A goal's row: COLUMNS."""
    asked = goal.test.bar.text(goal.test.form)
    row = {"lesson": goal.lesson, "kind": goal.kind, "says": goal.says, "asked": asked}
    try:
        value = float(goal.test.measure(shelf))
    except NoEvidence as missing:
        return {**row, "reached": str(missing), "value": float("nan"), "verdict": OPEN}
    if value != value:
        return {**row, "reached": f"{goal.test.quantity} was not recorded", "value": value, "verdict": OPEN}
    met = MET if goal.test.bar.met(value) else MISSED
    return {**row, "reached": goal.test.form.format(value), "value": value, "verdict": met}


def board(shelf: Shelf) -> pd.DataFrame:
    """Every goal with what is reached, a row each: COLUMNS."""
    rows = [judged(goal, shelf) for goal in GOALS]
    rows += [
        *_of_claims("08", claims_engine.GOALS, shelf, _engine),
        *_of_claims("04", claims_int4.GOALS, shelf, _int4),
        *_of_claims("05", claims_q8.GOALS, shelf, _q8),
    ]
    rows += _attention(shelf)
    order = {kind: place for place, kind in enumerate((FLOOR, AIM, RULE))}
    rows.sort(key=lambda row: (str(row["lesson"]), order[str(row["kind"])]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


# --- goals that lessons hold as claims ----------------------------------------------------------------------


def _of_claims(
    lesson: str, claims: tuple[Claim, ...], shelf: Shelf, gather: Callable[[Shelf], object]
) -> Iterator[dict[str, object]]:
    evidence = None
    for claim in claims:
        row: dict[str, object] = {
            "lesson": lesson,
            "kind": claim.where,
            "says": f"{claim.says}: {claim.quantity}",
        }
        row["asked"] = claim.predicted.text(claim.form)
        try:
            if evidence is None:
                evidence = gather(shelf)
            found = judge(claim, evidence)
            word, measured, value = found.word, found.measured, found.value
        except (NoEvidence, KeyError) as missing:
            word, measured, value = UNMEASURED, str(missing), float("nan")
        verdict = OPEN if word == UNMEASURED else MET if claim.predicted.met(value) else MISSED
        yield {**row, "reached": measured, "value": value, "verdict": verdict}


def _int4(shelf: Shelf) -> pd.DataFrame:
    """Rows of what the dispatcher chooses: at each point the fastest own, the baselines and the peers."""
    rows = shelf.rows("int4", operator="int4", cache="cold", clock="graph")
    rows = rows[rows["median_us"].notna() & ~rows["options"].fillna("").str.contains("loop=|seed=")]
    keys = ["n", "k", "batch"]
    own = rows[rows["kind"] == "own"].sort_values("median_us", kind="stable").drop_duplicates(keys)
    return pd.concat([own, rows[rows["kind"] != "own"]], ignore_index=True)


def _q8(shelf: Shelf) -> claims_q8.Evidence:
    decode = shelf.rows("q8_0", operator="q8_0", cache="cold", options=lambda text: not text)
    prompts = shelf.rows("mmq", cache="cold", options=lambda text: not text)
    return claims_q8.Evidence(decode, prompts, bool(shelf.spec and shelf.spec.has_hopper))


def _engine(shelf: Shelf) -> claims_engine.Evidence:
    """The recorded rows of studies decode and prefill, and what was asked beside."""

    def table(study: str, *tools: str) -> pd.DataFrame:
        for tool in tools:
            try:
                return shelf.table(study, tool)
            except NoEvidence:
                continue
        return pd.DataFrame(columns=["case", "quantity", "value", "family", "us"])

    decode, prefill = shelf.store.read("decode"), shelf.store.read("prefill")
    answers, memory = table("decode", "checks"), table("prefill", "checks")
    return claims_engine.Evidence(decode, prefill, answers, memory, table("prefill", "nsys", "cupti"))


def _attention(shelf: Shelf) -> list[dict[str, object]]:
    try:
        found = claims_attention.asked(shelf.rows("attention")).set_index("what")
    except NoEvidence:
        found = pd.DataFrame()
    rows: list[dict[str, object]] = []
    for goal in claims_attention.goals():
        for kind, bar in ((FLOOR, goal.floor), (AIM, goal.aim)):
            if bar is None:
                continue
            lower = goal.unit == "µs"
            row: dict[str, object] = {"lesson": "06", "kind": kind, "says": f"Attention, {goal.what}"}
            row["asked"] = f"{'≤' if lower else '≥'} {bar:g} {goal.unit}"
            if goal.what in found.index:
                value = float(found["reached"][goal.what])
                met = value <= bar if lower else value >= bar
                row |= {"reached": f"{value:.3g} {goal.unit} ({found['impl'][goal.what]})", "value": value}
                row["verdict"] = MET if met else MISSED
            else:
                row |= {"reached": "no row in study attention", "value": float("nan"), "verdict": OPEN}
            rows.append(row)
    return rows


# --- the others ---------------------------------------------------------------------------------------------

_US, _TBS, _SHARE, _TIMES, _TOKENS = "{:.2f} µs", "{:.2f} TB/s", "{:.1%}", "{:.2f}×", "{:,.0f} tok/s"


def _ceiling(name: str) -> Measure:
    return lambda shelf: shelf.ceiling(name) / 1e3


def _fp32(n: int, column: str) -> Measure:
    return lambda shelf: float(
        shelf.best("gemv", operator="gemv", n=n, k=n, cache="cold", clock="graph")[column]
    )


def _rows_us(n: int, k: int) -> Measure:
    return lambda shelf: float(
        shelf.best("gemv", operator="gemv_rows", n=n, k=k, cache="cold", clock="graph")["median_us"]
    )


def _over_cublas(n: int, k: int) -> Measure:
    return lambda shelf: (
        shelf.us("gemv", operator="gemv_rows", impl="torch.matmul", n=n, k=k, cache="cold", clock="graph")
        / _rows_us(n, k)(shelf)
    )


def _least_over_cublas(shelf: Shelf) -> float:
    """The smallest gain over cuBLAS on any recorded shape of the FP16 ladder's families."""
    rows = shelf.rows("gemv", operator="gemv_rows", cache="cold", clock="graph")
    gains = []
    for _, here in rows.groupby(["n", "k"]):
        own, peer = here[here["kind"] == "own"], here[here["impl"] == "torch.matmul"]
        if len(own) and len(peer):
            gains.append(float(peer["median_us"].min() / own["median_us"].min()))
    if not gains:
        raise NoEvidence("no FP16 product beside cuBLAS in study gemv")
    return min(gains)


def _roof_of(n: int, k: int) -> Measure:
    return lambda shelf: float(
        shelf.best("gemv", operator="gemv_rows", n=n, k=k, cache="cold", clock="graph")["roof_fraction"]
    )


def _small_gain(shelf: Shelf) -> float:
    """The smallest gain over cuBLAS on matrices of 8 MB and less."""
    rows = shelf.rows("gemv", operator="gemv_rows", cache="cold", clock="graph")
    small = rows[(rows["n"].astype(float) * rows["k"].astype(float) * 2 <= 8.4e6)]
    gains = [
        float(
            here[here["impl"] == "torch.matmul"]["median_us"].min()
            / here[here["kind"] == "own"]["median_us"].min()
        )
        for _, here in small.groupby(["n", "k"])
    ]
    if not gains:
        raise NoEvidence("no FP16 product of 8 MB or less in study gemv")
    return min(gains)


def _check(question: str, quantity: str, how: str = "max") -> Measure:
    return lambda shelf: float(getattr(shelf.answer("decode", question, quantity), how)())


def _kilobytes(pattern: str, root: str) -> Measure:
    def measure(shelf: Shelf) -> float:
        files = [path for path in (paths.ROOT / root).rglob(pattern) if path.is_file()]
        if not files:
            raise NoEvidence(f"no {pattern} in {root}")
        return max(path.stat().st_size for path in files) / 1000

    return measure


def _megabytes(shelf: Shelf) -> float:
    return sum(path.stat().st_size for path in paths.DATA.rglob("*") if path.is_file()) / 1e6


def _recording_minutes(shelf: Shelf) -> float:
    """Minutes in which at least one run of the recording was under way: two GPUs may record side by side."""
    runs = shelf.runs
    times = pd.DataFrame(
        {name: pd.to_datetime(runs[name], errors="coerce") for name in ("started", "finished")}
    )
    times = times.dropna().sort_values("started")
    if times.empty:
        raise NoEvidence("no finished run")
    seconds, until = 0.0, times["started"].iloc[0]
    for began, ended in zip(times["started"], times["finished"], strict=True):
        seconds += max(0.0, (ended - max(began, until)).total_seconds())
        until = max(until, ended)
    return seconds / 60


def _spills(shelf: Shelf) -> float:
    return float((shelf.static["spill_bytes"].astype(float) > 0).sum())


def _fewest_exercises(shelf: Shelf) -> float:
    """The smallest number of exercises of a lesson, over all its parts."""
    found: dict[str, int] = {}
    for path in sorted(paths.NOTEBOOKS.glob("[0-9][0-9]*_*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        number = path.name[:2]
        count = sum(
            "exercises.check(" in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
        )
        found[number] = found.get(number, 0) + count
    return float(min(found.values()))


def _survivors(shelf: Shelf) -> float:
    table = shelf.mutants
    return float(mutations.is_open(table[table["killed"] == ""]).sum())


def _portable_attention(shelf: Shelf) -> float:
    rows = shelf.rows("attention", operator="attention", kind="own")
    return float(len(set(rows["impl"]) - set(ops_attention.HOPPER)))


_ROOF = f"{study_gemv.SIZES[-1]} × {study_gemv.SIZES[-1]}"
GOALS: tuple[Goal, ...] = (
    Goal("01", FLOOR, "Read-only roof", Asked("read roof", _TBS, least(4.50), _ceiling("dram_read"))),
    Goal("01", FLOOR, "Copy", Asked("copy roof", _TBS, least(4.2), _ceiling("dram_copy"))),
    Goal("03", FLOOR, "FP32, 4096 × 4096", Asked("time", _US, most(19), _fp32(4096, "median_us"))),
    Goal("03", AIM, "FP32, 4096 × 4096", Asked("time", _US, most(17.2), _fp32(4096, "median_us"))),
    Goal(
        "03",
        AIM,
        f"FP32, {_ROOF}: share of the read roof",
        Asked("share", _SHARE, least(0.95), _fp32(8192, "roof_fraction")),
    ),
    Goal(
        "03",
        FLOOR,
        "FP16 products: never slower than cuBLAS",
        Asked("smallest gain", _TIMES, more(1 / 1.02), _least_over_cublas),
    ),
    Goal(
        "03",
        FLOOR,
        "FP16, 1536 × 1536, over cuBLAS",
        Asked("gain", _TIMES, least(1.5), _over_cublas(1536, 1536)),
    ),
    *(
        Goal("03", kind, f"FP16, {n} × {k}", Asked("time", _US, most(us), _rows_us(n, k)))
        for n, k, floor, aim in ((8960, 1536, 8.8, 8.3), (1536, 8960, 9.2, 8.5), (4096, 4096, 11, 9.8))
        for kind, us in ((FLOOR, floor), (AIM, aim))
    ),
    Goal(
        "03",
        AIM,
        "FP16, 14336 × 4096 (117 MB), over cuBLAS",
        Asked("gain", _TIMES, least(1.07), _over_cublas(14336, 4096)),
    ),
    Goal(
        "03", AIM, "FP16, 8 MB and less, over cuBLAS", Asked("smallest gain", _TIMES, least(2.0), _small_gain)
    ),
    Goal(
        "03",
        AIM,
        "FP16, 28672 × 8192: share of the read roof",
        Asked("share", _SHARE, least(0.97), _roof_of(28672, 8192)),
    ),
    Goal(
        "08",
        FLOOR,
        "Distinct results of 1000 generations",
        Asked("distinct", "{:.0f}", most(1), _check("repeated", "distinct")),
    ),
    Goal(
        "08",
        FLOOR,
        "Memory gone after 10,000 steps",
        Asked("bytes", "{:,.0f}", most(0), _check("long", "bytes gone")),
    ),
    Goal(
        "08",
        FLOOR,
        "Wrong inputs that change what comes after",
        Asked("changed", "{:.0f}", less(1), _check("refused", "changed afterwards")),
    ),
    Goal(
        "house",
        RULE,
        "Own timed rows within their error budget",
        Asked("share", _SHARE, least(1), lambda shelf: _gated(shelf)),
    ),
    Goal(
        "house",
        RULE,
        "Rungs that spill registers, on any declared chip",
        Asked("rungs", "{:.0f}", less(1), _spills),
    ),
    Goal(
        "house",
        RULE,
        "Planted faults that survive and are not equivalent",
        Asked("mutants", "{:.0f}", less(1), _survivors),
    ),
    Goal(
        "house",
        RULE,
        "A recording of everything",
        Asked("minutes", "{:.1f} min", most(25), _recording_minutes),
    ),
    Goal(
        "house",
        RULE,
        "The largest table of data/",
        Asked("kB", "{:.0f} kB", most(400), _kilobytes("*.csv", "data")),
    ),
    Goal("house", RULE, "data/ in all", Asked("MB", "{:.1f} MB", most(10), _megabytes)),
    Goal(
        "house",
        RULE,
        "Exercises of a lesson, at least",
        Asked("exercises", "{:.0f}", least(3), _fewest_exercises),
    ),
)


def _gated(shelf: Shelf) -> float:
    rows = shelf.own_timed().dropna(subset=["error_budget"])
    return float((rows["error"] <= rows["error_budget"]).mean())
