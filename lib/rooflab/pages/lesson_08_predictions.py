"""What lesson 08's page shows of its predictions: three worked, whether they held, and why they missed."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import ablation
from rooflab.lab import Lab
from rooflab.numerics import model_shapes
from rooflab.pages import NEAR, Rows, held, lesson_08_clock
from rooflab.pages.lesson_08_clock import Clocks
from rooflab.studies import decode, predictions
from rooflab.view import display
from rooflab.words import counted, listed

_SAME_LAW = 0.02  # the law is fitted again with each recording of products: it moves by less than that
_WORKED = "3_persistent"  # the rung whose prediction the page works out


def measured(lab: Lab, cases: list[Any]) -> tuple[Rows, str, Rows]:
    """All rows of decoding, the GPU, and the rows of the page's model, one sequence, the short prompt."""
    rows = ablation.named(lab.measure("decode", cases))
    here = rows[(rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)]
    return rows, lab.run.gpu, here


def worked_prediction(here: Rows, format: str, lab: Lab) -> None:
    """Say how the prediction of _WORKED comes about: bytes at the roof, and a barrier a phase."""
    mine = _worked(here, format)
    if mine is None:
        return
    bytes_us = mine.bytes / lab.roof["dram_read"].value / 1e3
    barriers = mine.predicted_us - bytes_us
    if barriers > 0:
        display.say(
            f"Predicted in {ablation.FORMATS[mine.format]}, no longer by lesson 07b's law, which has a "
            f"launch a product: {bytes_us:,.1f} µs for a token's bytes at the read roof, {barriers:,.1f} for "
            f"{mine.phases:.0f} grid barriers of {barriers / mine.phases:.2f} µs. Together "
            f"{mine.predicted_us:,.0f} µs a token; measured **{mine.median_us:,.0f}**."
            + why_missed(here, format, lab)
        )


def cheaper_though_dearer(here: Rows, format: str, lab: Lab, clocks: Clocks) -> None:
    """Say that a phase of _WORKED takes less than in 2_pdl though a barrier costs more than a dependent
    launch, and what the clock says of its weights; nothing where the rows do not say so.
    """
    before, mine, known = _worked(here, format, "2_pdl"), _worked(here, format), predictions.known(lab.spec)
    if before is None or mine is None or known is None:
        return
    saved = (before.median_us - mine.median_us) / mine.phases
    if saved <= 0 or known.barrier_us <= known.edge_us:
        return
    there = lesson_08_clock.weights_there(clocks, _WORKED, format)
    there = f" {there} What share of the {saved:.2f} µs is the ring's was not measured." if there else ""
    display.say(
        f"A grid barrier costs more than a dependent launch, {known.barrier_us:.2f} and {known.edge_us:.2f} "
        f"µs ([lesson 00b](00b_clocks.ipynb)), yet a phase takes {saved:.2f} µs less than in `2_pdl`, in "
        f"{ablation.FORMATS[mine.format]}.{there}"
    )


def worked_launches(here: Rows, format: str, lab: Lab) -> None:
    """Say how the prediction of 1_kernel_per_phase comes about, products by the law and a launch for each
    layer's attention, and what it left out where it missed. Only where the records still add up to it.
    """
    first, known = _worked(here, format, "1_kernel_per_phase"), predictions.known(lab.spec)
    if first is None or known is None:
        return
    law = predictions.products_us(known, decode.MODEL, first.format, decode.FORMATS[first.format])
    layers = (first.phases - 1) / 5
    cache = model_shapes.kv_read_bytes(model_shapes.get(decode.MODEL), decode.PROMPT + decode.STEPS // 2)
    attention = layers * known.node_us + cache / known.machine.gb_s / 1e3
    products = first.predicted_us - attention
    if abs(law / products - 1) > _SAME_LAW:
        return
    text = (
        f"Predicted for `1_kernel_per_phase` in {ablation.FORMATS[first.format]}: {products:,.0f} µs for "
        f"its matrix products by lesson 07b's law, {attention:,.0f} for attention's launches and the cache. "
        f"Together {first.predicted_us:,.0f} µs a token; measured **{first.median_us:,.0f}**."
    )
    if first.median_us > NEAR * first.predicted_us:
        text += (
            " The prediction leaves out the small steps, which now run inside the products, and attention's "
            "own latency."
        )
    display.say(text)


def worked_overlap(here: Rows, format: str) -> None:
    """Say what 2_pdl was predicted to save, by launches that overlap, and what it saved."""
    first, second = (_worked(here, format, name) for name in ("1_kernel_per_phase", "2_pdl"))
    if first is None or second is None or first.predicted_us <= second.predicted_us:
        return
    less, saved = first.predicted_us - second.predicted_us, first.median_us - second.median_us
    text = (
        f"Predicted in {ablation.FORMATS[first.format]}: each of {first.phases:.0f} launches costs "
        f"{less / first.phases:.2f} µs less, together {less:,.0f} µs a token. Measured: **{abs(saved):,.0f} "
        f"{'less' if saved >= 0 else 'more'}**."
    )
    if saved > NEAR * less:
        text += " The prediction counts the launch alone; the first weights come earlier, too."
    display.say(text)


def why_missed(here: Rows, format: str, lab: Lab) -> str:
    """What a phase of _WORKED costs beside its bytes, where that is more than the barrier it was predicted
    to cost; empty where the prediction held.
    """
    mine, roof = _worked(here, format), lab.roof["dram_read"].value
    if mine is None or mine.median_us <= NEAR * mine.predicted_us:
        return ""
    bare = (mine.predicted_us - mine.bytes / roof / 1e3) / mine.phases
    if bare <= 0:
        return ""
    cost = (mine.median_us - mine.bytes / roof / 1e3) / mine.phases
    return (
        f" Beside its bytes a phase costs {cost:.2f} µs, not the {bare:.2f} of a bare barrier: it also loads "
        "its input from L2, adds up and stores, and at each barrier all wait for the slowest block."
    )


def _worked(here: Rows, format: str, name: str = _WORKED) -> Any:
    """The row of a rung in a format, with its phases; None without one that was predicted and measured."""
    mine = here[(here.impl == name) & (here.format == format) & here.usual]
    mine = mine.dropna(subset=["predicted_us", "median_us"])
    if mine.empty:
        return None
    row = mine.iloc[0]
    return row.to_frame().T.assign(phases=ablation.phases_of(str(row.model))).iloc[0]


def predictions_held(climbs: dict[str, Any], format: str) -> None:
    """Say, folded, which predictions for a format, or for FP16 where that is empty, held, and the roof where
    it is the prediction.
    """
    mine = _predicted(climbs, format)
    name, lines = ablation.FORMATS[mine.format.iloc[0]] if len(mine) else "", []
    by_roof = mine[carries_roof(mine)]
    for step in mine.drop(by_roof.index).itertuples():
        text = f"`{step.impl}`: predicted {step.predicted:,.0f} tok/s, measured {step.tok_s:,.0f}, "
        lines.append(text + f"{step.tok_s / step.predicted:.2f} of it. {held(step.off)}")
    if len(by_roof):
        best = by_roof.sort_values("tok_s").iloc[-1]
        names = listed(f"`{each}`" for each in by_roof.impl)
        lines.append(
            f"{names} have no prediction of their own: the roof, {best.predicted:,.0f} tok/s, is an upper "
            f"bound. Measured: {by_roof.tok_s.min():,.0f} to {best.tok_s:,.0f} tok/s, at most "
            f"{best.share / 100:.2f} of it (`{best.impl}`)."
        )
    if lines:
        display.fold_items(f"Which predictions held, in {name}", lines)


def predictions_in_all(climbs: dict[str, Any], format: str) -> None:
    """Say how many of the predictions for a format, or for FP16 where that is empty, held."""
    mine = _predicted(climbs, format)
    law = mine.drop(mine[carries_roof(mine)].index)
    if len(law):
        missed = len(law) - law.off.between(1 / NEAR, NEAR).sum()
        ratios = listed(f"{_ratio(row.off)} for `{row.impl}`" for row in law.itertuples())
        display.say(
            f"**{missed or 'None'} of {counted(len(law), 'prediction')} in "
            f"{ablation.FORMATS[law.format.iloc[0]]} missed by more than {NEAR - 1:.0%}.** Measured ÷ "
            f"predicted time is {ratios}; {1 / NEAR:.2f} to {NEAR} holds.{_only_as_a_total(law)}"
        )


def _predicted(climbs: dict[str, Any], format: str) -> Rows:
    """The steps of a format, or of FP16 where that is empty, with a prediction and a measured time."""
    return (climbs[format] if len(climbs[format]) else climbs["fp16"]).dropna(subset=["off", "share"])


def _ratio(off: float) -> str:
    """A measured time over a predicted one, with as many digits as say whether the prediction holds."""
    holds = 1 / NEAR <= off <= NEAR
    digits = next((d for d in range(2, 6) if (1 / NEAR <= round(off, d) <= NEAR) == holds), 6)
    return f"{off:.{digits}f}"


def _only_as_a_total(law: Rows) -> str:
    """That 2_pdl's total was predicted, but not what the step saves; empty where both were, or neither."""
    known = law.set_index("impl")
    names = ("1_kernel_per_phase", "2_pdl")
    if any(name not in known.index for name in names) or not 1 / NEAR <= known.off["2_pdl"] <= NEAR:
        return ""
    before, after = (known.loc[name] for name in names)
    less, saved = 1e6 / before.predicted - 1e6 / after.predicted, before.median_us - after.median_us
    if saved <= NEAR * less or before.off <= NEAR:
        return ""
    return (
        " `2_pdl` holds only as a total: the one before it was too low, and the step saves more than was "
        "predicted."
    )


def carries_roof(climb: Rows) -> Rows:
    """Which rows of a ladder carry the roof in the place of a prediction."""
    return (climb.tok_s / climb.predicted - climb.share / 100).abs() < 0.005


def without_roofs(climb: Rows) -> Rows:
    """A ladder with `predicted` and `reached` empty where a row carries the roof."""
    shown = climb.copy()
    shown.loc[carries_roof(climb), ["predicted", "reached"]] = float("nan")
    return shown
