"""A sound recording has no findings, and each way of spoiling one is found."""

import shutil

import pytest
from rooflab.errors import MissingTool, UsageError
from rooflab.paths import DATA
from rooflab.records import seal
from rooflab.records.fingerprint import fresh
from rooflab.records.store import Case, Store
from rooflab.records.validate import MAX_FILE_BYTES, Finding, condensed, validate

CASES = [Case("gemv", "gemv", "1_strided", n=n, k=1024) for n in (512, 1024)]
CODE = "aaaaaaaaaa.bbbbbbbbbb.cccccccccc"
ROOFS = {"dram_read": 4500.0}
FACTS = {"gpu": "NVIDIA H200", "driver": "580", "commit": "0123456789ab", "other_processes": 0}


def figures(case, **more):
    base = {
        "median_us": 2.5,
        "q1_us": 2.4,
        "q3_us": 2.6,
        "samples": 30,
        "bytes": case.n * 2048,
        "identity": CODE,
    }
    return {**case.row(), **base, "roof": "dram_read", "error": 1e-4, "error_budget": 1e-4, **more}


def recording(root, rows=None, **facts):
    store = Store(root, "h200")
    run = store.begin({**FACTS, **facts})
    store.add("gemv", [figures(case) for case in CASES] if rows is None else rows, run)
    store.rederive(lambda: ROOFS)
    store.finish(run)
    return store.folder


def check(folder, **more):
    whole = {
        "studies": ["gemv"],
        "expected": lambda study: CASES,
        "changed": lambda case, recorded: None if fresh(recorded, CODE) else CODE,
        "roofs": ROOFS,
    }
    seal.seal(folder)  # what is wrong here was recorded so
    return validate(folder, **{**whole, **more})


def test_a_tensor_roof_is_one_products_rate_and_the_datasheet_the_limit(tmp_path):
    roofs = {"fp16_tensor": 760.0, **ROOFS}

    def found(tflop_s):
        root = tmp_path / str(tflop_s)
        more = {"roof": "fp16_tensor", "flops": int(tflop_s * 2.5e6), "bytes": None}
        folder = recording(root, [figures(CASES[0]), figures(CASES[1], **more)])
        Store(root, "h200").rederive(lambda: roofs)
        return [str(finding) for finding in check(folder, roofs=roofs)]

    assert found(790) == []
    assert any("more than the roof allows" in sentence for sentence in found(995))


def test_a_sound_recording_has_no_findings(tmp_path):
    folder = recording(tmp_path)
    assert check(folder) == [] and validate(folder) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": 1.01e-4}, "without a passed gate"),
        ({"error": None}, "without a passed gate"),
        ({"error_budget": None}, "without a passed gate"),
        ({"q1_us": 2.55}, "not in order"),
        ({"q3_us": None}, "not in order"),
        ({"q1_us": 0}, "not in order"),
        ({"samples": 4}, "4 samples are too few"),
        ({"samples": None}, "0 samples are too few"),
        ({"bytes": 12_000_000}, "more than the roof allows"),
        ({"bytes": None}, "no fraction of the roof dram_read"),
        ({"identity": "aaaaaaaaaa.bbbbbbbbbc.cccccccccd"}, "stale"),
        ({"identity": None}, "no identity"),
    ],
)
def test_an_unsound_row_is_found(tmp_path, change, message):
    folder = recording(tmp_path, [figures(CASES[0]), figures(CASES[1]) | change])
    errors = [finding for finding in check(folder) if finding.severity == "error"]
    assert any(message in finding.sentence for finding in errors)
    assert {finding.where for finding in errors} == {"gemv.csv, line 3"}


def test_a_hidden_file_is_no_study(tmp_path):
    """An editor's or a file system's own file beside a table, such as ._gemv.csv."""
    folder = recording(tmp_path)
    studies = Store(folder.parent, folder.name).studies()
    (folder / "._gemv.csv").write_bytes(b"\x00\x05\x16\x07")
    assert validate(folder) == [] and Store(folder.parent, folder.name).studies() == studies


def test_peers_need_no_gate_and_profilers_few_samples(tmp_path):
    peer = Case("gemv", "gemv", "cublas", kind="peer", n=512)
    profiled = Case("gemv", "gemv", "1_strided", n=512, clock="ncu")
    rows = [figures(peer, error=None, identity="torch-2.11.0"), figures(profiled, samples=1)]
    assert validate(recording(tmp_path, rows), roofs=ROOFS) == []


def test_a_row_without_times_needs_no_gate(tmp_path):
    static = Case("gemv", "gemv", "1_strided", cache="", clock="")
    assert validate(recording(tmp_path, [{**static.row(), "registers": 32, "identity": CODE}])) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("gemv.csv", ",2.5,", ",2.50,", "not as rooflab writes it"),
        ("gemv.csv", ",2.5,", ",2.45,", "gb_s is 419.43, but 427.99"),
        ("gemv.csv", ",0.09321,", ",0.0933,", "roof_fraction is 0.0933"),
        ("gemv.csv", "n=512 k", "n=500 k", "has the columns of"),
        ("gemv.csv", "gemv,gemv/1", "int4,gemv/1", "study 'int4' in the table of gemv"),
        ("gemv.csv", ",own,", ",best,", "kind is one of"),
        ("gemv.csv", ",gemv,1_strided", ',"gemv",1_strided', "order or the quoting"),
        ("gemv.csv", ",30,", ",thirty,", "samples is 'thirty'"),
        ("runs.csv", "run,device", "device,run", "another order"),
        ("runs.csv", ",h200,", ",l4,", "device 'l4' in the folder of h200"),
        ("runs.csv", "0123456789ab", "0123456789ab+", "no clean commit"),
        ("runs.csv", ",0,\n", ",2,\n", "2 other processes"),
    ],
)
def test_an_edited_file_is_found(tmp_path, file, old, new, message):
    folder = recording(tmp_path)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), newline="")
    assert any(message in finding.sentence for finding in check(folder))


def test_lines_out_of_order_or_repeated_are_found(tmp_path):
    folder = recording(tmp_path)
    head, one, two = (folder / "gemv.csv").read_text().splitlines()
    (folder / "gemv.csv").write_text("\n".join([head, two, one, one, ""]), newline="")
    sentences = [finding.sentence for finding in check(folder)]
    assert any("order or the quoting" in s for s in sentences) and any(
        "is there twice" in s for s in sentences
    )


def test_bounds_belong_to_what_they_bound(tmp_path):
    """Ten samples are enough, quartiles may be the median, 1.02 of a roof is allowed."""
    rows = [figures(CASES[0]), figures(CASES[1], samples=10, q1_us=2.5, q3_us=2.5, bytes=11_475_000)]
    folder = recording(tmp_path, rows)
    assert Store(tmp_path, "h200").read("gemv")["roof_fraction"].tolist()[1] == 1.02
    assert check(folder) == []


def test_only_tensor_cores_may_pass_their_roof(tmp_path):
    roofs = {"fp32": 40.0, **ROOFS}
    more = {"roof": "fp32", "flops": int(50 * 2.5e6), "bytes": None}
    folder = recording(tmp_path, [figures(CASES[0]), figures(CASES[1], **more)])
    Store(tmp_path, "h200").rederive(lambda: roofs)
    assert any("more than the roof allows" in str(finding) for finding in check(folder, roofs=roofs))


def test_a_skipped_row_is_never_stale(tmp_path):
    skipped = {**CASES[1].row(), "identity": "skipped: needs another GPU"}
    assert check(recording(tmp_path, [figures(CASES[0]), skipped])) == []


def test_a_time_without_a_clock_is_found(tmp_path):
    blank = Case("gemv", "gemv", "1_strided", n=512, k=1024, clock="")
    found = validate(recording(tmp_path, [figures(blank)]), roofs=ROOFS)
    assert any("without the name of its clock" in str(finding) for finding in found)


def test_runs_that_repeat_or_name_no_commit_are_found(tmp_path):
    folder = recording(tmp_path)
    runs = folder / "runs.csv"
    head, line = runs.read_text().splitlines()
    runs.write_text("\n".join([head, line, line, ""]), newline="")
    assert any("is there twice" in str(finding) for finding in check(folder))
    runs.write_text("\n".join([head, line.replace("0123456789ab", ""), ""]), newline="")
    assert any("names no clean commit" in str(finding) for finding in check(folder))


def test_published_runs_cite_and_a_folder_without_tables_is_found(tmp_path):
    folder = recording(tmp_path)
    published = shutil.copytree(folder, tmp_path / "published")
    assert any("does not cite its source" in str(finding) for finding in validate(published))
    (folder / "gemv.csv").unlink()
    assert any("no table of any study" in str(finding) for finding in check(folder, studies=None))


def test_of_many_missing_cases_three_are_named(tmp_path):
    folder = recording(tmp_path, [figures(CASES[0])])
    cases = [CASES[0], *(Case("gemv", "gemv", "1_strided", n=n, k=7) for n in (3, 4, 5, 6))]
    for count, dots in ((4, False), (5, True)):
        (found,) = check(folder, expected=lambda study, count=count: cases[:count])
        assert found.sentence.startswith(f"{count - 1} expected cases are not recorded: {cases[1].id}; ")
        assert found.sentence.endswith("; ....") == dots and found.sentence.count("n=") == 3


def test_two_gpus_in_one_folder_are_found(tmp_path):
    folder = recording(tmp_path)
    runs = folder / "runs.csv"
    head, line = runs.read_text().splitlines()
    other = line.replace("NVIDIA H200", "NVIDIA L4").replace(".1,", ".2,", 1)
    runs.write_text("\n".join([head, line, other, ""]), newline="")
    assert any("NVIDIA L4 in the recording of NVIDIA H200" in str(finding) for finding in check(folder))


def test_rows_of_unknown_runs_and_runs_without_end_are_found(tmp_path):
    folder = recording(tmp_path)
    Store(tmp_path, "h200").begin(FACTS)
    assert [(f.severity, "did not finish" in f.sentence) for f in check(folder)] == [("warning", True)]
    text = (folder / "gemv.csv").read_text()
    (folder / "gemv.csv").write_text(text.replace(".1\n", ".8\n", 1), newline="")
    assert any(".8' is not in runs.csv" in finding.sentence for finding in check(folder))
    (folder / "runs.csv").unlink()
    assert any("there are no runs" in finding.sentence for finding in check(folder))


def test_missing_surplus_and_unknown_are_found(tmp_path):
    folder = recording(tmp_path, [figures(CASES[0]), figures(Case("gemv", "gemv", "9_gone", n=1))])
    findings = check(folder, studies=["gemv", "int4"])
    by_severity = {(f.severity, f.where): f.sentence for f in findings}
    assert CASES[1].id in by_severity["error", "gemv.csv"]
    assert "gemv/9_gone" in by_severity["warning", "gemv.csv"]
    assert "no recording" in by_severity["error", "int4.csv"]
    assert "no study has this name" in str(check(folder, studies=["bandwidth"])[0])


def test_a_large_file_is_found_wherever_it_lies(tmp_path):
    folder = recording(tmp_path)
    (folder / "profiles").mkdir()
    (folder / "profiles" / "gemv_ncu.csv").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (finding,) = (each for each in check(folder) if "bytes" in each.sentence)
    assert finding.where.endswith("gemv_ncu.csv") and str(MAX_FILE_BYTES + 1) in finding.sentence


def test_a_folder_without_a_recording(tmp_path):
    with pytest.raises(UsageError, match="not a folder"):
        validate(tmp_path / "none")
    assert {finding.severity for finding in validate(tmp_path)} == {"error"}


@pytest.mark.skipif(not (DATA / "published").exists(), reason="no published figures in this tree")
def test_the_published_figures_are_sound(tmp_path):
    assert [str(finding) for finding in validate(DATA / "published")] == []


def test_findings_are_condensed_and_say_what_to_do():
    many = [Finding("error", f"gemv.csv, line {n}", f"gemv/{n} is stale: recorded as x.") for n in range(9)]
    odd = Finding("warning", "runs.csv, line 2", "run 1 names no clean commit, so it cannot be looked up.")
    lines = condensed([*many, odd])
    assert lines[:3] == [str(finding) for finding in many[:3]]
    assert lines[3:5] == ["error: gemv.csv: and 6 more.", str(odd)]
    assert len(lines) == 7 and "`rooflab record`" in lines[5] and "Commit first" in lines[6]
    assert condensed([]) == []


def test_what_takes_long_says_what_it_is_at(monkeypatch, capsys):
    from rooflab import cli
    from rooflab.lab import staleness

    monkeypatch.setattr(staleness, "_SAY_EVERY_S", -1.0)
    monkeypatch.setattr(
        "rooflab.runtime.nvrtc.compiler_version", lambda: (_ for _ in ()).throw(MissingTool("none"))
    )
    cli.main(["validate", str(DATA / "h200")])
    seen = capsys.readouterr()
    lines = seen.err.splitlines()
    assert len(lines) > 50 and all(line.startswith("comparing the code of every case") for line in lines)
    assert "comparing" not in seen.out
