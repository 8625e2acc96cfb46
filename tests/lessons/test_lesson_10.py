"""What lesson 10 claims of the recorded pairs of GPUs, and what it computes from their rows."""

from types import SimpleNamespace

import pytest
from pages_read import said, turned
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
    lesson_10c_steps,
    lesson_10c_worked,
)
from rooflab.studies import links, split
from rooflab.view import display


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


@pytest.fixture
def page_10c(monkeypatch):
    """The tables, sentences, folds, charts and drawings of lesson 10c's page, as they come."""
    tables, told, charts, drawn = [], [], [], []

    def shown(fig, caption):
        charts.append(fig)
        told.append(caption)

    monkeypatch.setattr(display, "table", lambda frame, *given, **more: tables.append(frame))
    monkeypatch.setattr(display, "say", told.append)
    monkeypatch.setattr(lesson_10c_steps.plot, "show", shown)
    monkeypatch.setattr(lesson_10c_overlap.diagram.Drawing, "show", lambda drawing: drawn.append(drawing))
    return SimpleNamespace(tables=tables, told=told, charts=charts, drawn=drawn)


def without(rows, impl):
    return rows[rows["impl"] != impl]


def panels(fig):
    """What is written into each panel of a chart of steps, under its title."""
    return {ax.get_title("left"): [text.get_text() for text in ax.texts] for ax in fig.axes}


def test_every_step_is_drawn_beside_the_one_before_it(split_rows, page_10c):
    lesson_10c_steps.told(split_rows, "GPU")
    (fig,) = page_10c.charts
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert names[0] == "one GPU" and names[2:4] == [
        "2. sums in norms, other\nkernels, half the head",
        "3. launches overlap",
    ]
    written = panels(fig)
    assert len(written) == 5
    written = written["llama-3-70b in INT4"]
    assert written[-1] == "gain 1.28, predicted 1.94" and written[0] == "126.0"
    assert written[1:-1] == [
        *("98.1", "−27.9", "111.3", "+13.2", "98.6", "−12.7", "50.2", "48.4 left"),
    ]  # fmt: skip
    large = (split_rows["impl"] == links.ALONE) & (split_rows["model"] == "llama-3-70b")
    lesson_10c_steps.told(split_rows[~large], "GPU")
    assert len(panels(page_10c.charts[1])) == 3, "a share of one GPU's time needs one GPU"


def test_each_finding_names_its_baseline(split_rows, page_10c):
    lesson_10c_steps.told(split_rows, "GPU")
    caption, findings = page_10c.told
    assert "the change from the bar above" in caption
    second, inside, overlap, left = findings.split("\n")
    assert second.startswith("1. **Two GPUs, compared with one GPU: 0.65 to 1.85 times as fast.**")
    assert "costs more than it saves on qwen2.5-1.5b in FP16 and llama-3-8b in INT4, whose layers" in second
    assert inside.startswith(
        "2. **Three changes, compared with step 1: sums move into norms (11 launches become"
    )
    assert "kernels of a batch" in inside and "part of the output head.**" in inside
    assert "saves 3.3 to 8.0 µs a layer on qwen2.5-1.5b in FP16 and llama-3-8b in FP16" in inside
    assert "costs 13.2 µs on llama-3-70b in INT4" in inside and "should save 6.6 to 7.8" in inside
    assert "Most likely the batch's kernels" in inside
    assert "compared with step 2, the same kernels by plain launches: it hides 11.2 to 13.7 µs" in overlap
    assert "more than the 9.1 assumed" in overlap
    assert "decides on qwen2.5-1.5b in FP16 and llama-3-8b in INT4: without" in overlap
    assert left.startswith("4. **The bound, compared with step 3: 11.9 to 48.4 µs a layer are left")
    assert "cuts the bound from 30.3 to 16.6 µs, but the time above it grows from 13.2 to 25.3" in left


def test_findings_follow_other_rows(split_rows, page_10c):
    exact = split_rows.copy()
    exact["median_us"] = exact["predicted_us"]
    lesson_10c_steps.told(exact, "GPU")
    found = page_10c.told[1]
    assert "hides no time" in found and "nothing is left" in found and "costs more than it saves" not in found
    assert "left" not in " ".join(sum(panels(page_10c.charts[0]).values(), []))
    quick = split_rows.copy()
    quick.loc[quick["impl"] == split.FUSED_PLAIN, "median_us"] *= 0.8
    lesson_10c_steps.told(quick, "GPU")
    assert "Most likely the batch's kernels" not in page_10c.told[3]


def test_an_overlap_that_was_not_timed_is_not_told_apart(split_rows, page_10c):
    lesson_10c_steps.told(without(split_rows, split.FUSED_PLAIN), "GPU")
    names = [label.get_text() for label in page_10c.charts[0].axes[0].get_yticklabels()]
    assert names[2] == "2. sums in norms, other\nkernels, half the head,\nlaunches overlap"
    assert "compared with step 1: together they save 11.7 to 19.2 µs a layer on 4 of 5" in page_10c.told[1]
    assert "3. **The bound, compared with step 2" in page_10c.told[1]
    lesson_10c_steps.takeaway(without(split_rows, split.FUSED_PLAIN), "GPU")
    assert "What overlap saves was not timed" in page_10c.told[2]


def test_changes_of_the_fused_way_are_estimated_from_what_was_timed(split_rows, page_10c):
    lesson_10c_layers.every(split_rows)
    (fold,) = page_10c.told
    assert "explain up to 3.9 of the 11.9 µs" in fold and "“what is left” is no measurement" in fold
    assert "For qwen2.5-1.5b in FP16, in µs a layer:" in fold and "2,048 numbers take less" in fold
    assert "its own width, 1,536, was not timed" in fold
    assert "- Together 6.6; saved without overlap 8.0; what is left 1.4." in fold
    table = lesson_10c_layers.with_rest(lesson_10c_layers.per_layer(split_rows), split_rows)
    whole = table[["overlap", "due", "rest"]].sum(axis=1)
    assert (whole - table["saved"]).abs().max() < 0.01, "the last is the sum of the others"
    lesson_10c_steps.takeaway(split_rows, "NVIDIA H200")
    assert "- Overlap hides 11.2 to 13.7 µs a layer. Kernels swapped in" in page_10c.told[1]
    assert "as much or more: on llama-3-70b in INT4." in page_10c.told[1]
    assert "send 12 to 64 KiB of packets a layer" in page_10c.told[1]
    bare = split_rows[split_rows["operator"] != split.FUSED]
    lesson_10c_layers.every(bare)
    assert "explain" not in page_10c.told[2].partition("<table")[0]
    lesson_10c_steps.told(bare, "GPU")
    assert "by estimates" not in page_10c.told[4] and "costs 13.2 µs" in page_10c.told[4]


def test_problem_and_remedy_open_and_overlap_is_drawn_where_it_was_timed(pair, split_rows, page_10c):
    answer = lesson_10c.opening(split_rows, pair)[0]
    assert answer.startswith("Two NVIDIA H200s make a token 1.04 to 1.95 times as fast as one if sums are")
    assert "60.2 tokens a second where one GPU makes 30.8." in answer
    assert (
        "11 launches, one after the other, each with a start of at most 1.1 µs (lesson 10), so two" in answer
    )
    assert "With our kernel for each sum, and no overlap, it is 0.65 to 1.85 times." in answer
    assert "on llama-3-70b in INT4 it is no faster than our kernel for each sum" in answer
    faster = split_rows.copy()
    faster.loc[faster["impl"] == split.SEPARATE, "median_us"] /= 2
    assert "slower than one" not in lesson_10c.opening(faster, pair)[0]
    bare = lesson_10c.opening(without(split_rows, split.FUSED_PLAIN), pair)[0]
    assert "no faster than our kernel for each sum." in bare, "why, plain launches tell"
    assert "most likely because overlap needs other kernels" in answer
    slower = split_rows.copy()
    slower.loc[slower["impl"] == split.SEPARATE, "median_us"] *= 2
    assert "not always help" not in lesson_10c.opening(slower, pair)[0]
    lesson_10c_overlap.timeline(split_rows)
    assert page_10c.drawn[0].title == "A sketch of a layer of qwen2.5-1.5b in FP16" and not page_10c.told
    lesson_10c_overlap.timeline(without(split_rows, split.FUSED_PLAIN))
    assert len(page_10c.drawn) == 1 and "was not timed" in page_10c.told[0]


def test_gains_are_said_to_be_small_only_where_every_one_falls_short(split_rows, page_10c):
    lesson_10c.pays(split_rows, "GPU")
    assert page_10c.told[0].startswith("**By the fused way two GPUs are faster than one on all 5 models.**")
    assert "Every gain is smaller than predicted" in page_10c.told[0]
    faster = split_rows.copy()
    faster.loc[faster["impl"] == split.FUSED, "median_us"] /= 3
    lesson_10c.pays(faster, "GPU")
    assert "smaller than predicted" not in page_10c.told[1]
    slow = split_rows.copy()
    small = (slow["impl"] == split.FUSED) & (slow["model"] == "qwen2.5-1.5b")
    slow.loc[small, "median_us"] *= 3
    lesson_10c.pays(slow, "GPU")
    assert "faster than one on 4 of 5 models" in page_10c.told[2]


def test_one_model_is_worked_out_from_its_bound_to_what_is_left(pair, split_rows, page_10c):
    lesson_10c_worked.predicted(split_rows)
    assert "one GPU: 3,087 MB ÷ 4,800 GB/s = 643 µs" in page_10c.told[0]
    assert "1,544 MB ÷ 4,800 GB/s + 56 sums × 0.71 µs = 362 µs, 1.78 times" in page_10c.told[0]
    lesson_10c.charged(pair)
    assert "it saves 7 × 1.3 = 9.1 µs a layer" in page_10c.told[1]
    kernel = lesson_10c.kernel_us(pair)
    assert kernel < links.LAUNCH_US and f"9.1 becomes {7 * kernel:.1f} at most" in page_10c.told[1]
    left = lesson_10c_worked.left(split_rows)
    assert "11.9 µs a layer are left above the bound with overlap, 1.7 for each of the 7" in left
    assert "explain" not in lesson_10c_worked.left(split_rows[split_rows["operator"] != split.FUSED])
    assert lesson_10c_worked.left(without(split_rows, split.FUSED)) == ""
    alone = (split_rows["impl"] == links.ALONE) & (split_rows["model"] == "qwen2.5-1.5b")
    lesson_10c_worked.predicted(split_rows[~alone])
    assert len(page_10c.told) == 2, "no gain is predicted over a GPU that was not timed"


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
    monkeypatch.setattr(lesson_10c.display, "fold", lambda title, tables: shown.append(tables[0][0]))
    lesson_10c.every_row(split_rows)
    named = shown[0].groupby("impl")["who"].first()
    assert named[split.FUSED_PLAIN] == "the fused way by plain launches" and named.is_unique


def test_bounds_that_say_a_second_gpu_pays_are_judged(rows, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10b.display, "say", told.append)
    lesson_10b.pays(rows, "NVIDIA H200")
    assert "pay for 3 of 3 models" in told[0] and "and for 1 as measured" in told[0]
    assert "do not predict this for qwen2.5-1.5b in FP16 and llama-3-8b in INT4" in told[0]
    exact = rows.copy()
    exact["median_us"] = exact["predicted_us"]
    lesson_10b.pays(exact, "NVIDIA H200")
    assert "The bounds are right each time." in told[1]
    assert "744 to 999 µs on two with our sums" in told[0] and "on two with our sums" in told[1]


def test_one_gpu_beside_others_is_set_apart_from_lesson_08_where_it_is_faster(rows):
    """Faster than the fastest way there, it can only be another recording; slower, nothing is said."""
    found = lesson_10b.tokens(rows)
    told = lesson_10b.other_recording(found, "NVIDIA H200")
    one = found[found["impl"] == links.ALONE].iloc[0]
    best = lesson_10b.fastest_alone("NVIDIA H200")[one["model"], one["format"]]
    assert one["tok_s"] > best and f"{one['tok_s']:,.0f} against {best:,.0f} for {one['title']}" in told
    slower = found.assign(tok_s=found["tok_s"] / 2)
    assert lesson_10b.other_recording(slower, "NVIDIA H200") == ""
    assert lesson_10b.other_recording(found, "NVIDIA A100 80GB") == ""


def test_what_a_sum_saves_inside_a_token_stands_beside_what_it_saves_alone(rows, pair, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_10b.display, "say", told.append)
    lesson_10b.inside(rows, pair)
    assert "4.8 µs for llama-3-8b in FP16" in told[0] and "it takes 6.7 µs less" in told[0]
    quick = rows.copy()
    quick.loc[(quick["impl"] == links.NCCL) & (quick["operator"] == "all_reduce"), "median_us"] = 3.0
    lesson_10b.inside(quick, pair)
    assert "Repeated alone" not in told[1]


def test_the_caption_of_the_sums_names_every_size_at_which_the_last_winner_leads(rows, monkeypatch):
    charts = []
    monkeypatch.setattr(lesson_10.plot, "show", lambda fig, caption: charts.append(caption))
    lesson_10.sum_times(rows, "GPU")
    assert "two shots: fastest from 256 KiB on, and at 4 KiB, 8 KiB and 16 KiB." in charts[0]
    lesson_10.sum_times(rows[(rows["impl"] == links.NCCL) | (rows["kind"] == "own")], "GPU")
    assert "In a graph NCCL: fastest at every size." in charts[1]


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
    assert "above theirs, within 10% on 4 models" in line
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


def test_10c_turns_ways_by_gpus_and_one_gpu_is_of_the_run_with_two(split_rows):
    """Two GPUs and four by their own recordings; prompts by what was timed of them."""
    gpu = "NVIDIA H200"
    made = four_gpus.explore(split_rows, gpu)
    four = lesson_10c.tokens(four_gpus.recorded(gpu, "split"))
    model = "llama-3-8b in INT4"
    for gpus, found, impl in (
        (1, lesson_10c.tokens(split_rows), links.ALONE),
        (2, lesson_10c.tokens(split_rows), split.FUSED),
        (4, four, split.FUSED),
    ):
        row = found[(found["title"] == model) & (found["impl"] == impl)].iloc[0]
        told = turned(made, "the fused way", model, "a token", gpus)
        assert f": {row['tok_s']:.3g} tok/s;" in told
        assert (f"{row['gain']:.2f} times one GPU's speed" in told) == (gpus > 1)
    assert turned(made, "sums by our kernel", model, "a prompt of 1,848", 2).startswith("Not recorded")
    alone = four_gpus.explore(split_rows, "NVIDIA A100 80GB")  # of which no four were recorded
    assert "GPUs 2: " in turned(alone, "the fused way", model, "a token", 2)
