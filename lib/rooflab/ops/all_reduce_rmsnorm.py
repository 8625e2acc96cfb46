"""All-reduce, residual and RMSNorm in one kernel: what follows a product whose parts several GPUs hold.

Serving engines fuse these three (TensorRT-LLM and FlashInfer call it allreduce fusion). A GPU takes part
through a mailbox and a `Group`, as in ops.all_reduce; one launch plays one GPU, or all of them as rows of a
grid, on the CPU and on a single GPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.ops import Rung, arch_of, check_array, loaded, with_target
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
            "a branch summed over GPUs where it is added and normalised",
            defines={"THREADS": 384, "PARTS": 1, "SPLITS": 1, "WORLD": 2, "LIMIT": 1 << 22},
        ),
    ),
}


@dataclass(frozen=True)
class Group:
    """What the GPUs share, as one of them sees it, for up to `rows` rows of `width`: `mails`, a mailbox of
    words(...) uint32 for each; `rounds` [rows] and `lost` [1], uint32 of its own; `rank`, its number, or None
    where one launch plays all, whose rounds and lost have a leading [GPUs]. All start at zero.
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


def together(rows: int, width: int, size: int, zeros: Callable[[tuple[int, ...], str], Any]) -> Group:
    """A group of `size` GPUs that one launch plays; zeros(shape, dtype) makes its arrays."""
    mails = [zeros((words(rows, width, size),), "uint32") for _ in range(size)]
    return Group(rows, width, mails, zeros((size, rows), "uint32"), zeros((size,), "uint32"))


def takes(width: int) -> bool:
    """Whether rows of this width are summed."""
    return width % 4 == 0 and 0 < width <= WIDEST


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(all_reduce_rmsnorm, words)


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
    if not 1 < group.size <= MOST:
        raise LaunchError(f"all_reduce_rmsnorm sums over 2 to {MOST} GPUs, not {group.size}.")
    gpus = group.size if group.rank is None else 1
    splits, n, width = (int(size) for size in parts.shape[-3:])
    if width != group.width or not takes(width) or not 0 < n <= group.rows:
        raise LaunchError(
            f"This group sums up to {group.rows} rows of {group.width}, a multiple of 4 up to {WIDEST}, "
            f"not {n} of {width}."
        )
    check_array("residual", residual, "float32", gpus * n * width, 16)
    check_array("parts", parts, "float32", gpus * splits * n * width, 16)
    check_array("weights", weights, "float16", width, 8)
    check_array("out", out, "float16", gpus * n * width, 8)
    for i, mail in enumerate(group.mails):
        check_array(f"mailbox {i}", mail, "uint32", words(group.rows, width, group.size), 16)
    check_array("rounds", group.rounds, "uint32", gpus * group.rows)
    check_array("lost", group.lost, "uint32", gpus)
    held = math.ceil(width / 4096)
    macros = {"PARTS": held, "THREADS": 32 * math.ceil(width / (128 * held)), "SPLITS": splits}
    options = tuple(sorted(rung.with_defaults(macros | {"WORLD": group.size}).items()))
    mails = [*group.mails, *[group.mails[0]] * (MOST - group.size)]
    numbers = [ctypes.c_int(width), ctypes.c_float(epsilon)]
    numbers += [ctypes.c_int(group.rank or 0), ctypes.c_int(group.rows)]
    arguments = [residual, parts, weights, out, *mails, group.rounds, group.lost, *numbers]
    # A launch that plays all GPUs needs all of its blocks at once; a GPU's own wait for peers alone.
    how = {"cooperative": True} if gpus > 1 else {"dependent": arch_of(residual) in ops.DEPENDENT}
    loaded(rung, options).launch((n, gpus), macros["THREADS"], arguments, **how)
    return out


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate on the CPU: several GPUs as rows of one launch, in round after round."""
    for size, n, width, splits in ((2, 3, 1096, 2), (3, 1, 132, 1), (4, 2, 4104, 3)):
        rng = np.random.default_rng(size)
        group = together(n + 1, width, size, np.zeros)
        before = rng.standard_normal((n, width)).astype(np.float32)
        parts = rng.standard_normal((size, splits, n, width)).astype(np.float32)
        weights = rng.standard_normal(width).astype(np.float16)
        sums = parts.astype(np.float64).sum(1).astype(np.float16).astype(np.float64)
        total = before + sums.sum(0)
        expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
        outs = [np.empty((size, n, width), np.float16) for _ in range(3)]
        yield (
            f"{size} GPUs, {n} x {width} in {splits} parts",
            gate.Work(
                rung.name,
                _launcher(before, weights, group, parts, outs),
                [[parts]] * len(outs),
                [[out] for out in outs],
                lambda expected=expected, size=size: np.repeat(expected[None], size, 0),  # type: ignore[misc]
                float(np.spacing(np.float16(np.abs(expected).max()))),
            ),
        )


def _launcher(
    before: Any, weights: Any, group: Group, parts: Any, outs: Sequence[Any]
) -> Callable[[int], None]:
    def launch(i: int) -> None:
        residual = np.repeat(before[None], group.size, 0)
        all_reduce_rmsnorm(residual, weights, group, out=outs[i], parts=parts)

    return launch
