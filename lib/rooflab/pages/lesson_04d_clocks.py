"""What two clocks count of lesson 04d's loop of launches, drawn and as its exercise computes it."""

from __future__ import annotations

import pandas as pd

from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import listed


def clocks_drawn(one_shape: Rows, gpu: str) -> tuple[int, int]:
    """Draw what two clocks count of the loop, with the time that a further token costs by each, in us."""

    def each_further(how: str) -> int:
        """Microseconds that a token adds, from the first batch to the last."""
        side = one_shape.loc[how]["fused"]
        return round((side.iloc[-1] - side.iloc[0]) / (side.index[-1] - side.index[0])) + 0

    event, graph = each_further("event, warm"), each_further("graph, cold")
    if event > graph > 0:
        first = max(event, first_launch(one_shape, graph))
        diagram.two_clocks(event, graph, first=first).show()
        text = f"**A rough model.** Its lengths are averages of the loop on the {gpu}, measured below: "
        text += f"{graph} µs for a kernel, {event} for each further launch"
        text += f", {first} for the first" * (first > event) + ". The exercise at the end tests it."
        display.say(text)
    return event, graph


def first_launch(one_shape: Rows, kernel: int) -> int:
    """Microseconds of the first launch: what the event clock counts for one token beside its kernel."""
    return round(one_shape.loc["event, warm", 1]["fused"]) - kernel


def exercise_in_the_record(one_shape: Rows, event: int, graph: int) -> None:
    """Say what 04.6's formula gives with the figures measured here, beside the times by the event clock."""
    measured, first = one_shape.loc["event, warm"]["fused"].dropna(), first_launch(one_shape, graph)
    if event > 0 and graph > 0 and first > 0 and len(measured) > 2:
        display.say(model_tested(measured, event, graph, first))


def model_tested(measured: Rows, event: int, graph: int, first: int) -> str:
    """What the model gives for each number of tokens beside the time `measured`, which of these times set its
    figures, and where it misses the others.
    """
    tokens = list(measured.index)
    given = pd.Series([first + graph + (batch - 1) * max(event, graph) for batch in tokens], tokens)
    text = f"**In the record**: with a kernel of {graph} µs, {first} µs for the first launch and {event} µs "
    text += f"for each further one, the right function gives {listed([f'{us:.0f}' for us in given])} µs for "
    text += f"{listed([str(batch) for batch in tokens])} tokens. Measured: "
    text += f"{listed([f'{us:.0f}' for us in measured])} µs. The times of {tokens[0]} and "
    text += f"{tokens[-1]} set its "
    off = (measured - given)[tokens[1:-1]]
    missed = off[off.abs() > 0.1 * measured[off.index]]
    if missed.empty:
        return f"{text}figures; those between test it, and it is within 10% of each."
    text += (
        f"figures; those between test it: **at {listed([str(batch) for batch in missed.index])} tokens it "
    )
    text += f"misses by {listed([f'{abs(us):.0f}' for us in missed])} µs**. Why is not known: how far such "
    return f"{text}times differ from run to run was not measured."
