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


def rounding_errors(width: int = 128, keys: int = 4096) -> dict[str, float]:
    """Show what rounding costs, by what is rounded, for heads of `width` over `keys` keys; the largest error
    that is estimated for rungs 1, 4 and 3, over the number.
    """
    one, sums, found = f"{1e3 * HALF:.2f}", _of_outliers(width), _typical(width)
    why = "at most half a step: just above a power of two most, just below it half of that"
    rows = [("outputs to FP16", "the output itself", found["outputs"], HALF, why)]
    why = "as in the example; the largest is a guess, no bound"
    of = "typical: a typical output; largest: the row's largest"
    rows += [("weights to FP16", of, found["weights"], HALF, why)]
    why = f"typically one rounding of a number from 1 to 2, {one} ÷ √3; the largest where two outliers meet"
    of = "absolute, in thousandths: weights depend on it"
    rows += [("scores, added up in FP16 (rung 3)", of, HALF / np.sqrt(3), sums, why)]
    rows += [("outputs to FP32", "the output itself", found["FP32"], 2.0**-24, "FP32 keeps 24 bits")]
    guess = pd.DataFrame(rows, columns=["what", "of", "typical", "largest", "why"])
    guess[["typical", "largest"]] *= 1e3
    names = {"what": "Rounded", "typical": "Typical error (‰)", "largest": "Largest, about (‰)"}
    names |= {"of": "‰ of what", "why": "Because"}
    for name in ("typical", "largest"):
        guess[name] = [_two_digits(value) for value in guess[name]]
    caption = (
        f"What rounding leaves; heads of {width}, up to {keys:,} keys. Typical errors are RMS, those of "
    )
    caption += (
        f"outputs and weights computed by NumPy on such inputs, {TOKENS} tokens, without numbers below "
    )
    caption += "FP16's normal range"
    display.table(guess, names, {}, caption)
    display.say(
        "**The estimate for a rung adds up the largest errors of its roundings.** Rung 1 rounds outputs: "
        f"{one} ‰. Rung 4 weights too: {2e3 * HALF:.2f}. Rung 3 sums of scores as well: "
        f"{1e3 * (2 * HALF + sums):.1f} ‰, if an error of a score reaches the output as it is. It is an "
        "estimate and no bound, so it holds if a measured error is within a factor of two of it."
    )
    return {"1_scalar": HALF, "4_mma": 2 * HALF, "3_half2": 2 * HALF + sums}


@functools.cache
def _inputs(width: int) -> tuple[study.Shape, Any, Any, Any]:
    """A shape of TOKENS tokens with the page's random inputs, on the CPU."""
    shape = study.shape_of(study.ladder(width, TOKENS)[0])
    with ops.on("cpu"):
        return shape, *attention_work.operands(shape)


def _typical(width: int) -> dict[str, float]:
    """The RMS of what rounding moves a number, over the number: outputs to FP16 and to FP32, weights to FP16;
    numbers too small for all of FP16's bits left out.
    """
    shape, q, k, v = _inputs(width)
    with ops.on("cpu"):
        exact = attention_work.exact(q, k, v, shape)
    scores = q[:, 0].astype(float) @ k[:, 0].astype(float).T / np.sqrt(width)
    scores[np.triu_indices(shape.n, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))

    def moved(x: Any, kind: Any) -> float:
        full = x[abs(x) >= float(np.finfo(np.float16).smallest_normal)]
        return float(np.sqrt(((full.astype(kind).astype(float) / full - 1) ** 2).mean()))

    return {
        "outputs": moved(exact, np.float16),
        "weights": moved(weights, np.float16),
        "FP32": moved(exact, np.float32),
    }


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


def largest_score(width: int = 128, scores: int = 1 << 16) -> None:
    """Show, folded, why the largest error of a score of rung 3 is what the table says, and how it reaches an
    output.
    """
    apart, rounds = float(np.spacing(np.float16(_PRODUCT))), width // attention_work.SUMS
    off, meet = _of_outliers(width), scores * width / _OUTLIERS**2
    text = "**Two outliers.** A sum is off most where a product is large: where two outliers meet. In "
    text += f"{scores:,} scores, as many as in the test, that happens about "
    text += f"{scores:,} × {width} ÷ {_OUTLIERS}² = {meet:.0f} times. "
    text += "Each outlier is 4 times a normal number, so their product is 16 times that of two normal "
    text += f"numbers. The latter exceeds 4 once in {1 / _beyond(4.0):.0f} times: expect the largest product "
    text += f"at about 16 × 4 = {_PRODUCT:.0f}. From there on FP16 numbers lie {apart:g} apart, a rounding "
    text += f"takes up to half of that, and the sum is rounded {rounds} times: {rounds} × {apart / 2:.3f} ÷ "
    text += f"√{width} = {off:.4f}.\n\nLonger prompts have larger products. But a product of "
    text += (
        f"{2 * _PRODUCT:.0f} adds {2 * _PRODUCT / math.sqrt(width):.1f} to a score, and so multiplies the "
    )
    most = 2 * _PRODUCT / math.sqrt(width)
    text += (
        f"key's weight by e^{most:.1f}, about {round(math.exp(most), -3):,.0f}: that key has nearly all of "
    )
    text += "the weight, or none, and an error of its score hardly moves the output."
    display.fold_parts(
        f"Where the {1e3 * off:.1f} ‰ comes from: two outliers, two keys", [text, _two_keys(off)]
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


def one_output(
    scores: Sequence[float] = (0.0, -0.3, -0.7, -1.2), values: Sequence[float] = (0.9, -1.1, 1.4, 0.5)
) -> None:
    """Show an output of four keys whose weights are rounded to FP16, key by key, and what the errors come to
    over the output.
    """
    weights = np.exp(np.array(scores))
    rounded = weights.astype(np.float16).astype(float)
    lines = ["weight      in FP16     off by       value   weight × value   off by × value"]
    for weight, kept, value in zip(weights, rounded, values, strict=True):
        lines.append(
            f"{weight:.7f}   {kept:.7f}   {kept - weight:+.7f}   {value:+.1f}    {weight * value:+.7f}"
            f"       {(kept - weight) * value:+.7f}"
        )
    whole, off = float(weights @ values), float((rounded - weights) @ values)
    lines.append(f"{'together':<45}{whole:+.7f}       {off:+.7f}")
    text = "\n".join(lines)
    display.say(f"```text\n{text}\n```\n\nThe output is off by {1e3 * abs(off / whole):.2f} ‰ of itself.")


def one_sum(numbers: Sequence[tuple[float, float]] = ((1.328125, 0.765625), (0.703125, 1.078125))) -> None:
    """Show one FP16 sum of rung 3, step by step: each product that comes, and what the rounding takes."""
    total, whole = np.float16(0), 0.0
    lines = [f"{'product':<30}  {'sum':<8}   {'in FP16':<8}   off by"]
    for a, b in numbers:
        product = float(np.float16(a)) * float(np.float16(b))
        exact, whole = float(total) + product, whole + product
        total = np.float16(exact)
        comes = f"{float(np.float16(a)):.6f} × {float(np.float16(b)):.6f} = {product:.6f}"
        lines.append(f"{comes:<30}  {exact:.6f}   {float(total):.6f}   {float(total) - exact:+.6f}")
    text = "\n".join(lines)
    off = float(total) - whole
    display.say(f"```text\n{text}\n```\n\nThe sum is {whole:.6f}; this one is off by {off:+.6f}.")


def scores_tested(width: int = 128) -> None:
    """Add up scores of random inputs as rung 3 does, on the CPU, and say how far they are off beside what
    the table predicts.
    """
    _, q, k, _ = _inputs(width)
    query, keys = q[:, 0].astype(np.float32), k[:, 0].astype(np.float32)
    exact = query.astype(float) @ keys.T.astype(float)
    off = abs(attention_work.packed_scores(query, keys) - exact) / np.sqrt(width)
    typical, largest = float(np.sqrt((off**2).mean())), float(off.max())
    worst = np.unravel_index(int(off.argmax()), off.shape)
    product = float(abs(query[worst[0]] * keys[worst[1]]).max())
    most = _of_outliers(width)
    display.say(
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
