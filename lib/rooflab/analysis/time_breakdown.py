"""What lesson 02 computes from its recording: shares, busy time, the rule behind them, possible gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rooflab.errors import MissingRecording
from rooflab.hardware import device
from rooflab.numerics import model_shapes
from rooflab.profile import parts
from rooflab.profile.ncu import METRICS, STALLS
from rooflab.records.case import Case
from rooflab.studies import attribution
from rooflab.studies.launch_rule import Rule, by_part, named, part_times


def by_class(profile: pd.DataFrame, order: Iterable[str] = parts.CLASSES) -> pd.DataFrame:
    """One row a case and class of `named` rows: launches and us a step, pct of the step's GPU time."""
    keys = ["case", "operator", "variant", "seq"]
    found = profile.groupby([*keys, "class"], sort=False)[["launches", "us"]].sum().reset_index()
    found["pct"] = 100 * found["us"] / found.groupby("case", sort=False)["us"].transform("sum")
    rank = {name: i for i, name in enumerate(order)}
    found["rank"] = found["class"].map(rank)
    found = found.sort_values(["operator", "seq", "variant", "rank"], kind="stable", ignore_index=True)
    return found.drop(columns="rank")


def busy(rows: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    """Recorded decode or prefill rows beside the trace: how long the GPU works for what a caller waits.

    Columns: case, operator, variant, seq, launches a step, gpu_us (their time on the GPU, traced), wall_us
    (not traced) with quartiles and run, busy_pct, and wall_per_launch_us.
    """
    found = profile.groupby(["case", "operator", "variant", "seq"], sort=False)
    sums = found.agg(launches=("launches", "sum"), gpu_us=("us", "sum")).reset_index()
    walls = rows[["case", "median_us", "q1_us", "q3_us", "run"]]
    table = sums.merge(walls, on="case").rename(columns={"median_us": "wall_us"})
    table["busy_pct"] = 100 * table["gpu_us"] / table["wall_us"]
    table["wall_per_launch_us"] = table["wall_us"] / table["launches"]
    return table


def timeline(profile: pd.DataFrame) -> pd.DataFrame:
    """Every launch of one traced case in order: start_us since the step began, us (the mean of its kind),
    part, class, kernel.
    """
    rows = [
        (float(start), row["us"] / row["launches"], row["part"], row["class"], row["kernel"])
        for _, row in profile.iterrows()
        for start in str(row["starts"]).split()
    ]
    table = pd.DataFrame(rows, columns=["start_us", "us", "part", "class", "kernel"])
    return table.sort_values("start_us", kind="stable", ignore_index=True)


# --- the rule -----------------------------------------------------------------------------------------------


def elsewhere(known: Rule, known_peak: float, other: device.Device) -> Rule:
    """The rule of a GPU that was not traced: its datasheet's bandwidth, as much of it as here, and the same
    launches at the same fixed times.
    """
    return replace(known, gb_s=known.gb_s / known_peak * other.dram_gb_s)


def everywhere(known: Rule, known_peak: float, launch_us: Sequence[float]) -> pd.DataFrame:
    """The rule for every GPU and model of the tables and several fixed times: columns gpu, model, launch_us
    (of the other launches; a product's in proportion), gb_s, % (share of weight products), case.
    """
    rows = []
    for name in device.names():
        gpu = device.get(name)
        there = elsewhere(known, known_peak, gpu)
        for model in map(model_shapes.get, model_shapes.names()):
            for us in launch_us:
                product = known.product_us * us / known.other_us
                share = 100 * replace(there, other_us=us, product_us=product).share(model)
                rows.append((gpu.name, model.name, us, gpu.dram_gb_s, round(share, 1)))
    table = pd.DataFrame(rows, columns=["gpu", "model", "launch_us", "gb_s", "%"])
    words = table["gpu"] + " " + table["model"] + " " + table["launch_us"].astype(str)
    return table.assign(case=words)


# --- counters -----------------------------------------------------------------------------------------------


def counters(profile: pd.DataFrame) -> pd.DataFrame:
    """A profile by Nsight Compute, its counters as numbers (NaN for what a kernel does not do), with
    operator, us, mb (moved between DRAM and L2), gb_s, and waits: the two reasons its warps wait for most,
    as (reason, cycles for each instruction issued) pairs.
    """
    found = profile.assign(
        operator=[attribution.Attribution().case(case).operator for case in profile["case"]]
    )
    for name in found.columns.intersection(list(METRICS)):
        found[name] = pd.to_numeric(found[name], errors="coerce")
    found["us"] = found["time_ns"] / 1e3
    found["mb"] = found["dram_bytes"] / 1e6
    found["gb_s"] = found["dram_bytes"] / found["time_ns"]
    waits = [_longest(row) for row in found[list(STALLS)].to_dict("records")]
    found["waits"] = pd.Series(waits, index=found.index, dtype=object)
    return found


def _longest(stalls: Mapping[Any, float]) -> tuple[tuple[str, float], ...]:
    known = [(str(name).removeprefix("stall_"), cycles) for name, cycles in stalls.items() if cycles > 0]
    return tuple(sorted(known, key=lambda each: -each[1])[:2])


def kinds(counted: pd.DataFrame, most: int) -> pd.DataFrame:
    """The kinds of launch (part and kernel) that take most of the counted time, longest first: one row each,
    of the first such launch, with times, the number of them, and a short name.
    """
    keys = ["part", "kernel"]
    order = counted.groupby(keys, sort=False).agg(total=("us", "sum"), times=("us", "size")).reset_index()
    order = order.sort_values("total", ascending=False, kind="stable").head(most)
    found = order.merge(counted.drop_duplicates(keys), on=keys)
    words = [_word(kernel) for kernel in found["kernel"]]
    return found.assign(name=found["part"].where(found["part"] != "", "residual") + ": " + words)


def _word(kernel: str) -> str:
    """The word of a kernel's label that tells most: its functor, or the family of a library's long name."""
    last = kernel.split()[-1]
    return last if len(last) <= 24 else last.split("_")[0]


def roofline(counted: pd.DataFrame, trace: pd.DataFrame, model: str, gb_s: float) -> pd.DataFrame:
    """The weight products of a counted decode step as points of a roofline: part, n, k, bytes and us as in
    `by_part` (traced), counted (DRAM bytes), flops, intensity (FLOP per counted byte), tflop_s.
    """
    products = by_part(trace, model, gb_s)
    chosen = counted[counted["class"] == "weight"].drop_duplicates("part").set_index("part")
    table = products[products["part"].isin(chosen.index)].reset_index(drop=True)
    table["counted"] = [float(chosen["dram_bytes"][part]) for part in table["part"]]
    table["flops"] = 2.0 * table["n"] * table["k"]
    table["intensity"] = table["flops"] / table["counted"]
    return table.assign(tflop_s=table["flops"] / table["us"] / 1e6)


# --- what could be gained -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """A possible improvement: what, how many times as fast each part of a step becomes (infinity: it is
    gone), and how many launches it saves.
    """

    what: str
    parts: Mapping[str, float]
    launches: int = 0


def amdahl(times: Mapping[str, float], gains: Mapping[str, float], total: float | None = None) -> float:
    """How many times as fast the whole becomes when parts do, by Amdahl's law.

    times are microseconds of the parts; total is what a caller waits, by default their sum: what lies beyond
    them stays as it is.
    """
    whole = sum(times.values()) if total is None else total
    return whole / (whole - sum(times[name] * (1 - 1 / gain) for name, gain in gains.items()))


def gains(
    trace: pd.DataFrame, known: Rule, model: model_shapes.Model, context: int, roof_gb_s: float
) -> list[Gain]:
    """The improvements that later lessons work on, each as large as a bound allows, for one decode case."""
    times = part_times(trace)
    size, cache = model_shapes.weight_bytes(model, "fp16"), model_shapes.kv_read_bytes(model, context + 1)
    small = model_shapes.weight_bytes(model, "int4_g128", "fp16")
    products = model_shapes.gemvs(model) + 1
    norms, launches = 2 * model.layers + 1, trace.groupby("class")["launches"].sum()
    others = int(trace.loc[~trace["part"].isin(parts.WEIGHTS), "launches"].sum())
    copied = (trace["part"] == "attention") & (trace["class"] == "copy")
    copies = int(trace.loc[copied, "launches"].sum())
    at_roof = times["weight"] / (size / roof_gb_s / 1e3)
    in_int4 = times["weight"] / (products * known.product_us + small / known.gb_s / 1e3)
    attended = times["attention"] / (cache / roof_gb_s / 1e3)
    fused = float(launches["norm"]) / norms
    free = {name: np.inf for name in times if name != "weight"}
    return [
        Gain("FP16 products at the roof", {"weight": at_roof}),
        Gain("INT4 products, the output head in FP16, launched as now", {"weight": in_int4}),
        Gain("one launch a norm", {"norm": fused}, int(launches["norm"]) - norms),
        Gain("attention at the roof, no copies", {"attention": attended}, copies),
        Gain("nothing but the products", free, others),
        Gain("nothing but the products, and those at the roof", {**free, "weight": at_roof}, others),
    ]


def worth(trace: pd.DataFrame, wanted: Sequence[Gain], eager_us: float, graph_us: float) -> pd.DataFrame:
    """What each gain would do to a token: what, pct (of the GPU's time that it touches), us (saved on the
    GPU), graph and eager, how many times as fast a caller's wait becomes.

    A graph's wait shrinks by what the GPU saves (Amdahl). An eager loop waits for the host: only launches
    saved help it, down to what the GPU needs.
    """
    times, launches = part_times(trace), int(trace["launches"].sum())
    gpu, rows = sum(times.values()), []
    for gain in wanted:
        saved = sum(times[name] * (1 - 1 / each) for name, each in gain.parts.items())
        host = eager_us * (launches - gain.launches) / launches
        facts = {"us": saved, "graph": amdahl(times, gain.parts, graph_us)}
        facts["eager"] = eager_us / max(host, gpu - saved)
        facts["pct"] = 100 * sum(times[name] for name in gain.parts) / gpu
        rows.append({"what": gain.what, **facts})
    return pd.DataFrame(rows, columns=["what", "pct", "us", "graph", "eager"])


# --- what a lesson asks a lab for ---------------------------------------------------------------------------


def taken(lab: Any, cases: Sequence[Case]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and trace (`named`) of decode or prefill cases from a rooflab.lab.Lab: by nsys, else CUPTI.

    Both are empty where nothing could be measured or traced. Compiled steps, which take long to make, may be
    missing from a recording, and are then from the answer.
    """
    if lab.mode == "replay":
        held = set(lab.store.read("attribution")["case"])
        cases = [case for case in cases if case.id in held or case.impl != "transformers.compile"]
    rows, steps = lab.measure("attribution", cases), attribution.to_trace(cases)
    trace = lab.profile("attribution", steps, "nsys")
    if trace.empty and len(rows):
        found = [_by_cupti(lab, case) for case in steps]
        trace = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    return rows, named(trace)


def _by_cupti(lab: Any, case: Case) -> pd.DataFrame:
    """A case's trace by CUPTI, which a recording holds of some cases only; empty for the others."""
    try:
        return lab.profile("attribution", [case], "cupti")
    except MissingRecording:
        return pd.DataFrame(columns=["case", *parts.COLUMNS])


def agreement(lab: Any, cases: Sequence[Case]) -> pd.DataFrame:
    """What Nsight Systems and CUPTI say of the same cases: operator, variant, seq, class, us and launches by
    either (us_nsys, us_cupti, launches_nsys, launches_cupti) and apart, how far the times differ in percent.
    """
    keys = ["operator", "variant", "seq", "class"]
    both = [by_class(named(lab.profile("attribution", cases, tool))) for tool in ("nsys", "cupti")]
    table = both[0].merge(both[1], on=["case", *keys], suffixes=("_nsys", "_cupti"))
    table["apart"] = 100 * (table["us_cupti"] / table["us_nsys"] - 1)
    return table[[*keys, "us_nsys", "us_cupti", "launches_nsys", "launches_cupti", "apart"]]


def one_layer(launches: pd.DataFrame, layer: int) -> tuple[float, float]:
    """(start, end) in a `timeline` from the first projection of one layer to that of the next."""
    starts = launches.loc[launches["part"] == "q", "start_us"].tolist()
    return starts[layer], starts[layer + 1]
