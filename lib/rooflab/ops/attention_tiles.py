"""How attention's rungs are launched: tiles that fit a head's width and an architecture, grids, splits."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rooflab.errors import LaunchError, UsageError
from rooflab.ops import SHARED_KIB, Rung
from rooflab.ops.attention_rungs import DECODE

HEADS = 8  # query heads that a block of decode_attention's rungs with tensor cores takes together

# The widest head that a rung can do: beyond it, registers of outputs run out.
WIDEST = {"4_mma": 256, "5_padded": 256, "6_cp_async": 256, "7_mma_32_rows": 128}
# Of decode_attention, whose other rungs do every width.
FRAGMENTS = ("5_fragments", "6_flags_in_data")
DECODE_WIDEST = dict.fromkeys(FRAGMENTS, 256)


class Launch(NamedTuple):
    """Queries a block handles, threads a block, bytes of dynamic shared memory a block."""

    queries: int
    threads: int
    shared: int = 0


# Hopper's rungs, by the widths of head that they do.
HOPPER = {
    "9_wgmma": (64, 128, 256),
    "10_paired_warpgroups": (512,),
    "18_tma_copies": (64, 128, 256),
    "19_persistent": (64, 128, 256),
    "20_lazy_rescale": (64, 128, 256),
    "11_tma": (64, 80, 96, 112, 128, 256),
    "12_warp_specialised": (512,),
    "14_pack_gqa": (64, 80, 96, 112, 128, 192, 256),
    "15_warp_vote": (64, 80, 96, 112, 128, 192, 256),
    "16_wide_stores": (64, 80, 96, 112, 128, 192, 256),
    "17_short_chain": (64, 80, 96, 112, 128, 192, 256),
}

# Those whose blocks stand, one an SM.
STANDING = (
    *("19_persistent", "20_lazy_rescale", "11_tma", "12_warp_specialised", "14_pack_gqa"),
    *("15_warp_vote", "16_wide_stores", "17_short_chain"),
)
# Those that take rung 11's step apart: timed where a ladder shows each rung, and not in sweeps.
BETWEEN = ("18_tma_copies", "19_persistent", "20_lazy_rescale")
# Those that read their operands through maps of boxes.
BOXED = ("18_tma_copies", *STANDING)
# Of these, those whose rows are pairs of query and head, which come as boxes of three dimensions.
PAIRED = ("14_pack_gqa", "15_warp_vote", "16_wide_stores", "17_short_chain")
# Of these, those whose tile a law of its time chooses.
LAWFUL = ("15_warp_vote", "16_wide_stores", "17_short_chain")


def level_of(rung: Rung) -> int:
    return int(rung.name.split("_")[0])


def launch_of(rung: Rung, macros: Mapping[str, int]) -> Launch:
    """The launch rule: what a rung of attention with these macros is launched with."""
    head, level = macros["HEAD_DIM"], level_of(rung)
    if level == 1:
        return Launch(1, macros["THREADS"])
    if level <= 3:
        return Launch(macros["QUERIES"], 32 * macros["QUERIES"])
    if level in (9, 18):
        return Launch(128, 384, (128 + 2 * macros["STAGES"] * macros["KEYS"]) * 2 * head)
    if level == 10:
        return Launch(64, 384, (64 + 2 * macros["KEYS"]) * 2 * head)
    if rung.name in STANDING and level != 12:
        groups = macros.get("GROUPS", 2)
        rows = 64 * groups
        shared = (rows + 2 * macros["STAGES"] * macros["KEYS"]) * 128 * math.ceil(head / 64)
        return Launch(rows // macros.get("PACK", 1), 128 * (groups + 1), shared)
    if level == 12:
        return Launch(64 // macros["PACK"], 384, 3 * 65536 + 3 * 8192)
    row = 2 * (head if level == 4 else head + 8)
    if level == 13:
        queries = 16 * macros["TALL"] * macros["WARPS"] // macros["SLICES"]
        rows = queries + (2 if macros["SHARED_KV"] else 4) * macros["KEYS"]
        return Launch(queries, 32 * macros["WARPS"], rows * row)
    queries = {7: 128, 8: 32 * macros.get("GROUPS", 0)}.get(level, 64)
    threads = 32 * macros["SLICES"] * macros["GROUPS"] if level == 8 else 128
    return Launch(queries, threads, (queries + 2 * macros["KEYS"]) * row)


def grid_of(launch: Launch, n: int, heads: int, together: int = 0) -> tuple[int, int, int]:
    """The launch rule: `together` heads (0: all) x tiles of queries x the rest of the heads, so that all
    heads' longest tiles start first; n x heads for a block a query.
    """
    if launch.queries == 1:
        return n, heads, 1
    together = together or heads
    return together, math.ceil(n / launch.queries), heads // together


def kept_together(context: int, kv_heads: int, head_dim: int) -> int:
    """The launch rule: as many key-value heads as have their keys and values in half of an L2 of 50 MB, so
    that they are read from memory once.
    """
    each = 4 * max(context, 1) * head_dim
    return max(k for k in range(1, kv_heads + 1) if kv_heads % k == 0 and (k == 1 or k * each <= 25_000_000))


def pack_of(group: int, most: int) -> int:
    """The launch rule: of `group` query heads that share keys, how many a standing block takes together."""
    return next(pack for pack in (8, 4, 2, 1) if group % pack == 0 and pack <= most)


def boxes_of(head_dim: int, pack: int, window: int | None) -> dict[str, int]:
    """Warpgroups and keys of a tile of rung 11_tma: the fastest recorded without a window; with one, the
    keys that are least too many for what a block's queries see.
    """
    groups = 3 if head_dim == 64 else 2
    first, *more = {64: (128, 112), 128: (160, 112, 128, 176), 256: (80, 64)}.get(head_dim, (128,))
    span = (window or 0) + 64 * groups // pack - 1

    def looked_at(keys: int) -> tuple[int, int]:
        return math.ceil(span / keys) * keys, -keys

    return {"GROUPS": groups, "KEYS": min((first, *more), key=looked_at) if window else first}


# Keys that a query sees on average, up to which packing 3, 5, 6 or 7 heads pays. What it saves, keys beyond a
# query's own, is a smaller share of more keys; what it costs, 2 to 3 %, stays. Measured on an H200: it pays
# at 1,500 keys and loses at 2,048 and at 3,000.
_FEW_SEEN = 1600


def pairs_pack_of(group: int, seen: int | None) -> int:
    """The launch rule of rung 14_pack_gqa: of `group` query heads that share keys, how many a block takes
    together, where a query sees `seen` keys on average (None: many).
    """
    if group <= 8 and (seen is not None and seen <= _FEW_SEEN):
        return group
    return pack_of(group, 8)


def pairs_of(head_dim: int, pack: int, window: int | None) -> dict[str, int]:
    """Warpgroups and keys of a tile of rung 14_pack_gqa, as boxes_of."""
    groups = 3 if head_dim <= 96 else 2
    first, *more = {
        64: (128, 112),
        80: (112,),
        96: (96,),
        128: (128, 160, 112, 176),
        192: (96, 112, 80),
        256: (80, 64),
    }.get(head_dim, (160, 128))
    span = (window or 0) + 64 * groups // pack - 1

    def looked_at(keys: int) -> tuple[int, int]:
        return math.ceil(span / keys) * keys, -keys

    return {"GROUPS": groups, "KEYS": min((first, *more), key=looked_at) if window else first}


class Prompt(NamedTuple):
    """Queries at positions from `start` on, the keys that there are, and who sees which."""

    n: int
    context: int
    start: int
    heads: int
    kv_heads: int
    causal: bool
    window: int | None


class TileLaw(NamedTuple):
    """A tile of rung 15_warp_vote: warpgroups of 64 rows, keys; microseconds of a piece of work on an H200
    besides its tiles, and of a tile.
    """

    groups: int
    keys: int
    piece_us: float
    tile_us: float

    def predicted_us(self, prompt: Prompt, pack: int, sms: int, together: int = 0) -> float:
        """Microseconds until the last block has done its pieces, dealt there and back as kernels do: of
        `together` packs of heads (0: all) at a time, whose longest come first and last by turns.
        """
        each = 64 * self.groups // pack
        first = np.arange(math.ceil(prompt.n / each) - 1, -1, -1) * each + prompt.start
        last = np.minimum(first + each, prompt.start + prompt.n)
        window = prompt.window or 1 << 30
        seen = np.minimum(last, prompt.context) - np.maximum(first + 1 - window, 0)
        tiles = np.ceil(np.maximum(seen if prompt.causal else prompt.context, 0) / self.keys)
        each_us, packs = self.piece_us + tiles * self.tile_us * np.ones_like(first), prompt.heads // pack
        section = np.repeat(each_us, together or packs)
        sections = packs // (together or packs)
        pieces = np.concatenate([section[:: -1 if (sections - 1 - s) % 2 else 1] for s in range(sections)])
        rounds = np.zeros((math.ceil(pieces.size / sms), sms))
        rounds.ravel()[: pieces.size] = pieces
        rounds[1::2] = rounds[1::2, ::-1]
        return float(rounds.sum(0).max())


@functools.cache
def tile_laws(head_dim: int) -> tuple[TileLaw, ...]:
    """The tiles of a width that are worth building, that of long prompts first."""
    with Path(__file__).with_name("attention_law.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["head_dim"]) == head_dim]
    return tuple(
        TileLaw(int(row["groups"]), int(row["keys"]), float(row["piece_us"]), float(row["tile_us"]))
        for row in rows
    )


# What the law must promise before a tile other than that of long prompts is taken. Fitted to some 16
# prompts a width, it chose a tile within 0.6 % of the fastest on average, and at worst within 4 %.
_WORTH = 0.98


_SPILLS_PACKED = ((96, 3, 112),)  # head_dim, warpgroups and keys of tiles that spill where heads are packed


@functools.lru_cache(maxsize=4096)
def voted_of(head_dim: int, prompt: Prompt | None, sms: int, free: bool = False) -> dict[str, int]:
    """The launch rule of LAWFUL rungs: warpgroups, keys and heads of a tile, by the law of its time. A rung
    that is `free` may also take all heads at once instead of in sections whose keys L2 holds, which leaves
    fewer multiprocessors idle at the end: its macro SECTIONS.
    """
    usual, *more = tile_laws(head_dim)
    if prompt is None:
        return {"GROUPS": usual.groups, "KEYS": usual.keys, "PACK": 1}
    _, context, start, heads, kv_heads, causal, window = prompt
    pack = pairs_pack_of(heads // kv_heads, window or seen_of(prompt.n, context, start, causal, window))
    held = kept_together(context, kv_heads, head_dim) * (heads // kv_heads // pack)
    whole = [tile for tile in (usual, *more) if pack == 1 or (head_dim, *tile[:2]) not in _SPILLS_PACKED]
    usual = whole[0]
    times = {
        (tile, together): tile.predicted_us(prompt, pack, sms, together)
        for tile in whole
        for together in ((held, 0) if free else (held,))
    }
    best = min(times, key=times.__getitem__)
    tile, together = best if times[best] < _WORTH * times[usual, held] else (usual, held)
    macros = {"GROUPS": tile.groups, "KEYS": tile.keys, "PACK": pack}
    return macros | {"SECTIONS": int(together > 0)} if free else macros


def rings_of(head_dim: int, arch: str) -> list[dict[str, int]]:
    """Tiles of rung 13_mbarrier_ring for a head's width: the fastest recorded first, then what less shared
    memory, or fewer registers than a chip's compiler finds, still holds.
    """
    if head_dim <= 128:
        most = 32 if head_dim > 96 and arch in ("80", "100") else 64
        several = [keys for keys in (64, 32, 16) if keys <= most]
        several = [128, *several] if head_dim == 64 and arch == "90" else several
        return [{"TALL": 2, "SLICES": 1, "WARPS": 4, "KEYS": keys} for keys in several]
    slices = 1 if head_dim <= 256 else 2
    fits = ((8, 64), (8, 32), (8, 16), (4, 16), (2, 16))
    return [{"TALL": 1, "SLICES": slices, "WARPS": warps, "KEYS": keys} for warps, keys in fits]


class Standing(NamedTuple):
    """How standing blocks go through a prompt: blocks, pieces of work, units of heads whose turn comes
    together.
    """

    blocks: int
    works: int
    together: int


def standing_of(
    launch: Launch, macros: Mapping[str, int], n: int, context: int, heads: int, kv_heads: int, sms: int
) -> Standing:
    """The launch rule of rungs whose blocks stay."""
    cluster, pack = macros.get("CLUSTER", 1), macros.get("PACK", 1)
    kept = kept_together(context, kv_heads, macros["HEAD_DIM"])
    works = math.ceil(n / (launch.queries * cluster)) * (heads // pack)
    return Standing(min(works, sms // cluster) * cluster, works, kept * (heads // kv_heads // pack))


def seen_of(n: int, context: int, start: int, causal: bool, window: int | None) -> int:
    """Keys that a query sees, about, averaged over a prompt."""
    return min(window or context, start + n // 2 if causal else context, context)


def static_shared(rung: Rung, macros: Mapping[str, int]) -> int:
    """Bytes of static shared memory of a tile rung: what rung 8 hands between warps."""
    if rung.name == "13_mbarrier_ring":  # barriers, and scores that cross
        return 128 + (macros["SLICES"] - 1) * macros["WARPS"] * macros["TALL"] * macros["KEYS"] * 64
    if rung.name != "8_head_dim_slices" and rung.name not in STANDING:
        barriers = {"9_wgmma": 1024, "10_paired_warpgroups": 26624, "18_tma_copies": 1024}
        return barriers.get(rung.name, 0)  # and what aligns the tiles
    if rung.name in STANDING:
        return 2048 if rung.name == "12_warp_specialised" else 1024
    scores = 4 * (macros["SLICES"] - 1) * macros["KEYS"] // 8 * 32 * 8
    return macros["GROUPS"] * (scores + 2 * macros["KEYS"] // 16 * 32 * 16 + 4 * 8 * 4)


def tile_of(
    rung: Rung,
    head_dim: int,
    arch: str,
    shared_kv: bool = False,
    group: int = 1,
    window: int | None = None,
    seen: int | None = None,
    prompt: Prompt | None = None,
    sms: int = 132,
) -> dict[str, int]:
    """The macros that fit a head's width, `group` query heads a key-value head, a window and the keys that a
    query sees on average to an architecture's shared memory and registers: the largest tile that does.
    UsageError if none fits.
    """
    arch = arch.rstrip("af")
    if level_of(rung) <= 3:
        return {"HEAD_DIM": head_dim}
    if rung.name == "8_head_dim_slices":
        slices = 2 if head_dim <= 256 else 4
        choices = [{"SLICES": slices, "GROUPS": g, "KEYS": k} for g, k in ((2, 32), (1, 32), (1, 16))]
    elif rung.name in ("9_wgmma", "18_tma_copies", "19_persistent", "20_lazy_rescale"):
        choices = [{"KEYS": 128 if head_dim <= 128 else 64, "STAGES": 2}]
    elif rung.name == "10_paired_warpgroups":
        choices = [{"KEYS": 64}]
    elif rung.name == "11_tma":
        pack = pack_of(group, 8)
        choices = [{**boxes_of(head_dim, pack, window), "PACK": pack}]
    elif rung.name in LAWFUL:
        choices = [voted_of(head_dim, prompt, sms, "SECTIONS" in rung.defines)]
    elif rung.name == "14_pack_gqa":
        pack = pairs_pack_of(group, window if seen is None else seen)
        choices = [{**pairs_of(head_dim, pack, window), "PACK": pack}]
    elif rung.name == "12_warp_specialised":
        choices = [{"PACK": pack_of(group, 8)}]
    elif rung.name == "13_mbarrier_ring":
        choices = rings_of(head_dim, arch)
    elif rung.name == "7_mma_32_rows":
        roomy = head_dim <= 64 or (arch in ("80", "86", "89", "90") and (head_dim <= 96 or not shared_kv))
        choices = [{"KEYS": keys} for keys in ((64, 32, 16) if roomy else (32, 16))]
    elif rung.name == "4_mma" and arch == "75" and head_dim > 128:
        choices = [{"KEYS": 16}]
    else:
        choices = [{"KEYS": keys} for keys in (64, 32, 16)]
    for choice in choices:
        macros = {**rung.defines, "HEAD_DIM": head_dim, **choice}
        need = launch_of(rung, macros).shared + static_shared(rung, macros)
        if need <= 1024 * SHARED_KIB.get(arch, 48):
            return {"HEAD_DIM": head_dim, **choice}
    raise UsageError(f"No tile of attention/{rung.name} fits the shared memory of sm_{arch} at {head_dim}.")


def decode_tile_of(rung: Rung, group: int, head_dim: int, arch: str) -> dict[str, int]:
    """The macros of a decode rung for `group` query heads a key-value head, by an architecture's limits."""
    macros = {"HEAD_DIM": head_dim}
    if head_dim > DECODE_WIDEST.get(rung.name, head_dim):
        raise LaunchError(
            f"Rung decode_attention/{rung.name} keeps up to {DECODE_WIDEST[rung.name]} columns in registers, "
            f"so it refuses head_dim = {head_dim}: take rung 4_cp_async."
        )
    if rung.name in FRAGMENTS:
        macros["GROUP"] = math.ceil(group / math.ceil(group / HEADS))
        # As many keys and values as a warp holds in registers beside its outputs: 4608 numbers of each.
        macros["KEYS"] = max(16, min(64, 4608 // head_dim // 16 * 16))
    elif rung.name == "3_packed_gqa":
        macros["GROUP"] = max(g for g in range(1, 9) if group % g == 0 and (g == 1 or g * head_dim <= 1024))
    elif rung.name == "4_cp_async":
        limit = 1024 * SHARED_KIB.get(arch.rstrip("af"), 48) - 1024  # parts are in static shared memory
        for macros["WARPS"], macros["STAGES"] in ((4, 3), (4, 2), (2, 3), (2, 2), (1, 2)):
            if decode_launch_of(rung, macros).shared <= limit:
                break
        else:
            raise UsageError(f"No ring of decode_attention/4_cp_async fits sm_{arch} at {head_dim}.")
    return macros


def decode_rungs(head_dim: int) -> list[Rung]:
    """The rungs of decode_attention that can do a head of this width."""
    return [rung for rung in DECODE if head_dim <= DECODE_WIDEST.get(rung.name, head_dim)]


def decode_launch_of(rung: Rung, macros: Mapping[str, int]) -> Launch:
    """The launch rule of decode_attention, query heads a block in the place of queries."""
    if rung.name == "4_cp_async":
        rows = 8 + macros["WARPS"] * macros["STAGES"] * 32
        return Launch(HEADS, 256, rows * 2 * (macros["HEAD_DIM"] + 8))
    return Launch(macros.get("GROUP", 1), macros["THREADS"])


def default_rung(head_dim: int, arch: str = "89") -> str:
    """The rung that attention runs when none is named: the fastest for the head's width, as recorded."""
    if arch == "90" and head_dim in HOPPER["17_short_chain"]:
        return "17_short_chain"
    if arch == "90" and head_dim == 512:
        return "12_warp_specialised"
    if arch != "75":
        return "13_mbarrier_ring"
    return "7_mma_32_rows" if head_dim <= 128 else "6_cp_async" if head_dim <= 256 else "2_tiled"


def decode_default(head_dim: int, group: int = 1, window: int | None = None) -> str:
    """The rung that decode_attention runs when none is named, for `group` query heads a key-value head: the
    faster one as recorded. More heads, or the few keys of a window, leave fragments less to gain from.
    """
    fragments = head_dim <= DECODE_WIDEST[FRAGMENTS[-1]] and group <= 4 and window is None
    return FRAGMENTS[-1] if fragments else "4_cp_async"


def splits_of(
    rung: Rung, macros: Mapping[str, int], blocks: int, sms: int, resident: int, keys: int | None = None
) -> int:
    """The launch rule: parts of the context, so that with `blocks` blocks a part the GPU is full once; rung
    4_cp_async has enough bytes under way with one block an SM, and more would only be more to combine. Of few
    `keys` it makes fewer: a part less saves its share of combining, which counts twice where a block's eight
    warps have more columns than they can take at once, and costs every block its share of keys. No part is
    so cut that its warps have unequal numbers of tiles.
    """
    if rung.name == "1_block_per_head":
        return 1
    full = max(1, sms * (1 if rung.name == "4_cp_async" else resident) // blocks)
    if rung.name != "4_cp_async" or keys is None:
        return full
    dear, tile = (4 if macros["HEAD_DIM"] > 256 else 1), 16 * macros["WARPS"]
    few = min(full, max(1, round(math.sqrt(keys * macros["HEAD_DIM"] / (512 * dear)))))
    return max(1, math.ceil(keys / (tile * math.ceil(keys / (tile * few)))))


def resident(function: Any, launch: Launch) -> int:
    """Blocks of a launch that an SM holds at a time; on the CPU one."""
    if not hasattr(function, "resident_blocks"):
        return 1
    if launch.shared > 48 * 1024:  # or the driver says that none fits
        function.allow_shared(launch.shared)
    return int(function.resident_blocks(launch.threads, launch.shared))
