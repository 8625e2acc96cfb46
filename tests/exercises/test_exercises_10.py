"""Lesson 10's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("10")

WRONG = {
    "10.1": {
        "the longer of the two": "def transfer_us(bytes_, latency_us, gb_s):\n"
        "    return max(latency_us, bytes_ / gb_s / 1e3)",
        "in ms": "def transfer_us(bytes_, latency_us, gb_s):\n    return latency_us + bytes_ / gb_s / 1e6",
        "no latency": "def transfer_us(bytes_, latency_us, gb_s):\n    return bytes_ / gb_s / 1e3",
    },
    "10.2": {
        "turned round": "def exchanged(n, k, gpus, by):\n    return n if by == 'rows' else n // gpus",
        "k results": "def exchanged(n, k, gpus, by):\n    return n // gpus if by == 'rows' else k",
        "nothing by rows": "def exchanged(n, k, gpus, by):\n    return 0 if by == 'rows' else n",
    },
    "10.3": {
        "own part first": "def total(parts, rank):\n"
        "    order = [rank, *(r for r in range(len(parts)) if r != rank)]\n"
        "    sum_ = np.zeros_like(parts[0], np.float32)\n"
        "    for r in order:\n"
        "        sum_ = sum_ + parts[r].astype(np.float32)\n"
        "    return sum_.astype(np.float16)",
        "in halves": "def total(parts, rank):\n"
        "    sum_ = parts[0]\n"
        "    for part in parts[1:]:\n"
        "        sum_ = sum_ + part\n"
        "    return sum_",
        "not rounded": "def total(parts, rank):\n    return sum(part.astype(np.float32) for part in parts)",
    },
    "10.4": {
        "one sum a layer": "def pays(bytes_, layers, gpus, gb_s, sum_us):\n"
        "    alone = bytes_ / gb_s / 1e3\n"
        "    return alone / gpus + layers * sum_us < alone",
        "always": "def pays(bytes_, layers, gpus, gb_s, sum_us):\n    return True",
        "the sums alone": "def pays(bytes_, layers, gpus, gb_s, sum_us):\n"
        "    return 2 * layers * sum_us < bytes_ / gb_s / 1e3 / gpus / 2",
    },
    "10.5": {
        "all divided": "def least_gpus(layers_gb, whole_gb, cache_gb, memory_gb):\n"
        "    return next(n for n in (1, 2, 4, 8, 16) if (layers_gb + whole_gb + cache_gb) / n <= memory_gb)",
        "always two": "def least_gpus(layers_gb, whole_gb, cache_gb, memory_gb):\n    return 2",
        "no cache": "def least_gpus(layers_gb, whole_gb, cache_gb, memory_gb):\n"
        "    return next(n for n in (1, 2, 4, 8, 16) if layers_gb / n + whole_gb <= memory_gb)",
        "whole cache": "def least_gpus(layers_gb, whole_gb, cache_gb, memory_gb):\n"
        "    sizes = (1, 2, 4, 8, 16)\n"
        "    return next(n for n in sizes if layers_gb / n + whole_gb + cache_gb <= memory_gb)",
        "layers alone": "def least_gpus(layers_gb, whole_gb, cache_gb, memory_gb):\n"
        "    return next(n for n in (2, 4, 8, 16) if layers_gb / n <= memory_gb)",
    },
    "10.6": {
        "residual unchanged": "def add_rmsnorm(residual, parts, weights):\n"
        "    total = residual + sum(part.astype(np.float32) for part in parts)\n"
        "    return residual, total / np.sqrt((total**2).mean() + 1e-6) * weights",
        "normalised before": "def add_rmsnorm(residual, parts, weights):\n"
        "    total = residual + sum(part.astype(np.float32) for part in parts)\n"
        "    return total, residual / np.sqrt((residual**2).mean() + 1e-6) * weights",
        "no weights": "def add_rmsnorm(residual, parts, weights):\n"
        "    total = residual + sum(part.astype(np.float32) for part in parts)\n"
        "    return total, total / np.sqrt((total**2).mean() + 1e-6)",
        "own part alone": "def add_rmsnorm(residual, parts, weights):\n"
        "    total = residual + parts[0].astype(np.float32)\n"
        "    return total, total / np.sqrt((total**2).mean() + 1e-6) * weights",
    },
    "10.7": {
        "one sum a layer": "def most_sum_us(bytes_, layers, gpus, gb_s):\n"
        "    return bytes_ / gb_s / 1e3 * (1 - 1 / gpus) / layers",
        "each one's share": "def most_sum_us(bytes_, layers, gpus, gb_s):\n"
        "    return bytes_ / gb_s / 1e3 / gpus / (2 * layers)",
        "in seconds": "def most_sum_us(bytes_, layers, gpus, gb_s):\n"
        "    return bytes_ / gb_s / 1e9 * (1 - 1 / gpus) / (2 * layers)",
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG
