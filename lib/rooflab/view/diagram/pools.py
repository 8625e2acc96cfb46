"""How a captured graph comes to write over another array: a pool of memory, and who has which piece of it."""

from __future__ import annotations

from typing import NamedTuple

from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, SKY, Canvas, Drawing

PRODUCT, OTHER, POOL = "product's buffer", "another array", "free, in the pool"
_PIECES = 2
_FILLS = {PRODUCT: SKY, OTHER: AMBER, POOL: GREY}


class Moment(NamedTuple):
    """What happens, who has each piece of memory then, and the piece that the graph's node points to or None;
    `writes` where the node writes there.
    """

    says: str
    owners: tuple[str, ...]
    points: int | None
    writes: bool


class Pool:
    """Pieces of equal size; the piece that was given back last is given out first, as cupy's pool does."""

    def __init__(self) -> None:
        self.owners = [""] * _PIECES
        self.free: list[int] = []

    def take(self, owner: str) -> int:
        """A piece that was given back, or a new one."""
        piece = self.free.pop() if self.free else self.owners.index("")
        self.owners[piece] = owner
        return piece

    def give_back(self, piece: int) -> None:
        """Put a piece back into the pool."""
        self.owners[piece] = POOL
        self.free.append(piece)


def moments(kept: bool) -> list[Moment]:
    """What happens to a capture of a product that takes its buffer in the call, or has it `kept` from before:
    a warm-up call, the capture, what becomes of the buffer, another array, the replay.
    """
    pool, found = Pool(), list[Moment]()
    mine = pool.take(PRODUCT)
    if not kept:
        pool.give_back(mine)
    warm = "Warm-up: the buffer " + ("is kept" if kept else "returns to the pool")
    found.append(Moment(warm, tuple(pool.owners), None, False))
    points = mine if kept else pool.take(PRODUCT)
    found.append(Moment("Capture: a node keeps its address", tuple(pool.owners), points, False))
    if not kept:
        pool.give_back(points)
        found.append(Moment("After it: the buffer returns to the pool", tuple(pool.owners), points, False))
    pool.take(OTHER)
    after = "Other code gets " + ("another piece" if kept else "the same piece")
    found.append(Moment(after, tuple(pool.owners), points, False))
    lost = pool.owners[points] != PRODUCT
    words = "Replay writes " + ("over another array" if lost else "to its own buffer")
    found.append(Moment(words, tuple(pool.owners), points, True))
    return found


def captured_address(kept: bool = False) -> Drawing:
    """A frame a moment: the pieces of memory with their owners, and the address in the graph's node."""
    frames, found = [], moments(kept)
    used = [piece for piece in range(_PIECES) if any(moment.owners[piece] for moment in found)]
    for moment in found:
        canvas, wide = Canvas(262), 124.0
        for piece in used:
            owner = moment.owners[piece]
            x = piece * (wide + 10)
            name = owner if owner in _FILLS else "not used"
            canvas.text(x + wide / 2, 12, f"address {piece}", svg.SMALL, "middle")
            canvas.cell(x, 18, wide, 30, name, _FILLS.get(owner, svg.NONE), 12)
        if moment.points is not None:
            words = f"graph: writes to address {moment.points}"
            canvas.cell(0, 88, 2 * wide + 10 if len(used) > 1 else 1.4 * wide, 22, words, BLUE, 12)
            tip = moment.points * (wide + 10) + wide / 2
            canvas.line([(tip, 87), (tip, 50)], 3.0 if moment.writes else 1.2, not moment.writes, "arrow")
            if moment.writes and moment.owners[moment.points] != PRODUCT:
                canvas.text(tip + 10, 74, "overwritten", svg.TEXT, bold=True)
        else:
            canvas.text(0, 104, "no graph yet", svg.SMALL)
        frames.append((moment.says, canvas))
    says = ". ".join(moment.says for moment in found) + "."
    title = (
        "A buffer made beforehand" if kept else "A buffer from the pool: right at capture, wrong at replay"
    )
    return Drawing(title, says, frames, across=2)
