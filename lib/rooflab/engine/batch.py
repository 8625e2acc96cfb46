"""Several sequences decoded together: every weight is read once a step for all of them.

A step is a chain of kernels in a CUDA graph, with nothing for the host to do in between: which tokens it
works on, and their positions, are on the device.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooflab.engine.base import captured, inverse
from rooflab.errors import UsageError
from rooflab.ops import attention, decoder_ops

if TYPE_CHECKING:
    from rooflab.engine.decoder import Engine


MOST = 64  # sequences: what products of a few tokens are made for


class Batch:
    """`size` sequences, all of one length, on an engine's weights, with a cache of their own [layers,
    capacity, size, kv_heads, head_dim]. To a kernel of attention they are one sequence with `size` times the
    heads. The engine takes in their prompts, and forgets its own for it. `ran` counts what ran, by path.
    """

    def __init__(self, engine: Engine, size: int, capacity: int | None = None):
        if not 1 < size <= MOST:
            raise UsageError(f"A batch holds 2 to {MOST} sequences, not {size}.")
        capacity = engine.capacity if capacity is None else capacity
        if not 0 < capacity <= engine.capacity:
            raise UsageError(f"The engine knows {engine.capacity} positions, so {capacity} are refused.")
        self.engine, self.size, self.capacity = engine, size, capacity
        self.ran: collections.Counter[str] = collections.Counter()
        self.products = type(engine.products)(engine.spec.shape, engine.weights, self.ran)
        shape, zeros = engine.spec.shape, engine.zeros
        cache = (shape.layers, capacity, size, shape.kv_heads, shape.head_dim)
        self.cache_k, self.cache_v = zeros(cache, "float16"), zeros(cache, "float16")
        self.tokens = zeros((capacity + 1, size), "int32")
        self.places = zeros((2,), "int32")  # the position of the tokens at work, and the keys that they see
        self.logits = zeros((size, shape.vocab), "float16")
        self._residual = zeros((size, shape.hidden), "float32")
        self._x = zeros((size, shape.hidden), "float16")
        self._queries = zeros((size, shape.heads, shape.head_dim), "float16")
        self._attended = zeros((size * shape.heads, shape.head_dim), "float16")
        self._inner = zeros((size, shape.mlp), "float16")
        splits = max(1, engine.blocks // (size * shape.kv_heads))
        self._workspace = attention.workspace_for(self._attended, splits)
        self.inverse_temperature, self.seed = 0.0, 0
        self.position = 0
        self._replay: Any = None

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = 0

    def sample(self, temperature: float, seed: int = 0) -> None:
        """Draw tokens at a temperature from now on; 0 takes the likeliest."""
        self.inverse_temperature, self.seed = inverse(temperature), seed
        self._replay = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Begin with one prompt a sequence, all equally long; what was there is forgotten. UsageError for
        prompts that don't fit: then nothing has changed.
        """
        length, vocab = len(prompts[0]) if prompts else 0, self.engine.spec.shape.vocab
        if len(prompts) != self.size or any(len(prompt) != length for prompt in prompts) or not length:
            raise UsageError(f"A batch begins with {self.size} prompts, all equally long.")
        if length > self.capacity:
            raise UsageError(f"Prompts of {length} tokens do not fit a cache of {self.capacity}.")
        if not all(0 <= token < vocab for prompt in prompts for token in prompt):
            raise UsageError(f"A prompt's tokens are from 0 to {vocab - 1}.")
        state = self.engine.state
        for i, prompt in enumerate(prompts):
            self.engine.reset()
            self.engine.prefill(prompt)
            self.cache_k[:, :length, i] = state.cache_k[:, :length]
            self.cache_v[:, :length, i] = state.cache_v[:, :length]
            self.tokens[:length, i] = state.tokens[:length]
            self.logits[i] = state.logits
        self.engine.reset()
        self.places[0], self.places[1] = length - 1, length
        with self.engine.target():
            self._choose(0.0)  # the engine's logits are bounded already
        self.places += 1
        self.position = length
        self.ran["prompts"] += self.size

    def generate(self, count: int) -> list[list[int]]:
        """The next `count` tokens of every sequence: decoded on the device, and asked for in the end."""
        self.decode(count)
        return self.tokens[self.position - count : self.position].T.tolist()

    def decode(self, count: int) -> None:
        """What generate does, without asking."""
        if count < 1:
            raise UsageError(f"A batch generates one token or more, not {count}.")
        if not self.position:
            raise UsageError("A batch needs prompts before it generates.")
        if self.position + count > self.capacity:
            raise UsageError(
                f"{count} tokens after {self.position} do not fit a cache of {self.capacity}: reset the "
                "batch, or make one with more capacity."
            )
        graph = self.engine.graph
        if graph and self._replay is None:
            self._replay = captured(self.step, (self.tokens, self.places, self.logits))
        with self.engine.target():
            for _ in range(count):
                self._replay() if graph else self.step()
        self.ran["step graph" if graph else "step"] += count
        self.position += count

    def step(self) -> None:
        """Launch a step of all sequences on the current stream: the chosen tokens are taken in, logits are
        made and the next ones chosen. The host's `position` stays as it is.
        """
        shape, weights, products = self.engine.spec.shape, self.engine.weights, self.products
        residual, x, queries, inner = self._residual, self._x, self._queries, self._inner
        position, length, epsilon = self.places[:1], self.places[1:], shape.epsilon
        wide = (self.capacity, self.size * shape.kv_heads, shape.head_dim)
        decoder_ops.embedding(weights.embedding, self.tokens, out=residual, position=position)
        branch: Any = None
        for layer in range(shape.layers):
            keys, values = self.cache_k[layer], self.cache_v[layer]
            decoder_ops.rmsnorm(residual, weights.norms[2 * layer], out=x, branch=branch, epsilon=epsilon)
            qkv = products.few("qkv", layer, x)
            biases, rotary = weights.biases[layer], weights.rotations
            decoder_ops.rope(qkv, biases, rotary, queries, keys, values, position=position)
            attention.decode_attention(
                queries.reshape(self._attended.shape),
                keys.reshape(wide),
                values.reshape(wide),
                length,
                out=self._attended,
                workspace=self._workspace,
            )
            branch = products.few("out", layer, self._attended.reshape(self.size, -1))
            decoder_ops.rmsnorm(residual, weights.norms[2 * layer + 1], out=x, branch=branch, epsilon=epsilon)
            decoder_ops.silu_mul(products.few("gate_up", layer, x), out=inner)
            branch = products.few("down", layer, inner)
        decoder_ops.rmsnorm(residual, weights.norms[2 * shape.layers], out=x, branch=branch, epsilon=epsilon)
        self.logits[...] = products.few("head", None, x)
        self._choose(shape.softcap)
        self.places += 1

    def _choose(self, softcap: float) -> None:
        decoder_ops.sample(
            self.logits,
            self.tokens,
            self.places[:1],
            softcap=softcap,
            inverse_temperature=self.inverse_temperature,
            seed=self.seed,
        )
