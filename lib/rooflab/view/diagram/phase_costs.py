"""What a phase of a decoded token costs beside its bytes: in a token of each rung and format, and by model
and format against a law's one cost.
"""

from __future__ import annotations

import pandas as pd

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, INK, Canvas, Drawing, single

_LEFT, _ROW, _LEAST = 190.0, 18.0, 1.0  # where bars begin, the height of one, and how wide one at least is


def phase_costs(rows: pd.DataFrame, fixed: float) -> Drawing:
    """A bar a row, of its cost a phase (`each`, in microseconds), under its `model` by its `weights_as`, with
    the megabytes that a phase reads (`mb_phase`); and a dashed line at `fixed`, the law's cost of all.
    """
    if rows.empty:
        raise UsageError("The cost of a phase is drawn of at least one row.")
    canvas, y, said = Canvas(), 34.0, []
    unit = (svg.WIDTH - _LEFT - 60) / max(fixed, float(rows["each"].max()), 0.1)
    at = _LEFT + fixed * unit
    canvas.text(at, 11, f"the law: {fixed:.2f} µs for all", svg.SMALL, "middle")
    for model, mine in rows.groupby("model", sort=False):
        canvas.text(0, y, str(model), svg.SMALL + 1, bold=True)
        y += 6
        for row in mine.sort_values("bytes").to_dict("records"):
            words = f"{row['weights_as']}, {row['mb_phase']:.0f} MB a phase"
            canvas.text(_LEFT - 8, y + 12, words, svg.SMALL, "end")
            across = max(row["each"] * unit, _LEAST)
            canvas.rect(_LEFT, y + 2, across, _ROW - 4, AMBER)
            cost = f"{row['each']:.2f} µs" if row["each"] > 0 else "none: less than its bytes"
            canvas.text(
                _LEFT + 6,
                y + 12,
                cost,
                fill=INK if across > svg.wide(cost, svg.SMALL) + 8 else "currentColor",
                size=svg.SMALL,
            )
            said.append(f"{model} {words}: {cost}")
            y += _ROW
        y += 18
    canvas.line([(at, 16), (at, y - 16)], 1.2, dashed=True)
    title = "What a phase costs beside its bytes"
    return single(title, f"The law has {fixed:.2f} µs for all; {'; '.join(said)}.", canvas)


def beside_bytes(rows: pd.DataFrame) -> Drawing:
    """A token of each row (`impl`, under its `weights_as`), divided into its bytes (`bytes_us`) and `phases`
    times what a phase costs beside them (`each`, all in microseconds).
    """
    if rows.empty:
        raise UsageError("A token is divided of at least one row.")
    canvas, y, left, said = Canvas(), 0.0, 124.0, []
    unit = (svg.WIDTH - left - 176) / float(rows["median_us"].max())
    for weights, mine in rows.groupby("weights_as", sort=False):
        canvas.text(0, y + 12, f"{weights}: {mine['bytes'].max() / 1e6:,.0f} MB a token", bold=True)
        y += 18
        for row in mine.to_dict("records"):
            us, bytes_us = row["median_us"], min(row["bytes_us"], row["median_us"])
            canvas.text(left - 8, y + 15, row["impl"], svg.SMALL, "end")
            canvas.rect(left, y, bytes_us * unit, 21, BLUE)
            canvas.rect(left + bytes_us * unit, y, (us - bytes_us) * unit, 21, AMBER)
            parts = f"{row['bytes_us']:,.0f} and {row['phases']} × {row['each']:.2f}"
            parts = parts if row["each"] > 0 else "less than its bytes"
            canvas.text(left + us * unit + 6, y + 15, f"{us:,.0f} µs: {parts}", svg.SMALL)
            said.append(f"{weights}, {row['impl']}: {us:,.0f} µs, {parts}")
            y += 24
        y += 8
    canvas.cell(0, y, 12, 12, "", BLUE)
    canvas.text(17, y + 10, "its bytes at the read roof", svg.SMALL)
    canvas.cell(180, y, 12, 12, "", AMBER)
    canvas.text(197, y + 10, "its phases, each with what it costs beside its bytes", svg.SMALL)
    return single("A token's time: its bytes, and its phases beside them", f"{'; '.join(said)}.", canvas)
