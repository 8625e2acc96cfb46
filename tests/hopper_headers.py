"""Headers of Hopper's kernels whose words a test replaces, written into the source that includes them."""

from rooflab.paths import KERNELS

_RENAMED = (
    "common/pair_sums.cuh",
    "common/split_sums.cuh",
    "common/stream_k.cuh",
    "common/store_sums.cuh",
)  # each before what it includes


def in_place(source: str) -> str:
    """The source with such headers behind its own includes, and what they include among these."""
    for header in _RENAMED:
        line = f'#include "{header}"\n'
        if line in source:
            includes, body = (KERNELS / header).read_text().split("#pragma once\n")[1].split("\n\n", 1)
            head, rest = source.replace(line, f"{includes}\n").split("\n\n", 1)
            source = f"{head}\n\n{body}\n{rest}"
    return source
