"""All-reduce: the sum over several GPUs of what each holds, with the same bits on every one.

A GPU takes part through its mailbox, memory that its peers can write and read, and through a `Group` that
names all mailboxes. One launch plays one GPU of the group, or, on the CPU and on a single GPU, all of them as
rows of a grid.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.ops import Rung, arrays, check_array, loaded, rung_of, with_target
from rooflab.records.fingerprint import source_of_callable

PLACE = 10  # of its ladder among all of them: in the order of the lessons
MOST = 8  # GPUs of a group
_DEFINES = {"THREADS": 256, "WORLD": 2, "LIMIT": 1 << 22}
LADDERS: dict[str, tuple[Rung, ...]] = {
    "all_reduce": (
        Rung("all_reduce", "1_pull", "all_reduce_pull", "every GPU reads its peers' parts", defines=_DEFINES),
        Rung(
            "all_reduce",
            "2_push",
            "all_reduce_push",
            "every GPU stores its part into its peers' mailboxes",
            defines=_DEFINES,
        ),
        Rung(
            "all_reduce",
            "3_flag_in_data",
            "all_reduce_flag_in_data",
            "the number of the round travels with the data",
            words=2,
            defines=_DEFINES,
        ),
    ),
}
DEFAULT = "3_flag_in_data"


@dataclass(frozen=True)
class Group:
    """What the GPUs of an all-reduce share, as one of them sees it: `mails`, a mailbox of `words` uint32 for
    each; `rounds` and `lost`, which are its own; `rank`, its number, or None where one launch plays all.
    Mailboxes, rounds and lost start at zero. `n`: the most elements that fit.
    """

    rung: str
    n: int
    mails: Sequence[Any]
    rounds: Any
    lost: Any
    rank: int | None = None

    @property
    def size(self) -> int:
        """GPUs that take part."""
        return len(self.mails)


def words(rung: str, n: int, size: int) -> int:
    """uint32 of a mailbox for up to n halves of each of `size` GPUs."""
    chosen = rung_of(LADDERS["all_reduce"], rung, DEFAULT)
    data = blocks_of(chosen, n) * chosen.defines["THREADS"] * 4
    flags = MOST * blocks_of(chosen, n)
    return {"1_pull": 2 * data + flags, "2_push": 2 * size * data + flags}.get(chosen.name, 2 * size * data)


def counters(rung: str, n: int) -> int:
    """uint32 that count the rounds of one GPU: one a block, or, with the round in the data, one a thread."""
    chosen = rung_of(LADDERS["all_reduce"], rung, DEFAULT)
    return blocks_of(chosen, n) * (chosen.defines["THREADS"] if chosen.words == 2 else 1)


def together(rung: str | None, n: int, size: int, zeros: Callable[[tuple[int, ...], str], Any]) -> Group:
    """A group of `size` GPUs that one launch plays; zeros(shape, dtype) makes its arrays."""
    name = rung_of(LADDERS["all_reduce"], rung, DEFAULT).name
    mails = [zeros((words(name, n, size),), "uint32") for _ in range(size)]
    rounds = zeros((size, counters(name, n)), "uint32")
    return Group(name, n, mails, rounds, zeros((size,), "uint32"))


def blocks_of(rung: Rung, n: int) -> int:
    """The launch rule: blocks that sum n halves, two of them a word."""
    return math.ceil(n / (2 * rung.words) / rung.defines["THREADS"])


def launch_rule(rung: Rung) -> str:
    """The code that decides how a rung is launched, as a record's identity digests it."""
    return source_of_callable(blocks_of, words, counters, all_reduce)


@with_target()
def all_reduce(x: Any, group: Group, *, out: Any, rung: str | None = None) -> Any:
    """out = the sum over the GPUs of a group of x [n] FP16, added in FP32 in their order and rounded once.
    Where one launch plays all GPUs x and out are [GPUs, n].

    Every GPU of the group must launch the same sums in the same order. `rung` must be the group's. A peer
    that does not answer for some seconds leaves group.lost at 1 and `out` undefined.
    """
    chosen = rung_of(LADDERS["all_reduce"], rung or group.rung, DEFAULT)
    if chosen.name != group.rung:
        raise LaunchError(f"This group was made for {group.rung}, not for {chosen.name}.")
    if not 1 < group.size <= MOST:
        raise LaunchError(f"all_reduce sums over 2 to {MOST} GPUs, not {group.size}.")
    rows = group.size if group.rank is None else 1
    n = math.prod(int(size) for size in x.shape) // rows
    step = 2 * chosen.words
    if n % step or not 0 < n <= group.n:
        raise LaunchError(
            f"Rung all_reduce/{chosen.name} refuses n = {n}: it sums a multiple of {step}, in this group "
            f"up to {group.n}."
        )
    check_array("x", x, "float16", rows * n, 4 * chosen.words)
    check_array("out", out, "float16", rows * n, 4 * chosen.words)
    for i, mail in enumerate(group.mails):
        check_array(f"mailbox {i}", mail, "uint32", words(group.rung, group.n, group.size), 16)
    check_array("rounds", group.rounds, "uint32", rows * counters(group.rung, group.n))
    check_array("lost", group.lost, "uint32", rows)
    mails = [*group.mails, *[group.mails[0]] * (MOST - group.size)]
    numbers = (ctypes.c_int(v) for v in (n, group.rank or 0, blocks_of(chosen, group.n)))
    arguments = [x, out, *mails, group.rounds, group.lost, *numbers]
    options = tuple(sorted(chosen.with_defaults({"WORLD": group.size}).items()))
    grid, threads = (blocks_of(chosen, n), rows), chosen.defines["THREADS"]
    loaded(chosen, options).launch(grid, threads, arguments, cooperative=rows > 1)
    return out


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: several GPUs as rows of one launch, in round after round."""
    xp = arrays()
    for size, n in ((2, 1032), (3, 8), (4, 4 * rung.words * 300)):
        rng = np.random.default_rng(size)
        x = (rng.standard_normal((size, n)) + 0.25).astype(np.float16)
        expected = np.repeat(x.astype(np.float64).sum(0, keepdims=True), size, 0)
        budget = float(np.spacing(np.float16(np.abs(expected).max())))
        launch = partial(_summed, xp.asarray(x), together(rung.name, 2 * n, size, xp.zeros), rung)
        outs = [xp.empty((size, n), np.float16) for _ in range(3)]
        yield f"{size} GPUs, {n} halves", gate.trial(rung.name, launch, outs, expected, budget)


def _summed(x: Any, group: Group, rung: Rung, out: Any) -> None:
    all_reduce(x, group, out=out, rung=rung.name)
