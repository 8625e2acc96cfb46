"""What a recording on another GPU model says of kernels that were tuned on the GPU of data/."""

from __future__ import annotations

import functools
from collections.abc import Collection

import pandas as pd

from rooflab import paths
from rooflab.analysis import related
from rooflab.analysis.evidence import Evidence
from rooflab.records.store import Store
from rooflab.studies.bandwidth import roofs
from rooflab.studies.power import SIZES

_ROOF = "dram_read"
_KEYS = ["operator", "format", *SIZES]  # what makes two rows the same work


def recorded(store: Store) -> Store | None:
    """The recording of another GPU model that the course keeps beside one of its own; None without."""
    kept = sorted(each.name for each in paths.OTHER.glob("*") if (each / "runs.csv").is_file())
    return Store(paths.OTHER, kept[0]) if kept and store.root == paths.DATA else None


@functools.cache
def libraries(other: Store) -> pd.DataFrame:
    """Each library that was timed beside ours there: library, comparisons, faster (ours), level, slower, and
    the comparison that is worst for us.
    """
    found = related.table(Evidence(other))
    found = found[found["origin"] == related.HERE]
    names = {"name": "library", "points": "comparisons", "ours": "ours faster", "theirs": "ours slower"}
    found = found.rename(columns={**names, "worst": "worst for us"})
    return found[["library", "comparisons", "ours faster", "level", "ours slower", "worst for us"]]


def operators(store: Store, other: Store, known: Collection[str]) -> pd.DataFrame:
    """Our fastest kernel of each size in both recordings (graph clock, cold), of `known` operators: operator,
    sizes, its median speed there where here is 1, and its median share of each GPU's own roof.
    """
    found = _fastest(store).merge(_fastest(other), on=_KEYS, suffixes=("", "_there"))
    found["speed"] = found["median_us"] / found["median_us_there"]
    groups = found[found["operator"].isin(known)].groupby("operator", sort=False)
    medians = groups[["speed", "roof_fraction", "roof_fraction_there"]].median()
    return pd.DataFrame(
        {
            "operator": medians.index,
            "sizes": groups.size().to_numpy(),
            "speed there, here 1": [f"{speed:.2f}" for speed in medians["speed"]],
            "share of the roof here": [f"{share:.0%}" for share in medians["roof_fraction"]],
            "and there": [f"{share:.0%}" for share in medians["roof_fraction_there"]],
        }
    )


def _fastest(store: Store) -> pd.DataFrame:
    """Our fastest row of each operator, format and size."""
    rows = pd.concat([store.read(study) for study in store.studies() if study not in ("regimes", "power")])
    usual = rows["clock"].eq("graph") & rows["cache"].eq("cold") & rows["kind"].eq("own")
    rows = rows[usual & rows["roof_fraction"].notna()].sort_values("median_us")
    return rows.drop_duplicates(_KEYS)[[*_KEYS, "median_us", "roof_fraction"]]


def sentence(other: Store) -> str:
    """How ours does there beside the libraries, in a sentence."""
    sums = libraries(other)[["comparisons", "ours faster", "level"]].sum()
    gpu = other.runs().iloc[-1]["gpu"]
    return (
        f"On an {gpu}, nothing tuned again: ours is faster than the library beside it "
        f"in {sums['ours faster']} of {sums['comparisons']} comparisons, level in {sums['level']}."
    )


def memory(store: Store, other: Store) -> str:
    """How the memory there compares, and how to see every case."""
    here, there = (roofs(each.read("bandwidth"))[_ROOF].value for each in (store, other))
    return (
        f"Memory there reads {there:,.0f} GB/s, {there / here:.2f} times what it reads here. A kernel that "
        "memory bounds follows that ratio; one that waits or computes does not. "
        f"Recorded from commit {str(other.runs().iloc[-1]['commit'])[:8]}; `rooflab compare {store.device} "
        f"{other.folder.relative_to(paths.ROOT)}` prints every case."
    )
