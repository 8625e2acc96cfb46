"""The decoder of Gemma 4's kind on a GPU: against float64 and transformers, by every path, again
and again."""

import numpy as np
import pytest
from rooflab.hardware import device
from rooflab.numerics import model_shapes

pytestmark = pytest.mark.skipif(not device.has_gpu(), reason="needs an NVIDIA GPU")

LENGTH = 200
# The real heads and window pattern, of a size that float64 answers for in seconds.
MODEL = model_shapes.Model(
    *("small", "", 6, 1280, 2560, 8, 2, 256, 4096, 0.0),
    tied=True,
    window=64,
    global_every=3,
    global_head_dim=512,
    shared_kv=2,
    ple=256,
    softcap=30.0,
)
TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, MODEL.vocab, LENGTH)]


@pytest.fixture(scope="module")
def tensors():
    from rooflab.engine import gemma

    spec = gemma.Spec("small", MODEL)
    return spec, gemma.random_tensors(spec, on="cpu")


@pytest.mark.parametrize("format", ["fp16", "q8_0", "int4_g128"])
def test_every_path_is_as_near_float64_as_float16_may_be(tensors, format):
    """A prompt past the window, twice by a graph, in pieces, and its last tokens decoded."""
    import torch
    from rooflab.engine import gemma, gemma_exact
    from rooflab.ops import decoder

    spec, get = tensors
    head_format = "q8_0" if format == "q8_0" else "fp16"
    expected = gemma_exact.logits(spec, get, TOKENS, format, head_format)
    baseline = gemma_exact.logits(spec, get, TOKENS, format, head_format, "float16", rounded=True)
    error = np.abs(baseline - expected).max()
    weights = gemma.pack(
        spec, lambda name: torch.from_numpy(get(name)).cuda(), format, head_format, capacity=512
    )

    def near(one):
        got, want = one.logits.double().cpu().numpy(), expected[one.position - 1]
        assert np.abs(got - want).max() <= 2 * error
        order, wanted = np.argsort(got), np.argsort(want)
        assert len(set(order[-5:]) & set(wanted[-5:])) >= 4
        assert order[-1] == wanted[-1] or want[wanted[-1]] - want[wanted[-2]] < 4 * error

    for paths in (
        gemma.Paths(),
        gemma.Paths(graph=False, tail=False),
        gemma.Paths(attention="8_head_dim_slices"),
        gemma.Paths(mmq=False),
    ):
        one = gemma.Engine(spec, weights, paths=paths)
        for _ in range(3):
            one.reset()
            one.prefill(TOKENS)
            near(one)
        assert one.ran["prompt graph"] == 2 * paths.graph
        one.reset()
        for end in (70, 71, LENGTH):
            one.prefill(TOKENS[one.position : end])
            near(one)
        one.reset()
        one.prefill(TOKENS[:-3])
        for token in TOKENS[-3:]:
            one.state.candidates.copy_(torch.from_numpy(decoder.candidates(token, one.blocks)))
            one.decode(1)
            near(one)
        assert one.ran["decode graph"] == 3 * paths.graph
        assert one.ran["tail of the last token"] > 0 or not paths.tail


def test_the_engine_is_as_near_transformers_as_its_float16_is(tensors):
    import torch
    from rooflab.engine import gemma

    transformers = pytest.importorskip("transformers", reason="needs transformers")
    if not hasattr(transformers, "Gemma4ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no Gemma 4")
    from gemma4 import logits

    spec, get = tensors
    exact, half = (logits(spec, get, TOKENS, dtype, "cuda")[-1] for dtype in ("float64", "float16"))
    weights = gemma.pack(spec, lambda name: torch.from_numpy(get(name)).cuda(), capacity=256)
    one = gemma.Engine(spec, weights)
    one.prefill(TOKENS)
    got = one.logits.double().cpu().numpy()
    assert np.abs(got - exact).max() <= 2 * np.abs(half - exact).max()
    assert got.argmax() == exact.argmax()


def test_a_thousand_runs_give_the_same_tokens_and_ten_thousand_steps_leak_nothing():
    import torch
    from rooflab.engine import gemma

    small = model_shapes.Model(**{**MODEL.__dict__, "layers": 3, "shared_kv": 0, "hidden": 512, "mlp": 512})
    spec = gemma.Spec("smaller", small)
    one = gemma.Engine(spec, gemma.random_weights(spec, capacity=12_000))
    one.sample(0.8, 7)
    found = set()
    for _ in range(1000):
        one.reset()
        one.prefill(TOKENS[:20])
        found.add(tuple(one.generate(4)))
    assert len(found) == 1
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    one.decode(10_000)
    torch.cuda.synchronize()
    assert one.position == 10_024 and before - torch.cuda.mem_get_info()[0] < 1 << 21
    assert np.isfinite(one.logits.cpu().numpy()).all()
