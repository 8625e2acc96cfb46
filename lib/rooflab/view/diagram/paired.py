"""Two warpgroups that share a head's columns, beside a producer that copies, over time.

What waits for what is read from attention's rung 10_paired_warpgroups: its steps, in the order of its source,
run here against a clock. How long a step takes is arithmetic, as in `roles`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.over_time import Bar, Lengths, Step
from rooflab.view.diagram.roles import ROWS_OF_A_TILE, WIDTH, Key, Role, take_turns
from rooflab.view.diagram.roles import Run as Turns
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted

RUNG = "10_paired_warpgroups"
_NAMES = ("copies", "tensor cores", "softmax")


class Program(NamedTuple):
    """A consumer's steps before, in and after its loop over tiles, and how often it waits for its twin in the
    softmax of a tile.
    """

    before: list[Step]
    loop: list[Step]
    after: list[Step]
    trades: int


def rung() -> Rung:
    """The rung whose steps are run."""
    return next(each for each in attention.LADDERS["attention"] if each.name == RUNG)


def program(text: str) -> Program:
    """A consumer's steps, of the kernel's source. UsageError for one that is built otherwise."""
    body = text.partition("    if (tiles) {\n")[2].partition("\n    }\n")[0]
    before, found, rest = body.partition("for (int t = 1; t < tiles; ++t) {")
    loop, closed, after = rest.partition("\n        }\n")
    softmax = text.partition("const auto softmax = ")[2].partition("\n    };")[0]
    trades = len(re.findall(r"mbarrier_wait\(&\w+_full", softmax))
    slots = all(f"mbarrier_wait(full{slot}, t % 2)" in text for slot in ("", " + 1"))
    if not (found and closed and trades and slots):
        raise UsageError("This source has no loop over tiles, with a slot of keys and one of values.")
    steps = [over_time.steps_of(part) for part in (before, loop, after)]
    return Program(steps[0], steps[1], steps[2], trades)


def simulate(steps: Program, tiles: int, takes: Lengths) -> over_time.Run:
    """Run a consumer (its twin does the same, with its half of each product) beside both halves of the
    producer: one copies the queries and keys, one values, each into a slot of its own once that is empty.
    They take turns at L2's rate, a whole tile at a time. Item 2 t is the keys of tile t, 2 t + 1 its values.
    UsageError where all wait.
    """
    run, turns, free = over_time.Run(1), Turns(), {"copies": 0.0, "tensor cores": 0.0}

    def take(unit: str, what: str, t: int, now: float, lasts: float) -> tuple[float, float]:
        start = max(now, free[unit])
        free[unit] = start + lasts
        run.bars.append(Bar(unit, what, t, start, free[unit]))
        return start, free[unit]

    def producer(values: int) -> Role:
        now = 0.0
        for t in range(tiles):
            item = 2 * t + values
            if t:
                now = yield ("empty", item - 2)
            run.claimed[item] = now
            if item == 0:
                now = take("copies", "Q", 0, now, takes.copy)[1]
            _, now = take("copies", "KV"[values], t, now, takes.copy)
            run.full[item] = turns.events["full", item] = now
            yield now

    def consumer() -> Role:
        now, pending, left = 0.0, list[float](), [0, 1]
        rounds = [(0, steps.before), *((t, steps.loop) for t in range(1, tiles)), (tiles, steps.after)]
        for t, part in rounds:
            for what, of in part:
                known = {"0": 0, "1": 1, "t": t, "t - 1": t - 1, "tiles - 1": tiles - 1}
                if of not in known:
                    raise UsageError(f"This source has a step that is not known: {what}({of}).")
                number = known[of]
                if what.startswith("start"):
                    values = int(what == "start_pv")
                    wait: Key = ("full", 2 * number + values)
                    now = yield wait
                    kind = ("QK", "PV")[values]
                    pending.append(take("tensor cores", kind, number, now, takes.product)[1])
                elif what == "warpgroup_wait":
                    while len(pending) > number:
                        now = yield pending.pop(0)
                elif what == "softmax":
                    run.bars.append(Bar("softmax", "softmax", t, now, now + takes.softmax))
                    now = yield now + takes.softmax
                else:  # releases a slot, of keys or values
                    item = left[number]
                    left[number] += 2
                    run.empty[item] = turns.events["empty", item] = now

    take_turns([producer(0), producer(1), consumer()], turns)
    return run


def run_of(takes: Lengths, tiles: int = 4, text: str | None = None) -> over_time.Run:
    """What happens in a block of the rung with so many tiles."""
    return simulate(program(rung().path.read_text(encoding="utf-8") if text is None else text), tiles, takes)


def beside(run: over_time.Run) -> list[Bar]:
    """The softmaxes in all of which a product runs."""
    products = [bar for bar in run.bars if bar.row == "tensor cores"]
    return [
        soft
        for soft in run.bars
        if soft.row == "softmax"
        and any(bar.start <= soft.start + 1e-9 and bar.end >= soft.end - 1e-9 for bar in products)
    ]


def busy(run: over_time.Run) -> tuple[float, float]:
    """Microseconds that a run takes, and the share of these in which tensor cores multiply."""
    end = max(bar.end for bar in run.bars)
    return end, sum(bar.end - bar.start for bar in run.bars if bar.row == "tensor cores") / end


def paired_over_time(takes: Lengths, tiles: int = 4, text: str | None = None) -> Drawing:
    """Copies, products and softmax of a block of the rung over time."""
    steps = program(rung().path.read_text(encoding="utf-8") if text is None else text)
    run = simulate(steps, tiles, takes)
    (end, share), canvas, left = busy(run), Canvas(), 92.0
    unit, y = (svg.WIDTH - left - 4) / end, 0.0
    for name in _NAMES:
        canvas.text(0, y + 16, name, svg.SMALL)
        boxes = [(left, y, end * unit, 24.0, "", NONE)]
        for bar in run.bars:
            if bar.row == name:
                fill = {"QK": BLUE, "PV": SKY, "softmax": AMBER, "Q": PALE}.get(bar.what, GREY)
                label = "" if name == "softmax" else "Q" if bar.what == "Q" else f"{bar.what}{bar.tile}"
                boxes.append((left + bar.start * unit, y, (bar.end - bar.start) * unit, 24.0, label, fill))
        canvas.boxes(boxes)
        y += 28
    canvas.text(left, y + 10, f"{end:.1f} µs; tensor cores busy {share:.0%} of it", svg.SMALL)
    says = f"{tiles} tiles of {ROWS_OF_A_TILE} keys, {WIDTH} columns: {end:.1f} µs, tensor cores busy "
    says += f"{share:.0%}. Of {tiles} softmaxes {len(beside(run))} run beside a product; in each the "
    says += f"warpgroups wait for each other {counted(steps.trades, 'time')}. Lengths are arithmetic: copy "
    says += f"{takes.copy:.2f} µs, product of both warpgroups {takes.product:.2f}, softmax "
    says += f"{takes.softmax:.2f} µs."
    return single(f"Rung 10 over time, {WIDTH} wide", says, canvas)
