"""What lesson 06b's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pandas as pd

from rooflab.analysis import states
from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Opening, Rows, bars, facts
from rooflab.pages.lesson_06b_occupancy import NEAR as NEAR
from rooflab.pages.lesson_06b_occupancy import blocks_an_sm as blocks_an_sm
from rooflab.pages.lesson_06b_occupancy import busy_units as busy_units
from rooflab.pages.lesson_06b_occupancy import worth_of_the_same
from rooflab.pages.lesson_06b_pace import changed_copies as changed_copies
from rooflab.pages.lesson_06b_pace import drawing_tested as drawing_tested
from rooflab.pages.lesson_06b_pace import gain_of_copies as gain_of_copies
from rooflab.pages.lesson_06b_pace import one_thread_copies as one_thread_copies
from rooflab.pages.lesson_06b_pace import pace_of_roles as pace_of_roles
from rooflab.pages.lesson_06b_pace import pace_of_the_drawing as pace_of_the_drawing
from rooflab.pages.lesson_06b_pace import pair_at_work as pair_at_work
from rooflab.pages.lesson_06b_pace import places_kept as places_kept
from rooflab.pages.lesson_06b_pace import queries_kept as queries_kept
from rooflab.pages.lesson_06b_pace import ring_at_work as ring_at_work
from rooflab.pages.lesson_06b_pace import roles_at_work as roles_at_work
from rooflab.pages.lesson_06b_pace import roles_in_detail as roles_in_detail
from rooflab.pages.lesson_06b_pace import roles_tested as roles_tested
from rooflab.pages.lesson_06b_pace import tiles_swizzled as tiles_swizzled
from rooflab.pages.lesson_06b_peers import above_the_roof as above_the_roof
from rooflab.pages.lesson_06b_peers import again, again_in_short, peers_words, undecided
from rooflab.pages.lesson_06b_rungs import SMALL, largest_step, page_order, without_bars
from rooflab.pages.lesson_06b_rungs import a_warp_ahead as a_warp_ahead
from rooflab.pages.lesson_06b_rungs import rungs_of_the_page as rungs_of_the_page
from rooflab.pages.lesson_06b_rungs import small_steps as small_steps
from rooflab.pages.lesson_06b_rungs import worth as worth
from rooflab.pages.lesson_06b_rungs import worth_everywhere as worth_everywhere
from rooflab.pages.lesson_06b_rungs import worth_of_slices as worth_of_slices
from rooflab.studies import attention as study
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.view.diagram import columns, roles
from rooflab.words import listed

_IN_WORDS = {2: "two", 3: "three", 4: "four", 8: "eight"}


def opening(here: Lab, every: Rows, width: int) -> Opening:
    """The first screen: every rung and the fastest peer at the wide head."""
    same = every[every["head_dim"].eq(width) & every["heads"].eq(study.HEADS) & every["window"].isna()]
    same = same[same["format"].eq("fp16") & same["options"].fillna("").isin(["", "queries=16"])]
    ours = same[same["kind"] == "own"]
    if ours.empty:  # a chip without a rung for heads so wide, or none recorded
        return _narrower(every, width, here.run["gpu"])
    seq = int(ours.groupby("seq")["impl"].nunique().sort_values(kind="stable").index[-1])
    rows = same[same["seq"] == seq]
    own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"].sort_values("median_us")
    best, gpu = own.sort_values("median_us").iloc[0], here.run["gpu"]
    answer = f"{_who_holds(best['impl'], width)} reaches {best['tflop_s']:,.0f} TFLOP/s on the {gpu}"
    if "fp16_tensor" in here.roof:
        answer += f", {best['roof_fraction']:.0%} of the tensor cores' roof, cuBLAS's best FP16 product"
    if here.spec:
        answer += f" ({best['tflop_s'] / here.spec.fp16_tensor:.0%} of the datasheet's peak)"
    if len(peers):
        answer += f". It {peers_words(here, best, peers.iloc[0], others=False).removeprefix('it ')}"
        more = again(here, best, peers.iloc[0])
        answer += f". {more}" if more else ""
    able = (
        "count the registers that decide how a wide head is split",
        "follow a ring of tiles between a producer and its consumers (warp specialisation)",
        "say why occupancy is a means and not a goal",
    )
    heads = f"{study.HEADS} heads of queries, {study.KV_HEADS} of keys"
    title, recorded = f"{width} wide, {seq:,} tokens, {heads}", here.roof.get("fp16_tensor")
    if recorded:
        roof = ("FP16 matrix", recorded.value, "TFLOP/s")
        figure, caption = page.ladder(rows, gpu, roof, title, y="tflop_s", order=page_order())
    else:
        figure, caption = bars(rows, list(rows["impl"]), gpu, title, y="tflop_s")
    told = " Black lines: the middle half of the samples." + " A peer is a library." * bool(len(peers))
    told += without_bars(width)
    return answer + ".", able, (figure, caption + told)


def _who_holds(name: str, width: int) -> str:
    """How a rung divides a head of `width` columns, as the begin of a sentence."""
    if name not in study.rungs_for(width) or int(name.partition("_")[0]) < 7:  # without tiles of outputs
        return f"Of the rungs that do it {name}"
    share = columns.share_of(name, width)
    if share.slices < 2:
        return f"A {share.holder} can hold {width} columns: {name}"
    text = "Warpgroups (four warps each)" if share.threads > 32 else "Several warps"
    text += f" divide it: {_IN_WORDS.get(share.slices, share.slices)} hold {width // share.slices} columns "
    text += "of the outputs each"
    if not share.scorers:
        return f"{text}. Built so, {name}"
    blocks = roles.roles_of(share.rung.path.read_text(encoding="utf-8")).cluster
    text += f", and one makes all scores. Built so, {name}, in which "
    return f"{text}{_IN_WORDS.get(blocks, blocks)} SMs also share copies of keys and values (TMA multicast),"


def _narrower(every: Rows, width: int, gpu: str) -> Opening:
    """The first screen where no rung of ours does the wide head: those of the widest head that one does."""
    own = every[every["kind"].eq("own") & every["format"].eq("fp16") & every["window"].isna()]
    own = own[own["head_dim"] == own["head_dim"].max()].drop_duplicates("impl")
    answer = f"On the {gpu} no rung of this course that does heads {width} wide is recorded."
    able = ("count the registers that decide how a wide head is split",)
    chart = bars(own, list(own["impl"]), gpu, "the widest heads recorded", y="tflop_s")
    return answer, able, chart


def run_facts(here: Lab, spec: Any) -> None:
    """The facts of the run, in one line."""
    hopper = "" if spec and spec.has_hopper else "Hopper's rungs do not run here"
    facts(here, "attention", *filter(None, [f"{here.run['sms']} SMs", hopper]))


def registers_of_outputs(width: int, *names: str) -> diagram.Drawing | None:
    """Who holds the outputs in some rungs: of rung 7's warps and rung 9's warpgroups, which have all columns,
    and of the rungs that do this width; None where no other is asked for.
    """
    drawn = tuple(name for name in names if name in {"7_mma_32_rows", "9_wgmma", *study.rungs_for(width)})
    return diagram.holders(width, drawn) if drawn else None


def slices_at_work(width: int) -> diagram.Drawing:
    """How rung 8's warps share a tile of keys."""
    return diagram.partial_scores(width)


def halves_at_work(width: int) -> diagram.Drawing | None:
    """How rung 10's warpgroups share a tile of keys, at a width that it does."""
    name = "10_paired_warpgroups"
    return diagram.partial_scores(width, name) if name in study.rungs_for(width) else None


# Colours that a picture of few colours keeps apart, and apart from the peers' grey.
_TOLD_APART = tuple(plot.COLOURS[k] for k in (1, 2, 5, 0, 4))


def sweeps(every: Rows) -> Any:
    """What gives a width's rows by the prompt's length: the heads of the first chart, the rungs for that
    width and the peers.
    """

    def sweep(width):
        same = every[every["head_dim"].eq(width) & every["heads"].eq(study.HEADS)]
        same = same[same["window"].isna() & same["options"].fillna("").eq("")]
        same = same[same["format"].eq("fp16")]
        known = study.best(width) + study.hopper(width)
        return same[same["impl"].isin(known) | same["kind"].eq("peer") & same["impl"].ne("torch.sdpa_math")]

    return sweep


def rates_by_length(here: Lab, sweep: Any, width: int, gpu: str) -> None:
    """Draw a width's rates by the prompt's length: the two fastest peers, and the page's rungs but those that
    a later one is level with at every length, and of the small steps the last; say how the fastest rung and
    peer compare at each length.
    """
    rows, last = sweep(width), list(SMALL)[-1]
    rows = rows[rows["impl"].isin(page_order()) | rows["kind"].eq("peer")]
    if rows.empty:
        return display.say(f"Heads {width} wide are not recorded over lengths of prompt.")
    compared = _by_length(rows)
    if last in set(rows["impl"]):
        rows = rows[~rows["impl"].isin(set(SMALL) - {last})]
    same = _matched(rows)
    peers = rows[rows["kind"] == "peer"].sort_values("tflop_s")["impl"].drop_duplicates(keep="last")
    drawn = rows[~rows["impl"].isin([*same, *peers[:-2]])]
    title = f"Heads {width} wide, by the prompt's length"
    fig, ax = plot.figure("tokens", "TFLOP/s", title, xlog=True, height=3.0)
    names = [name for name in page_order() if name in set(drawn["impl"])]
    colour = dict(zip(names, cycle(_TOLD_APART), strict=False))
    for impl, group in drawn.groupby("impl", sort=False):
        band = plot.band(group, "tflop_s")
        plot.series(ax, group["seq"], *band, label=impl, colour=colour.get(impl, plot.PEER_COLOUR))
    ax.set_xticks(sorted(drawn["seq"].unique()), sorted(drawn["seq"].unique()))
    plot.label_ends(ax, (0, 0.5))
    plot.show(fig, plot.caption(drawn, gpu, title, y="tflop_s"))
    numbers = [name.partition("_")[0] for name in SMALL]
    text = [compared + again_in_short(here, rows)] if compared else []
    if last in set(drawn["impl"]):
        text.append(f"Of rungs {numbers[0]} to {numbers[-1]} the last is drawn.")
    if same:
        text.append(f"Not drawn, because a later rung is level with it at every length: {listed(same)}.")
    if text:
        display.say(" ".join(text))


def _by_length(rows: Rows) -> str:
    """How the fastest rung compares with the fastest peer at each length that both have, in words."""
    best = rows.pivot_table("tflop_s", "seq", "kind", "max")
    if not {"own", "peer"} <= set(best):
        return ""
    ratio = (best["own"] / best["peer"]).dropna()
    if ratio.empty:
        return ""
    first = rows.sort_values("median_us").drop_duplicates(["seq", "kind"]).set_index(["seq", "kind"])
    level = [seq for seq in ratio.index if display.level(first.loc[(seq, "own")], first.loc[(seq, "peer")])]
    return (
        f"**With {listed(f'{seq:,}' for seq in ratio.index)} tokens the fastest rung has "
        f"{listed(f'{one:.2f}' for one in ratio)} times the speed of the fastest library recorded.**"
    ) + (
        f" With {listed(f'{seq:,}' for seq in level)} the difference is within the spread of the samples."
        if level
        else ""
    )


def _matched(rows: Rows) -> list[str]:
    """Own rungs of a sweep that a later one is level with at every length that both have."""
    table = rows[rows["kind"] == "own"].pivot_table("median_us", "seq", "impl")
    names = sorted(table, key=lambda name: int(name.partition("_")[0]))

    def alike(name: str, later: str) -> bool:
        ratio = (table[name] / table[later]).dropna()
        return len(ratio) > 0 and bool(ratio.between(1 / crossover.LEVEL, crossover.LEVEL).all())

    return [name for k, name in enumerate(names) if any(alike(name, later) for later in names[k + 1 :])]


def fastest_by_width(sweep: Any, gpu: str) -> None:
    """Show the fastest rung of every width beside the fastest peer, and the ratio of their speeds."""
    lines, level, spread, fa3 = [], list[str](), list[str](), False
    for width in study.WIDTHS:
        rows = sweep(width)
        fa3 = fa3 or bool(rows["impl"].str.contains("flash_attn_3").any())
        rows = rows[rows["seq"].eq(rows["seq"].max())].sort_values("median_us")
        own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"]
        if own.empty:
            continue
        three = [own, own[~own["impl"].isin(op.HOPPER)], peers]
        cells = [
            f"{part['tflop_s'].iloc[0]:,.0f} ({part['impl'].iloc[0]})" if len(part) else "" for part in three
        ]
        ratio = peers["median_us"].iloc[0] / own["median_us"].iloc[0] if len(peers) else float("nan")
        lines.append([width, own["seq"].iloc[0], *cells, ratio])
        if len(peers) and display.level(own.iloc[0], peers.iloc[0]):
            near = 1 / crossover.LEVEL <= ratio <= crossover.LEVEL
            (level if near else spread).append(str(width))
    first: dict[str, list[int]] = {}
    for width, _, fastest, *_ in lines:
        first.setdefault(fastest.partition("(")[2].rstrip(")"), []).append(width)
    if first:
        said = [f"{name} at {listed(widths)} wide" for name, widths in first.items()]
        beside = [f"at {listed(level)} wide within {crossover.LEVEL - 1:.0%} of ours"] if level else []
        beside += [f"at {listed(spread)} wide within the spread of the samples"] if spread else []
        beside = f" A library is level: {', '.join(beside)}." if beside else ""
        display.say(f"**The fastest rungs: {'; '.join(said)}.{beside}**")
    names = [
        "Width",
        "Tokens",
        "Fastest rung",
        "Without Hopper's instructions",
        "Fastest peer",
        "Rung ÷ peer",
    ]
    lines = pd.DataFrame(lines, columns=names)
    caption = f"TFLOP/s on {gpu}, longest prompts"
    caption += "" if fa3 else "; FlashAttention-3 was not recorded"
    forms = {"Rung ÷ peer": "{:.2f}×"}
    display.table(lines, dict(zip(names, names, strict=True)), forms, caption)


def _not_asked(shown: Rows) -> str:
    """Peers that are the fastest on a kind of shape with some heads, and not recorded on it with others."""
    longest = shown.groupby(["shape", "grouped"])["seq"].transform("max")
    peers, said = shown[shown["kind"].eq("peer") & shown["seq"].eq(longest)], []
    for label, group in peers.groupby("shape", sort=False):
        asked = {heads: set(each["impl"]) for heads, each in group.groupby("grouped", sort=False)}
        best = group.loc[group["tflop_s"].idxmax(), "impl"]
        without = [heads for heads, who in asked.items() if best not in who]
        said += [f"{best}, the fastest peer {label}, with {listed(without)} heads"] if without else []
    return f" Not recorded: {'; '.join(said)}." if said else ""


def every_shape(here: Lab, every: Rows, gpu: str) -> None:
    """Show, behind one line, the fastest rung and peer of every shape, in bursts and sustained."""
    parts = [*_fastest_by_shape(here, every, gpu), *_states_compared(here, every, gpu)]
    display.fold_parts("For reference: every shape, in bursts and sustained", parts, lean=True)


def _fastest_by_shape(here: Lab, every: Rows, gpu: str) -> list[Any]:
    """How the races of the fastest rung and peer of every kind of shape end, and a table of them."""

    def in_words(row):
        words = [f"{row['head_dim']} wide"]
        words += [f"window {row['window']}"] if row["window"] else []
        words += ["chunk"] if "start=" in row["options"] else []
        words += ["K = V"] if "shared_kv" in row["options"] else []
        words += ["bf16"] if row["format"] == "bf16" else []
        return ", ".join(words)

    shown = every[~every["impl"].isin(["torch.sdpa_math"])].fillna({"options": "", "window": 0})
    shown = shown[~shown["options"].str.contains("index=|queries=")]
    shown["shape"] = shown.apply(in_words, axis=1)
    shown["grouped"] = shown["heads"].astype(str) + "/" + shown["kv_heads"].astype(str)
    table, races = [], list[str]()
    for (label, grouped), group in shown.groupby(["shape", "grouped"], sort=False):
        group = group[group["seq"] == group["seq"].max()].sort_values("median_us")
        own, peers = group[group["kind"] == "own"], group[group["kind"] == "peer"]
        if len(own):
            best, peer = own.iloc[0], (peers.iloc[0] if len(peers) else None)
            alike = own[own["median_us"] <= crossover.LEVEL * best["median_us"]].drop_duplicates("impl")
            also = listed(name.partition("_")[0] for name in alike["impl"].iloc[1:])
            facts = [label, grouped, best["seq"], best["impl"], also, best["tflop_s"]]
            facts += (
                [peer["impl"].removeprefix("torch."), peer["tflop_s"]] if peer is not None else ["", None]
            )
            table.append(facts)
            if peer is not None:
                ahead = "ahead of" if best["median_us"] < peer["median_us"] else "behind"
                ahead = "undecided beside" if undecided(here, best, peer) else ahead
                races.append("level with" if display.level(best, peer) else ahead)
    names = ["shape", "grouped", "seq", "impl", "also", "tflop_s", "peer", "theirs"]
    table = pd.DataFrame(table, columns=names).sort_values(["grouped", "shape"])
    names = {"shape": "Shape", "grouped": "Heads", "seq": "Queries", "impl": "Fastest rung"}
    names |= {
        "also": f"Level with it, within {crossover.LEVEL - 1:.0%}: rungs",
        "tflop_s": "TFLOP/s",
        "peer": "Peer",
        "theirs": "Its TFLOP/s",
    }
    forms = dict.fromkeys(("tflop_s", "theirs"), "{:,.0f}")
    text = (
        f"On the {gpu}, longest prompts of each: {len(table)} kinds of shape, {len(races)} of "
        "them with a peer. "
    )
    ends_so = ("ahead of", "level with", "behind", "undecided beside")
    said = [f"{how} the fastest peer on {races.count(how)}" for how in ends_so if how in races]
    text += f"The fastest rung is {', '.join(said)}." if said else ""
    text += _not_asked(shown)
    text += " Any length and start, causal or not, with or without a window, heads in groups of any equal "
    text += "size: a shape that a rung cannot do is refused with a message, never padded in silence.\n\n"
    text += "*Heads* are those of queries and of keys and values. A *chunk* is the end of a long prompt "
    text += "against the cache of all before it; *K = V* is one array that serves as both."
    return [text, (table, names, forms, f"The fastest rung of every shape, {gpu}")]


def _states_compared(here: Lab, every: Rows, gpu: str) -> list[Any]:
    """Ours over the fastest peer's speed, rested and sustained, and how far these bursts lie from those of
    the other tables.
    """
    rows = display.power_rows(here, "attention")
    both = states.duels(rows, "attention")
    keys = [
        "operator",
        "impl",
        "format",
        "seq",
        "heads",
        "kv_heads",
        "head_dim",
        "causal",
        "window",
        "options",
    ]
    bursts = [each[each["state"] == "burst"].fillna({"window": 0, "options": ""}) for each in (every, rows)]
    again = bursts[0].merge(bursts[1], on=keys, suffixes=("", "_again"))
    apart = (again["median_us_again"] / again["median_us"] - 1).abs().max()
    text = "These figures are of a *burst*: the GPU rests before each sample. *Sustained*, the power limit "
    text += "slows a kernel down ([lesson 00b](00b_clocks.ipynb)). The next table has both states, measured "
    text += "anew, so where rungs are level another may stand here. "
    if apart == apart:
        text += f"A kernel's time in a burst differs from that of the table above by up to {apart:.1%}. "
    title = f"Speed of ours over the fastest recorded peer's, {gpu}"
    return [text + states.says(both), (both, states.DUEL, states.DUEL_FORMATS, title)]


def takeaway(here: Lab, sweep: Any, width: int, gpu: str) -> None:
    """What to take away, computed."""
    rows = sweep(width)
    rows = rows[rows["seq"] == rows["seq"].max()].sort_values("median_us")
    own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"]
    text = "- Count registers before writing a kernel: outputs that do not fit force a split.\n"
    every = here.measure("attention", here.cases("attention"))
    pair = worth_of_the_same(every[every["operator"].eq("attention")], width)
    text += f"- Occupancy alone does not set the rate: {pair}.\n" if pair else ""
    if len(own):
        text += f"- A head of {width} runs at {own['tflop_s'].iloc[0]:,.0f} TFLOP/s on the {gpu}"
        text += f"; {peers_words(here, own.iloc[0], peers.iloc[0])}" if len(peers) else ""
        more = len(peers) and undecided(here, own.iloc[0], peers.iloc[0])
        text += f". {again(here, own.iloc[0], peers.iloc[0])}.\n" if more else ".\n"
    portable = own[~own["impl"].isin(op.HOPPER)]
    text += "- Every shape has a rung without Hopper's instructions, too"
    if len(portable) and len(own):
        share = own["median_us"].iloc[0] / portable["median_us"].iloc[0]
        text += f": at {width} wide {portable['impl'].iloc[0]}, at {share:.0%} of the fastest rung's speed"
    display.say(f"{text}.")


def largest_steps(here: Lab, sweep: Any, width: int) -> None:
    """Say, of the fastest rungs at the other widths than `width`, which step to them is worth the most."""
    said: dict[str, list[str]] = {}
    for each in study.WIDTHS:
        found = sweep(each)
        found = found[found["kind"].eq("own") & found["seq"].eq(found["seq"].max())]
        if each != width and len(found):
            name = found.loc[found["median_us"].idxmin(), "impl"]
            rungs = said.setdefault(largest_step(here, name), [])
            rungs += [name] if name not in rungs else []
    for step, rungs in said.items():
        if step:
            display.say(f"On the way to {listed(rungs)}, {step}")


def explore_shapes(here: Lab, gpu: str) -> Any:
    """The explorer of windows and odd widths, by contestant."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "fp16"]
    cases = [c for c in cases if c.heads == 8 or c.window or (c.head_dim or 0) in (80, 96, 112)]
    cases = [c for c in cases if not c.options]
    rows = here.measure("attention", cases)
    line = ["impl", "head_dim", "window", "heads"]  # one point is none
    several = rows.groupby(line, dropna=False)["seq"].transform("nunique") > 1
    rows = rows[several] if several.any() else rows
    grouped = (rows["heads"].astype(str) + "/" + rows["kv_heads"].astype(str)).unique()
    title = "Windows and wide heads" + (f", {grouped[0]} heads," if len(grouped) == 1 else "")
    return explorer.Explorer(
        "shapes",
        rows,
        x="seq",
        y="tflop_s",
        controls={
            "impl": "Contestant",
            "head_dim": "Width",
            "window": "Window",
            "heads": "Heads",
        },
        roof=here.roof,
        title=f"{title} on {gpu}",
        measure=explorer.measurer(here),
    )
