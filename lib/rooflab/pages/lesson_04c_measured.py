"""What lesson 04c measures: time by tokens, where it steps up, and how long each unit is busy."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from rooflab import studies
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_bounds import bound_us, free_up_to
from rooflab.pages.lesson_04c_rungs import SUMS_SCALED
from rooflab.studies import int4 as study
from rooflab.view import display, plot
from rooflab.words import counted, listed

_COUNTED = (1, 16, 24, 32, 64)  # tokens at which counters are asked for
_UNITS = {"memory": "dram_pct", "tensor cores": "tensor_pct", "instructions": "slot_pct"}
_SHADES = ("#009E73", "#CC79A7", "#999999")  # of units: no rung's colours
_MEANT = {
    "TOKENS": "the number of token columns",
    "ROW_GROUPS": "how many warpgroups divide rows",
    "K_GROUPS": "how many divide k",
    "STAGES": "how many slots the ring has",
}
_WAITS = {
    "stall_long_scoreboard": "memory",
    "stall_short_scoreboard": "shared memory",
    "stall_barrier": "barriers",
    "stall_wait": "the result of an earlier instruction",
    "stall_math_pipe_throttle": "a busy arithmetic unit",
    "stall_mio_throttle": "a full queue",
}


def _picks(here: Lab, drawn: Any, batches: list[Any]) -> Rows:
    """The measured rows of the dispatcher's choices, by number of tokens; `build` is rung and constants."""
    cases = {batch: study.chosen(*drawn, batch, here.sized) for batch in batches}
    rows = here.measure("int4", list(cases.values()))
    rows = rows.dropna(subset="median_us").sort_values("batch", ignore_index=True)
    rows["build"] = rows["impl"] + " " + rows["options"].fillna("").astype(str)
    rows["rung"] = rows["impl"].str.partition("_")[0]
    rows["constants"] = [study.own_rung(cases[batch])[1] for batch in rows["batch"]]
    rows["columns"] = [built.get("TOKENS") for built in rows["constants"]]
    return rows


def _builds(rows: Rows) -> Rows:
    """A row for each build in turn: its tokens, its columns, its times and how much they grow."""
    turn = (rows["build"] != rows["build"].shift()).cumsum()
    found = rows.groupby(turn, sort=False).agg(
        start=("batch", "first"),
        end=("batch", "last"),
        rung=("rung", "first"),
        columns=("columns", "first"),
        constants=("constants", "first"),
        us=("median_us", "first"),
        most=("median_us", "last"),
    )
    found["within"] = (found["most"] / found["us"]).where(found["end"] > found["start"])
    found["step"] = found["us"] / found["most"].shift()
    return found.reset_index(drop=True)


class Step(NamedTuple):
    """The largest step in time between builds up to the tokens that the bound has nearly free: from and to
    how many tokens, how large, and how much time grows at most within a build.
    """

    before: int
    after: int
    ratio: float
    within: float


def largest_step(found: Rows, free: int) -> Step | None:
    """The largest step of these builds up to `free` tokens, or None where none costs more than 5%."""
    early = found[found["start"] <= free]
    steps = early["step"].dropna()
    if steps.empty or not steps.max() > 1.05:
        return None
    at = int(steps.idxmax())
    ends = int(found["end"][at - 1]), int(found["start"][at])
    return Step(*ends, float(steps[at]), float(early["within"].max()))


def how_time_grows(
    here: Lab,
    drawn: Any,
    shapes: list[Any],
    batches: list[Any],
    table: Rows,
    roofs: tuple[float, float | None],
) -> Step | None:
    """Answer whether more tokens are free, by our time beside the bound in `table`; draw it by build beside
    the bound by `roofs`, reading and peak; each build, folded; the largest step.
    """
    free, bound = free_up_to(table)[0], table.set_index("batch")["ours"]
    rows = _picks(here, drawn, batches)
    us, first = rows.set_index("batch")["median_us"], bound.index[0]
    found = _builds(rows) if len(rows) > 2 else rows[:0]
    step = largest_step(found, free) if len(found) else None
    text = answered(us, bound, first, free, step)
    if found.empty:
        display.say(f"{text}Too few numbers of tokens were timed here to tell where time grows.".strip())
        return None
    if step is None:
        text += f"No step between builds costs more than 5% up to {counted(free, 'token')}."
    else:
        text += f"The largest step up to {free} tokens is from {step.before} to {step.after}: "
        text += f"{step.ratio:.2f} times{_wider(found, step)}"
        text += f"; within a build time grows {step.within:.2f} times at most." if step.within > 0 else "."
    display.say(text)
    least = {batch: bound_us(*drawn, batch, "int4_g128", *roofs) for batch in batches}
    _draw_builds(here, drawn, rows, found, pd.Series(least))
    found["tokens"] = _spans(found, "start", "end", "{:.0f}")
    found["took"] = _spans(found, "us", "most", "{:.1f}")
    names = {"tokens": "Tokens timed", "rung": "Rung", "columns": "TOKENS", "took": "Time (µs)"}
    names |= {"within": "Last ÷ first", "step": "First ÷ last of the build before"}
    forms = {"columns": "{:.0f}", "within": "{:.2f}", "step": "{:.2f}"}
    notes = [_on_all(here, shapes, batches, free), differ(here, drawn, step, named=True) if step else ""]
    display.fold_parts("Each build in numbers", [*filter(None, notes), (found, names, forms)])
    return step


def answered(us: Any, bound: Any, first: int, free: int, step: Step | None) -> str:
    """Whether tokens are free: our time at `free` and at the most tokens over that at the fewest, beside what
    the bound predicts; nothing where they were not timed.
    """
    if not {first, free} <= set(us.index) or free <= first:
        return ""
    grown, last = us[free] / us[first], int(bound.index[-1])
    word = "Yes" if grown < 1.05 else "Nearly" if grown < 1.15 else "No"
    word += ", but they are cheap" if word == "No" and grown < 0.2 * free / first else ""
    word += ", and time grows in steps" if grown >= 1.05 and step and grows_by_builds(step) else ""
    text = f"**{word}: {free} tokens take {grown:.2f} times as long as {first}"
    text += f" (predicted: {bound[free] / bound[first]:.2f}).** "
    if last in us.index and last != free:
        text += f"{last} take {us[last] / us[first]:.2f} times as long "
        text += f"(predicted: {bound[last] / bound[first]:.2f}). "
    return text


def _wider(found: Rows, step: Step) -> str:
    """That the build after the largest step has more token columns, where it has."""
    at = found.index[found["start"] == step.after][0]
    before, after = found["columns"][at - 1], found["columns"][at]
    if not after > max(before, step.after):
        return ""
    text = f", as {step.after} tokens pay for a build of {after:.0f} columns"
    return f"{text}, {step.before} for one of {before:.0f}"


def build_names(found: Rows) -> list[str]:
    """A name for each build, a line a part: its rung, its token columns, and where another build has the same
    of both, the first constant in which they differ.
    """
    wide = [f"\n{columns:.0f} columns" if columns == columns else "" for columns in found["columns"]]
    short = [f"rung {rung}{columns}" for rung, columns in zip(found["rung"], wide, strict=True)]
    names = list[str]()
    for name, built in zip(short, found["constants"], strict=True):
        same = [other for one, other in zip(short, found["constants"], strict=True) if one == name]
        differing = (constant for constant in built if len({other.get(constant) for other in same}) > 1)
        first = next(differing, "")
        names.append(name + (f"\n{first} {built[first]}" if first else ""))
    return names


def _draw_builds(here: Lab, drawn: Any, rows: Rows, found: Rows, least: Any) -> None:
    """Draw our time by tokens, a line for each build, named at its first point, beside the bound."""
    title = f"Time of a {_named(drawn)} product, by build"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, height=3.4)
    names, before = build_names(found), 0.0
    for build in found.itertuples():
        side = rows[rows["batch"].between(build.start, build.end)]
        line = plot.series(ax, side["batch"], *plot.band(side, "median_us"), label="_")
        style = {"fontsize": 7.5, "fontweight": "bold", "color": line.get_color(), "linespacing": 1.1}
        middle, last = (build.start * build.end) ** 0.5, side["median_us"].max()
        close, ends = bool(before) and middle < 1.5 * before, build.Index == len(found) - 1
        below, beside = close and not ends, close and ends
        before = 0.0 if below else middle
        off, va = ((8, 0), "center") if beside else ((0, -9), "top") if below else ((0, 7), "bottom")
        ha = "left" if beside or build.start == rows["batch"].min() == build.end else "center"
        at = (middle, side["median_us"].min() if below else last)
        ax.annotate(names[build.Index], at, off, textcoords="offset points", ha=ha, va=va, **style)
    plot.series(ax, least.index, least, label="INT4 bound", colour=plot.ROOF_COLOUR).set_marker("")
    ax.set_ylim(0, 1.2 * max(rows["median_us"].max(), least.max()))
    ticks = [batch for batch in least.index if batch.bit_count() == 1]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    plot.label_ends(ax)
    said = (
        f"{title}, on {here.run['gpu']}, {plot.dates(rows)}. A line joins the points of one build; columns: "
    )
    over = (rows.set_index("batch")["median_us"] / least).dropna()
    said += "its token columns, TOKENS."
    if len(over):
        said += f" They take {over.min():.2f} to {over.max():.2f} times the bound."
    plot.show(fig, said)


def _spans(found: Rows, first: str, last: str, form: str) -> list[str]:
    """ "1 to 4", or one value where both are written alike."""
    ends = [(form.format(a), form.format(b)) for a, b in zip(found[first], found[last], strict=True)]
    return [a if a == b else f"{a}–{b}" for a, b in ends]


def busy_units(here: Lab, drawn: Any, shapes: list[Any], step: Step | None, free: int) -> None:
    """Draw for how long DRAM and tensor cores are busy and instructions issue, beside the kernel's time;
    say what grows up to `free` tokens; the counters.
    """
    seen = _counters(here, shapes)
    most = most_counted(seen, drawn)
    if most.empty:
        return display.say("**Why is not known:** Nsight Compute could not count here.")
    if grown := _grown(most, free):
        display.say(grown)
    title = f"How long each unit is busy, {most['shape'].iloc[0]}"
    fig, ax = plot.figure("µs", title=title, height=1.3 + 0.5 * len(most))
    style = {"color": "#1A1A1A", "linestyle": "--", "linewidth": 1.8, "zorder": 4, "label": "the kernel"}
    ax.vlines(most["us"], [k - 0.46 for k in range(len(most))], [k + 0.46 for k in range(len(most))], **style)
    longest = 1.12 * float(most["us"].max())
    parts = {unit: most[unit] for unit in _UNITS}
    plot.grouped(ax, list(most["build"]), parts, most=longest, form=".1f", shades=_SHADES)
    said = (
        f"{title}, by Nsight Compute on {here.run['gpu']}: the share of time that it counts a unit busy, × "
    )
    said += "the kernel's time while it watches (dashed). Instructions: an SM's schedulers issue one. These "
    said += "and tensor cores are counted only while an SM has work: their bars are upper limits."
    plot.show(fig, f"{said}{_under_nsight(here, most)}")
    names = {"shape": "n × k", "batch": "Tokens", "us": "Time (µs)", "dram_pct": "DRAM busy %"}
    names |= {
        "tensor_pct": "Tensor busy %",
        "slot_pct": "Instructions issued %",
        "each": "Instructions a weight",
    }
    names |= {"waits": "A warp waits most for"}
    forms = dict.fromkeys(("dram_pct", "tensor_pct", "slot_pct"), "{:.0f}") | {
        "us": "{:.1f}",
        "each": "{:.1f}",
    }
    notes = (_by_column(most), _stepped(most, step), _below_bound(here, most))
    title = "What else the counters say, and every shape that was counted"
    display.fold_parts(title, [*filter(None, notes), (seen, names, forms)])


def _under_nsight(here: Lab, most: Rows) -> str:
    """How a kernel's time under Nsight Compute compares to its time above."""
    n, k = (int(part.replace(",", "")) for part in most["shape"].iloc[0].split(" × "))
    us = _picks(here, (n, k), list(most["batch"])).set_index("batch")["median_us"]
    ratio = (most.set_index("batch")["us"] / us).dropna()
    if ratio.empty:
        return ""
    return (
        f" While Nsight watches, a kernel of this shape takes {ratio.min():.2f} to {ratio.max():.2f} times "
        "its time above."
    )


def _below_bound(here: Lab, most: Rows) -> str:
    """That tensor cores are busy for less than the operations' bound, where they are at the most tokens."""
    if "fp16_tensor" not in here.roof:
        return ""
    n, k = (int(part.replace(",", "")) for part in most["shape"].iloc[0].split(" × "))
    last = most.iloc[-1]
    least = roofline.gemm_flops(int(last["batch"]), n, k) / here.roof["fp16_tensor"].value / 1e6
    if not last["tensor cores"] < 0.98 * least:
        return ""
    return (
        f"At {counted(int(last['batch']), 'token')} tensor cores are busy for {last['tensor cores']:.1f} µs, "
        f"less than the bound's {least:.1f} for the operations: it divides by the rate of a whole cuBLAS "
        "product, and tensor cores that are busy do more than that."
    )


def most_counted(seen: Rows, drawn: Any) -> Rows:
    """The counters of the drawn shape, by batch, or else of the last shape counted at the most batches."""
    whole = seen.dropna(subset=[*_UNITS, "us"]) if len(seen) else seen
    if whole.empty:
        return whole
    counts = whole.groupby("shape", sort=False)["batch"].count()
    shape = _named(drawn) if counts.get(_named(drawn), 0) > 1 else counts.index[counts == counts.max()][-1]
    return whole[whole["shape"] == shape].sort_values("batch", ignore_index=True)


def _on_all(here: Lab, shapes: list[Any], batches: list[Any], free: int) -> str:
    """How much time grows at most within a build and from one to the next, over all shapes."""
    found = [_builds(rows) for shape in shapes if len(rows := _picks(here, shape, batches))]
    early = pd.concat([each[each["start"] <= free] for each in found]) if len(found) > 1 else pd.DataFrame()
    if early.empty or early["within"].isna().all() or early["step"].isna().all():
        return ""
    return (
        f"Over all {len(found)} shapes time grows up to {early['within'].max():.2f} times within a build, "
        f"up to {early['step'].max():.2f} times from one build to the next."
    )


def grows_by_builds(step: Step) -> bool:
    """Whether further tokens of the same build cost less than half of what the largest step does."""
    return step.within < 1 + (step.ratio - 1) / 2


def _counters(here: Lab, shapes: list[Any]) -> Rows:
    """The counters of the dispatcher's choices, a row each: shares in %, and busy times in µs by unit."""
    ((tool, asked, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    wanted = [study.chosen(n, k, b, here.sized) for n, k in shapes for b in _COUNTED]
    wanted = [c for c in wanted if c in asked]
    seen = here.profile("int4", here.held("int4", wanted, tool), tool, metrics)
    of = seen["case"].map({c.id: c for c in wanted})
    seen["shape"] = [_named((c.n, c.k)) for c in of]
    seen["batch"] = [c.batch for c in of]
    seen["rung"] = [int(c.impl.partition("_")[0]) for c in of]
    seen["columns"] = [study.own_rung(c)[1].get("TOKENS", c.batch) for c in of]
    named = zip(seen["batch"], seen["rung"], seen["columns"], strict=True)
    seen["build"] = [
        f"{counted(batch, 'token')}: rung {rung}, TOKENS = {wide}" for batch, rung, wide in named
    ]
    seen["waits"] = [_WAITS[row.astype(float).idxmax()] for _, row in seen[list(_WAITS)].iterrows()]
    numbers = ["time_ns", "dram_pct", "tensor_pct", "issue_active", "inst_executed"]
    seen[numbers] = seen[numbers].apply(pd.to_numeric)
    seen["us"], seen["slot_pct"] = seen["time_ns"] / 1e3, 100 * seen["issue_active"]
    seen["each"] = [32 * some / (c.n * c.k) for some, c in zip(seen["inst_executed"], of, strict=True)]
    for unit, share in _UNITS.items():
        seen[unit] = seen["us"] * seen[share] / 100
    return seen


def _grown(most: Rows, free: int) -> str:
    """How much of the kernel's time memory's work does not hide at the fewest tokens and at `free`, or the
    most counted up to them; whose work grows, and whether the busiest is so all the time.
    """
    early = most[most["batch"] <= free]
    if len(early) < 2:
        return ""
    a, b = early.iloc[0], early.iloc[-1]
    first, last = (counted(int(row["batch"]), "token") for row in (a, b))
    grown = [unit for unit in _UNITS if b[unit] > 1.1 * a[unit]]
    if not grown or "memory" in grown:
        text = f"From {first} to {last} {_longer_busy(early, grown)}. " if grown else ""
    else:
        rest = [f"{round(row['us'], 1) - round(row['memory'], 1):.1f}" for row in (a, b)]
        whole = " and ".join(f"{row['us']:.1f}" for row in (a, b))
        text = (
            f"**Memory is busy {_ends(a['memory'], b['memory'])} µs for {first} and for {last}: more tokens "
        )
        text += f"cost no more reading. While Nsight Compute counts, the kernel takes {whole} µs; "
        text += f"the rest of that grows from {rest[0]} to {rest[1]} µs.** "
        text += f"In it {_longer_busy(early, grown)}. "
    busy = b[list(_UNITS)].astype(float)
    if busy.max() > 0.9 * b["us"]:
        return f"{text}At {last} one is busy nearly all the time, so it limits: {busy.idxmax()}."
    return f"{text}How much of that the kernel waits for, busy times do not say." if grown else text.strip()


def _longer_busy(early: Rows, grown: list[str]) -> str:
    """Which units work for longer, and from how many tokens on."""
    return f"{listed(_since(early, unit) for unit in grown)} are busy for longer"


def _ends(first: float, last: float) -> str:
    """Two numbers, or the one that both are."""
    return " and ".join(dict.fromkeys(f"{us:.0f}" for us in (first, last)))


def _since(early: Rows, unit: str) -> str:
    """A unit with its article, and from how many tokens on its work grows where it first does not."""
    level = early["batch"][early[unit] <= 1.02 * early[unit].iloc[0]]
    since = int(level.iloc[-1])
    return _the(unit) + (f" (beyond {since} tokens)" if since > early["batch"].iloc[0] else "")


def _stepped(most: Rows, step: Step | None) -> str:
    """What changes at the largest step, where its two numbers of tokens were counted."""
    at = most.set_index("batch")
    if step is None or not {step.before, step.after} <= set(at.index):
        return ""
    a, b = at.loc[step.before], at.loc[step.after]
    text = (
        f"At the step from {step.before} to {step.after} tokens a weight takes {b['each']:.1f} instructions "
    )
    text += f"instead of {a['each']:.1f}"
    if a["columns"] != b["columns"]:
        text += (
            f", and a build has {int(b['columns'])} token columns instead of {int(a['columns'])}: the tensor "
        )
        text += f"cores are busy for {b['tensor cores']:.1f} µs instead of {a['tensor cores']:.1f}"
    return f"{text}."


def _by_column(most: Rows) -> str:
    """Why rung 9's mma keeps tensor cores busy longer for a column than wgmma, where it was so counted."""
    each = most["tensor cores"] / most["columns"]
    mma, wgmma = each[most["rung"] < 10], each[most["rung"] >= 10]
    if mma.empty or wgmma.empty or mma.min() < 1.2 * wgmma.max():
        return ""
    few, many = most.loc[mma.index[0]], most.loc[wgmma.index[0]]
    text = f"A token column keeps the tensor cores busy for {mma.iloc[0]:.2f} µs in rung "
    text += f"{int(few['rung'])}'s `mma`, for {wgmma.min():.2f} to {wgmma.max():.2f} in `wgmma`"
    if many["columns"] > few["columns"] and many["tensor cores"] < 1.05 * few["tensor cores"]:
        text += f": {int(many['columns'])} columns take no longer than {int(few['columns'])} did, so their "
        text += f"time does not grow from {int(few['batch'])} to {counted(int(many['batch']), 'token')}"
    return f"{text}."


def _named(shape: Any) -> str:
    """A shape in words: "28,672 × 8,192"."""
    return f"{shape[0]:,} × {shape[1]:,}"


def open_questions(here: Lab, drawn: Any, step: Step | None) -> None:
    """List what the record leaves open of why time grows."""
    lines = list[str]()
    if step:
        lines.append(f"{differ(here, drawn, step)} What each change costs was not timed.")
    tiled = any(case.impl.startswith("12_") and case.batch > _COUNTED[-1] for case in here.cases("int4"))
    why = "it was timed as a whole" if tiled else "rung 12, the step before it, was not timed there"
    lines.append(f"What each of rung 13's changes brings beyond {_COUNTED[-1]} tokens: {why}.")
    display.say("The record leaves open:\n\n" + "\n".join(f"- {line}" for line in lines))


def differ(here: Lab, drawn: Any, step: Step, named: bool = False) -> str:
    """What differs between the builds before and after a step, where they are of one rung; `named`: by the
    constants' names.
    """
    cases = [study.chosen(*drawn, batch, here.sized) for batch in (step.before, step.after)]
    where = f"At the step from {step.before} to {step.after} tokens"
    if cases[0].impl != cases[1].impl:
        return f"{where} the rung changes."
    built = [study.own_rung(case)[1] for case in cases]
    other = [name for name in built[1] if built[0].get(name) != built[1][name]]
    if named:
        changed = (f"`{name}` {built[0].get(name, 'unset')} → {built[1][name]}" for name in other)
        return f"{where} these constants change: {listed(changed)}."
    changes = list(dict.fromkeys(_MEANT.get(name, "other constants") for name in other))
    if cases[0].impl == "11_tma" and built[0]["TOKENS"] <= SUMS_SCALED < built[1]["TOKENS"]:
        changes.append("what is scaled (weights instead of sums)")
    return f"{where} builds differ in {listed(changes)}."


def _the(unit: str) -> str:
    """A unit with its article, where it takes one."""
    return f"the {unit}" if unit == "tensor cores" else unit
