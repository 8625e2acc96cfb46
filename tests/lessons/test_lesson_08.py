"""What lesson 08 claims of the recorded H200, and that its pages say what the rows say."""

import re
from dataclasses import fields

import pandas as pd
import pytest
from pages_read import said, turned
from rooflab import claims, engine, lab
from rooflab.analysis import ablation
from rooflab.errors import UsageError
from rooflab.numerics import model_shapes
from rooflab.ops import batch_plan
from rooflab.pages import (
    NEAR,
    held,
    lesson_08_clock,
    lesson_08_ladder,
    lesson_08_law,
    lesson_08_phases,
    lesson_08_predictions,
    lesson_08_steps,
    lesson_08_timeline,
    lesson_08b,
    lesson_08b_kinds,
    lesson_08b_loads,
    lesson_08c,
    lesson_08d,
)
from rooflab.studies import attribution, decode, decode_checks, hf, prefill
from rooflab.view import diagram


@pytest.fixture(scope="module")
def rows(h200):
    return ablation.named(h200.measure("decode", h200.cases("decode")))


@pytest.fixture(scope="module")
def level(rows):
    """Rows in which Q8_0's last rungs take as long as INT4's fastest, which reads fewer bytes."""
    tops = {f: ablation.best(rows, decode.MODEL, f)["median_us"] for f in ("q8_0", "int4_g128")}
    slower = (rows.model == decode.MODEL) & (rows.batch == 1) & (rows.seq == decode.PROMPT)
    slower &= (rows.format == "q8_0") & rows.usual & rows.impl.isin(decode.RUNGS[-2:])
    factor = 1 + (tops["int4_g128"] / tops["q8_0"] - 1) * slower
    return rows.assign(
        **{name: rows[name] * factor for name in ("median_us", "q1_us", "q3_us")}, tok_s=rows.tok_s / factor
    )


@pytest.fixture(scope="module")
def prompts(h200):
    return h200.measure("prefill", h200.cases("prefill"))


@pytest.fixture(scope="module")
def checks(h200):
    return ablation.answers(h200.profile("decode", decode_checks.cases("full", h200.sized), "checks"))


def test_both_ladders_are_gated_promised_and_complete(rows, prompts):
    """M105: every step of ours in every format, judged before it was timed, with what was promised of it."""
    for format in decode.FORMATS:
        climb = ablation.ladder(rows, format)
        own = climb[climb["kind"] == "own"]
        assert (own["error"] <= own["error_budget"]).all()
        assert own["predicted_us"].notna().all() and climb["gain"].iloc[1:].notna().all()
        assert set(decode.rungs()) <= set(own["impl"])
        speed, gain = own.set_index("impl")["tok_s"], own.set_index("impl")["gain"]
        for name in ("5_prefetch_at_barrier", "6_producer_warps"):  # not over each other, nor over 4_tma
            assert gain[name] == speed[name] / speed["3_persistent"]
    ours = prompts[prompts["kind"] == "own"]
    assert (ours["error"] <= ours["error_budget"]).all()
    for format in ("fp16", "q8_0"):
        climb = ablation.prompts(prompts, format, prefill.TRACED)
        assert set(prefill.ways(format)) <= set(climb["impl"])
        first, last = (climb[climb["impl"] == name]["tok_s"].iloc[0] for name in ("1_scalar", "6_graph"))
        assert last > 3 * first


def test_the_engine_is_faster_than_every_peer_on_this_gpu(h200, rows):
    """M105: in each format, transformers here and llama.cpp as published."""
    published = lab.open("replay", "h200-peers").store
    found = ablation.peers(rows, h200.store, published)
    for ours, other in (("fp16", "fp16"), ("q8_0", "q8_0"), ("int4_g128", "q4_0")):
        mine = found[(found["format"] == ours) & found["name"].str.startswith("ours")]["tok_s"].iloc[0]
        theirs = found[(found["format"] == other) & ~found["name"].str.startswith("ours")]["tok_s"]
        assert len(theirs) and mine > theirs.max()


def test_the_library_runs_beside_both_models(rows):
    """Eager and in a graph, the small one compiled too: the same weights, the same gate, the same run."""
    for model, ways in ((decode.MODEL, hf.VARIANTS), (decode.LARGE, hf.VARIANTS[:2])):
        mine = rows[(rows["model"] == model) & (rows["batch"] == 1) & (rows["format"] == "fp16")]
        peers = mine[mine["kind"] == "peer"]
        assert set(peers["impl"]) == set(ways) and (peers["error"] <= peers["error_budget"]).all()
        interpreted = peers[
            peers["impl"] != attribution.COMPILED
        ]  # which a recording may have elsewhere alone
        assert interpreted["predicted_us"].notna().all()
        ours = mine[mine["impl"].isin(decode.RUNGS) & (mine["seq"] == decode.PROMPT)]
        assert set(ours["steps"]) == {decode.STEPS}


def test_pages_say_what_the_rows_say(rows, prompts):
    page = said("08_decoder.ipynb")
    for format in decode.FORMATS:
        for us in ablation.ladder(rows, format)["median_us"]:
            assert f"<td>{us:,.0f}</td>" in page
    best = ablation.best(rows, decode.MODEL, "int4_g128")
    assert f"**{best['tok_s']:,.0f} tok/s**" in page
    beside = ablation.peers(rows, lab.open("replay", "h200").store, lab.open("replay", "h200-peers").store)
    beside = beside[beside["format"] == "fp16"].set_index("name")["tok_s"]
    if beside["llama.cpp"] > beside[decode.COMPILED]:
        assert f"{beside.iloc[0] / beside['llama.cpp']:.2f} times the published rate of llama.cpp" in page
    page = said("08b_prefill.ipynb")
    for format in ("fp16", "q8_0"):
        for rate in ablation.prompts(prompts, format, prefill.TRACED)["tok_s"]:
            assert f"{rate:,.0f}" in page


def test_goals_are_judged_by_rows_and_stand_on_the_pages(h200, rows, prompts):
    traced = h200.profile("prefill", prefill.traced(), "cupti")
    tables, profiles = {"decode": rows, "prefill": prompts}, {("prefill", "nsys"): traced}
    goals = [*claims.select("08_decoder"), *claims.select("08b_prefill")]
    goals = [goal for goal in goals if goal.source == claims.COURSE]
    verdicts = claims.board(goals, claims.Evidence(h200.store, tables, profiles))
    assert len(verdicts) == 16 and claims.UNRECORDED not in set(verdicts["word"])
    shown = said("08_decoder.ipynb") + said("08b_prefill.ipynb")
    for verdict in verdicts.itertuples():
        assert f"<td>{verdict.id}</td>" in shown and f"<td>{verdict.measured}</td>" in shown
        if verdict.id[0] == "F" and verdict.word == claims.SHORT:
            assert f"{verdict.id} ({verdict.says}: " in shown, "a missed floor is said outside the fold"
    with pytest.raises(claims.NoEvidence):
        ablation.best(rows[:0], decode.MODEL, "fp16")


def test_weights_resident_as_q8_0_are_multiplied_as_q8_0(h200):
    """At least half of the products' time is our int8 products', and peak memory has no room for FP16."""
    traced = h200.profile("prefill", prefill.traced(), "cupti")
    assert set(ablation.pie(traced)["seq"]) == set(prefill.PROMPTS)  # before and after, at every length
    assert ablation.mmq_share(traced, prefill.share_case().id) > 0.5
    asked_of = [case for case in h200.cases("prefill") if case.model == decode.MODEL]
    memory = h200.profile("prefill", prefill.memory(asked_of), "checks")
    last = f"{prefill.ways('q8_0')[-1]} format=q8_0"
    mine = memory[memory["case"].str.contains(last) & memory["case"].str.contains("seq=512 ")]
    values = mine.set_index("quantity")["value"].astype(float)
    assert values["peak bytes"] < 2 * values["weight bytes"]


def test_every_switch_has_a_path_that_ran(checks):
    """M103: each field of Paths is thrown by some recorded path, and every path counted itself."""
    paths = checks[checks["question"] == "agreement"]
    assert (paths["ran"] >= 1).all() and (paths["ran instead"] == 0).all()
    usual = engine.Paths()
    thrown = {
        field.name
        for way in engine.PROMPTS.values()
        for field in fields(engine.Paths)
        if getattr(way, field.name) != getattr(usual, field.name)
    }
    assert thrown | {"decode"} == {field.name for field in fields(engine.Paths)}
    assert {
        "torch",
        "products",
        *decode.rungs(),
        *(f"prompt.{name}" for name in prefill.ways("fp16")),
    } <= set(paths["impl"])


def test_every_path_says_what_float64_says(checks):
    """M104: argmax, four of the five likeliest, logits within 1 and within the budget."""
    paths = checks[checks["question"] == "agreement"]
    assert (paths["likeliest"] == 1).all() and (paths["top 5"] >= 4).all()
    assert (paths["largest error"] < 1).all() and (paths["largest error"] <= paths["allowed"]).all()
    beside = paths[paths["format"] == "fp16"]  # two of the same precision are within the sum of their errors
    assert (beside["from transformers"] <= 2 * beside["allowed"]).all()
    firsts = [decode_checks.plainest(*row) for row in zip(paths["impl"], paths["format"], strict=True)]
    assert (paths["same bits"].notna() == (paths["impl"] != firsts)).all()
    assert f"{paths['largest error'].max():.3f}" in said("08d_trust.ipynb")


def test_a_thousand_runs_are_one_and_ten_thousand_steps_lose_nothing(h200, checks):
    """M98"""
    repeated, long = (checks[checks["question"] == question] for question in ("repeated", "long"))
    fastest = {(format, decode.best(format, h200.sized)) for format in decode.FORMATS}
    assert fastest == set(zip(repeated["format"], repeated["impl"], strict=True))
    assert {("int4_g128", decode.best("int4_g128", h200.sized))} == set(
        zip(long["format"], long["impl"], strict=True)
    )
    assert (repeated["runs"] >= 1000).all() and (repeated["distinct"] == 1).all()
    assert not repeated["same though other prompts"].any()
    assert (long["steps"] >= 10_000).all() and (long["bytes gone"] < 100e6).all()
    assert not long["not numbers"].any()
    one = checks.set_index("question")
    assert one.loc["sampled", "distinct"] == 1
    assert one.loc["refused", "turned away"] == one.loc["refused", "wrong inputs"] >= 5
    assert not one.loc["refused", "changed afterwards"] and not one.loc["refused", "moved by them"]


def test_joules_fall_as_sequences_share_a_pass(checks):
    energy = checks[(checks["question"] == "energy") & (checks["impl"] != "idle")]
    ours = energy[energy["impl"] != "transformers.graph"]
    alone = ours[ours["batch"] == 1].set_index("format")["joules a token"]
    for (_, kind), mine in ours[ours["batch"] > 1].groupby(["impl", "format"]):
        joules = [alone.get(kind, float("inf")), *mine.sort_values("batch")["joules a token"]]
        assert len(joules) == 3 and joules == sorted(joules, reverse=True)
    assert (energy["watts"] > checks[checks["impl"] == "idle"]["watts"].iloc[0]).all()


def test_the_fastest_of_a_batch_is_called_the_cheapest_only_where_it_is(checks, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08b_loads.display, "say", texts.append)
    energy = checks[(checks["question"] == "energy") & (checks["impl"] != "idle")]
    lesson_08b_loads.joules_explained(energy)
    assert re.search(r"in \w+, 32 sequences, `batch_dependent` makes [\d,]+ tok/s for", texts[0])
    lesson_08b_loads.joules_explained(energy[energy["impl"] != "batch"])
    assert "not always the cheapest" not in texts[1] and "sharing a reading" in texts[1]


def test_a_prompt_is_taken_apart_from_its_bound_on_where_it_was_traced(h200, prompts, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08b_kinds.display, "say", texts.append)
    monkeypatch.setattr(lesson_08b_kinds.display, "table", lambda *_, **__: None)
    traced = h200.profile("prefill", prefill.traced(), "cupti")
    peaks = {name: h200.roof[name].value for name in ("dram_read", "fp16_tensor")}
    bound = lesson_08b.bounds(model_shapes.get(decode.MODEL), peaks)
    pie = ablation.pie(traced)
    lesson_08b_kinds.beyond_the_bound(pie, prompts, bound, prefill.TRACED)
    took = re.search(r"From the bound, \d\.\d ms, to the (\d+\.\d) ms", texts[0])
    assert took and "near the roof" in texts[0]
    found = [float(each) for each in re.findall(r"(?:take|takes|gating|remaining) (\d+\.\d)", texts[0])]
    assert len(found) == 4 and sum(found) == pytest.approx(float(took[1]), abs=0.15)
    lesson_08b_kinds.beyond_the_bound(pie, prompts, bound.assign(ms=1.0), prefill.TRACED)
    assert "near the roof" not in texts[1]
    lesson_08b_kinds.beyond_the_bound(pie[:0], prompts, bound, prefill.TRACED)
    assert len(texts) == 2


def test_the_engine_decodes_by_the_fastest_recorded_way(h200, rows, monkeypatch):
    """By model, format and context; within 1 % two recordings disagree on which of two is faster."""
    monkeypatch.setattr(batch_plan, "sms", lambda: h200.sized.sms)
    mine = rows[rows["impl"].isin(decode.ALONE) & (rows["batch"] == 1) & rows["usual"]]
    compared, chains = 0, set()
    for (model, format, seq), found in mine.groupby(["model", "format", "seq"]):
        us = found.groupby("impl")["median_us"].min()
        chosen = decode.best(str(format), h200.sized, str(model), int(seq))
        shape, formats = engine.spec(str(model)).shape, (str(format), decode.FORMATS[str(format)])
        if batch_plan.is_fastest(shape, *formats, "90", int(seq)):
            chosen = decode.CHAIN
            chains.add((model, format))
        if chosen not in us.index:  # newer than the recording
            continue
        assert us[chosen] <= 1.01 * us.min(), (model, format, seq, chosen, us.to_dict())
        compared += len(us) > 1
    assert chains == {(decode.LARGE, "fp16")}
    # Three formats: of both models after the short prompt, of the small one after others.
    assert compared >= 9
    assert not batch_plan.is_fastest(engine.spec(decode.LARGE).shape, "fp16", "fp16", "90", 4096)
    assert not batch_plan.is_fastest(engine.spec(decode.LARGE).shape, "fp16", "fp16", "89", 128)


def test_the_law_of_phases_fits_formats_and_models(h200, rows):
    last = decode.best("fp16", h200.sized)
    fixed, rate, table = ablation.law(rows, last, h200.roof["dram_read"].value)
    assert len(table) >= 6 and 0 < fixed < 10 and rate <= 1.001 * h200.roof["dram_read"].value
    page, mine = said("08_decoder.ipynb"), table.assign(phases=[*map(ablation.phases_of, table["model"])])
    each = (mine["median_us"] - mine["bytes"] / rate / 1e3) / mine["phases"]
    assert f"a phase costs {each.min():.2f} to {each.max():.2f} µs" in page
    drawn = diagram.phase_costs(mine.assign(each=each, mb_phase=1.0), fixed)
    assert f"{each.max():.2f} µs" in drawn.says and f"the law: {fixed:.2f} µs for all" in drawn.svg()
    assert diagram.phase_costs(mine.assign(each=2 * each, mb_phase=1.0), fixed).svg() != drawn.svg()
    with pytest.raises(UsageError, match="at least one row"):
        diagram.phase_costs(mine.iloc[:0], fixed)


def even(rows, h200):
    """The rows with a time at which every phase costs two microseconds beside its bytes."""
    roof, phases = h200.roof["dram_read"].value, rows["model"].map(ablation.phases_of)
    us = 2 * phases + rows["bytes"] / roof / 1e3
    return rows.assign(median_us=us.where(rows["model"] != decode.GEMMA, rows["median_us"]))


def test_the_law_says_why_its_cost_is_not_one_number_only_where_it_is_not(h200, rows, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08_law.display, "say", texts.append)
    rows = rows[rows["model"] != decode.GEMMA]
    for found in (rows, even(rows, h200)):
        lesson_08_law.law_fitted(h200, found, h200.roof["dram_read"], "G")
    assert "not one number" in texts[0] and "The fewer bytes a phase has" in texts[0]
    assert "bytes count one way within a model" in texts[0] and "\n\nNot explained: " in texts[0]
    assert "about one number" in texts[1] and "What the rows say" not in texts[1]
    assert "opposite" not in texts[1] and "Not explained" not in texts[1]


def test_a_prediction_is_worked_and_its_miss_explained_where_it_missed(h200, rows, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08_predictions.display, "say", texts.append)
    here = rows[(rows["model"] == decode.MODEL) & (rows["batch"] == 1) & (rows["seq"] == decode.PROMPT)]
    lesson_08_predictions.worked_prediction(here, "int4_g128", h200)
    (row,) = here[(here["impl"] == "3_persistent") & (here["format"] == "int4_g128")].to_dict("records")
    assert f"Together {row['predicted_us']:,.0f} µs a token" in texts[0] and "141 grid barriers" in texts[0]
    assert f"measured **{row['median_us']:,.0f}**" in texts[0] and "of a bare barrier" in texts[0]
    lesson_08_predictions.worked_launches(here, "fp16", h200)
    (first,) = here[(here["impl"] == "1_kernel_per_phase") & (here["format"] == "fp16")].to_dict("records")
    assert f"Together {first['predicted_us']:,.0f} µs a token" in texts[1] and "leaves out" in texts[1]
    lesson_08_predictions.worked_launches(here.assign(predicted_us=1e4), "fp16", h200)
    assert len(texts) == 2, "parts that no longer add up are not said"
    lesson_08_predictions.worked_overlap(here, "int4_g128")
    assert "each of 141 launches costs" in texts[2] and "the launch alone" in texts[2]
    kept = here.assign(predicted_us=here["median_us"])
    lesson_08_predictions.worked_overlap(kept, "int4_g128")
    lesson_08_predictions.worked_overlap(here.assign(predicted_us=1.0), "int4_g128")
    assert len(texts) == 4 and "the launch alone" not in texts[3]
    assert lesson_08_predictions.why_missed(kept, "int4_g128", h200) == ""
    assert lesson_08_predictions.why_missed(here.iloc[:0], "int4_g128", h200) == ""
    clocks = lesson_08_clock.taken(h200)
    for shown, by in (
        (here, clocks),
        (here, {}),
        (here.assign(median_us=1.0), clocks),
        (here.iloc[:0], clocks),
    ):
        lesson_08_predictions.cheaper_though_dearer(shown, "int4_g128", h200, by)
    assert re.search(r"1\.\d\d and 0\.\d\d µs", texts[4])
    assert re.search(r"takes 1\.\d\d µs less than in `2_pdl`, in INT4", texts[4])
    assert "the ring's was not measured" in texts[4] and texts[5].endswith("in INT4.") and len(texts) == 6


def test_what_is_left_follows_the_rows(h200, rows, level, monkeypatch):
    texts, drawn = [], []
    monkeypatch.setattr(lesson_08_phases.display, "say", texts.append)
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: drawn.append(drawing.says))
    us, roof = rows["bytes"] / 1e6, h200.roof["dram_read"]  # every way at one rate
    for found in (level, rows.assign(tok_s=1e6 / us, median_us=us, q1_us=us, q3_us=us)):
        climbs = lesson_08_ladder.climbed(found)
        here = found[(found["model"] == decode.MODEL) & (found["batch"] == 1)]
        here = here[here["seq"] == decode.PROMPT]
        lesson_08_phases.what_is_left(here, climbs, roof, "G", {})
        lesson_08_steps.losses(climbs, "int4_g128", found, {})
        lesson_08_ladder.larger_model(found, h200)
    assert "A token's 141 phases" in texts[0] and "a phase costs about as much in every format" in texts[1]
    tops = {format: ablation.best(level, decode.MODEL, format)["median_us"] for format in decode.FORMATS}
    assert f"**INT4 is level with Q8_0, {tops['int4_g128']:.0f} and {tops['q8_0']:.0f}" in texts[1]
    assert "With equal heads INT4 makes" not in texts[1]
    assert re.search(r"\d steps lose in INT4: 4_tma", texts[2]) and "Why was not measured." in texts[2]
    assert "llama-3-8b: where other rungs come first" in texts[3]
    large = ablation.best(rows, decode.LARGE, "fp16")
    assert large.impl == decode.CHAIN and "- In FP16 `chain` is the fastest" in texts[3]
    assert re.search(
        r"It is 1\.0\d times as fast as `7_split_k` in FP16, at 1,\d+ MHz against 1,\d+", texts[3]
    )
    assert re.search(r"It takes 1\.\d\d times as long in Q8_0 and 1\.\d\d times as long in INT4 as", texts[3])
    assert (
        "- A token by `7_split_k` in FP16 takes" in texts[3] and "holds the clock down for power" in texts[3]
    )
    assert "launches of 128 tokens, the times below of 32" in texts[3]
    assert f"makes **{1e6 / tops['int4_g128']:,.0f} tok/s**, level with Q8_0, 4" in texts[0]
    assert "is level with" not in "".join(texts[4:])
    assert "No step is slower than the one that it builds on." in texts[4:]
    told = rf"INT4, {decode.RUNGS[-1]}: {tops['int4_g128']:.0f} µs, 2\d\d and 141 × 2\.\d\d"
    assert re.search(told, drawn[0]) and drawn[1] != drawn[0]
    assert " times (FP16 heads)" in lesson_08_ladder.equal_heads(lesson_08_ladder.climbed(level), level)
    with pytest.raises(UsageError, match="at least one row"):
        diagram.beside_bytes(rows.iloc[:0])


def test_why_a_phase_costs_more_in_small_formats_is_said_with_the_rows_against_it(h200, rows, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08_phases.display, "say", texts.append)
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: None)
    clocks = lesson_08_clock.taken(h200)
    rows = rows[rows["impl"] != decode.RUNGS[-1]]  # as if the last rung that was clocked were the fastest
    climbs, roof = lesson_08_ladder.climbed(rows), h200.roof["dram_read"]
    small = rows[(rows["model"] == decode.MODEL) & rows["usual"]]
    one = {key: clocks[key[0], "int4_g128"] for key in clocks if key[1] == "int4_g128"}
    launched = small.assign(
        median_us=small["median_us"].where(small["impl"] != "2_pdl", small["bytes"] / 1e7)
    )
    for found, by in ((rows, clocks), (rows, one), (small, clocks), (launched, clocks)):
        lesson_08_phases.what_is_left(found, climbs, roof, "G", by)
    whole, unclocked, bare, early = texts[1::2]
    assert "on products in FP16, though its bytes take" in whole and "By the clock" not in unclocked
    assert re.search(r"\n- Q8_0 with an output head in FP16 has more bytes .* in place of 1\.\d\d\.\n", whole)
    assert re.search(rf"\n- A phase of {decode.LARGE} has about 4 times the bytes", whole)
    assert "This is a hypothesis." in bare and decode.LARGE not in bare
    assert "copies fill waits" not in early, "a rung before the persistent one copies nothing while it waits"


def test_predictions_that_missed_are_counted_in_the_open(rows, monkeypatch):
    texts = []
    monkeypatch.setattr(lesson_08_predictions.display, "say", texts.append)
    climbs = lesson_08_ladder.climbed(rows)
    lesson_08_predictions.predictions_in_all(climbs, "int4_g128")
    right = {each: climb.assign(off=1.0) for each, climb in climbs.items()}
    lesson_08_predictions.predictions_in_all(right, "int4_g128")
    assert texts[0].startswith("**2 of 4 predictions in INT4 missed by more than 25%.**")
    assert texts[1].startswith("**None of 4 predictions in INT4 missed")


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.0, r"equal output heads, in FP16, .* it makes 1\.\d\d times .* in place of 1\.\d\d\.$"),
        (0.8, r"save \d+ µs at the read roof and no time: beside them a phase costs"),
        (1.2, r"fewer bytes\.\*\*$"),
    ],
)
def test_equal_heads_say_where_the_fewer_bytes_go(h200, level, monkeypatch, factor, said):
    texts = []
    monkeypatch.setattr(lesson_08_phases.display, "say", texts.append)
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: None)
    here = level[(level.model == decode.MODEL) & (level.batch == 1) & (level.seq == decode.PROMPT)]
    other = (here.format == "q8_0") & (here["head"] == "fp16")
    changed = here.assign(median_us=here.median_us * (1 + (factor - 1) * other))
    lesson_08_phases.what_is_left(changed, lesson_08_ladder.climbed(level), h200.roof["dram_read"], "G", {})
    assert re.search(said, texts[1]), texts[1]


def test_the_clock_says_where_a_loss_is_or_that_it_does_not_show_it(h200, rows, monkeypatch):
    """4_tma loses in INT4 by its products; in FP16 its layer is not slower: clock and ladder disagree."""
    clocks, climbs = lesson_08_clock.taken(h200), lesson_08_ladder.climbed(rows)
    assert {format for _, format in clocks} == {"fp16", "int4_g128"} and len(clocks) >= 8
    asked = ("4_tma", "3_persistent")
    said = lesson_08_clock.loss(clocks, *asked, "int4_g128")
    assert " more for products" in said and "start copies and to multiply" in said
    assert lesson_08_clock.loss(clocks, *asked, "fp16") == ""
    assert lesson_08_clock.loss(clocks, *asked, "q8_0") == lesson_08_clock.ring({}, *asked) == ""
    ring = lesson_08_clock.ring(clocks, "6_producer_warps", "3_persistent")
    fall = r"In `6_producer_warps` a layer's products fall from 1\d\.\d to 1\d\.\d µs in FP16; they take \d"
    assert re.match(fall, ring)
    there = lesson_08_clock.weights_there(clocks, "3_persistent", "int4_g128")
    assert re.search(r"waits for weights 0\.\d of a layer's (19|20)\.\d µs", there)
    assert lesson_08_clock.weights_there(clocks, "6_producer_warps", "fp16") == "", (
        "it waits a part of a layer"
    )
    assert lesson_08_clock.weights_there({}, "3_persistent", "fp16") == ""
    swapped = {
        key: clocks["3_persistent" if key[0] == "6_producer_warps" else key[0], key[1]] for key in clocks
    }
    assert "fall from" not in lesson_08_clock.ring(swapped, "6_producer_warps", "3_persistent")
    faster = climbs["fp16"].assign(gain=climbs["fp16"].gain.where(climbs["fp16"].impl != "4_tma", 0.9))
    assert "disagree on `4_tma` in FP16" in lesson_08_clock.disagreements(clocks, {"fp16": faster})
    assert lesson_08_clock.disagreements(swapped, {"int4_g128": climbs["int4_g128"]}) == ""


def test_a_step_is_said_with_its_gain_and_the_first_with_the_launches_it_saves(h200, rows, monkeypatch):
    texts, tables = [], []
    monkeypatch.setattr(lesson_08_steps.display, "say", texts.append)
    monkeypatch.setattr(lesson_08_steps.display, "table", lambda table, *_: tables.append(table))
    monkeypatch.setattr(diagram.Drawing, "show", lambda drawing: texts.append(drawing.title))
    climbs = lesson_08_ladder.climbed(rows)
    lesson_08_steps.step(climbs, "int4_g128", "99_planted")
    assert not texts
    lesson_08_steps.step(climbs, "int4_g128", "2_pdl")
    gain = climbs["int4_g128"].set_index("impl").loc["2_pdl"].gain
    assert len(texts) == 1 and texts[0].startswith(f"**{gain:.2f} times the speed of rung 1 in INT4**")
    beside = climbs["fp16"].set_index("impl").loc["2_pdl"].gain
    assert f"{beside:.2f} times in FP16" in texts[0]
    lesson_08_steps.rungs(climbs, "fp16")
    assert tables[0]["tok_s"].notna().all()
    aside = tables[0][tables[0]["says"].str.endswith(" In the appendix.")]
    assert aside["rung"].tolist() == ["4_tma", "8_tensor_attention"]
    assert tables[0]["rung"].tolist() == list(decode.RUNGS) and tables[0]["gain"].notna().all()
    lesson_08_steps.fused(climbs)
    assert "50 launches by products, 5 by" in texts[1] and "its launches take the time" in texts[2]
    lesson_08_steps.at_the_barrier(climbs)
    lesson_08_steps.producers(climbs)
    lesson_08_steps.divided_along_k(climbs, h200, "int4_g128", {})
    idle, held, ring, cut, drawn, whole, more = texts[3:]
    assert whole.startswith("**From `3_persistent` to `7_split_k`: ") and "around a barrier" in idle
    assert "in FP16 and Q8_0 rungs 3, 6 and 7; in INT4 rungs 3 and 7 (7 on rung 5's code" in whole
    assert re.search(r"Level with rung 3|times the speed of rung 3 in FP16", held)
    gains = {format: each.set_index("impl").gain for format, each in climbs.items()}
    won, also, lost = (gains[format]["6_producer_warps"] for format in ("fp16", "q8_0", "int4_g128"))
    assert ring.startswith(f"**{won:.2f} times the speed of rung 3 in FP16**. ")
    assert f"In Q8_0 it gains: {also:.2f} times. In INT4 it loses: {lost:.2f} times." in ring
    assert re.search("In INT4 it (brings nothing|loses): ", held)
    assert "4 of 7 in FP16" in more and lesson_08_timeline.hardly_deferred() == ["int4_g128"]
    assert "the speed of rung 5 in INT4" in cut and "96 of 132 SMs have work" in cut
    assert drawn == "Who has work in the output product"
    del texts[3:]
    rates = tables.pop()
    assert rates["rung"].tolist() == [decode.RUNGS[2], *decode.RUNGS[4:7]] and rates.notna().all(axis=None)
    slow = {each: of.assign(gain=0.5 * of.gain) for each, of in climbs.items()}
    lesson_08_steps.step(slow, "fp16", "5_prefetch_at_barrier")
    half = 0.5 * gains["fp16"]["5_prefetch_at_barrier"]
    assert texts.pop().startswith(f"**{half:.2f} times the speed of rung 3 in FP16**"), (
        "level only where it is"
    )
    bare = {each: of[:0] for each, of in climbs.items()}
    lesson_08_steps.at_the_barrier(bare)
    lesson_08_steps.producers(bare)
    lesson_08_steps.divided_along_k(bare, h200, "int4_g128", {})
    assert len(tables) == 1 and "From `3_persistent`" not in " ".join(texts[3:])
    del texts[3:]
    faster = {**climbs, "int4_g128": climbs["int4_g128"].assign(tok_s=1e4)}
    lesson_08_steps.fused(faster)
    assert len(texts) == 4, "where INT4 is faster, launches are not all"


def test_predictions_get_their_verdict(rows):
    """The step that moves operators into products, and the roof, where it is the prediction."""
    climb = ablation.ladder(rows, "int4_g128").set_index("impl")
    page, fused = said("08_decoder.ipynb"), climb.loc["1_kernel_per_phase"]
    verdict = f"`1_kernel_per_phase`: predicted {fused.predicted:,.0f} tok/s, measured {fused.tok_s:,.0f}"
    assert f"{verdict}, {fused.tok_s / fused.predicted:.2f} of it. It does not hold" in page
    best = climb.loc[climb[climb.index.isin(decode.RUNGS)]["median_us"].idxmin()]
    assert f"the roof, {best.predicted:,.0f} tok/s, is an upper bound" in page
    assert f"at most {best.share / 100:.2f} of it (`{best.name}`)" in page
    total = 1 / NEAR <= climb.off["2_pdl"] <= NEAR  # though its step saves more than was predicted
    assert "tok/s ÷ predicted" in page and ("`2_pdl` holds only as a total" in page) == total
    off = climb.off["2_pdl"]
    if off > NEAR:  # as many digits as say so
        assert f"{off:.{2 if round(off, 2) > NEAR else 3}f} for `2_pdl`" in page
    assert [held(ratio)[:8] for ratio in (0.79, 1.25, 1.3)] == ["It does ", "It holds", "It does "]


def test_08c_turns_models_by_context_at_one_sequence(h200, rows):
    made = lesson_08c.explore(h200)
    one = rows[(rows["batch"] == 1) & (rows["weights_as"] == "Q8_0")].set_index(["impl", "model", "seq"])
    chosen = {"gemma-4-e4b, graph": ("gemma", decode.GEMMA, 1024)}
    (last, *_) = (rung for rung in reversed(decode.RUNGS) if (rung, decode.MODEL, 8192) in one.index)
    chosen |= {f"{decode.MODEL}, one": (last, decode.MODEL, 8192)}
    chosen |= {f"{decode.MODEL}, graph": ("products", decode.MODEL, 128)}
    for called, key in chosen.items():
        row = one.loc[key]
        told = turned(made, called, "Q8_0", key[2])
        assert not told.startswith("Not recorded")
        # The record has rounded its share, the page has the unrounded one.
        share = float(told.split(": ")[1].split("%")[0])
        assert share == pytest.approx(100 * row["roof_fraction"], abs=0.1)
        assert f"{row['tok_s']:,.0f} tok/s" in told


def test_08d_turns_the_gates_of_tokens_and_of_prompts(h200, rows, prompts):
    made = lesson_08d.explore(lesson_08d.answers(h200))
    usual = rows[(rows["batch"] == 1) & (rows["weights_as"] == "INT4")]
    parts = {
        ("INT4", "one token after so many", 8192): usual[usual["impl"] == decode.RUNGS[-1]],
        ("Q8_0", "a prompt of so many", 1848): prompts[
            (prompts["impl"] == "7_fused") & (prompts["format"] == "q8_0")
        ],
    }
    for (weights, reads, seq), found in parts.items():
        row = found[(found["model"] == decode.MODEL) & (found["seq"] == seq)].iloc[0]
        told = turned(made, row["impl"], weights, reads, decode.MODEL, seq)
        assert not told.startswith("Not recorded")
        assert f": {100 * row['error'] / row['error_budget']:.3g}%; " in told
        assert f"{row['error']:.4f} of {row['error_budget']:.4f} allowed" in told
    shown = lesson_08d.gates(h200)
    assert (shown["batch"] == 1).all() and "median_us" not in shown


def test_08d_says_so_where_no_gate_was_recorded(h200, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_08d.display, "say", told.append)
    monkeypatch.setattr(lesson_08d, "gates", lambda whose: pd.DataFrame())
    assert lesson_08d.explore(lesson_08d.answers(h200)) is None and len(told) == 1
