"""What study `decode` asks of the engine beside its speed: whether every path gives the logits that float64
gives, and really ran; whether a thousand runs give the same tokens, ten thousand steps leak memory, a refused
input does harm; and what a token costs in joules.

A question is an operator of the study, a case of it names who answers, and the answer is (case, quantity,
value) rows of the instrument "checks". The energy is that of NVML's counter of the whole board, GPU, memory
and regulators, idle power included, host not; its clock is the host's, around a second of generating.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from rooflab import engine, ops
from rooflab.bench import gate
from rooflab.engine import exact
from rooflab.errors import UsageError
from rooflab.hardware import device as devices
from rooflab.ops import decoder
from rooflab.profile import timeline
from rooflab.records.case import Case, options
from rooflab.studies import decode, decode_work, decoding, hf
from rooflab.studies.base import Sized

LENGTH = 200  # tokens of the prompt that paths are compared on
PIECES = (70, 1, 129)  # and a prompt in pieces
RUNS, FEWER, SHORT = 1000, 200, (16, 6)  # greedy and sampled runs; of each the prompt, and the tokens
MANY_STEPS, ROOM = 10_000, 2000
SECONDS = 0.7  # of generating for a figure of energy

Rows = Iterator[tuple[str, float]]


def _case(question: str, impl: str, format: str, batch: int = 1, steps: int | None = None) -> Case:
    kind = "peer" if impl in hf.VARIANTS else "own"
    head = decode.FORMATS[format]
    words: dict[str, Any] = {"steps": steps} if steps else {}
    words |= {"head": head} if head != format else {}
    return Case(
        *("decode", question, impl, kind, format, decode.MODEL, "random"),
        batch=batch,
        seq=decode.PROMPT if question == "energy" else None,
        options=options(**words),
        cache="",
        clock="wall" if question == "energy" else "",
    )


def _ways(format: str, device: Sized | None) -> list[str]:
    """Ways of decoding, and of taking in a prompt, by names of their own: in FP16 all of them, in others what
    differs there.
    """
    prompts = [f"prompt.{name}" for name in engine.PROMPTS if name != "2_mmq" or format == "q8_0"]
    if format == "fp16":
        return [*decode.PLAIN, decode.CHAIN, *decode.rungs(device), *prompts, "pieces"]
    return ["products", decode.CHAIN, *decode.rungs(device), *prompts[:: len(prompts) - 1], "pieces"]


def agreement(device: Sized | None = None) -> list[Case]:
    """Every path of every format."""
    return [_case("agreement", way, f) for f in decode.FORMATS for way in _ways(f, device)]


def stability(device: Sized | None = None) -> list[Case]:
    """Every format's fastest rung, again and again; where steps are shortest also for long, sampling, and
    refusing.
    """
    asked = {"int4_g128": ("repeated", "sampled", "long", "refused")}
    return [
        _case(question, decode.best(format, device), format)
        for format in decode.FORMATS
        for question in asked.get(format, ("repeated",))
    ]


def energy(device: Sized | None = None) -> list[Case]:
    """The fastest rung in every format, several sequences at once, where steps are shortest by both ways,
    transformers' graph, and nothing.
    """
    found = []
    for format in decode.FORMATS:
        found.append(_case("energy", decode.best(format, device), format, steps=decode.STEPS))
        for impl in decode.TOGETHER if format == "int4_g128" else decode.TOGETHER[-1:]:
            found += [_case("energy", impl, format, batch, decode.FEW) for batch in decode.BATCHES]
    graph = _case("energy", decode.GRAPH, "fp16", steps=decode.FEW)
    return [*found, graph, _case("energy", "idle", "fp16")]


def cases(effort: str = "full", device: Sized | None = None) -> list[Case]:
    """Every question; with little effort those of the fastest rung."""
    if effort == "quick":
        return stability(device)
    return [*agreement(device), *stability(device), *energy(device)]


def answers(wanted: Sequence[Case], refuses: Callable[[Case], str | None]) -> pd.DataFrame:
    """(case, quantity, value) rows; one row "refused" of a case that cannot run here."""
    rows: list[dict[str, Any]] = []
    order = sorted(wanted, key=lambda case: list(decode.FORMATS).index(case.format))
    for case in order:  # a format's weights are made once
        found = [("refused", 1.0)] if refuses(case) else list(_ASK[case.operator](case))
        rows += [{"case": case.id, "quantity": name, "value": float(value)} for name, value in found]
    return pd.DataFrame(rows)


# --- does every path give what float64 gives? ---------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _expected(format: str) -> tuple[list[int], Any, dict[bool, float]]:
    """The prompt, its exact last logits, and the largest error allowed, without and with Q8_1."""
    import cupy

    spec, get, head = engine.spec(decode.MODEL), decoding.checkpoint(decode.MODEL), decode.FORMATS[format]
    ids = decoding.prompt(decode.MODEL, 1, LENGTH)
    expected = exact.logits(spec, get, ids, format, head, last=True)[0, 0]
    budgets = {}
    for rounded in (False, True):
        plain = exact.logits(spec, get, ids, format, head, "float16", rounded=rounded, last=True)[0, 0]
        error = float((plain.double() - expected).abs().max())
        budgets[rounded] = gate.error_budget(error, cupy.asarray(expected), "float16")
    return ids[0].tolist(), expected, budgets


def _engine(format: str, capacity: int, paths: engine.Paths) -> engine.Engine:
    head = decode.FORMATS[format]
    weights = decoding.packed(decode.MODEL, format, head, decode.CAPACITY)
    return engine.Engine(engine.spec(decode.MODEL), weights, capacity=capacity, paths=paths)


def _ran(name: str, format: str, tokens: list[int]) -> engine.Engine:
    """An engine that has taken the tokens in and made logits on the path of that name."""
    import torch

    paths, of_prompt = _paths(name)
    one = _engine(format, LENGTH + 8, paths)
    if of_prompt:
        pieces = PIECES if name == "pieces" else (LENGTH,)
        for _ in range(3 if paths.graph and name != "pieces" else 1):  # the second time it is captured
            one.reset()
            start = 0
            for size in pieces:
                one.prefill(tokens[start : start + size])
                start += size
    else:
        one.prefill(tokens[:-1])
        one.state.candidates.copy_(torch.from_numpy(decoder.candidates(tokens[-1], one.blocks)))
        one.decode(1)
    return one


def _paths(name: str) -> tuple[engine.Paths, bool]:
    """The switches of a path, and whether it is one of taking in a prompt."""
    if name.startswith("prompt."):
        return engine.PROMPTS[name.removeprefix("prompt.")], True
    if name == "pieces":
        return engine.Paths(), True
    return dataclasses.replace(engine.Paths(), decode=name), False


def plainest(name: str, format: str) -> str:
    """The path whose logits those of another are compared with bit by bit: of rungs the first, of the ways
    by torch's operators the first, of prompts the first.
    """
    if name in decode.RUNGS:
        return decode.RUNGS[0]
    return next(way for way in _ways(format, None) if way.startswith("prompt.") == _paths(name)[1])


@functools.lru_cache(maxsize=4)
def _plainest_logits(name: str, format: str) -> Any:
    return _ran(name, format, _expected(format)[0]).logits.clone()


@functools.lru_cache(maxsize=1)
def _theirs(model: str) -> Any:
    """The logits of transformers itself after the same prompt, in FP16."""
    return hf.prefill(hf.model(model), decoding.prompt(model, 1, LENGTH))[0].double()


def _agreement(case: Case) -> Rows:
    """The largest error of the logits and what is allowed, how many of the five likeliest tokens are the
    same, whether the likeliest is (or nearly ties), in FP16 the largest difference from transformers' own,
    how often the path ran and another in its place, and the share of logits that are those of the plainest
    path of its kind to the last bit.
    """
    tokens, expected, budgets = _expected(case.format)
    (paths, of_prompt), name = _paths(case.impl), case.impl.removeprefix("prompt.")
    one = _ran(case.impl, case.format, tokens)
    got = one.logits.double()
    error = float((got - expected).abs().max())
    rounded = case.format == "q8_0" and (name == "products" or of_prompt and ops.known_arch() != "90")
    budget = budgets[rounded]
    top, wanted = (set(x.topk(5).indices.tolist()) for x in (got, expected))
    first, second = expected.topk(2).values.tolist()
    yield "largest error", error if error == error else float("inf")
    yield "allowed", budget
    yield "top 5", len(top & wanted)
    yield "likeliest", float(int(got.argmax()) == int(expected.argmax()) or first - second <= 2 * error)
    wanted_paths, others = _counted(name, case.format, paths, of_prompt)
    if case.format == "fp16":
        yield "from transformers", float((got - _theirs(case.model)).abs().max())
    yield "ran", min(one.ran[what] for what in wanted_paths)
    yield "ran instead", sum(one.ran[what] for what in others)
    other = plainest(case.impl, case.format)
    if other != case.impl:
        yield "same bits", float((_plainest_logits(other, case.format) == one.logits).double().mean())


def _counted(name: str, format: str, paths: engine.Paths, of_prompt: bool) -> tuple[list[str], list[str]]:
    """What an engine on this path must have counted, and what it must not."""
    if not of_prompt:
        others = [way for way in (*decode.PLAIN, decode.CHAIN, *decode.RUNGS) if way != name]
        return [f"decode {name}"], [f"decode {way}" for way in others]
    ran, instead = ["prompt"], []
    switches = [
        (paths.rows, "rows own", "rows torch"),
        (paths.embed, "embedded at once", "embedded one by one"),
        (not paths.attention, "attention own", f"attention {paths.attention or '1_scalar'}"),
    ]
    if format == "q8_0":
        switches.append((paths.mmq, "product mmq", "product cublas"))
        if ops.known_arch() == "90" and not paths.fused:
            instead.append("product fused")
    for on, fast, plain in switches:
        ran.append(fast if on else plain)
        instead.append(plain if on else fast)
    if name != "pieces":
        (ran if paths.graph else instead).append("prompt graph")
    return ran, instead


# --- again and again ----------------------------------------------------------------------------------------


def _repeated(case: Case, temperature: float = 0.0) -> Rows:
    """Distinct token sequences of so many runs of prompt and generation, another prompt between them."""
    asked, count = SHORT
    one = _engine(case.format, asked + count, engine.Paths(decode=case.impl))
    one.sample(temperature, seed=7)
    ids = decoding.prompt(decode.MODEL, 2, asked).tolist()
    found: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    for run in range(FEWER if temperature else RUNS):
        which = int(run % 10 == 9)  # every tenth run is another prompt's: nothing of it may stay
        one.reset()
        one.prefill(ids[which])
        found[which].add(tuple(one.generate(count)))
    yield "runs", FEWER if temperature else RUNS
    yield "distinct", max(len(each) for each in found.values())
    yield "same though other prompts", float(found[0] == found[1])


def _sampled(case: Case) -> Rows:
    yield from _repeated(case, temperature=0.8)


def _long(case: Case) -> Rows:
    """GPU memory that is gone after ten thousand steps, and whether the last logits are numbers."""
    import torch

    one = _engine(case.format, ROOM + 64, engine.Paths(decode=case.impl))
    ids = decoding.prompt(decode.MODEL, 1, 16)[0].tolist()
    # A prompt is launched, captured, replayed: what libraries keep for that, they keep once.
    for _ in range(3):
        one.reset()
        one.prefill(ids)
    one.decode(100)
    torch.cuda.synchronize()
    before, done = torch.cuda.mem_get_info()[0], 0
    while done < MANY_STEPS:
        if one.position + 100 > ROOM:
            one.reset()
            one.prefill(ids)
        one.decode(100)
        done += 100
    torch.cuda.synchronize()
    yield "steps", done
    yield "bytes gone", before - torch.cuda.mem_get_info()[0]
    yield "not numbers", float((~torch.isfinite(one.logits)).sum())


def _refused(case: Case) -> Rows:
    """Inputs that must be refused, how many were, and whether the engine generates the same afterwards."""
    ids = decoding.prompt(decode.MODEL, 1, 16)[0].tolist()
    one = _engine(case.format, 32, engine.Paths(decode=case.impl))

    def generated() -> list[int]:
        one.reset()
        one.prefill(ids)
        return one.generate(8)

    before = generated()
    wrong: list[Callable[[], Any]] = [
        lambda: one.prefill([]),
        lambda: one.prefill([-1]),
        lambda: one.prefill([one.spec.shape.vocab]),
        lambda: one.prefill(ids * 3),
        lambda: one.generate(0),
        lambda: one.generate(1000),
        lambda: one.sample(-1.0),
    ]
    refused, moved = 0, 0
    for attempt in wrong:
        place = one.position
        try:
            attempt()
        except UsageError:
            refused += 1
        moved += one.position != place
    yield "wrong inputs", len(wrong)
    yield "turned away", refused
    yield "moved by them", moved
    yield "changed afterwards", float(generated() != before)


# --- block by block -----------------------------------------------------------------------------------------


def timed_beside(device: Sized | None = None) -> list[Case]:
    """What `decode.timed` asks, of rungs that lose in a format and of those that they are held against."""
    wanted = [("4_tma", "fp16")] + [
        (name, "int4_g128") for name in ("3_persistent", "4_tma", "6_producer_warps", "9_flags_in_data")
    ]
    there, found = decode.last(device), []
    for name, form in wanted:
        head = decode.FORMATS[form]
        words = {"steps": timeline.STEPS} | ({"head": head} if head != form else {})
        found += [
            dataclasses.replace(case, impl=name, format=form, options=options(**words))
            for case in decode.timed(device)[:1]
            if name in there
        ]
    return found


def layer_of(case: Case) -> pd.DataFrame:
    """Rows of `timeline.layer` for a case of `decode.timed`, once its kernel has passed the gate."""
    gate.admit(decode_work.work_of(case))
    context = case.seq or 0
    one = _engine(case.format, context + timeline.STEPS + 1, engine.Paths(decode=case.impl))
    one.prefill(decoding.prompt(case.model, 1, context)[0].tolist())
    token = timeline.token(timeline.marks(one.spec.shape, one.weights, one.state, case.impl))
    return timeline.layer(token).assign(case=case.id)


# --- joules -------------------------------------------------------------------------------------------------


def _energy(case: Case) -> Rows:
    """Watts while the case's tokens are generated over and over, tokens a second, joules a token."""
    if case.impl == "idle":
        watts, _ = _watts(lambda: time.sleep(0.02))
        yield "watts", watts
        return
    work = decode_work.work_of(dataclasses.replace(case, operator="decode"))
    gate.admit(work)

    def once() -> None:
        work.launch(0)
        gate.synchronize(work.outputs[0][0])

    watts, each_s = _watts(once)
    tokens = decode.steps_of(case) * (case.batch or 1)
    yield "watts", watts
    yield "tok/s", tokens / each_s
    yield "joules a token", watts * each_s / tokens


def _watts(once: Callable[[], None]) -> tuple[float, float]:
    """Mean power over SECONDS of `once` after another, between the first and the last tick of the energy
    counter, and seconds of one; the power is not a number where the GPU has no such counter.
    """
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        once()
    start = time.perf_counter()
    seen, ticks, count = devices.energy_j(), [], 0
    while not (time.perf_counter() > start + SECONDS):
        once()
        count += 1
        now = devices.energy_j()
        if now is not None and now != seen:
            seen = now
            ticks.append((time.perf_counter(), now))
    each = (time.perf_counter() - start) / count
    if len(ticks) < 2:
        return float("nan"), each
    (first, low), (last, high) = ticks[0], ticks[-1]
    return (high - low) / (last - first), each


_ASK: dict[str, Callable[[Case], Rows]] = {
    "agreement": _agreement,
    "repeated": _repeated,
    "sampled": _sampled,
    "long": _long,
    "refused": _refused,
    "energy": _energy,
}
