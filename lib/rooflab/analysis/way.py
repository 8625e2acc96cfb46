"""The decoder's ladder: from the library's tokens a second to ours, and which lesson each step comes from.

STEPS is the one table: the site's home draws it, and every lesson says where on it it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pandas as pd

from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.view import display


class Step(NamedTuple):
    """A way of decoding: its impl and weights in the study `decode`, what it changes, the lesson's file."""

    impl: str
    format: str
    says: str
    lesson: str


STEPS = (
    Step("transformers.eager", "fp16", "the library: Python launches every kernel", "02_attribution"),
    Step("transformers.graph", "fp16", "the same kernels in a CUDA graph", "02c_rule"),
    Step("torch", "fp16", "our decode attention, products merged", "06d_decode"),
    Step("products", "fp16", "our matrix-vector products (GEMV)", "03d_rows"),
    Step("products", "int4_g128", "INT4 weights", "04b_ladder"),
    Step("1_kernel_per_phase", "int4_g128", "operators fused into five phases a layer", "08_decoder"),
    Step("2_pdl", "int4_g128", "a phase loads weights before the one before ends", "08_decoder"),
    Step("3_persistent", "int4_g128", "one persistent kernel for all tokens", "08_decoder"),
    Step(
        "7_split_k", "int4_g128", "two products divided along k, so that all blocks have work", "08_decoder"
    ),
)
# What the lessons without a step of their own do for the ladder.
SERVES = {
    "00": "it introduces CUDA, in which every step is written",
    "00a": "it introduces the gate and the clock that every step meets",
    "00b": "it chooses the clocks that time every step",
    "01": "it measures the memory bandwidth that bounds every step",
    "01b": "it measures the other roofs",
    "02b": "its profiler counts where the first step's time goes",
    "03": "its coalesced loads are what every product below uses",
    "03b": "it fills the GPU, as every product below must",
    "03c": "it checks what others claim of the same kernels",
    "03e": "its faults are those that a fused kernel must not have",
    "04": "it packs the weights of the INT4 steps",
    "04c": "it carries INT4 from one sequence to many",
    "04d": "it holds the INT4 step against published figures",
    "05": "its Q8_0 weights are the other way to read fewer bytes",
    "05b": "it makes the products of the Q8_0 decoder",
    "05c": "it checks the Q8_0 products around their edges",
    "05d": "its products read the prompt before the first token",
    "05e": "it counts what a faster product brings to a whole token",
    "06": "its attention reads the prompt before the first token",
    "06b": "its attention reads the prompt of models with wide heads",
    "06c": "it asks whether the attention that the decoder runs can be trusted",
    "06e": "its steps are those of the attention that reads the prompt",
    "07": "its strategies decide which products run, and when",
    "07b": "its model predicts every step before it is measured",
    "08b": "it takes the last step to prompts, batches and joules",
    "08c": "it asks whether the last step can be trusted",
    "09": "it says which claims about the steps held",
    "09b": "it tests the gate that every step passed",
    "09c": "it compares the steps with the work of others",
    "10": "it measures what a second GPU could add",
    "10b": "it splits a token over two GPUs, which no step does",
}


def ladder(store: Store) -> pd.DataFrame:
    """The steps that a recording holds, one sequence after the short prompt: number and fields of the Step,
    tok_s, before (tok_s of the step before). Empty where nothing of `decode` was recorded.
    """
    rows = store.read("decode")
    rows = rows[
        (rows["model"] == decode.MODEL)
        & (rows["batch"] == 1)
        & (rows["seq"] == decode.PROMPT)
        & rows["tok_s"].notna()
    ]
    found = []
    for number, step in enumerate(STEPS, 1):
        mine = rows[(rows["impl"] == step.impl) & (rows["format"] == step.format)]
        mine = mine[[_usual(case) for case in mine["case"]]]
        if len(mine):
            found.append({"number": number, **step._asdict(), "tok_s": float(mine["tok_s"].max())})
    table = pd.DataFrame(found, columns=["number", *Step._fields, "tok_s"])
    return table.assign(before=table["tok_s"].shift())


def _usual(case: str) -> bool:
    """Whether a case has the output head that its weights come with."""
    one = decode.Decode().case(case)
    return decode.head_of(one) == decode.FORMATS[one.format]


def ends(climbed: pd.DataFrame) -> str:
    """The first and the last tokens a second of a `ladder`: "42 to 1,522 tokens a second"."""
    first, last = (f"{climbed['tok_s'].iloc[k]:,.0f}" for k in (0, -1))
    return f"{first} to {last} tokens a second"


def place(lesson: str, store: Store) -> str:
    """Where a lesson ("04b") stands on the decoder's ladder, in one sentence, with the figures of `store`."""
    climbed = ladder(store)
    text = "On the [decoder's ladder](08_decoder.ipynb)"
    text += f", {ends(climbed)}," if len(climbed) > 1 else ""
    if lesson in SERVES:
        return f"{text} this lesson has no step of its own: {SERVES[lesson]}."
    numbers = [number for number, step in enumerate(STEPS, 1) if step.lesson.partition("_")[0] == lesson]
    says = []
    for number in numbers:
        row = climbed[climbed["number"] == number]
        gain = "".join(
            f" ({before:,.0f} → {after:,.0f} tok/s)" if before == before else f" ({after:,.0f} tok/s)"
            for before, after in zip(row["before"], row["tok_s"], strict=True)
        )
        says.append(f"{STEPS[number - 1].says}{gain}")
    steps = f"step{'s' * (len(numbers) > 1)} {display.listed(numbers)} of {len(STEPS)}"
    return f"{text} this lesson is {steps}: {'; '.join(says)}."


def bars(store: Store, lessons: Collection[str]) -> str:
    """The ladder as HTML for the site's home: a bar a step, as long as its tokens a second, leading to its
    lesson's page where that is among `lessons` (stems). Empty where nothing was recorded.
    """
    climbed = ladder(store)
    if climbed.empty:
        return ""
    most, rows = float(climbed["tok_s"].max()), []
    for row in climbed.to_dict("records"):
        name, rate = f"lesson {row['lesson'].partition('_')[0]}", float(row["tok_s"])
        if row["lesson"] in lessons:
            name = f'<a href="{row["lesson"]}.html">{name}</a>'
        bar = f'<span style="width: {70 * rate / most:.1f}%"></span> {rate:,.0f}'
        weights = row["format"].partition("_")[0].upper()
        says = row["says"] if weights in row["says"] else f"{row['says']}, {weights}"
        rows.append(f'<tr><td>{says}</td><td>{name}</td><td class="way-bar">{bar}</td></tr>')
    head = "<tr><th>Step</th><th>Where</th><th>Tokens a second</th></tr>"
    return f'<table class="rooflab way">{head}\n' + "\n".join(rows) + "\n</table>"
