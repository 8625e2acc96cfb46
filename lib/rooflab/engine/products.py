"""A decoder's products of activations with weights, by format: torch's (cuBLAS), the course's, or the first
on FP16 weights that the course's kernels make of others on the way.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from rooflab import ops
from rooflab.numerics.quant import Planes
from rooflab.ops import decoder, decoder_ops, gemv, int4, mmq, prompt_products, q8_0


class Products:
    """Products with the matrices of `weights`; `ran` counts which ran."""

    def __init__(self, shape: decoder.Shape, weights: decoder.Weights, ran: collections.Counter[str]):
        self.shape, self.weights, self.ran = shape, weights, ran

    def matrix(self, name: str, layer: int | None) -> Any:
        """A layer's matrix, or the head, as it lies in memory."""
        whole = getattr(self.weights, name)
        if layer is None:
            return whole
        if isinstance(whole, Planes):
            return Planes(whole.scales[layer], whole.quants[layer])
        return whole[layer]

    def format(self, name: str) -> str:
        """What `name` is stored in."""
        return self.weights.head_format if name == "head" else self.weights.format

    def halves(self, name: str, layer: int | None, own: bool = True) -> Any:
        """A matrix in FP16, made on the way if it is in another format: of INT4 by the course's kernel, or
        by torch's operators.
        """
        matrix, kind = self.matrix(name, layer), self.format(name)
        if kind == "fp16":
            return matrix
        self.ran[f"dequantised {kind}{' own' if own and kind != 'q8_0' else ''}"] += 1
        if isinstance(matrix, Planes) and isinstance(matrix.quants, np.ndarray):
            return (matrix.quants * matrix.scales.repeat(32, 1).astype(np.float32)).astype(np.float16)
        if isinstance(matrix, np.ndarray):
            n, k = self.shape.matrices[name]
            return decoder_ops.dequantise_tiles(int4.Tiles(matrix, n, k), out=np.empty((n, k), np.float16))
        if kind == "q8_0":
            scaled = matrix.quants.view(*matrix.scales.shape, 32) * matrix.scales[..., None]
            return scaled.view(matrix.quants.shape)
        import torch

        n, k = self.shape.matrices[name]
        if own:
            out = torch.empty((n, k), dtype=torch.float16, device=matrix.device)
            return decoder_ops.dequantise_tiles(int4.Tiles(matrix, n, k), out=out)
        blocks = matrix.view(torch.int32)
        words = blocks[..., 32:].long() & 0xFFFFFFFF
        words = (words >> 2 | words << 30) & 0xFFFFFFFF
        places = torch.arange(0, 32, 4, device=words.device)
        nibbles = (words[..., None] >> places & 15).to(torch.int8) - 8
        tiles, groups = blocks.shape[:2]
        split = nibbles.view(tiles, groups, 4, 2, 8, 4, 4, 2, 2, 2)  # m half g t step e kk r
        codes = split.permute(0, 2, 9, 4, 1, 3, 6, 8, 5, 7).reshape(n, groups, 128)
        scales = blocks[..., :32].contiguous().view(torch.float16).view(tiles, groups, 8, 4, 2)
        scales = scales.permute(0, 3, 4, 2, 1).reshape(n, groups, 1)
        return (codes * scales).view(n, k)

    def cublas(self, name: str, layer: int | None, x: Any, own: bool = True) -> Any:
        """x [n, k] times a matrix, by torch; on the CPU by NumPy."""
        self.ran["product cublas"] += 1
        matrix = self.halves(name, layer, own)
        if isinstance(x, np.ndarray):
            return (x.astype(np.float32) @ matrix.astype(np.float32).T).astype(np.float16)
        return x @ matrix.t()

    def apart(self, name: str, layer: int | None, x: Any) -> Any:
        """A single token's product by torch, in as many as a checkpoint has matrices: three for queries, keys
        and values, two for gate and up, each with as many rows as its matrix.
        """
        import torch

        s, matrix = self.shape, self.halves(name, layer)
        kv = s.kv_heads * s.head_dim
        sizes = {"qkv": [s.attended, kv, kv], "gate_up": [s.mlp, s.mlp]}.get(name, [len(matrix)])
        out = torch.empty((1, len(matrix)), dtype=x.dtype, device=x.device)
        for rows, part in zip(matrix.split(sizes), out.split(sizes, 1), strict=True):
            self.ran["product apart"] += 1
            torch.mm(x, rows.t(), out=part)
        return out

    def one(self, name: str, layer: int | None, x: Any) -> Any:
        """A single token's product, x [1, k], by the course's kernels."""
        matrix, kind = self.matrix(name, layer), self.format(name)
        self.ran[f"product {kind}"] += 1
        if kind == "fp16":
            return gemv.gemv_rows(matrix, x.view(-1)).view(1, -1)
        if kind == "q8_0":
            return q8_0.matvec(q8_0.quantise(x), matrix)
        return int4.matmul(x, int4.Tiles(matrix, *self.shape.matrices[name]))

    def few(self, name: str, layer: int | None, x: Any) -> Any:
        """A batch's product, up to 64 tokens: the course's for INT4 and Q8_0, cuBLAS for FP16."""
        kind = self.format(name)
        if kind == "fp16":
            return self.cublas(name, layer, x)
        if kind == "q8_0":
            return self.mmq(name, layer, x)
        self.ran[f"product {kind}"] += 1
        return int4.matmul(x, int4.Tiles(self.matrix(name, layer), *self.shape.matrices[name]))

    def mmq(self, name: str, layer: int | None, x: Any) -> Any:
        """The course's product of Q8_0 weights for a batch's tokens, rounded to Q8_1 where that is faster."""
        self.ran["product mmq"] += 1
        return mmq.multiply(x, self.matrix(name, layer))

    def prompt(self, name: str, layer: int | None, x: Any, fused: bool = True) -> Any:
        """The course's product of Q8_0 weights for a prompt's tokens, on a Hopper unrounded however few; if
        `fused` by blocks that stay, and gate_up's with its gates applied.
        """
        if isinstance(x, np.ndarray) or ops.this_arch() != "90":
            return self.mmq(name, layer, x)
        self.ran["product mmq"] += 1
        if not fused:
            return mmq.product(x, self.matrix(name, layer), rung="7_fp16_wgmma")
        self.ran["product fused"] += 1
        return prompt_products.prompt_product(x, self.matrix(name, layer), gate=name == "gate_up")

    def gated(self, layer: int, x: Any, own: bool = True) -> Any:
        """SiLU of a prompt's gates times its ups, of FP16 weights, by the course's kernel for a Hopper."""
        self.ran["product gated"] += 1
        return prompt_products.prompt_product(x, self.halves("gate_up", layer, own), gate=True)
