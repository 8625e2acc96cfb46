"""Checkers of lesson 03's exercises: sectors, blocks, failure ratios, three kernels to mend, tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rooflab import shapes, simt
from rooflab.errors import UsageError
from rooflab.exercises import Wrong, called, checker
from rooflab.identity import strip_comments
from rooflab.ops import faults


@checker("03.1")
def _sectors(sectors: Callable[..., Any]) -> str:
    """sectors(first, stride, width): 32-byte pieces that a warp's request touches."""
    cases = [
        (0, 4, 4),
        (0, 8, 4),
        (0, 16, 16),
        (0, 16384, 4),
        (4, 4, 4),
        (24, 16, 16),
        (0, 0, 4),
        (64, 64, 8),
    ]
    for first, stride, width in cases:
        places = [first + lane * stride + byte for lane in range(32) for byte in range(width)]
        right = len({place // 32 for place in places})
        got = called(sectors, first, stride, width)
        if got == right:
            continue
        where = f"first={first}, stride={stride}, width={width}"
        if got == math.ceil(32 * width / 32) and stride != width:
            raise Wrong(
                f"for {where} you count the bytes asked for; sectors also move bytes nobody asked for."
            )
        if first % 32 and got == right - 1:
            raise Wrong(
                f"for {where} you miss one: a request that starts inside a sector ends inside another."
            )
        raise Wrong(f"for {where} you count {got}; draw the lanes and the multiples of 32.")
    return "so many sectors move, whatever the lanes do with them."


@checker("03.2")
def _splits(splits: Callable[..., Any]) -> str:
    """splits(n, k, columns, sms): the fewest parts of k that give every SM a block, of 16 rows or more."""
    for n, k, columns, sms in (
        (4096, 4096, 256, 132),
        (4096, 4096, 256, 128),
        (8192, 8192, 256, 132),
        (100_000, 64, 256, 132),
        (256, 128, 256, 132),
        (1000, 4096, 256, 16),
        (256, 8, 256, 132),
    ):
        strips = -(-n // columns)
        right = max(1, min(-(-sms // strips), k // 16))
        got = called(splits, n, k, columns, sms)
        where = f"n={n}, k={k}, columns={columns} and {sms} SMs"
        if got != int(got):
            raise Wrong(f"for {where} you take {got} parts; a part is whole, so round.")
        if got < 1:
            raise Wrong(f"for {where} you take {got} parts; one is the least.")
        if got > 1 and k // got < 16:
            raise Wrong(f"for {where} you take {got} parts, and some have fewer than 16 rows.")
        if got < right:
            raise Wrong(f"for {where} you take {got}: that makes {strips * got} blocks, and SMs stay empty.")
        if got > right:
            raise Wrong(
                f"for {where} you take {got}: fewer fill every SM, and each part costs a partial sum."
            )
    return "every SM has a block, and no part is a crumb."


DIAGNOSES = {8: "accumulator", 4: "tile", 2: "half"}


@checker("03.3")
def _diagnosis(diagnose: Callable[..., Any]) -> str:
    """diagnose(expected, sums): what is wrong with a kernel by the ratios of repeated sums."""
    cases: list[tuple[float, list[float], str]] = [
        (64.0, [64.0, 64.0, 64.0], "right"),
        (64.0, [8.0, 8.0, 8.0], "accumulator"),
        (1e6, [250_000.4, 250_000.4], "tile"),
        (-3.0, [-1.5, -1.5], "half"),
        (64.0, [8.0, 16.0, 24.0], "state"),
        (64.0, [64.0, 128.0], "state"),
        (64.0, [32.0, 64.0, 32.0], "state"),
        (64.0, [20.0, 20.0], "unknown"),
        (64.0, [128.0, 128.0], "unknown"),
        (64.0, [float("nan"), float("nan")], "unknown"),
    ]
    for expected, sums, right in cases:
        got = called(diagnose, expected, list(sums))
        if got == right:
            continue
        shown = f"expected {expected:g}, got {', '.join(f'{value:g}' for value in sums)}"
        if right == "state":
            raise Wrong(f"{shown}: the same input gave different sums, which no ratio explains; not {got!r}.")
        if right == "unknown":
            raise Wrong(
                f"{shown}: that is none of the known ratios, and a guess is worse than none; not {got!r}."
            )
        raise Wrong(f"{shown}: that is not {got!r}.")
    return "first ask whether it is always the same, then by how much."


def _mended(name: str, source: Any, cases: Sequence[tuple[int, int]]) -> None:
    """Run a reader's version of a faulty kernel on the CPU, watched; Wrong says what still fails."""
    if not isinstance(source, str):
        raise Wrong("the answer is the kernel's source, a text.")
    if strip_comments(source).split() == strip_comments(faults.FAULTS[name].path.read_text()).split():
        raise NotImplementedError
    try:
        program = simt.load(source, watched=True)
        room = sum(variable.size for variable in program.variables(program.entry(name)))
    except UsageError as error:
        raise Wrong(str(error)) from None
    if room > 48 * 1024:
        raise Wrong(
            f"it declares {room} bytes of shared memory; a block has 49152 that need no special request."
        )
    generator = np.random.default_rng(3)
    for n, k in cases:
        a = generator.standard_normal((k, n), dtype=np.float32) + np.float32(0.5)
        x = generator.standard_normal(k, dtype=np.float32) + np.float32(0.5)
        y = np.full(n, np.nan, np.float32)
        where = f"with n = {n} and k = {k}"
        seen = simt.watch(source, *faults.launch_of(n), faults.arguments(a, x, y), entry=name)
        if seen.faults:
            raise Wrong(f"{where}, watched on the CPU: {seen.faults[0]}")
        if np.isnan(y).all():
            raise Wrong(f"{where} every output is NaN, which is what lay in y before the call.")
        off = ~(abs(y - x.astype(np.float64) @ a) <= 1e-4 * np.sqrt(k))  # NaN is off
        if off.any():
            raise Wrong(
                f"{where} {int(off.sum())} of {n} outputs are wrong, the first at {int(off.argmax())}."
            )


@checker("03.4")
def _early_exit(source: str) -> str:
    """Threads without a column must still load x and meet the barriers."""
    _mended("early_exit", source, ((63, 300), (300, 256), (256, 257), (1, 1)))
    return "nobody leaves before the last barrier, whatever n is."


@checker("03.5")
def _fixed_tile(source: str) -> str:
    """x of any length through a tile of fixed size."""
    _mended("fixed_tile", source, ((5, 4096), (5, 9001), (3, 12), (257, 100)))
    return "x comes by tiles, and no tile is overwritten while somebody reads it."


@checker("03.6")
def _not_zeroed(source: str) -> str:
    """The result must not depend on what y held."""
    _mended("not_zeroed", source, ((40, 300), (300, 512), (7, 1), (257, 257)))
    return "what y held before the call no longer matters."


@checker("03.7")
def _tokens(tokens_per_s: Callable[..., Any]) -> str:
    """tokens_per_s(projections, weight_bytes, gb_s): how often a second a token's weights can be read."""
    for name, weight_bytes, gb_s in (
        ("llama-2-7b", 2, 4600.0),
        ("qwen2.5-1.5b", 2, 360.0),
        ("phi-2", 4, 1008.0),
    ):
        model = shapes.get(name)
        parts = shapes.projections(model)
        right = gb_s * 1e9 / (sum(p.n * p.k * p.times for p in parts) * weight_bytes)
        got = float(called(tokens_per_s, list(parts), weight_bytes, gb_s))
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        once = gb_s * 1e9 / (sum(p.n * p.k for p in parts) * weight_bytes)
        headless = gb_s * 1e9 / (shapes.body(model) * weight_bytes)
        if math.isclose(got, once, rel_tol=1e-6):
            raise Wrong(
                f"for {name} you read each kind of projection once; a token needs those of every layer."
            )
        if math.isclose(got, headless, rel_tol=1e-6):
            raise Wrong(f"for {name} you leave the output head out; it is read for every token, too.")
        if any(math.isclose(got * unit, right, rel_tol=1e-6) for unit in (1e9, 1e6, 1e3, 1e-3, 1e-6)):
            raise Wrong(f"for {name} the answer is {got:g}, which is in another unit than tokens a second.")
        raise Wrong(f"for {name} with {weight_bytes} bytes a weight at {gb_s:g} GB/s you get {got:g}.")
    return "a ceiling for every decoder at batch 1, before attention and cache take their part."
