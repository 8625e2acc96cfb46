"""What lesson 07b works out by its law: a product's time, term by term."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import extrapolation, strategies
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import counted

_UNITS = {
    "fp32": "FP32 lanes",
    "fp16_tensor": "FP16 tensor cores",
    "dp4a": "dp4a, 4 int8 products an instruction",
    "int8_scaled": "int8 tensor cores, with the scaling",
}
_NEAR = 10  # percent: a product that the law can be shown on


def worked(row: Any, here: Any, fit: Any) -> str:
    """The plain law worked out for one product: each term, which of them decides, and the measured time."""
    how, sizes = perf_model.strategy(row.format, row.impl), (int(row.n), int(row.k), int(row.batch))
    peak, flops = here.peak(how.unit), perf_model.computed(how, *sizes, here.sms)
    moved, launches = perf_model.moved(how, *sizes), perf_model.launched(how, sizes[2])
    memory, compute = moved / here.gb_s / 1e3, flops / peak / 1e6
    text = f"**Worked out: {row.label}, {sizes[0]:,} × {sizes[1]:,}, {counted(sizes[2], 'token')}.** "
    if how.tile is not None:
        (high, wide) = how.tile
        tiles = -(-sizes[0] // high) * -(-sizes[2] // wide)
        rounds = -(-tiles // here.sms)
        one = flops / here.sms / rounds
        text += (
            f"Tiles of {high} × {wide} are {tiles:,} on {here.sms} SMs: {counted(rounds, 'round')}. A tile "
            f"has {one / 1e6:,.1f} MFLOP, an SM makes {peak:,.1f} ÷ {here.sms} = {peak / here.sms:.3f} "
            f"TFLOP/s: {compute:,.2f} µs. The bytes take {memory:.2f} µs. "
        )
    else:
        text += (
            f"{moved / 1e6:.1f} MB ÷ {here.gb_s:,.0f} GB/s are {memory:.2f} µs; {flops / 1e6:,.1f} MFLOP ÷ "
            f"{peak:,.0f} TFLOP/s are {compute:.2f} µs. "
        )
    kernels = f"{launches} × {fit.launch_us:.2f}" if launches > 1 else f"{fit.launch_us:.2f}"
    return (
        f"{text}So the time is {kernels} + max({memory:.2f}, {compute:,.2f}) = {row.one_us:,.2f} µs. "
        f"Measured: {row.median_us:,.2f}"
    )


def ways(timed: Rows, here: Any) -> None:
    """What the law knows of every way that was timed, and of the published laptop's: kernels, unit, peak,
    tile; folded.
    """
    held = {*zip(timed["format"], timed["impl"], strict=True), ("int4_g128", "loop")}
    lines = [
        (
            strategies.label(how.format, how.name),
            how.says,
            "1 a token" if how.each_pass else str(how.launches),
            _UNITS[how.unit],
            f"{here.peak(how.unit):,.0f}",
            f"{how.tile[0]} × {how.tile[1]}" if how.tile else "not counted",
        )
        for how in perf_model.STRATEGIES
        if (how.format, how.name) in held
    ]
    heads = ("way", "what it does", "kernels", "unit", "its peak, TFLOP/s or TOP/s", "tile, rows × tokens")
    table = pd.DataFrame(lines, columns=list(heads))
    words = (
        "*x* are the activations. *Dequantise* writes the weights to memory as FP16; a *fused* kernel "
        "unpacks them where it multiplies. *wgmma* is a tensor-core instruction of four warps, on Hopper "
        "GPUs. Where a tile is *not counted*, the law charges the FLOPs of the product alone."
    )
    display.fold_parts(
        "The ways: their kernels, unit, peak and tile", [words, (table, {head: head for head in heads})]
    )


def by_bytes(compared: Rows, here: Any, fit: Any, n: int, k: int) -> None:
    """Work the law out for a product that bytes bound and on which it works: of an n × k matrix at the fewest
    tokens where there is one within a tenth, else the nearest of all.
    """
    plain = [how.tile is None and not how.extra for how in _ways(compared)]
    mine = compared[plain][compared[plain]["by"] == "memory"]
    asked = mine[(mine["n"] == n) & (mine["k"] == k) & (mine["one_off"].abs() <= _NEAR)]
    _say_first(asked.sort_values("batch", kind="stable") if len(asked) else _by_error(mine), here, fit)


def in_tiles(compared: Rows, here: Any, fit: Any) -> None:
    """Work the law out for the product in tiles that it is nearest to, of those that FLOPs bound."""
    tiled = [how.tile is not None for how in _ways(compared)]
    _say_first(_by_error(compared[tiled][compared[tiled]["by"] == "compute"]), here, fit)


def _ways(rows: Rows) -> list[perf_model.Strategy]:
    return [perf_model.strategy(*key) for key in zip(rows["format"], rows["impl"], strict=True)]


def _by_error(rows: Rows) -> Rows:
    """Products, the one that the plain law is nearest to first."""
    return rows.sort_values("one_off", key=abs, kind="stable")


def _say_first(rows: Rows, here: Any, fit: Any) -> None:
    """Say the law worked out for the first of some products."""
    if len(rows):
        display.say(f"{worked(rows.iloc[0], here, fit)}.")


def rounds_drawn(compared: Rows, sms: int) -> None:
    """Draw how a matrix' tiles come to the SMs: of the fewest and of the most tokens at which some SMs idle
    in the last round, by the same way.
    """
    found = compared.assign(why=[extrapolation.reason(row, sms) for row in compared.itertuples()])
    found = found.assign(tiles=found["why"].str.extract(r"^(\d+) tiles for")[0].astype(float))
    found = found[found["tiles"] < 3 * sms].sort_values(["tiles", "batch"], kind="stable")
    above = found[found["tiles"] > sms]
    if above.empty:
        return
    just, below = above.iloc[0], found[found["tiles"] < sms]
    some = [*([below.iloc[-1]] if len(below) else []), just, above.iloc[-1]]
    tiles = [int(row["tiles"]) for row in some]
    parts = [(counted(-(-count // sms), "round"), count) for count in tiles]
    diagram.dealt(list(dict.fromkeys(parts)), sms, "Tiles of a product, dealt to the SMs", "tiles").show()
    rounds = -(-int(just["tiles"]) // sms)
    idle = 1 - just["tiles"] / (rounds * sms)
    whose = f"{just['label']}, {just['n']:,} × {just['k']:,}, {counted(int(just['batch']), 'token')}"
    display.say(
        f"{just['tiles']:.0f} tiles take {rounds} rounds, as {rounds * sms} would: SMs are idle {idle:.0%} "
        f"of the time. ({whose}.)"
    )
