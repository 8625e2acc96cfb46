"""A warpgroup that makes scores beside two that hold the outputs, over time.

What each waits for and hands over is read from attention's rung 12_warp_specialised: its steps, in the order
of its source, run here against a clock. How long a step takes is arithmetic, as in `over_time`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.ops.attention_tiles import tile_of
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.over_time import Bar, Lengths
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

RUNG, WIDTH = "12_warp_specialised", 512
ROWS_OF_A_TILE = 64  # queries of a block, and keys of a tile
_SLICES = 16  # of a product: two that are under way take turns by them
ROWS = ("copies", "warpgroup 0", "warpgroups 1, 2")
_LEFT = 108.0  # of the drawing: what is before the time axis

Key = tuple[str, int]  # what has happened, and to which item of the ring or tile
Role = Generator[Key | float, float, None]  # yields what it waits for, and is sent the time when it came


class Roles(NamedTuple):
    """The steps of a tile, of the warpgroup that scores and of those that add, in the source's order; slots
    of the ring, blocks of a cluster, and the share of a score's products that come before P is handed over.
    """

    scores: list[str]
    adds: list[str]
    slots: int
    cluster: int
    before: float


@dataclass
class Run:
    """What happened: bars, when each event came, and how long tensor cores multiplied (us)."""

    bars: list[Bar] = field(default_factory=list)
    multiplied: float = 0.0
    events: dict[Key, float] = field(default_factory=dict)


_SCORES = {
    r"wait_for\(item\)": "wait for K",
    r"if \(i == STEPS - 1 - EARLY\) warpgroup_commit\(\)": "start QK",
    r"warpgroup_wait<1>\(\)": "wait for most of QK",
    r"mbarrier_arrive\(p_full \+ \(buffer \^ 1\)\)": "hand over",
    r"warpgroup_wait<0>\(\)": "wait for QK",
    r"release\(item,": "release K",
    r"mbarrier_wait\(p_empty": "wait for a buffer",
    r"one = exp2_approx": "softmax",
}
_ADDS = {
    r"load_until\([^;]*\bitem \+ 1\)": "copy 1",
    r"load_until\(item \+ 2\)": "copy 2",
    r"mbarrier_wait\(p_full": "wait for P",
    r"wait_for\(item\)": "wait for V",
    r"WGMMA\(shared_rows\)": "start PV",
    r"warpgroup_wait<0>\(\)": "wait for PV",
    r"release\(item,": "release V",
    r"mbarrier_arrive\(p_empty": "release P",
}


def rung() -> Rung:
    """The rung whose steps are run."""
    return next(each for each in attention.LADDERS["attention"] if each.name == RUNG)


def roles_of(text: str) -> Roles:
    """The roles of a kernel's source. UsageError where a step of theirs is missing."""
    loops = text.split("for (int t = 0; t < work.tiles; ++t) {")
    slots = re.search(r"\bSLOTS = (\d+)", text)
    if len(loops) != 3 or not slots:
        raise UsageError("This source has no two loops over tiles and SLOTS of a ring between them.")
    found = []
    for loop, names in zip(loops[1:], (_SCORES, _ADDS), strict=True):
        at = {name: re.search(pattern, loop) for pattern, name in names.items()}
        missing = [name for name, match in at.items() if not match]
        if missing:
            raise UsageError(f"This source has no step: {', '.join(missing)}.")
        found.append(sorted(at, key=lambda name: at[name].start()))  # type: ignore[union-attr]
    macros = rung().with_defaults(tile_of(rung(), WIDTH, "90"))
    steps = WIDTH // 16
    before = (steps - macros["EARLY"]) / steps
    return Roles(found[0], found[1], int(slots[1]), macros["CLUSTER"], before)


def simulate(roles: Roles, tiles: int, takes: Lengths) -> Run:
    """Run both roles beside each other, each step as soon as what it waits for has happened. Through the ring
    go keys 0, queries, keys 1, values 0, keys 2, values 1 and so on; `takes.copy` is of a tile that a block
    copies alone. Products under way at once share the tensor cores evenly. UsageError where all wait.
    """
    started: list[Role] = []
    run, free = Run(), {"copies": 0.0, "tensor cores": 0.0}
    names = ["K0", "Q", *(name for t in range(1, tiles) for name in (f"K{t}", f"V{t - 1}")), f"V{tiles - 1}"]

    def take(unit: str, now: float, lasts: float) -> tuple[float, float]:
        start = max(now, free[unit])
        free[unit] = start + lasts
        return start, start + lasts

    def product(row: str, what: str, t: int, now: float) -> Role:
        begin = now = yield now
        for k in range(_SLICES):
            start, end = take("tensor cores", now, takes.product / _SLICES)
            begin = begin if k else start
            if k == round(roles.before * _SLICES):
                run.events[f"most of {what}", t] = start
            now = yield end
        run.events[what, t] = now
        run.bars.append(Bar(row, what, t, begin, now))
        run.multiplied += takes.product

    def scores() -> Role:
        now = yield ("full", 1)
        run.events["empty", 1] = now
        for t in range(tiles):
            item = names.index(f"K{t}")
            for step in roles.scores:
                if step == "wait for K":
                    now = yield ("full", item)
                elif step == "start QK":
                    started.append(product(ROWS[1], "QK", t, now))
                elif step == "wait for most of QK" and t:
                    now = yield ("most of QK", t)
                elif step == "hand over" and t:
                    run.events["P", t - 1] = now
                elif step == "wait for QK":
                    now = yield ("QK", t)
                elif step == "release K":
                    run.events["empty", item] = now
                elif step == "wait for a buffer" and t > 1:
                    now = yield ("P read", t - 2)
                elif step == "softmax":
                    run.bars.append(Bar(ROWS[1], "softmax", t, now, now + takes.softmax))
                    now = yield now + takes.softmax
        run.events["P", tiles - 1] = now

    def adds() -> Role:
        now, copied = 0.0, 0
        for t in range(tiles):
            item = names.index(f"V{t}")
            for step in roles.adds:
                if step.startswith("copy"):
                    for each in range(copied, min(item + int(step[-1]) + 1, len(names))):
                        if each >= roles.slots:
                            now = yield ("empty", each - roles.slots)
                        shared = 1 if names[each] == "Q" else roles.cluster
                        start, end = take("copies", now, takes.copy / shared)
                        run.bars.append(Bar(ROWS[0], names[each], 0, start, end))
                        run.events["full", each] = end
                        copied = each + 1
                elif step == "wait for P":
                    now = yield ("P", t)
                elif step == "wait for V":
                    now = yield ("full", item)
                elif step == "start PV":
                    started.append(product(ROWS[2], "PV", t, now))
                elif step == "wait for PV":
                    now = yield ("PV", t)
                elif step == "release V":
                    run.events["empty", item] = now
                elif step == "release P":
                    run.events["P read", t] = now

    started += [scores(), adds()]
    take_turns(started, run)
    return run


def take_turns(started: list[Role], run: Run) -> None:
    """Go on with the role whose next step is the earliest, until all are done; they may start others."""
    now: dict[Role, float] = {}
    waits: dict[Role, Key | float] = {}
    while waits or started:
        while started:
            role = started.pop(0)
            now[role], waits[role] = 0.0, next(role)
        ready = {
            role: max(now[role], run.events[wait] if isinstance(wait, tuple) else wait)
            for role, wait in waits.items()
            if not isinstance(wait, tuple) or wait in run.events
        }
        if not ready:
            raise UsageError(f"All wait: {', '.join(map(str, waits.values()))}.")
        role = min(ready, key=lambda each: ready[each])
        now[role] = ready[role]
        try:
            waits[role] = role.send(now[role])
        except StopIteration:
            del waits[role]


def lengths(gb_s: float, tflop_s: float, sms: int, mhz: float) -> Lengths:
    """How long the steps take on one SM, as in `over_time`: a tile's copy by one block alone, a product of 64
    queries and 64 keys with all columns, the softmax of a tile.
    """
    rows = ROWS_OF_A_TILE
    copy = 2 * rows * WIDTH / (gb_s / sms) / 1e3
    product = 2 * rows * rows * WIDTH / (tflop_s / sms) / 1e6
    return Lengths(copy, product, rows * rows / over_time.EXPONENTIALS / mhz)


def busy(run: Run) -> tuple[float, float]:
    """Microseconds that a run takes, and the share of these in which tensor cores multiply."""
    end = max(bar.end for bar in run.bars)
    return end, run.multiplied / end


def beside(run: Run) -> list[Bar]:
    """The softmaxes in all of which the weights of the tile before are multiplied by its values."""
    products = {bar.tile: bar for bar in run.bars if bar.what == "PV"}
    found = [(bar, products.get(bar.tile - 1)) for bar in run.bars if bar.what == "softmax"]
    return [soft for soft, pv in found if pv and pv.start <= soft.start + 1e-9 and pv.end >= soft.end - 1e-9]


def late(run: Run, tile: int = 0) -> bool:
    """Whether P V of a tile starts when its values arrive, later than its weights are handed over."""
    values, product = (
        next(bar for bar in run.bars if (bar.what, bar.tile) == what)
        for what in ((f"V{tile}", 0), ("PV", tile))
    )
    return run.events["P", tile] + 1e-9 < values.end and abs(product.start - values.end) < 1e-9


def both_runs(takes: Lengths, tiles: int, text: str | None = None) -> tuple[Roles, list[Run]]:
    """The rung's roles, and their runs: each block copies for itself, and a cluster shares copies."""
    roles = roles_of(rung().path.read_text(encoding="utf-8") if text is None else text)
    return roles, [simulate(roles._replace(cluster=blocks), tiles, takes) for blocks in (1, roles.cluster)]


def _timeline(run: Run, before: float, unit: float, last: float) -> Canvas:
    """A run's rows at `unit` a microsecond, with what the first weights wait for, or what they run beside."""
    canvas, tops, names_beside = Canvas(), (0.0, 42.0, 84.0), list[tuple[float, float, str]]()
    at = {(bar.what, bar.tile): bar for bar in run.bars}
    framed = at["softmax", 1] if at["softmax", 1] in beside(run) else None
    for name, y in zip(ROWS, tops, strict=True):
        canvas.text(0, y + 16, name, svg.SMALL)
        boxes = [(_LEFT, y, last * unit, 24.0, "", NONE)]
        for bar in run.bars:
            if bar.row == name:
                fill = {"QK": BLUE, "PV": SKY, "softmax": AMBER}.get(bar.what, GREY)
                label = bar.what if fill == GREY else "" if fill == AMBER else f"{bar.what}{bar.tile}"
                if framed and (bar.what, bar.tile) == ("PV", 0):  # its name stands beside the frame
                    names_beside.append((_LEFT + framed.end * unit + 4, y + 16, label))
                    label = ""
                boxes.append((_LEFT + bar.start * unit, y, (bar.end - bar.start) * unit, 24.0, label, fill))
        canvas.boxes(boxes)
    for x, y, label in names_beside:
        canvas.text(x, y, label, svg.SMALL)
    tiles = 1 + max(tile for what, tile in at if what == "PV")
    for t in range(tiles):  # P is handed over, between the two lower rows
        x = _LEFT + run.events["P", t] * unit
        canvas.line([(x, 67), (x, 83)], 1.4, end="arrow")
        where = (x + 4, "start") if t == tiles - 1 else (x - 4, "end")
        canvas.text(where[0], 80, f"P{t}", svg.SMALL, where[1])
    if before:
        steps = WIDTH // 16  # columns of a step
        x = _LEFT + run.events["P", 0] * unit
        canvas.text(x - 4, 36, f"{round(before * steps)} of {steps} steps of QK1", svg.SMALL, "end")
        canvas.line([(x, 27), (x, 41)], 1.4)
    if late(run):
        x = _LEFT + at["V0", 0].end * unit
        canvas.line([(x, 24), (x, 84)], 1.2, dashed=True)
        canvas.text(x, 121, "PV0 waits for V0", svg.SMALL)
    if framed:
        x, wide = _LEFT + framed.start * unit, (framed.end - framed.start) * unit
        canvas.frame(x - 2, 39, wide + 4, 72, 2)
        canvas.text(x - 2, 123, "PV0 runs beside softmax 1", svg.SMALL)
    return canvas


def warp_roles(takes: Lengths, tiles: int = 4, text: str | None = None) -> Drawing:
    """Who does what over time in a block of the rung, as if each block copied for itself, and below it with
    the copies that a cluster shares; both on one scale.
    """
    roles, runs = both_runs(takes, tiles, text)
    last, canvas, y, told = max(busy(each)[0] for each in runs), Canvas(), 0.0, []
    unit = (svg.WIDTH - _LEFT - 4) / last
    names = ("Each block copies for itself", f"{counted(roles.cluster, 'block').capitalize()} share copies")
    for name, run in zip(names, runs, strict=True):
        end, share = busy(run)
        canvas.text(0, y + 12, f"{name}: {end:.1f} µs, tensor cores busy {share:.0%}", svg.TEXT, bold=True)
        canvas.place(_timeline(run, roles.before, unit, last), 0, y + 22)
        y += 160
        told.append(
            f"{name}: {end:.1f} µs, tensor cores busy {share:.0%}; P V of the tile before runs beside "
            f"{len(beside(run))} of {tiles} softmaxes."
        )
    says = f"{tiles} tiles of {WIDTH} columns, twice on one scale. {' '.join(told)} Warpgroup 0 makes scores "
    says += "(QK) and their softmax (amber) and hands P over; warpgroups 1 and 2 add P times V to the "
    says += f"outputs. Lengths are arithmetic: copy {takes.copy:.2f} µs for a block alone, product "
    says += f"{takes.product:.2f}, softmax {takes.softmax:.2f} µs."
    return single("Rung 12 over time, with own and with shared copies", says, canvas, lean=True)
