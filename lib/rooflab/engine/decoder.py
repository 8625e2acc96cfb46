"""The engine: a prompt in, tokens out, with a switch for every fast path.

On the GPU prompts run through torch's matrix products (cuBLAS), or for Q8_0 the course's own, with the
course's attention and row kernels between them; tokens through decode_step, without the host in between. On
the CPU, where only NumPy is, a prompt is decoded token by token.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.engine.batch import Batch
from rooflab.engine.products import Products
from rooflab.engine.spec import Spec
from rooflab.errors import UsageError
from rooflab.numerics.quant import Planes
from rooflab.ops import attention, decoder, decoder_ops

# Decoding by torch's operators, with as many products as a checkpoint has matrices; with fewer and wider
# ones; and with the course's products.
PLAIN = ("apart", "torch", "products")


@dataclass(frozen=True)
class Paths:
    """Which way the work takes. decode: a rung of decode_step, or "" for the fastest, or "torch" (torch's
    operators), "apart" (the same with a product a matrix of the checkpoint) or "products" (with the course's
    matrix-vector products). graph: replay captured work
    where the host would launch it piece by piece. rows: the course's kernels between a prompt's products, not
    torch's operators. attention: a rung, or "" for the fastest, or "torch". mmq: a prompt's products with
    Q8_0 weights, and on a Hopper a short prompt's with INT4, by the course's kernels, without making FP16
    weights of them first. embed: all of a prompt's embeddings in one launch, not one each. fused: on a Hopper
    those products by blocks that stay, and gates applied on the way.
    """

    decode: str = ""
    graph: bool = True
    rows: bool = True
    attention: str = ""
    mmq: bool = True
    embed: bool = True
    fused: bool = True


# Tokens of a prompt up to which INT4 weights are multiplied as they are: making halves of Qwen2.5-1.5B's
# takes an H200 about as long as that many tokens gain by cuBLAS.
SHORT = 768

# The prefill ladder: each takes one step more.
PROMPTS = {
    "1_scalar": Paths(graph=False, rows=False, attention="1_scalar", mmq=False, embed=False, fused=False),
    "2_mmq": Paths(graph=False, rows=False, attention="1_scalar", embed=False, fused=False),
    "3_flash": Paths(graph=False, rows=False, embed=False, fused=False),
    "4_rows": Paths(graph=False, embed=False, fused=False),
    "5_embed": Paths(graph=False, fused=False),
    "6_graph": Paths(fused=False),
    "7_fused": Paths(),
}


class Engine:
    """A decoder with its cache, at batch 1. `ran` counts what ran, by path."""

    def __init__(
        self,
        spec: Spec,
        weights: decoder.Weights,
        *,
        capacity: int | None = None,
        paths: Paths | None = None,
        blocks: int | None = None,
    ):
        self.spec, self.weights, self.paths = spec, weights, paths or Paths()
        self.on_cpu = isinstance(weights.norms, np.ndarray)
        if not self.paths.decode:
            arch = "89" if self.on_cpu else ops.this_arch()
            self.paths = replace(
                self.paths, decode=decoder.fastest(weights.format, arch, spec.shape.head_dim)
            )
        known = [rung.name for rung in decoder.LADDERS["decode_step"]]
        if self.paths.decode not in (*known, *PLAIN) or (self.on_cpu and self.paths.decode in PLAIN):
            raise UsageError(
                f"There is no way {self.paths.decode!r} to decode; there are {', '.join(known)}"
                f"{'' if self.on_cpu else ', ' + ', '.join(PLAIN)}."
            )
        rows = int(weights.rotations.shape[0])
        self.capacity = rows if capacity is None else capacity
        if not 0 < self.capacity <= rows:
            raise UsageError(
                f"The weights know {rows} positions, so a capacity of {self.capacity} is refused."
            )
        self.blocks = blocks or (4 if self.on_cpu else decoder.blocks_for(spec.shape, weights.format, _sms()))
        with self.target():
            self.state = decoder.state_for(spec.shape, self.capacity, self.blocks, self._zeros)
        self.heat, self.seed = 0.0, 0
        self.ran: collections.Counter[str] = collections.Counter()
        self.products = Products(spec.shape, weights, self.ran)
        self._graphs: dict[Any, tuple[Callable[[], None], Any]] = {}
        self._room: Any = None
        self._latest: Any = None
        self.position = 0  # the device's, as the host knows it

    # --- what a caller sees -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = 0
        self.state.position[...] = 0

    def sample(self, temperature: float, seed: int = 0) -> None:
        """Draw tokens at a temperature from now on; 0 takes the likeliest."""
        if not 0 <= temperature < 1e6:
            raise UsageError(f"A temperature lies between 0 and a million, not at {temperature}.")
        self.heat, self.seed = 1 / temperature if temperature else 0.0, seed
        self._graphs.clear()

    def prefill(self, tokens: Sequence[int]) -> None:
        """Take in tokens after those that are there; what comes next is chosen among `logits`. A prompt may
        come in pieces. UsageError for a token that does not exist, none at all, or more than fit: then
        nothing has changed.
        """
        ids = [int(token) for token in tokens]
        if not ids or not all(0 <= token < self.spec.shape.vocab for token in ids):
            raise UsageError(f"A prompt is one token or more, each from 0 to {self.spec.shape.vocab - 1}.")
        self._fits(len(ids))
        if self.on_cpu:
            with ops.on("cpu"):
                for token in ids:
                    self.state.bests[...] = decoder.candidates(token, self.blocks)
                    self._step(1)
            self.ran["prompt by steps"] += 1
        else:
            self._prompt(ids)
        self.position += len(ids)

    def generate(self, count: int) -> list[int]:
        """The next `count` tokens: all decoded on the device, and asked for in the end."""
        self.decode(count)
        found = self.state.tokens[self.position - count : self.position]
        return [int(token) for token in found.tolist()]

    def decode(self, count: int) -> None:
        """What generate does, without asking."""
        if count < 1:
            raise UsageError(f"The engine generates one token or more, not {count}.")
        self._fits(count)
        if not self.position:
            raise UsageError("The engine needs a prompt before it can go on.")
        with self.target():
            self._step(count)
        self.position += count

    @property
    def logits(self) -> Any:
        """Logits [vocab] FP32 that the next token is chosen by, on the device."""
        return self.state.logits

    def batch(self, size: int, capacity: int | None = None) -> Batch:
        """`size` sequences decoded together on this engine's weights, with a cache of `capacity` each."""
        return Batch(self, size, capacity)

    def target(self) -> AbstractContextManager[None]:
        """Where the weights lie, as a launcher asks."""
        return ops.on("cpu" if self.on_cpu else "gpu")

    # --- decoding -----------------------------------------------------------------------------------------

    def _step(self, count: int) -> None:
        way = self.paths.decode
        self.ran[f"decode {way}"] += count
        if way in decoder.PERSISTENT:
            self._decode_rung(count)
            return
        one = self._plain if way in PLAIN else (lambda: self._decode_rung(1))
        if self.on_cpu or not self.paths.graph:
            for _ in range(count):
                one()
            return
        replay, _ = self._captured(("decode", way), one, keep=self.state)
        for _ in range(count):
            replay()
        self.ran["decode graph"] += count

    def _decode_rung(self, steps: int) -> None:
        decoder.step(
            self.spec.shape,
            self.weights,
            self.state,
            steps=steps,
            heat=self.heat,
            seed=self.seed,
            rung=self.paths.decode,
        )

    def _plain(self) -> None:
        """A step by torch's operators, with its products by torch or by the course's kernels."""
        import torch

        shape, state, weights = self.spec.shape, self.state, self.weights
        ways = zip(PLAIN, (self.products.apart, self.products.cublas, self.products.one), strict=True)
        product = dict(ways)[self.paths.decode]
        if self._room is None:
            splits = max(1, self.blocks // shape.kv_heads)
            self._room = attention.room_for(state.queries.view(shape.heads, shape.head_dim), splits)
        bests = state.bests.view(torch.int32)
        place = state.position.long()
        token = bests[:1, 1]
        state.tokens.index_copy_(0, place, token)
        h = self._embedded(token).float()
        turns = weights.rotations.index_select(0, place)
        cos, sin = turns[..., 0], turns[..., 1]
        for layer in range(shape.layers):
            x = self._norm(h, 2 * layer)
            rows = product("qkv", layer, x) + weights.biases[layer]
            rows = decoder.unpair_heads(rows[0], shape.head_dim).view(1, -1, shape.head_dim)
            q, k, v = rows.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
            q, k = (self._turn(part, cos, sin) for part in (q, k))
            state.cache_k[layer].index_copy_(0, place, k)
            state.cache_v[layer].index_copy_(0, place, v)
            out = attention.decode_attention(
                q[0].contiguous(),
                state.cache_k[layer],
                state.cache_v[layer],
                state.position + 1,
                room=self._room,
            )
            h = h + product("out", layer, out.view(1, -1)).float()
            both = product("gate_up", layer, self._norm(h, 2 * layer + 1)).view(-1, 2, 8)
            inner = torch.nn.functional.silu(both[:, 0]) * both[:, 1]
            h = h + product("down", layer, inner.reshape(1, -1)).float()
        state.position.add_(1)
        logits = product("head", None, self._norm(h, 2 * shape.layers))[0].float()
        if shape.softcap:
            logits = shape.softcap * torch.tanh(logits / shape.softcap)
        state.logits.copy_(logits)
        if self.heat:
            logits = logits * self.heat - torch.log(-torch.log(torch.rand_like(logits).clamp(1e-7, 1 - 1e-7)))
        state.bests[:, 0] = float("-inf")
        state.bests[:1, :1].zero_()
        bests[0, 1:2].copy_(logits.argmax().view(1))

    def _embedded(self, tokens: Any) -> Any:
        table = self.weights.embedding
        if not isinstance(table, Planes):
            return table.index_select(0, tokens)
        quants, scales = (plane.index_select(0, tokens).float() for plane in self._planes(table))
        return quants * scales.repeat_interleave(32, 1)

    @staticmethod
    def _planes(matrix: Any) -> tuple[Any, Any]:
        return matrix.quants, matrix.scales

    def _norm(self, h: Any, which: int) -> Any:
        scale = (h.square().mean(-1, keepdim=True) + self.spec.shape.epsilon).rsqrt()
        return (h * scale * self.weights.norms[which].float()).half()

    @staticmethod
    def _turn(x: Any, cos: Any, sin: Any) -> Any:
        import torch

        a, b = x.float().chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).half()

    # --- a prompt -----------------------------------------------------------------------------------------

    def _prompt(self, ids: list[int]) -> None:
        import torch

        start, key = self.position, ("prompt", len(ids), self.position)
        given = torch.tensor(ids, dtype=torch.int32, device=self.state.tokens.device)
        self.ran["prompt"] += 1
        if not self.paths.graph or key != self._latest:  # the first of its kind is not worth a capture
            self._latest = key
            self.take(given, start)
            return
        if key not in self._graphs:  # of prompts the latest one's graph is kept
            self._graphs = {k: v for k, v in self._graphs.items() if k[0] != "prompt"}
        kept = self._graphs[key][1] if key in self._graphs else torch.empty_like(given)
        kept.copy_(given)
        replay, _ = self._captured(key, lambda: self.take(kept, start), keep=kept)
        replay()
        self.ran["prompt graph"] += 1

    def take(self, ids: Any, start: int = 0) -> None:
        """Launch on the current stream what takes in tokens `ids` [n] int32, on the device, at position
        `start`, and ends with logits and candidates for the next token: what a graph can hold. That they
        exist and fit is the caller's to know, and the host's `position` stays as it is.
        """
        shape, state, weights = self.spec.shape, self.state, self.weights
        n, end = int(ids.shape[0]), start + int(ids.shape[0])
        residual = self._residual(ids)
        branch: Any = None
        x, queries = self._new(n, shape.hidden), self._new(n, shape.heads, shape.head_dim)
        out = self._new(n, shape.heads, shape.head_dim)
        for layer in range(shape.layers):
            keys, values = state.cache_k[layer], state.cache_v[layer]
            self._norm_rows(residual, branch, 2 * layer, x)
            rows = self._product("qkv", layer, x)
            self._rotate_rows(layer, rows, queries, keys[start:end], values[start:end], start)
            self._attention(queries, keys, values, start, end, out)
            branch = self._product("out", layer, out.reshape(n, shape.attended))
            self._norm_rows(residual, branch, 2 * layer + 1, x)
            both = self._product("gate_up", layer, x)
            branch = self._product("down", layer, self._gate_rows(both))
        state.residual[...] = residual[-1] + branch[-1]
        state.tokens[start:end] = ids
        state.position[...] = end
        decoder.head(shape, weights, state, heat=self.heat, seed=self.seed)

    def _new(self, *sizes: int, dtype: str = "float16") -> Any:
        """An array of no values yet, where the weights lie."""
        if self.on_cpu:
            return np.full(sizes, np.nan, dtype)
        import torch

        return torch.empty(sizes, dtype=getattr(torch, dtype), device=self.state.tokens.device)

    def _residual(self, ids: Any) -> Any:
        """The rows of a prompt's tokens in the embedding, FP32."""
        table, count = self.weights.embedding, int(ids.shape[0])
        self.ran["embedded at once" if self.paths.embed else "embedded one by one"] += 1
        if not self.paths.rows and self.paths.embed:
            return self._embedded(ids).float()
        out = self._new(count, self.spec.shape.hidden, dtype="float32")
        if self.paths.embed:
            return decoder_ops.embedding(table, ids, out=out)
        for i in range(count):
            decoder_ops.embedding(table, ids, out=out, first=i, count=1)
        return out

    def _norm_rows(self, residual: Any, branch: Any, which: int, x: Any) -> None:
        if self.paths.rows:
            self.ran["rows own"] += 1
            norm, epsilon = self.weights.norms[which], self.spec.shape.epsilon
            decoder_ops.rmsnorm(residual, norm, out=x, branch=branch, epsilon=epsilon)
            return
        self.ran["rows torch"] += 1
        if branch is not None:
            residual += branch
        x.copy_(self._norm(residual, which))

    def _rotate_rows(self, layer: int, rows: Any, q: Any, k: Any, v: Any, start: int) -> None:
        shape, weights = self.spec.shape, self.weights
        if self.paths.rows:
            decoder_ops.rope(rows, weights.biases[layer], weights.rotations, q, k, v, start=start)
            return
        flat = decoder.unpair_heads((rows + weights.biases[layer]).t(), shape.head_dim).t()
        parts = flat.reshape(len(rows), -1, shape.head_dim)
        parts = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        turns = weights.rotations[start : start + len(rows)]
        for to, part in zip((q, k), parts[:2], strict=True):
            to.copy_(self._turn(part, turns[..., 0], turns[..., 1]))
        v.copy_(parts[2])

    def _gate_rows(self, both: Any) -> Any:
        mlp = self.spec.shape.mlp
        if both.shape[1] == mlp:  # the product has applied the gates
            return both
        if self.paths.rows:
            return decoder_ops.silu_mul(both, out=self._new(len(both), mlp))
        import torch

        split = both.view(len(both), -1, 2, 8)
        silu = torch.nn.functional.silu(split[:, :, 0].float())
        return (silu * split[:, :, 1]).half().reshape(len(both), mlp)

    def _attention(self, q: Any, k: Any, v: Any, start: int, end: int, out: Any) -> None:
        wanted = self.paths.attention
        self.ran[f"attention {wanted or 'own'}"] += 1
        if wanted == "torch":
            import torch

            heads = (part.transpose(0, 1)[None] for part in (q, k[:end], v[:end]))
            seen = torch.ones((end - start, end), dtype=torch.bool, device=q.device).tril(start)
            attend = torch.nn.functional.scaled_dot_product_attention
            out.copy_(attend(*heads, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1))
            return
        attention.attention(q, k, v, start=start, context=end, out=out, rung=wanted or None)

    def _product(self, name: str, layer: int, x: Any) -> Any:
        """A prompt's product: the course's for Q8_0 and INT4 if asked for, else cuBLAS on FP16."""
        hopper = not self.on_cpu and ops.this_arch() == "90"
        if self.weights.format == "int4_g128" and self.paths.mmq and hopper and len(x) <= SHORT:
            return self.products.few(name, layer, x)
        if self.weights.format == "q8_0" and self.paths.mmq:
            return self.products.prompt(name, layer, x, self.paths.fused)
        return self.products.cublas(name, layer, x, self.paths.rows)

    # --- helpers ------------------------------------------------------------------------------------------

    def _fits(self, count: int) -> None:
        if self.position + count > self.capacity:
            raise UsageError(
                f"{count} tokens after {self.position} do not fit a cache of {self.capacity}: reset the "
                "engine, or make one with more capacity."
            )

    def _captured(self, key: Any, work: Callable[[], None], keep: Any) -> tuple[Callable[[], None], Any]:
        """`work` captured in a graph, once; what it counts in `ran` is of the capture."""
        if key in self._graphs:
            return self._graphs[key]
        import torch

        state, before = self.state, self.position
        saved = [array.clone() for array in (state.tokens, state.position, state.bests, state.logits)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles, and lets libraries allocate what they keep
            work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        for array, old in zip((state.tokens, state.position, state.bests, state.logits), saved, strict=True):
            array.copy_(old)
        self.position = before
        self._graphs[key] = (graph.replay, keep)
        return self._graphs[key]

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        if self.on_cpu:
            return np.zeros(shape, dtype)
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.weights.norms.device)


def _sms() -> int:
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])
