"""One process's share of a model: some of its heads and neurons, with all of what a token keeps between them.

Rows of queries, keys, values, gate and up are split, so that a process makes its own heads and neurons of a
whole token; columns of out and down are, so that what it makes of them is a sum's part. That part is all
that processes exchange: two sums of `hidden` numbers a layer. Embedding, norms and head are whole in each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rooflab.engine.spec import Spec
from rooflab.engine.weights import Tensors
from rooflab.errors import UsageError

_ROWS = re.compile(r"\.(q|k|v|gate|up)_proj\.(weight|bias)$")
_COLUMNS = re.compile(r"\.(o|down)_proj\.weight$")


def share(spec: Spec, get: Tensors, rank: int, size: int) -> tuple[Spec, Tensors]:
    """The model that process `rank` of `size` runs, and its tensors: what engine.pack takes.

    UsageError for a model whose heads or neurons `size` does not divide. Quantised after it was split, a
    matrix has the same codes as whole, where its groups of a scale are not cut (pack refuses others).
    """
    shape = spec.shape
    if not 0 <= rank < size:
        raise UsageError(
            f"A model's shares are numbered from 0 to {size - 1}, so there is none of number {rank}."
        )
    if spec.parts != 1:
        raise UsageError(f"{spec.name} is one of {spec.parts} shares already; share the whole model.")
    kinds = {"query heads": shape.heads, "key and value heads": shape.kv_heads, "neurons": shape.mlp}
    for kind, count in kinds.items():
        if count % size:
            raise UsageError(
                f"The {count} {kind} of {spec.name} cannot be shared evenly by {size} processes; take a "
                f"number that divides {', '.join(str(n) for n in kinds.values())}."
            )
    own = replace(shape, heads=shape.heads // size, kv_heads=shape.kv_heads // size, mlp=shape.mlp // size)

    def get_share(name: str) -> Any:
        whole = get(name)
        if _ROWS.search(name):
            rows = whole.shape[0] // size
            return whole[rank * rows : (rank + 1) * rows]
        if _COLUMNS.search(name):
            columns = whole.shape[1] // size
            return whole[:, rank * columns : (rank + 1) * columns]
        return whole

    return replace(spec, shape=own, parts=size), get_share


def exchanged_bytes(spec: Spec, tokens: int = 1) -> int:
    """Bytes of FP16 that a process has to sum with the others for `tokens` tokens: two sums a layer."""
    return 2 * 2 * spec.shape.layers * spec.shape.hidden * tokens
