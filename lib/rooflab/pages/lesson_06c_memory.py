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
    display.say(_memory_taken(found, rungs))
    display.fold_parts("Memory by the prompt's length", [table])


def _memory_taken(memory: Rows, rungs: list[Any]) -> str:
    """What a rung's call takes beside its output on the longest prompt, and who takes most."""
    seq = memory["seq"].max()
    ends = memory[memory["seq"] == seq].drop_duplicates("impl").set_index("impl")
    said = []
    for name in [n for n in ends.index if n in rungs][:1]:
        out = 2 * seq * study.HEADS * 128 / 1e6
        beside = ends.loc[name, "mb"] - out
        needs = "nothing" if beside < 0.01 * out else f"{beside:,.0f} MB"
        said.append(f"with {seq:,} tokens {name} needs {needs} beside its output ({out:,.0f} MB)")
    worst = str(ends["mb"].idxmax())
    share = ends.loc[worst, "bytes"] / ends.loc[worst, "scores bytes"]
    if share > 1:
        said.append(f"{worst} takes {share:.1f} times what all scores take in FP16")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
