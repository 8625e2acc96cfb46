"""Blocks of MMQ's later rungs over time: warpgroups that take turns at scaling (rung 6), and tiles of a last
turn that are divided along k (rung 8). Both follow the sources.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.hardware.device import Device
from rooflab.ops import mmq
from rooflab.paths import KERNELS
from rooflab.view.diagram import issue, svg
from rooflab.view.diagram.over_time import Bar
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_TURNS, _STREAM = "6_wgmma", "8_stream_k"
_STEPS = {
    "start": r"wgmma_m64n64k32_s8\(",
    "wait": r"warpgroup_wait<0>\(\)",
    "release": r"mbarrier_arrive\(empty",
    "scale": r"sum\[j\] = fmaf\(",
}
_LETTERS = "ABCDEFGH"  # of warpgroups
_COPY = 8.0  # slots that a tile's copy takes in the picture


def _source(name: str) -> str:
    rung = next(each for each in mmq.LADDERS["mmq"] if each.name == name)
    return rung.path.read_text(encoding="utf-8")


class Turns(NamedTuple):
    """The steps of a block of 32 of k in the source's order, warpgroups that multiply, blocks of a tile, and
    slots of the ring.
    """

    steps: list[str]
    groups: int
    blocks: int
    slots: int


def turns_of(text: str) -> Turns:
    """How rung 6's warpgroups work. UsageError for a source without such a loop."""
    loop = re.search(r"for \(int b = 0; b < (\d); \+\+b\) \{", text)
    groups, slots = re.search(r"if \(group == (\d)\) \{", text), re.search(r"STAGES = (\d):", text)
    body = text[loop.end() :] if loop else ""
    at = {name: re.search(pattern, body) for name, pattern in _STEPS.items()}
    found = sorted((match.start(), name) for name, match in at.items() if match)
    if not loop or not groups or not slots or not {"start", "scale"} <= {name for _, name in found}:
        raise UsageError("This source has no warpgroups that start products and scale them.")
    return Turns([name for _, name in found], int(groups[1]), int(loop[1]), int(slots[1]))


def take_turns(turns: Turns, product: float, scale: float) -> list[Bar]:
    """A tile's blocks of k by all warpgroups: products, one at a time, and scaling, for which all share the
    SM's issue slots. UsageError where sums are scaled that were not waited for.
    """
    bars, free = list[Bar](), {"tensor cores": 0.0, "issue slots": 0.0}
    now, there = [0.0] * turns.groups, [0.0] * turns.groups
    todo = [[(b, step) for b in range(turns.blocks) for step in turns.steps] for _ in now]

    def may(group: int) -> float:
        unit = {"start": "tensor cores", "scale": "issue slots"}.get(todo[group][0][1], "")
        return max(now[group], free.get(unit, 0.0))

    while any(todo):
        group = min(
            (each for each in range(turns.groups) if todo[each]),
            key=lambda each: (may(each), now[each], each),
        )
        begin, (block, step) = may(group), todo[group].pop(0)
        if step == "start":
            there[group] = free["tensor cores"] = begin + product
            bars.append(Bar("tensor cores", "dot", group, begin, begin + product))
        elif step == "wait":
            now[group] = max(now[group], there[group])
        elif step == "scale":
            if begin < there[group]:
                raise UsageError("Sums are scaled that were not waited for.")
            now[group] = free["issue slots"] = begin + scale
            bars.append(Bar(f"warpgroup {group}", "scale", block, begin, begin + scale))
        elif block == turns.blocks - 1:
            bars.append(Bar("release", "", group, now[group], now[group]))
    return bars


def warpgroups_take_turns(chip: Device, text: str | None = None) -> Drawing:
    """Rung 6 on a chip: who copies, multiplies and scales while a tile of k is worked on. A product and its
    scaling are as long as by the chip's data sheet; copies take an example's time.
    """
    turns = turns_of(_source(_TURNS) if text is None else text)
    product, scale = issue.busy(chip)[0], float(len(issue.STEPS))
    bars = take_turns(turns, product, scale)
    end, freed = (max(bar.end for bar in bars if (bar.row == "release") == last) for last in (False, True))
    canvas, left, y = Canvas(), 92.0, 0.0
    unit = (svg.WIDTH - left - 4) / end
    canvas.text(0, y + 15, "copying group", svg.SMALL)
    canvas.rect(left, y, end * unit, 22, NONE, 0.3)
    for tile in range(1, turns.slots + 1):  # tile 0 is there
        start = (tile - 1) * _COPY if tile < turns.slots else max(freed, (tile - 1) * _COPY)
        if start < end:
            wide = min(_COPY, end - start) * unit
            canvas.cell(left + start * unit, y, wide, 22, f"tile {tile}", GREY)
    full, again = (turns.slots - 1) * _COPY, max(freed, (turns.slots - 1) * _COPY)
    if (again - full) * unit > 40 and again <= end:
        canvas.text(left + (full + again) / 2 * unit, y + 15, "ring full", svg.SMALL, "middle")
    y += 27
    canvas.text(0, y + 15, "tensor cores", svg.SMALL)
    canvas.rect(left, y, end * unit, 22, NONE, 0.3)
    dots = [bar for bar in bars if bar.row == "tensor cores"]
    canvas.boxes([(left + bar.start * unit, y, product * unit, 22, _LETTERS[bar.tile], BLUE) for bar in dots])
    y += 27
    for group in range(turns.groups):
        canvas.text(0, y + 15, f"warpgroup {_LETTERS[group]}", svg.SMALL)
        canvas.rect(left, y, end * unit, 22, NONE, 0.3)
        mine = [bar for bar in bars if bar.row == f"warpgroup {group}"]
        canvas.boxes([(left + bar.start * unit, y, scale * unit, 22, f"{bar.tile}", AMBER) for bar in mine])
        y += 25
    scales = sum(bar.end - bar.start for bar in bars if bar.what == "scale") / end
    words = f"{chip.name}, by arithmetic: issue slots busy {scales:.0%} of the time"
    canvas.text(left, y + 10, words, svg.SMALL, bold=True)
    canvas.text(
        0,
        y + 30,
        "Blue: a product of 32 of k of tile 0, the letter is its warpgroup's. Orange: its sums are",
        svg.SMALL,
    )
    below = f"scaled, for the tile's blocks 0 to {turns.blocks - 1}. White: waits. A copy's length is an"
    last = f"example. The ring has {turns.slots} places: tile {turns.slots} waits until tile 0 is released."
    canvas.text(0, y + 45, below, svg.SMALL)
    canvas.text(0, y + 60, last, svg.SMALL)
    begin = min(bar.start for bar in bars if bar.what == "scale")
    if begin > 0 and abs((1 - scales) * end - begin) < 1e-6 * end:
        canvas.text(0, y + 75, "Slots are idle only until the first product is done.", svg.SMALL)
    says = (
        f"One group copies into a ring of {turns.slots} places; {counted(turns.groups, 'warpgroup')} start "
    )
    says += (
        f"products and scale their sums one after the other. Tile 0, {words}. A product takes {product:.1f} "
    )
    says += f"slots a sum, scaling {scale:g}."
    return single(
        "Rung 6 at tile 0: one warpgroup scales while others' products run", says, canvas, lean=True
    )


# --- stream-K -----------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Steps of k of a tile, from `begin` on."""

    tile: int
    begin: int
    steps: int


def pieces(block: int, blocks: int, tiles: int, steps: int, sharers: int) -> list[Piece]:
    """What a block takes, in its order, as `Line` of kernels/common/stream_k.cuh deals it out (a test runs
    that): its part of what is left for a last turn, backwards, then whole tiles. Without sharers tiles alone.
    """
    whole, found = tiles, list[Piece]()
    if sharers:
        rest, whole = tiles % blocks * steps, tiles // blocks * blocks
        first, end = (
            min(b, sharers) * (rest // sharers) + min(b, rest % sharers) for b in (block, block + 1)
        )
        while end > first:
            tile = (end - 1) // steps
            begin = max(first, tile * steps)
            found.append(Piece(whole + tile, begin - tile * steps, end - begin))
            end = begin
    return found + [Piece(tile, 0, steps) for tile in range(block, whole, blocks)]


def line_source() -> str:
    """The source of `Piece` and `Line`, which deal out the work."""
    text = (KERNELS / "common" / "stream_k.cuh").read_text(encoding="utf-8")
    return text[text.index("struct Piece") : text.index("// Leave a warpgroup's sums")]


def divided_along_k(tiles: int = 6, steps: int = 4, blocks: int = 4) -> Drawing:
    """An example of tiles on SMs over time: whole tiles alone, and the tiles left over divided along k, which
    come first; an arrow: sums that a block leaves for the one with the tile's end.
    """
    ways: Sequence[tuple[str, int]] = (
        ("Rung 7: a block for each tile", 0),
        ("Rung 8: blocks stay, and first share the tiles left over", blocks),
    )
    canvas, left, y, said = Canvas(), 52.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 4) / (-(-tiles // blocks) * steps)
    for title, sharers in ways:
        canvas.text(0, y + 12, title, bold=True)
        y, ends, arrows = y + 20, list[int](), list[tuple[int, float]]()
        for block in range(blocks):
            canvas.text(0, y + 25 * block + 15, f"SM {block}", svg.SMALL)
            now = 0
            for piece in pieces(block, blocks, tiles, steps, sharers):
                part = (
                    f", steps {piece.begin + 1} to {piece.begin + piece.steps}" if piece.steps < steps else ""
                )
                fill = SKY if part else PALE
                words = f"tile {piece.tile}{part}"
                canvas.cell(left + now * unit, y + 25 * block, piece.steps * unit, 22, words, fill)
                now += piece.steps
                if piece.begin + piece.steps < steps:
                    arrows.append((block, now))
            ends.append(now)
        for block, at in arrows:
            x = left + at * unit - 8
            canvas.line([(x, y + 25 * block + 16), (x, y + 25 * (block + 1) + 8)], 1.6, end="arrow")
        last, idle = max(ends), sum(max(ends) - end for end in ends)
        y += 25 * blocks
        words = f"{last} steps of k; SMs idle for {idle} of {blocks * last}"
        words += f"; {counted(len(arrows), 'block')} leave sums (arrows)" if arrows else ""
        canvas.text(left, y + 10, words, svg.SMALL)
        said.append(f"{title}: {words}")
        y += 34
    canvas.text(0, y - 8, f"Example: {tiles} tiles of {steps} steps on {blocks} SMs.", svg.SMALL)
    says = f"{tiles} tiles of {steps} steps of k on {blocks} SMs. {'; '.join(said)}."
    return single("The tiles left over, divided along k", says, canvas)
