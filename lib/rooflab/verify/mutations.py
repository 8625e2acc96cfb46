"""The kill table: whether the gate and the watcher find the faults that are planted in every portable rung.

Each mutant (studies.mutants) runs on the CPU in the place of its rung: through the gate over the study's own
contestants on small ragged shapes and, if it passes, once more under the watcher, which sees races, accesses
out of bounds and unwritten shared memory. `rooflab trace mutations` records the verdicts in data/cpu; it
needs a C++ compiler and no GPU. A mutant that survives is a hole in the gate, unless it computes the same by
any shape or a test outside the gate catches it; EQUIVALENT says which and why.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.errors import GateError, LaunchError, MissingRecording, UsageError
from rooflab.paths import DATA
from rooflab.records.fingerprint import identity
from rooflab.runtime.nvrtc import portable_headers
from rooflab.simt import KernelFault
from rooflab.verify.mutants import Mutant, of
from rooflab.verify.subjects import Subject, portable, subjects

COLUMNS = (
    *("operator", "rung", "file", "mutation", "fault", "code", "mutant"),
    *("killed", "shape", "says", "reason", "identity"),
)
LIMIT = 180  # seconds that a mutant may run; one that loops for ever is killed by that
MOST = 5  # mutants of one rung; what lies beyond are the same mutations at other places
HOSTS = 4  # rungs in which a header's mutant may show
OPERATORS = tuple(dict.fromkeys(operator for operator, _ in portable()))


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
    headers = portable_headers(mutant.rung.path.read_text())
    return identity(mutant.name, "\n".join([*headers.values(), mutant.text]), None)


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
    first = in_child(lambda: _gated(mutant, found))
    if first.killed == "crash":  # what made it so, if the watcher can say
        second = in_child(lambda: _watched(mutant, found))
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
    """A gate's sentence without numbers that depend on the compiler."""
    found = re.search(r"(\d+) of (\d+) outputs", sentence)
    if not found:
        return sentence.partition(":")[2].strip() or sentence
    share = int(found[1]) / int(found[2])
    return f"{found[1]} of {found[2]} outputs wrong" if share < 0.5 else "most outputs wrong"


def in_child(judge: Callable[[], Trial]) -> Trial:
    """What `judge` says in a child process, for what it runs may write anywhere or never end."""
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
# Survivors that compute the same, or "have a test" elsewhere: (rung, mutation, part of the line) -> why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "all_reduce/2_push",
        "guard",
        "r != rank && i < n / 8",
    ): "a part has room for a whole block, and what lies past n is never read",
    (
        "sample/1_block",
        "guard",
        "THREADS / 32",
    ): "1,024 threads are 32 warps, so each lane has one's best",
    (
        "sample_candidates/1_warp",
        "stride",
        "i += 32",
    ): "the best of some candidates is the same if one comes twice",
    (
        "common/batch_heads.cuh",
        "clamp",
        "token + d",
    ): "what a token beyond the last would be rotated with is not used",
    ("batch_rmsnorm/1_pdl", "overrun", "prefetch_l2"): "a prefetch leaves every value as it is",
    ("all_reduce_rmsnorm/1_pdl", "overrun", "prefetch_l2"): "a prefetch leaves every value as it is",
    ("common/slabs.cuh", "dirty", "row_sum = 0"): _RESCALED,
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
        "decode_step/8_tensor_attention",
        "wait",
        "wait<0>",
    ): "every copy that was started has been multiplied by then",
    (
        "decode_step/10_int4_bytes",
        "wait",
        "wait<0>",
    ): "every copy that was started has been multiplied by then",
    (
        "common/decoder/stream_cp_async.cuh",
        "guard",
        "lane < INT4_SCALES",
    ): "one lane more copies to a part of the slot that nothing reads",
    (
        "common/decoder/ring_producers.cuh",
        "wait",
        "wait<0>",
    ): "a slot's barrier says when its copies have arrived, and consumers wait for that",
    (
        "common/decoder/phases.cuh",
        "guard",
        "index < best.index",
    ): "no two candidates have the same index",
    (
        "common/decoder/prologues.cuh",
        "overrun",
        "i < offset / 2",
    ): "what the last turn adds up is not looked at again",
    (
        "common/decoder/attention.cuh",
        "rescale",
        "row_max[i] - new_max",
    ): "the first parts, which are merged together, rescale nothing; long contexts have a test",
    (
        "decode_step/7_split_k",
        "guard",
        "step + 1 < steps",
    ): "a barrier more behind the last token costs time alone",
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


def make(operators: Sequence[str] = OPERATORS, known: pd.DataFrame | None = None) -> pd.DataFrame:
    """Try every mutant: COLUMNS. One that does not compile is no fault of a kernel and is left out. Rows of
    `known`, an earlier record, stay where source, headers and mutation are the same.
    """
    kept = {} if known is None else {str(one["identity"]): one for one in known.to_dict("records")}
    rows = []
    for hosts in mutants(operators):
        same = [kept[key] for _, mutant in hosts if (key := current(mutant)) in kept]
        rows.append({str(name): str(value) for name, value in same[0].items()} if same else judged(hosts))
    order = {operator: place for place, operator in enumerate(dict.fromkeys(o for o, _ in ops.rungs()))}
    rows = [one for one in rows if one["killed"] != "compiler"]
    rows.sort(key=lambda one: (order[one["operator"]], one["rung"], one["file"], one["mutation"]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def path(root: Path | None = None) -> Path:
    """Where the kill table is kept."""
    return (root or DATA) / "cpu" / "mutations.csv"


def write(root: Path | None = None) -> Path:
    """Try every mutant that is not on record as it is now, and record the verdicts."""
    file = path(root)
    table = make(known=read(root) if file.is_file() else None)
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
    """Which survivors are holes: those without a reason, neither equivalent nor in a test elsewhere."""
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


def attacked() -> str:
    """In which kernels faults are planted, in words, and in which not."""
    some, every = len(portable()), len(list(ops.rungs()))
    if some == every:
        return f"all {every} of the course's rungs"
    return f"{some} of the course's {every} rungs (none in the {every - some} with `wgmma` or TMA)"
