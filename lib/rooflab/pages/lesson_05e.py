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
from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.ops import mmq
from rooflab.pages import Opening, Rows, facts
from rooflab.studies import mmq as study
from rooflab.studies import q8_0 as decode
from rooflab.view import diagram, display, explorer, plot
from rooflab.view.diagram.passes import tiles_of
from rooflab.words import counted, listed

WAYS = ("dp4a", "int8 MMQ", "in-kernel FP16", "dequantise + cuBLAS", "resident FP16")
_DP4A, _MMQ, _HALVES, _DEQUANTISE, _RESIDENT = WAYS
_COLOUR = {way: plot.COLOURS[k] for way, k in zip(WAYS, (0, 6, 5, 2, 1), strict=True)}
Shape = tuple[int, int]  # n, k


def _way(impl: str, kind: str) -> str:
    """Which of WAYS a contestant is; none for a product without scales, or of other 8-bit weights."""
    if kind != "own":
        return {"torch.matmul": _RESIDENT, study.BASELINE: _DEQUANTISE}.get(impl, "")
    if study.takes_halves(impl):
        return _HALVES
    return _DP4A if impl in (study.DP4A, study.DECODE + "4_planes") else _MMQ


def contenders(evidence: claims.Evidence) -> Rows:
    """The rows of all contestants that use Q8_0 weights or their FP16 copy, with the column `way`."""
    rows = analysis.prompts(evidence)
    ways = [_way(*each) for each in rows[["impl", "kind"]].to_numpy()]
    return rows.assign(way=ways)[[way != "" for way in ways]]


def shapes(rows: Rows) -> list[Shape]:
    """The shapes of the study that were measured; the first is square."""
    measured = set(zip(rows["n"], rows["k"], strict=True))
    return [shape for shape in study.SHAPES if shape in measured]


def _of(rows: Rows, shape: Shape) -> Rows:
    return rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1])]


def by_way(rows: Rows) -> Rows:
    """The fastest contestant of each way at each shape and number of tokens."""
    fastest = rows.loc[rows.groupby(["n", "k", "batch", "way"])["median_us"].idxmin()]
    return fastest.sort_values(["n", "k", "batch"])


def _wide(fastest: Rows, shape: Shape) -> pd.DataFrame:
    """Times (us) of one shape: a row a number of tokens, a column a way."""
    return _of(fastest, shape).pivot(index="batch", columns="way", values="median_us").reindex(columns=WAYS)


def _lead(wide: pd.DataFrame) -> list[tuple[int, str]]:
    """The fastest way and the number of tokens from which on it is, wherever that changes."""
    best = wide.dropna(how="all").idxmin(axis=1)
    return [(int(tokens), str(way)) for tokens, way in best[best != best.shift()].items()]


def _q8_0_against_fp16(wide: pd.DataFrame) -> pd.Series:
    """How many times as fast the best product on Q8_0 weights is as the library on FP16, by tokens."""
    own = wide[[_DP4A, _MMQ, _HALVES]].min(axis=1)
    return (wide[_RESIDENT] / own).dropna()


def opening(fastest: Rows, measured: Sequence[Shape], gpu: str) -> Opening:
    """The first screen: which way is fastest at how many tokens."""
    n, k = measured[0]
    wide = _wide(fastest, (n, k))
    leads, gain = _lead(wide), _q8_0_against_fp16(wide)
    first = leads[0]
    last = max(size for size in wide.index if len(leads) == 1 or size < leads[1][0])
    text = f"On the {gpu}, at {n:,} × {k:,}, {first[1]} is the fastest way "
    text += f"for {counted(first[0], 'token')}" if last == first[0] else f"up to {last} tokens"
    behind = gain.index[gain < 1]
    ahead = gain.index[gain.index < behind.min()]
    if len(behind) and len(ahead):
        text += f", and Q8_0 weights stay ahead up to {ahead.max()} tokens"
    if len(behind):
        beyond = int((gain.index >= behind.min()).sum())
        often = "each" if len(behind) == beyond else f"{len(behind)}"
        text += f". From {behind.min()} on, cuBLAS on resident FP16 weights is faster at {often} of the "
        text += f"{beyond} numbers of tokens that were measured"
    able = [
        "find the number of tokens at which a product stops being memory-bound",
        "read a crossover from measured times, with the quantisation included",
        "write a dispatcher that picks the fastest kernel",
    ]
    title = "The fastest way, by number of tokens"
    caption = f"{title}, on {gpu}, {plot.dates(fastest)}. Each shape from the fewest tokens measured on it."
    return f"{text}.", able, (_strips(fastest, measured, title), caption)


def _strips(fastest: Rows, measured: Sequence[Shape], title: str) -> Figure:
    """A strip a shape over the number of tokens, coloured and named by the fastest way."""
    fig, ax = plot.figure("tokens", title=title, xlog=True, height=1.45 + 0.36 * len(measured))
    fig.set_figwidth(7.4)
    low, high = fastest["batch"].min(), fastest["batch"].max() * 1.15
    for down, shape in enumerate(measured):
        lead = _lead(_wide(fastest, shape))
        most = _of(fastest, shape)["batch"].max() * 1.15
        ends = [start for start, _ in lead[1:]] + [most]
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


def _token_ticks(ax: Any, rows: Rows) -> None:
    ticks = sorted({2**i for i in range(12)} & set(rows["batch"].astype(int)))
    ax.set_xticks(ticks, [str(tokens) for tokens in ticks])


def _in_words(wide: pd.DataFrame) -> str:
    """Which way is the fastest from how many tokens to how many, of those that were measured."""
    lead, sizes, said = _lead(wide), wide.dropna(how="all").index, []
    for k, (start, way) in enumerate(lead):
        if k + 1 == len(lead):
            said.append(f"{way} from {start} on")
            continue
        end = max(size for size in sizes if size < lead[k + 1][0])
        said.append(f"{way} at {start}" if end == start else f"{way} at {start} to {end}")
    return ", ".join(said)


def run_facts(here: Lab, rows: Rows, measured: Sequence[Shape]) -> None:
    """The facts of the run, in one line."""
    sweep = rows.groupby(["n", "k"])["batch"].nunique()
    roof = here.roof
    facts(
        here,
        "mmq",
        f"roofs: read {roof['dram_read'].value:,.0f} GB/s, int8 {roof['int8_tensor'].value:,.0f} TOP/s, "
        f"FP16 {roof['fp16_tensor'].value:,.0f} TFLOP/s",
        *(f"{n:,} × {k:,} at {sweep[n, k]} numbers of tokens" for n, k in measured),
    )


def tiles(fastest: Rows, shape: Shape) -> None:
    """Draw the tiles that each way makes of some numbers of tokens, where those were recorded."""
    drawing = diagram.passes(_of(fastest, shape).sort_values("way", key=lambda ways: ways.map(WAYS.index)))
    if drawing is not None:
        display.say(
            "A kernel takes the tokens in tiles. A tile reads the weights once, whether all its places hold "
            "a token or not. The token that no longer fits begins another pass, or needs a wider tile:"
        )
        drawing.show()
        unexplained = _unexplained(_of(fastest, shape))
        if unexplained:
            display.say(unexplained)


def _unexplained(part: Rows) -> str:
    """Which way is much faster for one more token in the same tiles, or nothing."""
    said = []
    for before, after in ((8, 9), (32, 33)):
        two = [part[part["batch"] == batch].set_index("way") for batch in (before, after)]
        for way in (_DP4A, _MMQ, _HALVES):
            if not all(way in rows.index for rows in two):
                continue
            first, second = (rows.loc[way] for rows in two)
            ratio = second["median_us"] / first["median_us"]
            shapes_of = [
                tiles_of(row["impl"], *row[["n", "k", "batch"]].astype(int)) for row in (first, second)
            ]
            if (
                ratio < 0.9
                and first["impl"] == second["impl"]
                and len({tuple(each) for each in shapes_of}) == 1
            ):
                said.append(f"{way} takes {ratio:.2f} times as long for {after} tokens as for {before}")
    if not said:
        return ""
    return f"In the same tiles {listed(said)}; the recording does not say why."


def ridges(here: Lab, shape: Shape) -> tuple[float, float]:
    """Show, and return, at how many tokens FP16 arithmetic takes as long as reading the weights, for Q8_0 and
    for FP16.
    """
    n, k = shape
    read, unit = here.roof["dram_read"].value, here.roof["fp16_tensor"].value
    table = pd.DataFrame({"form": ["Q8_0", "FP16"], "size": [decode.WEIGHT_BYTES, 2]})
    table["us"] = [roofline.gemm_bytes(1, n, k, size) / read / 1e3 for size in table["size"]]
    table["tokens"] = table["us"] * unit * 1e6 / roofline.gemm_flops(1, n, k)
    names = {"form": "Weights", "us": "Bytes at the roof (µs)"}
    names |= {"tokens": "Ridge, with FP16 arithmetic (tokens)"}
    display.table(table, names, {"us": "{:.1f}", "tokens": "{:.0f}"}, f"{n:,} × {k:,}")
    lower, upper = (float(tokens) for tokens in table["tokens"])
    display.say(
        f"So Q8_0 should win up to {lower:.0f} tokens. From there to {upper:.0f} its lead should shrink to "
        "nothing: Q8_0 waits for arithmetic already, FP16 still for its bytes. Beyond, both do the same "
        "arithmetic."
    )
    return lower, upper


def sweep(fastest: Rows, shape: Shape, gpu: str) -> None:
    """Draw the time of each way over the number of tokens, for one shape."""
    part = _of(fastest, shape)
    title = f"{shape[0]:,} × {shape[1]:,}, cold, quantising included"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=4.2)
    for way in WAYS:
        group = part[part["way"] == way]
        if len(group):
            plot.series(ax, group["batch"], *plot.band(group, "median_us"), label=way, colour=_COLOUR[way])
    _token_ticks(ax, part)
    plot.round_ticks(ax)
    plot.label_ends(ax)
    text = f"{title}, on {gpu}, {plot.dates(part)}: the fastest kernel of each way. "
    plot.show(
        fig,
        f"{text}Level: reading the weights takes the time. A step: one more pass over them, or a wider tile. "
        "A slope at many tokens: arithmetic.",
    )


def crossovers(fastest: Rows, measured: Sequence[Shape]) -> None:
    """Say which way is the fastest at how many tokens, with and without FP16 weights, folded."""
    lines = []
    for n, k in measured:
        wide = _wide(fastest, (n, k))
        lines.append(f"**{n:,} × {k:,}**: {_in_words(wide)}. Without resident FP16: ")
        lines[-1] += f"{_in_words(wide.drop(columns=_RESIDENT))}."
    display.fold_items("The fastest way on each shape, by tokens", lines)


def against_prediction(fastest: Rows, shape: Shape, ridges_of: tuple[float, float]) -> None:
    """Say where Q8_0 is overtaken, beside the ridges, Q8_0's and FP16's, that were predicted."""
    ridge, upper = ridges_of
    wide, text = _wide(fastest, shape), ""
    both = wide[[_DP4A, _DEQUANTISE]].dropna()
    if len(both):
        behind = both.index[both[_DP4A] >= both[_DEQUANTISE]]
        text += "dp4a, which needs no tensor cores and takes eight tokens at a time, "
        text += f"falls behind dequantising at {behind.min()} tokens. " if len(behind) else "stays ahead. "
    gain = _q8_0_against_fp16(wide)
    if len(gain):
        text += f"The best on Q8_0 is {gain.iloc[0]:.2f} times as fast as resident FP16 for "
        text += f"{counted(int(gain.index[0]), 'token')} and {gain.iloc[-1]:.2f} times for {gain.index[-1]}. "
        lost = gain.index[gain < 1]
        if len(lost) and lost[0] < ridge:
            text += f"The prediction is missed: Q8_0 should win up to the ridge, at {ridge:.0f} tokens, and "
            text += f"FP16 weights overtake at {lost[0]}. There our kernels stay further from their "
            text += "roof than cuBLAS from its own. "
        else:
            text += (
                f"**Up to Q8_0's ridge, at {ridge:.0f} tokens, the prediction holds**: Q8_0 wins. Its lead "
            )
            text += f"should be gone by FP16's ridge, at {upper:.0f}; resident FP16 is first ahead at "
            text += f"{lost[0]} tokens. " if len(lost) else "no number of tokens measured. "
        if gain.iloc[-1] < crossover.LEVEL:
            text += "Where arithmetic decides, the smaller format saves memory and hardly any time."
    display.say(text)


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
    display.table(both, names, forms, f"Quantising and the product, {shape[0]:,} × {shape[1]:,}")
    return both


def dispatcher(evidence: claims.Evidence, rows: Rows, gpu: str) -> None:
    """Show what the dispatcher picks, and say how often that is the fastest measured rung on weights that lie
    as its own do, in planes; and what weights in tile order would bring.
    """
    planes = rows[
        [way != _HALVES or mmq.order_of(impl) != "tiles" for impl, way in rows[["impl", "way"]].to_numpy()]
    ]
    picked, repacked = [], []
    for n, k, tokens in analysis.points(evidence):
        try:
            pick = analysis.chosen(evidence, n, k, tokens)
        except claims.NoEvidence:
            continue
        us = pick["median_us"]
        best = analysis.best(planes, n, k, tokens)
        picked.append((n, k, tokens, pick.name, best.name, us / best["median_us"]))
        repacked.append(us / analysis.best(rows, n, k, tokens)["median_us"])
    chosen = pd.DataFrame(picked, columns=["n", "k", "tokens", "picks", "best", "ratio"])
    by = chosen.groupby("picks", sort=False)
    table = by["tokens"].agg(["min", "max", "count"]).assign(lost=by["ratio"].max())
    names = {"picks": "Picks", "min": "From (tokens)", "max": "To", "count": "Points", "lost": "Worst ÷ best"}
    display.table(table.reset_index(), names, {"lost": "{:.2f}"})
    right = chosen["ratio"] <= crossover.LEVEL
    text = (
        f"On the {gpu} the choice is within 2% of the best in this layout at {right.sum()} of {len(chosen)} "
    )
    text += "points."
    if not right.all():
        worst = chosen.loc[chosen["ratio"].idxmax()]
        text += f" The worst is {worst['picks']} at {worst['n']:,} × {worst['k']:,} with {worst['tokens']} "
        text += f"tokens, where {worst['best']} would take {1 / worst['ratio']:.0%} of the time."
    ahead = [ratio for ratio in repacked if ratio > crossover.LEVEL]
    if len(ahead) > len(chosen) - right.sum():
        text += " Weights repacked into tile order ([05d](05d_mmq.ipynb)) would be faster at "
        text += (
            f"{len(ahead)} points, by up to {max(ahead):.2f} times: a dispatcher chooses kernels, and the "
        )
        text += "layout is chosen before it, when weights are loaded."
    display.say(text)


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
        text += f"Of {len(part)} {where}s {(part['verdict'] == 'reached').sum()} are reached. "
    missed = board[(board["verdict"] == "missed") & board["says"].str.contains("exact")]
    if len(missed):
        text += f"The exact product misses {len(missed)}: [05d](05d_mmq.ipynb) shows where its "
        text += "issue slots go. "
    before = (
        "Before these kernels were written, we set *floors* that they had to reach and *aims* to hope for, "
    )
    before += f"on one GPU. {text}{scorecard.raised('05', evidence)}"
    display.fold_parts("What was asked of these kernels, and what was reached", [before, *tables])


def published(rows: Rows, shape: Shape, gpu: str) -> None:
    """Say what the source reports for a prompt by MMQ and by cuBLAS, beside our ratio of the two."""
    told = lab.open("replay", "rtx-4070-ti-published").store.read("mmq").set_index("impl")["median_us"]
    text = "Published, for scale: the source ([part 05](05_q8_0.ipynb) names it) reports "
    text += f"{told['mmq'] / 1e3:.0f} ms for the matrix products of a prompt by MMQ and "
    text += f"{told['cublas'] / 1e3:.0f} ms by dequantising and cuBLAS, "
    text += f"{told['mmq'] / told['cublas']:.2f} times the time, on its GPU."
    prompt = study.PROMPTS[-1]
    times = by_way(rows[(rows["n"] == shape[0]) & (rows["batch"] == prompt)])
    times = times.set_index("way")["median_us"]
    if {_MMQ, _DEQUANTISE} <= set(times.index):
        text += f" Here, at {prompt} tokens of the square shape, the best exact rung takes "
        text += f"{times[_MMQ] / times[_DEQUANTISE]:.2f} times the baseline's time on the {gpu}."
    display.say(text)


def takeaway(fastest: Rows, shape: Shape, share: pd.DataFrame, gpu: str) -> None:
    """What to take away, computed."""
    wide = _wide(fastest, shape)
    gain = _q8_0_against_fp16(wide)
    lead = _lead(wide)
    until = [start for start, way in lead if way == _RESIDENT]
    first = wide[wide.index < until[0]] if until and until[0] > wide.index[0] else wide
    text = f"- On the {gpu} the square shape's fastest way is {_in_words(first).removesuffix(' on')}"
    if len(first) < len(wide):
        apart = (gain[gain.index >= until[0]] - 1).abs().max()
        text += (
            f" to {first.index[-1]} tokens; beyond, the best on Q8_0 is within {apart:.0%} of resident FP16"
        )
    text += ".\n"
    text += "- Reading weights takes the time at few tokens, arithmetic at many"
    if len(gain) and gain.iloc[-1] < crossover.LEVEL < gain.iloc[0]:
        text += ". Q8_0 beats FP16 at few tokens; at many what it saves is memory"
    text += ".\n- A dispatcher is a table of measured crossovers, and the table belongs to one GPU.\n"
    text += "- Say what a time includes"
    if len(share):
        few, many = share.iloc[0], share.iloc[-1]
        text += f": quantising is {few['share']:.0%} of the time at {few['batch']} token"
        text += f" and {many['share']:.1%} at {many['batch']}"
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
    )
