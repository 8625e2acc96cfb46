"""Lesson 09c's comparisons on another GPU model."""

from __future__ import annotations

from rooflab.analysis import another_gpu
from rooflab.lab.session import Lab
from rooflab.view import display

_MOSTLY = 0.9  # of the comparisons, from which on ours is said to be ahead there as well


def on_another_gpu(here: Lab) -> None:
    """Say how ours does beside the libraries on the other GPU that the course recorded; library by library,
    folded.
    """
    if (other := another_gpu.recorded(here.store)) is None:
        return display.say("The course keeps no recording of another GPU beside this one.")
    run, beside = other.runs().iloc[-1], another_gpu.libraries(other)
    text = f"**The same on another GPU.** {another_gpu.sentence(other)} "
    text += f"It was recorded once, from commit {run['commit'][:8]}, without whole prompts."
    if beside["ours faster"].sum() >= _MOSTLY * beside["comparisons"].sum():
        text += f" So ours is not ahead because of choices that suit the {here.run.gpu}'s memory alone."
    display.say(text + another_gpu.same_sms(other))
    heads = {name: name for name in beside}
    display.table(beside, heads, caption=f"Library by library on the {run['gpu']}", folded=True)
