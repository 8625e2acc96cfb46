"""Which keys and values each layer of a model reads for one token."""

from __future__ import annotations

from rooflab.numerics import model_shapes
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, GREY, SKY, Canvas, Drawing, single
from rooflab.words import counted

_LEFT, _RIGHT, _HIGH = 60.0, 214.0, 5.4


def caches(model: model_shapes.Model, context: int = 2048) -> Drawing:
    """A line a layer, over the tokens that it reads for the next one: its window or all of them, from a cache
    of its own or from an earlier layer's.
    """
    layers = model_shapes.layers(model)
    canvas, unit = Canvas(), (svg.WIDTH - _LEFT - _RIGHT) / context
    canvas.text(_LEFT, 12, "first token")
    canvas.text(svg.WIDTH - _RIGHT, 12, f"token {context:,}", anchor="end")
    top = 20.0
    for index, layer in enumerate(layers):
        seen = min(layer.window or context, context)
        y = top + index * (_HIGH + 1)
        fill = (SKY if seen < context else AMBER) if layer.owns_kv else GREY
        canvas.rect(_LEFT + (context - seen) * unit, y, seen * unit, _HIGH, fill, 0)
        if index % 10 == 0:
            canvas.text(_LEFT - 8, y + _HIGH, f"layer {index}", anchor="end")
    canvas.rect(_LEFT - 0.5, top - 0.5, context * unit + 1, len(layers) * (_HIGH + 1))
    seen_by_own = [min(layer.window or context, context) for layer in layers if layer.owns_kv]
    kinds = (
        (AMBER, seen_by_own.count(context), "all tokens"),
        (SKY, len(seen_by_own) - seen_by_own.count(context), "a window"),
        (GREY, len(layers) - len(seen_by_own), "an earlier layer's"),
    )
    x, y = svg.WIDTH - _RIGHT + 14, top + 10
    for fill, count, words in kinds:
        if count:
            canvas.cell(x, y, 14, 14, "", fill)
            canvas.text(x + 20, y + 11, f"{counted(count, 'layer')}: {words}")
            y += 22
    read, whole = model_shapes.kv_read_bytes(model, context), 4 * model.kv_heads * context
    whole *= sum(layer.head_dim for layer in layers)
    canvas.text(x, y + 14, f"{read / 1e6:,.0f} MB for one token,", bold=True)
    canvas.text(x, y + 29, f"{whole / 1e6:,.0f} MB if each layer")
    canvas.text(x, y + 44, "read all tokens")
    says = ", ".join(f"{counted(count, 'layer')} {words}" for _, count, words in kinds if count)
    says = f"After {context:,} tokens {model.name} reads, of keys and values: {says}. That is "
    says += f"{read / 1e6:,.0f} MB for one token; if each layer read all tokens, {whole / 1e6:,.0f} MB."
    return single(f"What each layer of {model.name} reads for one token", says, canvas)
