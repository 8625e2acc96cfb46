"""A second decoder, of Gemma 4's kind, out of the same kernels: the readable one.

Five layers of six see a window of the latest tokens with heads of 256, the sixth sees everything with heads
of 512; a tail of layers has no keys and values of its own and reads those of the last layer of its kind that
has; every layer is told of the token by an embedding of its own; logits are softly capped.

    spec = gemma.spec()                                    # E4B's shapes
    weights = gemma.random_weights(spec, "int4_g128")      # or gemma.pack(spec, from_safetensors(spec, path))
    decoder = gemma.Engine(spec, weights, capacity=4096)
    decoder.prefill(prompt); tokens = decoder.generate(128)

Left out of the real model: images and sound, mixture of experts, MLPs of double width, keys that serve as
values. Every cache holds all tokens, those of sliding layers too: a window is read, a ring is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflab.engine.base import Decoder
from rooflab.engine.gemma_model import Layer, Spec, Weights, pack, random_tensors, random_weights, spec
from rooflab.numerics import model_shapes
from rooflab.numerics.quant import Planes
from rooflab.ops import attention, decoder, decoder_ops, gemma_ops, gemv, int4, mmq, q8_0, sms

__all__ = ["Engine", "Paths", "Spec", "Weights", "pack", "random_tensors", "random_weights", "spec"]

_MOST = 64  # tokens of an INT4 product; for more the course's kernel makes FP16 weights first


@dataclass(frozen=True)
class Paths:
    """Which path the work takes. graph: launches of a token, or of a prompt like the one before, are captured
    once and replayed. tail: of a prompt
    the last token alone goes through the layers that leave no keys and values. attention: a rung for prompts,
    or "" for the fastest. mmq: prompts with Q8_0 weights by the course's products, not made FP16 first.
    """

    graph: bool = True
    tail: bool = True
    attention: str = ""
    mmq: bool = True


class Engine(Decoder):
    """A decoder of Gemma 4's kind."""

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        *,
        capacity: int | None = None,
        paths: Paths | None = None,
        blocks: int | None = None,
    ):
        self.spec, self.weights, self.paths = spec, weights, paths or Paths()
        known = int(weights.rotary[0].shape[0])
        super().__init__(spec.model.vocab, known, weights.norm, capacity, blocks, self.paths.graph)
        m, none = spec.model, {name: self._new(0, *size) for name, size in spec.head.matrices.items()}
        self._head = decoder.Weights(
            *("fp16", weights.head_format, none["qkv"], none["out"], none["gate_up"], none["down"]),
            *(weights.embedding, weights.embedding, weights.norm, none["out"]),
            self._new(self.capacity, 64, 2, dtype="float32"),
        )
        with self.target():
            self.state = decoder.state_for(spec.head, self.capacity, self.blocks, self.zeros)
            self.place, self.length = (self.zeros((1,), "int32") for _ in range(2))
            self.caches: dict[int, tuple[Any, Any]] = {}
            self._workspaces: dict[int, attention.Workspace] = {}
            for index, layer in enumerate(spec.layers):
                shape = (self.capacity, m.kv_heads, layer.head_dim)
                if layer.owns_kv:
                    self.caches[index] = (self.zeros(shape, "float16"), self.zeros(shape, "float16"))
                if layer.head_dim not in self._workspaces:
                    self._workspaces[layer.head_dim] = self._workspace_for(layer)

    def take(self, ids: Any, start: int = 0) -> None:
        n, state = int(ids.shape[0]), self.state
        state.tokens[start : start + n] = ids
        self.place[...] = start
        self.length[...] = start + n
        state.position[...] = start + n
        self._through(n, start)
        self._choose()

    def _steps(self, count: int) -> None:
        self.ran["decode"] += count
        self._repeat(("decode",), self._step, count)

    def _written(self) -> list[Any]:
        return [*super()._written(), self.place, self.length]

    # --- the model ----------------------------------------------------------------------------------------

    def _step(self) -> None:
        """A token: chosen on the device among what the step before left, taken through, and followed up."""
        state = self.state
        gemma_ops.sample_candidates(state.candidates, state.tokens, state.position, self.place, self.length)
        self._through(1)
        self._choose()

    def _choose(self) -> None:
        """Logits out of the residual, capped, and the candidates for the next token."""
        head, state = self.spec.head, self.state
        decoder.head(head, self._head, state, inverse_temperature=self.inverse_temperature, seed=self.seed)

    def _through(self, n: int, start: int = 0) -> None:
        """The tokens at `place` and after it through all layers; the last one's residual is left in state.

        n = 1 asks nothing of the host; of more tokens it must know where they start.
        """
        spec, m, weights, state = self.spec, self.spec.model, self.weights, self.state
        end, tail = start + n, m.layers - m.shared_kv
        last = state.residual.reshape(1, m.hidden)
        h = last if n == 1 else self._new(n, m.hidden, dtype="float32")
        x, roots = self._new(n, m.hidden), self._new(n, dtype="float32")
        gemma_ops.embedding_scaled(
            weights.embedding, state.tokens, self.place, residual=h, out=x, factor=m.hidden**0.5
        )
        told = self._new(n, m.layers, m.ple)
        gemma_ops.per_layer_embedding(
            self._product(weights.told_model, x),
            *(weights.told_norm, weights.told_table, state.tokens, self.place),
            out=told,
            factor=m.ple**0.5,
            epsilon=spec.epsilon,
        )
        self._join(h, None, None, weights.layers[0].norms[0], x, roots)
        for index, layer in enumerate(weights.layers):
            if index == tail and n > 1 and self.paths.tail:
                last[...] = h[-1:]
                h, n = last, 1
                x, roots, told = x[-1:], roots[-1:], told[-1:]
                self.place[...] = end - 1
                self.ran["tail of the last token"] += 1
            _, after, before, after_mlp, after_told = layer.norms
            followed = weights.layers[index + 1].norms[0] if index + 1 < m.layers else weights.norm
            attended = self._attention(index, layer, self._product(layer.qkv, x), n, start, end)
            self._join(h, self._product(layer.out, attended), after, before, x, roots)
            inner = self._new(n, m.mlp)
            both = self._product(layer.gate_up, x)
            gemma_ops.gelu_mul(both, both, out=inner, column=m.mlp)
            self._join(h, self._product(layer.down, inner), after_mlp, None, x, roots)
            # The gate reads the residual itself, which may not fit FP16: x is that over its root mean square.
            gate, here = self._product(layer.told_gate, x), self._new(n, m.ple)
            gemma_ops.gelu_mul(gate, told.reshape(n, -1), out=here, column=index * m.ple, roots=roots)
            branch = self._product(layer.told_out, here)
            self._join(h, branch, after_told, followed, x, roots, layer.factor)
        if n > 1:
            last[...] = h[-1:]

    def _attention(self, index: int, weights: Layer, made: Any, n: int, start: int, end: int) -> Any:
        """Heads out of `made`, keys and values into the cache if the layer has its own, and attention."""
        m, layer = self.spec.model, self.spec.layers[index]
        keys, values = self.caches[self.spec.sources[index]]
        queries = self._new(n, m.heads, layer.head_dim)
        own = (keys, values) if layer.owns_kv else ()
        rotary = self.weights.rotary[layer.window is None]
        norms = weights.query_norm, weights.key_norm
        gemma_ops.rope_qk_norm(made, *norms, rotary, self.place, queries, *own, epsilon=self.spec.epsilon)
        self.ran["attention " + ("everything" if layer.window is None else "window")] += 1
        if n == 1:
            workspace = self._workspaces[layer.head_dim]
            out = attention.decode_attention(
                queries[0], keys, values, self.length, window=layer.window, scale=1.0, workspace=workspace
            )
        else:
            out = attention.attention(
                *(queries, keys, values),
                start=start,
                context=end,
                window=layer.window,
                scale=1.0,
                rung=self.paths.attention or None,
            )
        return out.reshape(n, -1)

    def _join(
        self, h: Any, branch: Any, after: Any, before: Any, x: Any, roots: Any, factor: float = 1.0
    ) -> None:
        epsilon = self.spec.epsilon
        gemma_ops.add_rmsnorm(h, branch, after, before, out=x, roots=roots, factor=factor, epsilon=epsilon)

    def _product(self, matrix: Any, x: Any) -> Any:
        """x [n, k] times a matrix, FP16: one token by the course's matrix-vector products; more by MMQ, by
        INT4 products of up to 64 tokens, or by the library in FP16.
        """
        n = int(x.shape[0])
        if isinstance(matrix, Planes):
            if n > 1 and not self.paths.mmq:
                self.ran["product dequantised q8_0"] += 1
                scaled = matrix.quants.reshape(*matrix.scales.shape, 32) * matrix.scales[..., None]
                return _times(x, scaled.reshape(matrix.quants.shape))
            self.ran["product q8_0" if n == 1 else "product mmq"] += 1
            if n > 1:
                return mmq.multiply(x, matrix)
            return q8_0.matvec(q8_0.quantise(x), matrix, rung="5_batch")  # the fastest one at k = 2560
        if isinstance(matrix, int4.Tiles):
            if n > _MOST:
                self.ran["product dequantised int4"] += 1
                return _times(x, decoder_ops.dequantise_tiles(matrix, out=self._new(matrix.n, matrix.k)))
            self.ran["product int4"] += 1
            return int4.matmul(x, matrix, out=self._new(n, matrix.n))
        if n == 1:
            self.ran["product fp16"] += 1
            return gemv.gemv_rows(matrix, x.reshape(-1)).reshape(1, -1)
        self.ran["product library"] += 1
        return _times(x, matrix)

    def _workspace_for(self, layer: model_shapes.Layer) -> attention.Workspace:
        """Where the parts of a layer's context meet: as many as suit a full window or cache."""
        m = self.spec.model
        query = self._new(m.heads, layer.head_dim)
        if self.on_cpu:
            return attention.workspace_for(query, 3)
        (rung,) = (r for r in attention.LADDERS["decode_attention"] if r.name == "4_cp_async")
        blocks = m.kv_heads * -(-m.heads // m.kv_heads // attention.HEADS)
        keys = min(self.capacity, layer.window or self.capacity)
        macros = rung.with_defaults({"HEAD_DIM": layer.head_dim})
        return attention.workspace_for(query, attention.splits_of(rung, macros, blocks, sms(), 1, keys))


def _times(x: Any, matrix: Any) -> Any:
    """x times the transposed matrix, both FP16, summed in FP32: cuBLAS, or on the CPU NumPy."""
    if isinstance(x, np.ndarray):
        return (x.astype(np.float32) @ matrix.astype(np.float32).T).astype(np.float16)
    return x @ matrix.t()
