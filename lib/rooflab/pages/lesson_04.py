"""What lesson 04's page shows: the INT4 format, what it costs in precision, and a first fused product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflab import studies
from rooflab.analysis import int4 as analysis
from rooflab.bench import clock
from rooflab.errors import UsageError
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.numerics import quant
from rooflab.ops import int4
from rooflab.pages import Rows, named_facts, spread, thread_slots
from rooflab.pages.lesson_03b_climb import latency
from rooflab.pages.lesson_04_opening import SOURCE, products
from rooflab.pages.lesson_04_opening import opening as opening
from rooflab.records.store import Store
from rooflab.studies import int4 as study
from rooflab.view import diagram, display, explorer, plot
from rooflab.view.explorer_facts import SAYS
from rooflab.words import times


def run_facts(gpu: str, here: Lab, read_roof: float, n: int, k: int) -> None:
    """The facts of the run, in one line."""
    more = {
        "Driver": here.run_of("int4")["driver"],
        "L2": plot.size_text(int(here.run["l2_bytes"])),
        "Read roof": f"{read_roof:,.0f} GB/s",
        "The projection": f"{n:,} × {k:,}, {plot.size_text(2 * n * k)} in FP16",
    }
    named_facts(here, gpu, "int4", more)


def codes_of_eight() -> tuple[Any, Any, Any]:
    """Show eight weights, their codes and what comes back; the generator, the group and its packed form."""
    rng = np.random.default_rng(4)
    group = rng.standard_normal((1, 128)).astype(np.float32)
    packed = quant.quantise_int4(group)
    codes, back = quant.unpack_int4(packed.qweight), quant.dequantise_int4(packed)
    eight = pd.DataFrame({"w": group[0], "code": codes[0], "back": back[0]})[:8]
    eight["nibble"] = [f"{code + 8:x}" for code in eight["code"]]
    eight["off"] = eight["back"] - eight["w"]
    names = {"w": "Weight", "code": "Code", "nibble": "Stored as"}
    names |= {"back": "Comes back as", "off": "Off by"}
    forms = dict.fromkeys(("w", "back", "off"), "{:+.3f}") | {"code": "{:+d}"}
    display.table(eight, names, forms, "The first eight weights of a group, there and back", folded=True)
    return rng, group, packed


def packed_word(packed: Any, group: Any) -> int:
    """Say how the first word holds its codes, and how many bits a weight takes; the word."""
    word = int(packed.qweight.view(np.uint32)[0, 0])
    bits = 8 * sum(part.nbytes for part in packed) / group.size
    codes = ", ".join(f"{code:+d}" for code in quant.unpack_int4(packed.qweight)[0, :8])
    display.say(
        f"Take the first eight weights of a group whose scale is {packed.scales[0, 0]:.4f}. Their codes are "
        f"{codes}. With 8 added each, they make the word `{word:#010x}`: its lowest four bits are the first "
        f"code. With its share of the scale's 16 bits a weight takes **{bits:.3f} bits**, so "
        f"FP16 takes {16 / bits:.2f} times the room. That is the most that the format can win."
    )
    return word


def unusual_groups(group: Any) -> None:
    """Show what the format makes of zeros, outliers, NaN and matrices that are no whole tile."""

    refused: list[str] = []

    def told(name: str, w: Any) -> dict[str, Any]:
        try:
            packed = quant.quantise_int4(w)
        except UsageError as refusal:
            refused.append(f"**{name}** is refused: {str(refusal).rstrip('.')}.")
            return {"w": name, "stored": False}
        codes, tiles = quant.unpack_int4(packed.qweight), int4.repack(*packed)
        return {
            "w": name,
            "stored": True,
            "codes": f"{codes.min()} to {codes.max()}",
            "zeros": 100 * np.mean(codes == 0),
            "off": np.abs(quant.dequantise_int4(packed) - w).max(),
            "rows": f"{int4.TILE * len(tiles.blocks)}",
            "same": all(map(np.array_equal, packed, int4.unpack(tiles))),
        }

    outlier, nan = np.tile(group, (64, 1)), group.copy()
    outlier[:, 5], nan[0, 5] = 40, np.nan
    edges = {
        "64 ordinary rows": np.tile(group, (64, 1)),
        "All zeros": np.zeros((64, 128)),
        "A weight of 40 in each group": outlier,
        "37 rows": np.tile(group, (37, 1)),
        "k = 192": np.ones((64, 192)),
        "A NaN": nan,
    }
    table = pd.DataFrame([told(name, w) for name, w in edges.items()])
    names = {"w": "Weights", "stored": "Stored", "codes": "Codes", "zeros": "Codes of 0, %"}
    names |= {"off": "Off by at most", "rows": "Rows in tiles", "same": "Same bits back from tiles"}
    forms = {"zeros": "{:.0f}", "off": "{:.2g}"}
    display.fold_parts("Six unusual matrices, stored or refused", [(table, names, forms), " ".join(refused)])


def errors_by_group(rng: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The error of INT4 by the size of a group, for three kinds of weights: shape, sizes, errors."""

    def error(w, size):
        back = quant.dequantise_int4(quant.quantise_int4(w, size), size)
        return float(np.sqrt(np.mean((back - w) ** 2) / np.mean(w**2)))

    shape, sizes = (256, 2048), (32, 64, 128, 256)
    normal = rng.standard_normal(shape)
    spikes = np.where(rng.random(shape) < 1 / 1000, 20, 1)
    kinds = {
        "normal": normal,
        "heavy tails": rng.standard_t(4, shape),
        "rare outliers": normal * spikes,
    }
    costs = {kind: [100 * error(w, size) for size in sizes] for kind, w in kinds.items()}
    return shape, sizes, costs


def errors_drawn(costs: dict[str, Any], sizes: Any, shape: Any) -> None:
    """Draw the error of INT4 by the size of a group."""
    title = "Error of INT4 by the size of a group"
    what = "weights a group (bits a weight)"
    fig, ax = plot.figure(what, "error, % (RMS)", title, xlog=True)
    for kind, values in costs.items():
        plot.series(ax, sizes, values, label=kind)
    ax.set_xticks(sizes, [f"{size} ({4 + 16 / size:.3f})" for size in sizes])
    plot.label_ends(ax)
    ends = [f"{kind} {v[0]:.1f} to {v[-1]:.1f}%" for kind, v in costs.items()]
    about = f"{title}, {shape[0]:,} × {shape[1]:,} weights, from {sizes[0]} to {sizes[-1]} a group"
    plot.show(fig, f"{about}: {', '.join(ends)}.")


def errors_explained(costs: dict[str, Any], sizes: Any) -> None:
    """Say how error and bits change with the group, and what an outlier costs."""
    bits = [4 + 16 / size for size in sizes]
    spoilt = costs["rare outliers"][2] / costs["normal"][2]
    display.say(
        f"**Groups of {sizes[2]} save {1 - bits[2] / bits[0]:.0%} of the bytes of groups of "
        f"{sizes[0]}, and err "
        f"{costs['normal'][2] / costs['normal'][0]:.2f} times as much on normal weights.** From "
        f"{sizes[2]} to {sizes[-1]} little is left to save, {1 - bits[-1] / bits[2]:.0%}. That speaks for "
        f"{sizes[2]} where outliers are few: in groups of {sizes[2]} rare ones make the error "
        f"{spoilt:.1f} times "
        "as large, and the groups that hold one account for the increase."
    )


def bytes_by_way(fused: Any, n: int, k: int, here: Lab, read_roof: float) -> tuple[dict[str, Any], list[Any]]:
    """Show the bytes and the bound of four ways to multiply; the ways and their cases."""
    ways = {"torch.matmul": "FP16", fused.name: "fused"}
    ways |= {study.TWO_OP: "two-op, our kernel", study.TWO_OP_TORCH: "two-op in PyTorch"}
    four = [c for c in study.ladder(n, k, here.sized) if c.impl in ways]
    predicted = pd.DataFrame({"case": [c.id for c in four], "way": [ways[c.impl] for c in four]})
    predicted["mb"] = [study.traffic(c) / 1e6 for c in four]
    predicted["us"] = predicted["mb"] * 1e3 / read_roof
    most = predicted.set_index("way")["mb"]
    predicted["times"] = predicted["mb"] / most["fused"]
    names = {"way": "Way", "mb": "MB", "times": "÷ fused's", "us": "At the measured read roof (µs)"}
    forms = {"mb": "{:,.1f}", "times": "{:.1f}", "us": "{:,.1f}"}
    if {"fused", "FP16", "two-op, our kernel"} <= set(most.index):
        diagram.ways_to_multiply(most["FP16"], most["fused"], most["two-op, our kernel"]).show()
    title = f"All four ways by their bytes, {n:,} × {k:,}, one token"
    display.table(predicted, names, forms, title, folded=True)
    return ways, four


def times_by_way(here: Lab, four: list[Any], ways: dict[str, Any], n: int, k: int, gpu: str) -> Rows:
    """Show the time of each way beside its bound; the rows."""
    rows = here.measure("int4", four)
    rows["way"] = rows["impl"].map(ways)
    rows["least"] = rows["case"].map(
        {c.id: study.traffic(c) / here.roof["dram_read"].value / 1e3 for c in four}
    )
    spread(rows)
    names = {"way": "Way", "gate": "Error (allowed)", "least": "At the measured read roof (µs)"}
    names |= {"median_us": "Median (µs)", "quartiles": "Quartiles (µs)"}
    forms = dict.fromkeys(("least", "median_us"), "{:,.1f}")
    title = f"Errors, bounds and times, {n:,} × {k:,}, one token, on {gpu}"
    display.table(rows, names, forms, title, folded=True)
    return rows


def ways_compared(rows: Rows, gpu: str) -> tuple[Rows, Rows]:
    """Say how the fused kernel compares with the other ways; rows by way, and the fused one."""
    by = rows.set_index("way")
    fused = by.loc["fused"]
    text = f"On the {gpu} the fused kernel reads its few bytes at {fused['roof_fraction']:.0%} of the roof. "
    for name in ("two-op in PyTorch", "two-op, our kernel"):
        if name in by.index:
            text += f"Against {name}{',' * (',' in name)} it is "
            text += f"{display.speed(by.loc[name, 'median_us'] / fused['median_us'])}"
            published = " (the published ninety has another clock and GPU: [part 04d](04d_published.ipynb))"
            text += f"{published if name.endswith('PyTorch') else ''}. "
    if "FP16" in by.index:
        text += "Against weights that simply stay in FP16 it "
        text += f"{display.against(fused, by.loc['FP16'])} cuBLAS"
        text += f", which reads its own at {by.loc['FP16', 'roof_fraction']:.0%} of the roof"
        saved = clock.faster(fused, by.loc["FP16"])
        text += "; the bytes allow more." if saved else ". **A quarter of the bytes, and no time saved**."
    display.say(text)
    return by, fused


def source_test(here: Lab) -> None:
    """Show what decode-roofline's own test finds."""
    tested = here.measure("int4", study.seeded(here.sized))
    tested["seed"] = tested["options"].str.extract(r"seed=(\d+)")[0].astype(int)
    tested["passes"] = tested["error"] <= 2e-3
    pairs = zip(tested["n"], tested["k"], strict=True)
    tested["shape"] = [f"{n:,} × {k:,}" for n, k in pairs]
    names = {"shape": "n × k", "seed": "Seed", "impl": "Kernel"}
    names |= {"error": "Largest error", "passes": "Passes"}
    passed = tested["passes"]
    verdict = "all pass" if passed.all() else f"{passed.sum()} of {len(passed)} pass"
    caption = f"Decode-roofline's own test, |y − ŷ| ≤ 0.002 + 0.002 |ŷ| at four shapes: {verdict}"
    display.table(tested, names, {"error": "{:.1e}"}, caption, folded=True)


def bytes_counted(here: Lab, ways: dict[str, Any], gpu: str) -> tuple[Rows, Rows]:
    """Show predicted and counted bytes of each way; the counters, and both."""
    ((tool, cases, metrics),) = studies.get("int4").profiles(here.effort, here.sized)
    counted = here.profile("int4", cases, tool, metrics)
    counted["mb"] = pd.to_numeric(counted["dram_bytes"]) / 1e6
    asked = {c.id: c for c in cases if c.impl in ways and c.options == ""}
    both = counted[counted["case"].isin(asked)].groupby("case", sort=False)
    both = both.agg(mb=("mb", "sum"), kernels=("mb", "size")).reset_index()
    of = both["case"].map(asked)
    both["way"] = [ways[c.impl] for c in of]
    both["shape"] = [f"{c.n:,} × {c.k:,}" for c in of]
    both["predicted"] = [study.traffic(c) / 1e6 for c in of]
    both["ratio"] = both["mb"] / both["predicted"]
    names = {"shape": "n × k", "way": "Way", "kernels": "Kernels"}
    names |= {"predicted": "Predicted (MB)", "mb": "Counted (MB)", "ratio": "÷ predicted"}
    forms = {"predicted": "{:,.1f}", "mb": "{:,.1f}", "ratio": "{:.2f}"}
    display.table(both, names, forms, f"Bytes predicted, and counted by ncu on {gpu}", folded=True)
    return counted, both


def bytes_compared(gpu: str, both: Rows) -> float:
    """Say how far counted bytes are from predicted ones; the difference of single kernels."""
    off: Any = None
    text = f"Nothing was counted on {gpu}, so the prediction is without a check."
    if len(both):
        one = both[both["kernels"] == 1]
        off = (one["ratio"] - 1).abs().max()
        text = f"What one kernel reads is counted within {off:.0%} of the prediction. "
        less = both[both["ratio"] < 0.9]
        if len(less):
            least = less.loc[less["ratio"].idxmin()]
            text += "The two-op products move less than predicted, least at "
            text += f"{least['shape']} ({least['ratio']:.0%}): what a kernel *writes* goes into L2 "
            text += "first, and "
            text += "some of it is still there when the kernel ends. "
            text += "A prediction of bytes that ignores the caches is a ceiling for products that "
            text += "write."
    display.say(text)
    return off


def beside_laptop(
    laptop: Store, counted: Rows, four: list[Any], gpu: str, n: int, k: int
) -> tuple[Rows, Rows]:
    """Show the counters of decode-roofline's kernel as published and here; both."""
    theirs = analysis.published_counters(laptop)
    ours = counted[counted["case"] == four[0].id]
    if len(ours):
        ours = analysis.counters(ours)
        table = pd.DataFrame({"theirs": theirs, "ours": ours, "what": analysis.SIX})
        names = {"what": "Counter", "theirs": "Published, RTX 4070 Laptop", "ours": gpu}
        forms = dict.fromkeys(("theirs", "ours"), "{:,.1f}")
        title = f"Six counters of decode-roofline's kernel, {n:,} × {k:,}"
        display.table(table, names, forms, title, folded=True)
    return theirs, ours


def limit_explained(ours: Rows, theirs: Rows, gpu: str, here: Lab) -> None:
    """Say whether memory or the SMs limit the kernel, on the laptop and here, and what may hold it back."""
    if len(ours):
        title = "How busy memory and the SMs are in the fused kernel"
        fig, ax = plot.figure("% of its most", title=title, height=2.2)
        both = [theirs, ours]
        parts = {"DRAM": [each["dram_pct"] for each in both], "SMs": [each["sm_pct"] for each in both]}
        plot.grouped(ax, ["RTX 4070 Laptop, published", str(gpu)], parts)
        plot.show(fig, f"{title}, counted by Nsight Compute. SMs: the busiest of their units.")
        text = "On the laptop memory is the kernel's limit. "
        if ours["dram_pct"] < ours["sm_pct"]:
            text = f"**On the laptop memory is the kernel's limit, on the {gpu} it is not.** "
            if ours["sm_pct"] < 80:
                text += f"Here the SMs are {ours['sm_pct']:.0f}% busy and DRAM {ours['dram_pct']:.0f}%. "
                text += "Neither is full: on so small a matrix a kernel's start takes time, too. "
            text += f"{_few_bytes(ours, here)}[part 04b](04b_ladder.ipynb) takes a larger matrix and counts "
            text += "the instructions of a weight."
        display.say(text)


def _few_bytes(ours: Rows, here: Lab) -> str:
    """By Little's law, what the plain kernel has in flight on an SM beside what the read roof needs, where
    that is more: then there are two suspects.
    """
    slots, wait, sms = thread_slots(here), latency(here), int(here.run["sms"])
    has = 4 * slots * ours["occupancy_pct"] / 100
    needs = roofline.bytes_in_flight(here.roof["dram_read"].value, wait) / sms
    if not has < needs:  # or no latency was recorded
        return "The SMs are nearer to their limit: "
    return (
        "**Two suspects.** *Few bytes in flight*: with a word of 4 bytes under way a lane and "
        f"{ours['occupancy_pct']:.0f}% of {slots:,} thread slots filled, an SM has {has / 1024:.1f} KiB, "
        f"where the roof needs {needs / 1024:.1f} (Little's law, at the {wait:.0f} ns of a lone load). *Many "
        "instructions*: the SMs are nearer to their limit. To tell them apart, "
    )


def takeaway(both: Rows, off: float, costs: dict[str, Any], by: Rows, gpu: str, fused: Rows) -> None:
    """What to take away, computed."""
    text = f"- INT4 in groups of 128 takes {4 + 16 / 128:.3f} bits a weight"
    text += f", and the counters find the fused kernel within {off:.0%} of that.\n" if len(both) else ".\n"
    text += (
        f"- Four bits cost accuracy: an error of {costs['normal'][2]:.0f}% (RMS) for normal weights here, "
    )
    text += "and more where outliers live.\n"
    text += "- Compare with what one would use otherwise."
    if {"two-op in PyTorch", "FP16"} <= set(by.index):
        ratio = by.loc["two-op in PyTorch", "median_us"] / by.loc["FP16", "median_us"]
        text += f" Two-op in PyTorch takes {times(ratio)} times as long as not quantising at all"
        text += ", so beating it says little." if ratio > 1.5 else "."
    text += "\n"
    text += f"- Fewer bytes save time only if they still arrive at the roof. On the {gpu} the plain fused "
    display.say(f"{text}kernel reads them at {fused['roof_fraction']:.0%} of it.")


def explore(here: Lab, gpu: str, n: int, k: int) -> Any:
    """The explorer of the page's ways to multiply, by shape and tokens; None where none was timed."""
    rows, roof = products(here), here.roof["dram_read"].value
    if rows.empty:
        display.say(f"No product of these was timed on the {gpu}.")
        return None
    rows["predicted_us"] = [
        study.traffic(c) / roof / 1e3 for c in map(studies.get("int4").case, rows["case"])
    ]
    shares = rows["predicted_us"] / rows["median_us"]
    rows["shape"] = [f"{n:,} × {k:,}" for n, k in zip(rows["n"], rows["k"], strict=True)]
    rows[SAYS] = [f"{share:.0%} of the read roof; {i}" for share, i in zip(shares, rows["impl"], strict=True)]
    return explorer.Explorer(
        "int4-ways",
        rows,
        x="batch",
        y="median_us",
        controls={"called": "Contestant", "shape": "n × k"},
        labels={"batch": "Tokens"},
        title=f"Ways to multiply on {gpu}",
        ylog=True,
        foretold="its bytes at the read roof: {} µs",
        measure=explorer.measurer(here),
        start={"called": SOURCE, "shape": f"{n:,} × {k:,}", "batch": 1},
    )
