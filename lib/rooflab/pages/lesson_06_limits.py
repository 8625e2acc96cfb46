"""What limits each rung of lesson 06: reads from L2, whose roof is not known, or a unit of an SM."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import attention as analysis
from rooflab.lab import Lab
from rooflab.pages import NEAR, Rows
from rooflab.view import display, plot
from rooflab.words import times

_BUSY = 60  # percent of what a unit can do, from which on it may be what limits a rung
_L2_SOME, _L2_ALL = 0.6, 0.9  # of a rung's time that L2 needs for its reads: a part of it, all of it


def l2_rate(here: Lab) -> float:
    """The fastest of part 01b's warm reads in GB/s, which L2 gives at least; NaN where there are none."""
    warm = [c for c in here.cases("bandwidth") if (c.operator, c.cache) == ("read", "warm")]
    warm = here.held("bandwidth", warm)
    return float(here.measure("bandwidth", warm)["gb_s"].max()) if warm else float("nan")


def l2_said(here: Lab) -> None:
    """Say by which rate reads from L2 are counted, as its roof is not known."""
    rate = l2_rate(here)
    if rate == rate:
        display.say(
            f"**L2's roof is not known**; a warm read in [part 01b](01b_roofs.ipynb) reached {rate:,.0f} "
            "GB/s. Times by reads are at that rate. L2 may give more: they are estimates, not least times."
        )


def verdict_on(ratio: float, reads: bool) -> str:
    """What a rung's time says that is `ratio` times the least by its reads from L2, or by its products."""
    if ratio > NEAR:
        return f"**Verdict**: {times(ratio)} times the prediction."
    text = f"**Verdict**: {times(ratio)} times the prediction. "
    if reads and ratio < 1:
        return f"{text}L1 answers some of its reads, or L2 gives more than that rate. L2 is the likely limit."
    if reads:
        return f"{text}L2 is the likely limit."
    return text + "Its arithmetic limits it."


def busiest(counted: Rows, who: str, l2: float) -> str:
    """What the counters of a rung say of its limit: more reads than were predicted, for which L2, with `l2`
    GB/s, needs its time; else the busiest unit; or nothing where it was not counted.
    """
    found = counted[counted["who"] == who] if len(counted) else counted
    if found.empty:
        return ""
    row = found.iloc[0]
    least, taken = row["sm_read_bytes"] / l2 / 1e3, row["time_ns"] / 1e3
    more, unit = row["sm_read_bytes"] / row["asked"], row["busiest"]
    reads = f" It reads {more:.1f} times what was predicted, for which L2 needs {least:,.0f} µs at that rate"
    if more > 1.25 and least > _L2_ALL * taken:
        return f"{reads}: L2 is the likely limit."
    reads = f"{reads}." if more > 1.25 and least > _L2_SOME * taken else ""
    share = row["busiest_pct"]
    if share < _BUSY:
        return f"{reads} No unit of an SM is busy for more than {share:.0f}% of the time ({unit}): it waits."
    are = "are" if str(unit).endswith("s") else "is"
    return f"{reads} {str(unit).capitalize()} {are} busy {share:.0f}% of the time."


def reads(counted: Rows, gpu: str) -> None:
    """Predicted reads of K and V beside those that Nsight Compute counted."""
    if len(counted):
        counted["predicted"] = counted["asked"] / 1e9
        counted["seen"] = counted["sm_read_bytes"] / 1e9
        counted["dram"] = counted["dram_bytes"] / counted["once"]
        names_of = {
            "who": "Rung",
            "predicted": "Predicted (GB)",
            "seen": "Read from L2 (GB)",
        }
        names_of |= {"l2_hit_pct": "L2 hits %", "dram": "DRAM, each byte (times)"}
        forms = {
            "predicted": "{:,.2f}",
            "seen": "{:,.2f}",
            "l2_hit_pct": "{:.0f}",
            "dram": "{:.2f}",
        }
        display.table(counted, names_of, forms, f"Reads of K and V, rung by rung, on {gpu}", folded=True)
    else:
        display.say("Nsight Compute could not count here, so the prediction stands alone.")


def reads_said(counted: Rows) -> None:
    """How far counted reads are from predicted ones, folded, and what DRAM moved."""
    if len(counted):
        ratio = counted["sm_read_bytes"] / counted["asked"]
        few, most = counted.loc[ratio.idxmin()], counted.loc[ratio.idxmax()]
        text = f"Counted over predicted lies between {ratio.min():.2f} ({few['who']}) and "
        text += f"{ratio.max():.2f} ({most['who']}). "
        if ratio.min() < 0.9:
            text += "Below 1, some blocks found in their SM's L1 what a neighbour had fetched. "
        more = counted[ratio > 1.25]
        if len(more):
            text += f"Far above 1: {', '.join(more['who'])}. Their copies (`cp.async`) pass L1 by, and "
            text += "fetch more than was asked for; the counters do not say why. "
        display.fold_parts("Counted reads over predicted", [text])
        text = ""
        if (counted["dram"] < 1.2).all():
            few = counted["dram"].max() < 1
            text += f"DRAM moved {'no' if few else 'hardly'} more than each byte once, in **every** rung"
            text += (
                " (below 1, some of the output was probably still in L2 when counting stopped)" if few else ""
            )
            text += ": keys and values fit the "
            text += f"L2, which answers {counted['l2_hit_pct'].min():.0f}% of the sectors or more. "
        display.say(text + "Reading again costs trips to L2, not to DRAM.")


def units(counted: Rows, gpu: str) -> None:
    """How busy each unit of an SM is."""
    if len(counted):
        names_of = {"who": "Rung", "issue_pct": "Issue slots"}
        names_of |= {"fma_pct": "Multiply-add", "tensor_pct": "Tensor cores"}
        names_of |= {"shared_pct": "Shared memory", "busiest": "Busiest"}
        forms = dict.fromkeys(analysis.UNITS, "{:.0f}")
        display.table(counted, names_of, forms, f"How busy each unit is, in %, on {gpu}", folded=True)


def under_roofs(counted: Rows, here: Lab, known: dict[str, Any], sheet: Any, gpu: str) -> None:
    """Each rung under L2's roof and the arithmetic units', and in words which of them limits it."""
    if len(counted):
        l2 = l2_rate(here)
        roofs = {"FP32 units": "fp32", "tensor cores": "fp16_tensor"}
        peaks = {name: known[roof] for name, roof in roofs.items() if known.get(roof)}
        place = counted["flops"] / counted["sm_read_bytes"]
        rate = counted["flops"] / counted["time_ns"] / 1e3
        title = "Each rung under two limits: reads from L2, and arithmetic"
        fig, ax = plot.figure("operations a byte read from L2", "TFLOP/s", title, xlog=True, ylog=True)
        plot.under_roofs(ax, place, rate, counted["who"], ("L2, a warm read", l2), peaks)
        text = f"{title} on {gpu}. A warm read reached {l2:,.0f} GB/s; L2's roof is not known. The rates are "
        plot.show(fig, f"{text}those of the profiled runs, which differ a little from the timed ones.")
        limits(counted.assign(allowed=place * l2 / 1e3, reached=rate), sheet[1])


def _limit(l2: float, row: Any) -> str:
    """What limits a rung whose reads need the share `l2` of its time from L2."""
    if l2 > _L2_ALL:
        return "reads from L2, likely"
    if row["busiest_pct"] >= _BUSY:
        return str(row["busiest"])
    return "waiting, likely for L2 in part" if l2 > _L2_SOME else "waiting"


def limits(counted: Rows, fp32: float) -> None:
    """Show what likely limits each rung: L2, where its reads at a warm read's rate need all its time
    (`allowed`, the TFLOP/s that they allow, beside those `reached`), or the busiest unit; folded, bank
    conflicts; `fp32` is the datasheet's peak.
    """
    near, busy = counted["reached"] / counted["allowed"], counted["dram_pct"].max()
    text = "as predicted, DRAM is not the limit" if busy < _BUSY else "against the prediction, DRAM may limit"
    text = f"**Verdict**: {text}. DRAM is never busy for more than {busy:.0f}%."
    if near.max() > 1:
        text += f" L2 gave {counted['who'][near.idxmax()]} {near.max() - 1:.0%} more than the warm read took."
    units_said = [f"{unit} {share:.0f}%" for unit, share in counted[["busiest", "busiest_pct"]].to_numpy()]
    table = pd.DataFrame({"who": counted["who"], "l2": near, "unit": units_said})
    table["limit"] = [_limit(share, row) for share, (_, row) in zip(near, counted.iterrows(), strict=True)]
    names = {"who": "Rung", "l2": "L2 needs for its reads at that rate, of the time"}
    names |= {"unit": "Busiest unit of an SM"}
    display.table(table, names | {"limit": "Limit"}, {"l2": "{:.0%}"}, "What limits each rung")
    display.say(text)
    first = counted.iloc[0]
    text = f"{first['who']} reaches 1/{fp32 / first['reached']:.0f} of this GPU's FP32 peak "
    text += f"by the datasheet, at this page's shape (the source, on its own prompt: 1/{analysis.FROM_PEAK} "
    text += "of its GPU's). "
    wait = counted[counted["shared_load_conflicts"] > 1e7]
    if len(wait):
        text += f"Bank conflicts: {wait['shared_load_conflicts'].max() / 1e6:,.0f} million in "
        text += f"{', '.join(wait['who'])}; rung 5 exists to end them."
    display.fold_parts("Share of the FP32 peak, and bank conflicts", [text])
