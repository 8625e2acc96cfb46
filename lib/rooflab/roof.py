"""Ceilings and bounds as plain arithmetic: no GPU, no state, no rounding.

Bytes are counted by one written convention: each operand byte that the result depends on crosses the memory
bus once in each direction it must, and nothing else does: no write-allocate, no re-read, no metadata. A
kernel that moves more bytes is slower against this count, never "faster". FLOPs count a multiply and an add
as two, masked or skipped work as none.

operator  bytes                              FLOPs
read      4 N                                0
write     4 N                                0
copy      2 x 4 N                            0
triad     3 x 4 N   (a = b + s c)            2 N
saxpy     3 x 4 N   (y = a x + y)            2 N
gemv      N K w + K a + N o                  2 N K
gemm      N K w + M K a + M N o              2 M N K

N of the streams counts 4-byte elements; other element sizes are given in bytes. In gemv and gemm the
weights are N x K at w bytes each (2 for FP16; 34/32 for Q8_0; 0.5 + 2/128 for INT4 in groups of 128),
activations K (a bytes each) and outputs N (o bytes each) per token, and M is the number of tokens.
"""

from typing import NamedTuple

from rooflab.errors import UsageError

# Name of a ceiling, as it stands in a record's `roof` column, and its unit.
ROOFS = {
    "dram_read": "GB/s",
    "dram_copy": "GB/s",
    "dram_write": "GB/s",
    "dram_triad": "GB/s",
    "l2_read": "GB/s",
    "pcie_h2d": "GB/s",
    "fp32": "TFLOP/s",
    "tf32_tensor": "TFLOP/s",
    "fp16_tensor": "TFLOP/s",
    "bf16_tensor": "TFLOP/s",
    "int8_tensor": "TOP/s",
    "fp8_tensor": "TFLOP/s",
}

# The ceiling that an operator is compared with unless its study says otherwise. A saxpy moves the same bytes
# as a triad; a GEMV reads its weights once and writes next to nothing.
ROOF_OF = {
    "read": "dram_read",
    "write": "dram_write",
    "copy": "dram_copy",
    "triad": "dram_triad",
    "saxpy": "dram_triad",
    "h2d": "pcie_h2d",
    "gemv": "dram_read",
    "gemm": "fp16_tensor",
}

_PASSES = {"read": 1, "write": 1, "copy": 2, "triad": 3, "saxpy": 3}


class Bound(NamedTuple):
    """The least time a kernel can take, in microseconds, and which of its two terms, "memory" or "compute",
    sets it."""

    us: float
    by: str


def stream_bytes(operator: str, n: int, element_bytes: float = 4) -> float:
    """Bytes of a read, write, copy, triad or saxpy over n elements."""
    if operator not in _PASSES:
        raise UsageError(f"there is no stream {operator!r}; there are {', '.join(_PASSES)}.")
    return _PASSES[operator] * n * element_bytes


def gemm_bytes(
    m: int, n: int, k: int, weight_bytes: float, activation_bytes: float = 2, output_bytes: float = 2
) -> float:
    """Bytes of [m, k] activations times [n, k] weights giving [m, n] outputs, sizes per element; m=1 is a
    GEMV."""
    return n * k * weight_bytes + m * (k * activation_bytes + n * output_bytes)


def gemm_flops(m: int, n: int, k: int) -> int:
    """FLOPs of an [m, k] by [n, k] product; m=1 is a GEMV."""
    return 2 * m * n * k


def bound(bytes_: float, flops: float, gb_s: float, tflop_s: float | None = None) -> Bound:
    """The roofline bound of bytes_ bytes and flops operations under a bandwidth in GB/s and a peak in
    TFLOP/s (or TOP/s); without a peak only memory bounds."""
    memory = bytes_ / gb_s / 1e3
    compute = flops / tflop_s / 1e6 if tflop_s else 0.0
    return Bound(memory, "memory") if memory >= compute else Bound(compute, "compute")


def intensity(flops: float, bytes_: float) -> float:
    """Arithmetic intensity in FLOP per byte."""
    return flops / bytes_


def ridge(gb_s: float, tflop_s: float) -> float:
    """The intensity in FLOP per byte above which compute, not memory, bounds."""
    return tflop_s * 1e3 / gb_s


def bytes_in_flight(gb_s: float, latency_ns: float) -> float:
    """Little's law: bytes that must be under way at any moment to sustain gb_s at this latency (GB/s x ns =
    bytes)."""
    return gb_s * latency_ns


def bandwidth(in_flight_per_sm: float, sms: int, latency_ns: float, roof_gb_s: float) -> float:
    """Little's law read the other way: GB/s reached with so many bytes in flight on each SM, at most the
    roof."""
    return min(roof_gb_s, in_flight_per_sm * sms / latency_ns)
