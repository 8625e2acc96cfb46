"""Where one contestant overtakes another, with an interval, from medians and quartiles.

Two contestants are compared at every size that both were measured at. One is *faster* there if its third
quartile lies under the other's first and the medians are more than 2 % apart; else they are *level*. The
crossover lies between the last size at which the first is faster and the first from which on the second is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

LEVEL = 1.02  # the tie rule of the whole course: medians within this factor are level
_APART = 0.05  # quartiles further apart, as a share of the median, leave a ratio of medians uncertain
FIRST, SECOND, NEITHER = "first", "second", "level"


@dataclass(frozen=True)
class Crossover:
    """How two contestants fare over sizes.

    `kind`: "crosses" (the first wins, then the second), "first" or "second" (one is never slower beyond
    noise, and faster somewhere), "level" (never apart), "flips" (the order changes more than once, or the
    second wins first). `low` and `high` are sizes around the change (0 and infinity where nothing was
    measured beyond), `at` where the medians are equal, by a straight line between logarithms; NaN if nothing
    crosses. `noise`: how many sizes lie level between low and high. `verdicts` holds (size, winner) of each.
    """

    kind: str
    low: float
    high: float
    at: float
    verdicts: tuple[tuple[int, str], ...]

    @property
    def noise(self) -> int:
        return sum(word == NEITHER for size, word in self.verdicts if self.low < size < self.high)

    def says(self, first: str, second: str, unit: str = "tokens") -> str:
        """The finding in words, as part of a sentence."""
        sizes = [size for size, _ in self.verdicts]
        span = f"from {sizes[0]} to {sizes[-1]} {unit}" if sizes else "nowhere"
        if self.kind == "crosses":
            inside = f", level at {self.noise} size{'s' * (self.noise > 1)} between" if self.noise else ""
            return (
                f"{first} is faster up to {self.low:.0f} {unit}, {second} from {self.high:.0f} on{inside} "
                f"(medians cross near {self.at:.1f})"
            )
        if self.kind in (FIRST, SECOND):
            winner, loser = (first, second) if self.kind == FIRST else (second, first)
            tied = sum(word == NEITHER for _, word in self.verdicts)
            some = f", level at {tied} of {len(sizes)} sizes" if tied else ""
            return f"{winner} is faster than {loser} or level with it {span}{some}"
        if self.kind == NEITHER:
            return f"{first} and {second} are level {span}: any crossover is inside the noise"
        order = ", ".join(
            f"{size} {'level' if word == NEITHER else first if word == FIRST else second}"
            for size, word in self.verdicts
        )
        return f"{first} and {second} change places more than once ({order})"


def scattered(row: Mapping[str, float] | pd.Series) -> bool:
    """Whether a row's quartiles are more than 5 % of its median apart."""
    return bool(row["q3_us"] - row["q1_us"] > _APART * row["median_us"])


def verdict(first: Mapping[str, float] | pd.Series, second: Mapping[str, float] | pd.Series) -> str:
    """Who is faster beyond the spread of two rows (median_us, q1_us, q3_us): FIRST, SECOND or NEITHER."""
    ratio = second["median_us"] / first["median_us"]
    if first["q3_us"] < second["q1_us"] and ratio > LEVEL:
        return FIRST
    if second["q3_us"] < first["q1_us"] and ratio < 1 / LEVEL:
        return SECOND
    return NEITHER


def between(first: pd.DataFrame, second: pd.DataFrame, size: str = "batch") -> Crossover:
    """The crossover of two contestants' rows (columns `size`, median_us, q1_us, q3_us) over the sizes that
    both have, one row a size.
    """
    ours, theirs = (_by_size(rows, size) for rows in (first, second))
    shared = sorted(ours.keys() & theirs.keys())
    verdicts = tuple((each, verdict(ours[each], theirs[each])) for each in shared)
    apart = [(each, word) for each, word in verdicts if word != NEITHER]
    words = [word for _, word in apart]
    nan = math.nan
    if not words:
        return Crossover(NEITHER, nan, nan, nan, verdicts)
    if len(set(words)) == 1:
        return Crossover(words[0], nan, nan, nan, verdicts)
    turns = [i for i in range(1, len(words)) if words[i] != words[i - 1]]
    if len(turns) > 1 or words[0] != FIRST:
        return Crossover("flips", nan, nan, nan, verdicts)
    low, high = apart[turns[0] - 1][0], apart[turns[0]][0]
    inside = [each for each in shared if low <= each <= high]
    ratios = [ours[each]["median_us"] / theirs[each]["median_us"] for each in inside]
    return Crossover("crosses", low, high, _equal(inside, ratios), verdicts)


def _by_size(rows: pd.DataFrame, size: str) -> dict[int, dict[str, float]]:
    columns = ["median_us", "q1_us", "q3_us"]
    values = rows[[size, *columns]].astype(float).to_numpy()
    return {int(row[0]): dict(zip(columns, row[1:].tolist(), strict=True)) for row in values}


def _equal(sizes: Sequence[float], ratios: Sequence[float]) -> float:
    """Where a ratio that begins under 1 reaches it: between two sizes, straight in both logarithms."""
    for i in range(1, len(sizes)):
        if ratios[i - 1] < 1 <= ratios[i]:
            a, b = math.log(ratios[i - 1]), math.log(ratios[i])
            share = -a / (b - a)
            return math.exp(math.log(sizes[i - 1]) + share * math.log(sizes[i] / sizes[i - 1]))
    return math.nan
