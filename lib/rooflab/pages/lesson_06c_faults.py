"""Faults planted in an attention of lesson 06c's own, and which allowances would let them pass."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.analysis import attention as analysis
from rooflab.pages import Rows
from rooflab.pages.lesson_06c_limits import LEAST_LIMIT
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display, plot
from rooflab.words import listed

KEYS = 32  # of a tile
FP16_SUMS = "3_half2"  # the rung that adds up scores in FP16
_FORMATS = {"fp16": "FP16", "bf16": "bfloat16"}
_NONE = pd.DataFrame(columns=["error", "error_budget", "format"], dtype=float)
# What is planted, in the words of the table; the first is none.
RIGHT = "none"
FAULTS = {
    RIGHT: "none: weights and outputs in FP16",
    "bits": "weights rounded to 8 bits, as bfloat16, instead of 11",
    "base": "log2(e) = 1.44 instead of 1.442695",
    "rescale": "outputs not rescaled at the second tile",
    "key": "the first tile's last key is skipped",
    "mask": "a query also sees the key after its own",
}


class Inputs(NamedTuple):
    """One of the source's shapes with random numbers of the CPU's: exact outputs, their RMS, what rounding
    outputs alone costs in it, and the gate's limits in units of a row's largest output, for sums of scores in
    FP32 and in FP16.
    """

    words: str
    shape: study.Shape
    q: Any
    k: Any
    v: Any
    expected: Any
    rms: float
    least: float
    limits: tuple[float, float]

    def error(self, out: Any) -> float:
        """The largest error of an output as the gate takes it: in units of its row's largest exact output."""
        unit = abs(self.expected).max(axis=-1, keepdims=True)
        return float((abs(out.astype(float) - self.expected) / unit).max())


@functools.cache
def on_cpu() -> tuple[Inputs, ...]:
    """Every shape of the source's, computed here."""
    found = []
    for case in asks.tolerance():
        if case.impl != FP16_SUMS:
            continue
        shape = study.shape_of(case)
        with ops.on("cpu"):
            q, k, v = attention_work.operands(shape)
            expected = attention_work.exact(q, k, v, shape)
            plain = [_half(attention_work.exact(q, k, v, shape, _half, packed)) for packed in (False, True)]
        rms = float(np.sqrt((expected**2).mean()))
        least = float(abs(expected.astype(np.float16) - expected).max()) / rms
        given = Inputs(analysis.in_words(case), shape, q, k, v, expected, rms, least, (0.0, 0.0))
        first, second = (max(2 * given.error(each), LEAST_LIMIT) for each in plain)
        found.append(given._replace(limits=(first, second)))
    return tuple(found)


def _half(x: Any) -> Any:
    """Numbers rounded to FP16."""
    return x.astype(np.float16).astype(np.float32)


def attention(given: Inputs, fault: str = RIGHT) -> Any:
    """Causal attention in tiles of KEYS keys, with the online softmax and a fault: in float64, but weights
    and outputs are rounded to FP16, as on tensor cores.
    """
    q, k, v, shape = given.q, given.k, given.v, given.shape
    n, heads, width = q.shape
    group, out, query = heads // k.shape[1], np.zeros(q.shape), shape.start + np.arange(n)[:, None]
    log2e = 1.44 if fault == "base" else np.log2(np.e)
    for head in range(heads):
        rows, keys, values = (x.astype(float) for x in (q[:, head], k[:, head // group], v[:, head // group]))
        most, total, sums = np.full((n, 1), -1e30), np.zeros((n, 1)), np.zeros((n, width))
        for first in range(0, shape.context, KEYS):
            key = np.arange(first, min(first + KEYS, shape.context))[None]
            hidden = key > query + (fault == "mask")
            hidden |= key <= query - (shape.window or shape.context + 1)
            hidden |= (key == KEYS - 1) & (fault == "key")
            scores = np.where(hidden, -np.inf, rows @ keys[key[0]].T * log2e / np.sqrt(width))
            raised = np.maximum(most, scores.max(axis=1, keepdims=True))
            rescale, weights = np.exp2(most - raised), np.exp2(scores - raised)
            total = total * rescale + weights.sum(axis=1, keepdims=True)
            rounded = _to_bits(weights, 8) if fault == "bits" else weights.astype(np.float16).astype(float)
            kept = sums if fault == "rescale" and first == KEYS else sums * rescale
            most, sums = raised, kept + rounded @ values[key[0]]
        out[:, head] = sums / np.maximum(total, 1e-30)
    return np.clip(out, -65504, 65504).astype(np.float16)


def _to_bits(x: Any, bits: int) -> Any:
    """Numbers rounded to so many bits."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


@functools.cache
def by_shape() -> pd.DataFrame:
    """Of each fault on each of the source's shapes: the largest error in RMS of the outputs, and over the
    gate's limit for sums in FP32 and for FP16 sums of scores, as the gate takes an error.
    """
    lines = []
    for given in on_cpu():
        for fault in FAULTS:
            out = attention(given, fault)
            error, judged = float(abs(out - given.expected).max()) / given.rms, given.error(out)
            over = (error / given.least, *(judged / limit for limit in given.limits))
            lines.append((fault, given.words, error, *over))
    return pd.DataFrame(lines, columns=["fault", "config", "error", "over", "gate", "gate_sums"])


def over_output_rounding() -> tuple[str, float, float]:
    """The fault that the gate stops by least, and its error over what rounding the output costs, in RMS: the
    least and the most of the shapes.
    """
    by = by_shape()
    least = str(by[by["fault"] != RIGHT].groupby("fault")["gate"].max().idxmin())
    over = by.loc[by["fault"] == least, "over"]
    return least, float(over.min()), float(over.max())


def errors() -> pd.DataFrame:
    """Each fault on the shape where it is largest, by each measure; on how many shapes it keeps each limit;
    and whether each of the source's allowances lets it pass.
    """
    by = by_shape().groupby("fault", sort=False)
    table = by[["error", "gate", "gate_sums"]].max().reset_index()
    for name in ("gate", "gate_sums"):
        table[f"{name} hides"] = [int((group[name] <= 1).sum()) for _, group in by]
    return table.assign(**{name: table["error"] <= most for name, most in asks.TOLERANCES.items()})


def planted_faults() -> None:
    """Show what planted faults do to the largest error, and say which the widest allowance does not see."""
    found = errors()
    allowed = {name: f"{1e3 * most:g} ‰" for name, most in asks.TOLERANCES.items()}
    table = pd.DataFrame({"what": [FAULTS[fault] for fault in found["fault"]]})
    table["error"] = 1e3 * found["error"]
    table["passes"] = [listed(allowed[name] for name in allowed if row[name]) for _, row in found.iterrows()]
    names = {"what": "Fault", "error": "Largest error (‰ of the RMS)", "passes": "Passes the source's"}
    table["gate"], table["sums"] = found["gate"], found["gate_sums"]
    names |= {"gate": "÷ the gate's limit", "sums": "÷ rung 3's limit"}
    caption = "The faults' figures; each at the shape where that figure is largest"
    _chart(found)
    for name in ("error", "gate", "sums"):
        table[name] = [f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in table[name]]
    display.table(table, names, {}, caption, folded=True)
    widest = max(asks.TOLERANCES, key=lambda name: asks.TOLERANCES[name])
    wrong = found[found["fault"] != RIGHT]
    hidden = wrong[wrong[widest]]
    if len(hidden):
        display.say(
            f"**{allowed[widest]} lets a wrong kernel pass**: "
            f"{'; '.join(FAULTS[fault] for fault in hidden['fault'])}. The gate's limit stops "
            f"{'it' if len(hidden) == 1 else 'them'}."
            if (hidden["gate"] > 1).all()
            else f"**{allowed[widest]} and the gate let a wrong kernel pass.**"
        )


def nearness(*recorded: Rows) -> None:
    """Say how far beyond the gate's limit the smallest fault comes, why that is twice an error, with the
    rows of right kernels that are `recorded`, and what a wider limit lets pass.
    """
    by, faults = by_shape(), errors().set_index("fault")
    wrong = faults.drop(RIGHT)
    least = str(wrong["gate"].idxmin())
    mine = by[by["fault"] == least]
    stopped, shapes = int((mine["gate"] > 1).sum()), len(mine)
    text = f"**The gate stops the smallest fault on {stopped} of {shapes} shapes** "
    text += f"({FAULTS[least].partition(',')[0]}: {mine['gate'].min():.1f} to {mine['gate'].max():.1f} times "
    text += "the limit).\n\n"
    text += "**Why twice?** The factor is chosen, not derived: a right kernel adds in another order than the "
    text += f"plain computation, and may err by more. {_between(recorded, float(mine['gate'].min()))}"
    if hidden := int(wrong["gate_sums hides"][least]):
        text += (
            f"A limit wider than a kernel needs hides faults: under that of {FP16_SUMS}, with FP16 sums, the "
        )
        text += f"smallest fault passes on {hidden} of {shapes} shapes."
    display.say(text.rstrip())


def _between(recorded: Sequence[Rows], least: float) -> str:
    """Whether the limit lies between the errors of recorded kernels and the smallest fault's."""
    held = pd.concat([rows[["error", "error_budget", "format"]] for rows in recorded if len(rows)] or [_NONE])
    held = held.assign(share=held["error"] / held["error_budget"]).dropna(subset=["share"])
    if held.empty:
        return ""
    share, said = held["share"], []
    for name, group in held.groupby("format", sort=False)["share"]:
        ends = dict.fromkeys(f"{end:.2f}" for end in (group.min(), group.max()))
        said.append(f"{' to '.join(ends)} ({_FORMATS.get(str(name), name)})")
    text = (
        f"At the first chart's prompt kernels come to {listed(said)} of their limit, the smallest fault on "
    )
    text += f"these shapes to {least:.1f} times its limit or more: "
    return text + f"a factor of 2 {'parts' if share.max() <= 1 < least else 'does not part'} them. "


def _chart(found: pd.DataFrame) -> None:
    """Draw each fault's error over the gate's limit, the smallest on top, and which the source's widest
    allowance lets pass.
    """
    title = "Planted faults: error ÷ the gate's limit"
    found = found.sort_values("gate")
    widest = max(asks.TOLERANCES, key=lambda name: asks.TOLERANCES[name])
    label = "error ÷ the gate's limit (right of 1: wrong)"
    fig, ax = plot.figure(label, title=title, height=1.2 + 0.4 * len(found), xlog=True)
    words = [textwrap.fill(FAULTS[fault], 32) for fault in found["fault"]]
    ax.set_yticks(range(len(found)), words, fontsize=8.5)
    ax.set_ylim(len(found) - 0.5, -0.5)
    allowed = f"{1e3 * asks.TOLERANCES[widest]:g} ‰"
    for place, (_, row) in enumerate(found.iterrows()):
        colour = plot.PEER_COLOUR if row["fault"] == RIGHT else plot.COLOURS[0]
        ax.plot(row["gate"], place, "o", color=colour, markersize=7, zorder=4)
        near = f"{row['gate']:.1f}" if row["gate"] < 100 else f"{row['gate']:,.0f}"
        near += f"; passes the source's {allowed}" if row[widest] and row["fault"] != RIGHT else ""
        left = bool(row["gate"] < 1)
        at = {"ha": "right" if left else "left", "va": "center", "textcoords": "offset points"}
        ax.annotate(near, (row["gate"], place), (-8 if left else 8, 0), fontsize=8.5, **at)
    ax.axvline(1.0, color="black", linewidth=1.4, zorder=3)
    ax.set_xlim(min(0.15, found["gate"].min() / 3), 12 * found["gate"].max())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    said = f"{title} for libraries and all rungs but {FP16_SUMS}, each at the worst of the nine "
    said += "shapes, computed here. Grey: no fault. That code is the plain computation, and the limit is "
    plot.show(fig, f"{said}twice its error: so it lies at half the limit.")
