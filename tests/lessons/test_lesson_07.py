"""What lesson 07 claims of the recorded H200, and that its pages say what the rows say."""

import re
from dataclasses import replace

import pandas as pd
import pytest
from pages_read import said
from rooflab import dispatch, lab
from rooflab.analysis import extrapolation, strategies, time_breakdown
from rooflab.hardware import device, perf_model
from rooflab.numerics import model_shapes
from rooflab.pages import lesson_07_choices as choices
from rooflab.pages import lesson_07_clocks as clocks
from rooflab.pages import (
    lesson_07b,
    lesson_07b_crossings,
    lesson_07b_elsewhere,
    lesson_07b_map,
    lesson_07b_misses,
    lesson_07b_tuned,
    lesson_07b_worked,
)
from rooflab.studies import attribution, regimes

MLP, QO = regimes.SOURCE
_ONE_TOKEN = (("fp16", "gemv"), ("int4_g128", "fused"))


@pytest.fixture(scope="module")
def rows(h200):
    return strategies.gather(h200)


@pytest.fixture(scope="module")
def law(h200, rows):
    machine = strategies.machine(h200)
    return machine, perf_model.fit(rows[rows["clock"] == "graph"], machine)


def test_the_sweep_is_gated_and_has_the_source_s_rows_and_columns(h200, rows):
    """M89: both shapes at 1 to 32 tokens, every one of its 17 columns filled."""
    mine = rows[rows["study"] == "regimes"]
    assert (mine["error"] <= mine["error_budget"]).all()
    for shape in (MLP, QO):
        table = strategies.sweep(rows, shape, h200.roof["dram_read"].value).set_index("batch")
        assert {1, 2, 4, 8, 16, 32} <= set(table.index) and table.shape[1] == 16
        assert table.notna().all(axis=None)
    assert table.index.is_monotonic_increasing


def test_every_number_of_tokens_has_three_baselines(rows):
    """M90"""
    for shape in (MLP, QO):
        for batch in regimes.BATCHES:
            mine = rows[(rows["n"] == shape[0]) & (rows["k"] == shape[1]) & (rows["batch"] == batch)]
            for clock in regimes.CLOCKS:
                plain = mine[(mine["clock"] == clock) & (mine["kind"] == "baseline")]
                assert {("fp16", "cublas"), ("int4_g128", "two_op"), ("q8_0", "two_op")} <= set(
                    zip(plain["format"], plain["impl"], strict=True)
                )


def test_crossovers_have_intervals_and_depend_on_the_clock(rows):
    """M91: what a call costs both takes from the fused product's lead by kernels."""
    table = strategies.crossovers(rows, MLP, strategies.PAIRS[:1]).set_index("clock")
    assert set(table.index) == set(regimes.CLOCKS)
    lead = {}
    for clock in regimes.CLOCKS:
        ours, theirs = (
            strategies.of(rows, *way, MLP, clock).set_index("batch") for way in strategies.PAIRS[0]
        )
        lead[clock] = theirs.loc[1, "median_us"] / ours.loc[1, "median_us"]
    assert lead["graph"] > max(lead["event"], lead["wall"])
    assert table.loc["graph", "kind"] in ("first", "crosses")
    told = [strategies.crossovers(rows, shape, strategies.PAIRS[:1]) for shape in regimes.CLOCKED]
    assert all(set(each["clock"]) == set(regimes.CLOCKS) for each in told)
    found = strategies.crossovers(rows, QO, clocks=("graph",))
    crossed = found[found["kind"] == "crosses"]
    assert (
        len(crossed) and (crossed["low"] < crossed["at"]).all() and (crossed["at"] <= crossed["high"]).all()
    )
    shown = said("07_regimes.ipynb")
    assert all(clocks.found_words(row) in shown for _, row in table.iterrows())


def test_the_dispatcher_hands_over_as_tokens_grow(rows):
    """M93, M107: what it takes at each number of tokens is what was fastest; all of it can be reverted."""
    recorded = rows[(rows["study"] == "regimes") & (rows["clock"] == "graph")]
    for format in perf_model.FORMATS:
        for batch in regimes.BATCHES:
            choice = dispatch.choose(format, *MLP, batch, "h200", recorded=recorded)
            mine = recorded[(recorded["format"] == format) & (recorded["batch"] == batch)]
            mine = mine[(mine["n"] == MLP[0]) & (mine["k"] == MLP[1])]
            fastest = mine.sort_values("median_us").iloc[0]
            assert choice.strategy == fastest["impl"] and choice.why.startswith(
                "recorded on h200: 8960 x 1536"
            )
            with dispatch.reverted(format):
                back = dispatch.choose(format, *MLP, batch, "h200", recorded=recorded)
            assert perf_model.strategy(format, back.strategy).plain
    q8_0 = [dispatch.choose("q8_0", *MLP, b, "h200", recorded=recorded).strategy for b in (1, 16, 256)]
    assert len(set(q8_0)) == 3
    shown = said("07_regimes.ipynb")
    assert "reverted by reverted() from" in shown and "recorded on h200" in shown


def test_spreads_are_told_for_every_clock(rows):
    """M95: quartiles in every row, and their width in the page."""
    mine = rows[rows["study"] == "regimes"]
    assert (mine["q1_us"] <= mine["median_us"]).all() and (mine["median_us"] <= mine["q3_us"]).all()
    width = (mine["q3_us"] - mine["q1_us"]) / mine["median_us"]
    assert width[mine["clock"] == "graph"].median() < 0.03
    shown = said("07_regimes.ipynb")
    assert all(f"by `{clock}` " in shown for clock in regimes.CLOCKS) and "q3 - q1" in shown


def test_prompts_are_swept_by_their_length(h200, law):
    """M94: attention's share rises with the prompt, in traces and by the law."""
    machine, fit = law
    model = model_shapes.get(attribution.MODEL)
    share = extrapolation.attention_share(h200.store.read("attention"), model)
    assert share is not None and 0.1 < share < 1.1  # of a roof that a library reached
    lengths = (64, 512, 1848, 8192, 32768)
    by_law = extrapolation.prompt(model, lengths, machine, fit, "fp16", share, "90", "h200")
    assert by_law["pct"].is_monotonic_increasing and by_law["pct"].iloc[0] < 2 < 40 < by_law["pct"].iloc[-1]
    traced = time_breakdown.taken(h200, [*attribution.prefill(), *attribution.lengths()])[1]
    split = time_breakdown.by_class(traced.query("part != 'lm_head'")).pivot_table(
        "us", "seq", "class", fill_value=0
    )
    pct = split["attention"] / (split["attention"] + split["weight"])
    assert {64, 16384, 32768} < set(pct.index) and pct.iloc[-1] == pct.max()
    shown = said("07b_predicting.ipynb")
    assert "library, traced" in shown and "FP16 predicted" in shown


def test_products_lie_under_the_roofs_by_intensity(h200, rows):
    """M96"""
    read, peak = h200.roof["dram_read"].value, h200.roof["fp16_tensor"].value
    points = strategies.intensity(rows[rows["clock"] == "graph"])
    limit = (points["intensity"] * read / 1e3).clip(upper=peak)
    halves = points[points["format"] == "fp16"]
    assert (halves["tflop_s"] < 1.05 * limit[halves.index]).all()
    assert "under the roofs on NVIDIA H200" in said("07b_predicting.ipynb")


def test_the_law_explains_most_products_and_a_gpu_it_has_not_seen(law, rows):
    machine, fit = law
    compared = perf_model.compared(rows[rows["clock"] == "graph"], machine, fit)
    assert (compared["own_off"].abs() <= 25).mean() > 0.8 and (compared["one_off"].abs() <= 25).mean() > 0.5
    assert 1 < fit.launch_us < 6
    there = perf_model.scaled(device.get("rtx-4070-laptop"), machine, device.get("h200"))
    store = lab.open("replay", "rtx-4070-laptop-published").store
    kernels = extrapolation.unseen(extrapolation.laptop_kernels(store), there, fit)
    assert len(kernels) == 4 and kernels["off"].abs().max() < 20


def test_the_law_is_worked_out_for_a_product_by_its_own_rule(law, rows, monkeypatch, h200):
    """What is worked out ends in the time that the law has, for another peak too."""
    machine, fit = law
    for peak in (machine.peaks["fp16_tensor"], 2 * machine.peaks["fp16_tensor"]):
        here = replace(machine, peaks={**machine.peaks, "fp16_tensor": peak})
        said_here = []
        monkeypatch.setattr(lesson_07b.display, "say", said_here.append)
        timed = rows[(rows["clock"] == "graph") & (rows["impl"] == "mmq_tiles")]
        again, compared = lesson_07b.fitted(timed, here, "GPU", h200.store)
        monkeypatch.setattr(lesson_07b_worked.display, "say", said_here.append)
        lesson_07b.in_tiles(compared, here, again)
        bound = compared[compared["by"] == "compute"]
        nearest = bound.sort_values("one_off", key=abs).iloc[0]
        tiles = -(-int(nearest["n"]) // 128) * -(-int(nearest["batch"]) // 64)
        assert said_here[0].startswith("Fitted to") and "GPU, measured 20" in said_here[0]
        assert f"{tiles:,} on {here.sms} SMs" in said_here[-1] and f"÷ {here.sms} =" in said_here[-1]
        assert f"= {nearest['one_us']:,.2f} µs. Measured: {nearest['median_us']:,.2f}." in said_here[-1]


def test_a_share_of_a_peak_is_worked_out_for_ways_below_a_peak_alone(law, rows, monkeypatch):
    """On the product that the law's time was worked out on; where every way reaches its peak, on none."""
    machine, fit = law
    compared = perf_model.compared(rows[rows["clock"] == "graph"], machine, fit)
    low, far, short = lesson_07b_misses.below_the_peak(compared, fit)
    assert {"Q8_0 dp4a", "Q8_0 int8 large tiles"} <= set(low) and far / 4 < short < far
    told, tables = [], []
    monkeypatch.setattr(lesson_07b_misses.display, "say", told.append)
    monkeypatch.setattr(lesson_07b_tuned.display, "fold_parts", lambda _, parts: tables.append(parts))
    timed = rows[rows["clock"] == "graph"]
    lesson_07b.share_worked(compared, machine, fit)
    lesson_07b.ways(timed, machine, compared, fit)
    mine = compared[(compared["label"] == low[0]) & (compared["by"] == "compute")]
    top = mine[(mine["n"] == 8192) & (mine["k"] == 8192)].sort_values("batch").iloc[-1]
    assert f"{top['batch']:,} tokens" in told[0] and f"Measured: {top['median_us']:,.2f}" in told[0]
    assert f"2 × {fit.launch_us:.2f})" in told[0], "the same fixed time as in the product's time"
    assert f"tiles, {-(-top['n'] // 128 * -(-top['batch'] // 64) // machine.sms)} rounds: at" in told[0]
    assert "TOP/s, the peak" in told[0] and "one makes the activations int8" in told[0]
    words, numbers = tables[0][2], tables[0][3][0]
    assert len(numbers) == len(fit.own) == len(tables[0][1][0]) - 1, "the laptop's way has no numbers"
    large, own = numbers.set_index("way").loc["Q8_0 int8 large tiles"], fit.own["q8_0", "mmq"]
    assert (large["fixed"], large["share"]) == (f"2 × {own.launch_us:.2f}", f"{own.share:.0%}")
    assert "FLOPs decide no product of" in words
    told.clear()
    whole = replace(fit, own={key: own._replace(share=1.0) for key, own in fit.own.items()})
    assert lesson_07b_misses.below_the_peak(compared, whole) == ([], far, 0)
    lesson_07b.share_worked(compared, machine, whole)
    assert len(told) == 1 and told[0].startswith("No way is so far below")
    lesson_07b.ways(timed, machine, compared, whole)
    assert set(tables[-2][3][0]["share"]) == {"100%"} and "no product of" not in tables[-2][2]


def test_each_cause_of_a_failure_has_a_row_and_each_way_its_counts(law, rows, monkeypatch):
    """The causes sum to the failures; what is known of why follows from the recording's own roofs."""
    machine, fit = law
    compared = perf_model.compared(rows[rows["clock"] == "graph"], machine, fit)
    told, tables, here = [], [], lab.open("replay", "h200")
    monkeypatch.setattr(lesson_07b_misses.display, "say", told.append)
    monkeypatch.setattr(lesson_07b_misses.display, "table", lambda *given, **_: tables.append(given[0]))
    monkeypatch.setattr(lesson_07b_misses.diagram, "dealt", lambda *given: _Shown())
    lesson_07b.causes(compared, machine, fit)
    _, far, short = lesson_07b_misses.below_the_peak(compared, fit)
    table = tables[0].assign(cause=tables[0]["cause"].str.partition(":")[0]).set_index("cause")
    assert table.loc["k divided", "example"].startswith("Q8_0 FP16 wgmma in tiles, 1,536 × 8,960, ")
    assert f"{far} of {len(compared):,} products" in told[0] and table["rows"].sum() == far
    assert len(table) == 5 and table.loc["far below the peak", "rows"] == short
    assert table["rows"].iloc[:-1].is_monotonic_decreasing and table.index[-1] == "none of these"
    mended = (compared["one_off"].abs() > 25) & (compared["own_off"].abs() <= 25)
    name, matrix, tokens = table.loc["short products", "example"].rsplit(", ", 2)
    n, k = (int(each.replace(",", "")) for each in matrix.split(" × "))
    mine = compared[mended & (compared["n"] == n) & (compared["k"] == k) & (compared["batch"] == int(tokens))]
    assert name in set(mine["label"]), "its own fixed time explains the example"
    lesson_07b.divided(compared, machine, fit)
    assert (
        told[-1].startswith("**k divided: Q8_0 FP16 wgmma in tiles, 1,536 × 8,960")
        and "12 tiles for 132 SMs" in told[-1]
    )
    had, cut, seen = (
        float(re.search(words, told[-1])[1])
        for words in (r"The law has ([\d.]+)", r"would have ([\d.]+) with k in 11", r"Measured: ([\d.]+) µs")
    )
    assert cut < seen < had, "parts fill the SMs; adding them up is not in the law"
    lesson_07b.failures(compared, machine, fit, here)
    assert (
        "`copy`" in told[-1]
        and "Q8_0 two-op: weights are first" in told[-1]
        and f"<td>{far}</td>" not in told[-1]
    )
    counts = re.search(r"The tuned law mends (.*)\.\n", told[-1])
    assert counts and sum(int(each) for each in re.findall(r"(\d+) of", counts[1])) == mended.sum()
    late = compared[(compared["by"] == "memory") & (compared["one_off"] < -25)]
    lesson_07b.failures(late[late["label"] == "FP16 cuBLAS"].copy(), machine, fit, here)
    assert "Why was not measured." in told[-1], "nothing is known of these"
    exact, before = compared.assign(one_off=0.0), len(told)
    lesson_07b.causes(exact, machine, fit)
    lesson_07b.divided(exact, machine, fit)
    lesson_07b.failures(exact, machine, fit, here)
    assert told[-1] == f"The plain law misses 0 of {len(compared):,} products by more than 25%."
    assert len(told) == before + 1 and len(tables) == 1, "nothing failed"


class _Shown:
    """A drawing that is not looked at."""

    def show(self):
        return None


def test_the_tuned_law_is_tried_on_matrices_left_out(law, rows, monkeypatch):
    machine, fit = law
    timed = rows[rows["clock"] == "graph"]
    compared, apart = perf_model.compared(timed, machine, fit), perf_model.left_out(timed, machine)
    tables, told = [], []
    monkeypatch.setattr(lesson_07b_tuned.display, "table", lambda *given, **_: tables.append(given[0]))
    monkeypatch.setattr(lesson_07b_tuned.display, "say", told.append)
    assert len(apart) == len(compared) and set(apart.index) == set(compared.index)
    near = (apart["own_off"].abs() <= 25).mean()
    assert 0.6 < near < (compared["own_off"].abs() <= 25).mean(), "no better than on what was fitted"
    one = timed[(timed["n"] == MLP[0]) & (timed["k"] == MLP[1])]
    none = perf_model.left_out(one, machine)
    assert none.empty and "own_off" in none.columns
    lesson_07b.within_bounds(compared, apart, "GPU")
    assert list(tables[-1]["law"]) == ["plain", "tuned", "tuned"]
    assert tables[-1]["near25"].iloc[2] == f"{near:.0%}" and "third number" not in told[-1]
    lesson_07b.within_bounds(compared, none, "GPU")
    assert list(tables[-1]["law"]) == ["plain", "tuned"]
    third = lesson_07b.third_number(timed, machine)
    lesson_07b.within_bounds(compared, apart, "GPU", third)
    more = (third[2]["own_off"].abs() <= 25).mean()
    assert near < more < (third[1]["own_off"].abs() <= 25).mean()
    assert tables[-1]["near25"].iloc[3] == f"{more:.0%}" and "mends more" in told[-1]
    lesson_07b.within_bounds(compared, apart, "GPU", (third[0], compared, apart))
    assert "mends no more" in told[-1], "where it is worth nothing"
    lesson_07b.left(compared, machine, fit)
    assert "leave SMs idle" in told[-1] and "% (median)" in told[-1]


def test_a_third_number_is_fitted_and_predicts_with_its_share_of_the_bandwidth(law, rows):
    """Made-up products at a known share of the bandwidth give it back; two numbers do not."""
    machine, _ = law
    how = perf_model.strategy("fp16", "cublas")
    sizes = [(n, 1536, batch) for n in (8192, 16384, 65536) for batch in (1, 16)]
    us = [5.0 + perf_model.moved(how, *each) / (0.6 * machine.gb_s) / 1e3 for each in sizes]
    made = pd.DataFrame(sizes, columns=["n", "k", "batch"]).assign(
        format="fp16", impl="cublas", median_us=us, label="FP16 cuBLAS"
    )
    own = perf_model.fit(made, machine, perf_model.REACHES).own["fp16", "cublas"]
    assert own.reach == pytest.approx(0.6, abs=0.041) and own.launch_us == pytest.approx(5, rel=0.3)
    assert perf_model.fit(made, machine).own["fp16", "cublas"].reach == 1
    third = perf_model.fit(made, machine, perf_model.REACHES)
    assert perf_model.compared(made, machine, third)["own_off"].abs().max() < 10


def test_the_laws_are_counted_beside_the_tuned_one(law, rows, monkeypatch):
    machine, fit = law
    told, tables = [], []
    monkeypatch.setattr(lesson_07b_crossings.display, "say", told.append)
    monkeypatch.setattr(lesson_07b_tuned.display, "table", lambda *given, **_: tables.append(given))
    races = lesson_07b.races_by_law(rows, machine, fit)
    compared = perf_model.compared(rows[rows["clock"] == "graph"], machine, fit)
    apart = perf_model.left_out(rows[rows["clock"] == "graph"], machine)
    lesson_07b.within_bounds(compared, apart, "GPU", (fit, compared, apart), races)
    table = tables[0][0]
    assert list(table["numbers"]) == ["1", "2 a way", "2 a way", "3 a way"]
    assert [bool(each) for each in table["stay"] + table["cross"]] == [True] * 4
    cross = lesson_07b.crossovers(races)
    assert f"names it in {table['stay'].iloc[1]} pairs" in told[1]
    assert f"finds the crossover in {table['cross'].iloc[1]} pairs" in told[1]
    assert table["cross"].iloc[1].endswith(f"of {len(cross)}")
    nothing = {law: (each[0].iloc[:0], each[1].iloc[:0]) for law, each in races.items()}
    lesson_07b.within_bounds(compared, apart, "GPU", None, nothing)
    assert "stay" not in tables[1][0] and "cross" not in tables[1][0], "no pair was recorded"
    lesson_07b.crossovers(nothing)
    assert told[-1] == "No pair was recorded that the law could predict."


def test_a_missed_crossover_is_drawn_with_the_laws_errors_where_curves_cross(law, rows, monkeypatch):
    """Of the first pair that crosses and is missed; of one that the law tells where it misses none."""
    machine, fit = law
    told, drawn = [], []
    monkeypatch.setattr(lesson_07b_crossings.display, "say", told.append)
    monkeypatch.setattr(lesson_07b_crossings.plot, "show", lambda fig, caption: drawn.append((fig, caption)))
    lesson_07b.crossing_drawn(rows, machine, fit)
    assert len(told) == 1 and told[0].startswith("**Why a crossover is harder") and "The law has" in told[0]
    assert re.search(r"the time of INT4 fused grows [12]\.\d times", told[0])
    assert drawn[0][1].startswith("INT4 fused and FP16 cuBLAS, 8,960 × 1,536: measured they cross between")
    seen = strategies.crossovers(rows, MLP, strategies.PAIRS[:1], clocks=("graph",)).iloc[0]
    guess = extrapolation.predicted_crossover(strategies.PAIRS[0], MLP, machine, fit)
    assert (
        f"{seen['low']:.0f} and {seen['high']:.0f} tokens, by the tuned law at {guess} tokens" in drawn[0][1]
    )
    lines = [line for line in drawn[0][0].axes[0].lines if "by the law" in str(line.get_label())]
    assert len(lines) == 2 and all(max(line.get_xdata()) > guess for line in lines)
    lesson_07b.crossing_drawn(rows[rows["batch"] < 8], machine, fit)
    assert len(told) == len(drawn) == 1, "nothing crosses there"
    told_one = rows[rows["impl"].isin(("mma", "cublas")) & (rows["n"] == MLP[0])]
    lesson_07b.crossing_drawn(told_one, machine, fit)
    assert "Q8_0 int8 small tiles and FP16 cuBLAS" in drawn[1][1] and "harder" not in told[1]
    assert "grows" not in told[1]


def test_a_bar_of_the_map_is_worked_out_by_the_law_s_own_rule(law, rows, h200, monkeypatch):
    """Its two times are the map's; of the ways that the law names and that was fastest each is there, with
    the measured time; of a share it is said whether it is one of arithmetic, unless it is whole.
    """
    machine, fit = law
    spec, told, folded = device.get("h200"), [], []
    timed = rows[rows["clock"] == "graph"]
    compared = perf_model.compared(timed, machine, fit)
    monkeypatch.setattr(lesson_07b_map.display, "say", told.append)
    monkeypatch.setattr(lesson_07b_map.plot, "show", lambda *_: None)
    monkeypatch.setattr(lesson_07b_map.display, "fold_parts", lambda _, parts: folded.append(parts))
    every = lesson_07b.explore(machine, fit, spec)[1]
    mapped = lesson_07b.gains(every)
    lesson_07b.gain_by_gpu(mapped, every, timed, spec)
    slow, fast = mapped["one"].iloc[0], mapped["one"].iloc[-1]
    assert told[0].startswith(f"**Slow memory: about {slow:.1f}×. Fast memory: about {fast:.1f}×.**")
    kernels = lesson_07b_elsewhere.laptop_known(machine, spec, fit)[2]
    lesson_07b.bars_worked(mapped, every, kernels, machine, fit, spec)
    assert "; published, 3.5" in told[1] and "of INT4's time on the RTX 4070 Laptop" in told[1]
    lesson_07b.cautioned(mapped, every, timed, compared, machine, fit, spec)
    lesson_07b.bar_told(mapped, every, compared, machine, fit, spec)
    (table, *_), gains, shares = folded[0]
    assert list(table["way"]) == ["FP16 GEMV", "INT4 fused", "INT4 fused in rows"]
    for row in table.itertuples():
        fixed, longer, time = map(float, re.findall(r"[\d.]+", row.law))
        assert longer == max(float(row.bytes), float(row.flops.split()[0]))
        assert time == pytest.approx(fixed + longer, abs=0.011)
    least = compared[(compared["n"] == MLP[0]) & (compared["k"] == MLP[1]) & (compared["batch"] == 1)]
    least = least[least["format"] == "int4_g128"]["median_us"].min()
    assert table.set_index("way").loc["INT4 fused", "us"] == f"{least:.2f}" and f"÷ {least:.2f} =" in gains
    assert "the law names the wrong INT4 kernel" in told[2]
    assert "16 of 18 bars" in told[2] and "fitted to 8 products" in told[2]
    assert "in rows is arithmetic" in shares
    assert f"= {mapped.set_index('gpu').loc['H200', 'one']:.2f} by the law" in gains
    lesson_07b.kink(every, mapped, timed, spec)
    assert re.search(r"ahead up to \d+ tokens on the H200; measured, up to \d+\.", told[3])
    whole = replace(fit, own={key: own._replace(share=1.0) for key, own in fit.own.items()})
    lesson_07b.bar_told(mapped, every, compared, machine, whole, spec)
    assert len(folded[1]) == 2, "no share is below 100%"
    slow = compared.assign(median_us=compared["median_us"].where(compared["impl"] != "fused", 99.0))
    lesson_07b.cautioned(mapped, every, timed, slow, machine, fit, spec)
    lesson_07b.bar_told(mapped, every, slow, machine, fit, spec)
    assert "the law names INT4's fastest kernel" in told[-1] and len(folded[2][0][0]) == 2
    lesson_07b.cautioned(mapped, every, timed, compared.iloc[:0], machine, fit, spec)
    lesson_07b.bar_told(mapped, every, compared.iloc[:0], machine, fit, spec)
    assert "measured: " not in told[-1] and len(folded) == 3, "nothing was measured there"
    gemv = fit.own["fp16", "gemv"]._replace(share=0.05)  # slower than its bytes, by the law
    slow = replace(fit, own={**fit.own, ("fp16", "gemv"): gemv})
    lesson_07b.bar_told(mapped, every, compared, machine, slow, spec)
    assert "FP16 GEMV was measured at one token alone" in folded[3][2]


def test_the_dispatcher_s_own_table_is_the_recording(h200, monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLAB_STORE", str(tmp_path))  # nothing of this machine's own
    table = dispatch.table("h200")
    assert len(table) > 300 and set(table["format"]) == set(perf_model.FORMATS)
    machine, fit = dispatch.reference()
    assert machine == strategies.machine(h200) and fit.rows == len(table)
    assert dispatch.choose("int4_g128", *MLP, 1, "rtx-4090").why.startswith("predicted, fitted on h200")


def test_a_gain_over_cublas_has_one_over_the_gemv_beside_it(rows):
    gain = strategies.gains(rows, "int4_g128")
    over = strategies.over_gemv(gain, rows)
    us = [strategies.of(rows, *way, MLP, "graph").set_index("batch")["median_us"][1] for way in _ONE_TOKEN]
    assert over[MLP] == pytest.approx(us[0] / us[1])
    assert strategies.over_gemv(gain, rows[rows["impl"] != "gemv"]).empty
    assert strategies.over_gemv(gain.drop(columns=1), rows).empty
    shown = said("07_regimes.ipynb")
    assert f"over it INT4's gain is {over[MLP]:.2f}" in shown and "as fast as FP16 cuBLAS" in shown


def test_an_order_that_is_not_recorded_everywhere_says_what_runs_there():
    held = ["Q8_0 in all three orders"] * 3 + ["Q8_0 in tile order"] * 3
    picks = pd.DataFrame({"held": held, "format": "q8_0", "tokens": [1, 4, 24] * 2})
    picks["orders"] = [None] * 3 + [("tiles",)] * 3
    picks["why"] = ["1", "4", "32", "8", "8", "32"]
    picks["us"], picks["at"] = [7.0, 8.0, 10.0, 11.5, 11.5, 10.0], [1, 4, 32, 8, 8, 32]
    text = choices._cost_of_one(picks, "Q8_0 in tile order")
    assert "loses nothing at 24 tokens. It is not recorded at 1 and 4" in text
    assert "recorded for 8 tokens runs, in 11.5 µs; with every order it takes 7.0 and 8.0" in text
    picks.loc[5, "us"] = 15.0
    assert "takes up to 1.50 times as long (at 24 tokens)" in choices._cost_of_one(
        picks, "Q8_0 in tile order"
    )


def test_two_launches_that_take_twice_one_read_the_weights_again():
    loops = {"n": MLP[0], "k": MLP[1], "clock": "graph", "cache": "cold", "batch": [1, 2]}
    store = pd.concat(
        [
            pd.DataFrame(loops | {"impl": "1_warp_row", "options": "loop=1", "median_us": [11.0, 22.0]}),
            pd.DataFrame(loops | {"impl": "torch.matmul", "options": "", "median_us": [10.0, 10.0]}),
        ]
    )
    told = clocks._read_again(store, MLP, "H200")
    assert "11.0 µs for one on the H200, kernels alone, and 22.0 for two" in told
    assert "not in this page's sweep, takes 10.0 and 10.0" in told
    assert clocks._read_again(store.assign(median_us=10.0), MLP, "H200") == ""
    assert clocks._read_again(store[store["batch"] == 1], MLP, "H200") == ""
