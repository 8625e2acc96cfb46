"""What lesson 04c's record does not tell, in one list."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c import a_further_token
from rooflab.pages.lesson_04c_busy import worst_uncounted
from rooflab.pages.lesson_04c_picks import both_rungs_of_tiles
from rooflab.view import display


def not_recorded(
    here: Lab,
    wide: Rows,
    rungs: Any,
    beyond: Rows,
    worst: tuple[Rows, Rows, float, float | None],
) -> None:
    """List, folded, what the record lacks: of rung 6's tokens, at the point furthest from the bound
    (`worst`), and beyond a block's tokens.
    """
    parts = []
    if a_further_token(wide, rungs) > 0:
        parts.append(
            "What a token costs rung 6 beside its multiply-adds: loading and converting x, or unused slots."
        )
    parts.append("Counters of rungs 9 to 11 side by side for more than one token.")
    parts.append(worst_uncounted(*worst))
    parts.append("Smaller blocks of rung 11, and any counters, for more tokens than a block of it holds.")
    if both_rungs_of_tiles(beyond):
        parts.append(
            "What rung 13's stream-K brings over rung 12: at each point one of them was picked, by a law of "
            "time fitted in tuning, and only that one was timed."
        )
    display.fold_items("Causes left open", [part for part in parts if part])
