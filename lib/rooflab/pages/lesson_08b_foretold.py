"""The steps of lesson 08b's ladder: what each brings, where it loses, and why a prediction of it failed."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from rooflab import engine
from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.pages import NEAR, Rows
from rooflab.studies import decode, predictions
from rooflab.view import diagram, display, plot
from rooflab.words import counted, listed

_BEFORE_EMBED = ("1_scalar", "2_mmq", "3_flash", "4_rows")  # the host launches every embedding by itself
_LAST, _NEXT = "4_rows", "5_embed"  # the last of these, and the step that ends it
_ADDS_UP = 0.02  # the records still give the prediction that was written down


class Missed(NamedTuple):
    """A step's time as predicted and as measured, in ms: `embeddings` launched one by one, `calls` of
    everything else, and the `gpu`'s work, predicted; what they `took`, and `after` them all else, measured.
    """

    count: int
    embeddings: float
    calls: float
    gpu: float
    took: float
    after: float
    work: float | None

    @property
    def predicted(self) -> float:
        """The longer of what host and GPU have to do."""
        return max(self.embeddings + self.calls, self.gpu)


def climb_of(climbs: dict[str, Any]) -> Rows:
    """The ladder that the page follows: with Q8_0 weights, or where none was timed with FP16."""
    return climbs["q8_0"] if len(climbs["q8_0"]) else climbs["fp16"]


def largest_step(climbs: dict[str, Any]) -> None:
    """Say which step brings the most and the least."""
    half = climb_of(climbs)
    own = half.dropna(subset=["gain"]).sort_values("gain")
    if len(own):
        biggest, least = own.iloc[-1], own.iloc[0]
        display.say(
            f"The largest step is **`{biggest.impl}`**, {biggest.gain:.2f} times, the smallest "
            f"`{least.impl}`, {least.gain:.2f} times. Against our own first step, not a library, the last is "
            f"{display.speed(half.tok_s.iloc[-1] / half.tok_s.iloc[0])}.{_overlapping(half)}"
        )
    display.say(_diluted(half))


def _overlapping(climb: Rows) -> str:
    """Which steps' runs overlap those of the step before, so that their factors show no difference."""
    own = climb[climb.kind == "own"].itertuples()
    said = [
        f"`{before.impl}` and `{after.impl}` ({before.median_us / after.median_us:.2f} times)"
        for before, after in itertools.pairwise(own)
        if before.q1_us <= after.q3_us and after.q1_us <= before.q3_us
    ]
    if not said:
        return ""
    text = f" The middle halves of the runs of {listed(said)} overlap: "
    text += "these factors show" if len(said) > 1 else "this factor shows"
    return f"{text} no difference, and the factor of the step after is as unsure."


def _diluted(climb: Rows) -> str:
    """How the embeddings' fixed time dilutes the factors of the steps before it is removed; nothing where no
    such step helps.
    """
    fixed, own = embeddings_us(climb), climb[climb.kind == "own"]
    early = own[own.impl.isin(_BEFORE_EMBED)]
    lines = []
    for before, after in zip(early.itertuples(), early.iloc[1:].itertuples(), strict=False):
        if before.median_us > after.median_us > fixed:
            alone = (before.median_us - fixed) / (after.median_us - fixed)
            lines.append(
                f"- `{after.impl}` saves {(before.median_us - after.median_us) / 1e3:.1f} ms: "
                f"{before.median_us / after.median_us:.2f} times; without the embeddings {alone:.2f} times."
            )
    if not lines:
        return ""
    return (
        f"**A fixed cost dilutes the factors of the other steps.** Until `{_NEXT}` the embeddings take "
        f"{fixed / 1e3:.0f} ms, whatever else is saved:\n\n" + "\n".join(lines)
    )


def embeddings_us(climb: Rows) -> float:
    """Microseconds that the embeddings of a prompt take one by one: what 5_embed saves; NaN where it was not
    timed, or saves nothing.
    """
    us = climb.set_index("impl").median_us
    saved = float(us.get(_LAST, np.nan) - us.get(_NEXT, np.nan))
    return saved if saved > 0 else float("nan")


def embeddings_drawn(climbs: dict[str, Any], gpu: str) -> None:
    """Draw each step's time, and how much of it embeddings take that are launched one by one."""
    climb = climb_of(climbs)
    own, launches = climb[climb.kind == "own"], embeddings_us(climb)
    if launches != launches:
        return
    early = own.impl.isin(_BEFORE_EMBED)
    parts = {"embeddings, launched one by one": early * launches / 1e3}
    parts["all else"] = own.median_us / 1e3 - parts["embeddings, launched one by one"]
    title = f"A prompt of {int(own.seq.iloc[0]):,} tokens, {ablation.FORMATS[own.format.iloc[0]]}: ms by step"
    fig, ax = plot.figure("ms", title=title, height=1.5 + 0.24 * len(own))
    plot.stacked(ax, list(own.impl), parts, "ms")
    text = f"{title}, {gpu}, {plot.dates(own)}. One by one, embeddings take {launches / 1e3:.0f} ms of each "
    plot.show(fig, f"{text}of the first {early.sum()} steps: what 5_embed saves.")


def missed(climb: Rows, lab: Lab) -> Missed | None:
    """What was predicted and measured of the step before the embeddings are batched; None where it was not
    timed, where another ladder's host does more, or where the records no longer add up to the prediction.
    """
    by, known, took = climb.set_index("impl"), predictions.known(lab.spec), embeddings_us(climb)
    if known is None or took != took:
        return None
    before, after = by.loc[_LAST], by.loc[_NEXT]
    count = int(before.seq)
    ours, torch = predictions.prompt_calls(decode.MODEL, before.format, count, engine.PROMPTS[_LAST])
    host = ours * known.call_us
    gpu = float(after.predicted_us)
    if torch or not known.call_us or abs(max(host, gpu) / float(before.predicted_us) - 1) > _ADDS_UP:
        return None
    work = float(by.median_us["6_graph"]) / 1e3 if "6_graph" in by.index else None
    each = known.call_us / 1e3
    return Missed(
        count, count * each, host / 1e3 - count * each, gpu / 1e3, took / 1e3, after.median_us / 1e3, work
    )


def foretold(climbs: dict[str, Any], lab: Lab) -> None:
    """Say how far predictions of the ladder hold, and draw why the one that is far off failed."""
    climb = climb_of(climbs)
    kept = climb.assign(off=climb.tok_s / climb.predicted).dropna(subset=["off"]).sort_values("off")
    if kept.empty:
        return
    low, high = kept.iloc[0], kept.iloc[-1]
    text = f"With {ablation.FORMATS[low.format]} weights `{low.impl}` reaches {low.off:.0%} of its predicted "
    text += f"rate, the least, and `{high.impl}` {high.off:.0%}, the most."
    by = climb.set_index("impl").predicted
    if high.off > NEAR and high.impl in ("5_embed", "6_graph", "7_fused", "8_last_token"):
        text += f" The products of `{high.impl}` were predicted from the time of a slower kernel of ours"
        slower = {"1_scalar", "2_mmq"} <= set(by.index) and by["2_mmq"] < by["1_scalar"]
        text += ", which is also why `2_mmq` is predicted slower than `1_scalar`." if slower else "."
    display.say(text)
    found = missed(climb, lab)
    if found is None or found.took + found.after < NEAR * found.predicted:
        return
    diagram.host_and_gpu(
        _LAST,
        (found.embeddings, found.calls, found.gpu),
        (found.took, found.after, found.work),
    ).show()
    display.say(_why(found))


def _why(found: Missed) -> str:
    """The two causes of the miss, in ms."""
    real = found.took + found.after
    text = f"**Why `{_LAST}` takes {real:.1f} ms where {found.predicted:.1f} were predicted.** "
    each, thought = (1e3 * ms / found.count for ms in (found.took, found.embeddings))
    text += (
        f"An embedding's call from Python takes {each:.0f} µs; the prediction charged {thought:.0f}, what "
        "[part 00b](00b_clocks.ipynb) measured for a bare launch. "
        f"Over {counted(found.count, 'token')} that is {found.took - found.embeddings:.1f} ms too little."
    )
    late = found.after - (found.predicted - found.embeddings)
    if late > 0.5:
        text += (
            " The prediction also let the GPU's work run beside all of the host's calls, and took the longer "
        )
        text += "of the two. But layers need the embeddings: their work starts only after the last call for "
        text += f"one, and adds {found.after:.1f} ms where the prediction had "
        text += f"{found.predicted - found.embeddings:.1f}."
    text += f" The steps before `{_LAST}` launch the same embeddings."
    return text


def steps_by_length(rows: Rows, seqs: list[Any], gpu: str) -> None:
    """Show every step at every length, which is the largest and which lose: all folded."""
    mine = rows[rows.model == decode.MODEL].assign(w=rows.format.map(ablation.FORMATS))
    wide = mine.pivot_table("tok_s", ["w", "impl"], "seq").reset_index()
    wide["w"] = wide.w.where(~wide.w.duplicated(), "")
    heads = {"w": "weights", "impl": "step"} | {seq: f"{seq:,} tokens" for seq in seqs}
    longest = [ablation.prompts(rows, "q8_0", seq).dropna(subset=["gain"]) for seq in seqs]
    words = [
        f"at {int(climb.seq.iloc[0]):,} tokens `{row.impl}` ({row.gain:.2f} times)"
        for climb in longest
        if len(climb)
        for row in [climb.loc[climb.gain.idxmax()]]
    ]
    said = [f"The largest step with Q8_0 weights: {', '.join(words)}."] if words else []
    said += _losing(rows, seqs)
    if wide[seqs].isna().any(axis=None):
        said.append(
            "Empty cells were not timed: attention query by query takes too long for long prompts, and "
            "prompts with INT4 weights use FP16's steps."
        )
    table = (wide, heads, dict.fromkeys(seqs, "{:,.0f}"), f"Tok/s, {gpu}")
    display.fold_parts("The ladders at every length, and the steps that lose there", [table, *said])


def _losing(rows: Rows, seqs: list[Any]) -> list[str]:
    """Steps after which a prompt takes longer, by length, as a sentence; nothing where there are none. A step
    loses if its quartiles lie above those of the step before.
    """
    lost, near = [], 0
    for seq in seqs:
        found = []
        for format in ("fp16", "q8_0"):
            own = ablation.prompts(rows, format, seq)
            own = own[own.kind == "own"]
            for before, after in zip(own.itertuples(), own.iloc[1:].itertuples(), strict=False):
                if after.q1_us > before.q3_us:
                    found.append(f"`{after.impl}` ({ablation.FORMATS[format]}, {after.gain:.2f} times)")
                near += before.median_us < after.median_us and after.q1_us <= before.q3_us
        lost += [f"at {seq:,} tokens {listed(found)}"] if found else []
    said = [f"Some steps lose: {'; '.join(lost)}. What takes longer there was not traced."] if lost else []
    if near:
        steps = counted(near, "more step" if lost else "step")
        said.append(
            f"{steps} {'is' if near == 1 else 'are'} slower by the median alone: the quartiles overlap those "
            "of the step before."
        )
    return said
