"""Why the kernel of lesson 04d gains on decode-roofline's GPU and not here: issuing against reading."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import studies
from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.pages.lesson_04d_laptop import LAPTOP, PROFILED
from rooflab.view import display, plot

_INSTRUCTIONS = "inst_executed"  # by a warp: 32 threads


def least_times(here: Lab, drawn: Any, one_shape: Rows, kernels: Rows) -> None:
    """Show what issuing the loop's kernel and reading its weights take at the least on the laptop and here,
    for one token, and say which of them limits it; nothing for a shape that decode-roofline did not profile.
    """
    if f"{drawn[0]:,} × {drawn[1]:,}" != PROFILED or "dram_read" not in here.roof:
        why = f"Decode-roofline profiled {PROFILED} alone, and this needs the measured read roof"
        return display.say(f"{why}: not known for this shape and recording.")
    warps, gpu, laptop = executed(here, drawn), here.run["gpu"], device.get("rtx-4070-laptop")
    alone = one_shape.loc[("graph, cold", 1)]
    count, read = drawn[0] * drawn[1], here.roof["dram_read"].value
    table = pd.DataFrame(
        {
            "gpu": [LAPTOP, gpu],
            "rate": [laptop.dram_gb_s, read],
            "slots": [laptop.sms * 4 * laptop.boost_mhz / 1e3, int(here.run["sms"]) * 4 * here.sm_ghz],
            "fused": [kernels["fused"], alone["fused"]],
            "fp16": [kernels["fp16"], alone["fp16"]],
        }
    )
    table["issue"] = (warps or float("nan")) / table["slots"] / 1e3
    table["read"] = count * WEIGHT_BYTES["int4_g128"] / table["rate"] / 1e3
    table["halves"] = count * WEIGHT_BYTES["fp16"] / table["rate"] / 1e3
    table["gain"] = table["fp16"] / table["fused"]
    _shares_drawn(table, warps, laptop.boost_mhz)
    names = {"gpu": "GPU", "issue": "Issue its instructions (µs)", "read": "Read its INT4 weights (µs)"}
    names |= {"fused": "Loop's kernel, measured (µs)", "halves": "Read FP16's weights (µs)"}
    names |= {"fp16": "FP16's kernel, measured (µs)", "gain": "Gain"}
    if warps is None:
        del names["issue"]
    forms = dict.fromkeys(("issue", "read", "fused", "halves", "fp16"), "{:.1f}") | {"gain": "{:.2f}"}
    title = f"The same in µs: one token, {PROFILED}, weights from DRAM, least times and measured"
    display.table(table, names, forms, title, folded=True)
    if warps is None:
        return display.say("The kernel's instructions were not counted here, so why is not known.")
    display.say(_verdict(table, warps, count, gpu))


def _shares_drawn(table: Rows, warps: float | None, mhz: int) -> None:
    """Draw the least times of the loop's kernel and its measured one on both GPUs, in % of FP16's time."""
    title = "One token: the loop's kernel in % of FP16's time"
    parts = {"read its weights, at least": 100 * table["read"] / table["fp16"]}
    if warps is not None:
        parts["issue its instructions, at least"] = 100 * table["issue"] / table["fp16"]
    parts["measured"] = 100 * table["fused"] / table["fp16"]
    fig, ax = plot.figure("% of FP16's time", title=title, height=2.6)
    ax.axvline(100, color="#1A1A1A", linestyle="--", linewidth=1.8, zorder=4, label="FP16's kernel")
    most = 1.12 * max(100.0, *(float(side.max()) for side in parts.values()))
    plot.grouped(ax, [gpu.removeprefix("NVIDIA ") for gpu in table["gpu"]], parts, most)
    there, mine = table.iloc[0], table.iloc[1]
    said = f"{title}, {PROFILED}, weights from DRAM. FP16 (dashed) takes {there['fp16']:.1f} µs on the "
    said += f"{there['gpu']}, {mine['fp16']:.1f} on the {mine['gpu']}. Least times: bytes ÷ "
    said += f"{there['rate']:,.0f} GB/s on the laptop (data sheet), ÷ {mine['rate']:,.0f} here (measured)"
    if warps is not None:
        said += (
            f"; {warps / 1e6:.1f} million warp instructions, counted here and taken for both GPUs, ÷ what "
        )
        said += f"the schedulers can start (the laptop's at its data sheet's {mhz:,} MHz)"
    plot.show(fig, f"{said}.")


def executed(here: Lab, drawn: Any, impl: str = "1_warp_row", options: str = "") -> float | None:
    """The warp instructions that a kernel, the loop's by default, was counted to execute for one token, or
    None.
    """
    ((tool, cases, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    mine = [c for c in cases if (c.impl, c.options, c.n, c.k, c.batch) == (impl, options, *drawn, 1)]
    found = here.profile("int4", mine, tool, metrics) if mine else pd.DataFrame()
    if not len(found) or _INSTRUCTIONS not in found:
        return None
    value = float(pd.to_numeric(found[_INSTRUCTIONS]).iloc[0])
    return value if value > 0 else None


def _verdict(table: Rows, warps: float, count: int, gpu: str) -> str:
    """Which of issuing and reading takes longer on the laptop and here, and what that makes of the gain."""
    there, mine = table.iloc[0], table.iloc[1]
    longer = there["read"] > there["issue"]
    text = f"**The {gpu} reads {mine['rate'] / there['rate']:.1f} times as fast as the laptop, and issues "
    text += f"{mine['slots'] / there['slots']:.1f} times as fast.** On the laptop reading the INT4 weights "
    text += f"takes {there['read']:.1f} µs at the least, issuing {there['issue']:.1f}"
    text += ": so fewer bytes can save time. " if longer else ". "
    if mine["read"] >= mine["issue"]:
        text += f"**On the {gpu}{', too,' * bool(longer)} reading takes longer.**"
        same = 0.8 < mine["gain"] / there["gain"] < 1.25
        return text if same or not longer else f"{text} So this does not tell why the gains differ."
    text += f"On the {gpu} reading takes {mine['read']:.1f}, and **issuing takes "
    text += (
        f"{mine['issue'] / mine['read']:.1f} times as long as reading**, {mine['issue']:.1f}: to unpack a "
    )
    text += f"weight and multiply it, the kernel spends {32 * warps / count:.1f} instructions on this matrix."
    if mine["issue"] > 0.9 * mine["halves"] and mine["gain"] < 1.1:
        text += f" FP16's weights could be read in {mine['halves']:.1f}: **what INT4 saves in bytes, it "
        text += "spends on instructions.**"
    text += " The kernel is rung 1 of [part 04b](04b_ladder.ipynb); its later rungs, those of *read once* "
    text += "too, need fewer."
    over = [mine["fp16"] / mine["halves"], mine["fused"] / mine["issue"]]
    if min(over) > 1.25:
        text += (
            f" FP16's kernel takes {over[0]:.1f} times its least time there, the loop's {over[1]:.1f} times"
        )
        close = 0.8 < over[0] / over[1] < 1.25 and 0.8 < mine["issue"] / mine["halves"] < 1.25
        text += ". Their least times nearly tie, and so do their times. " if close else ". "
        text += "Why both take longer was not measured."
    return text
