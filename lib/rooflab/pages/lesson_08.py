"""What lesson 08's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.analysis import ablation, way
from rooflab.claims import scorecard
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import Opening, Rows, bars, goals_one_by_one, lesson_08_clock
from rooflab.pages.lesson_08_ladder import climbed as climbed
from rooflab.pages.lesson_08_ladder import equal_heads, level_formats, own_roofs, smaller_head
from rooflab.pages.lesson_08_ladder import ladders as ladders
from rooflab.pages.lesson_08_ladder import larger_model as larger_model
from rooflab.pages.lesson_08_law import law_fitted as law_fitted
from rooflab.pages.lesson_08_phases import beside_bytes, other_cost
from rooflab.pages.lesson_08_phases import explorer_start as explorer_start
from rooflab.pages.lesson_08_phases import time_by_phase as time_by_phase
from rooflab.pages.lesson_08_phases import what_is_left as what_is_left
from rooflab.pages.lesson_08_predictions import cheaper_though_dearer as cheaper_though_dearer
from rooflab.pages.lesson_08_predictions import measured as measured
from rooflab.pages.lesson_08_predictions import predictions_held as predictions_held
from rooflab.pages.lesson_08_predictions import predictions_in_all as predictions_in_all
from rooflab.pages.lesson_08_predictions import worked_launches as worked_launches
from rooflab.pages.lesson_08_predictions import worked_overlap as worked_overlap
from rooflab.pages.lesson_08_predictions import worked_prediction as worked_prediction
from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.view import diagram, display, explorer, plot
from rooflab.words import counted, listed


def opening(lab: Lab, cases: list[Any]) -> Opening:
    """The first screen: the decoder's ladder, step by step, from the library to one kernel."""
    rows = ablation.named(lab.measure("decode", cases))
    ladder, gpu = way.ladder(lab.store), lab.run.gpu  # live, after the rows that the ladder is made of
    mine = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual]
    able = (
        "say what each step from a library to a persistent kernel is worth",
        "split a token's time into its bytes and its phases",
        "find what a token waits for when memory is not the limit",
    )
    keys = [(step.impl, step.format) for step in ladder.itertuples()]
    timed = mine.set_index(["impl", "format"])
    steps = timed.loc[keys].reset_index()
    first, best = steps.iloc[0], steps.sort_values("tok_s").iloc[-1]
    pair = way.same_weights(lab.store)
    answer = f"{first.impl} makes {_few(first.tok_s)} tokens a second of {decode.MODEL} on the {gpu}"
    ours = pair[1] if pair is not None and first.format == "fp16" != best.format else None
    if ours is not None:
        answer += f"; our fastest kernel makes {ours['tok_s']:,.0f} on the same FP16 weights"
    if best.name != first.name:
        subject = " and" if ours is not None and ours["impl"] == best.impl else f"; {best.impl} makes"
        answer += f"{subject} {best.tok_s:,.0f} with {ablation.FORMATS[best.format]} weights"
    answer += ". "
    left = beside_bytes(steps, lab.roof["dram_read"].value).loc[best.name]
    if left.each > 0:
        answer += f"Bytes are not the whole of a token's time: **its {left.phases} *phases*, pieces of work "
        answer += f"that run one after the other, cost {left.each:.2f} µs each beside their bytes"
        answer += f" in {ablation.FORMATS[best.format]}{other_cost(ours, lab)}.**"
    answer = answer.strip()
    fair = [(row["impl"], row["format"]) for row in pair or ()]  # what the answer compares, not on the ladder
    keys += [key for key in fair if key not in keys and key in timed.index]
    keys.sort(key=lambda key: (list(ablation.FORMATS).index(key[1]), list(ablation.WAYS).index(key[0])))
    names = [f"{ablation.FORMATS[f]} {i.replace('transformers.', 'library, ')}" for i, f in keys]
    steps_at = {(step.impl, step.format): f"{step.number}. " for step in ladder.itertuples()}
    names = [steps_at.get(key, "") + name for key, name in zip(keys, names, strict=True)]
    roof = ("INT4 memory", lab.roof["dram_read"].value * 1e9 / best.bytes, "tok/s")
    head = ablation.FORMATS[decode.FORMATS[best.format]]
    title = f"The decoder's ladder, one sequence, output head in {head}"
    roof = (roof[0].replace("INT4", ablation.FORMATS[best.format]), *roof[1:])
    fig, says = bars(timed.loc[keys].reset_index(), names, gpu, title, roof, y="tok_s")
    for bar, (_, format) in zip(fig.axes[0].patches, keys, strict=False):
        bar.set_facecolor(plot.FORMAT_COLOURS[format])
    says += own_roofs(fig.axes[0], timed, keys, best, lab.roof["dram_read"].value)
    absent = [r for r in decode.RUNGS if r not in {impl for impl, _ in keys}]
    says += " Numbers with a point count the ladder's steps."
    return answer, able, (fig, says + (f" Not drawn: {listed(absent)}." if absent else ""))


def _few(rate: float) -> str:
    """A rate, below 100 with a decimal, so that ratios to it can be checked."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:,.1f}"


def layers_drawn(lab: Lab, format: str) -> None:
    """Draw a layer over time by the rungs on the ladder whose phases were timed in a format, by all rungs
    where fewer than two were; and say which part of it the rungs shorten.
    """
    clocks = lesson_08_clock.taken(lab)
    chosen = next((each for each in (format, *ablation.FORMATS) if diagram.ways(lab, each, clocks)), format)
    found = diagram.ways(lab, chosen, clocks)
    if not found:
        display.say(f"On the {lab.run.gpu} no rung was timed.")
        return
    names = {step.impl for step in way.STEPS}
    drawn = [each for each in found if each.phases and each.name in names]
    drawn = drawn if len(drawn) > 1 else found
    diagram.layer(drawn, ablation.FORMATS[chosen]).show()
    first, last, layers = drawn[0], drawn[-1], model_shapes.get(decode.MODEL).layers
    text = f"{layers} layers of five phases and the output head are the {5 * layers + 1} phases of a token."
    before, after = first.beside_us, last.beside_us
    if before > after > 0:
        text += (
            f" From `{first.name}` to `{last.name}` a layer's bytes stay {first.bytes_us:.1f} µs; **what is "
            f"beside them falls from {before:.1f} to {after:.1f} µs.**"
        )
    display.say(text)


def bytes_and_roofs(lab: Lab, model: Any) -> Any:
    """Show a token's bytes by format and the roof that they set; the read roof."""
    roof = lab.roof["dram_read"]
    lines = []
    for format, head in decode.FORMATS.items():
        body = model_shapes.body(model) * model_shapes.WEIGHT_BYTES[format]
        last = model_shapes.head(model) * model_shapes.WEIGHT_BYTES[head]
        cache = model_shapes.kv_read_bytes(model, decode.PROMPT + decode.STEPS // 2)
        whole = body + last + cache
        lines.append((ablation.FORMATS[format], body, last, cache, whole, roof.value * 1e9 / whole))
    table = pd.DataFrame(lines, columns=["w", "body", "head", "cache", "all", "tok"])
    table[["body", "head", "cache", "all"]] /= 1e6
    heads = {"w": "weights", "body": "layers, MB", "head": "head, MB", "cache": "cache, MB"}
    heads |= {"all": "a token, MB", "tok": "roof, tok/s"}
    display.table(
        table,
        heads,
        dict.fromkeys(("body", "head", "all", "tok"), "{:,.0f}") | {"cache": "{:.1f}"},
        f"{model.name} at {roof.value:,.0f} GB/s",
    )
    return roof


def logit_errors(here: Rows) -> None:
    """Say how many ways passed, and show the largest error of a logit by weights, folded."""
    shown = here.assign(part=here.error / here.error_budget)
    worst = shown.sort_values("part").groupby("weights_as", sort=False).tail(1)
    heads = {"weights_as": "weights", "impl": "way", "error": "error of a logit", "error_budget": "allowed"}
    timed = here[here.kind == "own"]
    theirs = here[here.kind != "own"].groupby("weights_as", sort=False).impl
    others = listed(
        f"{len(names)} others in {format} ({listed(f'`{name}`' for name in names)})"
        for format, names in theirs
    )
    display.say(
        f"**All {len(timed)} of ours passed**: {_counted_by_format(timed)}"
        + (f". Beside them passed {others}" if others else "")
        + ". On these texts no logit of the rungs, the kernels built here, is further from float64 than "
        f"{here[here.impl.isin(decode.RUNGS)].error.max():.3f}."
    )
    table = (
        worst,
        heads | {"part": "share of it"},
        {"error": "{:.4f}", "error_budget": "{:.4f}", "part": "{:.0%}"},
        "Of each format the way that takes the largest share of what it is allowed",
    )
    parts = [_ALLOWED, table]
    display.fold_parts("What is allowed, and the largest errors", parts)


def _counted_by_format(timed: Rows) -> str:
    """How many ways were judged in each format with its usual output head, and how many with another."""
    usual = timed[timed.usual].groupby("weights_as", sort=False).size()
    words = [f"{count} in {name}" for name, count in usual.items()]
    if len(usual) > 1 and usual.nunique() == 1:
        words = [f"{usual.iloc[0]} steps in each of {len(usual)} formats"]
    if other := int((~timed.usual.astype(bool)).sum()):
        words.append(f"{other} with another output head")
    return listed(words)


_ALLOWED = (
    "Each way wrote its own text, so what it is allowed is its own, too: twice the error that a baseline in "
    "FP16 makes after the same tokens. `products` in Q8_0 rounds what it multiplies to eight bits, and so "
    "does its baseline. A token passes if its exact logit lies below the largest by no more than what is "
    "allowed, and the last logits must agree within as much."
)


def beside_others(rows: Rows, lab: Lab, published: Store, gpu: str) -> None:
    """Say how many times the rates of others with the same weights ours is, and show the rates, a column a
    format, a table a model.
    """
    if said := way.like_for_like(lab.store):
        display.say(said)
    pairs = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "q4_0"}
    for name in (decode.MODEL, decode.LARGE):
        found = ablation.peers(rows, lab.store, published, name)
        mine = found.name.str.startswith("ours")
        if not mine.any():
            continue
        lines: dict[str, dict[str, str]] = {}
        for format, other in pairs.items():
            ours = found[mine & (found.format == format)].tok_s.max()
            theirs = found[~mine & found.format.isin((format, other))].sort_values("tok_s", ascending=False)
            if ours == ours:
                lines.setdefault("ours, the fastest with the usual head", {})[format] = f"{ours:,.0f}"
            if smaller := smaller_head(rows, name, format):
                lines.setdefault("ours, output head in Q8_0", {})[format] = f"{smaller:,.0f}"
            for row in theirs.itertuples():
                where = "" if row.origin == "this recording" else f", {row.origin}"
                lines.setdefault(f"{row.name}{where}", {})[format] = _few(row.tok_s)
            if ours == ours and len(theirs):
                lines.setdefault(_TIMES, {})[format] = f"{ours / theirs.tok_s.iloc[0]:.2f}"
        if _TIMES in lines:
            lines[_TIMES] = lines.pop(_TIMES)  # last
        table = pd.DataFrame([{"who": who, **cells} for who, cells in lines.items()])
        heads = {"who": "tok/s"} | {f: _COLUMNS[f] for f in pairs if f in table}
        caption = f"{name}, one sequence, {gpu}"
        display.table(table.fillna(""), heads, {}, caption, folded=name != decode.MODEL)


_TIMES = "ours ÷ the fastest of the others"
_COLUMNS = {"fp16": "FP16", "q8_0": "Q8_0", "int4_g128": "INT4; llama.cpp Q4_0"}


def counted_bytes(lab: Lab) -> None:
    """Show, folded, the bytes that Nsight Compute counted for a whole launch, and why its warps wait."""
    asking = lab.held("decode", decode.counted(lab.sized), "ncu")
    counted = lab.profile("decode", asking, "ncu", decode.METRICS)
    whose = lab
    if counted.empty:
        whose = display.borrowed(lab, "nothing was counted")
        counted = whose.profile("decode", decode.counted(whose.sized), "ncu", decode.METRICS)
    study = decode.Decode()
    numbers = counted.assign(**{c: pd.to_numeric(counted[c]) for c in decode.METRICS})
    which = [study.case(c) for c in numbers.case]
    numbers["w"] = [f"{ablation.FORMATS[c.format]} {c.impl}" for c in which]
    numbers["mb"] = [
        row.dram_read_bytes / decode.steps_of(c) / 1e6
        for c, row in zip(which, numbers.itertuples(), strict=True)
    ]
    numbers["by"] = [study.count(c).bytes / 1e6 for c in which]
    heads = {
        "w": "way",
        "by": "MB a token, by convention",
        "mb": "read, counted",
        "dram_pct": "memory busy, %",
    }
    heads |= {"sm_pct": "SMs busy, %", "stall_barrier": "barrier", "stall_long_scoreboard": "long scoreboard"}
    forms = dict.fromkeys(("by", "mb"), "{:,.0f}") | dict.fromkeys(("dram_pct", "sm_pct"), "{:.0f}")
    forms |= dict.fromkeys(("stall_barrier", "stall_long_scoreboard"), "{:.1f}")
    caption = (
        f"{decode.SHORT} tokens in a launch, counted on {whose.run.gpu} (clocks as the profiler leaves "
        "them); last, cycles waited for each instruction issued: for the block's other warps, for memory"
    )
    over = numbers.mb / numbers.by
    text = (
        "A tracer sees one kernel where a launch makes all tokens; Nsight Compute counts what it does as a "
        f"whole. Counted and by convention the bytes agree within {abs(over - 1).max():.1%}. Under the "
        f"profiler the memory is {numbers.dram_pct.min():.0f} to {numbers.dram_pct.max():.0f}% busy, the SMs "
        f"{numbers.sm_pct.min():.0f} to {numbers.sm_pct.max():.0f}%, on average over the launch. The "
        "table's last columns say what warps wait for: *barrier*, their block's other warps; *long "
        "scoreboard*, a load from memory."
    )
    display.fold_parts("What a launch of all tokens does, counted", [text, (numbers, heads, forms, caption)])


def rates_by_context(rows: Rows, lab: Lab, gpu: str) -> Rows:
    """Draw tokens a second by the context's length; the rows."""
    long = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & rows.usual]
    long = long[long.impl.isin(decode.RUNGS)].sort_values("median_us").drop_duplicates(["format", "seq"])
    long = long[long.groupby("format").seq.transform("nunique") > 1].sort_values(["format", "seq"])
    if len(long):
        title = "Tokens a second by context, each format's fastest rung"
        fig, ax = plot.figure("tokens before it", "tok/s", title, xlog=True)
        for name, side in long.groupby("weights_as", sort=False):
            side = side.sort_values("seq")
            plot.series(ax, side.seq, *plot.band(side, "tok_s"), label=name)
        ticks = sorted(set(long.seq.astype(int)))
        ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
        plot.label_ends(ax)
        plot.show(fig, plot.caption(long, gpu, title, y="tok_s"))
    return long


def cost_of_context(long: Rows, roof: Any) -> None:
    """Say how much longer a token takes at the longest context, and how much of it is bytes."""
    ends = long.sort_values("seq").groupby("weights_as", sort=False)
    words, slow, other, added = [], False, {}, []
    for name, side in ends:
        if side.seq.nunique() > 1:
            first, final = side.iloc[0], side.iloc[-1]
            more = (final.bytes - first.bytes) / roof.value / 1e3
            longer = final.median_us - first.median_us
            words.append(f"{longer:,.0f} µs in {name}")
            if first.impl != final.impl:
                other.setdefault(f"`{final.impl}`", []).append(name)
            added.append(f"{more:,.0f}")
            slow = slow or longer > 2 * more
    if words:
        display.say(
            f"From {long.seq.min():,.0f} tokens before it to {long.seq.max():,.0f} a token takes longer by "
            f"{listed(words)}. The cache's added bytes explain "
            f"{listed(dict.fromkeys(added))} µs of each. "
            + (
                "The rest is attention's work beside its bytes: no other phase has more to do. "
                if slow
                else ""
            )
            + (
                f"After {long.seq.max():,.0f} tokens the fastest rung is "
                f"{listed(f'{rung} in {listed(names)}' for rung, names in other.items())}."
                if other
                else ""
            )
        )


def heads_compared(here: Rows, lab: Lab, gpu: str, climbs: dict[str, Any], rows: Rows) -> None:
    """Show, folded, the fastest rung with each format of the output head, and what level formats make with
    equal heads.
    """
    other = here[here.impl.isin(decode.last(lab.sized))].sort_values("median_us")
    other = other.drop_duplicates(["format", "head"])
    other = other.assign(mb=other.bytes / 1e6, share=100 * other.roof_fraction).sort_values(
        "mb", ascending=False
    )
    heads = {
        "weights_as": "weights",
        "impl": "rung",
        "mb": "MB a token",
        "tok_s": "tok/s",
        "share": "% of its roof",
    }
    forms = {"mb": "{:,.0f}", "tok_s": "{:,.0f}", "share": "{:.0f}"}
    table = (other, heads, forms, f"The fastest rung measured with each head, {gpu}")
    text = "INT4 checkpoints keep the output head in FP16; a head in Q8_0 has about half of its bytes."
    said = f"{text} {equal_heads(climbs, rows)}".strip()
    display.fold_parts("The output head in another format", [said, table])


def goals(lab: Lab, rows: Rows, gpu: str) -> None:
    """Show floors and aims beside what was measured, folded, and say how many are met."""
    goals = claims.select("08_decoder", source=claims.COURSE)
    verdicts = claims.board(goals, claims.Evidence(lab.store, {"decode": rows}))
    goals_one_by_one(verdicts.assign(met=verdicts.word == claims.HOLDS))
    met = (verdicts.word == claims.HOLDS).sum()
    where = "" if gpu == scorecard.GPU else f" on the {gpu}; they were set for an {scorecard.GPU}"
    later = "later ones are judged in [lesson 09](09_scorecard.ipynb)."
    missed = verdicts[(verdicts.group == "floor") & verdicts.word.isin((claims.SHORT, claims.REFUTED))]
    names = [f"{row.id} ({row.says}: {row.measured} tok/s, asked {row.bars})" for row in missed.itertuples()]
    failed = f" {counted(len(names), 'floor is', 'floors are')} missed: {listed(names)}."
    display.say(
        f"Of the goals set before the engine was written {met} of {len(verdicts)} are met{where}; {later}"
        + failed * bool(names)
    )


def takeaway(climbs: dict[str, Any], here: Rows, gpu: str, roof: Any) -> None:
    """What to take away, computed."""
    eager = climbs["fp16"][climbs["fp16"].kind == "peer"].tok_s.min() if len(climbs["fp16"]) else float("nan")
    tops = here[here.usual].dropna(subset="tok_s").sort_values("tok_s").drop_duplicates("format", keep="last")
    mine = here[here.usual & here.impl.isin(decode.RUNGS)].dropna(subset="median_us")
    level = mine[mine.median_us <= LEVEL * mine.median_us.min()]
    one = beside_bytes(level, roof.value).sort_values("bytes").iloc[0]
    rates = "; ".join(f"{_with_head(row)} {row.tok_s:,.0f}" for row in tops.itertuples())
    heads = here[~here.usual.astype(bool) & here.impl.isin(decode.RUNGS)].dropna(subset="tok_s")
    heads = heads.sort_values("tok_s").tail(1)
    rates += "".join(
        f"; {row.weights_as} {row.tok_s:,.0f}" for row in heads[heads.tok_s > tops.tok_s.max()].itertuples()
    )
    since = f" transformers' eager calls make {_few(eager)} in FP16." if eager > 0 else ""
    tied = [ablation.FORMATS[row.format] for row in level_formats(climbs) or ()]
    lines = [
        f"- Tokens a second on the {gpu}, the fastest way of each format: {rates}.{since}",
        f"- Of the {one.median_us:,.0f} µs of the fastest way in {one.weights_as}, bytes take "
        f"{one.bytes_us:,.0f}; the rest is what {one.phases} phases cost beside them, "
        f"{one.each:.2f} µs each on average. The rungs aim at "
        "this cost: fewer launches, launches that overlap, one launch, flags in place of barriers."
        if one.each > 0
        else "",
        "- A smaller format has fewer bytes a token, but not fewer phases."
        + (f" {listed(tied)}, each with its usual output head, are level here." if tied else ""),
    ]
    display.say("\n".join(filter(None, lines)))


def _with_head(row: Any) -> str:
    """A row's weights, and its output head where that has another format."""
    head = decode.FORMATS[row.format]
    return row.weights_as + (f", {ablation.FORMATS[head]} head" if head != row.format else "")


def explore(rows: Rows, gpu: str, last: str, lab: Lab) -> Any:
    """The explorer of every recorded way of decoding: the ways in the order of the ladder, a curve a
    format.
    """
    known = [*ablation.WAYS, *sorted(set(rows.impl) - set(ablation.WAYS))]
    held = [name for name in known if name in set(rows.impl)]
    return explorer.Explorer(
        "decoding",
        rows.assign(context=rows.seq.astype(str), way=[held.index(name) for name in rows.impl]),
        x="way",
        y="tok_s",
        xlog=False,
        ylog=True,
        controls={"weights_as": "Weights", "batch": "Batch", "model": "Model", "context": "Context"},
        labels={"way": "Way (a number: the rung)"},
        x_names=dict(enumerate(held)),
        title=f"Decoding on {gpu}",
        start={
            **{"impl": last, "format": "int4_g128", "batch": 1},
            **{"model": decode.MODEL, "context": str(decode.PROMPT)},
        },
        measure=explorer.measurer(lab),
        foretold="predicted {} µs (after 3_persistent: at least, by the roof)",
    )
