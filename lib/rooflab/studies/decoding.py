"""What the studies of lesson 08 share: one checkpoint for all contestants, judging by float64 logits, and
generating by the transformers library.

All contestants of a model have the same weights, in the format of the case. Decoding is judged on a
contestant's own tokens: each must be one that float64 would have chosen, up to what a float16 baseline may be
off, and so must the last logits. What the cache held before is an operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rooflab import engine
from rooflab.bench import gate
from rooflab.engine import exact
from rooflab.engine.exact import Past
from rooflab.engine.weights import Tensors, random_tensors
from rooflab.numerics import model_shapes
from rooflab.studies import hf


@functools.lru_cache(maxsize=1)
def checkpoint(model: str) -> Tensors:
    """Random tensors of a model's shapes by name: those of transformers' own model where there is one."""
    if model not in hf.MODELS:
        return random_tensors(engine.spec(model))
    state = hf.model(model).state_dict()
    return lambda name: state[name]


@functools.lru_cache(maxsize=1)
def packed(model: str, format: str, head: str, capacity: int) -> Any:
    """The checkpoint as the engine reads it."""
    return engine.pack(engine.spec(model), checkpoint(model), format, head, capacity=capacity)


@functools.lru_cache(maxsize=1)
def library(model: str) -> Any:
    """The checkpoint as transformers runs it."""
    return hf.model(model) if model in hf.MODELS else hf.llama(engine.spec(model), checkpoint(model))


def prompt(model: str, batch: int, count: int) -> Any:
    """Token ids [batch, count], the same in every process."""
    return hf.tokens(batch * count, model_shapes.get(model).vocab).view(batch, count)


# --- float64 ------------------------------------------------------------------------------------------------

Computed = Callable[[Any, str, bool], Any]  # tokens [batch, steps], dtype, rounded to their logits


class Judge:
    """What float64 says of tokens generated after a given past, `context` tokens of a prompt; `computed`
    gives logits [batch, steps, vocab] after tokens [batch, steps].
    """

    def __init__(self, model: str, batch: int, context: int, vocab: int, computed: Computed):
        self.model, self.batch, self.context, self.vocab = model, batch, context, vocab
        self.computed = computed
        self._known: tuple[Any, Any] = (None, None)

    def exact(self, tokens: Any) -> Any:
        """Logits [batch, steps, vocab] in float64 after each of tokens [batch, steps]."""
        known = self._known[0]
        if known is None or known.shape != tokens.shape or not bool((known == tokens).all()):
            self._known = tokens.clone(), self.computed(tokens, "float64", False)
        return self._known[1]

    def budget(self, steps: int, rounded: bool = False) -> float:
        """The largest error allowed of a logit: of a float16 baseline on random tokens, twice; `rounded`: of
        one that multiplies Q8_1.
        """
        import cupy

        tokens = prompt(self.model, self.batch, self.context + steps)[:, self.context :].contiguous()
        expected = self.exact(tokens)
        error = float((self.computed(tokens, "float16", rounded).double() - expected).abs().max())
        return gate.error_budget(error, cupy.asarray(expected), "float16")

    def deviation(self, outputs: Sequence[Any]) -> Any:
        """How far tokens [batch, steps] and last logits [batch, vocab] are off: of every token after the
        first, by how much its logit lies under the largest one, then the last logits' errors; FP64, flat.
        """
        import cupy
        import torch

        tokens, last = (array.view(self.batch, -1) for array in outputs)
        if not bool(((tokens >= 0) & (tokens < self.vocab)).all()):  # poisoned or worse
            return cupy.full(tokens.numel() - self.batch + last.numel(), cupy.nan)
        tokens = tokens.long()
        known = self.exact(tokens)
        before = known[:, :-1]
        regret = before.amax(-1) - before.gather(-1, tokens[:, 1:, None])[..., 0]
        error = last.double() - known[:, -1]
        return cupy.from_dlpack(torch.cat((regret.reshape(-1), error.reshape(-1))))


def judge(model: str, format: str, head: str, past: Past, batch: int) -> Judge:
    """A judge of what follows a cache's content, which is an operand."""
    spec, get, context = engine.spec(model), checkpoint(model), int(past[0][0].shape[2])

    def computed(tokens: Any, dtype: str, rounded: bool) -> Any:
        return exact.logits(spec, get, tokens, format, head, dtype, past=past, rounded=rounded)

    return Judge(model, batch, context, spec.shape.vocab, computed)


# --- transformers -------------------------------------------------------------------------------------------


class Generate:
    """Tokens by the transformers library over a static cache: each step takes the likeliest token of the step
    before, without the host in between. `run(count)` starts over from the end of the prompt.
    """

    def __init__(self, found: Any, ids: Any, steps: int, impl: str):
        import torch
        import transformers

        self.model, self.start = found, int(ids.shape[1])
        batch, capacity = int(ids.shape[0]), self.start + steps
        self.cache = transformers.StaticCache(config=found.config, max_cache_len=capacity)
        with torch.no_grad():
            out = found(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.first = out.logits[:, -1].argmax(-1, keepdim=True)
        self.counters = [layer.cumulative_length for layer in self.cache.layers]
        self.token = self.first.clone()
        self.position = torch.full((1, 1), self.start, device=found.device)
        self.places = torch.arange(capacity, device=found.device)
        self.tokens = torch.zeros((batch, steps), dtype=torch.int32, device=found.device)
        self.logits = torch.zeros((batch, found.config.vocab_size), dtype=found.dtype, device=found.device)
        self.impl = impl

    @functools.cached_property
    def one(self) -> Callable[[], Any]:
        """What makes the next token, compiled and captured when first asked for."""
        if self.impl == "transformers.eager":
            return self._step
        forward = hf.as_run(self._forward, self.impl)
        return hf.captured(lambda: self._step(forward))

    def _forward(self, token: Any, position: Any, mask: Any) -> tuple[Any, Any]:
        masks = {"full_attention": mask} if self.model.config.model_type == "qwen2" else mask
        out = self.model(
            token, attention_mask=masks, position_ids=position, past_key_values=self.cache, use_cache=True
        )
        last = out.logits[:, -1]
        return last, last.argmax(-1, keepdim=True)

    def _step(self, forward: Any = None) -> None:
        import torch

        with torch.no_grad():
            mask = (self.places <= self.position)[None, None]
            self.tokens.index_copy_(1, self.position[0] - self.start, self.token.int())
            last, following = (forward or self._forward)(self.token, self.position, mask)
            self.logits.copy_(last)
            self.token.copy_(following)
            self.position.add_(1)

    def run(self, count: int) -> None:
        """The next `count` tokens after the prompt."""
        one = self.one
        for counter in self.counters:
            counter.fill_(self.start)
        self.position.fill_(self.start)
        self.token.copy_(self.first)
        for _ in range(count):
            one()

    @property
    def past(self) -> Past:
        """What the cache holds of the prompt."""
        return [
            (layer.keys[:, :, : self.start], layer.values[:, :, : self.start]) for layer in self.cache.layers
        ]
