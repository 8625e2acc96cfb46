"""A recording's own pictures, for the first page of its report: every kernel under its roofs, and its GPU
among the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from rooflab.hardware import device as devices
from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.studies.bandwidth import roofs
from rooflab.view.captions import number
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, NONE, SKY, Canvas, Drawing, single

_WIDE = 700.0  # of the roofline: the first page's text
_LEADER = 17.0  # from a numbered point to its number
# What the numbered operators do, in words that a reader of the first page knows.
WORDS = {
    "attention": "attention, a prompt",
    "decode_attention": "attention, one token",
    "gemv": "matrix × vector, FP32",
    "gemv_rows": "matrix × vector, FP16",
    "int4": "4-bit matrix × vector",
    "mmq": "8-bit matrix × prompt",
    "q8_0": "8-bit matrix × vector",
    "saxpy": "a·x + y of vectors",
    "triad": "b + s·c of vectors",
}
_TENSOR = {"fp16_tensor": "FP16 tensor", "int8_tensor": "int8 tensor", "fp32": "FP32"}


def kernels(store: Store) -> pd.DataFrame:
    """Every recorded kernel of ours at its best share of a roof: study, operator, impl, intensity (FLOPs a
    byte), tflop_s, roof_fraction.
    """
    found = []
    for study in store.studies():
        if study == "regimes":  # times the other studies' kernels again, at other shapes
            continue
        rows = store.read(study)
        rows = rows[(rows["kind"] == "own") & (rows["clock"] == "graph") & (rows["cache"] == "cold")]
        rows = rows[rows["state"] != "sustained"]  # those have a roof of their own, which is not drawn
        rows = rows[(rows["flops"] > 0) & (rows["bytes"] > 0) & rows["roof_fraction"].notna()]
        found.append(rows.sort_values("roof_fraction").groupby(["operator", "impl"], sort=True).tail(1))
    if not found:
        return pd.DataFrame(columns=["operator", "impl", "intensity", "rate", "roof_fraction"])
    return _rated(pd.concat(found, ignore_index=True))


def _rated(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with their `intensity` in FLOPs a byte and their `rate` in TFLOP/s."""
    flops, bytes_, us = (table[name].astype(float) for name in ("flops", "bytes", "median_us"))
    return table.assign(intensity=flops / bytes_, rate=flops / us / 1e6)


# What a share is of, behind it.
_SHORT = {key: name.partition(" ")[0] for key, name in _TENSOR.items()} | {
    "dram_read": "read",
    "dram_write": "write",
    "dram_copy": "copy",
    "dram_triad": "triad",
    "bf16_tensor": "BF16",
}


def roofline(store: Store, chosen: pd.DataFrame) -> Drawing | None:
    """Every recorded kernel under the recording's roofs, and the `chosen` rows numbered, one an operator;
    None where no roof or no kernel was recorded.
    """
    ceilings = roofs(store.read("bandwidth"))
    points = kernels(store)
    if points.empty or "dram_read" not in ceilings:
        return None
    read = ceilings["dram_read"].value
    peaks = {name: ceilings[key].value for key, name in _TENSOR.items() if key in ceilings}
    canvas = Canvas(_WIDE)
    left, top, right, bottom = 44.0, 18.0, _WIDE - 106.0, 340.0  # right of it, the names of the peaks
    low, high = math.log10(points["intensity"].min() / 4), math.log10(points["intensity"].max() * 3)
    least = math.floor(math.log10(points["rate"].min()))
    most = math.log10(max([*peaks.values(), points["rate"].max()]) * 2)

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = left + (math.log10(intensity) - low) / (high - low) * (right - left)
        return x, bottom - (math.log10(rate) - least) / (most - least) * (bottom - top)

    canvas.rect(left, top, right - left, bottom - top, NONE, 0.6)
    for power in range(math.ceil(low), math.floor(high) + 1):
        x, _ = at(10.0**power, 10.0**least)
        canvas.text(x, bottom + 14, f"{10.0**power:g}", svg.SMALL, "middle")
    for power in range(least, math.floor(most) + 1):
        _, y = at(10.0**low, 10.0**power)
        canvas.text(left - 4, y + 4, f"{10.0**power:g}", svg.SMALL, "end")
    canvas.text(0, 10, "TFLOP/s", svg.SMALL)
    if "fp16_tensor" in ceilings and low < math.log10(ceilings["fp16_tensor"].value * 1e3 / read) < high:
        bend, _ = at(ceilings["fp16_tensor"].value * 1e3 / read, 10.0**least)
        canvas.line([(bend, bottom), (bend, bottom - 52)], 0.8, dashed=True)
        canvas.text(bend - 6, bottom - 40, "left of the bend:", svg.SMALL, "end")
        canvas.text(bend - 6, bottom - 26, "bytes decide the time", svg.SMALL, "end", bold=True)
        canvas.text(bend + 6, bottom - 40, "right of it:", svg.SMALL)
        canvas.text(bend + 6, bottom - 26, "arithmetic does", svg.SMALL, bold=True)
    canvas.text((left + right) / 2, bottom + 29, "FLOPs a byte", svg.SMALL, "middle")
    end = min(10.0**high, max([*peaks.values(), 10.0**most / 2]) * 1e3 / read)
    canvas.line([at(10.0**low, max(10.0**low * read / 1e3, 10.0**least)), at(end, end * read / 1e3)], 1.6)
    x, y = at(10.0**0.9, 10.0**0.9 * read / 1e3)
    canvas.text(x - 14, y - 26, f"slope: DRAM read {number(read)} GB/s", svg.SMALL, "end")
    for name, peak in peaks.items():
        x, y = at(min(10.0**high, peak * 1e3 / read), peak)
        canvas.line([(x, y), (right, y)], 1.6, dashed=name != "FP16 tensor")
        close = any(peak < other < 2 * peak for other in peaks.values())  # its name would run into that one's
        canvas.text(right + 5, y + 12 if close else y + 2, f"{name} {number(peak)}", svg.SMALL)
    sheet, passed = devices.match(str(store.runs().iloc[-1]["gpu"])), ""
    over = points[points["roof_fraction"] > 1]
    for key in sorted({*over["roof"]} & {*_TENSOR}):
        passed += f" The {_TENSOR[key]} roof is what a library's product of random matrices reached"
        if rated := getattr(sheet, key, None):
            rate = over[over["roof"] == key]["rate"].max()
            passed += f"; {rate / rated:.0%} of the data sheet's {number(rated)} TFLOP/s are the most of ours"
        passed += "."
    best = _rated(chosen[(chosen["flops"] > 0) & (chosen["bytes"] > 0)]) if len(chosen) else points.head(0)
    best = best.sort_values("roof_fraction", ascending=False)
    dots = [at(float(x), float(y)) for x, y in zip(points["intensity"], points["rate"], strict=True)]
    canvas.cells([(x - 2.2, y - 2.2) for x, y in dots], 4.4, 4.4, SKY)
    said, across, named = [], 3, best.head(12)
    spots = [at(float(x), float(y)) for x, y in zip(named["intensity"], named["rate"], strict=True)]
    canvas.cells([(x - 4, y - 4) for x, y in spots], 8, 8, AMBER, 0.8)
    placed: list[tuple[float, float]] = []
    for k, (_, row) in enumerate(named.iterrows()):
        x, y = _free(spots[k], placed, spots)
        placed.append((x, y))
        canvas.line([spots[k], (x, y)], 0.8)
        beyond = (x - spots[k][0]) / _LEADER  # a number stands where its leader ends
        canvas.text(
            x + 4 * beyond, y + (10 if y > spots[k][1] else -2), f"{k + 1}", svg.SMALL, "middle", bold=True
        )
        down, column = divmod(k, across)
        share = f"{row['roof_fraction']:.0%} of {_SHORT.get(str(row['roof']), row['roof'])}"
        words = f"{WORDS.get(str(row['operator']), row['operator'])} {share}"
        canvas.text(
            column * _WIDE / across + 14, bottom + 54 + 18 * down, f"{k + 1}", svg.SMALL, "end", bold=True
        )
        canvas.text(column * _WIDE / across + 19, bottom + 54 + 18 * down, words, svg.SMALL)
        said.append(f"{row['operator']} {row['impl']} {row['roof_fraction']:.0%}")
    y = bottom + 62 + 18 * -(-len(named) // across)
    canvas.cells([(6, y - 8)], 8, 8, AMBER, 0.8)
    canvas.text(19, y, "numbered: an operator at the shape of the results", svg.SMALL)
    canvas.cells([(_WIDE / 2 + 7.8, y - 6.2)], 4.4, 4.4, SKY)
    canvas.text(_WIDE / 2 + 19, y, "every other kernel, at its best", svg.SMALL)
    says = f"{len(points)} kernels under a read roof of {number(read)} GB/s" + "".join(
        f", {name} {number(peak)} TFLOP/s" for name, peak in peaks.items()
    )
    says += f". Numbered, operators at the shapes of the results: {', '.join(said)}.{passed}"
    return single("Every recorded kernel under its roofs", says, canvas)


def _free(
    point: tuple[float, float], placed: Sequence[tuple[float, float]], points: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Where the leader of a numbered point ends: above it and to the left, where a roof leaves no kernels, or
    next to that, clear of the numbers that are `placed` and of the numbered points.
    """
    beside = [(-0.7, -0.7), (0.0, -1.0), (-1.0, 0.0), (0.7, -0.7), (0.0, 1.0), (0.7, 0.7), (-0.7, 0.7)]
    ends = [
        (point[0] + step * dx, point[1] + step * dy) for step in (_LEADER, 2 * _LEADER) for dx, dy in beside
    ]
    taken = [*placed, *(each for each in points if each != point)]
    clear = (end for end in ends if all(abs(end[0] - x) > 15 or abs(end[1] - y) > 13 for x, y in taken))
    return next(clear, ends[0])


def places(stores: Sequence[Store], mine: str) -> Drawing | None:
    """The recorded GPUs side by side: read bandwidth, FP16 products, tokens a second of the course's model;
    the GPU named `mine` in dark. None where fewer than two were recorded.
    """
    rows: list[tuple[str, list[float]]] = []
    for store in stores:
        if store.runs().empty:
            continue
        ceilings = roofs(store.read("bandwidth"))
        told = store.read("decode") if "decode" in store.studies() else pd.DataFrame(columns=["tok_s"])
        if len(told):
            told = told[(told["model"] == decode.MODEL) & (told["batch"] == 1) & (told["kind"] == "own")]
        name = str(store.runs().iloc[-1]["gpu"])
        values = [ceilings[key].value if key in ceilings else 0.0 for key in ("dram_read", "fp16_tensor")]
        values.append(float(told["tok_s"].max()) if told["tok_s"].notna().any() else 0.0)
        rows.append((name, values))
    rows = [row for row in rows if any(row[1])]
    if len(rows) < 2:
        return None
    canvas, y, said = Canvas(), 0.0, []
    for place, (what, unit) in enumerate(
        (
            ("Read bandwidth", "GB/s"),
            ("FP16 products", "TFLOP/s"),
            (f"{decode.MODEL}, one sequence", "tokens/s"),
        )
    ):
        ranked = sorted(((each[place], name) for name, each in rows if each[place]), reverse=True)
        if not ranked:
            continue
        canvas.text(0, y + 12, f"{what}, {unit}", bold=True)
        y += 20
        for value, name in ranked:
            wide = 300 * value / ranked[0][0]
            canvas.text(0, y + 14, name, svg.SMALL)
            canvas.rect(190, y, wide, 19, BLUE if name == mine else SKY)
            canvas.text(190 + wide + 6, y + 14, number(value), svg.SMALL)
            y += 24
        said.append(f"{what}: " + ", ".join(f"{name} {number(value)} {unit}" for value, name in ranked))
        y += 8
    return single("Among the recorded GPUs", "; ".join(said) + ".", canvas)


def decoder(climbed: pd.DataFrame, title: str) -> Drawing:
    """The steps of analysis.way.ladder, at least one, a bar each, as long as its tokens a second."""
    canvas, most = Canvas(400), float(climbed["tok_s"].max())
    for place, (says, rate) in enumerate(zip(climbed["says"], climbed["tok_s"], strict=True)):
        y = 27.0 * place
        canvas.text(0, y + 9, says, svg.SMALL)
        canvas.rect(0, y + 12, 350 * rate / most, 11, BLUE if rate == most else SKY)
        canvas.text(350 * rate / most + 5, y + 21, f"{rate:,.0f}", svg.SMALL, bold=True)
    steps = (f"{row.says} {row.tok_s:,.0f}" for row in climbed.itertuples())
    return single(title, f"Step by step: {'; '.join(steps)}.", canvas)
