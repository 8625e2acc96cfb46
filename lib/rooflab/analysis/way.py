"""The decoder's ladder: from a library's tokens a second to ours, and which lesson each step comes from.

STEPS is the one table: the site's home draws it, and a lesson of a step says where on it it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pandas as pd

from rooflab import paths
from rooflab.hardware import device
from rooflab.hardware.crossover import LEVEL
from rooflab.records.store import Store, published_devices
from rooflab.studies import decode
from rooflab.words import listed


class Step(NamedTuple):
    """A way of decoding: its impl and weights in the study `decode`, what it changes, the lesson's file."""

    impl: str
    format: str
    says: str
    lesson: str


MERGED, APART = "torch", "apart"  # a step that merges products, and the same before that
STEPS = (
    Step("transformers.eager", "fp16", "a library: Python launches every kernel", "02_attribution"),
    Step("transformers.graph", "fp16", "the same kernels in a CUDA graph", "02_attribution"),
    Step(MERGED, "fp16", "our decode attention, and products merged", "06d_decode"),
    Step("products", "fp16", "our matrix-vector products (GEMV)", "03d_rows"),
    Step(
        "products", "int4_g128", "a quarter of the bytes a weight; launches now take the time", "04b_ladder"
    ),
    Step("1_kernel_per_phase", "int4_g128", "five kernels a layer instead of about fifty", "08_decoder"),
    Step("2_pdl", "int4_g128", "a kernel loads its weights while the one before ends", "08_decoder"),
    Step("3_persistent", "int4_g128", "one persistent kernel for all tokens", "08_decoder"),
    Step("7_split_k", "int4_g128", "two products split over all blocks: none idles", "08_decoder"),
    Step(
        "9_flags_in_data",
        "int4_g128",
        "no more barriers: each number carries a flag that says it is ready",
        "08_decoder",
    ),
    Step("10_int4_bytes", "int4_g128", "codes multiplied as bytes: less to unpack", "08_decoder"),
)


def ladder(store: Store) -> pd.DataFrame:
    """The steps that a recording holds, one sequence after the short prompt: number and fields of the Step,
    tok_s, before (tok_s of the step before). Empty where nothing of `decode` was recorded.
    """
    rows, found = _short(store), []
    for number, step in enumerate(STEPS, 1):
        mine = rows[(rows["impl"] == step.impl) & (rows["format"] == step.format)]
        mine = mine[[_usual(case) for case in mine["case"]]]
        if len(mine):
            found.append({"number": number, **step._asdict(), "tok_s": float(mine["tok_s"].max())})
    table = pd.DataFrame(found, columns=["number", *Step._fields, "tok_s"])
    return table.assign(before=table["tok_s"].shift())


def _short(store: Store) -> pd.DataFrame:
    """The timed rows of the ladder's model, one sequence after the short prompt."""
    rows = store.read("decode")
    same = (rows["model"] == decode.MODEL) & (rows["batch"] == 1) & (rows["seq"] == decode.PROMPT)
    return rows[same & rows["tok_s"].notna()]


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


def published(store: Store, study: str = "decode") -> pd.DataFrame:
    """A study's rows of others' kernels as published for this recording's GPU model; without rows where
    nothing is.
    """
    runs = store.runs()
    name = f"{device.slug(str(runs['gpu'].iloc[-1]))}-peers" if len(runs) else ""
    if name not in published_devices(paths.DATA):
        return store.read(study).iloc[:0]
    return Store(paths.DATA, name).read(study)


def faster_elsewhere(store: Store, least: float) -> pd.DataFrame:
    """Published rates above `least` tokens a second at which others decode the ladder's model, one sequence,
    the fastest of each format of weights, slowest first.
    """
    rows = published(store)
    rows = rows[(rows["model"] == decode.MODEL) & (rows["batch"].fillna(1) == 1) & (rows["tok_s"] > least)]
    return rows.sort_values("tok_s").drop_duplicates("format", keep="last")


def like_for_like(store: Store) -> str:
    """The fair pair in a sentence, with the published rate of the same weights where that is higher; empty
    without a pair.
    """
    pair = same_weights(store)
    if pair is None:
        return ""
    theirs, ours = pair
    text = f"With the same FP16 weights our fastest kernel makes {ours['tok_s'] / theirs['tok_s']:.2f} times "
    text += f"the tokens of `{theirs['impl']}`, the fastest library measured beside it"
    others = faster_elsewhere(store, float(theirs["tok_s"]))
    for row in others[others["format"] == "fp16"].to_dict("records"):
        text += f", and {ours['tok_s'] / row['tok_s']:.2f} times the published rate of {row['impl']}"
    return f"{text}."


def _usual(case: str) -> bool:
    """Whether a case has the output head that its weights come with."""
    one = decode.Decode().case(case)
    return decode.head_of(one) == decode.FORMATS[one.format]


def ends(climbed: pd.DataFrame) -> str:
    """The first and the last tokens a second of a `ladder`: "42 to 1,522 tokens a second"."""
    first, last = (f"{climbed['tok_s'].iloc[k]:,.0f}" for k in (0, -1))
    return f"{first} to {last} tokens a second"


def place(lesson: str, store: Store, who: str = "This lesson") -> str:
    """Where a lesson ("08") stands on the decoder's ladder, in one sentence, with the figures of `store`;
    empty for a lesson that is no step of it. `who`: what the sentence says is that step.
    """
    numbers = [number for number, step in enumerate(STEPS, 1) if step.lesson.partition("_")[0] == lesson]
    if not numbers:
        return ""
    climbed = ladder(store)
    name = "[decoder's ladder](08_decoder.ipynb)"
    whole = ""
    if len(climbed) > 1:
        weights = [climbed.iloc[at]["format"].partition("_")[0].upper() for at in (0, -1)]
        whole = f" The whole ladder takes {decode.MODEL} from {ends(climbed)}, after a prompt of "
        whole += f"{decode.PROMPT} tokens"
        whole += f", and from {weights[0]} weights to {weights[1]}." if len({*weights}) > 1 else "."
    says = []
    for number in numbers:
        row = climbed[climbed["number"] == number]
        gain = "".join(
            f" ({before:,.0f} → {after:,.0f} tok/s)" if before == before else f" ({after:,.0f} tok/s)"
            for before, after in zip(row["before"], row["tok_s"], strict=True)
        )
        says.append(f"{STEPS[number - 1].says}{gain}")
    steps = f"step{'s' * (len(numbers) > 1)} {listed(numbers)} of {len(STEPS)}"
    merged = any(STEPS[number - 1].impl == MERGED for number in numbers)
    return f"{who} is {steps} on the {name}: {'; '.join(says)}.{_unmerged(store, climbed) * merged}{whole}"


def _unmerged(store: Store, climbed: pd.DataFrame) -> str:
    """Which half of the step MERGED its gain comes from, in a sentence; empty where that is not recorded."""
    step = climbed[climbed["impl"] == MERGED]
    one = _short(store)
    one = one[one["impl"] == APART]
    one = one[[_usual(case) for case in one["case"]]]
    if step.empty or one.empty or step["before"].isna().any():
        return ""
    rate, before, after = float(one["tok_s"].max()), *(float(step[c].iloc[0]) for c in ("before", "tok_s"))
    text = f" Our attention before products are merged (`{APART}`) makes {rate:,.0f} tok/s"
    if rate > LEVEL * before:
        text += f", {rate / before:.2f} times the step before"
    else:
        text += ", which is no gain" if rate * LEVEL >= before else ", which is a loss"
    if after > LEVEL * rate:
        return f"{text}; merging them makes {after / rate:.2f} times that."
    return f"{text}; merging them adds nothing."


def bars(store: Store, lessons: Collection[str]) -> str:
    """The ladder as HTML for the site's home: a bar a step, as long as its tokens a second, leading to its
    lesson's page where that is among `lessons` (stems), and in grey the pair of `same_weights` and what
    others published that is faster than its library. Empty where nothing was recorded.
    """
    climbed = ladder(store)
    if climbed.empty:
        return ""
    most, rows = float(climbed["tok_s"].max()), []
    for row in climbed.to_dict("records"):
        says = row["says"]
        if row["lesson"] in lessons:
            says = f'<a href="{row["lesson"]}.html">{says}</a>'
        rows.append(_line("", f"{row['number']}. {says}", row["format"], _bar(float(row["tok_s"]), most)))
    for words, one in _beside(store):
        bar = _bar(float(one["tok_s"]), most)
        rows.append(_line(' class="way-beside"', words.format(impl=one["impl"]), one["format"], bar))
    head = "<tr><th>Step, with its lesson</th><th>Weights</th><th>Tokens a second</th></tr>"
    return f'<table class="rooflab way">{head}\n' + "\n".join(rows) + "\n</table>"


_PAIR = (
    "beside the ladder: the fastest library measured here ({impl})",
    "beside the ladder: our fastest kernel, same weights",
)
_ELSEWHERE = "beside the ladder: {impl}, as published for this GPU"


def _beside(store: Store) -> list[tuple[str, pd.Series]]:
    """The rows that are shown beside the ladder, each with its words."""
    if (pair := same_weights(store)) is None:
        return []
    others = faster_elsewhere(store, float(pair[0]["tok_s"]))
    return [*zip(_PAIR, pair, strict=True), *((_ELSEWHERE, row) for _, row in others.iterrows())]


def _line(kind: str, says: str, form: str, bar: str) -> str:
    weights = form.partition("_")[0].upper() if form.startswith("int4") else form.upper()
    cells = f"<td>{says}</td><td>{weights}</td>"
    return f'<tr{kind}>{cells}<td class="way-bar">{bar}</td></tr>'


def _bar(rate: float, most: float) -> str:
    return f'<span style="width: {70 * rate / most:.1f}%"></span> {rate:,.0f}'
