"""Rotary positions: by how much a token's place turns each pair of a head's dimensions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class RopeScaling(NamedTuple):
    """How Llama 3.1 and 3.2 stretch rotary angles to contexts longer than the `original` one: of frequencies
    that turn less than `low` times in it, one over `factor` is left, those that turn more than `high` times
    stay, and those between are blended ("llama3" in a checkpoint's config.json).
    """

    factor: float
    low: float
    high: float
    original: int


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Radians a position by which each pair of a head's dimensions turns, [head_dim / 2] float64."""
    plain = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain
    turns = scaling.original * plain / (2 * np.pi)
    kept = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
    return plain * (kept + (1 - kept) / scaling.factor)


def rotations(capacity: int, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Cosine and sine of every position's rotary angles, [capacity, head_dim / 2, 2] FP32."""
    angles = np.outer(np.arange(capacity), frequencies(head_dim, theta, scaling))
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
