"""Model shapes against published parameter counts and against the course's reference figures."""

import pytest
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes


@pytest.mark.parametrize("name", model_shapes.names())
def test_parameters_match_the_published_count(name):
    model = model_shapes.get(name)
    # Matrix weights alone: norms and biases are missing, so never above the published count by more than
    # its rounding.
    ratio = model_shapes.parameters(model) / model.parameters
    assert 0.994 < ratio < 1.0005


@pytest.mark.parametrize("name", model_shapes.names())
def test_heads_fit(name):
    model = model_shapes.get(name)
    assert model.heads % model.kv_heads == 0
    assert len(model_shapes.layers(model)) == model.layers
    assert model.hf.count("/") == 1 and model.source
    assert model.active <= model.experts


def test_every_family_of_the_sources_is_there():
    wanted = """
        llama-2-7b llama-2-13b llama-3-8b llama-3-70b mistral-7b mixtral-8x7b mistral-nemo phi-2 phi-3-mini
        phi-3-medium qwen-7b qwen-14b qwen2-7b qwen2-72b qwen2.5-1.5b falcon-7b yi-6b yi-34b gemma-2b gemma-7b
        gemma-4-e4b gpt-j-6b gpt-neox-20b
    """
    assert set(wanted.split()) <= set(model_shapes.names())


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="'gpt-5'.*llama-2-7b"):
        model_shapes.get("gpt-5")
    with pytest.raises(UsageError, match="'q4_k'.*int4_g128"):
        model_shapes.weight_bytes(model_shapes.get("phi-2"), "fp16", "q4_k")
    with pytest.raises(UsageError, match="'q4_k'"):
        model_shapes.weight_bytes(model_shapes.get("phi-2"), "q4_k")


def test_qwen_projections():
    found = model_shapes.projections(model_shapes.get("qwen2.5-1.5b"))
    assert found == [
        ("q", 1536, 1536, 28),
        ("k", 256, 1536, 28),
        ("v", 256, 1536, 28),
        ("o", 1536, 1536, 28),
        ("gate", 8960, 1536, 28),
        ("up", 8960, 1536, 28),
        ("down", 1536, 8960, 28),
        ("lm_head", 151936, 1536, 1),
    ]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-2-7b", 224),  # 7 a layer, not the 6 a source counts
        ("qwen2.5-1.5b", 196),
        ("phi-3-mini", 4 * 32),  # qkv, o, gate_up, down
        ("gpt-neox-20b", 4 * 44),  # qkv, o, up, down
        ("gpt-j-6b", 6 * 28),
        ("mixtral-8x7b", 32 * (4 + 1 + 2 * 3)),  # attention, router, two experts
        ("gemma-4-e4b", 1 + 42 * (2 + 3 + 2) + 24 * 2),  # the last 18 layers have no k and v
    ],
)
def test_gemv_count(name, count):
    assert model_shapes.gemvs(model_shapes.get(name)) == count


def test_qwen_weights_and_bytes_per_token():
    model = model_shapes.get("qwen2.5-1.5b")
    assert model_shapes.body(model) == pytest.approx(1.31e9, rel=2e-3)
    assert model_shapes.head(model) == 233_373_696
    for formats, gb in [
        (("fp16",), 3.087),
        (("q8_0",), 1.640),
        (("int4_g128", "fp16"), 1.142),
        (("int4_g128", "q8_0"), 0.923),
    ]:
        assert model_shapes.weight_bytes(model, *formats) / 1e9 == pytest.approx(gb, abs=1e-3)


def test_llama_3_reads_less_than_it_stores():
    model = model_shapes.get("llama-3-8b")
    assert (
        model_shapes.parameters(model) - model_shapes.body(model) - model_shapes.head(model) == 128256 * 4096
    )


def test_mixture_reads_two_experts_of_eight():
    model = model_shapes.get("mixtral-8x7b")
    assert model_shapes.body(model) + model_shapes.head(model) == pytest.approx(12.75e9, rel=2e-3)
    gate = next(p for p in model_shapes.projections(model) if p.name == "gate")
    assert gate.times == 64
    gate = next(p for p in model_shapes.projections(model, experts=8) if p.name == "gate")
    assert gate.times == 256


def test_kv_cache():
    qwen = model_shapes.get("qwen2.5-1.5b")
    assert model_shapes.kv_bytes_per_token(qwen) == 28 * 2 * 2 * 128 * 2 == 28672
    assert model_shapes.kv_read_bytes(qwen, 1000) == 28_672_000
    assert model_shapes.kv_bytes_per_token(model_shapes.get("llama-3-8b"), 1) == 65536


def test_window_limits_what_is_read():
    mistral = model_shapes.get("mistral-7b")
    assert model_shapes.kv_read_bytes(mistral, 4096) == model_shapes.kv_read_bytes(mistral, 10_000)
    assert model_shapes.kv_read_bytes(mistral, 4095) < model_shapes.kv_read_bytes(mistral, 4096)


def test_gemma_4_layers():
    model = model_shapes.get("gemma-4-e4b")
    found = model_shapes.layers(model)
    assert [i for i, layer in enumerate(found) if layer.window is None] == [5, 11, 17, 23, 29, 35, 41]
    assert {layer.head_dim for layer in found if layer.window is None} == {512}
    assert {(layer.head_dim, layer.window) for layer in found if layer.window} == {(256, 512)}
    assert [i for i, layer in enumerate(found) if not layer.owns_kv] == list(range(24, 42))
    # 20 sliding and 4 global layers own a cache of 2 heads; all 42 read one.
    assert model_shapes.kv_bytes_per_token(model) == 2 * 2 * 2 * (20 * 256 + 4 * 512)
    assert model_shapes.kv_read_bytes(model, 2000) == 2 * 2 * 2 * (35 * 256 * 512 + 7 * 512 * 2000)
    byname = {p.name: p for p in model_shapes.projections(model)}
    assert byname["q_global"] == ("q_global", 4096, 2560, 7)
    assert byname["k"] == ("k", 512, 2560, 20)
    assert byname["ple_model"] == ("ple_model", 42 * 256, 2560, 1)


@pytest.mark.parametrize(("n", "gflop"), [(512, 2.66), (2048, 2.80), (8192, 3.32)])
def test_prefill_flops_per_token(n, gflop):
    assert model_shapes.prefill_flops(model_shapes.get("qwen2.5-1.5b"), n) / n / 1e9 == pytest.approx(
        gflop, abs=6e-3
    )


def test_decode_flops():
    model = model_shapes.get("qwen2.5-1.5b")
    weights = 2 * (model_shapes.body(model) + model_shapes.head(model))
    assert model_shapes.decode_flops(model, 1) == weights + 4 * 12 * 128 * 28
    assert model_shapes.decode_flops(model, 100) == weights + 100 * 4 * 12 * 128 * 28


@pytest.mark.parametrize("window", [None, 1, 3, 7, 50])
def test_causal_pairs_by_counting(window):
    n = 7
    counted = sum(1 for i in range(n) for j in range(i + 1) if i - j < (window or n))
    assert model_shapes._causal_pairs(n, window) == counted


@pytest.mark.parametrize("name", ["mistral-7b", "gemma-4-e4b"])
def test_prefill_is_the_sum_of_its_decode_steps(name):
    """But for the output head, which prefill computes once."""
    model = model_shapes.get(name)
    n = 600
    steps = sum(model_shapes.decode_flops(model, i) for i in range(1, n + 1))
    assert model_shapes.prefill_flops(model, n) == steps - 2 * (n - 1) * model_shapes.head(model)
