"""Measures that one lesson's claims ask for, beyond what columns of rows can select."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rooflab.analysis import (
    ablation,
    attention,
    coalescing,
    drafts,
    int4,
    q8_0,
    time_breakdown,
    token_rate,
    unseen,
)
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.claims.measures.rows import Where, figure, measure
from rooflab.errors import UsageError
from rooflab.hardware import device as devices
from rooflab.numerics import model_shapes
from rooflab.ops import gemv
from rooflab.studies import attention as study_attention
from rooflab.studies import attribution, launch_rule, mmq, prefill
from rooflab.studies.gemv import FAMILIES

# --- lesson 02: a traced token ------------------------------------------------------------------------------


@measure
def class_share(evidence: Evidence, kernels: str, variant: str = "eager") -> float:
    """Share of a token's GPU time in a class of kernels, at a context of 1024."""
    frame = time_breakdown.by_class(evidence.traced(1024, variant=variant))
    return float(frame[frame["class"] == kernels]["pct"].sum()) / 100


@measure
def weight_share_by_rule(evidence: Evidence, device: str) -> float:
    """The share of weight products on another card, by lesson 02's rule and the card's datasheet."""
    known = launch_rule.rule(evidence.traced(1024), attribution.MODEL, evidence.ceiling("dram_read"))
    there = time_breakdown.elsewhere(known, evidence.datasheet().dram_gb_s, devices.get(device))
    return there.share(model_shapes.get(attribution.MODEL))


def _counted(evidence: Evidence) -> pd.DataFrame:
    frame = time_breakdown.counters(evidence.table("attribution", "ncu"))
    return frame[frame["case"].str.startswith("decode/")]


@measure
def part_bytes(evidence: Evidence, part: str) -> float:
    """Bytes that a product of one token takes from DRAM, counted."""
    chosen = _counted(evidence).query("part == @part")
    if chosen.empty:
        raise NoEvidence(f"no counted launch of {part} in study attribution")
    return float(chosen["dram_bytes"].iloc[0])


@measure
def intensity(evidence: Evidence) -> float:
    """FLOP a counted byte of a token's weight products: the median over the projections."""
    read = evidence.ceiling("dram_read")
    table = time_breakdown.roofline(_counted(evidence), evidence.traced(1024), attribution.MODEL, read)
    return float(table["intensity"].median())


@measure
def ridge_over_intensity(evidence: Evidence) -> float:
    """How far those products lie below the ridge of the roofline."""
    ridge = evidence.ceiling("fp16_tensor") * 1e3 / evidence.ceiling("dram_read")
    return ridge / intensity(evidence)


# --- lesson 03: FP32 products and a root cause --------------------------------------------------------------


@measure
def roof_share(evidence: Evidence, of: Where) -> float:
    """The share of the read roof at which an n x n FP32 matrix is read."""
    return coalescing.moved(of["n"]) / figure(evidence, of) / 1e3 / evidence.ceiling("dram_read")


@measure
def time_over_floor(evidence: Evidence, of: Where) -> float:
    """The time of such a product, in units of what its bytes take at the read roof."""
    return 1 / roof_share(evidence, of)


@measure
def best_wasteful_share(evidence: Evidence, of: Where) -> float:
    """The best share of the read roof among rungs that use less than half of what they load."""
    rows = coalescing.counters(evidence.table("gemv", "ncu"))
    rows = rows[(rows["operator"] == "gemv") & (rows["n"] == of["n"]) & (rows["cache"] == of["cache"])]
    if rows.empty or "load_efficiency_pct" not in rows:
        raise NoEvidence("load efficiency was not counted")
    wasteful = rows[rows["load_efficiency_pct"] < 50]
    if wasteful.empty:
        raise NoEvidence("no counted rung wastes half of what it loads")
    return max(float(roof_share(evidence, {**of, "impl": impl})) for impl in wasteful["impl"])


@measure
def token_share(evidence: Evidence, model: str) -> float:
    """The share of the read roof at which all FP16 products of one token run, by gemv_rows' default."""
    rows = evidence.rows("gemv", operator="gemv_rows", impl=gemv.TUNED, cache="cold")
    found = token_rate.of_models(rows, [name for name in FAMILIES if name == model])
    if found.empty:
        raise NoEvidence(f"the products of {model} were not all measured")
    return float((found["bytes"] / found["us"]).iloc[-1] / 1e3 / evidence.ceiling("dram_read"))


@measure
def share_of_card(evidence: Evidence, us: float = 0, of: Where | None = None) -> float:
    """The share of the source's card's bandwidth that its product asks for, in `us` or in a row's time."""
    return coalescing.share_of_card(figure(evidence, of) if of else us, coalescing.moved())


@measure
def us_at_share(evidence: Evidence, share: float) -> float:
    """Microseconds of the source's product at this share of its card's bandwidth."""
    return coalescing.moved() / share / coalescing.CARD.dram_gb_s / 1e3


# --- lesson 04: INT4 ----------------------------------------------------------------------------------------


def _contestants(evidence: Evidence) -> pd.DataFrame:
    return evidence.once("int4.contestants", lambda: int4.contestants(evidence.rows("int4")))


@measure
def int4_time(
    evidence: Evidence, n: int, k: int, batch: int = 1, over_batch: int = 0, column: str = "median_us"
) -> float:
    """Microseconds of our fastest kernel at a point; or over its time at another number of tokens."""
    us = int4.value(_contestants(evidence), n, k, batch, column=column)
    return us / int4.value(_contestants(evidence), n, k, over_batch) if over_batch else us


@measure
def int4_roof_share(evidence: Evidence, n: int, k: int) -> float:
    """The share of the read roof that our fastest kernel reaches at one token."""
    return int4.value(_contestants(evidence), n, k, 1, column="roof_fraction")


@measure
def int4_points_slower(evidence: Evidence, than: str) -> float:
    """At how many points ours is slower than FP16 (`fp16`), or than the fastest peer (`peers`)."""
    lost = {"fp16": int4.slower_than_fp16, "peers": int4.slower_than_peers}[than]
    return evidence.once(f"int4.slower {than}", lambda: float(len(lost(_contestants(evidence)))))


@measure
def int4_slower_share(evidence: Evidence) -> float:
    """Of all points of more than one token, the share at which our fastest kernel is slower than FP16."""
    rows = evidence.rows("int4", operator="int4", clock="graph", cache="cold")
    points = [point for point in int4.points(rows) if point[2] > 1]
    if not points:
        raise NoEvidence("no product of several tokens in study int4")
    who = rows["impl"].where(rows["kind"] != "own", "own")
    us = rows.groupby(["n", "k", "batch", who])["median_us"].min()
    return sum(bool(us[*at, "own"] > us.get((*at, int4.CUBLAS), float("nan"))) for at in points) / len(points)


@measure
def int4_least_gain(evidence: Evidence, batches: Sequence[int]) -> float:
    """The smallest gain over cuBLAS on the two large shapes, from the first to the last of these numbers of
    tokens.
    """
    rows = _contestants(evidence)
    points = [p for p in int4.points(rows) if p[:2] in int4.LARGE and batches[0] <= p[2] <= batches[-1]]
    if not points:
        raise NoEvidence("the two large shapes were not measured")
    return min(int4.value(rows, *p, int4.CUBLAS) / int4.value(rows, *p) for p in points)


# --- lesson 05: Q8_0 ----------------------------------------------------------------------------------------


@measure
def q8_decode(evidence: Evidence, column: str = "median_us", batch: int = 1) -> float:
    """A figure of the fastest own product of the decode shape."""
    return float(q8_0.best(q8_0.decode(evidence), *q8_0.DECODE, batch)[column])


@measure
def q8_growth(evidence: Evidence, batch: int) -> float:
    """The time with so many tokens over that with one."""
    return q8_decode(evidence, batch=batch) / q8_decode(evidence)


@measure
def q8_rate(evidence: Evidence, tokens: int, halves: bool, column: str = "tflop_s") -> float:
    """TOP/s of the fastest rung that adds up whole numbers, or TFLOP/s of the fastest that makes halves."""
    found = q8_0.at(q8_0.prompts(evidence), *q8_0.SQUARE, tokens)
    found = found[(found["kind"] == "own").to_numpy() & (found.index.map(mmq.takes_halves) == halves)]
    if found.empty:
        raise NoEvidence("no such rung was measured")
    return float(found.sort_values("tflop_s")[column].iloc[-1])


@measure
def q8_points_behind(evidence: Evidence, rival: str, tokens: Sequence[int]) -> float:
    """At how many points what the dispatcher chooses is not faster than a rival, between these numbers of
    tokens."""
    least, most = tokens[0], tokens[-1]
    lost = evidence.once(
        f"q8_0.behind {rival} {least} {most}", lambda: q8_0.behind(evidence, rival, least, most)
    )
    return float(len(lost))


@measure
def baseline_over_exact(evidence: Evidence, of: Where) -> float:
    """The baseline's time over that of the fastest own rung that adds up whole numbers."""
    exact = {**of, "kind": "own", "impl": lambda impl: not mmq.takes_halves(impl)}
    return figure(evidence, {**of, "impl": mmq.BASELINE}) / figure(evidence, exact)


@measure
def suggestion_gain(evidence: Evidence, number: str) -> float:
    """What a suggestion of the review gains: the time before over the time after."""
    pair = next(each for each in q8_0.review() if each.number == number)
    before, after = (
        float(evidence.rows(case.study, case=case.id)["median_us"].iloc[0])
        for case in (pair.before, pair.after)
    )
    return before / after


@measure
def capture_fails(evidence: Evidence) -> float:
    """1 if a capture that has to ask the driver for memory fails."""
    frame = evidence.table("q8_0", "gate")
    chosen = frame[frame["case"].str.contains("capture/") & frame["case"].str.contains("pooled=0")]
    if chosen.empty:
        raise NoEvidence("no capture without a pool in study q8_0")
    return float(str(chosen["refused"].iloc[0]) == "True")


# --- lesson 06: attention -----------------------------------------------------------------------------------


@measure
def prompt_share(evidence: Evidence, seq: int, over_seq: int = 0) -> float:
    """Attention's share of Gemma 4 E4B's prompt by the scalar kernel; or over its share at another length."""
    lengths = [n for n in study_attention.PROMPTS if n >= 512]
    ceilings = (evidence.ceiling("dram_read"), evidence.ceiling("fp16_tensor"))
    try:
        found = attention.prompts(evidence.rows("attention"), lengths, *ceilings)
    except UsageError as missing:
        raise NoEvidence(str(missing)) from None
    share = found[found["model"] == "gemma-4-e4b"].set_index("seq")["share_before"]
    if not {seq, over_seq or seq} <= set(share.index):
        raise NoEvidence(f"no attention of gemma-4-e4b at {seq} tokens")
    return float(share[seq] / (share[over_seq] if over_seq else 1))


# --- lesson 07: shapes that were drawn ----------------------------------------------------------------------


def _drawn(evidence: Evidence, kind: str = "", tokens: Sequence[int] = ()) -> pd.DataFrame:
    """The outcomes of the drawn shapes of a kind, or all, from the first to the last number of tokens."""
    found = evidence.once("unseen.outcomes", lambda: _all_drawn(evidence))
    found = found[found["kind"] == kind] if kind else found
    found = found[found["tokens"].between(tokens[0], tokens[-1])] if tokens else found
    if found.empty:
        raise NoEvidence(f"no drawn shape{kind and f' of {kind}'} was measured beside a library")
    return found


def _all_drawn(evidence: Evidence) -> pd.DataFrame:
    slug, arch = (evidence.spec.slug, evidence.spec.sm) if evidence.spec else (None, "75")
    raced = evidence.rows("regimes", clock="graph")
    return unseen.outcomes(evidence.rows("unseen"), raced, slug, arch)


@measure
def unseen_won(evidence: Evidence) -> float:
    """Share of the drawn shapes on which no library is faster than ours by more than a tie."""
    found = _drawn(evidence)
    return len(unseen.won(found)) / len(found)


@measure
def unseen_least(evidence: Evidence, kind: str = "", tokens: Sequence[int] = ()) -> float:
    """The fastest library's time over ours, on the drawn shape where that is smallest."""
    return float(_drawn(evidence, kind, tokens)["ratio"].min())


@measure
def unseen_cost(evidence: Evidence, kind: str, tokens: Sequence[int]) -> float:
    """Our time over that of the fastest way measured, on the drawn shape where the dispatcher chose worst."""
    return float(_drawn(evidence, kind, tokens)["cost"].max())


# --- lesson 08: a decoder -----------------------------------------------------------------------------------


@measure
def decode_rate(evidence: Evidence, model: str, format: str, column: str = "tok_s") -> float:
    """Tokens a second of our fastest decoder at batch 1 after a short prompt."""
    return float(ablation.best(evidence.rows("decode"), model, format)[column])


@measure
def draft_cost(evidence: Evidence, tokens: int) -> float:
    """How many tokens' time a check of so many costs, of the models and formats measured the dearest."""
    found = drafts.costs(evidence.rows("decode"))
    found = found[found["batch"] == tokens]
    if found.empty:
        raise NoEvidence(f"no check of {tokens} drafted tokens was measured")
    return float(found["cost"].max())


@measure
def prompt_rate(evidence: Evidence, format: str, column: str = "tok_s") -> float:
    """Tokens a second of our fastest way to take in a prompt."""
    return float(ablation.fastest_prompt(evidence.rows("prefill"), format)[column])


@measure
def own_products_share(evidence: Evidence) -> float:
    """The share of products' time in a traced Q8_0 prompt that our own kernels take."""
    for tool in ("nsys", "cupti"):
        try:
            return ablation.mmq_share(evidence.table("prefill", tool), prefill.share_case().id)
        except NoEvidence as missing:
            why = missing
    raise why
