"""Lesson 08's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("08")

WRONG = {
    "08.1": {
        "only the parts": "def after(parts, gains, total):\n"
        "    return sum(us / gains.get(name, 1) for name, us in parts.items())",
        "a factor": "def after(parts, gains, total):\n"
        "    return total / (total - sum(parts[n] * (1 - 1 / g) for n, g in gains.items()))",
        "the gains multiplied": "def after(parts, gains, total):\n"
        "    for name, gain in gains.items():\n        total *= 1 - parts[name] / total / gain\n"
        "    return total",
    },
    "08.2": {
        "the likeliest alone": "def bears_out(logits, token, budget):\n    return token == logits.argmax()",
        "counted from the end": "def bears_out(logits, token, budget):\n"
        "    return logits[token] >= logits.max() - budget or token < 0",
        "in parts of the largest": "def bears_out(logits, token, budget):\n"
        "    return 0 <= token < len(logits) and logits[token] >= logits.max() * (1 - budget)",
    },
    "08.3": {
        "one sequence": "def tokens_a_second(body, width, head, head_width, kv, context, gb_s, batch):\n"
        "    return gb_s * 1e9 / (body * width + head * head_width + kv * context)",
        "one cache": "def tokens_a_second(body, width, head, head_width, kv, context, gb_s, batch):\n"
        "    return batch * gb_s * 1e9 / (body * width + head * head_width + kv * context)",
        "no cache": "def tokens_a_second(body, width, head, head_width, kv, context, gb_s, batch):\n"
        "    return batch * gb_s * 1e9 / (body * width + head * head_width)",
    },
    "08.4": {
        "one after the other": "def prompt_us(kernels, call, graph):\n"
        "    return sum(kernels) + (0 if graph else call * len(kernels))",
        "the larger sum": "def prompt_us(kernels, call, graph):\n"
        "    return max(sum(kernels), 0 if graph else call * len(kernels))",
        "the graph forgotten": "def prompt_us(kernels, call, graph):\n    host = gpu = 0.0\n"
        "    for us in kernels:\n        host += call\n        gpu = max(gpu, host) + us\n    return gpu",
    },
    "08.5": {
        "first and last": "def joules_a_token(readings, seconds):\n"
        "    (a, low), (b, high) = readings[0], readings[-1]\n    return (high - low) / (b - a) * seconds",
        "watts": "def joules_a_token(readings, seconds):\n"
        "    ticks = [b for a, b in zip(readings, readings[1:]) if a[1] != b[1]]\n"
        "    return (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])",
    },
    "08.6": {
        "one operation": "from math import ceil\n\n\ndef worth_waiting(weights, width, gb_s, tflop_s):\n"
        "    return ceil(width / gb_s / 1e9 * tflop_s * 1e12)",
        "rounded down": "def worth_waiting(weights, width, gb_s, tflop_s):\n"
        "    return int(width / gb_s / 1e9 * tflop_s * 1e12 / 2)",
    },
    "08.7": {
        "no windows": "def cache_bytes(layers, kv_heads, context):\n"
        "    return sum(4 * kv_heads * d * context for d, _ in layers)",
        "always a whole window": "def cache_bytes(layers, kv_heads, context):\n"
        "    return sum(4 * kv_heads * d * (window or context) for d, window in layers)",
        "keys alone": "def cache_bytes(layers, kv_heads, context):\n"
        "    return sum(2 * kv_heads * d * min(context, w or context) for d, w in layers)",
    },
    "08.8": {
        "clipped": "def capped(logits, cap):\n    return np.clip(logits, -cap, cap), int(logits.argmax())",
        "the position afterwards": "def capped(logits, cap):\n"
        "    found = cap * np.tanh(logits / cap)\n    return found, int(found.argmax())",
        "not scaled back": "def capped(logits, cap):\n    return np.tanh(logits / cap), int(logits.argmax())",
    },
    "08.9": {
        "any growth": "def leaks(used):\n    return used[-1] > used[0]",
        "every time": "def leaks(used):\n    return all(b > a for a, b in zip(used[4:], used[5:]))",
        "by five percent": "def leaks(used):\n    return used[-1] > 1.05 * max(used[: len(used) // 2])",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
