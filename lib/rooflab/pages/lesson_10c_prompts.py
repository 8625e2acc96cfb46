"""What lesson 10c says of prompts on one GPU and on two."""

from __future__ import annotations

from typing import Any

from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.pages.lesson_10c import SHADES, prompts, tokens
from rooflab.studies import links, split
from rooflab.view import display, plot
from rooflab.words import listed


def prompt_table(rows: Rows) -> None:
    """Prompts on one GPU and on two, predicted and measured, and one prompt's bound worked out; folded."""
    found = prompts(rows)
    found["who"] = ["one GPU" if impl == links.ALONE else "two" for impl in found["impl"]]
    found["share"] = found["predicted_us"] / found["median_us"]
    text = _sum_of_a_prompt(found)
    columns = {"title": "Model", "seq": "Tokens", "who": "On", "predicted_us": "Bound (ms)"}
    columns |= {"median_us": "Median (ms)", "share": "Share of the bound", "tok_s": "Tokens a second"}
    columns |= {"gain": "Times one GPU's speed"}
    found = found.assign(predicted_us=found["predicted_us"] / 1e3, median_us=found["median_us"] / 1e3)
    forms = {"seq": "{:,.0f}", "predicted_us": "{:,.1f}", "median_us": "{:,.1f}", "share": "{:.0%}"}
    forms |= {"tok_s": "{:,.0f}", "gain": "{:.2f}"}
    shown: tuple[Any, ...] = (found, columns, forms)
    display.fold_parts(
        "Prompts on one GPU and on two, and a bound worked out", [*filter(None, [text]), shown]
    )


def _sum_of_a_prompt(found: Rows) -> str:
    """The bound of the first prompt on two GPUs, worked out; "" without one."""
    mine = found[(found["impl"] == links.NCCL) & found["predicted_us"].notna()]
    if mine.empty:
        return ""
    row = mine.iloc[0]
    shape, seq = model_shapes.get(str(row["model"])), int(row["seq"])
    size = 2 * shape.hidden * seq
    sent = links.crossing("all_reduce", links.NCCL, size, 2)
    each, sums = split.sum_us(links.NCCL, size, 2), 2 * shape.layers
    wire = sent / links.SHEET_GB_S / 1e3
    return (
        f"Worked out for {row['title']}, {seq:,} tokens: a sum's {seq:,} rows × {shape.hidden:,} numbers × 2 "
        f"bytes are {sent / 1e6:.1f} MB, which a GPU sends once and which take {wire:.1f} µs at "
        f"the datasheet's {links.SHEET_GB_S:.0f} GB/s. With {each - wire:.1f} µs for the launch and "
        f"{links.crossings('all_reduce', links.NCCL)} crossings a sum is {each:.1f} µs; {sums} sums are "
        f"{sums * each / 1e3:.1f} ms, half of the FLOPs {(row['predicted_us'] - sums * each) / 1e3:.1f} ms, "
        f"together {row['predicted_us'] / 1e3:.1f} ms."
    )


def prompts_held(rows: Rows, gpu: Any) -> None:
    """Draw the predicted and the measured gain of a second GPU for prompts, and say whether they agree."""
    found, lines = prompts(rows), []
    for (name, seq), part in found.groupby(["title", "seq"], sort=False):
        mine = part.set_index("impl")
        if not {links.ALONE, links.NCCL} <= set(mine.index):
            continue
        two, one = mine.loc[links.NCCL], mine.loc[links.ALONE]
        promised = one["predicted_us"] / two["predicted_us"]
        shape = model_shapes.get(str(two["model"]))
        sums = 2 * shape.layers * split.sum_us(links.NCCL, 2 * shape.hidden * int(seq), 2)
        over = [each["median_us"] / each["predicted_us"] for each in (one, two)]
        label = f"{name}, {int(seq):,} tokens"
        lines.append((label, promised, two["gain"], sums / two["predicted_us"], over))
    if not lines:
        return
    names, promised, gains, shares, over = (list(each) for each in zip(*lines, strict=True))
    caption = "A prompt on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.3 + 0.4 * len(names))
    plot.grouped(
        ax, names, {"predicted": promised, "measured": gains}, 2.2, ".2f", ("#CFCFCF", SHADES[links.NCCL])
    )
    of = [b / a for a, b in zip(promised, gains, strict=True)]
    display.say(
        f"**Two GPUs read a prompt {min(gains):.2f} to {max(gains):.2f} times as fast as one**; predicted "
        f"were {min(promised):.2f} to {max(promised):.2f}. A gain is {min(of):.2f} to {max(of):.2f} times "
        f"the predicted. Sums are {min(shares):.0%} to {max(shares):.0%} of the bound on two. "
        f"{_both_late(over)}"
    )
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(found)}.{_without(rows, found)}")


def _without(rows: Rows, found: Rows) -> str:
    """The models of which a token was timed and no prompt."""
    lost = [name for name in dict.fromkeys(tokens(rows)["title"]) if name not in set(found["title"])]
    return f" Prompts of {listed(lost)} were not timed." if lost else ""


def _both_late(over: list[list[float]]) -> str:
    """How far prompts are from their bounds, on one GPU and on two, and what that means for the ratio."""
    ends = [f"{min(each):.2f} to {max(each):.2f}" for each in zip(*over, strict=True)]
    text = f"One GPU takes {ends[0]} times its bound, two take {ends[1]} times theirs"
    return f"{text}."
