"""Pictures of one request: which lane of a warp touches which 32-byte sector, and which bank.

    lanes.show(lanes.typed("lane * 4096", width=4))                 # a mapping that a reader types
    lanes.show(lanes.watched(seen, "load", "a"))                    # from a kernel watched on the CPU
    lanes.show(lanes.recorded(traces.read("gemv").iloc[0]))         # from a recorded trace
    lanes.show(lanes.typed("lane * 33 * 4"), "banks")               # the same for shared memory

Global memory moves whole sectors of 32 bytes between L2 and an SM: what lies in a touched sector and is not
asked for is moved for nothing. Shared memory has 32 banks, each of which gives one 4-byte word a turn.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.view import plot

SECTOR, BANKS, WARP = 32, 32, 32
MOST_ROWS = 32  # of a picture


@dataclass(frozen=True)
class Request:
    """What the lanes of a warp ask for at once: `places` gives the first byte of each lane (None for a lane
    that takes no part), counted from the buffer's start, and every lane takes `width` bytes. `what` is its
    name in captions.
    """

    places: tuple[int | None, ...]
    width: int
    what: str

    def __post_init__(self) -> None:
        if not 0 < len(self.places) <= WARP or self.width not in (1, 2, 4, 8, 16):
            raise UsageError(f"A request has up to {WARP} lanes of 1, 2, 4, 8 or 16 bytes each.")
        if any(place is not None and place < 0 for place in self.places):
            raise UsageError("A lane's place is counted from the start of its buffer: it is not below 0.")

    def taking_part(self) -> dict[int, int]:
        """Lane -> its first byte."""
        return {lane: place for lane, place in enumerate(self.places) if place is not None}

    def sectors(self) -> list[int]:
        """The sectors that are touched, by their numbers from the buffer's start."""
        bytes_ = {byte for place in self.taking_part().values() for byte in (place, place + self.width - 1)}
        return sorted({byte // SECTOR for byte in bytes_})

    def bytes_used(self) -> int:
        """Distinct bytes that were asked for."""
        return len({place + k for place in self.taking_part().values() for k in range(self.width)})

    def turns(self) -> list[dict[int, list[int]]]:
        """The turns that shared memory takes, each as bank -> lanes served. Lanes that want the same word of
        a bank share a turn; accesses of 8 and 16 bytes are served for 16 and 8 lanes at a time.
        """
        words = max(1, self.width // 4)
        parts: dict[int, dict[int, dict[int, list[int]]]] = {}  # part -> bank -> word -> lanes
        for lane, place in self.taking_part().items():
            for word in range(place // 4, place // 4 + words):
                bank = parts.setdefault(lane * words // WARP, {}).setdefault(word % BANKS, {})
                bank.setdefault(word, []).append(lane)
        found: list[dict[int, list[int]]] = []
        for part in parts.values():
            depth = max(len(bank) for bank in part.values())
            queues = {bank: list(wanted.values()) for bank, wanted in part.items()}
            found += [
                {bank: queue[turn] for bank, queue in queues.items() if turn < len(queue)}
                for turn in range(depth)
            ]
        return found

    def conflicts(self) -> int:
        """Turns beyond those that the width of the access needs."""
        words = max(1, self.width // 4)
        return len(self.turns()) - len({lane * words // WARP for lane in self.taking_part()})


# --- where requests come from -------------------------------------------------------------------------------

_OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
}


def typed(mapping: str | Callable[[int], int | None], width: int = 4, **sizes: int) -> Request:
    """A request from a mapping of lanes to bytes: a function of the lane, or an expression as CUDA has it,
    such as "lane / 8 * n * 4 + lane % 8 * 16", over `lane` (or threadIdx.x) and the `sizes` given (n=4096).
    """
    if not isinstance(mapping, str):
        return Request(tuple(mapping(lane) for lane in range(WARP)), width, "a mapping")
    text = re.sub(r"threadIdx\s*\.\s*x", "lane", mapping)
    text = re.sub(r"(?<!/)/(?!/)", "//", text)  # C divides whole numbers without a remainder
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        places = tuple(_value(tree, {**sizes, "lane": lane}) for lane in range(WARP))
    except (SyntaxError, ZeroDivisionError, ValueError, OverflowError) as error:
        raise UsageError(f"{mapping!r} is no mapping of lanes to bytes: {error}.") from None
    return Request(places, width, mapping)


def _value(node: ast.AST, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        raise UsageError(f"The mapping speaks of {node.id}, which is none of {', '.join(sorted(names))}.")
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        shift = isinstance(node.op, ast.LShift | ast.RShift)
        if abs(left) > 1 << 48 or abs(right) > (40 if shift else 1 << 48):
            raise ValueError("its numbers are too large")
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("it is made of whole numbers, lane, + - * / % << >> & | ^ and brackets")


def watched(
    seen: Any, access: str = "load", buffer: str = "", *, block: int = 0, warp: int = 0, request: int = 0
) -> Request:
    """One request that a simt.Watch saw: the `request`-th that this warp made from the first line that
    accesses `buffer` so ("load", "store", "atomic"); the buffer "" is shared memory.
    """
    rows = seen.accesses()
    rows = rows[(rows["access"] == access) & (rows["block"] == block) & (rows["warp"] == warp)]
    rows = rows[rows["buffer"] == (buffer or "shared")]
    rows = rows[rows["place"] == rows["place"].min()] if len(rows) else rows
    rows = rows[rows["request"] == request]
    if rows.empty:
        raise UsageError(
            f"Warp {warp} of block {block} made no such {access} of {buffer or 'shared memory'}."
        )
    return of_accesses(rows, f"{access} of {buffer or 'shared memory'} ({rows['line'].iloc[0]})")


def of_accesses(rows: pd.DataFrame, what: str) -> Request:
    """The request whose lanes are the rows of simt.Watch.accesses() given."""
    places: list[int | None] = [None] * WARP
    for lane, address in zip(rows["lane"], rows["address"], strict=True):
        places[int(lane)] = int(address)
    return Request(tuple(places), int(rows["bytes"].iloc[0]), what)


def recorded(row: Mapping[str, Any] | pd.Series) -> Request:
    """The request of a row of a recorded trace (studies.traces.read)."""
    places = tuple(None if word == "-" else int(word) for word in str(row["addresses"]).split())
    where = row["buffer"] if row["space"] == "global" else "shared memory"
    return Request(places, int(row["bytes"]), f"{row['access']} of {where} by {row['kernel']}")


# --- pictures -----------------------------------------------------------------------------------------------


def caption(request: Request, kind: str = "sectors") -> str:
    """What the picture shows, in one sentence computed from the request."""
    taking = len(request.taking_part())
    asked = f"{request.what}: {taking} lanes, {request.width} bytes each"
    if kind == "banks":
        turns, conflicts = len(request.turns()), request.conflicts()
        more = f"{conflicts} of them bank conflicts" if conflicts else "none of them a bank conflict"
        return f"{asked}, {turns} turn{'s' * (turns != 1)} of shared memory, {more}."
    count, used = len(request.sectors()), request.bytes_used()
    return (
        f"{asked}, {used} bytes in {count} sector{'s' * (count != 1)}: "
        f"{used / (SECTOR * count):.1%} of the {SECTOR * count} bytes moved are used."
    )


def figure(request: Request, kind: str = "sectors") -> Figure:
    """The picture: a row a sector, 32 bytes wide ("sectors"), or a row a turn, 32 banks wide ("banks"); the
    numbers in the cells are lanes.
    """
    if kind == "sectors":
        return _sector_figure(request)
    if kind == "banks":
        return _bank_figure(request)
    raise UsageError(f'A picture is of "sectors" or of "banks", not of {kind!r}.')


def show(request: Request, kind: str = "sectors") -> None:
    """Display the picture, with its caption under it."""
    plot.show(figure(request, kind), caption(request, kind))


def _sector_figure(request: Request) -> Figure:
    sectors = request.sectors()
    shown = sectors[:MOST_ROWS]
    title = _title(request, len(shown), len(sectors), "sectors")
    fig, ax = plot.figure("byte of the sector", "", title, height=0.9 + 0.19 * len(shown))
    at: dict[tuple[int, int], list[int]] = {}  # (first byte, bytes) -> lanes
    for lane, place in request.taking_part().items():
        at.setdefault((place, request.width), []).append(lane)
    row_of = {sector: row for row, sector in enumerate(shown)}
    for row in range(len(shown)):
        _cell(ax, 0, row, SECTOR, "", "#EFEFEF")  # moved for nothing, where no lane covers it
    for (place, width), who in at.items():
        while width:  # a piece for each sector it lies in
            piece = min(width, SECTOR - place % SECTOR)
            if place // SECTOR in row_of:
                _cell(ax, place % SECTOR, row_of[place // SECTOR], piece, _names(who), _shade(who[0]))
            place, width = place + piece, width - piece
    for row, (before, after) in enumerate(zip(shown, shown[1:], strict=False)):
        if after != before + 1:  # what lies between is not touched
            ax.plot(
                [0, SECTOR], [row + 0.5] * 2, color=plot.ROOF_COLOUR, linewidth=0.9, linestyle=(0, (2, 2))
            )
    _finish(ax, SECTOR, [f"{sector * SECTOR}" for sector in shown], "first byte", range(0, SECTOR + 1, 4))
    return fig


def _bank_figure(request: Request) -> Figure:
    turns = request.turns()
    shown = turns[:MOST_ROWS]
    title = _title(request, len(shown), len(turns), "turns")
    fig, ax = plot.figure("bank", "", title, height=0.9 + 0.19 * len(shown))
    for row, turn in enumerate(shown):
        for bank in range(BANKS):
            who = turn.get(bank, [])
            _cell(ax, bank, row, 1, _names(who), _shade(who[0]) if who else "white")
    _finish(ax, BANKS, [str(k + 1) for k in range(len(shown))], "turn", range(0, BANKS, 4), 0.5)
    return fig


def _title(request: Request, shown: int, count: int, things: str) -> str:
    what = request.what if len(request.what) < 60 else request.what[:57] + "..."
    return what if shown == count else f"{what} (the first {shown} of {count} {things})"


def _cell(ax: Any, left: float, row: int, width: float, text: str, colour: str) -> None:
    ax.barh(row, width, 0.86, left, color=colour, edgecolor="#888888", linewidth=0.5, zorder=2)
    if text:
        size = 6.5 if len(text) < 4 * width + 1 else 4.5
        ax.text(left + width / 2, row, text, ha="center", va="center_baseline", fontsize=size, zorder=3)


def _finish(
    ax: Any, width: int, rows: Sequence[str], name: str, ticks: Sequence[int], shift: float = 0.0
) -> None:
    ax.grid(False)
    ax.set_xlim(0, width)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks([tick + shift for tick in ticks], [str(tick) for tick in ticks])
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    ax.set_ylabel(name)


def _shade(lane: int) -> str:
    """Light to dark with the lane's number, so that the order is seen in grey too."""
    light = np.array((0xDE, 0xEC, 0xF7)) * (1 - lane / 44) + np.array((0x4C, 0x8C, 0xBF)) * (lane / 44)
    return "#" + "".join(f"{int(part):02x}" for part in light)


def _names(who: Sequence[int]) -> str:
    """Such as "3", "0-31" or "0 4 8 ..." for lanes in order."""
    if len(who) > 2 and list(who) == list(range(who[0], who[-1] + 1)):
        return f"{who[0]}-{who[-1]}"
    return " ".join(map(str, who[:3])) + (" ..." if len(who) > 3 else "")
