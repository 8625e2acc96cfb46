"""Where an explorer's drawing puts things: axes that fit the curves shown, ticks, and the curves' names.

A drawing shows one slice of its cases at a time: those that agree in every control but the first. Each slice
has a `View` of its own, so that no curve is flattened by others that are not in the drawing.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rooflab.view.ticks import spread

WIDTH, HEIGHT = 624, 310
LEFT, TOP, RIGHT, BOTTOM = 54, 46, 490, 264  # the plotting area; right of it stand the curves' names
NAME, APART = 20, 11  # letters of a curve's name, and from one name to the next
_LETTER = 5.8  # width of a name's letter, at most
_MOST_TICKS = 8
_NEAR = 24  # from the right end, within which a curve counts as reaching it
PREDICTED = "predicted"  # what the curve of predictions is called


@dataclass
class Scale:
    """A linear or logarithmic axis from values to the drawing's units."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, value = (math.log2(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return short(self.start + share * (self.end - self.start))


@dataclass
class View:
    """The axes of a slice and where its names stand: `names` holds (index of the curve, x, y), `leaders` the
    path of the lines from curves to names that stand apart from them.
    """

    to_x: Scale
    to_y: Scale
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    names: list[tuple[int, float, float]]
    leaders: str
    told_names: list[tuple[int, float, float]]  # likewise where the curve of predictions is named

    def place(self, x: float) -> float | None:
        """Where a value of x stands, None outside the axis."""
        return self.to_x(x) if self.to_x.low <= x <= self.to_x.high else None


def view(
    curves: dict[int, list[tuple[float, float]]],
    texts: dict[float, str],
    names: Sequence[str],
    levels: Sequence[float] = (),
    apart: Sequence[tuple[float, float]] = (),
    *,
    xlog: bool,
    ylog: bool,
    told: Mapping[int, list[tuple[float, float]]] | None = None,
) -> View:
    """The view of `curves`, index -> points (x, y), whose x are written as `texts` says. The axes also hold
    the roofs' `levels`, the points `apart`, measured here, and the predictions `told`, points of the curves
    by index; `names` are of all curves, by index.
    """
    told = told or {}
    points = [*itertools.chain.from_iterable(curves.values()), *apart]
    widths = sorted({x for x, _ in points})
    heights = [*(y for _, y in points), *levels, *(y for mine in told.values() for _, y in mine)]
    to_x = Scale(widths[0], widths[-1], LEFT + 8, RIGHT - 12, xlog)
    low, high, ticks = (_log_ticks if ylog else _ticks)(min(heights), max(heights))
    to_y = Scale(low, high, BOTTOM, TOP, ylog)
    drawn = {j: [(to_x(x), to_y(y)) for x, y in sorted(mine)] for j, mine in curves.items()}
    placed, leaders = _named(drawn, names)
    told_names = []
    for j, mine in told.items():
        foretold = [(to_x(x), to_y(y)) for x, y in sorted(mine)]
        told_names.append((j, *_told_name(foretold, drawn[j], [to_y(v) for v in levels], placed, names)))
    x_ticks = _spaced([(to_x(x), texts[x]) for x in widths if x in texts])
    return View(to_x, to_y, x_ticks, [(to_y(v), text) for v, text in ticks], placed, leaders, told_names)


def short(value: float) -> float:
    """Rounded to a tenth; whole numbers without ".0", as a script writes them."""
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded


def path(points: Sequence[tuple[float, float]], ticks: Sequence[float]) -> str:
    """A curve through points, from left to right. A gap is left open that spans a third of the axis and three
    of its `ticks`: sizes at which other curves were measured and this one was not.
    """
    drawn, last = "", 0.0
    for k, (px, py) in enumerate(points):
        apart = px - last > (RIGHT - LEFT) / 3 and sum(last < tick < px for tick in ticks) >= 3
        drawn += f"{'M' if not k or apart else 'L'}{px} {py}"
        last = px
    return drawn


def dashed(points: Sequence[tuple[float, float]], seen: View) -> str:
    """A curve of predictions, a short line at a lone one."""
    if len(points) == 1:
        (px, py), *_ = points
        return f"M{short(px - 8)} {py}h16"
    return path(points, [px for px, _ in seen.x_ticks])


def _spaced(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks with their texts, an empty one where a text would run into the next."""
    kept, free = [], math.inf
    for px, text in reversed(ticks):
        half = 3.4 * len(text) + 5
        fits = px + half <= free
        free = px - half if fits else free
        kept.append((px, text if fits else ""))
    return kept[::-1]


def _ticks(low: float, high: float) -> tuple[float, float, list[tuple[float, str]]]:
    """A linear axis' ends and its ticks: from zero in round steps."""
    rough = max(high, 1e-9) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * 0.999)
    top = max(high * 1.08, 1e-9)
    count = math.floor(top / step + 1e-9)
    return min(0.0, low), top, [(k * step, _written(k * step)) for k in range(count + 1)]


def _log_ticks(low: float, high: float) -> tuple[float, float, list[tuple[float, str]]]:
    """A logarithmic axis' ends, little beyond the values, and its ticks: 1, 2 and 5 times the powers of ten,
    or the powers alone where those are too many. There are at least two.
    """
    room = max((high / low) ** 0.06, 1.1)
    low, high = low / room, high * room
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [m * 10.0**e for e in powers for m in (1, 2, 5)]
    inside = [value for value in steps if low <= value <= high]
    if len(inside) < 2:
        low = max((value for value in steps if value <= low), default=low)
        high = min((value for value in steps if value >= high), default=high)
        inside = [value for value in steps if low <= value <= high]
    if len(inside) > _MOST_TICKS:
        inside = [value for value in inside if math.isclose(math.log10(value) % 1, 0, abs_tol=1e-9)]
    return low, high, [(value, _written(value)) for value in inside]


def _written(value: float) -> str:
    return f"{float(f'{value:.6g}'):,.12g}"


def _named(
    drawn: dict[int, list[tuple[float, float]]], names: Sequence[str]
) -> tuple[list[tuple[int, float, float]], str]:
    """Where the names of curves stand, and the lines that lead to those that had to move away.

    Curves that reach the right end are named in a column there, in the order of their ends. Curves that end
    together before are named beside their ends, in that order too, as near as no name and few lines are in
    the way.
    """
    if len(drawn) < 2:
        return [], ""
    ends = {j: points[-1] for j, points in drawn.items()}
    last = max(px for px, _ in ends.values())
    column = sorted((py, j) for j, (px, py) in ends.items() if px > last - _NEAR)
    placed = {
        j: (last + 16, y)
        for (_, j), y in zip(column, spread([py for py, _ in column], APART, TOP, BOTTOM), strict=True)
    }
    inked = [spot for points in drawn.values() for spot in _inked(points)]
    early = sorted((*end, j) for j, end in ends.items() if j not in placed)
    while early:
        group = [end for end in early if end[0] <= early[0][0] + _NEAR]
        early = early[len(group) :]
        at, wide = (
            group[-1][0] + (14 if len(group) > 1 else 8),
            [_LETTER * len(names[j]) for _, _, j in group],
        )
        group.sort(key=lambda end: end[1])
        under = [y for x, y in inked if at - 2 < x < at + 2 + max(wide)]
        beside = [
            y
            for k, (x, y) in placed.items()
            if x < at + 4 + max(wide) and at < x + 8 + _LETTER * len(names[k])
        ]
        wanted = [py for _, py, _ in group]

        def moved(by: float, wanted: list[float] = wanted) -> list[float]:
            return spread([y + by for y in wanted], APART, TOP, BOTTOM - 4)

        def cost(
            by: float,
            wanted: list[float] = wanted,
            under: list[float] = under,
            beside: list[float] = beside,
            moved: Callable[[float], list[float]] = moved,
        ) -> float:
            found = moved(by)
            hit = sum(abs(at - y) < 6 for y in found for at in under)
            met = sum(abs(at - y) < APART for y in found for at in beside)
            return (
                100 * met
                + (4 if len(found) == 1 else 1) * hit
                + sum(abs(y - py) for y, py in zip(found, wanted, strict=True))
            )

        best = moved(min((sign * d for d in range(0, 90, 3) for sign in (-1, 1)), key=cost))
        placed |= {j: (at, y) for (_, _, j), y in zip(group, best, strict=True)}
    leaders = "".join(
        f"M{short(px + 3)} {short(py)}L{short(placed[j][0] - 2)} {short(placed[j][1])}"
        for j, (px, py) in ends.items()
        if abs(placed[j][1] - py) > 4
    )
    return [(j, short(x), short(y + 3)) for j, (x, y) in sorted(placed.items())], leaders


def _told_name(
    told: list[tuple[float, float]],
    curve: list[tuple[float, float]],
    roofs: Sequence[float],
    named: Sequence[tuple[int, float, float]],
    names: Sequence[str],
) -> tuple[float, float]:
    """Where the curve of predictions `told` is named: along it, above or below, where the least is in the way
    of the lines, of the values beside the points of its `curve`, and of other names.
    """
    wide = _LETTER * len(PREDICTED)
    spots = [*_inked(told), *_inked(curve)]
    boxes: list[
        tuple[float, float, float, float, int]
    ]  # from x to x, from y to y, and what meeting one costs
    boxes = [(LEFT + 4, LEFT + 160, roof - 14, roof - 3, 100) for roof in set(roofs)]
    boxes += [(LEFT, RIGHT, roof - 1, roof + 1, 12) for roof in set(roofs)]
    boxes += [(x, x + _LETTER * len(names[j]), y - 8, y + 1, 60) for j, x, y in named]
    boxes += [(min(max(px - 38, LEFT), RIGHT - 90), px + 38, py - 23, py - 6, 15) for px, py in curve]

    def cost(at: tuple[float, float]) -> float:
        x, y = at
        hit = sum(x - 3 < px < x + wide + 3 and y - 11 < py < y + 4 for px, py in spots)
        met = sum(
            weight
            for x0, x1, y0, y1, weight in boxes
            if x < x1 and x0 < x + wide and y - 8 < y1 and y0 < y + 2
        )
        return 4 * hit + met + 0.01 * x + (1000 if not TOP - 4 <= y - 8 < y <= BOTTOM - 2 else 0)

    if len(told) == 1:
        spots += [(told[0][0] + by, told[0][1]) for by in range(-8, 9, 4)]
    tried = [(told[0][0] - 12 - wide, told[0][1] + 3)] if len(told) == 1 else []
    tried += [(min(px, RIGHT - wide - 2), py + dy) for px, py in _inked(told)[::2] for dy in (-6, 13)]
    x, y = min(tried, key=cost)
    return short(x), short(y)


def _inked(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spots along a curve, some drawing units apart."""
    spots = list(points[-1:])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 5))
        spots += [(x0 + (x1 - x0) * k / count, y0 + (y1 - y0) * k / count) for k in range(count)]
    return spots
