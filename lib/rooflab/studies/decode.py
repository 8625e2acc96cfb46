"""Study `decode` (lesson 08): the decode ladder in tokens per second, one step at a time.

A case generates `steps` tokens after a prompt of `seq`, output head and choice of the next token included,
by transformers, by torch's operators in a graph, and by every rung of ours; rows hold microseconds of one
token (with several sequences: of one for each; of drafts: of one check), by the wall clock over the whole
generation. The weights are random, of the real shapes. Nothing is timed whose tokens and logits float64 does
not bear out (see `decoding`), and every row has a prediction, made before from what other lessons recorded
(see `predictions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from rooflab import engine, ops
from rooflab.bench import clock, gate
from rooflab.engine import gemma
from rooflab.engine.chain import Chain
from rooflab.engine.decoder import CHAIN, PLAIN
from rooflab.engine.drafts import Drafts
from rooflab.engine.products import Products
from rooflab.engine.single import Single
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import device as devices
from rooflab.hardware import roofline
from rooflab.hardware.device import Device
from rooflab.numerics import model_shapes
from rooflab.ops import attention, batch_choice, batch_ops, batch_plan, decoder, gemma_ops, gemv, int4, q8_0
from rooflab.profile import timeline
from rooflab.profile.ncu import STALLS
from rooflab.profile.trace import Trace
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import source_of_callable
from rooflab.studies import hf, predictions
from rooflab.studies.base import FORETOLD, Context, Count, Described, Profile, Sized, Study, package_identity

MODEL, LARGE, SMALL, GEMMA = "qwen2.5-1.5b", "llama-3-8b", "llama-3.2-1b", "gemma-4-e4b"
PROMPT, STEPS = 128, 128
CONTEXTS = (1024, 8192)
BATCHES = (8, 32)
TOGETHER = ("batch", "batch_dependent")  # ways of a batch: by kernels in a row, by dependent launches
NEWER = (TOGETHER[-1], "drafts", CHAIN)  # what an older recording may lack
DRAFTS = (2, 4, 8)  # tokens that a check takes, the least of the small model alone
FEW = 32  # steps where a few do: of ways that no floor or aim is about
PHASES = ("queries, keys, values", "attention", "its output", "gate and up", "down", "head")
SHORT = 4  # under a profiler
EAGER, QUICK = 8, 16  # by a way that takes twenty milliseconds for each; and with little effort
# Formats of the body, and of the output head that goes with each.
FORMATS = {"fp16": "fp16", "q8_0": "q8_0", "int4_g128": "fp16"}
# The rung before matrices are divided along k that suits a format best.
RINGS = {"fp16": "6_producer_warps", "q8_0": "6_producer_warps", "int4_g128": "5_prefetch_at_barrier"}
DIVIDED, FLAGS = "7_split_k", "9_flags_in_data"
OTHER_HEADS = {"q8_0": "fp16", "int4_g128": "q8_0"}
RUNGS = tuple(rung.name for rung in decoder.LADDERS["decode_step"])
ALONE = (*RUNGS, CHAIN)  # ways of one sequence that the engine chooses among
EAGERLY, GRAPH, COMPILED = hf.VARIANTS
COUNTED = ("time_ns", "dram_bytes", "dram_read_bytes", "dram_pct", "sm_pct", "l2_hit_pct", "issue_active")
METRICS = (*COUNTED, *STALLS)
CAPACITY = 9216  # positions that weights know the rotations of: one set of weights for all cases


def _case(
    impl: str, format: str, head: str, model: str, seq: int, steps: int, batch: int = 1, work: str = "decode"
) -> Case:
    kind = "peer" if impl in hf.VARIANTS else "baseline" if impl in PLAIN[:2] else "own"
    tuned = options(steps=steps, head=head) if head != format else options(steps=steps)
    named = ("decode", work, impl, kind, format, model, "random")
    state = "sustained" if model == LARGE else ""  # its steps draw all the power that a card may
    return Case(*named, batch=batch, seq=seq, options=tuned, cache="", clock="wall", state=state)


def rungs(device: Sized | None = None) -> tuple[str, ...]:
    """Rungs of decode_step that a device's generation runs."""
    ladder = decoder.LADDERS["decode_step"]
    return tuple(rung.name for rung in ladder if rung.runs_on(_arch(device)))


def _arch(device: Sized | None) -> str:
    """A device's architecture; Hopper's where none is given, or a chip that is not listed has not said it."""
    return getattr(device, "sm", "") or "90"


def last(device: Sized | None = None) -> list[str]:
    """The rungs that make many tokens in a launch: of large models' ladders these are measured."""
    return [name for name in decoder.PERSISTENT if name in rungs(device)]


def best(format: str, device: Sized | None = None, model: str = MODEL, seq: int = PROMPT) -> str:
    """The rung that the engine decodes a format by, and that the rows beside the ladder are measured by."""
    return decoder.fastest(engine.spec(model).shape, format, _arch(device), seq)


def ladder(
    format: str, device: Sized | None = None, model: str = MODEL, seq: int = PROMPT, steps: int = STEPS
) -> list[Case]:
    """Every way of decoding at batch 1 in one format, slowest first."""
    head = FORMATS[format]
    plain = [*hf.VARIANTS, *PLAIN] if format == "fp16" and model in hf.MODELS else ["products"]
    few = {EAGERLY: min(EAGER, steps), **dict.fromkeys(PLAIN, min(FEW, steps))}
    return [_case(impl, format, head, model, seq, few.get(impl, steps)) for impl in (*plain, *rungs(device))]


def heads(device: Sized | None = None, model: str = MODEL) -> list[Case]:
    """The fastest rung with output heads of another format."""
    return [
        _case(best(format, device), format, head, model, PROMPT, FEW) for format, head in OTHER_HEADS.items()
    ]


def contexts(device: Sized | None = None, model: str = MODEL) -> list[Case]:
    """Longer prompts in every format: by the rung that is fastest after a short one, and by the one that is
    after the longest.
    """
    return [
        _case(impl, format, FORMATS[format], model, seq, FEW)
        for format in FORMATS
        for seq in CONTEXTS
        for impl in dict.fromkeys(best(format, device, model, at) for at in (PROMPT, CONTEXTS[-1]))
    ]


def batches(model: str = MODEL) -> list[Case]:
    """Several sequences at once, and in FP16 transformers' graph beside them."""
    found = [
        _case(impl, format, head, model, PROMPT, FEW, batch)
        for format, head in FORMATS.items()
        for batch in BATCHES
        for impl in TOGETHER
    ]
    return [*found, _case(GRAPH, "fp16", "fp16", model, PROMPT, FEW, BATCHES[-1])]


def checks_of_drafts() -> list[Case]:
    """Several tokens of one sequence checked at once, all of which hold; `batch` says how many."""
    wanted = [*((MODEL, format) for format in FORMATS), (LARGE, "fp16")]
    return [
        _case("drafts", format, FORMATS[format], model, PROMPT, STEPS, drafts, "verify")
        for model, format in wanted
        for drafts in DRAFTS[model == LARGE :]
    ]


def large(device: Sized | None = None) -> list[Case]:
    """The shapes of a model five times the size, by the engine's rung and the ladder's before it; in
    FP16 transformers beside them. And the shape that others' persistent kernels publish.
    """
    peers = [_case(impl, "fp16", "fp16", LARGE, PROMPT, n) for impl, n in ((EAGERLY, EAGER), (GRAPH, FEW))]
    ours = []
    for format, head in FORMATS.items():
        tried = dict.fromkeys((RINGS[format], DIVIDED, FLAGS, best(format, device, LARGE)))
        named = [*(impl for impl in tried if impl in rungs(device)), CHAIN]
        ours += [_case(impl, format, head, LARGE, PROMPT, STEPS) for impl in named]
    small = _case(best("fp16", device, SMALL), "fp16", "fp16", SMALL, PROMPT, STEPS)
    return [*peers, *ours, small]


def others() -> list[Case]:
    """A decoder of another kind, by products and row kernels in a graph; once past its window."""
    wanted = (("q8_0", PROMPT), ("q8_0", CONTEXTS[0]), ("int4_g128", PROMPT))
    return [_case("gemma", format, FORMATS[format], GEMMA, seq, FEW) for format, seq in wanted]


def head_of(case: Case) -> str:
    """The output head's format."""
    return str(_options(case).get("head", case.format))


def steps_of(case: Case) -> int:
    """Tokens that a launch generates of a sequence."""
    return int(_options(case)["steps"])


def turns_of(case: Case) -> int:
    """Steps of a launch: as many as its tokens, but for drafts."""
    return steps_of(case) // ((case.batch or 1) if case.impl == "drafts" else 1)


def sequences_of(case: Case) -> int:
    """Sequences, each with a cache."""
    return 1 if case.impl == "drafts" else case.batch or 1


def _options(case: Case) -> dict[str, str]:
    return dict(word.split("=") for word in case.options.split())


class Decode(Study):
    """Lesson 08."""

    name, lesson = "decode", "08"
    # The last two: more where several rows' logits are judged; for Gemma, whose weights each case makes.
    setup_s, check_s, several_s, gemma_s = 0.4, 1.2, 2.5, 10.0
    after, checks_apart = predictions.SOURCES, ("energy", "long")

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            found = [case for format in FORMATS for case in ladder(format, device, steps=QUICK)]
            return [case for case in found if case.impl != COMPILED]  # half a minute of compiling
        found = [case for format in FORMATS for case in ladder(format, device)]
        found += [*heads(device), *contexts(device), *batches(), *checks_of_drafts()]
        return [*found, *large(device), *others()]

    def not_yet_measured(self, wanted: Iterable[Case], recorded: Iterable[str]) -> dict[str, str]:
        wanted, recorded = list(wanted), list(recorded)
        heads = {case.partition(" ")[0] for case in recorded}
        newer = {c.id: f"{c.operator}/{c.impl}" for c in wanted if c.impl in NEWER}
        found = {case: head for case, head in newer.items() if heads and head not in heads}
        return {**super().not_yet_measured(wanted, recorded), **found}

    def needs(self, case: Case) -> str | None:
        return "transformers" if case.impl in hf.VARIANTS or case.model in hf.MODELS else "torch"

    def refuses(self, case: Case, capability: int) -> str | None:
        if case.impl in RUNGS:
            rung = ops.rung_of(decoder.LADDERS["decode_step"], case.impl, case.impl)
            if not rung.runs_on(str(capability)):
                return f"rung {case.impl} needs sm_{rung.archs[0]}, and this is sm_{capability}"
        return unfit(case, capability) or hf.lacks(case.impl) or super().refuses(case, capability)

    def seconds(self, case: Case, device: Device) -> float:
        more = (case.impl in (*TOGETHER, "drafts")) * self.several_s + (case.model == GEMMA) * self.gemma_s
        return super().seconds(case, device) + more

    def memory_bytes(self, case: Case) -> int:
        model, batch = model_shapes.get(case.model), sequences_of(case)
        capacity = (case.seq or 0) + steps_of(case)
        # Its weights are shared with no other contestant.
        library = case.impl in hf.VARIANTS and case.model not in hf.MODELS
        return (
            int(2 * batch * capacity * model_shapes.kv_bytes_per_token(model))
            + 12 * batch * steps_of(case) * model.vocab
            + library * int(2 * model_shapes.parameters(model))
        )

    def shared_bytes(self, case: Case) -> int:
        return hf.unallocated_bytes(case.model, case.format, head_of(case), 3 << 30)

    def group(self, case: Case) -> tuple:
        return (case.model, case.format, head_of(case), case.batch, case.seq)

    def samples(self, case: Case) -> int:
        return 6  # each is a mean over the steps

    def count(self, case: Case) -> Count:
        model, batch = model_shapes.get(case.model), case.batch or 1
        context = (case.seq or 0) + (steps_of(case) + 1) // 2  # in the middle of the generation
        moved = model_shapes.weight_bytes(model, case.format, head_of(case))
        moved += sequences_of(case) * model_shapes.kv_read_bytes(model, context)
        return Count(int(moved), batch * model_shapes.decode_flops(model, context), "dram_read")

    def predict(self, case: Case, context: Context) -> float | None:
        known = predictions.known(context.device)
        seen = (case.seq or 0) + (steps_of(case) + 1) // 2
        return (
            None
            if known is None
            else predictions.token_us(
                known, case.impl, case.model, case.format, head_of(case), seen, case.batch or 1
            )
        )

    def foretold(self, case: Case) -> str:
        return FORETOLD

    def launch_us(self, case: Case, device: Device) -> float:
        count = self.count(case)
        least = roofline.bound(count.bytes or 0, count.flops or 0, device.dram_gb_s).us
        slow = {EAGERLY: 2e4, GRAPH: 4e3, COMPILED: 3e3, **dict.fromkeys(PLAIN, 4e3)}
        return turns_of(case) * max(2 * least, slow.get(case.impl, 0.0))

    def rung(self, case: Case) -> Described | None:
        return self._rung(case, ops.known_arch()) if case.kind == "own" else None

    def _rung(self, case: Case, arch: str) -> Described:
        if case.model == GEMMA:
            m = model_shapes.get(GEMMA)
            n, k, kind = 2 * m.mlp, m.hidden, (m.global_head_dim or m.head_dim, m.heads // m.kv_heads)
            used = [rung for ladder in gemma_ops.LADDERS.values() for rung in ladder]
            rule = source_of_callable(gemma.Engine)
            rule += "".join(gemma_ops.launch_rule(r) + ops.nvrtc.whole_source(r.path) for r in used)
        else:
            shape = engine.spec(case.model).shape
            (n, k), kind = shape.matrices["gate_up"], (shape.head_dim, shape.heads // shape.kv_heads)
            rule = source_of_callable(engine.Engine, Products)
        if case.impl in RUNGS:
            rung = ops.rung_of(decoder.LADDERS["decode_step"], case.impl, case.impl)
            macros = decoder.macros_for(rung, shape, case.format, head_of(case), arch, {})
            return rung, macros, decoder.launch_rule(rung)
        if case.impl == "drafts":
            return self._batch_rung(case, source_of_callable(Products, Chain, Drafts), arch)
        batch: list[type] = [engine.Batch]
        parts = {"batch": batch, TOGETHER[1]: [*batch, Chain], CHAIN: [*batch, Chain, Single]}
        rule += source_of_callable(*parts.get(case.impl, []))
        if case.impl in NEWER:
            return self._batch_rung(case, rule, arch)
        attend = ops.rung_of(attention.LADDERS["decode_attention"], None, attention.decode_default(*kind))
        rule += attention.launch_rule(attend) + ops.nvrtc.whole_source(attend.path)
        if case.format == "fp16":
            rung = ops.rung_of(gemv.LADDERS["gemv_rows"], None, gemv.default_rung("gemv_rows", n, k, True))
            return rung, rung.with_defaults(gemv.options_for(rung, n, k)), rule + gemv.launch_rule(rung)
        if case.format == "q8_0":
            rung = ops.rung_of(q8_0.LADDERS["q8_0"], None, q8_0.DEFAULT["q8_0"])
            return rung, rung.with_defaults(q8_0.options_for(rung, 1)), rule + q8_0.launch_rule(rung)
        name, macros = int4.choose(n, k, case.batch or 1, True, "h200" if arch == "90" else None)
        rung = ops.rung_of(int4.LADDERS["int4"], name, name)
        return rung, rung.with_defaults(macros), rule + int4.launch_rule(rung)

    def _batch_rung(self, case: Case, rule: str, arch: str) -> Described:
        """The product of gate and up, as an H200 divides it; a step's other kernels by their sources."""
        shape, sms = engine.spec(case.model).shape, devices.get("h200").sms
        (n, k), batch, kind = shape.matrices["gate_up"], case.batch or 1, decoder.FORMATS.index(case.format)
        plan = batch_plan.plan_for(n, k, batch, case.format, False, sms)
        if plan is None:
            raise UsageError(f"No batch of {batch} sequences is recorded, only those of dependent launches.")
        for rung in (rung for ladder in batch_ops.LADDERS.values() for rung in ladder):
            rule += batch_ops.launch_rule(rung) + ops.nvrtc.whole_source(rung.path)
        ends = ("batch_sample", "draft_accept") if case.impl == "drafts" else ("batch_sample",)
        for rung in (rung for name in ends for rung in batch_choice.LADDERS[name]):
            rule += batch_choice.launch_rule(rung) + ops.nvrtc.whole_source(rung.path)
        macros = batch_plan.macros_for(plan, n, batch, kind, arch)[0]
        macros |= {"FORMAT": kind, "EPILOGUE": batch_ops.GATE}
        (rung,) = batch_ops.LADDERS["batch_product"]
        return rung, rung.with_defaults(macros), rule

    def identity(self, case: Case, arch: str | None) -> str:
        if case.kind != "own":
            return package_identity("torch", *(["transformers"] if case.impl in hf.VARIANTS else []))
        rung, macros, rule = self._rung(case, arch or ops.known_arch())
        return rung.identity(rule, macros, arch)

    def row(
        self, case: Case, admitted: gate.Admitted, timing: clock.Timing, predicted_us: float | None
    ) -> dict[str, Any]:
        steps = turns_of(case)
        each = replace(timing, **{q: getattr(timing, q) / steps for q in ("median_us", "q1_us", "q3_us")})
        found = super().row(case, admitted, each, predicted_us)
        return {**found, "tok_s": (case.batch or 1) * 1e6 / each.median_us}

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        from rooflab.studies import decode_work

        return [decode_work.work_of(case) for case in cases]

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        from rooflab.studies import decode_checks

        asked = decode_checks.cases(effort, device)
        wanted = [("checks", asked, None), ("cupti", traced(), None), ("ncu", counted(device), METRICS)]
        return [*wanted, ("timeline", [*timed(device), *decode_checks.timed_beside(device)], None)]

    def profile_columns(self, tool: str, metrics: Sequence[str] | None) -> tuple[str, ...]:
        if tool == "cupti":
            return ("phase", "launches", "us", "q1_us", "q3_us")
        if tool == "timeline":
            return timeline.LAYER
        return super().profile_columns(tool, metrics)

    def trimmed(self, tool: str, found: Trace | pd.DataFrame, metrics: Sequence[str] | None) -> pd.DataFrame:
        if isinstance(found, Trace):
            return phases(found.activities)
        ours = found[found["kernel"].str.contains("decode_step")]
        return super().trimmed(tool, ours, metrics)

    def checks(self, cases: Sequence[Case]) -> pd.DataFrame:
        from rooflab.studies import decode_checks

        capability = int(ops.arrays().cuda.Device().compute_capability)
        return decode_checks.answers(cases, lambda case: self.refuses(case, capability))

    def timelines(self, cases: Sequence[Case]) -> pd.DataFrame:
        from rooflab.studies import decode_checks

        return pd.concat(map(decode_checks.layer_of, cases), ignore_index=True)


def unfit(case: Case, capability: int) -> str | None:
    """Why the engine cannot run an own case on that compute capability: every prompt and every step ends with
    decode_step, whose rows and ring lie in shared memory. None if they fit, or for another engine's case.
    """
    if case.kind != "own" or case.model == GEMMA or case.impl == "idle":
        return None
    ladder = decoder.LADDERS["decode_step"]
    rung = next((rung for rung in ladder if rung.name == case.impl), ladder[0])
    shape, slug = engine.spec(case.model).shape, ops.this_gpu()[0]
    blocks = decoder.blocks_for(shape, case.format, devices.get(slug).sms) if slug else None
    try:
        decoder.macros_for(rung, shape, case.format, head_of(case), str(capability), {}, blocks)
    except LaunchError as error:
        return str(error).rstrip(".")
    return None


# --- what profilers see -------------------------------------------------------------------------------------


def traced() -> list[Case]:
    """A launch a phase, in every format: what a tracer tells apart."""
    return [_case("1_kernel_per_phase", f, h, MODEL, PROMPT, SHORT) for f, h in FORMATS.items()]


def timed(device: Sized | None = None) -> list[Case]:
    """Three tokens in one launch, by rungs whose FP16 tokens are taken apart block by block: the first that
    launches once, the one whose producers copy, and the one that the engine takes.
    """
    wanted = dict.fromkeys(("3_persistent", "6_producer_warps", best("fp16", device)))
    chosen = [name for name in wanted if name in last(device)]
    return [_case(name, "fp16", "fp16", MODEL, PROMPT, timeline.STEPS) for name in chosen]


def counted(device: Sized | None = None) -> list[Case]:
    """One launch of a few tokens in the largest and the smallest format, for counters."""
    formats = ("fp16", "int4_g128")
    return [_case(best(f, device), f, FORMATS[f], MODEL, PROMPT, SHORT) for f in formats]


def phases(activities: pd.DataFrame) -> pd.DataFrame:
    """A trace of rung 1_kernel_per_phase summed up: launches and microseconds a token (median, with
    quartiles) of each case and phase; "between" is the time in which no phase runs.
    """
    rows = []
    for case, found in activities.groupby("case", sort=False):
        ours = found[found["name"].str.contains("decode_step")].sort_values("start_ns", kind="stable")
        layers = engine.spec(Decode().case(str(case)).model).shape.layers
        names = [PHASES[phase] for _, phase in decoder.phases(layers)]
        if ours.empty or len(ours) % len(names):
            raise UsageError(f"{case}: {len(ours)} traced launches are no whole number of tokens.")
        place = [i % len(names) for i in range(len(ours))]
        token = [i // len(names) for i in range(len(ours))]
        table = ours.assign(phase=[names[i] for i in place], token=token, us=ours["duration_ns"] / 1e3)
        sums = table.groupby(["token", "phase"], sort=False)["us"].sum().unstack()
        ends = table["start_ns"] + table["duration_ns"]
        span = (ends.groupby(table["token"]).max() - table.groupby("token")["start_ns"].min()) / 1e3
        sums["between"] = span - sums.sum(axis=1)
        for phase, each in sums.items():
            q1, median, q3 = each.quantile([0.25, 0.5, 0.75])
            count = names.count(str(phase)) or len(names) - 1
            rows.append((case, phase, count, median, q1, q3))
    return pd.DataFrame(rows, columns=["case", "phase", "launches", "us", "q1_us", "q3_us"])
