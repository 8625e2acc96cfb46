"""What lesson 08d's page shows of faults: planted in a small decoder, computed on the CPU, and judged by the
rule that the engine's paths are judged by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflab.engine import exact
from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors, random_tensors
from rooflab.ops import decoder
from rooflab.view import diagram

_SPEC = Spec("small", decoder.Shape(2, 256, 512, 4, 2, 64, 320, 1e-6, 0.0), 1e4, True, True)
_TOKENS, _FORMAT = 32, "q8_0"
_BIAS = "model.layers.0.self_attn.q_proj.bias"
_MATRIX = "model.layers.0.mlp.down_proj.weight"


@dataclass(frozen=True)
class Judged:
    """Errors of the largest logit: of the two baselines by their names, and of each planted fault."""

    baselines: dict[str, float]
    faults: dict[str, float]

    def least(self) -> float:
        """The smallest fault over the largest error that is allowed."""
        return min(self.faults.values()) / (2 * max(self.baselines.values()))


def _unbiased(get: Tensors) -> Tensors:
    return lambda name: get(name) * (name != _BIAS)


def _neighbours_scale(get: Tensors) -> Tensors:
    """Every block of 32 weights of one matrix by the scale of the block before it."""

    def changed(name: str) -> Any:
        values = get(name)
        if name != _MATRIX:
            return values
        blocks = np.asarray(values, np.float64).reshape(len(values), -1, 32)
        scales = np.abs(blocks).max(-1, keepdims=True)
        return (blocks / scales * np.roll(scales, 1, 1)).reshape(np.shape(values))

    return changed


_FAULTS: dict[str, Callable[[Tensors], Tensors]] = {
    "a bias forgotten": _unbiased,
    "a neighbour's scale": _neighbours_scale,
}


@functools.cache
def planted() -> Judged:
    """The baselines' and the faults' errors in a decoder of two layers."""
    get = random_tensors(_SPEC, on="cpu")
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, _SPEC.shape.vocab, _TOKENS)]

    def asked(get: Tensors, dtype: str = "float64", rounded: bool = False) -> Any:
        return exact.logits(_SPEC, get, tokens, _FORMAT, _FORMAT, dtype, rounded=rounded, last=True)

    right = asked(get)
    baselines = {"FP16": asked(get, "float16"), "8-bit activations": asked(get, "float16", True)}
    return Judged(
        {name: float(np.abs(found - right).max()) for name, found in baselines.items()},
        {name: float(np.abs(asked(fault(get)) - right).max()) for name, fault in _FAULTS.items()},
    )


def told() -> str:
    """The verdict on the prediction that a wrong path misses by far more."""
    judged = planted()
    misses = [
        f"{min(judged.faults.values()) / (2 * error):.0f} times what the baseline of {name} allows"
        for name, error in judged.baselines.items()
    ]
    text = f"The smaller of the two faults reaches {' and '.join(misses)}. "
    if judged.least() > 1:
        return f"**Verdict**: both are judged wrong, as predicted. {text}".strip()
    return f"**Verdict**: not every fault is seen. {text}".strip()


def lines() -> list[diagram.Line]:
    """A number line for each baseline: what it allows, and where the faults lie."""
    judged = planted()
    return [
        diagram.Line(
            f"Two faults in a small decoder, baseline of {name}",
            "allowed: {:.4f}",
            ("<", 2 * error),
            None,
            [(error, f"baseline: {error:.4f}")]
            + [(fault, f"{words}: {fault:.2f}") for words, fault in judged.faults.items()],
        )
        for name, error in judged.baselines.items()
    ]
