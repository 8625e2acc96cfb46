"""Study `attribution` (lesson 02): what a decoded token and a prefill cost, by the kernel.

One decode step and one prefill of a whole model through transformers, by the wall clock: eager, in a CUDA
graph, compiled. Beside them the weight products alone, cold, by the graph clock. Tracers sum every step up by
the kind of kernel and the part of the model; Nsight Compute counts one layer and the output head.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pandas as pd

from rooflab.bench import gate
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.profile import parts
from rooflab.profile.ncu import STALLS
from rooflab.profile.trace import Trace
from rooflab.records.case import Case, options
from rooflab.studies import buffers, hf, products
from rooflab.studies.base import Context, Count, Described, Profile, Sized, Study, package_identity

MODEL = "qwen2.5-1.5b"
COMPILED = "transformers.compile"
CONTEXTS = (128, 1024, 4096, 8192)
UNCOMPILED = (128, 4096, 8192)  # torch.compile takes half a minute a context
PROMPTS = (128, 512, 1848, 8192)
LENGTHS = (64, 16384, 32768)  # prompts of which a few layers are traced: shares are a layer's
FEW = 2  # layers of those
COUNTED = (1024, 1848)  # the context and the prompt that Nsight Compute looks at
WIDTHS = (64, 1024, 4096, 32768)  # rows of the curve of sizes, beside those of the model
LAYER = 14  # the layer that is counted: any but the first is like the others
STEPS = 5  # traced steps a case

METRICS = (
    *("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "occupancy_pct"),
    *("issue_active", "load_sectors_per_request", "store_sectors_per_request", "threads_per_inst"),
    *("load_efficiency_pct", "store_efficiency_pct", "shared_efficiency_pct"),
    *STALLS,
)


def _case(operator: str, impl: str, seq: int, model: str, weights: str) -> Case:
    weights = weights or hf.weights_word()
    named = ("attribution", operator, impl, "peer", "fp16", model, weights)
    return Case(*named, batch=1, seq=seq, cache="", clock="wall")


def decode(
    contexts: Sequence[int] = CONTEXTS,
    variants: Sequence[str] = hf.VARIANTS,
    model: str = MODEL,
    weights: str = "",
) -> list[Case]:
    """One token at the end of a context, a variant each; at UNCOMPILED none by torch.compile."""
    return [
        _case("decode", impl, seq, model, weights)
        for seq in contexts
        for impl in variants
        if impl != COMPILED or seq not in UNCOMPILED
    ]


def prefill(prompts: Sequence[int] = PROMPTS, model: str = MODEL, weights: str = "") -> list[Case]:
    """A whole prompt at once, eager."""
    return [_case("prefill", "transformers.eager", seq, model, weights) for seq in prompts]


def lengths(prompts: Sequence[int] = LENGTHS, model: str = MODEL) -> list[Case]:
    """Prompts shorter and longer than the rest through FEW layers, eager, random weights."""
    few = options(layers=FEW)
    return [replace(case, options=few) for case in prefill(prompts, model, "random")]


def to_trace(cases: Iterable[Case]) -> list[Case]:
    """Of whole steps those that are traced: a compiled one takes half a minute, so of CONTEXTS at COUNTED."""
    untraced = {*CONTEXTS} - {*COUNTED}
    return [case for case in cases if case.impl != COMPILED or case.seq not in untraced]


def products_alone(model: str = MODEL, widths: Sequence[int] = WIDTHS) -> list[Case]:
    """The model's weight products alone, cold, by cuBLAS, and a few more of its hidden width for a curve."""
    found = model_shapes.get(model)
    sizes = {(p.n, p.k) for p in model_shapes.projections(found)} | {(n, found.hidden) for n in widths}
    return [
        Case("attribution", "gemv", "torch.matmul", "baseline", format="fp16", n=n, k=k, batch=1)
        for n, k in sorted(sizes)
    ]


class Attribution(Study):
    """Lesson 02."""

    name, lesson = "attribution", "02"
    setup_s = 3.0  # a model, and its logits in float64
    trace_repeats = STEPS

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            return [
                *decode(CONTEXTS[:2], hf.VARIANTS[:2]),
                *prefill(PROMPTS[:3:2]),
                *products_alone(widths=()),
            ]
        return [*decode(), *prefill(), *lengths(), *products_alone()]

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        steps = to_trace(case for case in self.cases(effort, device) if case.operator != "gemv")
        both = [case for case in steps if case.seq in COUNTED and case.impl != COMPILED]
        return [("nsys", steps, None), ("cupti", both, None), ("ncu", counted(), METRICS)]

    def needs(self, case: Case) -> str | None:
        return "torch" if case.operator == "gemv" else "transformers"

    def refuses(self, case: Case, capability: int) -> str | None:
        return hf.lacks(case.impl) or super().refuses(case, capability)

    def identity(self, case: Case, arch: str | None) -> str:
        return (
            package_identity("torch")
            if case.operator == "gemv"
            else package_identity("torch", "transformers")
        )

    def memory_bytes(self, case: Case) -> int:
        if case.operator == "gemv":
            return int(roofline.gemm_bytes(1, case.n or 0, case.k or 0, 2)) * buffers.copies(
                case, _bytes(case)
            )
        model, seq = shape_of(case), case.seq or 0
        if case.operator == "decode":
            return 2 * int(model_shapes.kv_bytes_per_token(model)) * seq
        return seq * (6 * model.mlp + 20 * model.hidden) * 8  # activations, widened by the oracle

    def shared_bytes(self, case: Case) -> int:
        if case.operator == "gemv":
            return 1 << 29  # what the oracle widens at a time
        if importlib.util.find_spec("torch") is None:
            return 0
        import torch

        held = torch.cuda.memory_allocated()  # the model may be there from the group before
        wanted = int(model_shapes.weight_bytes(shape_of(case), "fp16")) + (1 << 30)
        return max(0, wanted - held)

    def group(self, case: Case) -> tuple:
        return (case.operator, case.n, case.k, case.seq, case.model, case.weights, case.options)

    def samples(self, case: Case) -> int:
        return 20

    def count(self, case: Case) -> Count:
        if case.operator == "gemv":
            n, k, _ = case.matrix
            return Count(int(roofline.gemm_bytes(1, n, k, 2)), roofline.gemm_flops(1, n, k), "dram_read")
        model, seq = shape_of(case), case.seq or 0
        weights = model_shapes.weight_bytes(model, "fp16")
        if case.operator == "decode":
            moved = int(weights + model_shapes.kv_read_bytes(model, seq + 1))
            return Count(moved, model_shapes.decode_flops(model, seq + 1), "dram_read")
        moved = int(weights + seq * model_shapes.kv_bytes_per_token(model))
        return Count(moved, model_shapes.prefill_flops(model, seq), "fp16_tensor")

    def predict(self, case: Case, context: Context) -> float | None:
        count, device = self.count(case), context.device
        if device is None:
            return None
        return roofline.bound(count.bytes or 0, count.flops or 0, device.dram_gb_s, device.fp16_tensor).us

    def launch_us(self, case: Case, device: Device) -> float:
        return 3e4 if case.operator != "gemv" else super().launch_us(case, device)

    def rung(self, case: Case) -> Described | None:
        return None

    def row(
        self, case: Case, admitted: gate.Admitted, timing: Any, predicted_us: float | None
    ) -> dict[str, Any]:
        row = super().row(case, admitted, timing, predicted_us)
        if case.operator != "gemv":
            made = 1 if case.operator == "decode" else case.seq or 0
            row["tok_s"] = made * 1e6 / timing.median_us
        return row

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        build = {"gemv": _product, "decode": _decode, "prefill": _prefill}
        return [build[case.operator](case) for case in cases]

    # --- what profilers see -------------------------------------------------------------------------------

    @contextmanager
    def watch(self, gpu: Any, case_ids: Sequence[str], whole: bool) -> Iterator[bool]:
        """Names the model's parts. Nsight Compute's range is opened around one layer and the output head of a
        decode step, and around four parts of that layer of a prefill: more would take it many minutes.
        """
        prompt = not whole and self.case(case_ids[0]).operator == "prefill"
        opened: list[str] = []

        def counts(name: str) -> bool:
            if prompt:
                return name in _LONG and f"layer.{LAYER}" in opened
            return not whole and name in (f"layer.{LAYER}", "lm_head")

        def push(name: str) -> None:
            if counts(name):
                gpu.wait()
                gpu.start()
            gpu.push(name)
            opened.append(name)

        def pop() -> None:
            gpu.pop()
            if counts(opened.pop()):
                gpu.wait()
                gpu.stop()

        with hf.named_parts(push, pop):
            yield not whole

    def profile_columns(self, tool: str, metrics: Sequence[str] | None) -> tuple[str, ...]:
        if tool == "ncu":
            return ("part", "class", *super().profile_columns(tool, metrics))
        return parts.COLUMNS

    def trimmed(self, tool: str, found: Trace | pd.DataFrame, metrics: Sequence[str] | None) -> pd.DataFrame:
        if isinstance(found, Trace):
            return traced(found.activities)
        frame = found.assign(part=[parts.part_of(path)[1] for path in found["range"]])
        frame["class"] = [parts.class_of(n, p) for n, p in zip(frame["kernel"], frame["part"], strict=True)]
        frame["kernel"] = [parts.label(name) for name in frame["kernel"]]
        return frame[["case", *self.profile_columns(tool, metrics)]]


_LONG = ("q", "attention", "gate", "down")  # what a prefill spends its time in


def counted(model: str = MODEL, weights: str = "") -> list[Case]:
    """The two cases that Nsight Compute counts, one layer of each: a decode step and a prefill."""
    context, prompt = COUNTED
    eager = hf.VARIANTS[:1]
    return [*decode([context], eager, model, weights), *prefill([prompt], model, weights)]


def traced(activities: pd.DataFrame) -> pd.DataFrame:
    """A trace of decode and prefill cases, STEPS steps each, summed up (rooflab.profile.parts.table)."""
    cases = {case: Attribution().case(case) for case in activities["case"].unique()}
    models = {name: shape_of(case) for name, case in cases.items()}
    graphs = [name for name, case in cases.items() if case.impl == "transformers.graph"]
    eager = {name: name.replace("/transformers.graph ", "/transformers.eager ") for name in graphs}
    return parts.table(activities, STEPS, models, eager)


def shape_of(case: Case) -> model_shapes.Model:
    """The model that a case runs: the whole one, or its first layers."""
    found = model_shapes.get(case.model)
    return replace(found, layers=FEW) if case.options else found


@functools.cache
def _few(model: str) -> Any:
    return hf.build(replace(model_shapes.get(model), layers=FEW))


def _bytes(case: Case) -> int:
    return 2 * (case.n or 0) * (case.k or 0)


def _product(case: Case) -> gate.Work:
    import cupy

    n, k, _ = case.matrix
    count = buffers.copies(case, _bytes(case))
    ws, xs = (
        buffers.copied(products.weights(n, k), count),
        buffers.copied(products.activations(1, k), count),
    )
    ys = [cupy.empty((1, n), cupy.float16) for _ in range(count)]
    expected = products.oracle(ws[0], xs[0])
    launch = products.torch_matmul(ws, xs, ys)
    pairs = [[w, x] for w, x in zip(ws, xs, strict=True)]
    budget = products.budget(ws[0], xs[0], expected, "float16")
    return gate.Work(case.id, launch, pairs, [[y] for y in ys], lambda: expected, budget)


@functools.lru_cache(maxsize=1)
def _decoder(model: str, weights: str, context: int) -> tuple[hf.Decode, Any, float]:
    """A decode step's state, its expected logits, and their error budget: shared by a context's variants."""
    step = hf.Decode(hf.model(model, weights), context)
    past = hf.cached(step)
    expected = hf.reference(step.model, step.token, past)
    return step, expected, _budget(hf.reference(step.model, step.token, past, "float16"), expected)


def _budget(baseline: Any, expected: Any) -> float:
    import cupy

    return gate.error_budget(
        float((baseline.double() - expected).abs().max()), cupy.asarray(expected), "float16"
    )


def _decode(case: Case) -> gate.Work:
    import cupy

    step, expected, budget = _decoder(case.model, case.weights, case.seq or 0)
    run = hf.runner(step, case.impl)
    outputs = [list(run())]  # logits and token, which a graph writes in place and eager makes anew

    def launch(_: int) -> None:
        outputs[0][:] = run()

    first = lambda arrays: cupy.from_dlpack(arrays[0])[0]  # noqa: E731
    return gate.Work(case.id, launch, [[step.token]], outputs, lambda: cupy.asarray(expected), budget, first)


def _prefill(case: Case) -> gate.Work:
    import cupy

    found = _few(case.model) if case.options else hf.model(case.model, case.weights)
    ids = hf.tokens(case.seq or 0, found.config.vocab_size)
    expected = hf.reference(found, ids)
    budget = _budget(hf.reference(found, ids, dtype="float16"), expected)
    outputs = [[hf.prefill(found, ids)]]

    def launch(_: int) -> None:
        outputs[0][0] = hf.prefill(found, ids)

    first = lambda arrays: cupy.from_dlpack(arrays[0])[0]  # noqa: E731
    return gate.Work(case.id, launch, [[ids]], outputs, lambda: cupy.asarray(expected), budget, first)
