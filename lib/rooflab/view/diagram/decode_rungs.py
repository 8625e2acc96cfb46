"""What three rungs of decode_step change: who copies a chunk of weights, when a warp's last slots of a phase
are filled again, and how often a key is loaded. Read off their sources; the phase's end is run against an
example's clock.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import decoder, decoder_plan, rung_of
from rooflab.ops.decoder_operands import Shape
from rooflab.paths import KERNELS
from rooflab.studies import decode
from rooflab.view.diagram import svg
from rooflab.view.diagram.key_loads import key_loads
from rooflab.view.diagram.svg import AMBER, BLUE, SKY, Canvas, Drawing, shade, single
from rooflab.words import FORMATS, counted

_PARTS = KERNELS / "common" / "decoder"
_PIECE = 16  # bytes
_ROWS, _ACROSS = 16, 8  # of a chunk in FP16, in pieces
_SHOWN, _BARRIER = 5, 5.0  # chunks of a phase's end that are drawn; copies that a barrier's wait has time for
_AT_THE_BARRIER = ("3_persistent", "5_prefetch_at_barrier", "6_producer_warps")


def _found(pattern: str, text: str) -> re.Match[str]:
    """A part of a source; UsageError where the source has none."""
    match = re.search(pattern, text, re.DOTALL)
    if not match:
        raise UsageError(f"This source has no {pattern}.")
    return match


def pieces_by_lane(text: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(row, piece of 16 bytes) of a chunk in FP16 -> (lane, which of its copies), by the addresses in the
    source of a ring that its lanes fill (stream_cp_async.cuh).
    """
    loop = _found(
        r"p < (\d+); \+\+p\)\s*copy_async_16_of_line\([^,]*, s\.at \+ ([^,]*) \* pitch \+ ([^,]*), s\.policy",
        text,
    )
    lane = _found(r"index \+= lane / (\d+) \* \([^;]*\) \+ lane % (\d+);", text)
    held = {}
    for each in range(svg.LANES):
        for p in range(int(loop[1])):
            row, piece = (_value(term, p) for term in (loop[2], loop[3]))
            held[row + each // int(lane[1]), piece + each % int(lane[2])] = (each, p)
    return held


def _value(term: str, p: int) -> int:
    """A term of an address, of p and numbers, in the order in which C computes * / and %."""
    parts = re.findall(r"[*/%]|\w+", term)
    numbers = [p if part == "p" else int(part) for part in parts[::2]]
    value = numbers[0]
    for sign, number in zip(parts[1::2], numbers[1:], strict=True):
        value = value * number if sign == "*" else value // number if sign == "/" else value % number
    return value


def copies_of_a_box(text: str) -> int:
    """Instructions by which one lane copies a chunk in FP16 (stream_tma.cuh)."""
    _found(r"if \(lane == 0\) copy_chunk", text)
    body = _found(r"void copy_box\(.*?\n}", text)[0]
    return len(re.findall(r"(?<!\) )tma_copy_box\(", body))


def who_copies(lanes: str | None = None, engine: str | None = None) -> Drawing:
    """A chunk of weights, as 3_persistent copies it and as 4_tma does; the texts replace their sources."""
    lanes = (_PARTS / "stream_cp_async.cuh").read_text(encoding="utf-8") if lanes is None else lanes
    engine = (_PARTS / "stream_tma.cuh").read_text(encoding="utf-8") if engine is None else engine
    held, boxes = pieces_by_lane(lanes), copies_of_a_box(engine)
    each = 1 + max(p for _, p in held.values())
    canvas, wide, tall, second = Canvas(), 30.0, 12.0, 300.0
    heads = (
        f"3_persistent: {svg.LANES} lanes, {counted(each, 'copy', 'copies')} each",
        f"4_tma: 1 lane, {counted(boxes, 'copy', 'copies')}",
    )
    for x, head in zip((0.0, second), heads, strict=True):
        canvas.text(x, 12, head, bold=True)
    for four in range(0, svg.LANES, 4):
        mine = [at for at, (lane, _) in held.items() if lane // 4 * 4 == four]
        canvas.cells([(piece * wide, 22 + row * tall) for row, piece in mine], wide, tall, shade(four))
    first = [at for at, (_, p) in held.items() if p == 0]
    rows, columns = (sorted({at[part] for at in first}) for part in (0, 1))
    size = len(columns) * wide, len(rows) * tall
    for row, piece in first:
        if row == rows[0] or piece == columns[0]:
            lane = held[row, piece][0]
            middle = (piece + 0.5) * wide, 31.5 + row * tall
            canvas.text(*middle, f"{lane}", 9, "middle", svg.on(shade(lane // 4 * 4)))
    canvas.frame(columns[0] * wide, 22 + rows[0] * tall, *size)
    canvas.cell(second, 22, _ACROSS * wide, _ROWS * tall, "one box, by lane 0", SKY, 13)
    y = 22 + _ROWS * tall
    canvas.text(0, y + 16, f"A cell: {_PIECE} bytes. Number: the lane. Colour: its four.", svg.SMALL)
    canvas.text(0, y + 30, "Framed: what the lanes copy with their first copy.", svg.SMALL)
    canvas.text(second, y + 16, "The copy engine reads it row by row;", svg.SMALL)
    canvas.text(second, y + 30, "the lanes only wait until it has come.", svg.SMALL)
    whole = f"{_ROWS} rows by {_ACROSS * _PIECE // 2} weights in FP16"
    says = f"A chunk of weights, {whole}. {heads[0]}, of {_PIECE} bytes; {heads[1]}, of all {whole}."
    return single(f"Who copies a chunk of weights, {whole}", says, canvas)


class Step(NamedTuple):
    """What a warp or memory does from when to when, in copies' times; `what`: multiplies,
    orders, waits or copies.
    """

    lane: int
    what: str
    start: float
    end: float


def end_of_phase(text: str, held: int, shown: int = _SHOWN) -> list[Step]:
    """A warp (lane 0) and memory (lane 1) at a phase's end, where memory is behind: a warp multiplies a chunk
    and orders the next copy into its slot, which memory takes when it is done with the copy before; `held`
    slots stay empty until `fetch_deferred`, where the source calls it.
    """
    loop = _found(r"run_phase\(.*?wait_at_grid_barrier", text)[0]
    deferred = loop.find("fetch_deferred")
    after = deferred > loop.index("arrive_at_grid_barrier")  # not found is before it, too
    held = held if deferred >= 0 else 0
    found, now, free = [Step(1, "copies", 0.0, 1.0)], 0.0, 1.0  # an earlier copy
    for chunk in range(shown):
        found.append(Step(0, "multiplies", now, now + 0.5))
        now += 0.5
        for _ in range(chunk < shown - held or held * (not after and chunk == shown - 1)):
            taken = max(now, free)
            found += [Step(0, "orders", now, taken)] * (taken > now) + [Step(1, "copies", taken, taken + 1)]
            now, free = taken, taken + 1
    if after:
        start = max(now, free)
        found += [Step(1, "copies", start + k, start + k + 1) for k in range(held)]
    found.append(Step(0, "waits", now, now + _BARRIER))
    return found


def idle_of_memory(steps: list[Step]) -> list[tuple[float, float]]:
    """When memory has nothing to copy, from the first step on until the warp's wait ends."""
    end = next(step.end for step in steps if step.what == "waits")
    idle, now = list[tuple[float, float]](), 0.0
    for step in sorted((step for step in steps if step.lane == 1), key=lambda step: step.start):
        if step.start > now:
            idle.append((now, min(step.start, end)))
        now = max(now, step.end)
    return [*idle, (now, end)] if now < end else idle


def end_with_producers(text: str, shown: int = _SHOWN) -> list[Step]:
    """The same in a block whose copies other warps order: a warp that multiplies (lane 0) waits for no order,
    and memory (lane 1) goes on with the slots that it has freed.
    """
    _found(r"if \(warp >= WARPS\) \{\s*produce\(", text)
    found = [Step(1, "copies", 0.0, 1.0)]
    free = 1.0
    for chunk in range(shown):
        found.append(Step(0, "multiplies", 0.5 * chunk, 0.5 * (chunk + 1)))
        start = max(free, 0.5 * (chunk + 1))
        found.append(Step(1, "copies", start, start + 1))
        free = start + 1
    done = 0.5 * shown
    return [*found, Step(0, "waits", done, done + _BARRIER)]


def at_the_barrier(shape: Shape, format: str, texts: tuple[str, str, str] | None = None) -> Drawing:
    """Memory around the barrier that ends a phase, in 3_persistent, 5_prefetch_at_barrier and
    6_producer_warps, in a format's build for an H200; `texts` replace their sources.
    """
    rungs = [rung_of(decoder.LADDERS["decode_step"], name, name) for name in _AT_THE_BARRIER]
    sources = texts or tuple(rung.path.read_text(encoding="utf-8") for rung in rungs)
    held = decoder_plan.macros_for(rungs[1], shape, format, decode.FORMATS[format], "90", {})["HELD_BACK"]
    runs = [*(end_of_phase(text, held) for text in sources[:2]), end_with_producers(sources[2])]
    waits = [next(step for step in run if step.what == "waits") for run in runs]
    canvas, left, tall, y, said = Canvas(), 158.0, 26.0, 22.0, list[str]()
    before = max(wait.start for wait in waits)
    unit = (svg.WIDTH - left - 2) / (before + _BARRIER)
    at, bottom = left + before * unit, y + len(runs) * (tall + 12)
    canvas.text((left + at) / 2, 13, "this phase's products", svg.SMALL, "middle")
    canvas.text((at + svg.WIDTH) / 2, 13, "the block waits at the barrier", svg.SMALL, "middle")
    for name, run, wait in zip(_AT_THE_BARRIER, runs, waits, strict=True):
        shift = at - wait.start * unit
        canvas.text(0, y + 17, name, 12, bold=True)
        for step in run:
            if step.lane == 1:
                wide = (step.end - step.start) * unit
                canvas.cell(shift + step.start * unit, y, wide, tall, "copy", BLUE)
        idle = idle_of_memory(run)
        for start, end in idle:
            canvas.cell(shift + start * unit, y, (end - start) * unit, tall, "idle", AMBER, 13)
        said.append(f"{name}: memory idles for {sum(end - start for start, end in idle):g} copies' time")
        y += tall + 12
    canvas.line([(at, 2), (at, bottom - 6)], 1.2, dashed=True)
    lines = (
        f"Memory's row alone. An example, not measured: the wait at the barrier is {_BARRIER:g} copies long;",
        f"5_prefetch_at_barrier leaves {counted(held, 'slot')} of a warp empty for it ({FORMATS[format]}).",
        "A row that starts further right: the warp's products take less time.",
    )
    for k, line in enumerate(lines):
        canvas.text(0, bottom + 6 + 14 * k, line, svg.SMALL)
    return single("What memory does around a barrier", f"{'; '.join(said)}. {' '.join(lines)}", canvas)


def chunks_by_block(units: int, chunks: int, slabs: int, blocks: int) -> list[int]:
    """How many chunks each block multiplies of a matrix that is cut into `slabs` along k (slab_of and plan_of
    in schedule.cuh): a group of blocks shares the chunks of a slab as evenly as goes.
    """
    found = []
    for block in range(blocks):
        slab = block * slabs // blocks
        first, after = (-(-each * blocks // slabs) for each in (slab, slab + 1))
        work = units * ((slab + 1) * chunks // slabs - slab * chunks // slabs)
        place, group = block - first, after - first
        found.append((place + 1) * work // group - place * work // group)
    return found


def divided(units: int, chunks: int, slabs: int, sms: int) -> Drawing:
    """A matrix of `units` times `chunks`, fewer units than SMs, cut into blocks' parts by rows, and along k
    into `slabs`, too; beneath, a bar an SM, as tall as the chunks that it multiplies.
    """
    canvas, wide, tall, bar, high = Canvas(), 264.0, 96.0, 2.0, 48.0
    work = [[chunks] * units + [0] * (sms - units), chunks_by_block(units, chunks, slabs, sms)]
    spans = [" or ".join(f"{each}" for each in sorted(set(mine))) for mine in work]
    heads = ("rungs before: by rows", f"7_split_k: {slabs} parts of k, too")
    for place, (head, mine, span) in enumerate(zip(heads, work, spans, strict=True)):
        x, cuts = 292.0 * place, slabs if place else 1
        canvas.text(x, 12, head, bold=True)
        canvas.cell(x, 20, wide, tall, "" if place else f"{units} parts, each of all k", SKY)
        for slab in range(cuts if place else 0):
            group = sum(i * slabs // sms == slab for i in range(sms))
            lines = [(x + slab * wide / cuts, 20 + tall * k / group, wide / cuts) for k in range(1, group)]
            canvas.strips(lines, 1, svg.WHITE)
            canvas.line([(x + slab * wide / cuts, 20), (x + slab * wide / cuts, 20 + tall)], 0.8)
        across, down = wide / cuts, tall * cuts / (sms if place else units)
        canvas.bars([(x, 20, across)], down, BLUE)
        top = 20 + tall + 22
        canvas.text(x, top - 6, f"chunks of each of the {sms} SMs: {span}", svg.SMALL)
        base = top + high
        runs, start = list[tuple[int, int, int]](), 0
        for amount, same in groupby(mine):
            count = len(list(same))
            runs.append((amount, start, count))
            start += count
        for amount in sorted(set(mine) - {0}):
            size = high * amount / chunks
            at = [(x + i * bar, base - size, n * bar) for each, i, n in runs if each == amount]
            canvas.strips(at, size, SKY)
        canvas.strips([(x, base - high * mine[0] / chunks, bar)], high * mine[0] / chunks, BLUE)
        canvas.line([(x, base), (x + sms * bar, base)], 0.8)
    canvas.text(0, canvas.height + 18, "Dark: the part of the first SM.", svg.SMALL)
    most = [max(each) for each in work]
    says = f"{units} of {sms} SMs have work, {most[0]} chunks each; cut along k, too, all, at most {most[1]}."
    return single("Who has work in the output product", says, canvas)


def heads_a_load(shape: Shape, text: str | None = None) -> Drawing:
    """How often a block loads a key of a key-value head, in 7_split_k and 8_tensor_attention: for the query
    heads that one block attends with, by the kernels' constants. `text` replaces model.cuh.
    """
    text = (_PARTS / "model.cuh").read_text(encoding="utf-8") if text is None else text
    rule = _found(
        r"HEADS_PER_BLOCK = TENSOR_ATTEND \? GROUP : GROUP % (\d) == 0 && !SPREADS_HEADS \? (\d) : (\d);",
        text,
    )
    group = shape.heads // shape.kv_heads
    few = int(rule[2]) if group % int(rule[1]) == 0 else int(rule[3])
    return key_loads({"7_split_k": (few, 1), "8_tensor_attention": (group, 1)}, group, "query heads")
