"""What this course asked of its decoder on the H200 before it was built, what the sources ask of any, and how
far each step of a published ladder reached there and here (lesson 08).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd

from rooflab.claims import Bar, Claim, NoEvidence, least, less, more
from rooflab.record import Store
from rooflab.studies import decode, prefill

GPU = "NVIDIA H200"
PROMPT = prefill.TRACED


class Evidence(NamedTuple):
    """Recorded rows of both studies; answers to the questions of each (case, quantity, value); the traced
    prompts (case, family, us).
    """

    decode: pd.DataFrame
    prefill: pd.DataFrame
    answers: pd.DataFrame
    memory: pd.DataFrame
    traced: pd.DataFrame


Measure = Callable[[Evidence, str], float]


def best(rows: pd.DataFrame, model: str, format: str, head: str = "") -> pd.Series:
    """The fastest decoder of ours at batch 1 after a short prompt; `head` by default the format's own."""
    head = head or decode.FORMATS[format]
    found = rows[
        (rows["kind"] == "own")
        & (rows["model"] == model)
        & (rows["format"] == format)
        & (rows["batch"] == 1)
        & (rows["seq"] == decode.PROMPT)
        & rows["impl"].isin(decode.RUNGS)
    ]
    found = found[[decode.head_of(decode.Decode().case(case)) == head for case in found["case"]]]
    if found.empty:
        raise NoEvidence(f"decoding of {model} in {format} was not measured")
    return found.sort_values("median_us").iloc[0]


def fastest_prompt(
    rows: pd.DataFrame, format: str, model: str = decode.MODEL, seq: int = PROMPT
) -> pd.Series:
    """The fastest way of ours to take in a prompt."""
    found = rows[(rows["kind"] == "own") & (rows["model"] == model) & (rows["format"] == format)]
    found = found[found["seq"] == seq]
    if found.empty:
        raise NoEvidence(f"a prompt of {seq} tokens in {format} was not measured")
    return found.sort_values("median_us").iloc[0]


def answered(answers: pd.DataFrame, question: str, quantity: str) -> pd.Series:
    """What everybody answered to a question: values by case; NoEvidence where nobody was asked."""
    mine = answers[answers["case"].str.startswith(f"{question}/") & (answers["quantity"] == quantity)]
    if mine.empty:
        raise NoEvidence(f"{quantity} was not asked")
    return mine.set_index("case")["value"].astype(float)


def mmq_share(traced: pd.DataFrame, case: str) -> float:
    """The share of products' time in a traced prompt that our int8-weight products take."""
    mine = traced[traced["case"] == case].groupby("family")["us"].sum()
    ours = mine.get("our products", 0.0)
    products = ours + mine.get("cuBLAS", 0.0)
    if not products:
        raise NoEvidence("no prompt with Q8_0 weights was traced")
    return float(ours / products)


# --- floors and aims ----------------------------------------------------------------------------------------


def _speed(model: str, format: str) -> Measure:
    return lambda found, _: float(best(found.decode, model, format)["tok_s"])


def _prompt(format: str) -> Measure:
    return lambda found, _: float(fastest_prompt(found.prefill, format)["tok_s"])


def _share(found: Evidence, _: str) -> float:
    return mmq_share(found.traced, prefill.share_case().id)


def _goal(id: str, where: str, says: str, quantity: str, form: str, bar: Bar, measure: Measure) -> Claim:
    return Claim(id, where, says, quantity, form, bar, measure, "own")


_NAMES = {"fp16": "FP16", "q8_0": "Q8_0", "int4_g128": "INT4, FP16 head"}
_ASKED: Mapping[str, Mapping[str, tuple[float, float]]] = {  # floor and aim, tokens a second
    decode.MODEL: {"fp16": (800, 1225), "q8_0": (1100, 2100), "int4_g128": (1400, 2600)},
    decode.LARGE: {"fp16": (260, 275), "q8_0": (450, 490), "int4_g128": (650, 800)},
}
_CASES = [(model, format, bars) for model, found in _ASKED.items() for format, bars in found.items()]
GOALS: tuple[Claim, ...] = (
    *(
        _goal(
            f"{letter}{i}", where, f"{model}, {_NAMES[format]}, one sequence", "tokens a second", "{:,.0f}",
            more(bars[which]), _speed(model, format),
        )
        for which, (letter, where) in enumerate((("F", "floor"), ("A", "aim")))
        for i, (model, format, bars) in enumerate(_CASES, 1)
    ),
    _goal(
        "F7", "floor", f"A prompt of {PROMPT:,} tokens, FP16", "tokens a second", "{:,.0f}",
        more(150_000), _prompt("fp16"),
    ),
    _goal(
        "F8", "floor", f"A prompt of {PROMPT:,} tokens, resident as Q8_0 alone", "tokens a second", "{:,.0f}",
        more(100_000), _prompt("q8_0"),
    ),
    _goal(
        "F9", "floor", "In it, products by our own kernels", "share of products' time", "{:.0%}",
        more(0.5), _share,
    ),
    _goal(
        "A7", "aim", f"A prompt of {PROMPT:,} tokens, FP16", "tokens a second", "{:,.0f}",
        more(185_000), _prompt("fp16"),
    ),
)  # fmt: skip


# --- what the sources ask of a decoder ----------------------------------------------------------------------


def _worst(question: str, quantity: str, how: str) -> Measure:
    return lambda found, _: float(getattr(answered(found.answers, question, quantity), how)())


def _lost(found: Evidence, _: str) -> float:
    return float((answered(found.answers, "agreement", "likeliest") < 1).sum())


def _unharmed(found: Evidence, _: str) -> float:
    asked, refused = (answered(found.answers, "refused", q).sum() for q in ("wrong inputs", "turned away"))
    return float(refused / asked - answered(found.answers, "refused", "changed afterwards").sum())


ASKED: tuple[Claim, ...] = (
    Claim(
        "E1", "SharpInference's tests", "Every fast path chooses the same token, near-ties aside.",
        "paths that do not", "{:.0f}", less(1), _lost, "every path",
    ),
    Claim(
        "E2", "SharpInference's tests", "Logits move by less than 1 at most.", "largest error", "{:.3f}",
        less(1.0), _worst("agreement", "largest error", "max"), "every path",
    ),
    Claim(
        "E3", "SharpInference's tests", "Of the five likeliest tokens four stay.", "fewest", "{:.0f}",
        more(3), _worst("agreement", "top 5", "min"), "every path",
    ),
    Claim(
        "E4", "specification, F1", "A thousand runs are identical.", "distinct results", "{:.0f}",
        less(2), _worst("repeated", "distinct", "max"), "one rung of each format",
    ),
    Claim(
        "E5", "specification, F4", "Ten thousand steps lose less than 100 MB.", "bytes gone", "{:,.0f}",
        less(100e6), _worst("long", "bytes gone", "max"), "one rung of each format",
    ),
    Claim(
        "E6", "specification, F5", "Invalid inputs are refused and do no harm.", "share of them", "{:.0%}",
        least(1), _unharmed, "one rung",
    ),
)  # fmt: skip


# --- a published ladder -------------------------------------------------------------------------------------

_STEPS = (  # what the step is, the source's two rungs, ours
    (
        "attention in tiles instead of query by query",
        ("scalar_attention", "flash_half2"),
        ("2_mmq", "3_flash"),
    ),
    ("embeddings in one launch", ("flash_half2", "batched_embedding"), ("4_rows", "5_embed")),
    (
        "from scalar attention to the end of the published ladder (here to 6_graph)",
        ("scalar_attention", "batched_embedding"),
        ("1_scalar", "6_graph"),
    ),
)


def beside(rows: pd.DataFrame, published: Store) -> pd.DataFrame:
    """Steps of a published prefill ladder (Gemma 4 E4B in Q8_0, a prompt of the same length, another GPU) and
    what the like step brings here: columns step, theirs, ours, as factors.
    """
    known = published.read("prefill")
    known = known[(known["seq"] == PROMPT) & (known["operator"] == "prefill")]
    theirs = known.set_index("impl")["tok_s"]
    mine = rows[(rows["seq"] == PROMPT) & (rows["format"] == "q8_0") & (rows["model"] == decode.MODEL)]
    ours = mine.set_index("impl")["tok_s"]
    found = [
        (what, theirs.get(b, float("nan")) / theirs.get(a, float("nan")), ours[d] / ours[c])
        for what, (a, b), (c, d) in _STEPS
        if c in ours and d in ours
    ]
    return pd.DataFrame(found, columns=["step", "theirs", "ours"])


def llama_cpp(published: Store, study: str) -> pd.DataFrame:
    """llama.cpp's rows on the same GPU model: model, format, tok_s."""
    rows = published.read(study)
    return rows[rows["impl"] == "llama.cpp"][["model", "format", "seq", "tok_s"]].reset_index(drop=True)
