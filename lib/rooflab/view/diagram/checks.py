"""A check of drafted tokens: what each row of the step sees, what it finds likeliest, and how many hold."""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.analysis.drafts import held_of
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, NONE, SKY, Canvas, Drawing, single
from rooflab.words import counted

_CELL, _HIGH, _LABEL = 46.0, 24.0, 92.0


def check_of_drafts(
    past: Sequence[str] = ("The", "cat"),
    tokens: Sequence[str] = ("sat", "on", "the", "mat"),
    likeliest: Sequence[str] = ("on", "a", "sofa", "."),
) -> Drawing:
    """A step that checks `tokens`, the first of which is due, after `past`: a row of the step each, with what
    it attends to and the token that it finds `likeliest` after its own.
    """
    canvas = Canvas()
    held, due = held_of(tokens, tokens[0], likeliest)
    words = [*past, *tokens]
    right = _LABEL + len(words) * _CELL + 8
    for place, word in enumerate(words):
        drafted = place >= len(past)
        fill = AMBER if drafted and place < len(past) + held else GREY if not drafted else NONE
        canvas.cell(_LABEL + place * _CELL, 18, _CELL, _HIGH, word, fill, svg.TEXT)
        nth = place - len(past)
        name = "cached" if not drafted else f"draft {nth}" if nth else "due"
        canvas.text(_LABEL + (place + 0.5) * _CELL, 12, name, svg.SMALL, "middle")
    canvas.text(right, 12, "likeliest next, by the row", svg.SMALL)
    y = 18 + _HIGH + 14
    for row, (token, found) in enumerate(zip(tokens, likeliest, strict=True)):
        canvas.text(_LABEL - 8, y + 17, f"row {row}: {token}", svg.TEXT, "end")
        for place in range(len(words)):
            seen = place <= len(past) + row
            canvas.cell(_LABEL + place * _CELL, y, _CELL, _HIGH, "", SKY if seen else NONE)
        used = row < held
        says = f"“{found}”"
        if row + 1 < len(tokens):
            draft = f"draft {row + 1}"
            after = f": {draft} holds" if row + 1 < held else f", not {draft}: due next"
            says += after if used else ", not used"
        elif used:
            says += ", due next"
        else:
            says += ", not used"
        canvas.text(right, y + 17, says, svg.TEXT - 1, bold=used)
        y += _HIGH + 4
    y += 12
    canvas.cell(_LABEL, y, 14, 14, "", AMBER)
    canvas.text(_LABEL + 20, y + 11, "tokens kept")
    canvas.cell(_LABEL + 150, y, 14, 14, "", SKY)
    canvas.text(_LABEL + 170, y + 11, "keys and values that a row attends to")
    canvas.text(0, y + 34, f"One pass over the weights, {counted(held, 'token')} kept, “{due}” due next.")
    kept = f"{counted(held, 'token')} {'is' if held == 1 else 'are'} kept"
    says = f"After {' '.join(past)} a step checks {', '.join(tokens)}: row i attends to all up to its token. "
    says += f"Found likeliest next: {', '.join(likeliest)}. {kept}, and then “{due}” is due"
    says += "; what later rows computed is not used." if held < len(tokens) else "."
    return single(f"A check of {counted(len(tokens), 'token')} in one step", says, canvas)
