"""What lessons 10b and 10c show of four GPUs of one host, beside their recording of two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from rooflab import paths
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.pages import NEAR, Rows, lesson_10b, lesson_10c
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import Store
from rooflab.studies import links, split
from rooflab.view import display, explorer, plot
from rooflab.view.explorer_facts import SAYS
from rooflab.words import listed

GPUS = 4


def recorded(gpu: Any, study: str) -> Rows:
    """Rows of `study` by four such GPUs, those that were skipped among them; empty where data/ has none."""
    bare = str(gpu).removeprefix("NVIDIA ")
    slugs = [name for name in device.names() if device.get(name).name == bare]
    stores = [Store(paths.DATA, f"{slug}-x{GPUS}") for slug in slugs]
    found = [store.read(study) for store in stores if (store.folder / f"{study}.csv").is_file()]
    return found[0] if found else pd.DataFrame()


def _none(gpu: Any) -> None:
    display.say(f"Of four {gpu}s nothing was recorded.")


def sums(rows: Rows, gpu: Any) -> None:
    """Show the sum of a token's activations by each rung and the fastest library, over two GPUs and four: the
    chart at one width, the widths in a table, and whether the law holds on four.
    """
    four = recorded(gpu, "links")
    if four.empty:
        _none(gpu)
        return
    mine = {"two": lesson_10b.of_token(rows), "four": lesson_10b.of_token(four)}
    own = {gpus: found[found["kind"] == "own"].set_index("impl") for gpus, found in mine.items()}
    rungs = list(own["four"].index)
    parts = {
        "two": list(own["two"]["median_us"].reindex(rungs)),
        "four": list(own["four"]["median_us"]),
        "four, predicted": list(own["four"]["predicted_us"]),
    }
    size = plot.size_text(2 * lesson_10b.WIDTH)
    caption = f"All-reduce of {size} over two and over four GPUs"
    fig, ax = plot.figure("µs", title=caption, height=1.3 + 0.5 * len(rungs))
    plot.grouped(ax, rungs, parts, most=1.15 * max(max(values) for values in parts.values()), form=".2f")
    best = own["four"]["median_us"].idxmin()
    plot.show(
        fig,
        f"{caption}, {gpu}, {plot.dates(pd.concat(mine.values()))}: {best} takes "
        f"{own['four']['median_us'][best]:.2f} µs over four.",
    )
    _widths(rows, four)
    ratios = own["four"]["median_us"] / own["four"]["predicted_us"]
    more = (own["four"]["median_us"] - own["two"]["median_us"]).dropna()
    told = "; ".join(f"`{impl}` {ratio:.2f} times" for impl, ratio in ratios.items())
    text = f"**Verdict** on four GPUs: measured over predicted is {told}. "
    good = [1 / NEAR <= ratio <= NEAR for ratio in ratios]
    text += _which(
        [f"`{impl}`" for impl, is_near in zip(ratios.index, good, strict=True) if is_near], len(good)
    )
    text += (
        f" With two more peers a sum takes {more.min():.1f} to {more.max():.1f} µs longer; the link carries "
        f"the added bytes in {_bytes_us(2 * lesson_10b.WIDTH):.2f} µs at most. What else grows was not "
        "measured apart: each GPU stores or loads three times as often, and waits for the slowest of three "
        "peers."
    )
    display.say(text)


def _which(near: list[str], of: int) -> str:
    """Which rungs' predictions hold."""
    if len(near) == of:
        return f"All predictions hold within {NEAR - 1:.0%}."
    return f"{f'Only that of {listed(near)} holds' if near else 'None holds'} within {NEAR - 1:.0%}."


def _bytes_us(size: int) -> float:
    """Microseconds that the bytes which a GPU sends more to three peers than to one take on the link."""
    sent = [links.crossing("all_reduce", "3_flag_in_data", size, gpus) for gpus in (2, GPUS)]
    return (sent[1] - sent[0]) / links.SHEET_GB_S / 1e3


def _widths(rows: Rows, four: Rows) -> None:
    """The fastest rung and the fastest library at the sizes of a token's activations, in a table."""
    lines = []
    for size in links.TOKEN:
        line: dict[str, object] = {"size": plot.size_text(size)}
        for gpus, found in (("two", rows), ("four", four)):
            mine = lesson_10b.of_token(found, size // 2)
            for who, part in mine.groupby(mine["kind"] == "own"):
                line[f"{gpus} {'ours' if who else 'library'}"] = part["median_us"].min()
        lines.append(line)
    columns = {"size": "Bytes of the array", "two ours": "Two: ours (µs)", "two library": "Best library"}
    columns |= {"four ours": "Four: ours (µs)", "four library": "Best library "}
    display.table(pd.DataFrame(lines), columns, dict.fromkeys(list(columns)[1:], "{:.2f}") | {"size": ""})


def tokens(rows: Rows, gpu: Any) -> None:
    """Draw tokens a second of each model on one, two and four GPUs, by the fused way, beside the bound of
    four; the numbers in a fold, and what four bring.
    """
    four = recorded(gpu, "split")
    if four.empty:
        _none(gpu)
        return
    two, more = lesson_10c.tokens(rows), lesson_10c.tokens(four)
    lost = dict.fromkeys(more.loc[more["identity"].str.startswith(SKIPPED), "title"])
    found = _by_gpus(two, more.dropna(subset="median_us"))
    caption = "Tokens a second on one, two and four GPUs"
    fig, ax = plot.figure("tokens a second", title=caption, height=1.3 + 0.55 * len(found))
    parts = {"one": found["one"], "two": found["two"], "four": found["four"]}
    most = 1.15 * float(np.nanmax(found[["one", "two", "four"]].to_numpy(float)))
    shades = ("#CFCFCF", lesson_10c.SHADES[split.FUSED], "#CC79A7")
    plot.grouped(ax, list(found["title"]), parts, most, shades=shades)
    display.say(_told(found))
    plot.show(
        fig,
        f"{caption}, {lesson_10c.WAYS[split.FUSED]}, {gpu}. {_runs(found)}",
    )
    columns = {"title": "Model", "one": "One GPU", "two": "Two", "four": "Four"}
    columns |= {"again": "One GPU, in the run with four", "gain": "Four ÷ that"}
    columns |= {"share2": "Two, of its bound", "share": "Four, of its bound"}
    forms = {"title": "", **dict.fromkeys(("one", "two", "four", "again"), "{:,.1f}"), "gain": "{:.2f}"}
    forms |= dict.fromkeys(("share2", "share"), "{:.0%}")
    title = "Tokens a second by the fused way; blank where one GPU was not timed"
    lines = "\n".join(f"- {line}" for line in [*_not_shared(lost), *_prompts(rows, four)])
    display.fold_parts("The figures; prompts on four", [(found, columns, forms, title), lines])


def _by_gpus(two: Rows, four: Rows) -> Rows:
    """One row a model: tokens a second on one, two and four GPUs, and shares of the bounds."""
    lines = []
    both = set(four["title"])
    for title in [each for each in dict.fromkeys(two["title"]) if each in both]:  # in the page's order
        on = {
            2: two[two["title"] == title].set_index("impl"),
            4: four[four["title"] == title].set_index("impl"),
        }
        if split.FUSED not in on[4].index or split.FUSED not in on[2].index:
            continue
        line: dict[str, object] = {"title": title, "model": on[4]["model"].iloc[0]}
        line["one"] = on[2]["tok_s"].get(links.ALONE, np.nan)
        line["again"] = on[4]["tok_s"].get(links.ALONE, np.nan)
        for gpus, name, share in ((2, "two", "share2"), (4, "four", "share")):
            row = on[gpus].loc[split.FUSED]
            line |= {name: row["tok_s"], share: row["predicted_us"] / row["median_us"]}
            line |= {f"us{gpus}": row["median_us"], f"over{gpus}": row["median_us"] - row["predicted_us"]}
        line["gain"] = line["four"] / line["again"]
        lines.append(line)
    return pd.DataFrame(lines)


def _runs(found: Rows) -> str:
    """Which bars are of one run, and how far one GPU's speed differs in the other."""
    text = "One and two GPUs are of one run, four of another"
    same = (found["again"] / found["one"]).dropna()
    if same.empty:
        return f"{text}."
    if abs(same - 1).max() < 0.01:
        return f"{text}; one GPU's speed is the same in both, within 1%."
    ends = " to ".join(dict.fromkeys(f"{one:.2f}" for one in (same.min(), same.max())))
    return f"{text}, in which one GPU made {ends} times as many tokens a second."


def _told(found: Rows) -> str:
    """Who gains most and least from two more GPUs, and what becomes of the time above the bound."""
    gain = found["four"] / found["two"]
    most, least = found.loc[gain.idxmax()], found.loc[gain.idxmin()]
    text = f"**From two to four {most['title']} gains most, {gain.max():.2f} times**"
    if most["title"] != least["title"]:
        text += f", and {least['title']} least, {gain.min():.2f}"
    kept = found["over4"] / found["over2"]
    text += ". Bytes halve. The time above the bound does " + (
        "not: " if kept.min() > 0.6 else "as follows: "
    )
    text += f"on four it is {kept.min():.2f} to {kept.max():.2f} times what it is on two. "
    text += (
        "So a model whose bound is small beside that time gains least. "
        if least["share2"] == found["share2"].min() and most["share2"] == found["share2"].max()
        else "That alone does not set the order of the gains. "
    )
    return f"{text}{_by_two(found)}"


def _by_two(found: Rows) -> str:
    """How well four GPUs' times are told by their bound and by what two take above theirs."""
    alone, added = _ratios(found)
    said = [f"{each.min():.2f} to {each.max():.2f}" for each in (alone, added)]
    if not (added - 1).abs().max() < (alone - 1).abs().max():
        return (
            f"Four take {said[0]} times their bound; adding what two take above theirs does not bring it "
            "nearer."
        )
    row = found.loc[alone.idxmax()]
    bound, over = round(row["us4"] - row["over4"]), round(row["us2"]) - round(row["us2"] - row["over2"])
    return (
        "**An estimate from two GPUs comes nearer than the bound**: time on four ≈ bound on four + what two "
        f"take above their bound. For {row['title']} that is {bound:,} + {over:,} = "
        f"{bound + over:,} µs; it takes {row['us4']:,.0f}. Over these models measured ÷ bound is "
        f"{said[0]}, measured ÷ estimate {said[1]}. On other models this was not tried."
    )


def _ratios(found: Rows) -> tuple[Rows, Rows]:
    """Four GPUs' time over their bound, and over their bound plus what two take above theirs."""
    bound = found["us4"] - found["over4"]
    return found["us4"] / bound, found["us4"] / (bound + found["over2"])


def takeaway(rows: Rows, gpu: Any) -> str:
    """What four GPUs teach of a prediction, in a line; "" without a recording or where it is of no help."""
    four = recorded(gpu, "split")
    if four.empty:
        return ""
    found = _by_gpus(lesson_10c.tokens(rows), lesson_10c.tokens(four).dropna(subset="median_us"))
    alone, added = _ratios(found)
    if not (added - 1).abs().max() < min((alone - 1).abs().max(), NEAR - 1):
        return ""
    near = max(math.ceil(100 * (added - 1).abs().max()), 1) / 100
    return (
        "- From the [appendix](#on-four-gpus): time on four GPUs ≈ their bound + the time that two take "
        f"above theirs, within {near:.0%} on {len(added)} models."
    )


def _not_shared(lost: dict[str, None]) -> list[str]:
    """The models that four GPUs cannot share, with the reason."""
    said = []
    for title in lost:
        shape = model_shapes.get(str(title).split(" ")[0])
        said.append(
            f"{title} cannot be shared by four here: it has {shape.kv_heads} key and value heads, and each "
            "GPU takes whole ones. Other engines then keep a copy of a head on several GPUs."
        )
    return said


def _prompts(rows: Rows, four: Rows) -> list[str]:
    """What four GPUs bring to prompts, beside two."""
    by = {2: lesson_10c.prompts(rows), 4: lesson_10c.prompts(four)}
    gains = [found.loc[found["impl"] == links.NCCL, "gain"].dropna() for found in by.values()]
    if any(each.empty for each in gains):
        return []
    two, more = (f"{each.min():.2f} to {each.max():.2f}" for each in gains)
    return [f"Prompts, whose sums NCCL makes, are {more} times as fast as on one GPU; on two {two} times."]


def by_way(rows: Rows, gpu: Any) -> Rows:
    """Tokens and prompts by each way on `gpus` GPUs: on two, on four where that was recorded, and for each
    way those of one GPU in the run with two.
    """
    ways = lesson_10c.WAYS | {split.FUSED_PLAIN: "fused, no overlap"}
    four = recorded(gpu, "split")
    parts = []
    for gpus, found in ((2, rows), (GPUS, four)):
        if len(found):
            mine = pd.concat([lesson_10c.tokens(found), lesson_10c.prompts(found)])
            parts.append(mine[mine["median_us"].notna()].assign(gpus=gpus))
    every = pd.concat(parts, ignore_index=True)
    shared = every[every["impl"].isin(ways)].assign(way=every["impl"].map(ways))
    one = every[(every["impl"] == links.ALONE) & (every["gpus"] == 2)].assign(gpus=1)
    asked = ["model", "format", "operator", "seq"]
    timed = shared[[*asked, "way"]].drop_duplicates()
    return pd.concat([shared, one.merge(timed, on=asked)]).reset_index(drop=True)


def explore(rows: Rows, gpu: Any) -> Any:
    """The explorer of whole models by way of summing and by GPUs; None without any."""
    found = by_way(rows, gpu)
    if found.empty:
        display.say(f"Of whole models on several {gpu}s nothing was recorded.")
        return None
    prompts, shared = found["operator"] == "prefill", (found["gpus"] > 1) & found["gain"].notna()
    read = [
        f"a prompt of {int(n):,}" if is_prompt else "a token"
        for is_prompt, n in zip(prompts, found["seq"], strict=True)
    ]
    gains = found["gain"].map("{:.2f} times one GPU's speed".format).where(shared, "")
    fused = found[~prompts & (found["impl"] == split.FUSED)]
    first = {"impl": split.FUSED, "operator": "decode", "gpus": 2}
    if len(fused):  # a model on the most GPUs
        first |= {"title": fused.loc[fused["gpus"].idxmax(), "title"]}
    return explorer.Explorer(
        "gpus",
        found.assign(**{"read": read, SAYS: gains}),
        x="gpus",
        y="tok_s",
        controls={"way": "Way", "title": "Model", "read": "What"},
        labels={"gpus": "GPUs", "tok_s": "tokens a second"},
        title=f"Whole models on {gpu}s",
        compare=True,  # runs of two GPUs and of four
        foretold="at least {} µs (datasheet)",
        start=first,
    )
