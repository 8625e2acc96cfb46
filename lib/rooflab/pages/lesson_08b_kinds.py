"""Where a prompt's time goes, by kinds of kernels, in lesson 08b."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Rows
from rooflab.studies import decode, prefill
from rooflab.view import display, plot


def time_by_kind(lab: Lab) -> tuple[Rows, Lab, Rows, list[Any]]:
    """Draw the GPU's ms by kind of kernel at one length: the trace, its lab, the shares, the kinds."""
    asking = lab.held("prefill", prefill.traced(), "cupti")
    traced = lab.profile("prefill", asking, "cupti")
    whose = lab
    if traced.empty:
        whose = display.borrowed(lab, "no prompt was traced")
        traced = whose.profile("prefill", whose.held("prefill", prefill.traced(), "cupti"), "cupti")
    pie = ablation.pie(traced)
    families = [c for c in pie.columns if c not in ("case", "us", "name", "seq") and pie[c].max() > 0]
    lengths = sorted(set(pie.seq))
    length = prefill.TRACED if prefill.TRACED in lengths else lengths[len(lengths) // 2]
    one = pie[pie.seq == length]
    title = f"A prompt of {length:,} tokens: GPU time by kind of kernel"
    fig, ax = plot.figure("ms on the GPU", title=title, height=1.5 + 0.28 * len(one))
    plot.stacked(ax, list(one.name), {name: one[name] * one.us / 1e5 for name in families}, "ms")
    for place, us in enumerate(one.us):
        ax.text(us / 1e3, place, f" {us / 1e3:.1f} in all", va="center", fontsize=8)
    ax.set_xlim(0, 1.16 * one.us.max() / 1e3)
    most = one.set_index("name")["attention"]
    ends = f"from {most.max():.0f}% ({most.idxmax()}) to {most.min():.0f}% ({most.idxmin()})"
    plot.show(fig, f"{title} on {whose.run.gpu}, {plot.dates(traced)}: {len(one)} ways, attention {ends}.")
    return traced, whose, pie, families


def time_by_kind_table(families: list[Any], pie: Rows, whose: Lab, prompt: int, traced: Rows) -> None:
    """Show the GPU's time by kind of kernel, folded, and say attention's share."""
    heads = {"seq": "tokens", "name": "way", "us": "GPU, ms"} | {name: name for name in families}
    display.table(
        pie.assign(us=pie.us / 1e3),
        heads,
        {"seq": "{:,}", "us": "{:.1f}"} | dict.fromkeys(families, "{:.0f}"),
        f"Percent of GPU time by kind of kernel, {whose.run.gpu}",
        folded=True,
    )
    first, final = (pie[(pie.case == prefill.traced((prompt,))[i].id)] for i in (-2, -1))
    display.say(
        f"In the first way attention is {first.attention.iloc[0]:.0f}% of {prompt:,} tokens' "
        f"{first.us.iloc[0] / 1e3:.0f} ms on the GPU; in the last it is "
        f"{final.attention.iloc[0]:.0f}% of {final.us.iloc[0] / 1e3:.1f} ms."
        if len(first) and len(final)
        else ""
    )
    if (traced.case == prefill.share_case().id).any():
        share = ablation.mmq_share(traced, prefill.share_case().id)
        display.say(
            f"With Q8_0 weights, our own products make up **{share:.0%}** of the products' time in the end; "
            "the weights are never FP16 in memory."
        )


def beyond_the_bound(pie: Rows, rows: Rows, bound: Rows, prompt: int, spec: Any = None) -> None:
    """Say what the time of the last way in FP16 is made of, beside its bound; nothing where it was not traced
    or timed.
    """
    way = prefill.ways("fp16")[-1]
    timed = rows[(rows.model == decode.MODEL) & (rows.seq == prompt) & (rows.format == "fp16")]
    timed, least = timed[timed.impl == way], bound[bound.seq == prompt]
    one = pie[pie.case == prefill.traced((prompt,))[1].id]
    if timed.empty or least.empty or one.empty:
        return
    us, ms, least_ms = one.us.iloc[0], timed.median_us.iloc[0] / 1e3, least.ms.iloc[0]
    part = {name: one[name].iloc[0] * us / 1e5 for name in _KINDS if name in one}
    products = part.get("cuBLAS", 0.0) + part.get("our products", 0.0)
    rest = ms - sum(part.values())
    near = bool(abs(products / least_ms - 1) < _NEAR_BOUND)
    text = f"**From the bound, {least_ms:.1f} ms, to the {ms:.1f} ms of `{way}` in FP16:** the products take "
    text += f"{products:.1f}{', about the bound' * near}; attention takes {part['attention']:.1f}, and "
    text += f"norms, rotation and gating {part['our others'] + part['torch']:.1f}."
    if rest > 0:
        text += f" The remaining {rest:.1f} are outside the traced kernels."
    if near and least_ms < ms:
        text += (
            " So the products run near the roof, the rate that a library's large product reached "
            "([lesson 01b](01b_roofs.ipynb))"
        )
        if spec is not None:
            roof = float(least.tera.iloc[0] / least_ms * 1e3)
            text += f", {roof / spec.fp16_tensor:.0%} of the data sheet's peak"
        text += "; what is beside them keeps the prompt below it."
    display.say(text)


_KINDS = ("cuBLAS", "our products", "attention", "our others", "torch")  # of which a prompt in FP16 is made
_NEAR_BOUND = 0.1  # products whose time is so near the bound run near the roof


def fixed_times(traced: Rows) -> tuple[Rows, str, str, Rows, float]:
    """The time of each of torch's kernels that does not depend on the length: the trace, the two ways
    compared, these times, the largest.
    """
    study = prefill.Prefill()
    spent = traced.assign(us=pd.to_numeric(traced.us), seq=[study.case(case).seq for case in traced.case])
    slow, fast = (f"prefill/{prefill.ways('q8_0')[i]} format=q8_0" for i in (0, -1))
    before = spent[spent.case.str.startswith(slow)]
    by_kernel = before[before.family == prefill.OTHERS].pivot_table("us", "kernel", "seq", "sum").dropna()
    fixed = pd.Series(np.nan, by_kernel.index)
    if by_kernel.shape[1] > 1:
        fixed = by_kernel.apply(lambda us: np.polyfit(us.index, us, 1, w=1 / us)[1], axis=1).sort_values()
    making = fixed.max() if len(fixed) else float("nan")
    return spent, slow, fast, fixed, making


def mmq_by_place(
    whose: Lab,
    lab: Lab,
    rows: Rows,
    prompt_asked: int,
    spent: Rows,
    slow: str,
    fast: str,
    making: float,
    fixed: Rows,
    model: Any,
) -> None:
    """Say what 2_mmq brings as the second step and as the last, and fold how that is known."""
    timed = rows if whose is lab else whose.measure("prefill", whose.held("prefill", whose.cases("prefill")))
    timed = timed[(timed.model == decode.MODEL) & (timed.seq == prompt_asked)].set_index(["format", "impl"])
    now = spent[spent.seq == prompt_asked]
    cublas = now[now.case.str.startswith(slow) & (now.family == "cuBLAS")].us.sum() / 1e3
    own = now[now.case.str.startswith(fast) & (now.family == "our products")].us.sum() / 1e3
    asked = [("q8_0", "1_scalar"), ("q8_0", "2_mmq"), ("fp16", "6_graph"), ("q8_0", "6_graph")]
    if len(fixed) < 2 or not set(asked) <= set(timed.index):
        return
    first, second, graph, last = (timed.loc[key].median_us / 1e3 for key in asked)
    written = making / 1e3
    placed = pd.DataFrame(
        [
            ("second, as timed", first, second),
            ("last: FP16's 6_graph and the writing, against Q8_0's 6_graph", graph + written, last),
        ],
        columns=["place", "off", "on"],
    )
    placed["saved"], placed["gain"] = placed.off - placed.on, placed.off / placed.on
    early, late = placed.gain
    off, on = (timed.loc[key] for key in asked[:2])
    level = bool(off.q1_us <= on.q3_us and on.q1_us <= off.q3_us)
    display.say(
        f"**Taken last instead of second, `2_mmq` would bring {late:.2f} times**: without it every prompt "
        f"first writes FP16 copies of the weights, {written:.1f} ms. As the second step, in a prompt of "
        f"{first:.0f} ms, it brought {early:.2f} times"
        + level * ", which is no difference: the middle halves of the two steps' runs overlap"
        + "."
    )
    least = 3 * model_shapes.body(model) / whose.roof["dram_read"].value / 1e6
    trace = written + cublas - own
    beyond = placed.saved.iloc[0] - trace
    runs = timed.loc[asked[0]]
    lines = [
        "**The writing.** It takes a time that does not depend on the prompt's length; all else that torch "
        "does grows with it. So a line is fitted through the times of each of torch's kernels in "
        f"`1_scalar`, by length. At zero tokens one kernel, `{fixed.index[-1]}`, still has {written:.1f} ms "
        f"(the next largest has {fixed.iloc[-2] / 1e3:.1f}): it writes the FP16 weights. Three bytes a "
        f"weight, one read and two written, would take {least:.1f} ms at the read roof.",
        f"**The products.** cuBLAS takes {cublas:.1f} ms for them; ours, as in `7_fused` and with gating in "
        f"them, {own:.1f}. So by the trace the step saves {written:.1f} + {cublas:.1f} − {own:.1f} = "
        f"{round(written, 1) + round(cublas, 1) - round(own, 1):.1f} ms of the GPU's time.",
    ]
    if beyond > 0:
        noise = (runs.q3_us - runs.q1_us) / 1e3
        text = f"**Second, it saved {placed.saved.iloc[0]:.1f} ms**, more than that. "
        if beyond < noise:
            text += "The rest is within the noise of the host's calls: the middle half of the runs of "
            text += f"`1_scalar` lies between {runs.q1_us / 1e3:.1f} and {runs.q3_us / 1e3:.1f} ms."
        else:
            text += f"What the other {beyond:.1f} ms are was not traced."
        lines.append(text)
    heads = {"place": "place of the step", "off": "without it, ms", "on": "with it, ms"}
    heads |= {"saved": "saved, ms", "gain": "×"}
    forms = dict.fromkeys(("off", "on", "saved"), "{:.1f}") | {"gain": "{:.2f}"}
    table = (placed, heads, forms, f"2_mmq by its place, {prompt_asked:,} tokens, Q8_0, {whose.run.gpu}")
    display.fold_parts("How 2_mmq was placed last, and what it saves by the trace", [table, *lines])
