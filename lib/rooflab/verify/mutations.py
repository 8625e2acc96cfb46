"""The kill table: whether the gate and the watcher find the faults that are planted in every portable rung.

Each mutant (studies.mutants) runs on the CPU in the place of its rung: through the gate over the study's own
contestants on small ragged shapes and, if it passes, once more under the watcher, which sees races, accesses
out of bounds and unwritten shared memory. `rooflab trace mutations` records the verdicts in data/cpu; it
needs a C++ compiler and no GPU. A mutant that survives is a hole in the gate, unless it computes the same by
any shape; EQUIVALENT says why.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops, simt, studies
from rooflab.bench import gate
from rooflab.errors import GateError, LaunchError, MissingRecording, UsageError
from rooflab.numerics import quant, reference
from rooflab.ops import Rung, attention, decoder, decoder_ops, int4, q8_0
from rooflab.paths import DATA
from rooflab.records.case import Case, options
from rooflab.records.fingerprint import identity
from rooflab.runtime.nvrtc import headers_of
from rooflab.simt import KernelFault
from rooflab.studies.attention import Attention
from rooflab.studies.attention import _case as attention_case
from rooflab.studies.attention import decode as decode_cases
from rooflab.verify.mutants import Mutant, of

COLUMNS = (
    *("operator", "rung", "file", "mutation", "fault", "code", "mutant"),
    *("killed", "shape", "says", "reason", "identity"),
)
LIMIT = 60  # seconds that a mutant may run; one that loops for ever is killed by that
MOST = 5  # mutants of one rung; what lies beyond are the same mutations at other places
HOSTS = 3  # rungs in which a header's mutant may show


class Subject(NamedTuple):
    """A contestant that mutants take the place of: its shape in words and the gate's work."""

    shape: str
    work: gate.Work


# --- what is gated: a few small, ragged shapes for every rung -----------------------------------------------


def portable() -> list[tuple[str, Rung]]:
    """(operator, rung) of everything that runs on the CPU, in the order of the lessons."""
    return [
        (operator, rung)
        for module in ops.modules()
        for operator, ladder in module.LADDERS.items()
        for rung in ladder
        if any(arch.isdigit() for arch in rung.archs)
    ]


def _of_study(cases: Iterable[Case]) -> Iterator[Subject]:
    """The study's own contestants, those that a rung does not refuse."""
    for case in cases:
        study = Attention() if case.study == "attention" else studies.get(case.study)
        with ops.on("cpu"):
            try:
                (work,) = study.contestants([case])
            except (LaunchError, UsageError):
                continue
        yield Subject(_words(case), work)


def _words(case: Case) -> str:
    shape = " x ".join(str(size) for size in (case.n, case.k) if size)
    if case.head_dim:
        shape = f"{case.seq} tokens, {case.heads}/{case.kv_heads} heads of {case.head_dim}"
        shape += f", window {case.window}" if case.window else ""
    return (
        shape
        + (f", {case.batch} tokens" if case.batch else "")
        + (f", {case.options}" if case.options else "")
    )


def _streams(operator: str, rung: Rung) -> list[Case]:
    sizes = (1021, 4 * 2348, 3 * 8 * 256 * 4 + 36)  # the second leaves a tile over for some loads of a thread
    return [Case("bandwidth", operator, rung.name, n=n, cache="cold", clock="graph") for n in sizes]


def _products(operator: str, rung: Rung) -> list[Case]:
    form = "fp32" if operator == "gemv" else "fp16"
    sizes = [(516, 257), (36, 136), (37, 41), (20, 4104)]  # the last is longer than any tile
    sizes = sizes if operator == "gemv" else [*((k, n) for n, k in sizes[:3]), (33, 1288), (21, 4104)]
    return [
        Case("gemv", operator, rung.name, format=form, n=n, k=k, cache="cold", clock="graph")
        for n, k in sizes
    ]


def _q8(operator: str, rung: Rung) -> list[Case]:
    if operator != "q8_0":
        return [Case("q8_0", operator, rung.name, format="q8_0", n=n, k=128, batch=3) for n in (19, 64)]
    most = q8_0.TAKES[rung.name][2]
    return [
        Case("q8_0", operator, rung.name, format="q8_0", n=37, k=k, batch=batch)
        for batch, k in ((1, 256), *(((3, 4480), (8, 256)) if most > 1 else ((1, 4480),)))
    ]


def _mmq(operator: str, rung: Rung) -> list[Case]:
    def case(impl: str, n: int, k: int, batch: int) -> Case:
        return Case("mmq", "mmq", impl, format="q8_0", n=n, k=k, batch=batch, options=options(prepared=1))

    return [case(rung.name, 70, 256, 9), case(rung.name, 130, 384, 67)]


def _attention(operator: str, rung: Rung) -> list[Case]:
    if operator == "decode_attention":
        found = []
        for seq, width, parts in (
            (90, 80, 0),
            (130, 64, 0),
            (640, 64, 40),
        ):  # more parts than a warp has lanes
            heads = (2, 1) if parts else (4, 2)  # one head a block, so that a cache can be cut so often
            mine = [case for case in decode_cases(seq, width, heads) if case.impl == rung.name]
            more = options(splits=parts) if parts and rung.name != "1_block_per_head" else ""
            found += [replace(case, cache="warm", options=more) for case in mine]
        return found
    kinds: list[dict[str, Any]] = [
        {"seq": 70, "head_dim": 80, "heads": (4, 2)},
        {"seq": 20, "head_dim": 64, "heads": (4, 2), "window": 9, "options": "start=33"},
        {"seq": 300, "head_dim": 32, "heads": (1, 1)},  # tiles enough to use a ring again
        {"seq": 100, "head_dim": 64, "heads": (4, 2), "window": 37},
    ]
    found = [attention_case(rung.name, k.pop("seq"), k.pop("head_dim"), k.pop("heads"), **k) for k in kinds]
    return [replace(case, cache="warm") for case in found]


def _loud(rung: Rung) -> Iterator[Subject]:
    """Attention whose own score is far below 0: a sum that starts elsewhere than at nothing shows."""
    rng = np.random.default_rng(3)
    q, v = (rng.standard_normal((40, 2, 64)).astype(np.float16) for _ in range(2))
    k = (-4 * q.astype(np.float32)).astype(np.float16)
    exact = reference.attention(*(a.astype(np.float64) for a in (q, k, v)))
    outs = [np.empty(q.shape, np.float16) for _ in range(2)]
    launch = partial(_attend, rung, q, k, v, outs)
    budget = gate.error_budget(4e-3, exact, "float16")
    work = gate.Work(
        rung.name, launch, [[q, k, v]] * 2, [[out] for out in outs], partial(_same, exact), budget
    )
    yield Subject("40 tokens, 2/2 heads of 64, scores below -100", work)


def _attend(rung: Rung, q: Any, k: Any, v: Any, outs: Sequence[Any], i: int) -> None:
    attention.attention(q, k, v, out=outs[i], rung=rung.name)


def _multiply(rung: Rung, x: Any, weights: Any, outs: Sequence[Any], i: int) -> None:
    int4.matmul(x, weights, out=outs[i], rung=rung.name)


def _same(value: Any) -> Any:
    return value


def _int4(operator: str, rung: Rung) -> Iterator[Subject]:
    """Products on codes of normal weights about a mean, beside the float64 product of what they stand for."""
    for n, k, batch in ((71, 512, 1), (37, 4224, 3), (132, 768, 11)):
        rng = np.random.default_rng(batch)
        packed = quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32) + np.float32(0.1))
        rows = int4.Rows(packed.qweight, packed.scales)
        weights = int4.repack(packed.qweight, packed.scales) if rung in int4.TILED else rows
        x = (rng.standard_normal((batch, k)) + 0.25).astype(np.float16)
        exact = reference.gemm(quant.dequantise_int4(packed), x.astype(np.float32))
        outs = [np.empty((batch, n), np.float16) for _ in range(2)]
        work = gate.Work(
            rung.name,
            partial(_multiply, rung, x, weights, outs),
            [[x, *(part for part in weights if isinstance(part, np.ndarray))]] * 2,
            [[out] for out in outs],
            partial(_same, exact),
            gate.error_budget(2e-3, exact, "float16"),
        )
        yield Subject(f"{n} x {k}, {batch} tokens", work)


def _int4_dequantise(operator: str, rung: Rung) -> Iterator[Subject]:
    packed = quant.quantise_int4(np.random.default_rng(1).standard_normal((5, 1280)).astype(np.float32))
    rows, exact = int4.Rows(packed.qweight, packed.scales), quant.dequantise_int4(packed)
    outs = [np.empty(exact.shape, np.float16) for _ in range(2)]
    work = gate.Work(
        rung.name, lambda i: int4.dequantise(rows, out=outs[i]), [[*rows[:2]]] * 2, [[out] for out in outs],
        lambda: exact, 1e-3,
    )  # fmt: skip
    yield Subject("5 x 1280", work)


def _decoded(operator: str, rung: Rung) -> Iterator[Subject]:
    """Logits after several tokens of a decoder small enough for a CPU."""
    from rooflab import engine
    from rooflab.engine import exact
    from rooflab.engine.spec import Spec
    from rooflab.engine.weights import random_tensors

    wide = {
        "hidden": 1280,
        "head_dim": 128,
    }  # more than a turn of a block's threads, and as wide as heads come
    for form, head, count, more in (
        ("fp16", "fp16", 3, wide),
        ("q8_0", "q8_0", 3, {}),
        ("int4_g128", "fp16", 3, {}),
        ("fp16", "fp16", 18, {}),
        ("int4_g128", "fp16", 1, wide),
    ):
        hidden, width = more.get("hidden", 256), more.get("head_dim", 64)
        spec = Spec("tiny", decoder.Shape(1, hidden, 512, 4, 2, width, 80, 1e-6, 0.0), 1e4, True, True)
        get = random_tensors(spec, on="cpu")
        tokens = [int(t) for t in np.random.default_rng(1).integers(0, 80, count)]
        weights = engine.pack(spec, get, form, head, capacity=count + 1)
        expected = exact.logits(spec, get, tokens, form, head)
        baseline = exact.logits(spec, get, tokens, form, head, "float16")
        outs = [np.empty(expected.shape, np.float32)]

        def launch(
            i: int, spec: Any = spec, weights: Any = weights, tokens: Any = tokens, outs: Any = outs
        ) -> None:
            state = decoder.state_for(spec.shape, len(tokens) + 1, 2, np.zeros)
            for array in state[4:11]:
                array.fill(np.nan)
            for place, token in enumerate(tokens):
                state.bests[...] = decoder.candidates(token, 2)
                decoder.step(spec.shape, weights, state, rung=rung.name)
                outs[i][place] = state.logits

        budget = gate.error_budget(np.abs(baseline - expected).max(), expected, "float16")
        work = gate.Work(rung.name, launch, [[]], [[out] for out in outs], partial(_same, expected), budget)
        yield Subject(f"{form}, {count} tokens of 1 layer, {hidden} wide", work)


def _rows(operator: str, rung: Rung) -> Iterator[Subject]:
    """The kernels between a prompt's products."""
    rng = np.random.default_rng(0)

    def subject(shape: str, launch: Callable[[int], None], outs: Any, expected: np.ndarray) -> Subject:
        works = gate.Work(
            rung.name, launch, [[]] * 2, [[out] for out in outs], lambda: expected,
            float(np.spacing(np.float16(4))),
        )  # fmt: skip
        return Subject(shape, works)

    if operator == "rmsnorm":
        width = 1096
        before = rng.standard_normal((5, width)).astype(np.float32)
        branch, weights = (rng.standard_normal(s).astype(np.float16) for s in ((5, width), width))
        outs = [np.empty((5, width), np.float16) for _ in range(2)]
        total = before.astype(np.float64) + branch

        def normed(i: int) -> None:
            residual = before.copy()
            decoder_ops.rmsnorm(residual, weights, out=outs[i], branch=branch, rung=rung.name)

        expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weights
        yield subject(f"5 x {width}", normed, outs, expected)
    elif operator == "rope":
        rows, biases = (rng.standard_normal(s).astype(np.float16) for s in ((3, 256), 256))
        turns = decoder.rotations(16, 32, 1e4)
        paired, by = np.ascontiguousarray(decoder.pair_heads(rows.T, 32).T), decoder.pair_heads(biases, 32)
        outs = [np.empty((3, 8, 32), np.float16) for _ in range(2)]

        def turned(i: int) -> None:
            q, k, v = (np.full((3, n, 32), np.nan, np.float16) for n in (4, 2, 2))
            decoder_ops.rope(paired, by, turns, q, k, v, start=5)
            outs[i][:] = np.concatenate([q, k, v], 1)

        whole = (rows.astype(np.float64) + biases).reshape(3, 8, 32)
        cos, sin = turns[5:8, None, :, 0], turns[5:8, None, :, 1]
        first, second = whole[..., :16], whole[..., 16:]
        expected = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
        expected[:, 6:] = whole[:, 6:]
        yield subject("3 x 8 heads of 32", turned, outs, expected)
    elif operator == "silu_mul":
        gates = rng.standard_normal((2, 67, 40)).astype(np.float16)
        both = np.ascontiguousarray(decoder.pair_gates(gates.swapaxes(1, 2)).T)
        outs = [np.empty((67, 40), np.float16) for _ in range(2)]
        gate64, up64 = gates.astype(np.float64)
        yield subject(
            "67 x 40", lambda i: decoder_ops.silu_mul(both, out=outs[i]), outs,
            gate64 / (1 + np.exp(-gate64)) * up64,
        )  # fmt: skip


_STREAMS = ("read", "copy", "write", "triad", "saxpy")
_CASES: dict[str, Callable[[str, Rung], list[Case]]] = {
    **dict.fromkeys(_STREAMS, _streams),
    **dict.fromkeys(("gemv", "gemv_rows"), _products),
    **dict.fromkeys(("q8_0", "q8_1", "embedding_q8_0", "dequantise"), _q8),
    "mmq": _mmq,
    **dict.fromkeys(("attention", "decode_attention"), _attention),
}
_WORKS: dict[str, Callable[[str, Rung], Iterator[Subject]]] = {
    "int4": _int4,
    "int4_dequantise": _int4_dequantise,
    "decode_step": _decoded,
    **dict.fromkeys(("rmsnorm", "rope", "silu_mul"), _rows),
}
OPERATORS = (*_CASES, *_WORKS)


@cache
def subjects(operator: str, name: str) -> list[Subject]:
    """The contestants that a rung's mutants are judged by."""
    rung = ops.rung_of(dict(_ladders())[operator], name, name)
    if operator in _CASES:
        found = list(_of_study(_CASES[operator](operator, rung)))
        if operator != "attention":
            return found
        with ops.on("cpu"):
            return [*found, *_loud(rung)]
    with ops.on("cpu"):
        return list(_WORKS[operator](operator, rung))


def _ladders() -> Iterator[tuple[str, tuple[Rung, ...]]]:
    for module in ops.modules():
        yield from module.LADDERS.items()


# --- the mutants --------------------------------------------------------------------------------------------


def mutants(operators: Sequence[str] = OPERATORS) -> list[list[tuple[str, Mutant]]]:
    """Every mutant with its hosts, (operator, mutant): from the last rung of a ladder down, at most MOST a
    rung, without those that change the same line in the same way as one of a rung above. A fault in a header
    is one mutant, which up to HOSTS rungs that use the line are hosts of, one an operator first.
    """
    found: dict[tuple[str, str, str], list[tuple[str, Mutant]]] = {}
    for operator, rung in reversed(portable()):
        mine = 0
        for mutant in of(rung) if operator in operators else ():
            own = mutant.file.startswith(f"{rung.operator}/")
            key = (operator if own else mutant.file, mutant.mutation.name, mutant.code)
            if key not in found:
                if own and mine >= MOST // (
                    1 + 2 * (operator == "decode_step")
                ):  # it takes seconds to compile
                    continue
                mine += own
            elif own:
                continue
            found.setdefault(key, []).append((operator, mutant))
    chosen = []
    for hosts in found.values():
        first = {operator: (operator, mutant) for operator, mutant in reversed(hosts)}
        others = [host for host in hosts if host not in first.values()]
        chosen.append([*first.values(), *others][:HOSTS])
    return chosen


def current(mutant: Mutant) -> str:
    """The identity of a mutant's row: its source with headers, and what was changed."""
    whole = mutant.rung.path.read_text()
    headers = [body for name, body in headers_of(whole).items() if not name.endswith("/ptx.cuh")]
    return identity(mutant.name, "\n".join([*headers, mutant.text]), None)


# --- the trial ----------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """How a mutant ended: `killed` is "gate" (wrong results), "launch" (a fault that any launch on the CPU
    reports), "watcher" (a fault that only the watcher sees), "crash", "time", "compiler" (no program), or
    "" for a survivor."""

    killed: str
    shape: str
    says: str


def trial(operator: str, mutant: Mutant) -> Trial:
    """Put a mutant through gate and watcher, in a child process, for it may write anywhere or never end."""
    found = subjects(operator, mutant.rung.name)
    first = _in_child(lambda: _gated(mutant, found))
    if first.killed == "crash":  # what made it so, if the watcher can say
        second = _in_child(lambda: _watched(mutant, found))
        return second if second.killed == "watcher" else first
    return first


def _gated(mutant: Mutant, found: Sequence[Subject]) -> Trial:
    with ops.on("cpu"), ops.swapped(mutant.rung, mutant.text) as uses:
        for subject in found:
            try:
                gate.admit(subject.work).recheck()
            except GateError as error:
                return Trial("gate", subject.shape, _plain(str(error), mutant))
            except KernelFault as fault:
                return Trial("launch", subject.shape, fault.faults[0].kind)
            except LaunchError as refusal:
                if "refuses" not in str(refusal):
                    raise
            except UsageError as error:
                if "compile" in str(error):
                    return Trial("compiler", "", "does not compile")
                raise
    if not uses:
        return Trial("crash", "", f"{mutant.rung.operator}/{mutant.rung.name} never ran")
    return _watched(mutant, found)


def _watched(mutant: Mutant, found: Sequence[Subject]) -> Trial:
    with ops.on("cpu"), ops.swapped(mutant.rung, mutant.text):
        for subject in found:
            try:
                with simt.watched_launches() as launches:
                    subject.work.launch(0)
            except LaunchError as refusal:
                if "refuses" in str(refusal):
                    continue
                return Trial("watcher", subject.shape, "more accesses than a right one makes")
            faults = [fault for seen in launches for fault in seen.faults]
            if faults:
                return Trial("watcher", subject.shape, faults[0].kind)
    return Trial("", "", "")


def _plain(sentence: str, mutant: Mutant) -> str:
    """A gate's sentence without numbers that hang on the compiler."""
    found = re.search(r"(\d+) of (\d+) outputs", sentence)
    if not found:
        return sentence.partition(":")[2].strip() or sentence
    share = int(found[1]) / int(found[2])
    return f"{found[1]} of {found[2]} outputs wrong" if share < 0.5 else "most outputs wrong"


def _in_child(judge: Callable[[], Trial]) -> Trial:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))  # its own seconds, not the compiler's
            signal.alarm(20 * LIMIT)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            faulthandler.disable()  # pytest's would print the stack of a crash that is meant
            with np.errstate(all="ignore"):
                found = judge()
            os.write(writer, json.dumps(found).encode())
        except BaseException as error:  # a child must not return into its parent's code
            os.write(writer, json.dumps(Trial("crash", "", type(error).__name__)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        return (
            Trial("time", "", "did not end")
            if killer in (signal.SIGALRM, signal.SIGXCPU)
            else Trial("crash", "", signal.Signals(killer).name)
        )
    return Trial(*json.loads(text))


# --- the record ---------------------------------------------------------------------------------------------

_RESCALED = "the first key rescales what came before by 2 to the minus infinity, which is 0"
# Survivors that compute the same: (rung, mutation, part of the line's text) -> why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("common/parts.cuh", "stride", "row_max"): "the largest of some numbers is the same if one comes twice",
    ("gemv/1_strided", "leave", "column >= n"): "the grid has a block a column, so no column is n",
    (
        "gemv_rows/4_rows",
        "leave",
        "row >= n",
    ): "a warp beyond the rows reads the last again and stores nothing",
    (
        "gemv_rows/3_in_flight",
        "guard",
        "first < chunks",
    ): "a turn at the end loads nothing: each load is guarded",
    ("gemv/6_column_strips", "guard", "c < COLUMNS"): "the warps divide COLUMNS evenly, so c stays below it",
    ("mmq/3_wide", "guard", "thread < 2 * TOKENS"): "128 tokens a tile are all 256 threads",
    ("mmq/5_large_tiles", "wait", "wait<0>"): "after the last turn only empty groups are under way",
    ("q8_0/6_mma", "wait", "wait<0>"): "after the last turn only empty groups are under way",
    ("int4/9_shared_x", "wait", "wait<0>"): "after the last turn only empty groups are under way",
    (
        "decode_step/5_prefetch_at_barrier",
        "wait",
        "wait<0>",
    ): "every copy that was started has been multiplied by then",
    (
        "attention/7_mma_32_rows",
        "guard",
        "tile < all_from",
    ): "it only decides whether keys are looked at one by one",
    ("attention/2_tiled", "dirty", "sum = 0"): _RESCALED,
    ("decode_attention/2_split_kv", "dirty", "sum = 0"): _RESCALED,
    (
        "common/attention.cuh",
        "stride",
        "all.row_max",
    ): "the largest of some numbers is the same if one comes twice",
}


def reason(mutant: Mutant) -> str:
    """Why a surviving mutant is none, or nothing."""
    name = f"{mutant.rung.operator}/{mutant.rung.name}"
    for (rung, mutation, text), why in EQUIVALENT.items():
        if rung in (name, mutant.file) and mutation == mutant.mutation.name and text in mutant.code:
            return why
    return ""


def row(operator: str, mutant: Mutant, found: Trial) -> dict[str, str]:
    """A mutant's row of the record."""
    return {
        **{"operator": operator, "rung": mutant.rung.name, "file": mutant.file},
        **{"mutation": mutant.mutation.name, "fault": mutant.mutation.says},
        **{"code": mutant.code, "mutant": mutant.mutant, **found._asdict()},
        **{"reason": "" if found.killed else reason(mutant), "identity": current(mutant)},
    }


def judged(hosts: Sequence[tuple[str, Mutant]]) -> dict[str, str]:
    """A mutant's row: in the host that kills it, or in the first one if none does."""
    tried = []
    for operator, mutant in hosts:
        found = trial(operator, mutant)
        tried.append((operator, mutant, found))
        if found.killed not in ("", "compiler"):
            return row(operator, mutant, found)
    return row(*next((one for one in tried if one[2].killed == ""), tried[0]))


def make(operators: Sequence[str] = OPERATORS) -> pd.DataFrame:
    """Try every mutant: COLUMNS. One that does not compile is no fault of a kernel and is left out."""
    rows = [judged(hosts) for hosts in mutants(operators)]
    order = {operator: place for place, (operator, _) in enumerate(_ladders())}
    rows = [one for one in rows if one["killed"] != "compiler"]
    rows.sort(key=lambda one: (order[one["operator"]], one["rung"], one["file"], one["mutation"]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def path(root: Path | None = None) -> Path:
    """Where the kill table is kept."""
    return (root or DATA) / "cpu" / "mutations.csv"


def write(root: Path | None = None) -> Path:
    """Try every mutant and record the verdicts."""
    table, file = make(), path(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, lineterminator="\n")
    return file


def read(root: Path | None = None) -> pd.DataFrame:
    """The recorded kill table, COLUMNS; MissingRecording names the command that makes it."""
    file = path(root)
    if not file.is_file():
        raise MissingRecording("The kill table is not recorded: `rooflab trace mutations` makes it.")
    return pd.read_csv(file, keep_default_na=False)


def is_open(left: pd.DataFrame) -> pd.Series:
    """Which survivors are holes: those without a reason why they compute the same."""
    return left["reason"] == ""


def by_operator(table: pd.DataFrame) -> pd.DataFrame:
    """A kill table in numbers, a row an operator: mutants, how many were killed by each, and how many survive
    with a reason (equivalent) and without (open).
    """
    ways = {"gate": ["gate"], "launch": ["launch"], "watcher": ["watcher"], "other": ["crash", "time"]}
    rows = []
    for operator, mine in table.groupby("operator", sort=False):
        left = mine[mine["killed"] == ""]
        row: dict[str, object] = {"operator": operator, "mutants": len(mine)}
        row |= {name: int(mine["killed"].isin(words).sum()) for name, words in ways.items()}
        row |= {"equivalent": int((~is_open(left)).sum()), "open": int(is_open(left).sum())}
        rows.append(row)
    return pd.DataFrame(rows)
