"""What checks of drafted tokens cost, and what speculation with them makes of a share of drafts that hold."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab.analysis import ablation
from rooflab.analysis.evidence import NoEvidence
from rooflab.numerics import model_shapes
from rooflab.studies import decode

# A smaller model with the same tokens, to draft for each.
SMALLER = {decode.MODEL: "qwen2.5-0.5b", decode.LARGE: "llama-3.2-1b"}


def costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the checks in study decode's rows: `one_us`, of a token by the engine's fastest rung after the same
    prompt, and `cost`, how many of those a check takes; `draft`, how many a smaller model's token takes, and
    `draft_bytes`, its weights' bytes over the model's. NoEvidence where the rows have no check beside such a
    token.
    """
    found, one = rows[(rows["operator"] == "verify") & rows["median_us"].notna()], {}
    for model, format in found[["model", "format"]].drop_duplicates().itertuples(index=False):
        with contextlib.suppress(NoEvidence):
            one[model, format] = ablation.best(rows, model, format)
    keys = pd.Series(list(zip(found["model"], found["format"], strict=True)), found.index, dtype=object)
    found = found[keys.isin(one)]
    if found.empty:
        raise NoEvidence("no check of drafted tokens was measured beside a single token")
    keys = keys[found.index]
    one_us = {key: float(row["median_us"]) for key, row in one.items()}
    draft = {key: _draft_us(rows, row) / one_us[key] for key, row in one.items()}
    share = {key: _bytes_share(*key) for key in one}
    found = ablation.named(found).assign(
        one_us=keys.map(one_us), draft=keys.map(draft), draft_bytes=keys.map(share)
    )
    found = found.assign(cost=found["median_us"] / found["one_us"])
    order = found["model"].map(list(SMALLER).index), found["format"].map(list(decode.FORMATS).index)
    return found.assign(first=order[0], then=order[1]).sort_values(
        ["first", "then", "batch"], ignore_index=True
    )


def beside_batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Of study decode's rows, the checks of as many drafts as a batch of dependent launches has sequences:
    `check_us` beside the batch's `step_us`, by model, weights_as and batch.
    """
    keys = ["model", "format", "batch"]
    rows = rows[(rows["seq"] == decode.PROMPT) & rows["median_us"].notna()]
    both = rows[rows["impl"] == "drafts"].merge(
        rows[(rows["impl"] == decode.TOGETHER[-1]) & (rows["operator"] == "decode")], on=keys
    )
    names = {"median_us_x": "check_us", "median_us_y": "step_us"}
    found = both[[*keys, *names]].rename(columns=names)
    return found.assign(weights_as=found["format"].map(ablation.FORMATS))


def _draft_us(rows: pd.DataFrame, one: pd.Series) -> float:
    """What a token of the smaller model takes: measured where the rows have it, elsewhere by lesson 08's law,
    its bytes at the rate of the roof and as much a phase as in `one`, the large model's token. Bytes alone
    would leave out most of a small model's time.
    """
    model, format = str(one["model"]), str(one["format"])
    with contextlib.suppress(NoEvidence):
        return float(ablation.best(rows, SMALLER[model], format)["median_us"])
    bytes_us = float(one["roof_fraction"] * one["median_us"])
    each = max(float(one["median_us"]) - bytes_us, 0.0) / ablation.phases_of(model)
    return _bytes_share(model, format) * bytes_us + each * ablation.phases_of(SMALLER[model])


def _bytes_share(model: str, format: str) -> float:
    """The smaller model's bytes of a token, of the model's own."""
    both = (model_shapes.get(name) for name in (SMALLER[model], model))
    small, large = (model_shapes.weight_bytes(each, format, decode.FORMATS[format]) for each in both)
    return small / large


def held_of(tokens: Sequence[Any], due: Any, likeliest: Sequence[Any]) -> tuple[int, Any]:
    """How many of the checked `tokens` greedy decoding would have given, and the token that is due then:
    `due` before the first, and `likeliest[i]` after tokens[i].
    """
    for place, token in enumerate(tokens):
        if token != due:
            return place, due
        due = likeliest[place]
    return len(tokens), due


def kept(acceptance: float, tokens: int) -> float:
    """Tokens that a check of `tokens` adds on average: the one that is due, and each draft after it if it and
    all before it hold, which `acceptance` of them do: 1 + a + a^2 + ...
    """
    return float(sum(acceptance**i for i in range(tokens)))


def gain(cost: float, acceptance: float, tokens: int, draft: float = 0.0) -> float:
    """How many times the tokens a second of plain decoding speculation makes: a check takes `cost` tokens'
    time, and each of its drafts `draft`.
    """
    return kept(acceptance, tokens) / (cost + (tokens - 1) * draft)


def speculated(found: pd.DataFrame, drafts: dict[str, str]) -> pd.DataFrame:
    """Tokens a second by the share of drafts that hold, in percent, for each of `costs`' rows and each way of
    drafting, named by `drafts`: "free" for none to pay, "model" for the smaller model.
    """
    parts = []
    for way, name in drafts.items():
        for percent in range(0, 101, 5):
            paid = found["draft"] * (way == "model")
            times = [
                gain(cost, percent / 100, int(tokens), each)
                for cost, tokens, each in zip(found["cost"], found["batch"], paid, strict=True)
            ]
            tokens = 1e6 / found["one_us"] * times
            parts.append(found.assign(percent=percent, drafted=name, gain=times, tok_s=tokens))
    return pd.concat(parts, ignore_index=True)
