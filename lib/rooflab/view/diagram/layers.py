"""One layer of a decoder as bars over time, from recorded profiles and rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import ablation, time_breakdown
from rooflab.errors import MissingRecording, UsageError
from rooflab.numerics import model_shapes
from rooflab.profile import parts
from rooflab.studies import attribution, decode
from rooflab.studies.launch_rule import named
from rooflab.view.diagram import by_block, svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, Canvas, Drawing

_LAYER = 14  # any but the first is like the others
_SHORT = ("QKV", "attention", "output", "gate, up", "down")  # names of decode.PHASES in a bar


class Span(NamedTuple):
    """A stretch of a layer's time: its name, its start and length in us, and of what kind: "weights" (a
    product) or "other" work.
    """

    name: str
    start: float
    us: float
    kind: str


class Way(NamedTuple):
    """A way of running a layer: name, us until the next layer begins, what happens in them, and how that is
    known: "traced", "clocked" inside the kernel, or "" where it is not.
    """

    name: str
    us: float
    spans: list[Span]
    known: str = "traced"
    bytes_us: float = 0.0  # what the layer's bytes take at the read roof; drawn beneath where it is given


def ways(lab: Any, format: str = "fp16") -> list[Way]:
    """How a layer of the course's model is run, slowest first, of what the lab's recording holds: eager and
    in a graph (traced launches), a kernel a phase (traced phases), and the steps after it: by the clock
    inside the kernel where one was recorded, else their time a layer beside what the read roof asks for its
    bytes.
    """
    rows = lab.store.read("decode")
    rows = rows[(rows["model"] == decode.MODEL) & (rows["batch"] == 1) & (rows["seq"] == decode.PROMPT)]
    rows = rows[rows["median_us"].notna()]
    layers = model_shapes.get(decode.MODEL).layers
    found = _traced(lab)
    head = 0.0
    for name in decode.rungs(lab.sized):
        mine = rows[(rows["impl"] == name) & (rows["format"] == format)]
        mine = mine[~mine["case"].str.contains("head=q8_0 steps=32")]
        if mine.empty:
            continue
        row = mine.iloc[0]
        spans: list[Span] = []
        if name == decode.rungs(lab.sized)[0]:
            spans, head = _phases(lab, row)
        bytes_ = ablation.phase_bytes(decode.MODEL, format, decode.FORMATS[format], decode.PROMPT)
        roof = lab.roof["dram_read"].value
        last = head or bytes_["head"] / roof / 1e3
        us, known = (float(row["median_us"]) - last) / layers, "traced"
        bound = sum(value for phase, value in bytes_.items() if phase != "head") / layers / roof / 1e3
        if not spans:
            spans = _clocked(lab, row)
            known = "clocked" if spans else ""
        found.append(Way(name, us, within(spans, us), known, bound))
    return found


def within(spans: list[Span], us: float) -> list[Span]:
    """Spans of a layer in `us`: what an instrument makes a little longer is shortened to it."""
    scale = min(1.0, us / max((span.start + span.us for span in spans), default=us))
    return [span._replace(start=span.start * scale, us=span.us * scale) for span in spans]


def _clocked(lab: Any, row: pd.Series) -> list[Span]:
    """The phases of a launch for all tokens, by the clock inside it; nothing where none was recorded."""
    cases = [c for c in decode.timed(lab.sized) if c.impl == row["impl"] and c.format == row["format"]]
    asked = lab.held("decode", cases, "timeline") if cases else []
    found = lab.profile("decode", asked, "timeline") if asked else pd.DataFrame()
    return [] if found.empty else phases_of(found)


def phases_of(found: pd.DataFrame) -> list[Span]:
    """A layer's phases by its blocks' clocks."""
    return [
        Span(phase, start, end - start, _kind(phase))
        for phase, (start, end) in zip(_SHORT, by_block.phases(found), strict=True)
    ]


def _kind(phase: str) -> str:
    return "other" if phase == "attention" else "weights"


def library_launches(lab: Any) -> dict[str, tuple[pd.DataFrame, float, float]]:
    """The launches of the library's layer, eager and in a graph, as they were traced, with the layer's start
    and end.
    """
    cases = [case for case in attribution.decode() if case.seq == decode.PROMPT]
    found: dict[str, tuple[pd.DataFrame, float, float]] = {}
    for tool in ("cupti", "nsys"):
        for case in cases:
            name = case.impl.removeprefix("transformers.")
            if name not in ("eager", "graph") or name in found:
                continue
            try:
                profile = named(lab.profile("attribution", [case], tool))
                launches = time_breakdown.timeline(profile)
                start, end = time_breakdown.one_layer(launches, _LAYER)
            except (MissingRecording, IndexError, KeyError):
                continue
            within_it = (launches["start_us"] >= start) & (launches["start_us"] < end)
            found[name] = launches[within_it], start, end
    return found


def _traced(lab: Any) -> list[Way]:
    """The library's layer, eager and in a graph, launch by launch."""
    found: list[Way] = []
    for name, (mine, start, end) in library_launches(lab).items():
        kinds = ["weights" if part in parts.WEIGHTS else "other" for part in mine["part"]]
        spans = [
            Span("", float(at) - start, float(us), kind)
            for at, us, kind in zip(mine["start_us"], mine["us"], kinds, strict=True)
        ]
        found.append(Way(name, end - start, spans))
    return sorted(found, key=lambda way: -way.us)


def _phases(lab: Any, row: pd.Series) -> tuple[list[Span], float]:
    """The traced phases of a kernel a phase in their order, what was traced between them spread evenly, and
    the output head's time; nothing where no trace was taken.
    """
    cases = [case for case in decode.traced() if case.impl == row["impl"] and case.format == row["format"]]
    try:
        profile = lab.profile("decode", cases, "cupti")
    except MissingRecording:
        return [], 0.0
    if profile.empty:
        return [], 0.0
    us = {
        p: float(u) / int(n)
        for p, u, n in zip(profile["phase"], profile["us"], profile["launches"], strict=True)
    }
    gap, start, spans = us.get("between", 0.0), 0.0, []
    for phase, short in zip(decode.PHASES[:-1], _SHORT, strict=True):
        spans.append(Span(short, start, us[phase], _kind(short)))
        start += us[phase] + gap
    return spans, us["head"]


def layer(found: list[Way], weights: str = "FP16") -> Drawing:
    """One layer over time, a row for each way of running it: frames from the slowest way on, each with the
    ways that take a quarter of its slowest or more, drawn larger than the frame before. `weights` names their
    format.
    """
    if not found:
        raise UsageError("A layer is drawn of at least one recorded way to run it.")
    frames, first, longest = [], 0, max(way.us for way in found)
    while True:
        scale = max(way.us for way in found[first:])
        last = first + 1
        while last + 1 < len(found) and found[last + 1].us >= scale / 4:
            last += 1
        shown = found[first : last + 1]
        larger = "" if first == 0 else f", {longest / scale:.0f} times larger"
        frames.append((f"{shown[0].name} to {shown[-1].name}{larger}", _rows(shown, scale)))
        if last >= len(found) - 1:
            break
        first = last
    said = [f"{way.name} takes {way.us:,.0f} µs, {_in_words(way)}" for way in found]
    title = f"One layer of the decoder over time, {weights} weights"
    return Drawing(title, "; ".join(said) + ".", frames)


def _in_words(way: Way) -> str:
    busy = sum(span.us for span in way.spans) / way.us
    share = way.bytes_us / way.us
    roof = f"; its bytes at the read roof ask for {share:.0%} of it" if way.bytes_us else ""
    if way.known == "clocked":
        return f"{busy:.0%} of it in {len(way.spans)} phases of one kernel, by its clock{roof}"
    return (f"{busy:.0%} of it in {len(way.spans)} kernels" if way.spans else "not taken apart") + roof


def _rows(found: list[Way], scale: float) -> Canvas:
    canvas, left, y = Canvas(), 150.0, 0.0
    unit = (svg.WIDTH - left - 4) / scale
    fills = {"weights": BLUE, "other": AMBER}
    for way in found:
        tall = 30.0 if not way.bytes_us else 22.0  # with room for the bar of its bytes
        if way.bytes_us:
            canvas.rect(left, y + 24, way.bytes_us * unit, 6, GREY)
        canvas.text(0, y + 13, way.name, svg.TEXT - 1, bold=True)
        known = f", {way.known}" if way.known else ""
        canvas.text(0, y + 27, f"{way.us:,.0f} µs a layer{known}", svg.SMALL)
        if not way.known:
            canvas.cell(left, y, way.us * unit, tall, "not taken apart", NONE)
            y += 40
            continue
        for kind, fill in fills.items():
            mine = [span for span in way.spans if span.kind == kind]
            high = 0.6 * tall if kind == "other" else tall
            for span in mine:
                x, top, wide = left + span.start * unit, y + (tall - high) / 2, max(span.us * unit, 0.3)
                room = svg.wide(span.name, 9) * (1.6 if span.name.isupper() else 0)  # capitals are wider
                if span.name and room <= wide:
                    canvas.cell(x, top, wide, high, span.name, fill, 9)
                else:
                    canvas.rect(x, top, wide, high, fill, 0.2)
        canvas.rect(left, y, way.us * unit, tall, NONE, 0.8)
        y += 40
    kinds, x = {span.kind for way in found for span in way.spans}, 0.0
    words = {"weights": "a product and its waits", "other": "other work"}
    key = [(fills[kind], words[kind]) for kind in fills if kind in kinds] + [(NONE, "the rest")]
    if any(way.bytes_us for way in found):
        key.append((GREY, "how long its bytes take at the roof"))
    for fill, word in key:
        canvas.cell(x, y - 2, 12, 12, "", fill)
        canvas.text(x + 17, y + 8, word, svg.SMALL)
        x += svg.wide(word, svg.SMALL) + 40
    if any(way.known == "clocked" for way in found):
        canvas.text(0, y + 24, "Clocked kernels also copy weights between their products.", svg.SMALL)
    return canvas
