"""What a lesson's page shows: a module a part, a function a table, figure or computed sentence.

A notebook's cell names its question's cases and calls one of these, so that a reader meets no arranging of
tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.view import diagram, display, plot

# A DataFrame or Series: pandas' stubs give a cell every type that a table may hold, which no arithmetic fits.
Rows = Any
# What page.opening takes: the answer, what the reader will be able to do, and the chart with its caption, a
# drawing, or neither.
Opening = tuple[str, Sequence[str], tuple[Figure, str] | diagram.Drawing | None]
SOURCES = {"live": "measured here", "replay": "replayed"}  # where figures are from, by the mode
# The caption of a table with a column "By datasheet" of a product or of attention.
BY_DATASHEET = "Every rung and peer; by datasheet: bytes over bandwidth or operations over peak, the longer"
NEAR = 1.25  # a prediction holds where the measured time is within this factor of it


def held(ratio: float) -> str:
    """The verdict on a predicted time of which the measured one is `ratio` times, as a sentence."""
    if ratio != ratio:
        return "Not measured."
    within = 1 / NEAR <= ratio <= NEAR
    return f"It holds within {NEAR - 1:.0%}." if within else f"It does not hold within {NEAR - 1:.0%}."


def one_line(facts: Mapping[str, object]) -> None:
    """Show the facts of a run in one line: GPU and source as values, the others by name."""
    bare = ("GPU", "Figures")
    says = [
        str(value) if name in bare else f"{name}: {value}" for name, value in facts.items() if value != ""
    ]
    display.say(f"*{' · '.join(says)}*")


def facts(here: Lab, study: str, *more: str) -> None:
    """Show which run of a study a page's figures are from, and `more`, in one line."""
    run = here.run_of(study)["run"]
    one_line({"GPU": " · ".join([here.run["gpu"], SOURCES[here.mode], f"run {run}", *more])})


def named_facts(here: Lab, gpu: str, study: str, more: Mapping[str, object]) -> None:
    """Show a GPU, where its figures are from, the run of a study and `more` by name, in one line."""
    one_line({"GPU": gpu, "Figures": SOURCES[here.mode], "Run": here.run_of(study)["run"], **more})


def thread_slots(here: Lab) -> int:
    """Threads that an SM of the run's GPU holds at once."""
    parts = str(here.run["compute_capability"]).split(".")
    return device.threads_of_an_sm(tuple(int(part) for part in parts if part.isdigit()))


def spread(rows: Rows, error: str = ".1e", us: str = ",.1f") -> None:
    """Add to rows, as text in these formats, `gate` (the error, and the error allowed) and `quartiles` (of
    the time in microseconds).
    """
    pairs = zip(rows["error"], rows["error_budget"], strict=True)
    rows["gate"] = [f"{found:{error}} ({allowed:{error}})" for found, allowed in pairs]
    pairs = zip(rows["q1_us"], rows["q3_us"], strict=True)
    rows["quartiles"] = [f"{low:{us}} to {high:{us}}" for low, high in pairs]


def bars(
    rows: Rows,
    names: Sequence[str],
    gpu: object,
    title: str,
    roof: plot.Roof | None = None,
    y: str = "median_us",
) -> tuple[Figure, str]:
    """A bar a row of `y`, with its quartiles and the roof where there is one, and the caption: an opening's
    chart where page.ladder's own rungs and best peer are not what is compared.
    """
    fig, ax = plot.figure(plot.UNITS[y], title=title, height=1.1 + 0.21 * len(rows))
    plot.bars(ax, list(names), plot.band(rows, y)[0], plot.UNITS[y], roof, *plot.band(rows, y)[1:])
    return fig, plot.caption(rows, gpu, title, roof, y=y)


def goals_one_by_one(verdicts: Rows) -> None:
    """Show, folded, goals with what was asked and measured, and whether each is met (column `met`)."""
    names = {"id": "goal", "group": "set as", "says": "what", "bars": "asked"}
    names |= {"measured": "measured", "met": "met"}
    display.table(verdicts, names, caption="Floors and aims, one by one", folded=True)
