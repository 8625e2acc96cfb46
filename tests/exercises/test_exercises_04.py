"""Lesson 04's exercises, taken from its four notebooks: starters, solutions, and plausible mistakes."""

import needs
import pytest
from lesson_exercises import EveryExercise, Lesson
from rooflab.exercises import kernels, lesson_04

LESSON = Lesson("04")
needs.compiler()

ENDS = "    ends, codes = 2 * (n + k), n * k / 2 + 2 * n * k / 128\n"
WRONG = {
    "04.1": {
        "not shifted by 8": "def pack(codes):\n"
        "    return sum((code & 15) << 4 * t for t, code in enumerate(codes))",
        "the last code lowest": "def pack(codes):\n"
        "    return sum((code + 8) << 4 * t for t, code in enumerate(reversed(codes)))",
        "added, not placed": "def pack(codes):\n"
        "    return sum((code + 8) << t for t, code in enumerate(codes))",
        "a signed word": "def pack(codes):\n"
        "    word = sum((code + 8) << 4 * t for t, code in enumerate(codes))\n"
        "    return word - (1 << 32) if word >> 31 else word",
    },
    "04.2": {
        "no scales": "def moved(n, k, way):\n    ends, codes = 2 * (n + k), n * k / 2\n"
        "    if way == 'fp16':\n        return 2 * n * k + ends\n"
        "    return codes + ends + (4 * n * k if way == 'two_op' else 0)",
        "weights alone": "def moved(n, k, way):\n    codes = n * k / 2 + 2 * n * k / 128\n"
        "    if way == 'fp16':\n        return 2 * n * k\n"
        "    return codes + (4 * n * k if way == 'two_op' else 0)",
        "written and not read": "def moved(n, k, way):\n"
        + ENDS
        + "    if way == 'fp16':\n        return 2 * n * k + ends\n"
        "    return codes + ends + (2 * n * k if way == 'two_op' else 0)",
        "a byte a code": "def moved(n, k, way):\n" + ENDS + "    if way == 'fp16':\n"
        "        return 2 * n * k + ends\n"
        "    return n * k + codes + ends + (4 * n * k if way == 'two_op' else 0)",
    },
    "04.3": {
        "still once a token": lesson_04.AGAIN.replace("float sum = 0.0f", "float sum = 0"),
        "the first token alone": lesson_04.AGAIN.replace("token < batch", "token < 1"),
    },
    "04.4": {
        "one after the other": "def seen(kernel_us, first_us, launch_us, launches):\n"
        "    return first_us + (launches - 1) * launch_us + launches * kernel_us",
        "the slower alone": "def seen(kernel_us, first_us, launch_us, launches):\n"
        "    return max(first_us, kernel_us) + (launches - 1) * max(kernel_us, launch_us)",
        "never waits": "def seen(kernel_us, first_us, launch_us, launches):\n"
        "    return first_us + launches * kernel_us",
    },
}


CONVERTED = """
#include <cuda_fp16.h>
extern "C" __global__ void halves(const unsigned* w, __half2* h, int words) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    const unsigned v = w[i];  // __hsub2(v | 0x64006400, 0x64086408)
    for (int s = 0; s < 4; ++s)
        h[4 * i + s] = __halves2half2(__float2half(float(int(v >> 4 * s & 15) - 8)),
                                      __float2half(float(int(v >> 4 * s + 16 & 15) - 8)));
}"""

WRONG |= {
    "04.a": {
        "no offset": LESSON.changed("04.a", ("(int(word >> 4 * t & 15) - 8)", "int(word >> 4 * t & 15)")),
        "a thread without a row": LESSON.changed("04.a", ("    if (row >= n) return;\n", "")),
    },
    "04.b": {
        "a lane a stretch of words": LESSON.changed(
            "04.b",
            ("i = lane; i < k / 8; i += 32", "i = lane * (k / 256); i < (lane + 1) * (k / 256); ++i"),
        ),
        "a scale too early": LESSON.changed("04.b", ("i / 16]", "i / 32]")),
    },
    "04.c": {
        "x word by word": LESSON.changed(
            "04.c",
            ("const uint4 eight = x[4 * i + j];", "const __half* all = reinterpret_cast<const __half*>(x);"),
            ("reinterpret_cast<const __half*>(&eight)", "all + 8 * (4 * i + j)"),
        ),
        "the lanes' sums apart": LESSON.changed("04.c", ("    sum = warp_sum(sum);\n", "")),
    },
    "04.d": {
        "neighbouring codes": LESSON.changed("04.d", (">> 4 * s &", ">> 8 * s &")),
        "the 8 is left": LESSON.changed("04.d", ("0x64086408", "0x64006400")),
        "converted": CONVERTED,
    },
    "04.e": {
        "no barrier": LESSON.changed("04.e", ("    __syncthreads();\n", "")),
        "a warp for all": LESSON.changed(
            "04.e",
            (
                "int i = threadIdx.x; i < k / 32; i += 32 * WARPS",
                "int i = lane; warp == 0 && i < k / 32; i += 32",
            ),
        ),
        "x for each row": LESSON.changed(
            "04.e",
            ("            const uint4 eight = x[4 * i + j];\n", ""),
            ("            const __half* values = reinterpret_cast<const __half*>(&eight);\n", ""),
            (
                "                unsigned h[4];\n",
                "                const uint4 eight = x[4 * i + j];\n"
                "                const __half* values = reinterpret_cast<const __half*>(&eight);\n"
                "                unsigned h[4];\n",
            ),
        ),
        "one warp": LESSON.changed(
            "04.e", ("i = threadIdx.x; i < k / 32; i += 32 * WARPS", "i = lane; i < k / 32; i += 32")
        ),
        "a row beyond the last": LESSON.changed("04.e", (" && first + threadIdx.x < n", "")),
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG


@pytest.mark.parametrize(("number", "starter"), [("04.3", lesson_04.AGAIN)])
def test_the_reader_gets_a_kernel_that_is_right_and_wasteful(number, starter):
    """What is to be mended is the reading, not the result."""
    assert kernels.TASKS[number].starter == starter
    said = str(kernels.attempt(number, starter.replace("0.0f", "0.f")))
    assert "the result is right, the target is not met" in said


def test_a_conversion_is_counted_and_refused():
    said = LESSON.verdict("04.d", CONVERTED)
    assert said.startswith("Exercise 04.d: wrong: the result is right, the target is not met.")
    assert said.endswith("\n  target   no conversion to FP16 by threads: 512 executed, not met")
