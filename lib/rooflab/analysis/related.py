"""Related work, measured: what each library is for, where it beats this course's kernels and where not.

A figure is of one of three kinds: recorded here, a row of kind "peer" or "baseline" timed in the same process
as ours; published, a row of data/published/ for the same GPU model, timed by others; or published for another
GPU, where shares of the two datasheets' bandwidths are compared, not times. A library of which none exists is
named with what it is for, and no figure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rooflab.analysis.evidence import PEERS, Evidence, NoEvidence
from rooflab.hardware import device
from rooflab.hardware.crossover import LEVEL, scattered
from rooflab.records.yaml_file import loaded
from rooflab.words import counted

HERE, PUBLISHED, ABSENT = "measured here", "published", "no figure"
OTHER = "published for another GPU, by the share of its bandwidth"
ORIGINS = (HERE, PUBLISHED, OTHER)
OURS, EVEN, OPEN, THEIRS = "ours", "level", "undecided", "theirs"  # who is faster at a point


class Library(NamedTuple):
    """A library: its name, what it is for, the rows that are its own, (study, operator, impl), and what its
    only point leaves open.
    """

    name: str
    purpose: str
    rows: tuple[tuple[str, str, str], ...] = ()
    aside: str = ""


@functools.cache
def libraries() -> tuple[Library, ...]:
    """All libraries that are compared, in order."""
    given = loaded(Path(__file__).with_name("others.yaml"))["libraries"]
    rows = [
        tuple((study, operator, impl) for study, operator, impl in each.get("rows", ())) for each in given
    ]
    return tuple(
        Library(each["name"], each["purpose"], tuple(own), each.get("aside", ""))
        for each, own in zip(given, rows, strict=True)
    )


# What makes two rows the same work; formats of these pairs are compared though they differ.
_SHAPES = {
    "int4": ("n", "k", "batch"),
    "gemv": ("n", "k"),
    "mmq": ("n", "k", "batch"),
    "attention": ("format", "seq", "heads", "kv_heads", "head_dim", "window"),
    "decode": ("model", "format", "batch", "seq"),
    "prefill": ("model", "format", "seq"),
}
_OTHER_GPUS = ("rtx-4090-peers",)
_ASIDE = "loop=|seed=|exact=|unquantised=|prepared="  # rows that answer another question
_WEIGHTS = {"int4": "INT4", "gemv": "FP16", "mmq": "Q8_0"}  # what ours multiplies by
_WAYS = {"eager": "eager", "graph": "as a graph", "compile": "compiled"}  # endings of a way to run a model
_NEAREST = {"q4_0": "int4_g128"}  # llama.cpp's 4 bits beside ours
COLUMNS = ("name", "purpose", "origin", "points", "ours", "level", "theirs", "best", "worst", "study")


def table(evidence: Evidence) -> pd.DataFrame:
    """One row a library and origin: at how many points ours is faster, level or undecided, or slower, and the
    gains of the point that is best for us and the one that is best for them (with their shapes).
    """
    rows = [one for library in libraries() for one in _of(library, evidence)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of(library: Library, evidence: Evidence) -> Iterator[dict[str, object]]:
    found = False
    for origin in ORIGINS:
        points = [point for place in library.rows for point in _points(place, evidence, origin)]
        if points:
            found = True
            yield _row(library, origin, points)
    if not found:
        yield _row(library, ABSENT, [])


def points(evidence: Evidence) -> pd.DataFrame:
    """Every comparison: name, origin, study, where (the shape in words), ours and theirs (in the row's unit),
    gain (how many times as fast ours is), and word, who is faster by it.
    """
    rows = [
        {"name": library.name, "origin": origin, **point}
        for library in libraries()
        for origin in ORIGINS
        for place in library.rows
        for point in _points(place, evidence, origin)
    ]
    columns = ["name", "origin", "study", "where", "ours", "theirs", "gain", "word"]
    return pd.DataFrame(rows, columns=columns)


def _word(gain: float, again: list[float]) -> str:
    """Who is faster at a point: level within the tie rule, and undecided where other measurements of the same
    two kernels have the other ahead.
    """
    if 1 / LEVEL <= gain <= LEVEL:
        return EVEN
    if min([gain, *again]) < 1 < max([gain, *again]):
        return OPEN
    return OURS if gain > 1 else THEIRS


def _measured_again(evidence: Evidence, study: str, impl: str) -> dict[tuple[object, ...], list[float]]:
    """How many times as fast ours is in the study of power states, a number a state, by what `_key` makes of
    a row: attention alone, of which that study times shapes of the lessons beside libraries.
    """
    if study != "attention":
        return {}
    try:
        rows = evidence.rows("power", operator=study)
    except NoEvidence:
        return {}
    rows = rows[rows["median_us"].notna() & rows["causal"].astype(str).str.lower().eq("true")]
    keys = [_key(row, study, HERE) for _, row in rows.iterrows()]
    rows = rows.assign(key=pd.Series(keys, rows.index, dtype=object))
    found: dict[tuple[object, ...], list[float]] = {}
    for key, same in rows.groupby("key", sort=False):
        for _, both in same.groupby("state", sort=False):
            own, theirs = both[both["kind"] == "own"], both[both["impl"] == impl]
            if len(own) and len(theirs):
                gain = float(theirs["median_us"].min() / own["median_us"].min())
                found.setdefault(key, []).append(gain)  # type: ignore[arg-type]
    return found


def _points(place: tuple[str, str, str], evidence: Evidence, origin: str) -> list[dict[str, object]]:
    study, operator, impl = place
    if origin == OTHER:
        return _shares(place, evidence)
    kernels = study in ("int4", "gemv", "mmq", "attention")
    try:
        mine = _own(study, operator, evidence)
        theirs = (
            evidence.rows(study, operator=operator, impl=impl)
            if origin == HERE
            else _elsewhere(study, operator, impl, evidence)
        )
    except NoEvidence:
        return []
    if origin == HERE and kernels:
        theirs = theirs[(theirs["cache"] == "cold") & (theirs["clock"] == "graph")]
    again = _measured_again(evidence, study, impl) if origin == HERE else {}
    found: list[dict[str, object]] = []
    for _, row in theirs.iterrows():
        column = "tok_s" if not kernels else "tflop_s" if pd.isna(row["median_us"]) else "median_us"
        key = _key(row, study, origin)
        known = mine[column].get(key)
        if known is None or pd.isna(row[column]):
            continue
        value = float(row[column])
        gain = value / known if column == "median_us" else known / value
        point = {"study": study, "where": _where(row, study), "ours": known, "theirs": value, "gain": gain}
        wide = column == "median_us" and scattered(row)
        point["aside"] = f", quartiles {(row['q3_us'] - row['q1_us']) / value:.0%} apart" if wide else ""
        found.append(point | {"word": _word(gain, again.get(key, []))})
    return found


def _shares(place: tuple[str, str, str], evidence: Evidence) -> list[dict[str, object]]:
    """Comparisons with figures of another GPU: ours and theirs are shares of what the datasheet says that the
    memory could give.
    """
    study, operator, impl = place
    here = device.match(evidence.gpu)
    found: list[dict[str, object]] = []
    for name in _OTHER_GPUS:
        there = device.match(str(evidence.published(name).runs()["gpu"].iloc[0]))
        try:
            rows, mine = evidence.published_rows(name, study), _own(study, operator, evidence)["gb_s"]
        except NoEvidence:
            continue
        for _, row in rows[(rows["operator"] == operator) & (rows["impl"] == impl)].iterrows():
            known = mine.get(_key(row, study, PUBLISHED))
            if known is None or here is None or there is None or pd.isna(row["gb_s"]):
                continue
            ours, theirs = known / here.dram_gb_s, float(row["gb_s"]) / there.dram_gb_s
            where = f"{_where(row, study)}: {theirs:.0%} of the {there.name}'s, ours {ours:.0%}"
            gain = ours / theirs
            point = {"study": study, "where": where, "ours": ours, "theirs": theirs, "gain": gain}
            found.append(point | {"word": _word(gain, [])})
    return found


def _elsewhere(study: str, operator: str, impl: str, evidence: Evidence) -> pd.DataFrame:
    return evidence.rows(study, device=PEERS, operator=operator, impl=impl)


@functools.lru_cache(maxsize=64)  # asked for every library, of which many have the same rivals
def _own(study: str, operator: str, evidence: Evidence) -> dict[str, dict[tuple[object, ...], float]]:
    """Our best figure at every shape: by column, then by what `_key` makes of a row."""
    rows = evidence.rows(study, kind="own")
    if study in ("int4", "gemv", "mmq", "attention"):
        rows = rows[(rows["cache"] == "cold") & (rows["clock"] == "graph")]
    if study not in ("int4", "mmq"):
        rows = rows[rows["operator"] == operator]
    rows = rows[~rows["options"].fillna("").astype(str).str.contains(_ASIDE)]
    best: dict[str, dict[tuple[object, ...], float]] = {
        name: {} for name in ("median_us", "tflop_s", "tok_s", "gb_s")
    }
    for _, row in rows.iterrows():
        key = _key(row, study, HERE)
        for column, known in best.items():
            if pd.notna(row[column]):
                pick = min if column == "median_us" else max
                known[key] = pick(known.get(key, float(row[column])), float(row[column]))
    return best


_USUAL = {"decode": 128, "prefill": 1848}  # tokens of the prompts that published figures are held against


def _key(row: pd.Series, study: str, origin: str) -> tuple[object, ...]:
    """What makes two rows the same work."""
    values: list[object] = []
    for name in _SHAPES[study]:
        value = row[name]
        if name == "format":
            value = _NEAREST.get(str(value), value)
        if name == "seq" and study in _USUAL and origin == PUBLISHED:
            value = _USUAL[study]
        if name == "batch" and study == "decode" and pd.isna(value):
            value = 1
        values.append(None if pd.isna(value) else value if isinstance(value, str) else int(value))
    return tuple(values)


def _where(row: pd.Series, study: str) -> str:
    if study in ("int4", "mmq", "gemv"):
        tokens = 1 if study == "gemv" else row["batch"]
        batch = "" if pd.isna(tokens) else f", {counted(int(tokens), 'token')}"
        return f"{_WEIGHTS[study]}, {int(row['n']):,} × {int(row['k']):,}{batch}"
    if study == "attention":
        window = "" if pd.isna(row["window"]) else f", window {int(row['window'])}"
        heads = f"{int(row['heads'])}/{int(row['kv_heads'])} heads of {int(row['head_dim'])}"
        format = "" if pd.isna(row["format"]) else f", {str(row['format']).upper()}"
        one = "a query on " if row["operator"] == "decode_attention" else ""
        return f"{one}{counted(int(row['seq']), 'token')}, {heads}{window}{format}"
    seq = "" if pd.isna(row["seq"]) else f", {counted(int(row['seq']), 'token')}"
    batch = "" if pd.isna(row["batch"]) or row["batch"] == 1 else f", batch {int(row['batch'])}"
    way = next((f", {said}" for ending, said in _WAYS.items() if str(row["impl"]).endswith(ending)), "")
    return f"{study}, {row['model']}, {row['format']}{seq}{batch}{way}"


def _row(library: Library, origin: str, found: list[dict[str, object]]) -> dict[str, object]:
    words = [str(point["word"]) for point in found]
    ordered = sorted(found, key=lambda point: float(str(point["gain"])))
    said = [f"{point['gain']:.2f}× ({point['where']}{point.get('aside', '')})" for point in ordered]
    return {
        **{"name": library.name, "purpose": library.purpose, "origin": origin, "points": len(found)},
        "ours": words.count(OURS),
        "level": words.count(EVEN) + words.count(OPEN),
        "theirs": words.count(THEIRS),
        "best": said[-1] if said else "",
        "worst": said[0] if said else "",
        "study": ", ".join(dict.fromkeys(str(point["study"]) for point in found)),
    }
