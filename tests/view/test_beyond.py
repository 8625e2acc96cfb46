"""A page goes on where its recording lacks cases: it says what is missing and how to measure it."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import replaying
from rooflab import cli, commands
from rooflab.book import lessons, run
from rooflab.errors import LACKING
from rooflab.records.nearest import nearest

MISSES = """\
from rooflab import lab
from rooflab.records.case import Case
here = lab.open(MODE, DEVICE)
rows, table = "old", {}
print(2 * N)"""


def test_the_nearest_case_is_of_the_operator_and_implementation_before_the_size() -> None:
    held = ["gemv/a n=4096 cold graph", "gemv/b n=3000 cold graph", "gemv/a n=64 cold graph", "read/a n=3000"]
    assert nearest("gemv/a n=3000 cold graph", held) == "gemv/a n=4096 cold graph"
    assert nearest("gemv/a n=3000 warm graph", held[1:3]) == "gemv/a n=64 cold graph"
    assert nearest("copy/a n=3000", held) is None and nearest("copy/a n=3000", []) is None


def test_a_cell_says_what_is_missing_and_the_rest_of_the_page_runs(
    lesson: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lesson("00_whole", "print(N)")
    path = lesson(
        "03_first",
        MISSES,
        "before = 1\ncase = Case('gemv', 'gemv', '2_coalesced', format='fp32', n=N, k=N)"
        "\nrows = here.measure('gemv', [case])\nprint('never')\ntable['n'] = after = 1",
        "print(rows)",
        "print(table)",
        "print('before', before)",
    )
    jobs = run.plan(
        lessons.find([], path.parent), {"MODE": "replay", "N": 3001}, 1, path.parent.parent / "out"
    )
    whole, part = outcomes = run.run(jobs, 2, lambda line: None)
    assert (whole.ending, part.ending) == ("ok", "partly") and part.done and not part.ok
    first, *others = part.message.splitlines()
    assert "h200/gemv lacks `gemv/2_coalesced format=fp32 n=3001 k=3001 cold graph`; the nearest" in first
    assert "`gemv/2_coalesced format=fp32 n=4096 k=4096 cold graph`" in first
    assert "`rooflab run 03_first --mode live -p N=3001 -p SCALE=1.0 -p SIZES=1,2 -p FLAG=False`" in first
    assert [line.split("`")[1] for line in others] == ["rows", "table"]  # not what stood under them before
    assert [line.split()[1] for line in run.summary(outcomes).splitlines()] == ["result", "ok", "partly"]
    cells = [cell for cell in nbformat.read(part.job.output, as_version=4).cells if cell.cell_type == "code"]
    printed = [output.get("text", "") for cell in cells for output in cell.outputs]
    assert printed == ["6002\n", "", "", "", "before 1\n"]
    monkeypatch.setattr("rooflab.commands._executed", lambda *_: outcomes)
    assert cli.main(["run", "03", "--mode", "replay"]) == commands.PARTLY == 3


def test_a_name_that_no_cell_would_have_bound_is_still_an_error(lesson: Callable[..., Path]) -> None:
    path = lesson(
        "03_first", MISSES, "here.measure('gemv', [Case('gemv', 'gemv', 'none', n=N)])", "print(typo)"
    )
    [outcome] = run.run(
        run.plan(lessons.find([], path.parent), {"MODE": "replay"}, 1, path.parent.parent / "out"),
        1,
        lambda line: None,
    )
    assert outcome.ending == "failed" and "NameError: name 'typo' is not defined" in outcome.message


@pytest.mark.parametrize(
    ("stem", "given"), [("03_coalescing", {"N": 3000}), ("01_bandwidth", {"N": 1_000_000})]
)
def test_a_lesson_turned_beyond_its_recording(stem: str, given: dict[str, int]) -> None:
    [usual] = replaying.replay("h200", [stem])
    [turned] = replaying.replay("h200", [stem], **given)
    assert usual.whole and turned.error is None and turned.lacking
    assert len(turned.shown) == len(usual.shown)
    first = next(i for i, each in enumerate(turned.shown) if each.lacking)
    assert any(each.outputs and not each.lacking for each in turned.shown[first:])  # the page goes on
    assert LACKING not in str(usual.shown)
