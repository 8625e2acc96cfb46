"""Lesson 04c's gain of INT4 over FP16 by tokens: measured, beside what the bounds of both allow."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_stops import bound_us, crossing
from rooflab.studies import int4 as study
from rooflab.view import display, plot
from rooflab.words import counted, listed

_REGISTERS = 65536  # of an SM
_TILES_OF = 64  # rows of a wgmma


def gains_of(here: Lab, shapes: list[Any], batches: list[int]) -> Rows:
    """How many times as fast as FP16 the dispatcher's choice is, a row a shape of `shapes`, a column a number
    of tokens, those beyond a block's 64 among them.
    """
    cases = [case for n, k in shapes for case in study.many(n, k, device=here.sized)]
    cases += [case for n, k in shapes for case in study.batches(n, k, batches, here.sized)]
    cases = [case for case in cases if case.kind == "own" or case.impl == "torch.matmul"]
    rows = here.held("int4", [case for case in cases if case in here.cases("int4")])
    found = here.measure("int4", rows).drop_duplicates(["n", "k", "batch", "impl"])
    us = found.assign(who=found["kind"].eq("own").map({True: "ours", False: "fp16"}))
    wide = us.pivot_table("median_us", ["n", "k", "batch"], "who").reindex(columns=["ours", "fp16"])
    return (wide["fp16"] / wide["ours"]).dropna().unstack("batch").reindex(shapes)


def no_gain_beyond(here: Lab) -> float | None:
    """Tokens beyond which both formats take the same operations, so that INT4 can gain nothing; None where a
    roof is missing.
    """
    if not {"dram_read", "fp16_tensor"} <= set(here.roof):
        return None
    return crossing("fp16", here.roof["dram_read"].value, here.roof["fp16_tensor"].value)


def stops(gains: Rows, even: float | None = None) -> str:
    """Up to how many tokens INT4 is ahead of FP16 on each shape, and that by the bounds it can gain nothing
    beyond `even` tokens; nothing without rows.
    """
    ends: dict[Any, list[str]] = {}
    last = 0
    for (n, k), (end, lost) in _ends(gains).items():
        last = max(last, end if lost is None else lost)
        ends.setdefault((end, lost is None), []).append(f"{n:,} × {k:,}")
    if not ends:
        return ""
    parts = []
    for (end, always), some in sorted(ends.items()):
        where = "at all numbers timed, up to" if always else "up to"
        tokens = counted(end, "token") if not parts or always else end
        parts.append(f"{where} {tokens} on {listed(some)}" if end else f"nowhere on {listed(some)}")
    text = f"Ours is ahead of FP16 {'; '.join(parts)}"
    if even is not None and last > even:
        text += f". By the bounds INT4 itself gains nothing beyond {even:.0f} tokens"
    return f"{text}."


def stops_in_short(gains: Rows) -> str:
    """Up to how many tokens INT4 is ahead of FP16, on the shapes where that is fewest and most."""
    ends = [end for end, _ in _ends(gains).values()]
    if not ends:
        return ""
    if min(ends) == max(ends):
        return f"Ours is ahead of FP16 up to {counted(max(ends), 'token')}."
    text = f"On every shape ours is ahead of FP16 up to {counted(min(ends), 'token')}"
    return f"{text}, on the best shape up to {max(ends)}."


def _ends(gains: Rows) -> dict[Any, tuple[int, int | None]]:
    """By shape, the last number of tokens up to which INT4 is ahead, 0 for none, and the first at which it is
    not, or None.
    """
    found = {}
    for shape, row in gains.dropna(how="all").iterrows():
        timed = row.dropna()
        lost = min(timed.index[timed <= 1], default=None)
        before = timed.index if lost is None else timed.index[timed.index < lost]
        found[shape] = (int(max(before, default=0)), lost)
    return found


def gain_over_fp16(
    rows: Rows, shapes: list[Any], some: list[Any], gpu: str, read_roof: float, peak: float | None
) -> tuple[Rows, Rows]:
    """Draw the gain over FP16 by batch and shape, and the one that the bounds allow on the largest shape;
    times by contestant, and the gains.
    """
    title = "How many times as fast as FP16 cuBLAS, by tokens"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True)
    times = rows.pivot(index=["n", "k", "batch"], columns="who", values="median_us")
    gain = times["FP16 cuBLAS"] / times["ours"]
    for n, k in shapes:
        side = gain[n, k].dropna()
        plot.series(ax, side.index, side, label=f"{n:,} × {k:,}")
    batches = sorted(gain.index.unique("batch"))
    allowed = [allows(*shapes[-1], batch, read_roof, peak) for batch in batches]
    plot.series(ax, batches, allowed, label="ratio of bounds", colour=plot.ROOF_COLOUR)
    plot.roof_line(ax, 1, "as fast as FP16")
    ax.set_xticks(some, some)
    plot.label_ends(ax)
    least, most = gain.idxmin(), gain.idxmax()
    ends = [f"{gain[at]:.2f} at {at[0]:,} × {at[1]:,}, {counted(at[2], 'token')}" for at in (least, most)]
    said = f"{title} and shape, on {gpu}, {plot.dates(rows)}: one line for each shape, from {ends[0]}, to "
    said += f"{ends[1]}. The dark line is FP16's bound ÷ INT4's, {shapes[-1][0]:,} × {shapes[-1][1]:,}."
    plot.show(fig, said)
    return times, gain


def allows(n: int, k: int, batch: int, read_roof: float, peak: float | None) -> float:
    """The gain of INT4 over FP16 that their bounds allow."""
    least = [bound_us(n, k, batch, format, read_roof, peak) for format in ("fp16", "int4_g128")]
    return least[0] / least[1]


def gain_explained(
    gain: Rows, times: Rows, batches: list[Any], shapes: list[Any], read_roof: float, peak: float | None
) -> None:
    """Say at how many points INT4 is faster than FP16, and which part of the gain's fall the arithmetic
    explains; the bounds' gain beside each measured one, folded.
    """
    ahead = int((gain > 1).sum())
    text = f"**Ours is faster than FP16 at {ahead} of {gain.count()} points.** "
    table = gain.dropna().rename("gain").reset_index()
    points = list(table[["n", "k", "batch"]].itertuples(index=False))
    table["allowed"] = [allows(*at, read_roof, peak) for at in points]
    table["ours"] = [
        times["ours"].loc[tuple(at)] / bound_us(*at, "int4_g128", read_roof, peak) for at in points
    ]
    table["fp16"] = [
        times["FP16 cuBLAS"].loc[tuple(at)] / bound_us(*at, "fp16", read_roof, peak) for at in points
    ]
    text += _falls(table, batches)
    display.say(text.strip())
    table["shape"] = [f"{n:,} × {k:,}" for n, k in zip(table["n"], table["k"], strict=True)]
    table = table[[batch.bit_count() == 1 for batch in table["batch"]]]
    table = pd.concat([table[(table["n"] == n) & (table["k"] == k)] for n, k in shapes])
    names = {"shape": "n × k", "batch": "Tokens", "gain": "Gain", "allowed": "Ratio of bounds"}
    names |= {"fp16": "FP16 ÷ its bound", "ours": "Ours ÷ its bound"}
    forms = dict.fromkeys(("gain", "allowed", "fp16", "ours"), "{:.2f}")
    display.table(table, names, forms, "Each gain beside the ratio of the bounds", folded=True)


def _falls(table: Rows, batches: list[Any]) -> str:
    """Where the gain falls though the ratio of the bounds hardly does: up to the last number of tokens at
    which that is nearly as large as at first; or nothing.
    """
    wide = table.pivot_table(["gain", "allowed"], ["n", "k"], "batch")
    gains, allowed = wide["gain"].dropna(), wide["allowed"].dropna()
    first, last = gains.columns[0], gains.columns[-1]
    flat = [batch for batch in gains.columns if (allowed[batch] > 0.9 * allowed[first]).all()]
    if gains.empty or flat[-1] in (first, last):
        return ""
    bound, seen = allowed[flat[-1]] / allowed[first], gains[flat[-1]] / gains[first]
    if not (seen < 0.9 * bound).all():
        return ""
    return (
        f"From {first} to {counted(flat[-1], 'token')} the gain {_to(seen)}, the ratio of the bounds "
        f"{_to(bound)}: **there the bounds do not explain the fall.**"
    )


def _to(ratio: Any) -> str:
    """A change in words, from the least to the most of several shapes: "falls by 1 to 6%"."""
    low, high = sorted(round(100 * (1 - of)) for of in (ratio.min(), ratio.max()))
    if low < 0:
        return f"goes to {ratio.min():.2f} to {ratio.max():.2f} times that"
    return f"falls by {low}%" if low == high else f"falls by {low} to {high}%"


def sums_in_registers(here: Lab, drawn: Any, batches: list[int], rungs: Any) -> None:
    """Say why a block of rung 11 takes no more tokens, by its registers, and what rungs 12 and 13 do."""
    case = study.chosen(*drawn, batches[-1], here.sized)
    text = "A block of rung 11 holds the sums of all its tokens in registers"
    if case.impl == "11_tma":
        macros = study.own_rung(case)[1]
        threads = 128 * macros["ROW_GROUPS"] * macros["K_GROUPS"]
        units = -(-macros["UNITS"] // macros["ROW_GROUPS"])
        each = units * _TILES_OF * macros["TOKENS"] // 128
        most = _REGISTERS // (threads * macros["RESIDENT"])
        if 2 * each >= most:
            text += f". At {drawn[0]:,} × {drawn[1]:,} and {batches[-1]} tokens a thread can have {most} "
            text += (
                f"registers (65,536 of an SM ÷ {threads * macros['RESIDENT']} threads), of which {each} hold "
            )
            text += "sums. The sums of twice the tokens do not fit"
    text += ". "
    found = re.search(r"setmaxnreg_more<(\d+)>", rungs[11].path.read_text())
    text += "Rungs 12 and 13 take any number of tokens: they cut y into **tiles**, some rows by some tokens. "
    text += "Two warpgroups of a block multiply, a third copies"
    if found:
        text += (
            f" and hands most of its registers over: a thread that multiplies has {found[1]}, room for 128 "
        )
        text += "sums, 64 rows × 256 tokens ÷ 128 threads of a warpgroup"
    display.say(f"{text}.")
