"""What study `attention` asks of its kernels beside their time: how large errors are in the sources' units,
what happens at the edges, whether the same input gives the same bits, how much memory a call takes, whether a
decoder picks the same words, and whether one captured launch serves a cache of every length.

A question is an operator of the study, a case of it names who answers on which shape, and the answer is
(case, quantity, value) rows of the instrument "checks". torch's kernels answer the same questions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.bench import clock, gate
from rooflab.ops import attention as op
from rooflab.records.case import Case, options
from rooflab.studies import attention as study
from rooflab.studies import attention_work
from rooflab.studies.base import Sized
from rooflab.studies.buffers import SEED

# heads, key-value heads, head_dim, window, queries, start: the five configurations of the source's test, then
# what its later tests add, chunks against a cache, one and seven queries, widths that are no power of two.
CONFIGS = (
    *((8, 2, 256, None, 200, 0), (8, 2, 512, None, 173, 0), (8, 2, 256, 64, 200, 0)),
    *((8, 2, 512, 96, 130, 0), (4, 4, 128, None, 64, 0)),
    *((4, 2, 80, None, 7, 33), (4, 2, 48, None, 1, 40), (4, 2, 112, 9, 17, 0), (4, 1, 64, None, 130, 500)),
)
SOURCE = CONFIGS[:5]
# What the source allows, in root mean squares of the exact output: scores in FP32, keys in FP16, tensor cores
# (of whose outputs half a percent and one may lie outside).
TOLERANCES = {"FP32 scores": 1e-3, "FP16 keys": 5e-3, "tensor cores": 2e-2}
MEMORY = (1024, 2048, 4096, 8192)  # lengths of prompt
DECODER = {"hidden": 1024, "layers": 4, "mlp": 2816, "vocab": 32768, "heads": 8, "kv_heads": 2, "seq": 512}
REPLAYED = (1, 100, 1000, 4096, 5000)  # lengths of a cache that one captured launch is replayed at
REPEATS = 250
LOUD = 32  # by how much queries are multiplied: scores of thousands
SDPA = tuple(study.BACKENDS)
_MASKED = SDPA[2:]  # the backends that take any mask

Rows = Iterator[tuple[str, float]]


def _case(question: str, impl: str, seq: int, heads: tuple[int, int], head_dim: int, **more: Any) -> Case:
    sizes: dict[str, Any] = {"seq": seq, "heads": heads[0], "kv_heads": heads[1], "head_dim": head_dim}
    kind = "peer" if impl in SDPA else "own"
    given = {"causal": True, "cache": "", "clock": "", **sizes, **more}
    return Case("attention", question, impl, kind, "fp16", **given)


def _who(head_dim: int, device: Sized | None, masked: bool = False) -> list[str]:
    """Rungs that do a width, and torch's backends that do it, with any mask or causal alone."""
    found = study.rungs_for(head_dim, device)
    backends = _MASKED if masked else SDPA
    return [*found, *(name for name in backends if head_dim <= 256 or name in _MASKED)]


def tolerance(device: Sized | None = None) -> list[Case]:
    """Everybody on every configuration."""
    found = []
    for heads, kv_heads, head_dim, window, seq, start in CONFIGS:
        for impl in _who(head_dim, device, masked=bool(window or start)):
            more = {"window": window, "options": options(start=start) if start else ""}
            found.append(_case("tolerance", impl, seq, (heads, kv_heads), head_dim, **more))
    return found


def edges(device: Sized | None = None) -> list[Case]:
    """Everybody who does a width of 128, and of 512."""
    found = [_case("edges", impl, 150, (4, 2), 128) for impl in _who(128, device)]
    known = {case.impl for case in found}
    return [*found, *(_case("edges", i, 150, (4, 2), 512) for i in _who(512, device) if i not in known)]


def memory(device: Sized | None = None) -> list[Case]:
    """The rung that runs when none is named and torch's backends, over lengths of prompt, 128 wide."""
    heads = (study.HEADS, study.KV_HEADS)
    who = [op.default_rung(128, getattr(device, "sm", "") or "90"), *SDPA]
    return [_case("memory", impl, seq, heads, 128) for seq in MEMORY for impl in who]


def words(device: Sized | None = None) -> list[Case]:
    """Everybody in a random decoder whose heads are 128 wide, or 512."""
    seq, heads = DECODER["seq"], (DECODER["heads"], DECODER["kv_heads"])
    found = [_case("words", impl, seq, heads, 128, model="random") for impl in _who(128, device)]
    known = {case.impl for case in found}
    wide = [impl for impl in _who(512, device) if impl not in known]
    return [*found, *(_case("words", impl, seq, heads, 512, model="random") for impl in wide)]


def replay() -> list[Case]:
    """Every rung of decode attention, one capture for caches of every length."""
    heads = (study.HEADS, study.KV_HEADS)
    return [_case("replay", r.name, max(REPLAYED), heads, 128) for r in op.LADDERS["decode_attention"]]


def cases(device: Sized | None = None) -> list[Case]:
    """Every question put to everybody."""
    return [*tolerance(device), *edges(device), *memory(device), *words(device), *replay()]


def answers(wanted: Sequence[Case], refuses: Callable[[Case], str | None]) -> pd.DataFrame:
    """(case, quantity, value) rows; one row "refused" of a case that cannot run here."""
    rows: list[dict[str, Any]] = []
    for case in wanted:
        found: list[tuple[str, float]] = [("refused", 1.0)]
        missing = case.kind == "peer" and importlib.util.find_spec("torch") is None
        if not missing and not refuses(case):
            try:
                found = list(_ASK[case.operator](case))
            except RuntimeError:
                if case.kind == "own":
                    raise  # ours would be a bug; a library's kernel may lack a shape
        rows += [{"case": case.id, "quantity": name, "value": float(value)} for name, value in found]
    return pd.DataFrame(rows)


# --- who answers --------------------------------------------------------------------------------------------


def attend(impl: str, shape: study.Shape) -> Callable[[Any, Any, Any], Any]:
    """A function from q, k, v to the output [n, heads, head_dim], of a rung or of torch."""
    if impl not in SDPA:
        where: dict[str, Any] = {"start": shape.start, "context": shape.context, "window": shape.window}
        return lambda q, k, v: op.attention(q, k, v, causal=shape.causal, rung=impl, **where)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, study.BACKENDS[impl])
    group = shape.heads // shape.kv_heads
    mask = None
    if shape.window or shape.start or shape.context != shape.n:
        at = shape.start + torch.arange(shape.n, device="cuda")[:, None]
        key = torch.arange(shape.context, device="cuda")[None]
        mask = (key <= at) & (key > at - (shape.window or 1 << 30))

    def call(q: Any, k: Any, v: Any) -> Any:
        a, b, c = (torch.from_dlpack(x).transpose(0, 1)[None] for x in (q, k, v))
        if impl == "torch.sdpa_efficient":
            b, c = (x.repeat_interleave(group, dim=1) for x in (b, c))
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                a, b, c, attn_mask=mask, is_causal=mask is None, enable_gqa=b.shape[1] != a.shape[1]
            )
        return ops.arrays().from_dlpack(out[0].transpose(0, 1).contiguous())

    return call


def _deviation(got: Any, expected: Any) -> tuple[float, Any]:
    """The largest error in root mean squares of the expected output, NaN counted as infinite, and all."""
    xp = ops.arrays()
    rms = float(xp.sqrt((expected**2).mean()))
    errors = abs(got.astype(np.float64) - expected) / rms
    errors = xp.where(xp.isnan(errors), np.inf, errors)
    return float(errors.max()), errors


# --- the questions ------------------------------------------------------------------------------------------


def _tolerance(case: Case) -> Rows:
    """The largest error, that of the exact output rounded to FP16, and which share of the outputs lies beyond
    what the source allows.
    """
    shape = study.shape_of(case)
    q, k, v = attention_work.operands(shape)
    expected = attention_work.exact(q, k, v, shape)
    worst, errors = _deviation(attend(case.impl, shape)(q, k, v), expected)
    yield "worst_rms", worst
    yield "rounding", _deviation(expected.astype(np.float16), expected)[0]
    for name, allowed in TOLERANCES.items():
        yield f"beyond {name}", float((errors > allowed).mean())


def _edges(case: Case) -> Rows:
    """Large scores, queries that see nothing, NaN, and the same bits again."""
    xp, shape = ops.arrays(), study.shape_of(case)
    q, k, v = attention_work.operands(shape)
    run = attend(case.impl, shape)
    loud = (q.astype(np.float32) * LOUD).astype(np.float16)
    expected = attention_work.exact(loud, k, v, shape)
    scores = abs(loud[:, 0].astype(np.float32) @ k[:, 0].astype(np.float32).T).max()
    yield "loudest score", float(scores) / shape.head_dim**0.5
    yield "loud worst_rms", _deviation(run(loud, k, v), expected)[0]
    if case.kind == "own" or case.impl in _MASKED:
        blind = shape._replace(start=shape.context + 10, window=20)  # the last queries see no key
        got = attend(case.impl, blind)(q, k, v)[20:]
        yield "blind not zero", float((got != 0).any(axis=(1, 2)).mean())
    place = shape.context - 10
    for name, array in (("k", k), ("v", v)):
        spoilt = array.copy()
        spoilt[place, 0, 3] = np.nan
        out = run(q, *((spoilt, v) if name == "k" else (k, spoilt)))
        group = shape.heads // shape.kv_heads
        gone = xp.isnan(out.astype(np.float32))
        gone = gone.any(axis=2)  # queries and heads with a NaN
        yield f"NaN in {name} lost", float((~gone[place:, :group]).mean())
        yield f"NaN in {name} spread", float(gone[:place].mean())
    first = run(q, k, v)
    yield "other bits", float(sum(not bool((run(q, k, v) == first).all()) for _ in range(REPEATS)))


def _memory(case: Case) -> Rows:
    """Bytes that a call takes beside its operands, its output among them."""
    shape = study.shape_of(case)
    arrays = attention_work.operands(shape)
    run = attend(case.impl, shape)
    run(*arrays)  # what a library keeps for good is not the call's
    if case.kind == "own":
        import cupy

        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            run(*arrays)
        yield "bytes", float(pool.total_bytes())
    else:
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(*arrays)
        yield "bytes", float(torch.cuda.max_memory_allocated() - before)
    yield "scores bytes", float(2 * shape.heads * shape.n * shape.context)


def decoder(case: Case, sizes: dict[str, int]) -> Callable[[Callable[[Any, Any, Any], Any]], Any]:
    """A random decoder on random words: a function from an attention to the logits [seq, vocab], FP32. All
    but the attention's operands and result, which are FP16, is computed in FP32, so that nothing else
    differs.
    """
    xp, shape = ops.arrays(), study.shape_of(case)
    generator = xp.random.default_rng(SEED)

    def random(rows: int, columns: int) -> Any:
        return generator.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)

    hidden, width = sizes["hidden"], shape.head_dim
    out, kv = shape.heads * width, shape.kv_heads * width
    # Small words, so that what layers add to them decides, and a head of its own.
    embedding, head = random(sizes["vocab"], hidden), random(sizes["vocab"], hidden)
    layers = [
        [random(out + 2 * kv, hidden), random(hidden, out), random(2 * sizes["mlp"], hidden)]
        + [random(hidden, sizes["mlp"])]
        for _ in range(sizes["layers"])
    ]
    tokens = generator.integers(0, sizes["vocab"], shape.n)

    def norm(x: Any) -> Any:
        return x / xp.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6))

    def logits(attention: Callable[[Any, Any, Any], Any]) -> Any:
        x = embedding[tokens]
        for qkv, o, up, down in layers:
            mixed = (norm(x) @ qkv.T).astype(np.float16)
            parts = (mixed[:, :out], mixed[:, out : out + kv], mixed[:, out + kv :])
            q, k, v = (xp.ascontiguousarray(a.reshape(shape.n, -1, width)) for a in parts)
            x = x + attention(q, k, v).astype(np.float16).astype(np.float32).reshape(shape.n, out) @ o.T
            gate_, value = xp.split(norm(x) @ up.T, 2, axis=1)
            x = x + (gate_ / (1 + xp.exp(-gate_)) * value) @ down.T
        return norm(x) @ head.T

    return logits


def _words(case: Case, sizes: dict[str, int] = DECODER) -> Rows:
    """How often the likeliest word changes against exact attention, and by how much logits move."""
    xp, shape = ops.arrays(), study.shape_of(case)
    logits = decoder(case, sizes)
    expected = logits(lambda q, k, v: attention_work.exact(q, k, v, shape))
    got = logits(attend(case.impl, shape))
    best = xp.sort(xp.partition(expected, -5, axis=1)[:, -5:], axis=1)
    moved = float(abs(got - expected).max())
    changed = got.argmax(axis=1) != expected.argmax(axis=1)
    narrow = best[:, 4] - best[:, 3] <= 2 * abs(got - expected).max(axis=1)
    top = [xp.argpartition(x, -5, axis=1)[:, -5:] for x in (got, expected)]
    overlap = (top[0][:, :, None] == top[1][:, None, :]).any(axis=2).sum(axis=1)
    yield "words", float(shape.n)
    yield "changed", float(changed.sum())
    yield "changed though apart", float((changed & ~narrow).sum())
    yield "largest move", moved
    yield "spread of logits", float(expected.std())
    yield "least of top 5", float(overlap.min())


def _replay(case: Case) -> Rows:
    """One launch, captured once and replayed while the cache's length in GPU memory changes: the largest
    error at each length, in units of each head's largest output, and how many replays differ from a launch
    made for that length.
    """
    xp, shape = ops.arrays(), study.shape_of(case)
    q, k, v = attention_work.operands(shape)
    length, out = xp.zeros(1, np.int32), xp.empty_like(q)
    rung, macros, _ = study.own_rung(case)
    splits = 1 if case.impl == "1_block_per_head" else attention_work.splits_for(rung, macros, shape)
    workspace = op.workspace_for(q[0], splits)
    how: dict[str, Any] = {"rung": case.impl, "splits": splits, **macros}

    def launch(i: int) -> None:
        op.decode_attention(q[0], k, v, length, out=out[0], workspace=workspace, **how)

    length[...] = shape.context
    other = 0
    with clock.captured(gate.Work(case.id, launch, [[q, k, v]], [[out]], lambda: None)) as again:
        for n in REPLAYED:
            length[...] = n
            out.fill(np.nan)
            again()
            direct = op.decode_attention(q[0], k, v, xp.full(1, n, np.int32), splits=splits, rung=case.impl)
            expected = attention_work.exact(q, k, v, shape._replace(context=n, start=n - 1))
            units = abs(expected).max(axis=2, keepdims=True)
            yield f"error {n}", float((abs(out.astype(np.float64) - expected) / units).max())
            other += int(not bool((direct == out[0]).all()))
    yield "other bits", float(other)


_ASK: dict[str, Callable[[Case], Rows]] = {
    "tolerance": _tolerance,
    "edges": _edges,
    "memory": _memory,
    "words": _words,
    "replay": _replay,
}
