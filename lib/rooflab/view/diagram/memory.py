"""Memory as cells: which lane touches what, which sectors that moves, which banks that keeps busy."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rooflab.studies import drawn, traces
from rooflab.view.access_diagram import BANKS, SECTOR, Request, recorded
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, NONE, PALE, Canvas, Drawing, shade, single
from rooflab.words import counted

_FLOAT = 4
_STEPPED, _SMALL = 470.0, 6.6  # a width that fits a phone; of a cell there
_STAGES = (
    "The lanes ask for 4 bytes each",
    "The sectors that these bytes lie in",
    "Memory moves whole sectors",
    "What of them is used",
)
_KEYS = (
    "Light to dark: lanes 0 to 31. A cell: 4 bytes.",
    "Framed: the sectors, 8 cells or 32 bytes each.",
    "Orange: moved from memory.",
    "Blue: used. Orange: moved, and not used.",
)


def request(row: pd.Series) -> Request:
    """The request of a recorded row."""
    places = tuple(None if word == "-" else int(word) for word in str(row["addresses"]).split())
    return Request(places, int(row["bytes"]), str(row["scene"]))


def coalescing(
    strided: pd.DataFrame | None = None, coalesced: pd.DataFrame | None = None, columns: int = 32
) -> Drawing:
    """A warp's load from a row-major matrix of floats, `columns` wide, step by step: what its lanes ask for,
    the sectors that hold it, what memory moves and what of that is used; for the strided and the coalesced
    GEMV as the CPU saw them ask.
    """
    asked, frames = _gemv_loads(strided, coalesced), []
    for stage, caption in enumerate(_STAGES):
        canvas = Canvas(_STEPPED)
        for place, one in enumerate(asked):
            _matrix(canvas, (_STEPPED - 32 * _SMALL) * place, one, columns, _SMALL, stage)
        canvas.text(0, canvas.height + 16, _KEYS[stage], svg.SMALL)
        frames.append((caption, canvas))
    says = [f"{_moved(one)}; lanes stand {_apart(one, columns)}" for one in asked]
    said = ". ".join(each[0].upper() + each[1:] for each in says) + "."
    return Drawing("One load by one warp: what memory moves for it", said, frames)


def moved_sectors(columns: int = 32, size: float = 6.0) -> Drawing:
    """`coalescing` for README, a mechanism at one glance: a cell `size` wide."""
    canvas, asked = Canvas(400), _gemv_loads()
    for place, one in enumerate(asked):
        _matrix(canvas, (400 - columns * size) * place, one, columns, size)
    says = ". ".join(_moved(one).capitalize() for one in asked)
    return single("One load by 32 threads: what memory moves", f"{says}.", canvas)


def _gemv_loads(strided: pd.DataFrame | None = None, coalesced: pd.DataFrame | None = None) -> list[Request]:
    """The first load of the matrix by the strided and by the coalesced GEMV, recorded if not given."""
    return [
        request((drawn.read("requests", name) if rows is None else rows).iloc[0])
        for name, rows in (("strided", strided), ("coalesced", coalesced))
    ]


def _moved(one: Request) -> str:
    count, used = len(one.sectors()), one.bytes_used()
    return (
        f"{one.what}: the {len(one.taking_part())} lanes of a warp ask for {used} bytes that lie in "
        f"{count} sectors of {SECTOR} bytes, so {used / count / SECTOR:.1%} of what is moved is used"
    )


def _apart(one: Request, columns: int) -> str:
    places = [place for place in one.places if place is not None]
    step = places[1] - places[0] if len(places) > 1 else 0
    return f"{step} bytes apart" + (", a row of the matrix" if step == columns * _FLOAT else "")


def _matrix(
    canvas: Canvas, left: float, one: Request, columns: int, size: float, stage: int = len(_STAGES)
) -> None:
    """Draw a matrix of floats with a request at a stage of _STAGES: its lanes, its sectors, what is moved;
    all of it beyond the last.
    """
    places = one.taking_part()
    rows = max(32, max(places.values()) // _FLOAT // columns + 1)
    count, used = len(one.sectors()), one.bytes_used()
    canvas.text(left, 12, one.what, bold=True)
    moved, share = f"{count * SECTOR} bytes moved", f"{used / count / SECTOR:.1%}"
    words = (
        [f"{used} bytes asked for"],
        [f"in {count} sectors"],
        [moved],
        [f"{used} of {moved}: {share} used"],
        [f"{count} sectors, {moved}", f"{share} used"],
    )[stage]
    if svg.wide(", ".join(words), svg.SMALL) <= columns * size:
        words = [", ".join(words)]
    for line, text in enumerate(words):
        canvas.text(left, 27 + 14 * line, text, svg.SMALL)
    top = 20.0 + 14 * len(words)

    def at(element: int) -> tuple[float, float]:
        return left + element % columns * size, top + element // columns * size

    canvas.rect(left, top, columns * size, rows * size, NONE, 0.8)
    canvas.cells([at(k * columns) for k in range(rows)], columns * size, size, NONE, 0.25)
    each = SECTOR // _FLOAT
    starts = [at(sector * each) for sector in one.sectors()]
    if stage >= 2:
        canvas.cells(starts, each * size, size, AMBER, 0.4)
    alike = 4 if stage < len(_STAGES) else 1  # lanes of a shade, in a drawing of several frames
    for first_of in range(0, svg.LANES if stage != 2 else 0, alike):
        mine = [at(place // _FLOAT) for lane, place in places.items() if lane // alike * alike == first_of]
        canvas.cells(mine, size, size, shade(first_of), 0.4)
    if stage == 1:
        canvas.cells(starts, each * size, size, NONE, 2.0)
    if stage == 2:
        return
    first, last = at(places[min(places)] // _FLOAT), at(places[max(places)] // _FLOAT)
    canvas.frame(*first, size, size, 1.2)
    canvas.frame(*last, size, size, 1.2)
    beside = last[1] > first[1]
    names = (f"lane {min(places)}", f"lane {max(places)}")
    wide, high = 40.0, 14.0  # of a name, on paper of its own above the grid's lines
    if beside:
        right = each * size + 4
        spots = [(first[0] + right, first[1] + 1), (last[0] + right, last[1] + size - high)]
    else:
        spots = [(first[0], first[1] + size + 3), (last[0] + size - wide, last[1] + size + 3)]
    for (x, y), name in zip(spots, names, strict=True):
        canvas.cell(x, y, wide, high, name, PALE)


def row_loads(rungs: Sequence[str] = ("1_warp", "2_vector"), rows: pd.DataFrame | None = None) -> Drawing:
    """A warp's first load from a row of FP16 weights, rung by rung of gemv_rows, as the CPU saw it ask:
    a cell a lane, on one scale of bytes; ticks part the sectors.
    """
    seen = traces.read("gemv") if rows is None else rows
    seen = seen[(seen["access"] == "load") & (seen["buffer"] == "w")]
    asked = [
        (name, recorded(seen[seen["case"].str.startswith(f"gemv_rows/{name} ")].iloc[0])) for name in rungs
    ]
    longest = max(max(one.taking_part().values()) + one.width for _, one in asked)
    unit, canvas, said = svg.WIDTH / longest, Canvas(), []
    for place, (name, one) in enumerate(asked):
        y, sectors = 64.0 * place, one.sectors()
        text = f"{one.width} bytes a lane, {one.bytes_used()} bytes in {counted(len(sectors), 'sector')}"
        canvas.text(0, y + 12, name, bold=True)
        canvas.text(90, y + 12, text, svg.SMALL)
        for lane, at in one.taking_part().items():
            canvas.rect(at * unit, y + 20, one.width * unit, 18, shade(lane), 0.3)
        for sector in [*sectors, sectors[-1] + 1]:
            x = sector * SECTOR * unit
            canvas.line([(x, y + 38), (x, y + 44)])
        said.append(f"{name}: {text}")
    canvas.text(
        0, canvas.height + 14, f"Light to dark: lanes 0 to 31. Ticks: {SECTOR}-byte sectors.", svg.SMALL
    )
    return single("One load of a row by one warp", "; ".join(said) + ".", canvas)


def lanes_in_banks(rows: pd.DataFrame, code: str = "keys") -> Request:
    """The first recorded shared-memory load whose line speaks of `code`."""
    return request(rows[rows["code"].str.contains(code, regex=False)].iloc[0])


def banks(plain: pd.DataFrame | None = None, padded: pd.DataFrame | None = None) -> Drawing:
    """The 32 banks of shared memory, and the eight rows of 16 bytes that one step of ldmatrix takes from
    keys: without and with padding, as the attention kernels asked on the CPU.
    """
    canvas, says, top = Canvas(), [], 0.0
    for name, scene, rows in (
        ("4_mma", "tiles", plain),
        ("5_padded", "padded tiles", padded),
    ):
        one = lanes_in_banks(drawn.read("requests", scene) if rows is None else rows)
        eight = dict(list(one.taking_part().items())[:8])
        pitch = eight[1] - eight[0]
        turns = len(Request(tuple(eight.values()), one.width, "").turns())
        halves = pitch // 2
        head = f"{name}: rows of {halves} halves ({pitch} bytes) take {turns} turn{'s' * (turns != 1)}"
        canvas.text(0, top + 12, head, bold=True)
        left, size, high = 56.0, (svg.WIDTH - 56) / BANKS, 15.0
        for bank in range(0, BANKS, 4):
            canvas.text(left + bank * size, top + 28, f"bank {bank}" if bank == 0 else f"{bank}", svg.SMALL)
        canvas.cells([(left + b * size, top + 33) for b in range(BANKS)], size, 8 * high, NONE, 0.2)
        seen: dict[int, int] = {}
        for k, (lane, place) in enumerate(eight.items()):
            y = top + 33 + k * high
            canvas.text(0, y + 11, f"row {k}", svg.SMALL)
            canvas.rect(left, y, BANKS * size, high, NONE, 0.3)
            bank = place // 4 % BANKS
            turn = seen[bank] = seen.get(bank, 0) + 1
            fill = shade(4 * lane, 32)
            canvas.cell(left + bank * size, y, one.width // 4 * size, high, f"turn {turn}", fill, 10)
        says.append(
            f"{name}, whose rows stand {pitch} bytes apart, starts its eight rows at banks "
            f"{', '.join(str(p // 4 % BANKS) for p in eight.values())} and takes {turns} "
            f"turn{'s' * (turns != 1)}"
        )
        top += 33 + 8 * high + 16
    return single("Eight rows of 16 bytes in 32 banks", "; ".join(says) + ".", canvas)


def q8_layouts() -> Drawing:
    """A row of Q8_0 weights as 34-byte blocks and as planes: where the first bytes of each block come to lie,
    found by repacking marked bytes.
    """
    import numpy as np

    from rooflab.numerics.quant import BLOCK, Q8_0, to_planes

    count, shown = 4, 3
    blocks = np.zeros((1, count), Q8_0)
    size = Q8_0.itemsize
    names = Q8_0.names
    assert names is not None
    raw = np.arange(count * size, dtype=np.int64)
    marked = raw.astype(np.uint8).view(np.uint8).copy()  # every byte says where it came from
    blocks = marked.view(Q8_0).reshape(1, count)
    planes = to_planes(blocks)
    canvas, unit = Canvas(), svg.WIDTH / (shown * size)
    scale = Q8_0.fields[names[0]][0].itemsize  # type: ignore[index]
    canvas.text(0, 12, f"Blocks, as in the file: {scale} bytes of scale, then {BLOCK} quants", bold=True)
    for block in range(shown):
        x, y, start = block * size * unit, 22.0, block * size
        canvas.cell(x, y, scale * unit, 22, "", AMBER)
        canvas.cell(x + scale * unit, y, BLOCK * unit, 22, f"quants of block {block}", shade(9 * block), 12)
        first = start + scale
        past = f"{first % 4} past a multiple of 4" if first % 4 else "a multiple of 4"
        canvas.text(x, y + 35, f"byte {first}: {past}", svg.SMALL)
    y = 88.0
    canvas.text(0, y, "Planes, as repacked: all quants, then all scales", bold=True)
    quants = np.ascontiguousarray(planes.quants).view(np.uint8).reshape(-1)
    scales = np.ascontiguousarray(planes.scales).view(np.uint8).reshape(-1)
    y += 10
    wide = BLOCK * unit
    for k in range(shown):
        block = int(quants[k * BLOCK]) // size
        canvas.cell(k * wide, y, wide, 22, f"quants of block {block}", shade(9 * block), 12)
        canvas.text(k * wide, y + 35, f"byte {k * BLOCK}: a multiple of 16", svg.SMALL)
    canvas.text(shown * wide + 8, y + 16, "...")
    y += 48
    order = [int(scales[k * scale]) // size for k in range(shown)]
    for k in range(shown):
        canvas.cell(k * scale * unit, y, scale * unit, 22, "", AMBER)
    said = f"scales of blocks {', '.join(map(str, order))} ..., in an array of their own"
    canvas.text(shown * scale * unit + 8, y + 15, said, svg.SMALL)
    starts = [(k * size + scale) % 4 for k in range(count)]
    says = (
        f"In blocks of {size} bytes the quants of block k start at byte {size} k + {scale}, "
        f"{', '.join(map(str, starts))} bytes past a multiple of 4, so only 2-byte loads always fit; in "
        f"planes the quants of block k start at byte {BLOCK} k, a multiple of 16, and the scales lie apart."
    )
    return single("One row of Q8_0 weights, twice", says, canvas)
