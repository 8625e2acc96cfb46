"""The decoder on a GPU: against transformers on the same weights, by every path, again and again."""

import copy

import numpy as np
import pytest
from rooflab.errors import LaunchError, UsageError
from rooflab.hardware import device

pytestmark = pytest.mark.skipif(not device.has_gpu(), reason="needs an NVIDIA GPU")

LENGTH = 150
FORMATS = [("fp16", "fp16"), ("q8_0", "q8_0"), ("q8_0", "fp16"), ("int4_g128", "fp16"), ("int4_g128", "q8_0")]


class Model:
    """A small Qwen2 of transformers, and what becomes of it in a format."""

    def __init__(self):
        from rooflab import engine
        from rooflab.numerics import model_shapes
        from rooflab.ops.decoder_operands import Shape
        from rooflab.studies import hf

        sizes = model_shapes.Model("small", "", 4, 768, 2048, 12, 2, 64, 4096, 0.0, tied=True)
        self.found = hf.build(sizes)
        self.state = self.found.state_dict()
        self.ids = hf.tokens(LENGTH, sizes.vocab)
        self.tokens = self.ids[0].tolist()
        self.spec = engine.Spec(
            "small", Shape(4, 768, 2048, 12, 2, 64, 4096, hf.EPSILON), hf.THETA, True, True
        )
        self.known = {}

    def weights(self, format="fp16", head_format="fp16"):
        from rooflab import engine

        key = (format, head_format)
        if key not in self.known:
            get = self.state.__getitem__
            self.known[key] = engine.pack(self.spec, get, format, head_format, capacity=12_000)
        return self.known[key]

    def quantised(self, format, head_format):
        """transformers' model on the values that the quantised weights stand for, in FP32."""
        from rooflab.engine.weights import dequantised

        other = copy.deepcopy(self.found).float()
        for name, parameter in other.named_parameters():
            if parameter.ndim == 2:
                kind = head_format if "embed" in name or "lm_head" in name else format
                parameter.copy_(dequantised(self.state[name], kind))
        return other

    def judge(self, format="fp16", head_format="fp16", rounded=False):
        """A check of logits: near those of float64 as float16 is, or as it is with activations in Q8_1."""
        from rooflab.engine import exact
        from rooflab.studies import hf

        key = ("judge", format, head_format, rounded)
        if key in self.known:
            return self.known[key]
        model = self.quantised(format, head_format)
        expected = hf.reference(model, self.ids)
        theirs = model(self.ids).logits[0, -1].double()
        given, how = self.state.__getitem__, {"dtype": "float16", "rounded": rounded, "last": True}
        baseline = exact.logits(self.spec, given, self.ids, format, head_format, **how)[0, 0].double()
        error = float((baseline - expected).abs().max())
        assert float((theirs - expected).abs().max()) < error / 20  # FP32 is transformers' own path

        def near(got):
            got = got.double()
            assert float((got - expected).abs().max()) <= 2 * error
            top, wanted = (set(x.topk(5).indices.tolist()) for x in (got, expected))
            assert len(top & wanted) >= 4
            first, second = expected.topk(2).values.tolist()
            assert int(got.argmax()) == int(expected.argmax()) or first - second < 2 * error

        self.known[key] = near
        return near


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("transformers", reason="needs transformers")
    return Model()


def begin(one, token):
    """Make the next step work on `token`."""
    import torch
    from rooflab.ops import decoder

    one.state.candidates.copy_(torch.from_numpy(decoder.candidates(token, one.blocks)))


def agrees(one, tokens, near):
    """A prompt at once, in pieces, and its last token decoded."""
    for _ in range(3):  # the second and third time by a graph
        one.reset()
        one.prefill(tokens)
        near(one.logits)
    for _ in range(2):
        one.reset()
        for part in (tokens[:70], tokens[70:71], tokens[71:]):
            one.prefill(part)
        near(one.logits)
    one.reset()
    one.prefill(tokens[:-3])
    for token in tokens[-3:]:
        begin(one, token)
        one.decode(1)
    near(one.logits)
    assert one.ran[f"decode {one.paths.decode or one.decoding()}"] == 3


def test_a_llama_agrees_with_transformers():
    """Heads of 128, no biases, a head of its own, another theta and epsilon."""
    pytest.importorskip("transformers", reason="needs transformers")
    from rooflab import engine
    from rooflab.engine.weights import random_tensors
    from rooflab.ops.decoder_operands import Shape
    from rooflab.studies import hf

    spec = engine.Spec("small-llama", Shape(3, 1024, 2816, 8, 2, 128, 4096, 1e-5), 5e5, False, False)
    tensors = random_tensors(spec)
    found = hf.llama(spec, tensors)
    ids = hf.tokens(LENGTH, 4096)
    theirs = found(ids).logits[0, -1].double()
    expected = copy.deepcopy(found).float()(ids).logits[0, -1].double()
    error = float((theirs - expected).abs().max())
    one = engine.Engine(spec, engine.pack(spec, tensors, capacity=400))

    def near(got):
        assert float((got.double() - expected).abs().max()) <= 2 * error
        assert len(set(got.topk(5).indices.tolist()) & set(expected.topk(5).indices.tolist())) >= 4

    agrees(one, ids[0].tolist(), near)


def rungs():
    from rooflab import ops
    from rooflab.ops import decoder

    return [rung.name for rung in decoder.LADDERS["decode_step"] if rung.runs_on(ops.this_arch())]


@pytest.mark.parametrize("way", range(13))
def test_every_way_to_decode_agrees_with_transformers(model, way):
    from rooflab import engine

    ways = [*rungs(), engine.decoder.CHAIN, *engine.decoder.PLAIN]
    if way >= len(ways):
        pytest.skip("there are fewer")
    for graph in (True, False):
        paths = engine.Paths(decode=ways[way], graph=graph)
        one = engine.Engine(model.spec, model.weights(), capacity=400, paths=paths)
        agrees(one, model.tokens, model.judge())


@pytest.mark.parametrize(
    "name", ["1_scalar", "2_mmq", "3_flash", "4_rows", "5_embed", "6_graph", "7_fused", "torch", "halves"]
)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_every_way_to_take_in_a_prompt_agrees_and_says_that_it_ran(model, formats, name):
    from rooflab import engine, ops

    others = {
        "torch": engine.Paths(rows=False, attention="torch", mmq=False),
        "halves": engine.Paths(mmq=False),
    }
    paths = {**engine.PROMPTS, **others}[name]
    one = engine.Engine(model.spec, model.weights(*formats), capacity=400, paths=paths)
    agrees(one, model.tokens, model.judge(*formats))
    ran, format = one.ran, formats[0]
    assert (ran["prompt graph"] > 0) == paths.graph
    assert (ran["rows own"] > 0) == paths.rows and (ran["rows torch"] > 0) == (not paths.rows)
    assert ran[f"attention {paths.attention or 'own'}"] > 0
    assert (ran["embedded at once"] > 0) == paths.embed == (not ran["embedded one by one"])
    hopper = ops.this_arch() == "90"
    short = format == "int4_g128" and paths.mmq and hopper
    assert (ran["product mmq"] > 0) == (format == "q8_0" and paths.mmq)
    assert (ran["product int4_g128"] > 0) == short
    assert (ran["product cublas"] > 0) == (not ran["product mmq"] and not short)
    assert (ran["product fused"] > 0) == (format == "q8_0" and paths.mmq and paths.fused and hopper)
    gated = hopper and not ran["product mmq"] and paths.gates_in_product(format, LENGTH)
    assert (ran["product gated"] > 0) == gated
    assert (ran["dequantised q8_0"] > 0) == (format == "q8_0" and not paths.mmq)
    assert (ran["dequantised int4_g128 own"] > 0) == (format == "int4_g128" and not short and paths.rows)
    assert (ran["dequantised int4_g128"] > 0) == (format == "int4_g128" and not short and not paths.rows)


@pytest.mark.parametrize(("size", "dependent"), [(3, False), (3, True), (8, True), (32, True), (40, False)])
@pytest.mark.parametrize("formats", FORMATS[:4], ids="-".join)
def test_a_batch_agrees_with_transformers_and_with_itself(model, formats, size, dependent):
    """Sequences of one prompt each: the one of interest among others, decoded to its end."""
    import torch
    from rooflab import engine

    one = engine.Engine(model.spec, model.weights(*formats), capacity=400)
    many = engine.Batch(one, size, 300, dependent)
    near = model.judge(*formats, rounded=formats[0] == "q8_0")
    tokens, others = model.tokens, np.random.default_rng(0).integers(0, 4096, (size, LENGTH)).tolist()
    others[1] = tokens
    many.prefill([prompt[:-2] for prompt in others])
    for place in (-2, -1):
        many.tokens[many.position] = torch.tensor([prompt[place] for prompt in others])
        many.decode(1)
    near(many.logits[1])
    assert many.ran["step graph"] == 2 and many.position == LENGTH and one.position == 0
    few = {"fp16": "product cublas", "q8_0": "product mmq"}.get(formats[0], "product int4_g128")
    assert many.chain.dependent == dependent
    assert many.ran["product dependent" if many.chain.dependent else few] >= 2 * 4 * 4
    found = set()
    for _ in range(3):
        many.reset()
        many.prefill([tokens] * size)
        made = many.generate(20)
        assert all(row == made[0] for row in made)
        found.add(tuple(made[0]))
    assert len(found) == 1
    many.sample(1.0, 3)
    many.prefill([tokens] * size)
    drawn = many.generate(20)
    assert len(set(map(tuple, drawn))) == size


@pytest.mark.parametrize("count", [2, 4, 8, 13])
@pytest.mark.parametrize("formats", FORMATS[:4], ids="-".join)
def test_drafts_agree_with_transformers_and_hold_again_and_again(model, formats, count):
    from rooflab import engine
    from rooflab.studies.decode_work import holding

    one = engine.Engine(model.spec, model.weights(*formats), capacity=400)
    near, tokens = model.judge(*formats), model.tokens
    one.prefill(tokens[:-count])
    one.rewind(LENGTH - count, tokens[-count])
    held, due = one.verify(tokens[-count:])  # whether they hold or not, logits are made of all
    near(one._drafts[count].logits[-1])
    assert held >= 1 and one.due == due and one.position == LENGTH - count + held

    def begin():
        one.reset()
        one.prefill(tokens)

    begin()
    known = holding(one, begin, 3 * count, count)
    for _ in range(5):
        begin()
        for at in range(0, 3 * count, count):
            assert one.verify(known[at : at + count])[0] == count
        assert one.state.tokens[LENGTH : one.position].tolist() == known
    assert one.generate(5) and one.position == LENGTH + 3 * count + 5
    begin()
    wrong = [*known[:1], (known[1] + 1) % 4096, *known[2:count]]
    assert one.verify(wrong) == (1, known[1]) and one.position == LENGTH + 1


def test_speculation_gives_the_same_tokens_whatever_drafts(model):
    """Of one engine with itself as draft and with another, but for ties, which rounding decides."""
    from rooflab import engine

    one, same, other = (
        engine.Engine(model.spec, model.weights(*formats), capacity=400)
        for formats in (FORMATS[0], FORMATS[0], FORMATS[3])
    )
    found = []
    for draft in (same, other, same, other):
        for each in (one, draft):
            each.reset()
            each.prefill(model.tokens)
        one.ran.clear()
        found.append(one.speculate(draft, 60, 4))
        assert one.ran["drafts held"] == 60 and 15 <= one.ran["verify"] <= 60
    assert found[0] == found[2] and found[1] == found[3] and found[0][:3] == found[1][:3]


def test_a_batch_refuses_what_it_cannot_do_and_goes_on(model):
    from rooflab import engine

    one = engine.Engine(model.spec, model.weights(), capacity=40)
    for size in (1, 65):
        with pytest.raises(UsageError, match=f"holds 2 to 64 sequences, not {size}"):
            one.batch(size)
    with pytest.raises(UsageError, match="knows 40 positions, so 41 are refused"):
        one.batch(2, 41)
    many, other = one.batch(2, 30), engine.Engine(model.spec, model.weights(), capacity=40).batch(2, 30)
    with pytest.raises(UsageError, match="needs prompts before it generates"):
        many.generate(1)
    many.prefill([[1, 2, 3], [4, 5, 6]])
    for bad, says in (
        ([[1, 2]], "2 prompts, all equally long"),
        ([[1, 2], [3]], "2 prompts, all equally long"),
        ([[], []], "2 prompts, all equally long"),
        ([[1] * 31] * 2, "31 tokens do not fit a cache of 30"),
        ([[1, -1], [1, 2]], "from 0 to 4095"),
    ):
        with pytest.raises(UsageError, match=says):
            many.prefill(bad)
    with pytest.raises(UsageError, match="28 tokens after 3 do not fit a cache of 30"):
        many.generate(28)
    with pytest.raises(UsageError, match="one token or more, not 0"):
        many.generate(0)
    with pytest.raises(UsageError, match="temperature"):
        many.sample(-1)
    other.prefill([[1, 2, 3], [4, 5, 6]])
    assert many.generate(27) == other.generate(27)


def test_a_refused_input_leaves_the_engine_usable(model):
    import torch
    from rooflab import engine
    from rooflab.ops import decoder

    one, other = (engine.Engine(model.spec, model.weights(), capacity=40) for _ in range(2))
    with pytest.raises(UsageError, match="needs a prompt before it generates"):
        one.generate(1)
    one.prefill(model.tokens[:20])
    for bad in ([], [-1], [4096], model.tokens[:21]):
        with pytest.raises(UsageError, match="A prompt is one token or more|do not fit a cache of 40"):
            one.prefill(bad)
    for wrong in (
        one.weights._replace(norms=one.weights.norms.float()),
        one.weights._replace(qkv=one.weights.qkv.cpu()),
        one.weights._replace(down=one.weights.down[:1]),
    ):
        with pytest.raises(LaunchError):
            decoder.step(model.spec.shape, wrong, one.state)
    one.generate(20)
    with pytest.raises(UsageError, match="1 tokens after 40 do not fit"):
        one.generate(1)
    one.reset()
    for which in (one, other):
        which.prefill(model.tokens[:20])
    assert one.generate(20) == other.generate(20)
    assert bool(torch.isfinite(one.logits).all())


@pytest.mark.parametrize("formats", [FORMATS[0], FORMATS[1], FORMATS[3]], ids="-".join)
def test_a_thousand_runs_give_the_same_tokens_and_ten_thousand_steps_leak_nothing(model, formats):
    import torch
    from rooflab import engine

    one = engine.Engine(model.spec, model.weights(*formats), capacity=12_000)
    found = set()
    for _ in range(1000 if formats[0] == "fp16" else 100):
        one.reset()
        one.prefill(model.tokens[:20])
        found.add(tuple(one.generate(8)))
    assert len(found) == 1
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        one.decode(100)
    torch.cuda.synchronize()
    assert one.position == 10_028 and before - torch.cuda.mem_get_info()[0] < 1 << 21
    assert np.isfinite(one.logits.cpu().numpy()).all()


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(("n", "k", "batch"), [(528, 1536, 777), (144, 128, 5), (1536, 2048, 300)])
def test_a_prompts_product_is_right_with_every_tile(n, k, batch, gate):
    import torch
    from rooflab import ops
    from rooflab.numerics.quant import Planes
    from rooflab.ops import prompt_products

    if ops.this_arch() != "90":
        pytest.skip("needs a Hopper")
    torch.manual_seed(n)
    quants = torch.randint(-127, 128, (n, k), dtype=torch.int8, device="cuda")
    scales = (torch.rand(n, k // 32, device="cuda") * 0.002 + 0.0005).half()
    x = torch.randn(batch, k, device="cuda").half()
    exact = (quants.view(n, -1, 32).double() * scales.double()[..., None]).view(n, k)

    def gated(y):
        y = y.view(batch, -1, 2, 8)
        return (torch.nn.functional.silu(y[:, :, 0]) * y[:, :, 1]).reshape(batch, -1)

    expected, plain = x.double() @ exact.t(), (x @ exact.half().t()).float()
    if gate:
        expected, plain = gated(expected), gated(plain)
    error = float((plain.half().double() - expected).abs().max())
    halves = exact.half()
    of_halves = x.double() @ halves.double().t()
    for w, right in ((Planes(scales, quants), expected), (halves, gated(of_halves) if gate else of_halves)):
        for tokens in prompt_products.TOKENS[prompt_products.rung_for(w).name]:
            out = torch.full(expected.shape, float("nan"), dtype=torch.float16, device="cuda")
            prompt_products.prompt_product(x, w, gate=gate, out=out, TOKENS=tokens)
            assert float((out.double() - right).abs().max()) <= 2 * error


@pytest.mark.parametrize("format", ["fp16", "q8_0", "int4_g128"])
@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 13, 24, 32])
def test_a_few_tokens_products_are_right_as_a_model_divides_them(tokens, format):
    """Of a real model's matrices, however the law divides them; launched one after another, as in a step."""
    import torch
    from rooflab import engine
    from rooflab.engine.weights import dequantised, packed
    from rooflab.ops import batch_ops, int4

    torch.manual_seed(tokens)
    for name, (n, k) in engine.spec("qwen2.5-1.5b").shape.matrices.items():
        if name == "head":
            continue
        rows = torch.randn(n, k, dtype=torch.float16, device="cuda") / k**0.5
        x = torch.randn(tokens, k, dtype=torch.float16, device="cuda")
        w = packed(rows, format)
        w = int4.Tiles(w, n, k) if format == "int4_g128" else w
        expected = x.float() @ dequantised(rows, format).t()
        out = torch.full((tokens, n), torch.nan, dtype=torch.float16, device="cuda")
        whole = batch_ops.plan_for(n, k, tokens, format, False, batch_ops.sms_of(x))
        splits = batch_ops.parts_of(n, k, tokens, format, batch_ops.sms_of(x))
        parts = torch.full((splits, tokens, n), torch.nan, device="cuda")
        for _ in range(50):
            if whole:
                batch_ops.product(x, w, out=out)
            batch_ops.product(x, w, out=parts, then=batch_ops.PARTS)
        for found in (*([out.float()] if whole else []), parts.sum(0)):
            assert (found - expected).abs().max() <= 4e-3 * expected.abs().max(), (name, format)


@pytest.mark.parametrize("format", ["q8_0", "int4_g128"])
def test_quantised_weights_are_those_of_numpy(format):
    """What the GPU makes of a matrix, bit for bit."""
    import torch
    from rooflab.engine import weights

    rows = np.random.default_rng(0).standard_normal((128, 512)).astype(np.float16)
    there = weights.packed(torch.from_numpy(rows).cuda(), format)
    here = weights.packed(rows, format)
    if format == "q8_0":
        for a, b in zip(there, here, strict=True):
            assert (a.cpu().numpy() == b).all()
    else:
        assert (there.cpu().numpy().view(np.uint32) == here).all()
