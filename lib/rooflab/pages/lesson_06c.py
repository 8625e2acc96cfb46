"""What lesson 06c's page shows: how far kernels are from exact attention, and what they do at the limits."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_06c_faults import planted_faults as planted_faults
from rooflab.pages.lesson_06c_limits import HALF, errors_chart, loud_simulated
from rooflab.pages.lesson_06c_limits import all_of as _all_of
from rooflab.pages.lesson_06c_limits import beside_torch as beside_torch
from rooflab.pages.lesson_06c_limits import in_bf16 as in_bf16
from rooflab.pages.lesson_06c_limits import nearer_than_torch as nearer_than_torch
from rooflab.pages.lesson_06c_limits import one_sum as one_sum
from rooflab.pages.lesson_06c_limits import over_plain as over_plain
from rooflab.pages.lesson_06c_limits import rounding_errors as rounding_errors
from rooflab.pages.lesson_06c_limits import rounding_held as rounding_held
from rooflab.pages.lesson_06c_limits import scores_tested as scores_tested
from rooflab.pages.lesson_06c_limits import two_keys as two_keys
from rooflab.pages.lesson_06c_limits import two_outliers as two_outliers
from rooflab.pages.lesson_06c_memory import memory as memory
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.view import display, explorer, plot
from rooflab.words import listed

_LEAST = 2.0  # times rounding alone: twice a computation whose only rounding is that of its output
ABLE = (
    "tell a wrong kernel from one that only rounds in another order",
    "set a tolerance from the arithmetic and not from taste",
    "test a kernel on extreme inputs: large scores, NaN, rows that see no key",
)


def opening(here: Lab, some: Rows, seq: int) -> Opening:
    """The first screen: each kernel's error and the gate's limit for it, at `seq` tokens (`some`),
    and what the gate says of the least exact kernel.
    """
    answer = "Judge an error by that of a plain computation with the same roundings."
    chart = errors_chart(some, seq, here.run["gpu"])
    once = some.dropna(subset=["error"]).set_index("impl")
    if len(once) < 2:
        return answer, ABLE, chart
    odd = str(once["error"].idxmax())
    rest = once.drop(odd)
    answer += f" With {seq:,} tokens {len(rest)} of {len(once)} kernels err by at most "
    answer += f"{1e3 * rest['error'].max():.2f} ‰ of a row's largest output"
    peers = rest[rest["kind"] == "peer"]["error"]
    answer += f" (libraries: up to {1e3 * peers.max():.2f} ‰)" if len(peers) else ""
    answer += f"; {odd} errs by {1e3 * once.loc[odd, 'error']:.1f} ‰"
    return f"{answer}{_by_the_gate(once.loc[odd], rest)}.", ABLE, chart


def _by_the_gate(row: Any, rest: Rows) -> str:
    """What the gate says of the error of a row, which is larger than those of the `rest`; or nothing where
    its limit is not recorded.
    """
    limit = float(row["error_budget"])
    if not limit > 0:
        return ""
    if row["error"] > limit:
        return f", and exceeds the gate's limit for its number format, {row['error'] / limit:.1f} times"
    rule = f"uses {row['error'] / limit:.0%} of its limit by the gate, {1e3 * limit:.1f} ‰"
    if row.name != "3_half2" or not limit > rest["error_budget"].max():
        return f" and is right all the same: it {rule}"
    return (
        f" and is right all the same: it adds up scores in FP16, a plain computation that does so errs by "
        f"{1e3 * limit / 2:.1f} ‰, and the gate, this course's check of every kernel, allows twice that"
    )


def over_rounding(found: Rows, gpu: str) -> None:
    """Draw each kernel's error over that of rounding alone, on each of the source's shapes, and say which
    is the largest.
    """
    over = _over_rounding(found)
    odd = str(over.idxmax())
    rest = over.drop(odd)
    title = "Error ÷ that of rounding alone"
    alike = _agreeing(found)
    fig, ax = plot.figure("times the error of rounding alone", title=title, height=1.0 + 0.42 * len(alike))
    for place, (_, errors) in enumerate(alike):
        equal = errors.round(2).groupby(errors.round(2))
        high = equal.cumcount() - (equal.transform("size") - 1) / 2
        ax.plot(errors, place - 0.075 * high, "o", color=plot.COLOURS[0], markersize=4)
    ax.set_yticks(range(len(alike)), [_all_of(who) for who, _ in alike], fontsize=8.5)
    ax.set_ylim(len(alike) - 0.5, -0.5)
    ax.axvline(1.0, color="black", linewidth=1, linestyle="--", zorder=1)
    if over.max() > _LEAST:
        ax.axvline(_LEAST, color="black", linewidth=1, linestyle=":", zorder=1)
    runs = found.groupby("impl")["config"].nunique()
    said = (
        f"{title}, on {gpu}: a dot for each of the source's {found['config'].nunique()} shapes. Kernels of "
    )
    said += "a line err alike on every shape that two of them run; a kernel runs "
    said += f"{runs.min()} to {runs.max()} of them. Dashed: rounding alone"
    said += f"; dotted: {_LEAST:g} times, the least that the gate allows" if over.max() > _LEAST else ""
    plot.show(fig, f"{said}.")
    text = (
        f"Each at its worst shape, {len(rest)} of {len(over)} kernels err by at most {rest.max():.2f} times "
    )
    text += "as much as rounding alone"
    peers = over[[name for name in over.index if name in asks.SDPA]]
    text += f" (torch's own: up to {peers.max():.2f} times)" if len(peers) else ""
    mine = found[found["impl"] == odd]
    least = found.groupby("config")["rounding"].max()
    worst = (mine.set_index("config")["worst_rms"] / least).idxmax()
    text += f"; {odd} errs by {over[odd]:.2f} times as much, on {worst}."
    if odd == "3_half2" and over[odd] > _LEAST:
        text += " The dotted line is not its limit: that of FP16 sums is wider, and is not recorded on these "
        text += "shapes."
    display.say(text)


def _agreeing(found: Rows) -> list[tuple[list[str], pd.Series]]:
    """Kernels in groups whose errors over that of rounding are equal, to two digits, on every shape that two
    of them run, and the group's errors by shape; the group with the largest error first.
    """
    least = found.groupby("config")["rounding"].transform("max")
    table = found.assign(over=found["worst_rms"] / least).pivot(index="impl", columns="config", values="over")
    groups: list[tuple[list[str], dict[str, float]]] = []
    for name in table.count(axis=1).sort_values(ascending=False, kind="stable").index:
        mine = table.loc[name].dropna().to_dict()
        shared = [(group, set(mine) & set(group[1])) for group in groups]
        fits = [
            group
            for group, shapes in shared
            if shapes and all(round(mine[shape], 2) == round(group[1][shape], 2) for shape in shapes)
        ]
        if not fits:
            groups.append(([str(name)], dict(mine)))
            continue
        who, errors = max(fits, key=lambda group: len(group[0]))
        who.append(str(name))
        errors.update({shape: error for shape, error in mine.items() if shape not in errors})
    found_so = [(who, pd.Series(errors).sort_index()) for who, errors in groups]
    return sorted(found_so, key=lambda group: -group[1].max())


def _over_rounding(found: Rows) -> pd.Series:
    """Of each kernel: its error over that of rounding the exact result, at the worst of its shapes."""
    least = found.groupby("config")["rounding"].transform("max")
    over = (found["worst_rms"] / least).groupby(found["impl"]).max()
    return over.sort_index(key=lambda names: names.str.extract(r"^(\d+)", expand=False).astype(float))


def units_explained(found: Rows) -> None:
    """Say how a rounding of 1/2048 of a number comes to thousandths of the outputs' RMS, and where each unit
    is used.
    """
    most = found["rounding"].max()
    display.say(
        f"FP16 moves a number by at most 1/2048, {1e3 * HALF:.2f} ‰, of itself. Outputs differ: on the "
        f"source's shapes, listed below, one {most / HALF:.1f} times as large as the RMS is off by up to "
        f"{most / HALF:.1f} × "
        f"{1e3 * HALF:.2f} ‰ = {1e3 * most:.1f} ‰ of the RMS. So much does rounding alone cost there."
    )
    rows = [
        (
            "times rounding alone",
            "what a kernel adds to the cost of any FP16 output",
            "the source's shapes",
        ),
        (
            "‰ of the RMS",
            "the source's allowances are in it",
            "the source's test, loud inputs",
        ),
        (
            "‰ of a row's largest output",
            "the gate's limits are in it",
            "first chart, planted faults (÷ the limit), beside torch",
        ),
    ]
    names = {"unit": "Unit", "why": "Why", "where": "Where"}
    display.table(pd.DataFrame(rows, columns=list(names)), names, {}, "The units of this page")


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
    text = f"Rounding the exact result to FP16 costs up to {1e3 * floor:.1f} ‰ of the RMS by itself; the "
    text += "source's outputs are FP32. Its allowances:\n\n"
    for name, allowed in asks.TOLERANCES.items():
        out = [who for who in order if worst[who] > allowed]
        who = "all, because ours and torch's round their outputs to FP16" if len(out) == len(order) else ""
        who = who or ", ".join(out)
        text += f"- {1e3 * allowed:g} ‰ ({name}): " + (f"exceeded by {who}" if out else "kept by all") + ".\n"
    display.say(text)


def extreme_inputs(answers: Any, rungs: list[Any]) -> Rows:
    """Show what every kernel does with large scores, no key, NaN and repetition; its answers."""
    edges = answers("edges").set_index("impl")
    edges = edges.loc[[n for n in (*rungs, *asks.SDPA) if n in edges.index]].reset_index()
    names = {
        "impl": "Who",
        "loud": "Loud: error (‰ of the RMS)",
        "blind not zero": "Blind: not zero",
    }
    names |= {"NaN in k lost": "NaN in k: hidden", "NaN in v lost": "NaN in v: hidden"}
    names |= {"other bits": f"Other bits in {asks.REPEATS}"}
    edges["loud"] = 1e3 * edges["loud worst_rms"]
    forms = {"loud": "{:.1f}", "other bits": "{:.0f}"}
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
        text += f"{loud.idxmax()} is off by {1e3 * loud.max():.0f} ‰ of the RMS there, the median rung by "
        text += f"{1e3 * loud.median():.1f} ‰. "
        text += _judged_loud(float(loud.max())) if loud.idxmax() == "3_half2" else ""
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
        text += "and NaN minus infinity is NaN. "
    if len(spread) or len(wide):
        text += (
            "\n\n**Acceptable?** Here, yes: a call has one prompt, and that is lost once a value in it is "
            "NaN. A kernel whose tiles hold keys of several requests must "
            "not do this: one request's NaN would spoil the answer to another."
        )
    display.say(text)
    return loud


def _judged_loud(error: float) -> str:
    """Whether rung 3's error on loud inputs is that of its roundings, by a simulation on the CPU."""
    packed, plain = loud_simulated()
    text = (
        "It sums large scores in FP16. The gate was not run on such inputs, so its rule is applied here: on "
    )
    text += "loud inputs with random numbers of its own, a plain computation with the same FP16 sums errs by "
    text += f"{1e3 * packed:.0f} ‰ (with FP32 sums by {1e3 * plain:.1f}), and twice that is allowed. "
    if error <= 2 * packed:
        text += "**So rung 3 is right here too, but coarse**: for scores that "
        return f"{text}large take another rung. "
    return f"{text}**So rung 3 errs by more than its roundings explain.** "


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
    usual = words["head_dim"].mode().iloc[0]
    for width, other in words[words["head_dim"] != usual].groupby("head_dim"):
        text += f"{listed(other['impl'])} ran in another decoder, whose heads are {width} wide instead of "
        text += f"{usual}, and no other kernel was asked there. "
    most = words.loc[words["move"].idxmax()]
    text += f"Logits move by at most {most['move']:.4f} of their spread ({most['impl']})."
    display.say(text)


def takeaway(loud: Rows) -> None:
    """What to take away, computed."""
    text = "- Compare an error with another: that of rounding alone, or that of a plain computation in the "
    text += "same number format. Twice the latter is the gate's limit.\n- Allow what the arithmetic needs. "
    text += "A tolerance wide enough for every kernel hides faults in the exact ones.\n"
    text += f"- Test extreme inputs: there {loud.idxmax()}'s error is {loud.max() / loud.median():.0f} times "
    text += "the median rung's."
    display.say(text)


def _recorded_errors(here: Lab) -> Rows:
    """The errors of every recorded shape of the headline's heads, rung 3 left out."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and not c.options]
    cases = [c for c in cases if c.format == "fp16" and c.heads == study.HEADS and c.impl != "3_half2"]
    rows = here.measure("attention", cases)
    return rows.assign(**{"‰": 1e3 * rows["error"].astype(float)})


def _stands_for(rows: Rows) -> dict[str, list[str]]:
    """Of our rungs: those whose errors differ on some shape, each with the rungs that err as it does, in
    three digits, on every shape of theirs.
    """
    keys = ["seq", "head_dim", "window", "causal"]
    own = rows[rows["kind"].eq("own") & rows["error"].notna()].fillna({"window": 0})
    errors = {
        str(name): {tuple(row[key] for key in keys): f"{row['error']:.3g}" for _, row in group.iterrows()}
        for name, group in own.groupby("impl", sort=False)
    }
    found: dict[str, list[str]] = {}
    for name in sorted(errors, key=lambda each: -len(errors[each])):
        first = next((kept for kept in found if errors[name].items() <= errors[kept].items()), None)
        found.setdefault(name if first is None else first, []).extend([] if first is None else [name])
    return found


def same_errors(here: Lab) -> None:
    """Say which rungs the explorer of errors leaves out, and why."""
    alike = {name: who for name, who in _stands_for(_recorded_errors(here)).items() if who}
    if alike:
        said = "; ".join(f"{listed(who)}, as {name}" for name, who in alike.items())
        display.say(f"Left out too, because they err as another rung on every shape: {said}.")


def explore(here: Lab, gpu: str) -> Any:
    """The explorer of errors against float64, by contestant, width and window."""
    rows = _recorded_errors(here)
    rows = rows[rows["kind"].eq("peer") | rows["impl"].isin(list(_stands_for(rows)))]
    return explorer.Explorer(
        "errors",
        rows,
        x="seq",
        y="‰",
        labels={"‰": "‰ of a row's largest output"},
        controls={"impl": "Contestant", "head_dim": "Width", "window": "Window"},
        title=f"Error against float64 on {gpu}",
        start={"impl": "13_mbarrier_ring", "head_dim": 128, "window": None},
    )
