"""Lesson 01's exercises, taken from its two notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("01")

WRONG = {
    "01.1": {
        "the whole GPU's": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s * latency_ns",
        "in KiB": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s * latency_ns / sms / 1024",
        "a rate over a time": "def bytes_per_sm(gb_s, latency_ns, sms):\n    return gb_s / latency_ns",
    },
    "01.2": {
        "bits as bytes": "def token_us(parameters, bits, gb_s):\n    return parameters * bits / gb_s / 1e3",
        "GiB": "def token_us(n, bits, gb_s):\n    return n * bits / 8 / (gb_s * 2**30) * 1e6",
        "in ms": "def token_us(parameters, bits, gb_s):\n    return parameters * bits / 8 / gb_s / 1e6",
    },
    "01.3": {
        "turned round": "def regime(f, b, g, t):\n    return 'memory' if b / g < f / t / 1e3 else 'compute'",
        "no unit": "def regime(f, b, g, t):\n    return 'memory' if f / b < t / g else 'compute'",
        "one answer for all": "def regime(f, b, g, t):\n    return 'memory'",
        "another word": "def regime(f, b, g, t):\n    return 'DRAM'",
    },
    "01.4": {
        "the first row": "def large_enough(rows, roof, share):\n"
        "    return int(rows[rows['gb_s'] >= share * roof]['bytes'].iloc[0])",
        "the fastest": "def large_enough(rows, roof, share):\n"
        "    return int(rows.loc[rows['gb_s'].idxmax(), 'bytes'])",
        "no answer for none": "def large_enough(rows, roof, share):\n"
        "    return int(rows[rows['gb_s'] >= share * roof]['bytes'].min())",
        "adds to the reader's frame": "def large_enough(rows, roof, share):\n"
        "    rows.insert(0, 'rank', 1)\n"
        "    reached = rows[rows['gb_s'] >= share * roof]\n"
        "    return int(reached['bytes'].iloc[0]) if len(reached) else 0",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
