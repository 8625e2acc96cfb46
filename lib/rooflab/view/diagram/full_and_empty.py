"""The ring of attention's rung 9_wgmma: a producer copies tiles into slots, and a slot's full and empty
barriers say who may go on.

The barriers are read from the source; its steps are run against a clock by `over_time`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.over_time import Lengths, Run
from rooflab.view.diagram.svg import BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing

_WIDE = 266.0


Box = tuple[float, float, float, float, str, str]


class Arrivals(NamedTuple):
    """How many arrivals open a full and an empty barrier."""

    full: int
    empty: int


def arrivals(text: str) -> Arrivals:
    """The arrivals of a source's barriers. UsageError for one whose barriers have other names."""
    counts = re.search(
        r"mbarrier_init\(full \+ i, PRODUCER_THREADS / (\d+)\), mbarrier_init\(empty \+ i, (\d+)\)", text
    )
    threads = re.search(r"\bPRODUCER_THREADS = (\d+)", text)
    if (
        not counts
        or not threads
        or "mbarrier_wait(empty + slot" not in text
        or "mbarrier_wait(full" not in text
    ):
        raise UsageError("This source has no full and empty barriers of a ring's slots.")
    return Arrivals(int(threads[1]) // int(counts[1]), int(counts[2]))


def run_of(takes: Lengths, tiles: int = 4, text: str | None = None) -> Run:
    """What happens in a block of the rung with so many tiles."""
    text = over_time.rung().path.read_text(encoding="utf-8") if text is None else text
    return over_time.simulate(
        over_time.program(text), tiles, over_time.rung().with_defaults({})["STAGES"], takes
    )


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


def ring(takes: Lengths, tiles: int = 4, most: int = 5, text: str | None = None) -> Drawing:
    """The slots of rung 9's ring with their barriers: at the start, and when the consumers take up a tile."""
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
    says += "when all consumers have released the slot; when one of a slot's two opens, the other closes."
    return Drawing("Rung 9's ring", says, frames, across=2, lean=True)


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
        state_of = "being read" if what == "read" else what
        canvas.text(x + (wide - 6) / 2, 65, state_of, svg.SMALL, "middle")
        arrived = what in ("full", "read")
        for k, (kind, opens) in enumerate((("full", arrived), ("empty", not arrived))):
            barriers.append((x, 71 + 20.0 * k, wide - 5, 17.0, f"{kind}[{slot}]", PALE if opens else NONE))
        words.append(f"{'nothing' if item is None else _name(item)} {state_of}")
    canvas.boxes(cells, 15)
    canvas.boxes(barriers, 9.5)
    canvas.text(0, 13, f"producer: {_producer(run, slots, moment)}", svg.TEXT - 1)
    canvas.text(0, 124, f"consumers: {_consumers(run, moment)}", svg.TEXT - 1)
    canvas.text(0, 140, "shaded: open, passed without a wait", svg.SMALL)
    return canvas, ", ".join(words)


def _barrier(item: int, kind: str, slots: int) -> str:
    return f"{kind}[{item % slots}]"


def _producer(run: Run, slots: int, moment: float) -> str:
    copied = [item for item in run.claimed if run.claimed[item] <= moment < run.full[item]]
    if copied:
        return f"copies {' and '.join(map(_name, copied))}"
    later = [item for item, began in run.claimed.items() if began > moment]
    if later:
        return f"waits at {_barrier(min(later), 'empty', slots)} for {_name(min(later))}"
    return "has copied all tiles"


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
    return f"wait at {_barrier(item, 'full', 2 * run.stages)}"
