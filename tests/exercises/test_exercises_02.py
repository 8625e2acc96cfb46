"""Lesson 02's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("02")

WRONG = {
    "02.1": {
        "overlaps twice": "def busy(spans, wall_us):\n"
        "    return sum(end - start for start, end in spans) / wall_us",
        "unsorted": "def busy(spans, wall_us):\n    total, reach = 0.0, 0.0\n"
        "    for start, end in spans:\n"
        "        total += max(0.0, end - max(start, reach))\n        reach = max(reach, end)\n"
        "    return total / wall_us",
        "in percent": "def busy(spans, wall_us):\n"
        "    return 100 * sum(end - start for start, end in spans) / wall_us",
    },
    "02.2": {
        "whatever the count": "def parts_of(names, layers):\n"
        "    order = iter(['q', 'k', 'v', 'o', 'gate', 'up', 'down'] * layers + ['lm_head'])\n"
        "    return [next(order) if 'gemv' in n or 'nvjet' in n else '' for n in names]",
        "up before gate": "def parts_of(names, layers):\n"
        "    order = ['q', 'k', 'v', 'o', 'up', 'gate', 'down'] * layers + ['lm_head']\n"
        "    places = [i for i, n in enumerate(names) if 'gemv' in n or 'nvjet' in n]\n"
        "    found = [''] * len(names)\n"
        "    if len(places) == len(order):\n"
        "        for place, part in zip(places, order):\n            found[place] = part\n"
        "    return found",
        "products only": "def parts_of(names, layers):\n"
        "    return ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] * layers + ['lm_head']",
    },
    "02.3": {
        "weights alone": "def intensity(n, k, tokens, weight_bytes):\n    return 2 * tokens / weight_bytes",
        "one operation": "def intensity(n, k, tokens, weight_bytes):\n"
        "    return n * k * tokens / (n * k * weight_bytes + 2 * tokens * (n + k))",
        "upside down": "def intensity(n, k, tokens, weight_bytes):\n"
        "    return (n * k * weight_bytes + 2 * tokens * (n + k)) / (2 * n * k * tokens)",
    },
    "02.4": {
        "speeds add": "def whole(share, gain):\n    return 1 + share * (gain - 1)",
        "the new time": "def whole(share, gain):\n    return 1 - share + share / gain",
        "the rest forgotten": "def whole(share, gain):\n    return gain / share",
    },
    "02.5": {
        "products cost nothing to launch": "def share(weight_bytes, products, others, gb_s, fixed_us):\n"
        "    weights = weight_bytes / gb_s / 1e3\n    return weights / (weights + others * fixed_us)",
        "in percent": "def share(weight_bytes, products, others, gb_s, fixed_us):\n"
        "    weights = products * fixed_us + weight_bytes / gb_s / 1e3\n"
        "    return 100 * weights / (weights + others * fixed_us)",
        "in ns": "def share(weight_bytes, products, others, gb_s, fixed_us):\n"
        "    weights = products * fixed_us + weight_bytes / gb_s\n"
        "    return weights / (weights + others * fixed_us)",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
