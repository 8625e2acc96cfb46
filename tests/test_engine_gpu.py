"""The decoder on a GPU: against transformers' weights and oracle, by every path, again and again."""

import numpy as np
import pytest
from rooflab import device

pytestmark = pytest.mark.skipif(not device.has_gpu(), reason="needs an NVIDIA GPU")

LENGTH = 150


@pytest.fixture(scope="module")
def model():
    """A small Qwen2 of transformers, its logits after LENGTH tokens in float64, and float16's error."""
    pytest.importorskip("transformers", reason="needs transformers")
    from rooflab import engine, shapes
    from rooflab.ops.decoder import Shape
    from rooflab.studies import hf

    sizes = shapes.Model("small", "", 4, 768, 2048, 12, 2, 64, 4096, 0.0, tied=True)
    found = hf.build(sizes)
    ids = hf.tokens(LENGTH, sizes.vocab)
    expected = hf.reference(found, ids)
    error = float((hf.reference(found, ids, dtype="float16").double() - expected).abs().max())
    shape = Shape(4, 768, 2048, 12, 2, 64, 4096, hf.EPSILON)
    spec = engine.Spec("small", shape, hf.THETA, True, True)
    state = found.state_dict()
    return (
        spec,
        engine.pack(spec, lambda name: state[name], capacity=12_000),
        ids[0].tolist(),
        expected,
        error,
    )


def paths():
    from rooflab import engine, ops
    from rooflab.ops import decoder

    own = [
        rung.name
        for rung in decoder.LADDERS["decode_step"]
        if "75" in rung.archs or not device.has_gpu() or ops.this_arch() == "90"
    ]
    return [
        *(engine.Paths(decode=way) for way in (*own, "torch", "products")),
        engine.Paths(decode="1_phases", graph=False),
        engine.Paths(rows=False),
        engine.Paths(attention="torch"),
    ]


@pytest.mark.parametrize("index", range(8))
def test_every_path_agrees_with_transformers_weights(model, index):
    """A prompt at once, in pieces, and its last token decoded: as near the oracle as float16 may be."""
    import torch
    from rooflab import engine
    from rooflab.ops import decoder

    if index >= len(paths()):
        pytest.skip("this GPU has fewer paths")
    spec, weights, tokens, expected, error = model
    one = engine.Engine(spec, weights, capacity=400, paths=paths()[index])

    def near():
        got = one.logits.double()
        assert float((got - expected).abs().max()) <= 2 * error
        top, wanted = (set(x.topk(5).indices.tolist()) for x in (got, expected))
        assert len(top & wanted) >= 4
        first, second = expected.topk(2).values.tolist()
        assert int(got.argmax()) == int(expected.argmax()) or first - second < 2 * error

    one.prefill(tokens)
    near()
    for _ in range(2):  # the second time by a graph
        one.reset()
        for part in (tokens[:70], tokens[70:71], tokens[71:]):
            one.prefill(part)
        near()
    one.reset()
    one.prefill(tokens[:-1])
    one.state.bests.copy_(torch.from_numpy(decoder.candidates(tokens[-1], one.blocks)))
    one.decode(1)
    near()
    assert one.ran[f"decode {one.paths.decode}"] == 1


def test_a_thousand_runs_give_the_same_tokens_and_ten_thousand_steps_leak_nothing(model):
    import torch
    from rooflab import engine

    spec, weights, tokens, *_ = model
    one = engine.Engine(spec, weights, capacity=12_000)
    found = set()
    for _ in range(1000):
        one.reset()
        one.prefill(tokens[:20])
        found.add(tuple(one.generate(8)))
    assert len(found) == 1
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        one.decode(100)
    torch.cuda.synchronize()
    assert one.position == 10_028 and before - torch.cuda.mem_get_info()[0] < 1 << 21
    assert np.isfinite(one.logits.cpu().numpy()).all()


@pytest.mark.parametrize("format", ["q8_0", "int4_g128"])
def test_quantised_weights_are_those_of_numpy(format):
    """What the GPU makes of a matrix, bit for bit."""
    import torch
    from rooflab.engine import weights

    rows = np.random.default_rng(0).standard_normal((128, 512)).astype(np.float16)
    there = weights._packed(torch.from_numpy(rows).cuda(), format)
    here = weights._packed(rows, format)
    if format == "q8_0":
        for a, b in zip(there, here, strict=True):
            assert (a.cpu().numpy() == b).all()
    else:
        assert (there.cpu().numpy().view(np.uint32) == here).all()
