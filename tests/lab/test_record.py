"""Records keep what was acknowledged, write one canonical text, and refuse what does not belong together."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab.errors import DeviceMismatch, UsageError
from rooflab.hardware import device
from rooflab.records import csv_table
from rooflab.records import store as stores
from rooflab.records.case import RUN_SCHEMA, SCHEMA
from rooflab.records.store import COLUMNS, RUN_COLUMNS, Case, Store, derive, options, parse_options

H200 = {"gpu": "NVIDIA H200", "driver": "580.159.04"}
CODE = "aaaaaaaaaa.bbbbbbbbbb.cccccccccc"


def row(n=4096, **more):
    case = Case(
        "gemv", "gemv", "2_coalesced", format="fp16", n=n, k=4096, batch=1, options="rows=4 block=128"
    )
    figures = {"median_us": 9.8765432, "q1_us": 9.8, "q3_us": 10.0, "samples": 30, "bytes": 2 * n * 4096}
    figures |= {"flops": 2 * n * 4096, "roof": "dram_read", "error": 1e-4, "error_budget": 2e-4}
    return {**case.row(), **figures, "identity": CODE, "registers": 32, **more}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, "h200")


@pytest.fixture
def run(store):
    return store.begin(H200)


def test_case_id_says_what_is_not_default():
    case = Case("bandwidth", "read", "4_grid", n=1 << 30, options="blocks=528")
    assert case.id == "read/4_grid n=1073741824 blocks=528 cold graph"
    peer = Case("x", "attn", "torch.sdpa", kind="peer", seq=9, causal=False, cache="", clock="")
    assert peer.id == "attn/torch.sdpa peer seq=9 causal=false"


def test_case_keeps_options_sorted_and_numbers_plain():
    case = Case("x", "read", "1", n=np.int64(8), options="unroll=4 blocks=2")
    assert case.options == "blocks=2 unroll=4" and type(case.n) is int
    assert case == Case("x", "read", "1", n=8, options=options(blocks=2, unroll=4))


def test_every_field_of_a_case_shows_in_its_id():
    plain = Case("x", "op", "1")
    changes = dict(operator="oq", impl="2", kind="peer", format="f", model="m", weights="w", causal=True)
    changes |= dict.fromkeys(("n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window"), 1)
    changes |= dict(options="a=1", cache="warm", clock="wall", state="burst")
    assert set(changes) == set(vars(plain)) - {"study"}
    ids = {Case(**{**vars(plain), name: value}).id for name, value in changes.items()}
    assert len(ids) == len(changes) and plain.id not in ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"study": "Gemv"}, "study's name"),
        ({"study": "runs"}, "study's name"),
        ({"operator": "a/b"}, "operator is one word"),
        ({"impl": "two words"}, "impl is one word"),
        ({"impl": ""}, "needs the names"),
        ({"model": "n=3"}, "model is one word"),
        ({"n": 1.5}, "n is a whole number"),
        ({"n": True}, "n is a whole number"),
        ({"n": -1}, "cannot be -1"),
        ({"kind": "best"}, "one of own, baseline, peer"),
        ({"clock": "best"}, "one of graph"),
        ({"options": "blocks"}, "name=value"),
        ({"options": "a=1 a=2"}, "distinct"),
    ],
)
def test_a_malformed_case_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        Case(**{"study": "x", "operator": "read", "impl": "1", **change})


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers() | st.booleans() | st.just("f16")
    )
)
def test_options_survive_the_round_trip(values):
    assert parse_options(options(**values)) == values


def test_options_refuse_what_would_not_come_back():
    for bad in (0.5, "a b", "a=b", ""):
        with pytest.raises(UsageError, match="Option x="):
            options(x=bad)
    assert parse_options("a=007 b=-0 c=7") == {"a": "007", "b": "-0", "c": 7}


def test_numbers_in_names_sort_as_numbers():
    names = ["read n=16384", "read n=4096", "read n=4096 blocks=8", "copy n=99999"]
    expected = ["copy n=99999", "read n=4096", "read n=4096 blocks=8", "read n=16384"]
    assert sorted(names, key=csv_table.natural_key) == expected


def test_what_was_read_is_written_as_the_same_bytes(store, run):
    rows = [row(n) for n in (16384, 4096, 1024)]
    rows += [{**Case("gemv", "attention", "1", seq=7, causal=True).row(), "identity": "torch-2.11.0"}]
    rows[0] |= {"tok_s": 123456.789, "predicted_us": 1e-7}
    store.add("gemv", rows, run)
    path = store.folder / "gemv.csv"
    before = path.read_bytes()
    df = store.read("gemv")
    again = [r._asdict() for r in df.itertuples(index=False)]
    path.unlink()
    store.add("gemv", random.Random(1).sample(again, 4), run)
    assert path.read_bytes() == before
    assert before.count(b"\n") == 5 and b"\r" not in before
    assert list(df["n"][1:]) == [1024, 4096, 16384] and df["causal"].tolist()[0] is True


def test_columns_come_back_with_their_types(store, run):
    store.add("gemv", [row()], run)
    for df in (store.read("gemv"), store.read("int4")):
        assert tuple(df.columns) == COLUMNS
        assert (df.dtypes["n"], df.dtypes["causal"], df.dtypes["median_us"]) == (
            "Int64",
            "boolean",
            "float64",
        )
        assert df.dtypes["impl"] == "str"
    one = store.read("gemv").iloc[0]
    assert one["n"] == 4096 and one["seq"] is pd.NA and one["model"] == "" and one["median_us"] == 9.87654
    assert Case.from_row(one).id == one["case"] and Case.from_row(one).seq is None
    assert store.read("int4").empty


def test_the_same_case_replaces_and_others_stay(store, run):
    store.add("gemv", [row(1024), row(2048)], run)
    second = store.begin(H200)
    store.add("gemv", [row(2048, median_us=5.0), row(512)], second)
    df = store.read("gemv").set_index("n")
    assert list(df.index) == [512, 1024, 2048]
    assert df.loc[2048, "median_us"] == 5.0 and list(df["run"]) == [second, run, second]


def test_derived_columns_follow_from_the_row(store, run):
    store.add("gemv", [row(4096, gb_s=1e9)], run)
    df = store.read("gemv")
    assert df["gb_s"][0] == float(f"{2 * 4096 * 4096 / 9.87654 / 1e3:.6g}")
    assert df["tflop_s"][0] == float(f"{2 * 4096 * 4096 / 9.87654 / 1e6:.6g}")
    assert np.isnan(df["roof_fraction"][0])
    store.rederive(lambda: {"dram_read": 4500.0})
    assert store.read("gemv")["roof_fraction"][0] == float(f"{df['gb_s'][0] / 4500:.4g}")
    pd.testing.assert_frame_equal(derive(df, {"dram_read": 4500.0}), store.read("gemv"))


def test_figures_follow_from_the_median_that_the_table_holds(store, run):
    """A median of 1.0000049 is written as 1: what is derived from it agrees with a replay of the table."""
    store.add("gemv", [row(bytes=999_995_000, flops=999_995_000, median_us=1.0000049)], run)
    store.rederive(lambda: {"dram_read": 1_000_000.0})
    live = derive(
        pd.DataFrame([row(bytes=999_995_000, flops=999_995_000, median_us=1.0000049)]),
        {"dram_read": 1_000_000.0},
    )
    for df in (store.read("gemv"), live):
        assert (df["gb_s"][0], df["tflop_s"][0], df["roof_fraction"][0]) == (999_995, 999.995, 1.0)


def test_a_roof_in_tflops_is_compared_with_tflops():
    df = pd.DataFrame(
        {"median_us": [100.0, 100.0, 100.0, np.nan], "bytes": [10**8] * 4, "flops": [10**10] * 4}
    )
    df["roof"] = ["fp16_tensor", "l2_read", "unknown", "l2_read"]
    out = derive(df, {"fp16_tensor": 400.0, "l2_read": 2000.0})
    assert (
        out["roof_fraction"].tolist()[:2] == [0.25, 0.5]
        and out["roof_fraction"].isna().tolist()[2:] == [True] * 2
    )
    assert "gb_s" not in df


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 1}, "no column 'speed'"),
        ({"case": "gemv/other"}, "is not case"),
        ({"study": "int4"}, "is not case"),
        ({"bytes": 1.5}, "bytes is a whole number"),
        ({"error": float("inf")}, "infinite"),
        ({"median_us": "fast"}, "median_us is a number"),
        ({"identity": "a\nb"}, "one line"),
    ],
)
def test_a_malformed_row_is_refused_and_nothing_is_written(store, run, change, message):
    with pytest.raises(UsageError, match=message):
        store.add("gemv", [row(1024), row() | change], run)
    assert store.read("gemv").empty


def test_rows_need_a_begun_run_and_distinct_cases(store, run):
    with pytest.raises(UsageError, match="begin"):
        store.add("gemv", [row()], "2020-01-01.1")
    with pytest.raises(UsageError, match="twice"):
        store.add("gemv", [row(), row()], run)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-30], r"gemv.csv, line 3: \d+ cells where the header has"),
        (lambda text: text[:-1], "gemv.csv, line 3: the file ends in the middle"),
        (lambda text: text.replace("study,", "", 1), "gemv.csv, line 1: the header lacks study"),
        (lambda text: text.replace("n,k", "k,n", 1), "gemv.csv, line 1: .*another order"),
        (lambda text: text.replace(",run\n", ",run,extra\n", 1), "gemv.csv, line 1: .*has also extra"),
        (lambda text: text.replace("gemv,gemv/2", '"gemv,gemv/2', 1), "gemv.csv, line"),
        (
            lambda text: text.replace("9.87654", "9.87 us", 1),
            "gemv.csv, line 2: median_us is '9.87 us', not a number",
        ),
        (
            lambda text: text.replace(",32,", ",3x,", 1),
            "gemv.csv, line 2: registers is '3x', not a whole number",
        ),
        (
            lambda text: text.replace("gemv,gemv/2", "int4,gemv/2", 1),
            "gemv.csv, line 2: a row of study 'int4'",
        ),
        (lambda text: text[: text.rindex("\n", 0, -1)] + "\n" + text.splitlines()[1] + "\n", "occurs twice"),
        (
            lambda text: text.replace(".1\n", ".7\n", 1),
            "gemv.csv, line 2: its run '2026-11-21.7' is not in .*runs.csv",
        ),
        (lambda text: "", "gemv.csv, line 1: the header lacks study"),
    ],
)
def test_a_damaged_table_names_file_and_line(store, damage, message):
    run = store.begin({**H200, "started": "2026-11-21T08:00:00Z"})
    store.add("gemv", [row(1024), row(2048)], run)
    path = store.folder / "gemv.csv"
    path.write_text(damage(path.read_text()), newline="")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=message) as caught:
        store.read("gemv")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    if (
        "median_us" not in message and "registers" not in message
    ):  # a damaged cell stays, to be seen by a reader
        with pytest.raises(UsageError):
            store.add("gemv", [row(512)], run)
        assert path.read_bytes() == before


def test_a_table_that_is_not_text_is_named(store, run):
    (store.folder / "gemv.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="gemv.csv is not UTF-8"):
        store.read("gemv")


def test_runs_are_numbered_by_day_and_completed(store):
    first = store.begin(
        {**H200, "started": "2026-11-21T08:00:00Z", "command": "rooflab record, twice", "sms": 132}
    )
    second = store.begin({**H200, "started": "2026-11-21T09:00:00Z"})
    other = store.begin({**H200, "started": "2026-11-22T09:00:00Z"})
    assert (first, second, other) == ("2026-11-21.1", "2026-11-21.2", "2026-11-22.1")
    store.finish(first, temperature_after_c=61, finished="2026-11-21T08:30:00Z")
    runs = store.runs()
    assert tuple(runs.columns) == RUN_COLUMNS and list(runs["run"]) == [first, second, other]
    assert runs["command"][0] == "rooflab record, twice" and runs["device"].eq("h200").all()
    assert runs["temperature_after_c"][0] == 61 and runs["finished"].tolist() == [
        "2026-11-21T08:30:00Z",
        "",
        "",
    ]
    assert runs["sms"].tolist()[0] == 132 and runs["sms"].isna().tolist() == [False, True, True]
    with pytest.raises(UsageError, match="not in"):
        store.finish("2026-11-21.9")
    with pytest.raises(UsageError, match="no column 'speed'"):
        store.finish(first, speed=1)


def test_two_gpus_never_share_a_folder(store, run):
    with pytest.raises(DeviceMismatch, match="NVIDIA H200.*NVIDIA L4"):
        store.begin({"gpu": "NVIDIA L4"})
    with pytest.raises(DeviceMismatch, match="device l4.*h200"):
        store.begin({**H200, "device": "l4"})
    with pytest.raises(UsageError, match="name of its GPU"):
        store.begin({"driver": "580"})
    assert len(store.runs()) == 1


@pytest.mark.parametrize("name", ["../h200", "", "a b", "published", ".hidden"])
def test_a_device_name_is_a_plain_name(tmp_path, name):
    with pytest.raises(UsageError, match="device's name"):
        Store(tmp_path, name)


def test_fresh_means_same_gpu_driver_and_code(store, run):
    case = row()["case"]
    store.add("gemv", [row()], run)
    assert store.is_fresh("gemv", case, CODE, H200)
    assert not store.is_fresh("gemv", case, "aaaaaaaaaa.dddddddddd.eeeeeeeeee", H200)
    assert not store.is_fresh("gemv", case, CODE, {**H200, "driver": "590.1"})
    assert not store.is_fresh("gemv", case, CODE, {**H200, "gpu": "NVIDIA L4"})
    assert not store.is_fresh("gemv", case + "x", CODE, H200)
    assert not store.is_fresh("int4", case, CODE, H200)


def test_another_process_is_seen(store, run, tmp_path):
    assert store.read("gemv").empty
    Store(tmp_path, "h200").add("gemv", [row()], run)
    assert len(store.read("gemv")) == 1
    Store(tmp_path, "h200").add("gemv", [row(median_us=1.0)], run)
    assert store.read("gemv")["median_us"].tolist() == [1.0]


def published(folder, rows, runs):
    folder.mkdir()
    for path, found, schema in (("paper.csv", rows, SCHEMA), ("runs.csv", runs, RUN_SCHEMA)):
        texts = [
            {name: csv_table.to_text(name, how, r.get(name)) for name, how in schema.items()} for r in found
        ]
        (folder / path).write_text(csv_table.table_text(texts, schema), newline="")


def test_published_figures_are_read_as_devices_and_never_written(tmp_path):
    runs = [
        {"run": f"paper.{d}", "device": d, "gpu": d.upper(), "note": "paper, table 1"}
        for d in ("ada", "hopper")
    ]
    rows = [row(run="paper.ada"), row(run="paper.hopper", median_us=3.0), row(1024, run="paper.ada")]
    published(tmp_path / "published", rows, runs)
    assert stores.published_devices(tmp_path) == ["ada", "hopper"]
    ada = Store(tmp_path, "ada")
    assert list(ada.read("gemv")["n"]) == [1024, 4096] and ada.studies() == ["gemv"]
    assert Store(tmp_path, "hopper").read("gemv")["median_us"].tolist() == [3.0]
    assert ada.runs()["gpu"].tolist() == ["ADA"] and not ada.is_fresh(
        "gemv", row()["case"], CODE, {"gpu": "ADA"}
    )
    for write in (lambda: ada.begin({"gpu": "ADA"}), lambda: ada.add("gemv", [row()], "paper.ada")):
        with pytest.raises(UsageError, match="published"):
            write()
    assert not (tmp_path / "ada").exists()


WRITER = """
import sys
from pathlib import Path
from rooflab.records.store import Case, Store
store = Store(Path(sys.argv[1]), "h200")
facts = {"gpu": "NVIDIA H200", "driver": "580"}
run = store.begin(facts)
for n in range(1, 2001):
    case = Case("gemv", "gemv", "1", n=n)
    if not store.is_fresh("gemv", case.id, "torch-1", facts):
        store.add("gemv", [{**case.row(), "median_us": n, "identity": "torch-1"}], run)
        print(n, flush=True)
"""


def test_a_writer_killed_at_any_moment_loses_nothing_and_repeats_nothing(tmp_path):
    chance = random.Random(20)
    environment = {**os.environ, "PYTHONPATH": str(Path(stores.__file__).parents[2])}
    acknowledged: list[int] = []
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, env=environment
        )
        assert child.stdout is not None
        acknowledged.append(int(child.stdout.readline()))  # it is writing by now
        time.sleep(chance.uniform(0, 0.05))
        child.kill()
        acknowledged += map(int, child.stdout.read().split())
        assert child.wait() != 0
        store = Store(tmp_path, "h200")
        present = store.read("gemv")["n"].tolist()
        assert present == list(range(1, len(present) + 1))
        # The last add may have reached the disk before its acknowledgement was printed.
        assert set(acknowledged) <= set(present)
        assert len(store.runs()) == _ + 1
    assert len(acknowledged) == len(set(acknowledged)) > 12
    assert not store.read("gemv").duplicated("case").any()
    last = store.begin({"gpu": "NVIDIA H200"})  # leftovers of killed writers are in nobody's way
    store.add("gemv", [row()], last)
    assert not list(store.folder.glob(".*.tmp"))


def test_a_kill_between_writing_and_renaming_keeps_the_old_table(store, run, monkeypatch):
    store.add("gemv", [row(1024)], run)
    before = (store.folder / "gemv.csv").read_bytes()

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(csv_table.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.add("gemv", [row(2048)], run)
    monkeypatch.undo()
    assert (store.folder / "gemv.csv").read_bytes() == before
    store.add("gemv", [row(4096)], run)
    assert list(store.read("gemv")["n"]) == [1024, 4096]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only on Linux: /dev/full")
def test_a_full_disk_keeps_the_old_table(store, run):
    store.add("gemv", [row(1024)], run)
    before = {path: path.read_bytes() for path in store.folder.glob("*.csv")}
    for path in before:
        path.with_name(f".{path.name}.tmp").symlink_to("/dev/full")
    for write in (
        lambda: store.add("gemv", [row(2048)], run),
        lambda: store.begin(H200),
        lambda: store.finish(run),
        lambda: store.rederive(lambda: {"dram_read": 4500.0}),
    ):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert before == {path: path.read_bytes() for path in store.folder.glob("*.csv")}


def test_the_text_is_on_the_disk_before_it_gets_its_name(store, run, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(csv_table.os, "fsync", lambda fd: (calls.append("fsync"), real_sync(fd))[1])
    monkeypatch.setattr(
        csv_table.os, "replace", lambda a, b: (calls.append("replace"), real_replace(a, b))[1]
    )
    store.add("gemv", [row()], run)
    assert calls[:2] == ["fsync", "replace"]


def test_writers_take_turns(tmp_path, store, run):
    script = (
        "import sys; from pathlib import Path; from rooflab.records.store import Case, Store\n"
        "store = Store(Path(sys.argv[1]), 'h200')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(20):\n"
        "    case = Case('gemv', 'gemv', sys.argv[3], n=n)\n"
        "    store.add('gemv', [{**case.row(), 'median_us': 1}], sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(stores.__file__).parents[2])}
    command = [sys.executable, "-c", script, str(tmp_path), run]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen([*command, name], env=environment, stdin=pipe, stdout=pipe, text=True)
        for name in "abc"
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:  # they start together, so that without a lock they would undo each other's rows
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(store.read("gemv")) == 60


def test_run_facts_fit_the_table_and_name_no_place(store, monkeypatch):
    gpu = {
        "gpu": "NVIDIA H200",
        "compute_capability": (9, 0),
        "sms": 132,
        "l2_bytes": 62914560,
        "driver": "580",
    }
    gpu |= {"memory_bytes": 1, "cuda_driver": "13.0", "sm_clock_mhz": 1980, "memory_clock_mhz": 3201}
    gpu |= {"temperature_c": 31, "power_w": 75.5, "other_processes": [{"pid": 1}], "memory_free_bytes": 7}
    monkeypatch.setattr(device, "probe", lambda: gpu)
    monkeypatch.setattr(
        device, "conditions", lambda: {"sm_clock_mhz": 1900, "temperature_c": 60, "power_w": 500.0}
    )
    facts = stores.run_facts(
        "rooflab record 00_environment --device /home/ann/l4 -p OUT=C:\\Users\\ann\\x", "full"
    )
    assert facts["command"] == "rooflab record 00_environment --device l4 -p OUT=x"
    store.finish(store.begin(facts), **stores.closing_facts())
    one = store.runs().iloc[0]
    assert (one["compute_capability"], one["cuda"], one["other_processes"]) == ("9.0", "13.0", 1)
    assert (one["sm_clock_before_mhz"], one["sm_clock_after_mhz"]) == (1980, 1900)
    assert (one["temperature_before_c"], one["power_after_w"], one["memory_clock_mhz"]) == (31, 500, 3201)
    text = (store.folder / "runs.csv").read_text()
    assert os.uname().nodename not in text and str(Path.home()) not in text


def test_run_facts_without_a_gpu_leave_its_facts_out(monkeypatch):
    monkeypatch.setattr(device, "probe", lambda: None)
    monkeypatch.setattr(device, "conditions", lambda: None)
    facts = stores.run_facts("rooflab run", "quick")
    assert set(facts) <= set(RUN_COLUMNS) and facts["effort"] == "quick" and facts["python"]
    assert not {"gpu", "driver", "cuda", "temperature_before_c"} & set(facts) and stores.closing_facts() == {}


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_says_whether_sources_differ_from_it(tmp_path, monkeypatch):
    monkeypatch.delenv("ROOFLAB_COMMIT", raising=False)
    assert stores.commit(tmp_path) is None
    monkeypatch.setenv("ROOFLAB_COMMIT", "0123456789ab")
    assert stores.commit(tmp_path) == "0123456789ab"
    git(tmp_path, "init")
    for name in ("data/h200.csv", "notebooks/a.ipynb", "lib/a.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    clean = stores.commit(tmp_path)
    assert clean is not None and len(clean) == 12 and clean != "0123456789ab"
    (tmp_path / "data/h200.csv").write_text("two")
    (tmp_path / "notebooks/a.ipynb").write_text("two")
    (tmp_path / "untracked").write_text("two")
    assert stores.commit(tmp_path) == clean
    (tmp_path / "lib/a.py").write_text("two")
    assert stores.commit(tmp_path) == clean + "+"
    monkeypatch.delenv("ROOFLAB_COMMIT")
    assert stores.commit(tmp_path / "lib") is None  # inside another repository: its commit is not ours
