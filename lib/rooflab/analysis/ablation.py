"""What lesson 08 computes from its recordings: ladders, their predictions, where a token's time goes, one
law for models and formats, agreement, joules, and what a prompt's kernels are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab import engine, words
from rooflab.analysis.evidence import NoEvidence
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.ops import decoder
from rooflab.records.store import Store
from rooflab.studies import decode, launch_rule, prefill

FORMATS = {format: words.FORMATS[format] for format in decode.FORMATS}
# What a step of the decode ladder is, by the contestant's name.
WAYS = {
    "transformers.eager": "the library, Python calls every kernel",
    "transformers.graph": "the same kernels in a CUDA graph",
    "transformers.compile": "fused by a compiler, then a graph",
    "apart": "torch's operators on the engine's cache, with our attention",
    "torch": "queries with keys and values in one product, gate with up in one",
    "products": "our matrix-vector products in their place",
    "1_kernel_per_phase": "five launches a layer: the operators between products move into them",
    "2_pdl": "a launch begins to load before the one in front has ended",
    "3_persistent": "one launch for all tokens, barriers across the grid in it",
    "4_tma": "weights by TMA, which no warp waits behind",
    "5_prefetch_at_barrier": "as 3_persistent, but the ring's last slots are filled at the barriers",
    "6_producer_warps": "as 3_persistent, but warps that do nothing else copy the weights",
    "7_split_k": "output and down divided along k, so that every SM has a part",
    "8_tensor_attention": "attention on the tensor cores, for long contexts",
    "9_flags_in_data": "as 7_split_k, but numbers carry flags, and no barrier stands between phases",
    "10_int4_bytes": "as 9_flags_in_data, but codes of INT4 are multiplied as bytes",
    "chain": "dependent launches by a batch's kernels, of one sequence",
    "batch": "several sequences, a graph a step",
    "batch_dependent": "several sequences, weights on their way before the kernel before has ended",
    "drafts": "several tokens of one sequence checked at once, by the batch's kernels",
    "gemma": "products and row kernels in a graph",
}
PROMPT_WAYS = {
    "transformers.eager": "the library, Python calls every kernel",
    "transformers.graph": "the library in a CUDA graph",
    "transformers.flash_attn_4": "the library in a CUDA graph, attention by flash-attn-4",
    "1_scalar": "cuBLAS on FP16 weights, made from others on the way; scalar attention",
    "2_mmq": "our products with Q8_0 weights instead",
    "3_flash": "attention in tiles on tensor cores",
    "4_rows": "norm, rotation and gating in a kernel each",
    "5_embed": "all embeddings in one launch",
    "6_graph": "one CUDA graph",
    "7_fused": "gates applied by the product; of Q8_0 ours, by persistent blocks",
    "8_last_token": "the last layer for the last token alone",
    "gemma": "the other decoder",
}


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `decode` with the head's format, the steps of a launch, and a label ("INT4 3_persistent")."""
    study = decode.Decode()
    cases = [study.case(case) for case in rows["case"]]
    heads = [decode.head_of(case) for case in cases]
    names = [FORMATS[case.format] for case in cases]
    extra = [
        "" if head == decode.FORMATS[case.format] else f", {FORMATS[head]} head"
        for case, head in zip(cases, heads, strict=True)
    ]
    return rows.assign(
        head=heads,
        usual=[not word for word in extra],
        steps=[decode.steps_of(case) for case in cases],
        label=[f"{name} {case.impl}{word}" for name, case, word in zip(names, cases, extra, strict=True)],
        weights_as=[name + word for name, word in zip(names, extra, strict=True)],
    )


def ladder(rows: pd.DataFrame, format: str, model: str = decode.MODEL) -> pd.DataFrame:
    """The rungs of one format at batch 1 after the short prompt, in order: says, us, tok_s, predicted tok/s,
    share of the roof in percent, the step `below` that it builds on, gain over that: the rung that it
    changes, the ring that suits the format where matrices are first divided along k, or the row before, but
    for what torch compiles.
    """
    mine = rows[
        (rows["format"] == format)
        & (rows["model"] == model)
        & (rows["batch"] == 1)
        & (rows["seq"] == decode.PROMPT)
        & rows["usual"]
    ]
    order = list(WAYS)
    mine = mine.sort_values("impl", key=lambda names: names.map(order.index), kind="stable")
    changes = {rung.name: rung.changes for rung in decoder.LADDERS["decode_step"] if rung.changes}
    if decode.RINGS[format] in set(mine["impl"]):
        changes["7_split_k"] = decode.RINGS[format]
    before = mine["impl"].where(mine["impl"] != decode.COMPILED).shift().ffill()
    below = mine["impl"].map(changes).fillna(before)
    return mine.assign(
        says=mine["impl"].map(WAYS),
        predicted=1e6 / mine["predicted_us"],
        off=mine["median_us"] / mine["predicted_us"],
        share=100 * mine["roof_fraction"],
        below=below.fillna(""),
        gain=mine["tok_s"] / below.map(mine.set_index("impl")["tok_s"]),
    ).reset_index(drop=True)


def compiled(store: Store) -> pd.DataFrame:
    """Transformers compiled, one token at the same place, as lesson 02's study recorded it."""
    rows = store.read("attribution")
    found = rows[(rows["operator"] == "decode") & (rows["impl"] == "transformers.compile")]
    return found[(found["seq"] == decode.PROMPT) & (found["batch"] == 1)]


def peers(rows: pd.DataFrame, store: Store, published: Store, model: str = decode.MODEL) -> pd.DataFrame:
    """The fastest of ours beside the others, by format: name, format, tok_s, origin."""
    mine = rows[(rows["model"] == model) & (rows["batch"] == 1) & (rows["seq"] == decode.PROMPT)]
    found: list[tuple[str, str, float, str]] = []
    for format in FORMATS:
        ours = mine[(mine["format"] == format) & (mine["kind"] == "own") & mine["usual"]]
        if len(ours):
            best = ours.sort_values("median_us").iloc[0]
            found.append((f"ours, {best['impl']}", format, float(best["tok_s"]), "this recording"))
    for _, row in mine[mine["kind"] == "peer"].iterrows():
        found.append((row["impl"], row["format"], float(row["tok_s"]), "this recording"))
    if model == decode.MODEL and decode.COMPILED not in set(mine["impl"]):
        found += [
            (row["impl"], "fp16", float(row["tok_s"]), "lesson 02's study")
            for _, row in compiled(store).iterrows()
        ]
    theirs = published.read("decode")
    for _, row in theirs[(theirs["impl"] == "llama.cpp") & (theirs["model"] == model)].iterrows():
        found.append(("llama.cpp", row["format"], float(row["tok_s"]), "published"))
    return pd.DataFrame(found, columns=["name", "format", "tok_s", "origin"]).dropna(subset=["tok_s"])


def phase_bytes(model: str, format: str, head: str, context: int) -> dict[str, float]:
    """Bytes that each phase of a token has to read."""
    shape, sizes = engine.spec(model).shape, model_shapes.get(model)
    names = dict(zip(("qkv", "out", "gate_up", "down"), (0, 2, 3, 4), strict=True))
    found = {
        decode.PHASES[at]: shape.layers
        * float(np.prod(shape.matrices[name]))
        * model_shapes.WEIGHT_BYTES[format]
        for name, at in names.items()
    }
    found[decode.PHASES[1]] = model_shapes.kv_read_bytes(sizes, context)
    found[decode.PHASES[5]] = model_shapes.head(sizes) * model_shapes.WEIGHT_BYTES[head]
    return found


def split(traced: pd.DataFrame, gb_s: float) -> pd.DataFrame:
    """Traced phases beside the time of their bytes at `gb_s`: case, format, phase, launches, us, roof_us,
    over (what is left), each_us (of a launch).
    """
    tables = []
    for case, rows in traced.groupby("case", sort=False):
        one = decode.Decode().case(str(case))
        context = (one.seq or 0) + decode.steps_of(one) // 2
        moved = phase_bytes(one.model, one.format, decode.head_of(one), context)
        roof_us = [moved.get(phase, 0.0) / gb_s / 1e3 for phase in rows["phase"]]
        table = rows.assign(format=one.format, roof_us=roof_us)
        table[["launches", "us"]] = table[["launches", "us"]].astype(float)
        table["over"] = table["us"] - table["roof_us"]
        tables.append(table.assign(each_us=table["us"] / table["launches"]))
    return pd.concat(tables, ignore_index=True)


def phases_of(model: str) -> int:
    """Phases of a token: five a layer, and the output head."""
    return 5 * engine.spec(model).shape.layers + 1


def law(rows: pd.DataFrame, impl: str, roof_gb_s: float) -> tuple[float, float, pd.DataFrame]:
    """A straight line through every format and model that a rung decoded at batch 1 after the short prompt:
    fixed microseconds a phase, GB/s, and the rows with phases and `law_us`. Time = phases x fixed + bytes /
    rate.
    """
    mine = rows[(rows["impl"] == impl) & (rows["batch"] == 1) & (rows["seq"] == decode.PROMPT)]
    phases = [phases_of(str(model)) for model in mine["model"]]
    mine = mine.assign(phases=phases)
    x = (mine["bytes"].astype(float) / mine["phases"]).tolist()
    y = (mine["median_us"] / mine["phases"]).tolist()
    fixed, rate = launch_rule.line(x, y, roof_gb_s)
    work = zip(mine["phases"], mine["bytes"].astype(float), strict=True)
    times = [roofline.phases_us(phases, fixed, bytes_, rate) for phases, bytes_ in work]
    return fixed, rate, mine.assign(law_us=times)


# --- answers ------------------------------------------------------------------------------------------------


def answers(found: pd.DataFrame) -> pd.DataFrame:
    """The instrument "checks" with a column a quantity: one row a case, with question, impl and format."""
    if found.empty:
        return pd.DataFrame(columns=["case", "question", "impl", "format"])
    study = decode.Decode()
    values = found.assign(value=pd.to_numeric(found["value"]))
    wide = values.pivot_table(index="case", columns="quantity", values="value", sort=False).reset_index()
    cases = [study.case(case) for case in wide["case"]]
    return wide.assign(
        question=[case.operator for case in cases],
        impl=[case.impl for case in cases],
        format=[case.format for case in cases],
        weights_as=[FORMATS.get(case.format, case.format) for case in cases],
        batch=[case.batch or 1 for case in cases],
    )


# --- prompts ------------------------------------------------------------------------------------------------


def prompts(rows: pd.DataFrame, format: str, seq: int, model: str = decode.MODEL) -> pd.DataFrame:
    """The prefill ladder of one format and length, in order, with the columns of `ladder`; a gain is over our
    own step before.
    """
    mine = rows[(rows["format"] == format) & (rows["seq"] == seq) & (rows["model"] == model)]
    order = list(PROMPT_WAYS)
    mine = mine.sort_values("impl", key=lambda names: names.map(order.index), kind="stable")
    return mine.assign(
        says=mine["impl"].map(PROMPT_WAYS),
        predicted=1e6 * mine["seq"] / mine["predicted_us"],
        share=100 * mine["roof_fraction"],
        gain=mine["tok_s"] / mine["tok_s"].where(mine["kind"] == "own").shift(),
    ).reset_index(drop=True)


def pie(traced: pd.DataFrame, order: Sequence[str] = ()) -> pd.DataFrame:
    """Traced prompts by family: a row a case (impl and format), a column a family, percent of GPU time; and
    `us`, all of it.
    """
    study = prefill.Prefill()
    values = traced.assign(us=pd.to_numeric(traced["us"]))
    wide = values.pivot_table(
        index="case", columns="family", values="us", aggfunc="sum", sort=False, fill_value=0
    )
    wide = wide.reindex(columns=[*(name for name, _ in prefill.FAMILIES), prefill.OTHERS], fill_value=0)
    total = wide.sum(axis=1)
    found = 100 * wide.div(total, axis=0)
    cases: list[Any] = [study.case(str(case)) for case in found.index]
    names = [f"{FORMATS[case.format]} {case.impl.removeprefix('transformers.')}" for case in cases]
    return found.assign(us=total, name=names, seq=[case.seq for case in cases]).reset_index()


# --- what claims ask ----------------------------------------------------------------------------------------


def best(rows: pd.DataFrame, model: str, format: str, head: str = "") -> pd.Series:
    """The fastest decoder of ours at batch 1 after a short prompt; `head` by default the format's own."""
    head = head or decode.FORMATS[format]
    found = rows[
        (rows["kind"] == "own")
        & (rows["model"] == model)
        & (rows["format"] == format)
        & (rows["batch"] == 1)
        & (rows["seq"] == decode.PROMPT)
        & rows["impl"].isin(decode.ALONE)
    ]
    found = found[[decode.head_of(decode.Decode().case(case)) == head for case in found["case"]]]
    if found.empty:
        raise NoEvidence(f"decoding of {model} in {format} was not measured")
    return found.sort_values("median_us").iloc[0]


def fastest_prompt(
    rows: pd.DataFrame, format: str, model: str = decode.MODEL, seq: int = prefill.TRACED
) -> pd.Series:
    """The fastest way of ours to take in a prompt."""
    found = rows[(rows["kind"] == "own") & (rows["model"] == model) & (rows["format"] == format)]
    found = found[found["seq"] == seq]
    if found.empty:
        raise NoEvidence(f"a prompt of {seq} tokens in {format} was not measured")
    return found.sort_values("median_us").iloc[0]


def answered(answers: pd.DataFrame, question: str, quantity: str) -> pd.Series:
    """The answers to a question: values by case; NoEvidence if it was not asked."""
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
    known = known[(known["seq"] == prefill.TRACED) & (known["operator"] == "prefill")]
    theirs = known.set_index("impl")["tok_s"]
    mine = rows[
        (rows["seq"] == prefill.TRACED) & (rows["format"] == "q8_0") & (rows["model"] == decode.MODEL)
    ]
    ours = mine.set_index("impl")["tok_s"]
    found = [
        (what, theirs.get(b, float("nan")) / theirs.get(a, float("nan")), ours[d] / ours[c])
        for what, (a, b), (c, d) in _STEPS
        if c in ours and d in ours
    ]
    return pd.DataFrame(found, columns=["step", "theirs", "ours"])
