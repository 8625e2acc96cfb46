"""Why the kernel of lesson 04d wins on its source's GPU and not here: the two memories."""

from __future__ import annotations

from typing import Any

from rooflab.hardware import device
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.pages import Rows
from rooflab.pages.lesson_04d_laptop import LAPTOP, PROFILED
from rooflab.view import display

_FORMATS = {"fused": "int4_g128", "fp16": "fp16"}
_BOUND = 0.75  # of memory's rate, from which on a kernel is said to wait for memory


def slow_and_fast_memory(here: Lab, drawn: Any, one_shape: Rows, kernels: Rows) -> None:
    """Say at what share of its memory's rate the kernel reads its weights on the laptop and here, and what
    that makes of the gain; nothing for a shape that the source did not profile.
    """
    if f"{drawn[0]:,} × {drawn[1]:,}" != PROFILED or "dram_read" not in here.roof:
        why = f"The source profiled {PROFILED} alone, and this needs the measured read roof"
        return display.say(f"{why}: not known for this shape and recording.")
    laptop, read = device.get("rtx-4070-laptop"), here.roof["dram_read"].value
    alone = one_shape.loc["graph, cold", 1]
    weights = {name: drawn[0] * drawn[1] * WEIGHT_BYTES[of] / 1e3 for name, of in _FORMATS.items()}
    there_share = weights["fused"] / kernels["fused"] / laptop.dram_gb_s
    here_share = weights["fused"] / alone["fused"] / read
    gains = kernels["fp16"] / kernels["fused"], alone["fp16"] / alone["fused"]
    text = (
        f"The gain for one token is {gains[0]:.2f} there and {gains[1]:.2f} here, both of kernels alone and "
    )
    text += "with weights from DRAM.\n\n"
    text += f"- {LAPTOP}, by the source's profiler: the loop's kernel reads its "
    text += f"{weights['fused'] / 1e3:.1f} MB in "
    text += f"{kernels['fused']:.1f} µs, {there_share:.0%} of the data sheet's {laptop.dram_gb_s:.0f} GB/s. "
    if there_share > _BOUND:
        text += "So near memory's rate, fewer bytes take less time.\n"
    else:
        text += "So memory alone does not set its time.\n"
    text += f"- {here.run['gpu']}, by our graph clock: it takes {alone['fused']:.1f} µs, {here_share:.0%} of "
    text += f"the measured {read:,.0f} GB/s. FP16's {weights['fp16'] / 1e3:.1f} MB take "
    text += f"{alone['fp16']:.1f} µs. The roof measured here is {read / laptop.dram_gb_s:.0f} times "
    text += "the laptop's data sheet, "
    more = int(here.run["sms"]) / laptop.sms
    text += f"for {more:.1f} times as many SMs"
    if (pace := read / laptop.dram_gb_s / more) > 1.5:
        text += f": to keep up, each SM would have to unpack {pace:.1f} times as many weights a second"
    if here_share < _BOUND:
        text += ".\n\n**So here the INT4 bytes do not set the time, and being fewer they save little.** "
        text += "What does, [04b](04b_ladder.ipynb) found out: this kernel is its rung 1."
    else:
        text += ".\n\n**So here, too, memory sets the time.**"
    display.say(text)
