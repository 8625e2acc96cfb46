"""Planted faults: how they are made, that a sample is noticed, and what the recorded kill table says."""

import needs
import numpy as np
import pandas as pd
import pytest
from rooflab import ops
from rooflab.bench import gate
from rooflab.errors import MissingRecording
from rooflab.ops import gemv
from rooflab.verify import mutants, mutations, suite
from rooflab.verify.mutants import MUTATIONS

needs.compiler()

RECORDED = mutations.read()
BY_NAME = {rule.name: rule for rule in MUTATIONS}


def of(operator, rung, mutation, text=""):
    """A rung's mutant by a rule, on a line that holds `text`."""
    found = ops.rung_of(ops.module_of(operator).LADDERS[operator], rung, rung)
    for mutant in mutants.of(found):
        if mutant.mutation.name == mutation and text in mutant.code:
            return mutant
    raise AssertionError(f"{operator}/{rung} has no mutant {mutation} {text}")


# --- how they are made --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("barrier", "x = 1; __syncthreads(); y = 2;", "x = 1;  y = 2;"),
        ("guard", "if (i < n) y[i] = 0;", "if (i <= n) y[i] = 0;"),
        ("leave", "if (row >= n) return;", "if (row > n) return;"),
        ("tail", "for (int i = 0; i < n; ++i) x;", "for (int i = 0; i < (n) - 1; ++i) x;"),
        ("overwrite", "sum += a;", "sum = a;"),
        ("forget", "sum = fmaf(a, b, sum);", "sum = fmaf(a, b, 0.0f);"),
        ("scale", "f(scales[i / 16]);", "f(scales[(i / 16) ^ 1]);"),
        ("clamp", "r = min(first + r, n - 1);", "r = (first + r);"),
        ("sign", "static_cast<signed char>(b)", "static_cast<unsigned char>(b)"),
        ("zero", "float(int(c) - 8) * x", "float(int(c) - 7) * x"),
    ],
)
def test_a_rule_changes_one_place(rule, before, after):
    (found,) = mutants.sites(before, BY_NAME[rule], [(0, len(before))])
    assert before[: found.start()] + found.expand(BY_NAME[rule].becomes) + before[found.end() :] == after


def test_comments_and_directives_are_left_alone():
    source = "// __syncthreads();\n#define X __syncthreads();\nint y; __syncthreads();\n"
    (found,) = mutants.sites(source, BY_NAME["barrier"], [(0, len(source))])
    assert source[: found.start()].endswith("int y; ")


def test_a_header_is_changed_only_where_the_rung_uses_it():
    rung = next(r for r in gemv.LADDERS["gemv_rows"] if r.name == "1_warp")
    files = {mutant.file for mutant in mutants.of(rung)}
    assert "common/reduce.cuh" in files
    assert all(
        "block_sum" not in m.text.partition(m.mutant)[0][-200:] for m in mutants.of(rung) if m.file != "x"
    )
    assert not any(m.mutation.name == "barrier" for m in mutants.of(rung) if m.file == "common/reduce.cuh")


def test_every_mutant_differs_and_stands_once():
    seen = set()
    for hosts in mutations.mutants(("gemv", "int4", "attention")):
        operator, mutant = hosts[0]
        assert mutant.text != mutant.rung.path.read_text()
        assert (operator, mutant.name) not in seen
        seen.add((operator, mutant.name))
        assert len(hosts) <= mutations.HOSTS
    assert len(seen) > 60


def test_every_portable_operator_is_attacked():
    assert {operator for operator, _ in mutations.portable()} <= set(mutations.OPERATORS)


# --- a sample, tried again ----------------------------------------------------------------------------------

SAMPLE = [
    ("gemv", "2_coalesced", "barrier", "no thread may overwrite", "gate"),
    ("gemv", "2_coalesced", "guard", "column < n", "gate"),
    ("gemv", "1_strided", "leave", "", ""),
    ("int4", "1_warp_row", "zero", "", "gate"),
    ("int4", "1_warp_row", "nibble", "", "gate"),
    ("int4", "1_warp_row", "scale", "", "gate"),
    ("attention", "1_scalar", "seen", "", "gate"),
    ("attention", "1_scalar", "rescale", "", "gate"),
    ("copy", "3_in_flight", "guard", "y[first", "watcher"),
    ("q8_0", "1_float", "sign", "", "gate"),
]


@pytest.mark.parametrize(("operator", "rung", "rule", "text", "killed"), SAMPLE)
def test_a_sample_ends_as_recorded(operator, rung, rule, text, killed):
    mutant = of(operator, rung, rule, text)
    found = mutations.trial(operator, mutant)
    if killed == "gate" and found.killed == "watcher":
        killed = "watcher"  # a stray read may leave the right value behind
    assert found.killed == killed
    if not killed:
        assert mutations.reason(mutant)


def test_the_originals_pass_what_kills_their_mutants():
    """A trial that kills everything would be worth nothing."""
    for operator, rung in (("gemv", "2_coalesced"), ("int4", "1_warp_row"), ("copy", "3_in_flight")):
        found = ops.rung_of(ops.module_of(operator).LADDERS[operator], rung, rung)
        text = found.path.read_text()
        same = mutants.Mutant(found, f"{operator}/{rung}.cu", MUTATIONS[0], "", "", text + "\n")
        assert mutations.trial(operator, same).killed == ""


def test_one_that_never_ends_is_killed_by_its_own_seconds(monkeypatch):
    monkeypatch.setattr(mutations, "LIMIT", 1)

    def endless():
        while True:
            pass

    assert mutations.in_child(endless).killed == "time"


def test_one_that_crashes_takes_nobody_along():
    import os

    assert mutations.in_child(os.abort).killed == "crash"


def test_swapping_is_over_when_its_block_is():
    rung = gemv.LADDERS["gemv"][1]
    a, x = np.ones((8, 8), np.float32), np.ones(8, np.float32)
    with ops.on("cpu"):
        with ops.swapped(rung, rung.path.read_text().replace("y[column] = sum", "y[column] = sum + 1.0f")):
            assert (gemv.gemv(a, x, out=np.empty(8, np.float32), rung=rung.name) == 9).all()
        assert (gemv.gemv(a, x, out=np.empty(8, np.float32), rung=rung.name) == 8).all()


# --- the record ---------------------------------------------------------------------------------------------


def test_the_record_is_fresh_and_whole():
    """`rooflab trace mutations` after a kernel or a rule has changed."""
    now = {mutations.current(m): m.name for hosts in mutations.mutants() for _, m in hosts}
    recorded = set(RECORDED["identity"])
    tried = set(zip(RECORDED["operator"], RECORDED["rung"], strict=True))
    stale = [
        f"{r.operator}/{r.rung} {r.mutation}: {r.code}"
        for r in RECORDED.itertuples()
        if r.identity not in now
    ]
    assert not stale
    missing = [
        hosts[0][1].name
        for hosts in mutations.mutants()
        if not any(mutations.current(m) in recorded for _, m in hosts)
        and any((o, m.rung.name) in tried for o, m in hosts)
    ]
    assert len(missing) <= 15  # those that do not compile are no mutants


def test_what_is_recorded_as_it_is_now_is_not_tried_again(monkeypatch):
    tried = []

    def judged(hosts):
        tried.append(hosts[0][1].name)
        return mutations.row(*hosts[0], mutations.Trial("compiler", "", ""))

    monkeypatch.setattr(mutations, "judged", judged)
    table = mutations.make(("saxpy",), known=RECORDED)
    rows = RECORDED[RECORDED["operator"] == "saxpy"].reset_index(drop=True)
    assert table.astype(str).equals(rows.astype(str)) and not tried
    rows.loc[0, "identity"] = "of another source"
    assert len(mutations.make(("saxpy",), known=rows)) == len(rows) - 1 and len(tried) == 1


def test_whoever_survives_has_a_reason():
    left = RECORDED[RECORDED["killed"] == ""]
    without = [f"{r.operator}/{r.rung} {r.mutation}: {r.code}" for r in left.itertuples() if not r.reason]
    assert not without
    assert not mutations.is_open(left).any()


def test_every_reason_is_used():
    left = RECORDED[RECORDED["killed"] == ""]
    unused = [
        (rung, rule, text)
        for rung, rule, text in mutations.EQUIVALENT
        if not any(
            rung in (f"{r.file.partition('/')[0]}/{r.rung}", r.file, f"{r.operator}/{r.rung}")
            and rule == r.mutation
            and text in r.code
            for r in left.itertuples()
        )
    ]
    assert not unused


def test_most_are_killed_by_results_and_some_barriers_by_the_watcher_alone():
    killed = RECORDED["killed"].value_counts()
    assert killed["gate"] > killed["watcher"] > killed.get("", 0)
    barriers = RECORDED[RECORDED["mutation"].isin(["barrier", "warp barrier"])]
    assert (barriers["killed"] == "watcher").sum() >= 5 and (barriers["killed"] != "").mean() > 0.9
    assert (RECORDED["killed"] != "").mean() > 0.9


def test_the_table_by_operator_adds_up():
    table = mutations.by_operator(RECORDED)
    parts = ["gate", "launch", "watcher", "other", "equivalent", "open"]
    assert (table[parts].sum(axis=1) == table["mutants"]).all() and table["mutants"].sum() == len(RECORDED)


def test_without_a_record_the_command_is_named(tmp_path):
    with pytest.raises(MissingRecording, match="rooflab trace mutations"):
        mutations.read(tmp_path)
    with pytest.raises(MissingRecording, match="rooflab trace suite"):
        suite.read(tmp_path)


# --- the numeric suite --------------------------------------------------------------------------------------


def test_the_suite_s_record_is_fresh_and_small_items_come_out_again():
    table = suite.read()
    rungs = {rung.name: rung for rung in gemv.LADDERS["gemv"]}
    mine = table[table["operator"] == "gemv"]
    assert len(set(mine["rung"])) >= 6  # a rung may be newer than the record
    for name, rung in rungs.items():
        if name not in set(mine["rung"]):
            continue
        assert set(mine[mine["rung"] == name]["identity"]) == {suite.current(rung)}
    ladders = {(operator, rung.name): rung for operator, rung in mutations.portable()}
    repeated = table[table["item"] == "F1"]
    assert set(repeated["operator"]) == set(mutations.OPERATORS)
    for row in repeated.itertuples():
        assert row.identity == suite.current(ladders[row.operator, row.rung]) and row.value == 1


@pytest.mark.parametrize("rung", ["1_strided", "6_column_strips"])
def test_the_suite_runs_again_with_the_same_values(rung, monkeypatch):
    monkeypatch.setattr(suite, "LARGE", 64)  # D6 in full takes seconds
    found = next(r for r in gemv.LADDERS["gemv"] if r.name == rung)
    table = suite.read().set_index(["rung", "item"])
    for item, (_, value, bound) in suite.items(found):
        if not item.startswith("D6"):
            recorded = table.loc[(rung, item)]
            assert value == pytest.approx(recorded["value"], rel=1e-4, abs=1e-12)
            assert bound == pytest.approx(recorded["bound"], rel=1e-4)


def test_d1_to_d10_hold_but_for_the_bound_that_cannot():
    table = suite.read()
    held = table["value"] <= table["bound"]
    items = table[table["item"].str.startswith("D") & ~table["item"].isin(["D6", "D6 unit"])]
    assert held[items.index].all()
    assert not held[table["item"] == "D6 unit"].any(), "one digit of FP32 is beyond the bound"


def test_a_wrong_kernel_fails_the_suite():
    rung = gemv.LADDERS["gemv"][1]
    wrong = rung.path.read_text().replace("float sum = 0.0f;", "float sum = 1.0f;")
    with ops.swapped(rung, wrong):
        found = dict(list(zip(("D1", "D2", "D3"), (row for _, row in suite.items(rung)), strict=False)))
    assert all(value > bound for _, value, bound in found.values())


def test_a_leak_of_state_shows_as_f2():
    rung = gemv.LADDERS["gemv"][1]
    leaky = rung.path.read_text().replace("float sum = 0.0f;", "float sum = y[column < n ? column : 0];")
    with ops.swapped(rung, leaky):
        found = {item: value <= bound for item, (_, value, bound) in suite.again(rung)}
    assert not found["F2"] or not found["F2 back"]


def test_the_gate_of_the_trial_is_the_course_s_gate():
    (subject, *_) = mutations.subjects("gemv", "2_coalesced")
    with ops.on("cpu"):
        admitted = gate.admit(subject.work)
    assert isinstance(admitted, gate.Admitted) and pd.notna(admitted.error)
