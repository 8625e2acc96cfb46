"""The decoder of Gemma 4's kind on the CPU: against float64, against what transformers computes, by every
path."""

from dataclasses import replace

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.engine import from_safetensors, gemma, gemma_exact
from rooflab.errors import LaunchError, UsageError
from rooflab.numerics import model_shapes, rotary
from rooflab.ops import decoder, gemma_ops
from rooflab.ops.decoder_operands import winner
from rooflab.pages import lesson_08c_time
from rooflab.paths import ROOT
from test_engine_files import write_safetensors

needs.compiler()

# Six layers: two of three see five tokens, the third everything; the last two have no cache of their own.
MODEL = model_shapes.Model(
    *("tiny", "", 6, 256, 384, 4, 2, 64, 320, 0.0),
    tied=True,
    window=5,
    global_every=3,
    global_head_dim=128,
    shared_kv=2,
    ple=128,
    softcap=30.0,
)
SPEC = gemma.Spec("tiny", MODEL)
GET = gemma.random_tensors(SPEC, on="cpu")
TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, MODEL.vocab, 14)]
FORMATS = [("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "fp16")]


def budget(spec, tokens, format, head_format, get=GET):
    """What the oracle says, and how far the same in FP16 is from it."""
    expected = gemma_exact.logits(spec, get, tokens, format, head_format)
    baseline = gemma_exact.logits(spec, get, tokens, format, head_format, "float16", rounded=True)
    return expected, gate.error_budget(np.abs(baseline - expected).max(), expected, "float16")


@pytest.fixture(scope="module")
def weights():
    return gemma.pack(SPEC, GET, capacity=24)


@pytest.mark.share(3)
@pytest.mark.parametrize(("format", "head_format"), FORMATS)
def test_prompts_pieces_and_steps_agree_with_float64(format, head_format):
    """A prompt past the window, pieces of it, and tokens decoded one by one."""
    expected, allowed = budget(SPEC, TOKENS, format, head_format)
    one = gemma.Engine(SPEC, gemma.pack(SPEC, GET, format, head_format, capacity=16), blocks=3)
    for pieces in ((14,), (3, 6, 1, 4)):
        one.reset()
        for size in pieces:
            one.prefill(TOKENS[one.position : one.position + size])
            assert np.abs(one.logits - expected[one.position - 1]).max() <= allowed
            assert winner(one.state.candidates) == one.logits.argmax()
    one.reset()
    one.prefill(TOKENS[:11])
    for token in TOKENS[11:]:
        one.state.candidates[...] = decoder.candidates(token, one.blocks)
        one.decode(1)
        assert np.abs(one.logits - expected[one.position - 1]).max() <= allowed
    assert one.state.tokens[:14].tolist() == TOKENS
    assert one.position == one.state.position[0] == one.length[0] == one.place[0] + 1 == 14
    counted = {"fp16": "product fp16", "q8_0": "product mmq", "int4_g128": "product int4"}
    assert one.ran[counted[format]] and one.ran["attention window"] == 2 * one.ran["attention everything"]


@pytest.mark.share(3)
@pytest.mark.parametrize(("format", "head_format"), FORMATS)
def test_a_token_launches_what_lesson_08c_reads_off_the_source(format, head_format, monkeypatch):
    """In its layers; before and after them a token launches a few more, which the lesson leaves out."""
    one = gemma.Engine(SPEC, gemma.pack(SPEC, GET, format, head_format, capacity=16), blocks=3)
    one.prefill(TOKENS[:3])
    seen, launch = [], simt.Function.launch

    def counting(function, *arguments, **named):
        seen.append(function.entry)
        launch(function, *arguments, **named)

    monkeypatch.setattr(simt.Function, "launch", counting)
    one.decode(1)
    outside = 6 + (format == "q8_0")
    assert len(seen) == lesson_08c_time.launches("gemma", format, MODEL.layers) + outside
    assert lesson_08c_time.layer_of_gemma().count("_product") == 6


def test_a_part_of_the_model_left_out_would_be_seen():
    """Another window, no layer's embeddings, another cap: each is further off than the budget allows."""
    expected, allowed = budget(SPEC, TOKENS, "fp16", "fp16")

    def untold(name):
        return GET(name) * (name != "model.embed_tokens_per_layer.weight")

    for changed, get in (({"window": 6}, GET), ({"softcap": 3.0}, GET), ({}, untold)):
        other = gemma.Spec("other", replace(MODEL, **changed))
        assert np.abs(gemma_exact.logits(other, get, TOKENS) - expected).max() > 2 * allowed, changed


def test_the_tail_may_go_with_every_token_and_the_attention_by_another_rung(weights):
    made = []
    for paths in (gemma.Paths(), gemma.Paths(tail=False), gemma.Paths(attention="1_scalar")):
        one = gemma.Engine(SPEC, weights, paths=paths, blocks=2)
        one.prefill(TOKENS)
        made.append(one.logits.copy())
        assert one.ran["tail of the last token"] == paths.tail
    assert all(np.abs(each - made[0]).max() < 2e-3 for each in made)


def test_greedy_tokens_are_the_oracles(weights):
    one = gemma.Engine(SPEC, weights, blocks=2)
    one.prefill(TOKENS[:7])
    greedy = list(TOKENS[:7])
    for _ in range(4):
        greedy.append(int(gemma_exact.logits(SPEC, GET, greedy)[-1].argmax()))
    assert one.generate(4) == greedy[7:]
    first = one.logits.copy()
    one.reset()
    one.prefill(TOKENS[:7])
    assert one.generate(4) == greedy[7:] and (one.logits == first).all()


def test_sampling_follows_the_seed(weights):
    one, drawn = gemma.Engine(SPEC, weights, blocks=2), []
    for seed in (5, 5, 6):
        one.reset()
        one.sample(0.9, seed)
        one.prefill(TOKENS[:3])
        drawn.append(one.generate(3))
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_refused_input_leaves_the_engine_usable(weights):
    one = gemma.Engine(SPEC, weights, capacity=8, blocks=2)
    with pytest.raises(UsageError, match="needs a prompt"):
        one.decode(1)
    one.prefill(TOKENS[:3])
    before = one.logits.copy()
    for wrong, says in (([], "one token or more"), ([320], "from 0 to 319"), ([1] * 6, "do not fit a cache")):
        with pytest.raises(UsageError, match=says):
            one.prefill(wrong)
    with pytest.raises(UsageError, match="6 tokens after 3 do not fit"):
        one.generate(6)
    with pytest.raises(UsageError, match="one token or more, not 0"):
        one.generate(0)
    with pytest.raises(UsageError, match="temperature lies between"):
        one.sample(-1)
    assert one.position == 3 and (one.logits == before).all() and len(one.generate(5)) == 5
    with pytest.raises(UsageError, match="a capacity of 25 is refused"):
        gemma.Engine(SPEC, weights, capacity=25)
    with pytest.raises(UsageError, match="not int4_g128 and int4_g128"):
        gemma.pack(SPEC, GET, "int4_g128", "int4_g128")
    with pytest.raises(UsageError, match="kind of Gemma 4 E4B, which gemma-7b is not"):
        gemma.spec("gemma-7b")


def test_the_real_shapes_are_e4bs():
    spec = gemma.spec()
    total = sum(int(np.prod(shape)) for shape in spec.names().values())
    assert abs(total / spec.model.parameters - 1) < 0.01
    wide = [layer for layer in spec.layers if layer.window is None]
    assert len(spec.layers) == 42 and len(wide) == 7 and {layer.head_dim for layer in wide} == {512}
    assert spec.sources[24:] == [23 if i % 6 == 5 else 22 for i in range(24, 42)]


def test_weights_come_from_a_checkpoint_with_other_parts(tmp_path, weights):
    """The language model of a checkpoint that sees and hears lies one name deeper; the rest is left alone."""
    tensors = {name.replace("model.", "model.language_model."): ("F16", GET(name)) for name in SPEC.names()}
    tensors["model.vision_tower.weight"] = ("F32", np.zeros(3, np.float32))
    tensors["model.language_model.layers.5.self_attn.k_proj.weight"] = ("F16", np.zeros(3, np.float16))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    read = gemma.pack(SPEC, from_safetensors(SPEC, tmp_path, on="cpu"), capacity=24)
    one, other = (gemma.Engine(SPEC, w, blocks=2) for w in (read, weights))
    for each in (one, other):
        each.prefill(TOKENS[:3])
    assert (one.logits == other.logits).all()


# --- against transformers -----------------------------------------------------------------------------------


def test_the_oracle_is_transformers_model():
    """Logits that Gemma4ForCausalLM of transformers 5.23 computed of these weights in float64."""
    kept = np.load(ROOT / "tests" / "data" / "gemma4.npz")
    assert kept["tokens"].tolist() == TOKENS
    expected = gemma_exact.logits(SPEC, GET, TOKENS)
    assert np.abs(kept["logits"] - expected).max() < 2e-6  # it computes angles in FP32


def test_transformers_model_computes_what_is_kept():
    pytest.importorskip("torch", reason="torch comes with the GPU set")
    transformers = pytest.importorskip("transformers", reason="transformers comes with the GPU set")
    if not hasattr(transformers, "Gemma4ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no Gemma 4")
    from gemma4 import logits

    kept = np.load(ROOT / "tests" / "data" / "gemma4.npz")
    assert np.abs(logits(SPEC, GET, TOKENS) - kept["logits"]).max() < 1e-6


# --- the kernels between products ---------------------------------------------------------------------------


def test_a_decoded_token_raises_no_alarm():
    with simt.watched_launches(traced=0) as launches:
        one = gemma.Engine(SPEC, gemma.pack(SPEC, GET, "int4_g128", "q8_0", capacity=8), blocks=2)
        one.prefill(TOKENS[:1])
    assert launches and [str(fault) for seen in launches for fault in seen.faults] == []


def test_what_the_row_kernels_cannot_do_is_refused_in_a_sentence():
    halves, floats = np.zeros((2, 64), np.float16), np.zeros((2, 64), np.float32)
    ints, roots, turns = np.zeros(4, np.int32), np.zeros(2, np.float32), rotary.rotations(8, 64, 1e4)
    one, heads, wide = ints[:1].copy(), np.zeros((2, 1, 64), np.float16), np.zeros((1, 8200), np.float32)
    few, narrow = halves[:, :4].copy(), halves[:, :32].copy()
    norm, short, long = halves[0], np.zeros((2, 1, 48), np.float16), np.zeros((1, 1, 512), np.float16)
    none = {"out": halves, "roots": roots}
    for says, call, given, named in (
        ("up to 8192, not 8200", gemma_ops.add_rmsnorm, (wide,), none),
        ("of its norm together", gemma_ops.add_rmsnorm, (floats, halves), none),
        ("columns in eights", gemma_ops.gelu_mul, (halves, halves), {"out": few}),
        ("64 columns, so 32 from 40", gemma_ops.gelu_mul, (halves, halves), {"out": narrow, "column": 40}),
        ("64 up to 512, not 48", gemma_ops.rope_qk_norm, (halves, norm, norm, turns, one, short), {}),
        (
            r"64 are \[positions, 32, 2\]",
            gemma_ops.rope_qk_norm,
            (halves, norm, None, turns[:, :8], one, heads),
            {},
        ),
        ("together, or neither", gemma_ops.rope_qk_norm, (halves, norm, None, turns, one, heads, heads), {}),
        (
            "not 512",
            gemma_ops.per_layer_embedding,
            (halves, norm, halves, ints, one),
            {"out": long, "factor": 1.0},
        ),
        ("rows of 64", gemma_ops.embedding_scaled, (narrow, ints, one), {"residual": floats, "out": halves}),
        ("candidates must hold", gemma_ops.sample_candidates, (halves, ints, one, one, one), {}),
    ):
        with ops.on("cpu"), pytest.raises(LaunchError, match=says):
            call(*(np.ascontiguousarray(each) if each is not None else None for each in given), **named)
