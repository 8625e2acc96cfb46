"""What lesson 05e's page shows: every way to a Q8_0 product by its number of tokens, and who chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rooflab import claims, lab
from rooflab.analysis import q8_0 as analysis
from rooflab.claims import scorecard
from rooflab.hardware import crossover, device
from rooflab.lab import Lab
from rooflab.ops import mmq
from rooflab.pages import Opening, Rows, facts
from rooflab.pages.lesson_05e_dispatcher import dispatcher as dispatcher
from rooflab.pages.lesson_05e_ridges import against_prediction as against_prediction
from rooflab.pages.lesson_05e_ridges import ridges as ridges
from rooflab.pages.lesson_05e_sweep import COLOUR as _COLOUR
from rooflab.pages.lesson_05e_sweep import DP4A, Shape, q8_0_against_fp16
from rooflab.pages.lesson_05e_sweep import WAYS as WAYS
from rooflab.pages.lesson_05e_sweep import by_tokens as _wide
from rooflab.pages.lesson_05e_sweep import leads as _lead
from rooflab.pages.lesson_05e_sweep import of as _of
from rooflab.pages.lesson_05e_sweep import sweep as sweep
from rooflab.pages.lesson_05e_sweep import tiles as tiles
from rooflab.pages.lesson_05e_sweep import token_ticks as _token_ticks
from rooflab.studies import mmq as study
from rooflab.view import display, explorer, plot
from rooflab.words import counted, listed

_DP4A, _MMQ, _HALVES, _DEQUANTISE, _RESIDENT = WAYS


def _way(impl: str, kind: str) -> str:
    """Which of WAYS a contestant is; none for a product without scales, or of other 8-bit weights."""
    if kind != "own":
        return {"torch.matmul": _RESIDENT, study.BASELINE: _DEQUANTISE}.get(impl, "")
    if study.takes_halves(impl):
        return _HALVES
    return _DP4A if impl in DP4A else _MMQ


def contenders(evidence: claims.Evidence) -> Rows:
    """The rows of all contestants that use Q8_0 weights or their FP16 copy, with the column `way`."""
    rows = analysis.prompts(evidence)
    ways = [_way(*each) for each in rows[["impl", "kind"]].to_numpy()]
    return rows.assign(way=ways)[[way != "" for way in ways]]


def shapes(rows: Rows) -> list[Shape]:
    """The shapes of the study that were measured; the first is square."""
    measured = set(zip(rows["n"], rows["k"], strict=True))
    return [shape for shape in study.SHAPES if shape in measured]


def by_way(rows: Rows) -> Rows:
    """The fastest contestant of each way at each shape and number of tokens."""
    fastest = rows.loc[rows.groupby(["n", "k", "batch", "way"])["median_us"].idxmin()]
    return fastest.sort_values(["n", "k", "batch"])


def opening(fastest: Rows, measured: Sequence[Shape], gpu: str) -> Opening:
    """The first screen: which way is fastest at how many tokens."""
    n, k = measured[0]
    wide = _wide(fastest, (n, k))
    leads, gain = _lead(wide), q8_0_against_fp16(wide)
    first = leads[0]
    last = max(size for size in wide.index if len(leads) == 1 or size < leads[1][0])
    text = f"On the {gpu}, at {n:,} × {k:,}, {first[1]} is the fastest way "
    text += f"for {counted(first[0], 'token')}" if last == first[0] else f"up to {last} tokens"
    level = gain.index[gain <= crossover.LEVEL]
    before = gain.index[gain.index < level.min()]
    if len(level) and len(before):
        text += f", and Q8_0 weights beat cuBLAS on resident FP16 weights up to {before.max()} tokens"
    if len(level):
        rest = gain[gain.index >= level.min()]
        span = " to ".join(sorted({f"{rest.min():.2f}", f"{rest.max():.2f}"}))
        text += f". From {level.min()} tokens on Q8_0 runs at {span} times the speed of FP16"
    if len(leads) > 1:
        text += ". A program chooses by such measured crossovers"
    able = [
        "find the number of tokens at which a product stops being memory-bound",
        "read a crossover from measured times, with the quantisation included",
        "write a dispatcher that picks the fastest kernel",
    ]
    title = "The fastest way, by number of tokens"
    caption = f"{title}, on {gpu}, {plot.dates(fastest)}. A way leads until another is more than 2% faster. "
    caption += _two_layouts(fastest, measured) + _single_points(fastest, measured)
    return f"{text}.", able, (_strips(fastest, measured, title), caption)


def _two_layouts(fastest: Rows, measured: Sequence[Shape]) -> str:
    """That the ways in the lead take weights in two layouts, where they do."""
    rows, takes = fastest.set_index(["n", "k", "batch", "way"])["impl"], {}
    for shape in measured:
        for tokens, way in _lead(_wide(fastest, shape)):
            impl = rows[(*shape, tokens, way)]
            if way in (_DP4A, _MMQ, _HALVES):
                takes.setdefault(way if way != _HALVES else mmq.order_of(impl), way)
    tiled = takes.pop("tiles", None)
    if not tiled or not takes:
        return ""
    return (
        f"The weights lie in memory in two layouts: {listed(takes)} take planes, the fastest {tiled} takes "
        "tile order."
    )


def _single_points(fastest: Rows, measured: Sequence[Shape]) -> str:
    """Which leads rest on one measured number of tokens between another way's, where there are any."""
    found = []
    for n, k in measured:
        wide = _wide(fastest, (n, k))
        lead, sizes = _lead(wide), wide.dropna(how="all").index
        for before, (start, way), (end, after) in zip(lead, lead[1:], lead[2:], strict=False):
            if before[1] == after and ((sizes >= start) & (sizes < end)).sum() == 1:
                found.append(f"{way} at {start:,} tokens of {n:,} × {k:,}")
    if not found:
        return ""
    return f" A lead at one measured number of tokens is no crossover yet: {listed(found)}."


def _strips(fastest: Rows, measured: Sequence[Shape], title: str) -> Figure:
    """A strip a shape over the number of tokens, coloured and named by the fastest way."""
    fig, ax = plot.figure("tokens", title=title, xlog=True, height=1.45 + 0.36 * len(measured))
    fig.set_figwidth(7.4)
    low, high = fastest["batch"].min(), fastest["batch"].max() * 1.15
    for down, shape in enumerate(measured):
        lead = _lead(_wide(fastest, shape))
        most = _of(fastest, shape)["batch"].max() * 1.15
        ends = [start for start, _ in lead[1:]] + [most]
        for left, right in ((low, lead[0][0]), (most, high)):
            if right > 1.2 * left:
                ax.barh(
                    down, right - left, left=left, height=0.8, color="none", edgecolor="#BBB", hatch="///"
                )
                at = (math.sqrt(left * right), down)
                said = {"ha": "center", "va": "center", "fontsize": 8, "color": "#333"}
                ax.text(
                    *at, "not measured", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, **said
                )
        for (start, way), end in zip(lead, ends, strict=True):
            ax.barh(down, end - start, left=start, height=0.8, color=_COLOUR[way], edgecolor="white")
            if math.log(end / start) > math.log(high / low) / 7:
                ink = "black" if way in (_RESIDENT, _DEQUANTISE) else "white"
                at = (math.sqrt(start * end), down)
                ax.text(*at, way, ha="center", va="center", color=ink, fontsize=8.5, gid="in the key too")
    led = {way for shape in measured for _, way in _lead(_wide(fastest, shape))}
    handles = [Patch(color=_COLOUR[way], label=way) for way in WAYS if way in led]
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=len(handles),
        fontsize=8.5,
        frameon=False,
    )
    ax.set_title(ax.get_title("left"), loc="left", fontsize=10, fontweight="bold", pad=26)
    ax.set_yticks(range(len(measured)), [f"{n:,} × {k:,}" for n, k in measured])
    ax.set_ylim(len(measured) - 0.5, -0.5)
    ax.set_xlim(low, high)
    _token_ticks(ax, fastest)
    ax.grid(False)
    return fig


def _in_words(wide: pd.DataFrame) -> str:
    """Which way is the fastest from how many tokens to how many, of those that were measured."""
    lead, sizes, said = _lead(wide), wide.dropna(how="all").index, []
    for k, (start, way) in enumerate(lead):
        if k + 1 == len(lead):
            said.append(f"{way} from {start:,} on")
            continue
        end = max(size for size in sizes if size < lead[k + 1][0])
        said.append(f"{way} at {start:,}" if end == start else f"{way} at {start:,} to {end:,}")
    return ", ".join(said)


def run_facts(here: Lab, rows: Rows, measured: Sequence[Shape]) -> None:
    """The facts of the run, in one line."""
    sweep = rows.groupby(["n", "k"])["batch"].nunique()
    roof = here.roof
    facts(
        here,
        "mmq",
        f"roofs: read {roof['dram_read'].value:,.0f} GB/s, FP16 {roof['fp16_tensor'].value:,.0f} TFLOP/s",
        *(f"{n:,} × {k:,} at {sweep[n, k]} numbers of tokens" for n, k in measured),
    )


def crossovers(fastest: Rows, measured: Sequence[Shape]) -> None:
    """Say which way is the fastest at how many tokens, with and without FP16 weights, folded."""
    lines = []
    for n, k in measured:
        wide = _wide(fastest, (n, k))
        sizes = wide.dropna(how="all").index
        line = f"**{n:,} × {k:,}**, measured at {sizes.min():,} to {sizes.max():,}: {_in_words(wide)}."
        without = _in_words(wide.drop(columns=_RESIDENT))
        if without != _in_words(wide):
            line += f" Without resident FP16: {without}."
        lines.append(line)
    title = "The fastest way on each shape, by tokens: a way leads until another is more than 2% faster"
    display.fold_items(title, lines)


def quantiser_share(here: Lab, fastest: Rows, shape: Shape) -> pd.DataFrame:
    """Show, and return, the quantiser's own time beside the fastest product on int8, by tokens."""
    cases = [c for c in here.cases("q8_0") if c.operator == "q8_1" and c.k == shape[1]]
    alone = here.measure("q8_0", cases)
    alone = alone[alone["impl"] == alone["impl"].iloc[-1]]  # the last rung of the quantiser
    on_int8 = _of(fastest, shape)
    on_int8 = on_int8[on_int8["way"].isin((_DP4A, _MMQ))].sort_values("median_us").drop_duplicates("batch")
    both = alone.merge(on_int8, on="batch", suffixes=("_alone", ""))
    both["share"] = both["median_us_alone"] / both["median_us"]
    names = {"batch": "Tokens", "median_us_alone": "Quantising (µs)", "impl": "Fastest on int8"}
    names |= {"median_us": "With it (µs)", "share": "Share"}
    forms = {"median_us_alone": "{:.1f}", "median_us": "{:.1f}", "share": "{:.1%}"}
    forms["batch"] = "{:,.0f}"
    display.table(both, names, forms, f"Quantising and the product, {shape[0]:,} × {shape[1]:,}")
    if len(both) > 1:
        few, many = both.iloc[0], both.iloc[-1]
        display.say(
            f"Quantising takes {few['share']:.1%} of the time at {counted(int(few['batch']), 'token')} and "
            f"{many['share']:.1%} at {many['batch']:,}. All int8 times on this page include it."
        )
    return both


def goals(evidence: claims.Evidence, gpu: str) -> None:
    """Show every floor and aim set for these kernels with what was reached, and count them."""
    board = claims.board(claims.select("05e_tokens", source=claims.COURSE), evidence)
    board["verdict"] = board["word"].replace({claims.HOLDS: "reached", claims.SHORT: "missed"})
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"what": "What", "bars": "Asked", "measured": "Reached", "verdict": "Verdict"}
    text = ""
    if gpu != scorecard.GPU:
        text += f"These figures are of the {gpu}, the bars of the {scorecard.GPU}. "
    tables = []
    for where in ("floor", "aim"):
        part = board[board["group"] == where]
        tables.append((part, names, {}, f"{where.capitalize()}s, asked of the {scorecard.GPU}"))
        text += f"{(part['verdict'] == 'reached').sum()} of {len(part)} {where}s are reached. "
    missed = board[(board["verdict"] == "missed") & board["says"].str.contains("exact")]
    if len(missed):
        text += f"The exact product misses {len(missed)}: [05d](05d_mmq.ipynb) shows where its "
        text += "issue slots go. "
    before = (
        "Before these kernels were written, we set *floors* that they had to reach and *aims* to hope for, "
    )
    before += f"on one GPU. {text}{scorecard.raised('05', evidence)}"
    display.fold_parts("What was asked of these kernels, and what was reached", [before, *tables])


def published(here: Lab, rows: Rows, shape: Shape) -> None:
    """Say what the source reports for a prompt by MMQ and by cuBLAS, beside our ratio of the two."""
    told = lab.open("replay", "rtx-4070-ti-published").store.read("mmq").set_index("impl")["median_us"]
    text = "Published, for comparison: the source ([part 05](05_q8_0.ipynb) names it) reports "
    text += f"{told['mmq'] / 1e3:.0f} ms for the matrix products of a prompt by MMQ and "
    text += f"{told['cublas'] / 1e3:.0f} ms by dequantising and cuBLAS, "
    text += f"{told['mmq'] / told['cublas']:.2f} times the time, on its GPU."
    prompt = study.PROMPTS[-1]
    times = by_way(rows[(rows["n"] == shape[0]) & (rows["batch"] == prompt)])
    times = times.set_index("way")["median_us"]
    if {_MMQ, _DEQUANTISE} <= set(times.index):
        text += f" Here, at {prompt:,} tokens of the square shape, the best exact rung takes "
        text += f"{times[_MMQ] / times[_DEQUANTISE]:.2f} times the baseline's time on the {here.run['gpu']}."
    theirs = device.get("rtx-4070-ti")
    text += " By issue slots alone int8 could pay in full on the source's GPU: it has "
    text += f"{study.room(theirs):.1f} for a sum, and scaling takes three ([05d](05d_mmq.ipynb)). Its int8 "
    text += (
        f"peak is {theirs.int8_tensor / theirs.fp16_tensor:.1f} times that of FP16 with FP32 sums, its MMQ "
    )
    text += f"{told['cublas'] / told['mmq']:.2f} times as fast. What holds it there is not known."
    display.say(text)


def takeaway(fastest: Rows, shape: Shape, share: pd.DataFrame, gpu: str) -> None:
    """What to take away, computed."""
    wide = _wide(fastest, shape)
    gain = q8_0_against_fp16(wide)
    lead = _lead(wide)
    until = [start for start, way in lead if way == _RESIDENT]
    first = wide[wide.index < until[0]] if until and until[0] > wide.index[0] else wide
    text = f"- On the {gpu} the square shape's fastest way is {_in_words(first).removesuffix(' on')}"
    if len(first) < len(wide):
        rest = gain[gain.index >= until[0]]
        span = sorted({f"{rest.min():.2f}", f"{rest.max():.2f}"})
        text += (
            f" to {first.index[-1]:,} tokens; beyond, the best on Q8_0 runs at {' to '.join(span)} times the "
        )
        text += "speed of resident FP16"
    text += ".\n"
    text += "- Reading weights takes the time at few tokens, arithmetic at many"
    if len(gain) and gain.iloc[-1] < crossover.LEVEL < gain.iloc[0]:
        text += ". Q8_0 beats FP16 at few tokens; at many what it saves is memory"
    text += (
        ".\n- A dispatcher goes by measured crossovers, or by a formula fitted to measured times where the "
    )
    text += "shape decides, too. Both belong to one GPU.\n"
    text += "- Say what a time includes"
    if len(share):
        text += f": here quantising, up to {share['share'].max():.1%} of it"
    display.say(f"{text}.")


def explore(here: Lab, rows: Rows, gpu: str) -> Any:
    """The explorer of every contestant, by shape and number of tokens."""
    read = here.roof["dram_read"].value
    return explorer.Explorer(
        "q8-tokens",
        rows.drop(columns="way"),
        x="batch",
        y="median_us",
        controls={"impl": "Contestant", "n": "Rows"},
        title=f"Q8_0 products on {gpu}, cold, quantising included",
        bound=lambda case: study.Mmq().count(case).bytes / read / 1e3,
        measure=explorer.measurer(here),
        ylog=True,
        start=_shown_first(rows),
    )


def _shown_first(rows: Rows) -> dict[str, Any]:
    """The explorer's first row: our fastest at the most tokens of the first shape."""
    ours = _of(rows[rows["way"].isin((_DP4A, _MMQ, _HALVES))], shapes(rows)[0])
    best = ours[ours["batch"] == ours["batch"].max()].sort_values("median_us").iloc[0]
    return {"impl": best["impl"], "n": best["n"], "batch": best["batch"]}
