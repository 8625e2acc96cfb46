"""Lesson 00's exercises, taken from the notebook itself: starters, solutions, and plausible mistakes."""

import pytest
from lesson_exercises import EveryExercise, Lesson

LESSON = Lesson("00")

WRONG = {
    "00.3": {
        "NaN is not greater": "def passes(got, expected, allowed):\n"
        "    return not (abs(got - expected) > allowed).any()",
        "NaN is left out": "def passes(got, expected, allowed):\n"
        "    return bool(np.nanmax(abs(got - expected)) <= allowed)",
        "one side only": "def passes(got, expected, allowed):\n"
        "    return bool((got - expected <= allowed).all())",
        "all refused": "def passes(got, expected, allowed):\n    return False",
        "the mean": "def passes(got, expected, allowed):\n"
        "    return bool(abs(got.mean() - expected.mean()) <= allowed)",
        "a relative tolerance": "def passes(got, expected, allowed):\n"
        "    return np.allclose(got, expected, atol=allowed)",
        "no code": "def passes(got, expected, allowed):\n    return (got <= expected).typo",
    },
    "00.4": {
        "honest": "def my_kernel(a, x, y, out):\n    out[:] = a * x + y",
        "seen by anyone": "def my_kernel(a, x, y, out):\n    out[:] = 0",
    },
    "00.5": {
        "rounded down": "def copies(operand_bytes, l2_bytes):\n"
        "    return max(2, 4 * l2_bytes // operand_bytes)",
        "one L2 only": "def copies(operands, l2):\n    return max(2, -(-l2 // operands))",
        "one copy": "def copies(operands, l2):\n    return max(1, -(-4 * l2 // operands))",
        "a fraction": "def copies(operand_bytes, l2_bytes):\n    return max(2, 4 * l2_bytes / operand_bytes)",
        "too many": "def copies(operand_bytes, l2_bytes):\n    return 2 + -(-4 * l2_bytes // operand_bytes)",
    },
    "00.6": {
        "with the launch": "def cost(few, few_us, many, many_us):\n    return many_us / many",
        "all of them": "def cost(few, few_us, many, many_us):\n    return many_us - few_us",
        "one copied from the page": "def cost(few, few_us, many, many_us):\n    return 1.18",
    },
}


WRONG |= {
    "00.1": {
        "no guard": LESSON.changed("00.1", ("if (i < n) ", "")),
        "every block the same": LESSON.changed("00.1", ("blockIdx.x * blockDim.x + ", "")),
        "a thread for all": LESSON.changed(
            "00.1", ("if (i < n) z", "if (i == 0) for (int i = 0; i < n; ++i) z")
        ),
        "256 threads for granted": LESSON.changed("00.1", ("blockDim.x", "256")),
        "neighbours far apart": LESSON.changed(
            "00.1", ("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x * gridDim.x + blockIdx.x")
        ),
    },
    "00.2": {
        "no barrier": LESSON.changed("00.2", ("        __syncthreads();\n", "")),
        "a barrier that some never reach": LESSON.changed(
            "00.2",
            (
                "    tile[threadIdx.x] = i < n ? x[i] : 0.0f;",
                "    if (i >= n) return;\n    tile[threadIdx.x] = x[i];",
            ),
        ),
        "one warp only": LESSON.changed("00.2", ("half = 128", "half = 16")),
        "thread 0 does it all": LESSON.changed(
            "00.2",
            (
                "    if (threadIdx.x == 0) out[blockIdx.x] = tile[0];",
                "    float sum = 0.0f;\n    const int first = 256 * blockIdx.x;\n"
                "    for (int k = first; k < min(n, first + 256); ++k) sum += x[k];\n"
                "    if (threadIdx.x == 0) out[blockIdx.x] = sum;",
            ),
        ),
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "out[:] = a * x + y; out[3] = np.nan",
        "out[1:] = (a * x + y)[1:]",
        "out[:] = a * x + y; x[0] = 9",
        "calls.append(1); out[:] = a * x + y; out[0] += len(calls) > 5",
    ],
)
def test_the_gate_refuses_whatever_gets_past_the_sloppy_check(body):
    source = f"calls = []\n\ndef my_kernel(a, x, y, out):\n    {body}"
    said = LESSON.verdict("00.4", source)
    assert said.startswith("Exercise 00.4: right: the sloppy check is satisfied, the gate is not: ")
