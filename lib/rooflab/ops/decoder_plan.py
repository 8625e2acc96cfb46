"""The launch plan of decode_step: which rung, its macros, blocks and shared memory, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rooflab import ops
from rooflab.errors import LaunchError
from rooflab.ops import SHARED_KIB as _SHARED_KIB
from rooflab.ops import Rung
from rooflab.ops.decoder_operands import Shape

FORMATS = ("fp16", "q8_0", "int4_g128")  # in the order of the macro FORMAT
LARGE = 4096  # values of a hidden state from which on a step draws all the power that a card may
LONG = 2048  # tokens of a context from which on rung 8 attends faster
# Slots that a warp holds back in 5_prefetch_at_barrier, and that the first warp does, as an H200 likes it;
# "split" where matrices are divided along k, but for long rows and codes that are multiplied as bytes.
_HELD = {"fp16": (4, 4), "q8_0": (2, 2), "int4_g128": (0, 3), "int4_g128 split": (1, 3)}
_CHUNK = (64, 128, 128)  # of k, a format each


def widest_of(shape: Shape, macros: Mapping[str, int]) -> int:
    """Elements of the longest x, or of what warps have attended to, filled up so that what follows is
    aligned.
    """
    warps = macros["WARPS"]

    def slab(k: int, name: str) -> int:
        return math.ceil(math.ceil(k / 128) / macros[name]) * 128 if name in macros else k

    longest = max(shape.hidden, slab(shape.attended, "OUT_SLABS"), slab(shape.mlp, "DOWN_SLABS"))
    group = shape.heads // shape.kv_heads
    together = 1 + (group % 2 == 0)  # query heads a block
    attended = 2 * warps * together * (shape.head_dim + 2)
    if "TENSOR_ATTENTION" in macros:
        attended = warps * group * (shape.head_dim + 4)
    return math.ceil(max(longest, attended) / 512) * 512


def shared_of(shape: Shape, macros: Mapping[str, int], boxes: bool = False) -> int:
    """The launch rule: bytes of dynamic shared memory a block."""
    warps, producers = macros["WARPS"], macros.get("PRODUCERS", 0)
    widest = widest_of(shape, macros)
    formats = {macros["FORMAT"], macros["HEAD_FORMAT"]}
    slot = (2048 if formats == {0} else 2304) + (8 if boxes else 16 if producers else 0)
    group = 32 if 1 in formats else 64 if "INT4_BYTES" in macros and 2 in formats else 128
    floats = math.ceil(widest / group / 4) * 4 + macros["SLOTS"] * warps * 16
    words = math.ceil((warps + 2) / 4) * 4 + math.ceil(warps / 4) * 4
    tables = 6 * 64 + 6 * 32 * warps + (16 if producers else 8)
    return 2 * widest + 4 * (floats + words) + tables + warps * macros["STAGES"] * slot


def macros_for(
    rung: Rung,
    shape: Shape,
    format: str,
    head_format: str,
    arch: str,
    given: Mapping[str, int],
    blocks: int | None = None,
) -> dict[str, int]:
    """The launch rule: a format's macros, with room for what a warp of so many blocks sums, and the deepest
    ring that fits the shared memory of `arch`.
    """
    if splits_k(rung):
        given = {**split_for(rung, shape, format, blocks, arch), **given}
    producers = given.get("PRODUCERS", rung.defines.get("PRODUCERS", 0))
    wide = _SHARED_KIB.get(arch, 48) > 128 and not producers
    macros = rung.with_defaults(
        {
            "FORMAT": FORMATS.index(format),
            "HEAD_FORMAT": FORMATS.index(head_format),
            "HEAD_DIM": shape.head_dim,
            "HIDDEN": shape.hidden,
            "MLP": shape.mlp,
            "HEADS": shape.heads,
            "KV_HEADS": shape.kv_heads,
            "WARPS": 12 if wide else 8,
            **given,
        }
    )
    if "TEAM" not in given:
        macros["TEAM"] = 2 - macros["WARPS"] % 2
        if blocks and _begun(shape, blocks, macros) > macros["SLOTS"]:
            macros["TEAM"] = 1  # whose warps begin fewer units
    if blocks and "SLOTS" not in given:
        macros["SLOTS"] = max(macros["SLOTS"], math.ceil(_begun(shape, blocks, macros) / 2) * 2)
    limit = 1024 * _SHARED_KIB.get(arch, 48)
    if "STAGES" not in given:
        fits = (
            n for n in range(24, 1, -1) if shared_of(shape, {**macros, "STAGES": n}, has_boxes(rung)) <= limit
        )
        macros["STAGES"] = next(fits, 0)
    if not macros["STAGES"]:
        raise LaunchError(
            f"No ring of decode_step fits the shared memory of sm_{arch} beside rows of "
            f"{widest_of(shape, macros)}."
        )
    if "IDLE_DEPTH" in macros and "IDLE_DEPTH" not in given:
        macros["IDLE_DEPTH"] = 4 if format == "fp16" else 3
    if "HELD_BACK" in macros:
        each, first = _HELD["int4_g128 split" if splits_k(rung) and format == "int4_g128" else format]
        if splits_k(rung) and format == "int4_g128" and ("INT4_BYTES" in macros or shape.hidden >= LARGE):
            each = first = 0
        macros["HELD_BACK"] = given.get("HELD_BACK", min(each, macros["STAGES"] - 1))
        macros["FIRST_HELD"] = given.get("FIRST_HELD", min(first, macros["STAGES"]))
    return macros


def splits_k(rung: Rung) -> bool:
    """Whether a rung divides two matrices along k."""
    return "DOWN_SLABS" in rung.defines


def split_for(rung: Rung, shape: Shape, format: str, blocks: int | None, arch: str) -> dict[str, int]:
    """The launch rule of rungs that divide along k: their slabs, and the ring that suits a format, of rung 6
    or, for INT4 and wide heads, of rung 5. With slabs between 4 and 22 an H200 takes as long within 1 %.
    """
    chunk = _CHUNK[FORMATS.index(format)]
    most = {"OUT_SLABS": (shape.attended, 12), "DOWN_SLABS": (shape.mlp, 11)}
    own = {name: min(count, k // chunk, blocks or count) for name, (k, count) in most.items()}
    own["PRODUCERS"] = 0 if format == "int4_g128" or shape.head_dim > 128 else 4
    if "TENSOR_ATTENTION" in rung.defines and arch == "120":
        own["PRODUCERS"] = 0  # its compiler wants more registers than they leave
    if format == "q8_0" and "TENSOR_ATTENTION" not in rung.defines and shape.hidden < 4096:
        own["WARPS"] = 12  # beside producers: products of bytes want more warps, and take few registers
    return own


# Of models whose bytes keep an H200 at its power limit: what each of three recordings found fastest.
HELD_BY_POWER = {"q8_0": "6_producer_warps", "fp16": "7_split_k"}


FLAGGED = ("9_flags_in_data", "10_int4_bytes")  # rungs without barriers between phases


def has_boxes(rung: Rung) -> bool:
    return rung.name == "4_tma"


def fastest(shape: Shape, format: str, arch: str, context: int = 0) -> str:
    """The rung that decodes a token after `context` others fastest, by what an H200 took, in each format: on
    other architectures the one that runs everywhere, with heads above 128 one whose registers suffice.
    """
    if arch != "90":
        return "3_persistent"
    if shape.head_dim > 128:
        return "5_prefetch_at_barrier"
    if context >= LONG and shape.heads <= 8 * shape.kv_heads:
        return "8_tensor_attention"
    if shape.hidden >= LARGE and format in HELD_BY_POWER:
        return HELD_BY_POWER[format]
    return "10_int4_bytes" if format == "int4_g128" and shape.hidden < LARGE else "9_flags_in_data"


def blocks_for(shape: Shape, format: str, sms: int) -> int:
    """How many blocks to decode with on so many SMs: all, or with INT4 and barriers as few as leave the
    busiest block of every phase of a layer as much to do, so that there is less to wait for.
    """
    if format != "int4_g128" or fastest(shape, format, ops.known_arch()) in FLAGGED:
        return sms
    units = [n // 16 for name, (n, _) in shape.matrices.items() if name != "head"]
    each = [math.ceil(count / sms) for count in units]
    fewest = max(math.ceil(count / most) for count, most in zip(units, each, strict=True))
    return max(fewest, min(sms, shape.heads))


def check_sizes(shape: Shape, format: str, head_format: str) -> None:
    """Refuse, in a sentence, sizes that no rung takes."""
    if format not in FORMATS or head_format not in FORMATS[:2]:
        raise LaunchError(
            f"decode_step takes weights in {', '.join(FORMATS)} and a head in {' or '.join(FORMATS[:2])}, "
            f"not {format} and {head_format}."
        )
    if shape.head_dim not in (64, 128, 256, 512):
        raise LaunchError(f"decode_step takes heads of 64, 128, 256 or 512, not {shape.head_dim}.")
    for name, (n, k) in shape.matrices.items():
        kind = head_format if name == "head" else format
        rows, chunk = (64 if kind == "int4_g128" else 16), max(128, _CHUNK[FORMATS.index(kind)])
        if n % rows or k % chunk or not 0 < n * k < 1 << 34 or n >= 1 << 20:
            raise LaunchError(
                f"A matrix {name} [{n}, {k}] in {kind} is refused: rows are multiples of {rows} below 2^20, "
                f"k of {chunk}, elements fewer than 2^34."
            )


def check_shape(shape: Shape, format: str, head_format: str, macros: Mapping[str, int], blocks: int) -> None:
    """Refuse, in a sentence, what a rung cannot do."""
    check_sizes(shape, format, head_format)
    group, warps = shape.heads // shape.kv_heads, macros["WARPS"]
    if shape.heads % shape.kv_heads or not 0 < group <= min(warps, 16):
        raise LaunchError(
            f"{shape.heads} query heads on {shape.kv_heads} key-value heads do not share them evenly, up to "
            f"{min(warps, 16)} each."
        )
    if macros.get("PRODUCERS") and shape.head_dim > 128:
        raise LaunchError(
            f"Rung decode_step/6_producer_warps takes heads of 64 or 128, not {shape.head_dim}."
        )
    if "TENSOR_ATTENTION" in macros and group > 8:
        raise LaunchError(
            "Rung decode_step/8_tensor_attention takes at most 8 query heads to a key-value head, not "
            f"{group}."
        )
    for name, k in (("OUT_SLABS", shape.attended), ("DOWN_SLABS", shape.mlp)):
        chunks = k // _CHUNK[macros["FORMAT"]]
        if name in macros and not 0 < macros[name] <= min(chunks, blocks):
            raise LaunchError(
                f"{name} lies between 1 and {min(chunks, blocks)}, the chunks of k or the blocks, not at "
                f"{macros[name]}."
            )
    together = 1 + (group % 2 == 0)  # query heads a block
    if "FLAGS_IN_DATA" in macros:
        _check_counts(shape, macros, blocks)
        together = 1 if 8 <= shape.heads <= 16 else together
    if blocks < shape.heads // together:
        raise LaunchError(
            f"{shape.heads} heads on {shape.kv_heads} need {shape.heads // together} blocks, not {blocks}."
        )
    team, producers = macros["TEAM"], macros.get("PRODUCERS") or 1
    if team < 1 or warps % team or producers < 1 or warps % producers:
        raise LaunchError(f"{warps} WARPS do not come in teams of {team} for {producers} PRODUCERS.")
    if not (
        0 <= macros.get("HELD_BACK", 0) < macros["STAGES"]
        and 0 <= macros.get("FIRST_HELD", 0) <= macros["STAGES"]
    ):
        raise LaunchError(
            f"Of a ring of {macros['STAGES']} STAGES a warp holds back fewer, and the first one no more, not "
            f"{macros['HELD_BACK']} and {macros['FIRST_HELD']}."
        )
    begun = _begun(shape, blocks, macros)
    if begun > macros["SLOTS"]:
        raise LaunchError(
            f"On {blocks} blocks a warp needs room for {begun} units of 16 rows: take more SLOTS than "
            f"{macros['SLOTS']}, or more blocks."
        )


def _check_counts(shape: Shape, macros: Mapping[str, int], blocks: int) -> None:
    """Refuse what rung 9 cannot count: a sum of 1024 chunks, and a block that adds to none, because others
    tell by its sums that it has read what they write next.
    """
    for name, k in (("OUT_SLABS", shape.attended), ("DOWN_SLABS", shape.mlp)):
        chunks, slabs = k // _CHUNK[macros["FORMAT"]], macros[name]
        if chunks >= 1024 or chunks // slabs * (shape.hidden // 16) < math.ceil(blocks / slabs):
            raise LaunchError(
                "Rung decode_step/9_flags_in_data takes fewer than 1024 chunks of k, and a chunk or more for "
                f"each block, not {chunks} by {shape.hidden // 16} units in {slabs} slabs on {blocks} blocks."
            )


def _begun(shape: Shape, blocks: int, macros: Mapping[str, int]) -> int:
    """Units of 16 rows that a warp begins at most in the highest of the matrices, one or two at a time; but 4
    at least, which have room for the candidates of a warp.
    """
    teams = max(1, macros["WARPS"] // max(1, macros["TEAM"]))

    def runs(units: int) -> int:
        return units // teams + (2 if units % teams else 0)

    units = math.ceil(max(n for n, _ in shape.matrices.values()) / 16 / blocks)
    return max(4, runs(units), 2 * runs(math.ceil(units / 2)))
