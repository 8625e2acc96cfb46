"""What two clocks count of lesson 04d's loop of launches, drawn and as its exercise computes it."""

from __future__ import annotations

from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import counted, listed


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
        text = f"**A rough first model.** Its lengths are averages of the loop on the {gpu}, measured below: "
        text += f"{graph} µs for a kernel, {event} for each further launch"
        text += f", {first} for the first" * (first > event)
        text += (
            "; *What the record leaves open* says where single steps differ."
            * bool(unlike_the_model(one_shape, graph))
            or "."
        )
        display.say(text)
    return event, graph


def first_launch(one_shape: Rows, kernel: int) -> int:
    """Microseconds of the first launch: what the event clock counts for one token beside its kernel."""
    return round(one_shape.loc["event, warm", 1]["fused"]) - kernel


def exercise_in_the_record(one_shape: Rows, event: int, graph: int) -> None:
    """Say what 04.6's formula gives with the figures measured here, beside the times by the event clock."""
    measured, first = one_shape.loc["event, warm"]["fused"], first_launch(one_shape, graph)
    if not (event > 0 and graph > 0 and first > 0):
        return
    tokens = [batch for batch in measured.index if batch in (1, 2, measured.index[-1])]
    given = [first + graph + (batch - 1) * max(event, graph) for batch in tokens]
    seen = listed([f"{measured[batch]:.0f}" for batch in tokens])
    display.say(
        f"**In the record**: with a kernel of {graph} µs, {first} µs for the first launch and {event} µs for "
        f"each further one, the right function gives {listed([f'{us:.0f}' for us in given])} µs for "
        f"{listed(list(map(str, tokens)))} tokens. Measured: {seen} µs. The {event} µs are the average up to "
        f"{tokens[-1]} tokens, so the last time is no test of it."
    )


def unlike_the_model(one_shape: Rows, kernel: float) -> str:
    """In words, what a further token costs by the event clock from batch to batch, where that is not even;
    and that a step below the kernel's own time cannot be.
    """
    us = one_shape.loc["event, warm"]["fused"].dropna()
    steps = (us.diff() / us.index.to_series().diff()).dropna()
    if len(steps) < 2 or steps.max() - steps.min() < 0.2 * steps.mean():
        return ""
    text = "**Why the rough model misses single steps.** From batch to batch a further token costs "
    text += f"{listed([f'{step:.1f}' for step in steps])} µs by the event clock, not the same each time"
    low = steps[steps < kernel]
    if len(low):
        at = low.idxmin()
        before = us.index[us.index.get_loc(at) - 1]
        text += f". From {before} to {counted(at, 'token')} it is less than the kernel itself takes, which "
        text += "the model does not allow"
    text += ". Each batch was timed on its own. "
    return f"{text}Why the steps differ was not recorded."
