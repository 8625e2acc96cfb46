"""The bars of a law's terms."""

from __future__ import annotations

import re

import pytest
from rooflab.errors import UsageError
from rooflab.view import diagram

BY_BYTES = diagram.Terms(fixed=4.0, bytes=6.0, flops=0.05, measured=11.0)


def bars(drawing: diagram.Drawing) -> list[tuple[float, float, float]]:
    """Left end, top and width of each bar."""
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', drawing.svg())
    return [tuple(map(float, each)) for each in found]


def test_bytes_and_flops_begin_behind_the_fixed_time_and_the_longer_ends_it():
    drawn = diagram.terms_of_time("a product", BY_BYTES)
    moved, computed, fixed, measured = bars(drawn)
    assert moved[0] == computed[0] == pytest.approx(fixed[0] + fixed[2], abs=0.2)
    assert fixed[0] == measured[0] and moved[2] / fixed[2] == pytest.approx(6 / 4, rel=0.01)
    assert measured[2] / (fixed[2] + moved[2]) == pytest.approx(11 / 10, rel=0.01)
    assert "by the plain law 10.00 µs" in drawn.svg() and "0.05" in drawn.svg(), (
        "a short bar has its number beside"
    )


def test_the_law_s_time_is_written_at_the_term_that_decides():
    by_flops = BY_BYTES._replace(bytes=BY_BYTES.flops, flops=BY_BYTES.bytes)
    rows = [
        float(
            re.search(r'y="([\d.]+)"[^>]*>by the plain law', diagram.terms_of_time("a product", each).svg())[
                1
            ]
        )
        for each in (BY_BYTES, by_flops)
    ]
    assert rows[0] < rows[1]


def test_no_time_at_all_is_refused():
    for wrong in (diagram.Terms(0.0, 0.0, 0.0, 1.0), BY_BYTES._replace(bytes=-1.0)):
        with pytest.raises(UsageError, match="at least 0"):
            diagram.terms_of_time("a product", wrong)
