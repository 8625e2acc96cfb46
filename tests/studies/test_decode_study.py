"""The studies of lesson 08: their cases, what they are charged with, what is promised, what tracers give."""

import collections
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from rooflab import engine, ops, studies
from rooflab.analysis import ablation
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.lab import profiles
from rooflab.numerics import model_shapes
from rooflab.profile import timeline
from rooflab.studies import decode, decode_checks, decoding, hf, predictions, prefill
from rooflab.studies.base import Context

H200 = device.get("h200")
DECODE, PREFILL = studies.get("decode"), studies.get("prefill")


@pytest.mark.parametrize("study", [DECODE, PREFILL], ids=lambda study: study.name)
@pytest.mark.parametrize("effort", ["full", "quick"])
def test_cases_are_named_once_and_read_back(study, effort):
    cases = study.cases(effort, H200)
    profiled = [case for _, chosen, _ in study.profiles(effort, H200) for case in chosen]
    assert len({case.id for case in cases}) == len(cases) > 10
    for case in [*cases, *profiled]:
        assert study.case(case.id) == case
        assert study.identity(case, None)


def test_every_format_climbs_the_ladder_and_peers_stand_beside_it():
    """M105: the decode ladder step by step at batch 1; around it heads, contexts, batches, a large model."""
    cases = DECODE.cases("full", H200)
    for format, head in decode.FORMATS.items():
        mine = [c for c in cases if (c.format, c.batch, c.seq, c.model) == (format, 1, 128, decode.MODEL)]
        mine = [c for c in mine if decode.head_of(c) == head]
        assert [c.impl for c in mine if c.impl in decode.RUNGS] == list(decode.rungs(H200))
        assert len({DECODE.group(c) for c in mine}) == 1  # contestants of one comparison
    first = [c.impl for c in cases if c.format == "fp16"][:6]
    assert first == [*hf.VARIANTS, "apart", "torch", "products"]
    large = {(c.impl, c.format) for c in cases if c.model == decode.LARGE}
    assert {("transformers.eager", "fp16"), ("transformers.graph", "fp16")} < large
    asked = [c for c in cases if c.impl in decode.RUNGS and c.seq == decode.PROMPT]
    asked = [c for c in asked if decode.head_of(c) == decode.FORMATS[c.format]]
    assert [c.format for c in asked if c.model == decode.SMALL] == ["fp16"]
    asked = [c for c in asked if c.model != decode.SMALL]
    assert {decode.steps_of(c) for c in asked} == {decode.STEPS}  # what floors and aims are about
    assert {(c.model, c.format) for c in asked} == {
        (model, format) for model in (decode.MODEL, decode.LARGE) for format in decode.FORMATS
    }
    assert set(decode.RUNGS) <= set(ablation.WAYS) and set(engine.PROMPTS) <= set(ablation.PROMPT_WAYS)
    assert "transformers.compile" not in {c.impl for c in DECODE.cases("quick", H200)}
    assert {c.batch for c in cases if c.operator == "decode"} == {1, 8, 32}
    assert {c.seq for c in cases} == {128, 1024, 8192}
    assert {c.model for c in cases} == {decode.MODEL, decode.LARGE, decode.SMALL, decode.GEMMA}
    assert {decode.head_of(c) for c in cases if c.format == "int4_g128"} == {"fp16", "q8_0"}


def test_rungs_of_one_generation_stay_there():
    portable = decode.rungs(device.get("rtx-4090"))
    assert set(portable) < set(decode.rungs(H200)) and "3_persistent" in portable
    assert "6_producer_warps" not in decode.rungs(SimpleNamespace(sm="75"))
    assert decode.rungs(SimpleNamespace(sm="121")) == portable  # a chip newer than those that are listed
    case = next(c for c in DECODE.cases("full", H200) if c.impl == "4_tma")
    assert DECODE.refuses(case, 89) == "rung 4_tma needs sm_90a, and this is sm_89"
    with ops.as_on("h200", "90"):
        assert DECODE.refuses(case, 90) is None


def test_a_recorded_timeline_has_a_row_a_block_and_its_columns(monkeypatch):
    """Three rungs at most, among them the engine's; each case's layer as the instrument's table has it."""
    cases = decode.timed(H200)
    assert [c.impl for c in cases][:2] == ["3_persistent", "6_producer_warps"]
    assert decode.best("fp16", H200) in {c.impl for c in cases} and len(cases) <= 3
    assert all(decode.steps_of(c) == timeline.STEPS and DECODE.case(c.id) == c for c in cases)
    assert [c.impl for c in decode.timed(SimpleNamespace(sm="75"))] == ["3_persistent"]

    def layer_of(case):
        return pd.DataFrame({name: range(4) for name in timeline.LAYER}).assign(case=case.id)

    monkeypatch.setattr(decode_checks, "layer_of", layer_of)
    taken = profiles.take("decode", cases, "timeline", None)
    assert taken["case"].value_counts().to_dict() == {c.id: 4 for c in cases}
    assert set(profiles.columns_of("decode", "timeline", None)) == {*taken, "identity", "run"}


def test_a_token_is_charged_with_its_weights_and_its_cache():
    """INT4 is the body in groups of 128 and an FP16 head: 1.142 GB a token, as the issue counts it."""
    model = model_shapes.get(decode.MODEL)
    case = next(c for c in DECODE.cases("full", H200) if c.format == "int4_g128")
    count = DECODE.count(case)
    context = 128 + (decode.steps_of(case) + 1) // 2
    assert count.bytes == int(
        model_shapes.weight_bytes(model, "int4_g128", "fp16") + model_shapes.kv_read_bytes(model, context)
    )
    assert count.bytes - model_shapes.kv_read_bytes(model, context) == pytest.approx(1.142e9, rel=2e-3)
    eight = next(c for c in DECODE.cases("full", H200) if c.batch == 8 and c.format == "fp16")
    assert DECODE.count(eight).bytes < 1.02 * model_shapes.weight_bytes(model, "fp16")  # weights once for all
    prompt = next(c for c in PREFILL.cases("full", H200) if c.seq == 1848)
    assert PREFILL.count(prompt).flops == model_shapes.prefill_flops(model, 1848)


def test_layers_without_a_cache_are_charged_with_a_prompt_s_last_token_alone():
    model = model_shapes.get(decode.GEMMA)
    tail = [layer for layer in model_shapes.layers(model) if not layer.owns_kv]
    assert (
        len(tail) == model.shared_kv
        and model_shapes.unneeded_flops(model_shapes.get(decode.MODEL), 1848) == 0
    )
    assert model_shapes.unneeded_flops(model, 1) == 0
    # Nearly all work of these layers: the rest is what the layers before them do, and the head.
    rest = model_shapes.needed_flops(model, 1848)
    assert 0.5 < rest / model_shapes.prefill_flops(model, 1848) < 0.7
    case = next(c for c in PREFILL.cases("full", H200) if c.impl == "gemma")
    assert PREFILL.count(case).flops == rest


def test_each_step_of_the_ladder_is_promised_to_be_no_slower_than_the_one_before():
    """Amdahl over lesson 02's split: no promise beats the roof, and none is made without records."""
    known = predictions.known(H200)
    ways = ["transformers.eager", "transformers.graph", "apart", "torch", "products", "1_kernel_per_phase"]
    ways += ["2_pdl", "3_persistent", "4_tma", "5_prefetch_at_barrier", "6_producer_warps"]
    model = model_shapes.get(decode.MODEL)
    for format, head in decode.FORMATS.items():
        us = [predictions.token_us(known, way, decode.MODEL, format, head, 192) for way in ways]
        assert us == sorted(us, reverse=True)
        least = model_shapes.weight_bytes(model, format, head) / known.machine.gb_s / 1e3
        assert us[-1] >= least
    assert predictions.token_us(known, "products", decode.LARGE, "fp16", "fp16", 192) is None
    large = [predictions.token_us(known, way, decode.LARGE, "fp16", "fp16", 192) for way in hf.VARIANTS[:2]]
    assert large[0] > large[1] > model_shapes.weight_bytes(model_shapes.get(decode.LARGE), "fp16") / 4800e3
    case = DECODE.cases("full", H200)[0]
    assert DECODE.predict(case, Context()) is None
    assert DECODE.predict(case, Context(device=H200)) == known.waits["transformers.eager"]


def test_a_prompt_is_promised_by_whoever_is_slower_host_or_gpu():
    """What separates token by token from one call is 511 calls: in full where calls are slow, nothing where
    they are free.
    """
    known = predictions.known(H200)

    def promised(known):
        return {
            name: predictions.prompt_us(known, decode.MODEL, "q8_0", 512, paths, "11_tma")
            for name, paths in engine.PROMPTS.items()
        }

    us = promised(known)
    assert us["6_graph"] <= us["5_embed"] <= us["4_rows"]
    assert us["4_rows"] - us["5_embed"] <= 511 * known.call_us
    slow = promised(replace(known, call_us=1e3))
    assert slow["4_rows"] - slow["5_embed"] == pytest.approx(511e3)
    free = promised(replace(known, call_us=0.0, torch_us=0.0))
    assert free["4_rows"] == free["5_embed"] == free["6_graph"] > 0


def test_a_peer_that_cannot_run_is_left_out_by_name(monkeypatch):
    compiled = next(c for c in DECODE.cases("full", H200) if c.impl == "transformers.compile")
    monkeypatch.setattr(hf.importlib.util, "find_spec", lambda name: None if name == "triton" else object())
    assert DECODE.refuses(compiled, 90) == "torch.compile needs triton, which is not installed"
    monkeypatch.setattr(hf.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(hf.shutil, "which", lambda name: None)
    assert DECODE.refuses(compiled, 90) == "torch.compile needs a C compiler, and there is none"
    monkeypatch.setattr(hf.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert DECODE.refuses(compiled, 90) is None and DECODE.refuses(compiled, 75) is None


GPU_SET = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
installed = pytest.mark.skipif(not GPU_SET, reason="torch and transformers come with the GPU set")


@installed
def test_products_apart_are_those_of_one_matrix():
    import torch
    from rooflab.engine.products import Products
    from rooflab.ops.decoder_operands import Shape

    shape, ran = Shape(1, 64, 96, 4, 2, 16, 256), collections.Counter()
    stack = {name: torch.randn(1, n, k) for name, (n, k) in shape.matrices.items()}
    weights = SimpleNamespace(format="fp16", head_format="fp16", **stack)
    products, counts = Products(shape, weights, ran), {"qkv": 3, "out": 1, "gate_up": 2, "down": 1}
    for name, count in counts.items():
        x, before = torch.randn(1, shape.matrices[name][1]), ran["product apart"]
        assert torch.allclose(products.apart(name, 0, x), x @ stack[name][0].t(), atol=1e-4)
        assert ran["product apart"] - before == count


@installed
def test_a_llama_of_transformers_decodes_what_float64_does():
    import torch
    from rooflab.engine import exact, weights
    from rooflab.ops.decoder_operands import Shape

    spec = engine.Spec("tiny", Shape(2, 64, 128, 4, 2, 16, 256, 1e-5), 5e5, False, False)
    get = weights.random_tensors(spec, on="cpu")

    def tensors(name):
        return torch.from_numpy(get(name))

    found, ids = hf.llama(spec, tensors, device="cpu").float(), hf.tokens(12, 256, "cpu")
    theirs, ours = found(ids).logits.double(), exact.logits(spec, tensors, ids)
    assert float((theirs - ours).abs().max()) < 1e-4
    one = decoding.Generate(found, ids, 6, "transformers.eager")
    one.run(6)
    known = exact.logits(spec, tensors, one.tokens.long(), past=one.past)
    assert float((one.logits.double() - known[:, -1]).abs().max()) < 1e-4
    assert (one.tokens[:, 1:].long() == known.argmax(-1)[:, :-1]).all()


def activities(case, tokens, us=10.0, gap=2.0, layers=28):
    """A made-up trace of rung 1_kernel_per_phase."""
    names = ["memset"] + ["decode_step_kernel_per_phase"] * ((5 * layers + 1) * tokens)
    rows = [
        {"case": case, "name": name, "start_ns": int(i * (us + gap) * 1e3), "duration_ns": int(us * 1e3)}
        for i, name in enumerate(names)
    ]
    return pd.DataFrame(rows)


def test_a_trace_of_phases_is_split_by_order():
    case = decode.traced()[0].id
    table = decode.phases(activities(case, 3)).set_index("phase")
    assert list(table.index) == [*decode.PHASES, "between"]
    assert table["us"]["attention"] == pytest.approx(280) and table["us"]["head"] == pytest.approx(10)
    assert table["us"]["between"] == pytest.approx(140 * 2) and table["launches"]["between"] == 140
    with pytest.raises(UsageError, match="no whole number of tokens"):
        decode.phases(activities(case, 3)[:-1])


@pytest.mark.parametrize(
    "name, family",
    [
        ("mmq_fp16_wgmma", "our products"),
        ("q8_1_planes", "quantising"),
        ("attention_tma", "attention"),
        ("rmsnorm_block", "our others"),
        ("nvjet_hsh_128x256", "cuBLAS"),
        ("void at::native::vectorized_elementwise_kernel<4>", prefill.OTHERS),
    ],
)
def test_kernels_of_a_prompt_have_families(name, family):
    assert prefill.family_of(name) == family


def test_a_trace_of_prompts_is_summed_by_family():
    case = prefill.share_case().id
    assert {c.seq for c in prefill.traced()} == set(prefill.PROMPTS)
    one = [("mmq_fp16_wgmma", 100), ("attention_tma", 30), ("mmq_fp16_wgmma", 50)] * prefill.STEPS
    rows = [
        {"case": case, "name": name, "start_ns": 1000 * i, "duration_ns": us * 1000}
        for i, (name, us) in enumerate(one)
    ]
    table = prefill.families(pd.DataFrame(rows)).set_index("family")
    assert table["us"]["our products"] == 150 and table["launches"]["our products"] == 2
    assert table["us"]["attention"] == 30


def test_questions_name_every_path_and_format():
    """M98, M103, M104: every switch is asked, and the last rung is run again and again."""
    cases = decode_checks.cases("full", H200)
    asked = {(c.impl, c.format) for c in cases if c.operator == "agreement"}
    for format in decode.FORMATS:
        assert {(way, format) for way in (*decode.rungs(H200), "products", "pieces")} <= asked
        assert (f"prompt.{prefill.ways(format)[-1]}", format) in asked
    assert {(f"prompt.{name}", "fp16") for name in prefill.ways("fp16")} <= asked
    for case in (c for c in cases if c.operator == "agreement"):
        other = decode_checks.plainest(case.impl, case.format)
        assert (other, case.format) in asked and decode_checks.plainest(other, case.format) == other
    assert decode_checks.plainest("3_persistent", "q8_0") == "1_kernel_per_phase"
    assert decode_checks.plainest("pieces", "fp16") == "prompt.1_scalar"
    assert decode_checks.plainest("torch", "fp16") == "apart"
    assert {"repeated", "sampled", "long", "refused", "energy"} < {c.operator for c in cases}
    assert set(decode_checks.cases("quick", H200)) <= set(cases)
