"""What lesson 08's page shows of its ladder: steps predicted and measured, and level formats."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from rooflab.analysis import ablation, states
from rooflab.analysis.evidence import NoEvidence
from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_08_predictions import without_roofs
from rooflab.studies import decode
from rooflab.view import display, plot
from rooflab.words import listed, times


def climbed(rows: Rows) -> dict[str, Any]:
    """The ladders by format, with `reached`, measured over predicted."""
    found = {format: ablation.ladder(rows, format) for format in ablation.FORMATS}
    return {format: climb.assign(reached=climb.tok_s / climb.predicted) for format, climb in found.items()}


def ladders(climbs: dict[str, Any], gpu: str, here: Rows, format: str) -> None:
    """Show, folded, every step of all formats, `format` first, with times and shares of the roof."""
    heads = {"impl": "step", "median_us": "µs a token", "tok_s": "tok/s", "predicted": "predicted tok/s"}
    heads |= {"reached": "tok/s ÷ predicted", "share": "% of roof", "below": "builds on"}
    heads |= {"gain": "× that"}
    forms = dict.fromkeys(("median_us", "tok_s", "predicted"), "{:,.0f}")
    forms |= {"share": "{:.0f}", "gain": "{:.2f}", "reached": "{:.2f}"}
    held = [each for each, climb in climbs.items() if len(climb)]
    parts: list[Any] = []
    for each in sorted(held, key=lambda name: name != format):
        size = climbs[each].bytes.max() / 1e6
        caption = f"{ablation.FORMATS[each]}, {size:,.0f} MB a token, {gpu}"
        parts.append((without_roofs(climbs[each]), heads, forms, caption))
    few = here[here.usual & (here.steps < here.steps.max())].drop_duplicates(["impl", "steps"])
    if len(few):
        words = ", ".join(f"`{row.impl}` {row.steps}" for row in few.itertuples())
        parts.append(f"A generation has {here.steps.max()} tokens; fewer where a few are enough: {words}.")
    display.fold_parts("Every step with its time and its share of the roof, in each format", parts, lean=True)


def short_name(name: str) -> str:
    """A step's name in a cell: "rung 3" of a rung."""
    number = name.partition("_")[0]
    return f"rung {number}" if number.isdigit() else name


def larger_model(rows: Rows, lab: Lab) -> None:
    """Say, folded, where the larger model's fastest way is another, and what its steps take in other states
    of the GPU.
    """
    here = rows[(rows.model == decode.LARGE) & (rows.batch == 1) & rows.impl.isin(decode.RUNGS)]
    said = [_larger_model(rows), _chain(rows), *(_in_states(lab, here) if len(here) else [])]
    if any(said):
        display.fold_items(f"{decode.LARGE}: where other rungs come first, and power", [*filter(None, said)])


def _in_states(lab: Lab, here: Rows) -> list[str]:
    """What a token takes in each state of the GPU, and how these rows differ from the ladder's, `here`."""
    found = display.power_rows(lab, "decode")
    found = found[(found.kind == "own") & (found.model == decode.LARGE)]
    each = found.groupby(["impl", "format"], sort=False)
    told = [states.of_a_work(g, f"A token by `{i}` in {ablation.FORMATS[f]}") for (i, f), g in each]
    if not any(told):
        return []
    said = "A token of this model draws all the power that the GPU may, so it is timed *sustained*."
    few, usual = int(ablation.named(found).steps.max()), int(here.steps.max())
    if few != usual:
        said += (
            f" The ladder's rates are of launches of {usual} tokens, the times below of {few}, measured at "
        )
        said += "other moments of the recording: the two need not agree."
    return [said, *told]


def _larger_model(rows: Rows) -> str:
    """Where the larger model's fastest rung is not the small one's; empty where it is in every format."""
    here = rows[(rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual & rows.impl.isin(decode.ALONE)]
    words = []
    for format in ablation.FORMATS:
        small, large = (
            here[(here.model == name) & (here.format == format)].sort_values("median_us").set_index("impl")
            for name in (decode.MODEL, decode.LARGE)
        )
        if small.empty or small.index[0] not in large.index or small.index[0] == large.index[0]:
            continue
        top, usual = large.iloc[0], large.loc[small.index[0]]
        words.append(
            f"in {ablation.FORMATS[format]} `{top.name}` is the fastest, {top.tok_s:,.0f} tok/s against "
            f"{usual.tok_s:,.0f} of `{usual.name}`" + _if_level(top, usual)
        )
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}." if words else ""


def _if_level(top: Any, usual: Any) -> str:
    """That two rates are level, and that their quartiles overlap where the medians alone do not say so."""
    if not display.level(top, usual):
        return ""
    near = round(usual.median_us / top.median_us, 2) <= round(LEVEL, 2)
    return " (level)" if near else " (level: the quartiles of their times overlap)"


def _chain(rows: Rows) -> str:
    """How the larger model's tokens by a chain of launches compare with its fastest rung's, and why."""
    here = rows[(rows.model == decode.LARGE) & (rows.batch == 1) & (rows.seq == decode.PROMPT) & rows.usual]
    here = here.dropna(subset="median_us").sort_values("median_us")
    said, slower = [], []
    for format, name in ablation.FORMATS.items():
        mine = here[here.format == format]
        chain, rungs = mine[mine.impl == decode.CHAIN], mine[mine.impl.isin(decode.RUNGS)]
        if chain.empty or rungs.empty:
            continue
        one, best = chain.iloc[0], rungs.iloc[0]
        if one.median_us >= best.median_us:
            slower.append(f"{one.median_us / best.median_us:.2f} times as long in {name}")
            continue
        text = f"It is {best.median_us / one.median_us:.2f} times as fast as `{best.impl}` in {name}"
        if one.power_capped and best.power_capped and one.sm_mhz > best.sm_mhz:
            text += f", at {one.sm_mhz:,.0f} MHz against {best.sm_mhz:,.0f}. Both draw all the power "
            text += "that the GPU may, and the chain takes less energy a token"
        said.append(f"{text}.")
    said += [f"It takes {listed(slower)} as the fastest rung."] if slower else []
    means = "`chain` makes a token by the dependent launches of a batch's kernels, with one sequence in them."
    return " ".join([means, *said]) if said else ""


def equal_heads(climbs: dict[str, Any], rows: Rows) -> str:
    """What the smaller of two level formats brings where both have the same output head."""
    pair = level_formats(climbs)
    if pair is None:
        return ""
    a, b = pair
    small, large = (ablation.FORMATS[row.format] for row in pair)
    here = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)]
    tops = here[here.impl.isin(decode.RUNGS)].sort_values("median_us").drop_duplicates(["format", "head"])
    tops = tops.set_index(["format", "head"])
    heads = [h for h in ablation.FORMATS if (a.format, h) in tops.index and (b.format, h) in tops.index]
    if not heads:
        return ""
    pairs = [(tops.loc[(a.format, head)], tops.loc[(b.format, head)]) for head in heads]
    brings = listed(
        f"{mine.tok_s / other.tok_s:.2f} times ({ablation.FORMATS[head]} heads)"
        for head, (mine, other) in zip(heads, pairs, strict=True)
    )
    allows = listed(times(other.bytes / mine.bytes) for mine, other in pairs)
    return (
        f"With equal heads {small} makes {brings} the tokens of {large}; by their bytes alone {allows} times "
        "would be possible."
    )


def level_formats(climbs: dict[str, Any]) -> tuple[Any, Any] | None:
    """The rows of two formats' fastest rungs level although the first reads a fifth less; or None."""
    rungs = [climb[climb.impl.isin(decode.RUNGS)] for climb in climbs.values() if len(climb)]
    tops = [mine.sort_values("median_us").iloc[0] for mine in rungs if len(mine)]
    for a, b in combinations(sorted(tops, key=lambda row: row.bytes), 2):
        if display.level(a, b) and a.bytes < 0.8 * b.bytes:
            return a, b
    return None


def own_roofs(ax: Any, timed: Rows, keys: list[Any], best: Any, gb_s: float) -> str:
    """Draw the roofs of formats other than the fastest row's beside their own bars, and say what they are."""
    said = ""
    for format in [each for each in ablation.FORMATS if each != best.format]:
        mine = [place for place, key in enumerate(keys) if key[1] == format]
        if not mine:
            continue
        rate = gb_s * 1e9 / timed.loc[keys[mine[-1]], "bytes"]  # of ours, which comes last
        plot.roof_line(ax, rate, f"{ablation.FORMATS[format]} memory {rate:.0f}", vertical=True)
        ax.lines[-1].set_ydata([1 - (mine[-1] + 1) / len(keys), 1 - mine[0] / len(keys)])
        said += f" {ablation.FORMATS[format]}'s roof: {rate:,.0f} tok/s."
    return said


def smaller_head(rows: Rows, model: str, format: str) -> float:
    """Our fastest rate with FP16's head replaced by one in Q8_0; 0 where that was not measured."""
    if decode.FORMATS[format] != "fp16" or format == "fp16":
        return 0.0
    try:
        return float(ablation.best(rows, model, format, "q8_0")["tok_s"])
    except NoEvidence:
        return 0.0
