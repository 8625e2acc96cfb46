"""Study `power` (lessons 00 and 01): the fastest rungs and their strongest peers in named states of one GPU.

Each case is another study's, measured here in a burst and sustained, and the leading ones also behind a cool
and a hot neighbour (see rooflab.bench.clock). Operators, bytes, bounds and contestants are those of the
study that
owns the case, so that the tables of the lessons hold one state each and this table holds the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from rooflab.ops import gemv as gemv_op
from rooflab.ops import stream
from rooflab.records.case import Case
from rooflab.studies import attention, bandwidth, decode, gemv, int4, mmq, prefill, q8_0
from rooflab.studies.base import Sized, Study
from rooflab.studies.borrowing import Borrowing

NEIGHBOURS = ("after_cool", "after_hot")
MOVES = 1.02  # a time that a neighbour moves by more is one that power or clock holds
_OWNERS: dict[str, Study] = {
    **dict.fromkeys(("read", "copy"), bandwidth.Bandwidth()),
    "gemv_rows": gemv.Gemv(),
    "int4": int4.Int4(),
    "q8_0": q8_0.Q8(),
    "mmq": mmq.Mmq(),
    **dict.fromkeys(("attention", "decode_attention"), attention.Attention()),
    "decode": decode.Decode(),
    "prefill": prefill.Prefill(),
}


def leading(effort: str = "full", device: Sized | None = None) -> list[Case]:
    """Each operator's fastest rung and strongest peers on one shape, as their own studies have them: the
    largest that those record at this effort.
    """
    place = -1 if effort == "full" else 0
    n, k = int4.SHAPES[place]
    square = q8_0.SHAPES[2 if effort == "full" else 0]
    streams = [
        case
        for operator in ("read", "copy")
        for case in bandwidth.ladder(operator, bandwidth.LARGE[effort])
        if case.impl == stream.DEFAULT[operator] or (operator, case.impl) == ("copy", "torch.copy_")
    ]
    fastest = gemv_op.TUNED
    context = attention.CONTEXTS[-1] if effort == "full" else attention.CONTEXTS[1]
    return [
        *streams,
        *(case for case in gemv.ladder("gemv_rows", n, k) if case.kind == "peer" or case.impl == fastest),
        *_int4((n, k), 1, device),
        *(c for c in q8_0.ladder(*square) if c.impl in ("5_batch", "torch.matmul")),
        *_mmq(mmq.PROMPTS[0]),
        *_attention(128, attention.LENGTHS[place], device=device),
        *_fastest_decode(context),
        *(_prompts(prefill.TRACED) if effort == "full" else []),
        *(_tokens("fp16", decode.LARGE, device) if effort == "full" else []),
    ]


def more(device: Sized | None = None) -> list[Case]:
    """What else lessons rank: other widths, lengths and windows of attention, more tokens of the products."""
    last, middle = attention.LENGTHS[-1], attention.LENGTHS[1]
    return [
        *(case for tokens in (16, 64) for case in _int4(int4.SHAPES[-1], tokens, device)),
        *_mmq(mmq.PROMPTS[1]),
        *(case for width in (64, 256, 512) for case in _attention(width, last, device=device)),
        *_attention(128, middle, device=device),
        *attention.leading(_attention(128, last, device=device, causal=False)),
        *(case for width, window in attention.WINDOWED for case in _attention(width, last, window, device)),
        *(case for format in ("q8_0", "int4_g128") for case in _tokens(format, decode.LARGE, device)),
        *(case for format in decode.FORMATS for case in _tokens(format, decode.MODEL, device)),
        *(case for case in decode.large(device) if case.impl == decode.GRAPH),
    ]


def _int4(shape: tuple[int, int], tokens: int, device: Sized | None) -> list[Case]:
    peers = ("torch.matmul", "humming", "gemlite")
    found = int4.batches(*shape, (tokens,), device)
    return [case for case in found if case.kind == "own" or case.impl in peers]


def _mmq(tokens: int) -> list[Case]:
    names = ("5_large_tiles", "6_wgmma", "7_fp16_wgmma", "9_tile_order", *mmq.PEERS)
    return [case for case in mmq.ladder(tokens) if case.impl in names]


def _attention(
    width: int, seq: int, window: int | None = None, device: Sized | None = None, **more: Any
) -> list[Case]:
    """The last two rungs that the device can run, of which one has always been the fastest, and every
    library's kernel.
    """
    slow = ("torch.sdpa_efficient",) if width <= 256 else ()
    found = attention.able(device, attention.sweep(seq, width, window, **more))
    own = [case for case in found if case.kind == "own"]
    return [*own[-2:], *(case for case in found if case.kind != "own" and case.impl not in slow)]


def _fastest_decode(context: int) -> list[Case]:
    usual = attention.op.decode_default(128, attention.HEADS // attention.KV_HEADS)
    return [c for c in attention.decode(context) if c.kind == "peer" or c.impl == usual]


def _prompts(tokens: int) -> list[Case]:
    """The engine's way with FP16 weights, and its strongest peer."""
    wanted = prefill.ways("fp16")[-1], prefill.PEERS[-1]
    return [case for case in prefill.ladder("fp16", (tokens,)) if case.impl in wanted]


def _tokens(format: str, model: str, device: Sized | None) -> list[Case]:
    """The engine's rung over few steps, whose launch is short enough for a burst."""
    best = decode.best(format, device, model)
    return [c for c in decode.ladder(format, device, model, steps=decode.FEW) if c.impl == best]


def in_states(cases: Iterable[Case], states: Sequence[str]) -> list[Case]:
    """`cases` of other studies as this one's, in each of the states."""
    return [replace(case, study="power", state=state) for case in cases for state in states]


class Power(Borrowing):
    """Lessons 00 and 01."""

    name, lesson = "power", "01"
    after = ("bandwidth",)
    # The states of a case share buffers and gate; making operands and oracle of a large shape takes seconds.
    setup_s = 0.5

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        if effort == "quick":
            return in_states(leading(effort, device), ("burst", "sustained"))
        found = in_states(leading(effort, device), ("burst", "sustained", *NEIGHBOURS))
        return [*found, *in_states(more(device), ("burst", "sustained"))]

    def lent(self, case: Case) -> tuple[Study, Case]:
        return _OWNERS[case.operator], replace(case, state="")

    def memory_bytes(self, case: Case) -> int:
        # Cases that differ in their state alone share their buffers.
        return super().memory_bytes(case) if case.state == "burst" else 0

    def row(self, case: Case, *measured: Any) -> dict[str, Any]:
        """The owner's record of the case, with its study and case id as they are here."""
        return self.lent(case)[0].row(case, *measured)


# --- what lessons read --------------------------------------------------------------------------------------


def moved(rows: pd.DataFrame) -> pd.DataFrame:
    """What a hot neighbour costs, a row for each case measured behind both: columns operator, impl, kind,
    format, burst_us, after_cool_us, after_hot_us, sustained_us, their SM clocks in MHz (burst_mhz, ...), and
    ratio, the time behind the hot neighbour over that behind the cool one. Largest ratio first.
    """
    wide = _by_state(rows)
    if not {"after_cool_us", "after_hot_us"} <= set(wide):
        return pd.DataFrame(columns=["operator", "impl", "kind", "ratio"])
    wide = wide.dropna(subset=["after_cool_us", "after_hot_us"])
    wide = wide.assign(ratio=wide["after_hot_us"] / wide["after_cool_us"])
    return wide.sort_values("ratio", ascending=False, ignore_index=True)


def held(rows: pd.DataFrame) -> pd.DataFrame:
    """Cases in a burst and sustained: columns as `moved`, and kept, the sustained rate over that of the
    burst; capped, the share of the sustained samples during which the driver held the clock down.
    """
    wide = _by_state(rows).dropna(subset=["burst_us", "sustained_us"])
    return wide.assign(kept=wide["burst_us"] / wide["sustained_us"]).reset_index(drop=True)


SIZES = ["n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window", "causal"]
_KEYS = ["operator", "impl", "kind", "format", "model", *SIZES, "options"]


def _by_state(rows: pd.DataFrame) -> pd.DataFrame:
    found: dict[tuple, dict[str, Any]] = {}
    for row in rows.to_dict("records"):
        key = tuple("" if pd.isna(row[name]) else row[name] for name in _KEYS)
        mine = found.setdefault(key, {name: row[name] for name in (*_KEYS, "flops", "bytes")})
        mine |= {f"{row['state']}_us": row["median_us"], f"{row['state']}_mhz": row["sm_mhz"]}
        if row["state"] == "sustained":
            mine |= {"capped": row["power_capped"], "power_w": row["power_w"]}
    columns = [f"{state}_{unit}" for state in ("burst", "sustained", *NEIGHBOURS) for unit in ("us", "mhz")]
    return pd.DataFrame([*found.values()], columns=[*_KEYS, "flops", "bytes", *columns, "capped", "power_w"])


def rivals(rows: pd.DataFrame, state: str) -> pd.DataFrame:
    """Our fastest case beside the fastest one that is not ours, both in `state`, a row a shape: columns
    operator, the sizes, ours, ours_us, peer, peer_us, and ratio, the peer's time over ours.
    """
    mine = rows[(rows["state"] == state) & rows["median_us"].notna()]
    found = []
    for key, group in mine.groupby(["operator", "model", *SIZES], dropna=False, sort=False):
        own = group[group["kind"] == "own"].sort_values("median_us")
        peers = group[group["kind"] != "own"].sort_values("median_us")
        if len(own) and len(peers):
            ours, best = own.iloc[0], peers.iloc[0]
            found.append(
                dict(zip(["operator", "model", *SIZES], key, strict=True))
                | {"ours": ours["impl"], "ours_us": ours["median_us"]}
                | {"peer": best["impl"], "peer_us": best["median_us"]}
                | {"ratio": best["median_us"] / ours["median_us"]}
            )
    return pd.DataFrame(found)
