"""What crosses a link, in order, before a GPU has the sum: read off the source of each all-reduce."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rooflab.ops import Rung, all_reduce
from rooflab.studies import links
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, PALE, SKY, WHITE, Canvas, Drawing, single
from rooflab.words import counted

Leg = tuple[bool, str]  # whether it goes to this GPU, and what it carries
_CARRIES = (
    (r"store_pair_system\(reinterpret_cast<ulonglong2\*>\(mail\.of\[r\]\)", (True, "words and round")),
    (r"if \(r != rank &&.*mail\.of\[r\]\)\[slot .*= mine", (True, "words")),
    (r"store_release_system\(.*mail\.of\[r\]", (True, "flag")),
    (r"__ldcg\(reinterpret_cast<const uint4\*>\(mail\.of\[r\]\)", (False, "load")),
)


def legs(rung: Rung) -> list[Leg]:
    """What one GPU waits for, crossing by crossing, in the order of the source; a load brings words back."""
    text = rung.path.read_text()
    found = [(match.start(), leg) for pattern, leg in _CARRIES for match in re.finditer(pattern, text)]
    told: list[Leg] = []
    for _, leg in sorted(found):
        told += [leg, (True, "words")] if leg[1] == "load" else [leg]
    return told


def crossings() -> Drawing:
    """Every rung's way to the sum, as GPU 1 sees it, a crossing a step."""
    canvas, left, y, said = Canvas(), 150.0, 0.0, []
    ladder = all_reduce.LADDERS["all_reduce"]
    step = (svg.WIDTH - left - 60) / max(links.crossings("all_reduce", rung.name) for rung in ladder)
    for rung in ladder:
        way, x = legs(rung), left
        canvas.text(0, y + 30, rung.name, bold=True)
        for lane, name in ((y + 10, "GPU 0"), (y + 52, "GPU 1")):
            canvas.text(left - 52, lane + 5, name, svg.SMALL)
            canvas.line([(left, lane), (svg.WIDTH - 50, lane)], 0.6, dashed=True)
        for towards, carries in way:
            ends = (y + 12, y + 50) if towards else (y + 50, y + 12)
            canvas.line([(x, ends[0]), (x + step - 6, ends[1])], 1.6, end="arrow")
            fill = AMBER if "words" in carries else SKY if carries == "flag" else PALE
            wide = svg.wide(carries, svg.SMALL) + 10
            canvas.cell(x + step / 2 - wide / 2, y + 23, wide, 16, carries, fill)
            x += step
        canvas.cell(x - 2, y + 43, 46, 18, "sum", AMBER)
        said.append(f"{rung.name}: {len(way)} crossings ({', '.join(what for _, what in way)})")
        y += 82
    says = f"What GPU 1 waits for before it can sum. {'; '.join(said)}."
    return single("Crossings until GPU 1 has the sum", says, canvas)


def in_a_row(
    ways: Sequence[tuple[str, int]],
    carries: Mapping[str, Sequence[str]] | None = None,
    guessed: bool = False,
) -> Drawing:
    """The crossings that follow each other of each of the `ways`, (name, how many), as GPU 1 waits for them:
    the last one brings it what it waits for. `carries` says what each crossing of a way brings; a way that it
    lacks is a guess, and dashed, as all are where they are `guessed`.
    """
    canvas, left, y, said, known = (
        Canvas(),
        66.0 + max(svg.wide(name, svg.TEXT - 1) for name, _ in ways),
        0.0,
        [],
        carries or {},
    )
    step = (svg.WIDTH - left - 60) / max(count for _, count in ways)
    for name, count in ways:
        guess = "" if name in known and not guessed else ", a guess"
        canvas.text(0, y + (24 if guess else 34), name, svg.TEXT - 1)
        canvas.text(0, y + 40, guess.removeprefix(", "), svg.SMALL)
        for lane, gpu in ((y + 8, "GPU 0"), (y + 52, "GPU 1")):
            canvas.text(left - 46, lane + 4, gpu, svg.SMALL)
            canvas.line([(left, lane), (svg.WIDTH - 50, lane)], 0.6)
        for k in range(count):
            towards = (count - k) % 2 == 1
            ends = (y + 10, y + 50) if towards else (y + 50, y + 10)
            line = [(left + k * step, ends[0]), (left + (k + 1) * step - 6, ends[1])]
            canvas.line(line, 1.6, dashed=bool(guess), end="arrow")
            if name in known:
                what = known[name][k]
                wide = svg.wide(what, svg.SMALL) + 8
                canvas.cell(left + (k + 0.5) * step - 3 - wide / 2, y + 22, wide, 15, what, PALE)
        canvas.cell(left + count * step - 2, y + 43, 46, 18, "there", AMBER)
        what = f" ({', '.join(known[name])})" if name in known else ""
        said.append(f"{name}: {counted(count, 'crossing')}{what}{guess}")
        y += 74
    return single("Crossings that follow each other", f"{'; '.join(said)}.", canvas)


def shots() -> Drawing:
    """A sum over two GPUs in one shot and in two: what each has, sends and ends with, half by half."""
    canvas, y, said = Canvas(), 0.0, []
    ways = (
        ("One shot: each sends all, each sums all", ((("a0", "b0"), ("a1", "b1")), (("A", "B"), ("A", "B")))),
        (
            "Two shots: each sums a half, then sends the sum",
            ((("a0", "b0"), ("a1", "b1")), (("A", ""), ("", "B")), (("A", "B"), ("A", "B"))),
        ),
    )
    for name, states in ways:
        canvas.text(0, y + 12, name, bold=True)
        for gpu in (0, 1):
            canvas.text(0, y + 38 + 34 * gpu, f"GPU {gpu}", svg.SMALL)
        for k, state in enumerate(states):
            x = 52.0 + 176 * k
            for gpu, halves in enumerate(state):
                for h, half in enumerate(halves):
                    fill = AMBER if half.isupper() else SKY if half else svg.NONE
                    canvas.cell(x + 46 * h, y + 22 + 34 * gpu, 44, 24, half, fill)
            if k + 1 < len(states):
                for ends in ((y + 36, y + 66), (y + 66, y + 36)):
                    canvas.line([(x + 100, ends[0]), (x + 168, ends[1])], 1.6, end="arrow")
        said.append(f"{name}: {counted(len(states) - 1, 'exchange')}")
        y += 98
    canvas.text(
        0, y + 6, "A = a0 + a1 and B = b0 + b1. With two GPUs both ways send as many bytes.", svg.SMALL
    )
    return single("A sum in one shot and in two", f"{'; '.join(said)}.", canvas)


def handed_on() -> Drawing:
    """How a block gets a number from another: past a barrier, and in a word that carries its own flag."""
    ways = (
        ("grid barrier", ("store the number", "count the arrival", "read the counter", "load the number")),
        ("flag in the data", ("store it with a flag", "read until the flag is set")),
    )
    canvas, left, wide, y, said = Canvas(), 126.0, 110.0, 0.0, []
    for name, trips in ways:
        canvas.text(0, y + 21, name, bold=True)
        for k, trip in enumerate(trips):
            first, middle, last = trip.partition(" until ")
            x, fill = left + k * wide, GREY if trip.startswith(("store", "count")) else WHITE
            canvas.rect(x, y, wide - 8, 34, fill)
            for line, text in enumerate([first + middle.rstrip(), last] if middle else [trip]):
                at = y + (14 if middle else 21) + 13 * line
                canvas.text(x + (wide - 8) / 2, at, text, svg.SMALL, "middle", svg.on(fill))
        said.append(f"{name}: {', '.join(trips)}, {len(trips)} trips to L2")
        canvas.text(left, y + 48, f"{len(trips)} trips to L2, one after the other")
        y += 62
    canvas.cell(left, y, 14, 12, "", GREY)
    canvas.text(left + 20, y + 10, "the block that computed it")
    canvas.cell(left + 210, y, 14, 12, "", WHITE)
    canvas.text(left + 230, y + 10, "the block that needs it")
    return single("From one block to another, between two phases", f"{'; '.join(said)}.", canvas)
