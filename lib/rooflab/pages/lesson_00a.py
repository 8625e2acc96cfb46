"""What lesson 00a shows: the gate's verdicts, the ramp, and the machine with its conditions and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops, studies
from rooflab.bench import clock
from rooflab.lab import Lab
from rooflab.ops import probes
from rooflab.pages import Opening, Rows
from rooflab.records.csv_table import is_blank
from rooflab.studies import environment
from rooflab.studies.base import Context
from rooflab.view import diagram, display, explorer, plot


def opening(lab: Lab) -> Opening:
    """The first screen: how many kernels that cheat the gate refused."""
    refusals = lab.profile("environment", environment.cheats(), "gate")
    if len(refusals):
        text = f"A wrong kernel can be fast. On the {lab.run.gpu} the gate refused "
        text += (
            f"{int(refusals['refused'].sum())} of {len(refusals)} kernels that cheat; only what passes it "
        )
        text += "gets a published time."
    else:
        text = f"A wrong kernel can be fast. No kernel that cheats was tried on the {lab.run.gpu}: 0 refused."
    able = [
        "write a check that a wrong kernel does not pass",
        "predict the least time of a kernel from its bytes",
        "read a time with its quartiles",
    ]
    return text, able, diagram.gate_steps(_refused(refusals), probes.CHEATS) if len(refusals) else None


def _refused(refusals: Rows) -> list[tuple[str, str]]:
    """What the gate said of each CUDA cheat, by its name."""
    names = refusals["case"].str.extract(r"/(\w+)", expand=False)
    verdicts = np.where(refusals["refused"], "refused: ", "") + refusals["sentence"]
    return list(zip(names, verdicts, strict=True))


def machine(run: Any, spec: Any) -> None:
    """Show the state of the machine around the run; fold what the driver reports beside the datasheet."""
    conditions(run)
    sheet = spec and ".".join(map(str, spec.compute_capability))
    around = [mhz for mhz in (run.sm_clock_before_mhz, run.sm_clock_after_mhz) if not is_blank(mhz)]
    clock_now = f"{max(around):.0f} MHz, the higher of before and after" if around else "not told"
    facts = [
        ("compute capability", run.compute_capability, sheet),
        ("SMs", f"{run.sms}", spec and f"{spec.sms}"),
        ("L2 cache", plot.size_text(run.l2_bytes), spec and f"{spec.l2_mb:g} MiB"),
        ("DRAM", f"{run.memory_bytes / 2**30:.0f} GiB", spec and _sold(run, spec)),
        ("DRAM bandwidth", "lesson 01 measures it", spec and f"{spec.dram_gb_s:,} GB/s"),
        ("SM clock", clock_now, spec and f"boost {spec.boost_mhz} MHz"),
        ("CUDA, compiler (NVRTC)", f"{run.cuda}, {run.nvrtc}", None),
        ("torch, CuPy", f"{run.torch or 'none'}, {run.cupy}", None),
    ]
    heads = {"fact": "fact", "here": run.gpu, "sheet": "datasheet"}
    title = f"The {run.gpu}: what the driver reports, beside the datasheet"
    display.table(pd.DataFrame(facts, columns=list(heads)), heads, caption=title, folded=True)


def _sold(run: Any, spec: Any) -> str:
    """The datasheet's size of memory, and what its GB must be where the driver finds more bytes than that."""
    more = run.memory_bytes > spec.memory_gb * 1e9
    return f"{spec.memory_gb:g} GB{' (which must be GiB)' if more else ''}"


def conditions(run: Any) -> None:
    """Show clock, temperature and power before and after the run, and who else was there."""
    before = [run.sm_clock_before_mhz, run.temperature_before_c, run.power_before_w]
    after = [run.sm_clock_after_mhz, run.temperature_after_c, run.power_after_w]
    what = ["SM clock, MHz", "temperature, °C", "power, W"]
    conditions = pd.DataFrame({"what": what, "before": before, "after": after})
    heads = {"what": "quantity", "before": "before", "after": "after"}
    forms = dict.fromkeys(("before", "after"), "{:.0f}")
    display.table(conditions, heads, forms, f"The {run.gpu} around the run")
    others = run.other_processes
    display.say(
        "No other process was on the GPU."
        if others == 0
        else f"**Other processes shared the GPU: {others}.** Suspect every time here."
    )


def counted_loads(lab: Any) -> Any:
    """Show what the profiler counted of three sizes; its rows."""
    asked = environment.profiled_clocks()
    counted = lab.profile("environment", asked, "ncu", environment.PROFILED)
    counted["n"] = counted["case"].map({case.id: case.n for case in asked})
    heads = {"n": "elements", "dram_bytes": "DRAM bytes"}
    heads |= {"l2_hit_pct": "L2 hits, %", "occupancy_pct": "occupancy, %"}
    formats = dict.fromkeys(("l2_hit_pct", "occupancy_pct"), "{:.0f}")
    formats |= dict.fromkeys(("n", "dram_bytes"), "{:,.0f}")
    display.fold_parts("What ncu counted of saxpy/1_scalar", [(counted, heads, formats), *_stores(counted)])
    return counted


def _stores(counted: Any) -> list[str]:
    """Why the largest size has hits in L2, where they are as many as its stores."""
    last = counted.loc[[counted["n"].idxmax()]] if len(counted) else counted
    return [
        f"At {row.n:,.0f} elements nothing is read twice, and {row.l2_hit_pct:.0f}% are hits: most likely "
        "the stores, one of a thread's three requests, which L2 takes without DRAM."
        for row in last.itertuples()
        if abs(row.l2_hit_pct - 100 / 3) < 2
    ]


def proved_by(counted: Any) -> Any:
    """Say whether counters can be read here; whether they can."""
    proved = len(counted) > 0 and (counted["dram_bytes"] > 0).any()
    silly = counted[counted["l2_hit_pct"] > 100]["l2_hit_pct"]
    display.say(
        "Counters are permitted: the DRAM bytes came back, and not empty."
        if proved
        else "No counters on this machine; the doctor says why."
    )
    if len(silly):
        display.say(
            "**Do not believe counters of tiny kernels**: `ncu` reads other counters in each of several "
            f"runs, and here they disagree so far that a hit rate comes out as {silly.max():.0f}%, which is "
            "impossible."
        )
    return proved


def compiled(lab: Any, words: str) -> None:
    """Fold what the compiler made of the rungs, under the meanings of its words."""
    kept = [f"arch=sm_{arch}" for arch in studies.static.SASS_ARCHS]
    built = [case for case in lab.cases("static") if case.operator == "saxpy"]
    built = [case for case in built if case.options in kept]
    report = lab.measure("static", built)
    sass = lab.profile("static", built, "sass").drop(columns="run")
    report["arch"] = report["options"].str.removeprefix("arch=")
    heads = {"impl": "saxpy", "arch": "for", "registers": "registers"}
    heads |= {"spill_bytes": "spilled bytes", "instructions": "instructions"}
    heads |= {"loads_4b": "4-byte loads", "loads_16b": "16-byte loads"}
    heads |= {"fused_multiply_adds": "FMAs"}
    title = "What the compiler made of the rungs: registers, spilled bytes and instructions"
    display.fold_parts(title, [words, (report.merge(sass, on="case", how="left"), heads)])


def cheats(lab: Any) -> Any:
    """Show the gate's verdicts on the CUDA cheats; how many were refused, in words."""
    refusals = lab.profile("environment", environment.cheats(), "gate")
    table = pd.DataFrame(_refused(refusals), columns=["cheat", "verdict"])
    heads = {"cheat": "CUDA cheat", "verdict": "the gate says"}
    display.table(table, heads, caption="What the gate says of each CUDA cheat", folded=True)
    caught = f"{refusals.refused.sum()} of {len(refusals)} CUDA cheats"
    caught = caught if len(refusals) else "none of the CUDA cheats, which were not tried"
    display.say(
        f"Refused: **{caught}**, each at the step drawn at the top. What is refused gets no published time."
    )
    return caught


def verdicts(kernels: Sequence[Callable[..., None]], judge: Callable[[Any], str]) -> list[dict[str, str]]:
    """Show what `judge` says of each NumPy kernel; its verdicts."""
    found = [{"kernel": kernel.__name__, "verdict": judge(kernel)} for kernel in kernels]
    display.table(pd.DataFrame(found), {"kernel": "NumPy kernel", "verdict": "the gate says"})
    return found


def predicted(N: Any, spec: Any) -> None:
    """Say the least time of the ramp's contestants, which all move the same bytes."""
    study, case = studies.get("environment"), environment.ramp(N)[0]
    bound, moved = study.predict(case, Context(device=spec)), study.count(case).bytes or 0
    if bound is None:
        display.say("No datasheet of this GPU is known, so nothing is predicted.")
        return
    display.say(
        f"**Predicted.** Both rungs and the peer, `torch.add`, move {moved:,} bytes. At the datasheet's "
        f"{spec.dram_gb_s:,} GB/s none of them can take less than **{bound:.1f} µs**."
    )


def measured(ramp: Any) -> None:
    """Show the ramp with quartiles, rates and errors."""
    ramp["used"] = ramp["error"] / ramp["error_budget"]
    heads = {"impl": "saxpy", "q1_us": "q1, µs", "median_us": "median, µs"}
    heads |= {"q3_us": "q3, µs", "samples": "samples", "gb_s": "GB/s"}
    heads |= {"roof_fraction": "of triad roof", "used": "error, of allowed"}
    formats = dict.fromkeys(("q1_us", "median_us", "q3_us"), "{:.2f}")
    formats |= {"gb_s": "{:,.0f}", "roof_fraction": "{:.0%}", "used": "{:.0%}"}
    display.table(ramp, heads, formats)


def requests(ramp: Any) -> None:
    """Draw the warps of each rung that load the same bytes, with the rung's share of the roof."""
    shares = ramp.set_index("impl")["roof_fraction"]
    widths = []
    for rung in ops.stream.LADDERS["saxpy"][:2]:
        wide = 16 if "float4*" in rung.path.read_text(encoding="utf-8") else 4
        share = shares.get(rung.name)
        rate = "" if share is None or share != share else f"measured below: {share:.0%} of the triad roof"
        widths.append(diagram.Width(rung.name, wide, rate))
    diagram.warp_requests(widths).show()


def standing(ramp: Any) -> None:
    """Say how the rungs compare."""
    by_impl = ramp.set_index("impl")
    first, second = by_impl.loc["1_scalar"], by_impl.loc["2_vector"]
    text = f"On this device rung 2 {display.against(second, first)} rung 1"
    if "torch.add" in by_impl.index:
        peer = by_impl.loc["torch.add"]
        text += f" and {display.against(second, peer)} `torch.add`"
    text += "."
    if clock.faster(second, first):
        text += " The bytes are the same, but a thread of rung 2 has 32 of them under way instead of 8: "
        text += "[lesson 01](01_bandwidth.ipynb) shows that this is what the memory wants."
    if second.predicted_us > 0:
        excess = second.median_us / second.predicted_us
        text += f" Rung 2 takes {excess:.2f} times the datasheet's least time."
    display.say(text)


def takeaway(caught: Any, proved: Any, ramp: Any, verdicts: Any) -> None:
    """The page's last word."""
    admitted = sum(verdict["verdict"].startswith("admitted") for verdict in verdicts)
    best = ramp.loc[ramp["median_us"].idxmin()]
    share = best["roof_fraction"]
    text = f"- The gate admitted {admitted} of {len(verdicts)} NumPy kernels, the honest one, and refused "
    text += f"{caught}. What is refused gets no published time.\n"
    text += f"- The highest rate of saxpy, cold, over {int(best['n']):,} elements: {best['gb_s']:,.0f} GB/s, "
    text += f"by {best['impl']}."
    if share == share:
        text += f" That is {share:.0%} of its roof."
    text += f"\n- Counters {'can' if proved else 'cannot'} be read on this machine."
    display.say(text)


def explored(lab: Any, ramp: Any, recorded: Any) -> Any:
    """The explorer of saxpy's rung 2 by size, cold and warm."""
    graphs = [c for c in recorded if c.operator == "saxpy" and not c.options]
    graphs = [c for c in graphs if c.clock == "graph"]
    saxpy = pd.concat([lab.measure("environment", graphs), ramp])
    saxpy = saxpy[saxpy["impl"] == "2_vector"]  # of the others a few sizes were recorded
    return explorer.Explorer(
        "saxpy",
        saxpy.drop_duplicates("case"),
        controls={"cache": "Cache"},
        roof=lab.roof or None,
        title="saxpy/2_vector, by size",
        measure=explorer.measurer(lab),
    )
