"""MMQ's tiles: how often a tile's shape has weights and activations read, and the fragments that a warp loads
for its products. Both follow launch rules and sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rooflab.errors import UsageError
from rooflab.ops import mmq
from rooflab.studies import mmq as study
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, PALE, SKY, Canvas, Drawing, single
from rooflab.words import counted, times

_SHOWN = 256  # rows of the result in the picture


def weights_read(names: Sequence[str], tokens: int = 512, n: int = 8192, k: int = 8192) -> Drawing:
    """The result of a product cut into each rung's tiles, two rungs in a row: the tiles that read the first
    rows' weights are dark, those that read the first tokens' activations amber.
    """
    cases = {case.impl: case for case in study.ladder(tokens, n, k) if not case.options.count("scale_bytes")}
    canvas, side, unit, said = Canvas(), svg.WIDTH / 2, 200 / tokens, list[str]()
    for at, name in enumerate(names):
        weights, activations, _ = study.reads(cases[name])
        x, y = at % 2 * side, at // 2 * 205.0
        wide, high = tokens // weights, n // activations
        title = f"Rung {name.partition('_')[0]}: tiles of {high} × {wide}"
        canvas.text(x, y + 12, title, bold=True)
        left, top = x + 40, y + 40
        canvas.text(left, top - 6, f"{tokens} tokens", svg.SMALL)
        across, down = wide * unit, high * unit
        places = [(row, column) for row in range(_SHOWN // high) for column in range(weights)]
        fills = [BLUE if row == 0 else AMBER if column == 0 else PALE for row, column in places]
        canvas.boxes(
            [
                (
                    left + column * across,
                    top + row * down,
                    across,
                    down,
                    f"{column + 1}" if row == 0 else "",
                    fill,
                )
                for (row, column), fill in zip(places, fills, strict=True)
            ]
        )
        canvas.text(left - 6, top + high * unit / 2 + 4, f"{high}", svg.SMALL, "end")
        canvas.text(left - 6, top + high * unit / 2 + 16, "rows", svg.SMALL, "end")
        below = top + _SHOWN * unit + 16
        canvas.text(left, below, f"weights read {weights} times (blue),", svg.SMALL)
        canvas.text(left, below + 14, f"activations {activations} times (amber)", svg.SMALL)
        said.append(f"{title}: weights are read {weights} times, activations {activations} times")
    example = f"The first {_SHOWN} of {n:,} rows. A tile reads the weights of its rows, all of k."
    bottom = -(-len(names) // 2) * 205.0
    canvas.text(0, bottom, example, svg.SMALL)
    return single("Each tile reads its weights again", f"{'; '.join(said)}. {example}", canvas)


def fragments_of(text: str, defines: Mapping[str, int]) -> tuple[int, int]:
    """The tiles of 16 rows and of 8 tokens that a warp multiplies, by a rung's source and macros. UsageError
    for a source that says neither.
    """
    if "ROW_TILES" in defines:
        return defines["ROW_TILES"], defines["TOKEN_TILES"]
    tokens = re.search(r"\bTOKENS = (\d+)", text)
    part = re.search(r"N_TILES = TOKENS / (\d+)", text)
    if not tokens or not part or "unsigned a[4];" not in text:
        raise UsageError("This source says not how many tiles a warp multiplies.")
    return 1, int(tokens[1]) // int(part[1])


def fragments_of_a_warp(names: Sequence[str] = ("4_cp_async", "5_large_tiles")) -> Drawing:
    """The products of a warp over 32 of k, and the fragments of rows and of tokens that it loads for them."""
    ladder = {each.name: each for each in mmq.LADDERS["mmq"]}
    canvas, side, cell, said = Canvas(), svg.WIDTH / 2, 24.0, list[str]()
    bottom = 0.0
    for at, name in enumerate(names):
        rung = ladder[name]
        rows, tokens = fragments_of(rung.path.read_text(encoding="utf-8"), rung.defines)
        x, y = at * side, 0.0
        title = f"Rung {name.partition('_')[0]}: {16 * rows} rows × {8 * tokens} tokens a warp"
        canvas.text(x, y + 12, title, bold=True)
        left, top = x + 36, y + 56
        boxes = [(left + c * cell, top - cell - 4, cell, cell, "x", AMBER) for c in range(tokens)]
        boxes += [(left - cell - 4, top + r * cell, cell, cell, "w", SKY) for r in range(rows)]
        boxes += [
            (left + c * cell, top + r * cell, cell, cell, "", BLUE)
            for r in range(rows)
            for c in range(tokens)
        ]
        canvas.boxes(boxes)
        each = (rows + tokens) / (rows * tokens)
        words = f"{counted(rows * tokens, 'product')}, {counted(rows + tokens, 'fragment')} loaded:"
        rate = f"{times(each)} a product"
        bottom = max(bottom, top + rows * cell)
        said.append(f"{title}: {words} {rate}")
        canvas.text(left, top + rows * cell + 16, words, svg.SMALL)
        canvas.text(left, top + rows * cell + 30, rate, svg.SMALL)
    below = "Blue: an mma of 16 rows and 8 tokens over 32 of k; w, x: the fragments that it takes."
    canvas.text(0, bottom + 52, below, svg.SMALL)
    return single("What a warp loads for its products", f"{'; '.join(said)}. {below}", canvas)


def order_of_tiles(names: Sequence[str] = ("4_cp_async", "5_large_tiles")) -> Drawing:
    """The order in which the grids of these rungs go through tiles, as their sources number the blocks; the
    first four, which run together, are dark. UsageError for a source that numbers them otherwise.
    """
    ladder = {each.name: each for each in mmq.LADDERS["mmq"]}
    canvas, side, cell, left, count = Canvas(), svg.WIDTH / 2, 30.0, 44.0, 4
    said = list[str]()
    for at, name in enumerate(names):
        found = re.search(r"row0 = blockIdx\.([xy]) \*", ladder[name].path.read_text(encoding="utf-8"))
        if not found:
            raise UsageError(f"{name} does not number its tiles by blockIdx.")
        down = found[1] == "x"  # the first number of a block is its rows'
        number = ladder[name].name.partition("_")[0]
        title = f"Rung {number}: {'all rows of some tokens' if down else 'all tokens of some rows'} first"
        x, top = at * side, 38.0
        canvas.text(x, 12, title, bold=True)
        canvas.text(x + left, top - 6, "tokens", svg.SMALL)
        canvas.text(x + left - 6, top + 18, "rows", svg.SMALL, "end")
        boxes = []
        for row in range(count):
            for column in range(count):
                turn = column * count + row if down else row * count + column
                place = (x + left + column * cell, top + row * cell, cell, cell)
                boxes.append((*place, f"{turn + 1}", BLUE if turn < count else PALE))
        canvas.boxes(boxes)
        words = f"the weights of {count} rows" if down else "the weights of 1 row"
        canvas.text(x + left, top + count * cell + 16, f"blue tiles read {words}", svg.SMALL)
        said.append(f"{title}; the first {count} tiles read {words}")
    example = f"Example: {count} × {count} tiles, {count} of them (blue) at a time."
    canvas.text(0, 38 + count * cell + 38, example, svg.SMALL)
    return single("In which order tiles are taken", f"{'; '.join(said)}. {example}", canvas, lean=True)
