"""The command line: `rooflab COMMAND`, or `python -m rooflab COMMAND`; what commands do is in `commands`."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path

from rooflab import __version__, commands
from rooflab.errors import RooflabError, UsageError

# System errors that say a place cannot be written: one sentence each. Any other is a bug and keeps its stack.
_PLACE = {
    errno.ENOSPC: "the disk is full: free some of it, then give the same command again",
    errno.EDQUOT: "your share of the disk is used up: free some of it, then give the same command again",
    errno.EROFS: "the place to write to is read-only: work in a copy of the course that you may write to",
    errno.EACCES: "you may not read or write this file: work in a copy of the course that is yours",
    errno.EPERM: "you may not read or write this file: work in a copy of the course that is yours",
    errno.ENAMETOOLONG: "this name is longer than the file system takes",
}
TRACED = "accesses watched on the CPU, the compiler's reports"
LESSON_HELP = "a lesson's number, name or file: 1, 01, bandwidth; all of them if none is named"


def parser() -> argparse.ArgumentParser:
    """The command line; README quotes it and tests read it."""
    top = argparse.ArgumentParser("rooflab", description="A measured course in LLM inference kernels.")
    top.add_argument("--version", action="version", version=f"rooflab {__version__}")
    every = top.add_subparsers(metavar="COMMAND", required=True)

    def command(name, what):  # type: ignore[no-untyped-def]
        made = every.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        made.set_defaults(does=getattr(commands, name))
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

    def repeated(made, *names, **more):  # type: ignore[no-untyped-def]
        made.add_argument(*names, action="append", default=[], **more)

    def scheduler(made):  # type: ignore[no-untyped-def]
        what = "on a Dask cluster: tcp://host:8786, or local:N workers of this machine"
        made.add_argument("--scheduler", metavar="ADDRESS", help=what)

    def store(made, what="write DIR/<device>/ instead of data/<device>/"):  # type: ignore[no-untyped-def]
        made.add_argument("--store", type=Path, metavar="DIR", help=what)

    one = command("generate", "generate text with lesson 08's engine, from a checkpoint")
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
    command("doctor", "say what this machine can measure, and what to install for the rest")
    one = command("run", "execute lessons into build/notebooks/")
    where(one, lessons=True)
    repeated(one, "-p", "--parameter", metavar="NAME=VALUE", help="set a parameter")
    jobs(one)
    one.add_argument(
        "--resume", action="store_true", help="leave out what ran well before, on this commit and machine"
    )
    store(one, "live, measure into DIR/<device>/, and keep there how lessons ran (default build/data)")
    one = command("batch", "execute many parameter sets, as examples/batch.yml shows, into build/batch/")
    one.add_argument("file", type=Path, metavar="FILE.yml")
    jobs(one)
    scheduler(one)
    one = command("measure", "measure the cases of one study on this GPU into data/<device>/")
    one.add_argument("study", metavar="STUDY")
    repeated(one, "-p", "--parameter", metavar="COLUMN=VALUE", help="only cases with this value")
    repeated(one, "--case", metavar="ID", help="this case, recorded before or not")
    one.add_argument("--tool", metavar="NAME", help="profile them by ncu, nsys or another instrument instead")
    effort(one)
    store(one)
    one = command("tune", "record which kernel multiplies fastest on this GPU, for the dispatcher")
    repeated(one, "--shape", type=_shape, metavar="NxK", help="weights of n rows by k")
    repeated(one, "--tokens", type=_count, metavar="B", help="a number of tokens")
    effort(one)
    store(one)
    one = command("record", "measure and profile all that lessons need on this GPU into data/<device>/")
    one.add_argument("lesson", nargs="*", metavar="LESSON", help=LESSON_HELP + "; or a study")
    what = f"stop after so long with exit code {commands.MORE_TO_DO}; run the same command again to continue"
    one.add_argument("--for", dest="minutes", type=_minutes, metavar="MINUTES", help=what)
    effort(one)
    store(one)
    scheduler(one)
    what = "with --scheduler: record this kind of GPU, a resource of workers, in place of all"
    repeated(one, "--gpu", metavar="NAME", help=what)
    one = command("trace", f"record in data/cpu/ what needs no GPU: {TRACED}")
    one.add_argument("study", nargs="*", metavar="STUDY")
    one = command("gate", "gate an operator's rungs on the CPU; exit code 1 if one is wrong")
    one.add_argument("operator", metavar="OPERATOR")
    one.add_argument("rung", nargs="?", metavar="RUNG")
    one = command("refresh", "replay lessons and rewrite notebooks/, README and docs/")
    one.add_argument("lesson", nargs="*", metavar="LESSON", help=LESSON_HELP)
    one = command("validate", "say whether a recording is complete, gated, fresh and plausible")
    one.add_argument("folder", metavar="DIR")
    one.add_argument("--all", action="store_true", help="every finding, not some of each file")
    where(command("report", "run the series and build the HTML site; the last line is the page to open"))
    command("check", "compare the committed notebooks, README and recordings with a replay")
    one = command("compare", "put recordings beside each other: tables and a plot")
    one.add_argument("device", nargs="+", metavar="DEVICE", help="the others are held to the first")
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
