"""What lesson 05e's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims, lab
from rooflab.analysis import q8_0 as analysis
from rooflab.claims import scorecard
from rooflab.hardware import crossover, roofline
from rooflab.lab import Lab
from rooflab.pages import Rows, one_line
from rooflab.studies import mmq as study
from rooflab.studies import q8_0 as decode
from rooflab.view import display, explorer, plot


def run_facts(rows: Rows, gpu: str, here: Lab, read_roof: float, shapes: list[Any]) -> None:
    """The facts of the run, in one line."""
    sweep = rows.groupby(["n", "k"])["batch"].nunique()
    facts = {
        "GPU": gpu,
        "Figures": {"live": "measured here", "replay": "replayed"}[here.mode],
        "Run": here.run_of("mmq")["run"],
        "Read roof": f"{read_roof:,.0f} GB/s",
        "Tensor roofs": f"int8 {here.roof['int8_tensor'].value:,.0f} TOP/s, "
        f"FP16 {here.roof['fp16_tensor'].value:,.0f} TFLOP/s",
        "Shapes": "; ".join(f"{n} × {k} at {sweep[n, k]} numbers of tokens" for n, k in shapes),
    }
    one_line(facts)


def prediction_table(shapes: list[Any], here: Lab, read_roof: float) -> Rows:
    """Prediction: the table."""
    n, k = shapes[0]
    unit = here.roof["fp16_tensor"].value
    ridges = []
    for form, size in (("Q8_0", decode.WEIGHT_BYTES), ("FP16", 2)):
        us = roofline.gemm_bytes(1, n, k, size) / read_roof / 1e3
        ridges.append([form, us, us * unit * 1e6 / roofline.gemm_flops(1, n, k)])
    ridges = pd.DataFrame(ridges, columns=["form", "us", "tokens"])
    names = {"form": "Weights", "us": "Bytes at the roof (µs)"}
    names |= {"tokens": "Ridge, with FP16 arithmetic (tokens)"}
    display.table(ridges, names, {"us": "{:.1f}", "tokens": "{:.0f}"}, f"{n} × {k}")
    return ridges


def sweep_rows(rows: Rows) -> tuple[Any, Rows]:
    """The sweep: the rows behind it."""
    WAYS = ("dp4a", "MMQ", "halves", "dequantise + cuBLAS", "resident FP16")

    def way(impl):
        if impl == study.BASELINE or impl == "torch.matmul":
            return WAYS[3] if impl == study.BASELINE else WAYS[4]
        if study.takes_halves(impl):
            return WAYS[2]
        return WAYS[0] if impl in (study.DP4A, study.DECODE + "4_planes") else WAYS[1]

    rows["way"] = rows["impl"].map(way)
    fastest = rows.loc[rows.groupby(["n", "k", "batch", "way"])["median_us"].idxmin()]
    fastest = fastest.sort_values(["n", "k", "batch"])
    return WAYS, fastest


def sweep_figure(fastest: Rows, ways: Any, gpu: str, shapes: list[Any]) -> Any:
    """The sweep: the figure."""

    def drawn(n, k):
        part = fastest[(fastest["n"] == n) & (fastest["k"] == k)]
        title = f"{n} × {k}, cold, quantising included"
        fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True, height=4.2)
        for name in ways:
            group = part[part["way"] == name]
            if len(group):
                plot.series(ax, group["batch"], *plot.band(group, "median_us"), label=name)
        ticks = sorted({2**i for i in range(12)} & set(part["batch"].astype(int)))
        ax.set_xticks(ticks, [f"{tokens}" for tokens in ticks])
        plot.round_ticks(ax)
        plot.label_ends(ax)
        text = plot.caption(part, gpu, title, y="median_us")
        plot.show(fig, f"{text} Flat: bytes decide. Rising: arithmetic does. Steps: another tile begins.")

    drawn(*shapes[0])
    return drawn


def crossovers_said(shapes: list[Any], fastest: Rows, ways: Any, gpu: str) -> Any:
    """Crossovers: in words."""

    def ranges(part):
        best = part.loc[part.groupby("batch")["median_us"].idxmin()].sort_values("batch")
        new = best["way"] != best["way"].shift()
        return ", ".join(f"{row['way']} from {row['batch']} on" for _, row in best[new].iterrows())

    text = ""
    for n, k in shapes:
        part = fastest[(fastest["n"] == n) & (fastest["k"] == k)]
        text += f"- **{n} × {k}**: {ranges(part[part['way'] != ways[4]])}. With resident FP16: "
        text += f"{ranges(part)}.\n"
    display.say(f"On the {gpu}, by tokens:\n\n{text}")
    return ranges


def crossovers_said_2(fastest: Rows, shapes: list[Any], ways: Any, ridges: Rows) -> tuple[Rows, Rows, Rows]:
    """Crossovers: in words."""
    gain: Any = None
    square = fastest[(fastest["n"] == shapes[0][0]) & (fastest["k"] == shapes[0][1])]
    wide = square.pivot(index="batch", columns="way", values="median_us")
    text = ""
    if {ways[0], ways[3]} <= set(wide.columns):
        both = wide[[ways[0], ways[3]]].dropna()
        behind = both.index[both[ways[0]] >= both[ways[3]]]
        text += "dp4a, which needs no tensor cores and takes eight tokens at a time, "
        text += f"falls behind dequantising at {behind.min()} tokens. " if len(behind) else "stays ahead. "
    own = wide[[name for name in ways[:3] if name in wide]].min(axis=1)
    if ways[4] in wide:
        gain = (wide[ways[4]] / own).dropna()
        text += f"Against resident FP16 the best on Q8_0 runs at {gain.iloc[0]:.2f} times its speed for "
        text += f"{gain.index[0]} token and at {gain.iloc[-1]:.2f} for {gain.index[-1]}. "
        lost, ridge = gain.index[gain < 1], ridges["tokens"].iloc[0]
        if len(lost) and lost[0] < ridge:
            text += f"The prediction is missed: Q8_0 should win up to the ridge, at {ridge:.0f} tokens, and "
            text += f"resident FP16 overtakes at {lost[0]}. There our kernels stay further from their "
            text += "roof than cuBLAS from its own. "
        if gain.iloc[-1] < crossover.LEVEL:
            text += "Where arithmetic decides, the smaller format saves memory and no time."
    display.say(text)
    return square, wide, gain


def quantising_apart_included_table(
    here: Lab, shapes: list[Any], square: Rows, ways: Any
) -> tuple[Rows, str]:
    """Quantising: apart and included: the table."""
    alone = [c for c in here.cases("q8_0") if c.operator == "q8_1" and c.k == shapes[0][1]]
    alone = here.measure("q8_0", alone)
    alone = alone[alone["impl"] == alone["impl"].iloc[-1]].set_index("batch")["median_us"]
    lines = []
    for tokens in alone.index:
        found = square[(square["batch"] == tokens) & ~square["way"].isin(ways[2:])]
        if len(found):
            row = found.sort_values("median_us").iloc[0]
            apart, whole = alone[tokens], row["median_us"]
            lines.append([tokens, apart, row["impl"], whole, apart / whole])
    columns = ["Tokens", "Quantising (µs)", "Fastest on int8", "With it (µs)", "Share"]
    lines = pd.DataFrame(lines, columns=columns)
    forms = {"Quantising (µs)": "{:.1f}", "With it (µs)": "{:.1f}", "Share": "{:.1%}"}
    title = f"{shapes[0][0]} × {shapes[0][1]}"
    display.table(lines, dict(zip(columns, columns, strict=True)), forms, title)
    return lines, title


def quantising_apart_included_table_2(here: Lab, rows: Rows, title: str) -> Rows:
    """Quantising: apart and included: the table."""
    pairs = []
    prepared = [c for c in here.cases("mmq") if c.options == "prepared=1"]
    prepared = here.measure("mmq", prepared)
    whole = rows.set_index(["n", "k", "batch", "impl"])["median_us"]
    for _, row in prepared.iterrows():
        key = tuple(row[["n", "k", "batch", "impl"]])
        if key in whole.index:
            more = whole[key] - row["median_us"]
            pairs.append([row["impl"], row["batch"], row["median_us"], whole[key], more])
    columns = ["Rung", "Tokens", "Quantised before (µs)", "Included (µs)", "Difference (µs)"]
    pairs = pd.DataFrame(pairs, columns=columns)
    forms = dict.fromkeys(columns[2:], "{:,.1f}")
    display.table(pairs, dict(zip(columns, columns, strict=True)), forms, title)
    return prepared


def dispatcher_table(evidence: Any, rows: Rows) -> Rows:
    """A dispatcher: the table."""
    chosen = []
    for n, k, tokens in analysis.points(evidence):
        try:
            pick = analysis.chosen(evidence, n, k, tokens)
        except claims.NoEvidence:
            continue
        best = analysis.best(rows, n, k, tokens)
        chosen.append([n, k, tokens, pick.name, best.name, pick["median_us"] / best["median_us"]])
    chosen = pd.DataFrame(chosen, columns=["n", "k", "tokens", "picks", "best", "ratio"])
    by = chosen.groupby("picks", sort=False)
    table = by["tokens"].agg(["min", "max", "count"]).assign(lost=by["ratio"].max())
    names = {"picks": "Picks", "min": "From (tokens)", "max": "To", "count": "Points"}
    names |= {"lost": "At worst, times the best"}
    display.table(table.reset_index(), names, {"lost": "{:.2f}"})
    return chosen


def dispatcher_said(chosen: Rows, gpu: str) -> None:
    """A dispatcher: in words."""
    right = chosen["ratio"] <= crossover.LEVEL
    text = f"On the {gpu} the choice is within 2 % of the best at {right.sum()} of {len(chosen)} points."
    if not right.all():
        worst = chosen.loc[chosen["ratio"].idxmax()]
        text += (
            f" The worst is {worst['picks']} at {worst['n']} × {worst['k']} with {worst['tokens']} tokens, "
        )
        text += f"where {worst['best']} would take {1 / worst['ratio']:.0%} of the time."
    display.say(text)


def asked_reached_table(evidence: Any) -> Rows:
    """What was asked, and what was reached: the table."""
    board = claims.board(claims.select("05e_tokens", source=claims.COURSE), evidence)
    board["verdict"] = board["word"].map({claims.HOLDS: "reached", claims.SHORT: "missed"})
    board["verdict"] = board["verdict"].fillna(board["word"])
    board["what"] = board["says"] + ": " + board["quantity"]
    names = {"what": "What", "bars": "Asked", "measured": "Reached", "verdict": "Verdict"}
    for where in ("floor", "aim"):
        part = board[board["group"] == where]
        display.table(part, names, caption=f"{where.capitalize()}s, asked of the {scorecard.GPU}")
    return board


def asked_reached_said(gpu: str, board: Rows) -> None:
    """What was asked, and what was reached: in words."""
    text = ""
    if gpu != scorecard.GPU:
        text += f"These figures are of the {gpu}, the bars of the {scorecard.GPU}. "
    for where in ("floor", "aim"):
        part = board[board["group"] == where]
        text += f"Of {len(part)} {where}s {(part['verdict'] == 'reached').sum()} are reached. "
    missed = board[(board["verdict"] == "missed") & board["says"].str.contains("exact")]
    if len(missed):
        text += f"The exact product misses {len(missed)}: [05d](05d_mmq.ipynb) shows where its "
        text += "issue slots go."
    display.say(text)


def asked_reached_said_2(prepared: Rows, rows: Rows, shapes: list[Any], gpu: str) -> None:
    """What was asked, and what was reached: in words."""
    told = lab.open("replay", "rtx-4070-ti-published").store.read("mmq").set_index("impl")["median_us"]
    most = prepared["batch"].max()
    row = rows[(rows["n"] == shapes[0][0]) & (rows["batch"] == most)].set_index("impl")
    text = "Published, for scale: the source ([part 05](05_q8_0.ipynb) names it) reports "
    text += f"{told['mmq'] / 1e3:.0f} ms for the matrix "
    text += f"products of a prompt by MMQ and {told['cublas'] / 1e3:.0f} by dequantising and cuBLAS, "
    text += f"{told['mmq'] / told['cublas']:.2f} times the time, on its GPU."
    ours = row[(row["kind"] == "own") & ~row.index.map(study.takes_halves)]
    if study.BASELINE in row.index and len(ours):
        ratio = ours["median_us"].min() / row.loc[study.BASELINE, "median_us"]
        text += f" Here, at {most} tokens of the square shape, the best exact rung takes "
        text += f"{ratio:.2f} times the baseline's time on the {gpu}."
    display.say(text)


def takeaway(gpu: str, ranges: Any, square: Rows, ways: Any, wide: Rows, gain: Rows, lines: Rows) -> None:
    """What to take away, computed."""
    text = f"- On the {gpu} the square shape belongs to: {ranges(square)}.\n"
    text += "- Bytes decide at few tokens, arithmetic at many"
    if ways[4] in wide and gain.iloc[-1] < crossover.LEVEL < gain.iloc[0]:
        text += ". The same format is the fastest at one end and only the smallest at the other"
    text += ".\n- A dispatcher is a table of measured crossovers, and the table is one GPU's.\n"
    text += "- Say what a time includes"
    if len(lines):
        text += f": quantising is {lines['Share'].iloc[0]:.0%} of the time at {lines['Tokens'].iloc[0]} token"
        text += f" and {lines['Share'].iloc[-1]:.1%} at {lines['Tokens'].iloc[-1]}"
    text += "."
    display.say(text)


def explore(read_roof: float, rows: Rows, gpu: str, here: Lab) -> Any:
    """Tweak it: the explorer."""

    def bound(case):
        return study.Mmq().count(case).bytes / read_roof / 1e3

    return explorer.Explorer(
        "q8-tokens",
        rows.drop(columns="way"),
        x="batch",
        y="median_us",
        controls={"impl": "Contestant", "n": "Rows"},
        title=f"Q8_0 products on {gpu}, cold, quantising included",
        bound=bound,
        measure=explorer.measurer(here),
        ylog=True,
    )
