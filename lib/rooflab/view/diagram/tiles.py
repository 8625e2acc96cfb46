"""Tiles of matrices: which lane holds which element, which tiles a block walks through, and the softmax that
is kept up to date on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from rooflab.studies import drawn
from rooflab.view.diagram import svg, tile_softmax
from rooflab.view.diagram.svg import AMBER, BLUE, GREY, NONE, PALE, SKY, Canvas, Drawing, shade, single
from rooflab.words import listed


def places(rows: pd.DataFrame, operand: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(row, column) of a fragment's matrix -> (lane, element of its registers)."""
    found = {}
    for _, row in rows[rows["operand"] == operand].iterrows():
        for lane, element in enumerate(str(row["elements"]).split()):
            first, _, second = element.partition(".")
            found[int(first), int(second)] = (lane, int(row["place"]))
    return found


def accumulators(product: str = "m16n8k32_s8", rows: pd.DataFrame | None = None, lane: int = 5) -> Drawing:
    """The sums of one matrix product of a warp, 16 x 8: which lane holds each, in which of its registers, as
    the product executed on the CPU left them; one lane's are framed.
    """
    held = places(drawn.read("fragments", product) if rows is None else rows, "d")
    high, wide = max(r for r, _ in held) + 1, max(c for _, c in held) + 1
    canvas, left, size, tall = Canvas(), 54.0, 46.0, 19.0
    depth = int(product.partition("k")[2].partition("_")[0])
    top = _operands(canvas, high, wide, depth)
    for column in range(wide):
        canvas.text(left + (column + 0.5) * size, top - 6, f"{column}", svg.SMALL, "middle")
    canvas.text(left - 8, top - 6, "token", svg.SMALL, "end")
    canvas.boxes(
        [
            (left + column * size, top + row * tall, size, tall, f"{owner}.{place}", shade(owner))
            for (row, column), (owner, place) in sorted(held.items())
        ]
    )
    for row in range(high):
        canvas.text(left - 8, top + row * tall + 14, f"row {row}", svg.SMALL, "end")
    mine = sorted(place for place, (owner, _) in held.items() if owner == lane)
    for row, column in mine:
        canvas.frame(left + column * size, top + row * tall, size, tall)
    x = left + wide * size + 16
    canvas.text(x, top + 13, "lane.register", bold=True)
    canvas.text(x, top + 33, f"lane {lane}, framed,", svg.SMALL)
    canvas.text(x, top + 48, f"holds {len(mine)} sums:", svg.SMALL)
    for k, (row, column) in enumerate(mine):
        canvas.text(x, top + 67 + 15 * k, f"d[{held[row, column][1]}]", svg.SMALL)
        canvas.text(x + 30, top + 67 + 15 * k, f"row {row}, token {column}", svg.SMALL)
    canvas.text(x, top + 82 + 15 * len(mine), "one shade a lane", svg.SMALL)
    says = (
        f"A, {high} x {depth}, times B, {depth} x {wide}, is D: a warp's {high} x {wide} sums of {product}; "
        f"lane {lane} holds "
        + ", ".join(f"({row}, {column}) in d[{held[row, column][1]}]" for row, column in mine)
        + f"; row 0 belongs to lanes {', '.join(str(held[0, c][0]) for c in range(0, wide, 2))}."
    )
    return single(f"Who holds the {high} × {wide} sums of one product", says, canvas, lean=True)


def _operands(canvas: Canvas, high: int, wide: int, depth: int) -> float:
    """Draw A, `high` x `depth`, times B, `depth` x `wide`, = D; returns where D's cells begin below it."""
    unit, x, y, tall = 3.2, 54.0, 16.0, 3.2 * max(high, depth)
    for name, rows, columns, fill, what, after in (
        ("A", high, depth, SKY, f"{high} rows × {depth} of k", "·"),
        ("B", depth, wide, AMBER, f"{depth} of k × {wide} tokens", "="),
        ("D", high, wide, PALE, f"{high} rows × {wide} tokens", ""),
    ):
        canvas.cell(x, y + (tall - unit * rows) / 2, unit * columns, unit * rows, name, fill, 12)
        canvas.text(x + unit * columns + 6, y + tall / 2 - 3, what.partition(" × ")[0], svg.SMALL)
        canvas.text(x + unit * columns + 6, y + tall / 2 + 11, "× " + what.partition(" × ")[2], svg.SMALL)
        x += unit * columns + 68
        canvas.text(x, y + tall / 2 + 5, after, 18)
        x += 22 if after else 0
    return y + tall + 36


def matrices_loaded(
    product: str = "m16n8k16_f16", rows: pd.DataFrame | None = None, lane: int = 5
) -> Drawing:
    """ldmatrix: the four 8 x 8 matrices of one load, beside each row the lane that gives its address, and
    what one lane gets. Matrix i is what register a[i] of the product's first operand holds.
    """
    held = places(drawn.read("fragments", product) if rows is None else rows, "a")
    canvas, size, said = Canvas(), 15.0, []
    for matrix in range(4):
        at = sorted(place for place, (_, element) in held.items() if element // 2 == matrix)
        first = at[0]
        left, top = 62.0 + matrix % 2 * 262, 18.0 + matrix // 2 * (8 * size + 34)
        canvas.text(left, top - 6, f"matrix {matrix}: register {matrix} of every lane", svg.SMALL, bold=True)
        for row in range(8):
            canvas.text(left - 6, top + row * size + 12, f"lane {8 * matrix + row} →", svg.SMALL, "end")
        for other in range(svg.LANES):
            cells = [
                (left + (c - first[1]) * size, top + (r - first[0]) * size)
                for r, c in at
                if held[r, c][0] == other
            ]
            canvas.cells(cells, size, size, shade(other))
        mine = [(r - first[0], c - first[1]) for r, c in at if held[r, c][0] == lane]
        for r, c in mine:
            canvas.frame(left + c * size, top + r * size, size, size, 1.8)
        said.append(f"of matrix {matrix} row {mine[0][0]}, columns {' and '.join(str(c) for _, c in mine)}")
    below = f"Arrow: the lane that gives a row's address. Framed: what lane {lane} gets, a register a matrix."
    canvas.text(0, 36 + 2 * (8 * size + 34) - 30, below, svg.SMALL)
    says = "Lane l gives the address of row l % 8 of matrix l / 8, 16 bytes. "
    says += f"Lane {lane} gets {'; '.join(said)}."
    return single("One ldmatrix: who gives a row's address, and who gets what", says, canvas)


def fragments(product: str = "m16n8k16_f16", rows: pd.DataFrame | None = None, lane: int = 5) -> Drawing:
    """The three matrices of one product of a warp, A · B = D: which lane holds which element, as the product
    executed on the CPU took and left them; one lane's are framed, each with the number of its register, of
    which one of A or B holds two elements.
    """
    recorded = drawn.read("fragments", product) if rows is None else rows
    canvas, size, top, x, said = Canvas(), 12.5, 32.0, 0.0, []
    for operand, name, after in (("a", "A", "·"), ("b", "B", "="), ("d", "D", "")):
        held, each = places(recorded, operand), 1 if operand == "d" else 2
        high, wide = max(r for r, _ in held) + 1, max(c for _, c in held) + 1
        canvas.text(x, 14, f"{name}, {high} × {wide}", bold=True)
        for other in range(svg.LANES):
            at = [(x + c * size, top + r * size) for (r, c), (owner, _) in held.items() if owner == other]
            canvas.cells(sorted(at), size, size, shade(other))
        mine = sorted((r, c) for (r, c), (owner, _) in held.items() if owner == lane)
        for row, column in mine:
            at_x, at_y, register = x + column * size, top + row * size, held[row, column][1] // each
            canvas.frame(at_x, at_y, size, size, 1.8)
            canvas.text(at_x + size / 2, at_y + 10, f"{register}", 10.5, "middle", svg.on(shade(lane)), True)
        words = ", ".join(f"({r}, {c}) in {operand}[{held[r, c][1] // each}]" for r, c in mine)
        said.append(f"{name}, {high} x {wide}: lane {lane} holds {words}")
        x += wide * size + 8
        canvas.text(x, top + 8 * size, after, 18)
        x += 20 if after else 0
    canvas.text(
        0, top + 16 * size + 20, f"Shade: lane 0 (light) to 31 (dark); framed: lane {lane}, its number"
    )
    canvas.text(0, top + 16 * size + 37, "that of the register: a[0] to a[3], b[0] and b[1], d[0] to d[3].")
    return single(f"Who holds what of one product, {product}", ". ".join(said) + ".", canvas)


def scores_of_a_row(
    product: str = "m16n8k16_f16", rows: pd.DataFrame | None = None, lane: int = 5
) -> Drawing:
    """The 16 x 16 scores of two products side by side: the registers s[i][j] in which a lane has its own, and
    by which shuffles the lanes of one row find its maximum.
    """
    held = places(drawn.read("fragments", product) if rows is None else rows, "d")
    wide, canvas, left, top, size, tall = max(c for _, c in held) + 1, Canvas(), 52.0, 34.0, 32.0, 15.0
    mine = sorted(place for place, (owner, _) in held.items() if owner == lane)
    own = sorted({row for row, _ in mine})
    for tile in range(2):
        x = left + tile * wide * size
        canvas.text(x, 12, f"s[{tile}]: keys {tile * wide} to {tile * wide + wide - 1}", svg.SMALL, bold=True)
        for column in range(wide):
            canvas.text(x + (column + 0.5) * size, 29, f"{tile * wide + column}", svg.SMALL, "middle")
        canvas.rect(x, top, wide * size, (max(r for r, _ in held) + 1) * tall, NONE, 0.8)
        for (row, column), (owner, register) in sorted(held.items()):
            at_x, at_y = x + column * size, top + row * tall
            if row in own:
                canvas.cells([(at_x, at_y)], size, tall, shade(owner))
            if owner == lane:
                canvas.frame(at_x, at_y, size, tall, 1.8)
                name, ink = f"[{tile}][{register}]", svg.on(shade(owner))
                canvas.text(at_x + size / 2, at_y + 11, name, 9.5, "middle", ink)
    for row in own:
        canvas.text(left - 6, top + row * tall + 12, f"query {row}", svg.SMALL, "end")
    lanes = sorted({owner for (row, _), (owner, _) in held.items() if row == own[0]})
    y = top + 16 * tall + 20
    said = f"Shaded: lanes {lanes[0]} to {lanes[-1]}. Framed: the {2 * len(mine)} scores of lane {lane}, "
    canvas.text(0, y, f"{said}in s[i][j].")
    y += 18
    canvas.text(0, y, f"The maximum of query {own[0]}, each lane starting from its own 4 scores of it:")
    for step, apart in enumerate((1, 2)):
        pairs = [f"{a} ↔ {a ^ apart}" for a in lanes if a < a ^ apart]
        canvas.cell(0 + 282 * step, y + 10, 270, 22, f"shuffle by {apart}: {' and '.join(pairs)}", AMBER, 12)
    said = "; ".join(
        f"query {row}, key {c + t * wide} in s[{t}][{held[row, c][1]}]" for t in (0, 1) for row, c in mine
    )
    says = f"Lane {lane} shares queries {listed(own)} with lanes {lanes[0]} to {lanes[-1]}. It holds {said}. "
    says += "Shuffles by 1 and by 2 find the maximum of a query's scores."
    return single("Who holds the 16 × 16 scores of step e", says, canvas)


def attention_tiles(
    rows: pd.DataFrame | None = None, block: int | None = None, text: str | None = None
) -> Drawing:
    """A block's tile of queries and the tiles of keys and values that it walks through under the causal mask,
    step by step, in the order in which the kernel loaded them on the CPU; below each the numbers of one
    query's softmax after that tile, by the kernel's statements (`text` replaces its source).
    """
    regions = drawn.read("regions", "tiles") if rows is None else rows
    keys, queries = (regions[regions["buffer"] == name] for name in ("k", "q"))
    context = int((keys["row"] + keys["rows"]).max())
    block = int(keys["block"].value_counts().index[0]) if block is None else block
    mine, own = keys[keys["block"] == block], queries[queries["block"] == block].iloc[0]
    tile = int(own["rows"])
    side = 168.0
    unit = side / context
    walked = [(int(part["row"]), int(part["rows"])) for _, part in mine.iterrows()]
    states = tile_softmax.after_tiles(int(own["row"]), tile, walked, text)
    query = tile_softmax.telling(states)
    frames = []
    for step in range(len(mine)):
        canvas = Canvas(262)
        left, top = 64.0, 42.0
        canvas.rect(left, top, side, side, NONE, 0.8)
        rows_seen = [(left, top + r * unit, (r + 16) * unit) for r in range(0, context, 16)]
        canvas.boxes([(x, y, wide, 16 * unit, "", PALE) for x, y, wide in rows_seen])
        y = top + int(own["row"]) * unit
        canvas.cell(0, y, 56, tile * unit, "Q, fixed", BLUE, 12)
        canvas.text(0, y - 5, f"from {int(own['row'])}", svg.SMALL)
        for k, (_, part) in enumerate(mine.iterrows()):
            x, width = left + int(part["row"]) * unit, int(part["rows"]) * unit
            fill = AMBER if k == step else GREY if k < step else NONE
            if k <= step:
                canvas.cell(x, top - 26, width, 20, "K, V" if k == step else "done", fill, 11)
            else:
                canvas.rect(x, top - 26, width, 20, NONE, 0.4)
            if k <= step:
                canvas.cell(x, y, width, tile * unit, "S" if k == step else "", fill, 14)
        canvas.text(left, top + side + 15, f"keys 0 to {context - 1}", svg.SMALL)
        canvas.text(left - 4, top + 12, "queries", svg.SMALL, "end")
        line = y + (query + 0.5) * unit
        canvas.line([(left, line), (left + side, line)], 0.8, dashed=True)
        canvas.text(
            0, top + side + 36, f"Query {int(own['row']) + query}, dashed; out = o ÷ row_sum:", svg.SMALL
        )
        tile_softmax.draw_numbers(canvas, top + side + 53, states[step], query)
        canvas.text(0, top + side + 96, f"scores: q · k ÷ √{tile_softmax.width()};", svg.SMALL)
        canvas.text(0, top + side + 110, "rescale = exp(old row_max − new row_max)", svg.SMALL)
        part = mine.iloc[step]
        frames.append((f"keys {part['row']} to {part['row'] + part['rows'] - 1}", canvas))
    each = keys.groupby("block").size()
    count = ", ".join(
        f"{n} for queries from {int(queries[queries['block'] == b]['row'].min())}" for b, n in each.items()
    )
    says = (
        f"A block keeps its {tile} queries (from row {int(own['row'])} on) and loads "
        f"{len(mine)} tiles of {int(mine['rows'].iloc[0])} keys and values one after another; "
        f"S, their scores, stays in registers. Tiles beyond the causal diagonal are never loaded: "
        f"tiles a block are {count}. After each tile query {int(own['row']) + query} has "
        + "; ".join(", ".join(f"{n} {x}" for n, x in tile_softmax.numbers(state, query)) for state in states)
        + "."
    )
    return Drawing("One tile of queries, tiles of keys sliding past", says, frames, across=2, lean=True)


def softmax_steps(scores: Sequence[float], values: Sequence[float]) -> list[dict[str, float]]:
    """Online softmax, a score at a time: score, value, old and new maximum m, what came before is multiplied
    by (alpha), the new weight p, and the running sum l and output o after it.
    """
    m, total, out, steps = -math.inf, 0.0, 0.0, []
    for score, value in zip(scores, values, strict=True):
        new = max(m, score)
        alpha, p = math.exp(m - new), math.exp(score - new)
        total, out = total * alpha + p, out * alpha + p * value
        steps.append(
            {
                "score": score,
                "value": value,
                "before": m,
                "m": new,
                "alpha": alpha,
                "p": p,
                "l": total,
                "o": out,
            }
        )
        m = new
    return steps


def online_softmax(scores: Sequence[float] = (1, 3, 2), values: Sequence[float] = (10, 20, 30)) -> Drawing:
    """Online softmax in frames, two a score: rescale what was kept, then add the new score's share."""
    steps, frames = softmax_steps(scores, values), []
    before = {"l": 0.0, "o": 0.0}
    for k, step in enumerate(steps):
        for adds in (False, True):
            canvas = Canvas(270)
            size = 54.0
            for j, score in enumerate(scores):
                fill = AMBER if j == k else GREY if j < k else NONE
                canvas.cell(62 + j * size, 0, size - 4, 26, f"{score:g}", fill, 15)
                canvas.cell(62 + j * size, 30, size - 4, 20, f"v = {values[j]:g}", fill)
            canvas.text(0, 18, "scores", svg.SMALL)
            canvas.text(0, 44, "values", svg.SMALL)
            was = "nothing" if step["before"] == -math.inf else f"{step['before']:g}"
            kept = {name: before[name] * step["alpha"] for name in ("l", "o")}
            now = {"l": step["l"], "o": step["o"]} if adds else kept
            words = (
                f"p = exp({step['score']:g} - {step['m']:g}) = {step['p']:.3f}"
                if adds
                else f"row_max: {was} to {step['m']:g};  rescale = {step['alpha']:.3f}"
            )
            canvas.text(0, 72, words, svg.TEXT - 0.5)
            sums = (
                ("l", f"row_sum + p = {now['l']:.3f}" if adds else f"row_sum × rescale = {now['l']:.3f}"),
                ("o", f"o + p × v = {now['o']:.3f}" if adds else f"o × rescale = {now['o']:.3f}"),
            )
            largest = max(each["o"] for each in steps)
            for j, (name, text) in enumerate(sums):
                y, full = 82.0 + 26 * j, 3.0 if name == "l" else max(largest, 1e-9)
                canvas.rect(0, y, 86, 19, NONE, 0.4)
                canvas.rect(0, y, 86 * min(1.0, now[name] / full), 19, SKY, 0.4)
                canvas.text(92, y + 14, text, svg.TEXT - 0.5)
            frames.append(
                (
                    f"score {step['score']:g}: " + ("add its share" if adds else "rescale what was kept"),
                    canvas,
                )
            )
            if adds:
                before = {"l": step["l"], "o": step["o"]}
    last = steps[-1]
    result = last["o"] / last["l"]
    frames[-1][1].text(0, 152, f"output = o / row_sum = {result:.3f}", svg.TEXT, bold=True)
    maxima, alphas = ([f"{step[name]:.3g}" for step in steps] for name in ("m", "alpha"))
    says = (
        f"Scores {', '.join(f'{score:g}' for score in scores)} one at a time: row_max becomes "
        f"{', '.join(maxima)}; when it grows, what was kept is multiplied by rescale: "
        f"{', '.join(alphas)}; at the end row_sum = {last['l']:.3f} and o / row_sum = {result:.3f}, "
        "the softmax of all scores at once."
    )
    return Drawing("Online softmax, two frames a score", says, frames, across=2, lean=True)
