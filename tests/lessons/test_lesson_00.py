"""What lesson 00 claims of the recorded H200, and what it computes from its rows."""

import ctypes
import html
import json
import re
import shutil
import subprocess
import sys
import types

import nbformat
import needs
import numpy as np
import pandas as pd
import pytest
from rooflab import simt
from rooflab.bench import clock, gate
from rooflab.errors import GateError
from rooflab.exercises.lesson_00 import operands
from rooflab.ops import probes
from rooflab.paths import NOTEBOOKS, ROOT
from rooflab.records.case import Case, parse_options
from rooflab.runtime import nvrtc
from rooflab.studies import environment, streams

PARTS = [nbformat.read(path, as_version=4).cells for path in sorted(NOTEBOOKS.glob("00*.ipynb"))]
CELLS = [cell for part in PARTS for cell in part]
PROGRAM = ROOT / "examples" / "sum.cu"


@pytest.fixture(scope="module")
def rows(h200):
    """Every recorded row of the study."""
    return h200.measure("environment", h200.cases("environment"))


def section(heading):
    """The outputs of the code cells under a heading, as text: Markdown, HTML and prints, of both parts."""
    found, level = [], 0
    for cell in CELLS:
        for head in re.finditer(r"^(#+) (.*)$", cell.source if cell.cell_type == "markdown" else "", re.M):
            if head[2] == heading:
                level = len(head[1])
            elif len(head[1]) <= level:
                level = 0
        for output in cell.get("outputs", []) if level else []:
            data = output.get("data", {})
            found.append(data.get("text/html") or data.get("text/markdown") or output.get("text", ""))
    assert found, f"no output under {heading!r}"
    return found


def tables(heading):
    """The tables under a heading, as frames of text."""
    found = []
    for text in section(heading):
        lines = re.findall(r"<tr.*?>(.*?)</tr>", text, re.DOTALL) if "<table" in text else []
        if lines:
            head, *body = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
            found.append(pd.DataFrame(body, columns=head))
    return found


def namespace():
    """What the notebook's own gate cells define: the NumPy kernels, `contestant`, `judge` and `sloppy`."""
    scope = {"np": np, "gate": gate, "clock": clock, "GateError": GateError, "operands": operands}
    wanted = ("def honest(", "def one_nan(", "def contestant(", "def judge(", "def sloppy(")
    for cell in CELLS:
        if cell.cell_type == "code" and any(word in cell.source for word in wanted):
            exec(cell.source.partition("\nkernels = ")[0], scope)
    return scope


# --- the claims that coverage.csv points to -----------------------------------------------------------------


def test_the_machine_is_described_and_agrees_with_its_datasheet(h200):
    """M01: the run names GPU, driver and versions, and the constants are those of that GPU."""
    run, spec = h200.run, h200.spec
    assert spec is not None and spec.slug == "h200"
    assert (run.compute_capability, run.sms) == (".".join(map(str, spec.compute_capability)), spec.sms)
    assert run.l2_bytes == pytest.approx(spec.l2_mb * 2**20, rel=0.2)
    assert run.memory_bytes == pytest.approx(spec.memory_gb * 1e9, rel=0.1)
    assert all(run[name] for name in ("gpu", "driver", "cuda", "nvrtc", "torch", "cupy", "python", "commit"))
    facts = tables("The machine")[1]
    assert {"SMs", "L2 cache", "DRAM bandwidth"} <= set(facts.iloc[:, 0])


def test_counters_are_proved_by_reading_some_back(h200):
    """M02: ncu counted DRAM bytes, and for an array past the L2 about those that the kernel must move."""
    counted = h200.profile("environment", environment.profiled_clocks(), "ncu", environment.PROFILED)
    assert len(counted) == len(environment.CLOCK_SIZES) and (counted["dram_bytes"] > 0).all()
    largest = counted.set_index("case").loc[environment.profiled_clocks()[-1].id]
    assert largest["dram_bytes"] == pytest.approx(12 * environment.CLOCK_SIZES[-1], rel=0.1)


def test_the_ramp_runs_gated_beside_torch(h200):
    """M03: both rungs and torch.add on the same inputs, within the error budget; rung 2 keeps up."""
    ramp = h200.measure("environment", environment.ramp()).set_index("impl")
    assert list(ramp.index) == ["1_scalar", "2_vector", "torch.add"]
    assert (ramp["error"] <= ramp["error_budget"]).all() and (ramp["error_budget"] < 1e-5).all()
    assert ramp["gb_s"].to_numpy() == pytest.approx(12e-3 * environment.RAMP / ramp["median_us"], rel=1e-4)
    assert ramp.median_us["2_vector"] <= 1.05 * ramp.median_us["torch.add"]
    assert (ramp["predicted_us"] <= ramp["median_us"]).all()  # a bound is a bound


def test_every_time_is_a_median_between_its_quartiles(rows):
    """M04: ten samples or more, never the best one; no time without a gate."""
    assert len(rows) > 40 and (rows["samples"] >= 10).all()
    assert (rows["q1_us"] <= rows["median_us"]).all() and (rows["median_us"] <= rows["q3_us"]).all()
    assert (rows["q1_us"] < rows["q3_us"]).all()  # one number thrice would be no quartiles
    assert (rows["error"] <= rows["error_budget"]).all()
    spread = clock.Timing.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (spread.q1_us, spread.median_us, spread.q3_us, spread.samples) == (2.0, 3.0, 4.0, 5)


def test_the_gate_refuses_every_cheat(h200):
    """M05: each CUDA cheat on the device, and each NumPy cheat of the notebook, here and now."""
    verdicts = h200.profile("environment", environment.cheats(), "gate")
    assert verdicts["refused"].all() and len(verdicts) == len(probes.CHEATS) == 7
    late = verdicts[verdicts["when"] == "after timing"]["case"].tolist()
    assert late == [case.id for case in environment.cheats() if case.impl == "ten_times"]
    scope = namespace()
    judge, sloppy = scope["judge"], scope["sloppy"]
    assert judge(scope["honest"]) == "admitted, timed, checked again"
    for name in ("writes_nothing", "skips_tail", "one_nan", "changes_inputs", "ten_times"):
        assert judge(scope[name]).startswith(f"refused: {name} "), name
    shown = pd.concat(table.set_axis(["kernel", "verdict"], axis=1) for table in tables("No gate, no time"))
    assert shown["verdict"].str.startswith("refused: ").sum() == 12
    x, y = operands(64)
    out = np.empty_like(x)
    scope["one_nan"](1.5, x, y, out)
    assert sloppy(out, 1.5 * x + y) and np.isnan(out).any()  # only a NaN-blind comparison passes it


def test_a_cheat_has_no_time(rows):
    assert not (rows["operator"] == "cheat").any()


def test_conditions_are_written_down_before_and_after(h200):
    """M06: clocks, temperature and power of every run, and who else was on the GPU."""
    runs = h200.store.runs()
    for what in ("sm_clock_{}_mhz", "temperature_{}_c", "power_{}_w"):
        for when in ("before", "after"):
            known = runs[what.format(when)].notna() | (runs["finished"].fillna("").eq("") & (when == "after"))
            assert known.all(), (what, when)  # a run that was stopped has no end
    assert runs["sm_clock_before_mhz"].between(300, 3000).all()
    assert runs["temperature_before_c"].between(10, 95).all()
    assert (runs["other_processes"] == 0).all()
    assert "No other process was on the GPU." in section("The machine")


def test_warm_beats_cold_within_the_cache_and_not_beyond(h200):
    """M07: beyond the spread where the operands fill less than half the L2; level where they are 4 L2s."""
    found = h200.measure("environment", environment.caches()).set_index(["n", "cache"])
    l2, sides = h200.run.l2_bytes, {"in": 0, "out": 0}
    for n in environment.CACHE_SIZES:
        warm, cold = found.loc[(n, "warm")], found.loc[(n, "cold")]
        if 12 * n < l2 / 2:
            assert clock.faster(warm, cold), n
            sides["in"] += 1
        elif 12 * n > 4 * l2:
            assert warm["median_us"] == pytest.approx(cold["median_us"], rel=0.05), n
            sides["out"] += 1
        assert clock.copies_for(12 * n, l2) * 12 * n >= max(4 * l2, 24 * n)
    assert min(sides.values()) >= 2


def test_clocks_differ_and_differ_least_for_large_kernels(h200):
    """M08: kernel, event and wall time in one table; an eager clock shows the launch of a small kernel."""
    found = h200.measure("environment", environment.clocks())
    asked = environment.profiled_clocks()
    tools = {tool: h200.profile("environment", asked, tool) for tool in ("ncu", "nsys", "cupti")}
    times = environment.by_clock(found, tools)
    assert list(times.index) == list(environment.CLOCK_SIZES) and times.notna().all(axis=None)
    small, large = times.iloc[0], times.iloc[-1]
    assert small["wall"] >= small["event"] > 5 * small["graph"]
    assert large["event"] / large["graph"] < 0.1 * small["event"] / small["graph"]
    assert small["nsys"] < small["graph"] < small["ncu"]  # without, with the hand-over; on a drained GPU
    assert (abs(times["nsys"] / times["cupti"] - 1) < 0.1).all()  # the same stamps


def test_dependent_launch_helps_the_small_and_hurts_the_large(h200):
    found = h200.measure("environment", environment.clocks()).set_index(["n", "clock"])
    least, most = environment.CLOCK_SIZES[0], environment.CLOCK_SIZES[-1]
    assert clock.faster(found.loc[(least, "graph_pdl")], found.loc[(least, "graph")])
    assert clock.faster(found.loc[(most, "graph")], found.loc[(most, "graph_pdl")])


@pytest.fixture
def numpy_as_cupy(monkeypatch):
    fake = types.ModuleType("cupy")
    fake.__getattr__ = lambda name: getattr(np, name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "cupy", fake)


def test_inputs_are_random_with_a_fixed_seed(numpy_as_cupy):
    """M09: x and y of a contestant: the same numbers every time, different from each other, mean not zero."""
    case = Case("environment", "saxpy", "1_scalar", n=10_000, cache="warm")
    (one,), (two,) = streams.contestants([case]), streams.contestants([case])
    (x, y), again = one.inputs[0], two.inputs[0]
    assert np.array_equal(x, again[0]) and np.array_equal(y, again[1]) and x is not again[0]
    assert not np.array_equal(x, y)
    for array in (x, y):
        assert len(np.unique(array)) > 9_900 and abs(array.mean() - 0.5) < 0.05
    assert f"Seed {streams.SEED}" in " ".join(section("No gate, no time"))


def test_one_command_reproduces_every_row(h200, rows):
    """M10: each row's run is known with its command, and tables and profiles are there."""
    runs = h200.store.runs().set_index("run")
    used = set(rows["run"])
    assert used <= set(runs.index)
    assert runs.loc[sorted(used), "command"].str.match(r"(python -m )?rooflab (record|measure|run)").all()
    profiles = {path.name for path in (h200.store.folder / "profiles").glob("environment_*.csv")}
    assert profiles == {f"environment_{tool}.csv" for tool in ("gate", "ncu", "nsys", "cupti")}
    assert any(f"`{runs.loc[run, 'command']}`" in text for run in used for text in section("Claims"))


def test_claims_carry_shape_clock_cache_roof_and_command(h200):
    """M11: as the notebook shows them; a warm row has no DRAM roof to be a share of."""
    (claims,) = tables("Claims")
    assert len(claims) >= 4
    for name in ("elements", "cache, clock", "µs", "GB/s"):
        assert (claims[name] != "").all(), name
    page = (NOTEBOOKS / "00b_clocks.ipynb").read_text(encoding="utf-8")
    assert "`rooflab record environment` measures all of it again" in page
    cold = claims["cache, clock"].str.startswith("cold")
    assert claims["of roof"][cold].str.fullmatch(r"\d+%").all() and (claims["of roof"][~cold] == "").all()
    recorded = pd.concat(
        h200.measure("environment", cases) for cases in (environment.clocks(), environment.caches())
    )
    how = recorded["cache"] + ", " + recorded["clock"]
    keys = recorded["impl"] + recorded["n"].map(" {:,} ".format) + how
    times = dict(zip(keys, recorded["median_us"].map("{:.2f}".format), strict=True))
    shown = claims["saxpy"] + " " + claims["elements"] + " " + claims["cache, clock"]
    assert claims["µs"].tolist() == [times[key] for key in shown] and shown.is_unique


# --- what the lesson computes from rows ---------------------------------------------------------------------


def test_the_handovers_of_the_recording(h200, rows):
    found = environment.handovers(rows).set_index("handover")["median_us"]
    assert len(found) == 6 and (found > 0).all()
    eager = found["eager call, this course's launcher"]
    assert found["dependent-launch edge of a graph"] < found["node of a graph"] < eager / 3
    assert found[environment.BARRIER] < 5


def touch(impl="touch", kind="own", us=8.0, **given):
    case = Case("environment", "touch", impl, kind, cache="warm", **given)
    return case.row() | {"median_us": us, "q1_us": us - 1, "q3_us": us + 1}


def test_handovers_divide_chains_and_subtract_launches():
    def barrier(rounds, us):
        case = Case("environment", "barrier", "barrier", options=f"blocks=8 rounds={rounds}", cache="warm")
        return case.row() | {"median_us": us, "q1_us": us - 1, "q3_us": us + 1}

    chain = {"clock": "event", "options": f"chain={environment.EAGER_CHAIN}"}
    frame = pd.DataFrame(
        [
            touch(us=500.0, **chain),
            touch(us=77.0, clock="event"),  # a lone call is no chain
            touch(us=0.8),
            barrier(101, 125.0),
            barrier(1, 5.0),
        ]
    )
    found = environment.handovers(frame).set_index("handover")
    assert list(found.index) == [
        "eager call, this course's launcher",
        "node of a graph",
        environment.BARRIER,
    ]
    assert found["median_us"].tolist() == pytest.approx([5.0, 0.8, 1.2])
    assert found.loc[environment.BARRIER, ["q1_us", "q3_us"]].tolist() == pytest.approx([1.18, 1.22])
    assert environment.handovers(frame[frame["operator"] == "touch"].iloc[:0]).empty


def test_latencies_are_times_a_step(rows):
    found = environment.latencies(rows)
    assert len(found) == len(environment.chases())
    row = rows[rows["operator"] == "chase"].iloc[-1]
    steps = parse_options(row["options"])["steps"]
    same = found.set_index("case").loc[row["case"]]
    assert same["median_ns"] == pytest.approx(1e3 * row["median_us"] / steps)
    assert same["table_bytes"] == 4 * row["n"]


def test_dram_takes_longer_than_l2(h200, rows):
    l2, dram = environment.l2_latency_ns(rows, h200.run.l2_bytes), environment.latency_ns(rows)
    assert l2 and dram and 50 < l2 < dram / 1.3 and dram < 2000
    assert environment.l2_latency_ns(rows, 1 << 10) is None  # no table that small
    assert environment.l2_latency_ns(rows[rows["cache"] == "cold"], h200.run.l2_bytes) is None


def test_a_clock_that_was_not_read_is_blank(h200):
    found = h200.measure("environment", environment.clocks())
    nothing = pd.DataFrame(columns=["case", "time_ns"])
    one = pd.DataFrame({"case": [environment.profiled_clocks()[0].id] * 3, "duration_ns": [900, 5000, 1000]})
    times = environment.by_clock(found, {"ncu": nothing, "nsys": one})
    assert times["ncu"].isna().all()
    assert times["nsys"].iloc[0] == 1.0 and times["nsys"].iloc[1:].isna().all()  # the median, in µs


def test_every_number_in_the_prose_is_computed():
    """Measured quantities stand in outputs; the plain text holds none."""
    unit = r"\d[\d.,]*\s*(µs|us|ns|ms|GB/s|TB/s|%|times faster)"
    for cell in CELLS:
        if cell.cell_type == "markdown":
            assert not re.search(unit, cell.source), cell.source


def test_each_part_has_an_explorer_of_one_choice_and_a_size():
    pages = [text for text in section("Explore") if "rooflab-explorer" in text]
    found = [json.loads(html.unescape(re.search(r"data-explorer='(.*?)'", page)[1])) for page in pages]
    assert len(found) == 2  # CUDA in ten minutes has none
    for data in found:  # 00a: the cache; 00b: clock and variant
        choices = [*data["controls"], data["x"]]
        assert len(choices) == 2 and all(len(choice["values"]) >= 2 for choice in choices)


def test_the_parts_are_linked_in_order():
    assert "(00b_clocks.ipynb)" in PARTS[1][-1].source
    assert "(01_bandwidth.ipynb)" in PARTS[1][-1].source


def test_code_does_not_scroll_sideways():
    shown = [c for c in CELLS if c.cell_type == "code" and "hide-input" not in c.metadata.get("tags", [])]
    wide = [line for cell in shown for line in cell.source.splitlines()]
    assert not [line for line in wide if len(line) > 96]


# --- the program that the first page shows ------------------------------------------------------------------


def device_code():
    """What the program has for the device, its kernel named as it is written."""
    found = re.search(r"^__device__ .*?(?=^void check)", PROGRAM.read_text(), re.DOTALL | re.MULTILINE)
    return found[0].replace("__global__", 'extern "C" __global__')


@pytest.mark.parametrize("arch", ["75", "90"])
def test_the_program_compiles(arch, tmp_path):
    """Its kernel by NVRTC; the whole of it, without a warning, where there is nvcc."""
    resources = nvrtc.compile_source(device_code(), arch=arch).resources["sum_all"]
    assert resources.shared_bytes == 8 * 4 and resources.spill_bytes == 0
    nvcc = shutil.which("nvcc")
    if nvcc:
        command = [nvcc, "-O3", "-Werror", "all-warnings", f"-arch=sm_{arch}", PROGRAM]
        done = subprocess.run([*command, "-o", tmp_path / "sum"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (255, 2), (256, 1), (1000, 3), (4099, 2)])
def test_the_programs_kernel_sums_any_number_of_elements(n, blocks):
    needs.compiler()
    x = np.random.default_rng(n).integers(0, 1000, n).astype(np.float32)  # floats sum these without rounding
    total = np.full(1, 7.0)  # what is there is added to
    seen = simt.watch(device_code(), blocks, 256, [x, total, ctypes.c_longlong(n)])
    assert seen.faults == [] and total[0] == 7 + x.sum(dtype=np.float64)


def test_a_block_is_advised_by_what_an_sm_holds(h200):
    [text] = [text for text in section("Grid, block, warp, lane") if "How many threads" in text]
    assert f"holds {h200.spec.threads_per_sm:,} threads and 65,536 registers of 4 bytes" in text
    assert "more than 32 registers" in text


def test_the_page_shows_the_program_as_it_is():
    [shown] = section("The same as a program of its own")
    assert PROGRAM.read_text() in shown


def shown_code(language, start):
    """The code that the page shows and that starts so."""
    blocks = re.findall(rf"```{language}\n(.*?)```", "\n".join(cell.source for cell in CELLS), re.S)
    (found,) = [block for block in blocks if block.startswith(start)]
    return found


def test_a_readers_own_kernel_runs_as_the_page_shows_it(capfd):
    needs.compiler()
    scope = {}
    exec(shown_code("python", "import ctypes"), scope)
    said = capfd.readouterr().out
    assert said.split() == shown_code("text", "[0. 2. 4. 6.] []\n").split() and "efficiency" in said
    exec(shown_code("python", 'source = r"""\nextern "C" __global__ void reversed'), scope)
    said, faults = capfd.readouterr().out, scope["seen"].faults
    assert "i = 69, other = " in said and len(faults) == 3
    assert str(faults[0]) == shown_code("text", "uninitialised").strip()
    assert all(f"{fault}\n" in said for fault in faults)
    mended = scope["source"].replace("// here __syncthreads() is missing", "__syncthreads();")
    seen = simt.watch(mended, (1, 2), 64, [scope["x"], scope["y"], ctypes.c_int(64)], shared=256)
    assert seen.faults == [] and (scope["y"] == scope["x"][:, ::-1]).all()


def test_the_c_that_the_page_teaches_does_what_it_says():
    needs.compiler()
    (text,) = [cell.source for cell in CELLS if cell.source.startswith("## C, for those who know Python")]
    table = text.partition("<details>")[0]
    rows = re.findall(r"^\| `(.*;)` \| (.*) \|$", table, re.M)
    said = {
        code.split(" = ")[0].split()[-1]: float(value[0])
        for code, meaning in rows
        if (value := re.findall(r"^([\d.]+):", meaning))
    }
    ends = "; ".join(f"out[{k}] = {name}" for k, name in enumerate([*said, "last", "sums[0]", "TILE"]))
    body = "\n".join(code for code, _ in rows)
    source = f'extern "C" __global__ void c(const float* x, double* out) {{\n{body}\n{ends};\n}}'
    nvrtc.compile_source(source, arch="90")
    out = np.zeros(len(said) + 3)
    simt.run(source, 1, 1, [np.array([1, 2, 4], np.float32), out])
    assert len(rows) == 9 and len(said) == 4 and out.tolist() == [*said.values(), 8, 0, 64]
