"""Why many tokens cost little more than one: a tile of weights that is read once, for so many tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, SKY, Canvas, Drawing, single
from rooflab.words import counted

_DARK = "#6E6E6E"  # beside GREY: two parts of a time, in no format's colour


def weights_shared(
    ways: Sequence[tuple[str, int]], peak_tflop_s: float, read_gb_s: float, bytes_a_weight: float = 2.0
) -> Drawing:
    """One tile of weights beside the tokens of each of the `ways`, (name, tokens in one pass), and where each
    stands against the ridge of a GPU: below it memory sets the time, above it arithmetic.
    """
    if not ways:
        raise UsageError("Weights are shared by at least one way of running.")
    ridge = 1e3 * peak_tflop_s / read_gb_s  # operations a byte
    most = max(tokens for _, tokens in ways)
    canvas, said, left, wide = Canvas(), [], 262.0, 210.0
    ends = (1.0, max(2 * most / bytes_a_weight, 2 * ridge))

    def at(operations: float) -> float:
        return left + wide * math.log(max(operations, 1)) / math.log(ends[1])

    canvas.text(0, 12, "weights, read once", svg.SMALL)
    canvas.text(126, 12, "tokens that share them", svg.SMALL)
    canvas.text(left, 12, "operations a byte", svg.SMALL)
    y = 20.0
    for name, tokens in ways:
        operations = 2 * tokens / bytes_a_weight
        bound = "memory" if operations < ridge else "arithmetic"
        canvas.cells(
            [(column * 10, y + 16 + row * 10) for row in range(4) for column in range(4)], 10, 10, GREY
        )
        shown = 4 + 126 * math.log(tokens) / math.log(max(most, 2))
        canvas.text(0, y + 11, f"{name}: {counted(tokens, 'token')}, {bound} decides", bold=True)
        canvas.text(50, y + 41, "×", 14)
        canvas.rect(72, y + 16, shown, 40, SKY)
        canvas.line([(left, y + 36), (left + wide, y + 36)], 0.8)
        fill = BLUE if bound == "memory" else AMBER
        canvas.cell(at(operations) - 6, y + 30, 12, 12, "", fill)
        canvas.text(min(at(operations) + 10, left + wide + 6), y + 30, f"{operations:,.0f}", svg.SMALL)
        said.append(
            f"{name}, {counted(tokens, 'token')}: {counted(round(operations), 'operation')} a byte, {bound} "
            "decides"
        )
        y += 66
    canvas.line([(at(ridge), 34), (at(ridge), y - 6)], 1.2, dashed=True)
    canvas.text(at(ridge), y + 8, f"ridge: {ridge:,.0f} operations a byte", svg.SMALL, "middle")
    canvas.text(
        0, y + 28, "The number of tokens and the operations are drawn by their logarithms.", svg.SMALL
    )
    says = f"A tile of weights is read once for all tokens of a pass. {'; '.join(said)}. The ridge is "
    says += f"{ridge:,.0f}."
    return single("One reading of the weights, so many tokens", says, canvas)


def bytes_and_flops(
    formats: Sequence[str], rows: Sequence[tuple[int, Sequence[tuple[float, float]]]], title: str
) -> Drawing:
    """Two bars a format of weights at each number of tokens, (tokens, one (µs for bytes, µs for FLOPs) a
    format): the longer of the two is the bound. The ridge is where they are equal.
    """
    if not rows or not formats:
        raise UsageError("Bytes and FLOPs are drawn for at least one format and one number of tokens.")
    canvas, said, left = Canvas(), [], 130.0
    longest = max(max(pair) for _, pairs in rows for pair in pairs)
    wide, y = svg.WIDTH - left - 56, 0.0
    for place, (fill, words) in enumerate(((GREY, "time for its bytes"), (_DARK, "time for its FLOPs"))):
        canvas.cell(left + 170 * place, 2, 12, 12, "", fill)
        canvas.text(left + 170 * place + 17, 12, words, svg.SMALL)
    y = 22.0
    for tokens, pairs in rows:
        canvas.text(0, y + 12, counted(tokens, "token"), bold=True)
        for name, (moved, computed) in zip(formats, pairs, strict=True):
            longer = "bytes" if moved > computed * 1.02 else "FLOPs" if computed > moved * 1.02 else "both"
            canvas.text(left - 8, y + 17, name, svg.SMALL, "end")
            for down, us, fill in ((0.0, moved, GREY), (12.0, computed, _DARK)):
                canvas.rect(left, y + 2 + down, max(us / longest * wide, 1.0), 10, fill)
                canvas.text(
                    left + us / longest * wide + 5,
                    y + 11 + down,
                    f"{us:.{1 if us >= 0.1 else 2}f} µs",
                    svg.SMALL,
                )
            said.append(
                f"{counted(tokens, 'token')}, {name}: {moved:.2f} µs for bytes, {computed:.2f} for FLOPs; "
                f"{longer} decide"
            )
            y += 30
        y += 8
    says = (
        f"The longer of two bars is the bound: bytes grow little, FLOPs with the tokens. {'. '.join(said)}."
    )
    return single(title, says, canvas)
