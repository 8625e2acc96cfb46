"""What attention's rung 11 changes in rung 9, in four pictures: who copies, how long a block lives, which
rows it has, and when outputs are rescaled.

Steps, tiles and limits come from the rungs' sources and launch rules; the masked products and the rescales
are counted here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, attention
from rooflab.ops.attention_tiles import tile_of
from rooflab.view.diagram import over_time, svg
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, SKY, Canvas, Drawing, single

RUNG = "11_tma"
MODEL = "gemma-4-e4b"  # whose layers with a window the third picture has
_ARCH, _WIDE, _COPIERS = "90", 266.0, 128
_PIECE = 16  # bytes of a cp.async
_TILES, _PIECES = 3, 2  # of the second picture
_STEEP = 46.0  # height of the fourth's scores
_SEED, _ROWS, _KEYS, _LAST = 5, 16, 80, 12  # of the fourth: rows of a warp, keys of a tile, tiles


class Block(NamedTuple):
    """The rows of a block: heads and queries of each, the keys of its tiles, and how many products of them
    are masked, as a share.
    """

    heads: int
    queries: int
    keys: int
    tiles: int
    masked: float


def rung() -> Rung:
    """The rung that is drawn."""
    return next(each for each in attention.LADDERS["attention"] if each.name == RUNG)


def block(heads: int, rows: int, window: int, keys: int) -> Block:
    """A block of `rows` rows, the same queries of each of `heads`, amid a prompt with a window."""
    queries = rows // heads
    tiles = -(-(queries - 1 + window) // keys)
    return Block(heads, queries, keys, tiles, 1 - window / (tiles * keys))


def limit(text: str) -> float:
    """How many powers of two a score may be above what softmax subtracts, by the rung's source."""
    found = re.search(r"\* scale > ([0-9.]+)f", text)
    if not found:
        raise UsageError("This source has no limit from which outputs are rescaled.")
    return float(found[1])


def rescales(largest: np.ndarray, late: float) -> list[float]:
    """What softmax subtracts at each tile, given the largest score of each, as powers of two: it stays until
    a score exceeds it by more than `late`.
    """
    base, found = float(largest[0]), []
    for top in largest:
        base = float(top) if top > base + late else base
        found.append(base)
    return found


def scores() -> np.ndarray:
    """The largest score of each tile for each row of a warp, as powers of two: random numbers, one in 256
    four times as large.
    """
    generator, width = np.random.default_rng(_SEED), 128
    queries, keys = (
        generator.standard_normal(size) * np.where(generator.random(size) < 1 / 256, 4, 1)
        for size in ((_ROWS, width), (_LAST * _KEYS, width))
    )
    found = queries @ keys.T * np.log2(np.e) / np.sqrt(width)
    return np.asarray(found.reshape(_ROWS, _LAST, _KEYS).max(axis=2))


def four_changes(takes: over_time.Lengths, pairs: tuple[int, ...] = (0, 1)) -> Drawing:
    """The four changes of rung 11, each beside rung 9, or those of `pairs`: 0 copies, 1 the rest."""
    parts = [_who_copies(), _blocks_live(takes), _which_rows(), _when_rescaled()]
    names = (
        "Who copies keys and values",
        "How long a block lives",
        "Which rows a block has",
        "When outputs are rescaled",
    )
    whole, y = Canvas(), 0.0
    for first in (2 * pair for pair in pairs):
        for k, (canvas, _) in enumerate(parts[first : first + 2]):
            x = k * (_WIDE + 28)
            whole.text(x, y + 12, f"{first + k + 1}. {names[first + k]}", bold=True)
            whole.place(canvas, x, y + 22)
        y += 22 + max(canvas.height for canvas, _ in parts[first : first + 2]) + 16
    said = " ".join(words for pair in pairs for _, words in parts[2 * pair : 2 * pair + 2])
    return single("What rung 11 changes in rung 9", said, whole, lean=True)


def _who_copies() -> tuple[Canvas, str]:
    canvas, macros = Canvas(_WIDE), over_time.rung().with_defaults({})
    keys, width = macros["KEYS"], macros["HEAD_DIM"]
    said = [
        _copier(canvas, 0.0, 74.0 * k, name, keys, width) for k, name in enumerate((over_time.RUNG, RUNG))
    ]
    canvas.text(264, 151, f"drawn: {keys} keys and values, {width} wide", svg.SMALL, "end")
    return canvas, " ".join(said)


def _copier(canvas: Canvas, x: float, y: float, name: str, keys: int, width: int) -> str:
    """Draw which of 128 threads copy a tile of keys and one of values, and in how many copies, by the rung's
    source; returns it in words.
    """
    source = next(each for each in attention.LADDERS["attention"] if each.name == name).path
    size = 2 * 2 * keys * width  # in FP16
    text = source.read_text(encoding="utf-8")
    by_tma, sharers = "tma_copy_box" in text, re.search(r"\bCLUSTER = (\d+)", text)
    threads, copies = (1, 2 * width // 64) if by_tma else (_COPIERS, size // _PIECE)
    who = f"rung {name.partition('_')[0]}: {threads} thread{'s' * (threads > 1)}"
    canvas.text(x, y + 12, who, svg.SMALL, bold=True)
    canvas.grid(x, y + 20, 32, _COPIERS // 32, 4.0, 7.0, NONE if by_tma else SKY)
    if by_tma:
        canvas.cells([(x, y + 20)], 4.0, 7.0, SKY)
    canvas.line([(x + 132, y + 34), (x + 156, y + 34)], 1.4, end="arrow")
    canvas.cell(x + 160, y + 18, 104, 32, f"{copies:,} copies", GREY, 12)
    words = f"of {size // copies:,} bytes, a tile of each"
    canvas.text(x + 264, y + 63, words, svg.SMALL, "end")
    if sharers:  # the blocks of a cluster divide a tile's copies
        words = f"{copies // int(sharers[1])} by each of {sharers[1]} blocks that share"
        canvas.text(x + 264, y + 77, words, svg.SMALL, "end")
        return f"{who}, {copies:,} copies for a tile of each, {words}."
    return f"{who}, {copies:,} copies for a tile of each."


def who_copies(first: str, second: str, keys: int, width: int) -> Drawing:
    """Which threads copy a tile of keys and one of values in two rungs, side by side."""
    canvas = Canvas()
    said = [
        _copier(canvas, (_WIDE + 28) * k, 0.0, name, keys, width) for k, name in enumerate((first, second))
    ]
    numbers = [name.partition("_")[0] for name in (first, second)]
    title = f"Who copies in rungs {numbers[0]} and {numbers[1]}, {width} wide"
    return single(title, " ".join(said), canvas)


def shared_copies(name: str, width: int, text: str | None = None) -> Drawing:
    """A tile in L2 and in the SMs of two blocks, which copy it each for itself, or half each for both as a
    rung does whose blocks are a cluster; `text` replaces its source.
    """
    found = next(each for each in attention.LADDERS["attention"] if each.name == name)
    text = found.path.read_text(encoding="utf-8") if text is None else text
    blocks = found.with_defaults({})["CLUSTER"]
    if (
        blocks != 2
        or "BLOCK / CLUSTER * rank" not in text
        or "tma_copy_box_to((1 << CLUSTER) - 1" not in text
    ):
        raise UsageError("This source has no two blocks that copy half of a tile each for both.")
    canvas, size, half, shades = Canvas(), 112.0, 56.0, (BLUE, SKY)
    for panel, head in enumerate(
        ("each block copies for itself", f"rung {name.partition('_')[0]}: a cluster")
    ):
        left, middle = (_WIDE + 28) * panel, (_WIDE + 28) * panel + (_WIDE - size) / 2
        canvas.text(left, 12, head, bold=True)
        parts = [f"{each * width // 2} to {(each + 1) * width // 2 - 1}" for each in range(2)]
        if panel:
            canvas.boxes([(middle + k * half, 22, half, 24, parts[k], shades[k]) for k in range(2)])
        else:
            canvas.cell(middle, 22, size, 24, f"{width} columns", GREY)
        canvas.text(middle - 6, 38, "L2", svg.SMALL, "end")
        for block in range(2):
            x, start = left + block * (_WIDE - size), middle + (block + 0.5) * half
            if panel:
                canvas.boxes([(x + k * half, 84, half, 24, "", shades[k]) for k in range(2)])
                for end in (left, left + _WIDE - size):
                    canvas.line([(start, 46), (end + (block + 0.5) * half, 83)], 1.2, end="arrow")
            else:
                canvas.cell(x, 84, size, 24, "", shades[block])
                canvas.line([(start, 46), (x + half, 83)], 1.2, end="arrow")
            canvas.text(x + half, 122, f"SM of block {block}", svg.SMALL, "middle")
        canvas.text(left + _WIDE / 2, 140, ("read twice", "read once")[panel], svg.SMALL, "middle")
    said = f"A tile of keys, {width} columns. Dark: block 0 asks for it, light: block 1."
    canvas.text(0, 160, said, svg.SMALL)
    return single("Who asks for a tile, and who gets it", said, canvas)


def gain_of_staying(takes: over_time.Lengths) -> float:
    """How many times as fast two pieces of work are by the drawing where one block stays for both."""
    alone, stays = _pieces(takes)
    return _PIECES * max(bar.end for bar in alone) / max(bar.end for bar in stays)


def _pieces(takes: over_time.Lengths) -> tuple[list[over_time.Bar], list[over_time.Bar]]:
    """What happens in a block with one piece of work, and in one that stays for several."""
    own = over_time.rung()
    steps, stages = over_time.program(own.path.read_text(encoding="utf-8")), own.with_defaults({})["STAGES"]
    alone = over_time.simulate(steps, _TILES, stages, takes).bars
    return alone, over_time.simulate(steps, _TILES, stages, takes, _PIECES).bars


def _blocks_live(takes: over_time.Lengths) -> tuple[Canvas, str]:
    own, (alone, stays) = over_time.rung(), _pieces(takes)
    end = max(bar.end for bar in alone)
    apart = [
        bar._replace(tile=bar.tile + k * _TILES, start=bar.start + k * end, end=bar.end + k * end)
        for k in range(_PIECES)
        for bar in alone
    ]
    canvas, left, y, said = Canvas(_WIDE), 52.0, 0.0, []
    unit = (_WIDE - left - 2) / (_PIECES * end)
    for name, bars in (("rung 9: a block for each piece", apart), ("rung 11: one block stays", stays)):
        canvas.text(0, y + 12, name, svg.SMALL, bold=True)
        for row, label in (("copies", "copies"), ("tensor cores", "products")):
            canvas.text(0, y + 30, label, svg.SMALL)
            mine = [(bar, (SKY, BLUE)[bar.tile // _TILES % 2]) for bar in bars if bar.row == row]
            canvas.boxes(
                [
                    (left + bar.start * unit, y + 19, (bar.end - bar.start) * unit, 15, "", fill)
                    for bar, fill in mine
                ]
            )
            y += 18
        last = max(bar.end for bar in bars)
        canvas.text(left, y + 29, f"{_PIECES} pieces of work in {last:.1f} µs", svg.SMALL)
        said.append(f"{name[0].upper()}{name[1:]}: {_PIECES} pieces take {last:.1f} microseconds.")
        y += 38
    wide = own.with_defaults({})["HEAD_DIM"]
    canvas.text(0, y + 10, f"light: first piece, dark: second; {wide} wide", svg.SMALL)
    return canvas, " ".join(said)


def _which_rows() -> tuple[Canvas, str]:
    shape = model_shapes.get(MODEL)
    window, group = int(shape.window or 512), shape.heads // shape.kv_heads
    tile = tile_of(rung(), shape.head_dim, _ARCH)
    keys, rows = tile["KEYS"], 64 * tile.get("GROUPS", 2)
    blocks = [block(heads, rows, window, keys) for heads in (1, group)]
    canvas, y, said = Canvas(_WIDE), 0.0, []
    unit, tall = (_WIDE - 2) / max(each.tiles * keys for each in blocks), 40.0 / rows
    for name, each in zip(("rung 9", "rung 11"), blocks, strict=True):
        whose = f"{each.queries} queries of {each.heads} head{'s' * (each.heads > 1)}"
        canvas.text(0, y + 12, f"{name}: {whose}", svg.SMALL, bold=True)
        canvas.rect(0, y + 18, each.tiles * keys * unit, rows * tall, GREY)
        lines = [(k % each.queries * unit, y + 18 + k * tall, window * unit) for k in range(0, rows, 4)]
        canvas.strips(lines, 4 * tall, SKY)
        for k in range(1, each.tiles):
            canvas.line(
                [(k * keys * unit, y + 18), (k * keys * unit, y + 18 + rows * tall)], 0.5, dashed=True
            )
        words = f"{shape.head_dim} wide, {each.tiles} tiles of {keys} keys; grey, masked: {each.masked:.0%}"
        canvas.text(0, y + 31 + rows * tall, words, svg.SMALL)
        said.append(f"{whose} need {each.tiles} tiles of {keys} keys, {each.masked:.0%} of it masked.")
        y += 84
    return canvas, " ".join(said)


def _when_rescaled() -> tuple[Canvas, str]:
    largest = scores()
    late = limit(rung().path.read_text(encoding="utf-8"))
    ways = (("rung 9: at any larger score", 0.0), (f"rung 11: at one more than {late:g} larger", late))
    canvas, y, said = Canvas(_WIDE), 0.0, []
    low = float(largest[0].min()) - 0.5
    high = max(float(largest[0].max()), float(largest[0][0]) + late) + 0.5
    unit, tall = (_WIDE - 2) / _LAST, _STEEP / (high - low)
    for name, way in ways:
        bases = np.array([rescales(row, way) for row in largest])
        moved = [False, *(bases[:, 1:] != bases[:, :-1]).any(axis=0)]
        canvas.text(0, y + 12, name, svg.SMALL, bold=True)
        floor = y + 20 + _STEEP
        path = [
            (x, floor - (base - low) * tall)
            for k, base in enumerate(bases[0])
            for x in (k * unit, (k + 1) * unit)
        ]
        tops = enumerate(largest[0])
        canvas.cells([((k + 0.5) * unit - 3, floor - (top - low) * tall - 3) for k, top in tops], 6, 6, AMBER)
        canvas.line(path, 1.6)
        if way:
            canvas.line([(at, up - way * tall) for at, up in path], 0.8, dashed=True)
            canvas.text(4, path[0][1] - way * tall + 12, f"{way:g} above the line", svg.SMALL)
        places = [(k * unit + 1, BLUE if each else NONE) for k, each in enumerate(moved)]
        canvas.boxes([(x, floor + 5, unit - 2, 8, "", fill) for x, fill in places])
        words = f"a warp rescales at {sum(moved)} of {_LAST - 1} tiles after the first"
        canvas.text(0, floor + 26, words, svg.SMALL)
        said.append(f"{name[0].upper()}{name[1:]}: {words}.")
        y = floor + 36
    return canvas, " ".join(said)
