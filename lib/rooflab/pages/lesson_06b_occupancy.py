"""What lesson 06b says of counters and of blocks an SM."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from rooflab.analysis import attention as analysis
from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import display
from rooflab.words import listed

NEAR = 60  # percent of what a unit can do, from which on it may be what limits a rung

# What a warp may wait for between two instructions, by the counter of the stall.
_WAITS = {
    "long_scoreboard": "memory",
    "short_scoreboard": "shared memory",
    "mio_throttle": "its turn at shared memory",
    "math_pipe_throttle": "its turn at an arithmetic unit",
    "barrier": "the rest of its block",
    "wait": "the fixed latency of an instruction",
}


def counted_on_gemma(here: Lab) -> Rows:
    """The counters of every rung on the heads of Gemma, with how often everything is read again."""
    own = [c for c in study.gemma() if c.kind == "own"]
    own = [c for c in own if c in set(here.cases("attention"))]
    counted = analysis.counted(here.profile("attention", own, "ncu", study.COUNTERS), own)
    if len(counted):
        counted["again"] = counted["sm_read_bytes"] / counted["once"]
        counted = counted[~counted["options"].str.contains("=8")]
    return counted


def busy_units(here: Lab, every: Rows) -> None:
    """Say, folded, how busy the units of an SM are, by the counters of every rung."""
    counted = counted_on_gemma(here)
    if len(counted):
        parts = [
            *_busiest_by_width(counted, here.run["gpu"], every),
            *_beside_the_clock(counted, every, here),
        ]
        display.fold_parts("For reference: how busy the units are, by counters", parts, lean=True)


def _busiest_by_width(counted: Rows, gpu: str, every: Rows) -> list[Any]:
    """What limits two rungs of each width, in words, and a table of all rungs."""

    def ends(group: Rows) -> Rows:
        """Of a width's rungs the fastest, after the first that multiplies with the same instructions."""
        fastest = group["time_ns"].idxmin()
        same = group["impl"].isin(op.HOPPER) == (group.loc[fastest, "impl"] in op.HOPPER)
        return group.loc[list(dict.fromkeys([group[same].index[0], fastest]))]

    widths = dict(list(counted.groupby("head_dim")))
    fast = {width: ends(group).iloc[-1] for width, group in widths.items()}
    pairs = [tuple(row for _, row in ends(group).iloc[-2:].iterrows()) for group in widths.values()]
    verdict = f"**Verdict**: {_answer(list(fast.values()), pairs)}{_small(list(fast.values()), every)}"
    prompt = "Nsight Compute counted on SharpInference's own prompt, with the few heads of a Gemma model."
    lines = [_in_detail(width, widths[width], ends(widths[width]), every) for width in widths]
    text = "\n".join(f"- {line}" for line in lines)
    text += "\n\n*Re-read*: how many times the inputs' bytes come to the SMs, on average."
    if "for memory" in text and any(row["impl"] in op.HOPPER for row in fast.values()):
        text += "\n\n*Memory* includes copies that a warp awaits at an mbarrier."
    names_of = {"head_dim": "Width", "impl": "Rung", "again": "Re-read", "tensor_pct": "Tensor cores %"}
    names_of |= {"shared_pct": "Shared memory %", "issue_pct": "Issue slots %", "dram_pct": "DRAM %"}
    forms = {"again": "{:,.0f}"} | dict.fromkeys(analysis.UNITS, "{:.0f}")
    table = (counted, names_of | {"busiest": "Busiest"}, forms, f"On {gpu}")
    return [f"{prompt} {verdict}", text + _by_instruction(counted), table]


def _in_detail(width: Any, group: Rows, ends: Rows, every: Rows) -> str:
    """The fastest counted rung of a width beside the one before: speed, instructions, what it waits for."""
    last, text = ends.iloc[-1], f"**{width} wide**"
    if len(ends) > 1:
        before = ends.iloc[-2]
        fewer = last["inst_executed"] / before["inst_executed"]
        text += f", {last['impl']} beside {before['impl']}: "
        text += f"{display.speed(before['time_ns'] / last['time_ns'])} with {fewer:.0%} of the instructions"
    rows = _plain(every)
    rows = rows[rows["head_dim"].eq(width) & rows["kind"].eq("own") & rows["median_us"].notna()]
    best = rows.loc[rows["tflop_s"].idxmax(), "impl"] if len(rows) else last["impl"]
    text += f". {best}, faster still, is not in this profile" * (best not in set(group["impl"])) + ". "
    return text + _verdict(last) + _on_this_prompt(rows[rows["impl"] == last["impl"]], last)


def _by_instruction(counted: Rows) -> str:
    """Why shares of busy tensor cores do not compare between mma and wgmma: how long each keeps them busy for
    the same outputs, in the fastest rung of the one and the slowest of the other; or nothing.
    """
    said = []
    for width, group in counted.groupby("head_dim"):
        busy = group["tensor_pct"] * group["time_ns"]
        hopper = group["impl"].isin(op.HOPPER)
        portable = group[~hopper & _on_tensor_cores(group)]
        if portable.empty or not hopper.any():
            continue
        mma, wgmma = portable["time_ns"].idxmin(), group[hopper].index[0]
        if not busy[mma] > 1.05 * busy[wgmma]:
            continue
        said.append(
            f"{busy[mma] / busy[wgmma]:.1f} times as long at {width} wide ({group.loc[mma, 'impl']} against "
            f"{group.loc[wgmma, 'impl']})"
        )
    if not said:
        return ""
    return (
        "\n\nThe list leaves out rungs with the older instruction, mma. For the same outputs it keeps "
        f"tensor cores busy longer than wgmma does: {', '.join(said)}. So a rung with mma can be busier and "
        "yet slower, and shares of the two do not compare."
    )


def _verdict(counted: Any) -> str:
    """What limits a rung by its busiest unit."""
    busy = f"{counted['busiest']} {counted['busiest_pct']:.0f}%"
    if counted["busiest_pct"] < NEAR:
        words = f"No unit of it is near its limit (the busiest: {busy}): its warps wait"
        waits = {why: counted.get(f"stall_{name}", float("nan")) for name, why in _WAITS.items()}
        longest = max(waits, key=lambda why: waits[why] if waits[why] == waits[why] else 0.0)
        return words + (
            f". Of the waits that are counted the longest is for {longest}: {waits[longest]:.1f} cycles for "
            "each instruction of a warp."
            if waits[longest] == waits[longest]
            else "."
        )
    return f"Its limit is the busiest unit: {busy}."


def _answer(fast: list[Any], pairs: list[tuple[Any, ...]]) -> str:
    """What the counters say as a whole: whether the fastest rungs (`fast`) use tensor cores more than those
    before them (`pairs`), and what limits them, or that the counters cannot tell.
    """
    both = [pair for pair in pairs if len(pair) > 1]
    said = listed(f"{pair[-1]['tensor_pct']:.0f}% instead of {pair[0]['tensor_pct']:.0f}%" for pair in both)
    text = ""
    if both and all(pair[-1]["tensor_pct"] > pair[0]["tensor_pct"] for pair in both):
        text = f"the fastest rung keeps its tensor cores busier than the rung beside it, {said}. "
    waits = [row for row in fast if row["busiest_pct"] < NEAR]
    who = listed(dict.fromkeys(str(row["impl"]) for row in waits))
    if not waits:
        return f"{text}Each is limited by its busiest unit."
    text += f"No unit limits {who}: warps wait"
    if any(row["impl"] in op.HOPPER for row in waits):
        text += ". Whether they wait for copies or for products, these counters cannot tell: waits for a "
        return f"{text}wgmma were not recorded here."
    return f"{text}, for what the list names."


def _on_this_prompt(rows: Rows, counted: Any) -> str:
    """The rate of a rung on the prompt that was counted, beside its best at that width, or nothing."""
    same = rows["seq"].eq(counted["seq"]) & rows["heads"].eq(counted["heads"]) & rows["window"].isna()
    here = rows[same]["tflop_s"].max()
    if not here < rows["tflop_s"].max():  # not timed on it, or nowhere faster
        return ""
    best = rows.loc[rows["tflop_s"].idxmax()]
    return (
        f" A longer prompt helps: {here:,.0f} TFLOP/s here, {best['tflop_s']:,.0f} with "
        f"{best['seq']:,} tokens."
        if best["seq"] > counted["seq"]
        else ""
    )


def _small(fast: list[Any], every: Rows) -> str:
    """That the counted prompts are small, by the counted rung that does most more on another; or nothing."""
    most, text = 1.1, ""
    for counted in fast:
        mine = every[every["impl"].eq(counted["impl"]) & every["head_dim"].eq(counted["head_dim"])]
        seen = 0.0 if pd.isna(counted["window"]) else counted["window"]
        window = mine["window"].fillna(0).eq(seen)
        same = mine[mine["seq"].eq(counted["seq"]) & mine["heads"].eq(counted["heads"]) & window]
        here, best = same["tflop_s"].max(), mine["tflop_s"].max()
        if best > most * here:
            most = best / here
            text = (
                f" The counted prompt is small: {counted['impl']}, {counted['head_dim']:.0f} wide, does "
                f"{here:,.0f} TFLOP/s on it and {best:,.0f} on its best. So part of what is not busy is the "
                "prompt, and these counters say little of longer ones."
            )
    return text


def _plain(every: Rows) -> Rows:
    """The rows of the headline's heads: all of study.HEADS, no window, nothing else asked for."""
    plain = every["options"].fillna("").isin(["", "queries=16"]) & every["heads"].eq(study.HEADS)
    return every[plain & every["window"].isna()]


def _common_shape(every: Rows, width: int) -> Rows:
    """Our rows at a width of the one prompt that most rungs are recorded on; of several the longest."""
    rows = every[every["head_dim"].eq(width) & every["kind"].eq("own") & every["format"].eq("fp16")]
    rows = rows[rows["options"].fillna("").isin(["", "queries=16"])].fillna({"window": 0})
    if rows.empty:
        return rows
    keys = ["seq", "heads", "window"]
    most = rows.groupby(keys)["impl"].nunique().reset_index().sort_values(["impl", "seq"]).iloc[-1]
    found = rows[(rows[keys] == most[keys]).all(axis=1)]
    return found.assign(window=found["window"].where(found["window"] > 0))


def _in_full(rows: Rows) -> str:
    """The prompt of some rows in words, its heads spelled out."""
    row = rows.iloc[0]
    text = f"{row['seq']:,} tokens, {row['heads']} heads of queries, {row['kv_heads']} of keys"
    return text + ("" if pd.isna(row["window"]) else f", window {row['window']:.0f}")


def _other_prompt(every: Rows, shape: Rows) -> str:
    """That a shape is not the first chart's, and why it is taken; or nothing."""
    own = _plain(every)
    own = own[own["kind"].eq("own") & own["format"].eq("fp16") & own["head_dim"].eq(shape["head_dim"].max())]
    counts = own.groupby("seq")["impl"].nunique()
    if shape.empty or (counts.size and shape["heads"].iloc[0] == study.HEADS):
        return ""
    most, here = int(counts.max()) if counts.size else 0, shape["impl"].nunique()
    text = "This prompt is not the first chart's"
    return text + (
        f": {here} rungs of this width are recorded on it, {most} on that." if here > most else "."
    )


def _prompt(rows: Rows) -> str:
    """The prompt of some rows in words."""
    row = rows.iloc[0]
    window = "" if pd.isna(row["window"]) else f", window {row['window']:.0f}"
    return f"{row['seq']:,} tokens, {row['heads']}/{row['kv_heads']} heads{window}"


def _beside_the_clock(counted: Rows, every: Rows, here: Lab) -> list[Any]:
    """How the counters' shares of tensor cores go with the rates of the chart of lengths: that has other
    heads, and another meaning of 100%.
    """
    said = []
    for width, group in counted.groupby("head_dim"):
        last = group.loc[group["time_ns"].idxmin()]
        rows = every[
            every["impl"].eq(last["impl"]) & every["head_dim"].eq(width) & every["seq"].eq(last["seq"])
        ]
        rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").isin(["", last["options"]])]
        few = rows[rows["heads"].eq(last["heads"])].dropna(subset=["roof_fraction"])
        many = _plain(rows).dropna(subset=["roof_fraction"])
        if few.empty or many.empty:
            continue
        row, other = few.iloc[0], many.iloc[0]
        for part, of, busy in ((few, row, f"{last['tensor_pct']:.0f}%"), (many, other, "")):
            rate = f"{of['tflop_s']:,.0f}"
            said.append((last["impl"], width, _prompt(part), rate, f"{of['roof_fraction']:.0%}", busy))
    if not said:
        return []
    heads = ("Rung", "Width", "Prompt", "TFLOP/s", "Of the roof", "Tensor cores counted busy")
    caption = "The counted prompt, and one of that length with the heads of the chart of lengths"
    table = pd.DataFrame(said, columns=list(heads))
    text = "These shares are not those of the chart of lengths, which has more heads. And 100% is "
    text += "another thing: for the counter, tensor cores that multiply in every cycle"
    recorded = here.roof.get("fp16_tensor")
    if here.spec and recorded:
        text += (
            f", which the datasheet puts at {here.spec.fp16_tensor:,.0f} TFLOP/s; for the chart, the roof "
        )
        text += f"that a library reached, {recorded.value:,.0f}"
    text += ". Last, masked products are work to the counter and none in a rate."
    columns = dict(zip(heads, heads, strict=True))
    return [text, (table, columns, {}, caption)]


def _budget(every: Rows, width: int) -> tuple[Rows, str]:
    """What a block of each rung takes at a width, or at the widest that is recorded, and on which prompt."""
    own = every[every["kind"].eq("own") & every["format"].eq("fp16")]
    width = width if own["head_dim"].eq(width).any() else int(own["head_dim"].max())
    shape = _common_shape(every, width)
    budget = analysis.budgets(shape if len(shape) else every, (width,))
    return budget, f"{width} wide" + (f", {_in_full(shape)}" if len(shape) else "")


def same_occupancy(every: Rows, width: int) -> str:
    """Two rungs of one occupancy that differ most in rate, and on which prompt, in words; or nothing."""
    budget, prompt = _budget(every, width)
    pair = _same_occupancy(budget)
    if not pair:
        return ""
    slow, fast = pair
    text = f"at the same occupancy, {_share(slow['occupancy'])}, {slow['impl']} has "
    return f"{text}{slow['tflop_s']:,.0f} TFLOP/s and {fast['impl']} {fast['tflop_s']:,.0f} ({prompt})"


def worth_of_the_same(every: Rows, width: int) -> str:
    """How far the rates of these two rungs are apart, in words, or nothing."""
    pair = _same_occupancy(_budget(every, width)[0])
    if not pair:
        return ""
    slow, fast = (each["impl"].partition("_")[0] for each in pair)
    ratio, shape = pair[1]["tflop_s"] / pair[0]["tflop_s"], _common_shape(every, width)
    text = f"rungs {slow} and {fast} have the same, and rung {fast} has {ratio:.2f} times the speed"
    return text + (f", with {shape['seq'].iloc[0]:,} tokens" if len(shape) else "")


def blocks_an_sm(every: Rows, width: int, gpu: str) -> None:
    """Say what occupancy is worth at a width; what a block of every rung takes there, folded."""
    budget, prompt = _budget(every, width)
    budget["kib"] = budget["shared"] / 1024
    said, pair = [], same_occupancy(every, width)
    other = _other_prompt(every, _common_shape(every, width))
    if budget.loc[budget["tflop_s"].idxmax(), "occupancy"] < budget["occupancy"].max():
        said.append(
            "**Occupancy is not the goal.** It is one way to have work while some warps wait; asynchronous "
            "products and copies are another."
        )
    if pair:
        said.append(f"On the {gpu}, {pair}.")
    if other:
        said.append(other)
    if said:
        display.say(" ".join(said))
    names = {"impl": "Rung", "threads": "Threads", "registers": "Registers a thread"}
    names |= {"kib": "Shared memory (KiB)", "blocks": "Blocks an SM", "occupancy": "Occupancy"}
    names |= {"limit": "Tightest limit", "tflop_s": "TFLOP/s"}
    forms = {"kib": "{:.0f}", "occupancy": "{:.1%}", "tflop_s": "{:,.0f}"}
    parts = [*_registers_moved(list(budget["impl"])), (budget, names, forms, prompt)]
    display.fold_parts("What a block of every rung takes", parts, lean=True)


def _share(occupancy: float) -> str:
    """An occupancy in percent: whole, or with a digit where it is not."""
    return f"{round(100 * occupancy, 1):g}%"


def _registers_moved(names: list[str]) -> list[str]:
    """What setmaxnreg changes in the registers of a launch, by the sources of the rungs of some names."""
    found = {rung.name: rung.path.read_text(encoding="utf-8") for rung in op.LADDERS["attention"]}
    moved = {name: text for name, text in found.items() if name in names and "setmaxnreg" in text}
    for name, text in moved.items():
        fewer, more = (re.search(rf"setmaxnreg_{way}<(\d+)>", text) for way in ("fewer", "more"))
        if fewer and more:
            return [
                "Registers a thread are those at launch, the same for all warps. Rungs "
                f"{listed(each.partition('_')[0] for each in moved)} then move some between warpgroups "
                f"(`setmaxnreg`): {name.partition('_')[0]} from {fewer[1]} in some to {more[1]} in others."
            ]
    return []


def _on_tensor_cores(rows: Rows) -> pd.Series:
    """Which rungs multiply on tensor cores: those from 4 on."""
    return rows["impl"].str.partition("_")[0].astype(int) >= 4


def _same_occupancy(budget: Rows) -> tuple[Any, Any] | None:
    """Two rungs on tensor cores of one width and occupancy that differ most in rate, neither with the bank
    conflicts of rung 4, which are a reason of their own.
    """
    modern = budget[_on_tensor_cores(budget) & (budget["impl"] != "4_mma")].assign(
        share=lambda rows: (100 * rows["occupancy"]).round()
    )
    found = []
    for _, rows in modern.dropna(subset=["tflop_s"]).groupby(["head_dim", "share"]):
        slow, fast = (rows.loc[at] for at in (rows["tflop_s"].idxmin(), rows["tflop_s"].idxmax()))
        if fast["tflop_s"] > slow["tflop_s"]:
            found.append((slow, fast))
    return max(found, key=lambda pair: pair[1]["tflop_s"] / pair[0]["tflop_s"], default=None)
