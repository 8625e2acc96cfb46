"""The contestants of study `links`, in a process for each GPU: gated and timed by all of them together.

A replay begins on all GPUs within about a microsecond: each waits in its stream for a small sum over all of
them first. A sample is the slowest GPU's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rooflab.bench import gate
from rooflab.engine.world import Distributed, Peers
from rooflab.ops import all_reduce, decoder_ops, stream
from rooflab.records.case import Case
from rooflab.studies import links, links_tokens, split
from rooflab.studies.links_tokens import Found, gathered

SAMPLES = 20
CHAIN_US = 1000.0
_MOST_CHAIN = 200
_EXPONENTS = 100  # by which sums in place may grow in BF16: with two GPUs each sum adds one, with four two
_HOLD_CYCLES = 400_000  # some 200 us, in which the host puts all of a replay into the stream
_SEED = 20261122


class Contestant(NamedTuple):
    """A case here: `work` as the gate takes it, `op` what is timed, `reset` what goes before a chain of it,
    `most` how long a chain may be.
    """

    case: Case
    work: gate.Work
    op: Callable[[], Any]
    reset: Callable[[], Any]
    most: int = _MOST_CHAIN


def measured(world: Distributed, case_ids: Sequence[str], samples: int = SAMPLES) -> dict[str, Found]:
    """Every case gated and timed, with all processes of the world; the same in each."""
    return _measured(world, [links.Links().case(case_id) for case_id in case_ids], samples)


def of_split(world: Distributed, case_ids: Sequence[str], samples: int = SAMPLES) -> dict[str, Found]:
    """As `measured`, for cases of study `split`."""
    return _measured(world, [split.Split().case(case_id) for case_id in case_ids], samples)


def _measured(world: Distributed, cases: Sequence[Case], samples: int) -> dict[str, Found]:
    whole, by_shape = ("decode", "prefill"), dict[tuple, list[Case]]()
    for case in cases:
        if case.operator in whole:
            continue
        key = ("peer" if case.operator in links.PEER else case.operator, case.n)
        by_shape.setdefault(key, []).append(case)
    found: dict[str, Found] = {}
    for group in by_shape.values():
        found |= _group(world, group, samples)
    models = [(case.model, case.format) if case.operator in whole else None for case in cases]
    for model in dict.fromkeys(filter(None, models)):
        mine = [case for case, its in zip(cases, models, strict=True) if its == model]
        found |= links_tokens.measured(world, mine)
    return found


def _group(world: Distributed, cases: Sequence[Case], samples: int) -> dict[str, Found]:
    import torch

    found: dict[str, Found] = {}
    ready: list[tuple[Contestant, gate.Admitted]] = []
    pool = Pool(world, cases[0].n or 0)
    for case in cases:
        reason, made, admitted = "", None, None
        try:
            made = contestant(pool, case)
            admitted = gate.admit(made.work)
        except Exception as error:  # a library's refusal, which all processes must hear of
            if case.kind == "own":
                raise
            reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        reason = next(filter(None, gathered(reason)), "")
        if reason or made is None or admitted is None:
            found[case.id] = Found([], math.nan, math.nan, reason)
        else:
            ready.append((made, admitted))
    stream_ = torch.cuda.Stream()
    with torch.cuda.stream(stream_):
        chains = [_chain(made) for made, _ in ready]
        series: list[list[float]] = [[] for _ in ready]
        order = np.random.default_rng(zlib.crc32(cases[0].id.encode()))
        for sample in range(-1, samples):
            for i in order.permutation(len(ready)):
                us = chains[i]()
                if sample >= 0:
                    series[i].append(us)
    torch.cuda.synchronize()
    slowest = np.max(gathered(series), 0) if ready else []
    for (made, admitted), times in zip(ready, slowest, strict=True):
        _checked_again(made, admitted)
        budget = admitted.work.budget
        found[made.case.id] = Found([float(us) for us in times], admitted.error, budget, "")
    return found


def _checked_again(made: Contestant, admitted: gate.Admitted) -> None:
    """Launched once more over poison and compared; what chains left too, where they summed nothing twice."""
    if made.most == _MOST_CHAIN:
        admitted.recheck()
        return
    gate.admit(made.work)


def _chain(made: Contestant) -> Callable[[], float]:
    """What times a chain of a contestant's launches once, in microseconds a launch."""
    import torch
    from torch import distributed

    token = torch.zeros(1, device="cuda")
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def between(run: Callable[[], Any], hold: bool) -> float:
        made.reset()
        if hold:
            torch.cuda._sleep(_HOLD_CYCLES)
        distributed.all_reduce(token)
        if not hold:
            torch.cuda.synchronize()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3

    for _ in range(3):
        made.op()
    torch.cuda.synchronize()
    if made.case.clock == "event":
        return lambda: between(made.op, hold=False)
    several = min(8, made.most)
    trial = _captured(made.op, several)
    between(trial, hold=True)
    each = max(gathered(between(trial, hold=True) / several))
    length = max(4, min(made.most, math.ceil(CHAIN_US / each)))
    replay = _captured(made.op, length)
    return lambda: between(replay, hold=True) / length


def _captured(op: Callable[[], Any], length: int) -> Callable[[], None]:
    import torch

    graph = torch.cuda.CUDAGraph()
    # Other threads of this process, NCCL's watchdog among them, go on calling CUDA meanwhile.
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        for _ in range(length):
            op()
    return graph.replay


# --- contestants --------------------------------------------------------------------------------------------


class Pool:
    """What contestants of one length share: each GPU's part."""

    def __init__(self, world: Distributed, n: int):
        import torch

        self.world, self.n, self.torch = world, n, torch
        self.parts = [self._part(rank) for rank in range(world.size)]
        self.x = self.parts[world.rank]

    def _part(self, rank: int) -> Any:
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(_SEED + rank)
        part = torch.empty(self.n, dtype=torch.float16, device="cuda")
        return part.normal_(0.25, 1.0, generator=generator)

    def sum(self) -> Any:
        """The sum over all GPUs in float64."""
        total = self.parts[0].double()
        for part in self.parts[1:]:
            total += part
        return total


def contestant(pool: Pool, case: Case) -> Contestant:
    """The contestant of a case; the library's own exceptions where it refuses."""
    if case.operator in links.PEER:
        return _between_two(pool, case)
    if case.operator == split.FUSED:
        return _handover(pool, case)
    if case.kind == "own":
        return _own_sum(pool, case)
    return {links.NCCL: _nccl, links.ONE_SHOT: _one_shot, links.TWO_SHOT: _two_shot}[case.impl](pool, case)


def _work(
    case: Case, launch: Callable[[], Any], x: Any, out: Any, expected: Callable[[], Any], budget: float
) -> gate.Work:
    import cupy

    oracle = lambda: cupy.from_dlpack(expected())  # noqa: E731
    return gate.Work(case.id, lambda i: launch(), [[x]], [[out]], oracle, budget)


def _nothing() -> None:
    pass


def _budget(pool: Pool, expected: Any, dtype: str) -> float:
    """Twice the error of a sum that rounds after every GPU, or one unit."""
    torch = pool.torch
    plain = pool.parts[0].to(getattr(torch, dtype))
    for part in pool.parts[1:]:
        plain = plain + part.to(plain.dtype)
    off = float((plain.double() - expected).abs().max())
    unit = float(torch.finfo(plain.dtype).eps * 2 ** math.floor(math.log2(float(expected.abs().max()))))
    return max(2 * off, unit)


def _between_two(pool: Pool, case: Case) -> Contestant:
    """Number 0 writes to number 1's memory, or reads it; the others look on."""
    import cupy

    torch, rank = pool.torch, pool.world.rank
    everywhere = pool.world.symmetric(pool.n, torch.float16)
    own, there = everywhere[rank], everywhere[1 if rank == 0 else 0]
    local = torch.empty_like(pool.x)
    source, target = (there, local) if case.operator == "peer_read" else (pool.x, there)
    if case.operator == "peer_read":
        own.copy_(pool.parts[0])
        source_value = pool.parts[0]
    else:
        source_value = pool.x
    if rank > 0:  # untimed, and on its own memory alone
        target = local
        source = pool.x
        source_value = pool.x
    torch.cuda.synchronize()

    def engine() -> None:
        size, kind = 2 * pool.n, cupy.cuda.runtime.memcpyDefault
        handle_ = torch.cuda.current_stream().cuda_stream
        cupy.cuda.runtime.memcpyAsync(target.data_ptr(), source.data_ptr(), size, kind, handle_)

    words = (source.view(torch.int32), target.view(torch.int32))
    op = engine if case.kind == "baseline" else lambda: stream.copy(words[0], out=words[1], rung=case.impl)
    work = _work(case, op, pool.x, target, lambda: source_value.double(), 0.0)
    return Contestant(case, work, op if rank == 0 else _nothing_much(pool), _nothing)


def _nothing_much(pool: Pool) -> Callable[[], None]:
    """A launch that a process makes while it only looks on: a graph may not be empty."""
    word = pool.torch.zeros(1, device="cuda")
    return lambda: word.zero_()


def _handover(pool: Pool, case: Case) -> Contestant:
    """A row's parts summed over all GPUs, added to the residual and normalised, in one kernel or in two. NCCL
    takes the mean, as in _nccl. Each launch adds to the residual, so the gate puts it back before its own.
    """
    from torch import distributed

    torch, world, n = pool.torch, pool.world, pool.n
    row = (1, n)
    generator = torch.Generator("cuda").manual_seed(_SEED - 1)  # the same on every GPU
    before = torch.empty(row, dtype=torch.float32, device="cuda").normal_(0.0, 4.0, generator=generator)
    weights = torch.empty(n, dtype=torch.float16, device="cuda").normal_(1.0, 0.1, generator=generator)
    residual, out = before.clone(), torch.empty(row, dtype=torch.float16, device="cuda")
    total = before.double() + pool.sum() / (world.size if case.impl == links.NCCL else 1)
    expected = total * (total.square().mean() + 1e-6).rsqrt() * weights.double()
    if case.kind == "baseline":
        branch = pool.x.clone()

        def op() -> None:
            distributed.all_reduce(branch, op=distributed.ReduceOp.AVG)
            decoder_ops.rmsnorm(residual, weights, out=out, branch=branch.view(row))

    elif case.impl == split.SEPARATE:
        sums, branch = Peers(world), torch.empty_like(pool.x)

        def op() -> None:
            all_reduce.all_reduce(pool.x, sums.group, out=branch)
            decoder_ops.rmsnorm(residual, weights, out=out, branch=branch.view(row))

    else:
        sums, parts = Peers(world), pool.x.float().view(1, 1, n)
        sums.reserve(1, n, 4)

        def op() -> None:
            sums.add_rmsnorm(residual, weights, out=out, parts=parts, epsilon=1e-6)

    def whole() -> None:
        residual.copy_(before)
        if case.kind == "baseline":
            branch.copy_(pool.x)
        op()

    # What a sum and an output in halves are off by.
    halves = before + (total - before.double()).half().float()
    plain = (halves * (halves.square().mean() + 1e-6).rsqrt() * weights.float()).half()
    off = float((plain.double() - expected).abs().max())
    unit = float(torch.finfo(out.dtype).eps * 2 ** math.floor(math.log2(float(expected.abs().max()))))
    work = _work(case, whole, pool.x, out, lambda: expected, max(2 * off, unit))
    return Contestant(case, work, op, lambda: residual.copy_(before), _in_place(world.size))


def _own_sum(pool: Pool, case: Case) -> Contestant:
    torch, world = pool.torch, pool.world
    count = all_reduce.words(case.impl, pool.n, world.size)
    mails = world.symmetric(count, torch.int32)
    rounds = torch.zeros(all_reduce.counters(case.impl, pool.n), dtype=torch.int32, device="cuda")
    lost = torch.zeros(1, dtype=torch.int32, device="cuda")
    group = all_reduce.Group(case.impl, pool.n, mails, rounds, lost, world.rank)
    out = torch.empty_like(pool.x)
    expected = pool.sum()

    def op() -> None:
        all_reduce.all_reduce(pool.x, group, out=out)

    work = _work(case, op, pool.x, out, lambda: expected, _budget(pool, expected, "float16"))
    return Contestant(case, work, op, _nothing)


def _nccl(pool: Pool, case: Case) -> Contestant:
    """NCCL through torch.distributed. Its all-reduce works in place, so the mean is asked for: repeated, it
    stays what it is, where a sum would leave FP16.
    """
    from torch import distributed

    torch, size, rank = pool.torch, pool.world.size, pool.world.rank
    share = pool.n // pool.world.size
    mean = distributed.ReduceOp.AVG
    if case.operator == "all_gather":
        mine, out = pool.x[:share], torch.empty_like(pool.x)
        whole = torch.cat([part[:share] for part in pool.parts])

        def gather() -> None:
            distributed.all_gather_into_tensor(out, mine)

        return Contestant(case, _work(case, gather, mine, out, whole.double, 0.0), gather, _nothing)
    expected = pool.sum() / size
    budget = _budget(pool, expected * size, "float16")
    if case.operator == "reduce_scatter":
        piece = torch.empty(share, dtype=pool.x.dtype, device="cuda")
        ours = expected[rank * share : (rank + 1) * share].clone()

        def scatter() -> None:
            distributed.reduce_scatter_tensor(piece, pool.x, op=mean)

        return Contestant(case, _work(case, scatter, pool.x, piece, lambda: ours, budget), scatter, _nothing)
    out = torch.empty_like(pool.x)

    def op() -> None:
        distributed.all_reduce(out, op=mean)

    def whole_op() -> None:
        out.copy_(pool.x)
        op()

    return Contestant(case, _work(case, whole_op, pool.x, out, lambda: expected, budget), op, _nothing)


def _in_place(size: int) -> int:
    """How many sums over `size` GPUs a chain may make in place."""
    return _EXPONENTS // (size - 1).bit_length()


def _one_shot(pool: Pool, case: Case) -> Contestant:
    from torch import distributed

    torch = pool.torch
    own = pool.world.symmetric(pool.n, torch.bfloat16)[pool.world.rank]
    parts = [part.to(torch.bfloat16) for part in pool.parts]
    own.copy_(parts[pool.world.rank])
    out, name = torch.empty_like(own), distributed.group.WORLD.group_name
    expected = torch.stack([part.double() for part in parts]).sum(0)

    def op() -> None:
        torch.ops.symm_mem.one_shot_all_reduce_out(own, "sum", name, out)

    work = _work(case, op, pool.x, out, lambda: expected, _budget(pool, pool.sum(), "bfloat16"))
    return Contestant(case, work, op, _nothing)


def _two_shot(pool: Pool, case: Case) -> Contestant:
    """Torch's works in place and knows sums alone: BF16 holds as many of them as a chain is allowed."""
    from torch import distributed

    torch = pool.torch
    own = pool.world.symmetric(pool.n, torch.bfloat16)[pool.world.rank]
    parts = [part.to(torch.bfloat16) for part in pool.parts]
    mine, name = parts[pool.world.rank], distributed.group.WORLD.group_name
    expected = torch.stack([part.double() for part in parts]).sum(0)

    def op() -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(own, "sum", name)

    def whole_op() -> None:
        own.copy_(mine)
        op()

    budget = _budget(pool, pool.sum(), "bfloat16")
    work = _work(case, whole_op, pool.x, own, lambda: expected, budget)
    return Contestant(case, work, op, lambda: own.copy_(mine), _in_place(pool.world.size))
