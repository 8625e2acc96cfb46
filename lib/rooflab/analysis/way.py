"""The decoder's ladder: from the library's tokens a second to ours, and which lesson each step comes from.

STEPS is the one table: the site's home draws it, and a lesson of a step says where on it it stands.
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
    Step("transformers.graph", "fp16", "the same kernels in a CUDA graph", "02_attribution"),
    Step("torch", "fp16", "our decode attention, products merged", "06d_decode"),
    Step("products", "fp16", "our matrix-vector products (GEMV)", "03d_rows"),
    Step("products", "int4_g128", "INT4 weights: few bytes, but launches still take the time", "04b_ladder"),
    Step("1_kernel_per_phase", "int4_g128", "fused into five kernels a layer, its phases", "08_decoder"),
    Step("2_pdl", "int4_g128", "a phase loads its weights while the last one ends", "08_decoder"),
    Step("3_persistent", "int4_g128", "one persistent kernel for all tokens", "08_decoder"),
    Step("7_split_k", "int4_g128", "two products split over all blocks, so that none idles", "08_decoder"),
    Step(
        "9_flags_in_data",
        "int4_g128",
        "each number carries its flag: no barrier between phases",
        "08_decoder",
    ),
)
# What some lessons without a step do for the ladder, which `{ladder}` names; the others do not say.
SERVES = {
    "00": "The course's own kernels on {ladder} are written in the CUDA that begins here.",
    "00a": "Every step of {ladder} passes the gate that this lesson introduces.",
    "00b": "Every step of {ladder} is timed by a clock that this lesson chooses.",
    "01": "The memory bandwidth measured here bounds every step of {ladder}.",
    "01b": "The roofs measured here bound the prompt that comes before {ladder}.",
    "02b": "The profiler here counts where the first step of {ladder} spends its time.",
    "02c": "The rule here says what a faster kernel would bring on {ladder}.",
    "03": "Our products on {ladder} load their weights coalesced, as here.",
    "03b": "Our products on {ladder} have to fill the GPU, as here.",
    "03c": "This lesson tests what others claim of kernels such as those on {ladder}.",
    "03e": "A fused kernel on {ladder} must have none of the faults mended here.",
    "04": "The INT4 steps of {ladder} read weights packed as here.",
    "04c": "The INT4 steps of {ladder} decode one sequence; this lesson takes INT4 to many.",
    "04d": "This lesson holds the INT4 product of {ladder} against published figures.",
    "05": "Q8_0 is the other way to read fewer bytes than the first steps of {ladder}.",
    "05b": "The products made here decode in Q8_0, beside the INT4 steps of {ladder}.",
    "05c": "This lesson checks what surrounds a product: launches and graphs, as on {ladder}.",
    "05d": "The products here read a prompt, before {ladder} begins.",
    "05e": "This lesson counts what a faster product brings to a token, as on {ladder}.",
    "06": "The attention here reads a prompt, before {ladder} begins.",
    "06b": "The attention here reads the prompts of models with wide heads, before {ladder} begins.",
    "06c": "This lesson asks whether attention, as on {ladder}, can be trusted.",
    "10c": "All steps of {ladder} run on one GPU; this lesson times whole models on two.",
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


def same_weights(store: Store) -> tuple[pd.Series, pd.Series] | None:
    """The ladder's fair pair, both with FP16 weights: the row of the fastest recorded library and that of our
    fastest kernel; None where the recording lacks either.
    """
    rows = store.read("decode")
    same = {"model": decode.MODEL, "format": "fp16", "batch": 1, "seq": decode.PROMPT}
    for column, value in same.items():
        rows = rows[rows[column] == value]
    rows = rows.dropna(subset="tok_s").sort_values("tok_s")
    own, peers = rows[rows["kind"] == "own"], rows[rows["kind"] == "peer"]
    return None if own.empty or peers.empty else (peers.iloc[-1], own.iloc[-1])


def like_for_like(store: Store) -> str:
    """The fair pair in a sentence; empty without one."""
    pair = same_weights(store)
    if pair is None:
        return ""
    theirs, ours = pair
    return (
        f"With the same FP16 weights our fastest kernel makes "
        f"{ours['tok_s'] / theirs['tok_s']:.1f} times the tokens of the fastest library that was recorded, "
        f"{theirs['impl']}."
    )


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
    name = "[decoder's ladder](08_decoder.ipynb)"
    if lesson in SERVES:
        return SERVES[lesson].format(
            ladder=f"the {name}" + (f" ({ends(climbed)})" if len(climbed) > 1 else "")
        )
    text = f"On the {name}"
    text += f", {ends(climbed)} after a prompt of {decode.PROMPT} tokens," if len(climbed) > 1 else ""
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
    lesson's page where that is among `lessons` (stems), and in grey the pair of `same_weights`. Empty where
    nothing was recorded.
    """
    climbed = ladder(store)
    if climbed.empty:
        return ""
    most, rows = float(climbed["tok_s"].max()), []
    for row in climbed.to_dict("records"):
        name, rate = f"lesson {row['lesson'].partition('_')[0]}", float(row["tok_s"])
        if row["lesson"] in lessons:
            name = f'<a href="{row["lesson"]}.html">{name}</a>'
        bar = _bar(rate, most)
        weights = row["format"].partition("_")[0].upper()
        says = row["says"] if weights in row["says"] else f"{row['says']}, {weights}"
        rows.append(f'<tr><td>{says}</td><td>{name}</td><td class="way-bar">{bar}</td></tr>')
    for words, one in zip(_PAIR, same_weights(store) or (), strict=False):
        says = words.format(impl=one["impl"])
        bar = _bar(float(one["tok_s"]), most)
        rows.append(f'<tr class="way-beside"><td>{says}</td><td></td><td class="way-bar">{bar}</td></tr>')
    head = "<tr><th>Step</th><th>Where</th><th>Tokens a second</th></tr>"
    return f'<table class="rooflab way">{head}\n' + "\n".join(rows) + "\n</table>"


_PAIR = ("for comparison: the fastest library, FP16 ({impl})", "for comparison: our fastest kernel, FP16")


def _bar(rate: float, most: float) -> str:
    return f'<span style="width: {70 * rate / most:.1f}%"></span> {rate:,.0f}'
