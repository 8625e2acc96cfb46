"""What lesson 07 computes from rows: made-up ones, so that every finding comes out each way."""

import pandas as pd
import pytest
from rooflab import lab
from rooflab.analysis import conclusions, extrapolation, strategies
from rooflab.hardware import device, perf_model
from rooflab.numerics import model_shapes
from rooflab.pages import lesson_07_clocks
from rooflab.records.case import COLUMNS, Case
from rooflab.studies import regimes

H200 = device.get("h200")
MACHINE = perf_model.measured({"dram_read": 4600.0}, H200)
MLP, QO = regimes.SOURCE
NUMBERS = {("int4_g128", "fused"): perf_model.Own(3.0, 0.5), ("fp16", "cublas"): perf_model.Own(5.0, 0.9)}
FIT = perf_model.Fit(3.0, NUMBERS)


def made(batches=regimes.BATCHES, clocks=regimes.CLOCKS, call_us=40.0, **changes):
    """Rows of study regimes that obey a law: every contender, a call's time on top by events and the wall.
    changes: way=factor, or way=function of the tokens."""
    rows = []
    for n, k in regimes.SOURCE:
        for batch in batches:
            for how in regimes.contenders(batch):
                us = perf_model.us(how, n, k, batch, MACHINE, FIT)
                change = changes.get(how.name, 1.0)
                us *= change(batch) if callable(change) else change
                for clock in clocks:
                    more = {"graph": 0.0, "event": call_us, "wall": 1.1 * call_us}[clock]
                    more *= 0.2 if how.name == "cublas" else 1.0
                    kind = "baseline" if how.plain else "own"
                    case = Case(
                        "regimes", "product", how.name, kind, how.format, n=n, k=k, batch=batch, clock=clock
                    )
                    times = {"median_us": us + more, "q1_us": us + more - 0.01, "q3_us": us + more + 0.01}
                    rows.append(case.row() | times | {"error": 1e-3, "run": "r"})
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS)).astype({"batch": int, "n": int, "k": int})
    return frame.assign(
        label=[strategies.label(f, w) for f, w in zip(frame["format"], frame["impl"], strict=True)]
    )


@pytest.fixture(scope="module")
def rows():
    return made()


def test_the_sweep_has_the_source_s_seventeen_columns(rows):
    """M89, M90: as the source's own sweep.csv names them."""
    table = strategies.sweep(rows, MLP, 4600.0)
    assert len(strategies.COLUMNS) == 17 == table.shape[1]
    assert table["batch"].tolist() == list(regimes.BATCHES)
    fewer = rows[(rows["impl"] != "fused") | (rows["batch"] <= 64)]
    assert strategies.sweep(fewer, MLP, 4600.0)["batch"].max() == 64  # as far as all three were measured
    first = table.iloc[0]
    assert first["fused_iqr_us"] == pytest.approx(0.02)
    moved = perf_model.moved(perf_model.strategy("int4_g128", "fused"), *MLP, 1)
    assert first["fused_effective_GBps"] == pytest.approx(moved / first["fused_median_us"] / 1e3)
    assert first["fused_pct_roofline"] == pytest.approx(first["fused_effective_GBps"] / 46)
    assert first["speedup_vs_fp16_gemm"] == first["fp16_gemm_median_us"] / first["fused_median_us"]


def test_crossovers_differ_by_clock_where_calls_outweigh_kernels():
    """M91"""
    rows = made(fused=lambda batch: 0.3 * batch**0.5)
    table = strategies.crossovers(rows, MLP, strategies.PAIRS[:1])
    by = table.set_index("clock")
    assert by.loc["graph", "kind"] == "crosses" and by.loc["wall", "kind"] == "second"
    assert by.loc["graph", "low"] < by.loc["graph", "at"] < by.loc["graph", "high"]
    wide = strategies.by_clock(table)
    assert wide.loc[0, "wall"] == "second wins" and " to " in wide.loc[0, "graph"]
    tied = strategies.by_clock(table.assign(tied=1))
    assert tied.loc[0, "wall"] == "second ahead or undecided" and " to " in tied.loc[0, "graph"]
    assert len(lesson_07_clocks.flipped(wide)) == len(lesson_07_clocks.flipped(tied)) == 1
    assert lesson_07_clocks.flipped(wide[["first", "second", "wall"]]).empty
    cost = strategies.overhead(rows, MLP).set_index("label")["wall_more"]
    assert strategies.overhead(made(clocks=("graph",)), MLP).empty
    assert cost["INT4 fused"] == pytest.approx(44.0) and cost["FP16 cuBLAS"] == pytest.approx(8.8)


def test_a_call_that_takes_longer_than_the_host_saw_is_disturbed(rows):
    assert strategies.disturbed(rows, MLP).empty
    shifted = rows.copy()
    late = (shifted["clock"] == "event") & (shifted["batch"] == 16) & (shifted["n"] == MLP[0])
    shifted.loc[late & (shifted["impl"] == "fused"), ["median_us", "q1_us", "q3_us"]] += 20
    found = strategies.disturbed(shifted, MLP)
    assert found["batch"].tolist() == [16] and found["disturbed"].tolist() == [1]
    assert found["pairs"].iloc[0] == len(regimes.contenders(16))
    kept, all_of = (strategies.overhead(each, MLP).set_index("label") for each in (shifted, rows))
    fewer = rows[(rows["batch"] != 16) | (rows["n"] != MLP[0])]
    assert kept.equals(strategies.overhead(fewer, MLP).set_index("label")) and not kept.equals(all_of)
    wide = shifted.copy()
    wide.loc[late & (wide["impl"] == "fused"), "q1_us"] -= 40  # its quartiles reach down to the wall's
    assert strategies.disturbed(wide, MLP).empty


def test_winners_and_gains_are_those_of_the_rows(rows):
    best = strategies.winners(rows, MLP).set_index("batch")
    assert best.loc[1, "label"] == "INT4 fused" and best.loc[256, "fp16"] == "cublas"
    gain = strategies.gains(rows, "int4_g128")
    assert gain["mb"].is_monotonic_increasing and len(gain) == 2
    assert (gain[1] > 1).all() and (gain[256] < gain[1]).all()


def test_errors_are_told_by_way_with_a_reason():
    rows = made(clocks=("graph",), mmq_fp16_wgmma=1.5)
    compared = perf_model.compared(rows, MACHINE, FIT)
    table = extrapolation.errors(compared).set_index("label")
    assert table.loc["INT4 fused", "own"] < 0.01 < table.loc["Q8_0 FP16 wgmma", "own"]
    half = next(
        r for r in compared.itertuples() if r.impl == "mmq_fp16_wgmma" and (r.n, r.batch) == (1536, 8)
    )
    assert extrapolation.reason(half, 132) == "12 tiles for 132 SMs"
    wide = half._replace(impl="mmq_wgmma", n=10240, batch=160)
    assert extrapolation.reason(wide, 132) == "80 wide tiles and 160 narrow ones, counted as 160 wide"
    assert extrapolation.reason(wide._replace(batch=100), 132) == "80 tiles for 132 SMs"
    small = next(r for r in compared.itertuples() if r.impl == "fused" and (r.n, r.batch) == (1536, 1))
    assert extrapolation.reason(small, 132) == "the fixed time outweighs its bytes"


def test_the_published_laptop_is_predicted_without_having_been_seen():
    store = lab.open("replay", "rtx-4070-laptop-published").store
    kernels, sweep = extrapolation.laptop_kernels(store), extrapolation.laptop_sweep(store)
    assert {(each.n, each.us) for each in kernels} == {(256, 6.2), (1536, 22.0), (8960, 112.0), (8960, 31.81)}
    assert len(sweep) == 18 and {each.clock for each in sweep} == {"event"}
    there = perf_model.scaled(device.get("rtx-4070-laptop"), MACHINE, H200)
    table = extrapolation.unseen(kernels, there, perf_model.Fit(3.0))
    assert table["off"].abs().max() < 10


def test_predicted_crossovers_respect_what_a_way_takes():
    few = strategies.Pair(("q8_0", "mma"), ("fp16", "cublas"))
    assert (
        extrapolation.predicted_crossover(few, (28672, 8192), MACHINE, FIT) is None
    )  # not within mma's 32 tokens
    pair = strategies.PAIRS[0]
    assert 64 < extrapolation.predicted_crossover(pair, MLP, MACHINE, FIT) < 512
    slow = perf_model.Fit(3.0, {**NUMBERS, ("int4_g128", "fused"): perf_model.Own(3.0, 0.03)})
    found = extrapolation.predicted_crossover(pair, MLP, MACHINE, slow)
    assert 1 < found <= 64


def test_the_map_holds_every_gpu_format_and_number_of_tokens():
    """M96"""
    table = extrapolation.everywhere(MACHINE, FIT, H200, [MLP], (1, 16, 256))
    assert len(table) == len(device.names()) * len(perf_model.FORMATS) * 3
    assert (table[table["format"] == "fp16"]["x"] == 1).all() and table["case"].is_unique
    laptop = table[table["gpu"] == device.get("rtx-4070-laptop").name].set_index(["format", "batch"])
    assert laptop.loc[("int4_g128", 1), "x"] > 2.5


def test_what_lost_is_told_with_who_won(rows):
    table = strategies.lost(made(clocks=("graph",), mma=3.0)).set_index("label")
    assert "INT4 fused" not in table.index
    slow = "Q8_0 int8 small tiles"
    assert table.loc[slow, "times"] > 2 and table.loc[slow, "winner"] != slow
    assert table["times"].is_monotonic_decreasing and (table["losses"] <= table["of"]).all()


def test_the_source_s_own_loss_is_that_of_its_sweep():
    """M89: its fused kernel at 32 tokens, beside what the law makes of a launch a token."""
    store = lab.open("replay", "rtx-4070-laptop-published").store
    there = perf_model.scaled(device.get("rtx-4070-laptop"), MACHINE, H200)
    swept = extrapolation.unseen(extrapolation.laptop_sweep(store), there, perf_model.Fit(3.0))
    table = extrapolation.published_lost(swept)
    assert len(table) and (table["batch"] == 32).all() and (table[["times", "law"]] > 5).all(axis=None)
    assert extrapolation.published_lost(swept[swept["label"] == "INT4 loop"]).empty


def test_a_predicted_crossover_agrees_inside_the_measured_interval():
    rows = made(fused=lambda batch: 0.3 * batch**0.5)
    crossed, second = (
        strategies.crossovers(rows, MLP, strategies.PAIRS[:1], (clock,)).iloc[0]
        for clock in ("graph", "wall")
    )
    assert extrapolation.agrees(crossed, int(crossed["high"])) and not extrapolation.agrees(
        crossed, int(crossed["low"])
    )
    assert extrapolation.agrees(crossed, None) is False
    assert extrapolation.agrees(second, 1) and not extrapolation.agrees(second, 64)
    assert extrapolation.agrees(pd.Series({"kind": "first"}), None) and not extrapolation.agrees(
        pd.Series({"kind": "first"}), 4
    )
    assert extrapolation.agrees(pd.Series({"kind": "level"}), 4) is None


def test_attention_s_share_of_a_prompt_grows_with_its_length():
    """M94"""
    table = extrapolation.prompt(
        model_shapes.get("qwen2.5-1.5b"), (64, 512, 8192, 32768), MACHINE, FIT, "fp16", 0.5, "90", "h200"
    )
    assert table["pct"].is_monotonic_increasing and table["pct"].iloc[0] < 1 < 40 < table["pct"].iloc[-1]
    halved = extrapolation.prompt(
        model_shapes.get("qwen2.5-1.5b"), (8192,), MACHINE, FIT, "fp16", 0.25, "90", "h200"
    )
    assert halved["attention_us"].iloc[0] == pytest.approx(2 * table["attention_us"].iloc[2])


def test_the_best_attention_kernel_of_the_nearest_head_counts():
    def row(head_dim, fraction, **more):
        case = Case("attention", "attention", "9_x", seq=4096, head_dim=head_dim, causal=True, **more)
        return case.row() | {"roof": "fp16_tensor", "roof_fraction": fraction}

    rows = pd.DataFrame([row(128, 0.5), row(256, 0.9), row(128, 0.8, window=512)])
    model = model_shapes.get("qwen2.5-1.5b")
    assert extrapolation.attention_share(rows, model) == 0.5
    assert extrapolation.attention_share(rows.iloc[:0], model) is None


def test_conclusions_hold_or_flip_with_the_rows(rows):
    held = conclusions.conclusions(rows, pd.DataFrame())
    words = dict(zip(held["says"].str[:12], held["word"], strict=True))
    assert words["INT4 fused w"] == conclusions.FLIPS and words["at 1848 toke"] == conclusions.UNMEASURED
    by_clock = held[held["says"].str.startswith("on 1536")]["word"].tolist()
    assert by_clock == [conclusions.FLIPS, conclusions.HOLDS]
    lost_at_two = made(fused=lambda batch: 0.5 if batch == 1 else 9.0)
    assert conclusions.conclusions(lost_at_two, pd.DataFrame())["word"].iloc[0] == conclusions.HOLDS
    prompts = pd.DataFrame(
        [
            {"format": "q8_0", "impl": name, "clock": "graph", "batch": 1848, "median_us": us, "n": 1, "k": 1}
            for name, us in (("mmq", 95.0), ("two_op", 100.0))
        ]
    )
    both = pd.concat([rows, prompts], ignore_index=True)
    assert conclusions.conclusions(both, pd.DataFrame())["word"].iloc[-1] == conclusions.HOLDS
    assert set(held["theirs"]) == {""}


def test_a_conclusion_is_judged_by_the_author_s_kernel_where_it_was_timed(rows):
    """One that loses at 1 token on the small matrix, and whose gain over two operations falls."""
    found = []
    for n, k in (MLP, QO):
        for batch in (1, 2, 4):
            times = {"1_warp_row": 10.0 * batch, "torch.two_op": 40.0, "torch.matmul": 5.0}
            for impl, us in times.items():
                opts = "loop=1" if impl == "1_warp_row" else ""
                for clock, cache in (("event", "warm"), ("graph", "cold")):
                    case = Case(
                        "int4", "int4", impl, n=n, k=k, batch=batch, options=opts, clock=clock, cache=cache
                    )
                    found.append(case.row() | dict.fromkeys(("median_us", "q1_us", "q3_us"), us))
    held = conclusions.conclusions(rows, pd.DataFrame(found))
    theirs = held.groupby("says", sort=False)["theirs"].agg(lambda words: sorted(set(words)))
    assert theirs.tolist()[:3] == [[conclusions.FLIPS], [conclusions.HOLDS], [conclusions.HOLDS]]
    assert held["theirs"].iloc[-1] == "" and "the author's by event, warm, at 0.50" in held["here"].iloc[2]


def test_a_launch_a_token_is_raced_by_clock_and_cache():
    found = []
    for batch, us in ((1, 5.0), (2, 9.0), (4, 18.0)):
        for impl, time, opts in (("1_warp_row", us, "loop=1"), ("torch.matmul", 10.0, "")):
            case = Case(
                "int4", "int4", impl, n=8960, k=1536, batch=batch, options=opts, clock="event", cache="warm"
            )
            found.append(case.row() | {"median_us": time, "q1_us": time - 0.1, "q3_us": time + 0.1})
    table = strategies.loop_crossovers(pd.DataFrame(found), MLP)
    assert table[["clock", "cache", "kind", "low", "high"]].values.tolist() == [
        ["event", "warm", "crosses", 2, 4]
    ]
