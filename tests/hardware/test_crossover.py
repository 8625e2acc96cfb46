"""Crossovers from quartiles: found, bracketed, or said to be inside the noise."""

import math

import pandas as pd
import pytest
from rooflab.hardware import crossover

SIZES = (1, 2, 4, 8, 16, 32)


def rows(times, spread=0.01, sizes=SIZES):
    return pd.DataFrame(
        [(s, t, t * (1 - spread), t * (1 + spread)) for s, t in zip(sizes, times, strict=True)],
        columns=["batch", "median_us", "q1_us", "q3_us"],
    )


GROWS, FLAT = rows([1, 2, 4, 8, 16, 32]), rows([6] * 6)


def test_a_crossover_has_an_interval_and_a_point_between_sizes():
    found = crossover.between(GROWS, FLAT)
    assert (found.kind, found.low, found.high, found.noise) == ("crosses", 4, 8, 0)
    assert found.at == pytest.approx(6)
    assert found.says("loop", "cuBLAS") == (
        "loop is faster up to 4 tokens, cuBLAS from 8 on (medians cross near 6.0)"
    )


def test_sizes_inside_the_noise_widen_the_interval():
    found = crossover.between(rows([1, 2, 5.9, 6.1, 16, 32], 0.05), rows([6] * 6, 0.05))
    assert (found.low, found.high, found.noise) == (2, 16, 2)
    assert 4 < found.at < 8 and "level at 2 sizes between" in found.says("a", "b")


def test_medians_apart_but_quartiles_not_are_level():
    found = crossover.between(rows([5] * 6, 0.3), rows([6] * 6, 0.3))
    assert found.kind == "level" and math.isnan(found.at)
    assert "inside the noise" in found.says("a", "b")


def test_quartiles_apart_but_medians_within_two_percent_are_level():
    assert crossover.between(rows([6] * 6, 1e-4), rows([6.1] * 6, 1e-4)).kind == "level"


@pytest.mark.parametrize(("ratio", "apart"), [(1.015, False), (1.019, False), (1.021, True), (1.03, True)])
def test_two_percent_is_the_line_between_level_and_faster(ratio, apart):
    one, other = rows([6] * 6, 1e-6), rows([6 * ratio] * 6, 1e-6)
    assert crossover.between(one, other).kind == ("first" if apart else "level")
    assert crossover.between(other, one).kind == ("second" if apart else "level")


def test_one_sided_races_name_the_winner():
    assert crossover.between(rows([1] * 6), FLAT).kind == "first"
    found = crossover.between(FLAT, rows([1, 1, 1, 1, 1, 6]))
    assert found.kind == "second"
    assert (
        found.says("a", "b")
        == "b is faster than a or level with it from 1 to 32 tokens, level at 1 of 6 sizes"
    )


def test_the_winner_of_a_one_sided_race_is_named_without_ties_that_are_none():
    found = crossover.between(rows([1] * 6), FLAT)
    assert found.says("a", "b") == "a is faster than b or level with it from 1 to 32 tokens"
    both = crossover.between(FLAT, rows([9, 9, 9, 9, 9, 6]))
    assert (
        both.says("a", "b")
        == "a is faster than b or level with it from 1 to 32 tokens, level at 1 of 6 sizes"
    )


def test_quartiles_that_overlap_are_level_whoever_is_ahead():
    wide, narrow = rows([5] * 6, 0.3), rows([6] * 6, 0.3)
    assert crossover.verdict(*(frame.iloc[0].to_dict() for frame in (wide, narrow))) == "level"
    assert crossover.verdict(*(frame.iloc[0].to_dict() for frame in (narrow, wide))) == "level"


def test_an_order_that_changes_twice_or_the_wrong_way_is_told_as_it_is():
    assert crossover.between(rows([1, 9, 1, 9, 9, 9]), FLAT).kind == "flips"
    found = crossover.between(rows([9, 9, 9, 1, 1, 1]), FLAT)
    assert found.kind == "flips"
    assert "change places more than once (1 b, 2 b, 4 b, 8 a" in found.says("a", "b")


def test_only_sizes_that_both_have_count():
    found = crossover.between(GROWS, rows([6, 6, 6], sizes=(2, 8, 64)))
    assert [size for size, _ in found.verdicts] == [2, 8]
    assert crossover.between(GROWS, rows([6], sizes=(64,))).verdicts == ()


def test_nan_wins_nothing():
    broken = rows([float("nan")] * 6)
    assert crossover.between(broken, FLAT).kind == "level"
