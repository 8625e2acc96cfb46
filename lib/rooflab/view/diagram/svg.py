"""Drawings as SVG text: shapes on a canvas, one picture or frames to step through, shown in a notebook.

A drawing is written here, digit for digit the same on every machine, so that a notebook's check compares it
as text. Free text and lines take the ink of what is around them (`currentColor`); a cell's fill is light or
dark whatever the page is, and its text is set for the fill. Lightness alone tells fills apart, so a drawing
reads in grey.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from IPython.display import display

from rooflab.errors import UsageError

WIDTH = 560  # of a drawing, in units that are pixels where there is room
INK = "#1A1A1A"
# From light to dark; a reader tells them apart in grey.
PALE, SKY, AMBER, BLUE = "#E4EEF7", "#A9D0EE", "#E8A33D", "#1F6CA8"
GREY, WHITE, NONE = "#D4D4D4", "#FFFFFF", "none"
FONT = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"
TEXT, SMALL = 13.0, 11.0
LANES = 32
# Neighbouring texts that differ in nothing but their places and words.
_ALIKE = re.compile(
    r'<text x="[^"]*" y="[^"]*"( [^>]+)>[^<]*</text>(?:<text x="[^"]*" y="[^"]*"\1>[^<]*</text>)+'
)


def shade(lane: int, lanes: int = LANES) -> str:
    """The fill of a lane: light to dark with its number, so that the order is seen in grey too."""
    share = lane / max(1, lanes - 1)
    ends = ((0xE8, 0x4C), (0xF1, 0x8C), (0xFA, 0xC4))
    return "#" + "".join(f"{round(light + (dark - light) * share):02X}" for light, dark in ends)


def on(fill: str) -> str:
    """The ink for text on a fill."""
    if fill == NONE:
        return "currentColor"
    red, green, blue = (int(fill[k : k + 2], 16) for k in (1, 3, 5))
    return WHITE if 0.3 * red + 0.59 * green + 0.11 * blue < 125 else INK


def _edge(fill: str) -> str:
    """The ink of a cell's edge: the fill stays as it is on a dark page, and so does its edge."""
    return "currentColor" if fill == NONE else "#444"


def short(value: float) -> str:
    """A coordinate, rounded to a tenth."""
    return f"{round(value, 1):g}"


class Canvas:
    """Shapes in the order in which they are drawn; `height` grows with them."""

    def __init__(self, width: float = WIDTH):
        self.width, self.height = width, 0.0
        self._parts: list[str] = []

    def _add(self, part: str, bottom: float) -> None:
        self._parts.append(part)
        self.height = max(self.height, bottom)

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", line: float = 0.5
    ) -> None:
        """A rectangle with a thin edge; `line` 0 leaves the edge out."""
        edge = f' stroke="{_edge(fill)}" stroke-width="{line:g}"' if line else ""
        self._add(
            f'<rect x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}" '
            f'fill="{fill}"{edge}/>',
            y + height,
        )

    def cell(
        self, x: float, y: float, width: float, height: float, text: str, fill: str, size: float = SMALL
    ) -> None:
        """A rectangle with a text in its middle, which is left out where it has no room."""
        self.rect(x, y, width, height, fill)
        while text and size > 7 and wide(text, size) > width - 1:
            size -= 1
        if text and wide(text, size) <= width + 1 and size <= height + 1:
            self.text(x + width / 2, y + height / 2 + 0.36 * size, text, size, "middle", on(fill))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = TEXT,
        anchor: str = "start",
        fill: str = "currentColor",
        bold: bool = False,
    ) -> None:
        """A line of text with its baseline at y."""
        weight = ' font-weight="bold"' if bold else ""
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        large = f' font-size="{size:g}"' if size != SMALL else ""  # what the root says is not said again
        ink = f' fill="{fill}"' if fill != "currentColor" else ""
        self._add(
            f'<text x="{short(x)}" y="{short(y)}"{large}{ink}{at}{weight}>{escape(text, quote=False)}</text>',
            y + 0.3 * size,
        )

    def line(
        self, points: Sequence[tuple[float, float]], width: float = 1.0, dashed: bool = False, end: str = ""
    ) -> None:
        """A line through points; `end` "arrow" gives it a head."""
        path = "L".join(f"{short(x)} {short(y)}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._add(
            f'<path d="M{path}" fill="none" stroke="currentColor" stroke-width="{width:g}"{dash}/>',
            max(y for _, y in points),
        )
        if end == "arrow":
            self._head(points[-2], points[-1])

    def _head(self, before: tuple[float, float], tip: tuple[float, float]) -> None:
        dx, dy = tip[0] - before[0], tip[1] - before[1]
        length = (dx * dx + dy * dy) ** 0.5 or 1.0
        dx, dy = 7 * dx / length, 7 * dy / length
        left = (tip[0] - dx - dy / 2, tip[1] - dy + dx / 2)
        right = (tip[0] - dx + dy / 2, tip[1] - dy - dx / 2)
        path = "L".join(f"{short(x)} {short(y)}" for x, y in (tip, left, right))
        self._add(f'<path d="M{path}z" fill="currentColor"/>', tip[1])

    def cells(
        self, places: Iterable[tuple[float, float]], width: float, height: float, fill: str, line: float = 0.4
    ) -> None:
        """Equal rectangles of one fill, in one path: a tenth of the bytes of single ones."""
        at = list(places)
        if not at:
            return
        box = f"h{short(width)}v{short(height)}h{short(-width)}z"
        path = "".join(f"M{short(x)} {short(y)}{box}" for x, y in at)
        edge = f' stroke="{_edge(fill)}" stroke-width="{line:g}"' if line else ""
        self._add(f'<path d="{path}" fill="{fill}"{edge}/>', max(y for _, y in at) + height)

    def boxes(
        self, items: Iterable[tuple[float, float, float, float, str, str]], size: float = SMALL
    ) -> None:
        """Cells (x, y, width, height, text, fill) of any size: those of one fill are one path, a third of the
        bytes of single ones; then their texts, where there is room.
        """
        at = list(items)
        for fill in dict.fromkeys(each[-1] for each in at):
            mine = [each for each in at if each[-1] == fill]
            path = "".join(
                f"M{short(x)} {short(y)}h{short(wide)}v{short(high)}h{short(-wide)}z"
                for x, y, wide, high, _, _ in mine
            )
            bottom = max(y + high for _, y, _, high, _, _ in mine)
            self._add(f'<path d="{path}" fill="{fill}" stroke="{_edge(fill)}" stroke-width="0.5"/>', bottom)
        for ink in dict.fromkeys(on(each[-1]) for each in at):
            self._parts.append(f'<g fill="{ink}">')
            for x, y, across, high, text, fill in at:
                fits = size
                while text and fits > 7 and wide(text, fits) > across - 1:
                    fits -= 1
                if on(fill) == ink and text and wide(text, fits) <= across + 1 and fits <= high + 1:
                    self.text(x + across / 2, y + high / 2 + 0.36 * fits, text, fits, "middle")
            self._parts.append("</g>")

    def grid(
        self, x: float, y: float, columns: int, rows: int, width: float, height: float, fill: str
    ) -> None:
        """A rectangle of equal cells, drawn as its lines."""
        across, down = columns * width, rows * height
        lines = "".join(f"M{short(x)} {short(y + k * height)}h{short(across)}" for k in range(rows + 1))
        lines += "".join(f"M{short(x + k * width)} {short(y)}v{short(down)}" for k in range(columns + 1))
        self.rect(x, y, across, down, fill, 0)
        edge = _edge(fill)
        self._add(f'<path d="{lines}" fill="none" stroke="{edge}" stroke-width="0.4"/>', y + down)

    def bars(self, lines: Iterable[tuple[float, float, float]], height: float, fill: str) -> None:
        """Rectangles (x, y, width) of one height and fill, in one path without edges."""
        at = [(x, y, width) for x, y, width in lines if width >= 0.05]
        if not at:
            return
        path = "".join(
            f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z" for x, y, width in at
        )
        self._add(f'<path d="{path}" fill="{fill}"/>', max(y for _, y, _ in at) + height)

    def strips(self, lines: Iterable[tuple[float, float, float]], height: float, colour: str) -> None:
        """Rectangles (x, y, width) as `bars` has them, as strokes: of many, half the bytes."""
        at = [(x, y + height / 2, width) for x, y, width in lines if width >= 0.05]
        if at:
            path = "".join(f"M{short(x)} {short(y)}h{short(width)}" for x, y, width in at)
            style = f'stroke="{colour}" stroke-width="{short(height)}" fill="none"'
            self._add(f'<path d="{path}" {style}/>', max(y for _, y, _ in at) + height / 2)

    def frame(self, x: float, y: float, width: float, height: float, line: float = 2.4) -> None:
        """A thick outline over what is drawn: what the text speaks of."""
        self._add(
            f'<rect x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}" '
            f'fill="none" stroke="{INK}" stroke-width="{line:g}"/>',
            y + height,
        )

    def place(self, other: Canvas, x: float, y: float) -> None:
        """Another canvas, with its corner at a point of this one."""
        self._add(f'<g transform="translate({short(x)} {short(y)})">{other.body()}</g>', y + other.height)

    def body(self) -> str:
        """The shapes as SVG."""
        return "".join(self._parts)


def wide(text: str, size: float) -> float:
    """About how wide a text is."""
    narrow = sum(letter in "ijltf.,:;|'!()[] " for letter in text)
    return size * (0.58 * (len(text) - narrow) + 0.33 * narrow)


@dataclass
class Drawing:
    """A picture, or frames of one to step through, with the words that say what is seen.

    `title` is above it, `says` is its alternative text, computed from what it shows. `frames` are
    (caption, canvas); the still image shows all of them, `across` side by side. `lean` says once what
    neighbouring texts share, for a page that has no room: a tenth to a fifth of a drawing's bytes less.
    """

    title: str
    says: str
    frames: list[tuple[str, Canvas]] = field(default_factory=list)
    across: int = 1
    lean: bool = False

    def svg(self) -> str:
        """The drawing as a file of its own, on white paper."""
        if not self.frames or not self.says:
            raise UsageError("A drawing has at least one frame, and words that say what is seen.")
        steps, top = len(self.frames) > 1, 30.0
        widest = max(canvas.width for _, canvas in self.frames)
        gap = 20.0
        width = self.across * widest + (self.across - 1) * gap
        parts, y = [], top
        for first in range(0, len(self.frames), self.across):
            row = self.frames[first : first + self.across]
            room = 20.0 if steps else 0.0
            for k, (caption, canvas) in enumerate(row):
                head = Canvas(widest)
                if steps:
                    head.text(0, 12, f"{first + k + 1}. {caption}", SMALL + 0.5, bold=True)
                size = f"{short(widest)} {short(canvas.height + room)}"
                parts.append(
                    f'<g class="frame" data-size="{size}" data-says="{escape(caption)}" '
                    f'transform="translate({short(8 + k * (widest + gap))} {short(y)})">{head.body()}'
                    f'<g transform="translate(0 {short(room)})">{canvas.body()}</g></g>'
                )
            y += max(canvas.height for _, canvas in row) + room + (14 if steps else 0)
        heading = Canvas(width)
        heading.text(8, 18, self.title, 14, bold=True)
        box = f"{short(width + 16)} {short(y + 8)}"
        described = "" if self.lean else f"<desc>{escape(self.says)}</desc>"  # the label has it, too
        whole = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box}" width="{short(width + 16)}" '
            f'role="img" aria-label="{escape(f"{self.title}. {self.says}")}" color="{INK}" '
            f'font-family="{FONT}" font-size="{SMALL:g}" fill="currentColor">'
            f"<title>{escape(self.title)}</title>{described}"
            f'<rect class="paper" width="100%" height="100%" fill="#FFFFFF"/>'
            f'<g class="heading">{heading.body()}</g>{"".join(parts)}</svg>'
        )
        if not self.lean:
            return whole
        return _ALIKE.sub(lambda alike: f"<g{alike[1]}>{alike[0].replace(alike[1], '')}</g>", whole)

    def html(self) -> str:
        """The drawing as an image with its alternative text, for what is written as HTML, such as a fold."""
        # An image of its own, as code hosts show it: they strip or break SVG that is written into a page.
        svg = self.svg()
        coded, words = base64.b64encode(svg.encode()).decode(), f"{self.title}. {self.says}"
        width = svg.partition(' width="')[2].partition('"')[0]
        return (
            f'<div class="rooflab-drawing"><img src="data:image/svg+xml;base64,{coded}" '
            f'alt="{escape(words)}" width="{width}" style="max-width:100%;height:auto"></div>'
        )

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": f"{self.title}. {self.says}"}

    def show(self) -> None:
        """Put the drawing on the notebook's page: an SVG image with its words as alternative text."""
        display(self._repr_mimebundle_(), raw=True)


def fold(summary: str, drawings: Iterable[Drawing]) -> None:
    """Put drawings on the notebook's page, behind one line to click."""
    shown = [drawing._repr_mimebundle_() for drawing in drawings]
    html, text = ("\n".join(each[kind] for each in shown) for kind in ("text/html", "text/plain"))
    inside = f"<details><summary>{summary}</summary>\n{html}\n</details>"
    display({"text/html": inside, "text/plain": text}, raw=True)


def single(title: str, says: str, canvas: Canvas, lean: bool = False) -> Drawing:
    """A drawing of one picture."""
    return Drawing(title, says, [("", canvas)], lean=lean)
