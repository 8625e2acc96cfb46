"""Probes: tiny kernels that measure what a launch, a grid-wide barrier and one dependent load cost."""

from __future__ import annotations

import ctypes
from typing import Any

from rooflab.errors import LaunchError
from rooflab.ops import DEPENDENT, PORTABLE, Rung, check_array, loaded, with_target
from rooflab.records.fingerprint import source_of_callable

TOUCH = Rung("probes", "touch", "touch", "one thread writes one word", words=1, defines={"DEPENDENT": 0})
TOUCH_DEPENDENT = Rung(
    "probes",
    "touch",
    "touch",
    "the same, as a programmatic dependent",
    1,
    defines={"DEPENDENT": 1},
    archs=DEPENDENT,
)
BARRIER = Rung("probes", "barrier", "barrier", "barriers across the whole grid", words=1)
CHASE = Rung(
    "probes", "chase", "chase", "one thread follows a chain of loads", words=1, defines={"STRIDE": 32}
)
LADDER = (TOUCH, BARRIER, CHASE)

# Each cheat, and what it does.
CHEATS = {
    "writes_nothing": "leaves the output as it was",
    "writes_zeros": "writes zeros alone",
    "skips_tail": "leaves out what fills no whole block",
    "one_nan": "is right but for one NaN",
    "ten_times": "is right for ten calls, then wrong",
    "stale_answer": "returns the answer to other inputs",
    "changes_inputs": "is right, and overwrites an input",
}


def cheat_rung(entry: str) -> Rung:
    """The deliberately wrong saxpy kernel `entry` of kernels/cheats/saxpy.cu."""
    return Rung("cheats", "saxpy", entry, "looks fast and is wrong", words=1, defines={}, archs=PORTABLE)


@with_target()
def touch(out: Any, token: int, *, dependent: bool = False) -> Any:
    """Write `token` into out [1] uint32 from one thread: the cheapest launch there is."""
    check_array("out", out, "uint32", 1)
    rung = TOUCH_DEPENDENT if dependent else TOUCH
    function = loaded(rung, (("DEPENDENT", int(dependent)),))
    function.launch(1, 32, [out, ctypes.c_uint(token)], dependent=dependent)
    return out


def _barrier_on_cpu(launcher: Any, counter: Any, mail: Any, seen: Any, rounds: int) -> Any:
    """The same launch; simt says how many blocks can be alive at once there."""
    for name, array, size in (("counter", counter, 1), ("mail", mail, seen.size), ("seen", seen, seen.size)):
        check_array(name, array, "uint32", size)
    if not 0 < rounds * (seen.size + 1) < 1 << 32:
        raise LaunchError(f"rounds x blocks must stay below 2^32 and above 0, so {rounds} rounds cannot run.")
    function = loaded(BARRIER, (("THREADS", 256),))
    function.launch(seen.size, 256, [counter, mail, seen, ctypes.c_uint(rounds)], cooperative=True)
    return seen


@with_target(_barrier_on_cpu)
def barrier(counter: Any, mail: Any, seen: Any, rounds: int) -> Any:
    """Run `rounds` grid-wide barriers over len(seen) blocks; seen [blocks] uint32 becomes `rounds` if all
    held.

    counter [1] uint32 must be zero and is zero again afterwards. All blocks must fit on the GPU at once.
    """
    blocks = int(seen.size)
    check_array("counter", counter, "uint32", 1)
    check_array("mail", mail, "uint32", blocks)
    check_array("seen", seen, "uint32", blocks)
    function = loaded(BARRIER, (("THREADS", 256),))
    import cupy

    most = cupy.cuda.Device().attributes["MultiProcessorCount"] * function.resident_blocks(256)
    if blocks > most:
        raise LaunchError(f"A grid barrier needs all blocks resident: at most {most} here, not {blocks}.")
    if not 0 < rounds * (blocks + 1) < 1 << 32:
        raise LaunchError(f"rounds x blocks must stay below 2^32 and above 0, so {rounds} rounds cannot run.")
    function.launch(blocks, 256, [counter, mail, seen, ctypes.c_uint(rounds)], cooperative=True)
    return seen


@with_target()
def chase(next_line: Any, end: Any, start: int, steps: int, stride: int = 32) -> Any:
    """Follow `steps` links from line `start` through next_line [lines x stride] uint32; end [1] gets the
    line reached.
    """
    check_array("next_line", next_line, "uint32")
    check_array("end", end, "uint32", 1)
    lines = int(next_line.size) // stride
    if not (0 <= start < lines and steps > 0):
        raise LaunchError(
            f"chase starts at a line below {lines} and takes at least one step, not {start}, {steps}."
        )
    loaded(CHASE, (("STRIDE", stride),)).launch(
        1, 1, [next_line, end, ctypes.c_uint(start), ctypes.c_uint(steps)]
    )
    return end


@with_target()
def cheat(entry: str, a: float, x: Any, y: Any, out: Any, workspace: Any) -> Any:
    """Launch the wrong saxpy kernel `entry`; `workspace` [32 + n] uint32 is its hiding place."""
    n = int(x.size)
    for name, array, dtype, size in (
        ("x", x, "float32", n),
        ("y", y, "float32", n),
        ("out", out, "float32", n),
        ("workspace", workspace, "uint32", 32 + n),
    ):
        check_array(name, array, dtype, size)
    function = loaded(cheat_rung(entry))
    function.launch((n + 255) // 256, 256, [x, y, out, workspace, ctypes.c_float(a), ctypes.c_ulonglong(n)])
    return out


def launch_rule(rung: Rung) -> str:
    """The code that launches a probe, as a record's identity digests it."""
    functions = {"touch": touch, "barrier": barrier, "chase": chase, "cheats": cheat}
    return source_of_callable(functions[rung.name if rung.operator == "probes" else rung.operator])
