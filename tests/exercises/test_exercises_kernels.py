"""Kernels as answers: what a reader without a GPU is told about one, in text that every machine repeats."""

import ctypes

import needs
import numpy as np
import pytest
from lesson_exercises import Lesson
from rooflab import exercises, simt
from rooflab.errors import MissingTool, UsageError
from rooflab.exercises import kernels
from rooflab.exercises.kernels import (
    Trial,
    executes,
    kernel_task,
    least_used,
    most_conflicts,
    most_requests,
    most_sectors,
    no_conversion,
)
from rooflab.paths import NOTEBOOKS
from rooflab.runtime import nvrtc

STARTER = """
extern "C" __global__ void doubled(const float* x, float* y, int n) {
    const int i = ...;  // which element is this thread's?
    if (i < n) y[i] = 2.0f * x[i];
}
"""
RIGHT = STARTER.replace("...", "int(blockIdx.x * blockDim.x + threadIdx.x)")


@pytest.fixture
def task(monkeypatch):
    """Exercise 77.1: y = 2 x, whole sectors."""
    monkeypatch.setattr(kernels, "TASKS", {})
    monkeypatch.setattr(exercises, "_CHECKERS", {})
    monkeypatch.setattr(exercises, "_load", lambda lesson: None)

    @kernel_task(
        "77.1",
        entry="doubled",
        right="each lane takes its neighbour's neighbour.",
        targets=[most_sectors("x", 4), least_used("y", 1.0, "store"), most_requests("x", 8)],
    )
    def doubled():
        for n in (256, 77):
            x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
            yield Trial(f"n = {n}", -(-n // 64), 64, [x, np.empty_like(x), ctypes.c_int(n)], {1: 2 * x})

    return lambda source: kernels.attempt("77.1", source)


def test_a_starter_is_not_attempted_and_compiles_nothing(task, monkeypatch, capsys):
    monkeypatch.setattr(simt.build, "compiler", lambda: pytest.fail("something was compiled"))
    exercises.kernel("77.1", STARTER)
    said = "Exercise 77.1: not attempted: replace the ... with your code, then run the cell again.\n"
    assert capsys.readouterr().out == said


def test_a_kernel_to_mend_is_not_attempted_until_it_is_changed(task, monkeypatch, tmp_path):
    file = tmp_path / "faulty.cu"
    file.write_text("// one mistake\n" + RIGHT.replace("i < n", "i <= n"))
    kernel_task("77.2", entry="doubled", right="mended.", starter=file)(kernels.TASKS["77.1"].trials)
    report = kernels.attempt("77.2", "/* still */\n" + RIGHT.replace("i < n", "i <=  n"))
    assert (report.status, report.sentence) == ("not attempted", "mend the kernel, then run the cell again.")
    needs.compiler()
    assert kernels.attempt("77.2", RIGHT).status == "right"
    assert exercises.numbers("77") == ["77.1", "77.2"]


def test_without_a_compiler_one_sentence_says_so(task, monkeypatch):
    def missing():
        raise MissingTool("No C++ compiler was found.")

    monkeypatch.setattr(simt.build, "compiler", missing)
    assert str(task(RIGHT)) == "Exercise 77.1: not checked: No C++ compiler was found."


def test_a_right_answer_is_told_what_it_does(task):
    needs.compiler()
    assert (
        str(task(RIGHT))
        == """\
Exercise 77.1: right: each lane takes its neighbour's neighbour.
  result   as it should be (n = 256; n = 77)
  faults   none
  line 4   loads x: 4 sectors a request, 100% of the bytes moved are used
  line 4   stores y: 4 sectors a request, 100% of the bytes moved are used
  target   at most 4 sectors a load of x: 4 on average, met
  target   at least 100% of what a store of y moves is used: it is 100%, met
  target   at most 8 load requests to x: it is 8, met"""
    )


def said(report):
    return str(report).splitlines()


def test_a_wrong_result_names_its_first_element(task):
    needs.compiler()
    lines = said(task(RIGHT.replace("2.0f * x[i]", "i < 100 ? 2.0f * x[i] : 0.0f")))
    assert lines[0] == "Exercise 77.1: wrong: the result is not right."
    assert lines[1].startswith("  result   y[100] is 0, and ")
    assert lines[1].endswith(" is right; 156 of 256 elements are wrong, from element 100 on (n = 256)")
    lines = said(task(RIGHT.replace("if (i < n)", "if (i != 3 && i < n)")))
    assert (
        lines[1].startswith("  result   y[3] was not written, and ") and "the only wrong element" in lines[1]
    )


def test_a_fault_on_a_ragged_shape_is_wrong_though_the_result_is_right(task):
    needs.compiler()
    lines = said(task(RIGHT.replace("i < n", "true")))
    assert lines[0] == "Exercise 77.1: wrong: no GPU promises to get through this."
    assert lines[1] == "  result   as it should be (n = 77)"
    assert lines[2].startswith("  fault    out of bounds: doubled, line 4, block (1, 0, 0), threads 13, 14")
    assert "x + 308 bytes, right behind its end" in lines[2]


def test_no_address_of_this_run_is_printed(task):
    needs.compiler()
    report = task(RIGHT.replace("x[i]", "x[i + (1ll << 40)]"))
    assert "reads 4 bytes at an address, in no buffer" in str(report) and "0x" not in str(report)


def test_a_target_that_is_missed_is_wrong(task):
    needs.compiler()
    shuffled = RIGHT.replace(
        "int(blockIdx.x * blockDim.x + threadIdx.x)", "int(threadIdx.x * gridDim.x + blockIdx.x)"
    )
    lines = said(task(shuffled))
    assert lines[0] == "Exercise 77.1: wrong: the result is right, the target is not met."
    assert "  line 4   loads x: 16 sectors a request, 25% of the bytes moved are used" in lines
    assert "  target   at most 4 sectors a load of x: 16 on average, not met" in lines


def test_one_sector_that_lanes_share_is_no_waste(task):
    needs.compiler()
    first = "const float first = x[0];\n    if (i < n) y[i] = 2.0f * x[i] + 0.0f * first;"
    lines = said(task(RIGHT.replace("if (i < n) y[i] = 2.0f * x[i];", first)))
    assert "  line 4   loads x: 1 sector a request, which its lanes share" in lines


def test_what_does_not_compile_shows_the_compilers_words(task):
    needs.compiler()
    lines = said(task(RIGHT.replace("blockIdx", "blockidx")))
    assert lines[0] == "Exercise 77.1: wrong: it does not compile for the CPU:"
    assert lines[1].startswith("  compiler line 3: error: ") and "'blockidx'" in lines[1] and len(lines) == 2
    assert said(task(RIGHT.replace("doubled", "tripled")))[0].endswith(
        "wrong: the kernel must be called doubled, not tripled."
    )
    assert "Hopper" in said(task(RIGHT.replace("2.0f", "wgmma")))[0]


def test_an_input_must_stay_as_it_was(task):
    needs.compiler()
    lines = said(
        task(
            RIGHT.replace("y[i] =", "const_cast<float*>(x)[i] += 1.0f; y[i] =").replace(
                "* x[i]", "* (x[i] - 1.0f)"
            )
        )
    )
    assert "x was changed, and it is an input (n = 256)" in lines[1] or "y[" in lines[1]


def test_a_loop_without_end_is_ended(task, monkeypatch):
    needs.compiler()
    monkeypatch.setattr(kernels, "MOST", 5000)
    lines = said(task(RIGHT.replace("if (i < n)", "while (x[0] < 1e30f)")))
    assert lines[0] == (
        "Exercise 77.1: wrong: doubled makes more than 5000 accesses, the most that can be watched at a time,"
        " the last at line 4: take a smaller shape, or look for a loop without end."
    )


def test_bank_conflicts_can_be_a_target(task):
    needs.compiler()
    kernels.TASKS.clear()

    @kernel_task("77.3", entry="turned", right="no bank is asked twice.", targets=[most_conflicts()])
    def turned():
        x = np.arange(1024, dtype=np.int32).reshape(32, 32)
        yield Trial("32 x 32", 1, (32, 32), [x, np.empty_like(x)], {1: x.T})

    source = """
extern "C" __global__ void turned(const int* x, int* y) {
    __shared__ int tile[32][WIDTH];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}"""
    assert kernels.attempt("77.3", source.replace("WIDTH", "33")).status == "right"
    lines = said(kernels.attempt("77.3", source.replace("WIDTH", "32")))
    assert "  line 6   loads shared memory: 31 bank conflicts a request" in lines
    assert lines[-1] == (
        "  target   no bank conflicts a request to shared memory: 15.5 on average over all lines, not met"
    )


FOURS = """
#include <cuda_fp16.h>
#define BY_BYTES(a, b, c) by_bytes(a, b, c)
#define FOUR(a, b, c) __dp4a(a, b, c)
__device__ int by_bytes(int a, int b, int c) {
    for (int e = 0; e < 32; e += 8) c += int((signed char)(a >> e)) * int((signed char)(b >> e));
    return c;
}
extern "C" __global__ void fours(const int* a, const int* b, int* out) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    out[i] = USED(a[i], b[i], 0);
}
"""


@pytest.mark.parametrize(
    ("used", "beside", "executed"),
    [
        ("__dp4a", "", 128),
        ("FOUR", "", 128),
        ("BY_BYTES", "", 0),
        ("BY_BYTES", "  // __dp4a(a[i], b[i], 0);", 0),
        ("BY_BYTES", '  const char* by = "__dp4a(a[i], b[i], 0)";', 0),
        ("BY_BYTES", "\n#if 0\n    out[i] = __dp4a(a[i], b[i], 0);\n#endif", 0),
        ("BY_BYTES", "  if (i < 2) out[i] = __dp4a(a[i], b[i], 0);", 2),
    ],
)
def test_an_instruction_counts_where_it_is_executed(task, used, beside, executed):
    """Whatever the source says of it in comments, in strings and by macros."""
    needs.compiler()

    @kernel_task("77.4", entry="fours", right="four at a time.", targets=[executes("__dp4a", 128)])
    def fours():
        a, b = np.random.default_rng(4).integers(-128, 128, (2, 128, 4), np.int8)
        right = (a.astype(np.int32) * b).sum(axis=1)
        words = [np.ascontiguousarray(x).view(np.int32).reshape(-1) for x in (a, b)]
        yield Trial("128 words", 2, 64, [*words, np.empty(128, np.int32)], {2: right.astype(np.int32)})

    source = FOURS.replace("USED", used).replace(", 0);\n}", f", 0);{beside}\n}}")
    lines = said(kernels.attempt("77.4", source))
    met = executed == 128
    assert lines[0].startswith(f"Exercise 77.4: {'right' if met else 'wrong'}: ")
    assert lines[-1] == (
        f"  target   at least 128 __dp4a by threads: {executed} executed, {'met' if met else 'not met'}"
    )


@pytest.mark.parametrize(
    ("value", "executed"),
    [
        ("__float2half(x[i])", 64),
        ("__half(x[i])", 64),
        ("__int2half_rn(int(x[i]))", 64),
        ("__low2half(__floats2half2_rn(x[i], 1.0f))", 64),
        ("__float2half(0.5f) + ones[i]", 0),  # a constant
        ("__low2half(__float2half2_rn(1032.0f)) - ones[i]", 0),
        ("__hfma(ones[i], ones[i], ones[i]) /* __float2half */", 0),
        ("__low2half(__hgt2(__half2half2(ones[i]), __half2half2(ones[i])))", 0),
    ],
)
def test_a_conversion_to_fp16_counts_unless_it_is_the_compilers(task, value, executed):
    needs.compiler()
    source = f"""
#include <cuda_fp16.h>
extern "C" __global__ void turned(const float* x, const __half* ones, __half* y) {{
    const int i = threadIdx.x;
    y[i] = {value};
}}"""

    @kernel_task("77.5", entry="turned", right="by bits.", targets=[no_conversion()])
    def turned():
        x, ones = np.arange(64, dtype=np.float32), np.ones(64, np.float16)
        yield Trial("64", 1, 64, [x, ones, np.empty(64, np.float16)], {2: np.zeros(64)}, 1e6)

    lines = said(kernels.attempt("77.5", source))
    judged = "not met" if executed else "met"
    assert lines[-1] == f"  target   no conversion to FP16 by threads: {executed} executed, {judged}"


def test_unknown_exercises_and_double_ones_are_named(task):
    with pytest.raises(UsageError, match="no kernel to write in exercise '77.9'; there is in: 77.1"):
        kernels.attempt("77.9", "")
    with pytest.raises(UsageError, match="77.1 has two kernel tasks"):
        kernel_task("77.1", entry="f", right="")(lambda: iter(()))


def test_a_cell_of_a_notebook_and_a_file(task, tmp_path):
    from IPython.testing.globalipapp import start_ipython

    shell = start_ipython()
    assert shell is not None
    kernels.register_magic()
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        shell.run_cell("%%kernel 77.1\n" + STARTER.lstrip())
    assert captured.stdout.startswith("Exercise 77.1: not attempted: ")
    needs.compiler()
    with capture_output() as captured:
        shell.run_cell("%%kernel 77.1\n" + RIGHT.lstrip())
    # the magic's line is the cell's first
    assert captured.stdout.startswith("Exercise 77.1: right: ") and "  line 4   loads x" in captured.stdout
    file = tmp_path / "mine.cu"
    file.write_text(RIGHT)
    assert kernels.attempt("77.1", file).status == "right"


def _solutions():
    """Every kernel that a lesson offers as the answer of an exercise, as (number, source)."""
    for name in sorted({path.stem.split("_")[0][:2] for path in NOTEBOOKS.glob("*.ipynb")}):
        lesson = Lesson(name)
        yield from ((n, lesson.solution(n)) for n in lesson.numbers if n in kernels.TASKS)


def test_every_answer_that_runs_on_the_cpu_compiles_for_a_gpu():
    """The CPU's compiler knows names that NVRTC does not, as INFINITY."""
    answers = dict(_solutions())
    assert set(answers) == set(kernels.TASKS) and len(answers) > 20
    for number, source in answers.items():
        nvrtc.compile_source(source, arch="90", name=f"exercise {number}")
