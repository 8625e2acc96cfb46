"""Lesson 06's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

import needs
import pytest
from lesson_exercises import EveryExercise, Lesson
from rooflab import lab
from rooflab.errors import UsageError
from rooflab.exercises import lesson_06, worth
from rooflab.studies import attention

LESSON = Lesson("06")
needs.compiler()

WRONG = (
    "def wrong(output, exact, plain):\n    unit = abs(exact).max(axis=1, keepdims=True)\n"
    "    def error(got):\n        return ({0}).max()\n"
    "    limit = max(2 * error(plain), 1 / 1024)\n    return {1}"
)
MERGE = "def merge(parts):\n    import numpy as np\n"
TOGETHER = (
    "    total = sum(a * s for a, (_, s, _) in zip(f, parts))\n"
    "    return sum(a * o for a, (_, _, o) in zip(f, parts)) / total"
)


def weigh(loop):
    """The starter of 06.2 with a loop's body in the place of its dots."""
    return LESSON.starter("06.2").partition("\n")[2].replace("        ...\n", loop)


ONCE = (
    "        const float raised = fmaxf(most, score), weight = expf(score - raised);\n"
    "        sum = sum{0} + weight;\n        total = total{0} + weight * values[row * n + i];\n"
    "        most = raised;\n"
)
TWICE = (
    "        for (int j = lane; j < n; j += 32) most = fmaxf(most, scores[row * n + j]);\n"
    "        sum += expf(score - most);\n        total += expf(score - most) * values[row * n + i];\n"
)
NAIVE = (
    "        most = 0.0f;\n        sum += expf(score);\n        total += expf(score) * values[row * n + i];\n"
)

WRONG = {
    "06.1": {
        "pairs over queries": "def rereads(n, queries, window):\n"
        "    return sum(range(1, n + 1)) / n / queries",
        "no window": "def rereads(n, queries, window):\n"
        "    return sum(min(i + queries, n) for i in range(0, n, queries)) / n",
        "the last query's window": "def rereads(n, queries, window):\n"
        "    lasts = [min(i + queries, n) for i in range(0, n, queries)]\n"
        "    return sum(min(last, window or last) for last in lasts) / n",
    },
    "06.2": {
        "nothing is scaled": weigh(ONCE.format("")),
        "two passes": weigh(TWICE),
        "no maximum": weigh(NAIVE),
    },
    "06.3": {
        "nothing is rounded": "def blocks(registers, threads, shared):\n"
        "    return min(65536 // (registers * threads), 233472 // (shared + 1024), 2048 // threads, 32)",
        "registers alone": "def blocks(registers, threads, shared):\n"
        "    return min(32, 65536 // (-(-registers * 32 // 256) * 256 * -(-threads // 32)))",
        "no room for the system": "def blocks(registers, threads, shared):\n"
        "    warps = -(-threads // 32)\n    each = -(-registers * 32 // 256) * 256\n"
        "    return min(65536 // (each * warps), 233472 // max(shared, 1), 2048 // (32 * warps), 32)",
    },
    "06.4": {
        "two words more": lesson_06.BANKS.replace("[32][64]", "[32][66]"),
        "straight from memory": lesson_06.BANKS.replace("keys[lane][d]", "k[(tile + lane) * 64 + d]"),
        "a word in the wrong place": lesson_06.BANKS.replace("[32][64]", "[32][65]").replace(
            "keys[lane][d]", "keys[lane][(d + lane) % 64]"
        ),
    },
    "06.5": {
        "blind to NaN": WRONG.format("abs(got - exact) / unit", "(error(output) > limit)"),
        "one unit for all rows": WRONG.format("abs(got - exact) / unit.max()", "not error(output) <= limit"),
        "no unit": WRONG.format("abs(got - exact)", "not error(output) <= limit"),
        "no floor": WRONG.replace(", 1 / 1024)", ", 0)").format(
            "abs(got - exact) / unit", "not error(output) <= limit"
        ),
        "one and a half": WRONG.replace("2 * error", "1.4 * error").format(
            "abs(got - exact) / unit", "not error(output) <= limit"
        ),
    },
    "06.6": {
        "parts count alike": MERGE + "    return sum(o / s for _, s, o in parts if s > 0) / len(parts)",
        "one unit for all": MERGE + "    return sum(o for _, _, o in parts) / sum(s for _, s, _ in parts)",
        "no largest": MERGE + "    f = [np.exp(m) for m, _, _ in parts]\n" + TOGETHER,
        "empty parts": MERGE
        + "    top = max(m for m, _, _ in parts)\n    f = [np.exp(m - top) for m, _, _ in parts]\n"
        + TOGETHER,
    },
    "06.7": {
        "keys alone": "def even(layers, kv_heads, weight_bytes):\n"
        "    return weight_bytes / sum(2 * kv_heads * e.head_dim for e in layers)",
        "no windows": "def even(layers, kv_heads, weight_bytes):\n"
        "    return weight_bytes / sum(4 * kv_heads * e.head_dim for e in layers)",
        "four bytes a number": "def even(layers, kv_heads, weight_bytes):\n"
        "    return weight_bytes / sum(8 * kv_heads * e.head_dim for e in layers)",
    },
}


WITHOUT_MMA = """
#include <cuda_fp16.h>
extern "C" __global__ void scores(const unsigned* q, const unsigned* k, float* s, int n) {
    __shared__ unsigned queries[16][33], keys[8][33];
    const int lane = threadIdx.x, query = 16 * blockIdx.x, key = 8 * blockIdx.y;
    for (int r = 0; r < 16; ++r) queries[r][lane] = q[(query + r) * 32 + lane];
    for (int r = 0; r < 8; ++r) keys[r][lane] = k[(key + r) * 32 + lane];
    __syncwarp();
    for (int i = lane; i < 128; i += 32) {  // mma_m16n8k16_f16(d, a, b)
        float sum = 0.0f;
        for (int w = 0; w < 32; ++w) {
            const float2 a = __half22float2(*(const __half2*)&queries[i / 8][w]);
            const float2 b = __half22float2(*(const __half2*)&keys[i % 8][w]);
            sum += a.x * b.x + a.y * b.y;
        }
        s[(query + i / 8) * n + key + i % 8] = sum;
    }
}"""
EIGHT = LESSON.changed(
    "06.d",
    (
        "        mma_m16n8k16_f16(d, a, b);",
        "        mma_m16n8k8_f16(d, a, b);\n        mma_m16n8k8_f16(d, a + 2, b + 1);",
    ),
)
FLASH_WITHOUT_MMA = LESSON.changed(
    "06.e",
    (
        'extern "C"',
        "__device__ void by_hand(float* d, const unsigned* a, const unsigned* b) {\n"
        "    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;\n"
        "    for (int e = 0; e < 4; ++e)\n"
        "        for (int j = 0; j < 8; ++j) {\n"
        "            const unsigned from = __shfl_sync(~0u, a[e / 2 + j / 4 * 2], g * 4 + j % 4);\n"
        "            const unsigned to = __shfl_sync(~0u, b[j / 4], (2 * t + e % 2) * 4 + j % 4);\n"
        "            const float2 p = __half22float2(*(const __half2*)&from);\n"
        "            const float2 v = __half22float2(*(const __half2*)&to);\n"
        "            d[e] += p.x * v.x + p.y * v.y;\n"
        "        }\n"
        "}\n"
        'extern "C"',
    ),
    ("mma_m16n8k16_f16(o[d / 8], p, b)", "by_hand(o[d / 8], p, b)"),
    ("mma_m16n8k16_f16(o[d / 8 + 1], p, b + 2)", "by_hand(o[d / 8 + 1], p, b + 2)"),
)

WRONG |= {
    "06.a": {
        "no maximum": LESSON.changed("06.a", (" - row_max)", ")")),
        "the future": LESSON.changed("06.a", ("key <= query", "key < n")),
    },
    "06.b": {
        "the old outputs stay": LESSON.changed("06.b", ("o.x * rescale", "o.x")),
        "two passes": LESSON.solution("06.a"),
    },
    "06.c": {
        "no barrier before the copy": LESSON.changed(
            "06.c", ("tile += KEYS) {\n        __syncthreads();", "tile += KEYS) {")
        ),
        "no barrier after it": LESSON.changed(
            "06.c", ("        __syncthreads();\n        for (int key", "        for (int key")
        ),
        "nothing is shared": LESSON.changed(
            "06.c",
            (
                "keys[key][lane]), value = __half22float2(values[key][lane]",
                "k[32 * (tile + key) + lane]), value = __half22float2(v[32 * (tile + key) + lane]",
            ),
        ),
        "a block always has four queries": LESSON.changed("06.c", ("    if (query < n) out", "    out")),
    },
    "06.d": {
        "without a tensor core": WITHOUT_MMA,
        "eight instructions": EIGHT,
        "the same eight dimensions": LESSON.changed(
            "06.d", ("left[4], left[8 * 32 + 4]", "left[0], left[8 * 32]")
        ),
        "rows in pairs": LESSON.changed(
            "06.d", ("left[0], left[8 * 32], left[4],", "left[0], left[4], left[8 * 32],")
        ),
    },
    "06.e": {
        "outputs without a tensor core": FLASH_WITHOUT_MMA,
        "rows of 128 bytes": LESSON.changed("06.e", ("ROW = 64 + 8", "ROW = 64")),
        "no mask": LESSON.changed("06.e", ("key <= first + g + 8 * half", "key < n")),
        "half of a row's lanes": LESSON.changed(
            "06.e", ("            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));\n", "")
        ),
        "outputs are not rescaled": LESSON.changed(
            "06.e", ("o[e / 2][2 * half + e % 2] *= rescale", "(void)e")
        ),
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG


def test_a_swizzle_is_as_good_as_padding():
    """06.4 asks for banks without conflicts, not for a longer row."""
    turned = "for (int e = 0; e < 64; ++e) score += q[(e + lane) % 64] * keys[lane][(e + lane) % 64];"
    source = lesson_06.BANKS.replace("for (int d = 0; d < 64; ++d) score += q[d] * keys[lane][d];", turned)
    assert turned in source
    assert LESSON.verdict("06.4", source).startswith("Exercise 06.4: right: ")


def test_a_step_says_what_it_is_worth_in_the_record():
    """06.e's gain is that of the two recorded rungs it goes from and to."""
    here = lab.open("replay", "h200")
    rows = here.measure("attention", attention.ladder(128, device=here.sized))
    old = rows[(rows["impl"] == "2_tiled") & (rows["options"] == "queries=16")]["median_us"].item()
    new = rows[rows["impl"] == "5_padded"]["median_us"].item()
    said = LESSON.verdict("06.e", LESSON.solution("06.e"))
    assert (
        f"\n  worth    the course's rungs 2_tiled queries=16 -> 5_padded: {old:,.0f} -> {new:,.0f} us, "
        in said
    )
    assert f"{old / new:.0f} times as fast" in said
    with pytest.raises(UsageError, match="no case '3_quarter'; there are: 1_scalar"):
        worth.gain("attention", attention.ladder(128), "1_scalar", "3_quarter")


@pytest.mark.parametrize(
    ("step", "source", "target"),
    [
        ("06.d", WITHOUT_MMA, "exactly 32 mma_m16n8k16_f16 by warps: 0"),
        ("06.d", EIGHT, "exactly 32 mma_m16n8k16_f16 by warps: 0"),
        ("06.e", FLASH_WITHOUT_MMA, "at least 48 mma_m16n8k16_f16 by warps: 24"),
    ],
)
def test_a_tensor_core_that_a_step_is_about_is_counted(step, source, target):
    said = LESSON.verdict(step, source)
    assert said.startswith(f"Exercise {step}: wrong: the result is right, the target is not met.")
    assert said.endswith(f"\n  target   {target} executed, not met")
