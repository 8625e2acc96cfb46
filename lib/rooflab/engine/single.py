"""One sequence decoded by the dependent launches of a batch, in the cache of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rooflab.engine.batch import Batch
from rooflab.engine.chain import Chain
from rooflab.errors import UsageError
from rooflab.ops import batch_choice

if TYPE_CHECKING:
    from rooflab.engine.decoder import Engine


_OTHER_STREAM = 1 << 30  # added to a seed


class Single(Batch):
    """A batch of one sequence whose engine takes in the prompts. UsageError where dependent launches do not
    take the engine's sizes. `chain`: what launches the layers, if not a Chain of the engine's weights.
    """

    def __init__(self, engine: Engine, chain: Chain | None = None):
        self.engine, self.size, self.capacity, self.ran = engine, 1, engine.capacity, engine.ran
        shape, zeros, state = engine.spec.shape, engine.zeros, engine.state
        if chain is None:
            chain = Chain(engine, 1, self.capacity, self.ran)
            if not chain.dependent:
                raise UsageError(
                    "The path chain is dependent launches, which take a whole model with matrices of rows by "
                    "16 and k by 64 (INT4: 64 and 128)."
                )
        self.chain = chain
        cache = (shape.layers, self.capacity, 1, shape.kv_heads, shape.head_dim)
        self.cache_k, self.cache_v = state.cache_k.reshape(cache), state.cache_v.reshape(cache)
        self.tokens, self.places = zeros((self.capacity + 1, 1), "int32"), zeros((2,), "int32")
        self.logits = zeros((1, shape.vocab), "float16")
        self._choice = batch_choice.choice_for(1, chain.sms, zeros)
        self.inverse_temperature, self.seed, self.position = 0.0, 0, 0
        self._replay = None

    def follow(self, position: int, token: Any = None) -> None:
        """Continue at `position` with `token`, which the engine chose, or with the one that its logits give,
        and sample at its temperature. The cache holds all before it.

        A batch draws the token after position p with p's random numbers, the engine with p + 1's. So that a
        position's are not used twice, what follows an engine's own token has another stream of them.
        """
        engine = self.engine
        drawn = engine.inverse_temperature, engine.seed + (0 if token is None else _OTHER_STREAM)
        if drawn != (self.inverse_temperature, self.seed):
            self._replay = None
        self.inverse_temperature, self.seed = drawn
        self.position = position
        if token is None:
            self.logits[0] = engine.state.logits
            self.places[0], self.places[1] = position - 1, position
            with engine.target():
                self._choose(0.0)  # the engine's logits are bounded already
            self.places += 1
            return
        self.tokens[position] = token
        self.places[0], self.places[1] = position, position + 1

    def decode(self, count: int) -> None:
        """Decode `count` tokens, and leave the engine's state as its own steps do."""
        start, end, state = self.position, self.position + count, self.engine.state
        super().decode(count)
        state.tokens[start:end] = self.tokens[start:end, 0]
        state.position[...] = end
        state.logits[...] = self.logits[0]
        softcap = self.engine.spec.shape.softcap
        if softcap:
            state.logits[...] = softcap * self._tanh(state.logits / softcap)
        state.candidates[:, 0] = float("-inf")
        state.candidates[0, 0] = 0
        if end < len(self.tokens):
            state.candidates.view(self.tokens.dtype)[0, 1] = self.tokens[end, 0]

    def _tanh(self, values: Any) -> Any:
        return np.tanh(values) if isinstance(values, np.ndarray) else values.tanh()
