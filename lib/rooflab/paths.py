"""Where the parts of the course lie, found from this file so that the working directory never matters."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("ROOFLAB_ROOT") or Path(__file__).resolve().parents[2])
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
KERNELS = ROOT / "kernels"
SECOND = ROOT / "examples" / "second_recording"  # of a GPU in data/, on other cards and hosts
OTHER = ROOT / "examples" / "another_gpu"  # of a GPU model that nothing was tuned for
BUILD = ROOT / "build"


def cache() -> Path:
    """The folder of what may be made anew: $ROOFLAB_CACHE, or build/."""
    return Path(os.environ.get("ROOFLAB_CACHE") or BUILD)
