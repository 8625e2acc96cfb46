"""What lesson 06e's page shows: what the rungs that its steps lead to are worth."""

from __future__ import annotations

from matplotlib.figure import Figure

from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages import facts as facts
from rooflab.studies import attention as study
from rooflab.view import display, page, plot

# A step of the guide, and the rung of the ladder, with its options, that is the same step.
STEPS = {
    "06.b, one pass": ("1_scalar", ""),
    "06.c, a shared tile": ("2_tiled", "queries=16"),
    "06.e, tensor cores": ("5_padded", ""),
}
# The other steps, which have no rung, and what each is for.
PREPARE = {"06.a, the definition": "prepares 06.b", "06.d, fragments": "prepares 06.e"}


def _measured(here: Lab) -> tuple[Rows, list[str]]:
    """The rows of the steps' rungs that are recorded, and the steps' names."""
    cases = {(case.impl, case.options or ""): case for case in study.ladder(128, device=here.sized)}
    asked = {name: cases[rung] for name, rung in STEPS.items() if rung in cases}
    held = here.held("attention", list(asked.values()))
    names = [name for name, case in asked.items() if case in held]
    return here.measure("attention", held), names


def opening(here: Lab) -> Opening:
    """The first screen: the rungs that the guide's steps lead to."""
    rows, names = _measured(here)
    first, last, gpu = rows.iloc[0], rows.iloc[-1], here.run["gpu"]
    answer = "Yes, in five steps, each a kernel of 15 to 70 lines. "
    answer += f"{ {2: 'Two', 3: 'Three'}.get(len(names), len(names)) } of them are also rungs of "
    answer += (
        f"part 06's ladder, from {first['tflop_s']:,.1f} to {last['tflop_s']:,.0f} TFLOP/s on the {gpu}: "
    )
    answer += f"{display.speed(first['median_us'] / last['median_us'])}."
    able = (
        "write causal attention by its definition, and in one pass",
        "share a tile of keys between warps without a race",
        "fill a tensor core's fragments, and pad shared memory against bank conflicts",
    )
    title = f"The {len(names)} steps that are rungs of part 06's ladder, and those that prepare them"
    return answer, able, _steps_drawn(rows, names, gpu, title)


def _steps_drawn(rows: Rows, names: list[str], gpu: object, title: str) -> tuple[Figure, str]:
    """The steps in their order, those that are rungs by their rate; the figure and its caption."""
    rates = dict(zip(names, rows["tflop_s"].astype(float), strict=True))
    steps = sorted([*names, *PREPARE])
    fig, ax = plot.figure("TFLOP/s", title=title, height=1.1 + 0.24 * len(steps))
    fig.set_figwidth(page.WIDEST)
    plot.bars(ax, steps, [rates.get(step, float("nan")) for step in steps], "TFLOP/s")
    for text, step in zip(ax.texts, steps, strict=True):
        text.set_text(PREPARE.get(step, text.get_text()))
    share = rows["tflop_s"].iloc[-1] / rows["tflop_s"].iloc[0]
    last = names[-1].partition(",")[0]
    return (
        fig,
        f"{title} on {gpu}, {plot.dates(rows)}: {last} is {display.times(share)} times the first that is a "
        "rung.",
    )


def takeaway(here: Lab) -> None:
    """What to take away, computed."""
    rows, names = _measured(here)
    text = "- Without a GPU a kernel can be written, and shown right and free of races. Its time needs one.\n"
    pairs = list(zip(names, rows["median_us"], strict=True))
    for (last, before), (name, after) in zip(pairs, pairs[1:], strict=False):
        text += f"- Step {name}: {display.times(before / after)} times the speed of {last.partition(',')[0]} "
        text += f"on the {here.run['gpu']}.\n"
    display.say(text + "- Fragments decide the rest: the scores' registers are the next product's operand.")
