"""What a weight may cost: the issue slots that pass while it arrives, beside what kernels spend on it."""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single


def budget(afford: float, least: Sequence[str], spent: Sequence[tuple[str, float]]) -> Drawing:
    """A cell an instruction: the `afford` that a weight may cost, the `least` that a plain kernel spends on
    it, by their names, and below what was counted, (kernel, instructions a weight).
    """
    canvas, left = Canvas(), 128.0
    most = max([afford, float(len(least)), *(count for _, count in spent)])
    unit, y, words_at = (svg.WIDTH - left - 36) / most, 0.0, 0.0
    rows = [("the roof allows", afford, SKY), ("a plain kernel", float(len(least)), AMBER)]
    rows += [(name, count, GREY if count <= afford else AMBER) for name, count in spent]
    narrow = any(svg.wide(word, svg.SMALL) > unit - 2 for word in least)
    end = 34.0 * len(rows) + 6 + 18 * narrow
    for name, count, fill in rows:
        canvas.text(left - 8, y + 17, name, svg.TEXT, "end")
        whole, x = int(count), left
        for k in range(whole + (count > whole)):
            width = unit * (1.0 if k < whole else count - whole)
            words = least[k] if name == "a plain kernel" and not narrow else ""
            canvas.cell(x, y, width, 25, words, fill, svg.SMALL)
            x += width
        plus = "+" if name == "a plain kernel" else ""
        canvas.text(x + 6, y + 17, f"{count:.1f}".removesuffix(".0") + plus, bold=True)
        y += 34
        if narrow and name == "a plain kernel":  # the words below the cells that have no room for them
            canvas.text(left, y + 5, ", ".join(least), svg.SMALL)
            words_at, y = y, y + 18
    at = left + afford * unit
    for top, bottom in ((0, words_at - 9), (words_at + 13, end)) if narrow else ((0, end),):
        canvas.line([(at, top), (at, bottom)], 1.4, dashed=True)
    under = [name for name, count in spent if count <= afford]
    says = (
        f"The roof allows {afford:.1f} instructions a weight; a plain kernel spends at least {len(least)}: "
        f"{', '.join(least)}. " + "; ".join(f"{name} {count:.1f}" for name, count in spent)
    )
    says += f". Within the budget: {', '.join(under) or 'none'}." if spent else "."
    return single("Instructions that one weight costs", says, canvas)
