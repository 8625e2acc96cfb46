"""A decoder shared by several processes: logits against float64, the same bits in each, and refusals."""

import importlib.util
import os
import time

import needs
import numpy as np
import pytest
from rooflab import engine
from rooflab.engine import world
from rooflab.engine.shares import exchanged_bytes
from rooflab.engine.weights import dequantised, random_tensors
from rooflab.errors import LaunchError, UsageError
from test_decoder import budget, tiny, tokens_for

needs.compiler()

TRANSPORTS = ["pipes", *(["gloo"] if importlib.util.find_spec("torch") else [])]
PROMPT, COUNT = 5, 3


def model():
    return tiny(heads=4, kv_heads=2, mlp=512)


def decoded(one, formats, dependent=True):
    """A share of the model: a prompt in two pieces, tokens, and the logits after both."""
    whole = model()
    spec, get = engine.share(whole, random_tensors(whole, on="cpu"), one.rank, one.size)
    weights = engine.pack(spec, get, *formats, capacity=PROMPT + COUNT + 1)
    part = engine.Split(spec, weights, blocks=3, world=one, dependent=dependent)
    tokens = tokens_for(whole, PROMPT)
    part.prefill(tokens[:2])
    part.prefill(tokens[2:])
    after_prompt = part.logits.copy()
    first = part.generate(1)
    return after_prompt, [*first, *part.generate(COUNT - 1)], part.logits.copy(), dict(part.ran)


@pytest.mark.share(3)
@pytest.mark.parametrize("by", TRANSPORTS)
@pytest.mark.parametrize(
    ("formats", "dependent"),
    [(("fp16", "fp16"), True), (("fp16", "fp16"), False), (("int4_g128", "q8_0"), True)],
    ids=["fp16", "fp16-separate", "int4_g128-q8_0"],
)
def test_two_processes_give_the_exact_decoders_logits(by, formats, dependent):
    whole = model()
    get, prompt = random_tensors(whole, on="cpu"), tokens_for(whole, PROMPT)
    found = world.run(2, decoded, formats, dependent, by=by, patience_s=60)
    after_prompt, tokens, logits, ran = found[0]
    expected, allowed = budget(whole, get, [*prompt, *tokens], *formats)
    assert np.abs(after_prompt - expected[PROMPT - 1]).max() <= 2 * allowed
    assert np.abs(logits - expected[-1]).max() <= 2 * allowed
    for place, token in enumerate(tokens, PROMPT - 1):  # the likeliest, or as good as that
        assert expected[place].max() - expected[place][token] <= 2 * allowed
    # two sums a layer: of two pieces of a prompt, and of every token
    assert ran["all_reduce"] == 2 * whole.shape.layers * (2 + COUNT) and ran["decode split"] == COUNT
    # sums stand in the norms of a chain, four products a layer and the head, or between other kernels
    assert ran.get("product dependent", 0) == dependent * COUNT * (4 * whole.shape.layers + 1)
    for other in found[1:]:
        assert other[1] == tokens
        assert other[0].tobytes() == after_prompt.tobytes() and other[2].tobytes() == logits.tobytes()


def test_a_share_has_the_codes_of_the_whole():
    """A split matrix is quantised to what the whole one's rows and columns are."""
    whole = tiny(heads=4, kv_heads=2, mlp=512)
    get = random_tensors(whole, on="cpu")
    parts = [engine.share(whole, get, rank, 2) for rank in range(2)]
    name = "model.layers.1.mlp.down_proj.weight"
    for format in ("q8_0", "int4_g128"):
        joined = np.concatenate([dequantised(tensors(name), format) for _, tensors in parts], 1)
        assert (joined == dequantised(get(name), format)).all()
    assert parts[0][0].shape.heads == 2 and parts[0][0].parts == 2
    assert exchanged_bytes(whole) == 2 * 2 * 2 * 256  # two sums of 256 halves in each of two layers


def test_what_cannot_be_shared_is_refused_in_a_sentence():
    whole = model()
    get = random_tensors(whole, on="cpu")
    with pytest.raises(UsageError, match="2 key and value heads of tiny cannot be shared evenly by 4"):
        engine.share(whole, get, 0, 4)
    with pytest.raises(UsageError, match="none of number 2"):
        engine.share(whole, get, 2, 2)
    own, tensors = engine.share(whole, get, 0, 2)
    with pytest.raises(UsageError, match="one of 2 shares already"):
        engine.share(own, tensors, 0, 2)
    weights = engine.pack(own, tensors, capacity=8)
    with pytest.raises(UsageError, match="one of 2 shares of tiny, so they need a world of as many"):
        engine.Split(own, weights, blocks=3, world=world.World(0, 3))
    with pytest.raises(LaunchError, match="k of 128"):  # a group of a scale would be cut
        narrow, cut = engine.share(tiny(heads=2, kv_heads=2, mlp=384), get, 0, 2)
        engine.pack(narrow, cut, "int4_g128")
    with pytest.raises(UsageError, match="1 to 8 processes, not 9"):
        world.run(9, summed)
    with pytest.raises(UsageError, match="pipes, gloo, nccl or peers"):
        world.run(2, summed, by="post")


def summed(one, seed):
    rng = np.random.default_rng((seed, one.rank))
    return one.all_reduce(rng.standard_normal(1000).astype(np.float16))


@pytest.mark.parametrize("size", [1, 3])
def test_a_sum_has_the_same_bits_in_every_process(size):
    found = world.run(size, summed, 7)
    rngs = [np.random.default_rng((7, rank)) for rank in range(size)]
    expected = np.sum([rng.standard_normal(1000).astype(np.float16).astype(np.float32) for rng in rngs], 0)
    assert all(np.array_equal(one, found[0]) for one in found)
    assert np.abs(found[0] - expected).max() <= np.spacing(np.float16(np.abs(expected).max()))


def lost(one, how):
    """Process 1 goes, after a first sum that all took part in."""
    summed(one, 1)
    if one.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), 9)
        if how == "raises":
            raise UsageError("process 1 was asked for what does not exist.")
        time.sleep(60)
    return summed(one, 2)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("killed", "Process 1 of 3 (has ended|ended with code -9)"),
        ("silent", "Process 1 of 3 has not answered for 1 s"),
        ("raises", "process 1 was asked for what does not exist"),
    ],
)
def test_a_lost_process_stops_the_others_with_a_sentence(how, says):
    began = time.monotonic()
    # Only a silent one is waited for: a second may pass on a loaded machine before another's end is seen.
    patience_s = 1 if how == "silent" else 50
    with pytest.raises((world.LostProcess, UsageError), match=says):
        world.run(3, lost, how, patience_s=patience_s)
    assert time.monotonic() - began < 50, "none waits for the minute that process 1 sleeps"
