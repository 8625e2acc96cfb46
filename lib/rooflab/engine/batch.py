"""Several sequences decoded together: every weight is read once a step for all of them.

A step is a chain of kernels in a CUDA graph, with nothing for the host to do in between: which tokens it
works on, and their positions, are on the device. The kernels may be dependent launches, which load weights
and earlier keys before the kernel before has ended (rooflab.ops.batch_ops).
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooflab.engine.base import captured, inverse
from rooflab.engine.chain import Chain
from rooflab.errors import UsageError
from rooflab.ops import attention, batch_choice, decoder_ops

if TYPE_CHECKING:
    from rooflab.engine.decoder import Engine


MOST = 64  # sequences: what products of a few tokens are made for


class Batch:
    """`size` sequences, all of one length, on an engine's weights, with a cache of their own [layers,
    capacity, size, kv_heads, head_dim]. To a kernel of attention they are one sequence with `size` times the
    heads. The engine takes in their prompts, and forgets its own for it. `ran` counts what ran, by path.
    With `dependent` a step is made of dependent launches, where they take the sizes: up to 32 sequences.
    """

    def __init__(self, engine: Engine, size: int, capacity: int | None = None, dependent: bool = True):
        if not 1 < size <= MOST:
            raise UsageError(f"A batch holds 2 to {MOST} sequences, not {size}.")
        capacity = engine.capacity if capacity is None else capacity
        if not 0 < capacity <= engine.capacity:
            raise UsageError(f"The engine knows {engine.capacity} positions, so {capacity} are refused.")
        self.engine, self.size, self.capacity = engine, size, capacity
        self.ran: collections.Counter[str] = collections.Counter()
        shape, zeros = engine.spec.shape, engine.zeros
        cache = (shape.layers, capacity, size, shape.kv_heads, shape.head_dim)
        self.cache_k, self.cache_v = zeros(cache, "float16"), zeros(cache, "float16")
        self.tokens = zeros((capacity + 1, size), "int32")
        self.places = zeros((2,), "int32")  # the position of the tokens at work, and the keys that they see
        self.logits = zeros((size, shape.vocab), "float16")
        self.chain = Chain(engine, size, capacity, self.ran, dependent=dependent)
        self._choice = batch_choice.choice_for(size, self.chain.sms, zeros)
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
        chain, table, softcap = self.chain, self.engine.weights.embedding, self.engine.spec.shape.softcap
        decoder_ops.embedding(table, self.tokens, out=chain.residual, position=self.places[:1])
        if not chain.dependent:
            self._layers()
            self._choose(softcap)
            self.places += 1
            return
        chain.layers(self.cache_k, self.cache_v, self.places[:1], self.places[1:], self.logits)
        batch_choice.sample(
            self.logits,
            self.tokens,
            self.places,
            choice=self._choice,
            softcap=softcap,
            inverse_temperature=self.inverse_temperature,
            seed=self.seed,
        )

    def _layers(self) -> None:
        """From embeddings to logits by kernels in a row, of sizes that the others don't take."""
        chain = self.chain
        shape, weights, products, attended = chain.shape, chain.weights, chain.products, chain.attended
        residual, x, queries, inner = chain.residual, chain.x, chain.queries, chain.inner
        heads = (self.size * shape.heads, shape.head_dim)
        position, length, epsilon = self.places[:1], self.places[1:], shape.epsilon
        wide = (self.capacity, self.size * shape.kv_heads, shape.head_dim)
        branch: Any = None
        for layer in range(shape.layers):
            keys, values = self.cache_k[layer], self.cache_v[layer]
            decoder_ops.rmsnorm(residual, weights.norms[2 * layer], out=x, branch=branch, epsilon=epsilon)
            qkv = products.few("qkv", layer, x)
            biases, rotary = weights.biases[layer], weights.rotations
            decoder_ops.rope(qkv, biases, rotary, queries, keys, values, position=position)
            attention.decode_attention(
                queries.reshape(heads),
                keys.reshape(wide),
                values.reshape(wide),
                length,
                out=attended.reshape(heads),
                workspace=chain.workspace,
            )
            branch = products.few("out", layer, attended.reshape(self.size, -1))
            decoder_ops.rmsnorm(residual, weights.norms[2 * layer + 1], out=x, branch=branch, epsilon=epsilon)
            decoder_ops.silu_mul(products.few("gate_up", layer, x), out=inner)
            branch = products.few("down", layer, inner)
        decoder_ops.rmsnorm(residual, weights.norms[2 * shape.layers], out=x, branch=branch, epsilon=epsilon)
        self.logits[...] = products.few("head", None, x)

    def _choose(self, softcap: float) -> None:
        decoder_ops.sample(
            self.logits,
            self.tokens,
            self.places[:1],
            softcap=softcap,
            inverse_temperature=self.inverse_temperature,
            seed=self.seed,
        )
