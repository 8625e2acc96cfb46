"""Lesson 05's exercises, taken from its five notebooks: starters, solutions, and plausible mistakes."""

import needs
import pytest
from lesson_exercises import EveryExercise, Lesson
from rooflab.exercises import lesson_05

LESSON = Lesson("05")
needs.compiler()

ELEMENT = """\
def element(row, i):
    start = i // 32 * {size}
    scale = row[start : start + 2].view("{order}")[0]
    quant = row[start + 2 + i % 32 : start + 3 + i % 32].view("{kind}")[0]
    return {value}
"""
RIGHT = {"size": 34, "order": "<f2", "kind": "i1", "value": "float(scale) * int(quant)"}

DOTS = """\
extern "C" __global__ void dots(const unsigned char* w, const unsigned char* x, int* out, int blocks) {{
    const int b = blockIdx.x * 64 + threadIdx.x;
    {guard}
    const unsigned short* wq = (const unsigned short*)(w + {w});
    const int* xq = (const int*)(x + 36 * b + 4);
    int dot = 0;
    for (int i = 0; i < 8; ++i) dot = __dp4a({word}, xq[i], dot);
    out[b] = dot;
}}
"""
WORDS = {
    "guard": "if (b >= blocks) return;",
    "w": "34 * b + 2",
    "word": "wq[2 * i] | (unsigned)wq[2 * i + 1] << 16",
}

EMBED = """\
#include <cuda_fp16.h>

extern "C" __global__ void embed(const unsigned char* table, const int* tokens, float* out, int k) {{
    const int i = {i};
    if (i >= k) return;
    const size_t row = {row};
    const unsigned char* block = table + (row * (k / 32) + i / 32) * 34;
    const float scale = __half2float(*(const __half*)block);
    out[{to}] = scale * {quant};
}}
"""
ROWS = {
    "i": "blockIdx.y * 64 + threadIdx.x",
    "row": "tokens[blockIdx.x]",
    "to": "(size_t)blockIdx.x * k + i",
    "quant": "(signed char)block[2 + i % 32]",
}

WRONG = {
    "05.1": {
        "32 bytes a block": ELEMENT.format(**RIGHT | {"size": 32}),
        "without signs": ELEMENT.format(**RIGHT | {"kind": "u1"}),
        "the higher byte first": ELEMENT.format(**RIGHT | {"order": ">f2"}),
        "the quant alone": ELEMENT.format(**RIGHT | {"value": "int(quant)"}),
        "always the first block": ELEMENT.format(**RIGHT).replace("i // 32 * 34", "0"),
    },
    "05.2": {
        "still a word at once": lesson_05.MISALIGNED.replace("int dot = 0", "int dot{0}"),
        "the halves turned": DOTS.format(**WORDS | {"word": "wq[2 * i + 1] | (unsigned)wq[2 * i] << 16"}),
        "the scale taken along": DOTS.format(**WORDS | {"w": "34 * b"}),
        "no end": DOTS.format(**WORDS | {"guard": ""}),
    },
    "05.3": {
        "rows in the order of the table": EMBED.format(**ROWS | {"row": "blockIdx.x"}),
        "every token to the first row": EMBED.format(**ROWS | {"to": "i"}),
        "without signs": EMBED.format(**ROWS | {"quant": "block[2 + i % 32]"}),
        "every row's first numbers": EMBED.format(**ROWS | {"i": "threadIdx.x"}),
    },
    "05.4": {
        "after the cast": "def blocks(n, k):\n"
        "    count = (n * k + 2**31) % 2**32 - 2**31\n    return -(-count // 256)",
        "no guard": "def blocks(n, k):\n    return -(-n * k // 256)",
        "rounded down": "def blocks(n, k):\n    return None if n * k > 2**31 - 1 else n * k // 256",
        "32 bits": "def blocks(n, k):\n    return None if n * k > 2**32 - 1 else -(-n * k // 256)",
    },
    "05.5": {
        "registers turned": "def owner(row, token):\n"
        "    return row % 8 * 4 + token // 2, token % 2 * 2 + row // 8",
        "a lane a row": "def owner(row, token):\n    return row * 2 + token // 4, token % 4",
        "first rows only": "def owner(row, token):\n    return row % 8 * 4 + token // 2, token % 2",
    },
    "05.6": {
        "no roof": "def bound(int8_tops, sums, lanes, instructions):\n"
        "    return int8_tops * lanes / sums / instructions",
        "lanes for sums": "def bound(int8_tops, sums, lanes, instructions):\n"
        "    return int8_tops * min(1, sums / lanes / instructions)",
        "a share of the peak": "def bound(int8_tops, sums, lanes, instructions):\n"
        "    return int8_tops / instructions",
    },
    "05.7": {
        "every number of tokens": "def choose(times):\n"
        "    tokens = sorted({t for us in times.values() for t in us})\n"
        "    return [(t, min((us[t], n) for n, us in times.items() if t in us)[1]) for t in tokens]",
        "slowest": "def choose(times):\n    found = []\n"
        "    for t in sorted({t for us in times.values() for t in us}):\n"
        "        name = max((us[t], n) for n, us in times.items() if t in us)[1]\n"
        "        if not found or found[-1][1] != name:\n            found.append((t, name))\n"
        "    return found",
        "each once": "def choose(times):\n    found = {}\n"
        "    for t in sorted({t for us in times.values() for t in us}):\n"
        "        found.setdefault(min((us[t], n) for n, us in times.items() if t in us)[1], t)\n"
        "    return [(t, name) for name, t in found.items()]",
        "all have all tokens": "def choose(times):\n"
        "    return [(t, min(times, key=lambda name: times[name][t])) for t in next(iter(times.values()))]",
    },
}

BY_BYTES = """__device__ int by_bytes(int a, int b, int c) {  // as __dp4a
    for (int e = 0; e < 32; e += 8) c += int((signed char)(a >> e)) * int((signed char)(b >> e));
    return c;
}
extern "C\""""
WITHOUT_MMA = LESSON.changed(
    "05.e",
    (
        "        mma_m16n8k32_s8(d, a, x);\n",
        "        for (int e = 0; e < 4; ++e)  // mma_m16n8k32_s8(d, a, x)\n"
        "            for (int j = 0; j < 8; ++j)\n"
        "                for (int s = 0; s < 32; s += 8) {\n"
        "                    const unsigned from = __shfl_sync(~0u, a[e / 2 + j / 4 * 2], g * 4 + j % 4);\n"
        "                    const unsigned to = __shfl_sync(~0u, x[j / 4], (2 * t + e % 2) * 4 + j % 4);\n"
        "                    d[e] += int((signed char)(from >> s)) * int((signed char)(to >> s));\n"
        "                }\n",
    ),
)


def by_bytes(step):
    """A step's solution with a loop over bytes in the place of __dp4a."""
    source = LESSON.changed(step, ("__dp4a(", "by_bytes("))
    return source.replace('extern "C"', BY_BYTES)


WRONG |= {
    "05.a": {
        "without signs": LESSON.changed("05.a", ("(signed char)block", "block")),
        "a lane for its warp": LESSON.changed(
            "05.a",
            (
                "        sum += (signed char)block[2 + lane] * scale * __half2float(x[32 * b + lane]);",
                "        for (int i = 0; i < 32 && lane == 0; ++i)\n"
                "            sum += (signed char)block[2 + i] * scale * __half2float(x[32 * b + i]);",
            ),
        ),
        "32 bytes a block": LESSON.changed("05.a", ("* 34", "* 32")),
        "a lane a stretch of blocks": LESSON.changed(
            "05.a",
            ("int b = 0; b < k / 32; ++b", "int b = lane; b < k / 32; b += 32"),
            (
                "        sum += (signed char)block[2 + lane] * scale * __half2float(x[32 * b + lane]);",
                "        for (int i = 0; i < 32; ++i)\n"
                "            sum += (signed char)block[2 + i] * scale * __half2float(x[32 * b + i]);",
            ),
        ),
    },
    "05.b": {
        "a word at once": LESSON.changed(
            "05.b", ("halves[0] | (unsigned)halves[1] << 16", "*(const int*)halves")
        ),
        "the scale in two bytes": LESSON.changed(
            "05.b",
            (
                "__half2float(*(const __half*)wb)",
                "__half2float(__ushort_as_half((unsigned short)(wb[0] | wb[1] << 8)))",
            ),
        ),
        "byte by byte": by_bytes("05.b"),
        "no scale of x": LESSON.changed("05.b", (" * __half2float(*(const __half*)xb)", "")),
        "blocks of 34 for x": LESSON.changed("05.b", ("b * 36", "b * 34")),
    },
    "05.c": {
        "byte by byte": by_bytes("05.c"),
        "a scale a chunk": LESSON.changed("05.c", ("(chunks / 2) + c / 2]", "(chunks / 2) + c]")),
        "neighbouring chunks a lane": LESSON.changed(
            "05.c", ("c = lane; c < chunks; c += 32", "c = lane * 2; c < chunks; c += c % 2 ? 63 : 1")
        ),
        "the lanes' sums apart": LESSON.changed("05.c", ("    sum = warp_sum(sum);\n", "")),
    },
    "05.d": {
        "weights again for each token": LESSON.changed(
            "05.d",
            ("    for (int c = lane; c < chunks; c += 32) {\n", ""),
            ("        const int4 a = quants[row * chunks + c];\n", ""),
            ("        const float scale = __half2float(scales[row * (chunks / 2) + c / 2]);\n", ""),
            (
                "        for (int token = 0; token < 4; ++token) {\n",
                "    for (int token = 0; token < 4; ++token) {\n"
                "        for (int c = lane; c < chunks; c += 32) {\n"
                "            const int4 a = quants[row * chunks + c];\n"
                "            const float scale = __half2float(scales[row * (chunks / 2) + c / 2]);\n",
            ),
        ),
        "the first token's scale": LESSON.changed("05.d", ("token * (chunks / 2) + c / 2", "c / 2")),
        "tokens together": LESSON.changed("05.d", ("y[token * n + row]", "y[4 * row + token]")),
    },
    "05.e": {
        "without a tensor core": WITHOUT_MMA,
        "upper halves exchanged": LESSON.changed(
            "05.e", ("left[8 * words], left[4]", "left[4], left[8 * words]")
        ),
        "one scale a fragment": LESSON.changed(
            "05.e", ("(row0 + g + e / 2 * 8) * (k / 32)", "(row0 + g) * (k / 32)")
        ),
        "scaled at the end": LESSON.changed(
            "05.e",
            ("        int d[4] = {};\n", ""),
            ("float sum[4] = {};", "float sum[4] = {};\n    int d[4] = {};"),
        ),
    },
}


class TestExercises(EveryExercise):
    lesson, wrong = LESSON, WRONG


def test_the_page_shows_the_kernel_that_the_checker_hands_out():
    assert LESSON.starter("05.2").partition("\n")[2].strip() == lesson_05.MISALIGNED.strip()


def test_a_misaligned_word_is_named_and_its_line_too():
    said = LESSON.verdict("05.2", WRONG["05.2"]["still a word at once"])
    assert "misaligned" in said and "line 8" in said


@pytest.mark.parametrize(
    ("step", "source", "target"),
    [
        ("05.b", by_bytes("05.b"), "at least 4,096 __dp4a by threads"),
        ("05.c", by_bytes("05.c"), "at least 4,096 __dp4a by threads"),
        ("05.e", WITHOUT_MMA, "at least 32 mma_m16n8k32_s8 by warps"),
    ],
)
def test_an_instruction_that_a_step_is_about_is_counted(step, source, target):
    said = LESSON.verdict(step, source)
    assert said.startswith(f"Exercise {step}: wrong: the result is right, the target is not met.")
    assert said.endswith(f"\n  target   {target}: 0 executed, not met")
