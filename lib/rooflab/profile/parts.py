"""Whose kernel is this? Names a traced launch by what it is (class) and where in the model it runs (part).

A part is known from the named ranges that were open when the kernel was launched. Nodes of a CUDA graph have
none, because one call launched them all: they get theirs by launch order, from an eager trace of the same
kernels, and weight products at least from the order in which a decoder must compute them. Compiled kernels
are fused across parts and go by the most telling operator in their names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import pandas as pd

from rooflab.errors import UsageError
from rooflab.numerics.model_shapes import Model, projections
from rooflab.profile.trace import short_name

CLASSES = {
    "weight": "product with a weight matrix (GEMV or GEMM)",
    "attention": "attention over the cached keys and values",
    "norm": "divides a vector by the root of its mean square",
    "rope": "turns queries and keys by an angle that grows with the position (rotary embedding)",
    "elementwise": "element by element: activation, residual, masks, counters",
    "copy": "copies, casts, cache updates",
    "reduce": "sums over partial results",
    "embedding": "looking up the token's row",
    "sampling": "choosing the next token",
}
_BY_PART = {"norm": "norm", "rope": "rope", "embed": "embedding", "sample": "sampling"}
PRODUCT = re.compile(r"gemv|gemm|nvjet|cutlass|xmma|cublas", re.IGNORECASE)
_SPLIT = re.compile(r"splitk_?reduce|reduce_kernel|dot_kernel", re.IGNORECASE)
# What a name says of a kernel that no range tells apart, first match wins; triton's names list operators.
_NAMES = (
    ("norm", r"rsqrt|rms_?norm|layer_?norm"),
    ("sampling", r"argmax|ArgMaxOps|topk|multinomial"),
    ("attention", r"attention|sdpa|fmha|flash|softmax|lean_reduction"),
    ("reduce", r"splitk_?reduce|reduce_kernel|_red_|dot_kernel"),
    ("copy", r"index_copy|index_put|copy|memcpy|memset|CatArray|_cat_|clone|scatter"),
    ("rope", r"_cos_|_sin_|cos_kernel|sin_kernel"),
    ("embedding", r"embedding|indexSelect|gather"),
)


def part_of(path: str) -> tuple[int | None, str]:
    """(layer, part) that a path of ranges names: ("case > layer.3 > q") is (3, "q"); (None, "") for none."""
    layer, found = None, ""
    for name in path.split(" > ")[1:]:
        if name.startswith("layer."):
            layer = int(name.removeprefix("layer."))
        else:
            found = name
    return layer, found


def class_of(name: str, part: str) -> str:
    """The class (of CLASSES) of a kernel by its name and the part of the model that launched it."""
    weights = part in WEIGHTS
    if weights and not _SPLIT.search(name):
        return "weight" if PRODUCT.search(name) else _by_name(name)
    if part in _BY_PART:
        return _BY_PART[part]
    if part == "attention" and _by_name(name) != "copy":
        return "attention"
    if not part and is_weight_product(name):
        return "weight"
    return _by_name(name)


WEIGHTS = ("q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up", "lm_head")


def _by_name(name: str) -> str:
    return next((found for found, words in _NAMES if re.search(words, name)), "elementwise")


def is_weight_product(name: str) -> bool:
    """Whether a name is that of a 16-bit matrix product: not of a split-K sum, nor in FP32 (sgemm)."""
    if name.startswith("triton_") or _SPLIT.search(name) or "sgemm" in name:
        return False
    return bool(PRODUCT.search(name)) and not re.search(r"attention|sdpa|fmha|flash", name)


@functools.lru_cache(maxsize=4096)  # a trace has few names, and each of them thousands of times
def label(name: str) -> str:
    """A name to print: without templates, with the functor that tells ATen's kernels apart, and not long."""
    short = short_name(name)
    inside = re.findall(r"\w+_kernel(?:_cuda|_impl)?\b|\w+Functor\w*|CUDAFunctor\w+|\w+Ops\b", name)
    functor = next((word for word in inside if word not in (short, "BinaryFunctor")), "")
    found = f"{short} {functor}" if functor and name.startswith("void at::") else short
    return found if len(found) <= 72 else f"{found[:48]}..{found[-22:]}"


def by_order(names: Sequence[str], model: Model) -> list[str]:
    """Parts of a step's kernels by launch order alone: weight products in the order a decoder needs them.

    All "" unless there are exactly as many products as the model has: its layers times those of one layer,
    and the output head.
    """
    layer = [p.name for p in projections(model) if p.times == model.layers and p.name != "lm_head"]
    order = layer * model.layers + ["lm_head"]
    places = [i for i, name in enumerate(names) if is_weight_product(name)]
    found = [""] * len(names)
    if len(places) == len(order):
        for place, part in zip(places, order, strict=True):
            found[place] = part
    return found


def steps(activities: pd.DataFrame, repeat: int) -> pd.DataFrame:
    """One case's activities with `step` (0 .. repeat - 1) and `place` in the step. All steps must be alike.

    UsageError if they are not: a repeated step that launches other kernels cannot be summed up.
    """
    count, rest = divmod(len(activities), repeat)
    found = activities.sort_values("start_ns", kind="stable").reset_index(drop=True)
    places = [i % max(count, 1) for i in range(len(found))]
    found = found.assign(step=[i // max(count, 1) for i in range(len(found))], place=places)
    if rest or count == 0 or (found.groupby("place")["name"].nunique() != 1).any():
        case = str(activities["case"].iloc[0]) if len(activities) else "a case"
        raise UsageError(
            f"{case}: its {repeat} traced steps did not launch the same kernels ({len(found)} in all)."
        )
    return found


COLUMNS = ("part", "class", "kernel", "grid", "block", "launches", "us", "q1_us", "q3_us", "starts")


def summed(one: pd.DataFrame, located: Sequence[tuple[int | None, str]]) -> pd.DataFrame:
    """`steps` of one case, with (layer, part) of each place, summed over the launches that are alike.

    One row a (part, class, kernel, grid, block): launches a step; us, the median over the steps of their
    summed microseconds, with quartiles; starts, microseconds since the step began of each launch, in the step
    of median length, as words. Rows in order of first launch.
    """
    table = one.assign(
        part=[located[place][1] for place in one["place"]],
        kernel=[label(name) for name in one["name"]],
        us=one["duration_ns"] / 1e3,
    )
    table["class"] = [class_of(n, p) for n, p in zip(table["name"], table["part"], strict=True)]
    begin = table.groupby("step")["start_ns"].transform("min")
    table["start"] = (table["start_ns"] - begin) / 1e3
    length = (table["start"] + table["us"]).groupby(table["step"]).max().sort_values(kind="stable")
    typical = table[table["step"] == length.index[(len(length) - 1) // 2]]
    keys = ["part", "class", "kernel", "grid", "block"]
    sums = table.groupby([*keys, "step"], sort=False)["us"].sum().groupby(keys, sort=False)
    rows = pd.DataFrame({"us": sums.median(), "q1_us": sums.quantile(0.25), "q3_us": sums.quantile(0.75)})
    groups = typical.groupby(keys, sort=False)
    rows["launches"] = groups.size()
    rows["starts"] = groups["start"].agg(lambda each: " ".join(f"{us:.1f}" for us in each))
    return rows.reindex(groups["place"].min().sort_values().index).reset_index()[list(COLUMNS)]


def table(
    activities: pd.DataFrame, repeat: int, models: dict[str, Model], like: dict[str, str]
) -> pd.DataFrame:
    """A trace's activities, with the column `case`, summed up by `summed`: one row a case and kind of launch.

    `models` gives each case's model. `like` maps a case whose kernels carry no ranges (a graph) to one that
    launches the same kernels eagerly and does.
    """
    found = {case: steps(rows, repeat) for case, rows in activities.groupby("case", sort=False)}
    tables = []
    for case, one in found.items():
        first = one[one["step"] == 0]
        located = [part_of(path) for path in first["range"]]
        if not any(part for _, part in located):
            names, twin = list(first["name"]), found.get(like.get(str(case), ""))
            other = twin[twin["step"] == 0] if twin is not None else None
            if other is not None and list(other["name"]) == names:
                located = [part_of(path) for path in other["range"]]
            else:
                located = [(None, part) for part in by_order(names, models[str(case)])]
        rows = summed(one, located)
        rows.insert(0, "case", case)
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)
