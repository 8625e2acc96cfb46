"""Which rung of INT4 multiplies a shape, with which macros: by what was recorded, else by a law of its tiles.

A shape that the table (int4.csv) holds for the GPU takes the table's line. For any other shape on Hopper,
up to 64 tokens, laws of time decide. Up to 8 tokens `few_for` chooses among eleven tiles of rungs 8 and 9
(int4_few_law.csv, with constants for up to 2, 4 and 8 tokens) and, from 4 tokens on, rung 11: fitted to 25
shapes on an H200. For a shape left out of the fit the choice takes 4 % more than the fastest of 24 tiles and
rung 11 on average, 18 % at worst. Rung 11 takes the tiles for which a
law of its own predicts the least (`law_of`); its constants (int4_law.csv) were fitted to 3,566 launches of 18
shapes on an H200, and on a shape left out of the fit the choice costs 1 to 3 % more than the fastest tile on
average. Beyond 64 tokens rung 11 competes with rung 13 by a third law (int4_many_law.csv), where a tile of
tokens each gives every multiprocessor a block at most: fitted to 261 launches of 16 shapes on an H200, off by
2 % on average and 12 % at worst; for each shape left out of the fit it chose the fastest tile measured.
Up to 4 tokens rung 14 comes before these laws where a warp has few groups of k: of 13 shapes compared on an
H200 it was faster there on all but one (by 1 to 22 %, and 1 % slower).
"""

from __future__ import annotations

import csv
import functools
import math
from pathlib import Path
from typing import NamedTuple

from rooflab.hardware import device
from rooflab.numerics.quant import GROUP
from rooflab.ops import stream_k, target, this_gpu

TILE = 64  # rows of a block in tile order
BLOCK_WORDS = 32 + TILE * GROUP // 8  # scales, then codes: 4224 bytes
TABLE = Path(__file__).with_name("int4.csv")  # what was fastest, by device, shape and batch
LAW = Path(__file__).with_name("int4_law.csv")
FEW_LAW = Path(__file__).with_name("int4_few_law.csv")
MANY_LAW = Path(__file__).with_name("int4_many_law.csv")


def choose(n: int, k: int, batch: int, tiled: bool, slug: str | None = None) -> tuple[str, dict[str, int]]:
    """Rung and macros for y [batch, n] with k inputs: in row order by rule, in tile order from the table of
    what was fastest on the device (a name of rooflab.hardware.device, by default the GPU at hand).

    Of a shape that the table holds, the smallest batch that is large enough counts. Another shape takes, on
    Hopper, few_for up to 8 tokens and rung 11 by law_of up to 64, and elsewhere the table's nearest shape.
    Beyond 64 it is rung 11 or 13, by many_for. A device of whose generation the table holds none takes the
    portable rungs: 8 up to 8 tokens, then 9.
    """
    if not tiled:
        return (
            ("5_split_k", {})
            if batch == 1
            else ("6_batched", {"TOKENS": min(8, 1 << (batch - 1).bit_length())})
        )
    rows = _rows_for(_this_device() if slug is None else slug)
    if not rows:
        wide = 8 * math.ceil(batch / 8)
        if batch <= 8:
            return "8_folded_offset", {"TOKENS": wide}
        return "9_shared_x", {"TOKENS": min(16 * math.ceil(wide / 16), 64), "K_WARPS": 2 if wide <= 16 else 1}
    shape = min(
        ((row.n, row.k) for row in rows),
        key=lambda shape: (abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k)), shape),
    )
    if shape != (n, k) and batch <= LAW_TOKENS[-1] and _hopper(rows[0].device):
        return few_for(n, k, batch) if batch <= FEW else ("11_tma", law_of(n, k, batch))
    fitting = [row for row in rows if (row.n, row.k) == shape and row.batch >= batch]
    if not fitting:
        return many_for(n, k, batch)
    chosen = min(fitting, key=lambda row: row.batch)
    return chosen.rung, dict(chosen.macros)


LAW_TOKENS = (8, 16, 32, 64)  # that the law's tiles are built for; from 5 tokens on


class Law(NamedTuple):
    """A kind of tile of rung 11: rows in units of 64, warpgroups that divide rows and k, slots of the ring
    with one and with two blocks a multiprocessor (0: does not fit), and microseconds: a launch, more for a
    cluster, more for one of four, a turn of one and of two blocks a multiprocessor, a step along k in either,
    and a million weights.
    """

    tokens: int
    units: int
    row_groups: int
    k_groups: int
    stages: tuple[int, int]
    us: tuple[float, ...]

    def predicted(self, n: int, k: int, cluster: int, resident: int) -> float:
        """Microseconds of a product with weights [n, k]."""
        start, clustered, wide, turn, turn_2, step, step_2, read = self.us
        blocks = math.ceil(n / (TILE * self.units)) * cluster
        steps = math.ceil(math.ceil(k // GROUP / cluster) / self.k_groups)
        turns, left = divmod(blocks, stream_k.CLUSTERS[cluster] * resident)
        alone = int(0 < left <= stream_k.CLUSTERS[cluster])  # the last turn has one block a multiprocessor
        full = turns + int(left > 0) - alone
        if resident == 1:
            alone, full = alone + full, 0
        fixed = start + clustered * (cluster > 1) + wide * (cluster > 3) + read * n * k * 1e-6
        return fixed + alone * (turn + steps * step) + full * (turn_2 + steps * step_2)


@functools.cache
def _laws() -> tuple[Law, ...]:
    with LAW.open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    found = []
    for row in rows:
        tokens, units, row_groups, k_groups, *stages = (int(value) for value in row[:6])
        us = tuple(float(value) for value in row[6:])
        found.append(Law(tokens, units, row_groups, k_groups, (stages[0], stages[1]), us))
    return tuple(found)


def law_of(n: int, k: int, batch: int) -> dict[str, int]:
    """Macros of rung 11 for weights [n, k] and up to 64 tokens: the tile that should take least."""
    return _law_of(n, k, batch)[1]


def _law_of(n: int, k: int, batch: int) -> tuple[float, dict[str, int]]:
    """Microseconds that rung 11 should take, and its macros."""
    tokens = next(t for t in LAW_TOKENS if t >= batch)
    ways = [
        (law.predicted(n, k, cluster, resident), law, cluster, resident)
        for law in _laws()
        if law.tokens == tokens
        for resident in (1, 2)
        if law.stages[resident - 1]
        for cluster in stream_k.CLUSTERS
        if cluster * law.k_groups <= max(k // GROUP, law.k_groups)
    ]
    time, law, cluster, resident = min(ways, key=lambda way: way[0])
    return time, {
        "UNITS": law.units,
        "ROW_GROUPS": law.row_groups,
        "K_GROUPS": law.k_groups,
        "CLUSTER": cluster,
        "STAGES": law.stages[resident - 1],
        "RESIDENT": resident,
        "TOKENS": tokens,
    }


BYTES = "14_bytes"
MOST_CHUNKS = 5  # groups of x that a warp of rung 14 keeps
_CHUNKS = {1: 5, 2: 4, 4: 2}  # of them, those with which it is the fastest, by tokens
_SHORT, _MANY_ROWS = 2048, 8192  # k less than this with so many rows: there one token is rung 8's or 9's


def bytes_options(k: int, batch: int) -> dict[str, int]:
    """How rung 14 divides k among a block's warps, up to 16 of as many groups each; tiles under way, two or
    three, the faster on an H200; and tiles whose sums meet between two barriers.
    """
    groups = k // GROUP
    chunks = min(math.ceil(groups / 16), MOST_CHUNKS)
    warps, tokens = min(16, math.ceil(groups / chunks)), min(4, 1 << (batch - 1).bit_length())
    stages, tiles = 3 if chunks <= 2 else 2, 4 if chunks * tokens == 4 * MOST_CHUNKS else 8
    return {"WARPS": warps, "CHUNKS": chunks, "TOKENS": tokens, "STAGES": stages, "TILES": tiles}


def _as_bytes(n: int, k: int, batch: int) -> bool:
    """Whether rung 14 should take least."""
    chunks = math.ceil(k // GROUP / 16)
    most = next((most for tokens, most in _CHUNKS.items() if tokens >= batch), 0)
    return chunks <= most and not (batch == 1 and k < _SHORT and n >= _MANY_ROWS)


FEW = 8  # tokens up to which rungs 8 and 9 compete with rung 11
_BULK_FROM = 4  # tokens from which rung 11 does
_BULK = 1.106  # its time over its law's, when few_for's tiles were measured


class Few(NamedTuple):
    """A tile of rung 8 or 9: rows a block, of which a multiprocessor runs RESIDENT at a time; tokens at most;
    microseconds on an H200 of a launch, of a turn of blocks, and of a group of k at least; the TB/s that
    blocks share; and the share of turn and group that is left for a block alone on its multiprocessor.
    """

    rung: str
    macros: dict[str, int]
    rows: int
    tokens: int
    start: float
    turn: float
    step: float
    tb_s: float
    alone: float

    def predicted(self, n: int, k: int) -> float:
        """Microseconds of a product with weights [n, k]."""
        resident = self.macros["RESIDENT"]
        groups, moved = k // GROUP, self.rows * (GROUP // 2 + 2) / self.tb_s * 1e-6  # us of a block's group

        def turn(blocks: int) -> float:
            beside = math.ceil(blocks / _AT_ONCE) - 1  # other blocks on the same multiprocessor
            share = self.alone + (1 - self.alone) * beside / (resident - 1) if resident > 1 else 1.0
            return share * self.turn + groups * max(share * self.step, blocks * moved) if blocks else 0.0

        turns, left = divmod(math.ceil(n / self.rows), _AT_ONCE * resident)
        return self.start + turns * turn(_AT_ONCE * resident) + turn(left)


@functools.cache
def _few() -> tuple[Few, ...]:
    with FEW_LAW.open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    return tuple(
        Few(row[0], _macros(row[1]), int(row[2]), int(row[3]), *(float(value) for value in row[4:]))
        for row in rows
    )


def few_for(n: int, k: int, batch: int) -> tuple[str, dict[str, int]]:
    """Rung and macros for weights [n, k] and up to FEW tokens: the tile that should take least."""
    return (BYTES, bytes_options(k, batch)) if _as_bytes(n, k, batch) else halves_for(n, k, batch)


def halves_for(n: int, k: int, batch: int) -> tuple[str, dict[str, int]]:
    """The same among the rungs that multiply codes as halves."""
    tokens = min(law.tokens for law in _few() if law.tokens >= batch)
    best = min((law for law in _few() if law.tokens == tokens), key=lambda law: law.predicted(n, k))
    if batch >= _BULK_FROM:
        time, macros = _law_of(n, k, batch)
        if _BULK * time < best.predicted(n, k):
            return "11_tma", macros
    return best.rung, {"TOKENS": 1 << (batch - 1).bit_length()} | best.macros


def _hopper(slug: str) -> bool:
    return device.get(slug).sm == "90"


_AT_ONCE = 132  # blocks of rung 12 that run at a time, one to a multiprocessor of an H200
_IN_FOURS = 112  # the same in clusters of four, which not all groups of multiprocessors divide into
# A turn of blocks on an H200, as measured: a start and an end (in tiles_for), and groups of k.
_GROUP_US = {  # what a group of k takes a block, by TALL and TOKENS: the tiles worth building
    **{(1, 64): 0.45, (1, 80): 0.48, (1, 96): 0.52, (1, 112): 0.6, (1, 128): 0.68, (1, 256): 1.42},
    **{(2, 64): 0.89, (2, 80): 1.0, (2, 96): 1.09, (2, 112): 1.23, (2, 128): 1.37},
}
_SHARED = 225 * 1024


def many_for(n: int, k: int, batch: int) -> tuple[str, dict[str, int]]:
    """Rung and macros beyond 64 tokens. Rung 12 was never the faster one on 24 shapes drawn to compare them
    (an H200).
    """
    time, macros = _many_of(n, k, batch)
    if time < stream_k.predicted_us("int4/13_stream_k", n, k, batch):
        return "11_tma", dict(macros)
    return "13_stream_k", stream_k.options_for("int4/13_stream_k", n, k, batch)


_NARROW = (32, 48, 64)  # tokens of a tile, up to 64, that products are built for; beyond, every multiple of 8
_MOST_TOKENS = 128  # of a tile
_LEAST_STAGES = 3  # with two, launches take up to 20 % longer than the law says


class Many(NamedTuple):
    """A kind of tile of rung 11 beyond 64 tokens, as Law has it, and microseconds on an H200: a launch, more
    for a token of the tile, for a cluster, for one of three or four; a step along k, more of it for a token
    of the tile; a million weights.
    """

    units: int
    row_groups: int
    k_groups: int
    us: tuple[float, ...]

    def stages(self, tokens: int) -> int:
        """Slots of the ring that fit."""
        return min(8, _SHARED // (self.k_groups * (self.units * 4 * BLOCK_WORDS + 256 * tokens)))

    def predicted(self, n: int, k: int, tokens: int, cluster: int) -> float:
        """Microseconds of a product with weights [n, k] whose blocks all run at a time."""
        start, token, clustered, wide, step, step_token, read = self.us
        steps = math.ceil(math.ceil(k // GROUP / cluster) / self.k_groups)
        fixed = (
            start + token * tokens + clustered * (cluster > 1) + wide * (cluster > 2) + read * n * k * 1e-6
        )
        return fixed + steps * (step + step_token * tokens)


@functools.cache
def _many() -> tuple[Many, ...]:
    with MANY_LAW.open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    return tuple(Many(int(row[0]), int(row[1]), int(row[2]), tuple(map(float, row[3:]))) for row in rows)


@functools.lru_cache(maxsize=4096)
def _many_of(n: int, k: int, batch: int) -> tuple[float, tuple[tuple[str, int], ...]]:
    """Microseconds that rung 11 should take beyond 64 tokens, and its macros; infinite where no tile gives
    every multiprocessor one block at most.
    """
    ways: list[tuple[float, Many, int, int, int]] = []
    for tiles in range(math.ceil(batch / _MOST_TOKENS), math.ceil(batch / _NARROW[0]) + 1):
        tokens = 8 * math.ceil(batch / tiles / 8)
        tokens = next((built for built in _NARROW if built >= tokens), tokens)
        ways += [
            (law.predicted(n, k, tokens, cluster), law, tokens, cluster, stages)
            for law in _many()
            if (stages := law.stages(tokens)) >= _LEAST_STAGES
            for cluster, at_once in stream_k.CLUSTERS.items()
            if math.ceil(n / (TILE * law.units)) * math.ceil(batch / tokens) * cluster <= at_once
            and cluster * law.k_groups <= k // GROUP
        ]
    if not ways:
        return math.inf, ()
    time, law, tokens, cluster, stages = min(ways, key=lambda way: way[0])
    macros = {
        "UNITS": law.units,
        "ROW_GROUPS": law.row_groups,
        "K_GROUPS": law.k_groups,
        "CLUSTER": cluster,
        "STAGES": stages,
        "RESIDENT": 1,
        "TOKENS": tokens,
    }
    return time, tuple(macros.items())


def tiles_for(n: int, k: int, batch: int) -> dict[str, int]:
    """Macros of rung 12 for a shape: the tile and number of parts of k whose turns should take least."""
    _, (tall, tokens, parts) = _tiles_us(n, k, batch)
    place = 2 * tall * 4 * BLOCK_WORDS + 256 * tokens
    return {"TALL": tall, "CLUSTER": parts, "TOKENS": tokens, "STAGES": min(6, _SHARED // place)}


def _tiles_us(n: int, k: int, batch: int) -> tuple[float, tuple[int, int, int]]:
    """Microseconds that rung 12 should take, and its tile: TALL, TOKENS, CLUSTER."""

    def cost(how: tuple[int, int, int]) -> float:
        tall, tokens, parts = how
        blocks = math.ceil(n / (2 * TILE * tall)) * math.ceil(batch / tokens) * parts
        besides = 3.4 + 0.02 * tall * tokens + (0.01 * tall * tokens if parts > 1 else 0.0)
        turn = besides + math.ceil(k / GROUP / parts) * _GROUP_US[tall, tokens]
        return math.ceil(blocks / (_IN_FOURS if parts == 4 else _AT_ONCE)) * turn

    ways = [(*tile, parts) for tile in _GROUP_US for parts in (1, 2, 4)]
    best = min(ways, key=cost)
    return cost(best), best


def _rows_for(slug: str | None) -> list[Choice]:
    """The table's lines of that device, else of one of its generation."""
    own = [row for row in _table() if row.device == slug]
    if own or slug not in device.names():
        return own
    generation = device.get(slug).compute_capability
    return [row for row in _table() if device.get(row.device).compute_capability == generation]


class Choice(NamedTuple):
    """A line of the table: on this device, for this shape, up to this batch, this rung with these macros."""

    device: str
    n: int
    k: int
    batch: int
    rung: str
    macros: tuple[tuple[str, int], ...]


def _macros(said: str) -> dict[str, int]:
    """Macros as a table has them: NAME=VALUE, apart by spaces."""
    return {name: int(value) for name, value in (word.split("=") for word in said.split())}


@functools.cache
def _table() -> tuple[Choice, ...]:
    found = []
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            macros = tuple(_macros(row["macros"]).items())
            n, k, batch = (int(row[name]) for name in ("n", "k", "batch"))
            found.append(Choice(row["device"], n, k, batch, row["rung"], macros))
    return tuple(found)


def _this_device() -> str | None:
    """Name in the table of devices of the GPU at hand, if it has one; None on the CPU."""
    return None if target() == "cpu" else this_gpu()[0]
