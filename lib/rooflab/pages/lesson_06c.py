"""What lesson 06c's page shows: how far kernels are from exact attention, and what they do at the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import NEAR, Opening, Rows
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.view import display, explorer, plot


def opening(here: Lab, found: Rows) -> Opening:
    """The first screen: each kernel's largest error over all configurations, beside that of rounding."""
    worst = 1e3 * found.groupby("impl")["worst_rms"].max()
    worst = worst.sort_index(key=lambda names: names.str.extract(r"^(\d+)", expand=False).astype(float))
    rounding, gpu = 1e3 * found["rounding"].max(), here.run["gpu"]
    odd, beyond = worst.idxmax(), (worst > 1.005 * rounding).sum()  # 1.005: equal in the digits shown
    answer = f"Rounding the exact result to FP16 costs up to {rounding:.1f} thousandths of the outputs' RMS "
    answer += f"by itself; {len(worst) - beyond} of {len(worst)} kernels err by no more than that."
    if beyond:
        answer += f" The largest error, {odd}'s, is {worst[odd] / rounding:.1f} times as large."
    able = (
        "tell a wrong kernel from one that only rounds in another order",
        "set a tolerance from the arithmetic and not from taste",
        "test a kernel on extreme inputs: large scores, NaN, rows that see no key",
    )
    title = "Largest error over all configurations"
    names, values = _alike(worst)
    fig, ax = plot.figure("‰ of the outputs' RMS", title=title, height=1.1 + 0.24 * len(names))
    plot.bars(ax, names, values, "‰", ("rounding alone", rounding, "‰"))
    return (
        answer,
        able,
        (fig, f"{title}, ‰ of the RMS, on {gpu}: {odd} {worst[odd]:.1f}, median {worst.median():.1f}."),
    )


def _alike(errors: pd.Series) -> tuple[list[str], list[float]]:
    """Kernels whose errors are equal in three digits as one, named by the first of them and their number;
    the largest error on top.
    """
    groups: dict[str, list[str]] = {}
    for name, error in errors.sort_values(ascending=False, kind="stable").items():
        groups.setdefault(f"{error:.3g}", []).append(str(name))
    names = [who[0] if len(who) == 1 else f"{who[0]} and {len(who) - 1} more" for who in groups.values()]
    return names, [float(error) for error in groups]


def rounding_errors(width: int = 128, keys: int = 4096) -> dict[str, float]:
    """Show what rounding costs, by what is rounded, for heads of `width` over `keys` keys; the relative error
    that is predicted for rungs 1, 4 and 3: outputs rounded, weights too, scores too.
    """
    half = 2.0**-11
    weights, scores = half / np.sqrt(keys), half * np.sqrt(width / 64)
    rows = [("outputs rounded to FP16", half)]
    rows += [("weights rounded to FP16, errors in either direction", weights)]
    rows += [("scores added up in FP16, 8 products a sum (rung 3)", scores)]
    rows += [("scores, weights and sums in FP32", 2.0**-24)]
    guess = pd.DataFrame(rows, columns=["what", "relative"])
    display.table(
        guess,
        {"what": "Rounded", "relative": "Relative error, about"},
        {"relative": "{:.1e}"},
        f"Heads of {width}, {keys:,} keys",
    )
    return {"1_scalar": half, "4_mma": half + weights, "3_half2": half + scores}


def rounding_held(some: Rows, guess: dict[str, float]) -> None:
    """Show whether the errors of rungs 1, 4 and 3 are those predicted, and say why one is larger."""
    rounds = {"1_scalar": "outputs", "4_mma": "outputs, weights", "3_half2": "outputs, scores"}
    found = some.drop_duplicates("impl").set_index("impl")["error"]
    lines = [(name, rounds[name], guess[name], found[name]) for name in guess if name in found.index]
    table = pd.DataFrame(lines, columns=["impl", "rounds", "predicted", "error"])
    table["ratio"] = table["error"] / table["predicted"]
    table["held"] = ["yes" if 1 / NEAR <= ratio <= NEAR else "no" for ratio in table["ratio"]]
    names = {"impl": "Rung", "rounds": "Rounds to FP16", "predicted": "Predicted", "error": "Measured"}
    names |= {"ratio": "Measured ÷ predicted", "held": f"Holds within {NEAR - 1:.0%}"}
    forms = dict.fromkeys(("predicted", "error"), "{:.1e}") | {"ratio": "{:.1f}"}
    if len(table):
        display.table(table, names, forms, "Verdict on the predicted errors", folded=True)
    beyond = table[table["ratio"] > NEAR]
    if len(beyond):
        display.say(
            f"Above the prediction: {display.listed(beyond['impl'])}. Predicted is a typical error, measured "
            "the largest of all. Where a query sees few keys, errors of rounded weights do not average out, "
            "and a score's error grows with the score."
        )


def source_shapes(answers: Any) -> tuple[Rows, Any]:
    """List the shapes of the source's tests; the answers of every kernel, and the shapes."""
    found = answers("tolerance")
    named = found["config"].unique()
    items = "\n".join(f"{i}. {name}" for i, name in enumerate(named, 1))
    display.say(f"<details><summary>The shapes, by number</summary>\n\n{items}\n\n</details>")
    return found, named


def errors_by_shape(found: Rows, named: Any, rungs: list[Any]) -> list[Any]:
    """Show the largest error of every kernel on each shape; the kernels in the table's order."""
    found["thousandths"] = 1e3 * found["worst_rms"]
    table = found.pivot(index="impl", columns="config", values="thousandths")[list(named)]
    table.columns = [str(i) for i, _ in enumerate(named, 1)]
    order = [n for n in (*rungs, *asks.SDPA) if n in table.index]
    table = table.loc[order].reset_index()
    least = 1e3 * found.groupby("config", sort=False)["rounding"].max()
    bottom = pd.DataFrame([["rounding alone", *least[list(named)]]], columns=table.columns)
    table = pd.concat([table, bottom], ignore_index=True)
    names = {"impl": "Who"} | {c: c for c in table.columns[1:]}
    forms = dict.fromkeys(names, "{:.1f}") | {"impl": "{}"}
    display.table(
        table,
        names,
        forms,
        "Largest error of every kernel, ‰ of the RMS, by shape; blank where a kernel cannot do the shape",
        folded=True,
    )
    return order


def against_allowances(found: Rows, order: list[Any], rungs: list[Any]) -> None:
    """Say which kernels exceed each of the source's allowances."""
    worst = found.groupby("impl")["worst_rms"].max()
    floor = found["rounding"].max()
    text = f"Rounding the exact result costs up to {floor:.4f} RMS by itself"
    text += (
        f", more than the first allowance of {asks.TOLERANCES['FP32 scores']:g}: " if floor > 1e-3 else ": "
    )
    text += "the source's outputs are FP32, ours FP16.\n\n"
    for name, allowed in asks.TOLERANCES.items():
        out = [who for who in order if worst[who] > allowed]
        who = "all" if len(out) == len(order) else ", ".join(out)
        text += f"- {allowed:g} ({name}): " + (f"exceeded by {who}" if out else "kept by all") + ".\n"
    own = [n for n in order if n in rungs]
    odd = max(own, key=lambda n: worst[n])
    rest = [n for n in own if n != odd]
    text += f"\nThe largest error of a rung is {odd}'s, "
    text += f"{worst[odd] / worst[rest].max():.1f} times the next one's."
    display.say(text)


def errors_beside_torch(here: Lab, seq: int, gpu: str) -> Rows:
    """Show and draw errors against float64 beside torch's; the rows drawn."""
    cases = [c for c in here.cases("attention") if c.seq == seq and c.operator == "attention"]
    cases = [c for c in cases if c.heads == study.HEADS and not c.window]
    cases = cases or study.ladder(128, seq, device=here.sized)
    rows = here.measure("attention", cases)
    rows = rows[~rows["options"].fillna("").str.contains("shared_kv|queries=8|index=")]
    rows["shape"] = rows["head_dim"].astype(str) + " " + rows["format"]
    worst = rows.groupby(["shape", "kind"])["error"].max().unstack().reindex(columns=["own", "peer"])
    display.table(
        worst.reset_index(),
        {"shape": "Width, format", "own": "Largest of ours", "peer": "Largest of torch's"},
        dict.fromkeys(("own", "peer"), "{:.1e}"),
        "The largest error of each width and format",
        folded=True,
    )
    some = rows[rows["head_dim"].eq(128) & rows["format"].eq("fp16")].drop_duplicates("impl")
    title = f"Error against float64, {seq} tokens, 128 wide"
    names, values = _alike(1e3 * some.set_index("impl")["error"])
    fig, ax = plot.figure("‰ of a row's largest output", title=title, height=1.2 + 0.24 * len(names))
    plot.bars(ax, names, values, "‰")
    said = ", ".join(f"{name} {value:g}" for name, value in zip(names, values, strict=True))
    plot.show(fig, f"{title}, ‰ of a row's largest output, on {gpu}, {plot.dates(some)}: {said}.")
    return some


def nearer_than_torch(some: Rows, half: float) -> None:
    """Say which rungs are no further from float64 than torch's backends."""
    own, peer = some[some["kind"] == "own"], some[some["kind"] == "peer"]
    text = ""
    if len(peer):
        as_good = own[own["error"] <= 1.01 * peer["error"].max()]
        text += f"{len(as_good)} of {len(own)} rungs are no further from float64 than torch's least exact "
        text += f"backend ({peer['error'].max():.1e})"
        far = own[own["error"] > 1.01 * peer["error"].max()]
        text += f". Further away: {', '.join(far['impl'])}." if len(far) else "."
        exact = some[some["error"] <= 1.01 * some["error"].min()]
        text += f" The smallest error, {exact['error'].min():.1e}, is that of {', '.join(exact['impl'])}"
        if exact["error"].max() <= half:
            text += ": they keep weights in FP32 and round only the output, for which the first table "
            text += f"predicts up to {half:.1e}"
        text += "."
    display.say(text)


def extreme_inputs(answers: Any, rungs: list[Any]) -> Rows:
    """Show what every kernel does with large scores, no key, NaN and repetition; its answers."""
    edges = answers("edges").set_index("impl")
    edges = edges.loc[[n for n in (*rungs, *asks.SDPA) if n in edges.index]].reset_index()
    names = {
        "impl": "Who",
        "loud worst_rms": "Loud: error (RMS)",
        "blind not zero": "Blind: not zero",
    }
    names |= {"NaN in k lost": "NaN in k: hidden", "NaN in v lost": "NaN in v: hidden"}
    names |= {"other bits": f"Other bits in {asks.REPEATS}"}
    forms = {"loud worst_rms": "{:.3f}", "other bits": "{:.0f}"}
    forms |= dict.fromkeys(("blind not zero", "NaN in k lost", "NaN in v lost"), "{:.0%}")
    title = "What every kernel does with them; blank: not possible with this kernel"
    display.table(edges, names, forms, title, folded=True)
    return edges


def extreme_inputs_explained(edges: Rows, rungs: list[Any]) -> Rows:
    """Say which kernels err on extreme inputs, and why; the rungs' errors on large scores."""
    by = edges.set_index("impl")
    own = by.loc[[n for n in by.index if n in rungs]]
    text = f"Scores reach {by['loudest score'].max():,.0f}. "
    loud = own["loud worst_rms"]
    if loud.max() > 3 * loud.median():
        text += f"{loud.idxmax()} is off by {loud.max():.3f} RMS there, the median rung by "
        text += f"{loud.median():.3f}. "
        text += "It sums large scores in FP16. " if loud.idxmax() == rungs[2] else ""
    quiet = (own[["blind not zero", "NaN in k lost", "NaN in v lost", "other bits"]] == 0).all(axis=None)
    text += "No rung hides a NaN, invents a result or changes its bits. " if quiet else ""
    spread = by[by["NaN in v spread"] > 0]
    if len(spread):
        free = [name for name in by.index if name not in spread.index]
        text += "\n\nA value that is NaN also reaches queries that do **not** see it, with "
        text += f"all but {', '.join(free)}" if free else "every kernel"
        text += ": such a query shares a tile with one that does, and its weight of 0 times NaN is NaN. "
    wide = by[by["NaN in k spread"] > 0]
    if len(wide):
        text += f"With {', '.join(wide.index)} a NaN in a key does so too: it adds its mask to the score, "
        text += "and NaN minus infinity is NaN."
    display.say(text)
    return loud


def words_changed(answers: Any, rungs: list[Any]) -> Rows:
    """Show how often each kernel changes a decoder's word; its answers."""
    words = answers("words").set_index("impl")
    words = words.loc[[n for n in (*rungs, *asks.SDPA) if n in words.index]].reset_index()
    words["move"] = words["largest move"] / words["spread of logits"]
    names = {
        "impl": "Who",
        "changed": "Changed",
        "changed though apart": "Apart",
    }
    names |= {"move": "Moved", "least of top 5": "Same of best 5"}
    forms = dict.fromkeys(("words", "changed", "changed though apart", "least of top 5"), "{:.0f}")
    display.table(words, names, forms | {"move": "{:.4f}"}, "Every kernel's words", folded=True)
    return words


def words_changed_explained(words: Rows) -> None:
    """Say which kernels change a word, and how far logits move."""
    changed = words[words["changed"] > 0]
    text = f"Of {words['words'].iloc[0]:.0f} words "
    if len(changed):
        pairs = zip(changed["impl"], changed["changed"], strict=True)
        text += "; ".join(f"{who} changes {count:.0f}" for who, count in pairs)
        text += ". "
        if (words["changed though apart"] == 0).all():
            text += "Each change is between two words with nearly equal logits. "
    else:
        text += "none is changed by any kernel. "
    most = words.loc[words["move"].idxmax()]
    text += f"Logits move by at most {most['move']:.4f} of their spread ({most['impl']})."
    display.say(text)


def memory_by_length(answers: Any, gpu: str) -> Rows:
    """Draw the memory of a call by the prompt's length; its answers."""
    memory = answers("memory")
    memory["mb"] = memory["bytes"] / 1e6
    title = "Memory of one call, 32 heads of 128"
    fig, ax = plot.figure("tokens", "MB", title, xlog=True, ylog=True)
    for impl, group in memory.groupby("impl", sort=False):
        plot.series(ax, group["seq"], group["mb"], label=impl)
    square = memory.drop_duplicates("seq")
    plot.series(ax, square["seq"], square["scores bytes"] / 1e6, label="all scores, FP16")
    ax.set_xticks(sorted(memory["seq"].unique()), sorted(memory["seq"].unique()))
    plot.round_ticks(ax)
    plot.label_ends(ax)
    top = memory[memory["seq"] == memory["seq"].max()]
    said = ", ".join(f"{i} {mb:,.0f} MB" for i, mb in zip(top["impl"], top["mb"], strict=True))
    plot.show(fig, f"{title} on {gpu}: at {top['seq'].iloc[0]} tokens {said}.")
    return memory


def memory_growth(memory: Rows, rungs: list[Any]) -> None:
    """Say how each kernel's memory grows with the prompt."""
    ends = memory.sort_values("seq").groupby("impl", sort=False)["mb"].agg(["first", "last"])
    growth = memory["seq"].max() / memory["seq"].min()
    ends["times"] = [f"{last / first:.0f}" for first, last in zip(ends["first"], ends["last"], strict=True)]
    text = f"{growth:.0f} times the tokens take "
    same = ends.groupby("times", sort=False)
    text += "; ".join(f"{times} times the memory with {', '.join(group.index)}" for times, group in same)
    own = [n for n in ends.index if n in rungs]
    if own:
        out = 2 * memory["seq"].max() * study.HEADS * 128 / 1e6
        text += f". {own[0]} takes {ends.loc[own[0], 'last']:,.0f} MB, of which the output is {out:,.0f} MB."
    display.say(text)


def takeaway(loud: Rows) -> None:
    """What to take away, computed."""
    text = "- Compare an error with another: that of rounding alone, or that of a library's kernel in the "
    text += "same format.\n- Allow what the arithmetic needs. A tolerance wide enough for every kernel hides "
    text += "faults in the exact ones.\n"
    text += f"- Test extreme inputs: there {loud.idxmax()}'s error is {loud.max() / loud.median():.0f} times "
    text += "the median rung's.\n"
    text += "- Scores need no memory: what a call takes can grow with n, not n²."
    display.say(text)


def explore(here: Lab, gpu: str) -> Any:
    """The explorer of errors against float64, by contestant, width and window."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and not c.options]
    cases = [c for c in cases if c.format == "fp16" and c.heads == study.HEADS]
    return explorer.Explorer(
        "errors",
        here.measure("attention", cases),
        x="seq",
        y="error",
        controls={"impl": "Contestant", "head_dim": "Width", "window": "Window"},
        title=f"Error against float64 on {gpu}",
        measure=explorer.measurer(here),
    )
