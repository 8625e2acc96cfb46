"""Lesson 05e's prediction: the ridges of Q8_0 and of FP16, and what became of it."""

from __future__ import annotations

import math

import pandas as pd

from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import Rows
from rooflab.pages.lesson_05e_sweep import WAYS, Shape, by_tokens, q8_0_against_fp16
from rooflab.studies import q8_0 as decode
from rooflab.view import display
from rooflab.words import counted

_DP4A, _MMQ, _HALVES, _DEQUANTISE, _RESIDENT = WAYS
_MOST = q8_0.TAKES["6_mma"][2]  # tokens that one tile of int8 MMQ's first kernel holds
_NEAR = 1.1  # a ratio over another's that still is about the same


def ridges(here: Lab, shape: Shape) -> tuple[float, float]:
    """Show, and return, at how many tokens FP16 arithmetic takes as long as reading the weights, for Q8_0 and
    for FP16.
    """
    n, k = shape
    read, unit = here.roof["dram_read"].value, here.roof["fp16_tensor"].value
    table = pd.DataFrame({"form": ["Q8_0", "FP16"], "size": [decode.WEIGHT_BYTES, 2]})
    table["us"] = [roofline.gemm_bytes(1, n, k, size) / read / 1e3 for size in table["size"]]
    table["tokens"] = table["us"] * unit * 1e6 / roofline.gemm_flops(1, n, k)
    names = {"form": "Weights", "us": "Bytes at the roof (µs)"}
    names |= {"tokens": "Ridge, with FP16 arithmetic (tokens)"}
    display.table(table, names, {"us": "{:.1f}", "tokens": "{:.0f}"}, f"{n:,} × {k:,}")
    lower, upper = (float(tokens) for tokens in table["tokens"])
    display.say(
        f"T tokens are 2 × {n:,} × {k:,} × T operations. At {unit:,.0f} TFLOP/s they take as long as Q8_0's "
        f"bytes, {table['us'].iloc[0]:.1f} µs, for T = {lower:.0f}. Exact int8 has a roof of its own, which "
        "scaling sets ([05d](05d_mmq.ipynb)).\n\n"
        f"So Q8_0 should win up to {lower:.0f} tokens. From there to {upper:.0f} its lead should shrink to "
        "nothing: Q8_0 waits for arithmetic already, FP16 still for its bytes. Beyond, both do the same "
        "arithmetic.\n\n"
        "Among the ways on Q8_0 the kernels' instructions and tiles decide. dp4a repeats its instructions "
        "for each token, and one *mma* takes eight tokens: so dp4a should lead at one token, and int8 MMQ "
        f"from a few on. `6_mma` takes up to {_MOST} tokens, in tiles of eight, and scaling its sums is work "
        "for each of them. In-kernel FP16 converts a weight once for all tokens of a tile of 64 or more, so "
        f"it should lead beyond {_MOST}."
    )
    return lower, upper


def against_prediction(here: Lab, fastest: Rows, shape: Shape, ridges_of: tuple[float, float]) -> None:
    """Say where Q8_0 is overtaken, beside the ridges, Q8_0's and FP16's, that were predicted."""
    ridge, upper = ridges_of
    wide, text = by_tokens(fastest, shape), ""
    gain = q8_0_against_fp16(wide)
    if len(gain):
        lost, level = gain.index[gain < 1 / crossover.LEVEL], gain.index[gain <= crossover.LEVEL]
        if len(lost) and lost[0] < ridge:
            text += f"The prediction is missed: Q8_0 should win up to the ridge, at {ridge:.0f} tokens, and "
            text += f"FP16 weights overtake at {lost[0]}. There our kernels stay further from their "
            text += "roof than cuBLAS from its own. "
        else:
            text += _won(here, wide, shape, gain[gain.index <= ridge], ridge)
            text += "\n\n" + _lead_gone(gain, level, upper)
        text += (
            f"At {counted(int(gain.index[-1]), 'token')} Q8_0 runs at {gain.iloc[-1]:.2f} times the speed of "
        )
        text += "resident FP16. "
        if gain.iloc[-1] < crossover.LEVEL:
            text += "Where arithmetic decides, the smaller format saves memory and hardly any time. "
        if len(level):
            text += _change_places(wide, gain[gain.index >= level[0]])
    both = wide[[_DP4A, _DEQUANTISE]].dropna()
    if len(both):
        behind = both.index[both[_DP4A] >= both[_DEQUANTISE]]
        text = f"{text.strip()}\n\ndp4a, which needs no tensor cores and takes eight tokens at a time, "
        text += (
            f"falls behind dequantising at {counted(int(behind.min()), 'token')}."
            if len(behind)
            else "stays ahead of it."
        )
    display.say(text.strip())


_AT_RIDGE = 0.05  # a ridge is a ratio of two measured rates, and the tokens measured lie apart


def _lead_gone(gain: pd.Series, level: pd.Index, upper: float) -> str:
    """Whether Q8_0's lead is gone by FP16's ridge, `upper`, of the numbers of tokens at which it does not
    lead.
    """
    should = f"Q8_0's lead should be gone by FP16's ridge, at {upper:.0f} tokens"
    if not len(level):
        return f"**The prediction is missed beyond**: {should}, and it never is. "
    first, before = int(level[0]), gain.index[gain.index < level[0]]
    rest = gain[gain.index >= first]
    span = " to ".join(sorted({f"{rest.min():.2f}", f"{rest.max():.2f}"}))
    after = f"From {first:,} on Q8_0 runs at {span} times resident FP16's speed. "
    late = before[before > (1 + _AT_RIDGE) * upper]
    if len(late):
        return f"**The prediction is missed beyond**: {should}, and it lasts up to {late.max():,}. {after}"
    ahead = int((rest > crossover.LEVEL).sum())
    if not ahead:
        return f"{should}, and it is. {after}"
    where = f"at {len(rest) - ahead} of the {len(rest)} numbers of tokens measured from {first:,} on"
    return f"{should}. It is {where}; at the others it is above {crossover.LEVEL - 1:.0%}. {after}"


def _change_places(wide: pd.DataFrame, rest: pd.Series) -> str:
    """That Q8_0 and resident FP16 change places more than once where they should be level, and the step of
    tokens at which the ratio moves most, by whose time; nothing if they do not.
    """
    order = [gain > 1 for gain in rest if not 1 / crossover.LEVEL <= gain <= crossover.LEVEL]
    turns = sum(a != b for a, b in zip(order, order[1:], strict=False))
    if turns < 2:
        return ""
    moved = (rest / rest.shift()).map(math.log).abs()
    last = int(moved.idxmax())
    first = int(rest.index[rest.index.get_loc(last) - 1])
    own = wide[[_DP4A, _MMQ, _HALVES]].min(axis=1)
    text = f"\n\n**From {rest.index[0]:,} tokens on the two change places {turns} times.** Each takes "
    text += "tokens in tiles of its own, so its time moves in steps. The largest change: from "
    text += f"{first:,} to {last:,} tokens resident FP16 goes from {wide[_RESIDENT][first]:.1f} to "
    text += f"{wide[_RESIDENT][last]:.1f} µs, the best on Q8_0 from {own[first]:.1f} to {own[last]:.1f}. "
    return text + "Which tiles cuBLAS takes is its own choice and not recorded. "


def _won(here: Lab, wide: pd.DataFrame, shape: Shape, below: pd.Series, ridge: float) -> str:
    """Whether Q8_0 wins up to its ridge, and by how much beside the ratio of the bytes."""
    if below.empty:
        return f"No number of tokens below Q8_0's ridge, at {ridge:.0f}, was measured."
    ratio, least, most = 2 / decode.WEIGHT_BYTES, below.min(), below.max()
    if least <= crossover.LEVEL:
        return (
            f"Up to Q8_0's ridge, at {ridge:.0f} tokens, Q8_0 is not ahead everywhere: it is {least:.2f} to "
            f"{most:.2f} times as fast as resident FP16, where its bytes promise {ratio:.2f}."
        )
    text = f"**Up to Q8_0's ridge, at {ridge:.0f} tokens, Q8_0 wins, as predicted"
    if max(most / ratio, ratio / least) <= _NEAR:
        return (
            f"{text}, and by about as much**: {least:.2f} to {most:.2f} times, its bytes promise {ratio:.2f}."
        )
    text += f", but not by what its bytes promise**: {least:.2f} to {most:.2f} times instead of {ratio:.2f}. "
    text += "Neither reads its bytes at the roof:\n\n"
    ends = sorted({int(below.idxmax()), int(below.idxmin())})
    return text + "\n".join(f"- {_over_bytes(here, wide, shape, tokens)}" for tokens in ends)


def _over_bytes(here: Lab, wide: pd.DataFrame, shape: Shape, tokens: int) -> str:
    """How many times the time of their bytes the best on Q8_0 and resident FP16 take."""
    read, row = here.roof["dram_read"].value, wide.loc[tokens]
    own = row[[_DP4A, _MMQ, _HALVES]].min()
    over = [
        us / (roofline.gemm_bytes(1, *shape, size) / read / 1e3)
        for us, size in ((own, decode.WEIGHT_BYTES), (row[_RESIDENT], 2))
    ]
    text = (
        f"At {counted(int(tokens), 'token')} Q8_0 takes {over[0]:.2f} times the time of its bytes, resident "
    )
    return f"{text}FP16 {over[1]:.2f} times that of its own."
