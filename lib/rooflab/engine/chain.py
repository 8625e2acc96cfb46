"""A few rows through all layers by dependent launches: a batch's sequences, or drafts of one sequence."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from rooflab.engine.products import Products
from rooflab.ops import attention, batch_ops, batch_plan
from rooflab.ops.int4 import Tiles

if TYPE_CHECKING:
    from rooflab.engine.decoder import Engine


class Chain:
    """What `size` rows of an engine's weights need between embedding and logits: residual [size, hidden]
    FP32, and what its kernels hand on. The rows are sequences of a cache [capacity, size, kv_heads, head_dim]
    a layer, or with `drafts` successive tokens of one, [capacity, kv_heads, head_dim]. `dependent`: whether
    dependent launches are wanted and take these sizes, which have no sums over processes between them. The
    arrays serve other kernels, too.
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        capacity: int,
        ran: collections.Counter[str],
        drafts: bool = False,
        dependent: bool = True,
    ):
        self.shape, self.weights, self.size, self.capacity = engine.spec.shape, engine.weights, size, capacity
        self.ran, self.drafts = ran, drafts
        self.products = Products(self.shape, self.weights, ran)
        shape, weights, zeros = self.shape, self.weights, engine.zeros
        self.residual = zeros((size, shape.hidden), "float32")
        self.x = zeros((size, shape.hidden), "float16")
        self.queries = zeros((size, shape.heads, shape.head_dim), "float16")
        self.attended = zeros((size, shape.heads, shape.head_dim), "float16")
        self.inner = zeros((size, shape.mlp), "float16")
        self.sms = batch_ops.sms_of(weights.norms)
        formats = weights.format, weights.head_format
        fits = engine.spec.parts == 1 and batch_plan.takes(shape, *formats, size, self.sms)
        self.dependent = dependent and fits
        blocks, group = engine.blocks, shape.heads // shape.kv_heads
        pairs = shape.kv_heads * (-(-size * group // 8) if drafts else size)
        splits = batch_plan.splits_for(capacity, pairs, blocks) if self.dependent else max(1, blocks // pairs)
        self.workspace = attention.workspace_for(self.attended.reshape(-1, shape.head_dim), splits)
        self._parts: dict[str, Any] = {}
        for name in ("out", "down") if self.dependent else ():
            parts = batch_ops.parts_of(*shape.matrices[name], size, weights.format, self.sms)
            self._parts[name] = zeros((parts, size, shape.hidden), "float32")
        self.best: Any = None
        if self.dependent and drafts:
            head = batch_ops.best_of(*shape.matrices["head"], size, weights.head_format, self.sms)
            self.best = zeros((head, size, 2), "float32")

    def layers(self, cache_k: Any, cache_v: Any, position: Any, length: Any, logits: Any) -> None:
        """Launch what takes the residual to logits [size, vocab] FP16, with drafts to their best, too, and
        the rows' keys and values into caches [layers, ...]: at `position` [1] int32, drafts there and after
        it, of which the first sees `length` [1] int32 keys.
        """
        shape, weights = self.shape, self.weights
        residual, x, queries, inner = self.residual, self.x, self.queries, self.inner
        attended = self.attended.reshape(self.size, -1)
        # To a kernel of attention a batch is one sequence with `size` times the heads.
        seen = self.queries.shape if self.drafts else (self.size * shape.heads, shape.head_dim)
        wide = (self.capacity, (1 if self.drafts else self.size) * shape.kv_heads, shape.head_dim)
        branch: Any = None

        def norm(which: int) -> None:
            weight, epsilon = weights.norms[which], shape.epsilon
            batch_ops.rmsnorm(residual, weight, out=x, parts=branch, epsilon=epsilon)

        def product(name: str, layer: int | None, given: Any, out: Any, then: int, **more: Any) -> Any:
            self.ran["product dependent"] += 1
            return batch_ops.product(given, self._matrix(name, layer), out=out, then=then, **more)

        for layer in range(shape.layers):
            keys, values = cache_k[layer], cache_v[layer]
            norm(2 * layer)
            to = batch_ops.Heads(weights.biases[layer], weights.rotations, position, keys, values)
            product("qkv", layer, x, queries, batch_ops.ROPE, heads=to)
            batch_ops.attention(
                queries.reshape(seen),
                keys.reshape(wide),
                values.reshape(wide),
                length,
                out=self.attended.reshape(seen),
                workspace=self.workspace,
            )
            branch = product("out", layer, attended, self._parts["out"], batch_ops.PARTS)
            norm(2 * layer + 1)
            product("gate_up", layer, x, inner, batch_ops.GATE)
            branch = product("down", layer, inner, self._parts["down"], batch_ops.PARTS)
        norm(2 * shape.layers)
        if self.best is None:
            product("head", None, x, logits, batch_ops.ROWS)
        else:
            product("head", None, x, logits, batch_ops.BEST, best=self.best)

    def _matrix(self, name: str, layer: int | None) -> Any:
        """A layer's matrix, or the head, as batch_plan.takes it."""
        matrix = self.products.matrix(name, layer)
        if self.products.format(name) == "int4_g128":
            return Tiles(matrix, *self.shape.matrices[name])
        return matrix
