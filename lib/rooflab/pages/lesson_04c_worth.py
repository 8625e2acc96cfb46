"""What rungs 9 to 11 of lesson 04c bring over each other, for few tokens and for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab import studies
from rooflab.lab import Lab
from rooflab.ops import int4
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_stops import bound_us
from rooflab.studies import int4 as study
from rooflab.view import display, plot
from rooflab.words import counted, listed

_NUMBERS = (9, 10, 11)
_SHAPE = study.SHAPES[-1]
SUMS_SCALED = 16  # tokens up to which rung 11 scales sums (SCALE_SUMS in its source)


def worth_by_batch(here: Lab, read_roof: float, peak: float | None) -> None:
    """Draw these rungs' times side by side for each number of tokens at which all were timed on the largest
    shape, with the bound; say what each brings over the one before it, or that this was not recorded.
    """
    wide = _times(here)
    asked = sorted({1, *(case.batch for case in study.for_tokens(here.sized) if case.batch)})
    whole = wide.dropna().reindex([batch for batch in asked if batch in wide.dropna().index])
    missing = [batch for batch in asked if batch not in whole.index]
    if len(whole):
        _draw(here, whole, read_roof, peak)
        display.say(f"{_compared(whole)} {_behind(whole)}{_instructions(here)}".strip())
        display.fold_parts("What else each rung changes", [_reasons(whole)])
    if missing:
        at = f"{listed(missing)} {'token' if missing == [1] else 'tokens'}"
        display.say(
            f"At {at} rungs 9, 10 and 11 were not all timed on the {here.run['gpu']}: **what `wgmma` and "
            "the TMA bring there is not known.**"
        )


def _times(here: Lab) -> Rows:
    """The fastest time of each rung by tokens: for one token all in the constants of their sources."""
    names = {int4.LADDERS["int4"][number - 1].name: number for number in _NUMBERS}
    asked, known = (*study.rungs(*_SHAPE), *study.for_tokens(here.sized)), here.cases("int4")
    cases = [case for case in dict.fromkeys(asked) if case.impl in names and case in known]
    rows = here.measure("int4", here.held("int4", cases))
    rows = rows.assign(rung=rows["impl"].map(names))
    wide = rows.pivot_table("median_us", "batch", "rung", aggfunc="min")
    return wide.reindex(columns=list(_NUMBERS))


def _draw(here: Lab, whole: Rows, read_roof: float, peak: float | None) -> None:
    """A group of bars for each number of tokens, a bar a rung, and a line at the bound."""
    title = f"Rungs 9, 10 and 11, {_SHAPE[0]:,} × {_SHAPE[1]:,}"
    least = [bound_us(*_SHAPE, batch, "int4_g128", read_roof, peak) for batch in whole.index]
    fig, ax = plot.figure("µs", title=title, height=1.4 + 0.6 * len(whole))
    places = np.arange(len(whole))
    style = {"color": "#1A1A1A", "linestyle": "--", "linewidth": 1.8, "zorder": 4, "label": "bound"}
    ax.vlines(least, places - 0.46, places + 0.46, **style)
    parts = {"rung 9: mma": whole[9], "rung 10: wgmma": whole[10], "rung 11: wgmma, TMA": whole[11]}
    names = [counted(batch, "token") + ", untuned" * (batch == 1) for batch in whole.index]
    plot.grouped(ax, names, parts, most=1.12 * float(whole.max().max()), form=".1f")
    said = f"{title} on {here.run['gpu']}. "
    untuned = 1 in whole.index
    if len(whole) > untuned:
        said += "For several tokens each rung is in the fastest of the builds tried on an H200. "
    if untuned:
        said += "For one token all three have the constants of their sources, untuned"
        tuned = here.held("int4", [study.chosen(*_SHAPE, 1, here.sized)])
        us = here.measure("int4", tuned)["median_us"].dropna()
        said += f" (the tuned build that the page uses takes {us.iloc[0]:.1f} µs). " if len(us) else ". "
    plot.show(fig, f"{said}The dashed line is the bound.")


def _compared(whole: Rows) -> str:
    """What the two rungs bring, as ratios of times, over rung 9 at the most tokens."""
    most = whole.index[-1]
    total, wgmma, tma = whole[9] / whole[11], whole[9] / whole[10], whole[10] / whole[11]
    return (
        f"**At {counted(most, 'token')} rung 11 runs at {total[most]:.2f} times the speed of rung 9: "
        f"{wgmma[most]:.2f} by rung 10 × {tma[most]:.2f} by rung 11.**"
    )


def _behind(whole: Rows) -> str:
    """At which few tokens rung 10 is slower than rung 9, and what the drawing of the two leaves out."""
    slow = [at for at in whole.index if at <= SUMS_SCALED and whole[10][at] > 1.02 * whole[9][at]]
    if not slow:
        return ""
    return (
        f"**At {listed(slow)} {'token' if slow == [1] else 'tokens'} rung 10 is slower than rung 9.** The "
        "drawing above leaves out the scaling: rung 10 scales every weight, rung 9 up to "
        f"{SUMS_SCALED} tokens only the sums, and so does rung 11. "
    )


def _reasons(whole: Rows) -> str:
    """What each of the two rungs changes beside its instruction, with its ratios over the one before."""
    text = (
        "Each rung changes more than one thing, so a factor is the rung's, not that of `wgmma` or the TMA "
        f"alone.\n\n- **Rung 10 beside 9**: {_series(whole[9] / whole[10])}. `mma` takes x from registers, "
        "so every warp first loads it there; "
        "`wgmma` reads it from shared memory. And rung 10 scales weights at any number of tokens.\n"
        f"- **Rung 11 beside 10**: {_series(whole[10] / whole[11])}."
    )
    if whole.index[0] <= SUMS_SCALED:
        text += f" Up to {SUMS_SCALED} tokens the ratio is not the copies' alone: rung 11 scales sums there."
    return text


def _series(ratio: Any) -> str:
    """Ratios by tokens in words: "0.71 times the speed at 1 token, 1.54 at 64"."""
    first, *more = [(batch, float(of)) for batch, of in ratio.items()]
    words = [f"{first[1]:.2f} times the speed at {counted(first[0], 'token')}"]
    return ", ".join([*words, *(f"{of:.2f} at {batch}" for batch, of in more)])


def _instructions(here: Lab) -> str:
    """What was counted of them for one token: instructions a weight, of rungs 9 and 10."""
    names = [int4.LADDERS["int4"][number - 1].name for number in _NUMBERS]
    cases = [case for case in study.rungs(*_SHAPE) if case.impl in names]
    ((tool, known, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    found = here.profile("int4", [case for case in known if case in cases], tool, metrics).set_index("case")
    of = {case.impl: case.id for case in cases}
    executed = pd.to_numeric(found["inst_executed"]).reindex([of[name] for name in names])
    if executed.isna().any():
        return ""
    each = 32 * executed.to_numpy() / (_SHAPE[0] * _SHAPE[1])
    return (
        f"Counted for one token: {each[0]:.1f} instructions a weight in rung 9, {each[1]:.1f} in rung 10 and "
        f"{each[2]:.1f} in rung 11."
    )
