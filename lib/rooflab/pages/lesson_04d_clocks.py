"""What two clocks count of lesson 04d's loop of launches, drawn from its measured means."""

from __future__ import annotations

import pandas as pd

from rooflab.pages import Rows
from rooflab.records.store import Store
from rooflab.view import diagram, display
from rooflab.words import listed

_LAUNCHES = 4  # that the drawing has


def clocks_drawn(one_shape: Rows, gpu: str) -> tuple[int, int, int]:
    """Draw what two clocks count of the loop, and say where its lengths are from; what a further token costs
    by each clock and what the first launch takes, in us.
    """

    def each_further(how: str) -> int:
        """Microseconds that a token adds, from the first batch measured to the last; 0 of one alone."""
        side = one_shape.loc[how]["fused"].dropna()
        if len(side) < 2:
            return 0
        return round((side.iloc[-1] - side.iloc[0]) / (side.index[-1] - side.index[0])) + 0

    event, graph = each_further("event, warm"), each_further("graph, cold")
    measured = one_shape.loc["event, warm"]["fused"].dropna()
    first = round(measured[1]) - graph if 1 in measured else 0  # a launch alone
    if drawn(event, graph, first):
        diagram.two_clocks(event, graph, _LAUNCHES, first=first).show()
        display.say(f"**Of the event clock's {first + graph} µs for one token the kernel takes {graph}.**")
        text = f"They are means on the {gpu}: {graph} µs for every kernel, which a further one adds by the "
        text += f"graph clock; by the event clock {event} for each further launch, and {first} are left for "
        text += f"the first. {misses(measured, event, graph, first)}".rstrip()
        display.fold_parts("Where the drawing's lengths are from, and how far they fit", [text])
    return event, graph, first


def drawn(event: int, graph: int, first: int) -> bool:
    """Whether the means allow the drawing: a launch longer than its kernel, and the first the longest."""
    return first >= event > graph > 0


def misses(measured: Rows, event: int, graph: int, first: int) -> str:
    """Where times of more tokens differ from what the drawing's figures give, and a step that no row of such
    kernels can take.
    """
    tokens = list(measured.index)
    given = pd.Series([first + graph + (batch - 1) * max(event, graph) for batch in tokens], tokens)
    off = (measured - given)[tokens[1:-1]]
    missed = off[off.abs() > 0.1 * measured[off.index]]
    if off.empty:
        return ""
    if missed.empty:
        return f"For {listed(off.index)} tokens these lengths give the times measured below within 10%."
    text = f"For {listed(missed.index)} tokens these lengths miss the times measured below, by "
    text += f"{listed([f'{abs(us):.0f}' for us in missed])} µs"
    steps = [(a, b, measured[b] - measured[a]) for a, b in zip(tokens, tokens[1:], strict=False)]
    short = [step for step in steps if step[2] < 0.95 * (step[1] - step[0]) * graph]
    if short:
        a, b, us = short[0]
        text += (
            f", and from {a} to {b} tokens the event clock adds {us:.0f} µs, less than {b - a} kernels take"
        )
    return f"{text}: its times scatter, and how far was not measured."


def drawing_target(event: int, graph: int, first: int) -> None:
    """Say what 04.4's function gives with the drawing's figures, where there is one."""
    if drawn(event, graph, first):
        us = first + graph + (_LAUNCHES - 1) * event
        text = (
            f"With the drawing's figures, `seen({graph}, {first}, {event}, {_LAUNCHES})` is {us}: the end of "
        )
        display.say(f"{text}its last kernel.")


def clock_adds(store: Store, one_shape: Rows) -> str:
    """What the event clock adds to the two launchers' times for one token, and to a kernel of part 00b in the
    same recording, where both clocks timed them.
    """
    try:
        event, graph = (one_shape.loc[(f"{clock}, warm", 1)] for clock in ("event", "graph"))
    except KeyError:
        return ""
    loop, fp16 = event["fused"] - graph["fused"], event["fp16"] - graph["fp16"]
    if not (loop == loop and fp16 == fp16):
        return ""
    rows = store.read("environment")
    rows = rows[rows["operator"].eq("saxpy") & rows["impl"].eq("1_scalar") & rows["cache"].eq("warm")]
    by = rows[rows["options"] == ""].pivot_table("median_us", "n", "clock")
    text = f" For one token it adds {loop:.0f} µs to the loop and {fp16:.0f} to FP16"
    if {"event", "graph"} <= {*by}:
        alone = by["event"] - by["graph"]
        span = sorted({f"{each:.0f}" for each in (alone.min(), alone.max())}, key=float)
        text += f"; in part 00b, in a run of its own, it added {' to '.join(span)} to a kernel, by its size"
    return f"{text}. So what it adds is no constant: it differs by launcher and by run."
