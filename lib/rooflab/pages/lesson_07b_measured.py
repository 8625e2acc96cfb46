"""Lesson 07b's law on a GPU that was measured after the fit."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import another_gpu
from rooflab.hardware import perf_model
from rooflab.lab.session import Lab
from rooflab.pages import Rows
from rooflab.view import display
from rooflab.words import counted

_NEAR, _CHEAP = 25, 1.05  # percent that the page calls near, and how much longer a choice may take


def another_gpu_predicted(lab: Lab, timed: Rows, here: Any, spec: Any, fit: Any) -> None:
    """Show how near both laws come to another GPU's recorded products, and what choosing by them costs."""
    if (other := another_gpu.recorded(lab.store)) is None:
        return display.say("The course keeps no recording of another GPU beside this one.")
    there, rows = another_gpu.machine(other, here, spec), another_gpu.products(other)
    compared = perf_model.compared(rows, there, fit)
    gpu, commit = (str(other.runs().iloc[-1][name]) for name in ("gpu", "commit"))
    near = 100 * (compared[["one_off", "own_off"]].abs() <= _NEAR).mean()
    display.say(
        f"The {gpu} was measured after the fit, with the kernels of commit {commit[:8]} and nothing tuned "
        f"again.{another_gpu.same_sms(other)} The law gives it the share of its data sheet that the "
        f"{spec.name} reached of its own: "
        f"{here.gb_s / spec.dram_gb_s:.0%} of the bandwidth, {there.gb_s:,.0f} GB/s, and "
        f"{here.peaks['fp16_tensor'] / spec.fp16_tensor:.0%} of the FP16 peak, "
        f"{there.peaks['fp16_tensor']:,.0f} TFLOP/s. **Of {len(compared):,} products the plain law puts "
        f"{near['one_off']:.0f}% within {_NEAR}%, the tuned law {near['own_off']:.0f}%.**"
        f"{_beside_own(compared, perf_model.compared(timed, here, fit), near, spec.name)}"
    )
    _by_way(compared, gpu)
    cost = another_gpu.choices(other, rows, timed, there, fit)
    if len(cost):
        display.say(_chosen(cost, spec.name))


def _beside_own(there: Rows, here: Rows, near: Rows, name: str) -> str:
    """How that compares with the GPU of the fit, and whether the share of products that bytes decide fits."""
    own = 100 * (here[["one_off", "own_off"]].abs() <= _NEAR).mean()
    text = f" On the {name} itself they have {own['one_off']:.0f}% and {own['own_off']:.0f}%"
    if (near <= own).any():
        return f"{text}."
    bytes_there, bytes_here = (each["by"].eq("memory").mean() for each in (there, here))
    hits = (there["one_off"].abs() <= _NEAR).groupby(there["by"].eq("memory")).mean()
    if bytes_there <= bytes_here or len(hits) < 2 or hits[True] <= hits[False]:
        return f"{text}; why they are nearer there was not tested."
    text += (
        f". A likely reason: bytes decide {bytes_there:.0%} of the products there and {bytes_here:.0%} here, "
    )
    return f"{text}and of these the plain law has {hits[True]:.0%} there, of the others {hits[False]:.0%}."


def _by_way(compared: Rows, gpu: str) -> None:
    """The median error of both laws, a row a way, folded."""
    off = compared[["one_off", "own_off"]].abs().assign(way=compared["label"])
    groups = off.groupby("way", sort=False)
    table = groups.median().assign(products=groups.size()).reset_index().sort_values("own_off")
    heads = {"way": "way", "products": "products", "one_off": "plain law", "own_off": "tuned law"}
    forms = {"one_off": "{:.0f}", "own_off": "{:.0f}"}
    display.table(table, heads, forms, f"How far off, in %: the median product on the {gpu}", folded=True)


def _chosen(cost: Rows, name: str) -> str:
    """What choosing by the law, or by this GPU's own table, costs there."""
    right = 100 * (cost[["law", "table"]] <= _CHEAP).mean()
    worst = cost[["law", "table"]].max()
    text = (
        f"**Choosing by it.** Of {counted(len(cost), 'product')} with INT4 or Q8_0 weights the kernel that "
        f"the tuned law names takes at most {_CHEAP - 1:.0%} longer than the fastest of ours in "
        f"{right['law']:.0f}%, at worst {worst['law']:.2f} times as long. The kernel that was fastest on the "
        f"{name} at the nearest shape does in {right['table']:.0f}%, at worst {worst['table']:.2f} times."
    )
    if right["table"] > right["law"] and worst["table"] < worst["law"]:
        text += (
            f" So the dispatcher takes the {name}'s table for another GPU with the same SMs, although its "
            "memory is slower, and the law for the rest."
        )
    return text
