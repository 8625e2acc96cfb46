"""Lesson 09's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("09")

WRONG = {
    "09.1": {
        "NaN forgotten": "def verdict(value, predicted, falsified):\n"
        "    if value > predicted:\n        return 'survives'\n"
        "    return 'falsified' if value < falsified else 'falls short'",
        "bars that count": "def verdict(value, predicted, falsified):\n"
        "    if value != value:\n        return 'not measured'\n"
        "    if value >= predicted:\n        return 'survives'\n"
        "    return 'falsified' if value <= falsified else 'falls short'",
    },
    "09.2": {
        "the same time": "def rescaled(us, n, theirs, here):\n    return us",
        "the wrong way round": "def rescaled(us, n, theirs, here):\n    return us * here / theirs",
        "the floor": "def rescaled(us, n, theirs, here):\n    return 4 * n * n / here / 1e3",
    },
    "09.3": {
        "a whole block": "def telling(threads, unroll):\n    return threads * unroll",
        "a little over a block": "def telling(threads, unroll):\n    return threads * unroll + 9",
        "a few": "def telling(threads, unroll):\n    return 9",
    },
    "09.5": {
        "by medians": "def faster(ours, theirs):\n"
        "    return 'ours' if ours[1] < theirs[1] else 'theirs' if theirs[1] < ours[1] else 'level'",
        "quartiles alone": "def faster(ours, theirs):\n"
        "    return 'ours' if ours[2] < theirs[0] else 'theirs' if theirs[2] < ours[0] else 'level'",
        "the best of each": "def faster(ours, theirs):\n"
        "    return 'ours' if ours[0] < theirs[0] else 'theirs' if theirs[0] < ours[0] else 'level'",
    },
    "09.4": {
        "open ones count": "def marked(items, asked, named):\n"
        "    passed = {name: points for name, points, outcome in items if outcome != 'fail'}\n"
        "    earned = sum(passed.values())\n"
        "    return earned, earned >= asked and all(name in passed for name in named)",
        "names forgotten": "def marked(items, asked, named):\n"
        "    earned = sum(points for _, points, outcome in items if outcome == 'pass')\n"
        "    return earned, earned >= asked",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
