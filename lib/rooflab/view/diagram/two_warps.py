"""Two warps of a block over time: with barriers for all, and with a ring whose barriers count arrivals.

What they wait for is read from attention's rungs 7 and 13: their steps, in the order of the sources. Every
step is as long as any other, and the two warps' products take turns at the tensor cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rooflab.errors import UsageError
from rooflab.ops import attention
from rooflab.view.diagram import svg
from rooflab.view.diagram.over_time import Bar
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, single

TOGETHER, APART = "7_mma_32_rows", "13_mbarrier_ring"
_WARPS, _SLOTS = 2, 2
TILES = 3  # of the drawing
_STEPS = {
    "QK": r"multiply\(s\[",
    "softmax": r"\bp = exp2_approx",
    "PV": r"multiply\(acc_o",
    "meet": r"__syncthreads\(\)",
    "wait full": r"arrivals_wait\(full",
    "wait empty": r"arrivals_wait\(empty",
    "copy": r"load_tile\(tile \+ KEYS",
    "arrive empty": r"arrivals_add\(empty",
}


@dataclass
class Run:
    """What happened: bars of the warps, and when each tile's copies began, it was full and was empty."""

    bars: list[Bar] = field(default_factory=list)
    claimed: dict[int, float] = field(default_factory=dict)
    full: dict[int, float] = field(default_factory=dict)
    empty: dict[int, float] = field(default_factory=dict)
    meets: list[float] = field(default_factory=list)  # at barriers for all

    @property
    def end(self) -> float:
        """When the last step ends."""
        return max(bar.end for bar in self.bars)

    def begins(self, warp: int, what: str, tile: int) -> int:
        """In which step, counted from 1, a warp begins something with a tile."""
        return 1 + round(
            next(
                bar.start
                for bar in self.bars
                if (bar.row, bar.what, bar.tile) == (f"warp {warp}", what, tile)
            )
        )

    @property
    def idle(self) -> list[int]:
        """The steps, counted from 1, in which no product runs."""
        busy = {round(bar.start) for bar in self.bars if bar.what != "softmax"}
        return [step + 1 for step in range(round(self.end)) if step not in busy]

    @property
    def rests(self) -> float:
        """How long no product runs."""
        return self.end - sum(bar.end - bar.start for bar in self.bars if bar.what != "softmax")


def steps_of(name: str) -> list[str]:
    """The steps of a rung's loop over tiles, in its source's order. UsageError where it has no products."""
    rung = next(each for each in attention.LADDERS["attention"] if each.name == name)
    loop = rung.path.read_text(encoding="utf-8").partition("for (int tile = from")[2]
    found = [(at.start(), step) for step, pattern in _STEPS.items() for at in re.finditer(pattern, loop)]
    steps = list(dict.fromkeys((step, at if step == "meet" else 0) for at, step in sorted(found)))
    if not {"QK", "softmax", "PV"} <= {step for step, _ in steps}:
        raise UsageError(f"{name} has no loop over tiles with two products and a softmax between.")
    last = max(k for k, (step, _) in enumerate(steps) if step in ("PV", "arrive empty"))
    return [step for step, _ in steps[: last + 1]]  # what follows the loop is left out


def simulate(steps: list[str], tiles: int) -> Run:
    """Run two warps through `tiles`. A share of a tile is copied in one step's time, beside the others."""
    run, todo = Run(claimed={0: -1.0}, full={0: 0.0}), [(t, step) for t in range(tiles) for step in steps]
    at, now, tensor = [0] * _WARPS, [0.0] * _WARPS, 0.0
    met: dict[int, dict[int, float]] = {}  # step of the list, warp: when it came there
    copied: dict[int, dict[int, float]] = {}
    read: dict[int, dict[int, float]] = {}

    def ready(warp: int) -> float | None:
        """When a warp's next step may begin, or None where that is not known yet."""
        t, step = todo[at[warp]]
        if step == "meet":
            came = met.setdefault(at[warp], {})
            came[warp] = now[warp]
            if len(came) < _WARPS:
                return None
            run.meets += [max(came.values())] if max(came.values()) not in run.meets else []
            return max(came.values())
        awaited = {"wait full": (run.full, t), "wait empty": (run.empty, t - 1)}.get(step)
        if awaited is None or awaited[1] < 0:
            return max(now[warp], tensor) if step in ("QK", "PV") else now[warp]
        if step == "wait empty" and t + 1 >= tiles:
            return now[warp]
        done = awaited[0].get(awaited[1])
        return None if done is None else max(now[warp], done)

    while any(place < len(todo) for place in at):
        may = {warp: ready(warp) for warp in range(_WARPS) if at[warp] < len(todo)}
        known = {warp: when for warp, when in may.items() if when is not None}
        if not known:
            raise UsageError("Both warps wait.")
        # Who has come first goes first: of two that ask for the tensor cores at once, the one further behind.
        warp = min(known, key=lambda each: (known[each], now[each], at[each], each))
        t, step = todo[at[warp]]
        now[warp] = begin = known[warp]
        if step in ("QK", "softmax", "PV"):
            now[warp] = begin + 1
            tensor = tensor if step == "softmax" else begin + 1
            run.bars.append(Bar(f"warp {warp}", step, t, begin, now[warp]))
        elif step == "copy" and t + 1 < tiles:
            run.claimed.setdefault(t + 1, begin)
            shares = copied.setdefault(t + 1, {})
            shares[warp] = begin + 1
            if len(shares) == _WARPS:
                run.full[t + 1] = max(shares.values())
        elif step == "arrive empty":
            readers = read.setdefault(t, {})
            readers[warp] = begin
            if len(readers) == _WARPS:
                run.empty[t] = max(readers.values())
        at[warp] += 1
    return run


def runs_of(tiles: int = TILES) -> tuple[Run, Run]:
    """Two warps through so many tiles, by rung 7's steps and by rung 13's."""
    together, apart = (simulate(steps_of(name), tiles) for name in (TOGETHER, APART))
    return together, apart


def half_apart(tiles: int = TILES) -> Drawing:
    """Two warps in step by barriers for all, and below apart, with the slots of the ring."""
    runs = dict(zip((TOGETHER, APART), runs_of(tiles), strict=True))
    titles = {TOGETHER: "Rung 7: barriers for all warps", APART: "Rung 13: full and empty for each slot"}
    canvas, left, y, said = Canvas(), 60.0, 0.0, []
    unit = (svg.WIDTH - left - 4) / max(run.end for run in runs.values())

    def row(name: str) -> None:
        canvas.text(0, y + 16, name, svg.SMALL)
        canvas.rect(left, y, run.end * unit, 24, NONE, 0.3)

    for name, run in runs.items():
        canvas.text(0, y + 12, titles[name], bold=True)
        y += 20
        for slot in range(_SLOTS) if run.empty else ():
            row(f"slot {slot}")
            before = 0.0
            for t in range(slot, tiles, _SLOTS):
                start, full, empty = max(0.0, run.claimed[t]), run.full[t], run.empty[t]
                for begin, end, words, fill in (
                    (before, start, "empty", NONE),
                    (start, full, "copies", GREY),
                    (full, empty, f"tile {t}: full", PALE),
                    (empty, run.end if t + _SLOTS >= tiles else empty, "empty", NONE),
                ):
                    if end > begin:
                        canvas.cell(
                            left + begin * unit, y, (end - begin) * unit, 24, words, fill, svg.SMALL - 1
                        )
                before = empty
            y += 26
        for warp in range(_WARPS):
            row(f"warp {warp}")
            boxes = []
            for bar in run.bars:
                if bar.row == f"warp {warp}":
                    fill = {"QK": BLUE, "PV": SKY}.get(bar.what, AMBER)
                    words = "" if fill == AMBER else f"{bar.what}{bar.tile}"
                    wide = (bar.end - bar.start) * unit
                    boxes.append((left + bar.start * unit, y, wide, 24.0, words, fill))
            canvas.boxes(boxes)
            y += 26
        for met in run.meets:
            canvas.line([(left + met * unit, y - 56), (left + met * unit, y - 1)], 2.2)
        for step in range(round(run.end)):
            canvas.text(left + (step + 0.5) * unit, y + 7, f"{step + 1}", svg.SMALL - 1, "middle")
        y += 11
        busy = f"a product runs in {run.end - run.rests:.0f}" if run.rests else "a product runs in each"
        key = "; thick lines: barriers where both meet" if run.meets else ""
        canvas.text(left, y + 9, f"{run.end:.0f} steps long; {busy}{key}", svg.SMALL)
        y += 28
        said.append(f"{titles[name]}: {run.end:.0f} steps long, {busy}")
    says = f"Two warps, {tiles} tiles. {'. '.join(said)}. Blue: products, amber: softmax, all equally long."
    return single("Two warps, in step and apart", says, canvas, lean=True)
