"""What lesson 06d's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

import math
from itertools import cycle
from typing import Any

import pandas as pd

from rooflab.analysis import attention as analysis
from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.ops import SHARED_KIB, attention_tiles
from rooflab.ops import attention as op
from rooflab.pages import BY_DATASHEET, Opening, Rows, named_facts, spread
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.words import counted, listed, times

_WITH_IT = {"4_cp_async": "; the factor includes copies of 16 bytes a lane, for loads of 2"}
_COLOURS = [plot.COLOURS[k] for k in (0, 1, 2, 5, 6)]  # whose labels can be told apart


def opening(here: Lab, cases: list[Any]) -> Opening:
    """The first screen: the ladder for one query against a cache."""
    rows = here.measure("attention", here.held("attention", cases) or cases)
    own, gpu = rows[rows["kind"] == "own"], here.run["gpu"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    answer = "No: one query uses each byte of the cache once or a few times, so it is memory-bound. "
    answer += f"{best['impl']} reads at {best['roof_fraction']:.0%} of the {gpu}'s read roof, "
    answer += (
        f"{times(first['median_us'] / best['median_us'])} times the speed of {first['impl']}, which gives a "
    )
    answer += "head to one block."
    able = (
        "split a context over blocks and merge their softmaxes",
        "read a grouped head's cache once for all of its queries",
        "keep a captured graph valid while the cache grows",
    )
    roof = ("read", here.roof["dram_read"].value, "GB/s")
    return answer, able, page.ladder(rows, gpu, roof, f"One query, {best['seq']:,} tokens in the cache")


def run_facts(gpu: str, here: Lab, context: int, read_roof: float, sms: int) -> None:
    """The facts of the run, in one line."""
    more = {
        "Heads": f"{study.HEADS} of queries, {study.KV_HEADS} of keys and values, 128 wide",
        "Context": f"{context} tokens",
        "Read roof": f"{read_roof:,.0f} GB/s",
        "SMs": sms,
    }
    named_facts(here, gpu, "attention", more)


def least_times(read_roof: float) -> None:
    """Show bytes, operations a byte and the least time of one query, by context."""
    found = []
    for context in study.CONTEXTS:
        moved = roofline.attention_bytes(1, context, study.HEADS, study.KV_HEADS, 128)
        flops = roofline.attention_flops(context, study.HEADS, 128)
        found.append([context, moved / 1e6, flops / moved, moved / read_roof / 1e3])
    names = {
        "context": "Context",
        "mb": "MB",
        "ratio": "Operations a byte",
        "us": "No faster than (µs)",
    }
    found = pd.DataFrame(found, columns=list(names))
    forms = {"mb": "{:,.1f}", "ratio": "{:.1f}", "us": "{:,.1f}"}
    display.table(found, names, forms, f"At the measured read roof, {read_roof:,.0f} GB/s")


def ring_drawn(here: Lab) -> diagram.Drawing:
    """A warp's ring in rung 4, with as many slots as it has on a lab's device, or on the H200's kind."""
    return diagram.ring_of_a_warp(_built_for(here))


def _built_for(here: Lab) -> str:
    """A lab's architecture, or the H200's where its limits are not known."""
    known = here.spec.sm if here.spec else ""
    return known if known in SHARED_KIB else "90"


def ring_built(here: Lab) -> dict[str, int]:
    """Say how many slots a warp's ring has as rung 4 is built for a lab's device; its macros that are not as
    the source has them.
    """
    rung = next(each for each in op.LADDERS["decode_attention"] if each.name == "4_cp_async")
    group = study.HEADS // study.KV_HEADS
    macros = attention_tiles.decode_tile_of(rung, group, 128, _built_for(here))
    slots = macros["STAGES"]
    display.say(
        f"As built here, `WARPS` = {macros.get('WARPS', rung.defines['WARPS'])} of a block's warps read keys "
        f"and values; the others help to add parts up. With `STAGES` = {slots} a ring has "
        f"{counted(slots, 'slot')}: {counted(slots - 1, 'tile')} on the way while its warp works on another."
    )
    return {"BF16": 0, "STAGES": slots}


def ladder_times(here: Lab, cases: list[Any]) -> Rows:
    """Show every contestant's error, prediction, time and share of the read roof; the rows."""
    rows = here.measure("attention", here.held("attention", cases) or cases)
    spread(rows)
    names = {
        "impl": "Rung or peer",
        "gate": "Error (allowed)",
        "predicted_us": "By datasheet (µs)",
    }
    names |= {
        "median_us": "Median (µs)",
        "quartiles": "Quartiles (µs)",
        "roof_fraction": "Of the read roof",
    }
    forms = dict.fromkeys(("predicted_us", "median_us"), "{:,.1f}") | {"roof_fraction": "{:.0%}"}
    display.table(rows, names, forms, BY_DATASHEET, folded=True)
    return rows


def rates_by_context(here: Lab, read_roof: float, gpu: str) -> None:
    """Draw GB/s of every contestant by the tokens in the cache."""
    same = [c for c in here.cases("attention") if c.operator == "decode_attention"]
    same = [c for c in same if c.heads == study.HEADS]
    same = here.measure("attention", same)
    title = "One query against a cache"
    fig, ax = plot.figure("tokens in the cache", "GB/s", title, xlog=True)
    own = list(dict.fromkeys(same[same["kind"] == "own"]["impl"]))
    colours = dict(zip(own, cycle(_COLOURS), strict=False))  # peers are grey
    for impl, group in same.groupby("impl", sort=False):
        colour = colours.get(str(impl), plot.PEER_COLOUR)
        plot.series(ax, group["seq"], *plot.band(group), label=impl, colour=colour)
    plot.roof_line(ax, read_roof, f"DRAM read {read_roof:,.0f} GB/s")
    ax.set_xticks(sorted(same["seq"].unique()), sorted(same["seq"].unique()))
    plot.label_ends(ax)
    wide = same[same["kind"] == "own"].pivot_table(index="seq", columns="impl", values="median_us")
    apart = (wide.max(axis=1) / wide.min(axis=1)).dropna()
    ends = [f"{apart[seq]:,.0f} times at {seq:,} tokens" for seq in (apart.index.min(), apart.index.max())]
    plot.show(
        fig,
        f"{title} on {gpu}. From the slowest rung to the fastest: {listed(dict.fromkeys(ends))}. "
        f"Dashed: DRAM read {read_roof:,.0f} GB/s.",
    )
    display.say(_beside_the_bound(same, read_roof))


def _beside_the_bound(same: Rows, read_roof: float) -> str:
    """How the fastest rung's time at each context compares with the least by its bytes, and what it has
    beyond that.
    """
    own = same[same["kind"] == "own"].dropna(subset=["bytes"])
    best = own.loc[own.groupby("seq")["median_us"].idxmin()]
    if len(best) < 2:
        return ""
    least = best["bytes"] / read_roof / 1e3
    said = [
        f"{times(us / bound)} times the bound at {seq:,} tokens ({bound:.1f} → {us:.1f} µs)"
        for seq, us, bound in zip(best["seq"], best["median_us"], least, strict=True)
    ]
    text = f"**Verdict** on the bound: the fastest rung takes {listed(said)}. "
    beyond = best["median_us"] - least
    if beyond.iloc[0] > best["median_us"].iloc[0] / 2 and beyond.max() < 2 * beyond.min():
        longer = best["seq"].iloc[-1] // best["seq"].iloc[0]
        text += f"Beyond its bound it takes {beyond.iloc[0]:.1f} µs at {best['seq'].iloc[0]:,} tokens and "
        text += f"{beyond.iloc[-1]:.1f} at {longer} times as many. This, and not DRAM, decides a short "
        text += "context's time. What it is made of was not measured: blocks that start, the first loads' "
        text += "latency and merging may be in it."
    return text


def steps_compared(rows: Rows) -> Rows:
    """Say what each rung brings and where the best stands beside torch's fastest; our rows by rung."""
    by = rows.set_index("impl")
    own = by[by["kind"] == "own"]
    steps = zip(own.index, own.index[1:], strict=False)
    text = f"With {int(rows['seq'].iloc[0]):,} tokens in the cache:\n\n"
    text += "".join(
        f"- {new} {display.against(own.loc[new], own.loc[old])} {old}{_WITH_IT.get(new, '')}.\n"
        for old, new in steps
    )
    best = own.sort_values("median_us").iloc[0]
    peers = by[by["kind"] == "peer"].sort_values("median_us")
    if len(peers):
        text += f"- Against torch's fastest, the fastest peer recorded: {best.name} "
        text += f"{display.against(best, peers.iloc[0])} "
        text += f"{peers.index[0]}.\n"
    if "flash_attn_4" in by.index and len(peers):
        prompt, peer = by.loc["flash_attn_4"], peers.iloc[0]
        if prompt["median_us"] > 2 * peer["median_us"]:
            text += (
                f"- flash_attn_4 reaches {prompt['gb_s']:,.0f} GB/s: lesson 06's peer on prompts, run here "
            )
            text += "on one query. Libraries' kernels for decoding, such as FlashInfer and FlashAttention's "
            text += "`flash_attn_with_kvcache`, are not recorded.\n"
    display.say(text)
    return own


def blocks_and_memory(cases: list[Any], here: Lab, gpu: str, sms: int) -> None:
    """Show blocks, loads, instructions and how busy DRAM is, and say which of them each rung changes."""
    mine = [c for c in cases if c.kind == "own"]
    profile = here.profile("attention", here.held("attention", mine, "ncu"), "ncu", study.COUNTERS)
    counted = analysis.counted(profile, mine)
    if counted.empty:
        return
    counted["again"] = counted["sm_read_bytes"] / counted["once"]
    counted["blocks"] = [math.prod(map(int, grid.split("x"))) for grid in profile["grid"]]
    counted["idle"] = [max(0, sms - count) for count in counted["blocks"]]
    counted["million"] = counted["inst_executed"].astype(float) / 1e6
    names = {"impl": "Rung", "blocks": "Blocks", "idle": "SMs without one", "again": "Times read from L2"}
    names |= {"million": "Instructions (million)", "stall_long_scoreboard": "Waiting for memory"}
    names |= {"dram_pct": "DRAM busy %"}
    forms = {"again": "{:.2f}", "dram_pct": "{:.0f}", "million": "{:.1f}", "stall_long_scoreboard": "{:.1f}"}
    display.table(counted, names, forms, f"On {gpu}")
    parts = [(name, int(count)) for name, count in zip(counted["impl"], counted["blocks"], strict=True)]
    diagram.dealt(parts, sms, "Which SM has a block").show()
    display.say(_changed_by_rung(counted, sms))


# A counter that a rung may change: column, words, format, and whether more of it costs time.
_MOVED = (
    ("idle", "SMs without a block", ",.0f"),
    ("again", "times each byte is read from L2", ".2f"),
    ("million", "instructions in millions", ",.0f"),
    ("stall_long_scoreboard", "cycles of waiting for memory", ".1f"),
)


def _changed_by_rung(counted: Rows, sms: int) -> str:
    """Which counters each rung lowers by more than a fifth, and what becomes of DRAM's busy time, folded; in
    the open what the table does not say.
    """
    first = counted.iloc[0]
    text = f"- {first['impl']}: {first['idle']} of {sms} SMs have no block; DRAM is busy "
    text += f"{first['dram_pct']:.0f}% of the time.\n"
    rows = [row for _, row in counted.iterrows()]
    for before, row in zip(rows, rows[1:], strict=False):
        fewer = [
            f"{words} {before[name]:{form}} → {row[name]:{form}}"
            for name, words, form in _MOVED
            if row[name] < 0.8 * before[name]
        ]
        more = [
            f"{words} {before[name]:{form}} → {row[name]:{form}}"
            for name, words, form in _MOVED
            if row[name] > 1.25 * before[name] and row[name] > 0.5
        ]
        text += f"- {row['impl']} lowers: {'; '.join(fewer) or 'none of these counters'}"
        text += f". It raises: {'; '.join(more)}" if more else ""
        text += f". DRAM busy {before['dram_pct']:.0f}% → {row['dram_pct']:.0f}%.\n"
    text = f"<details><summary>What each rung changes, counter by counter</summary>\n\n{text}\n</details>\n"
    split = rows[1] if len(rows) > 1 else first
    busy = [sms - int(row["idle"]) for row in (first, split)]
    if split["blocks"] > 1.5 * first["blocks"]:
        text += f"\n{split['impl']} has {split['blocks']} blocks instead of {first['blocks']}, "
        text += (
            f"{split['blocks'] / first['blocks']:.0f} times as many: {busy[1] / busy[0]:.1f} times the SMs"
        )
        text += f", {split['blocks'] / sms:.1f} on each" if split["blocks"] > sms else ""
        text += f". It is {times(first['time_ns'] / split['time_ns'])} times as fast. "
    last = counted.loc[counted["time_ns"].idxmin()]
    if last["idle"] and last["dram_pct"] > 3 * split["dram_pct"]:
        text += f"From there on more blocks are not what helps: the fastest, {last['impl']}, leaves "
        text += f"{last['idle']} SMs without one. "
    again = counted[(counted["again"] > 1.25) & (counted["again"] < 2)]
    if len(again) and abs(again.iloc[0]["dram_bytes"] / again.iloc[0]["once"] - 1) < 0.1:
        one = again.iloc[0]
        text += f"The {one['again']:.2f} of {one['impl']} is between L2 and the SMs; from DRAM it reads "
        text += f"{one['dram_bytes'] / one['once']:.2f} times the keys and values."
    return text.rstrip()


def replay_errors(here: Lab, gpu: str) -> None:
    """Show the largest error of one captured launch, replayed at other lengths."""
    asked = [c for c in asks.cases(here.sized) if c.operator == "replay"]
    replay = analysis.answers(here.profile("attention", asked, "checks"), asked)
    names = {"impl": "Rung"} | {f"error {n}": f"{n:,}" for n in asks.REPLAYED}
    names |= {"other bits": "Other bits"}
    forms = dict.fromkeys(names, "{:.1e}") | {"impl": "{}", "other bits": "{:.0f}"}
    if len(replay):
        errors = replay[[f"error {n}" for n in asks.REPLAYED]]
        bits = int(replay["other bits"].sum())
        text = (
            f"{len(replay)} rungs at {len(asks.REPLAYED)} lengths, {listed(f'{n:,}' for n in asks.REPLAYED)} "
        )
        text += (
            f"tokens: the largest error is {1e3 * errors.max(axis=None):.1f} ‰ of a head's largest output; "
        )
        text += f"other bits: {bits if bits else 'none'}."
        display.say(text)
        title = "Largest error of a replay, by tokens in the cache"
        display.table(replay, names, forms, title, folded=True)
    else:
        display.say(f"No replay was checked on {gpu}.")


def _headline_beaten(shaped: Rows, best: str) -> None:
    """Say on which of these shapes the ladder's fastest rung is beaten by another of ours, and by how
    much.
    """
    mine = shaped[shaped["kind"] == "own"].pivot_table(index="impl", columns="shape", values="median_us")
    if best not in mine.index:
        return
    over = (mine.loc[best] / mine.min()).dropna()
    lost = over[over > crossover.LEVEL]
    if len(lost):
        who = listed(dict.fromkeys(mine[shape].idxmin() for shape in lost.index))
        low, high = (f"{100 * (edge - 1):.0f}%" for edge in (lost.min(), lost.max()))
        span = low if low == high else f"{low} to {high}"
        without = len(mine.columns) - len(over)
        display.say(
            f"The headline's {best} is not the fastest here: on {len(lost)} of the {len(over)} shapes that "
            "it "
            f"runs on it takes {span} more time than {who}."
            + (f" It has no version for {without} other." if without else "")
        )


def times_by_shape(here: Lab, gpu: str, best: str) -> None:
    """Show every contestant's time on other models' heads, and say who is fastest on which, and where `best`,
    the ladder's fastest rung, is beaten.
    """
    shaped = [c for c in here.cases("attention") if c.operator == "decode_attention"]
    shaped = [c for c in shaped if c.heads != study.HEADS]
    if shaped:
        shaped = here.measure("attention", shaped)
        shaped["shape"] = [
            f"{h}/{k}, {d} wide" + (f", window {int(w)}" if w else "")
            for h, k, d, w in zip(
                *(shaped[c].fillna(0) for c in ("heads", "kv_heads", "head_dim", "window")),
                strict=True,
            )
        ]
        wide = shaped.pivot_table(index="impl", columns="shape", values="median_us").reset_index()
        names = {"impl": "Rung or peer"} | {c: c for c in wide.columns[1:]}
        forms = dict.fromkeys(wide.columns[1:], "{:.2f}")
        caption = f"µs by heads and width, {shaped['seq'].iloc[0]:,} tokens in the cache, on {gpu}"
        display.table(wide, names, forms, caption)
        fastest = shaped.loc[shaped.groupby("shape")["median_us"].idxmin()]
        pairs = zip(fastest["shape"], fastest["impl"], strict=True)
        display.say(
            "Fastest: "
            + "; ".join(f"{shape}: {impl}" for shape, impl in pairs)
            + ". An empty cell: does not run."
        )
        _headline_beaten(shaped, best)


def whole_prompt(here: Lab, read_roof: float, gpu: str) -> Rows:
    """Show, folded, attention's share of a prompt as the source published it and by our rungs, by model and
    length; the latter's rows.
    """
    source = analysis.source_share()
    names = {"kernel": "Its kernel", "attention_ms": "Attention (ms)", "prefill_ms": "Prefill (ms)"}
    names |= {"share": "Share"}
    forms = dict.fromkeys(("attention_ms", "prefill_ms"), "{:,.0f}") | {"share": "{:.0%}"}
    text = (
        "The source profiled a prompt of 1848 tokens and found two thirds of its time in attention. Its own "
    )
    text += "figures, on its card, as it replaced one kernel by the next. "
    text += f"Its words say {analysis.SHARE:.0%}; its times below give {source['share'].iloc[0]:.0%} for its "
    text += "first kernel."
    parts: list[Any] = [text, (source, names, forms, "Published, Gemma 4 E4B, 1848 tokens")]
    prompts = [c for c in here.cases("attention") if c in set(study.prompts())]
    lengths, roof = sorted({c.seq for c in prompts}), here.roof["fp16_tensor"].value
    whole = analysis.prompts(here.measure("attention", prompts), lengths, read_roof, roof)
    names = {"model": "Model", "seq": "Tokens", "before_ms": "Before (ms)", "after_ms": "After (ms)"}
    names |= {"matrices_ms": "Matrices (ms)", "share_before": "Share before", "share_after": "Share after"}
    forms = dict.fromkeys(("before_ms", "after_ms", "matrices_ms"), "{:,.1f}")
    forms |= dict.fromkeys(("share_before", "share_after"), "{:.0%}")
    text = "For two models, *before* is rung 1 of lesson 06 in every layer, *after* the fastest rung for "
    text += "each. The "
    text += "weight matrices are not run. They are charged with their least time, bytes or operations at the "
    text += "recorded roofs, as if cuBLAS were perfect. So the shares of attention are upper bounds; "
    text += "[lesson 08b](08b_prefill.ipynb) runs the whole."
    parts += [text, (whole, names, forms, f"Attention of a prompt on {gpu}"), _shares_said(whole)]
    gemma = whole[(whole["model"] == "gemma-4-e4b") & (whole["seq"] == 1848)]
    if len(gemma):
        g = gemma.iloc[0]
        display.say(
            f"On a prompt of 1,848 tokens of Gemma 4 E4B attention takes {g['before_ms']:,.1f} ms with "
            f"lesson 06's rung 1 and {g['after_ms']:,.1f} ms with the fastest rungs. The weight matrices "
            f"need at least {g['matrices_ms']:,.1f} ms more, so its share is at most "
            f"{g['share_before']:.0%} and {g['share_after']:.0%}."
        )
    display.fold_parts("What share of a prompt's time is attention?", parts)
    return whole


def _shares_said(whole: Rows) -> str:
    """Between which shares attention lies, by model, and what was scaled."""
    text = ""
    for model, group in whole.groupby("model", sort=False):
        first, last = group.iloc[0], group.iloc[-1]
        text += f"- {model}: with rung 1 from {first['share_before']:.0%} at {first['seq']} tokens to "
        text += f"{last['share_before']:.0%} at {last['seq']}; with {last['rungs']} "
        text += f"between {group['share_after'].min():.0%} and {group['share_after'].max():.0%}.\n"
    slow = whole[whole["scaled"]]
    if len(slow):
        long = ", ".join(str(s) for s in sorted(set(slow["seq"])))
        text += f"\nRung 1 was not run at {long} tokens; its rate at {study.SLOW} is used instead. "
    return text + "\nA share is of one length and one kernel, and no property of the model."


def takeaway(own: Rows, whole: Rows, gpu: str) -> None:
    """What to take away, computed."""
    best = own.sort_values("median_us").iloc[0]
    gemma = whole[(whole["model"] == "gemma-4-e4b") & (whole["seq"] == 1848)]
    text = (
        f"- One query is a GEMV over the cache: {own['median_us'].idxmin()} reads {best['gb_s']:,.0f} GB/s, "
    )
    text += f"{best['roof_fraction']:.0%} of the read roof of the {gpu}.\n"
    text += (
        "- Cut the context, so that nearly every SM reads; read once for all heads that share; "
        "copy while you "
    )
    text += "multiply.\n"
    text += "- What changes from token to token belongs in memory, not in the launch.\n"
    if len(gemma):
        g = gemma.iloc[0]
        text += f"- On the source's prompt, on the {gpu}, attention takes at most {g['share_before']:.0%} of "
        text += f"the time with rung 1 and {g['share_after']:.0%} with the fastest rungs, by our bound."
        moved = g["share_after"] < 0.5 < g["share_before"]
        text += " The bottleneck has moved; measure again." if moved else ""
    display.say(text)


def explore(here: Lab, gpu: str) -> Any:
    """The explorer of one query against a cache, by contestant, heads and width."""
    cases = [c for c in here.cases("attention") if c.operator == "decode_attention"]
    return explorer.Explorer(
        "decode",
        here.measure("attention", cases),
        x="seq",
        y="gb_s",
        controls={"impl": "Contestant", "heads": "Heads", "head_dim": "Width"},
        roof=here.roof,
        title=f"Decode attention on {gpu}",
        measure=explorer.measurer(here),
    )
