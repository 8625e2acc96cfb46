"""Lesson 03's exercises, taken from its notebooks: starters, solutions, and plausible mistakes."""

import needs
import pytest
from lesson_exercises import EveryExercise, Lesson
from rooflab.exercises import kernels, lesson_03
from rooflab.ops import faults

LESSON = Lesson("03")
MENDED = [("03.6", "early_exit"), ("03.7", "fixed_tile"), ("03.8", "not_zeroed")]
needs.compiler()

HEAD = 'extern "C" __global__ void {}(const float* a, const float* x, float* y, unsigned n, unsigned k) {{\n'


def kernel(name, tile, loads, guard="column < n", store="if (column < n) y[column] = sum;", after=True):
    """A kernel that reads x through a tile, with what mistakes are made of left open."""
    return (
        HEAD.format(name) + f"    __shared__ float x_tile[{tile}];\n"
        "    const unsigned column = blockIdx.x * 256 + threadIdx.x;\n    float sum = 0.0f;\n"
        f"    for (unsigned first = 0; first < k; first += {tile}) {{\n        {loads}\n"
        "        __syncthreads();\n"
        f"        for (unsigned i = 0; i < {tile} && first + i < k && {guard}; ++i)\n"
        "            sum += x_tile[i] * a[(first + i) * n + column];\n"
        + ("        __syncthreads();\n" if after else "")
        + f"    }}\n    {store}\n}}\n"
    )


ONE = "if (first + threadIdx.x < k) x_tile[threadIdx.x] = x[first + threadIdx.x];"
MANY = "for (unsigned i = threadIdx.x; i < 4096 && first + i < k; i += 256) x_tile[i] = x[first + i];"
WHOLE = (
    HEAD.format("fixed_tile") + "    __shared__ float x_tile[16384];\n"
    "    const unsigned column = blockIdx.x * 256 + threadIdx.x;\n"
    "    for (unsigned i = threadIdx.x; i < k; i += 256) x_tile[i] = x[i];\n    __syncthreads();\n"
    "    float sum = 0.0f;\n"
    "    for (unsigned i = 0; i < k && column < n; ++i) sum += x_tile[i] * a[i * n + column];\n"
    "    if (column < n) y[column] = sum;\n}\n"
)

WRONG = {
    "03.1": {
        "bytes only": "def sectors(first, stride, width):\n    return 32 * width // 32",
        "never less than lanes": "def sectors(first, stride, width):\n    return 32",
        "starts only": "def sectors(first, stride, width):\n"
        "    return len({(first + lane * stride) // 32 for lane in range(32)})",
        "aligned": "def sectors(first, stride, width):\n"
        "    return len({(lane * stride + b) // 32 for lane in range(32) for b in range(width)})",
    },
    "03.2": {
        "a lane a column, all of them": HEAD.format("product")
        + "    const unsigned column = blockIdx.x * 32 + threadIdx.x;\n    float sum = 0.0f;\n"
        "    for (unsigned row = 0; row < k; ++row) sum += x[row] * a[row * n + column];\n"
        "    if (column < n) y[column] = sum;\n}\n",
        "still a row apart": lesson_03.UNCOALESCED.replace("float sum = 0.0f", "float sum = 0"),
    },
    "03.3": {
        "rounded down": "def splits(n, k, gb_s, latency_ns):\n"
        "    return max(1, min(int(gb_s * latency_ns // (16 * n)), k // 16))",
        "a fraction": "def splits(n, k, gb_s, latency_ns):\n"
        "    return max(1, min(gb_s * latency_ns / (16 * n), k / 16))",
        "crumbs": "def splits(n, k, gb_s, latency_ns):\n"
        "    return max(1, int(-(-gb_s * latency_ns // (16 * n))))",
        "none at all": "def splits(n, k, gb_s, latency_ns):\n"
        "    return min(int(-(-gb_s * latency_ns // (16 * n))), k // 16)",
        "four bytes a thread": "def splits(n, k, gb_s, latency_ns):\n"
        "    return max(1, min(int(-(-gb_s * latency_ns // (4 * n))), k // 16))",
    },
    "03.4": {
        "the sign left out": "def worth_of(sign, bar, slow, fast):\n"
        "    return {(False, True): 'works', (True, True): 'lax', (True, False): 'backwards',\n"
        "            (False, False): 'strict'}[slow < bar, fast < bar]",
        "what was not recorded fails": "def worth_of(sign, bar, slow, fast):\n"
        "    met = [v < bar if sign == '<' else v > bar for v in (slow, fast)]\n"
        "    return {(0, 1): 'works', (1, 1): 'lax', (1, 0): 'backwards', (0, 0): 'strict'}[tuple(met)]",
        "at the bar is met": "def worth_of(sign, bar, slow, fast):\n"
        "    if slow != slow or fast != fast:\n        return 'open'\n"
        "    met = [v <= bar if sign == '<' else v >= bar for v in (slow, fast)]\n"
        "    return {(0, 1): 'works', (1, 1): 'lax', (1, 0): 'backwards', (0, 0): 'strict'}[tuple(met)]",
    },
    "03.5": {
        "every layer once": "def tokens_per_s(projections, weight_bytes, gb_s):\n"
        "    return gb_s * 1e9 / (sum(p.n * p.k for p in projections) * weight_bytes)",
        "no head": "def tokens_per_s(projections, weight_bytes, gb_s):\n"
        "    body = [p for p in projections if p.name != 'lm_head']\n"
        "    return gb_s * 1e9 / (sum(p.n * p.k * p.times for p in body) * weight_bytes)",
        "in GB": "def tokens_per_s(projections, weight_bytes, gb_s):\n"
        "    return gb_s / (sum(p.n * p.k * p.times for p in projections) * weight_bytes)",
    },
    "03.6": {
        "still does not load": kernel("early_exit", 256, ONE.replace("if (", "if (column < n && ")),
        "leaves after the first barrier": kernel(
            "early_exit", 256, ONE, store="y[column] = sum;", guard="true"
        ).replace(
            "        __syncthreads();\n", "        __syncthreads();\n        if (column >= n) return;\n", 1
        ),
    },
    "03.7": {
        "a larger tile": WHOLE,
        "no second barrier": kernel("fixed_tile", 4096, MANY, after=False),
        "a wrong name": kernel("product", 4096, MANY),
    },
    "03.8": {
        "adds at the end": kernel("not_zeroed", 256, ONE, store="if (column < n) y[column] += sum;"),
        "the last tile alone": kernel("not_zeroed", 256, f"sum = 0.0f; {ONE}"),
    },
}


DIRECT = HEAD + (
    "    const unsigned column = blockIdx.x * 256 + threadIdx.x;\n    float sum = 0.0f;\n"
    "    for (unsigned row = 0; row < k && column < n; ++row) sum += x[row] * a[row * n + column];\n"
    "    if (column < n) y[column] = sum;\n}}\n"
)
AT_ONCE = (
    'extern "C" __global__ void transpose(const float* a, float* b, unsigned rows, unsigned columns) {{\n'
    "    const unsigned left = blockIdx.x * 32, top = blockIdx.y * 32, lane = threadIdx.x;\n"
    "    for (unsigned j = threadIdx.y; j < 32; j += 8) {{\n"
    "        const unsigned row = top + {row}, column = left + {column};\n"
    "        if (row < rows && column < columns) b[column * rows + row] = a[row * columns + column];\n"
    "    }}\n}}\n"
)
WRONG["03.6"]["no shared memory, no barrier"] = DIRECT.format("early_exit")
WRONG["03.7"]["no shared memory, no barrier"] = DIRECT.format("fixed_tile")
WRONG |= {
    "03.a": {
        "a row a thread": LESSON.changed("03.a", ("a[row * n + column]", "a[column * n + row]")),
        "no guard": LESSON.changed("03.a", ("    if (column >= n) return;\n", "")),
        "a warp a column": LESSON.changed(
            "03.a", ("blockIdx.x * 64 + threadIdx.x", "threadIdx.x * gridDim.x + blockIdx.x")
        ),
    },
    "03.b": {
        "step a again": LESSON.solution("03.a"),
        "no barrier before the copy": LESSON.changed(
            "03.b", ("first += 64) {\n        __syncthreads();", "first += 64) {")
        ),
        "no barrier after it": LESSON.changed(
            "03.b", ("        __syncthreads();\n        if (column < n)", "        if (column < n)")
        ),
        "leaves early": LESSON.changed(
            "03.b", ("    float sum = 0.0f;\n", "    if (column >= n) return;\n    float sum = 0.0f;\n")
        ),
        "k is a multiple of 64": LESSON.changed("03.b", ("if (first + threadIdx.x < k) ", "")),
    },
    "03.c": {
        "every part all rows": LESSON.changed("03.c", ("min(k, begin + share)", "k")),
        "parts of a rounded-down share": LESSON.changed(
            "03.c", ("(k + gridDim.y - 1) / gridDim.y", "k / gridDim.y")
        ),
        "all into part 0": LESSON.changed("03.c", ("partial[blockIdx.y * n + column]", "partial[column]")),
    },
    "03.d": {
        "n instead of n / 4": LESSON.changed("03.d", ("columns = n / 4, column", "columns = n, column")),
        "no guard": LESSON.changed("03.d", ("    if (column >= columns) return;\n", "")),
        "one of four": LESSON.changed("03.d", (", sum.w += factor * v.w", "")),
    },
    "03.9": {
        "reads along rows, stores at once": AT_ONCE.format(row="j", column="lane"),
        "reads down columns": AT_ONCE.format(row="lane", column="j"),
        "rows of 32": LESSON.changed("03.9", ("tile[32][33]", "tile[32][32]")),
        "no barrier": LESSON.changed("03.9", ("    __syncthreads();\n", "")),
        "no guard at the right": LESSON.changed("03.9", (" && left + lane < columns", "")),
        "a guard of the wrong side": LESSON.changed(
            "03.9", ("left + j < columns && top + lane < rows", "top + j < rows && left + lane < columns")
        ),
        "a row of eight": LESSON.changed("03.9", ("j < 32; j += 8", "j < 8; j += 8")),
    },
    "03.e": {
        "rows of 32": LESSON.changed("03.e", ("sums[32][33]", "sums[32][32]")),
        "no barrier": LESSON.changed("03.e", ("    __syncthreads();\n", "")),
        "half of the rows": LESSON.changed("03.e", ("row += 32", "row += 64")),
        "a column a thread": LESSON.changed(
            "03.e", ("row = high; row < k; row += 32", "row = 0; row < k && high == 0; ++row")
        ).replace("[high] = sum", "[high] = (high == 0) * sum"),
    },
}


class TestEveryExercise(EveryExercise):
    lesson, wrong = LESSON, WRONG


@pytest.mark.parametrize(("number", "name"), MENDED)
def test_the_reader_gets_the_kernel_that_the_instruments_saw(number, name):
    """The cell holds the source of kernels/faults, so what the page tells of it is told of this kernel."""
    assert kernels.TASKS[number].starter == faults.FAULTS[name].path.read_text()
    LESSON.check_starter(number)


@pytest.mark.parametrize(("number", "name"), MENDED)
def test_a_change_that_changes_nothing_mends_nothing(number, name):
    text = faults.FAULTS[name].path.read_text().replace("float sum = 0.0f;", "float sum = 0;")
    assert LESSON.verdict(number, text).startswith(f"Exercise {number}: wrong: ")
