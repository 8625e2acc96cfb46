"""One layer of a decoder, phase by phase: what its bytes take, and all that is beside them, from recorded
profiles and rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rooflab.analysis import ablation
from rooflab.errors import MissingRecording, UsageError
from rooflab.numerics import model_shapes
from rooflab.studies import decode
from rooflab.view.diagram import by_block, svg
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, Canvas, Drawing, single

_SHORT = ("QKV", "attend", "output", "gate, up", "down")  # names of decode.PHASES above a bar
# What holds a rung's phases apart.
_SAYS = {
    "1_kernel_per_phase": "five launches a layer",
    "2_pdl": "launches that overlap",
    "3_persistent": "one launch, grid barriers",
    "9_flags_in_data": "one launch, flags",
}
_NAME = svg.SMALL - 1.0  # size of such a name


class Way(NamedTuple):
    """A way of running a layer: name, us until the next layer begins, the us of each phase (none where they
    were not timed), each phase's bytes, and the read roof in GB/s.
    """

    name: str
    us: float
    phases: tuple[float, ...]
    bytes: tuple[float, ...]
    roof: float

    @property
    def bytes_us(self) -> float:
        """What the layer's bytes take at the read roof."""
        return sum(self.bytes) / self.roof / 1e3

    @property
    def beside_us(self) -> float:
        """What it takes beside them, of rounded times: a reader finds the same difference."""
        return max(0.0, round(self.us, 1) - round(self.bytes_us, 1))


def ways(lab: Any, format: str, clocks: Mapping[tuple[str, str], pd.DataFrame]) -> list[Way]:
    """How a layer of the course's model is run by each rung with the weights `format`, of what the lab's
    recording holds: the first with its traced phases, later ones with those of `clocks`, by the clock inside
    the kernel, where there are some. Phases are scaled to the layer's time in a token that no instrument saw.
    """
    rows = lab.store.read("decode")
    for column, value in {"model": decode.MODEL, "batch": 1, "seq": decode.PROMPT, "format": format}.items():
        rows = rows[rows[column] == value]
    rows = ablation.named(rows[rows["median_us"].notna()])
    rows = rows[rows["usual"]].drop_duplicates("impl")
    token = dict(zip(rows["impl"], rows["median_us"], strict=True))
    layers, roof = model_shapes.get(decode.MODEL).layers, lab.roof["dram_read"].value
    bytes_ = ablation.phase_bytes(decode.MODEL, format, decode.FORMATS[format], decode.PROMPT)
    body = tuple(bytes_[phase] / layers for phase in decode.PHASES[:-1])
    first = decode.rungs(lab.sized)[0]
    traced, head = _traced(lab, first, format)
    found = []
    for name in decode.rungs(lab.sized):
        if name not in token:
            continue
        us = (token[name] - (head or bytes_["head"] / roof / 1e3)) / layers
        clock = clocks.get((name, format))
        phases = traced if name == first else () if clock is None else clocked(clock)
        found.append(Way(name, us, tuple(us * each / sum(phases) for each in phases), body, roof))
    return found


def clocked(rows: pd.DataFrame) -> tuple[float, ...]:
    """How long each phase of a layer takes by its blocks' clocks (us): from when half of the blocks have its
    input until half have the next one's; the last, until they have the first one's a layer later.
    """
    starts, table = by_block.starts(rows), by_block.spans(rows)
    ends = [*starts[1:], starts[0] + float(table["end"].max() - table["start"].min())]
    return tuple(max(0.0, end - start) for start, end in zip(starts, ends, strict=True))


def _traced(lab: Any, name: str, format: str) -> tuple[tuple[float, ...], float]:
    """How long each phase of a rung with a kernel a phase takes, from its launch to the next (us), as traced,
    and the output head's time; nothing where no trace was taken.
    """
    cases = [case for case in decode.traced() if case.impl == name and case.format == format]
    try:
        profile = lab.profile("decode", cases, "cupti")
    except MissingRecording:
        return (), 0.0
    if profile.empty:
        return (), 0.0
    us = {
        p: float(u) / int(n)
        for p, u, n in zip(profile["phase"], profile["us"], profile["launches"], strict=True)
    }
    gap = us.get("between", 0.0)
    return tuple(us[phase] + gap for phase in decode.PHASES[:-1]), us["head"]


def by_bytes(way: Way) -> list[float]:
    """Of each phase the us that its bytes take at the read roof; where that is more than the phase lasts,
    copies came before it, and the rest counts to the phases in front.
    """
    found, over = [at / way.roof / 1e3 for at in way.bytes], 0.0
    for _ in range(2):  # from the first phase on to the last of the layer before
        for k in reversed(range(len(found))):
            whole = found[k] + over
            found[k] = min(whole, way.phases[k])
            over = whole - found[k]
    return found


def layer(found: Sequence[Way], weights: str) -> Drawing:
    """One layer over time, a bar a way, all on one scale: each phase divided into its bytes and the rest; and
    under them the bytes alone. `weights` names the format of the weights.
    """
    if not found:
        raise UsageError("A layer is drawn of at least one recorded way to run it.")
    canvas, y, said = Canvas(), 0.0, []
    unit = svg.WIDTH / max(way.us for way in found)
    for at, way in enumerate(found):
        whole = f"{way.us:.1f} µs: {way.bytes_us:.1f} for its bytes, {way.beside_us:.1f} beside them"
        canvas.text(0, y + 12, way.name, bold=True)
        canvas.text(svg.wide(way.name, svg.TEXT) + 24, y + 12, _SAYS.get(way.name, ""), svg.SMALL)
        canvas.text(svg.WIDTH, y + 12, whole, svg.SMALL, "end")
        if way.phases:
            _names(canvas, way, y + 27, unit, weighed=at == 0)
        else:
            canvas.text(0, y + 27, "not timed by phase", _NAME)
        _bar(canvas, way, y + 32, unit)
        words = [f"{name} {us:.1f}" for name, us in zip(_SHORT, way.phases, strict=False)]
        said.append(f"{way.name} takes {whole}" + (f"; by phase: {', '.join(words)}" if words else ""))
        y += 64
    only = found[-1].bytes_us
    canvas.rect(0, y, only * unit, 20, BLUE)
    canvas.text(only * unit + 8, y + 14, f"the bytes alone, at the read roof: {only:.1f} µs", svg.SMALL)
    y += 34
    canvas.cell(0, y, 12, 12, "", BLUE)
    canvas.text(17, y + 10, "a phase's bytes at the read roof", svg.SMALL)
    canvas.cell(220, y, 12, 12, "", AMBER)
    canvas.text(237, y + 10, "all that it takes beside them: launch, input, waits", svg.SMALL)
    title = f"One layer in {weights}: its bytes, and what it takes beside them"
    return single(title, "; ".join(said) + ".", canvas)


def _names(canvas: Canvas, way: Way, y: float, unit: float, weighed: bool) -> None:
    """The names of a way's phases where they begin, with their megabytes where asked and where room is."""
    x = free = 0.0
    for name, us, bytes_ in zip(_SHORT, way.phases, way.bytes, strict=True):
        mb = bytes_ / 1e6
        words = f"{name}, {mb:.{0 if mb >= 10 else 1}f} MB" if weighed else name
        words = words if 1.25 * svg.wide(words, _NAME) < us * unit else name
        canvas.text(max(x, free), y, words, _NAME)
        free = max(x, free) + svg.wide(words, _NAME) * (1.3 if words.isupper() else 1.15) + 8
        x += us * unit


def _bar(canvas: Canvas, way: Way, y: float, unit: float) -> None:
    """A way's phases side by side, each its bytes and then the rest; the whole layer where it has none."""
    x = 0.0
    parts = zip(way.phases, by_bytes(way), strict=True) if way.phases else [(way.us, way.bytes_us)]
    for us, bytes_us in parts:
        canvas.rect(x, y, us * unit, 20, AMBER, 0)
        canvas.rect(x, y, min(us, bytes_us) * unit, 20, BLUE, 0)
        canvas.rect(x, y, us * unit, 20, NONE, 1)
        x += us * unit
