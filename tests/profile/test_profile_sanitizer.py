"""compute-sanitizer's reports, as an H200 printed them, and the watcher beside it."""

import pytest
from fake_tool import fake_tool
from rooflab import profile
from rooflab.errors import MissingTool, UsageError
from rooflab.ops import faults
from rooflab.profile import sanitizer
from rooflab.studies import faults as study

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ write of size 4 bytes
=========     at fixed_tile+0x4b0
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x4400 is out of bounds
=========
========= Invalid __shared__ write of size 4 bytes
=========     at fixed_tile+0x4b0
=========     by thread (1,0,0) in block (0,0,0)
=========
rooflab.profile.sanitizer: [false]
========= Target application returned an error
========= ERROR SUMMARY: 8 errors
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at half_barrier+0x320
=========     by thread (96,0,0) in block (0,0,0)
=========
rooflab.profile.sanitizer: [true, true]
========= ERROR SUMMARY: 160 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
rooflab.profile.sanitizer: [false, false]
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (MEMCHECK, (8, "Invalid __shared__ write of size 4 bytes", False, None)),
        (SYNCCHECK, (160, "Barrier error detected. Divergent thread(s) in block", True, True)),
        (RACECHECK, (0, "", False, False)),
        ("========= ERROR SUMMARY: 0 errors\n", (0, "", None, None)),
    ],
)
def test_reports_are_counted_and_the_first_is_quoted(text, found):
    assert tuple(sanitizer.parse(text)) == found


def test_an_output_that_was_cut_off_is_no_verdict():
    with pytest.raises(UsageError, match="without a summary: .*Invalid __shared__"):
        sanitizer.parse("========= COMPUTE-SANITIZER\n========= Invalid __shared__ write of size 4 bytes\n")


def test_run_starts_the_sanitizer_around_the_child(tmp_path, monkeypatch):
    fake_tool(
        tmp_path / "compute-sanitizer",
        f"import sys\nprint({SYNCCHECK!r})\nprint(sys.argv[1:], file=sys.stderr)\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizer.run("synccheck", "half_barrier", 63, 300).reports == 160
    with pytest.raises(UsageError, match="no tool 'guess'"):
        sanitizer.run("guess", "half_barrier", 63, 300)


def test_a_kernel_that_hangs_is_ended_and_gives_no_result(tmp_path, monkeypatch):
    fake_tool(tmp_path / "compute-sanitizer", "import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = sanitizer.run("synccheck", "half_barrier", 63, 300, timeout_s=0.5)
    assert tuple(found) == (0, "it did not end", None, None)


def test_without_the_sanitizer_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(profile.shutil, "which", lambda name: None)
    monkeypatch.setattr(profile.glob, "glob", lambda pattern: [])
    with pytest.raises(MissingTool, match="Compute Sanitizer"):
        sanitizer.run("memcheck", "fixed_tile", 5, 4100)


def test_a_result_is_right_only_if_all_of_it_is():
    a, x = sanitizer.operands(7, 30)
    y = (x @ a).astype("float32")
    assert sanitizer.is_right(y, a, x)
    for wrong in (y + 1, y * float("nan"), y * 0):
        assert not sanitizer.is_right(wrong, a, x)


def test_every_fault_meets_every_instrument():
    asked = {(case.impl, case.options.removeprefix("tool=")) for case in study.cases()}
    assert asked == {(name, tool) for name in faults.FAULTS for tool in study.INSTRUMENTS}
    for case in study.cases():
        assert study.Faults().case(case.id) == case
        assert study.Faults().identity(case, None).endswith(".-")


def test_the_watcher_s_verdicts_need_no_gpu():
    try:
        sanitizer.watched("early_exit", 63, 300)
    except MissingTool as missing:
        pytest.skip(str(missing))
    chosen = [case for case in study.cases() if "watch" in case.options]
    found = study.verdicts(chosen).set_index("case")
    assert found["says"].tolist() == ["divergent barrier", "divergent barrier", "out of bounds", ""]
    assert found["second_right"].tolist() == [False] * 4
