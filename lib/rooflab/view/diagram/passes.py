"""How often each way to a product reads the weights: the tiles that its launch rule makes of the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rooflab.ops import mmq as ladder
from rooflab.ops import q8_0
from rooflab.records.case import Case
from rooflab.studies import mmq as study
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import GREY, SKY, Canvas, Drawing
from rooflab.words import counted

WIDTH = 430.0  # narrow enough for a phone


def tiles_of(impl: str, n: int, k: int, batch: int) -> tuple[int, ...]:
    """How many tokens each tile of a contestant has room for: parts of a dp4a rung, tiles of one that uses
    tensor cores; none for a library, whose tiles are its own business. 6_wgmma leaves out the second half of
    a last tile of 128 if that half has no tokens.
    """
    if impl in (study.BASELINE, *study.PEERS):
        return ()
    case = Case("mmq", "mmq", impl, kind="own", format="q8_0", n=n, k=k, batch=batch)
    rung, macros, _ = study.own_rung(case)
    if impl.startswith(study.DECODE):
        if "TOKEN_TILES" in macros:
            return (8 * macros["TOKEN_TILES"],)
        most = q8_0.TAKES[rung.name][2]
        return tuple(min(most, batch - first) for first in range(0, batch, most))
    if rung.name == "6_wgmma":
        last = (batch - 1) % 128 + 1
        return (*(128,) * ((batch - 1) // 128), 64 if last <= 64 else 128)
    if "TOKENS" in macros:
        return (macros["TOKENS"],) * -(-batch // macros["TOKENS"])
    high, _ = ladder.launch_shape(rung, n, batch, macros)[0]
    return (8 * macros["TOKEN_TILES"] * macros["TOKEN_WARPS"],) * high


def passes(rows: pd.DataFrame, tokens: Sequence[int] = (8, 9, 32, 33, 64, 65)) -> Drawing | None:
    """A frame for each recorded number of tokens: the tiles of each way's fastest contestant (`rows`, of one
    shape: way, impl, n, k, batch, median_us), what of them is empty, and its time. None without such rows.
    """
    rows = rows[rows["batch"].isin(tokens) & (rows["impl"] != study.BASELINE)]
    if rows.empty:
        return None
    n, k = int(rows["n"].iloc[0]), int(rows["k"].iloc[0])
    columns = (rows[name].tolist() for name in ("batch", "way", "impl", "median_us"))
    found = [(*row, tiles_of(row[2], n, k, row[0])) for row in zip(*columns, strict=True)]
    unit = WIDTH / max([*tokens, *(sum(tiles) for *_, tiles in found)])
    frames, said = [], []
    for batch in sorted({row[0] for row in found}):
        canvas, y, words = Canvas(WIDTH), 0.0, []
        here = [row[1:] for row in found if row[0] == batch]
        best = min(us for _, _, us, _ in here)
        for way, impl, us, tiles in here:
            many = f", {counted(len(tiles), 'pass', 'passes')} of {_widths(tiles)}" if tiles else ""
            kernel = f" ({impl.removeprefix(study.DECODE)})" if tiles else ""
            words.append(f"{way}{kernel}: {us:.1f} µs{many}")
            canvas.text(0, y + 12, words[-1], bold=us == best)
            x, left = 0.0, int(batch)
            for tile in tiles or (left,):
                used = min(tile, left)
                canvas.rect(x, y + 18, tile * unit, 17)
                canvas.rect(x, y + 18, used * unit, 17, SKY if tiles else GREY, 0)
                canvas.frame(x, y + 18, tile * unit, 17, 1.2)
                x, left = x + tile * unit, left - used
            if not tiles:
                canvas.text(x + 6, y + 31, "tiles chosen by cuBLAS")
            y += 45
        _key(canvas)
        frames.append((counted(batch, "token"), canvas))
        said.append(f"{counted(batch, 'token')}: {'; '.join(words)}")
    says = f"Weights of {n:,} × {k:,}. {'. '.join(said)}."
    return Drawing("One token more: another pass, or a wider tile", says, frames)


def _widths(tiles: Sequence[int]) -> str:
    """How many tokens a tile has room for."""
    most = counted(max(tiles), "token")
    return most if min(tiles) == max(tiles) else f"up to {most}"


def _key(canvas: Canvas) -> None:
    y = canvas.height + 12
    canvas.text(310, y + 11, "bold: the fastest")
    for x, fill, words in ((0, SKY, "tokens"), (84, svg.NONE, "room in a tile that stays empty")):
        canvas.cell(x, y, 12, 12, "", fill)
        canvas.text(x + 18, y + 11, words)
