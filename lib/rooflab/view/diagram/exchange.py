"""How a block adds up: lanes exchange registers, warps meet in shared memory behind a barrier."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflab.errors import UsageError
from rooflab.paths import KERNELS
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, PALE, SKY, Canvas, Drawing, single

_LEFT, _HIGH, _ROUND = 118.0, 22.0, 66.0


def offsets(source: str | None = None) -> list[int]:
    """The rounds of warp_sum, by its source: the offset that each gives to __shfl_xor_sync."""
    text = (KERNELS / "common" / "reduce.cuh").read_text() if source is None else source
    found = re.search(r"for \(int offset = (\d+); offset > 0; offset /= 2\)[^;]*__shfl_xor_sync", text)
    if found is None:
        raise UsageError("warp_sum no longer halves its offset from round to round.")
    first = int(found[1])
    return [first >> k for k in range(first.bit_length())]


def block_sum(values: Sequence[int], warps: int, rounds: Sequence[int] | None = None) -> Drawing:
    """`values` of as many neighbouring lanes (a power of two), through the `rounds` of warp_sum that stay
    among them; below, the sums of `warps` warps in shared memory behind the barrier.
    """
    lanes, held = len(values), list(values)
    among = [offset for offset in (offsets() if rounds is None else rounds) if offset < lanes]
    canvas, said = Canvas(), [f"lanes 0 to {lanes - 1} hold {', '.join(map(str, held))}"]
    wide = (svg.WIDTH - _LEFT) / lanes
    middle = [_LEFT + (lane + 0.5) * wide for lane in range(lanes)]
    canvas.text(0, 12, "lane", svg.SMALL)
    for lane, x in enumerate(middle):
        canvas.text(x, 12, f"{lane}", svg.SMALL, "middle")
    y = 18.0
    canvas.text(0, y + 15, "value", bold=True)
    _row(canvas, y, held, PALE)
    for offset in among:
        below = y + _ROUND
        for lane, x in enumerate(middle):
            other = middle[lane ^ offset]
            canvas.line([(other, y + _HIGH + 2), (x + (6 if other > x else -6), below - 2)], 0.9, end="arrow")
            canvas.line([(x, y + _HIGH + 2), (x, below - 2)], 0.6, dashed=True)
        held = [held[lane] + held[lane ^ offset] for lane in range(lanes)]
        y = below
        canvas.text(0, y + 15, f"+ lane xor {offset}", bold=True)
        _row(canvas, y, held, AMBER if offset == among[-1] else SKY)
        said.append(f"plus lane xor {offset}: {', '.join(map(str, held))}")
    y += _HIGH + 34
    wide = (svg.WIDTH - _LEFT) / warps
    canvas.text(0, y + 15, "each warp", bold=True)
    canvas.text(0, y + 77, "shared memory", bold=True)
    for warp in range(warps):
        x = _LEFT + warp * wide
        canvas.cell(x + 2, y, wide - 4, _HIGH, f"warp {warp}", AMBER)
        canvas.line([(x + wide / 2, y + _HIGH + 2), (x + wide / 2, y + 60)], end="arrow")
        canvas.cell(x, y + 62, wide, _HIGH, f"sum {warp}", PALE)
    y += 62 + _HIGH + 20
    canvas.line([(0, y), (svg.WIDTH, y)], 3)
    canvas.text(0, y + 15, "__syncthreads(): wait until every warp has written", svg.SMALL)
    canvas.cell(
        _LEFT, y + 30, svg.WIDTH - _LEFT, _HIGH, f"warp 0 adds the {warps} sums in the same way", AMBER
    )
    canvas.text(0, y + 45, "the block", bold=True)
    says = (
        f"{'; '.join(said)}. Each of {warps} warps writes its sum to shared memory; behind a barrier warp 0 "
    )
    says += f"adds the {warps} sums."
    return single("A sum over lanes, then over warps", says[0].upper() + says[1:], canvas)


def _row(canvas: Canvas, y: float, held: Sequence[int], fill: str) -> None:
    """A row of cells, one a lane, with what it holds."""
    wide = (svg.WIDTH - _LEFT) / len(held)
    for lane, value in enumerate(held):
        canvas.cell(_LEFT + lane * wide + 4, y, wide - 8, _HIGH, f"{value}", fill, svg.TEXT)
