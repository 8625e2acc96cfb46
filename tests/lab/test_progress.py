"""Progress: cases done, the case at work and the time left, on a terminal, in a log and in a notebook."""

import sys
from io import StringIO

import pytest
from rooflab.lab import progress
from rooflab.lab.progress import Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(StringIO):
    def isatty(self):
        return True


def measured(shown, clock, cases, pace):
    """Take cases of ten seconds by the estimate at another pace; the texts shown at the begin of each."""
    found = []
    with shown.over(dict.fromkeys(cases, 10.0)):
        for case in cases:
            shown.at(case)
            found.append(str(shown))
            clock.now += 10.0 * pace
            shown.done([case])
    return found


@pytest.mark.parametrize("pace", [0.5, 1.0, 3.0])
def test_the_time_left_follows_the_pace(pace):
    clock, said = Clock(), []
    cases = [f"read/{n}" for n in range(40)]
    texts = measured(Progress(said.append, clock=clock), clock, cases, pace)
    assert texts[0] == "0 of 40 cases, 7 min left: read/0"  # as estimated
    left = 10 * 10 * pace  # of the last ten cases
    assert texts[30].startswith("30 of 40 cases, ")
    words = texts[30].split()
    seconds = float(words[4]) * {"s": 1, "min": 60}[words[5]]
    assert left / 1.5 < seconds < left * 1.5
    assert said == texts, "a line a case in a log"


def test_lines_are_a_second_apart():
    clock, said = Clock(), []
    measured(Progress(said.append, clock=clock), clock, [str(n) for n in range(30)], 0.01)
    assert len(said) == 3


def test_what_is_recorded_already_is_not_counted_and_parts_belong_to_the_whole():
    clock, said = Clock(), []
    shown = Progress(said.append, clock=clock)
    with shown.over(dict.fromkeys("abcd", 5.0)):
        shown.drop("ab")
        with shown.over({"a": 5.0, "c": 5.0, "e": 5.0}):
            shown.at("c")
            clock.now += 5
            shown.done("c")
        shown.at("d")
        assert str(shown).startswith("1 of 3 cases, ")
    assert shown.total == 0, "the next list begins anew"


def test_a_terminal_shows_one_line_and_lines_above_it(monkeypatch):
    screen, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv("ROOFLAB_PROGRESS", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert progress.place() == "terminal"
    shown = Progress(lambda line: progress.write(line, screen), progress.place(), clock)
    with shown.over({"a": 60.0, "b": 60.0}):
        shown.at("read/1_scalar")
        shown.done("a")
        progress.write("skipped b", screen)
        shown.at("read/2_vector")
    drawn = screen.getvalue()
    assert "0/2 cases |" in drawn and "1/2 cases |" in drawn and "read/2_vector" in drawn
    assert drawn.count("\n") == 1 and "skipped b\n" in drawn, "one line that moves"
    assert not drawn.split("\r")[-2].strip(), "it is wiped at the end"


def test_a_notebook_shows_a_widget(monkeypatch):
    pytest.importorskip("ipykernel")
    tqdm_notebook = pytest.importorskip("tqdm.notebook")
    made, shown_in = [], []
    real = tqdm_notebook.tqdm.status_printer

    def printer(*arguments, **options):
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(tqdm_notebook.tqdm, "status_printer", staticmethod(printer))
    monkeypatch.setattr(tqdm_notebook, "display", shown_in.append)
    monkeypatch.delenv("ROOFLAB_PROGRESS", raising=False)
    assert progress.place() == "notebook"
    shown = Progress(lambda line: None, progress.place(), Clock())
    with shown.over({"a": 60.0, "b": 60.0}):
        shown.at("read/1_scalar")
        shown.done("a")
        shown.at("read/2_vector")
        [box] = made
        left, bar, right = box.children
        assert bar.max == 2 and bar.value == 1
        assert "1/2\u2007cases" in left.value and "read/2_vector" in right.value
    assert len(shown_in) == 1


def test_a_runner_reads_lines(monkeypatch, tmp_path):
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("ROOFLAB_PROGRESS", str(tmp_path / "p"))
    assert progress.place() == "lines"
