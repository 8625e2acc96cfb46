"""What lesson 10 claims of the recorded pairs of GPUs, and what it computes from their rows."""

import pytest
from pages_read import said
from rooflab import lab
from rooflab.errors import UsageError
from rooflab.ops import all_reduce
from rooflab.pages import (
    four_gpus,
    held,
    lesson_10,
    lesson_10b,
    lesson_10c,
    lesson_10c_layers,
    lesson_10c_memory,
    lesson_10c_overlap,
    lesson_10c_worked,
)
from rooflab.studies import links, split


@pytest.fixture(scope="module")
def pair():
    return lab.open("replay", "h200", gpus=2)


@pytest.fixture(scope="module")
def rows(pair):
    return pair.measure("links", pair.cases("links"))


def test_the_recording_is_of_two_gpus_and_says_what_joins_them(pair, rows):
    assert pair.device == "h200-x2" and pair.gpus == 2
    run = pair.run_of("links")
    assert run["gpu"] == "NVIDIA H200" and "2 GPUs" in run["note"] and "NVLinks" in run["note"]
    assert len(rows) == len(pair.cases("links"))


def test_links_stay_under_their_sheet_and_latency_is_of_microseconds(rows):
    sent = lesson_10.between(rows)
    assert 0.8 * links.SHEET_GB_S < sent["gb_s"].max() < links.SHEET_GB_S
    fitted = links.law(sent, 2).set_index("operator")
    assert (fitted["worst"] < 1.1).all() and fitted["latency_us"].between(0.5, 3).all()
    assert fitted["latency_us"]["peer_write"] < fitted["latency_us"]["peer_read"]


def test_every_rung_takes_a_crossing_out_and_beats_the_libraries_at_a_token(rows):
    mine = lesson_10b.of_token(rows)
    own, peers = mine[mine["kind"] == "own"], mine[mine["kind"] != "own"]
    assert own["impl"].tolist() == [rung.name for rung in all_reduce.LADDERS["all_reduce"]]
    assert own["median_us"].is_monotonic_decreasing
    assert own["q3_us"].max() < peers["q1_us"].min() and own["median_us"].min() < 3.5
    assert (own["error"] <= own["error_budget"]).all()
    large = lesson_10b.sums(rows)
    large = large[(large["bytes"] == links.OWN_MOST) & (large["kind"] == "own")].set_index("impl")
    assert large["median_us"]["2_push"] < large["median_us"]["3_flag_in_data"], "twice the bytes"


def test_a_second_gpu_pays_for_the_large_model_alone(rows):
    found = lesson_10b.tokens(rows)
    ours = found[found["impl"] == all_reduce.DEFAULT].set_index(["model", "format"])["gain"]
    assert ours["llama-3-8b", "fp16"] > 1.3
    assert ours["qwen2.5-1.5b", "fp16"] < 1 and ours["llama-3-8b", "int4_g128"] < 1
    assert (found["error"] <= found["error_budget"]).all()


def test_predicted_sums_get_their_verdict(rows):
    page, mine = said("10b_all_reduce"), lesson_10b.of_token(rows)
    own = mine[mine["kind"] == "own"]
    assert all(held(ratio).startswith("It holds") for ratio in own["median_us"] / own["predicted_us"])
    assert f"All {len(own)} predictions hold" in page
    store = rows[(rows["operator"] == "peer_write") & (rows["bytes"] == rows["bytes"].min())].iloc[0]
    assert store["predicted_us"] > 1.25 * store["median_us"] and "That is partly luck" in page


def test_a_prediction_that_fails_is_named(rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10b.display, "say", told.append)
    late = rows.copy()
    late.loc[late["impl"] == "1_pull", "median_us"] *= 2
    lesson_10b.measured(late)
    assert (
        "`1_pull`: It does not hold" in told[0] and "`2_push`: It holds" in told[0] and "luck" not in told[0]
    )


@pytest.fixture(scope="module")
def split_rows():
    here = lab.open("replay", "h200", gpus=2, study="split")
    assert here.device == "h200-x2"
    return here.measure("split", here.cases("split"))


def test_sums_in_the_norms_make_a_second_gpu_pay_for_every_model(split_rows):
    found = lesson_10c.tokens(split_rows)
    by = found.set_index(["model", "format", "impl"])["gain"]
    for model, format in set(zip(found["model"], found["format"], strict=True)):
        fused, separate, nccl = (
            by[model, format, impl] for impl in (split.FUSED, split.SEPARATE, links.NCCL)
        )
        assert fused > 1.02 and fused > 0.98 * separate > 0.98 * nccl, (model, format)
    assert by["qwen2.5-1.5b", "fp16", split.SEPARATE] < 1, (
        "which a launch and a wait for each sum made slower"
    )
    assert (found["error"] <= found["error_budget"]).all()


def ledgers(monkeypatch):
    """The tables that lesson 10c's page shows, as they come."""
    shown = []
    monkeypatch.setattr(lesson_10c_layers.display, "table", lambda frame, *given: shown.append(frame))
    return shown


def test_what_overlap_saves_is_measured_and_other_kernels_can_cost_as_much(split_rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10c_layers.display, "say", told.append)
    tables = ledgers(monkeypatch)
    lesson_10c_layers.excess(split_rows)
    assert told[0].startswith("**Overlap saves 11.2 to 13.7 µs a layer**, measured against")
    assert "**llama-3-70b in INT4 loses it again**: by plain launches the fused way takes 13.2 µs" in told[0]
    (ledger,) = tables
    assert list(ledger["saved"].round(1)) == [8.0, 11.2, 19.2], "the last is the sum of the two"
    assert list(ledger["token"]) == ["1,231 → 1,009", "1,009 → 695", "1,231 → 695"]
    assert "explain up to 3.9 of the 11.9 µs" in told[1] and "“not saved” is what is left over" in told[1]
    assert "For qwen2.5-1.5b in FP16, a layer: two sums 2.3" in told[1]
    assert "2,048 wide (its own width, 1,536, was not timed)" in told[1]
    assert "qwen2.5-1.5b in FP16 saves 1.4 µs a layer more than estimated" in told[1]
    assert "in INT4 than in FP16: 12.9 µs a layer for llama-3-70b and 3.7 µs a layer for" in told[1]
    assert "llama-3-8b in INT4 is farthest from its bound" in told[1] and "do not explain it" in told[1]
    turned = split_rows.copy()
    least = (turned["model"] == "qwen2.5-1.5b") & (turned["impl"] == split.FUSED)
    turned.loc[least, "median_us"] *= 3
    lesson_10c_layers.excess(turned)
    assert "qwen2.5-1.5b in FP16 is farthest" in told[-1] and "do not explain it" not in told[-1]


def test_an_overlap_that_was_not_timed_is_not_told_apart(split_rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10c_layers.display, "say", told.append)
    whole = split_rows[split_rows["impl"] != split.FUSED_PLAIN]
    tables = ledgers(monkeypatch)
    lesson_10c_layers.excess(whole)
    assert "was not timed by itself" in told[0] and "Overlap saves" not in told[0]
    (ledger,) = tables
    assert list(ledger["saved"]) == [19.2] and "loses it again" not in told[0]
    assert len(told) == 2


def test_a_fused_ways_changes_are_not_told_apart_beyond_what_was_measured(split_rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10c_layers.display, "say", told.append)
    lesson_10c_layers.takeaway(split_rows, "NVIDIA H200")
    assert "- Overlap saves 11.2 to 13.7 µs a layer, measured against" in told[0]
    assert "Different kernels can cost as much: on llama-3-70b in INT4 all of it." in told[0]
    bare = split_rows[split_rows["operator"] != split.FUSED]
    tables = ledgers(monkeypatch)
    lesson_10c_layers.excess(bare)
    assert not tables and "explain" not in told[2].partition("<table")[0]
    level = split_rows.copy()
    apart = level[level["impl"] == split.SEPARATE].set_index(["model", "format"])["median_us"]
    fused = (level["operator"] == "decode") & (level["impl"] == split.FUSED)
    pairs = zip(level.loc[fused, "model"], level.loc[fused, "format"], strict=True)
    level.loc[fused, "median_us"] = [1.1 * apart[pair] for pair in pairs]
    told.clear()
    lesson_10c_layers.excess(level)
    assert not tables and not any("timed alone, so" in text for text in told)


def test_problem_and_remedies_open_and_overlap_is_drawn_where_it_was_timed(pair, split_rows, monkeypatch):
    answer = lesson_10c.opening(split_rows, pair)[0]
    assert answer.startswith("Two NVIDIA H200s make a token 1.04 to 1.95 times as fast as one")
    assert "11 launches, and two GPUs are slower than one on qwen2.5-1.5b in FP16 and llama-3-8b" in answer
    assert "0.65 and 0.81 times its speed" in answer and "Overlap hides 11.2 to 13.7 µs of a layer" in answer
    faster = split_rows.copy()
    faster.loc[faster["impl"] == split.SEPARATE, "median_us"] /= 2
    assert "slower than one" not in lesson_10c.opening(faster, pair)[0]
    shown, told = [], []
    monkeypatch.setattr(lesson_10c_overlap.diagram.Drawing, "show", lambda drawing: shown.append(drawing))
    monkeypatch.setattr(lesson_10c_overlap.display, "say", told.append)
    lesson_10c_overlap.timeline(split_rows)
    assert shown[0].title.startswith("A layer of qwen2.5-1.5b in FP16, drawn from two") and not told
    whole = split_rows[split_rows["impl"] != split.FUSED_PLAIN]
    lesson_10c_overlap.timeline(whole)
    assert shown[1].title == "What a layer launches on each GPU" and "was not timed" in told[0]
    assert "Overlap hides" not in lesson_10c.opening(whole, pair)[0]


def test_predictions_are_too_hopeful_only_where_every_gain_falls_short(split_rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10c.display, "say", told.append)
    lesson_10c.pays(split_rows, "GPU")
    assert "too hopeful on every model" in told[0]
    assert "Overlap decides for qwen2.5-1.5b in FP16 and llama-3-8b in INT4: by plain" in told[0]
    faster = split_rows.copy()
    faster.loc[faster["impl"] == split.FUSED, "median_us"] /= 3
    lesson_10c.pays(faster, "GPU")
    assert "on every model" not in told[1]
    lesson_10c.pays(split_rows[split_rows["impl"] != split.FUSED_PLAIN], "GPU")
    assert "plain launches" not in told[2] and "too hopeful on every model" in told[2]


def test_one_model_is_worked_out_from_its_bound_to_what_is_left(split_rows, monkeypatch):
    tables = ledgers(monkeypatch)
    lesson_10c_worked.predicted(split_rows)
    (sums,) = tables
    assert list(sums["us"].round()) == [643, 362, 616] and list(sums["gain"].round(2))[1:] == [1.78, 1.04]
    assert "28 layers × 7 launches × 1.3 µs" in sums["how"].iloc[-1]
    left = lesson_10c_worked.left(split_rows)
    assert "11.9 µs a layer are left above the bound with overlap, 1.7 for each of the 7" in left
    assert "explain" not in lesson_10c_worked.left(split_rows[split_rows["operator"] != split.FUSED])
    assert lesson_10c_worked.left(split_rows[split_rows["impl"] != split.FUSED]) == ""
    alone = (split_rows["impl"] == links.ALONE) & (split_rows["model"] == "qwen2.5-1.5b")
    lesson_10c_worked.predicted(split_rows[~alone])
    assert len(tables) == 1, "no gain is predicted over a GPU that was not timed"


def test_gains_of_another_recording_are_set_apart_where_one_gpus_times_differ(pair, monkeypatch):
    assert lesson_10b.other_gains(pair) == "", "about the same times"
    split_rows, links_rows = (pair.store.read(study) for study in ("split", "links"))
    links_rows.loc[links_rows["impl"] == links.ALONE, "tok_s"] /= 1.2
    monkeypatch.setattr(pair.store, "read", {"links": links_rows, "split": split_rows}.get)
    told = lesson_10b.other_gains(pair)
    assert "gains are of an older recording (" in told and "in which one GPU takes 1.19 to 1.2" in told
    assert told in lesson_10c.opening(split_rows, pair)[2][1]


def test_every_contestant_of_a_token_has_a_name(split_rows, monkeypatch):
    shown = []
    monkeypatch.setattr(lesson_10c.display, "table", lambda *given, **more: None)
    monkeypatch.setattr(lesson_10c.display, "fold", lambda title, tables: shown.append(tables[0][0]))
    lesson_10c.measured(split_rows)
    named = shown[0].groupby("impl")["who"].first()
    assert named[split.FUSED_PLAIN] == "the fused way by plain launches" and named.is_unique


def test_bounds_that_say_a_second_gpu_pays_are_judged(rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10b.display, "say", told.append)
    lesson_10b.pays(rows, "NVIDIA H200")
    assert "pay for 3 of 3 models" in told[0] and "and for 1 as measured" in told[0]
    assert "They are wrong for qwen2.5-1.5b in FP16 and llama-3-8b in INT4" in told[0]
    exact = rows.copy()
    exact["median_us"] = exact["predicted_us"]
    lesson_10b.pays(exact, "NVIDIA H200")
    assert "They are right each time." in told[1]


def test_what_a_gpu_holds_decides_how_many_a_model_needs():
    large = ("llama-3-70b", "fp16")
    alone, shared = (lesson_10c_memory.weights_gb(*large, gpus) for gpus in (1, 2))
    assert alone > 141 > 80 > shared
    assert [lesson_10c_memory.needed(*large, held) for held in (150.8, 143.0, 85.5, 40.0)] == [1, 2, 2, 4]
    tied = lesson_10c_memory.weights_gb("qwen2.5-1.5b", "fp16")
    assert tied == pytest.approx(3.09, abs=0.01), "the head is the embedding"


def test_memory_is_what_the_run_reports_and_what_was_not_timed_is_said_at_the_chart(split_rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10c_memory.display, "say", told.append)
    pair = lab.open("replay", "h200", gpus=2, study="split")
    run = pair.run_of("split")
    assert lesson_10c_memory.capacity_gb(run) == pytest.approx(150.75, abs=0.01)
    assert lesson_10c_memory.capacity_gb({"gpu": "NVIDIA H200", "memory_bytes": None}) == 141
    lesson_10c_memory.memory(split_rows, pair)
    assert told[0].startswith("**None of these models needs two NVIDIA H200s for its memory**")
    assert "141.1 GB of weights and 2.7 of KV cache" in told[0] and "the 150.8 GB (140.4 GiB)" in told[0]
    assert "With 24 GB a GPU llama-3-70b in INT4 needs two and llama-3-70b in FP16 eight." in told[0]
    assert "With 80 GB a GPU llama-3-70b in FP16 needs two." in told[0]
    assert "reports (the datasheet's 141 GB is probably these GiB)" in told[0]
    _, _, (_, caption) = lesson_10c.opening(split_rows, pair)
    assert "was not timed" not in caption
    large = (split_rows["model"] == "llama-3-70b") & (split_rows["impl"] == links.ALONE)
    _, _, (_, caption) = lesson_10c.opening(split_rows[~large], pair)
    assert "one GPU was not timed: llama-3-70b in INT4 and llama-3-70b in FP16." in caption
    small = lab.open("replay", "h100-sxm", gpus=2, study="split")
    lesson_10c_memory.memory(small.measure("split", small.held("split", small.cases("split"))), small)
    assert "**llama-3-70b in FP16 needs two NVIDIA H100 80GB HBM3s for its memory**" in told[1]
    assert "With 80 GB" not in told[1], "which is this one's"


def test_two_gpus_time_above_the_bound_tells_that_of_four(split_rows):
    line = four_gpus.takeaway(split_rows, "NVIDIA H200")
    assert "above theirs: measured within 10% of that on 4 models" in line and "up to 72% too low" in line
    assert four_gpus.takeaway(split_rows, "NVIDIA A100 80GB") == ""


def test_a_device_that_lacks_a_recording_is_replayed_from_one_that_has_it():
    assert lab.open("replay", "h100-sxm", gpus=2, study="split").device == "h100-sxm-x2"
    assert lab.open("replay", "a100-80gb", gpus=2, study="split").device == "h200-x2"
    with pytest.raises(UsageError, match="no recording of 8 GPUs that holds links"):
        lab.open("replay", "h200", gpus=8, study="links")


def test_two_more_gpus_cost_a_sum_more_than_their_bytes_and_pay_for_a_large_model(rows, split_rows):
    four = lesson_10b.of_token(four_gpus.recorded("NVIDIA H200", "links")).set_index("impl")["median_us"]
    two = lesson_10b.of_token(rows).set_index("impl")["median_us"]
    own = [rung.name for rung in all_reduce.LADDERS["all_reduce"]]
    assert (four[own] - two[own] > 0.5).all(), "where the law promises less than 0.1"
    assert four[own].min() < 0.6 * four.drop(own).min(), "every library is far slower"
    found = lesson_10c.tokens(four_gpus.recorded("NVIDIA H200", "split"))
    by = found.set_index(["model", "format", "impl"])["gain"]
    assert by["llama-3-8b", "fp16", split.FUSED] > 2.5
    assert "qwen2.5-1.5b in FP16 cannot be shared by four here: it has 2 key and value heads" in said(
        "10c_large"
    )


def test_a_gpu_of_which_four_were_not_recorded_has_no_figures(rows, monkeypatch):
    told = []
    monkeypatch.setattr(four_gpus.display, "say", told.append)
    four_gpus.sums(rows, "NVIDIA A100 80GB")
    four_gpus.tokens(rows, "NVIDIA A100 80GB")
    assert told == ["Of four NVIDIA A100 80GBs nothing was recorded."] * 2
