"""The course's number formats in NumPy, bit for bit: INT4 in groups, Q8_0 and Q8_1.

INT4 (int4_g128), symmetric groups along K: scale = max|w| / 7 rounded to FP16, q = w / scale rounded half
to even and clamped to [-7, 7], stored as the nibble q + 8, so nibble 0 is never used and zero is exact.
Eight nibbles make one int32 word, nibble t at bits 4t. q is computed with the rounded scale; a scale that
would round to zero is raised to the smallest positive FP16 number. After decode-roofline, README "Fuse
Dequantization into GEMV".

Q8_0 and Q8_1, blocks of 32 along K, as ggml lays them out: d = max|x| / 127, q = x (1 / d) rounded half
away from zero, both in FP32 with d not yet rounded; what is stored is d in FP16 (Q8_1 also s = d times the
sum of q, in FP16), then 32 int8. 34 and 36 bytes a block.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflab.errors import UsageError

GROUP = 128
BLOCK = 32
Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", (BLOCK,))])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("q", "i1", (BLOCK,))])

_SMALLEST_HALF = np.float32(2.0**-24)
_LARGEST_HALF = np.float32(65504)


class Planes(NamedTuple):
    """Q8_0 weights repacked into two aligned planes: scales [..., K/32] FP16 and quants [..., K] int8."""

    scales: NDArray[np.float16]
    quants: NDArray[np.int8]


class Int4(NamedTuple):
    """INT4 weights: qweight [N, K/8] int32, scales [N, K/group] FP16."""

    qweight: NDArray[np.int32]
    scales: NDArray[np.float16]


def _checked(values: ArrayLike, size: int, what: str) -> NDArray[np.float32]:
    """values as finite FP32 whose last axis is split into runs of `size`."""
    array = np.asarray(values, dtype=np.float32)
    width = array.shape[-1] if array.ndim else 0
    if width == 0 or width % size:
        raise UsageError(f"K = {width} is not a multiple of the {what} of {size}; choose or pad K to be one.")
    if not np.isfinite(array).all():
        raise UsageError(
            "the values hold NaN or infinity, which no quantised format stores; make them finite."
        )
    return array.reshape(*array.shape[:-1], -1, size)


def _half(scale: NDArray[np.float32], divisor: int) -> NDArray[np.float16]:
    if (scale > _LARGEST_HALF).any():
        raise UsageError(
            f"a value is beyond {divisor} x 65504, so its scale does not fit FP16; make it smaller."
        )
    return scale.astype(np.float16)


def quantise_int4(weights: ArrayLike, group: int = GROUP) -> Int4:
    """Quantise [N, K] weights to INT4 groups. K must be a multiple of the group and the group of 8. The
    error is at most half a step (scale / 2) for every group whose largest weight is at least 7 x 2^-14."""
    if group <= 0 or group % 8:
        raise UsageError(f"a group of {group} does not fill words of 8 nibbles; it must be a multiple of 8.")
    groups = _checked(weights, group, "group")
    if groups.ndim != 3:
        raise UsageError(f"INT4 weights are a matrix [N, K], not an array of {groups.ndim - 1} dimensions.")
    scales = _half(np.maximum(np.abs(groups).max(axis=-1) / np.float32(7), _SMALLEST_HALF), 7)
    q = np.clip(np.rint(groups / scales.astype(np.float32)[..., None]), -7, 7).astype(np.int8)
    return Int4(pack_int4(q.reshape(q.shape[0], -1)), scales)


def pack_int4(q: NDArray[np.int8]) -> NDArray[np.int32]:
    """Pack [N, K] integers in [-8, 7] into [N, K/8] words, q + 8 of element 8 j + t at bits 4t of word j."""
    if q.shape[-1] % 8:
        raise UsageError(f"K = {q.shape[-1]} does not fill words of 8 nibbles; it must be a multiple of 8.")
    if q.size and (q.min() < -8 or q.max() > 7):
        raise UsageError("an INT4 value lies outside [-8, 7] and does not fit its nibble.")
    nibbles = (q.astype(np.int32) + 8).astype(np.uint32).reshape(*q.shape[:-1], -1, 8)
    shifted = nibbles << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def unpack_int4(qweight: NDArray[np.int32]) -> NDArray[np.int8]:
    """The integers of pack_int4, [N, K] from [N, K/8]."""
    nibbles = (qweight.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    return (nibbles.astype(np.int8) - 8).reshape(*qweight.shape[:-1], -1)


def dequantise_int4(packed: Int4, group: int = GROUP) -> NDArray[np.float32]:
    """The [N, K] weights that packed INT4 stands for, exact in FP32."""
    q = unpack_int4(packed.qweight)
    if packed.scales.shape[-1] * group != q.shape[-1]:
        raise UsageError(
            f"{packed.scales.shape[-1]} scales per row in groups of {group} do not cover K = {q.shape[-1]}."
        )
    return q.astype(np.float32) * np.repeat(packed.scales.astype(np.float32), group, axis=-1)


def _round_away(x: NDArray[np.float32]) -> NDArray[np.int8]:
    # Adding a half is exact in FP64 for every FP32 number; in FP32 it would round 0.49999997 up to 1.
    wide = x.astype(np.float64)
    return np.trunc(wide + np.copysign(0.5, wide)).astype(np.int8)


def _blocks(values: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Unrounded scale d [..., K/32] and integers q [..., K/32, 32]."""
    blocks = _checked(values, BLOCK, "block")
    d = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    # Below 2^-128 the inverse overflows; d is zero in FP16 there, so the block is zero whatever q says.
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    return d, _round_away(blocks * inverse[..., None])


def quantise_q8_0(values: ArrayLike) -> np.ndarray:
    """Quantise [..., K] values to Q8_0 blocks [..., K/32]; as bytes, each is what ggml stores."""
    d, q = _blocks(values)
    blocks = np.empty(d.shape, dtype=Q8_0)
    blocks["d"], blocks["q"] = _half(d, 127), q
    return blocks


def quantise_q8_1(values: ArrayLike) -> np.ndarray:
    """Quantise [..., K] values to Q8_1 blocks [..., K/32]; s is d (not yet rounded) times the sum of q."""
    d, q = _blocks(values)
    s = q.sum(axis=-1, dtype=np.int32).astype(np.float32) * d
    if (np.abs(s) > _LARGEST_HALF).any():
        raise UsageError("the sum of a Q8_1 block is beyond 65504 and does not fit FP16; make it smaller.")
    blocks = np.empty(d.shape, dtype=Q8_1)
    blocks["d"], blocks["s"], blocks["q"] = _half(d, 127), s.astype(np.float16), q
    return blocks


def dequantise_q8(blocks: np.ndarray) -> NDArray[np.float32]:
    """The [..., K] values that Q8_0 or Q8_1 blocks [..., K/32] stand for, exact in FP32."""
    values = blocks["q"].astype(np.float32) * blocks["d"].astype(np.float32)[..., None]
    return values.reshape(*blocks.shape[:-1], -1)


def to_bytes(blocks: np.ndarray) -> NDArray[np.uint8]:
    """Blocks [..., n] as the bytes [..., n x 34 or 36] they occupy in a file or on the GPU."""
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape[:-1], -1)


def from_bytes(raw: NDArray[np.uint8], block: np.dtype) -> np.ndarray:
    """The blocks of to_bytes: `block` is Q8_0 or Q8_1."""
    if raw.shape[-1] % block.itemsize:
        raise UsageError(f"{raw.shape[-1]} bytes are no whole number of blocks of {block.itemsize} bytes.")
    return np.ascontiguousarray(raw).view(block)


def to_planes(blocks: np.ndarray) -> Planes:
    """Q8_0 blocks [..., K/32] repacked: all scales in one plane, all quants in another, in the same order.

    A block's 34 bytes leave its quants on a multiple of 2 bytes; in a plane of their own every block starts
    on a multiple of 32. Nothing is lost: from_planes gives the same bytes back. Q8_1 has a third field that
    planes don't hold, so it is refused.
    """
    if blocks.dtype != Q8_0:
        raise UsageError(f"planes hold Q8_0 blocks, not {blocks.dtype}; quantise_q8_0 makes them.")
    # A copy always: of a single block a view would do, and would start at a multiple of 2 bytes.
    return Planes(blocks["d"].copy(order="C"), blocks["q"].copy(order="C").reshape(*blocks.shape[:-1], -1))


def from_planes(planes: Planes) -> np.ndarray:
    """The Q8_0 blocks of to_planes, bit for bit."""
    scales, quants = planes
    *outer, count = scales.shape
    if quants.shape != (*outer, count * BLOCK):
        raise UsageError(
            f"quants {quants.shape} and scales {scales.shape} are not planes of the same blocks."
        )
    blocks = np.empty(scales.shape, dtype=Q8_0)
    blocks["d"], blocks["q"] = scales, quants.reshape(*scales.shape, BLOCK)
    return blocks
