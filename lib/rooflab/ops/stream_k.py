"""Stream-K: standing blocks that share the steps of a last turn evenly (kernels/common/stream_k.cuh).

Which tile a shape takes, by a law of its steps, and the launch. Rungs int4/13_stream_k, mmq/8_stream_k and
mmq/9_tile_order.
"""

from __future__ import annotations

import csv
import ctypes
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rooflab.errors import LaunchError
from rooflab.ops import Rung, loaded
from rooflab.runtime import launch_cache, nvrtc

STEP = 128  # of k
AT_ONCE = 132  # blocks that run at a time, one to a multiprocessor of an H200
# The same by blocks a cluster: clusters lie in groups of 16 or 18 multiprocessors, which three and four do
# not divide.
CLUSTERS = {1: AT_ONCE, 2: 130, 3: 114, 4: 116}
LAW = Path(__file__).with_name("stream_k_law.csv")
_SHARED = 226 * 1024  # of a block, besides barriers
_MOST_STAGES = 6
_MOST_PARTS = 16  # of a tile
_BYTES_A_US = 4.25e6  # that an H200's memory brings
_MOST_SUMS = 256  # tiles of 64 rows a warpgroup, times tokens: what registers hold


class Format(NamedTuple):
    """What a format's ring holds: bytes of weights of 64 rows, numbers of k, bytes that a slot is rounded up
    to; its macro for tiles of 64 rows a warpgroup. And what the law adds for it, measured on an H200:
    microseconds in which the blocks of a divided tile exchange their sums (a fixed part, and per token of 64
    rows a warpgroup for the sums that each writes and reads, and for what it stores of them; None: blocks
    cannot divide a tile), microseconds of a last turn that is shared, and the share of a step that a block
    saves while it runs alone.
    """

    weights: int
    step: int
    rounded: int
    rows: str
    exchange: tuple[float, float, float] | None = None
    shared: float = 0.0
    alone: float = 0.0


FORMATS = {  # by a rung's operator and name
    "int4/13_stream_k": Format(4224, 128, 16, "TALL", (1.63, 0.0148, 0.0177), 1.65, 0.25),
    "mmq/8_stream_k": Format(64 * 68, 64, 1024, "ROW_TILES"),
    "mmq/9_tile_order": Format(64 * 68, 64, 16, "ROW_TILES", (1.79, 0.0142, 0.0183), 1.65, 0.25),
}


def slot_bytes(of: Format, tall: int, tokens: int) -> int:
    """Shared memory of a slot of the ring: 128 `tall` rows of weights, and activations of the tokens."""
    return math.ceil((2 * tall * of.weights + 2 * of.step * tokens) / of.rounded) * of.rounded


def way_out_bytes(tall: int) -> int:
    """Shared memory through which sums leave: 32 tokens for each of two warpgroups."""
    return 2 * 32 * (64 * tall + 8) * 2


def stages(of: Format, tall: int, tokens: int) -> int:
    """Slots of the ring that fit."""
    return min(_MOST_STAGES, (_SHARED - way_out_bytes(tall)) // slot_bytes(of, tall, tokens))


def shared_bytes(of: Format, macros: Mapping[str, int]) -> int:
    """The launch rule: dynamic shared memory."""
    tall = macros[of.rows]
    return macros["STAGES"] * slot_bytes(of, tall, macros["TOKENS"]) + way_out_bytes(tall)


def tiles_of(n: int, batch: int, tall: int, tokens: int) -> int:
    """The launch rule: tiles of y [batch, n]."""
    return math.ceil(n / (128 * tall)) * math.ceil(batch / tokens)


def launch(rung: Rung, sizes: tuple[int, int, int], arguments: list[Any], macros: Mapping[str, int]) -> None:
    """Launch a rung for sizes (n, k, batch) with `arguments` and the workspace for sums that blocks share."""
    n, k, batch = sizes
    of, blocks, sharers = FORMATS[rung.key], macros["BLOCKS"], macros["SHARERS"]
    tall, tokens, name = macros[of.rows], macros["TOKENS"], f"Rung {rung.key}"
    tiles = tiles_of(n, batch, tall, tokens)
    if tall * tokens > _MOST_SUMS:
        raise LaunchError(f"{name} holds {_MOST_SUMS} sums a row of 64, not {tall} x {tokens}.")
    if not 0 < blocks <= AT_ONCE or tiles * (k // STEP) >= 1 << 31:
        raise LaunchError(
            f"{name} takes 1 to {AT_ONCE} blocks and up to 2^31 steps of {STEP}, not {blocks} blocks."
        )
    left, parts = tiles % blocks * (k // STEP), macros.get("PARTS", 0)
    if sharers and not (left and sharers <= min(blocks, left)):
        raise LaunchError(
            f"{name} has {left} steps left for a last turn of {blocks} blocks, not work for {sharers}."
        )
    if parts and (sharers or not 1 < parts <= k // STEP or not 0 < tiles % blocks * parts <= blocks):
        raise LaunchError(
            f"{name} has {tiles % blocks} tiles of {k // STEP} steps left for a last turn of {blocks} "
            f"blocks, which {parts} parts of each, with SHARERS = {sharers}, do not fit."
        )
    function = loaded(rung, tuple(sorted(macros.items())))
    workspace = _workspace(nvrtc.current_stream())
    function.launch(
        (blocks, 1),
        384,
        [*arguments, workspace],
        shared=shared_bytes(of, macros),
        cooperative=parts > 0,  # the parts of a tile wait for one another
    )


def _workspace(stream: int) -> Any:
    """A stream's workspace, 17 MB: sums of tiles that blocks share, as flagged numbers, 0 between launches.
    A stream's first launch makes it, which must not be one that is being captured.
    """
    workspace = _made(stream)
    launch_cache.hold(workspace)
    return workspace


@functools.cache  # never dropped, for a captured graph has its addresses
def _made(stream: int) -> Any:
    import cupy

    workspace = cupy.zeros((2 * AT_ONCE, _MOST_SUMS * 64), cupy.uint32)
    cupy.cuda.get_current_stream().synchronize()  # a launch may be on another stream than the zeros
    return workspace


# --- which tile ---------------------------------------------------------------------------------------------


class Law(NamedTuple):
    """A tile of a rung: its format and macros; whether blocks may share it step by step, for which some tiles
    lack registers (0: none, 1: any number of them, 2: any but a power of two, which spills); and microseconds
    on an H200 of a launch, of a tile that a block ends, of another block's sums, and of a step of 128 of k.
    """

    of: Format
    tall: int
    tokens: int
    shares: int
    start: float
    turn: float
    other: float
    step: float

    def may_share(self, sharers: int) -> bool:
        """Whether so many blocks (0: none) may share a last turn of these tiles."""
        power_of_two = sharers & (sharers - 1) == 0
        return not sharers or self.shares == 1 or self.shares == 2 and not power_of_two

    def _steps_us(self, count: int, busy: int, batch: int) -> float:
        """Microseconds of so many steps while so many blocks run: the tile's own, or those in which memory
        brings the weights, which tiles side by side read at once.
        """
        read = 2 * self.tall * self.of.weights * (STEP // self.of.step) * busy
        own = self.step * (1 - self.of.alone * (1 - busy / AT_ONCE))
        return count * max(own, read / math.ceil(batch / self.tokens) / _BYTES_A_US)

    def predicted(self, n: int, k: int, batch: int, blocks: int, sharers: int) -> float:
        """Microseconds of a product with weights [n, k] by so many blocks, as many sharing a last turn."""
        steps = k // STEP
        turns, left = divmod(tiles_of(n, batch, self.tall, self.tokens), blocks)
        time = self.start + turns * self.turn + self._steps_us(turns * steps, blocks, batch)
        if not left:
            return time
        if not sharers:
            return time + self.turn + self._steps_us(steps, left, batch)
        each = math.ceil(left * steps / sharers)
        aligned = left * steps % sharers == 0 and (each % steps == 0 or steps % each == 0)
        others = max(0, steps // each - 1) if aligned else math.ceil(steps / each)
        last = self.turn * max(1.0, each / steps) + self.other * others + self.of.shared
        return time + last + self._steps_us(each, sharers, batch)

    def predicted_in_parts(self, n: int, k: int, batch: int, blocks: int, parts: int) -> float:
        """The same where `parts` blocks divide the k of each tile of the last turn, and its sums."""
        steps = k // STEP
        turns, left = divmod(tiles_of(n, batch, self.tall, self.tokens), blocks)
        fixed, moved, stored = self.of.exchange or (0.0, 0.0, 0.0)
        exchange = fixed + (moved + stored / parts) * self.tall * self.tokens
        last = self.turn + self._steps_us(math.ceil(steps / parts), left * parts, batch) + exchange
        return self.start + turns * self.turn + self._steps_us(turns * steps, blocks, batch) + last


@functools.cache
def laws(rung: str) -> tuple[Law, ...]:
    """The tiles of a rung, as FORMATS names it, that are worth building."""
    with LAW.open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file) if row["rung"] == rung]
    return tuple(
        Law(FORMATS[rung], *(int(value) for value in row[1:4]), *(float(value) for value in row[4:]))
        for row in rows
    )


def blocks_of(tiles: int, steps: int) -> list[tuple[int, int]]:
    """Numbers of blocks, and of those that share a last turn, which are worth trying for so many tiles."""
    left = tiles % AT_ONCE
    even = [left * parts for parts in range(2, min(8, steps) + 1) if left * parts < AT_ONCE]
    shared = sorted({*even, min(AT_ONCE, left * steps)} - {0, left})
    if tiles < AT_ONCE:
        return [(tiles, 0), *((sharers, sharers) for sharers in shared)]
    return [(AT_ONCE, 0), *((AT_ONCE, sharers) for sharers in shared)]


def parts_of(tiles: int, steps: int) -> list[tuple[int, int]]:
    """Numbers of blocks and of parts of a tile of the last turn that are worth trying for so many tiles."""
    left = tiles % AT_ONCE
    most = min(steps, AT_ONCE // left, _MOST_PARTS) if left else 0
    return [(tiles * parts if tiles < AT_ONCE else AT_ONCE, parts) for parts in range(2, most + 1)]


@functools.lru_cache(maxsize=4096)
def _choice(
    rung: str, n: int, k: int, batch: int, widths: tuple[int, ...] = ()
) -> tuple[float, tuple[tuple[str, int], ...]]:
    of = FORMATS[rung]
    ways: list[tuple[float, Law, dict[str, int]]] = []
    for law in (law for law in laws(rung) if not widths or law.tokens in widths):
        tiles, steps = tiles_of(n, batch, law.tall, law.tokens), k // STEP
        for blocks, sharers in blocks_of(tiles, steps):
            if law.may_share(sharers):
                time = law.predicted(n, k, batch, blocks, sharers)
                ways.append((time, law, {"BLOCKS": blocks, "SHARERS": sharers}))
        for blocks, parts in parts_of(tiles, steps) if of.exchange else []:
            time = law.predicted_in_parts(n, k, batch, blocks, parts)
            ways.append((time, law, {"BLOCKS": blocks, "SHARERS": 0, "PARTS": parts}))
    time, law, blocks_and = min(ways, key=lambda way: way[0])
    macros = {of.rows: law.tall, "TOKENS": law.tokens, "STAGES": stages(of, law.tall, law.tokens)}
    return time, tuple({**macros, **blocks_and}.items())


def options_for(rung: str, n: int, k: int, batch: int) -> dict[str, int]:
    """Macros of a rung for y [batch, n] with k inputs: tile and blocks that should take least."""
    return dict(_choice(rung, n, k, batch)[1])


def predicted_us(rung: str, n: int, k: int, batch: int, widths: tuple[int, ...] = ()) -> float:
    """Microseconds that the product takes with these macros, by the law; with `widths`, in the best of the
    tiles of so many tokens.
    """
    return _choice(rung, n, k, batch, widths)[0]


# --- the rungs ------------------------------------------------------------------------------------------


def int4(rung: Rung, n: int, k: int, batch: int, arguments: list[Any], macros: Mapping[str, int]) -> None:
    """Launch int4/13_stream_k with arguments blocks, x, y, n, groups, batch."""
    weights, x, *rest = arguments
    x = nvrtc.tensor_map(nvrtc.pointer(x), batch, k, "float16", (macros["TOKENS"], 64), 128)
    launch(rung, (n, k, batch), [weights, x, *rest], macros)


def mmq(
    rung: Rung, weights: list[Any], x: Any, out: Any, sizes: tuple[int, int, int], macros: Mapping[str, int]
) -> None:
    """Launch a rung of mmq for sizes (n, k, batch); weights are quants and scales, or blocks of tiles."""
    n, k, batch = sizes
    if len(weights) == 2:
        weights = [nvrtc.tensor_map(nvrtc.pointer(weights[0]), n, k, "int8", (128, 64), 64), weights[1]]
    given = nvrtc.tensor_map(nvrtc.pointer(x), batch, k, "float16", (macros["TOKENS"], 64), 128)
    launch(rung, sizes, [*weights, given, out, *(ctypes.c_int(size) for size in sizes)], macros)


def launch_rule() -> tuple[Any, ...]:
    """The code that decides how a rung is launched."""
    return (launch, shared_bytes, slot_bytes, way_out_bytes, tiles_of)
