"""What a split decoder exchanges in a chain of dependent launches: sums over GPUs, taken in the norm that
follows a product, and logits of a split head, put side by side.

Serving engines fuse all-reduce, residual and RMSNorm, too (TensorRT-LLM and FlashInfer call it allreduce
fusion). A GPU takes part through a mailbox and a `Group`, as in ops.all_reduce; one launch plays one GPU, or
all of them as rows of a grid, on the CPU and on a single GPU.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.ops import Rung, arch_of, arrays, check_array, loaded, with_target
from rooflab.ops.all_reduce import MOST
from rooflab.records.fingerprint import source_of_callable

PLACE = 10.5  # of its ladder among all of them: in the order of the lessons
WIDEST = 8192
LADDERS: dict[str, tuple[Rung, ...]] = {
    "all_reduce_rmsnorm": (
        Rung(
            "all_reduce_rmsnorm",
            "1_pdl",
            "all_reduce_rmsnorm_pdl",
            "what a product gives, summed over the GPUs, added to the residual and normalised",
            defines={"THREADS": 384, "PARTS": 1, "SPLITS": 1, "WORLD": 2, "LIMIT": 1 << 22},
        ),
    ),
    "all_gather": (
        Rung(
            "all_gather",
            "1_pdl",
            "all_gather_pdl",
            "shares of logits put together, in a chain of dependent launches",
            words=2,
            defines={"THREADS": 256, "WORLD": 2, "LIMIT": 1 << 22},
        ),
    ),
}


@dataclass(frozen=True)
class Group:
    """What the GPUs share, as one of them sees it, for up to `rows` rows of `width`: `mails`, a mailbox of
    words(...) uint32 for each; `rounds` [counters(...)] and `lost` [1], its own uint32; `rank`, its number,
    (None where one launch plays all: rounds and lost have a leading [GPUs] then). All start at zero. A group
    serves one of the two kernels alone.
    """

    rows: int
    width: int
    mails: Sequence[Any]
    rounds: Any
    lost: Any
    rank: int | None = None

    @property
    def size(self) -> int:
        """GPUs that take part."""
        return len(self.mails)


def words(rows: int, width: int, size: int) -> int:
    """uint32 of a mailbox: two slots for each of `size` GPUs, of a word of round for each two halves."""
    return 2 * size * rows * width


def counters(rows: int, width: int) -> int:
    """uint32 that count the rounds of one GPU: one a block."""
    return rows * _blocks(width)


def _blocks(width: int) -> int:
    """Blocks of all_gather to a row."""
    return math.ceil(width / 4 / LADDERS["all_gather"][0].defines["THREADS"])


def together(rows: int, width: int, size: int, zeros: Callable[[tuple[int, ...], str], Any]) -> Group:
    """A group of `size` GPUs that one launch plays; zeros(shape, dtype) makes its arrays."""
    mails = [zeros((words(rows, width, size),), "uint32") for _ in range(size)]
    rounds = zeros((size, counters(rows, width)), "uint32")
    return Group(rows, width, mails, rounds, zeros((size,), "uint32"))


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    launched = {"all_reduce_rmsnorm": all_reduce_rmsnorm, "all_gather": all_gather}
    return source_of_callable(launched[rung.operator], _launch, words, counters)


@with_target()
def all_reduce_rmsnorm(
    residual: Any, weights: Any, group: Group, *, out: Any, parts: Any, epsilon: float = 1e-6
) -> Any:
    """residual [n, width] FP32 += the sum over the GPUs of a group of parts [splits, n, width] FP32, each
    GPU's sum rounded to FP16 and added in the order of the GPUs, so that residuals stay the same on all.
    out [n, width] FP16 = the rows over their root mean square, times weights [width] FP16.

    Where one launch plays all GPUs, residual, out and parts have a leading [GPUs]. Every GPU of the group
    launches the same sums in the same order; one that does not answer for seconds leaves group.lost at 1.
    """
    (rung,) = LADDERS["all_reduce_rmsnorm"]
    splits, n, width = (int(size) for size in parts.shape[-3:])
    gpus = _check(group, rung, n, width)
    if width > WIDEST:
        raise LaunchError(f"all_reduce_rmsnorm takes rows of up to {WIDEST}, not {width}.")
    check_array("residual", residual, "float32", gpus * n * width, 16)
    check_array("parts", parts, "float32", gpus * splits * n * width, 16)
    check_array("weights", weights, "float16", width, 8)
    check_array("out", out, "float16", gpus * n * width, 8)
    held = math.ceil(width / 4096)
    macros = {"PARTS": held, "THREADS": 32 * math.ceil(width / (128 * held)), "SPLITS": splits}
    numbers = [ctypes.c_int(width), ctypes.c_float(epsilon)]
    _launch(rung, (n, gpus), macros, group, [residual, parts, weights, out], numbers)
    return out


@with_target()
def all_gather(x: Any, group: Group, *, out: Any) -> Any:
    """out [n, GPUs x width] FP16 = the shares of all GPUs of a group side by side, in their order, of which x
    [n, width] FP16 is this one's. Where one launch plays all GPUs, x and out have a leading [GPUs]; else as
    all_reduce_rmsnorm.
    """
    (rung,) = LADDERS["all_gather"]
    n, width = (int(size) for size in x.shape[-2:])
    gpus = _check(group, rung, n, width)
    check_array("x", x, "float16", gpus * n * width, 8)
    check_array("out", out, "float16", gpus * n * width * group.size, 8)
    _launch(rung, (_blocks(width), n, gpus), {}, group, [x, out], [ctypes.c_int(width)])
    return out


def _check(group: Group, rung: Rung, n: int, width: int) -> int:
    """Refuse what a group does not take; how many GPUs a launch plays."""
    if not 1 < group.size <= MOST:
        raise LaunchError(f"{rung.operator} joins 2 to {MOST} GPUs, not {group.size}.")
    if width != group.width or width % 4 or not 0 < n <= group.rows:
        raise LaunchError(
            f"This group joins up to {group.rows} rows of {group.width}, a multiple of 4, not {n} of {width}."
        )
    gpus = group.size if group.rank is None else 1
    for i, mail in enumerate(group.mails):
        check_array(f"mailbox {i}", mail, "uint32", words(group.rows, width, group.size), 16)
    check_array("rounds", group.rounds, "uint32", gpus * counters(group.rows, width))
    check_array("lost", group.lost, "uint32", gpus)
    return gpus


def _launch(
    rung: Rung, grid: tuple[int, ...], macros: Any, group: Group, arrays: list[Any], numbers: list[Any]
) -> None:
    options = rung.with_defaults({**macros, "WORLD": group.size})
    mails = [*group.mails, *[group.mails[0]] * (MOST - group.size)]
    numbers = [*numbers, ctypes.c_int(group.rank or 0), ctypes.c_int(group.rows)]
    # A launch that plays all GPUs needs all of its blocks at once; a GPU's own wait for peers alone.
    together, after = group.rank is None, arch_of(arrays[0]) in ops.DEPENDENT
    loaded(rung, tuple(sorted(options.items()))).launch(
        grid,
        options["THREADS"],
        [*arrays, *mails, group.rounds, group.lost, *numbers],
        cooperative=together,
        dependent=after and not together,
    )


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: several GPUs as rows of one launch, in round after round."""
    xp = arrays()
    for size, n, width, splits in ((2, 3, 1096, 2), (3, 1, 132, 1), (4, 2, 4104, 3)):
        rng = np.random.default_rng(size)
        group = together(n + 1, width, size, xp.zeros)
        if operator == "all_gather":
            x = rng.standard_normal((size, n, width)).astype(np.float16)
            expected = np.repeat(np.concatenate(list(x.astype(np.float64)), 1)[None], size, 0)
            launch: Callable[[Any], Any] = functools.partial(_gather, xp.asarray(x), group)
            shape, budget = f"{size} GPUs, {n} x {width}", 0.0
        else:
            before = rng.standard_normal((n, width)).astype(np.float32)
            parts = rng.standard_normal((size, splits, n, width)).astype(np.float32)
            weights = rng.standard_normal(width).astype(np.float16)
            total = before + parts.astype(np.float64).sum(1).astype(np.float16).astype(np.float64).sum(0)
            normed = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
            expected = np.repeat(normed[None], size, 0)
            operands = xp.asarray(before), xp.asarray(weights), xp.asarray(parts)
            launch = functools.partial(_sum, *operands, group)
            budget = float(np.spacing(np.float16(np.abs(normed).max())))
            shape = f"{size} GPUs, {n} x {width} in {splits} parts"
        outs = [xp.empty(expected.shape, np.float16) for _ in range(3)]
        yield shape, gate.trial(rung.name, launch, outs, expected, budget)


def _gather(x: Any, group: Group, out: Any) -> None:
    all_gather(x, group, out=out)


def _sum(before: Any, weights: Any, parts: Any, group: Group, out: Any) -> None:
    residual = arrays().repeat(before[None], group.size, 0)
    all_reduce_rmsnorm(residual, weights, group, out=out, parts=parts)
