"""Lesson 07's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("07")

_WINNERS = (
    "def crossover(tokens, first, second):\n"
    "    winners = []\n"
    "    for size, a, b in zip(tokens, first, second):\n"
    "        if {first}:\n            winners.append((size, 'first'))\n"
    "        elif {second}:\n            winners.append((size, 'second'))\n"
    "    names = [name for _, name in winners]\n"
    "    wins = names.count('first')\n"
    "    if wins in (0, len(names)){order}:\n        return None\n"
    "    return winners[wins - 1][0], winners[wins][0]"
)
_QUARTILES = {"first": "a[2] < b[0]", "second": "b[2] < a[0]"}
_APART = {"first": "a[2] < b[0] and b[1] > 1.02 * a[1]", "second": "b[2] < a[0] and a[1] > 1.02 * b[1]"}
_ORDER = " or 'second' in names[:wins]"

_CHOOSE = (
    "from math import log\n\n\n"
    "def choose(table, n, k, tokens):\n"
    "    def off(line):\n        return {off}\n\n"
    "    nearest = min(off(line) for line in table)\n"
    "    lines = [line for line in table if off(line) == nearest]\n"
    "    enough = [line[2] for line in lines if line[2] {sign} tokens]\n"
    "    size = {size}(enough) if enough else max(line[2] for line in lines)\n"
    "    return min((line for line in lines if line[2] == size), key=lambda line: line[4])[3]"
)
_LOGS = "abs(log(line[0] / n)) + abs(log(line[1] / k))"

WRONG = {
    "07.1": {
        "by medians": _WINNERS.format(first="a[1] < b[1]", second="b[1] < a[1]", order=_ORDER),
        "quartiles alone": _WINNERS.format(**_QUARTILES, order=_ORDER),
        "the order forgotten": _WINNERS.format(**_APART, order=""),
        "the first size of each": "def crossover(tokens, first, second):\n"
        "    wins = [s for s, a, b in zip(tokens, first, second) if a[2] < b[0]]\n"
        "    losses = [s for s, a, b in zip(tokens, first, second) if b[2] < a[0]]\n"
        "    return (wins[-1], losses[0]) if wins and losses else None",
    },
    "07.2": {
        "differences": _CHOOSE.format(off="abs(line[0] - n) + abs(line[1] - k)", sign=">=", size="min"),
        "the next lower tokens": _CHOOSE.format(off=_LOGS, sign="<=", size="max"),
        "the slowest": _CHOOSE.format(off=_LOGS, sign=">=", size="min").replace(
            "return min((line", "return max((line"
        ),
    },
    "07.3": {
        "one after the other": "def product_us(n, k, tokens, weight_bytes, gb_s, tflop_s, fixed_us):\n"
        "    moved = n * k * weight_bytes + 2 * tokens * (n + k)\n"
        "    return fixed_us + moved / gb_s / 1e3 + 2 * n * k * tokens / tflop_s / 1e6",
        "no launch": "def product_us(n, k, tokens, weight_bytes, gb_s, tflop_s, fixed_us):\n"
        "    moved = n * k * weight_bytes + 2 * tokens * (n + k)\n"
        "    return max(moved / gb_s / 1e3, 2 * n * k * tokens / tflop_s / 1e6)",
        "weights alone": "def product_us(n, k, tokens, weight_bytes, gb_s, tflop_s, fixed_us):\n"
        "    moved = n * k * weight_bytes\n"
        "    return fixed_us + max(moved / gb_s / 1e3, 2 * n * k * tokens / tflop_s / 1e6)",
    },
    "07.4": {
        "tiles that are full": "def busy(n, tokens, rows, columns, sms):\n"
        "    tiles = -(-n // rows) * -(-tokens // columns)\n"
        "    return tiles / (-(-tiles // sms) * sms)",
        "no rounds": "def busy(n, tokens, rows, columns, sms):\n"
        "    tiles = -(-n // rows) * -(-tokens // columns)\n"
        "    return n * tokens / (tiles * rows * columns)",
        "rounded down": "def busy(n, tokens, rows, columns, sms):\n"
        "    tiles = max(1, n // rows) * max(1, tokens // columns)\n"
        "    return n * tokens / (max(1, tiles // sms) * sms * rows * columns)",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
