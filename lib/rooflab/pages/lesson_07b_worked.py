"""What lesson 07b works out by its law: a product's time, term by term."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import extrapolation
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import counted

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
            f"has {one / 1e6:,.0f} MFLOP, an SM makes {peak:,.0f} ÷ {here.sms} = {peak / here.sms:.2f} "
            f"TFLOP/s: {compute:.1f} µs. The bytes take {memory:.1f} µs. "
        )
    else:
        text += (
            f"{moved / 1e6:.1f} MB ÷ {here.gb_s:,.0f} GB/s are {memory:.1f} µs; {flops / 1e6:,.0f} MFLOP ÷ "
            f"{peak:,.0f} TFLOP/s are {_us(compute)} µs. "
        )
    kernels = f"{launches} × {fit.launch_us:.1f}" if launches > 1 else f"{fit.launch_us:.1f}"
    return (
        f"{text}So the time is {kernels} + max({_us(memory)}, {_us(compute)}) = {row.one_us:.1f} µs. "
        f"Measured: {row.median_us:.1f}"
    )


def _us(time: float) -> str:
    """Microseconds to a tenth; what that would round to nothing, to a hundredth."""
    return f"{time:.1f}" if time >= 0.05 else f"{time:.2f}"


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
