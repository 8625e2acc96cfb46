"""Checkers of lesson 02's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rooflab.exercises import Wrong, called, checker
from rooflab.numerics import model_shapes


@checker("02.1")
def busy(answer: Callable[..., Any]) -> str:
    """The share of a wait in which a kernel ran, overlaps counted once."""
    cases: tuple[tuple[list[tuple[float, float]], float, float], ...] = (
        ([(0.0, 2.0), (3.0, 4.0)], 10.0, 0.3),
        ([(3.0, 4.0), (0.0, 2.0)], 10.0, 0.3),
        ([(0.0, 6.0), (1.0, 2.0), (5.0, 8.0)], 10.0, 0.8),
        ([], 5.0, 0.0),
    )
    for number, (spans, wall, right) in enumerate(cases):
        given = list(spans)
        got = float(called(answer, given, wall))
        if math.isclose(got, 100 * right, abs_tol=1e-9) and right:
            raise Wrong("the answer is a share from 0 to 1, not percent.")
        if not math.isclose(got, right, abs_tol=1e-9):
            reason = ("", " though the list may come unsorted", "; some of these kernels overlap", "")[number]
            raise Wrong(f"for {spans} in {wall:g} µs it gives {got:g}{reason}.")
        if given != list(spans):
            raise Wrong("the list was changed on the way; a question should leave its data alone.")
    return "what two kernels share of the clock counts once."


@checker("02.2")
def parts_of(answer: Callable[..., Any]) -> str:
    """The parts of a graph's kernels by launch order."""
    layer = [
        "rsqrt",
        "nvjet_a",
        "gemv_b",
        "nvjet_c",
        "flash",
        "nvjet_d",
        "rsqrt",
        "gemv_e",
        "nvjet_f",
        "silu",
    ]
    layer.append("gemvNSP_g")
    for layers in (1, 3):
        names = ["embed", *layer * layers, "nvjet_head", "argmax"]
        right = iter(["q", "k", "v", "o", "gate", "up", "down"] * layers + ["lm_head"])
        wanted = [next(right) if "gemv" in n or "nvjet" in n else "" for n in names]
        got = list(called(answer, list(names), layers))
        if len(got) != len(names):
            raise Wrong(f"{len(names)} kernels went in and {len(got)} parts came out.")
        if got != wanted:
            place = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
            raise Wrong(f"with {layers} layers, launch {place} ({names[place]}) was called {got[place]!r}.")
        if any(list(called(answer, names[:-2], layers))):
            raise Wrong("one product is missing from these kernels, so no part can be trusted.")
    return "order is enough, where the count is right."


@checker("02.3")
def per_product(answer: Callable[..., Any]) -> str:
    """FLOP per byte of a weight product at a batch, weights of some bytes each."""
    for n, k, tokens, width in ((8960, 1536, 1, 2.0), (8960, 1536, 64, 2.0), (256, 1536, 8, 0.5)):
        right = 2 * n * k * tokens / (n * k * width + 2 * tokens * (n + k))
        got = float(called(answer, n, k, tokens, width))
        if math.isclose(got, right / 2, rel_tol=1e-6):
            raise Wrong("a multiply and an add are two operations.")
        if math.isclose(got, 2 * tokens / width, rel_tol=1e-6):
            raise Wrong("the activations cross the bus too: k of them in and n out for every token.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for n={n}, k={k}, tokens={tokens} and {width:g} bytes a weight it gives {got:g}.")
    return "more tokens for the same weights are the only way to the right."


@checker("02.4")
def whole(answer: Callable[..., Any]) -> str:
    """The end-to-end speed-up of speeding up a share."""
    for share, gain in ((0.5, 2.0), (0.81, 3.9), (0.01, 100.0), (0.3, math.inf)):
        right = 1 / (1 - share + share / gain)
        got = float(called(answer, share, gain))
        if math.isclose(got, 1 + share * (gain - 1), rel_tol=1e-9):
            raise Wrong("times add up, speeds do not: what is not sped up takes as long as before.")
        if math.isclose(got, 1 / right, rel_tol=1e-9):
            raise Wrong("that is the new time over the old one; the speed-up is its inverse.")
        if not math.isclose(got, right, rel_tol=1e-9):
            raise Wrong(f"for a share of {share:.0%} that becomes {gain:g} times as fast it gives {got:g}.")
    return "the rest of the time sets the limit."


@checker("02.5")
def share(answer: Callable[..., Any]) -> str:
    """The rule: the share of weight products in a token's GPU time."""
    model = model_shapes.get("qwen2.5-1.5b")
    size = model_shapes.weight_bytes(model, "fp16")
    for gb_s, fixed, others in ((250.0, 3.0, 1200), (4600.0, 2.0, 1200), (4600.0, 2.0, 300)):
        weights = 197 * fixed + size / gb_s / 1e3
        right = weights / (weights + others * fixed)
        got = float(called(answer, size, 197, others, gb_s, fixed))
        bare = size / gb_s / 1e3
        if math.isclose(got, bare / (bare + others * fixed), rel_tol=1e-6):
            raise Wrong("the products are launches as well: each takes its fixed time before its bytes.")
        if math.isclose(got, 100 * right, rel_tol=1e-6):
            raise Wrong("the answer is a share from 0 to 1, not percent.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"at {gb_s:g} GB/s, {fixed:g} µs a launch and {others} others it gives {got:g}.")
    return "bytes a launch against what a launch costs: that is the whole rule."
