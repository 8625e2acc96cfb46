"""What recorded rows say of attention (lesson 06): which unit of an SM a kernel keeps busiest, how many of
its blocks an SM holds, and what a prompt's time is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from rooflab import paths, words
from rooflab.hardware import roofline
from rooflab.numerics import model_shapes
from rooflab.ops import attention as op
from rooflab.records.case import Case
from rooflab.records.store import Store
from rooflab.studies import attention as study

SOURCE = "rtx-4070-ti-published"
SHARE = 0.67  # attention's of a prompt's time, SharpInference pull request 143 (source D, lines 40 and 147)
FROM_PEAK = 79  # how many times below its card's FP32 peak the source finds its first kernel (line 147)
# The units of an SM and the memories, by the counter that says how busy each is.
UNITS = {
    "dram_pct": "DRAM",
    "shared_pct": "shared memory",
    "fma_pct": "multiply-add units",
    "tensor_pct": "tensor cores",
    "issue_pct": "issue slots",
}


_SHAPE = ("operator", "format", "seq", "heads", "kv_heads", "head_dim", "window")


def requested_bytes(case: Case) -> int:
    """Bytes of keys and values that an own case's blocks ask L2 for: each reads what one of its queries sees,
    once for all heads that it takes together. Over the bytes of the convention it is the factor of
    re-reading.
    """
    shape = study.shape_of(case)
    tile, together = study.launch_of(case).queries, study.own_rung(case)[1].get("PACK", 1)
    keys = 0
    for first in range(0, shape.n, tile):
        count = min(tile, shape.n - first)
        start = shape.start + first
        keys += roofline.attention_keys(count, shape.context, start, shape.causal, shape.window)
    return (1 if shape.shared else 2) * keys * (shape.heads // together) * shape.head_dim * 2


def at(rows: pd.DataFrame, case: Case) -> pd.DataFrame:
    """The rows of every contestant at a case's shape, by whatever options are no part of it."""
    same = pd.Series(True, index=rows.index)
    for name in _SHAPE:
        value = getattr(case, name)
        same &= rows[name].isna() if value is None else rows[name].eq(value).fillna(False).astype(bool)
    return rows[same & rows["options"].fillna("").isin(["", "queries=16", "queries=8"])]


def rungs(names: Iterable[str] | None = None) -> list[Any]:
    """The ladder's rungs, or those of these names, in order."""
    return [rung for rung in op.LADDERS["attention"] if names is None or rung.name in set(names)]


# --- counters -----------------------------------------------------------------------------------------------


def counted(frame: pd.DataFrame, cases: Sequence[Case]) -> pd.DataFrame:
    """Counters of own cases (a profile by "ncu") with what they are held against: predicted reads of keys and
    values from L2, bytes of the convention, the shares of UNITS and the busiest of them.
    """
    if frame.empty:
        return frame
    values = frame[list(study.COUNTERS)].astype(float)
    frame = frame[["case"]].join(values)
    named = {case.id: case for case in cases}
    found = [named[name] for name in frame["case"]]
    counts = [study.Attention().count(case) for case in found]
    frame["impl"], frame["options"] = [c.impl for c in found], [c.options for c in found]
    frame["head_dim"], frame["seq"] = [c.head_dim for c in found], [c.seq for c in found]
    frame["heads"], frame["window"] = [c.heads for c in found], [c.window for c in found]
    frame["once"] = [count.bytes for count in counts]
    frame["flops"] = [count.flops for count in counts]
    attends = [case.operator == "attention" for case in found]
    frame["asked"] = [requested_bytes(c) if a else None for c, a in zip(found, attends, strict=True)]
    frame["issue_pct"] = 100 * frame["issue_active"]
    frame["busiest"] = frame[list(UNITS)].idxmax(axis=1).map(UNITS)
    frame["busiest_pct"] = frame[list(UNITS)].max(axis=1)
    return frame


# --- budgets ------------------------------------------------------------------------------------------------


def budgets(rows: pd.DataFrame, widths: Sequence[int]) -> pd.DataFrame:
    """Registers, shared memory, and blocks and warps of an SM of the H200 for every rung at these widths, by
    the recorded rows: a rung that was recorded at no such width is left out.
    """
    found: list[dict[str, Any]] = []
    for width in widths:
        for rung in rungs(study.rungs_for(width)):
            same = (rows["impl"] == rung.name) & (rows["head_dim"] == width) & rows["registers"].notna()
            known = rows[same & (rows["operator"] == "attention")]
            if known.empty:
                continue
            best = known.sort_values("tflop_s").iloc[-1]  # tiles differ by window; the fastest speaks
            launch = study.launch_of(Case.from_row(best))
            registers, shared = int(best["registers"]), int(best["shared_bytes"])
            limits = limits_of(registers, launch.threads, shared)
            blocks = min(limits.values())
            tight = ", ".join(name for name, allowed in limits.items() if allowed == blocks)
            warps = blocks * launch.threads // 32
            found.append(
                {
                    **{"impl": rung.name, "head_dim": width, "registers": registers, "shared": shared},
                    **{"threads": launch.threads, "queries": launch.queries, "blocks": blocks},
                    **{"warps": warps, "occupancy": warps / 64, "limit": tight},
                    "tflop_s": float(best["tflop_s"]),
                }
            )
    return pd.DataFrame(found)


def limits_of(registers: int, threads: int, shared: int) -> dict[str, int]:
    """Blocks that each resource of an SM of compute capability 9.0 allows by itself."""
    return roofline.residency_limits(registers, threads, shared)


# --- a prompt as a whole ------------------------------------------------------------------------------------


def prompts(rows: pd.DataFrame, lengths: Sequence[int], gb_s: float, tflop_s: float) -> pd.DataFrame:
    """What prompts of each model take: attention by rung 1 (before) and by the fastest rung (after), layer by
    layer, and the matrices at these roofs. Where rung 1 was not measured, its rate at the longest prompt that
    was is used (`scaled`).
    """
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(kind.model for kind in study.kinds()):
        model, before_rate = model_shapes.get(name), {}
        for seq in lengths:
            before, after, scaled, names = 0.0, 0.0, False, []
            for kind in (kind for kind in study.kinds() if kind.model == name):
                own = at(rows, study.prompt(kind, seq)[-1])
                own = own[(own["kind"] == "own") & own["median_us"].notna()].set_index("impl")
                if own.empty:  # no rung runs there: the model's prompt of that length has no time
                    break
                us, flops = own["median_us"].astype(float), float(own["flops"].iloc[0])
                slow = "1_scalar" in us.index
                if slow:
                    before_rate[kind] = flops / us["1_scalar"]
                before += kind.layers * flops / before_rate[kind]
                after += kind.layers * us.min()
                scaled |= not slow
                names.append(str(us.idxmin()))
            if not names or own.empty:
                continue
            rest = matrices_us(model, seq, gb_s, tflop_s)
            shares = {"share_before": before / (before + rest), "share_after": after / (after + rest)}
            times = {"before_ms": before / 1e3, "after_ms": after / 1e3, "matrices_ms": rest / 1e3}
            best_names = ", ".join(dict.fromkeys(names))
            found.append(
                {"model": name, "seq": seq, **times, **shares, "scaled": scaled, "rungs": best_names}
            )
    return pd.DataFrame(found)


def matrices_us(model: model_shapes.Model, seq: int, gb_s: float, tflop_s: float) -> float:
    """The least time of a prompt's matrix products in FP16: each by its bytes at the read roof or its FLOPs
    at the roof of matrix products, the output head for the last token alone.
    """
    total = 0.0
    for part in model_shapes.projections(model):
        tokens = 1 if part.name == "lm_head" else seq
        moved = roofline.gemm_bytes(tokens, part.n, part.k, 2)
        total += (
            part.times * roofline.bound(moved, roofline.gemm_flops(tokens, part.n, part.k), gb_s, tflop_s).us
        )
    return total


def source_share() -> pd.DataFrame:
    """The source's own attention times for 1848 tokens, each with the share of the prefill that it was part
    of: kernel, attention ms, prefill ms, share.
    """
    store = Store(paths.DATA, SOURCE)
    attention = store.read("attention").set_index("impl")["median_us"].astype(float)
    prefill = store.read("prefill").set_index("impl")[["seq", "tok_s"]].astype(float)
    pairs = {"scalar": "scalar_attention", "flash_8_queries": "flash_8_queries"}
    pairs |= {"flash_16_queries": "flash_16_queries", "flash_half2": "flash_half2"}
    found = []
    for kernel, whole in pairs.items():
        mine, all_ms = attention[kernel] / 1e3, 1e3 * prefill["seq"][whole] / prefill["tok_s"][whole]
        found.append({"kernel": kernel, "attention_ms": mine, "prefill_ms": all_ms, "share": mine / all_ms})
    return pd.DataFrame(found)


# --- questions beside the time ------------------------------------------------------------------------------


def answers(frame: pd.DataFrame, cases: Sequence[Case]) -> pd.DataFrame:
    """The instrument "checks" as a row a case: impl, seq, head_dim, the shape in words (`config`), and a
    column for each quantity. Cases that could not be asked here are left out.
    """
    refused = set(frame[frame["quantity"] == "refused"]["case"])
    wide = frame.pivot(index="case", columns="quantity", values="value").astype(float)
    rows = []
    for case in cases:
        if case.id not in wide.index or case.id in refused:
            continue
        facts: dict[Any, Any] = {"case": case.id, "impl": case.impl, "config": in_words(case)}
        facts |= {"seq": case.seq, "head_dim": case.head_dim}
        rows.append(facts | wide.loc[case.id].dropna().to_dict())
    return pd.DataFrame(rows)


def in_words(case: Case) -> str:
    """A case's shape: "200 queries, 8/2 heads of 256, window 64"."""
    shape = study.shape_of(case)
    text = f"{words.counted(shape.n, 'query', 'queries')}, {shape.heads}/{shape.kv_heads} heads of "
    text += f"{shape.head_dim}" + (f", window {shape.window}" if shape.window else "")
    return text + (f", from position {shape.start}" if shape.start else "")
