"""The decoder on the CPU: every rung and format against float64, and what an engine promises of its paths."""

import needs
import numpy as np
import pytest
from rooflab import engine, ops
from rooflab.bench import gate
from rooflab.engine import exact
from rooflab.engine.spec import Spec
from rooflab.engine.weights import names, random_tensors
from rooflab.errors import LaunchError, UsageError
from rooflab.numerics import rotary
from rooflab.ops import decoder, decoder_ops
from rooflab.ops.decoder_operands import winner
from shares import ALL, pairs, thinned

needs.compiler()

RUNGS = [rung.name for rung in decoder.LADDERS["decode_step"] if "89" in rung.archs]
FORMATS = [("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "fp16"), ("int4_g128", "q8_0")]


def tiny(
    layers=2,
    hidden=256,
    mlp=512,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocab=320,
    biased=True,
    tied=True,
    cap=0.0,
):
    shape = decoder.Shape(layers, hidden, mlp, heads, kv_heads, head_dim, vocab, 1e-6, cap)
    return Spec("tiny", shape, 1e4, biased, tied)


def tokens_for(spec, count, seed=1):
    return [int(t) for t in np.random.default_rng(seed).integers(0, spec.shape.vocab, count)]


def budget(spec, get, tokens, format, head_format):
    """What the oracle says, and how far float16 is from it."""
    expected = exact.logits(spec, get, tokens, format, head_format)
    baseline = exact.logits(spec, get, tokens, format, head_format, "float16")
    return expected, gate.error_budget(np.abs(baseline - expected).max(), expected, "float16")


def check(spec, format, head_format, rung, count=6, blocks=3, **options):
    """Every step's logits within the budget, its candidate their argmax, and tokens and position in place."""
    get = random_tensors(spec, on="cpu")
    weights = engine.pack(spec, get, format, head_format, capacity=count + 2)
    state = decoder.state_for(spec.shape, count + 2, blocks, np.zeros)
    for array in state[4:11]:
        array.fill(np.nan)  # nothing counts that was not written
    state.residual_fixed.fill(-(1 << 61))
    tokens = tokens_for(spec, count)
    expected, allowed = budget(spec, get, tokens, format, head_format)
    with ops.on("cpu"):
        for place, token in enumerate(tokens):
            state.candidates[...] = decoder.candidates(token, blocks)
            decoder.step(spec.shape, weights, state, rung=rung, **options)
            assert np.abs(state.logits - expected[place]).max() <= allowed
            assert winner(state.candidates) == state.logits.argmax()
    assert state.tokens[:count].tolist() == tokens
    assert state.position[0] == count and (state.counter == 0).all()
    return state


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("rung", "format", "head_format"),
    # Each is a program to compile; test_operators.py gates each rung over one layer, in a format in turn.
    [
        (rung, *formats)
        for i, rung in enumerate(RUNGS)
        for j, formats in enumerate(FORMATS)
        if ALL or (i + j) % 3 == 0
    ],
)
def test_every_rung_and_format_agrees_with_float64(rung, format, head_format):
    check(tiny(), format, head_format, rung)


SIZES = (
    {"heads": 6, "kv_heads": 2, "hidden": 384, "mlp": 768},
    {"heads": 2, "kv_heads": 2, "head_dim": 128},
    {"heads": 4, "kv_heads": 1, "tied": False, "biased": False},
    {"layers": 1, "vocab": 1024, "cap": 2.0},
)
MACROS = (
    ({}, ("fp16", "q8_0", "int4_g128")),
    ({"WARPS": 8, "STAGES": 2}, ("fp16", "int4_g128")),  # each set of macros is a program to compile
    ({"STAGES": 5, "SLOTS": 12}, ("q8_0",)),
)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("sizes", "options", "format"),
    pairs(
        (sizes, options, format)
        for sizes in SIZES
        for options, formats in MACROS
        for format in formats
        if format != "int4_g128" or not sizes.get("hidden")
    ),
    ids=str,
)
def test_shapes_and_macros(sizes, options, format):
    check(tiny(**sizes), format, "fp16", "3_persistent", count=3, blocks=6, **options)


@pytest.mark.parametrize(("rung", "head_format"), [("3_persistent", "q8_0"), ("7_split_k", "fp16")])
def test_a_block_with_more_units_than_a_warp_keeps_sums_of(rung, head_format):
    """32 units of the head a block and room for 20: a warp's sums lie at its units' numbers modulo that."""
    check(tiny(layers=1, vocab=1024), "fp16", head_format, rung, count=2, blocks=2, WARPS=4)


@pytest.mark.share(3)
@pytest.mark.parametrize("rung", ["1_kernel_per_phase", "3_persistent", "9_flags_in_data"])
def test_a_context_in_parts(rung):
    """More keys than a block scores at a time, and more parts than one, also an odd number of them."""
    check(tiny(layers=1, vocab=64), "fp16", "fp16", rung, count=52, blocks=7, WARPS=4)


@pytest.mark.parametrize(
    ("format", "count"), thinned([("q8_0", 20), ("int4_g128", 20), ("fp16", 70)], step=3)
)
def test_a_context_in_parts_beside_long_rows(format, count):
    """Three heads to a key-value head, and heads that a thread puts together in two turns. The format changes
    the rows alone, so one of them takes the context beyond what a part scores at a time."""
    spec = tiny(layers=1, vocab=64, heads=12, kv_heads=4, mlp=2560)
    check(spec, format, "fp16", "3_persistent", count=count, blocks=40, WARPS=4)


@pytest.mark.parametrize("head_format", ["fp16", "q8_0"])
@pytest.mark.parametrize("options", [{}, {"PRODUCERS": 0}, {"PRODUCERS": 0, "WARPS": 4}], ids=str)
def test_codes_multiplied_as_bytes(head_format, options):
    check(tiny(), "int4_g128", head_format, "10_int4_bytes", count=4, blocks=6, **options)


def test_codes_multiplied_as_bytes_beside_long_rows():
    """Slabs of other lengths, so that a thread stores bytes in several rounds."""
    spec = tiny(layers=1, vocab=64, heads=12, kv_heads=4, mlp=2560)
    check(spec, "int4_g128", "fp16", "10_int4_bytes", count=3, blocks=12, WARPS=4)


def test_eight_heads_attend_a_block_each_where_words_carry_flags():
    spec = tiny(layers=1, vocab=64, heads=8, kv_heads=2)
    check(spec, "fp16", "fp16", "9_flags_in_data", count=40, blocks=18, WARPS=4)


@pytest.mark.parametrize("rung", ["1_kernel_per_phase", "3_persistent", "9_flags_in_data"])
def test_a_long_context_is_the_same_in_one_part_and_in_sixteen(rung):
    """700 keys that are only numbers: two blocks take two heads each, and 34 a part each."""
    spec = tiny(layers=1, vocab=64)
    weights = engine.pack(spec, random_tensors(spec, on="cpu"), capacity=704)
    rng, found = np.random.default_rng(4), []
    kv = rng.standard_normal((2, 1, 704, 2, 64)).astype(np.float16)
    for blocks in (2, 34):
        state = decoder.state_for(spec.shape, 704, blocks, np.zeros)
        state.cache_k[...], state.cache_v[...] = kv
        state.position[0] = 699
        state.candidates[...] = decoder.candidates(5, blocks)
        with ops.on("cpu"):
            decoder.step(spec.shape, weights, state, rung=rung)
        found.append(state.logits.copy())
    assert np.abs(found[0] - found[1]).max() < 2e-3 * np.abs(found[0]).max()


def engines(paths=(*RUNGS, "chain"), format="fp16", capacity=24):
    spec = tiny()
    get = random_tensors(spec, on="cpu")
    weights = engine.pack(spec, get, format, "fp16", capacity=capacity)
    return (
        spec,
        get,
        [engine.Engine(spec, weights, paths=engine.Paths(decode=way), blocks=3) for way in paths],
    )


def test_engines_generate_the_same_by_every_path_and_say_which():
    spec, get, found = engines()
    prompt = tokens_for(spec, 5)
    made = []
    for one in found:
        one.prefill(prompt)
        made.append(one.generate(6))
        prompted = 0 if one.paths.decode == "chain" else 5  # tokens of the prompt
        assert one.ran[f"decode {one.paths.decode}"] == prompted + 6 and one.position == 11
    greedy = list(prompt)
    for _ in range(6):
        greedy.append(int(exact.logits(spec, get, greedy)[-1].argmax()))
    assert made == [greedy[5:]] * len(made)


def test_a_prompt_in_pieces_is_the_prompt():
    spec, _, (whole, pieces, *_) = engines()
    prompt = tokens_for(spec, 7)
    whole.prefill(prompt)
    for part in (prompt[:1], prompt[1:5], prompt[5:]):
        pieces.prefill(part)
    assert (whole.logits == pieces.logits).all()
    first = whole.logits.copy()
    whole.generate(2)
    whole.reset()
    whole.prefill(prompt)
    assert (whole.logits == first).all()


def test_sampling_follows_the_seed_and_draws_as_softmax_says():
    spec, _, (one, other, *others) = engines(capacity=200)
    prompt = tokens_for(spec, 3)
    drawn = []
    chain = others[-1]
    for which, seed in ((one, 5), (other, 5), (one, 6), (chain, 5), (chain, 5), (chain, 6)):
        which.reset()
        which.sample(0.9, seed)
        which.prefill(prompt)
        drawn.append(which.generate(8))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[3] == drawn[4] != drawn[5]  # by random numbers of its own, but for the prompt's token
    assert drawn[3][0] == drawn[0][0]
    # The first token over many seeds: its frequency among the likeliest ones.
    logits = one.logits.astype(np.float64)
    state, weights = one.state, one.weights
    with ops.on("cpu"):
        counts = np.zeros(spec.shape.vocab)
        for seed in range(300):
            decoder.head(spec.shape, weights, state, inverse_temperature=8.0, seed=seed)
            counts[winner(state.candidates)] += 1
    logits = state.logits.astype(np.float64)
    odds = np.exp(8 * (logits - logits.max()))
    odds /= odds.sum()
    spread = np.sqrt(300 * odds * (1 - odds)) + 1
    assert (np.abs(counts - 300 * odds) < 5 * spread).all() and (counts > 0).sum() > 5


def test_a_refused_input_leaves_the_engine_usable():
    spec, _, (one, other, *_) = engines(capacity=12)
    with pytest.raises(UsageError, match="needs a prompt before it generates"):
        one.generate(1)
    for bad in ([], [-1], [spec.shape.vocab], [1] * 13):
        with pytest.raises(UsageError, match="A prompt is one token or more|do not fit a cache of 12"):
            one.prefill(bad)
    one.prefill([1, 2, 3])
    with pytest.raises(UsageError, match="9 tokens|10 tokens after 3 do not fit a cache of 12"):
        one.generate(10)
    with pytest.raises(UsageError, match="one token or more, not 0"):
        one.generate(0)
    with pytest.raises(UsageError, match="temperature lies between 0 and a million"):
        one.sample(-1)
    other.prefill([1, 2, 3])
    assert one.generate(9) == other.generate(9)


def test_what_cannot_be_done_is_refused_in_a_sentence():
    spec, get, (one, *_) = engines()
    shape, weights, state = spec.shape, one.weights, one.state
    with ops.on("cpu"):
        for changed, says in (
            ({"head_dim": 96}, "heads of 64, 128, 256 or 512, not 96"),
            ({"kv_heads": 3}, "do not share them evenly"),
            ({"hidden": 264}, r"A matrix qkv \[512, 264\] in fp16 is refused"),
            ({"vocab": 328}, r"A matrix head \[328, 256\] in fp16 is refused"),
        ):
            wrong = decoder.Shape(**{**shape.__dict__, **changed})
            with pytest.raises(LaunchError, match=says):
                decoder.step(wrong, weights, state)
        with pytest.raises(LaunchError, match="norms must hold"):
            decoder.step(shape, weights._replace(norms=weights.norms[:2]), state)
        with pytest.raises(LaunchError, match="4 heads on 2 need 2 blocks, not 1"):
            decoder.step(shape, weights, state._replace(candidates=state.candidates[:1]))
        with pytest.raises(LaunchError, match="1 token or more, not 0"):
            decoder.step(shape, weights, state, steps=0)
        with pytest.raises(LaunchError, match="room for 6 units of 16 rows: take more SLOTS than 1"):
            decoder.step(shape, weights, state, SLOTS=1)
        with pytest.raises(LaunchError, match="8 WARPS do not come in teams of 0 for 1 PRODUCERS"):
            decoder.step(shape, weights, state, TEAM=0, WARPS=8)
        with pytest.raises(LaunchError, match="4 WARPS do not come in teams of 2 for 3 PRODUCERS"):
            decoder.step(shape, weights, state, rung="6_producer_warps", WARPS=4, PRODUCERS=3)
        with pytest.raises(LaunchError, match="Of a ring of 3 STAGES .* not 3 and 2"):
            decoder.step(
                shape, weights, state, rung="5_prefetch_at_barrier", STAGES=3, HELD_BACK=3, FIRST_HELD=2
            )
        with pytest.raises(
            LaunchError, match="chunk or more for each block, not 4 by 16 units in 4 slabs on 80"
        ):
            many = state._replace(candidates=np.zeros((80, 2), np.float32))
            decoder.step(shape, weights, many, rung="9_flags_in_data")
        with pytest.raises(LaunchError, match="6_producer_warps takes heads of 64 or 128, not 256"):
            wide = decoder.Shape(**{**shape.__dict__, "head_dim": 256})
            decoder.step(wide, weights, state, rung="6_producer_warps")
    with pytest.raises(UsageError, match="There is no path 'fast' to decode"):
        engine.Engine(spec, weights, paths=engine.Paths(decode="fast"))
    with pytest.raises(UsageError, match="a capacity of 25 is refused"):
        engine.Engine(spec, weights, capacity=25)
    with pytest.raises(UsageError, match="not q4_k and fp16"):
        engine.pack(spec, get, "q4_k")
    with pytest.raises(UsageError, match="kind of Qwen2 and LLaMA, which phi-2 is not"):
        engine.spec("phi-2")


def test_specs_hold_what_checkpoints_hold():
    qwen, llama = engine.spec("qwen2.5-1.5b"), engine.spec("llama-3-8b")
    assert (qwen.biased, qwen.tied, llama.biased, llama.tied) == (True, True, False, False)
    assert qwen.shape.matrices["qkv"] == (2048, 1536) and llama.shape.matrices["gate_up"] == (28672, 4096)
    for spec in (qwen, llama):
        per_layer = 12 if spec.biased else 9
        assert len(names(spec)) == spec.shape.layers * per_layer + 2 + (not spec.tied)


def test_row_orders_are_inverted():
    rows = np.arange(2 * 64 * 3).reshape(128, 3)
    paired = decoder.pair_heads(rows, 64)
    assert (decoder.unpair_heads(paired, 64) == rows).all()
    assert (paired[8:16] == rows[32:40]).all() and (paired[16:24] == rows[8:16]).all()
    gates = np.arange(2 * 24).reshape(2, 24)
    assert decoder.pair_gates(gates)[:16].tolist() == [*range(8), *range(24, 32)]


def test_rows_that_do_not_fit_are_refused():
    rows, biases, turns = (
        np.zeros((3, 256), np.float16),
        np.zeros(256, np.float16),
        rotary.rotations(16, 32, 1e4),
    )
    q, k, v = (np.empty((3, n, 32), np.float16) for n in (4, 2, 2))
    with ops.on("cpu"):
        with pytest.raises(LaunchError, match="Positions 14 to 17 are not among 16 rotations"):
            decoder_ops.rope(rows, biases, turns, q, k, v, start=14)
        with pytest.raises(LaunchError, match="multiple of 8 gates"):
            decoder_ops.silu_mul(rows[:, :24].copy(), out=rows)
        with pytest.raises(LaunchError, match="rows of a multiple of 8, not 4"):
            decoder_ops.rmsnorm(np.zeros((5, 4), np.float32), rows, out=rows)


@pytest.mark.parametrize(("arch", "blocks"), [("80", 108), ("86", 28), ("89", 24), ("89", 128), ("90", 132)])
def test_known_models_have_room_on_small_gpus_and_large_ones(arch, blocks):
    for name in ("qwen2.5-1.5b", "llama-3-8b"):
        shape = engine.spec(name).shape
        for rung in decoder.LADDERS["decode_step"]:
            for format, head_format in FORMATS:
                macros = decoder.macros_for(rung, shape, format, head_format, arch, {}, blocks)
                decoder.check_shape(shape, format, head_format, macros, blocks)
                assert macros["STAGES"] > 1
    assert decoder.blocks_for(engine.spec("llama-3-8b").shape, "int4_g128", 132) == 132
    assert decoder.blocks_for(engine.spec("llama-3-8b").shape, "fp16", 132) == 132
