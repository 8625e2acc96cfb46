"""The study of lesson 02: its cases, what they are charged with, what a profiler is shown; the decoder."""

import dataclasses
import importlib.util
import json
import os

import pandas as pd
import pytest
from rooflab.errors import UsageError
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.profile import parts
from rooflab.profile.trace import Trace
from rooflab.studies import attribution, get, hf
from rooflab.studies.base import Context

STUDY = get("attribution")
GPU_SET = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
installed = pytest.mark.skipif(not GPU_SET, reason="torch and transformers come with the GPU set")


@pytest.fixture(autouse=True)
def random_weights(monkeypatch):
    monkeypatch.delenv(hf.WEIGHTS, raising=False)


def test_cases_cover_ways_contexts_and_prompts():
    cases = STUDY.cases()
    decode = {(c.impl, c.seq) for c in cases if c.operator == "decode"}
    every = {(impl, seq) for impl in hf.VARIANTS for seq in (128, 1024, 4096, 8192)}
    assert every - decode == {("transformers.compile", seq) for seq in (128, 4096, 8192)} and decode < every
    whole = [c.seq for c in cases if c.operator == "prefill" and not c.options]
    assert whole == [128, 512, 1848, 8192]
    assert [c.seq for c in cases if c.options == "layers=2"] == [64, 16384, 32768]
    assert {(c.n, c.k) for c in cases if c.operator == "gemv"} >= {
        (p.n, p.k) for p in model_shapes.projections(model_shapes.get("qwen2.5-1.5b"))
    }
    assert len({c.id for c in cases}) == len(cases)
    assert all(STUDY.case(c.id) == c for c in cases)
    assert set(STUDY.cases("quick")) < set(cases)


def test_profiles_are_of_recorded_cases_and_both_tracers_meet():
    for effort in ("full", "quick"):
        cases, taken = STUDY.cases(effort), {tool: of for tool, of, _ in STUDY.profiles(effort)}
        assert set(taken) == {"nsys", "cupti", "ncu"}
        assert set(taken["nsys"]) <= set(cases) and set(taken["cupti"]) < set(taken["nsys"])
        assert {c.operator for c in taken["ncu"]} == {"decode", "prefill"}


def test_a_case_is_charged_with_weights_and_cache():
    decode, prefill = attribution.decode([1024])[0], attribution.prefill([1848])[0]
    model = model_shapes.get("qwen2.5-1.5b")
    count = STUDY.count(decode)
    assert count.bytes == model_shapes.weight_bytes(model, "fp16") + model_shapes.kv_read_bytes(model, 1025)
    assert count.roof == "dram_read" and STUDY.count(prefill).roof == "fp16_tensor"
    assert STUDY.count(prefill).flops == model_shapes.prefill_flops(model, 1848)
    h200 = Context(device=device.get("h200"))
    assert STUDY.predict(decode, h200) == pytest.approx(count.bytes / 4800e3)
    assert STUDY.predict(prefill, h200) == pytest.approx(
        model_shapes.prefill_flops(model, 1848) / 989.4e6, rel=1e-3
    )
    assert STUDY.predict(decode, Context()) is None


def test_without_transformers_the_cases_say_what_they_need():
    needs = {STUDY.needs(case) for case in STUDY.cases()}
    assert needs == {"transformers", "torch"}
    assert STUDY.identity(attribution.decode()[0], None).startswith("torch-")
    assert "+transformers-" in STUDY.identity(attribution.decode()[0], None)
    assert all(STUDY.rung(case) is None for case in STUDY.cases())


def test_real_weights_are_named_real_and_their_path_stays_out(monkeypatch, tmp_path):
    monkeypatch.setenv(hf.WEIGHTS, "")
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert hf.use_weights(str(folder)) == "real" and os.environ[hf.WEIGHTS] == str(folder)
    case = attribution.decode([128])[0]
    assert case.weights == "real" and "private" not in case.id
    assert hf.use_weights("random") == "random" and attribution.decode([128])[0].weights == "random"


@pytest.mark.parametrize("weights", ["/nowhere/qwen", "~/nowhere", "./nowhere", "some/where/else"])
def test_a_folder_that_is_none_is_refused_in_one_sentence(monkeypatch, weights):
    monkeypatch.setenv(hf.WEIGHTS, "")
    with pytest.raises(UsageError, match=r"is no folder with a config\.json: give one .* or \"random\"\.$"):
        hf.use_weights(weights)
    assert hf.weights_word() == "random"
    assert hf.use_weights("Qwen/Qwen2.5-1.5B") == "real"


def test_a_model_of_another_family_is_refused():
    with pytest.raises(UsageError, match=r"qwen2\.5-1\.5b, .*, not of 'llama-2-7b'"):
        hf.model("llama-2-7b")


class FakeGpu:
    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        return lambda *what: self.events.append(" ".join((name, *what)))


@pytest.mark.parametrize(("operator", "wanted"), [("decode", 2), ("prefill", 4)])
def test_ncu_is_shown_one_layer_and_a_tracer_everything(monkeypatch, operator, wanted):
    seen = []

    class Parts:
        def __init__(self, push, pop):
            self.push, self.pop = push, pop

        def __enter__(self):
            for layer in (13, 14, 15):
                self.push(f"layer.{layer}")
                for name in ("norm", "q", "attention", "gate", "down"):
                    self.push(name)
                    self.pop()
                self.pop()
            self.push("lm_head")
            self.pop()

        def __exit__(self, *error):
            seen.append("closed")

    monkeypatch.setattr(hf, "named_parts", Parts)
    case = {"decode": attribution.decode, "prefill": attribution.prefill}[operator]([128])[0]
    gpu = FakeGpu()
    with STUDY.watch(gpu, [case.id], False) as partly:
        assert partly
    assert gpu.events.count("start") == gpu.events.count("stop") == wanted
    started = [gpu.events[i + 1] for i, event in enumerate(gpu.events) if event == "start"]
    first = ["push layer.14", "push lm_head"] if operator == "decode" else []
    assert started == (first or ["push q", "push attention", "push gate", "push down"])
    tracer = FakeGpu()
    with STUDY.watch(tracer, [case.id], True) as partly:
        assert not partly
    assert "start" not in tracer.events and tracer.events.count("push q") == 3
    assert seen == ["closed"] * 2


def test_a_trace_is_trimmed_to_the_columns_of_its_profile():
    case = attribution.prefill([128])[0]
    rows = [
        {"case": case.id, "name": name, "kind": "kernel", "start_ns": 10_000 * i + step * 10**6}
        | {"duration_ns": 5000, "grid": "1x1x1", "block": "32x1x1", "range": f"{case.id} > layer.0 > {part}"}
        for step in range(attribution.STEPS)
        for i, (name, part) in enumerate(
            [("nvjet_x", "q"), ("void at::native::reduce_kernel<Mean>()", "norm")]
        )
    ]
    found = STUDY.trimmed("nsys", Trace(pd.DataFrame(rows), pd.DataFrame()), None)
    assert list(found.columns) == ["case", *STUDY.profile_columns("nsys", None)]
    assert found[["part", "class", "launches", "us"]].values.tolist() == [
        ["q", "weight", 1, 5.0],
        ["norm", "norm", 1, 5.0],
    ]
    assert STUDY.profile_columns("cupti", None) == parts.COLUMNS


def test_counters_are_trimmed_to_theirs():
    case = attribution.counted()[0]
    launch = {"case": case.id, "range": f"{case.id} > layer.14 > down", "kernel": "nvjet_y", "grid": "1x1x1"}
    launch |= {"block": "32x1x1", "stream": "7", "id": 0, "time_ns": 1.0, "dram_bytes": 2.0}
    found = STUDY.trimmed("ncu", pd.DataFrame([launch]), ["time_ns", "dram_bytes"])
    assert found.iloc[0].to_dict() == {
        **{"case": case.id, "part": "down", "class": "weight", "kernel": "nvjet_y"},
        **{"grid": "1x1x1", "block": "32x1x1", "time_ns": 1.0, "dram_bytes": 2.0},
    }


# --- the decoder itself, small and on the CPU ---------------------------------------------------------------


SHAPE = dataclasses.replace(
    model_shapes.get("qwen2.5-1.5b"),
    layers=2,
    hidden=128,
    mlp=256,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab=500,
)


@pytest.fixture(scope="module")
def small():
    return hf.build(SHAPE, device="cpu")


@installed
def test_a_checkpoint_is_loaded_and_decodes_as_what_was_saved(small, tmp_path, monkeypatch):
    """WEIGHTS of lesson 02: from the parameter through the environment to the model and its oracle."""
    small.save_pretrained(tmp_path)
    monkeypatch.setenv(hf.WEIGHTS, "")
    assert hf.use_weights(str(tmp_path)) == "real"
    monkeypatch.setattr(model_shapes, "get", lambda name: SHAPE)
    hf.model.cache_clear()
    loaded = hf.model("qwen2.5-1.5b", "real", "cpu")
    hf.model.cache_clear()
    assert loaded is not small
    step, before = hf.Decode(loaded, 37), hf.Decode(small, 37)
    (logits, token), (expected, _) = step.step(), before.step()
    assert (logits == expected).all() and int(token) == int(logits.argmax())
    oracle = hf.reference(loaded, step.token, hf.cached(step))
    assert float((logits[0].double() - oracle).abs().max()) < 0.01
    assert float(hf.prefill(loaded, step.token).abs().max()) > 0


@installed
def test_weights_of_another_shape_or_none_are_refused_in_one_sentence(small, tmp_path):
    with pytest.raises(UsageError, match=r"^The weights '.*nothing' cannot be loaded: [^\n]*\.$"):
        hf.build(SHAPE, str(tmp_path / "nothing"), "cpu")
    small.config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"have num_hidden_layers 2; qwen2\.5-1\.5b has 28\.$"):
        hf.build(model_shapes.get("qwen2.5-1.5b"), str(tmp_path), "cpu")
    with pytest.raises(UsageError, match=r"cannot be loaded: "):  # a config without weights
        hf.build(SHAPE, str(tmp_path), "cpu")
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "model_type": "llama"}))
    with pytest.raises(UsageError, match=r"have model_type llama; qwen2\.5-1\.5b has qwen2\.$"):
        hf.build(SHAPE, str(tmp_path), "cpu")


@installed
def test_a_step_can_be_repeated_and_agrees_with_float64(small):
    step = hf.Decode(small, 37)
    expected = hf.reference(small, step.token, hf.cached(step))
    rounded = hf.reference(small, step.token, hf.cached(step), "float16")
    (first, token), (again, _) = step.step(), step.step()
    assert (first == again).all() and int(token) == int(first.argmax())
    budget = 2 * float((rounded.double() - expected).abs().max())
    assert float((first[0].double() - expected).abs().max()) <= budget < 0.01
    assert all(int(counter) == 37 for counter in step.counters)


@installed
def test_prefill_agrees_with_float64_and_with_decoding(small):
    ids = hf.tokens(38, 500, "cpu")
    expected = hf.reference(small, ids)
    got = hf.prefill(small, ids)[0]
    assert float((got.double() - expected).abs().max()) < 0.005
    assert float((got - hf.Decode(small, 37).step()[0][0]).abs().max()) < 0.005


@installed
def test_a_wrong_step_is_seen(small):
    import torch

    step = hf.Decode(small, 37)
    expected = hf.reference(small, step.token, hf.cached(step))
    with torch.no_grad():
        small.model.layers[1].mlp.down_proj.weight[3] += 0.5
        worse = float((step.step()[0][0].double() - expected).abs().max())
        small.model.layers[1].mlp.down_proj.weight[3] -= 0.5
    assert worse > 0.05


@installed
def test_parts_are_named_while_watched_and_only_then(small):
    opened, seen = [], []

    def push(name):
        opened.append(name)
        seen.append(" > ".join(["case", *opened]))

    step = hf.Decode(small, 5)
    with hf.named_parts(push, opened.pop):
        step.step()
    assert not opened
    located = [parts.part_of(path) for path in seen]
    products = [part for _, part in located if part in parts.WEIGHTS]
    assert products == ["q", "k", "v", "o", "gate", "up", "down"] * 2 + ["lm_head"]
    assert {layer for layer, _ in located} == {None, 0, 1}
    assert {"embed", "norm", "rope", "cache", "attention", "act", "mask", "sample", "rewind"} <= {
        part for _, part in located
    }
    count = len(seen)
    step.step()
    assert len(seen) == count
