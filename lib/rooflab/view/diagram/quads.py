"""How four lanes exchange their outputs, so that each holds columns that lie beside each other."""

from __future__ import annotations

import re

from rooflab.errors import UsageError
from rooflab.ops import attention
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import Canvas, Drawing, shade, single

RUNG = "16_wide_stores"
_LANES, _BYTES = 4, 4  # of a quad, and of two FP16 outputs
_NARROW = 430.0  # a width that fits a phone


def exchanges(text: str | None = None) -> list[tuple[int, int, int]]:
    """(step, first, second) of each exchange of registers in the source's stores of 16 bytes, in its order.

    `text` replaces the source. UsageError where it has none.
    """
    rung = next(each for each in attention.LADDERS["attention"] if each.name == RUNG)
    text = rung.path.read_text(encoding="utf-8") if text is None else text
    text = re.sub(r"if \(d \+ 16 == HEAD_DIM\) \{.*?\} else", "", text, flags=re.DOTALL)  # a narrower end
    found = re.findall(r"exchange<(\d)>\(pairs\[(\d)\], pairs\[(\d)\]\)", text)
    if not found:
        raise UsageError("This source exchanges no pairs of outputs.")
    return [(int(step), int(first), int(second)) for step, first, second in found]


def quad(steps: list[tuple[int, int, int]]) -> list[list[list[int]]]:
    """What the lanes' registers hold, [lane][register] -> which pair of columns, before the exchanges and
    after those of each distance: wgmma leaves a lane the pair of its number in every eight columns.
    """
    held = [[block * _LANES + lane for block in range(_LANES)] for lane in range(_LANES)]
    found = [[list(each) for each in held]]
    for k, (step, first, second) in enumerate(steps):
        sent = [held[lane][first if lane & step else second] for lane in range(_LANES)]
        for lane in range(_LANES):
            held[lane][second if not lane & step else first] = sent[lane ^ step]
        if k + 1 == len(steps) or steps[k + 1][0] != step:
            found.append([list(each) for each in held])
    return found


def wide_stores(text: str | None = None) -> Drawing:
    """Which of four lanes holds which two of 32 columns, before and after the exchanges of rung 16."""
    steps = exchanges(text)
    stages = quad(steps)
    canvas, size, y, said = Canvas(_NARROW), _NARROW / (_LANES * _LANES), 0.0, []
    words = ["as wgmma leaves them"]
    words += [f"after exchanges with lane ± {step}" for step in dict.fromkeys(step for step, _, _ in steps)]
    for name, stage in zip(words, stages, strict=True):
        owner = {pair: lane for lane, mine in enumerate(stage) for pair in mine}
        runs = [1]
        for pair in range(1, len(owner)):
            runs = [*runs, 1] if owner[pair] != owner[pair - 1] else [*runs[:-1], runs[-1] + 1]
        canvas.text(0, y + 13, f"{name}: {min(runs) * _BYTES} bytes beside each other")
        for pair, lane in sorted(owner.items()):
            canvas.cell(pair * size, y + 19, size - 1, 22, f"{lane}", shade(8 * lane), 12)
        y += 54
        said.append(f"{name}, lanes {' '.join(str(owner[pair]) for pair in sorted(owner))}")
    canvas.text(0, y + 6, "A box is two columns, 4 bytes; its number is the lane that holds it.", svg.SMALL)
    says = f"Which of four lanes holds each two of 32 columns: {'; '.join(said)}."
    return single("Four lanes trade columns of a row", says, canvas)
