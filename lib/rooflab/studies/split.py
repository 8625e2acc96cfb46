"""Study `split` (lesson 10c): whole models on one GPU and on all GPUs of a host, by tensor parallelism.

A token of small and large models, with sums by NCCL, by a kernel of their own, and inside the norm that
follows them; a prompt; and the hand-over between two products alone, a sum and a norm of one row. The study
has a recording of its own, such as h100-sxm-x2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, tensor_parallel
from rooflab.records.case import Case
from rooflab.studies import links
from rooflab.studies.base import Context, Count, Sized
from rooflab.studies.links import ALONE, NCCL

FUSED = (
    "all_reduce_rmsnorm"  # sums inside the norms, in a chain of dependent launches; the head split as well
)
FUSED_PLAIN = f"{FUSED}.plain"  # the same kernels by plain launches: what the overlap is worth
SEPARATE = links.all_reduce.DEFAULT  # sums by a kernel of their own
MODELS = (
    ("qwen2.5-1.5b", "fp16"), ("llama-3-8b", "fp16"), ("llama-3-8b", "int4_g128"),
    ("llama-3-70b", "int4_g128"), ("llama-3-70b", "fp16"),
)  # fmt: skip
PROMPTS = (("llama-3-8b", "fp16", 1848), ("llama-3-8b", "fp16", 16384), ("llama-3-70b", "int4_g128", 1848))
HEAD = "fp16"
WIDTHS = (2048, 4096, 8192)  # of the rows that are handed over


def tokens(effort: str = "full") -> list[Case]:
    """A token of each model, by one GPU and by all with each way of summing."""
    ways = ((ALONE, "baseline"), (NCCL, "baseline"), (SEPARATE, "own"), (FUSED, "own"), (FUSED_PLAIN, "own"))
    return [
        Case(
            *("split", "decode", impl, kind, format, model, "random"),
            batch=1, seq=links.PROMPT, cache="", clock="wall", options=f"steps={links.STEPS}",
        )
        for model, format in (MODELS if effort == "full" else MODELS[:2])
        for impl, kind in ways
    ]  # fmt: skip


def prompts(effort: str = "full") -> list[Case]:
    """A prompt, by one GPU and by all with sums by NCCL."""
    return [
        Case(
            *("split", "prefill", impl, "baseline", format, model, "random"),
            seq=seq, cache="", clock="wall",
        )
        for model, format, seq in (PROMPTS if effort == "full" else PROMPTS[:1])
        for impl in (ALONE, NCCL)
    ]  # fmt: skip


def handovers(effort: str = "full") -> list[Case]:
    """A row's sum over all GPUs, added to the residual and normalised: in one kernel, or in two launches."""
    return [
        Case("split", FUSED, impl, kind, "fp16", n=width, cache="warm", clock="graph")
        for width in (WIDTHS if effort == "full" else WIDTHS[1:2])
        for impl, kind in ((NCCL, "baseline"), (SEPARATE, "own"), ("1_pdl", "own"))
    ]


def sum_us(impl: str, size: int, gpus: int) -> float:
    """A sum's bound, from what lesson 10 assumed: inside a norm it has no launch of its own."""
    if impl in (FUSED, FUSED_PLAIN):
        return links.HOP_US + links.crossing("all_reduce", SEPARATE, size, gpus) / links.SHEET_GB_S / 1e3
    return links.bound_us("all_reduce", impl, size, gpus)


def token_us(model: str, format: str, impl: str, gpus: int, gb_s: float) -> float:
    """A token's bound: its weights over the memories of all GPUs, and two sums a layer over several. The head
    is whole on each but where sums are in the norms.
    """
    each = sum_us(impl, 2 * model_shapes.get(model).hidden, gpus)
    heads_on = gpus if impl in (FUSED, FUSED_PLAIN) else 1
    return links.split_token_us(model, format, gpus, gb_s, each, heads_on)


def prompt_us(model: str, seq: int, gpus: int, tflop_s: float) -> float:
    """A prompt's bound: its FLOPs over the tensor cores of all GPUs, and two sums a layer over several."""
    shape = model_shapes.get(model)
    sums = 2 * shape.layers * sum_us(NCCL, 2 * shape.hidden * seq, gpus) if gpus > 1 else 0.0
    return model_shapes.prefill_flops(shape, seq) / gpus / tflop_s / 1e6 + sums


class Split(links.Links):
    """Lesson 10c."""

    name, lesson, gpus = "split", "10c", 2

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        return [*handovers(effort), *tokens(effort), *prompts(effort)]

    def count(self, case: Case) -> Count:
        if case.operator == FUSED:  # a row and the residual read and written, and weights
            return Count(14 * (case.n or 0), None, "")
        shape = model_shapes.get(case.model)
        flops = model_shapes.prefill_flops(shape, case.seq or 0) if case.operator == "prefill" else None
        return Count(int(model_shapes.weight_bytes(shape, case.format, HEAD)), flops, "")

    def predict(self, case: Case, context: Context) -> float | None:
        device, gpus = context.device, 1 if case.impl == ALONE else context.gpus
        if case.operator == FUSED:
            impl = FUSED if case.impl == "1_pdl" else case.impl
            return links.LAUNCH_US + sum_us(impl, 2 * (case.n or 0), gpus)  # the norm is launched in any case
        if device is None:
            return None
        if case.operator == "decode":
            return token_us(case.model, case.format, case.impl, gpus, device.dram_gb_s)
        return prompt_us(case.model, case.seq or 0, gpus, device.fp16_tensor)

    def seconds(self, case: Case, device: Device) -> float:
        """As the recordings took: processes are started, weights are made, packed, and judged by float64."""
        if case.operator == FUSED:
            return 1.5
        return 3.7 + 0.18 * (self.count(case).bytes or 0) / 1e9

    def group(self, case: Case) -> tuple:
        return (case.model, case.operator)  # for whose cases processes are started once

    def tokens_of(self, case: Case) -> int:
        return 1 if case.operator == "decode" else case.seq or 0

    def rung(self, case: Case) -> tuple[Rung, Mapping[str, int], str] | None:
        if case.kind != "own" or case.impl == SEPARATE:
            return super().rung(case)
        (rung,) = tensor_parallel.LADDERS[FUSED]
        return rung, rung.with_defaults({}), tensor_parallel.launch_rule(rung)

    def work(self) -> Callable[..., Any]:
        from rooflab.studies import links_work

        return links_work.of_split
