"""Where the gate stops a kernel: its steps in their order, and the one at which each kernel was refused."""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single

# A step of the gate, and the words of a refusal at it.
STEPS = (
    ("outputs right", "at the gate"),
    ("inputs unchanged", "changed its input"),
    ("timed", ""),
    ("outputs still right", "after timing"),
)


def gate_steps(said: Sequence[tuple[str, str]]) -> Drawing:
    """A row a kernel of `said`, (name, what the gate said of it): the steps that it passed, and the one that
    refused it, if any did.
    """
    canvas, left, high, words = Canvas(), 130.0, 24.0, []
    wide = (svg.WIDTH - left) / len(STEPS)
    for k, (step, _) in enumerate(STEPS):
        canvas.text(left + (k + 0.5) * wide, 12, f"{k + 1}. {step}", svg.SMALL, "middle")
    for row, (name, sentence) in enumerate(said):
        y = 20 + row * (high + 4)
        canvas.text(0, y + 16, name)
        at = next((k for k, (_, word) in enumerate(STEPS) if word and word in sentence), len(STEPS))
        for k in range(len(STEPS)):
            text, fill = ("passed", SKY) if k < at else ("refused", AMBER) if k == at else ("", NONE)
            canvas.cell(left + k * wide + 2, y, wide - 4, high, text, fill)
        end = "passes all steps" if at == len(STEPS) else f"is refused at step {at + 1}, {STEPS[at][0]}"
        words.append(f"{name} {end}")
    return single("Where the gate stops a kernel", "; ".join(words) + ".", canvas)
