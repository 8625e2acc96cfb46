"""A decoder that several processes share: each runs its heads and neurons, and they sum twice a layer.

Between the sums a process does what the engine does on one GPU, a prompt as there and tokens as a batch of
one does. Where the world's sums can, they are part of the norms in a chain of dependent launches. decode_step
is one kernel a token, which no other GPU takes part in.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from rooflab.engine.batch import Batch
from rooflab.engine.decoder import Engine, Paths
from rooflab.engine.products import Products
from rooflab.engine.shared_chain import SharedChain
from rooflab.engine.single import Single
from rooflab.engine.spec import Spec
from rooflab.engine.world import World
from rooflab.errors import UsageError
from rooflab.ops import decoder

SUMMED = ("out", "down")  # products whose results are parts of a sum over the processes


class Split(Engine):
    """One process's share of a decoder (engine.share). Every process of the world is asked for the same, and
    all come to the same tokens.
    """

    world: World

    def __init__(
        self,
        spec: Spec,
        weights: decoder.Weights,
        *,
        world: World,
        capacity: int | None = None,
        graph: bool = True,
        blocks: int | None = None,
        dependent: bool = True,
    ):
        """`graph`: replay captured steps, which needs sums that can be captured (NCCL's can). `dependent`:
        tokens by dependent launches with sums in their norms, where the world and the sizes allow it.
        """
        if spec.parts != world.size:
            raise UsageError(
                f"The weights are one of {spec.parts} shares of {spec.name}, so they need a world of as many "
                f"processes, not of {world.size}."
            )
        super().__init__(spec, weights, capacity=capacity, paths=Paths(graph=graph), blocks=blocks)
        self.world = world
        chain = SharedChain(self, 1, self.capacity, self.ran, world, dependent)
        chain.products = _Summing(spec.shape, weights, self.ran, world)
        self._single: Single = Single(self, chain)

    def batch(self, size: int, capacity: int | None = None) -> Batch:
        many = super().batch(size, capacity)
        many.chain = SharedChain(self, size, many.capacity, many.ran, self.world)
        many.chain.products = _Summing(self.spec.shape, self.weights, many.ran, self.world)
        return many

    def _product(self, name: str, layer: int, x: Any) -> Any:
        found = super()._product(name, layer, x)
        if name not in SUMMED:
            return found
        self.ran["all_reduce"] += 1
        return self.world.all_reduce(found)

    def _prompt(self, ids: list[int]) -> None:
        super(Engine, self)._prompt(ids)  # on the CPU, too: never by decode_step

    def _steps(self, count: int) -> None:
        self.ran["decode split"] += count
        self._single.follow(self.position)
        self._single.decode(count)
        self.world.check()


class _Summing(Products):
    """A batch's products, those of SUMMED over the processes of a world."""

    def __init__(
        self, shape: decoder.Shape, weights: decoder.Weights, ran: collections.Counter[str], world: World
    ):
        super().__init__(shape, weights, ran)
        self.world = world

    def few(self, name: str, layer: int | None, x: Any) -> Any:
        alone = len(x) == 1 and not isinstance(x, np.ndarray)
        found = self.one(name, layer, x) if alone else super().few(name, layer, x)
        if name not in SUMMED:
            return found
        self.ran["all_reduce"] += 1
        return self.world.all_reduce(found)
