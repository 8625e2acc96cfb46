"""Study `links` (lesson 10): what the links between GPUs of one host give, and sums over all of them.

Copies and stores to a peer by size; all-reduce, all-gather and reduce-scatter by NCCL, in a graph and called
eagerly; torch's symmetric memory; the course's all-reduce; and a token of a model on one GPU and on all. A
process a GPU runs the contestants: see studies.links_work. The study has a recording of its own, such as
h200-x2. `n` counts 16-bit elements, and bytes are those of the array: what crosses a link is in `crossing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from rooflab.bench import clock, gate
from rooflab.engine import world
from rooflab.errors import UsageError
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, all_reduce, stream
from rooflab.records.case import Case
from rooflab.studies import launch_rule
from rooflab.studies.base import FORETOLD, Context, Count, Outcome, Sized, Study, package_identity

# 4 KB, a token of 2048 halves, to 256 MB, by powers of four; 16 KB is a token of Llama-3-70B.
SIZES = tuple(4096 << shift for shift in range(0, 17, 2))
TOKEN = (4096, 8192, 16384)  # bytes of a token's activations: 2048, 4096 and 8192 wide
OWN_MOST = 1 << 20  # bytes up to which the course's one-shot sums are measured
SHOT_MOST = 16 << 20  # and torch's

# What was assumed before anything was measured, in microseconds: a launch in a graph, as lesson 00 measures
# it, and a word's way over a link; and in GB/s a link's rate each way, from the sheet of an H200 (900 both).
LAUNCH_US, HOP_US, SHEET_GB_S = 1.3, 0.7, 450.0

PEER = ("peer_copy", "peer_write", "peer_read")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
# Models whose tokens are timed, with their format.
MODELS = (("qwen2.5-1.5b", "fp16"), ("llama-3-8b", "fp16"), ("llama-3-8b", "int4_g128"))
ALONE = "one_gpu"
PROMPT, STEPS = 128, 64
NCCL, ONE_SHOT, TWO_SHOT = "torch.nccl", "torch.one_shot", "torch.two_shot"


def _case(operator: str, impl: str, size: int, kind: str = "peer", clock: str = "graph") -> Case:
    format = "bf16" if impl in (ONE_SHOT, TWO_SHOT) else "fp16"
    return Case("links", operator, impl, kind, format, n=size // 2, cache="warm", clock=clock)


def peers(sizes: Sequence[int] = SIZES) -> list[Case]:
    """Bytes from one GPU to another: by the copy engine, by stores and by loads of a kernel."""
    engine = [_case("peer_copy", "cudaMemcpyAsync", size, "baseline") for size in sizes]
    kernel = stream.DEFAULT["copy"]
    return engine + [_case(way, kernel, size, "own") for size in sizes for way in PEER[1:]]


def sums(sizes: Sequence[int] = SIZES) -> list[Case]:
    """All-reduce by every contestant that takes a size: NCCL also called eagerly."""
    rungs = [rung.name for rung in all_reduce.LADDERS["all_reduce"]]
    found = []
    for size in sizes:
        found += [_case("all_reduce", rung, size, "own") for rung in rungs if size <= OWN_MOST]
        found += [_case("all_reduce", NCCL, size, clock=by) for by in ("graph", "event")]
        found += [_case("all_reduce", ONE_SHOT, size)] * (size <= SHOT_MOST)
        found += [_case("all_reduce", TWO_SHOT, size)]
    return found


def others(sizes: Sequence[int] = SIZES) -> list[Case]:
    """All-gather and reduce-scatter by NCCL; n counts the whole array."""
    return [_case(way, NCCL, size) for way in COLLECTIVES[1:] for size in sizes]


def tokens(effort: str = "full") -> list[Case]:
    """A token by a split decoder, whose sums NCCL or the course's kernel makes, and by one GPU's."""
    impls = ((ALONE, "baseline"), (NCCL, "baseline"), (all_reduce.DEFAULT, "own"))
    return [
        Case(
            *("links", "decode", impl, kind, format, model, "random"),
            batch=1, seq=PROMPT, cache="", clock="wall", options=f"steps={STEPS}",
        )
        for model, format in (MODELS if effort == "full" else MODELS[:1])
        for impl, kind in impls
    ]  # fmt: skip


def crossing(operator: str, impl: str, size: int, gpus: int) -> float:
    """Bytes that leave a GPU for `size` bytes of an array, over all its links."""
    if operator in PEER:
        return float(size)
    if operator in ("all_gather", "reduce_scatter"):
        return size * (gpus - 1) / gpus
    if impl in (NCCL, TWO_SHOT):
        return 2 * size * (gpus - 1) / gpus
    return float(size * (gpus - 1) * (2 if impl == "3_flag_in_data" else 1))


def crossings(operator: str, impl: str) -> int:
    """How often in a row bytes or flags cross a link before a GPU is done: a read goes there and back."""
    if operator in PEER:
        return 2 if operator == "peer_read" else 1
    by_impl = {"1_pull": 3, "2_push": 2, "3_flag_in_data": 1, ONE_SHOT: 3}
    return by_impl.get(impl, 2 if operator != "all_reduce" else 4)


def bound_us(operator: str, impl: str, size: int, gpus: int, rate_gb_s: float = SHEET_GB_S) -> float:
    """The law latency + bytes / rate, from what was assumed: see LAUNCH_US."""
    wire = crossing(operator, impl, size, gpus) / rate_gb_s / 1e3
    return LAUNCH_US + HOP_US * crossings(operator, impl) + wire


def split_token_us(
    model: str, format: str, gpus: int, gb_s: float, each_us: float, heads_on: int = 1
) -> float:
    """A token's bound: its weights over the memories of all GPUs, and over several two sums a layer of
    `each_us`. The head, in FP16, is whole on each, or shared by `heads_on`.
    """
    shape, head_format = model_shapes.get(model), "fp16"
    head = model_shapes.head(shape) * model_shapes.WEIGHT_BYTES[head_format]
    body = model_shapes.weight_bytes(shape, format, head_format) - head
    sums = 2 * shape.layers * each_us if gpus > 1 else 0.0
    return (body / gpus + head / heads_on) / gb_s / 1e3 + sums


def token_us(model: str, format: str, impl: str, gpus: int, gb_s: float) -> float:
    """A token's bound, with sums by `impl`."""
    each = bound_us("all_reduce", impl, 2 * model_shapes.get(model).hidden, gpus)
    return split_token_us(model, format, gpus, gb_s, each)


class Links(Study):
    """Lesson 10."""

    name, lesson, gpus = "links", "10", 2

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        sizes = SIZES if effort == "full" else SIZES[::4]
        every = tuple(sorted({*sizes, *(TOKEN if effort == "full" else ())}))
        return [*peers(sizes), *sums(every), *others(sizes), *tokens(effort)]

    def needs(self, case: Case) -> str | None:
        return "torch"  # torch.distributed joins the processes, for our own sums too

    def memory_bytes(self, case: Case) -> int:
        return 6 * 2 * (case.n or 0)

    def count(self, case: Case) -> Count:
        if case.operator == "decode":
            model = model_shapes.get(case.model)
            return Count(int(model_shapes.weight_bytes(model, case.format, "fp16")), None, "")
        return Count(2 * (case.n or 0), None, "")

    def predict(self, case: Case, context: Context) -> float | None:
        if case.operator != "decode":
            return bound_us(case.operator, case.impl, 2 * (case.n or 0), context.gpus)
        if context.device is None:
            return None
        gpus = 1 if case.impl == ALONE else context.gpus
        return token_us(case.model, case.format, case.impl, gpus, context.device.dram_gb_s)

    def foretold(self, case: Case) -> str:
        return super().foretold(case) if case.operator == "decode" else FORETOLD

    def launch_us(self, case: Case, device: Device) -> float:
        if case.operator == "decode":
            gpus = 1 if case.impl == ALONE else self.gpus
            return 2 * STEPS * token_us(case.model, case.format, case.impl, gpus, device.dram_gb_s)
        return 2 * bound_us(case.operator, case.impl, 2 * (case.n or 0), self.gpus)

    def group(self, case: Case) -> tuple:
        return (case.operator == "decode",)  # the processes are started once for many cases

    def rung(self, case: Case) -> tuple[Rung, Mapping[str, int], str] | None:
        if case.kind != "own":
            return None
        if case.operator in ("all_reduce", "decode") or case.impl == all_reduce.DEFAULT:
            rung = all_reduce.rung_of(all_reduce.LADDERS["all_reduce"], case.impl, all_reduce.DEFAULT)
            return rung, rung.with_defaults({}), all_reduce.launch_rule(rung)
        rung = stream.rung_of(stream.LADDERS["copy"], case.impl, stream.DEFAULT["copy"])
        return rung, rung.with_defaults({}), stream.launch_rule(rung)

    def identity(self, case: Case, arch: str | None) -> str:
        return super().identity(case, arch) if case.kind == "own" else package_identity("torch")

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        raise UsageError("The contestants of links exist in processes of their own, a GPU each.")

    def measure_group(self, group: Sequence[Case], context: Context) -> Outcome:
        """Gate and time the cases in a process a GPU."""
        predictions = {case.id: self.predict(case, context) for case in group}
        ids = [case.id for case in group]
        told = world.run(context.gpus, self.work(), ids, by="nccl", patience_s=120.0)[0]
        outcome = Outcome()
        for case in group:
            found = told[case.id]
            if found.reason:
                outcome.skipped[case.id] = found.reason
                continue
            work = gate.Work(case.id, lambda i: None, [], [], lambda: None, found.budget)
            timing = clock.Timing.of(found.samples_us)
            admitted = gate.Admitted(work, found.error, None, [])
            row = self.row(case, admitted, timing, predictions[case.id])
            if tokens := self.tokens_of(case):
                row |= {"tok_s": 1e6 * tokens / timing.median_us}
            outcome.rows.append(row)
        return outcome

    def work(self) -> Callable[..., Any]:
        """What each process of the world runs, given the ids of the cases."""
        from rooflab.studies import links_work

        return links_work.measured

    def tokens_of(self, case: Case) -> int:
        """Tokens that a sample of a case makes or takes in, 0 where it is none of tokens."""
        return int(case.operator == "decode")


# --- what lessons read --------------------------------------------------------------------------------------


def law(rows: pd.DataFrame, gpus: int) -> pd.DataFrame:
    """latency + bytes / rate fitted to each contestant of `rows`: operator, impl, clock, latency_us,
    rate_gb_s (bytes that leave a GPU), worst (the largest ratio of a time to the law's).
    """
    found = []
    for (operator, impl, by), mine in rows.groupby(["operator", "impl", "clock"], sort=False):
        if len(mine) < 3:
            continue
        moved = [crossing(str(operator), str(impl), int(size), gpus) for size in mine["bytes"]]
        fixed, rate = launch_rule.line(moved, list(mine["median_us"]))
        fitted = [fixed + size / rate / 1e3 for size in moved]
        worst = max(max(a / b, b / a) for a, b in zip(mine["median_us"], fitted, strict=True))
        found.append((operator, impl, by, fixed, rate, worst))
    return pd.DataFrame(found, columns=["operator", "impl", "clock", "latency_us", "rate_gb_s", "worst"])
