"""A few rows through all layers of a model that several processes share, by dependent launches."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from rooflab.engine.chain import Chain
from rooflab.engine.world import World
from rooflab.numerics.quant import Planes
from rooflab.ops import attention, batch_ops, batch_plan

if TYPE_CHECKING:
    from rooflab.engine.decoder import Engine

_TILE = 16  # rows that a product takes at a time


class SharedChain(Chain):
    """A Chain whose norms after `out` and `down` sum over all processes of a world, and whose head is split:
    each process multiplies its share of the vocabulary's rows, where they divide.
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        capacity: int,
        ran: collections.Counter[str],
        world: World,
        dependent: bool = True,
    ):
        super().__init__(engine, size, capacity, ran, dependent=False)
        self.world, shape, formats = world, self.shape, (self.weights.format, self.weights.head_format)
        fits = world.chained and batch_plan.takes(shape, *formats, size, self.sms)
        self.dependent = dependent and fits
        self._share: Any = None  # of the logits
        if not self.dependent:
            return
        splits = batch_plan.splits_for(capacity, shape.kv_heads * size, engine.blocks)
        self._make_workspace(engine, splits)
        count = shape.vocab // world.size
        if shape.vocab % (_TILE * world.size) == 0:
            self._share = engine.zeros((size, count), "float16")
        world.reserve(size, shape.hidden, count)

    # As Chain.layers with other norms and another head. Chain's source is part of what recorded figures are
    # known by, so it has no places for them.
    def layers(self, cache_k: Any, cache_v: Any, position: Any, length: Any, logits: Any) -> None:
        shape, weights = self.shape, self.weights
        x, queries, inner = self.x, self.queries, self.inner
        attended = self.attended.reshape(self.size, -1)
        seen, wide = (self.size * shape.heads, shape.head_dim), (self.capacity, -1, shape.head_dim)
        branch: Any = None
        for layer in range(shape.layers):
            keys, values = cache_k[layer], cache_v[layer]
            self._norm(2 * layer, branch)
            to = batch_ops.Heads(weights.biases[layer], weights.rotations, position, keys, values)
            self._product("qkv", layer, x, queries, batch_ops.ROPE, heads=to)
            batch_ops.attention(
                queries.reshape(seen),
                keys.reshape(wide),
                values.reshape(wide),
                length,
                out=self.attended.reshape(seen),
                workspace=self.workspace,
            )
            branch = self._product("out", layer, attended, self._parts["out"], batch_ops.PARTS)
            self._norm(2 * layer + 1, branch)
            self._product("gate_up", layer, x, inner, batch_ops.GATE)
            branch = self._product("down", layer, inner, self._parts["down"], batch_ops.PARTS)
        self._norm(2 * shape.layers, branch)
        if self._share is None:
            self._product("head", None, x, logits, batch_ops.ROWS)
        else:
            self._product("head", None, x, self._share, batch_ops.ROWS)
            self.world.all_gather(self._share, out=logits)

    def _norm(self, which: int, branch: Any) -> None:
        weight, epsilon = self.weights.norms[which], self.shape.epsilon
        if branch is None:
            batch_ops.rmsnorm(self.residual, weight, out=self.x, epsilon=epsilon)
            return
        self.ran["all_reduce"] += 1
        self.world.add_rmsnorm(self.residual, weight, out=self.x, parts=branch, epsilon=epsilon)

    def _product(self, name: str, layer: int | None, given: Any, out: Any, then: int, **more: Any) -> Any:
        self.ran["product dependent"] += 1
        return batch_ops.product(given, self._matrix(name, layer), out=out, then=then, **more)

    def _matrix(self, name: str, layer: int | None) -> Any:
        if name != "head" or self._share is None:
            return super()._matrix(name, layer)
        matrix, count = self.products.matrix(name, layer), int(self._share.shape[1])
        mine = slice(self.world.rank * count, (self.world.rank + 1) * count)
        if isinstance(matrix, Planes):
            return Planes(matrix.scales[mine], matrix.quants[mine])
        return matrix[mine]

    def _make_workspace(self, engine: Engine, splits: int) -> None:
        """What dependent kernels hand on, as Chain makes it for a whole model."""
        rows = self.attended.reshape(-1, self.shape.head_dim)
        self.workspace = attention.workspace_for(rows, splits)
        for name in ("out", "down"):
            sizes = self.shape.matrices[name]
            parts = batch_ops.parts_of(*sizes, self.size, self.weights.format, self.sms)
            self._parts[name] = engine.zeros((parts, self.size, self.shape.hidden), "float32")
