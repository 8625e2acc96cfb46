"""What a lesson's page shows: a module a part, a function a table, figure or computed sentence.

A notebook's cell names its question's cases and calls one of these, so that a reader meets no arranging of
tables.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from rooflab.lab import Lab
from rooflab.view import display

# A DataFrame or Series: pandas' stubs give a cell every type that a table may hold, which no arithmetic fits.
Rows = Any
# What page.opening takes: the answer, what the reader will be able to do, the chart with its caption.
Opening = tuple[str, Sequence[str], tuple[Figure, str]]


def facts(here: Lab, study: str, *more: str) -> None:
    """Show the facts of a run in one line: the GPU, where the figures come from, and `more`."""
    source = {"live": "measured here", "replay": "replayed"}[here.mode]
    run = here.run_of(study)["run"]
    display.say(f"*{' · '.join([str(here.run['gpu']), f'figures {source}', f'run {run}', *more])}*")
