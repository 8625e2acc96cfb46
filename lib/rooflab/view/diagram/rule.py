"""The rule of lesson 02c on the launches of a layer: a fixed time each, and the bytes of products on top."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rooflab.analysis import time_breakdown
from rooflab.numerics import model_shapes
from rooflab.profile import parts
from rooflab.studies.launch_rule import Rule
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, SKY, Canvas, Drawing, single

_HIGH = 34.0


def order(trace: pd.DataFrame, layer: int) -> list[str]:
    """The launches of a traced layer in order: a product's name, or "" for another launch. A sum of split-K
    partial results counts with its product. Empty where the trace does not name the layer's products.
    """
    line = time_breakdown.timeline(trace)
    starts = line.index[(line["part"] == "q") & (line["class"] == "weight")]
    if len(starts) <= layer + 1:
        return []
    rows = line.iloc[int(starts[layer]) : int(starts[layer + 1])]
    own = ~rows["part"].isin(parts.WEIGHTS) | (rows["class"] == "weight")
    return list(rows["part"].where(rows["class"] == "weight", "")[own])


def layer_by_rule(
    launches: Sequence[str], laws: Sequence[tuple[str, Rule]], model: model_shapes.Model
) -> Drawing:
    """`launches` (see order) one after the other as each GPU's rule has them, each GPU to its own scale: of a
    product the fixed time and its bytes, of any other launch its fixed time.
    """
    sizes = {each.name: 2 * each.n * each.k for each in model_shapes.projections(model)}
    launches = [name if name in sizes else "" for name in launches]
    canvas, y, said = Canvas(), 0.0, list[str]()
    narrow = dict[str, None]()  # products too narrow for their names
    for gpu, law in laws:
        moved = {name: sizes[name] / law.gb_s / 1e3 for name in launches if name}
        products = len(moved) * law.product_us + sum(moved.values())
        others = launches.count("") * law.other_us
        unit = svg.WIDTH / (products + others)
        canvas.text(0, y + 12, f"{gpu}: {products + others:.0f} µs, products {products:.0f} µs", bold=True)
        y, x = y + 20, 0.0
        rest = list[tuple[float, float]]()
        for name in launches:
            if not name:
                rest.append((x, y))
                x += law.other_us * unit
                continue
            fixed, bytes_ = law.product_us * unit, moved[name] * unit
            canvas.rect(x, y, fixed, _HIGH, AMBER)
            canvas.rect(x + fixed, y, bytes_, _HIGH, BLUE)
            if fixed + bytes_ > svg.wide(name, svg.SMALL) + 2:
                canvas.text(x + (fixed + bytes_) / 2, y + _HIGH + 13, name, svg.SMALL, "middle")
            else:
                narrow[name] = None
            x += fixed + bytes_
        wide = law.other_us * unit
        canvas.cells(rest, wide, _HIGH, SKY, 0.4 if wide > 6 else 0)  # edges would hide a narrow one's fill
        y += _HIGH + 30
        said.append(
            f"{gpu} {products + others:.0f} µs, of which its {len(moved)} products take {products:.0f} "
            f"({sum(moved.values()):.0f} for their bytes) and the {launches.count('')} other launches "
            f"{others:.0f}"
        )
    if narrow:
        canvas.text(0, y + 8, f"Too narrow for a name: {', '.join(narrow)}.", svg.SMALL)
        y += 20
    x = 0.0
    for fill, words in ((AMBER, "fixed time of a product"), (BLUE, "its bytes"), (SKY, "another launch")):
        canvas.cell(x, y, 13, 13, "", fill)
        canvas.text(x + 19, y + 11, words)
        x += 40 + svg.wide(words, svg.TEXT)
    says = f"One layer of {model.name}, launch by launch, as the rule has it: {'; '.join(said)}."
    return single("The launches of one layer by the rule, each GPU to its own scale", says, canvas)
