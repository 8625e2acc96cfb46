"""The ring of attention's rung 11_tma: one thread asks for tiles ahead, and a slot's full and empty barriers
say who may go on.

The consumers' steps and the barriers are read from its source, and run against a clock as in `over_time`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.over_time import Lengths, Run, Step
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing

RUNG = "11_tma"
_WIDE = 266.0
_NAMES = ("k", "v")  # of the barriers, for keys and for values


Box = tuple[float, float, float, float, str, str]


class Source(NamedTuple):
    """What rung 11's source says: the consumers' steps, as over_time.program has them; whether the producer
    asks for tiles ahead of their arrival; how many arrivals open a full and an empty barrier.
    """

    steps: tuple[list[Step], list[Step], list[Step]]
    ahead: bool
    full: str
    empty: str


def rung() -> Rung:
    """The rung whose ring is drawn."""
    return next(each for each in attention.LADDERS["attention"] if each.name == RUNG)


def program(text: str) -> tuple[list[Step], list[Step], list[Step]]:
    """The consumers' steps before, in and after the loop over tiles, whose products and releases go from each
    tile to the next. UsageError for a source without such a loop.
    """
    body = text.partition("if (work.tiles) {")[2].partition("acc_o[i] *= rescale")
    loop = body[0].partition("for (int t = 1; t < work.tiles; ++t) {")
    if not loop[1]:
        raise UsageError("This source has no loop over tiles with products that start and are waited for.")
    parts = [_steps(part) for part in (loop[0], loop[2], body[2].partition("#pragma")[0])]
    known = {"start_qk": "", "start_pv": "", "release k": "2 * ", "release v": "1 + 2 * "}
    found: list[list[Step]] = []
    for place, part in enumerate(parts):
        steps = list[Step]()
        for what, of in part:
            if what in known:
                before = sum(step == (what, of) for step in parts[0])
                tile = ("0", f"(t - 1 + {before})", f"(tiles - 1 + {before})")[place]
                steps.append((what.partition(" ")[0], known[what] + tile))
            else:
                steps.append((what, of))
        found.append(steps)
    return found[0], found[1], found[2]


def _steps(text: str) -> list[Step]:
    text = re.sub(r"//[^\n]*", "", text)
    pattern = (
        r"\b(start_qk|start_pv)\(\)|\brelease\(([kv])_empty|\b(softmax)\((\w+)\)|\bwarpgroup_wait<(\d)>\(\)"
    )
    return [
        (start, "")
        if start
        else (f"release {of}", "")
        if of
        else (soft, t)
        if soft
        else ("warpgroup_wait", n)
        for start, of, soft, t, n in re.findall(pattern, text)
    ]


def source(text: str) -> Source:
    """What a source says of its ring. UsageError for one whose barriers have other names."""
    counts = [re.search(rf"mbarrier_init\({name} \+ i, ([^)]+)\)", text) for name in ("k_full", "k_empty")]
    waits = all(f"mbarrier_wait({name}_{kind}" in text for name in _NAMES for kind in ("full", "empty"))
    if not all(counts) or not waits:
        raise UsageError("This source has no full and empty barriers of keys and values.")
    full, empty = (count[1] for count in counts if count)
    return Source(program(text), "tma_copy_box" in text, full, empty)


def run_of(takes: Lengths, tiles: int = 4, text: str | None = None) -> Run:
    """What happens in a block of the rung with so many tiles."""
    found = source(rung().path.read_text(encoding="utf-8") if text is None else text)
    stages = rung().with_defaults({})["STAGES"]
    return over_time.simulate(found.steps, tiles, stages, takes, ahead=found.ahead)


def waits(run: Run) -> bool:
    """Whether the producer ever waits for a slot that the consumers have not released."""
    return any(run.claimed[item] > run.free[item] + 1e-9 for item in run.claimed)


def state(run: Run, slot: int, slots: int, moment: float) -> tuple[int | None, str]:
    """The item in a slot at a moment, and what is going on with it."""
    mine = [item for item in run.claimed if item % slots == slot and run.claimed[item] <= moment]
    if not mine or run.empty.get(max(mine), float("inf")) <= moment:
        return None, "empty"
    item = max(mine)
    if moment < run.full[item]:
        return item, "arriving"
    what = "PV" if item % 2 else "QK"
    used = any(
        (bar.what, bar.tile) == (what, item // 2) and bar.start <= moment
        for bar in run.bars
        if bar.row == "tensor cores"
    )
    return item, "read" if used else "full"


def ring(takes: Lengths, tiles: int = 4, most: int = 7, text: str | None = None) -> Drawing:
    """The ring's slots with their barriers: when the producer has asked for what fits, and when the consumers
    take up a tile.
    """
    run = run_of(takes, tiles, text)
    slots = 2 * run.stages
    starts = sorted({bar.start for bar in run.bars if bar.row == "tensor cores"})
    frames, said = [], []
    for moment in [0.0, *starts][:most]:
        canvas, words = _frame(run, slots, moment)
        frames.append((f"at {moment:.1f} µs", canvas))
        said.append(f"at {moment:.1f} µs {words}")
    says = f"A ring of {slots} slots for keys and values, each with a full and an empty barrier: "
    says += f"{'; '.join(said[:3])}; and so on. A full barrier opens when a tile has arrived, an empty one "
    says += "when all consumers have released the slot."
    blocked = "waits at empty barriers" if waits(run) else "never waits"
    return Drawing(f"Rung 11's ring: the producer {blocked}", says, frames, across=2)


def _name(item: int) -> str:
    return f"{'KV'[item % 2]}{item // 2}"


def _frame(run: Run, slots: int, moment: float) -> tuple[Canvas, str]:
    """The slots and barriers at a moment, with who waits where; and the slots in words."""
    canvas, wide, words = Canvas(_WIDE), _WIDE / slots, list[str]()
    cells, barriers = list[Box](), list[Box]()
    for slot in range(slots):
        item, what = state(run, slot, slots, moment)
        fill = {"empty": NONE, "arriving": GREY, "full": SKY, "read": BLUE}[what]
        x = slot * wide
        cells.append((x, 22.0, wide - 6, 30.0, "" if item is None else _name(item), fill))
        canvas.text(x + (wide - 6) / 2, 65, what, svg.SMALL, "middle")
        for k, (kind, opens) in enumerate((("full", what in ("full", "read")), ("empty", what == "empty"))):
            label = f"{_NAMES[slot % 2]}_{kind}[{slot // 2}]"
            barriers.append((x, 71 + 20.0 * k, wide - 5, 17.0, label, AMBER if opens else NONE))
        words.append(f"{'nothing' if item is None else _name(item)} {what}")
    canvas.boxes(cells, 15)
    canvas.boxes(barriers, 9.5)
    canvas.text(0, 13, f"producer: {_producer(run, slots, moment)}", svg.TEXT - 1)
    canvas.text(0, 124, f"consumers: {_consumers(run, moment)}", svg.TEXT - 1)
    canvas.text(0, 140, "orange: open, so waiting warps continue", svg.SMALL)
    return canvas, ", ".join(words)


def _barrier(item: int, kind: str, stages: int) -> str:
    return f"{_NAMES[item % 2]}_{kind}[{item // 2 % stages}]"


def _producer(run: Run, slots: int, moment: float) -> str:
    later = [item for item, began in run.claimed.items() if began > moment]
    if later:
        return f"waits at {_barrier(min(later), 'empty', slots // 2)} for {_name(min(later))}"
    return "has asked for all tiles"


def _consumers(run: Run, moment: float) -> str:
    products = [bar for bar in run.bars if bar.row == "tensor cores"]
    busy = [bar for bar in products if bar.start <= moment < bar.end]
    if busy:
        starts = busy[0].start == moment
        return f"{'start' if starts else 'are at'} {busy[0].what}{busy[0].tile}"
    if any(bar.row == "softmax" and bar.start <= moment < bar.end for bar in run.bars):
        return "are at a softmax"
    after = min((bar for bar in products if bar.start > moment), key=lambda bar: bar.start, default=None)
    if after is None:
        return "have read all tiles"
    item = 2 * after.tile + (after.what == "PV")
    return f"wait at {_barrier(item, 'full', run.stages)}"
