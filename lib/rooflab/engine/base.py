"""What engines of every model share: taking prompts in, giving tokens, sampling, graphs."""

from __future__ import annotations

import collections
import functools
import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.errors import UsageError
from rooflab.ops import decoder, sms
from rooflab.ops.decoder_operands import winner

MOST_DRAFTS = 16  # that are checked at once: two groups of eight columns of the tensor cores


class Decoder:
    """A decoder with its cache, at batch 1. `ran` counts what ran, by path; what a graph replays was counted
    when it was captured. `position` is the device's, as the host knows it.

    An engine of a model makes `state`, and says what a prompt (`take`) and `count` tokens (`_steps`) launch.
    """

    state: decoder.State

    def __init__(
        self, vocab: int, known: int, like: Any, capacity: int | None, blocks: int | None, graph: bool
    ):
        """`known`: positions that the weights have rotary angles for; `like`: one of the weights."""
        self.vocab, self.on_cpu = vocab, isinstance(like, np.ndarray)
        self.device = None if self.on_cpu else like.device
        self.graph = graph and not self.on_cpu
        self.capacity = known if capacity is None else capacity
        if not 0 < self.capacity <= known:
            raise UsageError(
                f"The weights know {known} positions, so a capacity of {self.capacity} is refused."
            )
        self.blocks = blocks or (4 if self.on_cpu else self._blocks())
        self.ran: collections.Counter[str] = collections.Counter()
        self.inverse_temperature, self.seed, self.position = 0.0, 0, 0
        self._graphs: dict[Any, tuple[Callable[[], None], Any]] = {}
        self._latest: Any = None
        self._drafts: dict[int, Any] = {}  # what checks so many drafts

    # --- what a caller sees -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = 0
        self.state.position[...] = 0

    def sample(self, temperature: float, seed: int = 0) -> None:
        """Draw tokens at a temperature from now on; 0 takes the likeliest."""
        self.inverse_temperature, self.seed = inverse(temperature), seed
        self._graphs.clear()

    def prefill(self, tokens: Sequence[int]) -> None:
        """Take in tokens after those that are there; what comes next is chosen among `logits`. A prompt may
        come in pieces. UsageError for a token that does not exist, none at all, or more than fit: then
        nothing has changed.
        """
        ids = [int(token) for token in tokens]
        if not ids or not all(0 <= token < self.vocab for token in ids):
            raise UsageError(f"A prompt is one token or more, each from 0 to {self.vocab - 1}.")
        self._require_room(len(ids))
        with self.target():
            self._prompt(ids)
        self.position += len(ids)

    def generate(self, count: int) -> list[int]:
        """The next `count` tokens: all decoded on the device, and asked for in the end."""
        self.decode(count)
        return [int(token) for token in self.state.tokens[self.position - count : self.position].tolist()]

    def decode(self, count: int) -> None:
        """What generate does, without asking."""
        if count < 1:
            raise UsageError(f"The engine generates one token or more, not {count}.")
        self._require_room(count)
        if not self.position:
            raise UsageError("The engine needs a prompt before it generates.")
        with self.target():
            self._steps(count)
        self.position += count

    def verify(self, tokens: Sequence[int]) -> tuple[int, int]:
        """How many of `tokens`, up to 16 drafted for the next places, are what greedy decoding gives there,
        and the token that it gives after them. Those are taken in, and cache, position and logits are as
        after decoding them; the first draft is `due` or none holds. UsageError for tokens that do not exist
        or fit, an engine that samples, or one that dependent launches do not take: then nothing has changed.

        Each draft is compared with the likeliest token of a check's own logits. Their sums go in another
        order than those of the steps that decode one token, so the two differ by rounding.
        """
        from rooflab.engine.drafts import Drafts

        ids = [int(token) for token in tokens]
        if not 0 < len(ids) <= MOST_DRAFTS or not 0 <= min(ids) <= max(ids) < self.vocab:
            raise UsageError(
                f"Drafts are 1 to {MOST_DRAFTS} tokens, each from 0 to {self.vocab - 1}, unlike {ids}."
            )
        if self.inverse_temperature:
            raise UsageError("Drafts are checked greedily: set the engine's temperature to 0 first.")
        if not self.position:
            raise UsageError("The engine needs a prompt before it checks drafts.")
        self._require_room(len(ids))
        if len(ids) not in self._drafts:
            self._drafts[len(ids)] = Drafts(self, len(ids))
        with self.target():
            held, due = self._drafts[len(ids)].check(ids)
        self.position += held
        self.ran["verify"] += 1
        self.ran["drafts held"] += held
        return held, due

    def speculate(self, draft: Decoder, count: int, length: int = 4) -> list[int]:
        """The next `count` tokens by greedy speculation: `draft`, an engine of a model with the same
        vocabulary and after the same tokens, proposes, and checks of up to `length` tokens dispose. Both are
        after the same tokens again in the end. UsageError for engines that do not fit each other.

        Whatever the draft proposes, each token is the likeliest by a check's logits after the tokens before
        it. So they are the tokens of `generate`, except where the two likeliest lie nearer to each other than
        rounding moves logits (see verify): there either may come, and the texts go apart.
        """
        if not 0 < length <= MOST_DRAFTS or count < 1:
            raise UsageError(
                f"Speculation gives 1 token or more by checks of 1 to {MOST_DRAFTS}, not {count} by {length}."
            )
        if draft is self or draft.vocab != self.vocab or draft.inverse_temperature:
            raise UsageError(
                f"A draft is another engine with the same {self.vocab} tokens, at a temperature of 0."
            )
        if self.state.tokens[: self.position].tolist() != draft.state.tokens[: draft.position].tolist():
            raise UsageError("The engine and its draft have to be after the same tokens: prefill both.")
        self._require_room(count)
        draft._require_room(count)
        found: list[int] = []
        draft.rewind(self.position, due := self.due)
        while len(found) < count:
            more = min(length, count - len(found)) - 1
            tokens = [due, *draft.generate(more)[1:], draft.due] if more else [due]
            held, due = self.verify(tokens)
            found += tokens[:held]
            if draft.position < self.position:  # all of them hold, and it has not taken in the last one
                draft.decode(1)
            draft.rewind(self.position, due)
        return found

    def rewind(self, position: int, token: int) -> None:
        """Forget the tokens from `position` on, of which the first is now `token`, to be taken in next."""
        if not 0 < position <= self.position or not 0 <= token < self.vocab:
            raise UsageError(
                f"The engine goes back to 1 to {self.position} tokens, and on with one from 0 to "
                f"{self.vocab - 1}, not to {position} and {token}."
            )
        self.position = position
        self.state.position[...] = position
        due = decoder.candidates(token, self.state.blocks)
        if not self.on_cpu:
            import torch

            due = torch.from_numpy(due)
        self.state.candidates[...] = due

    @property
    def due(self) -> int:
        """The token that comes next, as it was chosen."""
        found = self.state.candidates
        return winner(found if self.on_cpu else found.cpu().numpy())

    @property
    def logits(self) -> Any:
        """Logits [vocab] FP32 that the next token is chosen by, on the device."""
        return self.state.logits

    def target(self) -> AbstractContextManager[None]:
        """Where the weights lie, as a launcher asks."""
        return ops.on("cpu" if self.on_cpu else "gpu")

    # --- what a model's engine says -----------------------------------------------------------------------

    def take(self, ids: Any, start: int = 0) -> None:
        """Launch on the current stream what takes in tokens `ids` [n] int32, on the device, at position
        `start`, and ends with logits and candidates for the next token: what a graph can hold. The caller
        makes sure that they exist and fit, and the host's `position` does not change.
        """
        raise NotImplementedError

    def _steps(self, count: int) -> None:
        raise NotImplementedError

    def _blocks(self) -> int:
        """Thread blocks of a decode step on this GPU."""
        return sms()

    def _written(self) -> list[Any]:
        """Arrays that a step changes and that capturing it has to leave as they were."""
        state = self.state
        return [state.tokens, state.position, state.candidates, state.logits, state.residual]

    # --- how it is launched -------------------------------------------------------------------------------

    def _prompt(self, ids: list[int]) -> None:
        """Take tokens in; by a graph from the second prompt in a row on that is as long and starts there."""
        start, key = self.position, ("prompt", len(ids), self.position)
        given = self._ids(ids)
        self.ran["prompt"] += 1
        if not self.graph or key != self._latest:
            self._latest = key
            self.take(given, start)
            return
        if key not in self._graphs:  # of prompts the latest one's graph is kept
            self._graphs = {k: v for k, v in self._graphs.items() if k[0] != "prompt"}
        kept = self._graphs[key][1] if key in self._graphs else given.clone()
        kept.copy_(given)
        self._captured(key, lambda: self.take(kept, start), keep=kept)()
        self.ran["prompt graph"] += 1

    def _repeat(self, key: Any, step: Callable[[], None], count: int) -> None:
        """Launch a step `count` times, by a graph where there may be one."""
        if self.graph:
            step = self._captured(key, step)
            self.ran["decode graph"] += count
        for _ in range(count):
            step()

    def _captured(self, key: Any, work: Callable[[], None], keep: Any = None) -> Callable[[], None]:
        """`work` as a graph, captured once; `keep` holds on to what the graph reads."""
        if key not in self._graphs:
            self._graphs[key] = captured(work, self._written()), keep
        return self._graphs[key][0]

    def _require_room(self, count: int) -> None:
        if self.position + count > self.capacity:
            raise UsageError(
                f"{count} tokens after {self.position} do not fit a cache of {self.capacity}: reset the "
                "engine, or make one with more capacity."
            )

    def _ids(self, ids: list[int]) -> Any:
        if self.on_cpu:
            return np.array(ids, np.int32)
        import torch

        return torch.tensor(ids, dtype=torch.int32, device=self.device)

    def _new(self, *shape: int, dtype: str = "float16") -> Any:
        """An array of no values yet, where the weights lie."""
        if self.on_cpu:
            return np.full(shape, np.nan if dtype.startswith("float") else 0, dtype)
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of zeros where the weights lie."""
        made = self._new(*shape, dtype=dtype)
        made[...] = 0
        return made


def inverse(temperature: float) -> float:
    """One over a temperature, as kernels take it; 0 for 0, which takes the likeliest token."""
    if not 0 <= temperature < 1e6:
        raise UsageError(f"A temperature lies between 0 and a million, not at {temperature}.")
    return 1 / temperature if temperature else 0.0


def captured(work: Callable[[], None], written: Sequence[Any]) -> Callable[[], None]:
    """What replays `work`, captured in a CUDA graph; arrays in `written` are left as they were."""
    import torch

    saved = [array.clone() for array in written]
    side, graph = _side(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and lets libraries allocate what they keep
        work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    # An engine is a cycle of references. Collected while another is captured, it frees its graphs, which CUDA
    # refuses, and then the capture is lost.
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=side):  # the stream whose workspaces there are now
            work()
    finally:
        gc.enable()
    for array, old in zip(written, saved, strict=True):
        array.copy_(old)
    return graph.replay


@functools.cache
def _side() -> Any:
    """The stream that steps are captured on: one, because kernels keep a workspace for each stream."""
    import torch

    return torch.cuda.Stream()
