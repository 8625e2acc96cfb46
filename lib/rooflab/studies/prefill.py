"""Study `prefill` (lesson 08): the prefill ladder in tokens per second, one step at a time.

A case takes in a prompt of `seq` tokens, up to the logits and the choice of the next token, by transformers
or by one of the engine's ways (`engine.PROMPTS`, each a switch more than the one before); the weights are
random, of the real shapes, and resident in the case's format alone. The last logits must be as near float64's
as those of a float16 baseline, for Q8_0 one that rounds what products multiply to Q8_1 where ours do. The
clock is the host's, from the call to the finished logits. A tracer splits the first and the last way by kind
of kernel, and the instrument "checks" records peak memory.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pandas as pd

from rooflab import engine, ops
from rooflab.bench import gate
from rooflab.engine import exact, gemma, gemma_exact
from rooflab.engine.decoder import PROMPT_METHODS
from rooflab.engine.products import Products
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.ops import Rung, attention, decoder, decoder_ops, mmq, prompt_products
from rooflab.profile import parts
from rooflab.profile.trace import Trace
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import source_of_callable
from rooflab.studies import decode, decode_work, decoding, hf, predictions
from rooflab.studies.base import FORETOLD, Context, Count, Described, Profile, Sized, Study, package_identity

PROMPTS = (512, 1848, 8192)
QUICK = 512
EVERY_WAY = 1848  # the longest prompt timed by every way: of longer ones each embedding launched is the time
TRACED = 1848  # the source's prompt
STEPS = 3  # traced prompts a case
CAPACITY = 8448  # positions that weights know the rotations of
# Kinds of kernel in a prompt, by what a name holds; first match wins, what is left is torch's own.
FAMILIES = (
    ("our products", r"mmq|q8_0_|prompt_product"),
    ("quantising", r"q8_1|quantise"),
    ("dequantising", r"dequant"),
    ("attention", r"attention|fmha|flash|sdpa"),
    ("our others", r"rmsnorm|rope|silu_mul|gelu_mul|per_layer|_rows|decode_step|embedding|sample"),
    ("cuBLAS", parts.PRODUCT.pattern),
)
OTHERS = "torch"


# transformers called from Python, in a CUDA graph, and in a graph with flash-attn-4 for its attention.
PEERS = (hf.VARIANTS[0], hf.VARIANTS[1], f"transformers.{hf.FLASH}")


def _case(impl: str, format: str, model: str, seq: int, operator: str = "prefill") -> Case:
    kind = "peer" if impl in PEERS else "own"
    head = decode.FORMATS[format]
    more = options(head=head) if head != format else ""
    named = ("prefill", operator, impl, kind, format, model, "random")
    return Case(*named, batch=1, seq=seq, options=more, cache="", clock="wall")


def _timed(impl: str, format: str, model: str, seq: int) -> Case:
    """A prompt after a rest: power holds products, so a neighbour's heat would count."""
    return replace(_case(impl, format, model, seq), state="burst")


def ways(format: str) -> list[str]:
    """Names of the engine's ways with weights of a format: MMQ is for Q8_0 alone."""
    return [name for name in engine.PROMPTS if name != "2_mmq" or format == "q8_0"]


def rounds(case: Case) -> bool:
    """Whether products of a way multiply Q8_1 instead of FP16; of the other decoder's those of the last
    token, which goes through the layers without a cache alone.
    """
    if case.format != "q8_0" or case.impl == "gemma":
        return case.format == "q8_0"
    return engine.PROMPTS[case.impl].mmq and ops.known_arch() != "90"


def ladder(
    format: str, prompts: Sequence[int] = PROMPTS, model: str = decode.MODEL, whole: int = TRACED
) -> list[Case]:
    """Ways of taking in a prompt with weights of one format, slowest first, and in FP16 transformers; of INT4
    the last, on the prompt of `whole` tokens alone.
    """
    found, few = [], format == "int4_g128"
    for seq in [whole] if few else prompts:
        if format == "fp16" and model in hf.MODELS:
            found += [_timed(impl, format, model, seq) for impl in PEERS]
        for name in ways(format)[-1:] if few else ways(format):
            if seq <= EVERY_WAY or engine.PROMPTS[name].embed:
                found.append(_timed(name, format, model, seq))
    return found


def large(prompts: Sequence[int] = PROMPTS[1:2]) -> list[Case]:
    """The last way on the shapes of a model five times the size."""
    return [
        _timed(ways(format)[-1], format, decode.LARGE, seq) for format in ("fp16", "q8_0") for seq in prompts
    ]


def others() -> list[Case]:
    """A decoder of another kind, the source's, on the source's prompt."""
    return [_timed("gemma", "q8_0", decode.GEMMA, TRACED)]


class Prefill(Study):
    """Lesson 08."""

    name, lesson = "prefill", "08"
    setup_s = 0.8
    after = predictions.SOURCES
    trace_repeats = STEPS

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            return [case for format in decode.FORMATS for case in ladder(format, (QUICK,), whole=QUICK)]
        found = [case for format in decode.FORMATS for case in ladder(format)]
        return [*found, *large(), *others()]

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        ours = [case for case in self.cases(effort, device) if case.model == decode.MODEL]
        return [("cupti", traced(), None), ("checks", memory(ours), None)]

    def needs(self, case: Case) -> str | None:
        if case.impl == PEERS[-1]:
            return "flash_attn"
        return "transformers" if case.model in hf.MODELS else "torch"

    def refuses(self, case: Case, capability: int) -> str | None:
        return decode.unfit(case, capability) or super().refuses(case, capability)

    def memory_bytes(self, case: Case) -> int:
        model, seq = model_shapes.get(case.model), case.seq or 0
        return seq * (6 * model.mlp + 20 * model.hidden) * 8  # activations, widened by the oracle

    def shared_bytes(self, case: Case) -> int:
        return hf.unallocated_bytes(case.model, case.format, decode.head_of(case), 2 << 30)

    def group(self, case: Case) -> tuple:
        return (case.model, case.format, case.seq)

    def samples(self, case: Case) -> int:
        return 7

    def count(self, case: Case) -> Count:
        model, seq = model_shapes.get(case.model), case.seq or 0
        moved = model_shapes.weight_bytes(model, case.format, decode.head_of(case))
        moved += seq * model_shapes.kv_bytes_per_token(model)
        own = case.kind == "own" and case.model != decode.GEMMA
        flops = model_shapes.needed_flops(model, seq, own and engine.PROMPTS[case.impl].last)
        return Count(int(moved), flops, "fp16_tensor")

    def predict(self, case: Case, context: Context) -> float | None:
        known = predictions.known(context.device)
        if known is None or case.model == decode.GEMMA:
            return None
        if case.kind == "peer":
            return known.prompt_waits.get(case.seq or 0) if case.impl == PEERS[0] else None
        paths = engine.PROMPTS[case.impl]
        head_dim = engine.spec(case.model).shape.head_dim
        rung = paths.attention or attention.default_rung(head_dim, ops.known_arch())
        return predictions.prompt_us(known, case.model, case.format, case.seq or 0, paths, rung)

    def foretold(self, case: Case) -> str:
        return FORETOLD

    def launch_us(self, case: Case, device: Device) -> float:
        count = self.count(case)
        least = roofline.bound(count.bytes or 0, count.flops or 0, device.dram_gb_s, device.fp16_tensor).us
        slow = 15 if case.impl.startswith("1_") else 3
        return max(3e4 if case.kind == "peer" else 3e3, slow * least)

    def builds(self, case: Case) -> list[tuple[Rung, Mapping[str, int]]]:
        if case.kind != "own" or case.model == decode.GEMMA:
            return super().builds(case)
        return [
            *super().builds(case),
            *prompt_builds(case.model, case.format, decode.head_of(case), ops.known_arch()),
        ]

    def rung(self, case: Case) -> Described | None:
        return self._rung(case, ops.known_arch()) if case.kind == "own" else None

    def _rung(self, case: Case, arch: str) -> Described:
        """The rung that does a way's attention or, where that is our own product, MMQ's; the other rungs'
        sources and rules are part of its launch rule.
        """
        if case.model == decode.GEMMA:
            return decode.Decode()._rung(case, arch)
        shape, paths = engine.spec(case.model).shape, engine.PROMPTS[case.impl]
        name = paths.attention or attention.default_rung(shape.head_dim, arch)
        attend = ops.rung_of(attention.LADDERS["attention"], name, name)
        rule = source_of_callable(*PROMPT_METHODS, Products)
        used: list[tuple[Any, Rung]] = [(attention, attend)]
        if paths.rows:
            used += [(decoder_ops, rung) for ladder in decoder_ops.LADDERS.values() for rung in ladder]
        hopper, n, seq = arch == "90", 2 * shape.mlp, case.seq or 0
        if case.format == "q8_0" and paths.mmq:
            how = "7_fp16_wgmma" if hopper else mmq.dispatch(n, shape.hidden, seq, False)[1]
            used.insert(0, (mmq, ops.rung_of(mmq.LADDERS["mmq"], how, how)))
            if hopper and paths.fused:
                used[0] = (prompt_products, prompt_products.Q8_0)
        elif hopper and paths.gates_in_product(case.format, seq):
            used.insert(0, (prompt_products, prompt_products.FP16))
        for module, rung in used[1:]:
            rule += module.launch_rule(rung) + ops.nvrtc.whole_source(rung.path)
        module, rung = used[0]
        macros: Mapping[str, int] = rung.defines
        if module is mmq:
            macros = rung.with_defaults(mmq.options_for(rung, n, seq))
        elif module is prompt_products:
            sms = 132  # of every Hopper that the course has seen
            macros = prompt_products.macros_for(rung, n, seq, sms, True)
        return rung, macros, rule + module.launch_rule(rung)

    def identity(self, case: Case, arch: str | None) -> str:
        if case.kind != "own":
            return package_identity("torch", "transformers")
        rung, macros, rule = self._rung(case, arch or ops.known_arch())
        return rung.identity(rule, macros, arch)

    def row(
        self, case: Case, admitted: gate.Admitted, timing: Any, predicted_us: float | None
    ) -> dict[str, Any]:
        found = super().row(case, admitted, timing, predicted_us)
        return {**found, "tok_s": (case.seq or 0) * 1e6 / timing.median_us}

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        return [work_of(case) for case in cases]

    def profile_columns(self, tool: str, metrics: Sequence[str] | None) -> tuple[str, ...]:
        return ("family", "kernel", "launches", "us", "q1_us", "q3_us")

    def trimmed(self, tool: str, found: Trace | pd.DataFrame, metrics: Sequence[str] | None) -> pd.DataFrame:
        assert isinstance(found, Trace)
        return families(found.activities)

    def checks(self, cases: Sequence[Case]) -> pd.DataFrame:
        rows = []
        for case in cases:
            for quantity, value in _memory(case):
                rows.append({"case": case.id, "quantity": quantity, "value": float(value)})
        return pd.DataFrame(rows)


def prompt_builds(model: str, format: str, head: str, arch: str) -> list[tuple[Rung, Mapping[str, int]]]:
    """What every prompt of ours launches beside its products."""
    shape = engine.spec(model).shape
    first = decoder.LADDERS["decode_step"][0]
    ladders = (*decoder_ops.LADDERS.values(), *prompt_products.LADDERS.values())
    between_rungs = [rung for ladder in ladders for rung in ladder]
    return [
        (first, decoder.macros_for(first, shape, format, head, arch, {})),
        *((rung, rung.defines) for rung in between_rungs if rung.arch_for(arch) in rung.archs),
    ]


# --- contestants --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _expected(model: str, format: str, head: str, seq: int) -> tuple[Any, dict[bool, float]]:
    """Exact logits after a prompt, and the error allowed, without and with Q8_1."""
    import cupy

    spec, get = engine.spec(model), decoding.checkpoint(model)
    ids = decoding.prompt(model, 1, seq)
    expected = exact.logits(spec, get, ids, format, head, last=True)[0, 0]
    budgets = {}
    for rounded in {False, format == "q8_0"}:
        plain = exact.logits(spec, get, ids, format, head, "float16", rounded=rounded, last=True)[0, 0]
        error = float((plain.double() - expected).abs().max())
        budgets[rounded] = gate.error_budget(error, cupy.asarray(expected), "float16")
    return cupy.from_dlpack(expected), budgets


def work_of(case: Case) -> gate.Work:
    """A contestant: one launch takes the whole prompt in."""
    import cupy

    model, seq, head = case.model, case.seq or 0, decode.head_of(case)
    if model == decode.GEMMA:
        return _gemma(case)
    expected, budgets = _expected(model, case.format, head, seq)
    ids = decoding.prompt(model, 1, seq)
    if case.kind == "peer":
        found = hf.model(model)
        run: Callable[[], Any] = functools.partial(hf.prefill, found, ids)
        if case.impl != PEERS[0]:
            with hf.flash_attention(found) if case.impl == PEERS[-1] else nullcontext():
                run = hf.captured(run)
        outputs = [[run()[0]]]

        def library(_: int) -> None:
            outputs[0][0] = run()[0]

        return gate.Work(case.id, library, [[ids]], outputs, lambda: expected, budgets[False])
    paths = engine.PROMPTS[case.impl]
    one = engine.Engine(
        engine.spec(model),
        decoding.packed(model, case.format, head, CAPACITY),
        capacity=seq + 1,
        paths=paths,
    )
    tokens = ids[0].tolist()

    def launch(_: int) -> None:
        one.reset()
        one.prefill(tokens)

    launch(0)  # the first of its kind: where there is a graph, the next call captures it
    result = lambda outputs: cupy.from_dlpack(outputs[0])  # noqa: E731
    return gate.Work(
        case.id, launch, [[ids]], [[one.logits]], lambda: expected, budgets[rounds(case)], result
    )


def _gemma(case: Case) -> gate.Work:
    import cupy

    seq, head = case.seq or 0, decode.head_of(case)
    spec, ids = gemma.spec(case.model), decoding.prompt(case.model, 1, seq)[0]
    one = gemma.Engine(spec, decode_work.gemma_weights(case.model, case.format, head), capacity=seq + 1)
    get, last = gemma.random_tensors(spec), seq - 1
    known = gemma_exact.logits(spec, get, ids, case.format, head, first=last)[0]
    plain = gemma_exact.logits(
        spec, get, ids, case.format, head, "float16", first=last, rounded=rounds(case)
    )[0]
    expected = cupy.from_dlpack(known)
    budget = gate.error_budget(float((plain.double() - known).abs().max()), expected, "float16")
    tokens = ids.tolist()

    def launch(_: int) -> None:
        one.reset()
        one.prefill(tokens)

    result = lambda outputs: cupy.from_dlpack(outputs[0])  # noqa: E731
    return gate.Work(case.id, launch, [[ids]], [[one.logits]], lambda: expected, budget, result)


# --- kernels by kind ----------------------------------------------------------------------------------------


def traced(prompts: Sequence[int] = PROMPTS) -> list[Case]:
    """Of each prompt transformers, the last way in FP16, in Q8_0 the last and, where timed, the first."""
    ours = {"fp16": ways("fp16")[-1:], "q8_0": [ways("q8_0")[0], ways("q8_0")[-1]]}
    names = [(hf.VARIANTS[0], "fp16"), *((name, format) for format in ours for name in ours[format])]
    return [
        _case(name, format, decode.MODEL, seq)
        for seq in prompts
        for name, format in names
        if name in PEERS or seq <= EVERY_WAY or engine.PROMPTS[name].embed
    ]


def share_case() -> Case:
    """The traced prompt whose products are asked after: the source's, by the last way with Q8_0 weights."""
    return traced((TRACED,))[-1]


def family_of(name: str) -> str:
    """What kind of work a kernel does, by its name."""
    return next((found for found, words in FAMILIES if re.search(words, name, re.IGNORECASE)), OTHERS)


def families(activities: pd.DataFrame) -> pd.DataFrame:
    """A trace with STEPS prompts a case, summed up: case, family, kernel, launches a prompt, us (median over
    the prompts of the summed microseconds) with quartiles.
    """
    tables = []
    for case, rows in activities.groupby("case", sort=False):
        one = parts.steps(rows, STEPS)
        one = one.assign(us=one["duration_ns"] / 1e3, kernel=[parts.label(n) for n in one["name"]])
        one["family"] = [family_of(name) for name in one["name"]]
        keys = ["family", "kernel"]
        sums = one.groupby([*keys, "step"], sort=False)["us"].sum().groupby(keys, sort=False)
        table = pd.DataFrame(
            {"us": sums.median(), "q1_us": sums.quantile(0.25), "q3_us": sums.quantile(0.75)}
        )
        table["launches"] = one[one["step"] == 0].groupby(keys, sort=False).size()
        table = table.reset_index().sort_values("us", ascending=False, kind="stable")
        table.insert(0, "case", case)
        tables.append(table[["case", "family", "kernel", "launches", "us", "q1_us", "q3_us"]])
    return pd.concat(tables, ignore_index=True)


# --- memory -------------------------------------------------------------------------------------------------


def memory(timed: Sequence[Case]) -> list[Case]:
    """The ways whose peak memory is recorded: the last one of each format, and transformers."""
    return [
        _case(case.impl, case.format, case.model, case.seq or 0, "memory")
        for case in timed
        if case.kind == "peer" or case.impl == ways(case.format)[-1]
    ]


def _memory(case: Case) -> list[tuple[str, float]]:
    """Bytes of the weights as they are resident, and the most that was allocated beside them while the prompt
    was taken in, cache and logits among it.
    """
    import torch

    weights = model_shapes.weight_bytes(model_shapes.get(case.model), case.format, decode.head_of(case))
    torch.cuda.synchronize()
    if case.kind == "peer":
        found = hf.model(case.model)
        ids = decoding.prompt(case.model, 1, case.seq or 0)
        hf.prefill(found, ids)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        hf.prefill(found, ids)
    else:
        packed = decoding.packed(case.model, case.format, decode.head_of(case), CAPACITY)
        tokens = decoding.prompt(case.model, 1, case.seq or 0)[0].tolist()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        paths = engine.PROMPTS[case.impl]
        one = engine.Engine(engine.spec(case.model), packed, capacity=(case.seq or 0) + 1, paths=paths)
        for _ in range(3):
            one.reset()
            one.prefill(tokens)
    torch.cuda.synchronize()
    beside = torch.cuda.max_memory_allocated() - before
    return [("weight bytes", weights), ("beside them", beside), ("peak bytes", weights + beside)]
