"""The engine: a prompt in, tokens out, with a switch for every fast path.

On the GPU prompts run through torch's matrix products (cuBLAS), or for Q8_0 the course's own, with the
course's attention and row kernels between them; tokens through decode_step, without the host in between. On
the CPU, where only NumPy is, a prompt is decoded token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflab import ops
from rooflab.engine.base import Decoder
from rooflab.engine.batch import Batch
from rooflab.engine.products import Products
from rooflab.engine.single import Single
from rooflab.engine.spec import Spec
from rooflab.errors import UsageError
from rooflab.numerics.quant import Planes
from rooflab.ops import attention, batch_plan, decoder, decoder_ops, sms

# Decoding by torch's operators, with as many products as a checkpoint has matrices; with fewer and wider
# ones; and with the course's products.
PLAIN = ("apart", "torch", "products")
CHAIN = "chain"  # decoding by the dependent launches of a batch, of one sequence


@dataclass(frozen=True)
class Paths:
    """Which path the work takes. decode: a rung of decode_step, or "" for the fastest, or "torch" (torch's
    operators), "apart" (the same with a product a matrix of the checkpoint), "products" (with the course's
    matrix-vector products) or "chain" (the dependent launches of a batch, of one sequence). graph: replay
    captured work where the host would launch it piece by piece. rows: the course's kernels between a prompt's
    products, not torch's operators. attention: a rung, or "" for the fastest, or "torch". mmq: a prompt's
    products with Q8_0 weights, and on a Hopper a short prompt's with INT4, by the course's kernels, without
    making FP16 weights of them first. embed: all of a prompt's embeddings in one launch, not one each. fused:
    on a Hopper products with Q8_0 weights by blocks that stay, and gates applied on the way, of FP16 weights
    too where a prompt is long. last: the last layer, once it has left its keys and values, for the last token
    alone, whose logits are asked for.
    """

    decode: str = ""
    graph: bool = True
    rows: bool = True
    attention: str = ""
    mmq: bool = True
    embed: bool = True
    fused: bool = True
    last: bool = True

    def gates_in_product(self, format: str, n: int) -> bool:
        """Whether a Hopper's product of n tokens applies the gates itself: with Q8_0 weights as they are, and
        in a long prompt with FP16 weights, or halves made of others.
        """
        if self.mmq and (format == "q8_0" or format == "int4_g128" and n <= SHORT):
            return self.fused and format == "q8_0"
        return self.fused and n >= GATED


# Tokens of a prompt up to which INT4 weights are multiplied as they are: making halves of Qwen2.5-1.5B's
# takes an H200 about as long as that many tokens gain by cuBLAS.
SHORT = 768
# Tokens of a prompt from which gates are applied by the product with FP16 weights: of fewer, its tiles are
# too few for a GPU's multiprocessors, and cuBLAS with a kernel for the gates is faster.
GATED = 768

# The prefill ladder: each takes one step more.
_WHOLE = Paths(last=False)
_BY_TORCH = replace(_WHOLE, graph=False, rows=False, embed=False, fused=False)
PROMPTS = {
    "1_scalar": replace(_BY_TORCH, attention="1_scalar", mmq=False),
    "2_mmq": replace(_BY_TORCH, attention="1_scalar"),
    "3_flash": _BY_TORCH,
    "4_rows": replace(_BY_TORCH, rows=True),
    "5_embed": replace(_WHOLE, graph=False, fused=False),
    "6_graph": replace(_WHOLE, fused=False),
    "7_fused": _WHOLE,
    "8_last_token": Paths(),
}


class Engine(Decoder):
    """A decoder of the Qwen2 or LLaMA kind."""

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
        known = int(weights.rotations.shape[0])
        super().__init__(spec.shape.vocab, known, weights.norms, capacity, blocks, self.paths.graph)
        ways = [rung.name for rung in decoder.LADDERS["decode_step"]] + [CHAIN]
        ways += () if self.on_cpu else PLAIN
        if (way := self.paths.decode) not in ("", *ways):
            raise UsageError(f"There is no path {way!r} to decode; there are {', '.join(ways)}.")
        with self.target():
            self.state = decoder.state_for(spec.shape, self.capacity, self.blocks, self.zeros)
        self.products = Products(spec.shape, weights, self.ran)
        self._workspace: Any = None
        self._single: Single | None = None

    def batch(self, size: int, capacity: int | None = None) -> Batch:
        """`size` sequences decoded together on this engine's weights, with a cache of `capacity` each."""
        return Batch(self, size, capacity)

    def _blocks(self) -> int:
        return decoder.blocks_for(self.spec.shape, self.weights.format, sms())

    def decoding(self, count: int = 1) -> str:
        """The path by which the next `count` tokens are decoded: the chosen one, or the fastest after as many
        tokens as the engine holds.
        """
        if self.paths.decode:
            return self.paths.decode
        arch, context = "89" if self.on_cpu else ops.this_arch(), self.position + count
        shape, weights, whole = self.spec.shape, self.weights, self.spec.parts == 1
        if whole and batch_plan.is_fastest(shape, weights.format, weights.head_format, arch, context):
            return CHAIN
        return decoder.fastest(shape, weights.format, arch, context)

    # --- decoding -----------------------------------------------------------------------------------------

    def _steps(self, count: int) -> None:
        self._decode(self.decoding(count), count)

    def _decode(self, path: str, count: int) -> None:
        self.ran[f"decode {path}"] += count
        if path == CHAIN:
            self._single = self._single or Single(self)
            self._single.follow(self.position, self.due)
            self._single.decode(count)
            return
        if path in decoder.PERSISTENT:
            self._decode_rung(path, count)
            return
        self._repeat(
            ("decode", path), self._plain if path in PLAIN else (lambda: self._decode_rung(path, 1)), count
        )

    def _decode_rung(self, rung: str, steps: int) -> None:
        decoder.step(
            self.spec.shape,
            self.weights,
            self.state,
            steps=steps,
            inverse_temperature=self.inverse_temperature,
            seed=self.seed,
            rung=rung,
        )

    def _plain(self) -> None:
        """A step by torch's operators, with its products by torch or by the course's kernels."""
        import torch

        shape, state, weights = self.spec.shape, self.state, self.weights
        products = zip(PLAIN, (self.products.apart, self.products.cublas, self.products.one), strict=True)
        product = dict(products)[self.paths.decode]
        if self._workspace is None:
            splits = max(1, self.blocks // shape.kv_heads)
            self._workspace = attention.workspace_for(state.queries.view(shape.heads, shape.head_dim), splits)
        candidates = state.candidates.view(torch.int32)
        position = state.position.long()
        token = candidates[:1, 1]
        state.tokens.index_copy_(0, position, token)
        h = self._embedded(token).float()
        rotary = weights.rotations.index_select(0, position)
        cos, sin = rotary[..., 0], rotary[..., 1]
        for layer in range(shape.layers):
            x = self._norm(h, 2 * layer)
            rows = product("qkv", layer, x) + weights.biases[layer]
            rows = decoder.unpair_heads(rows[0], shape.head_dim).view(1, -1, shape.head_dim)
            q, k, v = rows.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
            q, k = (self._rotate(part, cos, sin) for part in (q, k))
            state.cache_k[layer].index_copy_(0, position, k)
            state.cache_v[layer].index_copy_(0, position, v)
            out = attention.decode_attention(
                q[0].contiguous(),
                state.cache_k[layer],
                state.cache_v[layer],
                state.position + 1,
                workspace=self._workspace,
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
        if self.inverse_temperature:
            logits = logits * self.inverse_temperature - torch.log(
                -torch.log(torch.rand_like(logits).clamp(1e-7, 1 - 1e-7))
            )
        state.candidates[:, 0] = float("-inf")
        state.candidates[:1, :1].zero_()
        candidates[0, 1:2].copy_(logits.argmax().view(1))

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
    def _rotate(x: Any, cos: Any, sin: Any) -> Any:
        import torch

        a, b = x.float().chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).half()

    # --- a prompt -----------------------------------------------------------------------------------------

    def _prompt(self, ids: list[int]) -> None:
        if not self.on_cpu:
            super()._prompt(ids)
            return
        chosen = self.decoding()
        for token in ids:
            self.state.candidates[...] = decoder.candidates(token, self.blocks)
            self._decode("3_persistent" if chosen == CHAIN else chosen, 1)
        self.ran["prompt by steps"] += 1

    def take(self, ids: Any, start: int = 0) -> None:
        shape, state, weights = self.spec.shape, self.state, self.weights
        n, end = int(ids.shape[0]), start + int(ids.shape[0])
        residual = self._residual(ids)
        branch: Any = None
        x, queries = self._new(n, shape.hidden), self._new(n, shape.heads, shape.head_dim)
        out = self._new(n, shape.heads, shape.head_dim)
        for layer in range(shape.layers):
            keys, values = state.cache_k[layer], state.cache_v[layer]
            self._rmsnorm(residual, branch, 2 * layer, x)
            rows = self._product("qkv", layer, x)
            self._rope(layer, rows, queries, keys[start:end], values[start:end], start)
            if self.paths.last and layer + 1 == shape.layers:  # what is left to do concerns no other token
                start, n = end - 1, 1
                residual, x, queries, out = (each[-1:] for each in (residual, x, queries, out))
            self._attention(queries, keys, values, start, end, out)
            branch = self._product("out", layer, out.reshape(n, shape.attended))
            self._rmsnorm(residual, branch, 2 * layer + 1, x)
            both = self._product("gate_up", layer, x)
            branch = self._product("down", layer, self._silu_mul(both))
        state.residual[...] = residual[-1] + branch[-1]
        state.tokens[end - int(ids.shape[0]) : end] = ids
        state.position[...] = end
        decoder.head(shape, weights, state, inverse_temperature=self.inverse_temperature, seed=self.seed)

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

    def _rmsnorm(self, residual: Any, branch: Any, which: int, x: Any) -> None:
        if self.paths.rows:
            self.ran["rows own"] += 1
            norm, epsilon = self.weights.norms[which], self.spec.shape.epsilon
            decoder_ops.rmsnorm(residual, norm, out=x, branch=branch, epsilon=epsilon)
            return
        self.ran["rows torch"] += 1
        if branch is not None:
            residual += branch
        x.copy_(self._norm(residual, which))

    def _rope(self, layer: int, rows: Any, q: Any, k: Any, v: Any, start: int) -> None:
        shape, weights = self.spec.shape, self.weights
        if self.paths.rows:
            decoder_ops.rope(rows, weights.biases[layer], weights.rotations, q, k, v, start=start)
            return
        flat = decoder.unpair_heads((rows + weights.biases[layer]).t(), shape.head_dim).t()
        parts = flat.reshape(len(rows), -1, shape.head_dim)
        parts = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        rotary = weights.rotations[start : start + len(rows)]
        for to, part in zip((q, k), parts[:2], strict=True):
            to.copy_(self._rotate(part, rotary[..., 0], rotary[..., 1]))
        v.copy_(parts[2])

    def _silu_mul(self, both: Any) -> Any:
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
        if name == "gate_up" and hopper and self.paths.gates_in_product(self.weights.format, len(x)):
            return self.products.gated(layer, x, self.paths.rows)
        return self.products.cublas(name, layer, x, self.paths.rows)


# What takes a prompt in, as records of prompts digest it: how tokens are decoded is no part of it.
PROMPT_METHODS = (
    *(Engine.take, Engine._residual, Engine._embedded, Engine._planes, Engine._rmsnorm, Engine._norm),
    *(Engine._rope, Engine._rotate, Engine._silu_mul, Engine._attention, Engine._product),
)
