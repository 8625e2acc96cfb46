"""All-reduce on the CPU, where one launch plays several GPUs: the same bits on each, and what is refused."""

import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.errors import LaunchError, MissingTool
from rooflab.ops import all_reduce, tensor_parallel
from rooflab.studies import links
from rooflab.view.diagram.crossings import legs

try:
    simt.build.compiler()
except MissingTool as error:  # named, and not forgiven where ROOFLAB_REQUIRE_ALL is set
    pytest.skip(str(error), allow_module_level=True)

RUNGS = [rung.name for rung in all_reduce.LADDERS["all_reduce"]]


@pytest.mark.parametrize("rung", RUNGS)
def test_every_gpu_has_the_same_bits_in_every_round(rung):
    """Rounds of other lengths between them, as a prompt's sums come between those of tokens."""
    group = all_reduce.together(rung, 4096, 4, np.zeros)
    rng = np.random.default_rng(4)
    with ops.on("cpu"):
        for n in (1000, 4096, 8, 1000, 2048):
            x = (rng.standard_normal((4, n)) * 100).astype(np.float16)
            out = np.full_like(x, np.nan)
            all_reduce.all_reduce(x, group, out=out)
            total = x[0].astype(np.float32)
            for part in x[1:]:
                total = total + part.astype(np.float32)
            assert all(row.tobytes() == total.astype(np.float16).tobytes() for row in out)
    assert not group.lost.any() and group.rounds.max() == 5


@pytest.mark.parametrize("rung", RUNGS)
def test_a_sum_may_take_the_place_of_its_part(rung):
    group = all_reduce.together(rung, 64, 2, np.zeros)
    x = np.arange(128, dtype=np.float16).reshape(2, 64)
    expected = x.sum(0)
    all_reduce.all_reduce(x, group, out=x, target="cpu")
    assert (x == expected).all()


def test_what_does_not_fit_is_refused_in_a_sentence():
    group = all_reduce.together("2_push", 64, 2, np.zeros)

    def refused(says, shape=(2, 64), dtype=np.float16, **options):
        x = np.zeros(shape, dtype)
        with pytest.raises(LaunchError, match=says):
            all_reduce.all_reduce(x, options.pop("group", group), out=x.copy(), target="cpu", **options)

    refused("refuses n = 12: it sums a multiple of 8", (2, 12))
    refused("in this group up to 64", (2, 128))
    refused("made for 2_push, not for 1_pull", rung="1_pull")
    refused("must hold float16", dtype=np.float32)
    alone = all_reduce.Group("2_push", 64, group.mails[:1], group.rounds[:1], group.lost[:1])
    refused("over 2 to 8 GPUs, not 1", (1, 64), group=alone)


def test_the_drawing_counts_what_the_law_counts():
    for rung in all_reduce.LADDERS["all_reduce"]:
        assert len(legs(rung)) == links.crossings("all_reduce", rung.name)


def test_norms_over_several_gpus_keep_the_same_bits_in_every_round():
    """Residuals must not drift apart, whatever rows come between those of a token."""
    rng = np.random.default_rng(5)
    group = tensor_parallel.together(3, 520, 4, np.zeros)
    weights = rng.standard_normal(520).astype(np.float16)
    residual = {n: np.zeros((4, n, 520), np.float32) for n in (1, 3)}
    total = {n: np.zeros((n, 520)) for n in (1, 3)}
    with ops.on("cpu"):
        for n in (1, 3, 1, 1, 3):
            parts = rng.standard_normal((4, 2, n, 520)).astype(np.float32)
            out = np.full((4, n, 520), np.nan, np.float16)
            tensor_parallel.all_reduce_rmsnorm(residual[n], weights, group, out=out, parts=parts)
            total[n] += parts.sum(1).astype(np.float16).astype(np.float64).sum(0)
            assert all(row.tobytes() == residual[n][0].tobytes() for row in residual[n])
            assert all(row.tobytes() == out[0].tobytes() for row in out)
            assert np.abs(residual[n][0] - total[n]).max() < 1e-4
    assert not group.lost.any() and group.rounds[:, 0].tolist() == [5] * 4


def test_shares_of_logits_are_put_side_by_side():
    rng = np.random.default_rng(6)
    group = tensor_parallel.together(2, 1028, 3, np.zeros)
    for n in (2, 1, 2):
        x = rng.standard_normal((3, n, 1028)).astype(np.float16)
        out = tensor_parallel.all_gather(x, group, out=np.zeros((3, n, 3084), np.float16), target="cpu")
        assert all(np.array_equal(one, np.concatenate(list(x), 1)) for one in out)


def test_what_a_group_of_a_split_decoder_does_not_take_is_refused():
    group = tensor_parallel.together(1, 64, 2, np.zeros)

    def gathered(shape, group=group):
        x = np.zeros(shape, np.float16)
        tensor_parallel.all_gather(x, group, out=np.zeros((2, 4, 512), np.float16), target="cpu")

    with pytest.raises(LaunchError, match="up to 1 rows of 64, a multiple of 4, not 2 of 64"):
        gathered((2, 2, 64))
    with pytest.raises(LaunchError, match="not 1 of 128"):
        gathered((2, 1, 128))
    with pytest.raises(LaunchError, match="out must hold"):
        gathered((2, 1, 64))
    alone = tensor_parallel.Group(1, 64, group.mails[:1], group.rounds[:1], group.lost[:1])
    with pytest.raises(LaunchError, match="joins 2 to 8 GPUs, not 1"):
        gathered((1, 1, 64), alone)
    wide = tensor_parallel.together(1, 8196, 2, np.zeros)
    zeros = np.zeros((2, 1, 8196), np.float32)
    with pytest.raises(LaunchError, match="up to 8192, not 8196"):
        tensor_parallel.all_reduce_rmsnorm(
            zeros, np.zeros(8196, np.float16), wide, out=zeros.astype(np.float16), parts=zeros[:, None],
            target="cpu",
        )  # fmt: skip
