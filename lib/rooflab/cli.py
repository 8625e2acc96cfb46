"""The commands: `rooflab COMMAND`, or `python -m rooflab COMMAND`. Each imports what it needs when it
runs."""

from __future__ import annotations

import argparse
import errno
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rooflab import __version__, paths
from rooflab.errors import OutOfTime, RooflabError, UsageError

if TYPE_CHECKING:
    import pandas as pd

# System errors that say a place cannot be written: one sentence each. Any other is a bug and keeps its stack.
_PLACE = {
    errno.ENOSPC: "the disk is full: free some of it, then give the same command again",
    errno.EDQUOT: "your share of the disk is used up: free some of it, then give the same command again",
    errno.EROFS: "the place to write to is read-only: work in a copy of the course that you may write to",
    errno.EACCES: "you may not read or write this file: work in a copy of the course that is yours",
    errno.EPERM: "you may not read or write this file: work in a copy of the course that is yours",
    errno.ENAMETOOLONG: "this name is longer than the file system takes",
}
MORE_TO_DO = 75  # exit code of a recording whose time was up: run it again (EX_TEMPFAIL of sysexits.h)
PARTLY = 3  # exit code where all lessons ran, and some lacked recorded cases
LESSON_HELP = "a lesson's number, name or file: 1, 01, bandwidth; all of them if none is named"


def _say(line: str) -> None:
    print(line, flush=True)


def _doctor(_: argparse.Namespace) -> int:
    from rooflab import doctor, studies

    report = doctor.examine({"peers": studies.missing})
    _say(report.text())
    return report.exit_code


def _run(asked: argparse.Namespace) -> int:
    from rooflab.book import lessons, parameters, run

    given = parameters.merge(
        parameters.split(asked.parameter),
        {"mode": asked.mode, "device": asked.device, "effort": asked.effort},
    )
    if asked.store:
        _record_into(asked.store)
    jobs = run.plan(lessons.find(asked.lesson), given, asked.limit)
    if asked.resume:
        jobs = run.unfinished(jobs)
        if not jobs:
            _say("every lesson has run already, on these versions and this commit")
            return 0
    return _ending(_executed(jobs, asked.jobs))


def _batch(asked: argparse.Namespace) -> int:
    from rooflab.book import batch

    return _ending(_executed(batch.read(asked.file), asked.jobs))


def _ending(outcomes) -> int:  # type: ignore[no-untyped-def]
    """The exit code of lessons that ran: the worst of them."""
    if not all(outcome.done for outcome in outcomes):
        return 1
    return 0 if all(outcome.ok for outcome in outcomes) else PARTLY


def _executed(jobs, parallel):  # type: ignore[no-untyped-def]  # the types would import the runner at start
    """Estimate, run, summarise; one at a time where any job measures, so that nothing runs beside it."""
    from rooflab.book import run

    live = any(run.is_live(job.values.get("MODE")) for job in jobs)
    if live and parallel not in (None, 1):
        _refuse_to_measure(jobs)
    for device, effort in sorted(run.other_efforts(jobs)):
        _say(f"{device} was recorded with {effort} effort: that is what its replay shows")
    parallel = parallel or (1 if live else min(2, os.cpu_count() or 1))
    minutes = run.estimate_minutes(jobs, parallel)
    about = f"about {minutes:.0f} min" if minutes >= 1 else "less than a minute"
    many = f"{len(jobs)} notebook{'s' * (len(jobs) != 1)}"
    _say(f"{many}, {'measured here' if live else 'replayed'}: {about}")
    outcomes = run.run(jobs, parallel, _say)
    run.remember(outcomes)
    _say("\n" + run.summary(outcomes))
    return outcomes


def _refuse_to_measure(jobs) -> None:  # type: ignore[no-untyped-def]
    from rooflab import lab as laboratory
    from rooflab import studies

    lacking = 0
    for effort in {job.values.get("EFFORT") or "full" for job in jobs}:
        lab = laboratory.open("live", effort=effort)
        for number in {job.lesson.number for job in jobs}:
            for study in studies.of_lesson(number):
                if not study.everywhere:
                    lacking += len(lab.stale(study, lab.cases(study.name)))
    if lacking:
        raise UsageError(
            f"{lacking} cases are still to be measured, which lessons do one at a time, so that times are "
            "right: leave -j away, or measure them first with `rooflab record`."
        )


def _measure(asked: argparse.Namespace) -> int:
    from rooflab import lab as laboratory
    from rooflab import studies
    from rooflab.book import parameters

    study = studies.get(asked.study)
    wanted = parameters.split(asked.parameter)
    _record_into(asked.store)
    lab = laboratory.open("live", effort=asked.effort or "full")
    lab.say = _say
    cases = [study.case(case) for case in asked.case] or lab.cases(study.name)
    for column, value in wanted.items():
        if column not in cases[0].row():
            raise UsageError(f"a case has no {column!r}: it has {', '.join(cases[0].row())}.")
        cases = [case for case in cases if str(case.row()[column]) == value]
        if not cases:
            raise UsageError(f"no case of {study.name} has {column}={value}.")
    try:
        if asked.tool:
            lab.take_profile(study.name, cases, asked.tool)
            _say(f"kept in {lab.store.folder / 'profiles'}")
            return 0
        rows = lab.measure(study.name, cases)
    finally:
        lab.close()
    columns = ["case", "median_us", "q1_us", "q3_us", "samples", "gb_s", "tflop_s", "roof_fraction"]
    _say(rows[columns].to_string(index=False, na_rep=""))
    _say(f"kept in {lab.store.folder}")
    return 0


def _tune(asked: argparse.Namespace) -> int:
    """Record the dispatcher's table of this GPU: the study regimes, or some of its products."""
    from rooflab import dispatch
    from rooflab import lab as laboratory
    from rooflab.studies import regimes

    _record_into(asked.store)
    lab = laboratory.open("live", effort=asked.effort or "full")
    lab.say = _say
    cases = [case for case in lab.cases("regimes") if case.clock == "graph"]
    if asked.shape:
        tokens = asked.tokens or regimes.BATCHES
        cases = [c for shape in asked.shape for c in regimes.products_of(shape, tokens, lab.sized)]
    elif asked.tokens:
        cases = [case for case in cases if case.batch in asked.tokens]
    try:
        rows = lab.measure("regimes", cases)
    finally:
        lab.close()
    if rows.empty:
        raise RooflabError("no product could be measured on this GPU.")
    _say(dispatch.lines(rows).to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep=""))
    _say(f"kept in {lab.store.folder}")
    return 0


def _record(asked: argparse.Namespace) -> int:
    from rooflab import lab as laboratory
    from rooflab import studies
    from rooflab.book import lessons

    names: list[str] = []
    for word in asked.lesson:
        names += [word] if word in studies.names() else [lesson.number for lesson in lessons.find([word])]
    _record_into(asked.store)
    try:
        began = time.monotonic()

        def say(line: str) -> None:
            _say(f"{time.monotonic() - began:5.0f} s  {line}")

        troubles = laboratory.record(names, asked.effort or "full", say, 60 * (asked.minutes or math.inf))
    except OutOfTime as error:
        _say(f"rooflab: {error}")
        return MORE_TO_DO
    for trouble in troubles:
        _say(f"not profiled: {trouble}")
    return 0


def _record_into(store: Path | None) -> None:
    os.environ["ROOFLAB_STORE"] = str((store or paths.DATA).resolve())
    os.environ["ROOFLAB_COMMAND"] = shlex.join(["rooflab", *sys.argv[1:]])


def _trace(asked: argparse.Namespace) -> int:
    from rooflab.studies import drawn, static, traces
    from rooflab.verify import mutations, suite

    others = {
        "static": static.write,
        "drawn": drawn.write,
        "suite": lambda: [suite.write()],
        "mutations": lambda: [mutations.write()],
    }
    known = [*traces.TRACED, *others]
    for study in asked.study:
        if study not in known:
            raise UsageError(f"there is nothing to trace of {study!r}; there is of {', '.join(known)}.")
    for study in asked.study or known:
        for path in others[study]() if study in others else [traces.write(study)]:
            _say(str(path))
    return 0


def _gate(asked: argparse.Namespace) -> int:
    from rooflab.verify import gating

    wrong = 0
    for rung, passed, says in gating.verdicts(asked.operator, asked.rung):
        _say(f"{rung}: {says}")
        wrong += passed is False
    return 1 if wrong else 0


def _refresh(asked: argparse.Namespace) -> int:
    from rooflab.book import check

    return 0 if check.refresh(_say, asked.lesson) else 1


def _validate(asked: argparse.Namespace) -> int:
    from rooflab.book import check
    from rooflab.records.validate import condensed

    found = check.findings(str(asked.folder), lambda line: print(line, file=sys.stderr, flush=True))
    for sentence in map(str, found) if asked.all else condensed(found):
        _say(sentence)
    errors = sum(finding.severity == "error" for finding in found)
    _say(f"{asked.folder}: {f'{errors} error{chr(115) * (errors > 1)}' if errors else 'sound'}")
    return 1 if errors else 0


def _report(asked: argparse.Namespace) -> int:
    """Run the series and build the site; the last line printed is the path of the page to open."""
    from rooflab.book import lessons, pages, parameters, readme, run, site
    from rooflab.hardware import device
    from rooflab.records.store import Store

    mode = asked.mode or ("replay" if asked.device else None)
    if run.is_live(mode) and asked.mode != "live" and find_spec("cupy") is None:
        _say("a GPU is here but CuPy is not, so recordings are replayed: pip install -r requirements-gpu.txt")
        mode = "replay"
    live = run.is_live(mode)
    effort = asked.effort or ("quick" if live else None)
    if live and not asked.effort:
        _say("quick effort; `rooflab report --effort full` measures every case")
    given = parameters.merge({}, {"mode": mode, "device": asked.device, "effort": effort})
    outcomes = _executed(run.plan(lessons.find([]), given, asked.limit), None)
    done = [outcome.job.output for outcome in outcomes if outcome.done]
    if not done:
        raise RooflabError("no lesson ran, so there is nothing to report.")
    store = parameters.store_of(asked.device) if asked.device else Store(paths.DATA, "h200")
    if live:
        facts = device.probe() or {}
        store = Store(
            Path(os.environ.get("ROOFLAB_STORE") or paths.BUILD / "data"), device.slug(facts["gpu"])
        )
    way = pages.pictures(store) + pages.the_way(store, [lessons.opening(path) for path in done])
    page = site.build(done, readme.markdown(store), around=pages.make(done), way=way)
    _say(f"\n{page}")
    return _ending(outcomes)


def _check(_: argparse.Namespace) -> int:
    from rooflab.book import check

    found = check.check(_say)
    for sentence in found:
        _say(sentence)
    _say("all is as a replay gives it" if not found else f"{len(found)} problems")
    return 1 if found else 0


def _compare(asked: argparse.Namespace) -> int:
    from rooflab.book.parameters import store_of
    from rooflab.records.compare import best, compare
    from rooflab.view import plot

    first, second = store_of(asked.first), store_of(asked.second)
    table, bests = compare(first, second), best(first, second)
    if table.empty and bests.empty:
        raise RooflabError(f"{first.device} and {second.device} share no case and no operator with a rate.")
    if len(bests):
        _say(f"Best of each operator: rate on {first.device} (a) and {second.device} (b), shapes as shown")
        _say(bests.to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep=""))
    if table.empty:
        _say(f"\n{first.device} and {second.device} share no timed case; the shapes above may differ.")
        shown, name, title = bests, "operator", f"Rate on {second.device} over rate on {first.device}"
    else:
        _say("\nThe same cases on both")
        _same_cases(table, first.device, second.device)
        shown, name, title = table.head(30), "case", f"Time on {second.device} over time on {first.device}"
    figure, axes = plot.figure(title=title, height=1.2 + 0.25 * len(shown))
    plot.bars(axes, [str(label) for label in shown[name]], shown["ratio"], "x")
    picture = paths.BUILD / "compare" / f"{first.device}_{second.device}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(plot.png(figure))
    _say(f"\n{picture}")
    return 0


def _generate(asked: argparse.Namespace) -> int:
    from rooflab.engine import checkpoints
    from rooflab.hardware import device

    on = "cpu" if asked.cpu or not device.has_gpu() else "gpu"
    capacity = 16 * ((len(asked.tokens) + asked.count) // 16 + 1)
    one = checkpoints.engine_of(asked.checkpoint, asked.format, asked.head_format, capacity=capacity, on=on)
    one.sample(asked.temperature, asked.seed)
    one.prefill(asked.tokens)
    _say(" ".join(str(token) for token in one.generate(asked.count)))
    return 0


def _same_cases(table: pd.DataFrame, first: str, second: str) -> None:
    columns = ["study", "case", "median_us_a", "median_us_b", "ratio", "roof_fraction_a", "roof_fraction_b"]
    names = {column: column.replace("_a", f" {first}").replace("_b", f" {second}") for column in columns}
    for column in ("study", "case", "ratio"):
        names[column] = column
    _say(
        table[columns]
        .rename(columns=names)
        .to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep="")
    )


def parser() -> argparse.ArgumentParser:
    """The command line; README quotes it and tests read it."""
    top = argparse.ArgumentParser("rooflab", description="A measured course in LLM inference kernels.")
    top.add_argument("--version", action="version", version=f"rooflab {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(name, does, what):  # type: ignore[no-untyped-def]
        made = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        made.set_defaults(does=does)
        return made

    def where(made, lessons=False):  # type: ignore[no-untyped-def]
        if lessons:
            made.add_argument("lesson", nargs="*", metavar="LESSON", help=LESSON_HELP)
        made.add_argument(
            "--mode", choices=("auto", "live", "replay"), help="measure here, or replay a recording"
        )
        made.add_argument(
            "--device", metavar="NAME-or-path", help="the recording to replay: h200, or a folder"
        )
        effort(made)
        made.add_argument("--limit", type=_minutes, metavar="MINUTES", help="the most a lesson may take")

    def effort(made):  # type: ignore[no-untyped-def]
        made.add_argument("--effort", choices=("quick", "full"), help="a subset of the cases, or all")

    def jobs(made):  # type: ignore[no-untyped-def]
        made.add_argument(
            "-j", "--jobs", type=_count, metavar="N", help="lessons at a time, where none has to measure"
        )

    def store(made, what="write DIR/<device>/ instead of data/<device>/"):  # type: ignore[no-untyped-def]
        made.add_argument("--store", type=Path, metavar="DIR", help=what)

    one = command("generate", _generate, "generate text with lesson 08's engine, from a checkpoint")
    one.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a transformers folder, or a .gguf")
    one.add_argument(
        "tokens", nargs="+", type=int, metavar="TOKEN", help="the prompt, as the model's numbers"
    )
    one.add_argument("--count", type=_count, default=16, metavar="N", help="tokens to generate (16)")
    one.add_argument("--format", default="fp16", help="of weights: fp16, q8_0 or int4_g128")
    one.add_argument("--head-format", default="fp16", help="of embeddings and head: fp16 or q8_0")
    one.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--cpu", action="store_true", help="run the kernels on the CPU: slow, for tiny models")
    command("doctor", _doctor, "say what this machine can measure, and what to install for the rest")
    one = command("run", _run, "execute lessons into build/notebooks/")
    where(one, lessons=True)
    one.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="set a parameter"
    )
    jobs(one)
    one.add_argument(
        "--resume", action="store_true", help="leave out what ran well before, on this commit and machine"
    )
    store(one, "live, measure into DIR/<device>/, and keep there how lessons ran (default build/data)")
    one = command(
        "batch", _batch, "execute many parameter sets, as examples/batch.yml shows, into build/batch/"
    )
    one.add_argument("file", type=Path, metavar="FILE.yml")
    jobs(one)
    one = command("measure", _measure, "measure the cases of one study on this GPU into data/<device>/")
    one.add_argument("study", metavar="STUDY")
    one.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only cases with this value",
    )
    one.add_argument(
        "--case", action="append", default=[], metavar="ID", help="this case, recorded before or not"
    )
    one.add_argument("--tool", metavar="NAME", help="profile them by ncu, nsys or another instrument instead")
    effort(one)
    store(one)
    one = command("tune", _tune, "record which kernel multiplies fastest on this GPU, for the dispatcher")
    one.add_argument(
        "--shape", action="append", default=[], type=_shape, metavar="NxK", help="weights of n rows by k"
    )
    one.add_argument(
        "--tokens", action="append", default=[], type=_count, metavar="B", help="a number of tokens"
    )
    effort(one)
    store(one)
    one = command(
        "record", _record, "measure and profile all that lessons need on this GPU into data/<device>/"
    )
    one.add_argument("lesson", nargs="*", metavar="LESSON", help=LESSON_HELP + "; or a study")
    one.add_argument(
        "--for",
        dest="minutes",
        type=_minutes,
        metavar="MINUTES",
        help=f"stop after so long with exit code {MORE_TO_DO}; run the same command again to continue",
    )
    effort(one)
    store(one)
    one = command(
        "trace",
        _trace,
        "record in data/cpu/ what needs no GPU: accesses watched on the CPU, the compiler's reports",
    )
    one.add_argument("study", nargs="*", metavar="STUDY")
    one = command("gate", _gate, "gate an operator's rungs on the CPU; exit code 1 if one is wrong")
    one.add_argument("operator", metavar="OPERATOR")
    one.add_argument("rung", nargs="?", metavar="RUNG")
    one = command("refresh", _refresh, "replay lessons and rewrite notebooks/ and README's table")
    one.add_argument("lesson", nargs="*", metavar="LESSON", help=LESSON_HELP)
    one = command("validate", _validate, "say whether a recording is complete, gated, fresh and plausible")
    one.add_argument("folder", metavar="DIR")
    one.add_argument("--all", action="store_true", help="every finding, not some of each file")
    where(
        command(
            "report", _report, "run the series and build the HTML site; the last line is the page to open"
        )
    )
    command("check", _check, "compare the committed notebooks, README and recordings with a replay")
    one = command("compare", _compare, "put two recordings beside each other: a table and a plot")
    one.add_argument("first", metavar="DEVICE")
    one.add_argument("second", metavar="DEVICE")
    return top


def _minutes(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("minutes are more than 0")
    return value


def _shape(text: str) -> tuple[int, int]:
    n, by, k = text.partition("x")
    if not (n.isdigit() and by and k.isdigit()):
        raise argparse.ArgumentTypeError("a shape is rows x columns, such as 8960x1536")
    return _count(n), _count(k)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0, 1 for a finding or failure, 2 for a wrong call, 3 where
    recordings lacked cases of some lessons' cells, 75 for more to do, 130 after Ctrl-C."""
    asked = parser().parse_args(arguments)
    try:
        return asked.does(asked)
    except UsageError as error:
        print(f"rooflab: {error}", file=sys.stderr)
        return 2
    except RooflabError as error:
        print(f"rooflab: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in _PLACE:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"rooflab: {_PLACE[error.errno]}{where}.", file=sys.stderr)
        return 1
    except MemoryError:
        print("rooflab: this machine has too little memory for that.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rooflab: interrupted; every kernel has ended.", file=sys.stderr)
        return 130
