"""What lesson 06b says of its drawing of copies, products and softmax over time, and how rates test it."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.pages.lesson_06b_rungs import of_the_copies
from rooflab.studies import attention as study
from rooflab.view import diagram, display
from rooflab.view.diagram import columns, full_and_empty, over_time, paired, roles, shared_places, staying

_WIDTH = 128  # of the heads that are drawn
_TOKENS = 16384  # of the prompt that tests the drawing: the first chart's
_FAR = 1.1  # the drawing's share over the measured one, from which on the drawing leaves something out


def _share(per_second: str, sms: int) -> str:
    """One SM's share of a rate, in words."""
    return f"({per_second} ÷ {sms} SMs)"


def pace_of_the_drawing(here: Lab, takes: over_time.Lengths) -> None:
    """Say, before the drawing, how long a tile's copies and products take."""
    peak = over_time.sources(here)[1]
    copies, products = 2 * takes.copy, 2 * takes.product
    text = f"A tile's two copies take about {copies:.2f} µs, its two products {products:.2f} µs at {peak}"
    if takes.softmax > max(copies, products):
        text += f", and its softmax more, {takes.softmax:.2f} µs."
    elif 1 / _FAR < copies / products < _FAR:
        text += ": about equal."
    else:
        text += f": {'copies' if copies > products else 'products'} take longer."
    display.say(text)


def _lengths(here: Lab, takes: over_time.Lengths) -> list[str]:
    """How the drawing's lengths are found, for the fold."""
    gb_s, tflop_s, sms, mhz = over_time.rates(here)
    reads, peak = over_time.sources(here)
    copies, products = 2 * takes.copy, 2 * takes.product
    keys = over_time.rung().with_defaults({})["KEYS"]
    size = 4 * keys * _WIDTH / 1024  # KiB of keys and values of a tile, in FP16
    text = f"For one SM and a tile of {keys} keys and as many values, without the copy of the queries:\n\n"
    text += f"- two copies: {size:.0f} KiB ÷ {_share(f'{gb_s:,.0f} GB/s', sms)} = **{copies:.2f} µs**, at "
    text += f"{reads}\n"
    text += f"- two products: 4 FLOPs × {over_time.QUERIES} queries × {keys} keys × {_WIDTH} columns ÷ "
    text += f"{_share(f'{tflop_s:,.0f} TFLOP/s', sms)} = **{products:.2f} µs**, at {peak}\n"
    text += f"- the softmax: {over_time.QUERIES} × {keys} exponentials, {over_time.EXPONENTIALS} a clock at "
    text += f"{mhz / 1e3:.2f} GHz = **{takes.softmax:.2f} µs**"
    parts = [text, _rates_beside(here, copies)]
    if 2 * copies > products:
        parts += [
            f"A block of {over_time.QUERIES // 2} queries would wait for copies: as many bytes for half of "
            "the products (rung 12)."
        ]
    return [part for part in parts if part]


def _rates_beside(here: Lab, copies: float) -> str:
    """Where a rate of copies comes from that no kernel which only reads L2 reached, or nothing."""
    most, reads = over_time.copied(here), over_time.read(here)
    if most is None or most.gb_s <= reads:
        return ""
    peak = over_time.rates(here)[1]
    text = f"The {most.gb_s:,.0f} GB/s are what {most.impl} needs, {most.width} wide: with {most.queries} "
    text += f"queries a block does {most.queries} FLOPs for each byte, at {most.tflop_s:,.0f} TFLOP/s. "
    if "fp16_tensor" in here.roof and most.tflop_s > peak:
        text += f"That passes the roof of {peak:,.0f}, which a library reached with random matrices. "
    if over_time.read_warm(here):
        text += f"At the {reads:,.0f} GB/s of a kernel that only reads, with which part 06 predicts, the "
        text += f"copies take {copies * most.gb_s / reads:.2f} µs."
    return text


def _busy(takes: over_time.Lengths, tiles: int) -> float:
    """Percent of a block's time that tensor cores are busy, by the drawing's arithmetic."""
    rung = over_time.rung()
    steps = over_time.program(rung.path.read_text(encoding="utf-8"))
    bars = over_time.simulate(steps, tiles, rung.with_defaults({})["STAGES"], takes).bars
    products = sum(bar.end - bar.start for bar in bars if bar.row == "tensor cores")
    return 100 * products / max(bar.end for bar in bars)


class _Tested(NamedTuple):
    """Rung 9's and rung 11's rows of one prompt; the percent of the roof that the drawing allows for a block
    of `tiles`, and that was measured.
    """

    rung: pd.Series
    later: pd.Series | None
    tiles: int
    drawn: float
    got: float


def _tested(takes: over_time.Lengths, every: Rows) -> _Tested | None:
    """What tests the drawing, or None where that is not recorded."""
    rows = every[every["head_dim"].eq(_WIDTH) & every["heads"].eq(study.HEADS) & every["window"].isna()]
    rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").eq("")].dropna(
        subset=["roof_fraction"]
    )
    rows = rows[rows["seq"].eq(_TOKENS)].drop_duplicates("impl").set_index("impl")
    if over_time.RUNG not in rows.index:
        return None
    keys = over_time.rung().with_defaults({})["KEYS"]
    tiles = max(1, round(_TOKENS / keys / 2))  # a causal prompt's blocks see half of the keys on average
    rung, later = rows.loc[over_time.RUNG], rows.loc["11_tma"] if "11_tma" in rows.index else None
    return _Tested(rung, later, tiles, _busy(takes, tiles), 100 * float(rung["roof_fraction"]))


def drawing_tested(here: Lab, takes: over_time.Lengths, every: Rows) -> None:
    """Say how much of the roof the drawing allows and rung 9 reaches; how its lengths are found, folded."""
    found, parts = _tested(takes, every), _lengths(here, takes)
    if found is None:
        display.say(f"**Test**: rung 9 with heads {_WIDTH} wide and {_TOKENS:,} tokens is not recorded here.")
        display.fold_parts("How the lengths are found", parts)
        return
    text = f"**Test**: with {_TOKENS:,} tokens the drawing's tensor cores are busy {found.drawn:.0f}% of the "
    text += (
        f"time (in the four tiles drawn {_busy(takes, 4):.0f}%: of few, start and end are a larger part). "
    )
    text += "Measured: "
    text += f"{found.rung['tflop_s']:,.0f} TFLOP/s, {found.got:.0f}% of the roof. "
    if found.drawn >= _FAR * found.got:
        text += of_the_copies(every, _WIDTH)
        text += "What the overlap alone is worth is not known: no kernel with the drawing's second order was "
        text += "timed."
        if found.later is not None:
            text += " Rung 11, which copies otherwise and whose blocks stay, reaches "
            text += f"{float(found.later['roof_fraction']):.0%}."
        parts += [_left_out(here, found)]
    elif found.got > _FAR * found.drawn:
        text += "So a length is too long."
    else:
        text += "So the lengths explain the rate."
    display.say(text)
    display.fold_parts("How the lengths are found, and what they leave out", parts)


def _left_out(here: Lab, found: _Tested) -> str:
    """What may make rung 9 slower than the drawing, as far as it is known."""
    needs, most = found.rung["tflop_s"] / over_time.QUERIES * 1e3, over_time.rates(here)[0]
    text = f"With {_TOKENS:,} tokens a block has {found.tiles} tiles on average. "
    if needs * _FAR < most:
        text += f"It is not L2's rate: these copies take {needs:,.0f} of {most:,.0f} GB/s. "
    text += "The drawing leaves out that a copier asks for the next tile only when this one has arrived "
    text += "(not in rung 18), that blocks start and end, and masked products, which take time and count in "
    text += "no rate."
    return text


def changed_copies(here: Lab) -> diagram.Drawing:
    """What rung 11 changes in rung 9's copies, on a lab's device."""
    return diagram.four_changes(diagram.of_lab(here), pairs=(0,))


def gain_of_copies(here: Lab, every: Rows) -> None:
    """Say how much of rung 11's gain its drawing has, where both rungs' rates are recorded."""
    found, drawn = _tested(diagram.of_lab(here), every), staying.gain_of_staying(diagram.of_lab(here))
    if found is None or found.later is None:
        return
    got = float(found.later["tflop_s"] / found.rung["tflop_s"])
    text = f"The drawing of two pieces has {drawn:.1f} times the speed, the measurement {got:.2f}"
    if got - 1 > 2 * (drawn - 1):
        apart = set(op.BETWEEN) <= set(every.dropna(subset="tflop_s")["impl"])
        text += f": it explains little of the gain{'' if apart else ', and what does is not known'}"
    display.say(f"{text}.")


def ring_at_work(here: Lab) -> diagram.Drawing:
    """The slots of rung 9's ring and their barriers, at the lengths of its drawing over time."""
    found = full_and_empty.arrivals(over_time.rung().path.read_text(encoding="utf-8"))
    text = f"Half of the producer's threads, {found.full}, copy keys, the other half values: a *full* "
    text += f"barrier opens at {found.full} arrivals, one from each thread that copies the tile. *Empty* "
    text += f"opens at {found.empty}, one from each warp of the two consumers. The drawing lets a tile's two "
    text += "copies follow each other; in the kernel the halves copy at the same time, each more slowly."
    display.say(text)
    return diagram.ring(diagram.of_lab(here))


def pair_at_work(here: Lab, every: Rows) -> None:
    """Draw rung 10 over time, on a lab's device, and say what runs beside what, and what was measured."""
    takes, filled = roles.lengths(*over_time.rates(here)), shared_places.filled(paired.RUNG)
    run, best = paired.run_of(takes), _best(every, paired.RUNG)
    text = f"The rest is rung 9's. But {roles.ROWS_OF_A_TILE} rows of {roles.WIDTH} columns are "
    text += f"{filled.place} KiB, and an SM has {filled.of} KiB of shared memory, of which a block here "
    text += f"takes {filled.kib}: beside the queries there is room for one slot of keys and one of values. "
    text += "In the drawing K1 is asked for only when QK0 has read K0. And PV0 waits for K1, too, "
    text += "although V0 is there: the kernel starts it after QK1."
    display.say(text)
    softmaxes = sum(bar.row == "softmax" for bar in run.bars)
    diagram.paired_over_time(takes).show()
    text = f"In this model {len(paired.beside(run))} of {softmaxes} softmaxes run beside a product. "
    text += "But tensor cores wait for copies: they" if takes.copy > takes.product else "Tensor cores"
    text += f" multiply {paired.busy(run)[1]:.0%} of the time"
    if best is not None:
        tiles = _tiles_of(int(best["seq"]))
        share = paired.busy(paired.run_of(takes, tiles))[1]
        got = float(best["roof_fraction"])
        text += f", with {best['seq']:,} tokens {share:.0%}. **Measured: {got:.0%} of the roof**"
        if got < share:
            text += ": the model leaves something out, among it the two waits for each other"
    display.say(f"{text}.")


def one_thread_copies() -> diagram.Drawing:
    """Who copies in rung 10 and in rung 12."""
    return diagram.who_copies(paired.RUNG, roles.RUNG, roles.ROWS_OF_A_TILE, roles.WIDTH)


def pace_of_roles(here: Lab) -> None:
    """Say how long copies and products of a tile take where a block of 64 queries copies for itself."""
    takes, tile = roles.lengths(*over_time.rates(here)), roles.ROWS_OF_A_TILE
    copies, products = 2 * takes.copy, 2 * takes.product
    kib = 4 * tile * roles.WIDTH / 1024
    reads, peak = over_time.sources(here)
    text = f"A tile of {tile} keys and its values, {roles.WIDTH} wide, are {kib:.0f} KiB. A block's two "
    text += f"copies take {copies:.2f} µs at {reads}; its two products, with {tile} queries, "
    text += f"{products:.2f} µs at {peak}"
    display.say(text + _pace(copies, products))


def _pace(copies_us: float, products_us: float) -> str:
    """Which of a tile's two times sets the pace, in words that end the sentence."""
    if 1 / _FAR < copies_us / products_us < _FAR:
        return ": about as long, so either may set the pace."
    return f": at these rates {'copies' if copies_us > products_us else 'products'} set the pace."


def roles_at_work(here: Lab) -> None:
    """Draw how blocks share copies, and rung 12's roles over time, on a lab's device, with own copies and
    with shared ones; say which of a tile's times sets the pace in either.
    """
    takes, tiles = roles.lengths(*over_time.rates(here)), 4
    diagram.shared_copies(roles.RUNG, roles.WIDTH).show()
    found, _ = roles.both_runs(takes, tiles)
    own, shared, products = 2 * takes.copy, 2 * takes.copy / found.cluster, 2 * takes.product
    text = "The first four tiles, twice on one scale: above as if each block copied for itself, below as the "
    text += f"rung does it. **A tile's two copies take {shared:.2f} µs in place of {own:.2f}, and its two "
    text += f"products {products:.2f}{_pace(shared, products)}**"
    display.say(text)
    diagram.warp_roles(takes, tiles).show()
    text = "An arrow hands P over. A block's queries Q are its own, so their copy is not shared. Products "
    text += "that run at once share the tensor cores, so both boxes are longer."
    display.say(text)


def _steps_before(found: roles.Roles) -> str:
    """Of a tile's scores, the steps that are done before the weights of the tile before are handed over."""
    steps = roles.WIDTH // 16  # columns of a step
    return f"{round(found.before * steps)} of the {steps} steps (16 columns each) of the next scores"


def _beside_softmaxes(here: Lab) -> str:
    """Beside how many of the drawing's softmaxes P V runs, with own copies and with shared ones."""
    tiles = 4
    runs = roles.both_runs(roles.lengths(*over_time.rates(here)), tiles)[1]
    alone, shared = (len(roles.beside(run)) for run in runs)
    text = f"Drawn above, P V runs beside {alone or 'none'} of {tiles} softmaxes"
    text += " (it waits for V)" * roles.late(runs[0]) + f"; below, beside {shared or 'none'}"
    return text + " (one is framed)" * any(bar.tile == 1 for bar in roles.beside(runs[1])) + "."


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


def roles_in_detail(here: Lab, every: Rows) -> None:
    """Show, folded, when rung 12 hands its weights over, and its drawing's lengths."""
    found = roles.roles_of(roles.rung().path.read_text(encoding="utf-8"))
    parts = [
        f"""\
**Why is P held back until {_steps_before(found)} are done?** Handed over at once, \
P[t] V[t] would share the tensor cores with those scores, if K[t + 1] is there: both end late, and nothing \
multiplies during the next softmax. Held back, the scores end first, and P[t] V[t] runs beside it. \
{_beside_softmaxes(here)} What that is worth, and other shares, are not recorded. \
{_worth_of_holding(here, found)}"""
    ]
    parts.append(_lengths_of_roles(here, found, every))
    display.fold_parts("Why P is held back, and the lengths", parts)


def queries_kept() -> None:
    """Say where rung 12's warpgroup of scores has its queries, below the drawing of registers."""
    share = columns.share_of(roles.RUNG, roles.WIDTH)
    kept = columns.operands_kept(share, roles.WIDTH)
    if kept is None:
        return
    whole = share.queries * roles.WIDTH // 2 // share.threads
    text = f"Warpgroup 0 has no outputs, so its registers hold queries Q: {share.queries} rows of "
    text += f"{roles.WIDTH} FP16 numbers are {whole} registers a thread. It keeps {kept[0]} of them, beside "
    text += f"{kept[1]} of scores; the other {roles.WIDTH * (whole - kept[0]) // whole} columns of Q it "
    display.say(text + "reads from shared memory.")


def places_kept() -> None:
    """Say, and draw, what rung 12 gains by keeping queries in registers: a third slot for its ring."""
    now, before = shared_places.filled(roles.RUNG), shared_places.filled(paired.RUNG)
    if now.slots > before.slots and not now.queries:
        text = "Q passes through shared memory once. **So its place there serves the ring, which has "
        text += f"{now.slots} slots in place of {before.slots}**: a tile can be copied while two others are "
        text += "in use. *Rest*, below, is what warpgroups hand each other, and in rung 12 the last columns "
        display.say(text + "of Q.")
    diagram.places((paired.RUNG, roles.RUNG)).show()


def tiles_swizzled() -> None:
    """Show, folded, how a tile's pieces lie in shared memory."""
    text = "In row r, 16-byte piece c lies at place c xor r % 8. So the same piece of eight rows lies in "
    text += "eight different places of four banks, and a column is read without bank conflicts or padding."
    display.fold_parts("Swizzled tiles", [text, diagram.swizzled().html()])


def _best(every: Rows, name: str = roles.RUNG) -> pd.Series | None:
    """A rung's best rate at rung 12's width with the headline's heads, or None."""
    rows = every[every["impl"].eq(name) & every["head_dim"].eq(roles.WIDTH) & every["heads"].eq(study.HEADS)]
    rows = rows[rows["format"].eq("fp16") & rows["options"].fillna("").eq("")].dropna(
        subset=["roof_fraction"]
    )
    return None if rows.empty else rows.loc[rows["roof_fraction"].idxmax()]


def _needs(best: pd.Series) -> float:
    """GB/s that the copies of rung 12 would take without sharing, at its best rate."""
    return float(best["tflop_s"]) / roles.ROWS_OF_A_TILE * 1e3


def _lengths_of_roles(here: Lab, found: roles.Roles, every: Rows) -> str:
    """How the lengths of rung 12's drawing are found, and what its copies would take without sharing."""
    takes, tile = roles.lengths(*over_time.rates(here)), roles.ROWS_OF_A_TILE
    copies, products = 2 * takes.copy / found.cluster, 2 * takes.product
    size = 4 * tile * roles.WIDTH / 1024
    text = f"**How long?** Divided as for rung 9, a tile's two copies, {size:.0f} KiB shared by "
    text += f"{found.cluster} blocks, take {copies:.2f} µs, and its two products, 4 × {tile} × {tile} × "
    text += f"{roles.WIDTH} FLOPs, {products:.2f}"
    text += _pace(copies, products)
    best, most = _best(every), over_time.rates(here)[0]
    if best is not None and _needs(best) > most:
        text += f" The measured {best['tflop_s']:,.0f} TFLOP/s would take {_needs(best):,.0f} GB/s of copies "
        text += f"without sharing, {_needs(best) / most - 1:.0%} more than any reads or copies recorded here."
    return text


class _Drawn(NamedTuple):
    """The shares of time that tensor cores are busy in the drawings, for 4 tiles and for those of a block of
    so many tokens: of rung 10, and of rung 12 with own copies and with shared ones; rung 12's best row.
    """

    ten: list[float]
    alone: list[float]
    shared: list[float]
    tokens: int
    best: pd.Series | None


def _drawn(here: Lab, every: Rows) -> _Drawn:
    """What the drawings of rungs 10 and 12 allow, on a lab's device."""
    best, takes = _best(every), roles.lengths(*over_time.rates(here))
    tokens = _TOKENS if best is None else int(best["seq"])
    counts = (4, _tiles_of(tokens))
    ten = [paired.busy(paired.run_of(takes, count))[1] for count in counts]
    runs = [roles.both_runs(takes, count)[1] for count in counts]
    alone, shared = ([roles.busy(each[k])[1] for each in runs] for k in (0, 1))
    return _Drawn(ten, alone, shared, tokens, best)


def roles_tested(here: Lab, every: Rows) -> None:
    """Show the share of time that the drawings of rungs 10 and 12 have tensor cores busy, beside the share of
    the roof that was measured; say what of rung 12 that makes necessary.
    """
    drawn = _drawn(here, every)
    best, tiles = drawn.best, _tiles_of(drawn.tokens)
    rows = [
        ("Rung 10", *drawn.ten, _of_the_roof(_best(every, paired.RUNG))),
        ("Rung 12, own copies", *drawn.alone, "not timed"),
        ("Rung 12, shared copies", *drawn.shared, _of_the_roof(best)),
    ]
    names = ("Drawing", "Model: busy, 4 tiles", f"Model: busy, {tiles} tiles", "Measured: of the roof")
    frame = pd.DataFrame(rows, columns=list(names))
    forms = dict.fromkeys(names[1:3], "{:.0%}")
    caption = f"Tensor cores in the drawings and measured; of {drawn.tokens:,} tokens a block sees {tiles} "
    caption += "tiles on average (causal)"
    display.table(frame, dict(zip(names, names, strict=True)), forms, caption)
    if best is None:
        return display.say("**Test**: rung 12's rate is not recorded here.")
    got = float(best["roof_fraction"])
    text = f"**Test**: measured {got:.0%}, "
    if got > drawn.shared[1]:
        text += "more than the model: a length in it is too long."
    else:
        if _needs(best) > over_time.rates(here)[0]:
            text += "which would take more GB/s of copies without sharing than were seen on this GPU: so "
            text += "sharing very likely is necessary"
        else:
            text += "with roles and sharing"
        text += f". The model's {drawn.shared[1]:.0%} is a limit; what takes the rest is not known."
    display.say(text + _owed_to_sharing(drawn, best, _best(every, paired.RUNG)))


def _owed_to_sharing(drawn: _Drawn, best: pd.Series, ten: pd.Series | None) -> str:
    """How much of rung 12's gain over rung 10 the model's limit without sharing leaves to the sharing."""
    got, alone = float(best["roof_fraction"]), drawn.alone[1]
    if ten is None or not alone < got <= drawn.shared[1]:
        return ""
    gain = float(got / ten["roof_fraction"])
    if gain < got / alone:  # rung 10 passes the model's limit, too
        return ""
    text = f" **Of {gain:.2f} times rung 10's speed the sharing brought at least {got / alone:.2f}** "
    text += f"({got:.1%} ÷ {alone:.1%}, the model's limit with own copies), if L2 gives no more than was "
    text += "seen. What the other changes bring is not separated: the model has no waits, masks or rescales."
    return text


def _tiles_of(tokens: int) -> int:
    """Tiles of a block on average: in a causal prompt it sees half of the keys."""
    return max(2, round(tokens / roles.ROWS_OF_A_TILE / 2))


def _of_the_roof(best: pd.Series | None) -> str:
    """A measured share of the roof in words."""
    return "not recorded" if best is None else f"{float(best['roof_fraction']):.0%}"
