"""How the dispatcher and the kernels do on shapes that were drawn, not tuned (study `unseen`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from rooflab import dispatch
from rooflab.hardware.crossover import LEVEL
from rooflab.hardware.perf_model import plain
from rooflab.ops import mmq, rung_of, stream_k
from rooflab.records.case import parse_options

WRONG = 1.05  # a choice that costs more than this, over the fastest way measured, was wrong
KINDS = {  # what is said of (operator, format)
    ("int4", "int4_g128"): "INT4 product",
    ("product", "q8_0"): "Q8_0 product",
    ("attention", "fp16"): "attention",
    ("decode_attention", "fp16"): "decode attention",
}
_SIZES = {
    "int4": ("n", "k", "batch"),
    "product": ("n", "k", "batch"),
    "attention": ("seq", "heads", "kv_heads", "head_dim", "window", "causal", "options"),
    "decode_attention": ("seq", "heads", "kv_heads", "head_dim"),
}
_COLUMNS = ["kind", "shape", "rows", "tokens", "way", "ours", "us", "peer", "peer_us", "ratio", "cost"]


def outcomes(rows: pd.DataFrame, recorded: pd.DataFrame, slug: str | None, arch: str) -> pd.DataFrame:
    """A row a drawn shape of `rows`, kind by kind, in the order of tokens.

    Columns: kind, one of KINDS; shape, in words; rows, n of a product; tokens, of a product, queries of a
    prompt or keys of a cache; way, what the dispatcher takes by the recorded products `recorded` of the
    device `slug` ("" where there is nothing to choose); ours, the rung or way that then runs, and us, its
    microseconds; peer and peer_us, the fastest library, which for Q8_0 is cuBLAS on FP16 weights; ratio, the
    peer's time over ours; cost, our time over that of the fastest way measured.
    """
    found: list[dict[str, Any]] = []
    timed = rows[rows["median_us"].notna()]
    for (operator, format), kind in KINDS.items():
        mine = timed[timed["operator"] == operator]
        if mine.empty:
            continue
        mine = mine[mine["format"].isin((format, "fp16"))]
        for key, group in mine.groupby(list(_SIZES[operator]), sort=False, dropna=False):
            sizes: dict[str, Any] = dict(zip(_SIZES[operator], key, strict=True))
            ours, peers, way = _contest(operator, format, sizes, group, recorded, slug, arch)
            if ours.empty or peers.empty:
                continue
            taken, ways = ours.iloc[0], group[_own(format, group)]["median_us"]
            peer = peers.sort_values("median_us").iloc[0]
            found.append(
                {"kind": kind, "shape": _said(operator, sizes), "way": way}
                | {"rows": sizes.get("n"), "tokens": int(sizes["batch" if "batch" in sizes else "seq"])}
                | {"ours": taken["impl"], "us": taken["median_us"]}
                | {"peer": peer["impl"], "peer_us": peer["median_us"]}
                | {"ratio": peer["median_us"] / taken["median_us"]}
                | {"cost": taken["median_us"] / ways.min()}
            )
    order = {kind: place for place, kind in enumerate(KINDS.values())}
    return pd.DataFrame(found, columns=_COLUMNS).sort_values(
        ["kind", "tokens"], key=lambda c: c.map(order) if c.name == "kind" else c, ignore_index=True
    )


def _own(format: str, group: pd.DataFrame) -> pd.Series:
    """Which rows are ways of ours to do what the group does: own kernels of the format, and dequantising."""
    mine = (group["kind"] == "own") | ((group["kind"] != "peer") & (group["impl"] == "two_op"))
    return mine & (group["format"] == format) if "format" in group else mine


def _contest(
    operator: str,
    format: str,
    sizes: dict[str, Any],
    group: pd.DataFrame,
    recorded: pd.DataFrame,
    slug: str | None,
    arch: str,
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """The row that we take, those of libraries, and the way that was chosen."""
    own = _own(format, group)
    peers = group[~own & (group["kind"] != "own")]
    if operator not in ("int4", "product") or peers.empty or not (own & (group["kind"] == "own")).any():
        return group[own & (group["kind"] == "own")].sort_values("median_us"), peers, ""
    n, k, batch = (int(sizes[name]) for name in ("n", "k", "batch"))
    choice = dispatch.choose(format, n, k, batch, slug, arch, recorded=recorded)
    two_op = plain(format).name
    if operator == "product":
        return group[own & (group["impl"] == choice.strategy)], peers, choice.strategy
    taken = group["impl"] == two_op if choice.strategy == two_op else group["kind"] == "own"
    return group[own & taken], peers, choice.strategy


def _said(operator: str, sizes: dict[str, Any]) -> str:
    """A shape in words."""
    if "batch" in sizes:
        return f"{int(sizes['n']):,} × {int(sizes['k']):,}"
    said = f"{int(sizes['heads'])}/{int(sizes['kv_heads'])} heads of {int(sizes['head_dim'])}"
    if operator == "decode_attention":
        return said
    start = parse_options(str(sizes["options"])).get("start")
    if pd.notna(sizes["window"]) and sizes["window"]:
        return f"{said}, window {int(sizes['window'])}"
    if start:
        return f"{said}, {int(start)} keys cached"
    return said if str(sizes["causal"]).lower() == "true" else f"{said}, not causal"


def won(found: pd.DataFrame) -> pd.DataFrame:
    """The shapes on which ours is at least as fast as every library, within the level of a tie."""
    return found[found["ratio"] >= 1 / LEVEL]


def behind(found: pd.DataFrame) -> pd.DataFrame:
    """The shapes on which a library is faster by more than a tie, the farthest first, with column `why`."""
    lost = found[found["ratio"] < 1 / LEVEL].sort_values("ratio")
    return lost.assign(why=[_why(row) for _, row in lost.iterrows()])


def _why(row: pd.Series) -> str:
    """What our kernel does more than the library's, or lacks, as far as the shape alone tells."""
    if row["way"] == plain("q8_0").name:
        return "writes FP16 weights first"
    if row["way"] == "mmq_fp16_wgmma":
        whole = rung_of(mmq.LADDERS["mmq"], "7_fp16_wgmma", "")
        tokens = mmq.options_for(whole, int(row["rows"]), row["tokens"])["TOKENS"]
        tiles = stream_k.tiles_of(int(row["rows"]), row["tokens"], 1, tokens)
        if tiles < stream_k.AT_ONCE:
            return f"{tiles} tiles for {stream_k.AT_ONCE} SMs"
    if row["peer"] in ("cublas", "torch.matmul"):
        return "unpacks weights between products"
    return "not counted"


def wrong(found: pd.DataFrame) -> pd.DataFrame:
    """The shapes on which another way that was measured is faster by more than WRONG."""
    return found[found["cost"] > WRONG]


def by_kind(found: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The outcomes of each kind that was recorded, in the order of KINDS."""
    for kind in KINDS.values():
        mine = found[found["kind"] == kind]
        if len(mine):
            yield kind, mine
