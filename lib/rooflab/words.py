"""Words that computed sentences share."""

from collections.abc import Iterable

# What a page calls a number format of a record.
FORMATS = {"fp16": "FP16", "bf16": "bfloat16", "q8_0": "Q8_0", "int4_g128": "INT4"}


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things with their name: "1 token", "1,848 tokens"; `many` is a plural without a plain s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Iterable[object]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c", or "none"."""
    *most, last = [str(name) for name in names] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def spans(numbers: Iterable[int]) -> str:
    """ "18 to 20, 11": three numbers or more that follow each other by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def times(ratio: float) -> str:
    """A ratio with two significant digits, all its integer digits from 10 on: "0.48", "3.2", "1,240"."""
    if not abs(ratio) < 9.95:
        return f"{ratio:,.0f}"
    return f"{ratio:.1f}" if abs(ratio) >= 0.995 else f"{ratio:.2g}"
