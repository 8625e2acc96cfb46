"""NumPy under the names by which studies use CuPy, with a made-up GPU of few SMs and no L2 cache.

Below is what contestants ask of a device before they are launched on the CPU; all else is NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SMS = 4


class Device:
    """A device as studies see it: 4 SMs, so that standing grids are short, and no cache to outgrow."""

    attributes = {"MultiProcessorCount": SMS, "L2CacheSize": 0}


class cuda:
    """The part of cupy.cuda that contestants use."""

    Device = Device


asnumpy = np.asarray


def __getattr__(name: str) -> Any:
    return getattr(np, name)
