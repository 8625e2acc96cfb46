"""Who holds the outputs of a block's queries: columns dealt to warps or warpgroups, and the registers that
each thread needs for its share.

Rows, slices and threads come from the rungs' sources and launch rules.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflab.errors import UsageError
from rooflab.ops import Rung, attention
from rooflab.ops.attention_tiles import tile_of
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, NONE, Canvas, Drawing, shade, single
from rooflab.words import counted

MOST = 255  # registers that a thread may have
_ARCH = "90"
_WARP, _WARPGROUP = ("warp", 32), ("warpgroup", 128)


class Share(NamedTuple):
    """How a rung deals a head's columns: queries that share them, slices, who holds one and its threads."""

    rung: Rung
    queries: int
    slices: int
    holder: str
    threads: int
    scorers: int  # warpgroups before them that only make scores
    producers: int  # warpgroups before them that only copy

    def registers(self, width: int) -> int:
        """FP32 registers a thread for its outputs, of heads `width` wide."""
        return self.queries * width // self.slices // self.threads


def share_of(name: str, width: int, text: str | None = None) -> Share:
    """How a rung divides heads `width` wide, read from its source: slices of HEAD_DIM, and the query rows of
    the warp or warpgroup that holds a slice, where a block has several groups those of one. `text` replaces
    the source. UsageError for a source without a constant QUERIES or ROWS.
    """
    rung = next(each for each in attention.LADDERS["attention"] if each.name == name)
    text = rung.path.read_text(encoding="utf-8") if text is None else text
    rows = re.search(r"constexpr int (?:\w+ = \d+, )?(?:QUERIES|ROWS) = (\d+)", text)
    if not rows:
        raise UsageError(f"{name} has no constant QUERIES or ROWS.")
    each = re.search(r"\bfirst \+ (\d+) (\* TALL )?\* group\b", text)
    queries = int((each or rows)[1])
    queries *= tile_of(rung, width, _ARCH)["TALL"] if each and each[2] else 1
    divided = re.search(r"\b(?:WIDTH|HALF) = HEAD_DIM / (SLICES|\d+)", text)
    by = divided[1] if divided else "1"
    slices = tile_of(rung, width, _ARCH)[by] if by == "SLICES" else int(by)
    holder, threads = _WARPGROUP if "wgmma" in text else _WARP
    scorers = 1 if re.search(r"one warpgroup scores", rung.idea) else 0
    producers = 1 if re.search(r"\bPRODUCER_THREADS = 128\b", text) else 0
    return Share(rung, queries, slices, holder, threads, scorers, producers)


def operands_kept(share: Share, width: int) -> tuple[int, int] | None:
    """Registers a thread that a warpgroup which makes scores has for its queries and for a tile's scores;
    None for a source that keeps no queries in registers.
    """
    text = share.rung.path.read_text(encoding="utf-8")
    left_out = re.search(r"\bREGISTER_STEPS = STEPS - (\d+)", text)
    keys = re.search(r"\bKEYS = (\d+)", text)
    if not left_out or not keys:
        return None
    return 4 * (width // 16 - int(left_out[1])), share.queries * int(keys[1]) // share.threads


def holders(
    width: int,
    names: tuple[str, ...] = (
        "7_mma_32_rows",
        "8_head_dim_slices",
        "10_paired_warpgroups",
        "12_warp_specialised",
    ),
) -> Drawing:
    """Of rungs, the outputs of the queries that are worked on together: who holds which columns, and how many
    registers a thread that takes.
    """
    canvas, left, wide, y, said = Canvas(), 96.0, 300.0, 0.0, []
    canvas.text(left, y + 12, f"outputs of some queries, {width} columns", svg.SMALL)
    canvas.text(left + wide + 12, y + 12, "registers a thread", svg.SMALL)
    y += 20
    for name in names:
        share = share_of(name, width)
        each, tall = share.registers(width), 30.0 if share.queries < 64 else 46.0
        number = name.partition("_")[0]
        canvas.text(0, y + 14, f"rung {number}", bold=True)
        canvas.text(0, y + 28, f"{share.queries} queries", svg.SMALL)
        part, scorer = wide / share.slices, ""
        fits = each < MOST
        for k in range(share.slices):
            columns, x, fill = width // share.slices, left + k * part, shade(8 * k) if fits else GREY
            label = f"{share.holder} {k + share.scorers + share.producers}"
            if tall < 40:
                canvas.cell(x, y, part, tall, label, fill, 12)
                continue
            canvas.rect(x, y, part, tall, fill)
            canvas.text(x + part / 2, y + tall / 2 - 3, label, 12, "middle", svg.on(fill))
            span = f"columns {k * columns} to {(k + 1) * columns - 1}"
            canvas.text(x + part / 2, y + tall / 2 + 12, span, svg.SMALL, "middle", svg.on(fill))
        words = f"{each}: fits" if fits else f"{each}: more than {MOST}"
        division = f"{share.queries} × {width // share.slices} ÷ {share.threads} threads"
        canvas.text(left + wide + 12, y + 15, words, svg.TEXT, bold=True)
        canvas.text(left + wide + 12, y + 30, division, svg.SMALL)
        y += tall
        if fits and share.scorers + share.producers:
            does, fill = (
                ("the scores of these queries", AMBER) if share.scorers else ("only copies tiles", NONE)
            )
            canvas.cell(left, y + 4, wide, 22, f"{share.holder} 0: {does}", fill, 12)
            kept = operands_kept(share, width) if share.scorers else None
            if kept:
                words = f"{kept[0]} of queries, {kept[1]} of scores"
                canvas.text(left + wide + 12, y + 19, f"{kept[0]} of Q, {kept[1]} of scores", svg.SMALL)
                scorer = f"; its {share.holder} 0 has {words}"
            y += 26
        y += 14
        who = counted(share.slices, share.holder)
        beside = ", beside one that only copies" if share.producers else ""
        said.append(
            f"in rung {number} by {who}{beside}, {share.queries} queries, {each} registers a thread{scorer}"
        )
    says = f"{width} columns of outputs are held {'; '.join(said)}. A thread has at most {MOST}."
    return single(f"Who holds {width} columns of outputs", says, canvas)


def partial_scores(width: int, name: str = "8_head_dim_slices") -> Drawing:
    """How the warps that share queries work on one tile of keys: partial scores of each slice, their sum and
    the softmax, each warp some of the queries, and outputs of each slice. UsageError for a rung without
    slices.
    """
    share = share_of(name, width)
    if share.slices < 2:
        raise UsageError(f"{name} has no slices {width} wide.")
    canvas, left, wide, tall = Canvas(), 126.0, 420.0, 34.0
    part, columns, queries = wide / share.slices, width // share.slices, share.queries // share.slices
    spans = [(k * columns, (k + 1) * columns - 1) for k in range(share.slices)]
    rows = [
        ("1. columns of Q, K", [f"{a} to {b}" for a, b in spans]),
        ("2. Q times K", [f"partial scores {k + share.producers}" for k in range(share.slices)]),
        ("3. sum, softmax", [f"P of {queries} queries" for _ in spans]),
        ("4. P times V", [f"O: {a} to {b}" for a, b in spans]),
    ]
    between = [
        "",
        "partial scores of the others' queries, through shared memory",
        "all of P, through shared memory",
    ]
    for k in range(share.slices):
        who = f"{share.holder} {k + share.producers}"
        canvas.text(left + (k + 0.5) * part, 12, who, svg.SMALL, "middle", bold=True)
    y = 20.0
    for step, (label, cells) in enumerate(rows):
        canvas.text(0, y + 21, label, svg.SMALL)
        for k, text in enumerate(cells):
            canvas.cell(left + k * part, y, part, tall, text, AMBER if step == 2 else shade(8 * k), 12)
        y += tall
        said = between[step] if step < len(between) else ""
        if said:
            canvas.line([(left + 12, y + 3), (left + 12, y + 25)], end="arrow")
            canvas.line([(left + wide - 12, y + 3), (left + wide - 12, y + 25)], end="arrow")
            canvas.text(left + wide / 2, y + 18, said, svg.SMALL, "middle")
            y += 28
        elif step == 0:
            y += 4
    groups = tile_of(share.rung, width, _ARCH).get("GROUPS", 1)
    warps = counted(share.slices, share.holder)
    of = f"{counted(groups, 'such group')} of {warps}" if groups > 1 else warps
    size = f"a block: {of}{' and one that only copies' * share.producers}, "
    size += f"{counted(groups * share.queries, 'query', 'queries')}, "
    size += f"{(groups * share.slices + share.producers) * share.threads} threads"
    canvas.text(left + wide / 2, y + 18, size, svg.SMALL, "middle")
    says = f"For {share.queries} queries and a tile of keys {counted(share.slices, share.holder)} multiply "
    says += (
        f"{columns} columns each, which gives partial scores; each adds up those of {queries} queries and "
    )
    says += f"takes their softmax P; then each multiplies all of P with its {columns} columns of the values."
    says += f" In {size}."
    return single(f"Rung {name.partition('_')[0]}, one tile of keys, {width} wide", says, canvas)
