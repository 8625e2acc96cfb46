"""Watch a kernel: what it did wrong, and how it used memory, per line of its source.

The watched build calls a hook at every load and store. The faults are exact for the order in which the
threads ran. A race is two accesses, at least one a write and not both atomic or volatile, that no barrier,
__syncwarp or atomic hand-over puts in order, whatever values they left. A request is what a warp asks for
when it executes one load or store: here the k-th time each of its lanes executes that access, so lanes that
skipped a turn of a loop are paired with the wrong turn of the others. The host's compiler, like NVCC, may
drop a load whose value it knows, or move it into the branch that needs it. Compiled by g++ the counts of
the GEMV ladders are exactly those of ncu; clang++ moves loads, so that two of them pair otherwise on ragged
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from rooflab.ops import Rung
from rooflab.simt.abi import ATOMIC, SHARED, WRITE
from rooflab.simt.build import load
from rooflab.simt.faults import Fault
from rooflab.simt.run import OBSERVER, Function, Limit, Outcome, launch

SECTOR = 32  # bytes: what moves between L2 and an SM at least
BANKS = 32  # of 4 bytes each
MOST = 1 << 24  # accesses that one launch may make: half a gigabyte of notes


@dataclass(frozen=True)
class Watch:
    """What watching one launch showed: `faults`, and the accesses behind `requests` and `lines`."""

    faults: list[Fault]
    outcome: Outcome = field(repr=False)

    def executed(self, instruction: str) -> int:
        """How often warps executed a product of matrices ("mma_m16n8k16_f16"), or threads "__dp4a" or
        abi.TO_HALF.
        """
        return self.outcome.executed[instruction]

    def accesses(self) -> pd.DataFrame:
        """Every load and store, in the order they happened: source line, access (load, store, or atomic for
        what reads and writes at once), space
        (global, shared), buffer, address (bytes from the buffer's start; in shared memory from the block's),
        bytes, block, warp, lane, request (how often this warp had come here before).
        """
        events = self.outcome.events
        return self._told(events, self._turns(events))

    def _turns(self, events: np.ndarray) -> np.ndarray:
        """How often each access's thread had come to its place before."""
        thread = _coded(events["pc"], events["block"], events["thread"])
        return pd.Series(thread).groupby(thread, sort=False).cumcount().to_numpy()

    def _told(self, events: np.ndarray, request: np.ndarray) -> pd.DataFrame:
        writes = events["how"] & WRITE > 0
        return pd.DataFrame(
            {
                "line": pd.Series(events["pc"]).map(dict(self.outcome.lines)),
                "access": np.select([~writes, events["how"] & ATOMIC > 0], ["load", "atomic"], "store"),
                "space": np.where(events["region"] == SHARED, "shared", "global"),
                "buffer": pd.Series(events["region"]).map({**self.outcome.names, SHARED: "shared"}),
                "address": events["address"].astype(np.int64),
                "bytes": events["size"].astype(np.int64),
                "block": events["block"].astype(np.int64),
                "warp": events["thread"].astype(np.int64) // 32,
                "lane": events["thread"].astype(np.int64) % 32,
                "place": events["pc"],
                "request": request,
            }
        )

    def requests(self) -> pd.DataFrame:
        """One row per request of a warp: line, access, space, buffer, block, warp, request, lanes (how many
        took part), bytes_used (distinct bytes that lanes asked for), sectors (32-byte pieces they lie in;
        global memory), bytes_moved (32 x sectors; in shared memory what was used), passes (turns that the
        banks of shared memory take) and conflicts (passes beyond those that the width of the access needs).
        """
        events = self.outcome.events
        turn = self._turns(events)
        group, count = _requests(events, turn)
        first = np.zeros(count, np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        rows = self._told(events[first], turn[first]).drop(columns=["address", "bytes", "lane"])
        accesses = pd.DataFrame(
            {
                "group": group,
                "address": events["address"].astype(np.int64),
                "bytes": events["size"].astype(np.int64),
                "lane": events["thread"].astype(np.int64) % 32,
            }
        )
        rows["lanes"] = np.bincount(group, minlength=count)  # a lane makes one access of a request
        rows["bytes"] = accesses.groupby("group")["bytes"].max()
        unit = int(np.gcd.reduce(np.concatenate([accesses["address"], accesses["bytes"]]), initial=0)) or 1
        rows["bytes_used"] = _distinct(accesses, unit, count) * unit
        accesses["address"] += self._skews(events)
        rows["sectors"] = _distinct(accesses, SECTOR, count).where(rows["space"] == "global")
        rows["bytes_moved"] = (rows["sectors"] * SECTOR).where(rows["space"] == "global", rows["bytes_used"])
        passes, needed = _passes(accesses[events["region"] == SHARED], count)
        rows["passes"] = passes.where(rows["space"] == "shared")
        rows["conflicts"] = rows["passes"] - needed
        return rows.drop(columns="place")

    def sectors(self) -> np.ndarray:
        """Of each request of global memory its sectors, as `requests` has them among much else."""
        events = self.outcome.events
        apart = events["region"] != SHARED
        events, turn = events[apart], self._turns(events)[apart]
        group, count = _requests(events, turn)
        places = events["address"].astype(np.int64) + self._skews(events).to_numpy()
        accesses = pd.DataFrame({"group": group, "address": places, "bytes": events["size"].astype(np.int64)})
        return _distinct(accesses, SECTOR, count).to_numpy()

    def _skews(self, events: np.ndarray) -> pd.Series:
        """How far after a multiple of 256 bytes the buffer of each access starts."""
        return pd.Series(events["region"]).map({SHARED: 0, **self.outcome.skews})

    def lines(self) -> pd.DataFrame:
        """One row per line of the source, access and buffer: requests, lanes per request, sectors per
        request, bytes_used and bytes_moved with their ratio `efficiency`, bank conflicts per request.
        """
        rows = self.requests()
        keys = ["line", "access", "space", "buffer"]
        sums = (
            rows.groupby(keys, sort=True, dropna=False)
            .agg(
                requests=("lanes", "size"),
                lanes=("lanes", "mean"),
                sectors=("sectors", "sum"),
                bytes_used=("bytes_used", "sum"),
                bytes_moved=("bytes_moved", "sum"),
                conflicts=("conflicts", "mean"),
            )
            .reset_index()
        )
        per_request = sums["sectors"] / sums["requests"]
        sums.insert(6, "sectors_per_request", per_request.where(sums["space"] == "global"))
        sums["efficiency"] = sums["bytes_used"] / sums["bytes_moved"]
        return sums.drop(columns="sectors").rename(columns={"conflicts": "conflicts_per_request"})


def _requests(events: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, int]:
    """The number of the request that each access is part of, and how many requests there are."""
    how = events["how"] & (WRITE | ATOMIC)  # told in words for a request alone
    group = _coded(events["pc"], how, events["region"], events["block"], events["thread"] // 32, turn)
    return group, int(group.max(initial=-1)) + 1


def _coded(*columns: np.ndarray) -> np.ndarray:
    """The number of each row's combination of values, counted from 0 in the order in which they come."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, found = pd.factorize(column)
        codes, _ = pd.factorize(codes * max(1, len(found)) + values)
    return codes


def _distinct(frame: pd.DataFrame, unit: int, count: int) -> pd.Series:
    """Distinct pieces of `unit` bytes that the accesses of each group touch."""
    first = frame["address"].to_numpy() // unit
    last = (frame["address"] + frame["bytes"] - 1).to_numpy() // unit
    which, pieces = _spread(first, last - first + 1)
    pairs = _unique(frame["group"].to_numpy()[which], pieces)
    return pd.Series(np.bincount(pairs[0], minlength=count))


def _spread(first: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and first, first + 1, ... of each row, `counts` times."""
    which = np.repeat(np.arange(len(first)), counts)
    return which, first[which] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _unique(group: np.ndarray, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of two columns of whole numbers not below 0."""
    span = int(piece.max(initial=0)) + 1
    pairs = np.sort(group.astype(np.int64) * span + piece)
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
    return pairs // span, pairs % span


def _passes(frame: pd.DataFrame, count: int) -> tuple[pd.Series, pd.Series]:
    """Turns that shared memory takes for each group, and those it would take if no two words of a turn lay in
    one bank: a bank gives one 4-byte word a turn, to any number of lanes. Accesses of 8 and 16 bytes are
    served for 16 and 8 lanes at a time.
    """
    result, needed = np.zeros(count), np.zeros(count)
    if len(frame):
        words = (frame["bytes"].to_numpy() + 3) // 4
        part = frame["lane"].to_numpy() * words // 32
        which, word = _spread(frame["address"].to_numpy() // 4, words)
        # A group has at most four parts.
        unit, word = _unique((frame["group"].to_numpy() * 4 + part)[which], word)
        in_bank, depth = np.unique(unit * BANKS + word % BANKS, return_counts=True)
        deepest = pd.Series(depth).groupby(in_bank // BANKS).max()
        total = deepest.groupby(deepest.index.to_numpy() // 4).agg(["sum", "size"])
        result[total.index.to_numpy()] = total["sum"].to_numpy()
        needed[total.index.to_numpy()] = total["size"].to_numpy()
    return pd.Series(result), pd.Series(needed)


def watch(
    source: Rung | str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    options: Mapping[str, object] | None = None,
    *,
    entry: str | None = None,
    shared: int = 0,
    cooperative: bool = False,
    name: str = "kernel.cu",
    most: int | None = None,
    limit: Limit | None = None,
) -> Watch:
    """Run a rung, or CUDA source text, with every load and store watched; arguments as for `run`.

    The arrays hold the kernel's results afterwards, even where it did wrong. Small shapes: an access takes
    about a microsecond here, and its note 32 bytes; a launch that makes more than `most` (16 million) is
    ended, and so is one that passes `limit`. `name` is what a text's lines are called by.
    """
    program = load(source, options, watched=True, name=name)
    entry = source.entry if isinstance(source, Rung) else entry
    outcome = launch(
        program,
        entry,
        grid,
        block,
        arguments,
        shared=shared,
        cooperative=cooperative,
        traced=most or MOST,
        limit=limit,
    )
    return Watch(outcome.faults, outcome)


@contextmanager
def watched_launches(traced: int = MOST) -> Iterator[list[Watch]]:
    """Within it every launch on the CPU is watched, those that an op makes too; the list gets what was seen.

    Faults are listed, not raised. A launch may make at most `traced` accesses; 0 notes none down, so that
    `requests` and `lines` are empty, and any number may be made.
    """
    seen: list[Watch] = []

    def observe(
        function: Function, grid: Any, block: Any, arguments: Any, shared: int, cooperative: bool
    ) -> None:
        program = load(function.source, function.options, watched=True)
        outcome = launch(
            program,
            function.entry,
            grid,
            block,
            arguments,
            shared=shared,
            cooperative=cooperative,
            traced=traced,
        )
        seen.append(Watch(outcome.faults, outcome))

    token = OBSERVER.set(observe)
    try:
        yield seen
    finally:
        OBSERVER.reset(token)
