"""What lesson 10b's page shows: our all-reduce rung by rung, and a token on one GPU and on two."""

from __future__ import annotations

from typing import Any

import pandas as pd

import rooflab.lab
from rooflab import paths, words
from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.ops import all_reduce
from rooflab.pages import Opening, Rows, bars, held, lesson_10, spread
from rooflab.studies import links
from rooflab.view import display, explorer, plot

WIDTH = 4096  # of Llama-3-8B's activations
FORMATS = {format: words.FORMATS[format] for format in ("fp16", "int4_g128")}


def sums(rows: Rows) -> Rows:
    """Every all-reduce in a graph."""
    return rows[(rows["operator"] == "all_reduce") & (rows["clock"] == "graph")]


def of_token(rows: Rows, width: int = WIDTH) -> Rows:
    """The sums of one token's activations, ours in the order of the rungs, then the libraries'."""
    mine = sums(rows)
    mine = mine[mine["n"] == width]
    return pd.concat([mine[mine["kind"] == "own"].sort_values("impl"), mine[mine["kind"] != "own"]])


def tokens(rows: Rows) -> Rows:
    """A token of each model, with `title` in words and `gain` over one GPU's."""
    found = rows[rows["operator"] == "decode"].reset_index(drop=True)
    alone = found[found["impl"] == links.ALONE].set_index(["model", "format"])["median_us"]
    keys = list(zip(found["model"], found["format"], strict=True))
    gains = [alone[key] / us for key, us in zip(keys, found["median_us"], strict=True)]
    titles = [f"{model} in {FORMATS[format]}" for model, format in keys]
    return found.assign(gain=gains, title=titles)


def opening(rows: Rows, here: Lab) -> Opening:
    """Our fastest sum beside the libraries', and what it makes of a token; the chart of the sums."""
    mine, gpu = of_token(rows), here.run["gpu"]
    own, peers = mine[mine["kind"] == "own"], mine[mine["kind"] != "own"]
    best, peer = (each.loc[each["median_us"].idxmin()] for each in (own, peers))
    shared = tokens(rows)
    shared = shared[shared["impl"] == all_reduce.DEFAULT]
    most, least = (shared.loc[shared["gain"].idxmax()], shared.loc[shared["gain"].idxmin()])
    answer = (
        f"Our sum of a token's {plot.size_text(best['bytes'])} takes {best['median_us']:.1f} µs on two "
        f"{gpu}s, where the fastest library takes {peer['median_us']:.1f}. With it, against one GPU in the "
        "same run, "
        f"{most['title']} is {display.speed(most['gain'])}; {least['title']} is "
        f"{display.speed(least['gain'])}."
    )
    able = (
        "write a kernel that sums over GPUs, with the same bits on each",
        "say how often a sum must cross a link, and take a crossing out",
        "predict whether a second GPU makes a model's token faster",
    )
    return answer, able, _chart(mine, gpu)


def _chart(mine: Rows, gpu: Any) -> Any:
    names = [row["impl"] if row["kind"] == "own" else lesson_10.name(row) for row in mine.to_dict("records")]
    fig, said = bars(mine, names, gpu, f"All-reduce of {plot.size_text(2 * WIDTH)} over two GPUs")
    for patch, kind in zip(fig.axes[0].patches, mine["kind"], strict=True):
        if kind != "own":
            patch.set_facecolor(plot.PEER_COLOUR)
    return fig, said


def predicted(rows: Rows) -> None:
    """Show the law's time of every rung for a token's activations."""
    mine = of_token(rows)
    mine = mine[mine["kind"] == "own"].copy()
    mine["crossings"] = [links.crossings("all_reduce", impl) for impl in mine["impl"]]
    mine["sent"] = [links.crossing("all_reduce", impl, 2 * WIDTH, 2) / 1024 for impl in mine["impl"]]
    columns = {"impl": "Rung", "crossings": "Crossings in a row", "sent": "KiB a GPU sends"}
    columns |= {"predicted_us": "Predicted (µs)"}
    display.table(mine, columns, {"impl": "", "sent": "{:.0f}", "predicted_us": "{:.1f}"})


def measured(rows: Rows) -> None:
    """Show the rungs with their errors, predicted beside measured, and say which predictions hold."""
    mine = of_token(rows)
    mine = mine[mine["kind"] == "own"].copy()
    spread(mine, "g", ".2f")
    mine["ratio"] = mine["median_us"] / mine["predicted_us"]
    columns = {"impl": "Rung", "gate": "Error (allowed)", "predicted_us": "Predicted (µs)"}
    columns |= {"median_us": "Median (µs)", "ratio": "Median ÷ predicted", "quartiles": "Quartiles"}
    forms = {"predicted_us": "{:.1f}", "median_us": "{:.2f}", "ratio": "{:.2f}"}
    display.table(mine, columns | {"registers": "Registers"}, forms)
    said = [f"`{row.impl}`: {held(row.ratio)}" for row in mine.itertuples()]
    display.say(f"**Verdict**: {' '.join(said)}{_saved(mine)}")


def _saved(own: Rows) -> str:
    """What each rung saves over the one before, beside the assumed time of the crossing that it takes out."""
    found = list(own.itertuples())
    pairs = list(zip(found, found[1:], strict=False))
    if not pairs:
        return ""
    text = f" A crossing taken out was assumed to save {links.HOP_US:g} µs: "
    text += "; ".join(f"`{b.impl}` saves {a.median_us - b.median_us:.2f}" for a, b in pairs) + "."
    (a, b), (_, c) = pairs[0], pairs[-1]
    if len(pairs) > 1 and a.median_us - b.median_us < links.HOP_US < b.median_us - c.median_us:
        text += f" `{b.impl}` still has a barrier on each side of its flag, and the flag may leave only "
        text += "when the stores "
        text += f"have arrived. `{c.impl}` drops these as well."
    return text


def by_size(rows: Rows, gpu: Any) -> None:
    """Draw our rungs and the libraries' sums by size."""
    mine = sums(rows)
    mine = mine[mine["bytes"] <= links.OWN_MOST]
    title = "All-reduce over two GPUs, small arrays"
    fig, ax = plot.figure("bytes of the array", "µs", title, xlog=True, ylog=True)
    for impl, part in sorted(mine.groupby("impl"), key=lambda each: each[0].startswith("torch")):
        label = lesson_10.NAMES.get(impl, impl)
        plot.series(ax, part["bytes"], *plot.band(part, "median_us"), label=label)
    plot.size_ticks(ax, sorted(set(mine["bytes"]))[::2])
    plot.label_ends(ax)
    plot.show(fig, plot.caption(mine, gpu, title, y="median_us"))


def explained(rows: Rows, gpu: Any) -> None:
    """Say which rung wins by size, and what the law fitted to each says of it."""
    mine = sums(rows)
    mine = mine[mine["kind"] == "own"]
    first = {size: part.loc[part["median_us"].idxmin(), "impl"] for size, part in mine.groupby("bytes")}
    names = list(dict.fromkeys(first.values()))
    text = f"On the {gpu} " + "; ".join(
        f"`{impl}` is the fastest rung at "
        + display.listed(plot.size_text(size) for size, best in first.items() if best == impl)
        for impl in names
    )
    fitted = links.law(mine, 2).set_index("impl")
    fitted["part"] = [1024 / links.crossing("all_reduce", str(impl), 1024, 2) for impl in fitted.index]
    text += ". The law fitted to each, latency and rate of data: " + "; ".join(
        f"`{impl}` {row['latency_us']:.1f} µs and {row['rate_gb_s'] * row['part']:.0f} GB/s"
        + (f" ({row['rate_gb_s']:.0f} with its flags)" if row["part"] < 1 else "")
        for impl, row in fitted.iterrows()
    )
    display.say(
        f"{text}. Fewer crossings bring the latency down; flags beside the data take half of the rate."
    )


def token_table(rows: Rows) -> None:
    """Show a token of every model on one GPU and on two, predicted and measured."""
    found = tokens(rows)
    names = {links.ALONE: "one GPU", links.NCCL: "two, sums by NCCL"}
    found["who"] = [names.get(impl, "two, sums by ours") for impl in found["impl"]]
    found["place"] = [list(names).index(impl) if impl in names else len(names) for impl in found["impl"]]
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    columns |= {"tok_s": "Tokens a second", "gain": "Times one GPU's speed"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "tok_s": "{:,.0f}", "gain": "{:.2f}"}
    display.table(found.sort_values(["title", "place"]), columns, forms)


def pays(rows: Rows, gpu: Any) -> None:
    """Say for which models a second GPU pays, and what a sum costs inside a token."""
    found, lines = tokens(rows), []
    for title, part in found.groupby("title", sort=False):
        mine = part.set_index("impl")
        alone, ours, nccl = (mine.loc[impl] for impl in (links.ALONE, all_reduce.DEFAULT, links.NCCL))
        best = max(ours["gain"], nccl["gain"])
        layers = model_shapes.get(str(ours["model"])).layers
        saved = (nccl["median_us"] - ours["median_us"]) / (2 * layers)
        verdict = "pays" if best > 1 else "does not pay"
        lines.append(
            f"- {title}: a second GPU **{verdict}** ({alone['tok_s']:,.0f} tokens a second on one, "
            f"{max(ours['tok_s'], nccl['tok_s']):,.0f} on two). Of each of its {2 * layers} sums our kernel "
            f"takes {abs(saved):.1f} µs {'less' if saved > 0 else 'more'} than NCCL."
        )
    display.say(f"On the {gpu}:\n\n" + "\n".join(lines) + _beside_lesson_08(found, gpu))


def _beside_lesson_08(found: Rows, gpu: Any) -> str:
    """The same models by lesson 08's fastest way on one such GPU, and two GPUs' tokens a second over them."""
    names = [name for name in device.names() if str(gpu).removeprefix("NVIDIA ") == device.get(name).name]
    held_by = [name for name in names if (paths.DATA / name).is_dir()]
    if not held_by:
        return ""
    rows = rooflab.lab.open("replay", held_by[0]).store.read("decode")
    rows = rows[(rows["batch"] == 1) & (rows["seq"] == links.PROMPT) & (rows["kind"] == "own")]
    said = []
    for title, part in found.groupby("title", sort=False):
        key = part.iloc[0]
        mine = rows[(rows["model"] == key["model"]) & (rows["format"] == key["format"])].dropna(
            subset="tok_s"
        )
        mine = mine[~mine["case"].str.contains("head=q8_0")]  # another head than the weights come with
        if len(mine):
            best = mine.loc[mine["tok_s"].idxmax()]
            two = part[part["impl"] != links.ALONE]["tok_s"].max()
            said.append(
                f"{title} {best['tok_s']:,.0f} tokens a second by `{best['impl']}`; two GPUs reach "
                f"{two / best['tok_s']:.2f} times that"
            )
    if not said:
        return ""
    return (
        "\n\n*One GPU* is timed here in the same run as two, over "
        f"{links.STEPS} tokens, by the engine's own choice of rung. [Lesson 08](08_decoder.ipynb)'s fastest "
        "way on one "
        f"GPU: {'; '.join(said)}."
    )


def excess(rows: Rows) -> None:
    """Say what the split decoder loses beside its sums."""
    found = tokens(rows)
    ours = found[found["impl"] == all_reduce.DEFAULT]
    alone = found[found["impl"] == links.ALONE]
    over = (ours["median_us"] - ours["predicted_us"]).tolist()
    before = (alone["median_us"] - alone["predicted_us"]).tolist()
    display.say(
        f"Above its bound a token takes {min(before):,.0f} to {max(before):,.0f} µs on one GPU, and "
        f"{min(over):,.0f} to {max(over):,.0f} µs on two. One GPU runs `decode_step`, a whole token in one "
        "launch or a launch a phase. A sum over GPUs ends that: the split decoder launches about ten kernels "
        "a layer, and each has a start and an end. Sums inside the persistent kernel are the next step."
    )


def takeaway(rows: Rows, gpu: Any) -> None:
    """The page's last word."""
    mine = of_token(rows)
    own = mine[mine["kind"] == "own"]
    first, best = own.iloc[0], own.loc[own["median_us"].idxmin()]
    nccl = mine[mine["impl"] == links.NCCL].iloc[0]
    shared = tokens(rows)
    shared = shared[shared["impl"] == all_reduce.DEFAULT]
    wins = list(shared.loc[shared["gain"] > 1, "title"])
    display.say(
        f"- On the {gpu} the rungs go from {first['median_us']:.1f} to {best['median_us']:.1f} µs: a "
        f"crossing taken out is worth twice the bytes. NCCL takes {nccl['median_us']:.1f} µs.\n"
        "- Sums in the order of the GPUs give the same bits on each, so that all choose the same token.\n"
        f"- By our sums a second GPU makes {len(wins)} of {len(shared)} models faster"
        + (f": {display.listed(wins)}." if wins else ".")
    )


def explored(rows: Rows, here: Lab) -> explorer.Explorer:
    """The explorer of sums by size."""
    mine = sums(rows)
    return explorer.Explorer(
        "sums",
        mine[mine["bytes"] <= links.OWN_MOST],
        y="median_us",
        controls={"impl": "By"},
        title=f"All-reduce over two {here.run['gpu']}s",
        labels={"median_us": "µs"},
        ylog=True,
        start={"impl": all_reduce.DEFAULT},
    )
