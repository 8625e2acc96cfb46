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
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, PALE, SKY, Canvas, Drawing, shade, single
from rooflab.words import FORMATS, counted

_PARTS = KERNELS / "common" / "decoder"
_PIECE = 16  # bytes
_ROWS, _ACROSS = 16, 8  # of a chunk in FP16, in pieces
_SHOWN, _BARRIER = 5, 5.0  # chunks of a phase's end that are drawn; copies that a barrier's wait has time for


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
    """What a warp or memory does from when to when, in copies' times; `what` is one of _FILLS' keys."""

    lane: int
    what: str
    start: float
    end: float


_WORDS = {"multiplies": "×", "copies": "copy", "waits": "waits for the other blocks", "orders": "…"}
_FILLS = {"multiplies": AMBER, "copies": BLUE, "waits": NONE, "orders": PALE}


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


def idle_at_the_end(steps: list[Step]) -> float:
    """How long memory has nothing to copy while a warp waits."""
    wait = next(step for step in steps if step.what == "waits")
    ends = [(max(step.start, wait.start), min(step.end, wait.end)) for step in steps if step.lane == 1]
    copied = sum(max(0.0, end - start) for start, end in ends)
    return max(0.0, wait.end - wait.start - copied)


def held_back(shape: Shape, format: str, texts: tuple[str, str] | None = None) -> Drawing:
    """The end of a phase in 3_persistent and in 5_prefetch_at_barrier, in a format's build for an H200;
    `texts` replace their sources.
    """
    names = ("3_persistent", "5_prefetch_at_barrier")
    rungs = [rung_of(decoder.LADDERS["decode_step"], name, name) for name in names]
    sources = texts or tuple(rung.path.read_text(encoding="utf-8") for rung in rungs)
    held = decoder_plan.macros_for(rungs[1], shape, format, decode.FORMATS[format], "90", {})["HELD_BACK"]
    runs = {name: end_of_phase(text, held) for name, text in zip(names, sources, strict=True)}
    canvas, y, said = _ends_drawn(runs)
    note = f"5_prefetch_at_barrier leaves {counted(held, 'slot')} of a warp empty until it has arrived"
    lines = (
        "×: multiplies a chunk, which frees its slot for a copy. …: waits until memory takes the next order.",
        f"{note} ({FORMATS[format]}). An example.",
    )
    for k, line in enumerate(lines):
        canvas.text(0, y + 2 + 14 * k, line, svg.SMALL)
    return single("What memory does at a phase's end", f"An example. {'; '.join(said)}. {note}.", canvas)


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


def producers(texts: tuple[str, str] | None = None) -> Drawing:
    """The end of a phase in 3_persistent and in 6_producer_warps; `texts` replace their sources."""
    names = ("3_persistent", "6_producer_warps")
    rungs = [rung_of(decoder.LADDERS["decode_step"], name, name) for name in names]
    first, last = texts or tuple(rung.path.read_text(encoding="utf-8") for rung in rungs)
    canvas, y, said = _ends_drawn({names[0]: end_of_phase(first, 0), names[1]: end_with_producers(last)})
    line = "In 6_producer_warps another warp orders copies; this one multiplies without a wait. An example."
    canvas.text(0, y + 2, line, svg.SMALL)
    return single("Who orders copies at a phase's end", f"{'; '.join(said)}. {line}", canvas)


def _ends_drawn(runs: dict[str, list[Step]]) -> tuple[Canvas, float, list[str]]:
    """The ends of a phase, one below the other: the canvas, how far down it is used, what each is said to
    leave idle.
    """
    canvas, left, y, said = Canvas(), 66.0, 0.0, list[str]()
    unit = (svg.WIDTH - left - 2) / max(step.end for run in runs.values() for step in run)
    for name, run in runs.items():
        idle = idle_at_the_end(run)
        words = f"memory idles for {idle:g} of {_BARRIER:g} copies' time at the barrier"
        canvas.text(0, y + 12, f"{name}: {words}", bold=True)
        y += 20
        for lane, who in enumerate(("a warp", "memory")):
            canvas.text(0, y + 15, who, svg.SMALL)
            if lane:
                canvas.rect(left, y, max(step.end for step in run) * unit, 21, PALE)
            for step in run:
                if step.lane == lane:
                    wide = (step.end - step.start) * unit
                    canvas.cell(left + step.start * unit, y, wide, 21, _WORDS[step.what], _FILLS[step.what])
            y += 24
        y += 12
        said.append(f"{name}: {words}")
    return canvas, y, said


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
            canvas.strips(at, size, BLUE)
        canvas.line([(x, base), (x + sms * bar, base)], 0.8)
    canvas.text(0, canvas.height + 18, "Dark in the matrix: the part of the first SM.", svg.SMALL)
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
