"""What lesson 06c says of the memory that a call of attention takes."""

from __future__ import annotations

from typing import Any

from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import display


def memory(answers: Any, rungs: list[Any]) -> None:
    """Say how the memory of a call grows with the prompt, with every figure folded."""
    found = answers("memory").assign(mb=lambda rows: rows["bytes"] / 1e6)
    wide = found.pivot_table("mb", "impl", "seq", sort=False)
    scores = found.drop_duplicates("seq").set_index("seq")["scores bytes"] / 1e6
    wide.loc["all scores, FP16"] = scores
    names = {"impl": "Who"} | {seq: f"{seq:,} tokens" for seq in wide.columns}
    forms = dict.fromkeys(wide.columns, "{:,.0f}")
    table = (wide.reset_index(), names, forms, "MB beside the inputs, the output counted; 32 heads of 128")
    display.say(_memory_growth(found, rungs))
    display.fold_parts("Memory by the prompt's length", [table])


def _memory_growth(memory: Rows, rungs: list[Any]) -> str:
    """How each kernel's memory grows with the prompt."""
    ends = memory.sort_values("seq").groupby("impl", sort=False)["mb"].agg(["first", "last"])
    growth = memory["seq"].max() / memory["seq"].min()
    ends["times"] = [f"{last / first:.0f}" for first, last in zip(ends["first"], ends["last"], strict=True)]
    text = f"{growth:.0f} times the tokens take "
    same = ends.groupby("times", sort=False)
    text += "; ".join(f"{times} times the memory with {', '.join(group.index)}" for times, group in same)
    worst, scores = str(ends["last"].idxmax()), memory.loc[memory["seq"].idxmax(), "scores bytes"] / 1e6
    if ends["last"][worst] > scores:
        text += f". {worst} takes {ends['last'][worst] / scores:.1f} times what all scores take in FP16"
    own = [n for n in ends.index if n in rungs]
    if own:
        out = 2 * memory["seq"].max() * study.HEADS * 128 / 1e6
        beside = ends.loc[own[0], "last"] - out
        text += f". {own[0]} needs "
        text += "nothing beside its output" if beside < 0.01 * out else f"{beside:,.0f} MB beside its output"
        text += f" ({out:,.0f} MB)."
    return text
