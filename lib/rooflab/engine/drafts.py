"""Drafts of one sequence's next tokens, checked together: every weight is read once for all of them.

A check is one step of dependent launches (rooflab.engine.chain) whose rows are the drafted tokens, and ends
with what holds: the drafts before the first that greedy decoding would not have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rooflab.engine.base import captured
from rooflab.engine.chain import Chain
from rooflab.errors import UsageError
from rooflab.ops import batch_choice, decoder_ops


class Drafts:
    """Checks of `size` drafted tokens after those in an engine's cache. UsageError where dependent launches
    do not take the engine's sizes, or where several processes share its weights.
    """

    def __init__(self, engine: Any, size: int):
        spec, zeros = engine.spec, engine.zeros
        self.engine, self.size = engine, size
        shape = getattr(spec, "shape", None)
        if shape is not None:
            self.chain = Chain(engine, size, engine.capacity, engine.ran, drafts=True)
        if shape is None or not self.chain.dependent:
            raise UsageError(
                "Drafts are checked by dependent launches, which take a whole model of Qwen2's or LLaMA's "
                "kind with matrices of rows by 16 and k by 64 (INT4: 64 and 128)."
            )
        # The first draft's position, the keys that it sees, and the drafts.
        self.given = zeros((2 + size,), "int32")
        self.logits = zeros((size, shape.vocab), "float16")
        self._arrived = zeros((1,), "int32")
        # What the host asks with and what a kernel answers are in the host's memory, which the first kernel
        # reads and the last one writes: no copy stands in a step's way, and the host waits for nothing more.
        asked, told = (zeros((n,), "int32") if engine.on_cpu else _pinned(n) for n in (2 + size, 2))
        self._numbers, self._answer = np.asarray(asked), np.asarray(told)
        self._asked, self._held = (each if engine.on_cpu else _seen_by_gpu(each) for each in (asked, told))
        self._replay: Any = None

    def check(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Verify drafted tokens: (how many are accepted, the token to take in after them). Advances the
        device's position by as many; leaves the host's `position` unchanged.
        """
        engine = self.engine
        self._numbers[...] = engine.position, engine.position + 1, *tokens
        self._answer[0] = -1
        if engine.graph and self._replay is None:
            self._replay = captured(self.step, engine._written())
        self._replay() if engine.graph else self.step()
        if not engine.on_cpu:
            self._wait()
        held, due = self._answer.tolist()
        return held, due

    def _wait(self) -> None:
        """Until the GPU has answered, or has failed: then torch says how."""
        import torch

        stream = torch.cuda.current_stream(self.engine.device)
        while not any(self._answer[0] >= 0 for _ in range(100)):  # a query takes as long as many looks
            if stream.query():
                stream.synchronize()
                return

    def step(self) -> None:
        """Launch a check of what the host asked for, on the current stream."""
        chain, state, given, asked = self.chain, self.engine.state, self.given, self._asked
        drafts = given[2:]
        decoder_ops.embedding(
            chain.weights.embedding, asked[2:], out=chain.residual, asked=asked, given=given
        )
        chain.layers(state.cache_k, state.cache_v, given[:1], given[1:2], self.logits)
        batch_choice.accept(
            state,
            drafts,
            chain.best,
            self.logits,
            given,
            held=self._held,
            arrived=self._arrived,
            softcap=chain.shape.softcap,
        )


def _pinned(count: int) -> Any:
    """`count` int32 of the host's memory, at an address that copies of a graph can keep."""
    import torch

    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


def _seen_by_gpu(pinned: Any) -> Any:
    """The host's memory as an array that kernels take."""
    import cupy

    memory = cupy.cuda.UnownedMemory(pinned.data_ptr(), pinned.nbytes, pinned)
    return cupy.ndarray(tuple(pinned.shape), "int32", cupy.cuda.MemoryPointer(memory, 0))
