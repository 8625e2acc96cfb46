"""How a step of a batch or of drafts ends: tokens chosen out of logits, and how many drafts hold."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import LaunchError
from rooflab.numerics import reference
from rooflab.ops import Rung, batch_ops, check_array, decoder, decoder_ops, loaded, with_target
from rooflab.ops.decoder_operands import State, winner
from rooflab.records.fingerprint import source_of_callable

PLACE = 8.6  # of its ladders among all of them: in the order of the lessons

LADDERS: dict[str, tuple[Rung, ...]] = {
    "batch_sample": (
        Rung(
            "batch_sample",
            "1_split",
            "batch_sample_split",
            "several blocks choose a sequence's token, and move on",
        ),
    ),
    "draft_accept": (
        Rung(
            "draft_accept",
            "1_blocks",
            "draft_accept_blocks",
            "drafts that hold are counted where they were checked",
        ),
    ),
}


def launch_rule(rung: Rung) -> str:
    """The code that decides how `rung` is launched, as a record's identity digests it."""
    return source_of_callable(*([accept] if rung.operator == "draft_accept" else [sample, choice_for]))


class Choice(NamedTuple):
    """What blocks of `sample` hand over in: candidates [n, parts, 2] FP32, and counters [n + 1] int32, zero
    before and after every launch.
    """

    candidates: Any
    arrived: Any


def choice_for(n: int, sms: int, zeros: Callable[[tuple[int, ...], str], Any]) -> Choice:
    """Room for n sequences' choices, by blocks that fill a GPU once; zeros(shape, dtype) makes arrays."""
    return Choice(zeros((n, max(1, sms // n), 2), "float32"), zeros((n + 1,), "int32"))


@with_target()
def sample(
    logits: Any,
    tokens: Any,
    places: Any,
    *,
    choice: Choice,
    softcap: float = 0.0,
    inverse_temperature: float = 0.0,
    seed: int = 0,
) -> None:
    """What decoder_ops.sample does at position places[0] of tokens [.., n] int32; then places [2] int32 is 1
    more.
    """
    n, vocab = (int(size) for size in logits.shape)
    if vocab % 8:
        raise LaunchError(f"batch_sample takes a multiple of 8 logits, not {vocab}.")
    if not all(v >= 0 and math.isfinite(v) for v in (inverse_temperature, softcap)):
        raise LaunchError(
            "inverse_temperature and softcap are finite and not negative, unlike "
            f"{inverse_temperature} and {softcap}."
        )
    parts = int(choice.candidates.shape[1])
    check_array("logits", logits, "float16", n * vocab, 16)
    check_array("tokens", tokens, "uint32")
    check_array("places", places, "uint32", 2)
    check_array("choice.candidates", choice.candidates, "float32", 2 * n * parts, 8)
    check_array("choice.arrived", choice.arrived, "uint32", n + 1)
    (rung,) = LADDERS["batch_sample"]
    numbers = [ctypes.c_float(softcap), ctypes.c_float(inverse_temperature), ctypes.c_uint(seed)]
    loaded(rung).launch(
        (parts, n),
        rung.defines["THREADS"],
        [logits, tokens, places, *choice, ctypes.c_int(vocab), *numbers],
        dependent=batch_ops.arch_of(logits) in ops.DEPENDENT,
    )


@with_target()
def accept(
    state: State,
    tokens: Any,
    best: Any,
    logits: Any,
    places: Any,
    *,
    held: Any,
    arrived: Any,
    softcap: float = 0.0,
) -> Any:
    """held [2] int32: how many of tokens [n] int32, up to 31 drafts for position places[0] and after it, are
    the tokens that are due, and the token due after them. Due at first is the best of the state's candidates,
    then the likeliest after each draft, which is among the `best` [parts, n, 2] FP32 that batch_ops.product
    leaves beside logits [n, vocab] FP16. The state is left as if it had decoded the drafts that hold;
    `arrived` [1] int32 is zero before and after. Of all that is written `held` comes first, and may be the
    host's memory, where the GPU can reach it.
    """
    n, vocab = (int(size) for size in logits.shape)
    if not 0 < n < 32 or vocab % 8:
        raise LaunchError(f"draft_accept takes 1 to 31 tokens and logits by 8, not {n} and {vocab}.")
    check_array("logits", logits, "float16", n * vocab, 16)
    check_array("tokens", tokens, "uint32", n)
    parts = int(best.shape[0])
    check_array("best", best, "float32", 2 * parts * n, 8)
    check_array("places", places, "uint32")
    check_array("held", held, "uint32", 2, 8)
    check_array("arrived", arrived, "uint32", 1)
    check_array("state.logits", state.logits, "float32", vocab, 16)
    (rung,) = LADDERS["draft_accept"]
    threads = rung.defines["THREADS"]
    blocks = min(batch_ops.sms_of(logits), math.ceil(vocab / (8 * threads)))
    written = [held, state.logits, state.position, state.tokens, arrived]
    numbers = [ctypes.c_int(v) for v in (state.blocks, parts, n, vocab)]
    loaded(rung).launch(
        blocks,
        threads,
        [state.candidates, tokens, best, logits, places, *written, *numbers, ctypes.c_float(softcap)],
        dependent=batch_ops.arch_of(logits) in ops.DEPENDENT,
    )
    return held


def trials(operator: str, rung: Rung) -> Iterator[tuple[str, gate.Work]]:
    """Small contestants for the gate: a shape in words, and the work, whose output is all that it leaves."""
    rng, put = np.random.default_rng(0), ops.arrays().asarray

    def subject(shape: str, launch: Callable[[Any], object], expected: Any) -> tuple[str, gate.Work]:
        outs = [put(np.empty(expected.shape, np.float64)) for _ in range(2)]
        return shape, gate.trial(rung.name, launch, outs, expected, 1e-4)

    if operator == "batch_sample":
        logits, before = rng.standard_normal((3, 4808)).astype(np.float16), rng.integers(0, 9, (4, 3))
        logits[0, [7, 4700]] = 9  # of equals the first
        for blocks, how in itertools.product((3, 15), decoder_ops.SAMPLED):
            tokens = before.copy()
            tokens[2] = reference.sampled(logits, 1, **how)
            expected = np.concatenate([tokens.reshape(-1), [2, 3], np.zeros(4)])
            launch = partial(_sampled, put(logits), put(before.astype(np.int32)), blocks, how)
            shape = f"3 x 4808 by {blocks} blocks{decoder_ops.words_of(how)}"
            yield subject(shape, launch, expected)
        return
    drafts, logits = [3, 1, 4, 1, 5], 4 * rng.standard_normal((5, 1608)).astype(np.float16)
    for held, softcap in ((0, 30.0), (1, 0.0), (2, 30.0), (3, 0.0), (4, 30.0), (5, 0.0)):
        due, chosen = drafts[0] + (held == 0), np.array([*drafts[1:], 77], np.int32)
        chosen[held - 1 :] += held > 0  # what follows the last that holds is another
        last = logits[held - 1].astype(np.float64) if held else np.full(1608, 5.0)
        last = softcap * np.tanh(last / softcap) if held and softcap else last
        after = chosen[held - 1] if held else due
        sequence = [-1] * 9 + drafts[:held] + [-1] * (23 - held)
        expected = np.array([held, after, after, 9 + held, 0, *sequence, *last])
        best = np.full((40, 5, 2), 0.5, np.float32)  # of 40 parts one has the likeliest, another its equal
        best.view(np.int32)[..., 1] = 1600
        for i, token in enumerate(chosen):
            best[i, i], best.view(np.int32)[i, i, 1] = 2, token
            best[i + 33, i, 0] = 2
        operands = (put(np.array(drafts, np.int32)), put(best), put(logits))
        launch = partial(_accepted, due, *operands, softcap)
        yield subject(f"{held} of 5 drafts hold, 1608 logits", launch, expected)


def _zeros(shape: tuple[int, ...], dtype: str) -> Any:
    return ops.arrays().zeros(shape, dtype)


def _sampled(logits: Any, before: Any, blocks: int, how: dict[str, Any], out: Any) -> None:
    tokens, places = before.copy(), ops.arrays().asarray(np.array([1, 2], np.int32))
    choice = choice_for(3, blocks, _zeros)
    sample(logits, tokens, places, choice=choice, **how)
    out[...] = ops.arrays().concatenate([tokens.reshape(-1), places, choice.arrived])


def _accepted(due: int, drafts: Any, best: Any, logits: Any, softcap: float, out: Any) -> None:
    shape = decoder.Shape(1, 64, 64, 1, 1, 64, 1608, 1e-6, softcap)
    state, put = decoder.state_for(shape, 32, 7, _zeros), ops.arrays().asarray
    state.candidates[...] = put(decoder.candidates(due, 7)[::-1].copy())
    state.position[...], state.logits[...], state.tokens[...] = 9, 5, -1
    places, held, arrived = put(np.array([9, 10], np.int32)), _zeros((2,), "int32"), _zeros((1,), "int32")
    accept(state, drafts, best, logits, places, held=held, arrived=arrived, softcap=softcap)
    found = put(np.array([winner(ops.arrays().asnumpy(state.candidates))]))
    parts = (held, found, state.position, arrived, state.tokens, state.logits)
    out[...] = ops.arrays().concatenate([part.reshape(-1) for part in parts])
