"""Claims of the sources: rows that do not exist, made up so that every verdict comes out each way."""

import math

import pandas as pd
import pytest
from rooflab import claims, lab
from rooflab.case import options
from rooflab.claims import Claim, NoEvidence, coalescing, less, more, whys

# --- the room -----------------------------------------------------------------------------------------------


def claim(predicted, falsified=None, **changes):
    """A claim about the number that the evidence itself is."""
    fields = {"id": "T1", "where": "here", "says": "It is so.", "quantity": "speed", "form": "{:.1f} m/s"}
    fields |= {"measure": lambda evidence, subject: evidence, "subject": "kernel"}
    return Claim(predicted=predicted, falsified=falsified, **fields | changes)


@pytest.mark.parametrize(
    ("predicted", "falsified", "value", "word"),
    [
        (more(2.0), less(1.5), 2.1, "survives"),
        (more(2.0), less(1.5), 2.0, "falls short"),
        (more(2.0), less(1.5), 1.5, "falls short"),
        (more(2.0), less(1.5), 1.4, "falsified"),
        (less(50), more(100), 49, "survives"),
        (less(50), more(100), 70, "falls short"),
        (less(50), more(100), 101, "falsified"),
        (more(10), None, 10.1, "survives"),
        (more(10), None, 10.0, "falsified"),
        (less(1.2), None, 1.3, "falsified"),
        (less(1.2), None, math.inf, "falsified"),
        (less(1.2), None, math.nan, "not measured"),
    ],
)
def test_a_verdict_is_the_value_against_the_bars(predicted, falsified, value, word):
    found = claims.judge(claim(predicted, falsified), value)
    assert found.word == word
    if word != "not measured":
        assert (found.value, found.measured) == (value, f"{value:.1f} m/s")


def test_what_was_not_measured_says_what_is_missing():
    def missing(evidence, subject):
        raise NoEvidence(f"nobody timed {subject}")

    found = claims.judge(claim(more(1), measure=missing), None, "the other kernel")
    assert (found.word, found.measured) == ("not measured", "nobody timed the other kernel")
    assert math.isnan(found.value) and found.subject == "the other kernel"


def test_bars_are_printed_as_the_quantity_is():
    assert claim(more(2.0), less(1.5)).bars() == "> 2.0 m/s; falsified < 1.5 m/s"
    assert claim(less(0.5), form="{:.0%}").bars() == "< 50%"


def test_a_board_holds_a_row_a_claim_and_its_restatement_beside_it():
    first = claim(more(2.0))
    second = claim(more(1.0), id="T1 again", restates="T1", reason="it could not fail", points=3)
    found = claims.board([first, second], 1.5)
    assert found["id"].tolist() == ["T1", "T1 again"]
    assert found["word"].tolist() == ["falsified", "survives"]
    assert found["measured"].tolist() == ["1.5 m/s", "1.5 m/s"]
    assert found["restates"].tolist() == ["", "T1"] and found["points"].tolist()[1] == 3


def test_powers_judge_one_claim_for_several_contestants():
    lengths = claim(more(3), measure=lambda evidence, subject: len(subject))
    found = claims.powers([lengths], None, ["ab", "abcd"]).iloc[0]
    assert (found["ab"].word, found["abcd"].word) == ("falsified", "survives")


# --- the coalescing story -----------------------------------------------------------------------------------

ROOF = 1000.0  # GB/s
LADDER = ("1_strided", "2_coalesced", "3_split_k", "4_vector", "6_strip")


def row(impl, n, us, cache="cold", kind="own", **chosen):
    return {
        "impl": impl,
        "kind": kind,
        "n": n,
        "k": n,
        "cache": cache,
        "clock": "graph",
        "options": options(**chosen),
        "median_us": us,
        "shared_bytes": 0 if impl == "1_strided" else 16384,
    }


def evidence(shares=None, counters=(), blocks=None, pad=None, cublas=0.8, tokens=None, uploads=None):
    """Rows in which rungs and cuBLAS read at their shares of a roof of 1000 GB/s, at every size."""
    rows = []
    for impl, share in (shares or {}).items():
        rows += [row(impl, n, coalescing.moved(n) / share / ROOF / 1e3) for n in coalescing.SIZES]
    for impl, ratios in (blocks or {}).items():
        rows += [row(impl, 4096, 100 * ratio, threads=threads) for threads, ratio in ratios.items()]
    if cublas:
        times = {n: coalescing.moved(n) / cublas / ROOF / 1e3 for n in coalescing.SIZES}
        rows += [row(coalescing.CUBLAS, n, us, kind="peer") for n, us in times.items()]
    if pad:
        rows += [row("6_strip", 4096, 20.0, pad=1), row("6_strip", 4096, 20.0 * pad, pad=0)]
    frame = pd.DataFrame(rows, columns=list(row("", 1, 1.0)))
    uploads = pd.DataFrame() if uploads is None else uploads
    return coalescing.Evidence(frame, pd.DataFrame(list(counters)), ROOF, tokens or {}, uploads)


def counter(impl, n=4096, cache="cold", **values):
    return {"impl": impl, "n": n, "cache": cache, "options": ""} | values


def words(wanted, found):
    """Verdicts on the claims called so."""
    known = {
        each.id: each for each in (*coalescing.HYPOTHESES, *coalescing.TESTS, *coalescing.RESTATED_TESTS)
    }
    return [claims.judge(known[id], found).word for id in wanted]


def test_every_claim_stands_once_and_restatements_name_what_they_restate():
    everything = (*coalescing.HYPOTHESES, *coalescing.TESTS, *coalescing.RESTATED_TESTS)
    ids = [each.id for each in everything]
    assert len(set(ids)) == len(ids)
    assert {f"H{i}" for i in range(1, 6)} | {f"E{i}" for i in range(1, 13)} <= set(ids)
    for each in everything:
        assert bool(each.restates) == bool(each.reason)
        assert not each.restates or each.restates in ids


def test_without_rows_nothing_is_judged():
    nothing = evidence(cublas=None)
    everything = (*coalescing.HYPOTHESES, *coalescing.TESTS, *coalescing.RESTATED_TESTS)
    assert {claims.judge(each, nothing).word for each in everything} == {"not measured"}


@pytest.mark.parametrize(
    ("efficiency", "share", "wasteful", "expected"),
    [
        (100, 0.95, 0.1, ["survives", "survives", "survives"]),
        (100, 0.06, 0.1, ["survives", "falsified", "survives"]),  # coalesced, and slow
        (80, 0.7, 0.6, ["falls short", "falls short", "falls short"]),
        (40, 0.3, 0.95, ["falsified", "falsified", "falsified"]),
    ],
)
def test_h1_is_efficiency_and_bandwidth_apart(efficiency, share, wasteful, expected):
    found = evidence(
        {"1_strided": wasteful, "2_coalesced": share},
        [
            counter("1_strided", load_efficiency_pct=12.5),
            counter("2_coalesced", load_efficiency_pct=efficiency),
        ],
    )
    if efficiency < 50:  # both waste, so the better of the two speaks
        assert claims.judge(coalescing.HYPOTHESES[2], found).value == pytest.approx(max(share, wasteful))
    assert words(["H1", "H1 sufficient", "H1 necessary"], found) == expected


@pytest.mark.parametrize(("us", "word"), [(49, "survives"), (99, "falls short"), (101, "falsified")])
def test_h2_by_the_clock(us, word):
    assert words(["H2"], evidence({"2_coalesced": coalescing.moved() / us / 1e3 / ROOF})) == [word]


@pytest.mark.parametrize(("best", "word"), [(0.95, "survives"), (0.8, "falls short"), (0.6, "falsified")])
def test_h2_by_the_floor_speaks_of_the_best_kernel(best, word):
    assert words(["H2 by the floor"], evidence({"2_coalesced": 0.1, "4_vector": best})) == [word]


def test_h3_needs_a_decoder_and_its_refinement_does_not():
    slow, fast = evidence({"2_coalesced": 0.5}), evidence({"2_coalesced": 0.9})
    assert words(["H3", "H3 as refined", "E4"], slow) == ["not measured", "falsified", "falsified"]
    assert words(["H3", "H3 as refined", "E4"], fast) == ["not measured", "survives", "survives"]


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (2.2, ["survives", "survives"]),
        (1.7, ["falls short", "survives"]),
        (1.2, ["falsified", "survives"]),
        (1.0, ["falsified", "falls short"]),
        (0.9, ["falsified", "falsified"]),
    ],
)
def test_h4_two_times_and_worth_it(gain, expected):
    assert words(["H4", "H4 worth it"], evidence({"3_split_k": 0.4, "4_vector": 0.4 * gain})) == expected


@pytest.mark.parametrize(("gain", "word"), [(4.0, "survives"), (1.7, "falls short"), (1.2, "falsified")])
def test_h4_in_rows_compares_the_fp16_rungs(gain, word):
    fp16 = pd.DataFrame([row("1_warp", 4096, 40.0), row("2_vector", 4096, 40.0 / gain)])
    found = coalescing.Evidence(pd.DataFrame(), pd.DataFrame(), ROOF, fp16=fp16)
    assert words(["H4 in rows"], found) == [word]
    assert words(
        ["H4 in rows"], coalescing.Evidence(pd.DataFrame(), pd.DataFrame(), ROOF, fp16=fp16[:1])
    ) == ["not measured"]


def test_h5_looks_one_way_and_its_restatement_both_ways():
    level = dict.fromkeys(coalescing.BLOCKS, 1.0)
    for last, expected in ((1.0, ["survives", "survives"]), (4.0, ["survives", "falsified"]),
                           (0.5, ["falsified", "falsified"])):  # fmt: skip
        times = level | {1024: last}
        found = evidence(blocks={"2_coalesced": times, "5_in_flight": times})
        assert words(["H5", "H5 two-sided"], found) == expected
    assert words(["H5 two-sided"], evidence(blocks={"5_in_flight": {64: 1.0}})) == ["not measured"]


@pytest.mark.parametrize(
    ("share", "as_stated", "by_the_roof"),
    [
        (0.95, ["survives", "survives", "survives", "survives"], ["survives", "survives", "survives"]),
        (0.6, ["falsified", "survives", "falsified", "falsified"], ["falsified", "survives", "falsified"]),
        (0.1, ["falsified"] * 4, ["falsified"] * 3),
    ],
)
def test_e1_to_e5_as_stated_and_by_the_roof(share, as_stated, by_the_roof):
    found = evidence({"2_coalesced": share})
    assert words(["E1", "E2", "E3", "E5"], found) == as_stated
    assert words([f"E{i} by the roof" for i in (1, 2, 3)], found) == by_the_roof


def test_a_bar_in_microseconds_asks_the_same_of_the_card_as_its_share():
    """On the source's own card, with its datasheet for a roof, bar and restated bar fall together."""
    card = coalescing.CARD.dram_gb_s
    for id, n, us in (("E1", 4096, 100), ("E2", 2048, 30), ("E3", 8192, 300)):
        for factor, word in ((0.99, "survives"), (1.01, "falsified")):
            frame = pd.DataFrame([row("2_coalesced", n, us * factor)])
            found = coalescing.Evidence(frame, pd.DataFrame(), card)
            assert words([id, f"{id} by the roof"], found) == [word, word]


def test_e6_e11_and_e12_come_from_counters():
    good = {"load_efficiency_pct": 100, "l2_hit_pct": 60, "threads_per_inst": 32, "shared_efficiency_pct": 95}
    bad = {"load_efficiency_pct": 12.5, "l2_hit_pct": 1, "threads_per_inst": 16, "shared_efficiency_pct": 12}
    tests = ["E6", "E10", "E11", "E12"]
    timed = {"2_coalesced": 0.5, "1_strided": 0.1}
    assert words(tests, evidence(timed, [counter("2_coalesced", **good)])) == ["survives"] * 4
    assert words(tests, evidence(timed, [counter("2_coalesced", **bad)])) == ["falsified"] * 4
    none = claims.judge(coalescing.TESTS[9], evidence(timed, [counter("1_strided", **bad)]), "1_strided")
    assert (none.word, none.measured) == ("not measured", "1_strided uses no shared memory")


@pytest.mark.parametrize(
    ("cold", "warm", "expected"),
    [
        (2, 90, ["survives", "survives"]),
        (20, 40, ["falls short", "falsified"]),
        (60, 50, ["falsified", "falsified"]),
    ],
)
def test_e11_cold_and_warm(cold, warm, expected):
    found = evidence(
        {"4_vector": 0.9},
        [
            counter("4_vector", l2_hit_pct=cold),
            counter("2_coalesced", 2048, "warm", l2_hit_pct=warm, dram_read_bytes=9e5),
        ],
    )
    assert words(["E11 cold", "E11 warm"], found) == expected


def test_a_warm_profile_that_reads_dram_is_no_evidence():
    cold = counter("2_coalesced", 2048, "warm", l2_hit_pct=2, dram_read_bytes=coalescing.moved(2048))
    found = claims.judge(coalescing.RESTATED_TESTS[-1], evidence(counters=[cold]))
    assert (found.claim.id, found.word) == ("E11 warm", "not measured")
    assert "nothing was warm" in found.measured


def test_e7_counts_the_source_s_way_and_the_model_s():
    fast, slow = evidence({"2_coalesced": 0.9}), evidence({"2_coalesced": 0.5})
    assert (words(["E7"], fast), words(["E7"], slow)) == (["survives"], ["falsified"])
    for share, word in ((0.9, "survives"), (0.5, "falsified")):
        assert words(["E7 by the models"], evidence(tokens={"llama-2-7b": share})) == [word]


def test_e8_measures_against_the_strided_kernel():
    found = evidence({"1_strided": 0.1, "2_coalesced": 0.06, "4_vector": 0.9})
    assert words(["E8", "E8 by the best"], found) == ["falsified", "falsified"]
    found = evidence({"1_strided": 0.05, "2_coalesced": 0.6})
    assert words(["E8", "E8 by the best"], found) == ["survives", "survives"]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.8, ["survives", "survives"]), (0.6, ["survives", "falls short"]), (0.4, ["falsified", "falsified"])],
)
def test_e9_against_cublas(share, expected):
    assert words(["E9", "E9 by the best"], evidence({"2_coalesced": share})) == expected


def test_e10_by_padding_takes_conflicts_away():
    for factor, word in ((2.5, "survives"), (1.1, "falsified")):
        assert words(["E10 by padding"], evidence({"6_strip": 0.9}, pad=factor)) == [word]


def test_the_best_rung_is_an_own_one_and_cold_ones_are_not_mixed_with_warm():
    frame = pd.DataFrame(
        [row("3_split_k", 4096, 30.0), row("4_vector", 4096, 20.0), row("4_vector", 4096, 9.0, "warm"),
         row("4_vector", 4096, 19.0, threads=128), row(coalescing.CUBLAS, 4096, 10.0, kind="peer")]
    )  # fmt: skip
    found = coalescing.Evidence(frame, pd.DataFrame(), ROOF)
    assert found.row("best")["median_us"] == 19.0
    assert (found.us("4_vector"), found.us("4_vector", cache="warm")) == (20.0, 9.0)
    assert found.us("4_vector", threads=128) == 19.0
    with pytest.raises(NoEvidence, match="4_vector at 4096 x 4096 threads=64, cold, was not measured"):
        found.row("4_vector", threads=64)


# --- the whys -----------------------------------------------------------------------------------------------

SOURCE = whys.Published(strided_us=4000.0, target_us=23.0, resident_us=180.0, tok_s=18.5)


def test_each_why_has_a_number_of_the_source_s_and_one_of_ours():
    strided = {"load_sectors_per_request": 32, "load_efficiency_pct": 12.5, "l2_hit_pct": 87}
    found = evidence(
        {"1_strided": 0.2, "2_coalesced": 0.05, "6_strip": 0.9},
        [counter("1_strided", dram_read_bytes=2 * coalescing.moved(), **strided)],
        uploads=pd.DataFrame(
            [{"impl": "pageable", "median_us": 6712.0}, {"impl": "pinned", "median_us": 1.0}]
        ),
    )
    rows = whys.whys(found, SOURCE)
    assert len(rows) == 6
    assert "192 × 4.00 ms leave 1.3 tokens a second" in rows["theirs"][0]
    slow = 192 * coalescing.moved() / 0.2 / 1e9
    assert f"192 products take {slow:.1f} ms strided" in rows["here"][0]
    assert "16.8 GB/s" in rows["theirs"][1] and "reads 200 GB/s, 20% of the read roof" in rows["here"][1]
    assert rows["here"][2].startswith("32 sectors a request, 12% of them used; but L2 serves 87%")
    assert rows["here"][2].endswith("DRAM 2.00 times")
    assert rows["theirs"][3].startswith("16 KiB") and rows["here"][3].startswith("16 KiB")
    assert "1_strided has " in rows["here"][4] and "6_strip " in rows["here"][4]
    assert rows["here"][5].endswith("the coalesced kernel is 1.34 ms of it, 20%")


def test_a_why_without_rows_says_so():
    rows = whys.whys(evidence(cublas=None), SOURCE)
    assert rows["here"].str.startswith("not measured: ").tolist() == [True, True, True, False, True, True]


def test_the_source_s_figures_come_from_the_published_tables():
    store = lab.open("replay", "rtx-4090-published").store
    found = whys.published(store.read("gemv"), store.read("decode"))
    assert found.strided_us > 1e3 > found.resident_us > found.target_us > 10 and found.tok_s > 10


def test_a_list_says_what_a_board_says_with_restatements_under_their_claims():
    board = claims.board(coalescing.HYPOTHESES, coalescing.gather(lab.open("replay", "h200")))
    lines = claims.listed(board).splitlines()
    assert len(lines) == len(board)
    under = ""
    for line in lines:
        id = line.partition("**")[2].partition(":")[0]
        row = board.set_index("id").loc[id]
        assert all(row[name] in line for name in ("word", "says", "measured", "bars"))
        assert line.startswith("    - ") == bool(row["restates"])
        under = under if row["restates"] else id
        assert row["restates"] in ("", under) and row["reason"] in line
