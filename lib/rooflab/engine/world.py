"""Several processes, one GPU each, that hold a model together: what they exchange, and how they end.

A world sums arrays over its processes: `Pipes` over pipes of one host, which needs NumPy alone,
`Distributed` over torch.distributed, by gloo for NumPy arrays and NCCL for CUDA tensors, and `Peers` by the
course's own kernel. `run` starts the processes, and ends all of them when one is lost.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import numpy as np

from rooflab.errors import MissingTool, RooflabError, UsageError
from rooflab.ops import all_reduce, batch_ops, tensor_parallel

PATIENCE_S = 8.0  # that a process waits for another before it gives up
MOST = 8  # processes: the GPUs of one host


class LostProcess(RooflabError):
    """A process of a world ended or fell silent, so that the others cannot continue."""


class World:
    """`size` processes, of which this one is number `rank`. `chained`: whether dependent launches may stand
    around add_rmsnorm.
    """

    chained = False

    def __init__(self, rank: int, size: int):
        if not 0 <= rank < size <= MOST:
            raise UsageError(
                f"A world has up to {MOST} processes, counted from 0, not number {rank} of {size}."
            )
        self.rank, self.size = rank, size

    def all_reduce(self, x: Any) -> Any:
        """The sum over all processes of x, with the same bits in each; x may be overwritten. LostProcess if
        another process does not answer.
        """
        raise NotImplementedError

    def reserve(self, rows: int, width: int, share: int) -> None:
        """Prepare add_rmsnorm for `rows` rows of `width` or fewer, and all_gather for shares of `share`; all
        processes ask in the same order.
        """

    def add_rmsnorm(self, residual: Any, weights: Any, *, out: Any, parts: Any, epsilon: float) -> Any:
        """residual [n, width] FP32 += the sum over all processes of parts [splits, n, width] FP32; out
        [n, width] FP16 = its rows normalised, as batch_ops.rmsnorm does.
        """
        total = self.all_reduce(parts.sum(0))
        return batch_ops.rmsnorm(residual, weights, out=out, parts=total[None], epsilon=epsilon)

    def all_gather(self, x: Any, *, out: Any) -> Any:
        """out [n, size x share] = the x [n, share] of all processes side by side, by rank."""
        share = x.shape[1]
        out[...] = 0
        out[:, self.rank * share : (self.rank + 1) * share] = x
        return self.all_reduce(out)

    def check(self) -> None:
        """Wait for the sums so far; LostProcess if one of them missed a process."""

    def close(self) -> None:
        """Give up what connects this process to the others."""


class Pipes(World):
    """NumPy arrays over pipes to every other process. Sums are FP32, taken in the order of the ranks."""

    chained = True

    def __init__(self, rank: int, pipes: Sequence[Any], patience_s: float = PATIENCE_S):
        """`pipes` [size]: one to each other process, None at this one's place."""
        super().__init__(rank, len(pipes))
        self._pipes, self._patience_s = pipes, patience_s

    def all_reduce(self, x: Any) -> Any:
        parts = [x if peer == self.rank else self._exchanged(peer, x) for peer in range(self.size)]
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            total += part
        x[...] = total
        return x

    def _exchanged(self, peer: int, x: np.ndarray) -> np.ndarray:
        """What `peer` holds in place of x. The lower rank speaks first, so no two wait for each other."""
        pipe = self._pipes[peer]
        try:
            if self.rank < peer:
                pipe.send_bytes(x.tobytes())
            if not pipe.poll(self._patience_s):
                raise LostProcess(
                    f"Process {peer} of {self.size} has not answered process {self.rank} for "
                    f"{self._patience_s:.0f} s, so the sum over all of them cannot be taken."
                )
            received = pipe.recv_bytes()
            if self.rank > peer:
                pipe.send_bytes(x.tobytes())
        except (EOFError, OSError) as error:
            raise LostProcess(
                f"Process {peer} of {self.size} has ended, so process {self.rank} stops."
            ) from error
        return np.frombuffer(received, x.dtype).reshape(x.shape)

    def close(self) -> None:
        for pipe in self._pipes:
            if pipe is not None:
                pipe.close()


class Distributed(World):
    """torch.distributed's default group, which this opens at `address` (host:port): gloo for NumPy arrays,
    NCCL for CUDA tensors, and for those a GPU a process.
    """

    def __init__(self, rank: int, size: int, address: str, on: str = "gpu", patience_s: float = PATIENCE_S):
        super().__init__(rank, size)
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise MissingTool(
                "Several processes exchange through torch.distributed; install torch."
            ) from error
        device = None
        if on == "gpu":
            require_peers(size)
            torch.cuda.set_device(rank)
            device = torch.device("cuda", rank)
        self._distributed = distributed
        self.chained = on != "gpu"  # NCCL's kernels are launched on a stream of its own
        self._symmetric: list[Any] = []
        distributed.init_process_group(
            "nccl" if on == "gpu" else "gloo",
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience_s),
            device_id=device,
        )

    def all_reduce(self, x: Any) -> Any:
        shared = x
        if isinstance(x, np.ndarray):
            import torch

            shared = torch.from_numpy(x)
        try:
            self._distributed.all_reduce(shared)
        except RuntimeError as error:
            raise LostProcess(
                f"Process {self.rank} of {self.size} could not sum with the others, one of which has ended: "
                f"{' '.join(str(error).split())[:120]}."
            ) from error
        return x

    def symmetric(self, count: int, dtype: Any) -> list[Any]:
        """An array [count] of zeros on every GPU, as this process reaches them: a list by rank."""
        import torch
        import torch.distributed._symmetric_memory as symmetric

        own = symmetric.empty(count, dtype=dtype, device=f"cuda:{self.rank}")
        own.zero_()
        handle = symmetric.rendezvous(own, self._distributed.group.WORLD)
        torch.cuda.synchronize()
        self._distributed.barrier()
        self._symmetric.append((own, handle))
        others = (None if r == self.rank else handle.get_buffer(r, (count,), dtype) for r in range(self.size))
        return [own if buffer is None else buffer for buffer in others]

    def close(self) -> None:
        self._symmetric.clear()
        with suppress(RuntimeError):
            self._distributed.destroy_process_group()


class Peers(World):
    """The course's all-reduce over the GPUs' own memory for FP16 arrays of up to LARGEST elements, and NCCL,
    by the world `through`, for others.
    """

    LARGEST = 1 << 17
    chained = True

    def __init__(self, through: Distributed):
        super().__init__(through.rank, through.size)
        import torch

        self._through, name = through, all_reduce.DEFAULT
        mails = through.symmetric(all_reduce.words(name, self.LARGEST, self.size), torch.int32)
        counters = all_reduce.counters(name, self.LARGEST)
        rounds = torch.zeros(counters, dtype=torch.int32, device="cuda")
        lost = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.group = all_reduce.Group(name, self.LARGEST, mails, rounds, lost, self.rank)
        self._norms: dict[int, tensor_parallel.Group] = {}
        self._gathers: dict[int, tensor_parallel.Group] = {}

    def all_reduce(self, x: Any) -> Any:
        import torch

        if x.dtype != torch.float16 or x.numel() > self.LARGEST or x.numel() % 4:
            return self._through.all_reduce(x)
        return all_reduce.all_reduce(x, self.group, out=x)

    def reserve(self, rows: int, width: int, share: int) -> None:
        for groups, each in ((self._norms, width), (self._gathers, share)):
            if each not in groups or groups[each].rows < rows:
                groups[each] = self._group(rows, each)

    def _group(self, rows: int, width: int) -> tensor_parallel.Group:
        import torch

        mails = self._through.symmetric(tensor_parallel.words(rows, width, self.size), torch.int32)
        rounds = torch.zeros(tensor_parallel.counters(rows, width), dtype=torch.int32, device="cuda")
        return tensor_parallel.Group(rows, width, mails, rounds, self.group.lost, self.rank)

    def add_rmsnorm(self, residual: Any, weights: Any, *, out: Any, parts: Any, epsilon: float) -> Any:
        group = self._norms[int(parts.shape[-1])]
        return tensor_parallel.all_reduce_rmsnorm(
            residual, weights, group, out=out, parts=parts, epsilon=epsilon
        )

    def all_gather(self, x: Any, *, out: Any) -> Any:
        return tensor_parallel.all_gather(x, self._gathers[int(x.shape[-1])], out=out)

    def check(self) -> None:
        if int(self.group.lost.item()):
            said = f"A GPU has not answered GPU {self.rank} for some seconds, so the sums are wrong."
            raise LostProcess(said)

    def close(self) -> None:
        self._through.close()


def require_peers(size: int) -> None:
    """UsageError unless this host has `size` GPUs, each of which can reach the others' memory."""
    import torch

    found = torch.cuda.device_count()
    if found < size:
        raise UsageError(f"A world of {size} processes needs a GPU for each, and this host shows {found}.")
    for here in range(size):
        for there in range(size):
            if here != there and not torch.cuda.can_device_access_peer(here, there):
                raise UsageError(
                    f"GPU {here} cannot reach GPU {there}'s memory (no peer access), so they share no model."
                )


def run(
    size: int,
    work: Callable[..., Any],
    *arguments: Any,
    by: str = "pipes",
    patience_s: float = PATIENCE_S,
) -> list[Any]:
    """work(world, *arguments) in `size` new processes; their results by rank. `work` is a module's function.

    `by`: "pipes", "gloo", "nccl" or "peers". LostProcess if one of them ends without a result: the others get
    `patience_s` to notice and are ended then. An error of this course that a process raises is raised here.
    """
    if by not in ("pipes", "gloo", "nccl", "peers"):
        raise UsageError(f"Processes exchange by pipes, gloo, nccl or peers, not by {by!r}.")
    if not 1 <= size <= MOST:
        raise UsageError(f"A world has 1 to {MOST} processes, not {size}.")
    fresh = multiprocessing.get_context("spawn")
    ends: list[list[Any]] = [[None] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1, size):
            ends[i][j], ends[j][i] = fresh.Pipe() if by == "pipes" else (None, None)
    address = f"127.0.0.1:{_free_port()}"
    members, results = [], []
    for rank in range(size):
        result, told = fresh.Pipe(duplex=False)
        given = (rank, size, by, ends[rank], address, patience_s, told, work, arguments)
        member = fresh.Process(target=_member, args=given, daemon=True)
        member.start()
        told.close()  # what the process holds of it is the only end left: its death is the end of the file
        members.append(member)
        results.append(result)
    for pipe in (pipe for row in ends for pipe in row if pipe is not None):
        pipe.close()
    try:
        return _gathered(members, results, patience_s)
    finally:
        for member in members:
            if member.is_alive():
                member.terminate()
            member.join(2.0)
            if member.is_alive():
                member.kill()


def _gathered(members: Sequence[Any], results: Sequence[Any], patience_s: float) -> list[Any]:
    found: dict[int, Any] = {}
    failed: dict[int, RooflabError] = {}
    until = None
    while waiting := [i for i in range(len(members)) if i not in found and i not in failed]:
        left = None if until is None else max(0.0, until - time.monotonic())
        ready = connection.wait([results[i] for i in waiting], left)
        if not ready:
            break
        for i in waiting:
            if results[i] not in ready:
                continue
            try:
                good, value = results[i].recv()
            except EOFError:
                members[i].join(2.0)
                code = members[i].exitcode
                said = f"Process {i} of {len(members)} ended with code {code} before its work was done."
                good, value = False, LostProcess(said)
            if good:
                found[i] = value
            else:
                failed[i] = value
                until = until or time.monotonic() + patience_s
    if not failed:
        return [found[i] for i in range(len(members))]
    # What a process did wrong says more than that another one misses it.
    wrong = min(failed.values(), key=lambda error: isinstance(error, LostProcess))
    silent = [i for i in range(len(members)) if i not in found and i not in failed]
    if silent and isinstance(wrong, LostProcess):
        wrong = LostProcess(
            f"Process {silent[0]} of {len(members)} has not answered for {patience_s:.0f} s, so all stop."
        )
    raise wrong


def _member(
    rank: int, size: int, by: str, pipes: list[Any], address: str, patience_s: float,
    told: connection.Connection, work: Callable[..., Any], arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    """What a process of `run` does."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    world: World | None = None
    try:
        if by == "pipes":
            world = Pipes(rank, pipes, patience_s)
        else:
            world = Distributed(rank, size, address, "cpu" if by == "gloo" else "gpu", patience_s)
            world = Peers(world) if by == "peers" else world
        told.send((True, work(world, *arguments)))
    except RooflabError as error:
        told.send((False, error))
    except Exception as error:
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        told.send((False, RooflabError(f"Process {rank} of {size} failed: {said}")))
    finally:
        if world is not None:
            world.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
