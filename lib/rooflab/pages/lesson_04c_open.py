"""What lesson 04c's record does not tell of its rungs of tiles."""

from __future__ import annotations

from rooflab.pages import Rows
from rooflab.pages.lesson_04c_picks import both_rungs_of_tiles
from rooflab.view import display


def stream_k_untimed(beyond: Rows) -> None:
    """Say that what stream-K brings was not timed, where both rungs of tiles were picked."""
    if both_rungs_of_tiles(beyond):
        display.say(
            "What stream-K brings was not timed: each point above is of rung 12 or of rung 13, whichever a "
            "law of time fitted in tuning picked."
        )
