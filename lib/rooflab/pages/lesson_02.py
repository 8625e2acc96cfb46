"""What lesson 02's pages open with."""

from __future__ import annotations

from matplotlib.figure import Figure

from rooflab.analysis import time_breakdown
from rooflab.numerics.model_shapes import Model
from rooflab.pages import Opening, Rows
from rooflab.studies.launch_rule import Rule
from rooflab.view import display, plot


def attribution(rows: Rows, trace: Rows, gpu: str, context: int, roof: float) -> Opening:
    """The first screen of 02: how busy the GPU is, with what, and the three ways under the memory's bound."""
    busy = time_breakdown.busy(rows, trace)
    eager = busy[(busy.seq == context) & (busy.variant == "eager")].iloc[0]
    table = time_breakdown.by_class(trace)
    mine = table[(table.seq == context) & (table.variant == "eager")].set_index("class")
    text = f"Run eagerly on the {gpu}, the GPU works {eager.busy_pct:.0f} % of the time and waits for Python "
    text += f"the rest; of the time it works, weight products take {mine.pct.get('weight', 0.0):.0f} %."
    able = [
        "say how much of a token's time the GPU works, and in which kernels",
        "name the part of the model that a kernel belongs to",
        "decide whether a faster kernel would change anything",
    ]
    return text, able, ways(rows[rows.seq == context], gpu, context, roof)


def ways(rows: Rows, gpu: str, context: int, roof: float) -> tuple[Figure, str]:
    """Tokens a second of each way to run a step, under the bound of its bytes, and the caption."""
    title = f"Tokens a second, context {context:,}"
    limit = 1e9 * roof / float(rows.bytes.iloc[0])
    fig, ax = plot.figure("tok/s", title=title, height=1.9)
    names = rows.impl.str.removeprefix("transformers.")
    plot.bars(ax, list(names), rows.tok_s, "tok/s", ("bytes at the read roof", limit, "tok/s"))
    best = rows.loc[rows.tok_s.idxmax()]
    text = f"{title} on {gpu}, {plot.dates(rows)}: {len(rows)} ways, best {best.tok_s:,.0f} tok/s "
    return fig, f"{text}({best.impl}), {best.tok_s / limit:.0%} of what its bytes allow."


def counters(step: Rows, top: Rows, gpu: str, when: str) -> Opening:
    """The first screen of 02b: how many launches use the memory, and how busy each kind keeps it."""
    big, tiny = step[step.dram_pct >= 50], step[(step.dram_pct < 5) & (step.sm_pct < 5)]
    text = f"On the {gpu} {len(big)} of {len(step)} launches keep the memory at least half busy, and "
    text += f"{len(tiny)} use less than a twentieth of both memory and SMs: too small to fill the GPU."
    able = [
        "read a profiler's counters: bytes, hit rates, occupancy, stalls",
        "say what a launch was waiting for",
        "find the launches that are too small rather than too slow",
    ]
    return text, able, busy_chart(top, gpu, when)


def busy_chart(top: Rows, gpu: str, when: str) -> tuple[Figure, str]:
    """How busy each kind of launch keeps the memory, and the caption."""
    own = (top["class"] == "weight") | (top["class"] == top.part)
    plain = top.part.where(own, top.part + ", " + top["class"])
    names = [
        f"{name}, {row.times} × {row.us:.1f} µs" for name, row in zip(plain, top.itertuples(), strict=True)
    ]
    title = "How busy the memory is, launch by launch"
    fig, ax = plot.figure("% of the memory's rate", title=title, height=1.0 + 0.19 * len(top))
    plot.bars(ax, names, top.dram_pct, "%")
    above = top[top.dram_pct >= 50]
    text = f"{title}, {gpu}, {when}: {len(top)} kinds of launch, {len(above)} at half the rate "
    return fig, f"{text}or more, most {top.dram_pct.max():.0f} % ({top.part[top.dram_pct.idxmax()]})."


def rule(law: Rule, guess: Rule, model: Model, ours: float, theirs: float, gpu: str, when: str) -> Opening:
    """The first screen of 02c: the products' share here and on the published laptop, by the rule too."""
    by_rule = [100 * law.share(model), 100 * guess.share(model)]
    text = (
        f"A launch takes a fixed time, and its bytes on top: products take {ours:.0f} % of the GPU's time on "
    )
    text += f"the {gpu} and {theirs:.0f} % on an RTX 4070 Laptop, for which the rule says {by_rule[1]:.0f} %."
    title = "Weight products' share of GPU time"
    fig, ax = plot.figure("%", title=title, height=2.0)
    names = [f"{gpu}, traced", f"{gpu}, rule", "RTX 4070 Laptop, published", "RTX 4070 Laptop, rule"]
    plot.bars(ax, names, [ours, by_rule[0], theirs, by_rule[1]], "%")
    able = [
        "predict a kernel's share of the time on a GPU that you don't have",
        "say what a faster kernel is worth (Amdahl's law)",
        "choose between fewer bytes and fewer launches",
    ]
    off = display.listed(_off(ours, theirs, by_rule))
    caption = f"{title} on {gpu}, {when}, and as published: the rule is {off} percentage points off."
    return text, able, (fig, caption)


def _off(ours: float, theirs: float, by_rule: list[float]) -> list[str]:
    return [f"{predicted - known:+.0f}" for predicted, known in zip(by_rule, (ours, theirs), strict=True)]
