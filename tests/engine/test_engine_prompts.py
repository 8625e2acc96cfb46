"""A prompt taken in at once and a batch decoded, on the CPU: kernels in a row against float64."""

import needs
import numpy as np
import pytest
from rooflab import engine, ops
from rooflab.engine.batch import Batch
from rooflab.engine.weights import random_tensors
from rooflab.errors import UsageError
from rooflab.ops import decoder
from rooflab.ops.decoder_operands import winner
from test_decoder import budget, tiny, tokens_for

needs.compiler()

FORMATS = [("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "fp16")]


def made(formats, **paths):
    spec = tiny(layers=2)
    get = random_tensors(spec, on="cpu")
    weights = engine.pack(spec, get, *formats, capacity=24)
    return spec, get, engine.Engine(spec, weights, paths=engine.Paths(**paths), blocks=3)


@pytest.mark.share(3)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_a_prompt_at_once_in_pieces_and_decoded_on_agrees_with_float64(formats):
    spec, get, one = made(formats, mmq=False, embed=formats[0] == "fp16")
    tokens = tokens_for(spec, 12)
    expected, allowed = budget(spec, get, tokens, *formats)
    first = None
    with ops.on("cpu"):
        for pieces in ((12,), (5, 1, 6), (11, 1)):
            start = 0
            for count in pieces:
                one.take(np.array(tokens[start : start + count], np.int32), start)
                start += count
                assert np.abs(one.logits - expected[start - 1]).max() <= allowed
                assert winner(one.state.candidates) == one.logits.argmax()
            first = one.logits.copy() if first is None else first
            assert one.state.tokens[:12].tolist() == tokens and one.state.position[0] == 12
        one.take(np.array(tokens, np.int32))
        assert (one.logits == first).all()
        one.take(np.array(tokens[:11], np.int32))
        one.state.candidates[...] = decoder.candidates(tokens[11], 3)
        one.position = 11
        one.decode(1)
        assert np.abs(one.logits - expected[11]).max() <= allowed
    assert one.ran["rows own"] and one.ran["attention own"] == 2 * 8 and one.ran["product cublas"]
    dequantised = {"q8_0": "dequantised q8_0", "int4_g128": "dequantised int4_g128 own"}
    assert formats[0] == "fp16" or one.ran[dequantised[formats[0]]]


@pytest.mark.share(3)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_the_last_layer_of_the_last_token_alone_leaves_the_same(formats):
    """Logits up to rounding (other tiles add up in another order), keys and values to the bit."""
    found = []
    for last in (False, True):
        spec, get, one = made(formats, mmq=False, last=last)
        tokens, pieces = tokens_for(spec, 9), (0, 4, 8, 9)
        with ops.on("cpu"):
            for start, end in zip(pieces, pieces[1:], strict=False):
                one.take(np.array(tokens[start:end], np.int32), start)
        found.append(one)
        assert one.state.tokens[:9].tolist() == tokens and one.state.position[0] == 9
    whole, last = found
    assert (whole.state.cache_k == last.state.cache_k).all() and (
        whole.state.cache_v == last.state.cache_v
    ).all()
    expected, allowed = budget(spec, get, tokens, *formats)
    assert max(np.abs(one.logits - expected[8]).max() for one in found) <= allowed


@pytest.mark.parametrize("formats", [FORMATS[0], FORMATS[2]], ids="-".join)
def test_a_batch_agrees_with_float64_and_goes_its_own_way_in_each_sequence(formats):
    spec, get, one = made(formats)
    many = one.batch(2, 12)
    prompts = [tokens_for(spec, 4, seed) for seed in (1, 2)]
    many.prefill(prompts)
    found = many.generate(3)
    for prompt, tokens in zip(prompts, found, strict=True):
        expected, allowed = budget(spec, get, [*prompt, *tokens], *formats)
        row = many.logits[found.index(tokens)].astype(np.float64)
        assert np.abs(row - expected[-1]).max() <= 2 * allowed
        for place, token in enumerate(tokens, 3):  # what was chosen was the likeliest, or as good as that
            assert expected[place].max() - expected[place][token] <= 2 * allowed
    assert many.ran["step"] == 3 and many.position == 7 and many.chain.dependent
    many.reset()
    many.prefill(prompts)
    assert many.generate(3) == found
    with pytest.raises(UsageError, match="6 tokens after 7 do not fit a cache of 12"):
        many.decode(6)
    for size, says in ((1, "holds 2 to 64"), (65, "not 65")):
        with pytest.raises(UsageError, match=says):
            one.batch(size)
    with pytest.raises(UsageError, match="2 prompts, all equally long"):
        many.prefill(prompts[:1])


@pytest.mark.share(3)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_a_batch_makes_the_same_logits_by_each_of_its_ways(formats):
    spec, get, one = made(formats)
    found = []
    for way in ("dependent launches", "a row of kernels"):
        many = Batch(one, 3, 12, dependent=way == "dependent launches")
        many.prefill([tokens_for(spec, 4, seed) for seed in (1, 2, 3)])
        many.decode(1)
        many.tokens[5] = 7  # from here on the same tokens
        many.decode(1)
        found.append(many.logits.astype(np.float64))
        dependent = 2 * (2 * 4 + 1) if many.chain.dependent else 0
        assert many.ran["product dependent"] == dependent and many.places.tolist() == [6, 7]
    allowed = budget(spec, get, tokens_for(spec, 4), *formats)[1]
    if formats[0] != "q8_0":  # of which the row of kernels rounds x to bytes
        assert np.abs(found[1] - found[0]).max() <= 2 * allowed
