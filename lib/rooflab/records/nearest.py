"""Which recorded case is most like one that is missing."""

import math
from collections.abc import Iterable

_OTHER = 10.0  # what one differing word weighs, against doublings of a size


def nearest(case: str, recorded: Iterable[str]) -> str | None:
    """Of the ids `recorded` the one most like the id `case`; None where none is of its operator. Ids of the
    same implementation and options come first, then those whose sizes lie the fewest doublings away.
    """
    operator = case.partition("/")[0]
    same = [id for id in recorded if id.partition("/")[0] == operator]
    return min(same, key=lambda id: (_distance(case, id), id), default=None)


def _distance(one: str, other: str) -> float:
    a, b = _words(one), _words(other)
    return sum(_apart(a.get(name), b.get(name)) for name in a.keys() | b.keys())


def _words(id: str) -> dict[str, str]:
    """An id's words by name: sizes and options by theirs, a lone word by itself."""
    head, *words = id.split()
    return {"": head} | {word.partition("=")[0]: word.partition("=")[2] for word in words}


def _apart(one: str | None, other: str | None) -> float:
    if one == other:
        return 0.0
    if one and other and one.isdecimal() and other.isdecimal() and int(one) and int(other):
        return abs(math.log2(int(one) / int(other)))
    return _OTHER
