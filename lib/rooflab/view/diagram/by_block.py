"""A layer of a decoded token, block by block: when each SM waits, multiplies and attends, by marks that the
kernel writes down itself (the instrument "timeline" of study `decode`).
"""

from __future__ import annotations

import pandas as pd

from rooflab.errors import UsageError
from rooflab.paths import KERNELS
from rooflab.profile import timeline
from rooflab.studies import decode
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, PALE, Canvas, Drawing, single
from rooflab.words import FORMATS

EVERY = 12  # one block of so many is drawn: its neighbours look the same, and the picture is a twelfth
_LINE = 5.5  # height of a block
# What a block does, its fill, and its words. What waits for other blocks is amber, as is what lies between
# marks: which of the two it is depends on the rung.
_KINDS = {
    "x": (AMBER, "loads its input"),
    "starved": (BLUE, "waits for weights"),
    "multiplies": (BLUE, "multiplies"),
    "attends": (AMBER, "attends"),
    "ends": (PALE, "adds up and stores"),
}
_KEY = {BLUE: "multiplies, waits for weights", AMBER: "waits, loads its input, attends", PALE: "stores"}
_PHASES = {"qkv": "QKV", "attend": "attend", "out": "output", "gate_up": "gate, up", "down": "down"}


def copies_itself(rung: str) -> bool:
    """Whether the warps of a rung of decode_step that multiply also ask for the copies of its weights."""
    source = (KERNELS / "decode_step" / f"{rung}.cu").read_text(encoding="utf-8")
    return "ring_producers.cuh" not in source


def spans(rows: pd.DataFrame) -> pd.DataFrame:
    """What each block of a recorded layer does when: columns block, kind (of _KINDS), start and end (us).
    What no span covers lies between a block's marks: at a barrier it waits there for other blocks. Its waits
    for weights are put together before its products.
    """
    found = []
    for phase in timeline.PHASES[:-1]:
        begin, end = rows[f"{phase}_begin_us"], rows[f"{phase}_end_us"]
        if phase == "attend":
            parts = [("attends", begin, end)]
        else:
            ready, done = rows[f"{phase}_ready_us"], rows[f"{phase}_multiplied_us"]
            full = ready + rows[f"{phase}_starved_us"].clip(lower=0).clip(upper=done - ready)
            parts = [("x", begin, ready), ("starved", ready, full)]
            parts += [("multiplies", full, done), ("ends", done, end)]
        for kind, start, until in parts:
            found.append(pd.DataFrame({"block": rows["block"], "kind": kind, "start": start, "end": until}))
    return pd.concat(found, ignore_index=True)


def starts(rows: pd.DataFrame) -> list[float]:
    """When each phase of a recorded layer starts (us): when half of the blocks have their input; in
    attention, when half have begun.
    """
    marks = [f"{phase}_{'begin' if phase == 'attend' else 'ready'}_us" for phase in timeline.PHASES[:-1]]
    return [float(rows[mark].median()) for mark in marks]


def shares(rows: pd.DataFrame) -> pd.Series:
    """Of a recorded layer's time the share that blocks spend in each kind of span, and in "others", between
    their marks, on average.
    """
    table, blocks = spans(rows), rows["block"].nunique()
    whole = blocks * (table["end"].max() - table["start"].min())
    found = (table["end"] - table["start"]).groupby(table["kind"]).sum().reindex([*_KINDS]) / whole
    return pd.concat([found, pd.Series({"others": 1 - found.sum()})])


def sums(rows: pd.DataFrame) -> tuple[float, float, float]:
    """Of a recorded layer the microseconds, on average over its blocks: between marks, for input and in
    attention, which wait for other blocks (where, depends on the rung); for weights and products; and for
    adding up and storing. Together they are the layer.
    """
    table, part = spans(rows), shares(rows)
    part = part * (table["end"].max() - table["start"].min())
    waits, weights = ("others", "x", "attends"), ("starved", "multiplies")
    return (
        float(part[[*waits]].sum()),
        float(part[[*weights]].sum()),
        float(part["ends"]),
    )


def blocks(found: pd.DataFrame) -> Drawing:
    """A layer by each recorded rung, one under the other, a frame a format, all on one scale of time; a line
    a block, one of EVERY. `found` is what the instrument "timeline" says of cases; UsageError for none.
    """
    if found.empty:
        raise UsageError("A layer is drawn block by block from at least one recorded timeline.")
    layers: dict[str, dict[str, pd.DataFrame]] = {}
    for name, mine in found.groupby("case", sort=False):
        case = decode.Decode().case(str(name))
        layers.setdefault(FORMATS[str(case.format)], {})[case.impl] = mine
    longest = max(spans(rows)["end"].max() for each in layers.values() for rows in each.values())
    drawn = {weights: _frame(each, longest) for weights, each in layers.items()}
    if len(drawn) == 1:
        ((weights, (canvas, words)),) = drawn.items()
        return single(f"One layer of a token, block by block, {weights} weights", words, canvas, lean=True)
    says = " ".join(f"{weights} weights: {words}" for weights, (_, words) in drawn.items())
    frames = [(f"{weights} weights", canvas) for weights, (canvas, _) in drawn.items()]
    return Drawing("One layer of a token, block by block", says, frames, lean=True)


def _frame(layers: dict[str, pd.DataFrame], longest: float) -> tuple[Canvas, str]:
    """The layers of a format by the names of their rungs, `longest` us across, and what they show."""
    canvas, left, y, said = Canvas(), 8.0, 0.0, []
    unit = (svg.WIDTH - left - 4) / longest
    for name, rows in layers.items():
        table = spans(rows)
        took, part = table["end"].max(), shares(rows)
        shown = sorted(table["block"].unique(), key=int)[::EVERY]
        canvas.text(0, y + 12, f"{name}: {took:.1f} µs a layer", svg.TEXT - 1, bold=True)
        free = 0.0  # where the next label has room
        for phase, words in _PHASES.items():
            x = max(free, left + rows[f"{phase}_begin_us"].median() * unit)
            canvas.text(x, y + 26, words, svg.SMALL - 1)
            free = x + svg.wide(words, svg.SMALL - 1) + 12
        top = y + 30
        canvas.rect(left, top, took * unit, len(shown) * _LINE, AMBER, 0)
        for fill in (BLUE, PALE):
            kinds = [kind for kind, (its, _) in _KINDS.items() if its == fill]
            mine = table[table["kind"].isin(kinds) & table["block"].isin(shown)]
            places = zip(mine["block"].tolist(), mine["start"].tolist(), mine["end"].tolist(), strict=True)
            lines = [
                (left + start * unit, top + shown.index(block) * _LINE, (end - start) * unit)
                for block, start, end in places
            ]
            canvas.strips(lines, _LINE - 0.4, fill)
        canvas.rect(left, top, took * unit, len(shown) * _LINE, NONE, 0.6)
        y = top + len(shown) * _LINE + 8
        words = ", ".join(f"{words} {part[kind]:.0%}" for kind, (_, words) in _KINDS.items())
        said.append(
            f"{name} takes {took:.1f} µs, in which a block {words}, is between marks {part['others']:.0%}"
        )
    x = left
    for fill, word in _KEY.items():
        canvas.rect(x, y, 10, 10, fill)
        canvas.text(x + 14, y + 9, word, svg.SMALL)
        x += 30 + svg.wide(word, svg.SMALL)
    canvas.text(left, y + 26, f"A line is a block, one of every {EVERY}.", svg.SMALL)
    return canvas, "; ".join(said) + "."
