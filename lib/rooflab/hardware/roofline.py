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
attention 2 N H d a + 2 C G d a              4 P H d

N of the streams counts 4-byte elements; other element sizes are given in bytes. In gemv and gemm the
weights are N x K at w bytes each (2 for FP16; 34/32 for Q8_0; 0.5 + 2/128 for INT4 in groups of 128),
activations K (a bytes each) and outputs N (o bytes each) per token, and M is the number of tokens.

Attention has N queries of H heads and C keys that some query sees, of G key-value heads, all d wide; P is the
number of query-key pairs that are seen: half of N C where causal, and only what lies inside a window. Keys
that are the values too are read once. The exponentials, one a pair and head, are not counted.
"""

import math
from typing import NamedTuple

from rooflab.errors import UsageError

# Name of a ceiling, as in a record's `roof` column, and its unit.
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
# A matrix product near the power limit has a second ceiling, what it keeps up by itself
# (rooflab.bench.clock).
POWER_HELD = ("fp32", "tf32_tensor", "fp16_tensor", "bf16_tensor", "int8_tensor", "fp8_tensor")
ROOFS |= {f"{name}_sustained": ROOFS[name] for name in POWER_HELD}


def in_state(name: str, state: str) -> str:
    """The name of a ceiling for a row measured in `state`: "fp16_tensor_sustained" beside "fp16_tensor"."""
    return f"{name}_sustained" if state == "sustained" and name in POWER_HELD else name


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
    "attention": "fp16_tensor",
    "decode_attention": "dram_read",
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


def attention_pairs(
    n: int, context: int, start: int = 0, causal: bool = True, window: int | None = None
) -> int:
    """Query-key pairs of n queries at positions start, start + 1, ... that see each other: of `context` keys
    all, or if causal those up to the query's own position, at most the latest `window` of those."""
    if not causal:
        return n * context

    def seen_before(first: int) -> int:  # keys at `first` and before, summed over queries: first + i + 1 each
        low, high = first + 1, first + n  # of the first query and of the last, uncut
        low, high = max(low, 1), max(high, 0)
        whole = min(high, context)
        growing = (low + whole) * (whole - low + 1) // 2 if whole >= low else 0
        return growing + context * (high - max(whole, low - 1))

    return seen_before(start) - (seen_before(start - window) if window else 0)


def attention_keys(
    n: int, context: int, start: int = 0, causal: bool = True, window: int | None = None
) -> int:
    """Keys that at least one of the n queries sees: what has to be read of keys and of values."""
    if not causal:
        return context
    last = min(context, start + n)
    return max(0, last - (max(0, start - window + 1) if window else 0))


def attention_bytes(
    n: int,
    keys: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: float = 2,
    shared: bool = False,
) -> float:
    """Bytes of attention: n queries and outputs, `keys` keys and values (`shared`: one array for both)."""
    return (2 * n * heads + (1 if shared else 2) * keys * kv_heads) * head_dim * element_bytes


def attention_flops(pairs: int, heads: int, head_dim: int) -> int:
    """FLOPs of attention over so many query-key pairs: a score and a weighted sum, 2 head_dim each."""
    return 4 * pairs * heads * head_dim


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


def multiply_adds(tflop_s: float, sms: int, ghz: float) -> int:
    """Multiply-adds of an SM in a cycle behind a datasheet's peak in TFLOP/s or TOP/s: the power of two
    nearest to its share at the boost clock. Some peaks are counted at a lower clock, as those of Hopper's
    tensor cores.
    """
    return 2 ** round(math.log2(tflop_s * 1e3 / (2 * sms * ghz)))


def clock_of(tflop_s: float, sms: int, ghz: float) -> float:
    """The clock in GHz at which a datasheet's peak is counted, by `multiply_adds` of the boost clock."""
    return tflop_s * 1e3 / (2 * sms * multiply_adds(tflop_s, sms, ghz))


def issue_slots(sms: int, ghz: float) -> float:
    """Thread instructions a nanosecond: an SM issues for 4 x 32 threads a clock."""
    return sms * 4 * 32 * ghz


def conversions(capability: tuple[int, int]) -> int:
    """Whole numbers that an SM turns into floats in a cycle: 16 by the I2F of compute capability 7.x, as the
    CUDA C++ Programming Guide's throughputs have it; the compiler makes it for 8.0, too. From 8.6 on it makes
    I2FP, taken for 64: an H200's rungs convert more than 16.
    """
    return 64 if capability >= (8, 6) else 16


def instructions_afforded(bits: float, gb_s: float, sms: int, ghz: float) -> float:
    """Thread instructions that each weight of so many bits may cost where they come at a bandwidth."""
    return issue_slots(sms, ghz) / (gb_s / (bits / 8))  # weights a nanosecond


def share_for_instructions(each: float, bits: float, gb_s: float, sms: int, ghz: float) -> float:
    """The share of a bandwidth at which weights of so many bits can come where each costs `each` of a
    thread's instructions. At most 1.
    """
    return min(1.0, instructions_afforded(bits, gb_s, sms, ghz) / each)


def phases_us(phases: float, fixed_us: float, bytes_: float, gb_s: float) -> float:
    """Time of work in phases that wait for each other: a fixed time each, the bytes of all at one rate."""
    return phases * fixed_us + bytes_ / gb_s / 1e3


def residency_limits(
    registers: int, threads: int, shared: int, shared_per_sm: int = 228 * 1024, threads_per_sm: int = 2048
) -> dict[str, int]:
    """Blocks of this many registers a thread, threads and bytes of shared memory that each resource of an SM
    allows by itself, on chips with 65 536 registers an SM: registers are given out to warps by 256, shared
    memory by 128 bytes with 1 KiB a block for the system.
    """
    warps = math.ceil(threads / 32)
    return {
        "registers": 65536 // (math.ceil(registers * 32 / 256) * 256 * warps),
        "shared memory": shared_per_sm // (math.ceil(shared / 128) * 128 + 1024),
        "threads": threads_per_sm // (32 * warps),
    }


def residency(
    registers: int, threads: int, shared: int, shared_per_sm: int = 228 * 1024, threads_per_sm: int = 2048
) -> int:
    """Blocks that an SM holds at once, by the scarcest of `residency_limits`, 32 at most."""
    return min(*residency_limits(registers, threads, shared, shared_per_sm, threads_per_sm).values(), 32)
