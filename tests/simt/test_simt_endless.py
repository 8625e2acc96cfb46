"""Kernels that never end, with or without touching memory: ended by the launch's limits, at a named line."""

import ctypes
import importlib
import itertools
import os
import signal
import subprocess
import threading
import time

import needs
import numpy as np
import pytest
from rooflab import simt
from rooflab.errors import LaunchError
from rooflab.exercises import kernels
from rooflab.exercises.kernels import Trial, kernel_task

needs.compiler()

RUNNER = importlib.import_module("rooflab.simt.run")  # the package's own name of it is the function
WHO = {"all": "true", "one": "threadIdx.x == 5", "last_block": "blockIdx.x == 1"}
HEADS = {
    "ever": "while (true)",
    "until": "while (x != n)",  # no compiler knows that x is odd and n is not
    "never": "for (float f = 0.0f; f != 0.5f; f += 0.3f)",
}
BODIES = {
    "nothing": "x |= 1u;",
    "arithmetic": "x = x * 3u + n + 1u | 1u;",
    "function": "x = mixed(x) | 1u;",
    "sine": "x = __float_as_uint(sinf(float(x))) | 1u;",
    "branch": "if (x % 3u == 1u) x += 6u; else x = x * 5u | 1u;",
    "warp": "x = __shfl_xor_sync(0xffffffffu, x, 1) | 1u;",
    "barrier": "__syncthreads(); x |= 1u;",
    "memory": "out[64 * blockIdx.x + threadIdx.x] = x; x = y[threadIdx.x] | 1u;",
}
TOGETHER = ("warp", "barrier")  # what every thread has to come to
KERNELS = {
    f"{who}_{head}_{body}": (who, head, body)
    for who, head, body in itertools.product(WHO, HEADS, BODIES)
    if (who != "one" or body not in TOGETHER) and (head != "ever" or body in ("nothing", *TOGETHER))
}


def source_of(name):
    who, head, body = (table[key] for table, key in zip((WHO, HEADS, BODIES), KERNELS[name], strict=True))
    return f"""
extern "C" __global__ void {name}(const unsigned* y, unsigned* out, unsigned n) {{
    unsigned x = 2 * threadIdx.x + 1;
    if ({who}) {{
        {head}
        {{
            {body}  // ENDLESS {name}
        }}
    }}
    out[64 * blockIdx.x + threadIdx.x] = x;
}}
"""


SOURCE = "__device__ unsigned mixed(unsigned x) { return x ^ x << 3; }\n" + "".join(map(source_of, KERNELS))


def arguments():
    return [np.ones(64, np.uint32), np.zeros(128, np.uint32), ctypes.c_uint(0)]


@pytest.mark.parametrize("name", KERNELS)
def test_a_loop_without_end_is_ended_and_its_line_named(name):
    seen = simt.watch(SOURCE, 2, 64, arguments(), entry=name, limit=simt.Limit(1, 20_000))
    (fault,) = seen.faults
    assert fault.kind == "endless loop" and fault.kernel == name
    lines = SOURCE.split("\n")
    marked = next(k for k, line in enumerate(lines, 1) if line.endswith(f"// ENDLESS {name}"))
    assert fault.line in [f"kernel.cu:{k}" for k in (1, marked - 2, marked - 1, marked, marked + 1)]
    empty = KERNELS[name][1:] == ("ever", "nothing")  # g++ counts no empty loop: time ends it
    after = "1 seconds of this machine's processor" if empty else "20000 steps of all its threads"
    assert f"was ended here after {after}: a loop has no end, or the shape is too large" in str(fault)
    who = KERNELS[name][0]
    assert fault.block == ((1, 0, 0) if who == "last_block" else (0, 0, 0))
    assert who != "one" or fault.threads == [5]


def test_the_same_place_is_named_every_time():
    name = "all_until_branch"
    said = {
        str(simt.watch(SOURCE, 2, 64, arguments(), entry=name, limit=simt.Limit(99, 9_999)).faults[0])
        for _ in range(3)
    }
    assert len(said) == 1


def test_a_loop_over_memory_is_ended_by_its_accesses_too():
    with pytest.raises(LaunchError, match=r"more than 500 accesses, .* the last at kernel.cu:\d+: take a"):
        simt.watch(SOURCE, 2, 64, arguments(), entry="all_until_memory", most=500)


# An optimiser may take a loop away whose end it need not prove, as NVCC may; these it leaves.
PLAIN = ["all_until_arithmetic", "one_until_function", "last_block_never_sine", "all_ever_barrier"]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PLAIN)
def test_without_watching_time_is_the_limit(name, monkeypatch):
    monkeypatch.setattr(RUNNER, "LIMIT", simt.Limit(1, 0))
    before = signal.getsignal(signal.SIGVTALRM)
    began = time.thread_time()
    with pytest.raises(simt.KernelFault) as caught:
        simt.run(SOURCE, 2, 64, arguments(), entry=name)
    assert 0.9 < time.thread_time() - began < 5
    (fault,) = caught.value.faults
    assert fault.kind == "endless loop" and fault.line.startswith("kernel.cu:")
    assert "was ended here after 1 seconds of this machine's processor" in str(fault)
    assert signal.getsignal(signal.SIGVTALRM) == before
    out = np.zeros(64, np.uint32)  # and the next launch is as good as any
    plain = 'extern "C" __global__ void plain(unsigned* out) { out[threadIdx.x] = threadIdx.x; }'
    simt.run(plain, 1, 64, [out])
    assert (out == np.arange(64)).all()


def test_calls_pass_no_stub_that_belongs_to_no_line():
    program = simt.load(SOURCE)
    done = subprocess.run(["readelf", "-rW", program.path], capture_output=True, text=True, check=True)
    assert "simt_" in done.stdout and "JUMP_SLO" not in done.stdout


def test_a_launch_of_another_thread_is_limited_by_its_own_time(monkeypatch):
    """What the main thread computes meanwhile is none of the launch's."""
    monkeypatch.setattr(RUNNER, "LIMIT", simt.Limit(1, 0))
    found = []

    def launch():
        try:
            simt.run(SOURCE, 2, 64, arguments(), entry="all_until_arithmetic")
        except simt.KernelFault as fault:
            found.append(fault)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and found[0].faults[0].kind == "endless loop"


def test_an_interrupt_still_ends_a_launch():
    timers = [threading.Timer(at, os.kill, (os.getpid(), signal.SIGINT)) for at in (0.5, 1.0)]
    simt.build.load(SOURCE)
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        simt.run(SOURCE, 2, 64, arguments(), entry="all_until_arithmetic")
    for timer in timers:
        timer.join()


def test_a_readers_loop_is_a_wrong_answer_with_its_line(monkeypatch):
    monkeypatch.setattr(kernels, "TASKS", {})
    monkeypatch.setattr("rooflab.exercises._CHECKERS", {})
    monkeypatch.setattr("rooflab.exercises._load", lambda lesson: None)

    @kernel_task("77.1", entry="doubled", right="right.")
    def doubled():
        x = np.ones(64, np.float32)
        yield Trial("n = 64", 1, 64, [x, np.empty_like(x), ctypes.c_int(64)], {1: 2 * x})

    source = """
extern "C" __global__ void doubled(const float* x, float* y, int n) {
    int k = threadIdx.x;
    while (k < n)
        k ^= 1;
    if (k < n) y[k] = 2.0f * x[k];
}
"""
    began = time.monotonic()
    lines = str(kernels.attempt("77.1", source)).splitlines()
    assert time.monotonic() - began < 300, "a launch may take 600"
    assert lines[0] == "Exercise 77.1: wrong: the result is not right."
    (fault,) = [line for line in lines if line.startswith("  fault")]
    assert fault.startswith("  fault    endless loop: doubled, line ") and "thread 0: the launch was" in fault
    assert fault.split("line ")[1][0] in "45"
