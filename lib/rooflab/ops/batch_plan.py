"""How a batch's kernels divide their work: which blocks take which rows, and which warps which part of k."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from rooflab.errors import LaunchError
from rooflab.ops import SHARED_KIB as _SHARED_KIB
from rooflab.ops import decoder, sms
from rooflab.ops.decoder_plan import LARGE, LONG

MOST = 32  # tokens whose x fits in registers
_CHUNK = (64, 64, 128)  # of k that a warp multiplies at a time: FP16, Q8_0, INT4
_BYTES = (2048, 1088, 1056)  # that a chunk of 16 rows takes in memory, with scales
_X_OF_CHUNK = (8, 8, 20)  # registers that x of a chunk and eight tokens takes, and what sums begin with
# What the division is chosen by, of an H200: bytes a us from memory and from L2, in all and to an SM.
_MEMORY, _SM, _L2, _SM_L2 = 4.69e6, 4.5e4, 5.5e6, 9e4
_WARPS = 13  # of a block, or as near to it as k allows: sixteen rather than eight
# What copies of Q8_0 take by how many chunks' scales come at a time, over what they take where that is four.
_SPANS = {4: 1.0, 2: 1.1, 1: 2.0}
_STEP_US = 0.15  # from weights in shared memory to products, of the chunks that a warp takes at a time
_COLUMN_US = 0.05  # the same for eight tokens more
_SUM_US = 0.1  # to add up a tile's sums
_PART_US = 0.009  # to write a token's part of k apart and read it again
_AHEAD_US = 1.0  # of bringing weights that pass while the kernel before still runs
# KiB of weights under way a block, by format, the fastest on an H200, where k is in one part and in several.
# Up to 16 tokens so many that two kernels' blocks do not share an SM, which leaves other SMs without one.
# Beyond, registers of x see to that, and a ring that is filled sooner lets the kernel before have the memory
# for longer.
_RING, _PART_RING, _WIDE_RING = (128, 112, 84), (128, 96, 66), (96, 64, 48)
_PATIENT = 0.6  # of a ring that is asked for before x is there, after a kernel that reads much itself
# Columns of eight tokens, of one tile or more, that warps add up between two barriers: more where many tokens
# meet weights of few bytes, whose barriers would follow each other sooner. Of eight tokens all tiles, where
# shared memory has so many sums.
_TOGETHER, _QUICK = 4, 8
_X_WORDS, _OTHERS = 160, 64  # registers of x a thread at most, and what it needs beside them
_WIDE_FP16 = 8  # more of these, with FP16 weights and more than 16 tokens


class Plan(NamedTuple):
    """How a product is divided: blocks of rows, parts of k, warps of a block and chunks of k a warp."""

    blocks: int
    splits: int
    warps: int
    chunks: int


@functools.cache
def plan_for(n: int, k: int, batch: int, format: str, divided: bool, sms: int) -> Plan | None:
    """The launch rule: the division that should take least, k in one part unless `divided`; None for sizes
    that the kernel does not take.
    """
    kind, columns = decoder.FORMATS.index(format), math.ceil(batch / 8)
    rows, chunk = 64 if kind == 2 else 16, _CHUNK[kind]
    if n % rows or k % chunk or n >= 1 << 24 or not 0 < batch <= MOST:
        return None
    tiles, found = n // 16, []
    others = _OTHERS + _WIDE_FP16 * (kind == 0 and columns > 2)
    for splits in range(1, min(sms, 16 if divided else 1) + 1):
        fits = [w for w in range(1, 17) if k % (chunk * splits * w) == 0]
        words = _X_OF_CHUNK[kind] * columns
        fits = [w for w in fits if words * (k // (chunk * splits * w)) <= _room(w, others)]
        if not fits:
            continue
        # Q8_0's scales come 16 bytes at a time where a warp has a multiple of four chunks.
        in_fours = [w for w in fits if kind == 1 and w >= 7 and k // (chunk * splits * w) % 4 == 0]
        warps = min(in_fours or fits, key=lambda w: abs(w - _WARPS))
        least = math.ceil(tiles / (sms // splits))
        for turns in range(least, least + 3):
            plan = Plan(math.ceil(tiles / turns), splits, warps, k // (chunk * splits * warps))
            found.append((round(cost(plan, turns, k, batch, kind), 3), plan))
    return min(found)[1] if found else None


def cost(plan: Plan, turns: int, k: int, batch: int, kind: int) -> float:
    """Predicted microseconds from the end of the kernel before. Weights come while x is read, and before, as
    far as the ring has room; warps multiply as they come.
    """
    blocks, splits, _, each = plan
    pace, pairs = pace_of(each, batch), turns + turns % tall_of(each, batch)
    x, chunks = 2 * batch * k / splits, turns * k / (_CHUNK[kind] * splits)
    read = max(x / _SM_L2, x * blocks * splits / _L2)
    stream = chunks * _BYTES[kind] * max(blocks * splits / _MEMORY, 1 / _SM)
    stream *= _SPANS[span_of(each)] if kind == 1 else 1.0
    ahead = min(
        _AHEAD_US + read, stream * min(1.0, _ring(batch, kind, splits) / (chunks * slot_of(each, kind)))
    )
    multiply = pairs * each / pace * (_STEP_US + (math.ceil(batch / 8) - 1) * _COLUMN_US)
    return read + max(stream - ahead, multiply) + pairs * _SUM_US + splits * batch * _PART_US


def pace_of(chunks: int, batch: int) -> int:
    """Chunks that a warp multiplies at a time, as the kernel's PACE: columns of many tokens alternate."""
    return (
        1
        if batch > 16
        else tall_of(chunks, batch)
        if chunks == 1
        else next(p for p in (3, 2, 1) if chunks % p == 0)
    )


def tall_of(chunks: int, batch: int) -> int:
    """Tiles that a warp multiplies at a time, as the kernel's TALL."""
    return 2 if chunks == 1 and batch <= 16 else 1


def span_of(chunks: int) -> int:
    """Chunks of Q8_0 whose scales come in one copy, of those that a warp has, as the kernel's SPAN."""
    return next(count for count in (4, 2, 1) if chunks % count == 0)


def slot_of(chunks: int, kind: int) -> int:
    """Bytes of a ring that a chunk takes, as the kernel's SLOT: of Q8_0 with room for the scales of as many
    chunks as are copied together, one, two or four.
    """
    return (2048, 1024 + 64 * span_of(chunks), 1152)[kind]


def _room(warps: int, others: int) -> int:
    """Registers of x that a thread has beside `others` in a block of so many warps, one to a multiprocessor
    of 65536, which gives them to four warps at a time.
    """
    return min(_X_WORDS, 65536 // (128 * math.ceil(warps / 4)) - others)


def _ring(batch: int, kind: int, splits: int) -> int:
    """Bytes of weights that a block has under way."""
    return 1024 * (_WIDE_RING if batch > 16 else _RING if splits == 1 else _PART_RING)[kind]


def _ahead(stages: int, pace: int, plan: Plan, kind: int) -> int:
    """Chunks of weights that a warp asks for before x is there. A product whose k is divided follows one of
    many rows, whose own weights come sooner if not all of the next one's are asked for already.
    """
    return stages if kind == 0 or plan.splits == 1 else max(1, int(_PATIENT * stages / pace)) * pace


def macros_for(plan: Plan, n: int, batch: int, kind: int, arch: str) -> tuple[dict[str, int], int]:
    """The macros of a product that is divided so, and its bytes of dynamic shared memory."""
    columns, turns = math.ceil(batch / 8), math.ceil(n // 16 / plan.blocks)
    pace = pace_of(plan.chunks, batch)
    tiles = min((_QUICK if kind and batch > 16 else _TOGETHER) // columns, turns) or 1
    tall = tall_of(plan.chunks, batch)
    tiles += tiles % tall
    whole, of_tile = turns + turns % tall, plan.warps * columns * 512
    places, stage = 2 * tiles, plan.warps * slot_of(plan.chunks, kind)
    shared, ring = _SHARED_KIB.get(arch, 48) * 1024 - 1024, _ring(batch, kind, plan.splits)
    if columns == 1 and ring + max(places, whole) * of_tile <= shared:
        tiles, places = max(tiles, whole), max(places, whole)  # those of all tiles meet behind one barrier
    sums = places * of_tile
    most = shared - sums
    budget = min(ring, most)
    wanted = max(budget // (stage * pace), 2)  # copies of some while others are multiplied
    stages = max(1, min(wanted, most // (stage * pace), math.ceil(turns * plan.chunks / pace))) * pace
    found = {"TOKENS": 8 * columns, "WARPS": plan.warps, "CHUNKS": plan.chunks, "STAGES": stages}
    return {**found, "AHEAD": _ahead(stages, pace, plan, kind), "TILES": tiles}, stages * stage + sums


def takes(shape: decoder.Shape, format: str, head_format: str, batch: int, sms: int) -> bool:
    """Whether a step of so many sequences can be made of these kernels."""
    if batch > MOST or shape.head_dim % 16 or shape.head_dim > 256 or shape.hidden > 8192:
        return False
    named = {name: head_format if name == "head" else format for name in shape.matrices}
    return all(
        plan_for(*sizes, batch, named[name], name in ("out", "down"), sms) is not None
        for name, sizes in shape.matrices.items()
    )


def is_fastest(shape: decoder.Shape, format: str, head_format: str, arch: str, context: int) -> bool:
    """Whether these kernels decode one sequence after `context` tokens faster than decode_step does, by what
    an H200 took: where FP16 weights are so many that a step draws all the power that the GPU may. There
    decode_step holds the clock down, and they do not.
    """
    large = format == "fp16" and shape.hidden >= LARGE and context < LONG
    return arch == "90" and large and takes(shape, format, head_format, 1, sms())


def splits_for(capacity: int, pairs: int, blocks: int) -> int:
    """The launch rule of batch_attention: parts of a context that is at most `capacity`, of 256 keys or so,
    which a block has under way at once, and no more than fill the GPU with so many `pairs` of sequence and
    head.
    """
    return max(1, min(blocks // pairs, math.ceil(capacity / 256)))


def warps_for(head_dim: int, capacity: int, splits: int, arch: str) -> tuple[int, int]:
    """Warps of a block of attention, and tiles of 16 keys in a warp's ring."""
    tiles = math.ceil(capacity / splits / 16)
    limit = _SHARED_KIB.get(arch, 48) * 1024 - 2048
    for warps, stages in ((8, 2), (8, 1), (4, 2), (4, 1), (2, 1), (1, 1)):
        wanted = stages == 1 or tiles > warps
        if wanted and (8 + warps * stages * 32) * 2 * (head_dim + 8) <= limit:
            return warps, stages
    raise LaunchError(f"batch_attention takes heads that fit sm_{arch}'s shared memory, not {head_dim}.")
