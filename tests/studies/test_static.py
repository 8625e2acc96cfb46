"""Recorded registers, spills, SASS facts and identities are what compiling gives, and go stale rightly."""

import pandas as pd
import pytest
from rooflab import lab, studies
from rooflab.errors import MissingRecording
from rooflab.ops import stream
from rooflab.records.fingerprint import fresh
from rooflab.runtime import nvrtc
from rooflab.studies import static
from shares import ALL, thinned

STATIC = studies.get("static")
CASES = STATIC.recordable(STATIC.cases(), static.read()["case"])
HOPPER = [case for case in CASES if static._arch(case) == "90"]


@pytest.fixture(scope="module")
def recorded():
    return lab.open("replay", "h200")


def test_reports_are_of_the_code_as_it_is(recorded):
    rows = recorded.measure("static", CASES)
    assert len(rows) == len(CASES) > 200
    held = zip(CASES, rows["identity"], strict=True)
    assert not [case.id for case, identity in held if STATIC.changed(case, identity, static._arch(case))]


@pytest.mark.ci
def test_registers_spills_and_shared_memory_are_as_recorded(recorded):
    """Of each operator's last rung on Hopper and on one other architecture, each in its turn; the others are
    recorded of the same sources by the same compiler, and ROOFLAB_ALL_KERNELS=1 compiles all (some 900, two
    minutes).
    """
    last = {(case.operator, static._arch(case)): case for case in CASES}
    operators = [*dict.fromkeys(operator for operator, _ in last)]
    others = sorted({arch for _, arch in last if not arch.startswith("90")})
    turn = {operator: others[k % len(others)] for k, operator in enumerate(operators)}
    share = [c for (operator, arch), c in last.items() if arch.startswith("90") or arch == turn[operator]]
    chosen = CASES if ALL else share
    assert len(chosen) > 2 * len(operators) - 5 and {*others} < {static._arch(case) for case in chosen}
    for case, (_, row) in zip(chosen, recorded.measure("static", chosen).iterrows(), strict=True):
        rung, macros, _ = STATIC.rung(case)
        report = rung.cubin(static._arch(case), macros).resources[rung.entry]
        assert (row["registers"], row["spill_bytes"], row["shared_bytes"]) == (
            report.registers,
            report.spill_bytes,
            report.shared_bytes,
        ), case.id


@pytest.fixture(scope="module")
def facts(recorded):
    """The recorded SASS facts of every kernel for sm_90."""
    return recorded.profile("static", HOPPER, "sass").drop(columns="run")


@pytest.mark.ci
def test_sass_facts_are_of_the_code_that_is_compiled_now(facts):
    """All by the digest of their machine code; the disassembler, half a second a kernel, sees each operator's
    last rung."""
    kept = pd.read_csv(static.DATA / "cpu" / "static_sass.csv").set_index("case")["identity"]
    assert [case.id for case in HOPPER] == facts["case"].tolist()
    assert not [case.id for case in HOPPER if STATIC.changed(case, kept[case.id], "90")]
    last = thinned(list({case.operator: case for case in HOPPER}.values()))
    assert len(last) > 12
    now = static.sass_facts(last).set_index("case")
    pd.testing.assert_frame_equal(facts.set_index("case").loc[now.index], now, check_dtype=False)


def test_sass_shows_what_the_rungs_claim(facts):
    facts = facts.set_index("case")
    assert facts.loc["read/1_scalar arch=sm_90", "loads_16b"] == 0
    assert facts.loc["read/2_vector arch=sm_90", "loads_16b"] == 1
    assert facts.loc["read/3_in_flight arch=sm_90", "loads_16b"] >= 8
    assert facts.loc["copy/3_in_flight arch=sm_90", ["loads_16b", "stores_16b"]].tolist() == [4, 4]
    assert facts.loc["cheat/writes_nothing arch=sm_90", ["loads_4b", "stores_4b"]].tolist() == [0, 0]
    assert (pd.read_csv(static.DATA / "cpu" / "static_sass.csv")["local_memory"] == 0).all()  # sm_75, 89, 90


@pytest.mark.parametrize("study", [*studies.names()])
def test_every_recorded_row_is_fresh(recorded, study):
    """Sources, launch rules and machine code are those that were measured."""
    rows = static.read() if study == "static" else recorded.store.read(study)
    own = rows[rows["kind"] == "own"]
    assert len(own) > 20 or study in ("faults", "attribution", "unseen")
    for _, row in own.iterrows():
        case = studies.get(study).case(row["case"])
        assert studies.get(study).changed(case, row["identity"], "90") is None, row["case"]


def edited(monkeypatch, tmp_path, change):
    """The read ladder's second rung, its file changed by `change`; its identity for sm_90."""
    rung = stream.LADDERS["read"][1]
    case = studies.get("bandwidth").case("read/2_vector n=1024 cold graph")
    before = studies.get("bandwidth").identity(case, "90")
    copy = tmp_path / "read" / "2_vector.cu"
    copy.parent.mkdir(parents=True)
    copy.write_text(change(rung.path.read_text()))
    monkeypatch.setattr("rooflab.ops.KERNELS", tmp_path)
    return before, studies.get("bandwidth").identity(case, "90")


def test_a_comments_edit_stays_fresh(monkeypatch, tmp_path):
    before, after = edited(monkeypatch, tmp_path, lambda text: "// another remark\n" + text)
    assert before == after


def test_unchanged_machine_code_stays_fresh(monkeypatch, tmp_path):
    before, after = edited(
        monkeypatch, tmp_path, lambda text: text.replace("uint4 v", "uint4 four").replace("v.", "four.")
    )
    assert before.split(".")[1] != after.split(".")[1] and before.split(".")[2] == after.split(".")[2]
    assert fresh(before, after)


def test_changed_code_is_stale(monkeypatch, tmp_path):
    before, after = edited(monkeypatch, tmp_path, lambda text: text.replace("v.x + v.y", "v.x - v.y"))
    assert not fresh(before, after)


def test_a_changed_launch_rule_is_stale(monkeypatch):
    rung = stream.LADDERS["read"][1]
    before = rung.identity(stream.launch_rule(rung), {}, "90")
    assert not fresh(before, rung.identity(stream.launch_rule(rung) + "\nblocks + 1", {}, "90"))
    assert not fresh(before, rung.identity(stream.launch_rule(rung), {"THREADS": 512}, "90"))


def test_without_a_compiler_the_source_decides(monkeypatch):
    rung = stream.LADDERS["read"][1]
    rule = stream.launch_rule(rung)
    assert fresh(rung.identity(rule, {}, "90"), rung.identity(rule, {}, None))


def test_the_pinned_compiler_is_the_recorded_one(recorded):
    assert str(recorded.run["nvrtc"]).startswith(nvrtc.compiler_version().removeprefix("nvrtc "))


def test_the_reports_are_the_same_in_every_mode_and_name_their_command(recorded, monkeypatch, tmp_path):
    rows = static.read()
    assert list(rows["case"]) == [case.id for case in CASES]
    assert set(rows["run"]) == {""} and recorded.measure("static", STATIC.cases()[:3])["case"].tolist() == [
        case.id for case in STATIC.cases()[:3]
    ]
    monkeypatch.setattr(static, "DATA", tmp_path)
    with pytest.raises(MissingRecording, match="`rooflab trace static` makes them"):
        recorded.measure("static", STATIC.cases()[:1])
