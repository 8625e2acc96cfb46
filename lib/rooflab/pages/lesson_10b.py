"""What lesson 10b's page shows: our all-reduce rung by rung, and a token on one GPU and on two."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import words
from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.ops import all_reduce
from rooflab.pages import NEAR, Opening, Rows, bars, held, lesson_10, spread
from rooflab.studies import links
from rooflab.view import display, explorer, models, plot
from rooflab.view.diagram import handovers
from rooflab.words import listed

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
        f"{gpu}s; the fastest library timed here ({lesson_10.name(peer)}) takes "
        f"{peer['median_us']:.1f}; vLLM's and TensorRT-LLM's kernels for such sizes were "
        "not timed. A split model makes two such sums a layer: beside one GPU "
        f"{most['title']} is then {display.speed(most['gain'])}"
        + (f"; {least['title']} is {display.speed(least['gain'])}." if len(shared) > 1 else ".")
    )
    able = (
        "read a kernel that sums over GPUs, and say why each has the same bits",
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
    said = said.partition(": from")[0].rstrip(".")
    return fig, f"{said}: our rungs in blue, the libraries in grey."


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
    forms = {"predicted_us": "{:.2f}", "median_us": "{:.2f}", "ratio": "{:.2f}"}
    display.table(mine, columns | {"registers": "Registers"}, forms)
    good = [1 / NEAR <= ratio <= NEAR for ratio in mine["ratio"]]
    said = [f"`{row.impl}`: {held(row.ratio)}" for row in mine.itertuples()]
    if all(good) and len(good) > 1:
        said = [f"All {len(good)} predictions hold within {NEAR - 1:.0%}."]
    display.say(f"**Verdict**: {' '.join(said)}{_by_luck(rows) if all(good) else ''}{_saved(mine)}")


def _by_luck(rows: Rows) -> str:
    """That the same constants miss lesson 10's store, where they promised it more than it took."""
    store = rows[rows["operator"] == "peer_write"]
    if store.empty:
        return ""
    row = store.loc[store["bytes"].idxmin()]
    if row["median_us"] * NEAR > row["predicted_us"]:
        return ""
    return (
        f" That is partly luck: the same constants gave lesson 10's store {row['predicted_us']:.1f} µs, and "
        f"it took {row['median_us']:.2f}. So the launch is assumed too long, and what else a sum does, such "
        "as waiting for the slower GPU, is left out."
    )


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
        text += f" `{b.impl}` still has a barrier on each side of its flag, and its flag must not overtake "
        text += f"the words. `{c.impl}` drops these as well."
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
    peers = mine[mine["kind"] != "own"].groupby("bytes")["median_us"].min()
    ours = mine[mine["kind"] == "own"].groupby("bytes")["median_us"].min()
    won = [size for size, us in ours.items() if us < peers.get(size, float("inf"))]
    told = "at every size our fastest rung is faster than every library timed here"
    if len(won) < len(ours):
        told = f"ours is the fastest at {listed(map(plot.size_text, won))}"
    plot.show(fig, f"{title}, on {gpu}, {plot.dates(mine)}: {told}.")


def explained(rows: Rows, gpu: Any) -> None:
    """Say which rung wins by size, and what the law fitted to each says of it."""
    mine = sums(rows)
    mine = mine[mine["kind"] == "own"]
    first = {size: part.loc[part["median_us"].idxmin(), "impl"] for size, part in mine.groupby("bytes")}
    names = list(dict.fromkeys(first.values()))
    text = f"On the {gpu} " + "; ".join(
        f"`{impl}` is the fastest rung at "
        + listed(plot.size_text(size) for size, best in first.items() if best == impl)
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


def token_chart(rows: Rows, gpu: Any) -> None:
    """Draw a token of each model on two GPUs, as a multiple of one GPU's speed; the times in a fold."""
    found = tokens(rows)
    names = {links.ALONE: "one GPU", links.NCCL: "two, sums by NCCL"}
    shades = (plot.PEER_COLOUR, "#0072B2")  # as in the chart at the top
    found["who"] = [names.get(impl, "two, sums by ours") for impl in found["impl"]]
    found["place"] = [list(names).index(impl) if impl in names else len(names) for impl in found["impl"]]
    titles = list(dict.fromkeys(found["title"]))
    gains = found.set_index(["title", "who"])["gain"]
    ways = [who for who in ("two, sums by NCCL", "two, sums by ours") if who in set(found["who"])]
    caption = "A token on two GPUs, times one GPU's speed"
    fig, ax = plot.figure("times one GPU's speed", title=caption, height=1.3 + 0.35 * len(titles))
    parts = {who: [gains.get((title, who), float("nan")) for title in titles] for who in ways}
    most = 1.1 * max(1.0, float(found["gain"].max()))
    plot.grouped(ax, titles, parts, most, ".2f", shades[-len(ways) :])
    plot.roof_line(ax, 1.0, "one GPU", vertical=True)
    won = [title for title in titles if max(gains[title].get(who, 0.0) for who in ways) > 1]
    plot.show(fig, f"{caption}, {gpu}, {plot.dates(found)}: two are faster for {listed(won)}.")
    columns = {"title": "Model", "who": "On", "predicted_us": "Bound (µs)", "median_us": "Median (µs)"}
    columns |= {"tok_s": "Tokens a second", "gain": "Times one GPU's speed"}
    forms = {"predicted_us": "{:,.0f}", "median_us": "{:,.0f}", "tok_s": "{:,.0f}", "gain": "{:.2f}"}
    display.table(found.sort_values(["title", "place"]), columns, forms, "Bounds and times", folded=True)


def cause(rows: Rows) -> None:
    """Say what the bound of a token leaves out: the launches of a layer on two GPUs, and on one."""
    launches = len(next(iter(handovers.by_way().values())))
    display.say(
        f"**The bound leaves out launches, and two GPUs make {launches} a layer**, each with a start and an "
        "end. One GPU runs `decode_step` ([lesson 08](08_decoder.ipynb)): a whole token in one launch, or a "
        "launch for each phase of a layer. Its blocks wait for each other at barriers, which do not reach "
        "another GPU, so two GPUs make each sum in a kernel of its own between two others."
    )


def pays(rows: Rows, gpu: Any) -> None:
    """The verdict on the bounds: for how many models they say that two GPUs pay, for how many they do, and
    how long a token takes above its bound by each way.
    """
    us, bound = (
        tokens(rows).pivot_table(of, "title", "impl", sort=False) for of in ("median_us", "predicted_us")
    )
    said, got = (each[links.ALONE] / each[all_reduce.DEFAULT] for each in (bound, us))
    right = (said > 1) == (got > 1)
    each = "; ".join(f"{title} {said[title]:.2f} and {got[title]:.2f}" for title in sorted(said.index))
    text = (
        f"**Verdict** on the {gpu}: by the bounds our sums make two GPUs pay for {(said > 1).sum()} of "
        f"{len(said)} models, and for {(got > 1).sum()} as measured. Times one GPU's speed, by the bound and "
        f"measured: {each}."
    )
    text += (
        " The bounds are right each time."
        if right.all()
        else " The bounds, which leave launches out, do not predict this for "
        f"{listed(said.index[~right])}, whose tokens take the least time on one GPU."
        if (us[links.ALONE][~right].max() < us[links.ALONE][right].min())
        else f" The bounds, which leave launches out, do not predict this for {listed(said.index[~right])}."
    )
    over = us - bound
    ways = {links.ALONE: "on one GPU", all_reduce.DEFAULT: "on two with our sums", links.NCCL: "with NCCL's"}
    spans = [
        f"{over[impl].min():,.0f} to {over[impl].max():,.0f} µs {where}"
        for impl, where in ways.items()
        if impl in over
    ]
    display.say(
        f"{text} Above its bound a token takes {listed(spans)}. [Lesson 10c](10c_large.ipynb) moves the sums "
        "into the norms and spares launches."
    )


def inside(rows: Rows, here: Lab) -> None:
    """Fold what our kernel saves of a sum inside a token, which one GPU the gains compare with, and how two
    runs of it differ.
    """
    found, lines = tokens(rows), []
    us = found.pivot_table("median_us", "title", "impl", sort=False)
    model = found.drop_duplicates("title").set_index("title")["model"]
    if {links.NCCL, all_reduce.DEFAULT} <= set(us):
        sums_of = 2 * model.map(lambda name: model_shapes.get(str(name)).layers)
        saved = (us[links.NCCL] - us[all_reduce.DEFAULT]) / sums_of.reindex(us.index)
        lines.append(
            "Inside a token our kernel takes this much less than NCCL for each sum: "
            + listed(f"{each:.1f} µs for {title}" for title, each in saved.items())
            + f".{_alone_saves(rows, saved)}"
        )
    lines += filter(None, (_beside_lesson_08(found, here), two_runs(here)))
    display.fold_items("A sum inside a token; which one GPU the gains compare with", lines)


def _alone_saves(rows: Rows, saved: Rows) -> str:
    """What our kernel saves of a sum repeated alone, where it saves more there than inside a token."""
    us = of_token(rows).set_index("impl")["median_us"]
    alone = us.get(links.NCCL, float("nan")) - us.get(all_reduce.DEFAULT, float("nan"))
    if not alone > saved.max():
        return ""
    return (
        f" Repeated alone, at {plot.size_text(2 * WIDTH)}, it takes {alone:.1f} µs less. Why it saves less "
        "between other kernels was not measured."
    )


def fastest_alone(gpu: Any) -> dict[tuple[str, str], float]:
    """Tokens a second of lesson 08's fastest way on one such GPU, by model and format of its weights."""
    one = lesson_10.alone(gpu)
    if one is None:
        return {}
    rows = one.store.read("decode")
    rows = rows[(rows["batch"] == 1) & (rows["seq"] == links.PROMPT) & (rows["kind"] == "own")]
    rows = rows[~rows["case"].str.contains("head=q8_0")]  # another head than the weights come with
    found = rows.dropna(subset="tok_s").groupby(["model", "format"])["tok_s"].max()
    return {(str(model), str(format)): float(tok_s) for (model, format), tok_s in found.items()}


def _beside_lesson_08(found: Rows, here: Lab) -> str:
    """Two GPUs' tokens a second over those of lesson 08's fastest way on one such GPU."""
    gpu, said = here.run["gpu"], []
    alone = fastest_alone(gpu)
    for title, part in found.groupby("title", sort=False):
        best = alone.get((part["model"].iloc[0], part["format"].iloc[0]))
        if best:
            two = part[part["impl"] != links.ALONE]["tok_s"].max()
            said.append(f"{two / best:.2f} times its {best:,.0f} for {title}")
    text = "*One GPU* is one of this run. It takes the rung that the engine chooses by itself."
    if not said:
        return text
    return (
        f"{text} Against [lesson 08](08_decoder.ipynb)'s fastest on one {gpu} two reach {listed(said)}."
        + other_recording(found, gpu)
    )


def other_recording(found: Rows, gpu: Any) -> str:
    """That lesson 08's figures are of another recording, where one GPU beside others makes more tokens than
    its fastest way there; "" where none does.
    """
    best, one = fastest_alone(gpu), lesson_10.alone(gpu)
    mine = found[found["impl"] == links.ALONE]
    here = [(row.tok_s, best.get((row.model, row.format)), row.title) for row in mine.itertuples()]
    more = [f"{tok_s:,.0f} against {of:,.0f} for {title}" for tok_s, of, title in here if of and tok_s > of]
    if not more or one is None:
        return ""
    return (
        f" The one GPU of this run makes more ({listed(more)}): lesson 08's figures are of "
        f"another recording ({_day(one.run)}), and the card may be another."
    )


def _runs_apart(here: Lab) -> tuple[list[Any], Rows, Rows]:
    """The runs of this lesson's models and of lesson 10c's, and what they share: tokens a second in the one
    and the other by model, format and way, of one GPU and of two with our sums; no rows where it is one run.
    """
    found, nothing = [here.store.read(study) for study in ("links", "split")], pd.Series(dtype=float)
    if any(rows.empty for rows in found):
        return [], nothing, nothing
    runs = [here.run_of(study) for study in ("links", "split")]
    old, new = (
        rows[rows["operator"] == "decode"].set_index(["model", "format", "impl"])["tok_s"].dropna()
        for rows in found
    )
    keys = [key for key in old.index if key in new.index and key[2] in (links.ALONE, all_reduce.DEFAULT)]
    if runs[0]["run"] == runs[1]["run"] or links.ALONE not in [key[2] for key in keys]:
        return runs, nothing, nothing
    return runs, old[keys], new[keys]


def two_runs(here: Lab) -> str:
    """How one GPU's figures here and in lesson 10c, of another run, differ; "" without both."""
    runs, old, new = _runs_apart(here)
    if old.empty:
        return ""
    days = [f"run {run['run']}" for run in runs]
    ones = [
        f"{old[key]:,.0f} and {new[key]:,.0f} for {key[0]} in {FORMATS[key[1]]}"
        for key in old.index
        if key[2] == links.ALONE
    ]
    twos = [new[key] / old[key] - 1 for key in old.index if key[2] == all_reduce.DEFAULT]
    other = ", at different commits of the course" if runs[0]["commit"] != runs[1]["commit"] else ""
    return (
        f"One GPU was timed for lesson 10b ({days[0]}) and again for lesson 10c ({days[1]}){other}: its "
        f"tokens a second are {listed(ones)}."
        + (f" Two with our sums differ by {max(map(abs, twos)):.1%} at most." if twos else "")
    )


def other_gains(here: Lab) -> str:
    """Why this lesson's gains are not lesson 10c's, in a plain sentence for that page; "" where both come of
    one run, or one GPU's times hardly differ.
    """
    runs, old, new = _runs_apart(here)
    longer = new / old  # the times' ratio: tokens a second are their inverse
    one, two = (
        longer[[key[2] == impl for key in longer.index]] for impl in (links.ALONE, all_reduce.DEFAULT)
    )
    if one.empty or (one - 1).abs().max() < 0.02:
        return ""
    age = "an older" if str(runs[0]["run"]) < str(runs[1]["run"]) else "another"
    text = (
        f"Lesson 10b's gains are of {age} recording ({_day(runs[0])}), in which one GPU takes {_ends(one)} "
        "times as long for a token as here"
    )
    text += f", and two with sums by our kernel {_ends(two)} times" if len(two) else ""
    return f"{text}: compare gains within a page."


def _ends(ratios: Rows) -> str:
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios.min(), ratios.max())))


def _day(run: Any) -> str:
    return str(run["run"]).rpartition(".")[0]


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
        f"- On the {gpu} the rungs go from {first['median_us']:.2f} to {best['median_us']:.2f} µs: "
        f"fewer crossings and barriers are worth twice the bytes. NCCL takes {nccl['median_us']:.2f} µs.\n"
        "- Sums in the order of the GPUs give the same bits on each, so that all choose the same token.\n"
        f"- By our sums a second GPU makes {len(wins)} of {len(shared)} models faster"
        + (f": {listed(wins)}." if wins else ".")
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


def turned(rows: Rows, gpu: Any) -> None:
    """Say what the model to turn gives for the model that gains most, beside the measured token."""
    found = tokens(rows)
    ours = found[found["impl"] == all_reduce.DEFAULT]
    row, bare = ours.loc[ours["gain"].idxmax()], str(gpu).removeprefix("NVIDIA ")
    known = models.MODELS["shared"].turns
    text = (
        "Tokens a second by memories and sums alone. How much may a sum cost before another GPU stops paying?"
    )
    shared_by = device.get(models.SHARED_BY).name
    if bare == shared_by and row["model"] in known["model"] and row["format"] in known["weights"]:
        us = min(known["sum_us"], key=lambda each: abs(each - 2))
        told = models.shared(us, 2, "NVLink", row["model"], row["format"])
        text += (
            f" It leaves launches out: for {row['title']} on two {bare}s over NVLink and {us:g} µs a sum "
            f"it says "
            f"{told:,.0f}, and {row['tok_s']:,.0f} were measured."
        )
    display.say(f"**Turn the model.** {text}")
