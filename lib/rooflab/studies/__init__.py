"""The studies: one table of measurements each. `get` and `names` are how everything above finds them."""

from __future__ import annotations

import collections
from importlib.util import find_spec

from rooflab.errors import UsageError
from rooflab.studies.attention import Attention
from rooflab.studies.attribution import Attribution
from rooflab.studies.bandwidth import Bandwidth
from rooflab.studies.base import Study
from rooflab.studies.decode import Decode
from rooflab.studies.environment import Environment
from rooflab.studies.faults import Faults
from rooflab.studies.gemv import Gemv
from rooflab.studies.int4 import Int4
from rooflab.studies.links import Links
from rooflab.studies.mmq import Mmq
from rooflab.studies.power import Power
from rooflab.studies.prefill import Prefill
from rooflab.studies.q8_0 import Q8
from rooflab.studies.regimes import Regimes
from rooflab.studies.split import Split
from rooflab.studies.static import Static
from rooflab.studies.unseen import Unseen

_STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Environment(),
        Bandwidth(),
        Gemv(),
        Faults(),
        Attribution(),
        Int4(),
        Q8(),
        Mmq(),
        Attention(),
        Regimes(),
        Decode(),
        Prefill(),
        Power(),
        Unseen(),
        Static(),
        Links(),
        Split(),
    )
}


def names(gpus: int = 1) -> list[str]:
    """Every study of a recording made on so many GPUs of one host, in the order in which it makes them."""
    return [name for name, study in _STUDIES.items() if (study.gpus > 1) == (gpus > 1)]


def get(name: str) -> Study:
    """The study called `name`; UsageError lists what exists."""
    found = _STUDIES.get(name)
    if found is None:
        raise UsageError(f"There is no study {name!r}; there are {', '.join(_STUDIES)}.")
    return found


# Peers' packages that are installed by another name than they are imported by.
_DISTRIBUTIONS = {"humming": "humming-kernels", "flash_attn": "flash-attn-4", "ffpa_attn": "ffpa-attn"}


def missing() -> dict[str, int]:
    """Packages that a full recording wants beside torch and that are not installed, by the name to install
    them by, and how many cases each of them costs.
    """
    wanted: collections.Counter[str] = collections.Counter()
    for study in map(get, names()):
        needs = [] if study.everywhere else [study.needs(case) for case in study.cases()]
        wanted.update(package for package in needs if package not in (None, "torch"))
    absent = sorted(name for name in wanted if find_spec(name) is None)
    return {_DISTRIBUTIONS.get(name, name): wanted[name] for name in absent}


def of_lesson(lesson: str) -> list[Study]:
    """The studies that a lesson ("00", "01") records."""
    return [study for study in _STUDIES.values() if study.lesson == lesson]
