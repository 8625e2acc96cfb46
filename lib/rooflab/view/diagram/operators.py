"""What a layer launches where each operator is a launch (the way of decoding `products`), and in which of the
five kernels of rung 1_kernel_per_phase each is computed; the operators are read off the engine's source.
"""

from __future__ import annotations

import ast
import inspect
from itertools import groupby
from typing import NamedTuple

from rooflab.engine import decoder
from rooflab.errors import UsageError
from rooflab.view.diagram import svg
from rooflab.view.diagram.svg import AMBER, BLUE, Canvas, Drawing, single
from rooflab.words import counted

_STEP = "_plain"  # the function that makes a token by operators, and those that it calls a layer
_INSIDE = {"_norm": "norm", "_rotate": "rotation"}
# Calls that make numbers, so that torch or the course launches a kernel; views (split, chunk, view) do not.
_LAUNCHES = (
    *("square", "mean", "rsqrt", "float", "half", "cat", "silu", "unpair_heads", "index_copy_"),
    "decode_attention",
)
# What a statement's operators beside products are for, by the name that it gives its result.
_FOR = {"rows": "bias", "": "cache", "out": "attention", "h": "residual", "inner": "gating"}
_KERNELS = ("QKV", "attention", "output", "gate, up", "down")  # of the rung, in their order
_NAMES = {"qkv": "QKV", "out": "output", "gate_up": "gate, up"}
_BOX = 12.0  # width of a launch


class Launch(NamedTuple):
    """A launch of a layer: what it is for, and whether it is a product with weights."""

    group: str
    product: bool


def launches(text: str | None = None) -> list[Launch]:
    """A layer's launches in their order. `text` replaces the engine's source."""
    tree = ast.parse(inspect.getsource(decoder) if text is None else text)
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    missing = {_STEP, *_INSIDE} - set(bodies)
    loops = [] if missing else [node for node in ast.walk(bodies[_STEP]) if isinstance(node, ast.For)]
    if not loops:
        raise UsageError(f"This source has no loop over layers in {_STEP}, or lacks {sorted(missing)}.")
    found: list[Launch] = []
    for statement in loops[0].body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        group = _FOR.get(target.id if isinstance(target, ast.Name) else "", "")
        found += _of(statement, group, bodies)
    return found


def _of(node: ast.AST, group: str, bodies: dict[str, ast.FunctionDef]) -> list[Launch]:
    """The launches of a statement or expression, what is computed first in front."""
    if isinstance(node, ast.GeneratorExp):
        over = node.generators[0].iter
        return _of(node.elt, group, bodies) * (len(over.elts) if isinstance(over, ast.Tuple) else 1)
    inside = [launch for child in ast.iter_child_nodes(node) for launch in _of(child, group, bodies)]
    if isinstance(node, ast.BinOp):
        numbers = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} <= {"layer"}
        return inside if numbers else [*inside, Launch(group, False)]
    if not isinstance(node, ast.Call):
        return inside
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _INSIDE:
        return inside + [each for s in bodies[name].body for each in _of(s, _INSIDE[name], bodies)]
    if name == "product" and isinstance(node.args[0], ast.Constant):
        return [*inside, Launch(str(node.args[0].value), True)]
    return [*inside, Launch(group, False)] if name in _LAUNCHES else inside


def by_kernel(found: list[Launch]) -> list[list[tuple[Launch, int]]]:
    """Groups of launches, each with how many they are, by the kernel of rung 1_kernel_per_phase that computes
    them: a norm with the product after it, all else with the product before it; attention is one of its own.
    """
    groups = [(launch, len(list(same))) for launch, same in groupby(found)]
    kernels: list[list[tuple[Launch, int]]] = [[]]
    for launch, count in groups:
        done = any(each.product or each.group == "attention" for each, _ in kernels[-1])
        if done and (launch.product or launch.group in ("norm", "attention")):
            kernels.append([])
        kernels[-1].append((launch, count))
    return kernels


def launches_fused(text: str | None = None) -> Drawing:
    """A layer's launches by `products`, a row for each kernel of 1_kernel_per_phase that computes them."""
    found = launches(text)
    kernels, canvas, left, y = by_kernel(found), Canvas(), 96.0, 0.0
    if len(kernels) != len(_KERNELS):
        raise UsageError(f"A layer has {len(_KERNELS)} kernels, not {len(kernels)}.")
    said = []
    canvas.text(0, y + 12, "1 launch", bold=True)
    canvas.text(left, y + 12, "does the work of these launches of products", bold=True)
    y += 22
    for name, groups in zip(_KERNELS, kernels, strict=True):
        canvas.text(0, y + 24, name)
        x = left
        for launch, count in groups:
            words = _NAMES.get(launch.group, launch.group)
            canvas.text(x, y + 10, words, svg.SMALL)
            places = [(x + k * _BOX, y + 14, _BOX - 2) for k in range(count)]
            canvas.bars(places, 14, BLUE if launch.product else AMBER)
            x += max(count * _BOX, svg.wide(words, svg.SMALL) + 2) + 12
        words = ", ".join(f"{_NAMES.get(g.group, g.group)} {n}" for g, n in groups)
        said.append(f"{name}: {words}")
        y += 38
    products = sum(launch.product for launch in found)
    x = left
    for fill, word in ((BLUE, f"product: {products}"), (AMBER, f"other operators: {len(found) - products}")):
        canvas.cell(x, y + 2, 12, 12, "", fill)
        canvas.text(x + 18, y + 12, word, svg.SMALL)
        x += svg.wide(word, svg.SMALL) + 50
    canvas.text(left, y + 32, "Read off the engine's source: an operator, a launch. Not traced.", svg.SMALL)
    total = counted(len(found), "launch", "launches")
    title = f"A layer: {total} by products, {len(kernels)} by 1_kernel_per_phase"
    return single(title, f"In each kernel, by operators of products: {'; '.join(said)}.", canvas)
