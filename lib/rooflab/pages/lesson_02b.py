"""What lesson 02b shows: what the GPU counted of a token's launches, and products under the roofline."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import time_breakdown
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import Model
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_02 import published
from rooflab.pages.lesson_02b_causes import BOUND, asked_again, off_percent
from rooflab.pages.lesson_02b_causes import blocks as blocks
from rooflab.pages.lesson_02b_causes import plan as plan
from rooflab.pages.lesson_02b_fixed import alone as alone
from rooflab.pages.lesson_02b_fixed import beyond_bytes as beyond_bytes
from rooflab.pages.lesson_02b_fixed import fixed_chart, fixed_said, laptop_line
from rooflab.pages.lesson_02b_fixed import fixed_time as fixed_time
from rooflab.pages.lesson_02b_fixed import measurers as measurers
from rooflab.pages.lesson_02b_fixed import rate_by_bytes as rate_by_bytes
from rooflab.pages.lesson_02b_fixed import two_gpus as two_gpus
from rooflab.profile import ncu, parts
from rooflab.studies import attribution, launch_rule
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.view.diagram import counters
from rooflab.words import counted as counted_words


def opening(here: Lab, products: Rows, timed: Rows, read: float) -> Opening:
    """The first screen: the fixed time of a product, and what it makes of a layer's products."""
    able = [
        "split a product's time into that of its bytes and a fixed part",
        "read a profiler's counters: bytes, hit rates, occupancy, stalls",
        "find the launches that are too small for the GPU",
    ]
    return fixed_said(here, products, timed, read), able, fixed_chart(products, timed, here.run.gpu, read)


def _busy(step: Rows) -> Rows:
    return step[step.dram_pct >= 50]


def _small(step: Rows) -> Rows:
    return step[(step.dram_pct < 5) & (step.sm_pct < 5)]


def _partly(step: Rows) -> Rows:
    return step.drop(_busy(step).index).drop(_small(step).index, errors="ignore")


# Plain words for what PyTorch's kernels of one part do, by the library's names.
_PLAIN = {"MeanOps": "mean", "direct_copy": "change of format", "CatArrayBatchedCopy": "joining"}
_PLAIN |= {"MulFunctor": "multiply", "cudnn": "cuDNN"}


def _plain(kinds: Rows, step: Rows) -> Rows:
    """A name for each kind of launch: its part, its class where that is another, and what its kernel does
    where the counted `step` has several kernels of that part and class.
    """
    part = kinds.part.replace("", "residual")
    own = (kinds["class"] == "weight") | (kinds["class"] == kinds.part)
    several = step.groupby(["part", "class"]).kernel.nunique()
    keys = zip(kinds.part, kinds["class"], strict=True)
    twice = pd.Series([several[key] > 1 for key in keys], index=kinds.index, dtype=bool)
    word = kinds.name.str.rpartition(": ")[2].str.replace("_kernel_cuda", "")
    named = part.where(own, part + ", " + kinds["class"])
    return named.where(~twice, part + ": " + word.map(lambda name: _PLAIN.get(name, name)))


def busy_chart(top: Rows, step: Rows, gpu: str, when: str) -> tuple[Figure, str]:
    """How busy each kind of launch keeps the memory, the busiest first: the longest ones and, of the counted
    `step`, every weight product and all that is not small. With the caption.
    """
    kinds = time_breakdown.kinds(step, len(step))
    longest = pd.MultiIndex.from_frame(kinds[["part", "kernel"]]).isin(
        pd.MultiIndex.from_frame(top[["part", "kernel"]])
    )
    chosen = longest | (kinds["class"] == "weight") | ~kinds.index.isin(_small(kinds).index)
    top = kinds[chosen].sort_values("dram_pct", ascending=False, kind="stable")
    names = [
        f"{name} ({times} times)" if times > 1 else name
        for name, times in zip(_plain(top, step), top.times, strict=True)
    ]
    title = "How busy a launch keeps the memory"
    fig, ax = plot.figure("% of the memory's rate", title=title, height=1.0 + 0.19 * len(top))
    fig.set_figwidth(page.WIDEST)
    plot.bars(ax, names, [round(share, 0 if share >= 10 else 1) for share in top.dram_pct], "%")
    for patch, kind in zip(ax.patches, top["class"], strict=True):
        if kind != "weight":
            patch.set_facecolor(plot.PEER_COLOUR)
    above = top[top.dram_pct >= 50]
    text = f"{title}, {gpu}, {when}: {len(top)} kinds of launch ({top.times.sum():.0f} of the {len(step)} "
    text += f"launches), {len(above)} at half the rate or more, most "
    text += f"{top.dram_pct.max():.0f}% ({top.part.iloc[0]}). Blue: weight products. "
    text += "100% is ncu's peak; each ran alone, with empty caches."
    return fig, text


def counted(step: Rows, prompt: Rows, tokens: int) -> None:
    """Say which launches were counted, of a decode step and of a prompt of `tokens`."""
    display.say(
        f"Counted: {len(step)} launches of an eager decode step (one layer and the output "
        f"head) and {len(prompt)} of a *prefill*, which reads a prompt of {tokens:,} tokens at once; "
        f"{(step['class'] == 'weight').sum()} and {(prompt['class'] == 'weight').sum()} of them are weight "
        "products."
    )


def longer(step: Rows, steps: Rows) -> None:
    """Say how much longer ncu times a small launch than the running model's trace, `steps`."""
    ours, there = step[step.part == "norm"], steps[steps.part == "norm"]
    if len(ours) and there.launches.sum():
        running = there.us.sum() / there.launches.sum()
        if ours.us.median() > 1.2 * running:
            display.say(
                f"So do not add up `ncu`'s times of small launches: a norm launch takes {running:.1f} µs on "
                f"average in the running model, and {ours.us.min():.1f} to {ours.us.max():.1f} here."
            )


def where_counted(step: Rows) -> None:
    """Draw where the counters sit, with those of a large product and of a small launch."""
    launches = counters.contrast(step)
    if launches:
        diagram.where_counted(launches).show()


# --- bytes and counters -------------------------------------------------------------------------------------


def bytes_counted(products: Rows, gpu: str) -> None:
    """Show predicted and counted bytes of the weight products, and say how far they are apart."""
    shown = products.assign(
        predicted=products.bytes / 1e6, mb=products.counted / 1e6, off=off_percent(products)
    )
    heads = {"part": "projection", "n": "rows", "k": "columns"}
    heads |= {"predicted": "predicted, MB", "mb": "counted, MB", "off": "off, %"}
    forms = {"predicted": "{:,.2f}", "mb": "{:,.2f}", "off": "{:+.1f}"}
    display.table(shown, heads, forms, f"DRAM bytes of one launch of each product, {gpu}", folded=True)
    worst = shown.loc[shown.off.abs().idxmax()]
    display.say(
        f"Of {len(shown)} products, `{worst.part}` is furthest off, {worst.off:+.1f}%. "
        + (
            "No weight comes from DRAM twice: if a product is slow, the reason is not that it moves too much."
            if shown.off.abs().max() < 5
            else "Some products move more than they must."
        )
    )


def launches_said(top: Rows, step: Rows, gpu: str, when: str, read: float) -> None:
    """Say how many launches keep the memory busy, are small or lie between, and draw the chart; `read` in
    GB/s. Behind a line to click, those that lie between.
    """
    busy, small, rest = _busy(step), _small(step), _partly(step)
    text = f"- **{len(busy)} of {len(step)} launches keep the memory at least half busy**"
    text += f": {_by_part(busy)}." if len(busy) else "."
    if len(small):
        most = small.loc[small.mb.idxmax()]
        text += (
            f"\n- **{len(small)} are small**: they use less than a twentieth of the memory's rate *and* of "
        )
        text += "the SMs'. They have too little to do. Even the one that moves most, "
        text += f"`{most.part or 'residual'}`, has bytes for {1e3 * most.mb / read:.2f} µs at the read roof."
    if len(rest):
        text += f"\n- The other {len(rest)} are partly busy."
    display.say(text)
    plot.show(*busy_chart(top, step, gpu, when))
    if len(rest):
        kinds = time_breakdown.kinds(rest, len(rest))
        shown = kinds.assign(named=_plain(kinds, step))
        heads = {"named": "launch", "times": "launches", "dram_pct": "% of the memory's rate"}
        heads |= {"sm_pct": "% of the SMs' busiest unit"}
        forms = {"dram_pct": "{:.1f}", "sm_pct": "{:.1f}"}
        display.table(shown, heads, forms, f"The {len(rest)} partly busy launches, {gpu}", folded=True)


def _by_part(launches: Rows) -> str:
    """The parts of launches with the number of each that has several: "q, attention (3 launches)"."""
    counts = launches.part.replace("", "residual").value_counts(sort=False)
    return ", ".join(f"{part} ({count} launches)" if count > 1 else part for part, count in counts.items())


def longest(top: Rows, gpu: str) -> None:
    """Show the counters of the longest launches, and say how busy the busiest SMs are."""
    heads = {"name": "part: kernel", "times": "launches", "us": "µs (ncu)", "mb": "DRAM, MB"}
    heads |= {"dram_pct": "DRAM %", "sm_pct": "SM %", "l2_hit_pct": "L2 hit %"}
    heads |= {"occupancy_pct": "occupancy %"}
    forms = dict.fromkeys(("us", "dram_pct", "sm_pct"), "{:.1f}") | {"mb": "{:,.2f}"}
    forms |= dict.fromkeys(("l2_hit_pct", "occupancy_pct"), "{:.0f}")
    rated = top.assign(l2_hit_pct=top.l2_hit_pct.where(top.dram_bytes >= counters.FEW_BYTES))
    said = "Names are the libraries' own: cuBLAS's weight products begin with `nvjet` on Hopper, cuDNN does "
    said += (
        f"attention, the rest are PyTorch's. *L2 hit %* is left out below {counters.FEW_BYTES / 1e6:.0f} MB: "
    )
    said += "hits and requests are counted in different runs, and of few requests the rate may pass 100."
    said += asked_again(rated[rated["class"] == "weight"])
    display.fold_parts(
        f"The counters of a decode step's longest launches, {gpu}",
        [said, (rated, heads, forms, "By their time together; counters of the first of a kind")],
    )
    busiest = top.loc[top.sm_pct.idxmax()]
    display.say(
        f"None of the longest launches keeps any unit of its SMs more than {busiest.sm_pct:.0f}% busy, so "
        "**none is bound by arithmetic**."
        if busiest.sm_pct < BOUND
        else f"`{busiest['name']}` keeps a unit of its SMs {busiest.sm_pct:.0f}% busy: there the SMs may be "
        "the limit, not the memory."
    )


# --- waits --------------------------------------------------------------------------------------


def waits(step: Rows, gpu: str) -> None:
    """Show what launches wait for most, in groups."""
    sums = step.part.isin(parts.WEIGHTS) & (step["class"] != "weight")  # of a product that was split along k
    named = step.part.replace("", "residual").where(~sums, step.part + " (its partial sums)")
    groups = step.assign(first=_first_wait(step), of=named).groupby("first")
    why = groups.agg(
        launches=("us", "size"),
        us=("us", "sum"),
        parts=("of", lambda each: ", ".join(dict.fromkeys(each))),
    ).reset_index()
    why["share"] = 100 * why.us / why.us.sum()
    why["meaning"] = [f"{ncu.METRICS[f'stall_{name}'].meaning} ({name})" for name in why["first"]]
    heads = {"meaning": "largest reason", "launches": "launches", "share": "% of counted time"}
    heads |= {"parts": "in"}
    why = why.sort_values("us", ascending=False)
    forms = {"share": "{:.1f}"}
    display.table(why.head(2), heads, forms, f"The two largest groups of {len(step)} launches, {gpu}")
    if len(why) > 2:
        rare = why[2:]
        caption = f"The other {counted_words(int(rare.launches.sum()), 'launch', 'launches')}"
        display.table(rare, heads, forms, caption, folded=True)


def _first_wait(step: Rows) -> Rows:
    return step.waits.map(lambda waits: waits[0][0])


def waits_said(step: Rows, top: Rows) -> None:
    """Say what the weight products wait for; behind a line to click, each kernel's waits and what the number
    of warps and of cycles says.
    """
    weights = step[step["class"] == "weight"]
    firsts = _first_wait(weights)
    reason = firsts.mode().iloc[0]
    most = f"{(firsts == reason).sum()} of {len(weights)} weight products wait most for "
    if reason == "long_scoreboard":
        display.say(f"**{most}data from memory**, not for arithmetic or barriers.{_no_sign(weights)}")
    else:
        display.say(f"**{most}one thing**, `{reason}`.")
    more = [_suffices(weights)]
    hungry = step[_first_wait(step) == "no_instruction"]
    if len(hungry):
        more.append(
            f"{len(hungry)} launches wait most for their own instructions. Their median takes "
            f"{hungry.us.median():.1f} µs: each instruction runs about once, so nearly every fetch is a "
            "first one. (`ncu` has just emptied the caches, so in use this wait may be shorter.)"
        )
    every = time_breakdown.kinds(step, len(step))
    every = every[(every["class"] == "weight") & ~every.name.isin(top.name)]
    each = pd.concat([top, every])
    each = each.assign(
        wait=[", ".join(f"{name} {cycles:.1f}" for name, cycles in pairs) for pairs in each.waits],
        busy=100 * each.issue_active,
    )
    heads = {"name": "part: kernel", "busy": "cycles with an instruction, %"}
    heads |= {"wait": "waits most for (cycles an instruction)"}
    named = dict.fromkeys(name for pairs in each.waits for name, _ in pairs)
    words = "; ".join(f"*{name}*: {ncu.METRICS[f'stall_{name}'].meaning}" for name in named)
    more.append(f"The words of the table: {words}.")
    table = (each, heads, {"busy": "{:.0f}"}, "The two largest reasons of each kernel")
    display.fold_parts("Are the warps too few? And the waits of each kernel", [*more, table])


def _no_sign(weights: Rows) -> str:
    """Whether the product that keeps the memory busiest waits for it longer than the idlest one."""
    best, least = weights.loc[weights.dram_pct.idxmax()], weights.loc[weights.dram_pct.idxmin()]
    waits = best.stall_long_scoreboard, least.stall_long_scoreboard
    if not (least.dram_pct < 0.5 * best.dram_pct and waits[0] > waits[1]):
        return ""
    return (
        f" But a long wait is no sign of a slow kernel. `{best.part}` keeps the memory busiest, and a warp "
        f"of it waits {waits[0]:.0f} cycles for each instruction; `{least.part}` keeps it idlest, and waits "
        f"{waits[1]:.0f}. The busier the memory, the longer a load queues. A stall says what a kernel waits "
        "for, not whether it is slow."
    )


def _suffices(weights: Rows) -> str:
    """Whether a busy product shows that few warps are enough, and what a short one with as many reaches."""
    best, least = weights.loc[weights.dram_pct.idxmax()], weights.loc[weights.dram_pct.idxmin()]
    filled = f"{weights.occupancy_pct.median():.0f}% of the warp slots"
    if best.dram_pct < 70 or best.occupancy_pct > 50:
        return f"A product fills {filled}; with more, more bytes could be in flight (lesson 01's law)."
    text = f"A product fills {filled}, in the median. `{best.part}` keeps the memory "
    text += f"{best.dram_pct:.0f}% busy with {best.occupancy_pct:.0f}%"
    if least.dram_pct < 0.5 * best.dram_pct:
        text += f", `{least.part}` {least.dram_pct:.0f}% with {least.occupancy_pct:.0f}%: occupancy does not "
        text += "tell the two apart"
    return f"{text}."


# --- products alone -----------------------------------------------------------------------------------------


def output_head(products: Rows, steps: Rows, model: Model) -> None:
    """Say what the output head takes, and what the published profile takes for it."""
    head, known, (_, rate) = products.set_index("part").loc["lm_head"], published(), laptop_line()
    by_size = 100 * head.bytes / model_shapes.weight_bytes(model, "fp16")
    lines = [
        f"`lm_head` is {by_size:.0f}% of a token's weight bytes. It takes {head.us:,.0f} µs, "
        f"**{100 * head.us / steps.us.sum():.1f}%** of the token's GPU time here, at {head.pct:.0f}% of the "
        f"roof. At the laptop's rate its {head.bytes / 1e6:,.0f} MB would take "
        f"{head.bytes / rate / 1e6:.2f} ms."
    ]
    lines.append(
        "The published profile names a tensor-core kernel with "
        f"{100 * known['decode_gemm'] / known['decode_kernels']:.1f}% of GPU time and "
        f"takes it for the output head. That is {known['decode_gemm'] / 1e3:.2f} ms, too "
        "short to read that matrix: the head must be among the products that it counts as GEMVs."
        if known["decode_gemm"] < 0.8 * head.bytes / rate / 1e3
        else "The published tensor-core kernel could be the output head."
    )
    display.fold_items("The largest product of all, the output head, and the published profile", lines)


# --- the roofline -------------------------------------------------------------------------------------------


def fp16_peak(here: Lab) -> float:
    """The measured FP16 peak in TFLOP/s; borrowed where the recording has none."""
    peak = here.roof.get("fp16_tensor")
    return (peak or display.borrowed(here, "no product was timed").roof["fp16_tensor"]).value


def under_the_roofline(
    products: Rows, prompt: Rows, trace: Rows, tokens: int, here: Lab, peak: float
) -> None:
    """Draw the products of one token and those of a prompt of `tokens` under memory and arithmetic."""
    read, gpu = here.roof["dram_read"].value, here.run.gpu
    ridge = roofline.ridge(read, peak)
    title = "Weight products under the roofline"
    fig, ax = plot.figure("FLOP per DRAM byte", "TFLOP/s", title, xlog=True, ylog=True)
    ends = [0.3, ridge, 1000.0]
    ax.plot(ends, [min(x * read / 1e3, peak) for x in ends], color=plot.ROOF_COLOUR)
    style: dict[str, Any] = {"textcoords": "offset points", "color": plot.ROOF_COLOUR, "fontsize": 8.5}
    words, middle = f"read roof {read:,.0f} GB/s", ridge**0.5
    ax.annotate(words, (middle, middle * read / 1e3), (-8, 4), ha="right", **style)
    ax.annotate(f"FP16 {peak:,.0f} TFLOP/s", (ridge, peak), (-8, 2), ha="right", **style)
    for _, twins in products.groupby("bytes", sort=False):
        at = (twins.intensity.mean(), twins.tflop_s.mean())
        ax.annotate(", ".join(twins.part), at, (8, -3), **style)
    long = launch_rule.by_part(trace[trace.operator == "prefill"], attribution.MODEL, read)
    tall = prompt[prompt["class"] == "weight"].set_index("part")
    long = long[long.part.isin(tall.index)]
    work = 2.0 * long.n * long.k * tokens
    plot.series(ax, products.intensity, products.tflop_s, label="one token").set_linestyle("none")
    across, up = work / long.part.map(tall.dram_bytes), work / long.us / 1e6
    plot.series(ax, across, up, label=f"{tokens:,} tokens").set_linestyle("none")
    if len(long):
        words = f"{tokens:,} tokens:\n{', '.join(long.part)}"
        ax.annotate(words, (across.min(), up.min()), (-10, -4), ha="right", va="top", **style)
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    plot.show(
        fig,
        f"{title} on {gpu}, {plot.dates(trace)}, each as long as in the running model (nsys); ridge at "
        f"{ridge:.0f}.",
    )


def roofline_said(products: Rows, prompt: Rows, tokens: int, read: float, peak: float) -> None:
    """Say where one token's products lie under the roofline, and those of a prompt of `tokens`."""
    ridge = roofline.ridge(read, peak)
    display.say(
        "One token's products do about one FLOP for each byte, and the ridge lies at "
        f"{ridge:.0f}. The small ones lie lowest: they reach neither "
        f"the memory's rate nor the arithmetic's.{_prompt_side(products, prompt, tokens, ridge)}"
        if ridge > 20
        else f"One token's products lie left of the ridge at {ridge:.0f} FLOP per byte."
    )


def _prompt_side(products: Rows, prompt: Rows, tokens: int, ridge: float) -> str:
    """On which side of the ridge the counted products of a prompt lie."""
    moved = prompt[prompt["class"] == "weight"].drop_duplicates("part").set_index("part").dram_bytes
    sizes = products.set_index("part")
    across = (2.0 * tokens * sizes.n * sizes.k / moved).dropna()
    if across.empty:
        return ""
    text = f" With {tokens:,} tokens at once each weight is used for all of them: "
    text += f"{across.min():,.0f} FLOP for each byte" if len(across) == 1 else ""
    text += f"{across.min():,.0f} to {across.max():,.0f} FLOP for each byte" if len(across) > 1 else ""
    if across.min() > ridge:
        return f"{text}, right of the ridge, where arithmetic bounds a product."
    return f"{text}, {'still left of' if across.max() < ridge else 'on both sides of'} the ridge."


def takeaway(products: Rows, step: Rows, timed: Rows, gpu: str, read: float) -> None:
    """What to take away, computed."""
    fixed, _ = launch_rule.line(timed.bytes, timed.median_us, read)
    head, small = products.set_index("part").loc["lm_head"], _small(step)
    known = (small["class"] == "weight").sum()
    display.say(
        f"- On the {gpu} the weight products read what they must, within "
        f"{off_percent(products).abs().max():.0f}%.\n"
        f"- There a product by cuBLAS costs about {fixed:.1f} µs besides its bytes. So `lm_head` "
        f"reaches {head.pct:.0f}% of the roof, "
        f"`{products.part[products.pct.idxmin()]}` {products.pct.min():.0f}%. Fewer products help, or a "
        "shorter fixed time.\n"
        f"- {len(small)} of {len(step)} counted launches are too small for it: a higher rate of memory "
        f"does not help them. A fixed time was measured for products only, {known} of the {len(small)}; the "
        "others were not timed without their work."
    )


def explored(here: Lab, timed: Rows, gpu: str, read: float) -> Any:
    """The explorer of products by their number of rows."""

    def bound(case: Any) -> float:
        return roofline.gemm_bytes(1, case.n, case.k, 2) / read / 1e3

    widths = timed.groupby("k")["n"].transform("nunique")
    timed = timed[widths > 1] if (widths > 1).any() else timed  # one size is nothing to slide over
    return explorer.Explorer(
        "products",
        timed.assign(predicted_us=timed.bytes / read / 1e3),
        controls={"k": "Columns", "impl": "By"} if timed.k.nunique() > 1 else {"impl": "By"},
        roof=("DRAM read", read, "GB/s"),
        labels={"n": "rows"},
        title=f"Weight products of one token on {gpu}",
        bound=bound,
        foretold="at least {} µs (read roof)",
        measure=explorer.measurer(here),
    )
