"""What gates a rung on the CPU: small, ragged shapes with their contestants, as its operator declares them.

An operator's module says small_cases(operator, rung), cases that its study builds contestants of, or
trials(operator, rung), contestants themselves. What either floor cannot build is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops, studies
from rooflab.bench import gate
from rooflab.errors import LaunchError, UsageError
from rooflab.numerics import quant, reference
from rooflab.ops import Rung, attention, decoder, int4
from rooflab.records.case import Case


class Subject(NamedTuple):
    """A contestant that mutants take the place of: its shape in words and the gate's work."""

    shape: str
    work: gate.Work


def is_portable(rung: Rung) -> bool:
    """Whether the CPU runs it: not what one generation's instructions alone can do."""
    return any(arch.isdigit() for arch in rung.archs)


def portable() -> list[tuple[str, Rung]]:
    """(operator, rung) of everything that runs on the CPU, in the order of the lessons."""
    return [(operator, rung) for operator, rung in ops.rungs() if is_portable(rung)]


def _of_study(cases: Iterable[Case]) -> Iterator[Subject]:
    """The study's own contestants, those that a rung does not refuse."""
    for case in cases:
        study = studies.get(case.study)
        with ops.on("cpu"):
            try:
                (work,) = study.contestants([case])
            except (LaunchError, UsageError):
                continue
        yield Subject(_words(case), work)


def _words(case: Case) -> str:
    shape = " x ".join(str(size) for size in (case.n, case.k) if size)
    if case.head_dim:
        shape = f"{case.seq} tokens, {case.heads}/{case.kv_heads} heads of {case.head_dim}"
        shape += f", window {case.window}" if case.window else ""
    return (
        shape
        + (f", {case.batch} tokens" if case.batch else "")
        + (f", {case.options}" if case.options else "")
    )


def _loud(rung: Rung) -> Iterator[Subject]:
    """Attention whose scores are far below 0: it shows where a sum or a maximum starts from a wrong value."""
    rng = np.random.default_rng(3)
    if rung.operator == "attention":
        q, v = (rng.standard_normal((40, 2, 64)).astype(np.float16) for _ in range(2))
        k = (-4 * q.astype(np.float32)).astype(np.float16)
        exact = reference.attention(*(a.astype(np.float64) for a in (q, k, v)))
        shape, launch = "40 tokens, 2/2 heads of 64", partial(_attend, rung, q, k, v)
    else:
        q, v = (rng.standard_normal(size).astype(np.float16) for size in ((1, 64), (5020, 1, 64)))
        v += (np.arange(5020) // 32 % 40 / 8).astype(np.float16)[:, None, None]
        noise = 2 * rng.standard_normal((5020, 1, 64)).astype(np.float32)
        k = (noise - 16 * q.astype(np.float32)).astype(np.float16)
        scores = k[:, 0].astype(np.float64) @ q[0].astype(np.float64) / 8
        order = np.argsort(scores)  # so that the last parts rescale the first
        k, scores = k[order], scores[order]
        p = np.exp(scores - scores.max())
        exact = (p / p.sum() @ v[:, 0].astype(np.float64))[None]
        shape, launch = "5020 keys, 1/1 heads of 64", partial(_attend_once, rung, q, k, v)
    outs = [np.empty(q.shape, np.float16) for _ in range(2)]
    work = gate.trial(rung.name, launch, outs, exact, gate.error_budget(4e-3, exact, "float16"))
    yield Subject(f"{shape}, scores below -100", work)


def _attend(rung: Rung, q: Any, k: Any, v: Any, out: Any) -> None:
    attention.attention(q, k, v, out=out, rung=rung.name)


def _attend_once(rung: Rung, q: Any, k: Any, v: Any, out: Any) -> None:
    """In 40 parts, where a rung takes parts: more than are merged at a time."""
    splits = None if rung.name == "1_block_per_head" else 40
    merge: dict[str, Any] = {"MERGE": 0} if "MERGE" in rung.defines else {}
    length = np.array([len(k)], np.int32)
    attention.decode_attention(q, k, v, length, out=out, rung=rung.name, splits=splits, **merge)


def _multiply(rung: Rung, x: Any, weights: Any, outs: Sequence[Any], i: int) -> None:
    tokens = {"TOKENS": 8 * -(-len(x) // 8)} if rung in int4.TILED and rung.name not in int4.ANY_BATCH else {}
    int4.matmul(x, weights, out=outs[i], rung=rung.name, **tokens)


def _int4(operator: str, rung: Rung) -> Iterator[Subject]:
    """Products on codes of normal weights about a mean, beside the float64 product of what they stand for."""
    for n, k, batch in ((71, 512, 1), (37, 4224, 3), (132, 768, 11), (16, 256, 16), (64, 384, 2)):
        rng = np.random.default_rng(batch)
        packed = quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32) + np.float32(0.1))
        rows = int4.Rows(packed.qweight, packed.scales)
        weights = int4.repack(packed.qweight, packed.scales) if rung in int4.TILED else rows
        x = (rng.standard_normal((batch, k)) + 0.25).astype(np.float16)
        exact = reference.gemm(quant.dequantise_int4(packed), x.astype(np.float32))
        outs = [np.empty((batch, n), np.float16) for _ in range(2)]
        work = gate.Work(
            rung.name,
            partial(_multiply, rung, x, weights, outs),
            [[x, *(part for part in weights if isinstance(part, np.ndarray))]] * 2,
            [[out] for out in outs],
            gate.constant(exact),
            gate.error_budget(2e-3, exact, "float16"),
        )
        yield Subject(f"{n} x {k}, {batch} tokens", work)


def _int4_dequantise(operator: str, rung: Rung) -> Iterator[Subject]:
    packed = quant.quantise_int4(np.random.default_rng(1).standard_normal((5, 1280)).astype(np.float32))
    rows, exact = int4.Rows(packed.qweight, packed.scales), quant.dequantise_int4(packed)
    outs = [np.empty(exact.shape, np.float16) for _ in range(2)]
    work = gate.Work(
        rung.name, lambda i: int4.dequantise(rows, out=outs[i]), [[*rows[:2]]] * 2, [[out] for out in outs],
        lambda: exact, 1e-3,
    )  # fmt: skip
    yield Subject("5 x 1280", work)


@cache
def _decoder(form: str, head: str, count: int, hidden: int, width: int) -> tuple[Any, Any, Any, Any, float]:
    """A decoder small enough for a CPU, which all rungs share: its spec, weights and tokens, the logits after
    each of them, and how far a kernel's may be from these.
    """
    from rooflab import engine
    from rooflab.engine import exact
    from rooflab.engine.spec import Spec
    from rooflab.engine.weights import random_tensors

    spec = Spec("tiny", decoder.Shape(1, hidden, 512, 4, 2, width, 80, 1e-6, 0.0), 1e4, True, True)
    get = random_tensors(spec, on="cpu")
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 80, count)]
    weights = engine.pack(spec, get, form, head, capacity=count + 1)
    expected = exact.logits(spec, get, tokens, form, head)
    baseline = exact.logits(spec, get, tokens, form, head, "float16")
    return (
        spec,
        weights,
        tokens,
        expected,
        gate.error_budget(np.abs(baseline - expected).max(), expected, "float16"),
    )


def _decoded(operator: str, rung: Rung) -> Iterator[Subject]:
    """Logits after several tokens."""
    wide = {
        "hidden": 1280,
        "head_dim": 128,
    }  # more than a turn of a block's threads, and as wide as heads come
    # Two parts of a context with keys for every warp; more blocks than half a warp, of which the last has the
    # token's candidate.
    parts, several = {"blocks": 4, "WARPS": 4}, {"blocks": 18, "WARPS": 4}
    for form, head, count, more in (
        ("fp16", "fp16", 3, wide),
        ("q8_0", "q8_0", 3, {}),
        ("int4_g128", "fp16", 3, {}),
        ("fp16", "fp16", 18, parts),
        ("fp16", "fp16", 1, several),
        ("int4_g128", "fp16", 1, wide),
    ):
        hidden, width = more.get("hidden", 256), more.get("head_dim", 64)
        spec, weights, tokens, expected, budget = _decoder(form, head, count, hidden, width)
        outs = [np.empty(expected.shape, np.float32)]
        count_of_blocks = more.get("blocks", 2)
        options = {name: value for name, value in more.items() if name == "WARPS"}

        def launch(
            i: int,
            spec: Any = spec,
            weights: Any = weights,
            tokens: Any = tokens,
            outs: Any = outs,
            blocks: int = count_of_blocks,
            options: Any = options,
        ) -> None:
            state = decoder.state_for(spec.shape, len(tokens) + 1, blocks, np.zeros)
            for array in state[4:11]:
                array.fill(np.nan)
            state.residual_fixed.fill(-(1 << 61))
            for place, token in enumerate(tokens):
                state.candidates[...] = decoder.candidates(token, blocks)[::-1]
                decoder.step(spec.shape, weights, state, rung=rung.name, **options)
                outs[i][place] = state.logits

        work = gate.Work(rung.name, launch, [[]], [[out] for out in outs], gate.constant(expected), budget)
        yield Subject(f"{form}, {count} tokens of 1 layer, {hidden} wide", work)


_WORKS = {"int4": _int4, "int4_dequantise": _int4_dequantise, "decode_step": _decoded}


@cache
def subjects(operator: str, name: str, target: str = "cpu") -> list[Subject]:
    """The contestants that a rung is gated by; none where its operator declares none. On the "gpu" those of
    trials alone: a study's have a GPU's sizes there.
    """
    module = ops.module_of(operator)
    rung = ops.rung_of(module.LADDERS[operator], name, name)
    if operator in _WORKS:
        with ops.on("cpu"):
            return list(_WORKS[operator](operator, rung))
    if hasattr(module, "small_cases"):
        found = list(_of_study(module.small_cases(operator, rung)))
        if operator not in ("attention", "decode_attention"):
            return found
        with ops.on("cpu"):
            return [*found, *_loud(rung)]
    with ops.on(target):
        return [Subject(*one) for one in module.trials(operator, rung)] if hasattr(module, "trials") else []
