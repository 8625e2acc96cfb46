"""What lesson 07b works out by its law: a product's time, term by term."""

from __future__ import annotations

from typing import Any

from rooflab.analysis import extrapolation
from rooflab.hardware import perf_model
from rooflab.pages import Rows
from rooflab.view import diagram, display
from rooflab.words import counted

_NEAR = 10  # percent: a product that the law can be shown on


def worked(row: Any, here: Any, fit: Any, why: str = "") -> str:
    """The plain law worked out for one product, `why` for this: each term, which of them decides, and the
    measured time.
    """
    how, sizes = perf_model.strategy(row.format, row.impl), (int(row.n), int(row.k), int(row.batch))
    peak, flops = here.peak(how.unit), perf_model.computed(how, *sizes, here.sms)
    moved, launches = perf_model.moved(how, *sizes), perf_model.launched(how, sizes[2])
    memory, compute = moved / here.gb_s / 1e3, flops / peak / 1e6
    text = f"**Worked out{why}: {row.label}, {sizes[0]:,} × {sizes[1]:,}, {counted(sizes[2], 'token')}.** "
    if how.tile is not None:
        (high, wide) = how.tile
        tiles = -(-sizes[0] // high) * -(-sizes[2] // wide)
        rounds = -(-tiles // here.sms)
        one = flops / here.sms / rounds
        text += (
            f"Tiles of the result, {high} × {wide}: {tiles:,} on {here.sms} SMs, {counted(rounds, 'round')}. "
            f"A tile has {one / 1e6:,.1f} MFLOP, an SM makes {peak:,.1f} ÷ {here.sms} = "
            f"{peak / here.sms:.3f} TFLOP/s: FLOPs take {compute:,.2f} µs, bytes {memory:.2f}. "
        )
    else:
        text += (
            f"{moved / 1e6:.1f} MB ÷ {here.gb_s:,.0f} GB/s are {memory:.2f} µs; {flops / 1e6:,.1f} MFLOP ÷ "
            f"{peak:,.0f} TFLOP/s are {compute:.2f} µs. "
        )
    kernels = f"{launches} × {fit.launch_us:.2f}" if launches > 1 else f"{fit.launch_us:.2f}"
    return (
        f"{text}Time: {kernels} + max({memory:.2f}, {compute:,.2f}) = {row.one_us:,.2f} µs. "
        f"Measured: {row.median_us:,.2f}"
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
    mine = _by_error(compared[tiled][compared[tiled]["by"] == "compute"])
    _say_first(mine, here, fit, ", a product that the law fits well")


def _ways(rows: Rows) -> list[perf_model.Strategy]:
    return [perf_model.strategy(*key) for key in zip(rows["format"], rows["impl"], strict=True)]


def _by_error(rows: Rows) -> Rows:
    """Products, the one that the plain law is nearest to first."""
    return rows.sort_values("one_off", key=abs, kind="stable")


def _say_first(rows: Rows, here: Any, fit: Any, why: str = "") -> None:
    """Say the law worked out for the first of some products, `why` for this."""
    if len(rows):
        row = rows.iloc[0]
        display.say(f"{worked(row, here, fit, why)}.")
        terms_drawn(row, here, fit)


def terms_drawn(row: Any, here: Any, fit: Any) -> None:
    """Draw the plain law's terms for one product, and the measured time."""
    how, sizes = (
        perf_model.strategy(row["format"], row["impl"]),
        (int(row["n"]), int(row["k"]), int(row["batch"])),
    )
    terms = diagram.Terms(
        perf_model.launched(how, sizes[2]) * fit.launch_us,
        perf_model.moved(how, *sizes) / here.gb_s / 1e3,
        perf_model.computed(how, *sizes, here.sms) / here.peak(how.unit) / 1e6,
        float(row["median_us"]),
    )
    title = f"{row['label']}, {sizes[0]:,} × {sizes[1]:,}, {counted(sizes[2], 'token')}: µs"
    diagram.terms_of_time(title, terms).show()


def rounds_drawn(compared: Rows, sms: int) -> None:
    """Draw how products' tiles come to the SMs, round by round, without an empty place in a tile where there
    are such: just under one tile an SM, and just above it.
    """
    found = compared.assign(why=[extrapolation.reason(row, sms) for row in compared.itertuples()])
    found = found.assign(tiles=found["why"].str.extract(r"^(\d+) tiles for")[0].astype(float))
    found = found[found["tiles"].notna()].sort_values("one_off", key=abs, kind="stable")
    full = [_fills(how, int(row.n), int(row.batch)) for how, row in _each(found)]
    found = found[full] if any(full) else found
    above = found[found["tiles"] > sms].sort_values("tiles", kind="stable")
    if above.empty:
        return
    just = above.iloc[0]
    below = found[(found["tiles"] < sms) & (found["label"] == just["label"])]
    below = below.sort_values("tiles", kind="stable", ascending=False)
    some = [*([below.iloc[0]] if len(below) else []), just]
    tiles, whose = [int(row["tiles"]) for row in some], []
    rounds = -(-tiles[-1] // sms)
    parts = [("round 1 of 1", tiles[0])] if len(some) == 2 else []
    parts += [(f"round {each + 1} of {rounds}", min(sms, tiles[-1] - each * sms)) for each in range(rounds)]
    words = [f"{tiles[0]} take 1 round"] if len(some) == 2 else []
    words += [f"{tiles[-1]} take {counted(rounds, 'round')}"]
    diagram.dealt(parts, sms, f"Tiles dealt to {sms} SMs: {', '.join(words)}", "tiles").show()
    for row in some:
        whose.append(
            f"{row['n']:,} × {row['k']:,} with {counted(int(row['batch']), 'token')} has {row['tiles']:.0f}"
        )
    idle = 1 - tiles[-1] / (rounds * sms)
    high, wide = perf_model.strategy(just["format"], just["impl"]).tile or (0, 0)
    text = f"{whose[0]}, 1 round; " if len(some) == 2 else ""
    display.say(
        f"Tiles of {high} × {wide} (rows × tokens): {text}{whose[-1]}, {rounds} rounds, as {rounds * sms} "
        f"would take, and SMs are idle {idle:.0%} of the time."
    )


def _each(rows: Rows) -> list[tuple[perf_model.Strategy, Any]]:
    """Each row with its way."""
    return list(zip(_ways(rows), rows.itertuples(), strict=True))


def _fills(how: perf_model.Strategy, n: int, batch: int) -> bool:
    """Whether a product leaves no place of its tiles empty."""
    return how.tile is not None and n % how.tile[0] == 0 and batch % how.tile[1] == 0
