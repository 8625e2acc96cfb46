"""Why lesson 04c's INT4 products stop paying where they do, by the bounds of both formats."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics.model_shapes import WEIGHT_BYTES
from rooflab.numerics.quant import GROUP
from rooflab.pages import Rows
from rooflab.studies import int4 as study
from rooflab.view import display

_FEW_GROUPS = 20  # of k an SM, of which filling a ring of six slots is a good part
_RUNGS_OF_TILES = ("12_token_tiles", "13_stream_k")  # blocks of 128 TALL rows


def bound_us(n: int, k: int, batch: int, format: str, read_roof: float, peak: float | None) -> float:
    """The bound of this page, in microseconds: bytes at the measured read roof (GB/s), or operations at the
    measured peak (TFLOP/s; None where it was not measured), whichever takes longer."""
    moved = roofline.gemm_bytes(batch, n, k, WEIGHT_BYTES[format])
    return roofline.bound(moved, roofline.gemm_flops(batch, n, k), read_roof, peak).us


def crossing(format: str, read_roof: float, peak: float) -> float:
    """Tokens at which the operations take as long as the weights' bytes: read_roof in GB/s, peak in
    TFLOP/s.
    """
    return WEIGHT_BYTES[format] * peak * 1e3 / (2 * read_roof)


def crossings(read_roof: float, peak: float | None) -> None:
    """Say in figures at how many tokens each format's operations take as long as its bytes."""
    if peak is None:
        return display.say("The tensor cores' peak was not measured here, so this number is not known.")
    parts = []
    for name, format in (("INT4", "int4_g128"), ("FP16", "fp16")):
        parts.append(
            f"{WEIGHT_BYTES[format]:.3g} × {peak:,.0f} ÷ (2 × {read_roof / 1e3:.2f}) = "
            f"**{crossing(format, read_roof, peak):.0f} tokens** for {name}"
        )
    display.say(
        f"With TFLOP/s and TB/s: {' and '.join(parts)}. Between the two INT4 can still gain, but less with "
        "each token. Beyond the second both formats take the same operations: the bounds allow no gain."
    )


def why_it_stops(beyond: Rows, source: Lab, shapes: list[Any]) -> None:
    """Say, of the shape that stops paying first and of the one that pays longest, what the bounds allow and
    how far each format is from its own; the table of every point, folded.
    """
    if beyond.empty or not {"dram_read", "fp16_tensor"} <= set(source.roof):
        return
    read_roof, peak = (source.roof[name].value for name in ("dram_read", "fp16_tensor"))
    names = {f"{n:,} × {k:,}": (n, k) for n, k in shapes}
    table = beyond[["shape", "batch", "gain"]].copy()
    for column, who, format in (("ours", "ours", "int4_g128"), ("fp16", "FP16 cuBLAS", "fp16")):
        least = [
            bound_us(*names[at.shape], at.batch, format, read_roof, peak)
            for at in table[["shape", "batch"]].itertuples()
        ]
        table[f"least_{column}"], table[column] = least, beyond[who] / least
    table["possible"] = table["least_fp16"] / table["least_ours"]
    table = table.dropna(subset=["ours", "fp16"])
    if table.empty:
        return
    first = table.sort_values(["batch", "gain"], kind="stable")
    first = first[first["gain"] < 1].head(1)
    most = table[table["batch"] == table["batch"].max()]
    last = most[most["gain"] > 1].sort_values("gain").tail(1)
    lines = [_line(row, source, names) for row in (*first.itertuples(), *last.itertuples())]
    if lines:
        display.fold_items("Why there? The first shape that falls behind, and the one ahead longest", lines)
    columns = {"shape": "n × k", "batch": "Tokens", "possible": "Bounds allow", "fp16": "FP16 ÷ its bound"}
    columns |= {"ours": "Ours ÷ its bound", "gain": "Gain"}
    forms = dict.fromkeys(("possible", "fp16", "ours", "gain"), "{:.2f}")
    display.table(table, columns, forms, f"The same for every point, on {source.run.gpu}", folded=True)


def _line(row: Any, source: Lab, names: dict[str, Any]) -> str:
    """A line of the explanation: how far either format is from its bound at one point, how much an SM
    multiplies there, and a likely reason.
    """
    text = f"**{row.shape}, {row.batch} tokens** (gain {row.gain:.2f}): the bounds allow {row.possible:.2f}. "
    text += f"Ours takes {row.ours:.2f} times its bound, FP16 {row.fp16:.2f} times its own."
    work = work_of_an_sm(*names[row.shape], row.batch, source)
    if work:
        text += f" Our tiles have {work.rows} rows and up to {work.tokens} tokens: {work.tiles} tiles × "
        text += (
            f"{work.groups} groups of {GROUP} columns of k ÷ {work.sms} SMs = **{work.steps:.0f} groups an "
        )
        text += "SM**."
    if row.ours > 1.5 * row.fp16 and work and work.steps < _FEW_GROUPS:
        text += (
            " A likely reason: on so few groups, filling the ring first and adding up or storing the sums "
        )
        text += "last weigh much. Nothing was counted beyond 64 tokens, so this is not proven."
    elif row.gain > 1 and row.possible < 1.02:
        text += " Both formats do the same operations, and ours comes nearer to the tensor cores' peak."
    return text


class Work(NamedTuple):
    """How a product is cut into tiles for the SMs: groups of k that a tile has."""

    rows: int
    tokens: int
    tiles: int
    groups: int
    sms: int

    @property
    def steps(self) -> float:
        """Groups of k that an SM multiplies, on average."""
        return self.tiles * self.groups / self.sms


def work_of_an_sm(n: int, k: int, batch: int, source: Lab) -> Work | None:
    """How the dispatcher's choice cuts a product, or None for a rung without such tiles."""
    case = study.chosen(n, k, batch, source.sized)
    if case.impl not in _RUNGS_OF_TILES:
        return None
    macros = study.own_rung(case)[1]
    rows, tokens = 128 * macros["TALL"], macros["TOKENS"]
    tiles = math.ceil(n / rows) * math.ceil(batch / tokens)
    return Work(rows, tokens, tiles, math.ceil(k / GROUP), int(source.run["sms"]))
