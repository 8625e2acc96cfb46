"""Tiles that are copied and products that run beside the softmax, over time.

What waits for what is read from attention's rung 9_wgmma: its steps, in the order of its source, run here
against a clock. How long a step takes is arithmetic: bytes by a rate, FLOPs by a roof, exponentials by the
clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.ops import Rung, attention
from rooflab.ops.attention_tiles import Prompt, tile_of
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single

RUNG = "9_wgmma"
REFERENCE = "h200"
QUERIES = 128  # a block's, in that rung
_LEFT, _MOMENTS = 92.0, 3  # where a row's bars begin; frames that end within a softmax
EXPONENTIALS = 16  # an SM's special function units make in a clock, by the programming guide for 9.0

Step = tuple[str, str]  # what, and for which tile or how many may be pending


class Lengths(NamedTuple):
    """Microseconds: a tile's copy, one product with a tile, the softmax of a tile."""

    copy: float
    product: float
    softmax: float


class Bar(NamedTuple):
    """Something that takes time: in which row, what, for which tile, from when to when (us)."""

    row: str
    what: str
    tile: int
    start: float
    end: float


@dataclass
class Run:
    """What happened: bars, and for each item of the ring when the producer was free for it, and when its slot
    was claimed, full and empty again.
    """

    stages: int
    bars: list[Bar] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    claimed: dict[int, float] = field(default_factory=dict)
    full: dict[int, float] = field(default_factory=dict)
    empty: dict[int, float] = field(default_factory=dict)


def program(text: str) -> tuple[list[Step], list[Step], list[Step]]:
    """The consumer's steps before, in and after its loop over tiles, in the order of the kernel's source."""
    body = text.partition("if (tiles) {")[2].partition("acc_o[i] *= rescale")
    loop = body[0].partition("for (int t = 1; t < tiles; ++t) {")
    if not loop[1]:
        raise UsageError("This source has no loop over tiles with products that start and are waited for.")
    found = [steps_of(part) for part in (loop[0], loop[2], body[2].partition("#pragma")[0])]
    return found[0], found[1], found[2]


def steps_of(text: str) -> list[Step]:
    """A consumer's steps in a piece of source, in its order."""
    text = re.sub(r"//[^\n]*", "", text)
    pattern = r"\b(start_qk|start_pv|softmax|release)\(([^)]*)\)|\b(warpgroup_wait)<(\d)>\(\)"
    return [(a or c, b if a else d) for a, b, c, d in re.findall(pattern, text)]


def simulate(
    steps: tuple[list[Step], list[Step], list[Step]],
    tiles: int,
    stages: int,
    takes: Lengths,
    pieces: int = 1,
) -> Run:
    """Run the consumer's steps beside a producer that copies item after item, K and V of tile after tile,
    each as soon as the one before has arrived and its slot of 2 `stages` is empty. Of several `pieces` of
    work, of `tiles` each, the producer begins the next while the consumers still have the one before.
    """
    run = Run(stages)
    slots, now, tensor, copier = 2 * stages, 0.0, 0.0, 0.0
    pending: list[float] = []

    def fill(item: int) -> float:
        """When an item is full; copies what comes before it first."""
        nonlocal copier
        for each in range(len(run.full), item + 1):
            before = each - slots
            if before >= 0 and before not in run.empty:
                raise UsageError(f"Item {each} waits for a slot that item {before} never leaves.")
            run.free[each] = copier
            run.claimed[each] = max(run.free[each], run.empty.get(before, 0.0))
            start = max(copier, run.claimed[each])
            run.full[each] = start + takes.copy
            copier = start + takes.copy
            run.bars.append(Bar("copies", "KV"[each % 2], each // 2, start, copier))
        return run.full[item]

    def do(step: Step, t: int, first: int) -> None:
        """A step at tile t of the piece of work whose tiles begin at `first`."""
        nonlocal now, tensor
        what, of = step[0], int(eval(step[1], {"__builtins__": {}}, {"t": t, "tiles": tiles}))
        if what.startswith("start"):
            of += first
            ready = fill(2 * of + (what == "start_pv"))
            now = max(now, ready)
            start = max(now, tensor)
            tensor = start + takes.product
            pending.append(tensor)
            run.bars.append(Bar("tensor cores", "QK" if what == "start_qk" else "PV", of, start, tensor))
        elif what == "warpgroup_wait":
            while len(pending) > of:
                now = max(now, pending.pop(0))
        elif what == "softmax":
            run.bars.append(Bar("softmax", "softmax", first + of, now, now + takes.softmax))
            now += takes.softmax
        else:
            run.empty[2 * first + of] = now

    before, loop, after = steps
    for first in range(0, pieces * tiles, tiles):
        for step in before:
            do(step, 0, first)
        for t in range(1, tiles):
            for step in loop:
                do(step, t, first)
        for step in after:
            do(step, tiles, first)
        if pieces > 1:  # where a block ends with its piece, its last slots need not be released
            run.empty |= {item: now for item in run.full if item not in run.empty}
    return run


def rung() -> Rung:
    """The rung whose steps are run."""
    return next(each for each in attention.LADDERS["attention"] if each.name == RUNG)


def lengths(gb_s: float, tflop_s: float, sms: int, mhz: float) -> Lengths:
    """How long the steps take on one SM: a tile at its share of `gb_s`, a product at its share of `tflop_s`,
    exponentials at EXPONENTIALS a clock.
    """
    macros = rung().with_defaults({})
    keys, width = macros["KEYS"], macros["HEAD_DIM"]
    copy = 2 * keys * width / (gb_s / sms) / 1e3
    product = 2 * QUERIES * keys * width / (tflop_s / sms) / 1e6
    return Lengths(copy, product, QUERIES * keys / EXPONENTIALS / mhz)


def of_lab(lab: Any) -> Lengths:
    """The lengths on a lab's device."""
    return lengths(*rates(lab))


class Copied(NamedTuple):
    """A rung's copies: GB/s that they take at least, by its rate (TFLOP/s) and the queries of its blocks."""

    gb_s: float
    impl: str
    width: int
    tflop_s: float
    queries: int


def read(lab: Any) -> float:
    """GB/s of reads that L2 gives, as far as measured; or of the datasheet's DRAM."""
    rows = lab.store.read("bandwidth")
    warm = rows[(rows["operator"] == "read") & (rows["cache"] == "warm")]["gb_s"].max()
    return (lab.spec or device.get(REFERENCE)).dram_gb_s if pd.isna(warm) else float(warm)


def read_warm(lab: Any) -> bool:
    """Whether reads from L2 are recorded."""
    rows = lab.store.read("bandwidth")
    return bool(rows[(rows["operator"] == "read") & (rows["cache"] == "warm")]["gb_s"].notna().any())


def copied(lab: Any) -> Copied | None:
    """The most that a recorded rung's copies take, of those whose blocks copy for themselves and have all
    columns: a block does as many FLOPs for each byte of keys and values as it has queries.
    """
    rows = lab.store.read("attention")
    rows = rows[rows["impl"].isin(set(attention.HOPPER) - {"10_paired_warpgroups", "12_warp_specialised"})]
    rows = rows[rows["operator"].eq("attention") & rows["format"].eq("fp16") & rows["window"].isna()]
    rows = rows[rows["options"].fillna("").eq("")].dropna(subset=["tflop_s"])
    ladder, found = {each.name: each for each in attention.LADDERS["attention"]}, []
    for row in rows.to_dict("records"):
        heads, seq = (row["heads"], row["kv_heads"]), row["seq"]
        prompt = Prompt(seq, seq, 0, *heads, bool(row["causal"]), None)
        asked = {"group": heads[0] // heads[1], "prompt": prompt, "sms": int(lab.run["sms"])}
        queries = 64 * tile_of(ladder[row["impl"]], row["head_dim"], "90", **asked).get("GROUPS", 2)
        rate = row["tflop_s"] / queries * 1e3
        found.append(Copied(rate, row["impl"], row["head_dim"], row["tflop_s"], queries))
    return max(found, default=None)


def rates(lab: Any) -> tuple[float, float, int, float]:
    """GB/s, TFLOP/s, SMs and MHz of a lab's device: the most that copies or reads are known to reach, the
    roof of FP16 products; what was not measured there is of its datasheet, or REFERENCE's where unknown.
    """
    spec, roofs, most = lab.spec or device.get(REFERENCE), lab.roof, copied(lab)
    gb_s = max(read(lab), most.gb_s if most else 0.0)
    peak = roofs["fp16_tensor"].value if "fp16_tensor" in roofs else spec.fp16_tensor
    return gb_s, peak, int(lab.run["sms"]), float(spec.boost_mhz)


def sources(lab: Any) -> tuple[str, str]:
    """In words, what the two rates of `rates` are."""
    most = copied(lab)
    seen = read_warm(lab) or most is not None and most.gb_s > read(lab)
    kernel = "the best rate of L2 seen on this GPU" if seen else "the datasheet's rate of DRAM"
    return kernel, "the FP16 matrix roof" if "fp16_tensor" in lab.roof else "the datasheet's FP16 peak"


def pipeline(takes: Lengths, tiles: int = 4, text: str | None = None) -> Drawing:
    """Copies, products and softmax of one block over time. First all of it, as the rung orders them and as if
    every product were waited for immediately; then up to a moment within each of the first softmaxes.
    """
    source = rung().path.read_text(encoding="utf-8") if text is None else text
    steps = program(source)
    stages = rung().with_defaults({})["STAGES"]
    waits = tuple(_waiting(part) for part in steps)
    runs = [("As rung 9 has it", simulate(steps, tiles, stages, takes))]
    runs += [("Each product waited for immediately", simulate(waits, tiles, stages, takes))]  # type: ignore[arg-type]
    last = max(bar.end for _, run in runs for bar in run.bars)
    canvas, y, ends = Canvas(), 0.0, []
    unit = (svg.WIDTH - _LEFT - 4) / last
    for title, run in runs:
        canvas.text(0, y + 12, title, bold=True)
        y = _rows(canvas, y + 20, run.bars, unit, last)
        ends.append(max(bar.end for bar in run.bars))
        busy = sum(bar.end - bar.start for bar in run.bars if bar.row == "tensor cores") / ends[-1]
        canvas.text(_LEFT, y + 8, f"{ends[-1]:.1f} µs; tensor cores busy {busy:.0%} of it", svg.SMALL)
        y += 26
    together = _overlap(runs[0][1])
    says = (
        f"{tiles} tiles of keys and values. As rung 9 has it, {together:.1f} µs of softmax run beside "
        f"products and all takes {ends[0]:.1f} µs; with every product waited for immediately "
        f"{ends[1]:.1f} µs. "
        f"Lengths are arithmetic: copy {takes.copy:.2f}, product {takes.product:.2f}, "
        f"softmax {takes.softmax:.2f} µs."
    )
    frames = [("both orders, whole", canvas), *_moments(runs[0][1], unit, last)]
    return Drawing("Rung 9: products that go on while the softmax is computed", says, frames, lean=True)


def _rows(canvas: Canvas, y: float, bars: list[Bar], unit: float, last: float) -> float:
    """Draw bars in a row for each unit that works; returns where the rows end."""
    boxes = list[tuple[float, float, float, float, str, str]]()
    for name in ("copies", "tensor cores", "softmax"):
        canvas.text(0, y + 16, name, svg.SMALL)
        boxes.append((_LEFT, y, last * unit, 24, "", NONE))
        for bar in bars:
            if bar.row == name:
                fill = {"copies": GREY, "softmax": AMBER}.get(name, BLUE if bar.what == "QK" else SKY)
                label = f"{bar.what}{bar.tile}" if name != "softmax" else f"{bar.tile}"
                boxes.append((_LEFT + bar.start * unit, y, (bar.end - bar.start) * unit, 24, label, fill))
        y += 28
    canvas.boxes(boxes)
    return y


def _moments(run: Run, unit: float, last: float) -> list[tuple[str, Canvas]]:
    """What had begun by a moment within a softmax: in its middle, or where a product runs beside it."""
    frames = []
    products = [bar for bar in run.bars if bar.row == "tensor cores"]
    for soft in [bar for bar in run.bars if bar.row == "softmax"][:_MOMENTS]:
        beside = next((bar for bar in products if bar.start < soft.end and bar.end > soft.start), None)
        begin, end = (max(soft.start, beside.start), min(soft.end, beside.end)) if beside else soft[3:]
        moment = (begin + end) / 2
        canvas = Canvas()
        bottom = _rows(canvas, 14, [bar for bar in run.bars if bar.start < moment], unit, last)
        x = _LEFT + moment * unit
        canvas.line([(x, 4), (x, bottom)], 1.6)
        canvas.text(x + 5, 10, f"{moment:.1f} µs", svg.SMALL)
        words = f"{beside.what}{beside.tile} goes on" if beside else "no product runs"
        frames.append((f"softmax of tile {soft.tile}: {words}", canvas))
    return frames


def _waiting(steps: list[Step]) -> list[Step]:
    """The steps with a wait for everything behind every product."""
    found: list[Step] = []
    for step in steps:
        found.append(step)
        if step[0].startswith("start"):
            found.append(("warpgroup_wait", "0"))
    return found


def _overlap(run: Run) -> float:
    """Microseconds in which softmax and tensor cores both work."""
    rows = {name: [bar for bar in run.bars if bar.row == name] for name in ("softmax", "tensor cores")}
    return sum(
        max(0.0, min(a.end, b.end) - max(a.start, b.start))
        for a in rows["softmax"]
        for b in rows["tensor cores"]
    )


# --- loads under way ----------------------------------------------------------------------------------------


def loads_in_flight(latency_ns: float, many: int = 8, window: float = 3.2) -> Drawing:
    """Loads over time: one under way a thread, and `many`, over `window` latencies."""
    canvas, left = Canvas(), 132.0
    unit, y, done = (svg.WIDTH - left - 2) / (window * latency_ns), 0.0, []
    for count in (1, many):
        words = "one load in flight" if count == 1 else f"{count} loads in flight"
        canvas.text(0, y + 15, words[0].upper() + words[1:], bold=True)
        begin, finished = y, 0
        high = 22.0 if count == 1 else 13.0
        for k in range(count):
            start = k * latency_ns * 0.02  # issued one after another
            while start < window * latency_ns - 1e-9:
                end = min(start + latency_ns, window * latency_ns)
                whole = start + latency_ns <= window * latency_ns * 1.001 + count
                finished += whole
                fill = AMBER if whole else NONE
                canvas.cell(
                    left + start * unit, y, (end - start) * unit, high, "" if count > 1 else "load", fill
                )
                start += latency_ns
            y += high + 2
        done.append(finished)
        canvas.text(0, begin + 31, f"{finished} loads done", svg.SMALL)
        canvas.text(0, begin + 46, f"in {window * latency_ns:,.0f} ns", svg.SMALL)
        y += 30
    for k in range(int(window) + 1):
        x = left + k * latency_ns * unit
        canvas.line([(x, 0), (x, y - 18)], 0.7, dashed=True)
        canvas.text(x, y - 4, f"{k * latency_ns:,.0f} ns", svg.SMALL, "middle")
    says = (
        f"A load takes {latency_ns:,.0f} ns. A thread that waits for each has {done[0]} loads done after "
        f"{window * latency_ns:,.0f} ns; one that keeps {many} under way has {done[1]}."
    )
    return single("The same latency, more loads under way", says, canvas)
