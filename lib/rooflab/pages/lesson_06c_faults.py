"""Faults planted in an attention of lesson 06c's own, and which allowances would let them pass."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.records.case import Case
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display, plot
from rooflab.words import listed

_LEAST_LIMIT = 2.0**-10  # of a row's largest output: the gate allows FP16 no less
KEYS = 32  # of a tile
SHAPE = 4  # of the source's: its smallest
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


def attention(q: Any, k: Any, v: Any, fault: str = RIGHT) -> Any:
    """Causal attention in tiles of KEYS keys, with the online softmax and a fault: in float64, but weights
    and outputs are rounded to FP16, as on tensor cores.
    """
    n, heads, width = q.shape
    group, out, query = heads // k.shape[1], np.zeros(q.shape, np.float16), np.arange(n)[:, None]
    log2e = 1.44 if fault == "base" else np.log2(np.e)
    for head in range(heads):
        rows, keys, values = (x.astype(float) for x in (q[:, head], k[:, head // group], v[:, head // group]))
        most, total, sums = np.full((n, 1), -np.inf), np.zeros((n, 1)), np.zeros((n, width))
        for first in range(0, n, KEYS):
            key = np.arange(first, min(first + KEYS, n))[None]
            hidden = key > query + (fault == "mask")
            hidden |= (key == KEYS - 1) & (fault == "key")
            scores = np.where(hidden, -np.inf, rows @ keys[key[0]].T * log2e / np.sqrt(width))
            raised = np.maximum(most, scores.max(axis=1, keepdims=True))
            rescale, weights = np.exp2(most - raised), np.exp2(scores - raised)
            total = total * rescale + weights.sum(axis=1, keepdims=True)
            rounded = _to_bits(weights, 8) if fault == "bits" else weights.astype(np.float16).astype(float)
            kept = sums if fault == "rescale" and first == KEYS else sums * rescale
            most, sums = raised, kept + rounded @ values[key[0]]
        out[:, head] = sums / total
    return out


def _to_bits(x: Any, bits: int) -> Any:
    """Numbers rounded to so many bits."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


def _half(x: Any) -> Any:
    """Numbers rounded to FP16."""
    return x.astype(np.float16).astype(np.float32)


def errors() -> pd.DataFrame:
    """Of each fault, on a shape of the source's: the largest error in RMS of the outputs, whether each of the
    source's allowances lets it pass, and its error in units of a row's largest output over the gate's limit,
    for FP16 weights and for FP16 sums of scores.
    """
    shape = study.shape_of(_case())
    with ops.on("cpu"):
        q, k, v = attention_work.operands(shape)
        expected = attention_work.exact(q, k, v, shape)
    rms = np.sqrt((expected**2).mean())
    off = {fault: abs(attention(q, k, v, fault) - expected) for fault in FAULTS}
    table = pd.DataFrame({"fault": list(off), "error": [each.max() / rms for each in off.values()]})
    largest = abs(expected).max(axis=2, keepdims=True)
    by_row = np.array([(each / largest).max() for each in off.values()])
    with ops.on("cpu"):
        sums = _half(attention_work.exact(q, k, v, shape, _half, packed=True))
    table["gate"] = by_row / max(2 * by_row[0], _LEAST_LIMIT)
    table["gate_sums"] = by_row / max(2 * (abs(sums - expected) / largest).max(), _LEAST_LIMIT)
    return table.assign(**{name: table["error"] <= most for name, most in asks.TOLERANCES.items()})


def planted_faults(over_plain: float = np.nan) -> None:
    """Show what planted faults do to the largest error, say which the widest allowance does not see and what
    the gate says; beside how many times as much as a plain computation the rungs err at most (`over_plain`).
    """
    found = errors()
    allowed = {name: f"{1e3 * most:g} ‰" for name, most in asks.TOLERANCES.items()}
    table = pd.DataFrame({"what": [FAULTS[fault] for fault in found["fault"]]})
    table["error"] = 1e3 * found["error"]
    table["passes"] = [listed(allowed[name] for name in allowed if row[name]) for _, row in found.iterrows()]
    names = {"what": "Fault", "error": "Largest error (‰ of the RMS)"}
    table["gate"] = found["gate"]
    names |= {"passes": "Passes the source's", "gate": "÷ the gate's limit"}
    caption = "The same errors in the source's unit, and which of its allowances they pass"
    _chart(found)
    for name in ("error", "gate"):
        table[name] = [f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in table[name]]
    display.table(table, names, {}, caption, folded=True)
    widest = max(asks.TOLERANCES, key=lambda name: asks.TOLERANCES[name])
    wrong = found[found["fault"] != RIGHT]
    hidden, seen = wrong[wrong[widest]], wrong[~wrong[widest]]
    text = ""
    if len(hidden):
        text += f"**{allowed[widest]} lets wrong kernels pass**: "
        text += f"{'; '.join(FAULTS[fault] for fault in hidden['fault'])}. "
    if len(seen):
        text += f"The other faults exceed it, and the gate's limit at least {seen['gate'].min():,.0f} times. "
    text += _by_the_gate(found[found["fault"] == RIGHT].iloc[0], wrong)
    text += _why_twice(wrong, over_plain)
    display.say(text)


def _chart(found: pd.DataFrame) -> None:
    """Draw each fault's error over the gate's limit, the largest on top, and which the source's widest
    allowance lets pass.
    """
    title = "Planted faults: error ÷ the gate's limit"
    found = found.sort_values("gate", ascending=False)
    widest = max(asks.TOLERANCES, key=lambda name: asks.TOLERANCES[name])
    fig, ax = plot.figure("times the gate's limit", title=title, height=1.2 + 0.4 * len(found), xlog=True)
    colours = [plot.PEER_COLOUR if fault == RIGHT else plot.COLOURS[0] for fault in found["fault"]]
    low = min(0.1, found["gate"].min() / 4)
    ax.barh(range(len(found)), found["gate"] - low, left=low, height=0.6, color=colours, zorder=2)
    words = [textwrap.fill(FAULTS[fault], 32) for fault in found["fault"]]
    ax.set_yticks(range(len(found)), words, fontsize=8.5)
    ax.set_ylim(len(found) - 0.5, -0.5)
    allowed = f"{1e3 * asks.TOLERANCES[widest]:g} ‰"
    for place, (_, row) in enumerate(found.iterrows()):
        near = f"{row['gate']:.1f}" if row["gate"] < 100 else f"{row['gate']:,.0f}"
        near += f"; passes the source's {allowed}" if row[widest] and row["fault"] != RIGHT else ""
        at = {"va": "center", "fontsize": 8.5, "textcoords": "offset points"}
        at["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.annotate(near, (max(row["gate"], 1.0), place), (6, 0), **at)
    ax.axvline(1.0, color="black", linewidth=1.4, zorder=3)
    ax.set_xlim(low, 12 * found["gate"].max())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    said = (
        f"{title}, on the source's shape {SHAPE + 1}, computed here with random numbers of their own. Right "
    )
    plot.show(fig, f"{said}of the line, at 1, the gate stops a kernel. Grey: no fault.")


def _by_the_gate(right: Any, wrong: pd.DataFrame) -> str:
    """Whether the gate's limit tells the right kernel from the wrong ones, and whether a kernel that declares
    FP16 sums of scores could err as much as the smallest fault does.
    """
    least = wrong.loc[wrong["gate"].idxmin()]
    missed = wrong[wrong["gate"] <= 1]
    text = "\n\n**The gate** allows twice the error of a plain computation in the kernel's own number "
    text += f"format. The kernel without a fault is such a computation: {right['gate']:.2g} of the limit. "
    text += f"The gate misses: {listed(FAULTS[fault] for fault in missed['fault'])}." if len(missed) else ""
    text += "" if len(missed) else f"The smallest fault comes to {least['gate']:.1f} times the limit"
    if least["gate"] > 1 and least["gate_sums"] > 1:
        text += f", and to {least['gate_sums']:.1f} times rung 3's, the wider one of FP16 sums."
    elif not len(missed):
        text += "."
    return text


def _why_twice(wrong: pd.DataFrame, over_plain: float) -> str:
    """What the gate's factor lies between: the worst of the recorded rungs and the smallest fault."""
    text = "\n\n**Why twice?** The factor is chosen, not derived. "
    if not over_plain > 0:
        return f"{text}How far right kernels exceed the plain computation is not recorded here."
    least, most = float(wrong["gate"].min()), over_plain / 2
    text += "A right kernel adds in another order than the plain computation, and may err by more: the worst "
    text += (
        f"rung comes to {most:.2f} of the limit on any recorded shape, the smallest fault to {least:.1f}. "
    )
    return text + (
        "The limit lies between."
        if most < 1 < least
        else "So the limit does not lie between right and wrong."
    )


def _case() -> Case:
    """The case whose shape is used."""
    return [case for case in asks.tolerance() if case.impl == "1_scalar"][SHAPE]
