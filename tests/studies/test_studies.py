"""Studies: ids that parse back, counts by the convention, predictions, groups, roofs."""

import numpy as np
import pytest
from rooflab import studies
from rooflab.bench import gate
from rooflab.errors import GateError, UsageError
from rooflab.hardware import device
from rooflab.records.case import Case
from rooflab.studies import bandwidth, base, environment, matmul, timing

H200 = device.get("h200")


@pytest.mark.parametrize("name", studies.names())
@pytest.mark.parametrize("effort", ["full", "quick"])
def test_every_case_is_named_once_and_its_name_parses_back(name, effort):
    study = studies.get(name)
    profiled = [case for _, chosen, _ in study.profiles(effort, H200) for case in chosen]
    cases = study.cases(effort, H200) or profiled  # what cannot pass the gate is not timed
    assert len({case.id for case in cases}) == len(cases) > 0
    for case in cases:
        assert study.case(case.id) == case


def test_quick_is_a_smaller_job_than_full():
    for name in ("environment", "bandwidth"):
        study = studies.get(name)
        assert len(study.cases("quick", H200)) < len(study.cases("full", H200))


def test_quick_fits_a_12_gb_gpu(monkeypatch):
    from rooflab.studies import streams

    monkeypatch.setattr(streams, "copies", lambda case: 1 if case.cache != "cold" else 3)
    for name in ("environment", "bandwidth"):
        study = studies.get(name)
        for group in study.groups(study.cases("quick", device.get("rtx-3060"))):
            need = study.shared_bytes(group[0]) + sum(map(study.memory_bytes, group))
            assert need < 11e9, (group[0].id, need)


def test_an_unknown_study_or_word_is_named():
    with pytest.raises(UsageError, match="no study 'bandwith'; there are environment, bandwidth, "):
        studies.get("bandwith")
    with pytest.raises(UsageError, match="holds the word 'lukewarm'"):
        Case.parse("bandwidth", "read/1_scalar n=4 lukewarm graph")


def test_bytes_and_flops_follow_the_convention():
    study = studies.get("bandwidth")

    def count(text):
        return study.count(study.case(text))

    assert count("read/1_scalar n=1000 cold graph") == (4000, None, "dram_read")
    assert count("copy/1_scalar n=1000 cold graph") == (8000, None, "dram_copy")
    assert count("triad/1_scalar n=1000 cold graph") == (12000, 2000, "dram_triad")
    assert count("read/5_streaming n=1000 warm graph").roof == ""
    gemm = Case("bandwidth", "gemm", "torch.matmul", format="float16", n=64, k=32, batch=16)
    assert matmul.count(gemm) == (2 * (64 * 32 + 16 * 32 + 16 * 64), 2 * 64 * 32 * 16, "fp16_tensor")


def test_predictions_are_bounds_of_the_datasheet():
    study, context = studies.get("bandwidth"), base.Context(device=H200, latency_ns=500.0, pcie_gb_s=63.0)

    def predicted(text):
        return study.predict(study.case(text), context)

    n = 1 << 29
    assert predicted(f"read/1_scalar n={n} cold graph") == pytest.approx(4 * n / H200.dram_gb_s / 1e3)
    assert predicted("read/5_streaming n=65536 warm graph") is None  # from L2: no datasheet figure
    assert predicted("h2d/pinned baseline n=16777216 wall") == pytest.approx(4 * 16777216 / 63e3)
    # Little's law: 1 block of 256 threads with one 16-byte load each is 4 KiB in flight on each of 132 SMs.
    case = study.case(f"read/4_grid n={n} blocks=132 unroll=1 cold graph")
    assert bandwidth.in_flight_bytes(case, 132) == 4096
    assert study.predict(case, context) == pytest.approx(4 * n / (4096 * 132 / 500) / 1e3)
    gemm = next(c for c in bandwidth.peaks() if c.format == "int8")
    assert study.predict(gemm, context) == pytest.approx(2 * 8192**3 / H200.int8_tensor / 1e6)


def test_contestants_of_one_comparison_share_a_group():
    study = studies.get("bandwidth")
    groups = study.groups(study.cases("full", H200))
    ladder = next(
        g for g in groups if g[0].operator == "copy" and g[0].clock == "graph" and g[0].n == 1 << 29
    )
    assert {"1_scalar", "2_vector", "3_in_flight", "4_grid", "cudaMemcpyAsync", "torch.copy_"} == {
        case.impl for case in ladder
    }
    for group in groups:
        assert len({(case.operator, case.n, case.cache, case.clock) for case in group}) == 1


def test_roofs_come_from_own_cold_streams_and_bursts():
    import pandas as pd

    def row(
        operator, impl, gb_s, *, kind="own", n=1 << 29, cache="cold", clock="graph", tflop_s=None, **more
    ):
        return {
            **{"operator": operator, "impl": impl, "kind": kind, "n": n, "cache": cache, "clock": clock},
            **{"gb_s": gb_s, "tflop_s": tflop_s, "median_us": 1.0, "case": f"{operator}/{impl} {n} {cache}"},
            **{"roof": "", "options": "", **more},
        }

    frame = pd.DataFrame(
        [
            row("read", "a", 4000.0),
            row("read", "b", 4500.0),
            row("read", "b", 9000.0, cache="warm"),
            row("read", "torch.sum", 9999.0, kind="peer"),
            row("read", "b", 4600.0, n=1 << 20),
            row("copy", "c", 4200.0),
            row("copy", "c", 5000.0, clock="event"),
            row("h2d", "pinned", 50.0, kind="baseline", cache="", clock="wall"),
            row("gemm", "m", 1.0, kind="baseline", tflop_s=800.0, roof="fp16_tensor", state="burst"),
            row("gemm", "m", 1.0, kind="baseline", tflop_s=600.0, roof="fp16_tensor_sustained"),
        ]
    )
    found = {name: roof.value for name, roof in bandwidth.roofs(frame).items()}
    assert found == {"dram_read": 4500.0, "dram_copy": 4200.0, "pcie_h2d": 50.0} | {
        "fp16_tensor": 800.0,
        "fp16_tensor_sustained": 600.0,
    }


def test_latency_is_the_time_of_one_step_of_the_smallest_cold_chase():
    import pandas as pd

    steps = environment.STEPS["cold"]
    frame = pd.DataFrame(
        [
            {"operator": "chase", "cache": "cold", "n": 1 << 28, "median_us": steps * 0.9},
            {"operator": "chase", "cache": "cold", "n": 1 << 26, "median_us": steps * 0.5},
            {"operator": "chase", "cache": "warm", "n": 1 << 20, "median_us": 5.0},
        ]
    )
    assert environment.latency_ns(frame) == pytest.approx(500.0)
    assert environment.latency_ns(frame[:0]) is None


class Sums(base.Study):
    """A study on NumPy arrays, to see the common part work without a GPU."""

    name, lesson = "sums", "99"

    def cases(self, effort="full", device=None):
        return [Case("sums", "sum", impl, n=100, clock="wall", cache="") for impl in ("right", "wrong")]

    def contestants(self, cases):
        x = np.arange(100, dtype=np.float32)
        out = [np.empty(1, np.float32) for _ in cases]
        wrong = {"right": 0.0, "wrong": 1.0}

        def launcher(z, case):
            def launch(_):
                z[0] = x.sum() + wrong[case.impl]

            return launch

        return [
            gate.Work(case.id, launcher(z, case), [[x]], [[z]], lambda: np.array([4950.0]), 0.1)
            for z, case in zip(out, cases, strict=True)
        ]


def test_a_wrong_contestant_has_no_row():
    study = Sums()
    right, wrong = study.contestants(study.cases())
    assert gate.admit(right).error == 0
    with pytest.raises(gate.GateError, match="sum/wrong"):
        gate.admit(wrong)


def minutes(effort, slug):
    on = device.get(slug)
    return (
        sum(
            study.seconds(case, on)
            for study in map(studies.get, studies.names())
            if study.needs_gpu
            for case in study.cases(effort, on)
        )
        / 60
    )


def test_quick_effort_takes_a_quarter_of_an_hour_at_most_on_an_rtx_3060():
    assert 0.2 < minutes("quick", "rtx-3060") < 15
    assert minutes("quick", "rtx-3060") < minutes("full", "rtx-3060")
    assert minutes("full", "h200") < minutes("full", "rtx-3060")


def contestant(name, kind, wrong_from=None):
    """A case and its gated NumPy contestant, which from its launch number `wrong_from` on is wrong."""
    launches = []
    out = np.empty(5)

    def launch(_):
        launches.append(1)
        out[:] = 1.0 if wrong_from is None or len(launches) < wrong_from else 2.0

    case = Case("int4", "int4", name, kind=kind, n=5, clock="wall")
    work = gate.Work(case.id, launch, [[np.ones(5)]], [[out]], lambda: np.ones(5), budget=0.1)
    return case, gate.admit(work)


def test_a_library_that_turns_wrong_while_it_is_timed_is_left_out_alone():
    """One that adds by atomics is right at the gate and, now and then, wrong later; ours would be a bug."""
    cases, admitted = zip(
        contestant("1_own", "own"),
        contestant("shaky", "peer", wrong_from=9),
        contestant("steady", "peer"),
        strict=True,
    )
    timings, skipped = timing.timed(cases, admitted, samples=10)
    assert list(timings) == [cases[0].id, cases[2].id] and timings[cases[0].id].samples == 10
    assert list(skipped) == [cases[1].id] and "after timing: 5 of 5 outputs are wrong" in skipped[cases[1].id]
    cases, admitted = zip(contestant("1_own", "own", wrong_from=9), strict=True)
    with pytest.raises(GateError, match="after timing"):
        timing.timed(cases, admitted, samples=10)
