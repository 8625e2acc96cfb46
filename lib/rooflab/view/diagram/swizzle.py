"""How a swizzled tile lies in shared memory: which 16-byte piece of which row is at which place."""

from __future__ import annotations

from rooflab.errors import UsageError
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.svg import AMBER, NONE, SKY, Canvas, Drawing, single

_ROWS = _PIECES = 8
_MARKED = 2  # the piece whose eight places are coloured
_BANKS = 4  # of 16 bytes


def place(row: int, piece: int) -> int:
    """Where a piece of a row lies, as the rung's source has it."""
    return piece ^ row % _ROWS


def swizzled(text: str | None = None) -> Drawing:
    """Eight rows of eight pieces, as they are and swizzled; `text` replaces rung 9's source. UsageError for
    one that does not swizzle.
    """
    text = over_time.rung().path.read_text(encoding="utf-8") if text is None else text
    if "(piece % 8 ^ row % 8) * 8" not in text:
        raise UsageError("This source does not swizzle its tiles.")
    canvas, size, tall = Canvas(), 30.0, 17.0
    for panel, title in enumerate(("as it is in memory", "swizzled")):
        left = panel * 290.0 + 22
        canvas.text(left, 12, title, bold=True)
        canvas.grid(left, 22, _PIECES, _ROWS, size, tall, NONE)
        spots = [(row, place(row, _MARKED) if panel else _MARKED) for row in range(_ROWS)]
        canvas.cells([(left + at * size, 22 + tall * row) for row, at in spots], size, tall, AMBER)
        places = {piece: place(1, piece) if panel else piece for piece in range(_PIECES)}
        canvas.boxes(
            [
                (left + at * size, 22 + tall, size, tall, f"{piece}", AMBER if piece == _MARKED else SKY)
                for piece, at in places.items()
            ]
        )
        y = 22 + tall * _ROWS + 13
        canvas.text(left, y, f"banks 0 to {_BANKS - 1}", svg.SMALL)
        canvas.text(left + size * _PIECES, y, f"28 to {_BANKS * _PIECES - 1}", svg.SMALL, "end")
    once = len({place(row, _MARKED) for row in range(_ROWS)})
    key = f"A row of cells: a row of the tile, {_PIECES} pieces of 16 bytes; row 1 is numbered."
    canvas.text(0, y + 20, key, svg.SMALL)
    canvas.text(
        0, y + 35, f"Amber: piece {_MARKED} of each row, in {once} different places once swizzled.", svg.SMALL
    )
    says = f"Piece {_MARKED} of {_ROWS} rows lies in one place of {_BANKS} banks as the tile is in memory, "
    says += f"and in {once} different places swizzled."
    return single("A swizzled tile", says, canvas)
