"""Drafts checked together, on the CPU: what holds, what is left behind, and the tokens of plain decoding."""

import needs
import numpy as np
import pytest
from rooflab import engine
from rooflab.engine import exact
from rooflab.engine.weights import random_tensors
from rooflab.errors import UsageError
from rooflab.studies.decode_work import holding
from shares import ALL, thinned
from test_decoder import budget, tiny, tokens_for

needs.compiler()

FORMATS = [("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "fp16")]
PROMPT, CAPACITY = 4, 32


def made(formats=FORMATS[0], seed=20261121, capacity=CAPACITY, **sizes):
    spec = tiny(**sizes)
    get = random_tensors(spec, seed, on="cpu")
    weights = engine.pack(spec, get, *formats, capacity=capacity)
    return spec, get, engine.Engine(spec, weights, blocks=3)


def after_prompt(one):
    one.reset()
    one.prefill(tokens_for(one.spec, PROMPT))
    return one


def decided(spec, get, tokens, formats, count):
    """That float64's likeliest of the last `count` tokens leads by more than rounding can move logits."""
    expected, allowed = budget(spec, get, tokens, *formats)
    best = np.sort(expected[-count - 1 : -1])[:, ::-1]
    assert (best[:, 0] - best[:, 1]).min() > 2 * allowed
    return expected, allowed


# Which draft is wrong is nothing to the weights: all of them for FP16, for the other formats two each.
WRONG = {FORMATS[0]: (0, 1, 3, 4), FORMATS[1]: (0, 3), FORMATS[2]: (1, 4)}


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("formats", "wrong"),
    [(formats, wrong) for formats in FORMATS for wrong in (WRONG[FORMATS[0]] if ALL else WRONG[formats])],
)
def test_drafts_hold_up_to_the_first_wrong_one_and_leave_what_decoding_leaves(formats, wrong):
    spec, get, one = made(formats)
    plain = after_prompt(one).generate(6)
    expected, allowed = budget(spec, get, [*tokens_for(spec, PROMPT), *plain], *formats)
    kept = [cache[:, : PROMPT + 4].copy() for cache in (one.state.cache_k, one.state.cache_v)]
    drafts = plain[:4]
    if wrong < 4:
        drafts[wrong] = (drafts[wrong] + 1) % spec.shape.vocab
    after_prompt(one)
    before = one.logits.copy()
    assert one.due == plain[0]
    assert one.verify(drafts) == (wrong, plain[wrong]) and one.due == plain[wrong]
    assert one.position == one.state.position[0] == PROMPT + wrong
    assert one.state.tokens[PROMPT : PROMPT + wrong].tolist() == plain[:wrong]
    if wrong:
        assert np.abs(one.logits - expected[PROMPT + wrong - 1]).max() <= allowed
    else:
        assert (one.logits == before).all()
    for cache, old in zip((one.state.cache_k, one.state.cache_v), kept, strict=True):
        there = slice(0, PROMPT + wrong)
        assert np.allclose(cache[:, there].astype(np.float32), old[:, there].astype(np.float32), atol=0.02)
    assert one.generate(2) == plain[wrong : wrong + 2]
    assert one.ran["verify"] == 1 and one.ran["drafts held"] == wrong and one.ran["product dependent"] == 9


@pytest.mark.share(3)
@pytest.mark.parametrize("count", [1, 2, 8, 9, 16])
def test_a_check_of_any_length_agrees_with_float64_draft_by_draft(count):
    spec, get, one = made()
    drafts = after_prompt(one).generate(count)
    expected, allowed = budget(spec, get, [*tokens_for(spec, PROMPT), *drafts], *FORMATS[0])
    held, due = after_prompt(one).verify(drafts)
    logits = one._drafts[count].logits
    assert held == count and np.abs(logits - expected[PROMPT:]).max() <= allowed
    assert due == logits[-1].argmax() == one.due
    assert (one.logits == logits[-1]).all()


KINDS = ("the same", "another")  # of engine that proposes: FP16 meets both, another format one
KIND = dict(zip(FORMATS[1:], KINDS, strict=True))


class Contrary(engine.Engine):
    """Proposes whatever `plain`, tokens by position, does not have."""

    def generate(self, count):
        start, found = self.position, super().generate(count)
        return [found[0], *(self.wrong(start + i) for i in range(1, count))]

    @property
    def due(self):
        return self.wrong(self.position)

    def wrong(self, position):
        return (self.plain.get(position, 0) + 1) % self.vocab


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("formats", "length", "count", "kind"),
    thinned(
        [
            *(
                (formats, 4, 11, kind)
                for formats in FORMATS
                for kind in KINDS
                if ALL or KIND.get(formats, kind) == kind
            ),
            *((FORMATS[0], *sizes, kind) for sizes in ((1, 3), (2, 7), (8, 9)) for kind in KINDS),
            *((FORMATS[0], length, 6, "contrary") for length in (2, 4, 8)),
        ],
        step=3,
    ),
)
def test_speculation_gives_the_tokens_of_plain_decoding(formats, length, count, kind):
    spec, get, one = made(formats)
    plain = after_prompt(one).generate(count)
    decided(spec, get, [*tokens_for(spec, PROMPT), *plain], formats, count)
    same = kind == "the same"
    small = made(seed=20261121 if same else 7, layers=2 if same else 1)[2]
    if kind == "contrary":
        small.__class__, small.plain = Contrary, dict(enumerate(plain, PROMPT))
    after_prompt(one)
    after_prompt(small)
    one.ran.clear()
    assert one.speculate(small, count, length) == plain
    assert one.position == small.position == PROMPT + count
    assert one.state.tokens[: one.position].tolist() == small.state.tokens[: small.position].tolist()
    least = -(-count // length)
    assert one.ran["drafts held"] == count and least <= one.ran["verify"] <= count
    if same and formats == FORMATS[0]:
        assert one.ran["verify"] == least
    if kind == "contrary":
        assert one.ran["verify"] == count
    assert len(one.generate(1)) == 1 and one.position == small.position + 1


def test_what_cannot_be_checked_or_speculated_is_refused_and_nothing_changes():
    spec, _, one = made(capacity=12)
    _, _, small = made(capacity=12, layers=1)
    after_prompt(one)
    state = [array.copy() for array in one.state[2:6]]
    for drafts, says in (
        ([], "Drafts are 1 to 16 tokens, each from 0 to 319, unlike "),
        ([0] * 17, "Drafts are 1 to 16 tokens"),
        ([320], r"unlike \[320\]"),
        ([-1], r"unlike \[-1\]"),
        ([1] * 9, "9 tokens after 4 do not fit a cache of 12"),
    ):
        with pytest.raises(UsageError, match=says):
            one.verify(drafts)
    one.sample(0.7)
    with pytest.raises(UsageError, match="temperature to 0 first"):
        one.verify([1])
    one.sample(0)
    with pytest.raises(UsageError, match="prefill both"):
        one.speculate(small, 3)
    after_prompt(small)
    for count, length in ((0, 4), (3, 0), (3, 17)):
        with pytest.raises(UsageError, match="1 token or more by checks of 1 to 16"):
            one.speculate(small, count, length)
    for other in (one, made(vocab=336)[2]):
        with pytest.raises(UsageError, match="another engine with the same 320 tokens"):
            one.speculate(other, 3)
    with pytest.raises(UsageError, match="9 tokens after 4 do not fit"):
        one.speculate(small, 9)
    for position, token in ((0, 1), (5, 1), (2, 320)):
        with pytest.raises(UsageError, match="goes back to 1 to 4 tokens"):
            one.rewind(position, token)
    assert one.position == 4 and all((a == b).all() for a, b in zip(state, one.state[2:6], strict=True))
    one.reset()
    with pytest.raises(UsageError, match="needs a prompt before it checks"):
        one.verify([1])
    odd = made(mlp=128 * 37, layers=1)[2]  # k that warps do not divide into little enough
    with pytest.raises(UsageError, match="rows by 16 and k by 64"):
        after_prompt(odd).verify([1])


def test_drafts_that_hold_are_found_where_decoding_gives_others(monkeypatch):
    one = made()[2]
    plain = after_prompt(one).generate(6)
    known = holding(after_prompt(one), lambda: after_prompt(one), 6, 3)
    assert known == plain
    real = one.generate
    monkeypatch.setattr(one, "generate", lambda count: [(t + 1) % 320 for t in real(count)])
    after_prompt(one)
    assert holding(one, lambda: after_prompt(one), 6, 3) == plain


def test_going_back_forgets_what_came_after():
    spec, get, one = made()
    plain = after_prompt(one).generate(6)
    one.rewind(PROMPT + 2, plain[2])
    assert (
        one.generate(4) == plain[2:]
        and one.due == exact.logits(spec, get, [*tokens_for(spec, PROMPT), *plain], *FORMATS[0])[-1].argmax()
    )
