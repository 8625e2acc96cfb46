"""The Nsight Compute reader: its command line, its parser on whole and broken exports, its errors."""

import math
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from fake_tool import fake_tool
from rooflab import profile
from rooflab.errors import GateError, MissingTool, UsageError
from rooflab.profile import ncu

DATA = Path(__file__).parents[1] / "data" / "ncu"
RAW = (DATA / "raw.csv").read_text()
READ = "read/2_vector n=268435456 cold graph"
GEMV = "gemv/4_split n=4096 k=4096 cold graph"


def test_parse_reads_launches_ranges_shapes_and_numbers():
    frame = ncu.parse(RAW)
    assert frame["range"].tolist() == [READ, GEMV, GEMV]
    assert frame["id"].tolist() == [0, 1, 2]
    assert frame["grid"].tolist() == ["528x1x1", "1024x1x1", "16x1x1"]
    assert frame["block"].tolist() == ["256x1x1", "128x1x1", "256x2x1"]
    assert frame["kernel"][2] == "reduce(const float *, __half *, int)"
    assert frame["dram_bytes"].tolist() == [1074266112, 33621504, 262144]
    assert frame["time_ns"][0] == 241888
    assert frame["dram_peak_bytes_per_s"][0] == 2048 * 2.619e9
    assert frame["load_sectors_per_request"].tolist()[:2] == [16, 4]
    assert math.isnan(frame["dram_read_bytes"][2]) and math.isnan(frame["load_sectors_per_request"][2])
    assert frame["launch__registers_per_thread"].tolist() == [32, 40, 16], "other metrics keep ncu's name"
    assert "dram__bytes.sum" not in frame and "dram_write_bytes" not in frame


def test_parse_brings_other_units_to_base_units():
    text = RAW.replace(
        '"byte","byte","byte","cycle/second","%","ns"', '"Kbyte","byte","Mbyte","Ghz","%","us"'
    )
    assert text != RAW
    frame = ncu.parse(text)
    assert frame["dram_bytes"][1] == 33621504e3
    assert frame["dram_read_bytes"][1] == 33571072e6
    assert frame["time_ns"][1] == 10112e3
    assert frame["dram_peak_bytes_per_s"][1] == 2048 * 2.618e18
    assert [ncu._factor(unit) for unit in ("cycle/nsecond", "inst", "%", "second", "nsecond", "")] == [
        *(1e9, 1, 1, 1e9, 1, 1)
    ]


def test_range_path_keeps_nesting_and_colons_and_drops_library_domains():
    cell = (
        '12  "<default domain>:token 3:none:none:none:none:none:none" '
        '"<default domain>:layer 0: q_proj:none:none:none:none:none:none" '
        '"CCCL:cub::DeviceReduce:none:none:none:none:REGISTERED:cub" '
    )
    assert ncu._range_path(cell) == "token 3 > layer 0: q_proj"
    assert ncu._range_path("") == ""


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ((DATA / "empty.csv").read_text(), UsageError, "profiled no kernel"),
        ("", UsageError, "no header line"),
        ((DATA / "denied.csv").read_text(), MissingTool, "NVreg_RestrictProfilingToAdminUsers=0"),
        ((DATA / "truncated.csv").read_text(), UsageError, "cut off"),
        (RAW[:-2], UsageError, "cut off inside a quoted value"),
        (RAW[: RAW.rindex(',"0.75"')] + "\n", UsageError, "row 5 has 23 of 24 values"),
        ("".join(RAW.splitlines(True)[:-3]), UsageError, "holds no launch"),
        ("".join(RAW.splitlines(True)[:-4]), UsageError, "row of units is missing"),
        ("==ERROR== LibraryNotLoaded\n", MissingTool, "cannot profile here: LibraryNotLoaded"),
    ],
)
def test_broken_exports_are_named_in_a_sentence(text, error, sentence):
    with pytest.raises(error, match=sentence):
        ncu.parse(text)


@pytest.mark.parametrize("cut", range(RAW.index('"ID"') + 5, len(RAW) - 1, 97))
def test_no_cut_goes_unnoticed_unless_it_falls_between_rows(cut):
    if RAW[cut - 1] == "\n" or RAW[cut] == "\n":
        pytest.skip("a cut between two rows leaves whole rows; `run` then misses the case")
    with pytest.raises(UsageError):
        ncu.parse(RAW[:cut])


def test_command_spells_cache_clock_and_expands_metrics(monkeypatch):
    monkeypatch.setattr(ncu, "require_tool", lambda name: "/opt/ncu")
    cold = ncu.command(
        ["python", "-m", "x"], ["dram_bytes", "load_sectors_per_request"], "cold", Path("o.csv")
    )
    joined = " ".join(cold)
    assert cold[0] == "/opt/ncu" and cold[-3:] == ["python", "-m", "x"]
    assert "--cache-control all" in joined and "--clock-control none" in joined
    assert "--profile-from-start off --replay-mode kernel" in joined and "--print-units base" in joined
    metrics = cold[cold.index("--metrics") + 1].split(",")
    assert metrics[0] == "dram__bytes.sum" and len(metrics) == 3
    warm = " ".join(ncu.command([], ["sm_pct"], "warm", Path("o.csv"), "application"))
    assert "--cache-control none" in warm and "--replay-mode application" in warm
    with pytest.raises(UsageError, match='the "kernel" or the "application", not \'range\''):
        ncu.command([], ["sm_pct"], "warm", Path("o.csv"), "range")
    with pytest.raises(UsageError, match='"cold" or "warm"'):
        ncu.command([], ["sm_pct"], "hot", Path("o.csv"))
    with pytest.raises(UsageError, match="no metric 'dram_byte'"):
        ncu.command([], ["dram_byte"], "cold", Path("o.csv"))
    assert ncu.ncu_names(["launch__registers_per_thread"]) == ["launch__registers_per_thread"]


def test_metric_tables_hold_together():
    assert set(ncu.BASIC) | set(ncu.STALLS) | set(ncu.NVPROF.values()) <= set(ncu.METRICS)
    assert len(ncu.STALLS) >= 10
    for name, metric in ncu.METRICS.items():
        assert len(metric.ncu) == (2 if metric.combine else 1), name
        assert metric.unit and metric.meaning and not metric.meaning.endswith("."), name


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Installs an ncu that logs `log`, prints `stderr` and exits with `code`."""

    def install(log="", stderr="", code=0, listing=""):
        (tmp_path / "log").write_text(log)
        (tmp_path / "stderr").write_text(stderr)
        (tmp_path / "listing").write_text(listing)
        fake_tool(
            tmp_path / "ncu",
            f"import sys, pathlib\nhere = pathlib.Path({str(tmp_path)!r})\n"
            "args = sys.argv\n"
            "if '--query-metrics' in args:\n    sys.exit(print((here / 'listing').read_text()))\n"
            "pathlib.Path(args[args.index('--log-file') + 1]).write_text((here / 'log').read_text())\n"
            f"sys.stderr.write((here / 'stderr').read_text())\nsys.exit({code})\n",
        )
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_run_names_the_case_of_every_launch(fake_ncu):
    fake_ncu(RAW)
    frame = ncu.run("bandwidth", [READ, GEMV], ["dram_bytes", "time_ns"])
    assert frame["case"].tolist() == [READ, GEMV, GEMV]


def test_run_refuses_a_profile_that_lacks_a_case(fake_ncu):
    fake_ncu(RAW)
    with pytest.raises(UsageError, match=r"no launch of copy/1 n=4: 1 of 2 cases"):
        ncu.run("bandwidth", [READ, "copy/1 n=4"], ["time_ns"])


@pytest.mark.parametrize(
    ("log", "stderr", "code", "error", "sentence"),
    [
        ((DATA / "denied.csv").read_text(), "", 1, MissingTool, "CAP_SYS_ADMIN"),
        (
            "==ERROR== Failed to find metric regex:^dram__byte.sum\n",
            "",
            1,
            UsageError,
            "knows no metric dram__byte",
        ),
        (
            RAW,
            "rooflab.profile.child: gate: gemv: 3 of 9 are wrong.\n",
            3,
            GateError,
            "^gemv: 3 of 9 are wrong.$",
        ),
        (
            "",
            "rooflab.profile.child: error: There is no usable GPU.\n",
            2,
            UsageError,
            "There is no usable GPU",
        ),
        ("", "Segmentation fault\n", 139, MissingTool, r"exit code 139.*Segmentation fault"),
        (
            RAW.replace("241,888", "n/a").replace("10,112", "").replace("2,304", "n/a"),
            "",
            0,
            MissingTool,
            "empty",
        ),
    ],
)
def test_run_turns_each_failure_into_its_sentence(fake_ncu, log, stderr, code, error, sentence):
    fake_ncu(log, stderr, code)
    with pytest.raises(error, match=sentence):
        ncu.run("bandwidth", [READ, GEMV], ["time_ns"])


def test_without_ncu_the_sentence_says_what_happens_instead(monkeypatch):
    monkeypatch.setattr(profile, "find_tool", lambda name: None)
    with pytest.raises(
        MissingTool, match=r"ncu \(Nsight Compute\) is not installed.*nsight-compute.*recorded"
    ):
        ncu.run("bandwidth", [READ])


def test_a_profiler_that_hangs_is_ended(tmp_path):
    told, began = tmp_path / "pid", time.monotonic()
    grandchild = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid()))"
    started = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}"
    for seconds in (1, 10, 100):  # until the grandchild has had time to start
        with pytest.raises(UsageError, match=f"stopped after {seconds} s"):
            profile.execute([sys.executable, "-c", f"{started} + '; time.sleep(900)'])"], seconds)
        if told.is_file() and told.read_text():
            break
    pid = int(told.read_text())
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # for as long as its end may take
            assert time.monotonic() - began < 600, "the grandchild outlived its profiler"
            time.sleep(0.05)


def test_unknown_lists_the_metrics_this_gpu_lacks(fake_ncu):
    fake_ncu(
        listing="Device NVIDIA H200 (GH100)\ndram__bytes  Counter  byte\nsm__throughput  Throughput  %\n"
    )
    assert ncu.unknown(["dram_bytes", "sm_pct", "time_ns"]) == ["gpu__time_duration.sum"]
    fake_ncu(listing="")
    with pytest.raises(MissingTool, match="lists no metrics"):
        ncu.unknown(["dram_bytes"])
