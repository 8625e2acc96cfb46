"""Where lesson 04c's INT4 products stop paying: the gain over FP16 by tokens, beside what bounds allow."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from rooflab.hardware import crossover
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_04c_bounds import bound_us, by_shape, crossings_of
from rooflab.studies import int4 as study
from rooflab.view import diagram, display, plot
from rooflab.words import counted, listed

_REGISTERS = 65536  # of an SM
_TILES_OF = 64  # rows of a wgmma
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]


def gains_of(here: Lab, shapes: list[Any], batches: list[int]) -> Rows:
    """How many times as fast as FP16 the dispatcher's choice is, a row a shape of `shapes`, a column a number
    of tokens, those beyond a block's 64 among them.
    """
    wide = times_of(here, shapes, batches)
    return (wide["fp16"] / wide["ours"]).dropna().unstack("batch").reindex(shapes)


def times_of(here: Lab, shapes: list[Any], batches: list[int]) -> Rows:
    """Times of the dispatcher's choice and of FP16, `ours` and `fp16`, by n, k and number of tokens, and the
    quartiles of FP16, `q1` and `q3`.
    """
    cases = [case for n, k in shapes for case in study.many(n, k, device=here.sized)]
    cases += [case for n, k in shapes for case in study.batches(n, k, batches, here.sized)]
    cases = [case for case in cases if case.kind == "own" or case.impl == "torch.matmul"]
    rows = here.held("int4", [case for case in cases if case in here.cases("int4")])
    found = here.measure("int4", rows).drop_duplicates(["n", "k", "batch", "impl"])
    us = found.assign(who=found["kind"].eq("own").map({True: "ours", False: "fp16"}))
    wide = us.pivot_table("median_us", ["n", "k", "batch"], "who").reindex(columns=["ours", "fp16"])
    dense = us[us["who"] == "fp16"].set_index(["n", "k", "batch"])
    return wide.join(dense[["q1_us", "q3_us"]].set_axis(["q1", "q3"], axis=1))


def no_gain_beyond(here: Lab, shapes: list[Any]) -> tuple[float, float] | None:
    """Tokens beyond which both formats take the same operations, so that INT4 can gain nothing: the fewest
    and the most of these shapes; None where a roof is missing, or where bytes always take longer.
    """
    if not {"dram_read", "fp16_tensor"} <= set(here.roof):
        return None
    roofs = (here.roof[name].value for name in ("dram_read", "fp16_tensor"))
    span = crossings_of("fp16", *roofs, shapes)
    return span if by_shape(span) else None


def stops(gains: Rows) -> Rows:
    """A row a shape: up to how many tokens INT4 is ahead of FP16, and its gain at the fewest and at the most
    tokens that any shape was timed at.
    """
    table = []
    for (n, k), (end, lost) in _ends(gains).items():
        row = gains.loc[(n, k)]
        upto = counted(end, "token") + (", the most timed" if lost is None else "") if end else "nowhere"
        table.append((f"{n:,} × {k:,}", upto, row.iloc[0], row.iloc[-1]))
    return pd.DataFrame(table, columns=["shape", "ahead", "few", "many"])


def _show_stops(gains: Rows, even: tuple[float, float] | None) -> None:
    """Show the table of `stops`, and say that by the bounds INT4 gains nothing beyond `even` tokens, the
    fewest and the most by shape, where some shape was timed at so many.
    """
    table = stops(gains)
    if table.empty:
        return
    first, last = (int(gains.columns[at]) for at in (0, -1))
    names = {"shape": "n × k", "ahead": "Faster than FP16 up to", "few": f"Gain at {counted(first, 'token')}"}
    names |= {"many": f"Gain at {counted(last, 'token')}"} if last > first else {}
    display.table(table, names, {"few": "{:.2f}", "many": "{:.2f}"})
    if even is not None and last > even[0]:
        display.say(f"Beyond {by_shape(even)}, both bounds are equal: there fewer bytes gain nothing.")


def stops_in_short(gains: Rows) -> str:
    """Up to how many tokens INT4 is ahead of FP16, on the shapes where that is fewest and most."""
    found = list(_ends(gains).values())
    ends = [end for end, _ in found]
    if not ends:
        return ""
    if min(ends) == max(ends):
        return f"INT4 is ahead of FP16 up to {counted(max(ends), 'token')}."
    text = f"On all {len(ends)} sizes of W timed INT4 is ahead of FP16 up to {counted(min(ends), 'token')}"
    still = sum(end == max(ends) and lost is None for end, lost in found)
    if still:
        return f"{text}, on {still} of {len(ends)} still at {max(ends)}, the most timed."
    return f"{text}, on the best of them up to {max(ends)}."


def ahead_in_short(gains: Rows) -> str:
    """Up to how many tokens INT4 is ahead of FP16 on every shape, or else what `stops_in_short` says."""
    ends = [end for end, _ in _ends(gains).values()]
    if len(ends) < 2 or not min(ends):
        return stops_in_short(gains)
    return f"Up to {counted(min(ends), 'token')} INT4 is ahead on all {len(ends)} shapes timed."


def _ends(gains: Rows) -> dict[Any, tuple[int, int | None]]:
    """By shape, the last number of tokens up to which INT4 is ahead, 0 for none, and the first at which it is
    not, or None.
    """
    found = {}
    for shape, row in gains.dropna(how="all").iterrows():
        timed = row.dropna()
        lost = min(timed.index[timed <= crossover.LEVEL], default=None)
        before = timed.index if lost is None else timed.index[timed.index < lost]
        found[shape] = (int(max(before, default=0)), lost)
    return found


def more_tokens(
    here: Lab, drawn: Any, batches: list[int], rungs: Any, roofs: tuple[float, float | None]
) -> None:
    """Name what does more tokens than a block of rung 11 holds, say what it takes, beside the bound by
    `roofs`, and draw it; why by its registers, folded.
    """
    display.say(
        f"Beyond {batches[-1]} tokens, on Hopper GPUs, y, the result, is cut into *tiles*, some rows by some "
        "tokens. **Rung 12** ([code](../kernels/int4/12_token_tiles.cu)) runs a block for each tile. "
        "**Rung 13** ([code](../kernels/int4/13_stream_k.cu)) runs one block for each SM, which takes tile "
        "after tile, and divides along k the tiles that would leave SMs idle at the end (*stream-K*). These "
        "come *first*, so that the sums that one block leaves to another are there early."
    )
    display.say(_small_matrices(here))
    display.say(_takes_beyond(here, rungs[12].name, roofs))
    diagram.tiles_in_turns().show()
    why = _sums_in_registers(here, drawn, batches, rungs)
    display.fold_parts("Why a block of rung 11 takes no more tokens", [why])


def _small_matrices(here: Lab) -> str:
    """Where rung 11 multiplies more tokens than one of its blocks holds."""
    wanted = [case for n, k in study.SHAPES for case in study.many(n, k, device=here.sized)]
    tiled = [case for case in wanted if case.impl == "11_tma" and case in here.cases("int4")]
    text = (
        "**On small matrices rung 11 goes on**: where the tiles are few enough for all their blocks to run "
    )
    text += "at a time, each block takes a tile of tokens, and the blocks of a cluster divide k. "
    if tiled:
        by_matrix: dict[tuple[Any, Any], list[int | None]] = {}
        for case in tiled:
            by_matrix.setdefault((case.n, case.k), []).append(case.batch)
        each = [f"{n:,} × {k:,} weights at {listed(at)} tokens" for (n, k), at in by_matrix.items()]
        text += f"Timed here: {listed(each)}. "
    return text + "The dispatcher compares two laws of time to choose between it and rung 13."


def _takes_beyond(here: Lab, name: str, roofs: tuple[float, float | None]) -> str:
    """What a rung takes at each number of tokens beyond a block's on the largest shape, beside the bound."""
    (n, k), number = study.SHAPES[-1], name.partition("_")[0]
    cases = [case for case in study.many(n, k, device=here.sized) if case.impl == name]
    rows = here.measure("int4", here.held("int4", [case for case in cases if case in here.cases("int4")]))
    us = rows.set_index("batch")["median_us"].dropna().sort_index() if len(rows) else pd.Series()
    if us.empty:
        return f"Rung {number} was not timed here at so many tokens."
    took = [f"{time:.1f} µs for {counted(int(tokens), 'token')}" for tokens, time in us.items()]
    over = [f"{time / bound_us(n, k, int(at), 'int4_g128', *roofs):.2f}" for at, time in us.items()]
    return f"**Rung {number}: {listed(took)} ({n:,} × {k:,}), {listed(over)} times the bound.**"


def _sums_in_registers(here: Lab, drawn: Any, batches: list[int], rungs: Any) -> str:
    """Why a block of rung 11 takes no more tokens, by its registers, and what rungs 12 and 13 do."""
    case = study.chosen(*drawn, batches[-1], here.sized)
    text = "A block of rung 11 holds the sums of all its tokens in registers"
    if case.impl == "11_tma":
        macros = study.own_rung(case)[1]
        threads = 128 * macros["ROW_GROUPS"] * macros["K_GROUPS"]
        units = -(-macros["UNITS"] // macros["ROW_GROUPS"])
        each = units * _TILES_OF * macros["TOKENS"] // 128
        most = _REGISTERS // (threads * macros["RESIDENT"])
        if 2 * each >= most:
            text += f": at {drawn[0]:,} × {drawn[1]:,} and {batches[-1]} tokens they take {each} of "
            text += f"a thread's {most}. "
            text += "Twice the tokens do not fit. A block of half the rows has room for them, but copies the "
            text += "same x for half as many weights"
    text += ". "
    found = re.search(r"setmaxnreg_more<(\d+)>", rungs[11].path.read_text())
    text += "So beyond that y is cut into tiles. In rungs 12 and 13 two warpgroups of a block "
    text += "multiply, a third only copies"
    if found:
        text += f" and hands most of its registers over, so that a thread that multiplies has {found[1]}"
    text += "."
    if not any(c.impl.startswith("12_") and c.batch > batches[-1] for c in here.cases("int4")):
        text += f" Rung 12 was not timed beyond {batches[-1]} tokens: it is here as the step to rung 13."
    return text


def gain_over_fp16(
    here: Lab, shapes: list[Any], batches: list[int], read_roof: float, peak: float | None
) -> None:
    """Draw the gain over FP16 by tokens and shape, with the ratio of the bounds on the largest shape; say
    which part of its fall the bounds explain.
    """
    gains = gains_of(here, shapes, batches)
    title = "How many times as fast as FP16 cuBLAS, by tokens"
    fig, ax = plot.figure("tokens", "times as fast", title, xlog=True)
    for (shape, row), colour in zip(gains.iterrows(), _COLOURS * len(gains), strict=False):
        side = row.dropna()
        if len(side):
            plot.series(ax, side.index, side, label=f"{shape[0]:,} × {shape[1]:,}", colour=colour)
    tokens = [int(batch) for batch in gains.columns]
    allowed = [allows(*shapes[-1], batch, read_roof, peak) for batch in tokens]
    name = "ratio of bounds"
    plot.series(ax, tokens, allowed, label=f"_{name}", colour=plot.ROOF_COLOUR).set_marker("")
    style = {"textcoords": "offset points", "fontsize": 8.5, "fontweight": "bold", "color": "#555555"}
    at = len(tokens) // 4  # where the line is flat and alone
    ax.annotate(name, (tokens[at], allowed[at]), (0, -12), **style)
    plot.roof_line(ax, 1, "as fast as FP16")
    some = [batch for batch in tokens if batch.bit_count() == 1]
    ax.set_xticks(some, [str(batch) for batch in some])
    plot.label_ends(ax, (0, 0.5))
    said = f"{title} and shape, on {here.run['gpu']}. Grey, without markers: FP16's bound ÷ INT4's, "
    plot.show(fig, f"{said}{shapes[-1][0]:,} × {shapes[-1][1]:,}.")
    table = gains.stack().dropna().rename("gain").rename_axis(["n", "k", "batch"]).reset_index()
    points = table[["n", "k", "batch"]].itertuples(index=False)
    table["allowed"] = [allows(*at, read_roof, peak) for at in points]
    table = table[table["batch"] <= max(batches)]
    if falls := _falls(table):
        times = times_of(here, shapes[-1:], batches).dropna()
        least = {
            who: [bound_us(*at, format, read_roof, peak) for at in times.index]
            for who, format in (("ours", "int4_g128"), ("fp16", "fp16"))
        }
        over = times.assign(**{f"{who}_over": times[who] / us for who, us in least.items()})
        passed = _passed(gains, shapes[-1], times_of(here, shapes[-1:], batches), (read_roof, peak))
        display.say(_further_off(over, falls[1]) + passed + falls[0])
    _show_stops(gains, no_gain_beyond(here, shapes))


def allows(n: int, k: int, batch: int, read_roof: float, peak: float | None) -> float:
    """The gain of INT4 over FP16 that their bounds allow."""
    least = [bound_us(n, k, batch, format, read_roof, peak) for format in ("fp16", "int4_g128")]
    return least[0] / least[1]


def _further_off(times: Rows, last: int) -> str:
    """How far ours and FP16 are from their bounds on one shape, `ours_over` and `fp16_over`, at its fewest
    tokens and at `last`, where ours gets further off; what that makes of the lead.
    """
    n, k, first = times.index[0] if len(times) else (0, 0, last)
    if first >= last or (n, k, last) not in times.index:
        return ""
    a, b = times.loc[n, k, first], times.loc[n, k, last]
    gains = [row["fp16"] / row["ours"] for row in (a, b)]
    if not (b["ours_over"] > 1.05 * a["ours_over"] and gains[1] < gains[0]):
        return ""
    grown = b["ours"] / a["ours"]
    return (
        f"**On {n:,} × {k:,}, {last} tokens take FP16 {_longer(b['fp16'] / a['fp16'])} as {first}, and ours "
        f"{_longer(grown)}; INT4's bound allows {_longer(grown * a['ours_over'] / b['ours_over'])}.** So the "
        f"lead shrinks from {gains[0]:.1f} to {gains[1]:.1f} times, before the bounds say so. "
    ) + _by_quartiles(a, b, last)


def _by_quartiles(first: Any, then: Any, last: int) -> str:
    """What the lower quartile of FP16's `first` samples makes of a lead, where they scatter."""
    low, middle, high = (float(first.get(name, 0)) for name in ("q1", "fp16", "q3"))
    if not crossover.scattered({"q1_us": low, "median_us": middle, "q3_us": high}):
        return ""
    return (
        f"FP16's first samples scatter: by their lower quartile, {low:.1f} µs, the lead is "
        f"{low / first['ours']:.1f} times at first, and {last} tokens take FP16 "
        f"{_longer(then['fp16'] / low)}. "
    )


def _longer(ratio: float) -> str:
    """How many times as long: "1.07 times as long"."""
    return f"{ratio:.2f} times as long"


def _passed(gains: Rows, shape: Any, times: Rows, roofs: tuple[float, float | None]) -> str:
    """Where a shape's gain is above the ratio of its bounds, at the most tokens, and how far both are off."""
    n, k = shape
    row = gains.loc[shape].dropna()
    over = [int(batch) for batch in row.index if row[batch] > 1.02 * allows(n, k, int(batch), *roofs)]
    if not over:
        return ""
    at, formats = times.loc[(n, k, over[0])], {"fp16": "fp16", "ours": "int4_g128"}
    off = {who: at[who] / bound_us(n, k, over[0], format, *roofs) for who, format in formats.items()}
    return (
        f"At {counted(over[0], 'token')} the gain is above the ratio: FP16 takes {off['fp16']:.3f} times its "
        f"bound, ours {off['ours']:.3f}, and {allows(n, k, over[0], *roofs):.3f} × {off['fp16']:.3f} ÷ "
        f"{off['ours']:.3f} = {row[over[0]]:.2f}. "
    )


def _falls(table: Rows) -> tuple[str, int] | None:
    """Where the gain falls though the ratio of the bounds hardly does: up to the last number of tokens at
    which that is nearly as large as at first, and that number; or nothing.
    """
    wide = table.pivot_table(["gain", "allowed"], ["n", "k"], "batch")
    if wide.empty:
        return None
    gains, allowed = wide["gain"].dropna(), wide["allowed"].dropna()
    first, last = gains.columns[0], gains.columns[-1]
    flat = [batch for batch in gains.columns if (allowed[batch] > 0.9 * allowed[first]).all()]
    if gains.empty or flat[-1] in (first, last):
        return None
    bound, seen = allowed[flat[-1]] / allowed[first], gains[flat[-1]] / gains[first]
    if not (seen < 0.9 * bound).all():
        return None
    text = (
        f"Over all shapes, from {first} to {counted(flat[-1], 'token')}, the gain {_to(seen)}, the ratio of "
    )
    return f"{text}the bounds {_to(bound)}.", int(flat[-1])


def _to(ratio: Any) -> str:
    """A change in words, from the least to the most of several shapes: "falls by 1 to 6%"."""
    low, high = sorted(round(100 * (1 - of)) for of in (ratio.min(), ratio.max()))
    if low < 0:
        return f"goes to {ratio.min():.2f} to {ratio.max():.2f} times that"
    return f"falls by {low}%" if low == high else f"falls by {low} to {high}%"


def large_batches(shapes: list[Any], here: Lab, titles: dict[str, Any]) -> tuple[Lab, Rows]:
    """The gain over FP16 at more tokens than a block of rung 11 holds: its lab and rows."""

    def measured(there):
        cases = [c for n, k in shapes for c in study.many(n, k, device=there.sized)]
        return there.measure("int4", [c for c in cases if c in there.cases("int4")])

    wide, source = measured(here), here
    if not (wide["kind"] == "own").any():
        source = display.borrowed(here, "no product of ours of so many tokens was measured")
        wide = measured(source)
    wide["who"] = wide["impl"].where(wide["kind"] != "own", "ours").replace(titles)
    wide["shape"] = [f"{n:,} × {k:,}" for n, k in zip(wide["n"], wide["k"], strict=True)]
    beyond = wide.pivot(index=["shape", "batch"], columns="who", values="median_us")
    beyond = beyond.reindex([f"{n:,} × {k:,}" for n, k in shapes], level="shape").reset_index()
    ours = wide[wide["kind"] == "own"].set_index(["shape", "batch"])
    places = pd.MultiIndex.from_frame(beyond[["shape", "batch"]])
    beyond["rate"] = ours["tflop_s"].reindex(places).to_numpy()
    beyond["rung"] = ours["impl"].str.partition("_")[0].reindex(places).to_numpy()
    beyond["gain"] = beyond["FP16 cuBLAS"] / beyond["ours"]
    return source, beyond


def conclusion(beyond: Rows) -> None:
    """Say on how many shapes FP16 is faster at the most tokens, and where it is first."""
    if beyond.empty:
        return
    at = beyond["batch"].max()
    last = beyond[beyond["batch"] == at]
    behind, ahead = last["gain"] < 1 / crossover.LEVEL, last["gain"] > crossover.LEVEL
    text = f"At {at} tokens FP16 is faster on {behind.sum()} of {len(last)} shapes"
    if level := int((~behind & ~ahead & last["gain"].notna()).sum()):
        text += f" and level on {level}"
    for row in _first_behind(beyond).itertuples():
        text += f"; first on {row.shape}, at {row.batch}"
    display.say(f"**{text}.**")


def _first_behind(beyond: Rows) -> Rows:
    """The point at which ours falls behind first, or nothing."""
    return beyond[beyond["gain"] < 1 / crossover.LEVEL].sort_values(["batch", "gain"], kind="stable").head(1)


def why_it_stops(beyond: Rows, source: Lab, shapes: list[Any]) -> None:
    """Say how far ours and FP16 are from their bounds on the shape that falls behind first and on the one
    ahead longest; every point, folded.
    """
    if beyond.empty:
        return
    at, text = beyond["batch"].max(), ""
    columns = {
        "shape": "n × k",
        "batch": "Tokens",
        "rung": "Rung",
        "ours": "Ours (µs)",
        "rate": "Ours (TFLOP/s)",
    }
    columns |= {"FP16 cuBLAS": "FP16 (µs)", "gain": "Gain"}
    forms = {"ours": "{:.1f}", "FP16 cuBLAS": "{:.1f}", "rate": "{:.0f}", "gain": "{:.2f}"}
    table = beyond
    if {"dram_read", "fp16_tensor"} <= set(source.roof):
        table = _beside_bounds(beyond, source, shapes)
        columns |= {
            "possible": "Ratio of bounds",
            "fp16_over": "FP16 ÷ its bound",
            "over": "Ours ÷ its bound",
        }
        forms |= dict.fromkeys(("possible", "fp16_over", "over"), "{:.2f}")
        first = _first_behind(table)
        most = table[(table["batch"] == at) & (table["gain"] > crossover.LEVEL)].sort_values("gain").tail(1)
        peak = source.roof["fp16_tensor"].value
        text += "".join(f" {_fallen(row)}" for row in first.itertuples())
        text += "".join(f" {_ahead(row, peak)}" for row in most.itertuples())
    if text:
        display.say(text.strip())
    title = f"Every point beyond 64 tokens, on {source.run.gpu}"
    display.table(table, columns, forms, title, folded=True)


def _beside_bounds(beyond: Rows, source: Lab, shapes: list[Any]) -> Rows:
    """The points with how many times its bound each of the two takes, `over` and `fp16_over`, and the gain
    that the bounds allow, `possible`.
    """
    read_roof, peak = (source.roof[name].value for name in ("dram_read", "fp16_tensor"))
    names, table = {f"{n:,} × {k:,}": (n, k) for n, k in shapes}, beyond.copy()
    points = list(table[["shape", "batch"]].itertuples(index=False))
    least = {
        format: [bound_us(*names[at.shape], at.batch, format, read_roof, peak) for at in points]
        for format in ("int4_g128", "fp16")
    }
    table["over"], table["fp16_over"] = (
        table["ours"] / least["int4_g128"],
        table["FP16 cuBLAS"] / least["fp16"],
    )
    table["possible"] = [fp16 / int4 for fp16, int4 in zip(least["fp16"], least["int4_g128"], strict=True)]
    return table


def _fallen(row: Any) -> str:
    """The point at which ours falls behind first, beside its bounds."""
    return (
        f"On {row.shape} the ratio of the bounds is {row.possible:.2f} at {row.batch} tokens, but "
        f"ours takes {row.over:.2f} times its bound and FP16 {row.fp16_over:.2f} times its own."
    )


def _ahead(row: Any, peak: float) -> str:
    """The point of the most tokens at which ours is still ahead furthest, and by what."""
    text = f"{row.shape} is still ahead at {row.batch}, {row.gain:.2f} times as fast"
    if row.possible < 1.02:
        text += ". Both bounds are equal there, so fewer bytes do not explain it: ours does "
        text += (
            f"{row.rate:.0f} TFLOP/s, cuBLAS {row.rate / row.gain:.0f} on this shape and {peak:.0f} on the "
        )
        text += "square product that sets the peak"
    return f"{text}."
