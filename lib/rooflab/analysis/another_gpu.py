"""What a recording on another GPU model says of kernels, a law and a dispatcher that were made on the GPU of
data/.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import pandas as pd

from rooflab import dispatch, paths
from rooflab.analysis import related
from rooflab.analysis.evidence import Evidence
from rooflab.analysis.strategies import label
from rooflab.hardware import device, perf_model
from rooflab.hardware.perf_model import Fit, Machine
from rooflab.ops.strategies import candidates
from rooflab.records.store import Store
from rooflab.studies import regimes
from rooflab.studies.bandwidth import roofs
from rooflab.studies.power import SIZES

_ROOF = "dram_read"
_QUANTISED = ("int4_g128", "q8_0")
_KEYS = ["operator", "format", *SIZES]  # what makes two rows the same work


def recorded(store: Store) -> Store | None:
    """The recording of another GPU model that the course keeps beside one in data/; None without."""
    held = sorted(each.parent.name for each in paths.OTHER.glob("*/runs.csv"))
    others = [name for name in held if name != store.device and store.root == paths.DATA]
    return Store(paths.OTHER, others[0]) if others else None


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
    sums = libraries(other)[["comparisons", "ours faster", "level", "ours slower"]].sum()
    gpu = other.runs().iloc[-1]["gpu"]
    return (
        f"On an {gpu}, nothing tuned again: ours is faster than the library beside it "
        f"in {sums['ours faster']} of {sums['comparisons']} comparisons, level in {sums['level']}, "
        f"slower in {sums['ours slower']}."
    )


def same_sms(other: Store) -> str:
    """That the other GPU has the SMs of the one whose table it is served, so that it tests another memory: a
    sentence behind another; empty where it has others.
    """
    if not dispatch.is_like_reference(other.device):
        return ""
    return (
        f" It has the SMs of the {device.get(dispatch.REFERENCE).name}, as many of the same kind, and is "
        "served that one's table of choices: so it tests another memory, not another architecture."
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


def products(other: Store) -> pd.DataFrame:
    """Every product that was timed there, as lesson 07b's own: cold, by the graph clock, with its label."""
    rows = regimes.gathered(other.read(study) for study in ("regimes", "gemv", "int4", "mmq"))
    rows = rows[rows["clock"] == "graph"]
    named = [label(*each) for each in zip(rows["format"], rows["impl"], strict=True)]
    return rows.assign(label=named).reset_index(drop=True)


def machine(other: Store, here: Machine, spec: device.Device) -> Machine:
    """The other GPU as the law sees it: its data sheet, times what share of its own `spec` was measured to
    reach.
    """
    found = device.match(str(other.runs().iloc[-1]["gpu"]))
    assert found is not None, "the table of devices holds every GPU that the course keeps a recording of"
    return perf_model.scaled(found, here, spec)


def choices(other: Store, rows: pd.DataFrame, known: pd.DataFrame, there: Machine, fit: Fit) -> pd.DataFrame:
    """What it costs there to choose by the law, or by the fastest in `known` rows of this GPU: format, n, k,
    batch, and law and table, the chosen strategy's time over the fastest one's, of each of the products
    `rows` with quantised weights that two strategies or more can do.
    """
    arch, found = device.get(other.device).sm, []
    for key, mine in rows.groupby(["format", "n", "k", "batch"]):
        format, n, k, batch = str(key[0]), *(int(mine[name].iloc[0]) for name in ("n", "k", "batch"))
        times = mine.set_index("impl")["median_us"]
        able = candidates(format, n, k, batch, arch, other.device, None) if format in _QUANTISED else []
        able = [how for how in able if how.name in times]
        near = dispatch.fastest(known[known["format"] == format], n, k, batch, [how.name for how in able])
        if len(able) > 1 and near:
            law = perf_model.fastest(able, n, k, batch, there, fit)[0].name
            least = min(times[how.name] for how in able)
            found.append((format, n, k, batch, times[law] / least, times[near[0]] / least))
    return pd.DataFrame(found, columns=["format", "n", "k", "batch", "law", "table"])
