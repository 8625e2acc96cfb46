"""What lesson 06e's page shows: how often its steps load a key, and what rungs with their ideas are worth."""

from __future__ import annotations

from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages import facts as facts
from rooflab.studies import attention as study
from rooflab.view import diagram, display
from rooflab.words import listed, times

# A step of the guide, and the rung of the ladder, with its options, that has its idea in a larger kernel.
STEPS = {
    "step b, one pass": ("1_scalar", ""),
    "step c, a shared tile": ("2_tiled", "queries=16"),
    "step e, tensor cores": ("5_padded", ""),
}
# Of each step: how many queries a load of a key serves, and how often it walks over the keys.
LOADS = {
    "step a, the definition": (1, 2),
    "step b, one pass": (1, 1),
    "step c, a shared tile": (4, 1),
    "step d, fragments": None,
    "step e, tensor cores": (16, 1),
}


def _measured(here: Lab) -> tuple[Rows, list[str]]:
    """The rows of the steps' rungs that are recorded, and the steps' names."""
    cases = {(case.impl, case.options or ""): case for case in study.ladder(128, device=here.sized)}
    asked = {name: cases[rung] for name, rung in STEPS.items() if rung in cases}
    held = here.held("attention", list(asked.values()))
    names = [name for name, case in asked.items() if case in held]
    return here.measure("attention", held), names


def opening(here: Lab) -> Opening:
    """The first screen: how often each step loads a key, and the rates of the rungs with their ideas."""
    rows, names = _measured(here)
    answer = "Yes, in five steps, each a short kernel"
    if names:
        steps = listed(name.partition(",")[0].removeprefix("step ") for name in names)
        answer += (
            f". Step{'s' * (len(names) > 1)} {steps} ha{'ve the ideas' if len(names) > 1 else 's the idea'} "
        )
        answer += f"of part 06's {listed(rows['impl'])}, in smaller kernels"
    if len(rows):
        best = rows.loc[rows["tflop_s"].astype(float).idxmax()]
        answer += (
            f"; the fastest of those rungs, {best['impl']}, runs at {float(best['tflop_s']):,.0f} TFLOP/s "
        )
        answer += f"on the {here.run['gpu']}"
        slower = rows[rows["impl"].eq("2_tiled")]["median_us"]
        if len(slower) and best["impl"] != "2_tiled":
            gain = float(slower.iloc[0]) / float(best["median_us"])
            answer += f", {times(gain)} times the speed of 2_tiled"
    answer += "."
    able = (
        "write causal attention by its definition, and in one pass",
        "share a tile of keys between warps without a race",
        "fill a tensor core's fragments, and pad shared memory against bank conflicts",
    )
    return answer, able, diagram.key_loads(LOADS)


def _of_it_padding(here: Lab) -> str:
    """What of 5_padded's speed its padding brings: its gain over 4_mma, or nothing where one has no row."""
    names = ("4_mma", "5_padded")
    cases = [case for case in study.ladder(128, device=here.sized) if case.impl in names]
    rows = here.measure("attention", here.held("attention", cases)).drop_duplicates("impl").set_index("impl")
    if len(rows) < len(names):
        return ""
    gain = rows.loc["4_mma", "median_us"] / rows.loc["5_padded", "median_us"]
    return f"; of that, a factor of {times(gain)} is the padding of its rows"


def takeaway(here: Lab) -> None:
    """What to take away, computed."""
    rows, names = _measured(here)
    text = "- Without a GPU a kernel can be written and tested, and races looked for, on the checker's "
    text += "inputs. Its time needs a GPU.\n"
    pairs = list(zip(names, rows["impl"], rows["median_us"], strict=True))
    for (_, last, before), (name, rung, after) in zip(pairs, pairs[1:], strict=False):
        text += f"- The idea of {name}: part 06's {rung} has {times(before / after)} times the speed of "
        text += f"{last} on the {here.run['gpu']}{_of_it_padding(here) if rung == '5_padded' else ''}.\n"
    display.say(
        text
        + "- The registers that hold the scores are the next product's operand: scores stay in registers."
    )
