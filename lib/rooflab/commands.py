"""What each command of `rooflab` does, given its parsed words: an exit code. Each imports what it needs."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from rooflab import paths
from rooflab.errors import OutOfTime, RooflabError, UsageError

MORE_TO_DO = 75  # exit code of a recording whose time was up: run it again (EX_TEMPFAIL of sysexits.h)
PARTLY = 3  # exit code where all lessons ran, and some lacked recorded cases


def _say(line: str) -> None:
    print(line, flush=True)


def doctor(_: argparse.Namespace) -> int:
    """Say what this machine can measure."""
    from rooflab import doctor, studies

    report = doctor.examine({"peers": studies.missing})
    _say(report.text())
    return report.exit_code


def run(asked: argparse.Namespace) -> int:
    """Execute lessons."""
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


def batch(asked: argparse.Namespace) -> int:
    """Execute the lessons of a file of parameter sets."""
    from rooflab.book import batch, run

    if not asked.scheduler:
        return _ending(_executed(batch.read(asked.file), asked.jobs))
    from rooflab import cluster, dispatch
    from rooflab.cluster import batches

    cluster.checked(asked.scheduler)
    if asked.jobs:
        raise UsageError(
            "-j is of this machine: on a cluster a worker runs as many lessons as it has threads."
        )
    jobs = batch.read(asked.file, elsewhere=True)
    outcomes = batches.run_all(asked.scheduler, jobs, dispatch.roots()[0], _say)
    _say("\n" + run.summary(outcomes))
    return _ending(outcomes)


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
    many = f"{len(jobs)} notebook{'s' * (len(jobs) != 1)}"
    expected = run.estimate(jobs, parallel, _say)
    about = str(expected) if expected else "how long that takes is not known"
    measured = f"measured here ({expected.counts()})" if expected else "measured here"
    _say(f"{many}, {measured if live else 'replayed'}: {about}")
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


def measure(asked: argparse.Namespace) -> int:
    """Measure or profile cases of one study."""
    from rooflab import lab as laboratory
    from rooflab import studies
    from rooflab.book import parameters
    from rooflab.hardware import device as devices
    from rooflab.lab import progress
    from rooflab.lab.announcing import announce

    study = studies.get(asked.study)
    wanted = parameters.split(asked.parameter)
    _record_into(asked.store)
    gpus = devices.count() if study.gpus > 1 else 1
    if gpus < study.gpus:
        raise UsageError(f"{study.name} measures {study.gpus} GPUs of one host, and here is {gpus}.")
    lab = laboratory.open("live", effort=asked.effort or "full", gpus=gpus)
    lab.say = progress.write
    cases = [study.case(case) for case in asked.case] or lab.cases(study.name)
    for column, value in wanted.items():
        if column not in cases[0].row():
            raise UsageError(f"a case has no {column!r}: it has {', '.join(cases[0].row())}.")
        cases = [case for case in cases if str(case.row()[column]) == value]
        if not cases:
            raise UsageError(f"no case of {study.name} has {column}={value}.")
    try:
        if asked.tool:
            announce(lab, [], [(study, cases, asked.tool, None)])
            lab.take_profile(study.name, cases, asked.tool)
            _say(f"kept in {lab.store.folder / 'profiles'}")
            return 0
        announce(lab, [(study, cases)])
        rows = lab.measure(study.name, cases)
    finally:
        lab.close()
    columns = ["case", "median_us", "q1_us", "q3_us", "samples", "gb_s", "tflop_s", "roof_fraction"]
    _say(rows[columns].to_string(index=False, na_rep=""))
    _say(f"kept in {lab.store.folder}")
    return 0


def tune(asked: argparse.Namespace) -> int:
    """Record the dispatcher's table of this GPU: the study regimes, or some of its products."""
    from rooflab import dispatch, studies
    from rooflab import lab as laboratory
    from rooflab.lab import progress
    from rooflab.lab.announcing import announce
    from rooflab.studies import regimes

    _record_into(asked.store)
    lab = laboratory.open("live", effort=asked.effort or "full")
    lab.say = progress.write
    cases = [case for case in lab.cases("regimes") if case.clock == "graph"]
    if asked.shape:
        tokens = asked.tokens or regimes.BATCHES
        cases = [c for shape in asked.shape for c in regimes.products_of(shape, tokens, lab.sized)]
    elif asked.tokens:
        cases = [case for case in cases if case.batch in asked.tokens]
    try:
        announce(lab, [(studies.get("regimes"), cases)])
        rows = lab.measure("regimes", cases)
    finally:
        lab.close()
    if rows.empty:
        raise RooflabError("no product could be measured on this GPU.")
    _say(dispatch.lines(rows).to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep=""))
    _say(f"kept in {lab.store.folder}")
    return 0


def record(asked: argparse.Namespace) -> int:
    """Measure all that lessons need."""
    from rooflab import lab as laboratory
    from rooflab import studies
    from rooflab.book import lessons
    from rooflab.lab import progress

    names: list[str] = []
    known = [*studies.names(), *studies.names(2)]
    for word in asked.lesson:
        names += [word] if word in known else [lesson.number for lesson in lessons.find([word])]
    _record_into(asked.store)
    try:
        began = time.monotonic()

        def say(line: str) -> None:
            progress.write(f"{time.monotonic() - began:5.0f} s  {line}")

        seconds, effort = 60 * (asked.minutes or math.inf), asked.effort or "full"
        if asked.scheduler:
            from rooflab.cluster import recordings

            root = Path(os.environ["ROOFLAB_STORE"])
            troubles = recordings.record(
                asked.scheduler, names, root, effort, asked.gpu, _command(), say, seconds
            )
        elif asked.gpu:
            raise UsageError("--gpu chooses among a cluster's workers: give --scheduler, or leave it out.")
        else:
            troubles = laboratory.record(names, effort, say, seconds)
    except OutOfTime as error:
        _say(f"rooflab: {error}")
        return MORE_TO_DO
    for trouble in troubles:
        _say(f"not profiled: {trouble}")
    return 0


def _record_into(store: Path | None) -> None:
    os.environ["ROOFLAB_STORE"] = str((store or paths.DATA).resolve())
    os.environ["ROOFLAB_COMMAND"] = _command()


def _command() -> str:
    """This process's command, without the address of a cluster: a recording names no machine."""
    words, left = list(sys.argv[1:]), ["rooflab"]
    while words:
        word = words.pop(0)
        if not word.startswith("--sc"):  # argparse takes the option's name cut short, too
            left.append(word)
        elif "=" not in word:
            words[:1] = []
    return shlex.join(left)


def trace(asked: argparse.Namespace) -> int:
    """Record what needs no GPU."""
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


def gate(asked: argparse.Namespace) -> int:
    """Gate rungs on the CPU."""
    from rooflab.verify import gating

    wrong = 0
    for rung, passed, says in gating.verdicts(asked.operator, asked.rung):
        _say(f"{rung}: {says}")
        wrong += passed is False
    return 1 if wrong else 0


def refresh(asked: argparse.Namespace) -> int:
    """Replay lessons and rewrite notebooks."""
    from rooflab.book import check

    return 0 if check.refresh(_say, asked.lesson) else 1


def validate(asked: argparse.Namespace) -> int:
    """Judge a recording."""
    from rooflab.book import check
    from rooflab.records.validate import condensed

    found = check.findings(str(asked.folder), lambda line: print(line, file=sys.stderr, flush=True))
    for sentence in map(str, found) if asked.all else condensed(found):
        _say(sentence)
    errors = sum(finding.severity == "error" for finding in found)
    _say(f"{asked.folder}: {f'{errors} error{chr(115) * (errors > 1)}' if errors else 'sound'}")
    return 1 if errors else 0


def report(asked: argparse.Namespace) -> int:
    """Run the series and build the site; the last line printed is the path of the page to open."""
    from rooflab.book import home, lessons, pages, parameters, readme, run, site
    from rooflab.hardware import device
    from rooflab.records.store import Store
    from rooflab.view import narrow

    mode = asked.mode or ("replay" if asked.device else None)
    if run.is_live(mode) and asked.mode != "live" and find_spec("cupy") is None:
        _say("a GPU is here but CuPy is not, so recordings are replayed: pip install -r requirements-gpu.txt")
        mode = "replay"
    live = run.is_live(mode)
    effort = asked.effort or ("quick" if live else None)
    if live and not asked.effort:
        _say("quick effort; `rooflab report --effort full` measures every case")
    given = parameters.merge({}, {"mode": mode, "device": asked.device, "effort": effort})
    with narrow.wanted():
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
    way = home.the_way(store, [lessons.opening(path) for path in done])
    table, pictures = readme.markdown(store), home.pictures(store)
    page = site.build(done, table, around=pages.make(done), way=way, pictures=pictures)
    _say(f"\n{page}")
    return _ending(outcomes)


def check(_: argparse.Namespace) -> int:
    """Compare what is committed with a replay."""
    from rooflab.book import check

    found = check.check(_say)
    for sentence in found:
        _say(sentence)
    _say("all is as a replay gives it" if not found else f"{len(found)} problems")
    return 1 if found else 0


def compare(asked: argparse.Namespace) -> int:
    """Put recordings beside each other."""
    from rooflab.book.parameters import store_of
    from rooflab.view import comparison, plot

    stores = [store_of(device) for device in asked.device]
    text, figure = comparison.tables(stores)
    _say(text)
    picture = paths.BUILD / "compare" / f"{'_'.join(store.device for store in stores)}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(plot.png(figure))
    _say(f"\n{picture}")
    return 0


def generate(asked: argparse.Namespace) -> int:
    """Generate text from a checkpoint."""
    from rooflab.engine import checkpoints
    from rooflab.hardware import device

    on = "cpu" if asked.cpu or not device.has_gpu() else "gpu"
    capacity = 16 * ((len(asked.tokens) + asked.count) // 16 + 1)
    one = checkpoints.engine_of(asked.checkpoint, asked.format, asked.head_format, capacity=capacity, on=on)
    one.sample(asked.temperature, asked.seed)
    one.prefill(asked.tokens)
    _say(" ".join(str(token) for token in one.generate(asked.count)))
    return 0
