"""Checkers of lesson 01's exercises: each calls the answer with cases of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from rooflab.exercises import Wrong, called, checker
from rooflab.hardware import roofline
from rooflab.words import counted

# (GB/s, latency in ns, SMs): a laptop's GPU, an A100 and something that does not exist
_GPUS = ((256.0, 640.0, 36), (1555.0, 500.0, 108), (10000.0, 250.0, 200))


@checker("01.1")
def bytes_per_sm(answer: Callable[..., Any]) -> str:
    """Bytes in flight on each SM by Little's law."""
    for gb_s, latency_ns, sms in _GPUS:
        got, right = (
            float(called(answer, gb_s, latency_ns, sms)),
            roofline.bytes_in_flight(gb_s, latency_ns) / sms,
        )
        if math.isclose(got, right * sms, rel_tol=1e-6):
            raise Wrong("that is what the whole GPU keeps in flight; its SMs share it.")
        if any(math.isclose(got * unit, right, rel_tol=1e-6) for unit in (1e3, 1024, 1e-9, 1e9)):
            raise Wrong("the law is right, the unit is not: the answer is in bytes.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for {gb_s:g} GB/s, {latency_ns:g} ns and {sms} SMs it gives {got:g} bytes.")
    return "bandwidth times latency, shared by the SMs."


@checker("01.2")
def token_us(answer: Callable[..., Any]) -> str:
    """Microseconds to read a model's weights once."""
    for parameters, bits, gb_s in ((7e9, 16, 4000.0), (1.5e9, 4, 360.0), (70e9, 8, 2000.0)):
        got, right = float(called(answer, parameters, bits, gb_s)), parameters * bits / 8 / gb_s / 1e3
        if math.isclose(got, 8 * right, rel_tol=1e-6):
            raise Wrong("eight times too long: weights are given in bits, roofs in bytes.")
        if math.isclose(got, right * 1e9 / 2**30, rel_tol=1e-6):
            raise Wrong("a roof's gigabyte is 10^9 bytes, not 2^30.")
        if any(math.isclose(got * unit, right, rel_tol=1e-6) for unit in (1e3, 1e6, 1e-3)):
            raise Wrong("the answer is in another unit than microseconds.")
        if not math.isclose(got, right, rel_tol=1e-6):
            raise Wrong(f"for {parameters:g} weights of {bits} bits at {gb_s:g} GB/s it gives {got:g} µs.")
    return "no kernel writes a token faster than its weights can be read."


@checker("01.3")
def regime(answer: Callable[..., Any]) -> str:
    """The ceiling that bounds a kernel."""
    for gb_s, tflop_s in ((4600.0, 765.0), (360.0, 12.7), (4600.0, 51.0)):
        for m in (1, 8, 64, 512, 4096):
            flops, moved = roofline.gemm_flops(m, 4096, 4096), roofline.gemm_bytes(m, 4096, 4096, 2)
            got = called(answer, flops, moved, gb_s, tflop_s)
            if got not in ("memory", "compute"):
                raise Wrong(f'the answer is "memory" or "compute", not {got!r}.')
            if got != roofline.bound(moved, flops, gb_s, tflop_s).by:
                ratio = roofline.intensity(flops, moved)
                raise Wrong(
                    f"{counted(m, 'token')} through a 4096 x 4096 FP16 matrix do {ratio:.3g} FLOP"
                    f" per byte; under {gb_s:g} GB/s and {tflop_s:g} TFLOP/s that is not {got}-bound."
                )
    return "each of fifteen products found its ceiling."


@checker("01.4")
def large_enough(answer: Callable[..., Any]) -> str:
    """The smallest array that reaches a share of the roof."""
    sizes = [1 << shift for shift in range(20, 31)]
    rows = pd.DataFrame({"bytes": sizes, "gb_s": [4000 * s / (s + 3e7) for s in sizes]})
    rows.loc[rows["bytes"] == 1 << 29, "gb_s"] = 2500.0  # a dip, as real sweeps have
    rows = rows.sample(frac=1, random_state=1)
    for share in (0.5, 0.8, 0.95):
        given = rows.copy()
        got = int(called(answer, given, 4000.0, share))
        reached = rows.loc[rows["gb_s"] >= share * 4000.0, "bytes"]
        if got not in sizes:
            raise Wrong(f"{got} is none of the sizes in the frame.")
        if got not in set(reached):
            raise Wrong(f"at {got} bytes this sweep does not reach {share:.0%} of its roof.")
        if got != reached.min():
            raise Wrong(f"{share:.0%} of the roof is reached below {got} bytes; the rows come in any order.")
        if not given.equals(rows):
            raise Wrong("the frame was changed on the way; a question should leave its data alone.")
    if int(called(answer, rows, 4000.0, 1.0)) != 0:
        raise Wrong("where no size reaches the share, the answer is 0.")
    return "the roof is a promise to large arrays only."
