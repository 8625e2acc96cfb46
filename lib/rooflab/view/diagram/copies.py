"""When a kernel's tiles are copied and when they are used, over time.

The steps of a warp are read from the source, in its order: where a copy starts and for which tile, how many
copies a wait leaves under way, and what uses a tile. Copies and products take an example's steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention, mmq
from rooflab.ops.attention_tiles import decode_tile_of
from rooflab.view.diagram import svg
from rooflab.view.diagram.over_time import Bar
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_FILLS = {"softmax": AMBER, "PV": SKY}  # of what uses tiles; others are BLUE


class Step(NamedTuple):
    """A copy of matrix `what` that starts, `number` tiles ahead; a wait that leaves `number` copies under
    way; or a use of a tile.
    """

    kind: str
    what: str
    number: int = 0


class Program(NamedTuple):
    """A warp's steps before and in its loop over tiles, the slots that a matrix has, and what a use of a tile
    needs. `rows`: how many times 16 rows a warp has, which use a tile one after the other.
    """

    before: list[Step]
    loop: list[Step]
    slots: int
    needs: Mapping[str, str]
    rows: int = 1

    def at_once(self) -> Program:
        """The same without looking ahead: each copy starts where its tile is needed, and is waited for."""
        loop = list[Step]()
        for step in self.loop:
            what = self.needs.get(step.what) if step.kind == "use" else None
            if what is not None and Step("start", what) not in loop:
                loop += [Step("start", what), Step("wait", "")]
            loop += [step] if step.kind == "use" else []
        return self._replace(before=[], loop=loop)


class Run(NamedTuple):
    """What happened: copies (row: matrix), uses (row: "warp"), and when a tile was last used."""

    copies: list[Bar]
    uses: list[Bar]
    done: dict[tuple[str, int], float]

    @property
    def end(self) -> float:
        """When the last step ends."""
        return max(bar.end for bar in self.uses)

    @property
    def waited(self) -> float:
        """How long the warp uses no tile."""
        return self.end - sum(bar.end - bar.start for bar in self.uses)


def _found(text: str, patterns: Sequence[tuple[str, Callable[[re.Match[str]], list[Step]]]]) -> list[Step]:
    """The steps that patterns find in a text, in its order; a use counts once."""
    at = sorted(
        (m.start(), k, m) for k, (pattern, _) in enumerate(patterns) for m in re.finditer(pattern, text)
    )
    steps = list[Step]()
    for _, k, match in at:
        steps += [step for step in patterns[k][1](match) if step.kind != "use" or step not in steps]
    return steps


def _use(what: str) -> Callable[[re.Match[str]], list[Step]]:
    return lambda match: [Step("use", what)]


def attention_program(text: str) -> Program:
    """A prompt kernel with a buffer of keys and one of values (rungs 4 to 7). UsageError for others."""
    waits = "copy_async_16" not in text

    def start(match: re.Match[str]) -> list[Step]:
        what = {"keysk": "K", "valuesv": "V"}.get(match[1] + match[2])
        return [Step("start", what, int(bool(match[3]))), *[Step("wait", "")] * waits] if what else []

    patterns = [
        (r"stage<KEYS>\((keys|values), ([kv]) \+ kv, (?:from|tile( \+ KEYS)?), to", start),
        (r"copy_async_wait<(\d)>\(\)", lambda match: [Step("wait", "", int(match[1]))]),
        (r"\bmultiply\(s\[", _use("QK")),
        (r"\bp = exp2_approx", _use("softmax")),
        (r"\bmultiply\(acc_o", _use("PV")),
    ]
    before, found, loop = text.partition("for (int tile = from; tile < to;")
    rows = re.search(r"QUERIES = (\d+) \* WARPS", text)
    if not found or not rows:
        raise UsageError("This source has no loop over tiles of keys and values.")
    steps = _found(before.rpartition("extern")[2], patterns), _found(loop, patterns)
    return Program(*steps, 1, {"QK": "K", "PV": "V"}, int(rows[1]) // 16)


def product_program(text: str, stages: int = 1) -> Program:
    """A product that walks along k a tile at a time (MMQ's rungs 1 to 4), with so many STAGES. UsageError for
    other sources.
    """
    loops = list(re.finditer(r"for \(int ([bc]) = 0; \1 < (?:blocks|chunks); \+\+\1\) \{", text))
    if len(loops) != 1 or "mma_m16n8k32_s8(" not in text:
        raise UsageError("This source has no loop along k that copies tiles and multiplies them.")
    both = re.search(r"Tile tiles\[(\d)\]", text)
    slots = int(both[1]) if both else stages
    before, loop = text[: loops[0].start()].rpartition("float sum[")[2], text[loops[0].end() :]
    ahead = {"b + 1": 1, "c + STAGES - 1": stages - 1, "0": 0}
    many = [Step("start", "", t) for t in range(stages - 1)]
    patterns = [
        (r"= word_of\(block", lambda match: [Step("start", ""), Step("wait", "")]),
        (r"\bload\((0|b \+ 1)\)", lambda match: [Step("start", "", ahead[match[1]])]),
        (r"\bstore\(tiles", lambda match: [Step("wait", "")]),
        (r"copy_async_wait<STAGES - 2>", lambda match: [Step("wait", "", stages - 2)]),
        (r"c < STAGES - 1; \+\+c\) start\(c\)", lambda match: many),
        (r"\bstart\((c \+ STAGES - 1)\)", lambda match: [Step("start", "", ahead[match[1]])]),
        (r"mma_m16n8k32_s8\(", _use("×")),
    ]
    return Program(_found(before, patterns), _found(loop, patterns), slots, {"×": ""})


def decode_program(text: str, stages: int) -> Program:
    """A warp of decode_attention's rung 4, with so many STAGES. UsageError for other sources."""
    before, found, loop = text.partition("for (int slot = 0; tile < seen.last;")
    if not found or "next_slot" not in loop:
        raise UsageError("This source has no loop over tiles with a ring of slots.")
    patterns = [
        (r"copy_async_wait<STAGES - 2>", lambda match: [Step("wait", "", stages - 2)]),
        (r"stage\(ring \+ next_slot \* 2 \*", lambda match: [Step("start", "", stages - 1)]),
        (r"\bmultiply\(s\[", _use("QK")),
        (r"\bp\[i\] = exp2_approx", _use("softmax")),
        (r"\bmultiply\(acc_o", _use("PV")),
    ]
    starts = [Step("start", "", t) for t in range(stages - 1) if "s < STAGES - 1; ++s" in before]
    return Program(starts, _found(loop, patterns), stages, {"QK": "", "PV": ""})


def simulate(program: Program, tiles: int, copy: float, use: float = 1.0) -> Run:
    """A warp's steps over `tiles`: a copy takes `copy` steps from its start, a use `use` for 16 rows.
    UsageError where a tile is used that was not waited for.
    """
    run, now, ready = Run([], [], {}), 0.0, set[tuple[str, int]]()
    pending = list[tuple[float, tuple[str, int] | None]]()

    def do(step: Step, t: int) -> None:
        nonlocal now
        if step.kind == "start":
            tile = t + step.number
            end = now + copy if tile < tiles else now
            pending.append((end, (step.what, tile) if tile < tiles else None))
            if tile < tiles:
                run.copies.append(Bar(step.what, "copy", tile, now, end))
        elif step.kind == "wait":
            while len(pending) > step.number:
                end, item = pending.pop(0)
                now = max(now, end)
                ready.update([item] if item else [])
        else:
            needed = program.needs.get(step.what)
            if needed is not None and (needed, t) not in ready:
                raise UsageError(f"{step.what}{t} uses a tile that was not waited for.")
            start, now = now, now + use * program.rows
            run.uses.append(Bar("warp", step.what, t, start, now))
            if needed is not None:
                run.done[needed, t] = now

    for step in program.before:
        do(step, 0)
    for t in range(tiles):
        for step in program.loop:
            do(step, t)
    return run


class Way(NamedTuple):
    """A program with the words above it; `who` uses the tiles."""

    title: str
    program: Program
    who: str = "warps"


def _drawn(ways: Sequence[Way], heading: str, tiles: int, copy: float, after: str) -> Drawing:
    """Programs below each other on one scale: a row for each slot (copied, full until its last use) and one
    for who uses the tiles; a gap there is a wait.
    """
    runs = [(way, simulate(way.program, tiles, copy)) for way in ways]
    canvas, left, y, said = Canvas(), 76.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 4) / max(run.end for _, run in runs)
    names = set[str]()
    for way, run in runs:
        canvas.text(0, y + 12, way.title, bold=True)
        y += 20
        boxes = list[tuple[float, float, float, float, str, str]]()
        for name, items in _slots(run, way.program.slots):
            canvas.text(0, y + 14, name, svg.SMALL)
            boxes.append((left, y, run.end * unit, 20, "", NONE))
            for bar in items:
                x, full = left + bar.start * unit, run.done[bar.row, bar.tile] - bar.end
                boxes.append((x, y, copy * unit, 20, f"copy {bar.row}{bar.tile}", GREY))
                boxes.append((x + copy * unit, y, full * unit, 20, f"{bar.row}{bar.tile}", PALE))
            y += 23
        canvas.text(0, y + 16, way.who, svg.SMALL)
        boxes.append((left, y, run.end * unit, 24, "", NONE))
        for bar in run.uses:
            fill, wide = _FILLS.get(bar.what, BLUE), (bar.end - bar.start) * unit
            label = f"{bar.what} {bar.tile}" if bar.what == "×" else f"{bar.what}{bar.tile}"
            boxes.append((left + bar.start * unit, y, wide, 24, "" if fill == AMBER else label, fill))
            names.add(bar.what)
        canvas.boxes(boxes)
        words = f"{run.end:g} steps, {run.waited:g} of them waits"
        canvas.text(left, y + 37, words, svg.SMALL)
        y += 54
        said.append(f"{way.title}: {words}")
    key = [("copied", GREY), ("there", PALE), ("softmax", AMBER)]
    x = 0.0
    for name, fill in key if "softmax" in names else key[:2]:
        canvas.cell(x, y - 4, 12, 12, "", fill)
        canvas.text(x + 18, y + 7, name, svg.SMALL)
        x += 40 + svg.wide(name, svg.SMALL)
    example = f"Example: {tiles} equal tiles, a copy takes {copy:g} step{'s' * (copy != 1)}, {after}."
    canvas.text(0, y + 25, example, svg.SMALL)
    return single(heading, f"{'; '.join(said)}. {example}", canvas)


def _slots(run: Run, slots: int) -> list[tuple[str, list[Bar]]]:
    """Names of slots, and the copies into each, in order."""
    matrices = dict.fromkeys(bar.row for bar in run.copies)
    long = {"K": "keys", "V": "values", "": "tile"}
    return [
        (
            long[what] if slots == 1 else f"slot {slot}",
            [bar for bar in run.copies if bar.row == what and bar.tile % slots == slot],
        )
        for what in matrices
        for slot in range(slots)
    ]


def _source(rungs: Sequence[Rung], name: str) -> str:
    """The source of the rung of that name."""
    return next(each for each in rungs if each.name == name).path.read_text(encoding="utf-8")


def keys_and_values(texts: Mapping[str, str] | None = None) -> Drawing:
    """Attention's rungs 5 to 7: when keys and values are copied, and when they are multiplied. `texts`:
    sources by their rungs' names, in place of the files.
    """
    words = {
        "5_padded": "Rung 5: copy, wait, multiply",
        "6_cp_async": "Rung 6: keys arrive while values are used, values while keys are",
        "7_mma_32_rows": "Rung 7: the same copies serve twice as many queries",
    }
    ways = [
        Way(
            title, attention_program((texts or {}).get(name) or _source(attention.LADDERS["attention"], name))
        )
        for name, title in words.items()
    ]
    after = "and so do a product and a softmax of 16 queries a warp"
    return _drawn(ways, "When keys and values are copied, and when they are used", 3, 1.0, after)


def steps_of(text: str) -> tuple[float, int]:
    """The steps that `keys_and_values` draws of an attention rung's source, and the queries they serve."""
    program, warps = attention_program(text), re.search(r"\bWARPS = (\d+)", text)
    return simulate(program, 3, 1.0).end, 16 * program.rows * int(warps[1] if warps else 1)


def tiles_along_k(texts: Mapping[str, str] | None = None, only: Sequence[str] = ()) -> Drawing:
    """MMQ's rungs 1, 2 and 4, or those in `only`: when a tile of k is copied, and when it is multiplied;
    `texts` as above.
    """
    ladder = {each.name: each for each in mmq.LADDERS["mmq"]}
    stages = ladder["4_cp_async"].defines["STAGES"]
    words = {
        "1_tile": ("Rung 1: load, wait, multiply", 1),
        "2_prefetch": ("Rungs 2 and 3: the next tile is on its way, by registers", 1),
        "4_cp_async": (
            f"Rung 4: cp.async, {counted(stages - 1, 'tile')} ahead in a ring of {stages} slots",
            stages,
        ),
    }
    ways = [
        Way(title, product_program((texts or {}).get(name) or _source(list(ladder.values()), name), slots))
        for name, (title, slots) in words.items()
        if not only or name in only
    ]
    return _drawn(ways, "When a tile is copied, and when it is multiplied", 4, 2.0, "a product one")


def ring_of_a_warp(arch: str = "90", text: str | None = None) -> Drawing:
    """One warp of decode_attention's rung 4, and below as if it asked for keys and values only when it needs
    them; slots as the launch rule has them on an architecture, heads 128 wide, 4 on a key.
    """
    rungs = attention.LADDERS["decode_attention"]
    rung = next(each for each in rungs if each.name == "4_cp_async")
    stages = decode_tile_of(rung, 4, 128, arch)["STAGES"]
    program = decode_program(_source(rungs, rung.name) if text is None else text, stages)
    ways = [
        Way(f"Rung 4: {counted(stages - 1, 'tile')} ahead", program, "a warp"),
        Way("If each tile were asked for when it is needed", program.at_once(), "a warp"),
    ]
    heading = "A warp's own ring of keys and values"
    return _drawn(ways, heading, 4, 4.0, "a product or a softmax one. A tile: 16 keys and values")
