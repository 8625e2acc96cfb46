"""What lesson 02c shows: the rule behind the products' share of a token's time, its test on another GPU, and
what a faster kernel would be worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab.analysis import time_breakdown
from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.numerics.model_shapes import Model
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_02 import published
from rooflab.pages.lesson_02b_fixed import laptop_line
from rooflab.pages.lesson_02c_prefill import prefill as prefill
from rooflab.studies import attribution, launch_rule
from rooflab.studies.launch_rule import Rule
from rooflab.view import diagram, display, explorer, page, plot
from rooflab.view.diagram import rule
from rooflab.words import times

_FEW = ("rtx-4070-laptop", "rtx-4090", "a100-80gb", "h200")  # GPUs of the explorer, from slow memory to fast


@dataclass(frozen=True)
class Two:
    """The rule of the traced GPU and of the published laptop, and the products' shares in percent."""

    here: Rule
    laptop: Rule
    ours: float
    theirs: float


def rules(eager: Rows, model: Model, read: float) -> Two:
    """The rule fitted to an eager token's trace, and the laptop's: fixed time and rate of its published
    products, the other launches as traced here.
    """
    fixed, rate = laptop_line()
    law, known = launch_rule.rule(eager, model.name, read), published()
    ours = 100 * eager[eager["class"] == "weight"].us.sum() / eager.us.sum()
    theirs = 100 * known["decode_gemv"] / known["decode_kernels"]
    return Two(law, replace(law, gb_s=rate, product_us=fixed), ours, theirs)


def blind(two: Two, here: Lab) -> Rule:
    """The laptop's rule by its datasheet alone: the rate follows the bandwidth, fixed times stay."""
    return time_breakdown.elsewhere(two.here, sheet(here, two), device.get("rtx-4070-laptop"))


def opening(two: Two, model: Model, here: Lab, when: str) -> Opening:
    """The first screen: the products' share here and on the published laptop, by the rule too."""
    by_rule = [100 * law.share(model) for law in (two.here, blind(two, here))]
    text = "A launch takes a fixed time, and its bytes on top. Fitted to a trace of the "
    text += f"{here.run.gpu}, where products take {two.ours:.0f}% of a token's GPU time, this rule predicts "
    text += f"{by_rule[1]:.0f}% for an RTX 4070 Laptop from its data sheet (published: {two.theirs:.0f}%): "
    text += "the faster the memory, the larger the part of the time that is launches."
    able = [
        "predict a kernel's share of the time on a GPU that you don't have",
        "say what a faster kernel is worth (Amdahl's law)",
        "choose between fewer bytes, less fixed time and fewer launches",
    ]
    return text, able, token_by_rule(two, model, here, when)


def token_by_rule(two: Two, model: Model, here: Lab, when: str) -> tuple[Figure, str]:
    """A token's GPU time by the rule on both GPUs, in bytes, fixed times of products and other launches; the
    caption.
    """
    gpu, laws = here.run.gpu, (two.here, blind(two, here))
    title = "A token's GPU time, by the rule"
    products, names = model_shapes.gemvs(model) + 1, []
    parts: dict[str, list[float]] = {"products: bytes": [], "products: fixed time": [], "other launches": []}
    for name, law in zip((gpu, "RTX 4070 Laptop"), laws, strict=True):
        fixed, total = products * law.product_us, law.weights_us(model) + law.others_us(model)
        times = (law.weights_us(model) - fixed, fixed, law.others_us(model))
        names.append(f"{name}, {total / 1e3:.1f} ms")
        for part, us in zip(parts.values(), times, strict=True):
            part.append(100 * us / total)
    fig, ax = plot.figure("% of GPU time", title=title, height=1.8)
    fig.set_figwidth(page.WIDEST)
    plot.stacked(ax, names, parts)
    said = [f"{100 * law.share(model):.0f}%" for law in laws]
    text = f"{title}, fitted on {gpu}, {when}; the laptop has the same fixed times and its data sheet's "
    text += f"bandwidth. Products (bytes and fixed time) take {' and '.join(said)}, where the trace has "
    return fig, f"{text}{two.ours:.0f}% and the published profile {two.theirs:.0f}%."


def layer_by_rule(eager: Rows, two: Two, model: Model, here: Lab) -> None:
    """Draw one layer's launches by the rule of both GPUs, with the first chart's constants, where the trace
    names the layer's products.
    """
    launches = rule.order(eager, attribution.LAYER)
    if launches:
        laws = [(here.run.gpu, two.here), ("RTX 4070 Laptop", blind(two, here))]
        diagram.layer_by_rule(launches, laws, model).show()


# --- two GPUs -----------------------------------------------------------------------------------------------


def side_by_side(two: Two, step: Any, model: Model, gpu: str) -> None:
    """Show a token on the traced GPU and on the laptop; `step` is the eager row of time_breakdown.busy."""
    known, size = published(), model_shapes.weight_bytes(model, "fp16")
    each = size / (model_shapes.gemvs(model) + 1) / 1e3
    both = [
        ("weight products, % of GPU time", two.ours, two.theirs),
        ("GPU busy, % of the wait (eager)", step.busy_pct, 100 * known["decode_kernels"] / known["decode"]),
        ("GPU time of a token, µs", step.gpu_us, known["decode_kernels"]),
        ("rate of large products, GB/s", two.here.gb_s, two.laptop.gb_s),
        ("an average product's bytes at that rate, µs", each / two.here.gb_s, each / two.laptop.gb_s),
        ("fixed time of a product, µs", two.here.product_us, two.laptop.product_us),
    ]
    heads = {"what": "quantity", "here": gpu, "there": "RTX 4070 Laptop (published)"}
    table = pd.DataFrame(both, columns=list(heads))
    forms = dict.fromkeys(("here", "there"), "{:,.1f}")
    display.table(table, heads, forms, "Both GPUs, number by number", folded=True)


def why_they_differ(two: Two, eager: Rows, model: Model) -> None:
    """Say what differs between the two GPUs."""
    ratio, others = two.here.gb_s / two.laptop.gb_s, eager[eager["class"] != "weight"].launches.sum()
    each = model_shapes.weight_bytes(model, "fp16") / (model_shapes.gemvs(model) + 1) / 1e3
    display.say(
        f"The memory here is {ratio:.0f} times as fast: an average product's bytes take "
        f"{each / two.laptop.gb_s:.0f} µs there and {each / two.here.gb_s:.1f} µs here. **The bytes got "
        "faster, the fixed time of a product did not**. By a line through this trace's products it is "
        f"{two.here.product_us:.1f} µs here (part 02b fits products timed alone), by one through "
        f"the laptop's published products {two.laptop.product_us:.1f} µs there; the drawing gives both GPUs "
        f"the {two.here.product_us:.1f}. The {others:,} other launches, which move "
        "few bytes, take "
        f"{100 - two.ours:.0f}% of the GPU's time here. The test below shows how well their time here fits "
        "the laptop."
        if ratio > 2 and two.ours < 60 and two.here.product_us > 0.5 * two.laptop.product_us
        else f"The memory here is {times(ratio)} times as fast, and the weight products take "
        f"{two.ours:.0f}% of the GPU's time here, {two.theirs:.0f}% there."
    )


# --- the rule -----------------------------------------------------------------------------------------------


def fitted(eager: Rows, two: Two, model: Model, gpu: str, read: float) -> None:
    """Show each product by the rule beside its trace, and say what the rule gives for all."""
    law, fit = two.here, launch_rule.by_part(eager, model.name, read)
    fit["rule"] = law.product_us + fit.bytes / law.gb_s / 1e3
    fit["off"] = 100 * (fit.rule / fit.us - 1)
    heads = {"part": "projection", "bytes": "bytes", "us": "traced, µs"}
    heads |= {"rule": "by the rule, µs", "off": "off, %"}
    forms = {"bytes": "{:,}", "us": "{:.1f}", "rule": "{:.1f}", "off": "{:+.0f}"}
    title = f"Every product by the rule and as traced, {gpu}"
    display.table(fit, heads, forms, title, folded=True)
    display.say(
        f"Each of the other {law.others * model.layers:,.0f} launches takes {law.other_us:.2f} µs on "
        "average. (Sums of a product's partial results count with the product here, so these are a few "
        f"launches fewer than above.) The products' share by the rule: {100 * law.share(model):.0f}%; "
        f"traced: {two.ours:.0f}%."
    )


def tested(two: Two, model: Model, here: Lab) -> None:
    """Show the laptop's share as published and by the rule, and say how far they are apart."""
    known, law = published(), blind(two, here)
    with_gemm = two.theirs + 100 * known["decode_gemm"] / known["decode_kernels"]
    predicted = 100 * law.share(model)
    lines = [
        ("by the rule, from the laptop's data sheet", predicted),
        ("published, if its tensor-core kernel is a product", with_gemm),
        ("published, if it is not", two.theirs),
    ]
    heads = {"what": "RTX 4070 Laptop", "share": "products, % of GPU time"}
    table = pd.DataFrame(lines, columns=list(heads))
    display.table(table, heads, {"share": "{:.1f}"}, "The laptop's share, predicted and published")
    near, far = sorted(abs(predicted - said) for said in (with_gemm, two.theirs))
    total = law.weights_us(model) + law.others_us(model)
    display.say(
        "The published profile has a tensor-core kernel that may be a weight product, so there are two "
        "published shares. "
        + (
            f"The prediction is off by {near:.1f} or {far:.1f} percentage points. "
            if near < 5
            else f"The prediction is {near:.1f} points off or more: the laptop needs another explanation. "
        )
        + _little_confirmed(law, model, predicted)
        + f"For a token it gives {total / 1e3:.1f} ms of GPU time; published are "
        f"{known['decode_kernels'] / 1e3:.1f}. With the laptop's own fixed time and rate of a product, from "
        f"its published products, the rule gives {100 * two.laptop.share(model):.1f}%."
    )
    rest = [(1 - said / 100) * known["decode_kernels"] for said in (with_gemm, two.theirs)]
    ruled = law.others_us(model)
    display.say(
        f"A large share hides an error in the small one. The other launches alone: {ruled / 1e3:.1f} ms by "
        f"the rule, {min(rest) / 1e3:.1f} to {max(rest) / 1e3:.1f} published, so the rule gives "
        f"{_percents([ruled / each - 1 for each in rest])}. Whether the library launched more of them "
        "there, or each took longer, the profile does not say."
    )


def _little_confirmed(law: Rule, model: Model, predicted: float) -> str:
    """That the predicted share, in percent, would be nearly the same without a product's fixed time, where it
    would: then the test says little of that time.
    """
    without = replace(law, product_us=0.0)
    bare, share = without.weights_us(model), 100 * without.share(model)
    if abs(share - predicted) > 3:
        return ""
    return (
        f"But this tests the fixed time of a product hardly at all: without one the rule gives {share:.1f}% "
        f"instead of {predicted:.1f}, for the bytes alone take {bare / 1e3:.1f} ms there. "
    )


def _percents(off: Sequence[float]) -> str:
    """Relative errors in words, the smallest first: "9 to 30% too little", or with signs if they differ."""
    low, high = sorted(off, key=abs)
    if low * high <= 0:
        return f"{low:+.0%} to {high:+.0%} of them"
    return f"{abs(100 * low):.0f} to {abs(100 * high):.0f}% too {'much' if low > 0 else 'little'}"


def sheet(here: Lab, two: Two) -> float:
    """The datasheet's bandwidth of the traced GPU, or the fitted rate where none is known."""
    return here.spec.dram_gb_s if here.spec else two.here.gb_s


def every_gpu(two: Two, model: Model, here: Lab, when: str) -> None:
    """Draw the products' share on every GPU of the course's tables, by the rule, the slowest memory first."""
    table = time_breakdown.everywhere(two.here, sheet(here, two), [two.here.other_us])
    mine = table[table.model == model.name].sort_values("gb_s")
    title = "Products' share of GPU time, by the rule"
    fig, ax = plot.figure(title=title, height=4.6)
    plot.bars(ax, mine.gpu + mine.gb_s.map(", {:,.0f} GB/s".format), mine["%"], "%")
    caption = f"{title} for {model.name}, fitted on {here.run.gpu}, {when}. "
    gpus = sorted(map(device.get, device.names()), key=lambda gpu: gpu.dram_gb_s)
    laws = [time_breakdown.elsewhere(two.here, sheet(here, two), gpu) for gpu in (gpus[0], gpus[-1])]
    slow, fast = (100 * law.share(model) for law in laws)
    caption += f"The faster the memory, the smaller the share: {slow:.0f}% on {gpus[0].name}, {fast:.0f}% "
    caption += f"on {gpus[-1].name}. Assumed everywhere: {two.here.product_us:.1f} µs a product, "
    caption += f"{two.here.other_us:.2f} µs any "
    plot.show(fig, f"{caption}other launch, as here.")


def who_waits(two: Two, step: Any, model: Model, here: Lab) -> None:
    """Say how many GPUs would wait for Python in the eager loop."""
    host = step.launches * step.wall_per_launch_us
    times = []
    for name in device.names():
        there = time_breakdown.elsewhere(two.here, sheet(here, two), device.get(name))
        times.append(there.weights_us(model) + there.others_us(model))
    waiting = sum(us < host for us in times)
    some = f"all {len(times)}" if waiting == len(times) else f"{waiting} of the {len(times)}"
    display.say(
        f"With this host ({step.wall_per_launch_us:.1f} µs a launch, {host / 1e3:.1f} ms a "
        f"token) {some} GPUs in the figure would wait for "
        f"Python in the eager loop. On the laptop a launch cost its caller "
        f"{published()['decode'] / step.launches:.0f} µs, if it made as many launches as here."
    )


# --- what it would be worth ---------------------------------------------------------------------------------


# What each gain of time_breakdown.gains saves; the first two groups are drawn in colours of their own.
_GROUPS = (
    "fewer bytes",
    "fewer launches",
    "less fixed time",
    "bytes and launches",
    "launches and fixed time",
)
_GAINS = {
    "INT4 products, the output head in FP16, launched as now": "fewer bytes",
    "one launch a norm": "fewer launches",
    "nothing but the products": "fewer launches",
    "attention at the roof, no copies": "bytes and launches",
    "FP16 products at the roof": "less fixed time",
    "nothing but the products, and those at the roof": "launches and fixed time",
}


# What each gain sets its parts of a token to.
_SETS = {
    "INT4 products, the output head in FP16, launched as now": "fixed times stay, a layer's bytes in INT4",
    "one launch a norm": "as long as one of a norm's launches",
    "nothing but the products": "gone",
    "attention at the roof, no copies": "cached bytes ÷ read roof",
    "FP16 products at the roof": "bytes ÷ read roof",
    "nothing but the products, and those at the roof": "products' bytes ÷ read roof",
}
_PARTS = {"weight": "products", "norm": "norms", "attention": "attention"}


def _set_to(gain: time_breakdown.Gain, times: Mapping[str, float]) -> str:
    """What a gain sets to what: "norms 673 → 84 µs: as long as one of a norm's launches"."""
    before = sum(times[name] for name in gain.parts)
    after = sum(times[name] / each for name, each in gain.parts.items())
    which = (
        _PARTS.get(next(iter(gain.parts)), "all other kernels")
        if len(gain.parts) == 1
        else "all other kernels"
    )
    which = "all kernels" if len(gain.parts) == len(times) else which
    return f"{which} {before:,.0f} → {after:,.0f} µs: {_SETS[gain.what]}"


def _by_group(groups: Rows) -> Rows:
    return groups.map(_GROUPS.index)


def worth(trace: Rows, walls: Mapping[str, float], two: Two, model: Model, context: int, here: Lab) -> Rows:
    """Show what each improvement would do to a token, and return it; `walls` are microseconds by way."""
    step = trace[trace.operator == "decode"]
    graph, eager = (step[step.variant == variant] for variant in ("graph", "eager"))
    base = graph if len(graph) else eager
    wanted = time_breakdown.gains(base, two.here, model, context, here.roof["dram_read"].value)
    table = time_breakdown.worth(base, wanted, walls["eager"], walls.get("graph", eager.us.sum()))
    heads = {"what": "if a token had", "pct": "changes, % of that time"}
    heads |= {"us": "saves, µs", "graph": "as a graph, times as fast"}
    heads |= {"eager": "eager, times as fast"}
    forms = {"pct": "{:.0f}", "us": "{:,.0f}", "graph": "{:.2f}", "eager": "{:.2f}"}
    wait = walls.get("graph", float(eager.us.sum()))
    table["pct"] *= base.us.sum() / wait
    said = f"As a graph a token takes {wait:,.0f} µs"
    if base.us.sum() < 0.98 * wait:
        pause = (wait - base.us.sum()) / base.launches.sum()
        said += (
            f": {base.us.sum():,.0f} of kernels, and pauses between them, {pause:.1f} µs a launch. The bars "
        )
        said += "keep all pauses; fewer launches would save theirs, too, and gain more than drawn"
    display.say(f"{said}. The law's *s* is a share of this time.")
    title = "What a token would gain as a graph"
    fig, ax = plot.figure("times as fast", title=title, height=1.1 + 0.4 * len(table))
    fig.set_figwidth(page.WIDEST)
    ordered = table.assign(group=table.what.map(_GAINS)).sort_values("group", kind="stable", key=_by_group)
    times = launch_rule.part_times(base)
    sets = ordered.what.map({gain.what: _set_to(gain, times) for gain in wanted})
    plot.bars(ax, list(ordered.group + ": " + ordered.what + "\n" + sets), list(ordered.graph), "×")
    for patch, group in zip(ax.patches, ordered.group, strict=True):
        patch.set_facecolor(
            {_GROUPS[0]: plot.COLOURS[1], _GROUPS[1]: plot.COLOURS[0]}.get(group, plot.PEER_COLOUR)
        )
    text = f"{title}, by the rule, {here.run.gpu}, context {context:,}; below each name what is set to what. "
    text += "Orange: fewer bytes; blue: fewer launches; grey: less fixed time, or two of these."
    fewer, less = (ordered[ordered.group == group].graph.max() for group in ("fewer launches", "fewer bytes"))
    if fewer > less:
        text += f" Without the other launches a token is {fewer:.2f} times as fast, with a quarter of the "
        text += f"bytes {less:.2f} times."
    plot.show(fig, text)
    display.table(table, heads, forms, f"The same, and in the eager loop, {here.run.gpu}", folded=True)
    return table


def worth_said(table: Rows, two: Two, model: Model, here: Lab) -> None:
    """Say what fewer bytes and what fewer launches would bring."""
    int4 = table[table.what.str.startswith("INT4")].iloc[0]
    norm = table[table.what.str.contains("norm")].iloc[0]
    size = model_shapes.weight_bytes(model, "fp16")
    less = model_shapes.weight_bytes(model, "int4_g128", "fp16")
    laptop = blind(two, here)
    small = replace(laptop, gb_s=laptop.gb_s * size / less)
    before, after = (each.weights_us(model) + each.others_us(model) for each in (laptop, small))
    display.say(
        "INT4 products read a quarter of the bytes in every layer, and keep their fixed time: "
        f"{two.here.product_us:.1f} µs a product here. By the rule that makes a token "
        f"{int4.graph:.2f} times as fast here, as a graph; the laptop's GPU, by the rule of the first chart, "
        f"{before / after:.1f} times. Fusing each norm into one launch leaves the weights as they "
        "are. From the norms' "
        f"traced time it brings {norm.graph:.2f} times here, and {norm.eager:.2f} times even in the eager "
        "loop."
    )


def takeaway(two: Two, model: Model, here: Lab) -> None:
    """What to take away, computed."""
    display.say(
        "- The bottleneck depends on which takes longer, a launch's bytes or the launch itself. Products "
        f"take {two.ours:.0f}% of GPU time on {here.run.gpu} and {two.theirs:.0f}% on an RTX 4070 Laptop, "
        f"for which the rule predicts {100 * blind(two, here).share(model):.0f}%.\n"
        "- Three things make a token faster: fewer bytes, less fixed time a product, and fewer launches. The "
        "faster the memory, the more the last two bring. This course does all three.\n"
        "- A share of time belongs to a model, a GPU *and* its kernels. Quote all three."
    )


def explored(two: Two, model: Model, here: Lab) -> Any:
    """The explorer of the rule for some GPUs and every model."""
    costs = sorted({0.5, 1.0, 1.5, round(two.here.other_us, 2), 2.5, 3.0, 4.0, 6.0})
    table = time_breakdown.everywhere(two.here, sheet(here, two), costs)
    return explorer.Explorer(
        "rule",
        table[table["gpu"].isin(device.get(name).name for name in _FEW)],
        x="launch_us",
        y="%",
        controls={"gpu": "GPU", "model": "Model"},
        labels={"launch_us": "µs a small launch", "%": "products, %"},
        title="Share of weight products in a token's GPU time, by the rule",
        start={"gpu": "H200", "model": model.name, "launch_us": round(two.here.other_us, 2)},
    )
