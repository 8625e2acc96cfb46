"""What lesson 00's pages show: sentences and tables computed from its rows."""

from __future__ import annotations

import pandas as pd

from rooflab import lab as labs
from rooflab.hardware import device
from rooflab.ops import Rung
from rooflab.pages import thread_slots
from rooflab.paths import ROOT
from rooflab.studies import environment
from rooflab.view import diagram, display
from rooflab.view.diagram.svg import LANES

REGISTERS_KIB = (
    256  # of an SM, on every architecture since Maxwell: CUDA C++ Programming Guide, compute capabilities
)


def ramp(lab: labs.Lab, n: int) -> pd.DataFrame:
    """The rows of saxpy over n elements: its two rungs and torch.add."""
    return lab.measure("environment", environment.ramp(n))


_PROGRAM = (
    "`cudaMalloc` reserves memory on the device, `cudaMemcpy` copies to it and back.",
    "`sum_all<<<blocks, threads>>>(...)` launches. The host waits at `cudaDeviceSynchronize`.",
    "The grid may be smaller than the array: a thread adds up every element that lies a whole grid further "
    "on (a *grid-stride loop*).",
    "A launch returns no error code; `cudaGetLastError` and `cudaDeviceSynchronize` do.",
)

# What eight lanes hold in the drawing of a sum.
HELD = (3, 1, 4, 1, 5, 9, 2, 6)


def answer(n: int) -> str:
    """The answer of the first page, for n elements."""
    return (
        f"A thread works on one of {n:,} elements. To add them up, threads first add within a warp (32 "
        "threads), then within a block. A block stores its sum for a second kernel, or adds it to one total."
    )


def timed(rows: pd.DataFrame, gpu: str) -> None:
    """Say how long the page's kernel takes, from the rows of `ramp`; nothing where it was not timed."""
    mine = rows[rows["impl"] == "1_scalar"]
    if mine.empty:
        return
    row = mine.iloc[0]
    share = row["roof_fraction"]
    of_roof = f", {share:.0%} of the best rate that lesson 01 reaches with two arrays read and one written"
    of_roof = of_roof if share == share else ""
    display.say(
        f"For {row['n']:,} elements this kernel takes {row['median_us']:.1f} µs on the {gpu} and moves "
        f"{row['gb_s']:,.0f} GB/s between chip and memory{of_roof}. "
        "[Part 00a](00a_environment.ipynb) speeds it up."
    )


def chosen(lab: labs.Lab) -> None:
    """Say how many threads a block should have, by what an SM of this GPU holds."""
    slots, registers = thread_slots(lab), REGISTERS_KIB * 1024 // 4
    display.say(
        "**How many threads a block?** Up to 1,024, in multiples of 32, since warps are whole; 128 or 256 is "
        f"a good start. An SM of this GPU holds {slots:,} threads and {registers:,} registers of 4 bytes, so "
        f"it holds fewer threads where each needs more than {registers // slots} registers."
    )


def summed(rung: Rung) -> None:
    """Draw how a block of the rung's default size adds up: over lanes, then over warps."""
    diagram.block_sum(HELD, rung.with_defaults({})["THREADS"] // LANES).show()


def memories(lab: labs.Lab) -> None:
    """Show the places where a kernel keeps numbers: who sees each, its size here, and what a load costs."""
    run, spec = lab.run, lab.spec or device.match(str(lab.run.gpu))
    chases = [case for case in lab.cases("environment") if case.operator == "chase"]
    rows = lab.measure("environment", chases)
    l2, dram = environment.l2_latency_ns(rows, int(run.l2_bytes)), environment.latency_ns(rows)
    frame = pd.DataFrame(
        [
            ("registers", "float sum;", "one thread", f"{REGISTERS_KIB} KiB an SM", "none"),
            (
                "shared memory",
                "__shared__ float tile[256];",
                "one block",
                f"{spec.shared_kb_per_block} KiB a block" if spec else "",
                "not measured here",
            ),
            (
                "L1 cache",
                "(no name)",
                "the blocks of one SM",
                "on the SM, shares its memory with shared memory",
                "not measured here",
            ),
            (
                "L2 cache",
                "(no name: it keeps what global memory was asked for)",
                "all blocks",
                f"{run.l2_bytes / 2**20:.0f} MiB",
                f"{l2:.0f} ns" if l2 else "",
            ),
            (
                "global memory (DRAM)",
                "const float* x",
                "all blocks, and the host by copies",
                f"{run.memory_bytes / 2**30:.0f} GiB",
                f"{dram:.0f} ns" if dram else "",
            ),
        ],
        columns=["place", "code", "seen", "size", "wait"],
    )
    heads = {"place": "Memory", "code": "In a kernel", "seen": "Seen by", "size": f"On the {run.gpu}"}
    display.table(frame, heads | {"wait": "Wait for a lone load"})


def program() -> None:
    """Show examples/sum.cu, a sum as a program of its own, with notes on it, behind one line to click."""
    text = (ROOT / "examples" / "sum.cu").read_text()
    head = f"The whole program, examples/sum.cu: {len(text.splitlines())} lines"
    notes = "\n".join(f"- {note}" for note in _PROGRAM)
    display.say(f"<details><summary>{head}</summary>\n\n{notes}\n\n```cuda\n{text}```\n\n</details>")
