"""What lesson 06b's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import attention as analysis
from rooflab.analysis import states
from rooflab.claims import Evidence, scorecard
from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Opening, Rows, bars, one_line
from rooflab.profile import ncu
from rooflab.studies import attention as study
from rooflab.view import display, explorer, page, plot


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
    answer = f"Several warps share it: each holds a slice of the {width} columns. {best['impl']} reaches "
    answer += f"{best['tflop_s']:,.0f} TFLOP/s on the {gpu}"
    if "fp16_tensor" in here.roof:
        answer += f", {best['roof_fraction']:.0%} of the tensor cores' roof"
    if len(peers):
        gain = peers["median_us"].iloc[0] / best["median_us"]
        answer += f"; against {peers['impl'].iloc[0]}, the fastest library here, it is {display.speed(gain)}"
    able = (
        "count the registers that decide how a wide head is split",
        "follow a ring of tiles between a producer and its consumers (warp specialisation)",
        "say why occupancy is a means and not a goal",
    )
    title, recorded = f"{width} wide, {seq} tokens", here.roof.get("fp16_tensor")
    if recorded:
        roof = ("FP16 matrix", recorded.value, "TFLOP/s")
        return answer + ".", able, page.ladder(rows, gpu, roof, title, y="tflop_s")
    return answer + ".", able, bars(rows, list(rows["impl"]), gpu, title, y="tflop_s")


def _narrower(every: Rows, width: int, gpu: str) -> Opening:
    """The first screen where no rung of ours does the wide head: those of the widest head that one does."""
    own = every[every["kind"].eq("own") & every["format"].eq("fp16") & every["window"].isna()]
    own = own[own["head_dim"] == own["head_dim"].max()].drop_duplicates("impl")
    answer = f"On the {gpu} no rung of this course that does heads {width} wide is recorded."
    able = ("count the registers that decide how a wide head is split",)
    chart = bars(own, list(own["impl"]), gpu, "the widest heads recorded", y="tflop_s")
    return answer, able, chart


def run_facts(gpu: str, here: Lab, spec: Any, every: Rows) -> None:
    """The facts of the run, in one line."""
    facts = {
        "GPU": gpu,
        "Figures": {"live": "measured here", "replay": "replayed"}[here.mode],
        "Run": here.run_of("attention")["run"],
        "Shared memory a block": f"{spec.shared_kb_per_block} KiB" if spec else "",
        "SMs": here.run["sms"],
        "Hopper's rungs": "run" if spec and spec.has_hopper else "do not run here",
        "Cases": len(every),
    }
    one_line(facts)


def registers_of_outputs() -> None:
    """Show the registers that a thread's outputs take, by the head's width and by who holds them."""
    plans = {"a warp, 16 queries": (16, 32), "a warp, 32 queries": (32, 32)}
    plans |= {"a warpgroup, 64 queries": (64, 128), "two warpgroups, 64 queries": (64, 256)}
    need = pd.DataFrame({"who": list(plans)})
    for width in study.WIDTHS:
        counts = [queries * width // threads for queries, threads in plans.values()]
        need[width] = [f"{count}" + ("" if count < 200 else " (!)") for count in counts]
    names = {"who": "Outputs held by"} | {width: f"{width} wide" for width in study.WIDTHS}
    display.table(need, names, caption="Registers a thread; (!) leaves too few for the rest")


def rates_by_length(every: Rows, width_asked: int, gpu: str) -> Any:
    """Draw every contestant's rate by the prompt's length, 256 wide and `width_asked`; what gives a width's
    rows.
    """

    def sweep(width):
        same = every[every["head_dim"].eq(width) & every["heads"].eq(study.HEADS)]
        same = same[same["window"].isna() & same["options"].fillna("").eq("")]
        same = same[same["format"].eq("fp16")]
        known = study.best(width) + study.hopper(width)
        return same[same["impl"].isin(known) | same["impl"].str.startswith("torch.sdpa")]

    title = "Wide heads: 256 and 512 numbers"
    fig, axes = plot.figure("tokens", "TFLOP/s", title, xlog=True, columns=2)
    both = pd.concat([sweep(256), sweep(width_asked)])
    for ax, width in zip(axes, (256, width_asked), strict=True):
        rows = sweep(width)
        for impl, group in rows[rows["impl"] != "torch.sdpa_math"].groupby("impl", sort=False):
            plot.series(ax, group["seq"], *plot.band(group, "tflop_s"), label=impl)
        ax.set_xticks(sorted(rows["seq"].unique()), sorted(rows["seq"].unique()))
        ax.set_title(f"{width} wide", fontsize=9)
    for ax in axes:
        plot.label_ends(ax)
    plot.show(fig, plot.caption(both, gpu, title, y="tflop_s"))
    return sweep


def fastest_by_width(sweep: Any, gpu: str, every: Rows, spec: Any) -> None:
    """Show the fastest rung of every width beside torch's fastest, and say the ratios."""
    lines, against = [], []
    for width in study.WIDTHS:
        rows = sweep(width)
        rows = rows[rows["seq"].eq(rows["seq"].max()) & (rows["impl"] != "torch.sdpa_math")]
        rows = rows.sort_values("median_us")
        own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"]
        three = [own, own[~own["impl"].isin(op.HOPPER)], peers]
        cells = [
            f"{part['tflop_s'].iloc[0]:,.0f} ({part['impl'].iloc[0]})" if len(part) else "" for part in three
        ]
        if len(own):
            lines.append([width, own["seq"].iloc[0], *cells])
        if len(own) and len(peers):
            best, peer = own.iloc[0], peers.iloc[0]
            against.append(f"{width} wide, {best['impl']} {display.against(best, peer)} {peer['impl']}")
    names = ["Width", "Tokens", "Fastest rung", "Without Hopper's instructions", "Fastest of torch's"]
    lines = pd.DataFrame(lines, columns=names)
    display.table(lines, dict(zip(names, names, strict=True)), caption=f"TFLOP/s on {gpu}, longest prompts")
    text = f"{'; '.join(against)}.\n" if against else ""
    over = every[every["roof_fraction"] > 1]
    if len(over):
        most = over.loc[over["roof_fraction"].idxmax()]
        text += (
            f"\n{most['impl']} passes the matrix roof at {most['tflop_s']:,.0f} TFLOP/s. That roof is what a "
        )
        text += "library reached with random matrices in lesson 01, at the clock rate that their power draw "
        text += "allowed. It is no "
        text += f"law; the datasheet's peak is {spec.fp16_tensor:,.0f}. " if spec else "law. "
        if spec and most["tflop_s"] <= spec.fp16_tensor:
            text += (
                "The suspect is power: most weights of a softmax are near zero, and multiplying "
                "those draws less."
            )
        else:
            text += "Why, nothing measured here says."
    display.say(text)


def counted_on_gemma(here: Lab) -> Rows:
    """The counters of every rung on the heads of Gemma, with how often everything is read again."""
    own = [c for c in study.gemma() if c.kind == "own"]
    own = [c for c in own if c in set(here.cases("attention"))]
    counted = analysis.counted(here.profile("attention", own, "ncu", study.COUNTERS), own)
    if len(counted):
        counted["again"] = counted["sm_read_bytes"] / counted["once"]
        counted = counted[~counted["options"].str.contains("=8")]
    return counted


def busiest_by_width(counted: Rows, gpu: str) -> None:
    """Show how busy each unit is in three rungs of each width; all rungs folded."""

    def ends(group):
        """Of a width's rungs: the first, the fastest that runs anywhere, the fastest of all."""
        portable = group[~group["impl"].isin(op.HOPPER)]
        picked = [group.index[0], portable["time_ns"].idxmin(), group["time_ns"].idxmin()]
        return group.loc[list(dict.fromkeys(picked))]

    if len(counted):
        names = {"head_dim": "Width", "impl": "Rung", "again": "Re-read", "tensor_pct": "Tensor cores %"}
        names |= {"shared_pct": "Shared memory %", "busiest": "Busiest"}
        forms = {"again": "{:,.0f}"} | dict.fromkeys(analysis.UNITS, "{:.0f}")
        widths = [group for _, group in counted.groupby("head_dim")]
        display.table(pd.concat([ends(group) for group in widths]), names, forms, f"On {gpu}")
        text = ""
        for group in widths:
            first, last = group.iloc[0], group.loc[group["time_ns"].idxmin()]
            stalls = last[[c for c in counted if c.startswith("stall_")]].astype(float)
            text += (
                f"- {last['head_dim']} wide, {last['impl']} reads everything {last['again']:,.0f} "
                "times where "
            )
            text += f"{first['impl']} does {first['again']:,.0f} times. The longest stall of its warps, "
            text += (
                f"those that copy included: {ncu.METRICS[stalls.idxmax()].meaning}, "
                f"{stalls.max():.1f} cycles an "
            )
            text += "instruction.\n"
        display.say(text)
        names |= {"issue_pct": "Issue slots %", "dram_pct": "DRAM %"}
        display.fold("Every rung by its counters", [(counted, names, forms, f"On {gpu}")])


def blocks_an_sm(every: Rows, width: int, ladder: list[Any], gpu: str) -> None:
    """Show what a block takes and how many an SM holds, for three rungs of each width; all rungs folded."""
    budget = analysis.budgets(every, (256, width))
    budget["kib"] = budget["shared"] / 1024
    names = {
        "head_dim": "Width",
        "impl": "Rung",
        "registers": "Registers a thread",
        "kib": "Shared memory (KiB)",
    }
    names |= {"blocks": "Blocks an SM", "occupancy": "Occupancy", "tflop_s": "Best TFLOP/s"}
    forms = {"kib": "{:.0f}", "occupancy": "{:.0%}", "tflop_s": "{:,.0f}"}
    shown = []
    for _, group in budget.groupby("head_dim"):
        picked = [group["occupancy"].idxmax(), *group.index[group["impl"] == ladder[1].name]]
        shown.append(group.loc[list(dict.fromkeys([*picked, group["tflop_s"].idxmax()]))])
    display.table(pd.concat(shown), names, forms, f"What a block takes, on {gpu}")
    fast = budget.loc[budget["tflop_s"].idxmax()]
    if fast["occupancy"] < budget["occupancy"].max():
        display.say(
            "**Occupancy is not the goal.** It is one way to have work while some warps "
            "wait; asynchronous products and "
            "asynchronous copies are another."
        )
    pairs = budget.groupby("limit", sort=False)["impl"].unique().items()
    said = [f"{limit.replace(', ', ' and ')} for {', '.join(who)}" for limit, who in pairs]
    display.say(f"The tightest limit: {'; '.join(said)}.")
    heads = {"impl": "Rung", "threads": "Threads"} | {name: names[name] for name in list(names)[2:-1]}
    inside = [(group, heads, forms, f"{width} wide") for width, group in budget.groupby("head_dim")]
    display.fold("Every rung's budget", inside)


def _gains(every: Rows, before: str, after: str) -> pd.DataFrame:
    """Shapes that both rungs are recorded on in bursts, and in `gain` how many times as fast the later is."""
    keys = ["format", "seq", "heads", "kv_heads", "head_dim", "window", "options"]
    rows = every[every["operator"].eq("attention") & every["state"].eq("burst")].fillna({"window": 0})
    both = rows.pivot_table("tflop_s", keys, "impl").reindex(columns=[before, after]).dropna()
    return (both[after] / both[before]).reset_index(name="gain")


def packing_gain(every: Rows, gpu: str) -> None:
    """What packing any group of heads (rung 14) is worth over rung 11, by the size of the group."""
    gain = _gains(every, "11_tma", "14_pack_gqa")
    if gain.empty:
        display.say(
            "Rungs 11 and 14 are not recorded on one shape here, so what packing is worth stays open."
        )
        return
    group = gain["heads"] // gain["kv_heads"]
    text = (
        f"On the {gpu} rung 14 runs at {gain['gain'].min():.2f} to {gain['gain'].max():.2f} times the speed "
    )
    text += f"of rung 11 over {len(gain)} shapes"
    odd = gain[~group.isin([1, 2, 4, 8])]["gain"]
    if 0 < len(odd) < len(gain):
        text += (
            f"; where the group of heads is no power of two, at {odd.min():.2f} to {odd.max():.2f}. "
            "Its tiles were chosen anew, too, so part of the rest is theirs"
        )
    display.say(text + ".")


def voting_gain(every: Rows, gpu: str) -> None:
    """What a vote in place of shuffles, and tiles by a law (rung 15), are worth over rung 14."""
    gain = _gains(every, "14_pack_gqa", "15_warp_vote")
    if gain.empty:
        display.say("Rungs 14 and 15 are not recorded on one shape here.")
        return
    low, high, middle = gain["gain"].min(), gain["gain"].max(), gain["gain"].median()
    most = gain.loc[gain["gain"].idxmax()]
    display.say(
        f"On the {gpu} rung 15 runs at {low:.2f} to {high:.2f} times the speed of rung 14 over {len(gain)} "
        f"shapes, {middle:.2f} times in the middle, and the most on {most['seq']} queries of "
        f"{most['heads']} heads, {most['head_dim']} wide."
    )


def fastest_by_shape(every: Rows, ladder: list[Any], gpu: str) -> None:
    """Show the fastest rung and peer of every kind of shape, folded, and say how the races end."""

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
    table, races = [], []
    for (label, grouped), group in shown.groupby(["shape", "grouped"], sort=False):
        group = group[group["seq"] == group["seq"].max()].sort_values("median_us")
        own, peers = group[group["kind"] == "own"], group[group["kind"] == "peer"]
        if len(own):
            best, peer = own.iloc[0], (peers.iloc[0] if len(peers) else None)
            facts = [label, grouped, best["seq"], best["impl"], best["tflop_s"]]
            facts += (
                [peer["impl"].removeprefix("torch."), peer["tflop_s"]] if peer is not None else ["", None]
            )
            table.append(facts)
            if peer is not None:
                ahead = 1 if best["median_us"] < peer["median_us"] else -1
                races.append(0 if display.level(best, peer) else ahead)
    names = ["shape", "grouped", "seq", "impl", "tflop_s", "peer", "theirs"]
    table = pd.DataFrame(table, columns=names).sort_values(["grouped", "shape"])
    names = {"shape": "Shape", "grouped": "Heads", "seq": "Queries", "impl": "Fastest rung"}
    names |= {"tflop_s": "TFLOP/s", "peer": "Peer", "theirs": "Its TFLOP/s"}
    forms = dict.fromkeys(("tflop_s", "theirs"), "{:,.0f}")
    does = pd.DataFrame({"rung": [r.name for r in ladder]})
    widths = (16, 64, 80, 96, 112, 128, 256, 512)
    for width in widths:
        able = study.rungs_for(width)
        does[width] = ["yes" if name in able else "" for name in does["rung"]]
    heads = {"rung": "Rung"} | {w: str(w) for w in widths}
    text = (
        f"On the {gpu}, longest prompts of each: {len(table)} kinds of shape, {len(races)} of "
        "them with a peer. "
    )
    ends_so = {"ahead of": races.count(1), "level with": races.count(0), "behind": races.count(-1)}
    said = [f"{how} the fastest peer on {count}" for how, count in ends_so.items() if count]
    text += f"The fastest rung is {', '.join(said)}." if said else ""
    display.say(
        f"{text} Any length and start, causal or not, with or without a window, heads in groups of any equal "
        "size: a shape that a rung cannot do is refused with a message, never padded in silence."
    )
    display.fold("The fastest rung of every shape", [(table, names, forms, f"On {gpu}")])
    display.fold("Widths that each rung can do", [(does, heads)])


def states_compared(here: Lab, gpu: str) -> None:
    """Show ours over the fastest peer's speed, rested and sustained."""
    both = states.duels(states.measured(here), "attention")
    title = f"Speed of ours over the fastest recorded peer's, {gpu}"
    display.table(both, states.DUEL, states.DUEL_FORMATS, title)
    display.say(states.says(both))


def goals(here: Lab, gpu: str) -> Rows:
    """Show floors and aims beside what was reached, folded; the table's rows."""
    recorded = here.measure("attention", here.cases("attention"))
    asked = scorecard.by_shape(Evidence(here.store, {"attention": recorded}))
    pairs = zip(asked["reached"], asked["unit"], strict=True)
    asked["got"] = [f"{reached:,.0f} {unit}" for reached, unit in pairs]
    bars = zip(asked["floor_met"], asked["aim_met"], strict=True)
    asked["met"] = ["no" if floor == "no" else "not the aim" if aim == "no" else "yes" for floor, aim in bars]
    asked["rival"] = asked["peer"].str.replace("torch.", "")
    names = {"what": "What", "floor": "Floor", "aim": "Aim", "got": "Reached", "met": "Met"}
    forms = dict.fromkeys(("floor", "aim"), "{:,.0f}")
    caption = f"Floors and aims on {gpu}, one by one"
    display.table(asked, names | {"rival": "Fastest peer here"}, forms, caption, folded=True)
    return asked


def goals_met(gpu: str, asked: Rows) -> None:
    """Say how many floors and aims are met; by which rung, and what others published, folded."""
    text = "" if gpu == scorecard.GPU else f"These bars are the {scorecard.GPU}'s; this is a {gpu}. "
    if asked.empty:
        text += "Of the shapes that were asked for none was measured. "
    for bar in ("floor", "aim"):
        word = asked[f"{bar}_met"]
        text += f"Of {(word != '').sum()} {bar}s {(word == 'yes').sum()} are met"
        missed = asked[word == "no"]["what"]
        text += f"; missed: {'; '.join(missed)}. " if len(missed) else ". "
    display.say(text)
    names = {"what": "What", "got": "Reached", "impl": "By", "floor_met": "Floor met", "aim_met": "Aim met"}
    display.fold(
        "By which rung, and what others have published", [(asked, names | {"published": "Published"})]
    )


def takeaway(sweep: Any, width: int, gpu: str) -> None:
    """What to take away, computed."""
    rows = sweep(width)
    rows = rows[rows["seq"] == rows["seq"].max()].sort_values("median_us")
    own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"]
    text = "- Count registers before writing a kernel: the outputs alone decide how a head is split.\n"
    text += "- Occupancy is a means. With asynchronous products and copies few warps are enough.\n"
    if len(own):
        text += f"- A head of {width} runs at {own['tflop_s'].iloc[0]:,.0f} TFLOP/s on the {gpu}"
        if len(peers):
            text += f", torch's fastest kernel for it at {peers['tflop_s'].iloc[0]:,.0f}"
        text += ".\n"
    text += "- Every shape has a portable rung, too, which runs from Turing or Ampere on."
    display.say(text)


def explore_shapes(here: Lab, gpu: str) -> Any:
    """The explorer of windows and odd widths, by contestant."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "fp16"]
    cases = [c for c in cases if c.heads == 8 or c.window or (c.head_dim or 0) in (80, 96, 112)]
    cases = [c for c in cases if not c.options]
    rows = here.measure("attention", cases)
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
        title=f"Windows and odd widths on {gpu}",
        measure=explorer.measurer(here),
    )
