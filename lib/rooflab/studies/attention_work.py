"""Contestants of study `attention`: operands, the exact output, our rungs and the libraries' kernels."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.ops import Rung
from rooflab.ops import attention as op
from rooflab.records.case import Case
from rooflab.runtime.arrays import empty_like
from rooflab.studies import buffers
from rooflab.studies.attention import BACKENDS, CHUNK, Shape, own_rung, shape_of
from rooflab.studies.base import tunables
from rooflab.studies.buffers import SEED

SUMS = 64  # of FP16, in which rung 3_half2 adds up a score's products

# --- operands, oracle, budget -------------------------------------------------------------------------------


def operands(shape: Shape) -> tuple[Any, Any, Any]:
    """Random FP16 q [n, heads, head_dim], k, v [context, kv_heads, head_dim]: non-zero means, one number in
    256 four times larger, so that scores spread over several powers of two and single keys count.
    """
    xp = ops.arrays()
    generator = xp.random.default_rng(SEED)

    def values(rows: int, heads: int, mean: float) -> Any:
        size = (rows, heads, shape.head_dim)
        spread = 1 + 3 * (generator.random(size, dtype=np.float32) < 1 / 256)
        return ((generator.standard_normal(size, dtype=np.float32) + np.float32(mean)) * spread).astype(
            np.float16
        )

    q = values(shape.n, shape.heads, 0.1)
    k = values(shape.context, shape.kv_heads, 0.2)
    return q, k, k if shape.shared else values(shape.context, shape.kv_heads, 0.25)


def exact(q: Any, k: Any, v: Any, shape: Shape, rounded: Any = None, packed: bool = False) -> Any:
    """Attention of q, k, v (any float type) in float64, some queries of a head at a time: [n, heads, d].

    With `rounded`, the baseline of an error budget: scores and sums in float32, weights rounded by that
    function to the operands' type, as the tensor cores multiply them; `packed` adds up a score's products in
    64 sums of FP16 first, each rounded at every step, as rung 3_half2 does.
    """
    xp = ops.arrays()
    kind = np.float32 if rounded else np.float64
    out = xp.zeros((shape.n, shape.heads, shape.head_dim), kind)
    scale = 1 / math.sqrt(shape.head_dim)
    rows = max(1, min(shape.n, CHUNK // shape.context))
    group = shape.heads // shape.kv_heads
    for g in range(shape.kv_heads):
        keys, values = k[:, g].astype(kind), v[:, g].astype(kind)
        for start in range(0, shape.n, rows):
            stop = min(start + rows, shape.n)
            position = shape.start + xp.arange(start, stop)[:, None]
            low = max(0, shape.start + start - shape.window + 1) if shape.window else 0
            high = min(shape.context, shape.start + stop) if shape.causal else shape.context
            if low >= high:
                continue
            key = xp.arange(low, high)[None, :]
            hidden = key > position if shape.causal else key + position < 0
            if shape.window:
                hidden |= key <= position - shape.window
            for head in range(g * group, (g + 1) * group):
                query = q[start:stop, head].astype(kind)
                if packed:
                    scores = packed_scores(query, keys[low:high]) * kind(scale)
                else:
                    scores = (query * kind(scale)) @ keys[low:high].T
                scores[hidden] = -np.inf
                scores -= xp.maximum(scores.max(axis=1, keepdims=True), kind(-1e30))
                weights = xp.exp(scores, out=scores)
                total = xp.maximum(weights.sum(axis=1, keepdims=True), kind(1e-30))
                out[start:stop, head] = (rounded(weights) if rounded else weights) @ values[low:high] / total
    return out


def packed_scores(query: Any, keys: Any) -> Any:
    """query keys^T in SUMS sums of FP16, each rounded after every product."""
    total = 0
    for c in range(SUMS):
        part: Any = 0
        for e in range(c, query.shape[1], SUMS):
            products = query[:, e, None] * keys[None, :, e]
            part = (part + products).astype(np.float16).astype(query.dtype)
        total = total + part
    return total


def contestants(cases: Sequence[Case], size: int) -> list[gate.Work]:
    """Contestants of one shape, on shared operands of `size` bytes; outputs are each one's own."""
    xp, first = ops.arrays(), cases[0]
    shape, brain = shape_of(first), first.format == "bf16"
    count = buffers.copies(first, size)
    q, k, v = operands(shape)
    if brain:
        torch = importlib.import_module("torch")
        arrays = [torch.from_dlpack(a).to(torch.bfloat16) for a in (q, k, v)]
        q, k, v = (xp.from_dlpack(a.float()) for a in arrays)
        copied = [[a, *(a.clone() for _ in range(count - 1))] for a in arrays]

        def rounded(x: Any) -> Any:
            return xp.from_dlpack(torch.from_dlpack(x).to(torch.bfloat16).float())
    else:
        copied = [buffers.copied(a, count) for a in (q, k, v)]

        def rounded(x: Any) -> Any:
            return x.astype(np.float16).astype(np.float32)

    inputs = [list(each) for each in zip(*copied, strict=True)]
    judges: dict[tuple[bool, bool], tuple[Any, Any, float]] = {}
    for shared, packed in {(shape_of(case).shared, packed_fp16(case)) for case in cases}:
        values, this = (k, shape._replace(shared=shared)) if shared else (v, shape)
        expected = exact(q, k, values, this)
        units = 1 / xp.maximum(abs(expected).max(axis=2, keepdims=True), 1e-30)
        baseline = rounded(exact(q, k, values, this, rounded, packed).astype(np.float32))
        error = float(abs((baseline - expected) * units).max())
        judges[shared, packed] = (expected * units, units, max(2 * error, 2.0**-7 if brain else 2.0**-10))
    works = []
    for case in cases:
        expected, units, budget = judges[shape_of(case).shared, packed_fp16(case)]
        launch, outputs, turned = _LAUNCHERS.get(case.impl, _own)(case, inputs)
        works.append(
            gate.Work(
                case.id, launch, inputs, outputs, gate.constant(expected), budget, _judged(units, turned)
            )
        )
    return works


def packed_fp16(case: Case) -> bool:
    """Whether a case multiplies in packed FP16, which has a coarser baseline."""
    return (case.operator, case.impl) == ("attention", "3_half2")


def _judged(units: Any, turned: bool) -> Callable[[Sequence[Any]], Any]:
    """The output in units of its rows' largest numbers; `turned` from [1, heads, n, d] to [n, heads, d]."""

    def result(outputs: Sequence[Any]) -> Any:
        out = outputs[0]
        if turned:
            out = out[0].transpose(0, 1)
        if hasattr(out, "data_ptr"):
            out = ops.arrays().from_dlpack(out.float().contiguous())
        return out.reshape(units.shape[0], units.shape[1], -1) * units

    return result


# --- own kernels and peers ----------------------------------------------------------------------------------

Launcher = tuple[Callable[[int], None], list[list[Any]], bool]


def _own(case: Case, inputs: list[list[Any]]) -> Launcher:
    shape = shape_of(case)
    rung, macros, _ = own_rung(case)
    outputs = [[empty_like(q)] for q, _, _ in inputs]
    where: dict[str, Any] = {"window": shape.window, "rung": rung.name, **macros}
    if case.operator == "decode_attention":
        xp = ops.arrays()
        lengths = [xp.full(1, shape.context, np.int32) for _ in inputs]
        queries = [q[0] for q, _, _ in inputs]
        splits = tunables(case).get("splits") or (
            1 if case.impl == "1_block_per_head" else splits_for(rung, macros, shape)
        )
        workspaces = [op.workspace_for(q, splits) for q in queries]

        where |= {"splits": splits}

        def launch(i: int) -> None:
            _, k, v = inputs[i]
            op.decode_attention(
                queries[i], k, v, lengths[i], out=outputs[i][0][0], workspace=workspaces[i], **where
            )

        return launch, outputs, False
    where |= {"start": shape.start, "context": shape.context, "causal": shape.causal}

    def launch_all(i: int) -> None:
        q, k, v = inputs[i]
        v = k if shape.shared else v
        op.attention(q, k, v, out=outputs[i][0], **where)

    return launch_all, outputs, False


def splits_for(rung: Rung, macros: Mapping[str, int], shape: Shape) -> int:
    """Parts of the cache that a decode rung works on at a time on the GPU at hand."""
    launch = op.decode_launch_of(rung, macros)
    blocks = shape.kv_heads * math.ceil(shape.heads // shape.kv_heads / launch.queries)
    sms = int(ops.arrays().cuda.Device().attributes["MultiProcessorCount"])
    function = ops.loaded(rung, tuple(sorted(macros.items())))
    keys = min(shape.context, shape.window or shape.context)
    return op.splits_of(rung, macros, blocks, sms, op.resident(function, launch), keys)


def _tensors(inputs: list[list[Any]], expand: int = 1) -> list[list[Any]]:
    """q, k, v of each copy as torch takes them, [1, heads, n, d] without moving a byte; with `expand` keys
    and values are laid out once for every query head, beforehand.
    """
    import torch

    found = []
    for arrays in inputs:
        q, k, v = (torch.from_dlpack(a).transpose(0, 1)[None] for a in arrays)
        if expand > 1:
            k, v = (x.repeat_interleave(expand, dim=1) for x in (k, v))
        found.append([q, k, v])
    return found


def _kept(tensors: list[list[Any]], call: Callable[[Any, Any, Any], Any]) -> Launcher:
    """A launcher of a function that makes its own output: the latest of each copy is kept."""
    outputs: list[list[Any]] = [[q.new_empty(q.shape)] for q, _, _ in tensors]

    def launch(i: int) -> None:
        outputs[i][0] = call(*tensors[i])

    return launch, outputs, True


def _sdpa(impl: str) -> Callable[[Case, list[list[Any]]], Launcher]:
    backend = BACKENDS[impl]

    def make(case: Case, inputs: list[list[Any]]) -> Launcher:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        shape = shape_of(case)
        group = shape.heads // shape.kv_heads
        expand = group if backend == "EFFICIENT_ATTENTION" else 1

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=shape.causal and shape.n > 1, enable_gqa=expand == 1 and group > 1
                )

        return _kept(_tensors(inputs, expand), call)

    return make


def _flex(case: Case, inputs: list[list[Any]]) -> Launcher:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape = shape_of(case)
    window = shape.window or shape.context

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - j < window)

    mask = create_block_mask(seen, None, None, shape.n, shape.context, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return _kept(_tensors(inputs), lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=True))


def _flash_4(case: Case, inputs: list[list[Any]]) -> Launcher:
    import torch

    flash = importlib.import_module("flash_attn.cute").flash_attn_func
    shape = shape_of(case)
    window = (None, None) if shape.window is None else (shape.window - 1, 0)
    tensors = [[torch.from_dlpack(a)[None] for a in arrays] for arrays in inputs]

    def call(q: Any, k: Any, v: Any) -> Any:
        out = flash(q, k, v, causal=shape.causal, window_size=window)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    launch, outputs, turned = _kept(tensors, call)
    return launch, outputs, turned


def _ffpa(case: Case, inputs: list[list[Any]]) -> Launcher:
    ffpa = importlib.import_module("ffpa_attn").ffpa_attn_func
    shape = shape_of(case)

    def call(q: Any, k: Any, v: Any) -> Any:
        # Without a backend's name the package runs its portable kernel in Triton.
        return ffpa(q, k, v, is_causal=shape.causal, enable_gqa=True, backend="cutedsl")

    return _kept(_tensors(inputs), call)


_LAUNCHERS: dict[str, Callable[[Case, list[list[Any]]], Launcher]] = {
    **{impl: _sdpa(impl) for impl in BACKENDS},
    "torch.flex_attention": _flex,
    "flash_attn_4": _flash_4,
    "ffpa": _ffpa,
}
