"""Exercises in CUDA that need no GPU: a cell holds a kernel, and this room runs and watches it on the CPU.

A notebook's cell is the kernel, with `...` where the reader writes:

    %%kernel 03.4
    extern "C" __global__ void scale(const float* x, float* y, int n) {
        const int i = ...;
        if (i < n) y[i] = 2.0f * x[i];
    }

Importing rooflab.exercises registers the magic. The same from a file or a text: `exercises.kernel("03.4",
source)`. What the cell prints is text alone, the same on every machine with a compiler:

- `Exercise 03.4: not attempted: ...` while a `...` is left outside comments, or while the kernel is still the
  task's `starter` (one to be mended), comments and spaces apart. Nothing is compiled then, so a committed
  starter replays without a compiler, and strict nbval holds it.
- `Exercise 03.4: not checked: ...` on a machine that cannot compile it, with what to install.
- else `right` or `wrong` with the reason, and under it the first wrong element, every fault found, how each
  line of the source uses memory (sectors a request, share of the moved bytes that is used, bank conflicts),
  and the targets, met or not: of memory, and of instructions as they are executed, whatever the source says.
  Line numbers are those of the cell, whose first line is the magic's.

The exercise itself is registered in lesson_NN.py:

    @kernel_task("03.4", entry="scale", targets=[most_sectors("x", 4)], right="every byte moved is used.")
    def scaled() -> Iterator[Trial]:
        for n in (256, 77):
            x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
            yield Trial(f"n = {n}", -(-n // 64), 64, [x, np.empty_like(x), ctypes.c_int(n)], {1: 2 * x})

A trial is one launch: arguments as simt.watch takes them, and by position the arrays it must write, each with
the values expected; they are poisoned with 0xff bytes (NaN) first, and every other array must come out
unchanged. `budget` is the largest absolute error allowed (0: bit for bit, for integers). Targets look at the
first trial, so let it be a whole number of tiles; later ones are for ragged shapes. Keep all of them small: a
memory access takes about a microsecond, and more than a million in one launch are refused as a loop without
end, as are more than 67 million straight pieces of code, memory or not, and ten seconds of computing.
Solutions are tested as any exercise's are (tests/lesson_exercises.py takes %%kernel cells too).
What the CPU cannot show (simt/__init__.py) it cannot judge: no times, no caches, one order of threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflab import simt
from rooflab.errors import LaunchError, MissingTool, UsageError
from rooflab.exercises.wrong import told
from rooflab.records.fingerprint import strip_comments

MOST = 1 << 20  # accesses of one launch
LIMIT = simt.Limit(10, 1 << 26)  # of code without accesses, which runs in a fraction of a second


@dataclass(frozen=True)
class Trial:
    """One launch of a reader's kernel and what it must leave: see the module's text."""

    name: str
    grid: int | Sequence[int]
    block: int | Sequence[int]
    arguments: list[Any]
    expected: Mapping[int, np.ndarray]
    budget: float = 0.0
    shared: int = 0
    options: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Target:
    """Something asked of memory or of instructions: `value` reads it from the first trial (None: there is no
    such access), `holds` judges it, `says` is the demand in words, `found` what the value is.
    """

    says: str
    value: Callable[[simt.Watch], float | None]
    holds: Callable[[float], bool]
    found: str = "it is {:.3g}"


@dataclass(frozen=True)
class Task:
    """A registered exercise."""

    number: str
    entry: str
    targets: Sequence[Target]
    right: str
    trials: Callable[[], Iterator[Trial]]
    starter: str
    worth: Callable[[], str] | None = None  # what the step gains on a GPU, from its recording


@dataclass(frozen=True)
class Report:
    """What was found: `status` ("right", "wrong", "not attempted", "not checked") with its sentence, the
    lines under it, and for programs the faults and the table of simt.Watch.lines() of the first trial.
    """

    number: str
    status: str
    sentence: str
    details: list[tuple[str, str]] = field(default_factory=list)
    faults: list[simt.Fault] = field(default_factory=list, repr=False)
    lines: pd.DataFrame | None = field(default=None, repr=False)

    def __str__(self) -> str:
        head = f"Exercise {self.number}: {self.status}: {self.sentence}"
        return "\n".join([head, *(f"  {label:<8} {text}" for label, text in self.details)])


TASKS: dict[str, Task] = {}


def kernel_task(
    number: str,
    *,
    entry: str,
    right: str,
    targets: Sequence[Target] = (),
    starter: str | Path = "",
    worth: Callable[[], str] | None = None,
) -> Callable[[Callable[[], Iterator[Trial]]], Callable[[], Iterator[Trial]]]:
    """Register the exercise `number`: a generator of trials for the kernel `entry`, `targets`, what to say
    when all is right, the kernel to be mended, if the reader gets one that runs, and what says how much
    the step gains on a GPU.
    """
    given = starter.read_text() if isinstance(starter, Path) else starter

    def register(trials: Callable[[], Iterator[Trial]]) -> Callable[[], Iterator[Trial]]:
        if number in TASKS:
            raise UsageError(f"Exercise {number} has two kernel tasks.")
        TASKS[number] = Task(number, entry, tuple(targets), right, trials, given, worth)
        return trials

    return register


# --- targets ------------------------------------------------------------------------------------------------


def _rows(seen: simt.Watch, buffer: str, access: str) -> pd.DataFrame:
    rows = seen.lines()
    return rows[(rows["buffer"] == buffer) & (rows["access"] == access)]


def most_sectors(buffer: str, most: float, access: str = "load") -> Target:
    """At most so many 32-byte sectors a request where `buffer` (the kernel's parameter) is accessed."""

    def value(seen: simt.Watch) -> float | None:
        rows = _rows(seen, buffer, access)
        if rows.empty:
            return None
        return float((rows["sectors_per_request"] * rows["requests"]).sum() / rows["requests"].sum())

    says = f"at most {most:g} sectors a {access} of {buffer}"
    return Target(says, value, lambda got: got <= most, "{:.3g} on average")


def most_requests(buffer: str, most: int, access: str = "load") -> Target:
    """At most so many requests of warps to `buffer` in the first trial."""

    def value(seen: simt.Watch) -> float | None:
        rows = _rows(seen, buffer, access)
        return None if rows.empty else float(rows["requests"].sum())

    says = f"at most {most} {access} requests to {buffer}"
    return Target(says, value, lambda got: got <= most, "it is {:.0f}")


def most_requests_a_warp(buffer: str, most: int, access: str = "load") -> Target:
    """At most so many requests to `buffer` by any one warp of the first trial: the warps share the work."""

    def value(seen: simt.Watch) -> float | None:
        rows = seen.requests()
        rows = rows[(rows["buffer"] == buffer) & (rows["access"] == access)]
        return None if rows.empty else float(rows.groupby(["block", "warp"]).size().max())

    says = f"at most {most} {access} requests to {buffer} by one warp"
    return Target(says, value, lambda got: got <= most, "it is {:.0f}")


def least_used(buffer: str, share: float, access: str = "load") -> Target:
    """At least this share of the bytes moved to or from `buffer` is used."""

    def value(seen: simt.Watch) -> float | None:
        rows = _rows(seen, buffer, access)
        return None if rows.empty else float(100 * rows["bytes_used"].sum() / rows["bytes_moved"].sum())

    says = f"at least {share:.0%} of what a {access} of {buffer} moves is used"
    return Target(says, value, lambda got: got >= 100 * share, "it is {:.3g}%")


def most_conflicts(most: float = 0) -> Target:
    """At most so many bank conflicts a request to shared memory, on average; none of them by default."""

    def value(seen: simt.Watch) -> float | None:
        rows = seen.lines()
        rows = rows[rows["space"] == "shared"]
        if rows.empty:
            return None
        return float((rows["conflicts_per_request"] * rows["requests"]).sum() / rows["requests"].sum())

    says = f"{f'at most {most:g}' if most else 'no'} bank conflicts a request to shared memory"
    return Target(says, value, lambda got: got <= most, "{:.3g} on average over all lines")


def uses_shared() -> Target:
    """Threads hand each other numbers through shared memory: it is read at all."""

    def value(seen: simt.Watch) -> float | None:
        rows = seen.lines()
        rows = rows[(rows["space"] == "shared") & (rows["access"] == "load")]
        return None if rows.empty else float(rows["requests"].sum())

    return Target("shared memory is read", value, lambda got: got > 0)


def executes(instruction: str, least: int, most: int | None = None) -> Target:
    """The first trial executes an instruction of simt.EXECUTED so often: products of matrices are counted a
    warp, others a thread. A success line that names an instruction has this target.
    """
    who = "warps" if instruction.startswith("mma") else "threads"
    bound = "exactly" if most == least else "at least"
    return Target(
        f"{bound} {least:,} {instruction} by {who}",
        lambda seen: float(seen.executed(instruction)),
        lambda got: least <= got and (most is None or got <= most),
        "{:,.0f} executed",
    )


def no_conversion() -> Target:
    """No thread makes an FP16 number of another kind of number; a constant is made by the compiler."""
    return Target(
        "no conversion to FP16 by threads",
        lambda seen: float(seen.executed(simt.TO_HALF)),
        lambda got: got == 0,
        "{:,.0f} executed",
    )


# --- judging ------------------------------------------------------------------------------------------------


def judge(task: Task, source: str) -> Report:
    """Run and watch a reader's kernel over the task's trials; stops at the first trial that goes wrong."""

    def report(status: str, sentence: str, *rest: Any) -> Report:
        return Report(task.number, status, sentence, *rest)

    tokens = strip_comments(source).split()
    if re.search(r"\. ?\. ?\.", re.sub(r'"(?:\\.|[^"\\])*"', "", " ".join(tokens))):
        return report("not attempted", "replace the ... with your code, then run the cell again.")
    if tokens == strip_comments(task.starter).split():
        return report("not attempted", "mend the kernel, then run the cell again.")
    try:
        program = simt.load(source, watched=True, name="cell.cu")
    except MissingTool as error:
        return report("not checked", str(error))
    except UsageError as error:
        head, _, log = _local(str(error)).partition("\n")
        return report(
            "wrong",
            head.replace("cell.cu ", "it ", 1),
            [("compiler", text) for text in log.split("\n") if "error: " in text][:4],
        )
    if task.entry not in program.parameters:
        return report(
            "wrong", f"the kernel must be called {task.entry}, not {', '.join(program.parameters)}."
        )

    first: simt.Watch | None = None
    passed = []
    for trial in task.trials():
        try:
            seen, wrong = _attempt(task, trial, source, program.parameters[task.entry])
        except LaunchError as error:
            return report("wrong", _local(str(error)))
        first = first or seen
        details = (
            [("result", f"{wrong} ({trial.name})")]
            if wrong
            else [("result", f"as it should be ({trial.name})")]
        )
        details += [("fault", _local(str(fault))) for fault in seen.faults] or [("faults", "none")]
        if wrong or seen.faults:
            sentence = "the result is not right." if wrong else "no GPU promises to get through this."
            return report("wrong", sentence, details + _memory(first), seen.faults, first.lines())
        passed.append(trial.name)
    if first is None:
        raise UsageError(f"Exercise {task.number} has no trials.")
    details = [("result", f"as it should be ({'; '.join(passed)})"), ("faults", "none"), *_memory(first)]
    missed = 0
    for target in task.targets:
        got = target.value(first)
        met = got is not None and target.holds(got)
        missed += not met
        what = "there is none" if got is None else target.found.format(got)
        details.append(("target", f"{target.says}: {what}, {'met' if met else 'not met'}"))
    if missed:
        return report("wrong", "the result is right, the target is not met.", details, [], first.lines())
    if task.worth:
        details.append(("worth", task.worth()))
    return report("right", task.right, details, [], first.lines())


def _attempt(task: Task, trial: Trial, source: str, names: Sequence[str]) -> tuple[simt.Watch, str]:
    """Watch one trial; the second value says what is wrong with its result, or nothing."""
    before = {k: a.copy() for k, a in enumerate(trial.arguments) if isinstance(a, np.ndarray)}
    for k in trial.expected:
        trial.arguments[k].reshape(-1).view(np.uint8)[:] = 0xFF
    seen = simt.watch(
        source,
        trial.grid,
        trial.block,
        trial.arguments,
        trial.options,
        entry=task.entry,
        shared=trial.shared,
        name="cell.cu",
        most=MOST,
        limit=LIMIT,
    )
    for k, array in before.items():
        name = names[k] if k < len(names) else f"argument {k}"
        if k in trial.expected:
            wrong = told(name, trial.arguments[k], trial.expected[k], trial.budget)
            if wrong:
                return seen, wrong
        elif not np.array_equal(array.view(np.uint8), trial.arguments[k].view(np.uint8)):
            return seen, f"{name} was changed, and it is an input"
    return seen, ""


def _memory(seen: simt.Watch) -> list[tuple[str, str]]:
    """How each line of the source used memory in the first trial."""
    said = []
    for row in seen.lines().to_dict("records"):
        verb = {"load": "loads", "store": "stores", "atomic": "changes atomically"}[row["access"]]
        line = _local(row["line"]).removeprefix("line ")
        if row["space"] == "shared":
            conflicts = row["conflicts_per_request"]
            text = (
                f"{verb} shared memory: {f'{conflicts:.3g}' if conflicts else 'no'} bank conflicts a request"
            )
        else:
            sectors = row["sectors_per_request"]
            used = f"{row['efficiency']:.0%} of the bytes moved are used"
            if sectors == 1 and row["lanes"] > 1 and row["efficiency"] < 1:
                used = "which its lanes share"  # as few as can be, however little of it they use
            text = f"{verb} {row['buffer']}: {sectors:.3g} sector{'s' * (sectors != 1)} a request, {used}"
        said.append(
            (int(line) if line.isdigit() else 1 << 30, f"line {line}" if line.isdigit() else line, text)
        )
    return [(label, text) for _, label, text in sorted(said)]


def _local(text: str) -> str:
    """Places in the cell as "line 7", and no address that another run would not have."""
    text = re.sub(r"cell\.cu:(\d+)(:\d+)?", r"line \1", text)
    return re.sub(r"address 0x[0-9a-f]+", "an address", text)


def kernel(number: str, source: str | Path) -> None:
    """Judge a kernel (its text or its file) as an exercise's answer, and print the report."""
    print(attempt(number, source))


def attempt(number: str, source: str | Path) -> Report:
    """The report that `kernel` prints; UsageError names the exercises there are."""
    from rooflab import exercises

    known = [n for n in exercises.numbers(number.partition(".")[0]) if n in TASKS]
    if number not in TASKS:
        raise UsageError(
            f"There is no kernel to write in exercise {number!r}; there is in: {', '.join(known) or 'none'}. "
            "A kernel of your own runs by simt.watch (lesson 00)."
        )
    return judge(TASKS[number], source.read_text() if isinstance(source, Path) else source)


def register_magic() -> None:
    """Give the notebook that imports this its %%kernel."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.register_magic_function(_cell, "cell", "kernel")


def _cell(line: str, cell: str) -> None:
    kernel(line.strip(), "\n" + cell)  # so that its lines are numbered as the reader sees them
