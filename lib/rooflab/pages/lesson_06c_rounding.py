"""What lesson 06c predicts of rounding outputs, weights and scores to FP16, and tests of the estimates."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display

HALF = 2.0**-11  # the most that rounding to FP16 moves a number, over the number
TOKENS = 256  # of the inputs that errors of rounding are computed on here
_OUTLIERS = 256  # one number of so many is four times as large
_PRODUCT = 64.0  # about the largest of two outliers: see largest_score


def rounding_errors(width: int = 128) -> dict[str, float]:
    """Show what each rounding is off by at most, for heads of `width`, and how an error of a score becomes
    one of a weight; the largest error of an output that is estimated for rungs 1, 4 and 3.
    """
    sums = _of_outliers(width)
    rows = [
        ("outputs to FP16", "all", "the output", HALF, "at most half a step of FP16"),
        ("weights to FP16", "3 on", "the weight", HALF, "the same"),
        ("sums of scores to FP16", "3", "the weight of the score's key", sums, "a guess: see the fold"),
    ]
    table = pd.DataFrame(rows, columns=["what", "rungs", "of", "largest", "why"])
    table["largest"] = [_two_digits(1e3 * value) for value in table["largest"]]
    names = {"what": "Rounded", "rungs": "By rungs", "largest": "Largest, about (‰)", "of": "‰ of"}
    display.table(table, names | {"why": "Because"}, {}, f"What each rounding is off by; heads of {width}")
    display.say(
        f"**Why an error of a score counts in ‰**: a score off by {sums:.4f} multiplies its key's weight by "
        f"e^{sums:.4f} = {math.exp(sums):.4f}, so the weight is off by {1e3 * math.expm1(sums):.1f} "
        "thousandths.\n\n"
        "**The estimate for a rung is the sum of its lines**, as if each error reached the output whole: "
        f"{1e3 * HALF:.2f} ‰ for rung 1, {2e3 * HALF:.2f} for rung 4, {1e3 * (2 * HALF + sums):.1f} for "
        "rung 3. The first is a bound, the others are guesses. Less arrives where one key has nearly all of "
        "the weight: the largest weight is 1, which FP16 holds exactly, and an error of its score scales the "
        "sum of the weights as well. More arrives where the terms of many keys, weight × value, cancel and "
        "their errors do not. So an estimate holds if the measured error is within a factor of two of it."
    )
    return {"1_scalar": HALF, "4_mma": 2 * HALF, "3_half2": 2 * HALF + sums}


@functools.cache
def _inputs(width: int) -> tuple[study.Shape, Any, Any, Any]:
    """A shape of TOKENS tokens with the page's random inputs, on the CPU."""
    shape = study.shape_of(study.ladder(width, TOKENS)[0])
    with ops.on("cpu"):
        return shape, *attention_work.operands(shape)


def _half(x: Any) -> Any:
    """Numbers rounded to FP16."""
    return x.astype(np.float16).astype(np.float32)


def _two_digits(value: float) -> str:
    """A figure in two digits without a power of ten."""
    return np.format_float_positional(value, 2, unique=False, fractional=False, trim="-")


def _of_outliers(width: int) -> float:
    """About how far a score is off whose largest product is that of two outliers, as rung 3 adds it up."""
    step = float(np.spacing(np.float16(_PRODUCT))) / 2
    return width // attention_work.SUMS * step / float(np.sqrt(width))


def _beyond(level: float) -> float:
    """How often the product of two normal numbers with a spread of 1 is larger than `level`, in size."""
    x = np.linspace(1e-6, 9.0, 20_000)
    tail = np.array([math.erfc(level / each / math.sqrt(2)) for each in x])
    return float((2 * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * tail).sum() * (x[1] - x[0]))


def sums_of_scores(width: int = 128) -> None:
    """Show, folded, how far a score of rung 3 is off, with one of its sums, a test, and how an error of a
    score reaches an output.
    """
    off = _of_outliers(width)
    display.fold_parts(
        f"Where the {1e3 * off:.1f} ‰ comes from: one sum, two outliers, two keys",
        [_one_sum(width), _two_outliers(width), _scores_tested(width), _two_keys(off)],
    )


def _two_outliers(width: int, scores: int = TOKENS**2) -> str:
    """Why the largest error of a score of rung 3 is what the table says."""
    apart, rounds = float(np.spacing(np.float16(_PRODUCT))), width // attention_work.SUMS
    meet, most = scores * width / _OUTLIERS**2, 2 * _PRODUCT / math.sqrt(width)
    return (
        "**At most**: a sum is off most where a product is large, where two outliers meet. In "
        f"{scores:,} scores that happens about {scores:,} × {width} ÷ {_OUTLIERS}² = {meet:.0f} times. "
        "Each outlier is 4 times a normal number, so their product is 16 times that of two normal "
        f"numbers. The latter exceeds 4 once in {1 / _beyond(4.0):.0f} times: expect the largest product "
        f"at about 16 × 4 = {_PRODUCT:.0f}. From there on FP16 numbers lie {apart:g} apart, a rounding "
        f"takes up to half of that, and the sum is rounded {rounds} times: {rounds} × {apart / 2:.3f} ÷ "
        f"√{width} = {_of_outliers(width):.4f}.\n\nLonger prompts have larger products. But a product of "
        f"{2 * _PRODUCT:.0f} adds {most:.1f} to a score, and so multiplies the key's weight by "
        f"e^{most:.1f}, about {round(math.exp(most), -3):,.0f}: that key has nearly all of the weight, or "
        "none, and an error of its score hardly moves the output."
    )


def _two_keys(off: float) -> str:
    """How an error of a score reaches an output, by a query that sees two keys."""
    scores, values = np.array([[1.0, 1.0], [1.0 + off, 1.0]]), np.array([3.0, -1.0])
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    outputs = weights @ values
    lines = ["         scores            weights             output = 3 × first - second"]
    for name, score, weight, output in zip(("exact", "rung 3"), scores, weights, outputs, strict=True):
        line = f"{name:<7}  {score[0]:.4f}  {score[1]:.4f}    {weight[0]:.5f}  {weight[1]:.5f}"
        lines.append(f"{line}    {output:.4f}")
    text = "\n".join(lines)
    moved = abs(outputs[1] / outputs[0] - 1)
    return (
        "**Two keys** with equal scores, whose values are 3 and -1. "
        f"The first score is off by {off:.4f}:\n\n```text\n{text}\n```\n\n"
        f"The output is off by {1e3 * moved:.1f} ‰: the error of the score × the key's weight × the distance "
        f"of its value from the output, {off:.4f} × 0.5 × (3 - 1). This example passes an error on as it is; "
        "other weights and values pass on less, or more."
    )


def _one_sum(
    width: int = 128,
    numbers: Sequence[tuple[float, float]] = ((1.328125, 0.765625), (0.703125, 1.078125)),
) -> str:
    """One FP16 sum of rung 3, step by step: each product that comes, and what the rounding takes; and what
    that means for a score of `width` products.
    """
    total, whole = np.float16(0), 0.0
    lines = [f"{'product':<30}  {'sum':<8}   {'in FP16':<8}   off by"]
    for a, b in numbers:
        product = float(np.float16(a)) * float(np.float16(b))
        exact, whole = float(total) + product, whole + product
        total = np.float16(exact)
        comes = f"{float(np.float16(a)):.6f} × {float(np.float16(b)):.6f} = {product:.6f}"
        lines.append(f"{comes:<30}  {exact:.6f}   {float(total):.6f}   {float(total) - exact:+.6f}")
    text, sums = "\n".join(lines), attention_work.SUMS
    return (
        f"**One sum.** Each of a warp's 32 lanes has {sums // 32} FP16 sums, {sums} in all, so of a score's "
        f"{width} products {width // sums} go into each, and each is rounded when it comes. One of the "
        f"{sums}:\n\n```text\n{text}\n```\n\nThe sum is {whole:.6f}; this one is off by "
        f"{float(total) - whole:+.6f}. The {sums} sums are then added in FP32, which costs next to "
        "nothing.\n\n"
        f"**Typically**: {width} roundings, each in either direction, err together by about √{width} times "
        f"one, and a score is divided by √{width}. What remains is the typical error of *one* rounding of a "
        f"number from 1 to 2, {HALF:.5f} ÷ √3 = {HALF / math.sqrt(3):.5f}."
    )


def _scores_tested(width: int) -> str:
    """Scores of random inputs added up on the CPU as rung 3 does: how far they are off, beside what is
    estimated.
    """
    _, q, k, _ = _inputs(width)
    query, keys = q[:, 0].astype(np.float32), k[:, 0].astype(np.float32)
    exact = query.astype(float) @ keys.T.astype(float)
    off = abs(attention_work.packed_scores(query, keys) - exact) / np.sqrt(width)
    typical, largest = float(np.sqrt((off**2).mean())), float(off.max())
    worst = np.unravel_index(int(off.argmax()), off.shape)
    product = float(abs(query[worst[0]] * keys[worst[1]]).max())
    most = _of_outliers(width)
    return (
        f"**Test** on the CPU, {off.size:,} scores of such inputs: typically off by {typical:.5f}, estimated "
        f"{HALF / np.sqrt(3):.5f}; the largest error is {largest:.5f}, estimated {most:.5f}. The "
        f"largest product in that score is {product:.0f}"
        + ("." if largest <= most else ": larger than was assumed.")
    )


def loud_simulated() -> tuple[float, float]:
    """The largest error, in RMS of the outputs, of the plain computations with FP16 sums of scores and with
    FP32 sums, on loud inputs with random numbers of the CPU's.
    """
    case = next(case for case in asks.edges() if case.impl == "3_half2")
    shape = study.shape_of(case)

    with ops.on("cpu"):
        q, k, v = attention_work.operands(shape)
        loud = (q.astype(np.float32) * asks.LOUD).astype(np.float16)
        expected = attention_work.exact(loud, k, v, shape)
        rms = np.sqrt((expected**2).mean())
        packed, plain = (
            _half(attention_work.exact(loud, k, v, shape, _half, packed=way)) for way in (True, False)
        )
    return float(abs(packed - expected).max() / rms), float(abs(plain - expected).max() / rms)
