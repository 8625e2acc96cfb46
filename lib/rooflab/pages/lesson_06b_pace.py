"""What lesson 06b says of its drawing of copies, products and softmax over time, and how rates test it."""

from __future__ import annotations

from fractions import Fraction

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import diagram, display
from rooflab.view.diagram import columns, over_time, roles

_WIDTH = 128  # of the heads that are drawn
_TOKENS = 4096  # of the prompt that tests the drawing
_FAR = 1.1  # the drawing's share over the measured one, from which on the drawing leaves something out


def _share(per_second: str, sms: int) -> str:
    """One SM's share of a rate, in words."""
    return f"({per_second} ÷ {sms} SMs)"


def pace_of_the_drawing(here: Lab, takes: over_time.Lengths) -> None:
    """Say how long a tile's copies and products take, and which of a tile's steps sets the pace where the
    softmax runs beside products.
    """
    gb_s, tflop_s, sms, mhz = over_time.rates(here)
    reads, peak = over_time.sources(here)
    copies, products = 2 * takes.copy, 2 * takes.product
    keys = over_time.rung().with_defaults({})["KEYS"]
    size = 4 * keys * _WIDTH / 1024  # KiB of keys and values of a tile, in FP16
    text = f"The lengths, for one SM and a tile of {keys} keys and as many values:\n\n"
    text += f"- two copies: {size:.0f} KiB ÷ {_share(f'{gb_s:,.0f} GB/s', sms)} = **{copies:.2f} µs**, at "
    text += f"{reads}\n"
    text += f"- two products: 4 FLOPs × {over_time.QUERIES} queries × {keys} keys × {_WIDTH} columns ÷ "
    text += f"{_share(f'{tflop_s:,.0f} TFLOP/s', sms)} = **{products:.2f} µs**, at {peak}\n"
    text += f"- the softmax: {over_time.QUERIES} × {keys} exponentials, {over_time.EXPONENTIALS} a clock at "
    text += f"{mhz / 1e3:.2f} GHz = **{takes.softmax:.2f} µs**\n\n"
    text += _rates_beside(here)
    kernel = over_time.read(here) if over_time.read_warm(here) else gb_s
    read = copies * gb_s / min(gb_s, kernel)  # how long the copies take at the rate of plain reads
    if copies < _FAR * products and products < _FAR * read and max(copies, products) >= takes.softmax:
        text += "Copies and products are too near each other to tell which sets the pace"
        text += f"{_slower(copies, read)}. So the drawing could be either way."
        if 2 * copies > products:
            text += f" A block of {over_time.QUERIES // 2} queries would wait for copies in both: as many "
            text += "bytes for half of the products (rung 12)."
    elif products >= max(copies, takes.softmax):
        text += "Products take the longest, so the drawing's tensor cores set the pace"
        if 2 * copies > products:
            text += f". A block of {over_time.QUERIES // 2} queries would wait for copies: as many bytes for "
            text += "half of the products (rung 12)"
        text += "."
    elif copies > takes.softmax:
        text += (
            "Copies take the longest, so the tensor cores wait for them, unless L2 can give more than was "
        )
        text += "measured. More queries a block would need fewer bytes for each product."
    else:
        text += "The softmax takes the longest, so the tensor cores wait for it."
    display.say(text)


def _slower(copies: float, read: float) -> str:
    """How long the copies take at the rate of plain reads, where that is slower."""
    return f": at that kernel's rate copies take {read:.2f} µs" if read > 1.005 * copies else ""


def _rates_beside(here: Lab) -> str:
    """Why the rate of copies may exceed what a kernel that only reads L2 reached, and a rung the roof."""
    most, reads, text = over_time.copied(here), over_time.read(here), ""
    if most is None or most.gb_s <= reads:
        return text
    peak = over_time.rates(here)[1]
    if "fp16_tensor" in here.roof and most.tflop_s > peak:
        text += (
            f"Those {most.tflop_s:,.0f} TFLOP/s pass the roof of {peak:,.0f}, which a library reached with "
        )
        text += (
            "random matrices: presumably the rung's products draw less power, so the clock is higher (see "
        )
        text += "*Measured*). "
    if over_time.read_warm(here):
        text += f"A kernel that only reads L2 reached {reads:,.0f} GB/s: it is not the fastest reader. "
    return text


def _busy(takes: over_time.Lengths, tiles: int) -> float:
    """Percent of a block's time that tensor cores are busy, by the drawing's arithmetic."""
    rung = over_time.rung()
    steps = over_time.program(rung.path.read_text(encoding="utf-8"))
    bars = over_time.simulate(steps, tiles, rung.with_defaults({})["STAGES"], takes).bars
    products = sum(bar.end - bar.start for bar in bars if bar.row == "tensor cores")
    return 100 * products / max(bar.end for bar in bars)


def drawing_tested(here: Lab, takes: over_time.Lengths, every: Rows) -> None:
    """Say which share of the roof the drawing's rung reaches at its width, and the one whose copies differ,
    beside the drawing's arithmetic for as many tiles as a block of that prompt has.
    """
    rows = every[every["head_dim"].eq(_WIDTH) & every["heads"].eq(study.HEADS) & every["window"].isna()]
    rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").eq("")].dropna(
        subset=["roof_fraction"]
    )
    rows = rows[rows["seq"].eq(_TOKENS)].drop_duplicates("impl").set_index("impl")
    if over_time.RUNG not in rows.index:
        display.say(f"**Test**: rung 9 with heads {_WIDTH} wide and {_TOKENS:,} tokens is not recorded here.")
        return
    keys = over_time.rung().with_defaults({})["KEYS"]
    tiles = max(1, round(_TOKENS / keys / 2))  # a causal prompt's blocks see half of the keys on average
    drawn, got = _busy(takes, tiles), 100 * float(rows.loc[over_time.RUNG, "roof_fraction"])
    text = f"**Test**: with {_TOKENS:,} tokens a block has {tiles} tiles on average. By the arithmetic the "
    text += f"tensor cores are then busy {drawn:.0f}% of the time. A rate can be no larger share of the "
    text += "roof; it is smaller by masked products, which take time and are not counted. Measured: "
    text += f"{rows.loc[over_time.RUNG, 'tflop_s']:,.0f} TFLOP/s, {got:.0f}% of it. "
    if drawn < _FAR * got:
        display.say(text + "The drawing explains what was measured.")
        return
    needs = rows.loc[over_time.RUNG, "tflop_s"] / over_time.QUERIES * 1e3
    most = over_time.rates(here)[0]
    text += "So the drawing leaves something out. "
    if needs * _FAR < most:
        text += f"L2's rate it is not: these copies take {needs:,.0f} of {most:,.0f} GB/s. "
    text += "Perhaps that a copier waits until its tile has arrived "
    text += "before it asks for the next, and that blocks start and end."
    if "11_tma" in rows.index:
        later = 100 * float(rows.loc["11_tma", "roof_fraction"])
        text += f" Rung 11, next, changes both, and two things more: it reaches {later:.0f}%."
    display.say(text)


def four_changes(here: Lab) -> diagram.Drawing:
    """What rung 11 changes in rung 9, on a lab's device."""
    return diagram.four_changes(diagram.of_lab(here))


def ring_at_work(takes: over_time.Lengths) -> diagram.Drawing:
    """The slots of rung 9's ring at the lengths of the drawing over time, and what may block whom."""
    text = (
        "**The ring.** The same tiles, slot by slot: keys and values by turns, with rung 13's two mbarriers "
    )
    text += "each. Consumers wait until a slot is *full*; the producer waits until the next slot in turn is "
    text += "*empty*"
    steps = over_time.program(over_time.rung().path.read_text(encoding="utf-8"))
    run = over_time.simulate(steps, 4, over_time.rung().with_defaults({})["STAGES"], takes)
    text += "." if over_time.waits(run) else ", which it always is here."
    display.say(text)
    return diagram.ring(takes)


def roles_at_work(here: Lab) -> diagram.Drawing:
    """Rung 12's roles over time, on a lab's device."""
    return diagram.warp_roles(roles.lengths(*over_time.rates(here)))


def _worth_of_holding(here: Lab, found: roles.Roles) -> str:
    """What holding P back saves by the drawing's arithmetic, with its copies and with tiles always there."""
    takes, tiles = roles.lengths(*over_time.rates(here)), 128
    saved = []
    for each in (takes, takes._replace(copy=takes.product / 100)):
        held, at_once = (
            roles.busy(roles.simulate(found._replace(before=part), tiles, each))[0]
            for part in (found.before, 0.0)
        )
        saved.append(1 - held / at_once)
    here_too = f"{saved[0]:.0%} of the time" if saved[0] > 0.005 else "nothing"
    text = f"By the drawing's arithmetic, with {tiles} tiles and products under way together sharing the "
    text += f"tensor cores evenly: {here_too} with the copies drawn, {saved[1]:.0%} if every tile were there "
    return text + "in time."


def why_held_back(here: Lab) -> None:
    """Say when rung 12 hands its weights over, and where its queries are, by its source."""
    found = roles.roles_of(roles.rung().path.read_text(encoding="utf-8"))
    share = columns.share_of(roles.RUNG, roles.WIDTH)
    kept, where = columns.operands_kept(share, roles.WIDTH), ""
    until = Fraction(found.before).limit_denominator(64)
    text = f"""\
**Why is P held back?** Handed over at once, P[t] V[t] would share the tensor cores with the scores of \
tile t + 1, if K[t + 1] is there: both end late, and nothing multiplies during the next softmax. Held back, \
the scores end first, and P[t] V[t] runs beside their softmax. What that is worth is not recorded. \
{_worth_of_holding(here, found)}

**Why until {until}, and not until the scores are done?** Presumably because warpgroups 1 and 2 need \
a moment to see the signal and rescale; the last scores keep the tensor cores busy meanwhile. Other \
shares are not recorded."""
    if kept:
        whole = share.queries * roles.WIDTH // 2 // share.threads
        columns_left = roles.WIDTH * (whole - kept[0]) // whole
        where = f"**Where are the queries?** {share.queries} rows of {roles.WIDTH} FP16 numbers would take "
        where += f"{whole} registers a thread of "
        where += f"warpgroup 0. It keeps {kept[0]}, beside {kept[1]} of scores (first drawing); the last "
        where += f"{columns_left} columns stay in shared memory."
    display.fold_parts("Why P is held back, and where the queries are", [text, where] if where else [text])


def roles_tested(here: Lab, every: Rows) -> None:
    """Say what sets rung 12's pace by the drawing's arithmetic, and how that compares with its best rate."""
    takes = roles.lengths(*over_time.rates(here))
    found = roles.roles_of(roles.rung().path.read_text(encoding="utf-8"))
    copies, products = 2 * takes.copy / found.cluster, 2 * takes.product
    tile = roles.ROWS_OF_A_TILE
    size = 4 * tile * roles.WIDTH / 1024
    text = f"By rung 9's two divisions a tile's two copies, {size:.0f} KiB shared by {found.cluster} blocks, "
    text += f"take {copies:.2f} µs, and its two products, 4 × {tile} × {tile} × {roles.WIDTH} FLOPs, "
    text += f"{products:.2f}"
    if 1 / _FAR < copies / products < _FAR:
        text += ": about as long, so either may set the pace."
    else:
        text += ": at that rate copies set the pace." if copies > products else ": tensor cores set the pace."
    rows = every[
        every["impl"].eq(roles.RUNG) & every["head_dim"].eq(roles.WIDTH) & every["heads"].eq(study.HEADS)
    ]
    rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").eq("")].dropna(
        subset=["roof_fraction"]
    )
    if rows.empty:
        display.say(text)
        return
    best = rows.loc[rows["roof_fraction"].idxmax()]
    tiles = max(2, round(int(best["seq"]) / roles.ROWS_OF_A_TILE / 2))  # a causal block sees half on average
    shared, alone = (
        roles.busy(roles.simulate(found._replace(cluster=blocks), tiles, takes))[1]
        for blocks in (found.cluster, 1)
    )
    got, most = float(best["roof_fraction"]), over_time.rates(here)[0]
    needs = best["tflop_s"] / roles.ROWS_OF_A_TILE * 1e3
    text += f"\n\n**Test**: with {best['seq']:,} tokens, about {tiles} tiles for each block of queries, the "
    text += f"tensor cores would be busy {shared:.0%} of the time, or {alone:.0%} if each block copied for "
    text += f"itself. Measured: {best['tflop_s']:,.0f} TFLOP/s, {got:.0%} of their roof. "
    if got > shared:
        text += "That is more than the drawing allows: something in it is too slow."
    elif needs > most:
        text += (
            f"Without sharing that would take {needs:,.0f} GB/s of copies, {needs / most - 1:.0%} more than "
        )
        text += "any reads or copies recorded here: so sharing very likely is necessary. What keeps the rung "
        text += f"from {shared:.0%} is not known."
    else:
        text += "That is less than even copies of its own would allow, so something else limits it."
    display.say(text)
