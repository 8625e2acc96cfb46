"""The strategies of multiplying (rooflab.hardware.perf_model): the orders of weights that they read, what
they take and how they launch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.errors import UsageError
from rooflab.hardware import perf_model
from rooflab.hardware.perf_model import Strategy
from rooflab.numerics.quant import BLOCK, GROUP, Planes
from rooflab.ops import Rung, gemv, int4, mmq, q8_0, rung_of
from rooflab.runtime import launch_cache, nvrtc
from rooflab.words import counted

CPU = "cpu"
_TOKENS = 65535  # at once, whatever the strategy


class Choice(NamedTuple):
    """A decision: the strategy, the rung that it launches ("" where it is a library's), and why."""

    format: str
    strategy: str
    rung: str
    macros: Mapping[str, int]
    why: str


@dataclass(frozen=True)
class Weights:
    """Weights [n, k] of one format in the orders that are held in memory: "halves" [n, k] FP16; "rows" and
    "tiles" (rooflab.ops.int4); "planes", "blocks" and "tiles" (rooflab.ops.q8_0). A strategy whose order is
    not held is no candidate.
    """

    format: str
    n: int
    k: int
    orders: Mapping[str, Any]


def halves(w: Any) -> Weights:
    """FP16 weights [n, k], row-major."""
    n, k = (int(size) for size in w.shape)
    return Weights("fp16", n, k, {"halves": w})


def int4_weights(*orders: int4.Rows | int4.Tiles) -> Weights:
    """INT4 weights in row order, tile order or both; both allow every strategy."""
    held = {"tiles" if isinstance(each, int4.Tiles) else "rows": each for each in orders}
    return Weights("int4_g128", *_agreed([(each.n, each.k) for each in orders]), held)


def q8_0_weights(*orders: Planes | q8_0.Blocks | q8_0.Tiles) -> Weights:
    """Q8_0 weights in planes, in blocks, in tiles or in several orders; all three allow every strategy."""
    held = {q8_0.kind_of(each): each for each in orders}
    return Weights("q8_0", *_agreed([q8_0.shape_of(each, 34) for each in orders]), held)


def _agreed(shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if len(set(shapes)) != 1:
        raise UsageError(f"Weights in several orders are of one shape, not {shapes or 'none'}.")
    return shapes[0]


_ORDER = {  # which order of the weights a strategy reads
    ("fp16", "gemv"): "halves",
    ("fp16", "cublas"): "halves",
    ("int4_g128", "loop"): "rows",
    ("int4_g128", "fused_rows"): "rows",
    ("int4_g128", "fused"): "tiles",
    ("int4_g128", "two_op"): "rows",
    ("q8_0", "dp4a"): "planes",
    ("q8_0", "mma"): "planes",
    ("q8_0", "mmq"): "planes",
    ("q8_0", "mmq_blocks"): "blocks",
    ("q8_0", "mmq_wgmma"): "planes",
    ("q8_0", "mmq_fp16_wgmma"): "planes",
    ("q8_0", "mmq_tiles"): "tiles",
    ("q8_0", "two_op"): "blocks",
}
NEVER = (("int4_g128", "loop"),)  # the source's strategy: measured, never chosen
_MULTIPLE = {
    ("fp16", "gemv"): 8,
    ("fp16", "cublas"): 1,
    ("q8_0", "dp4a"): BLOCK,
    ("q8_0", "mmq_blocks"): BLOCK,
    ("q8_0", "two_op"): BLOCK,
    **{("q8_0", name): 4 * BLOCK for name in ("mma", "mmq", "mmq_wgmma", "mmq_fp16_wgmma", "mmq_tiles")},
}
_MOST = {
    ("fp16", "gemv"): 1,
    ("q8_0", "dp4a"): 8,
    ("q8_0", "mma"): 32,
}


def order_of(how: Strategy) -> str:
    """Which order of the weights a strategy reads."""
    return _ORDER[how.format, how.name]


def most_tokens(how: Strategy) -> int:
    """The largest number of tokens that a strategy takes at once."""
    return _MOST.get((how.format, how.name), _TOKENS)


def multiple_of(how: Strategy) -> int:
    """What k has to be a multiple of."""
    return _MULTIPLE.get((how.format, how.name), GROUP)


def rung_for(
    how: Strategy, n: int, k: int, batch: int, slug: str | None
) -> tuple[Rung, dict[str, int]] | None:
    """The rung that a strategy launches and its macros; None for cuBLAS. `slug` is the GPU's name in
    rooflab.hardware.device, None if it has none.
    """
    key = (how.format, how.name)
    if key == ("fp16", "gemv"):
        rung = rung_of(gemv.LADDERS["gemv_rows"], gemv.TUNED, "")
        return rung, gemv.options_for(rung, n, k)
    if key == ("int4_g128", "loop"):
        rung = int4.LADDERS["int4"][0]
        return rung, dict(rung.defines)
    if how.format == "int4_g128" and how.name.startswith("fused"):
        # A device that the table of devices lacks has no line in int4's table either.
        name, chosen = int4.choose(n, k, batch, how.name == "fused", slug or "")
        rung = rung_of(int4.LADDERS["int4"], name, name)
        return rung, rung.with_defaults(chosen)
    names = {"dp4a": "5_batch", "mma": "6_mma"}
    if how.name in names:
        rung = rung_of(q8_0.LADDERS["q8_0"], names[how.name], "")
        return rung, rung.with_defaults(q8_0.options_for(rung, batch))
    names = {"mmq": "5_large_tiles", "mmq_wgmma": "6_wgmma", "mmq_blocks": "3_wide"}
    if how.format == "q8_0" and how.name.startswith("mmq"):
        decide = mmq.tiles_rung if how.name == "mmq_tiles" else mmq.half_rung
        name = names[how.name] if how.name in names else decide(n, k, batch)
        rung = rung_of(mmq.LADDERS["mmq"], name, "")
        return rung, rung.with_defaults(mmq.macros_for(rung, n, k, batch))
    return None


def refusal(how: Strategy, n: int, k: int, batch: int, arch: str, slug: str | None = None) -> str:
    """Why a strategy cannot multiply [batch, k] by [n, k] on an architecture ("90", or "cpu"), or ""."""
    multiple = multiple_of(how)
    if k % multiple:
        return f"k = {k} is no multiple of {multiple}"
    if batch > most_tokens(how):
        return f"it takes up to {counted(most_tokens(how), 'token')}, not {batch}"
    found = rung_for(how, n, k, batch, slug)
    if found is None:
        return ""
    rung = found[0]
    if arch == CPU:
        return "" if any(a.isdigit() for a in rung.archs) else "it needs a Hopper GPU"
    if not rung.runs_on(arch):
        return f"rung {rung.name} needs sm_{rung.archs[0]}, and this is sm_{arch}"
    return ""


def candidates(
    format: str, n: int, k: int, batch: int, arch: str, slug: str | None, held: Sequence[str] | None
) -> list[Strategy]:
    """The strategies that take these operands and whose order of the weights is held (None: any)."""
    found = []
    for how in perf_model.STRATEGIES:
        if how.format != format or (how.format, how.name) in NEVER:
            continue
        if (held is None or order_of(how) in held) and not refusal(how, n, k, batch, arch, slug):
            found.append(how)
    return found


# --- launching ----------------------------------------------------------------------------------------------


def stream_of(x: Any) -> int:
    return 0 if isinstance(x, np.ndarray) else nvrtc.current_stream()


@functools.lru_cache(maxsize=32)
def _quantised(stream: int, library: str, batch: int, k: int) -> Any:
    """Workspace for a stream's quantised activations, filled anew by every product."""
    like = _maker(library)
    return Planes(like((batch, k // BLOCK), "float16"), like((batch, k), "int8"))


@functools.lru_cache(maxsize=4)
def _dequantised(stream: int, library: str, n: int, k: int) -> Any:
    """Workspace for a stream's dequantised weights, filled anew by every product."""
    return _maker(library)((n, k), "float16")


def _maker(library: str) -> Callable[[tuple[int, int], str], Any]:
    if library == "torch":
        import torch

        return lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    return ops.arrays().empty


def _library(x: Any) -> str:
    return "torch" if hasattr(x, "data_ptr") else type(x).__module__.partition(".")[0]


def _matmul(x: Any, w: Any, out: Any) -> None:
    """out = x w^T by the library that the arrays are of: cuBLAS on a GPU."""
    launch_cache.unseen()
    if isinstance(x, np.ndarray):
        out[...] = (x.astype(np.float32) @ w.astype(np.float32).T).astype(np.float16)
    elif hasattr(x, "data_ptr"):
        import torch

        torch.matmul(x, w.t(), out=out)
    elif "torch" in sys.modules:  # cuBLAS by way of torch can be captured in a graph, by way of CuPy not
        import torch

        torch.matmul(torch.from_dlpack(x), torch.from_dlpack(w).t(), out=torch.from_dlpack(out))
    else:
        import cupy

        cupy.matmul(x, w.T, out=out)


def _gemv(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    gemv.gemv_rows(orders["halves"], x[0], out=out[0], rung=choice.rung, **choice.macros)


def _cublas(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    _matmul(x, orders["halves"], out)


def _fused(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    order = "tiles" if choice.strategy == "fused" else "rows"
    int4.matmul(x, orders[order], out=out, rung=choice.rung, **choice.macros)


def _loop(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    for token in range(int(x.shape[0])):
        one = slice(token, token + 1)
        int4.matmul(x[one], orders["rows"], out=out[one], rung=choice.rung, **choice.macros)


def _int4_two_op(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    rows = orders["rows"]
    between = _dequantised(stream_of(x), _library(x), rows.n, rows.k)
    _matmul(x, int4.dequantise(rows, out=between), out)


def _quantise(x: Any) -> Any:
    batch, k = (int(size) for size in x.shape)
    workspace = _quantised(stream_of(x), _library(x), batch, k)
    launch_cache.hold(*workspace)
    return q8_0.quantise(x, out=workspace)


def _decode(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    q8_0.matvec(_quantise(x), orders["planes"], out=out, rung=choice.rung, **choice.macros)


def _prompt(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    given = x if choice.rung in mmq.HALVES else _quantise(x)
    weights = orders[_ORDER["q8_0", choice.strategy]]
    mmq.product(given, weights, out=out, rung=choice.rung, **choice.macros)


def _q8_two_op(x: Any, orders: Mapping[str, Any], out: Any, choice: Choice) -> None:
    n, k = q8_0.shape_of(orders["blocks"], 34)
    between = _dequantised(stream_of(x), _library(x), n, k)
    _matmul(x, q8_0.dequantise(orders["blocks"], out=between), out)


RUN: dict[tuple[str, str], Callable[[Any, Mapping[str, Any], Any, Choice], None]] = {
    ("fp16", "gemv"): _gemv,
    ("fp16", "cublas"): _cublas,
    ("int4_g128", "loop"): _loop,
    ("int4_g128", "fused_rows"): _fused,
    ("int4_g128", "fused"): _fused,
    ("int4_g128", "two_op"): _int4_two_op,
    **{("q8_0", name): _decode for name in ("dp4a", "mma")},
    **{("q8_0", name): _prompt for name in ("mmq", "mmq_wgmma", "mmq_fp16_wgmma", "mmq_tiles", "mmq_blocks")},
    ("q8_0", "two_op"): _q8_two_op,
}
