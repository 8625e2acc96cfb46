"""Why each rung of lesson 04b's ladder gains or loses, by its counters."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.ops import int4
from rooflab.pages import Rows
from rooflab.view import display
from rooflab.view.diagram.reading import part_of
from rooflab.words import counted, listed

_COUNTED = {"K_WARPS": "warp", "STAGES": "slot", "RESIDENT": "block"}
_WIDER = 2  # the rung whose loads are wider than those of the rung before
_NEAR = 0.7  # share of the issue slots in use, from which on they are taken for a near limit


def labelled(rows: Rows) -> Rows:
    """The rows, with a rung as it stands called "9_shared_x (untuned)" where a "9_shared_x (tuned)" is beside
    it.
    """
    tuned = {name.removesuffix(" (tuned)") for name in rows["impl"] if name.endswith(" (tuned)")}
    return rows.assign(impl=[f"{name} (untuned)" if name in tuned else name for name in rows["impl"]])


def brings(
    here: Lab, ladder: Rows, spent: Rows, rungs: Any, one: int, two: int, small: Rows | None = None
) -> None:
    """Say what rung `two` brings over rung `one`, untuned: its speed, the instructions of a weight, and by
    the counters why; where it is slower, how it fares in the rows of the `small` matrix, too; and what the
    constants add that are tuned for this matrix.
    """
    found, tuned = [], ladder[:0]
    for k in (one, two):
        mine = ladder[ladder["impl"].str.startswith(rungs[k - 1].name)]
        plain = mine[mine["impl"] == rungs[k - 1].name]
        tuned = mine[mine["impl"] != rungs[k - 1].name] if len(plain) else mine[:0]
        found.append(plain if len(plain) else mine)
    if found[0].empty or found[1].empty:
        missing = one if found[0].empty else two
        return display.say(f"Rung {missing} was not measured on the {here.run['gpu']}.")
    before, after = (rows.iloc[-1] for rows in found)
    text = f"**Rung {one} → {two}{', untuned' * (len(tuned) > 0)}: {before['gb_s']:,.0f} → "
    text += f"{after['gb_s']:,.0f} GB/s on the {here.run['gpu']}"
    seen = spent.set_index("impl")
    known = {before["impl"], after["impl"]} <= set(seen.index)
    if known:
        was, now = seen.loc[before["impl"]], seen.loc[after["impl"]]
        text += f"; {was['each']:.1f} → {now['each']:.1f} instructions a weight"
    text += f".**{_cause(was, now, two, rungs) if known else ''}"
    if after["median_us"] > before["median_us"] and not display.level(before, after):
        other = small is not None and small is not ladder
        rows = (small if other else ladder[:0]).set_index("impl")
        names = [rungs[k - 1].name for k in (two, one)]
        if set(names) <= set(rows.index):
            text += f" On the small matrix rung {two} "
            text += f"{display.against(*(rows.loc[name] for name in names))} rung {one}."
    for row in tuned.to_dict("records"):
        other = " ".join(sorted(set(str(row["options"]).split()) - set(str(after["options"]).split())))
        text += " *Untuned* means the constants above."
        text += f" **Tuned** for this matrix ({_macros(other, rungs[two - 1])}) it "
        text += f"reaches {row['gb_s']:,.0f} GB/s"
        text += f" and spends {seen['each'][row['impl']]:.1f}." if row["impl"] in seen.index else "."
        text += tuned_block(_options(row), rungs[two - 1].with_defaults(_options(after)))
        text += _more_tiles(seen, row, after["impl"], rungs[two - 1])
        if len(ladder[ladder["impl"].str.startswith(rungs[one - 1].name)]) == 1:
            text += (
                f" Rung {one} was not timed with other constants on this matrix, so the way from it to the "
            )
            text += f"tuned rung {two} may be tuning as much as the rung's idea."
    display.say(text)


def _options(row: Any) -> dict[str, int]:
    """The macros that a row was built with, beside its rung's own."""
    pairs = (part.split("=") for part in str(row["options"]).split() if "=" in part)
    return {name.upper(): int(value) for name, value in pairs}


def tuned_block(options: dict[str, int], plain: dict[str, int]) -> str:
    """How the block of a rung built with `options` differs from that of the `plain` constants, and whether
    its x serves other rows; nothing for a rung whose warps don't divide rows.
    """
    if "ROW_WARPS" not in plain:
        return ""
    own, parts = plain | options, list[str]()
    rows = [16 * macros["TILES"] for macros in (own, plain)]
    if rows[0] != rows[1]:
        parts.append(f"a warp takes {rows[0]} rows instead of {rows[1]}")
    for name, says in (
        ("K_WARPS", "{} divide k instead of {}"),
        ("STAGES", "the ring has {} instead of {}"),
        ("RESIDENT", "the compiler leaves registers for {} an SM instead of {}"),
    ):
        if own[name] != plain[name]:
            parts.append(says.format(counted(own[name], _COUNTED[name]), plain[name]))
    text = f" There {listed(parts)}." if parts else ""
    high = [macros["ROW_WARPS"] * each for macros, each in zip((own, plain), rows, strict=True)]
    if high[0] != high[1]:
        text += f" A block has {high[0]} rows, not {high[1]}, for each copy of x"
        alone = own["ROW_WARPS"] == 1 < plain["ROW_WARPS"]
        text += ": it gives up sharing x between groups of warps." if alone else "."
    return text


def untuned_end(own: Rows, best: Any) -> str:
    """Where the ladder's rows `own` end without the constants tuned to the matrix, those of the fastest row
    `best`, and which idea of its rung these give up.
    """
    rung = next(each for each in int4.LADDERS["int4"] if each.name == best["impl"])
    plain = own[own["case"] != best["case"]]
    if plain.empty:
        return ""
    end = plain.sort_values("median_us").iloc[0]
    text = f" Only that bar is tuned; untuned, the ladder ends at {end['median_us']:.0f} µs ({end['impl']})."
    constants = rung.with_defaults({})
    if (constants | _options(best)).get("ROW_WARPS", 0) == 1 < constants.get("ROW_WARPS", 0):
        text += (
            f" Tuned, rung {rung.name.partition('_')[0]} gives up the idea that names it: a block has one "
        )
        text += "group of warps, so none share x."
    return text


def _more_tiles(seen: Rows, tuned: Any, plain: str, rung: Any) -> str:
    """Why a tuned rung of more tiles a warp spends fewer instructions than the one as it stands, `plain`."""
    tiles = _options(tuned).get("TILES")
    if tiles is None or not {tuned["impl"], plain} <= set(seen.index):
        return ""
    if not (tiles > rung.defines["TILES"] and seen["each"][tuned["impl"]] < seen["each"][plain]):
        return ""
    return (
        " With more `TILES` a warp has more rows for the work that it does once a group: reading x and "
        "adding it up."
    )


def _cause(was: Any, now: Any, two: int, rungs: Any) -> str:
    """Sentences on why rung `two`, counted as `now`, gains or loses against the rung counted as `was`: none
    where the counters do not say.
    """
    faster, fewer = was["median_us"] / now["median_us"], was["each"] / now["each"]
    used = f"the schedulers use {now['issue_active']:.0%} of their slots instead of {was['issue_active']:.0%}"
    if display.level(was, now):
        if not fewer > 1:
            return ""
        text = f" Fewer instructions save no time here: {used}."
        if was["issue_active"] > _NEAR:
            text += " So slots alone did not limit the rung before; what else did, the counters do not tell."
        return text
    if faster < 1:
        return f" On this matrix that is slower.{_less_in_flight(was, now, two, rungs)}"
    both = f"{faster:.2f} times as fast with {fewer:.2f} times fewer instructions"
    if was["issue_active"] > _NEAR and abs(faster - fewer) <= 0.25 * (fewer - 1):
        text = f" Time falls as the instructions do: rung {two} is {both}"
        if abs(was["issue_active"] - now["issue_active"]) >= 0.05:
            return f"{text}."
        text += f", and the schedulers use about the same share of their slots, {was['issue_active']:.0%} "
        text += f"before and {now['issue_active']:.0%} after. That fits issue slots as the limit of the rung "
        return f"{text}before{', though loads are wider in this step, too' * (two == _WIDER)}."
    if faster > fewer and now["slots"] > now["bytes_us"]:
        return (
            f" It is {both}, and {used}. Issuing takes at least {now['slots']:.0f} of its "
            f"{now['median_us']:.0f} µs, the bytes {now['bytes_us']:.0f}: issue slots are a "
            f"nearer limit than DRAM.{_two_changes(two, rungs)}"
        )
    if faster > fewer:
        return f" It is {both}; the counters do not tell what brings the rest.{_two_changes(two, rungs)}"
    if now["slots"] < now["bytes_us"]:
        return (
            f" It is {both}. Issuing them takes {now['slots']:.0f} µs, and the bytes at the read roof "
            f"{now['bytes_us']:.0f} µs: memory is now the nearer limit."
        )
    return ""


def _two_changes(two: int, rungs: Any) -> str:
    """That rung `two` changes the rows of a warp and the parts of k at once, where it does."""
    before, after = (part_of(rungs[k - 1]) for k in (two - 1, two))
    if before.rows == after.rows or before.k_warps == after.k_warps:
        return ""
    return (
        f" Two things change in this step, {before.rows} → {after.rows} rows a warp and k dealt to "
        f"{before.k_warps} → {after.k_warps} warps. The record does not tell what each brings."
    )


def _less_in_flight(was: Any, now: Any, two: int, rungs: Any) -> str:
    """A likely reason why rung `two` is slower although it issues less: fewer warps with fewer rows each."""
    if not (now["each"] < was["each"] and now["occupancy_pct"] < was["occupancy_pct"]):
        return ""
    high = [part_of(rungs[k - 1]).rows for k in (two, two - 1)]
    rows = f", and a warp loads {high[0]} rows instead of {high[1]}" if high[0] < high[1] else ""
    return (
        f" A likely reason: fewer bytes are in flight. A thread takes {now['registers']:.0f} registers "
        f"instead of {was['registers']:.0f}, an SM holds {now['occupancy_pct']:.0f}% of the warps that it "
        f"could hold instead of {was['occupancy_pct']:.0f}%{rows}."
    )


def _macros(written: str, rung: Any) -> str:
    """The macros of a case's options that differ from the rung's own: "K_WARPS = 3, TILES = 4"."""
    pairs = [part.split("=") for part in str(written).split()]
    return ", ".join(
        f"`{name.upper()}` = {value}" for name, value in pairs if str(rung.defines.get(name.upper())) != value
    )


def limit_of_each_rung(gpu: str, spent: Rows, rungs: Any, afford: float) -> None:
    """Say what limits the first rung and which rungs' instructions take longer than their bytes."""
    text = f"Nothing was counted on {gpu}, so the budget stays a prediction."
    if len(spent) > 5:
        seen = spent.set_index("impl")
        one = seen.loc[rungs[0].name]
        text = f"- **Rung 1** spends {one['each']:.1f} instructions a weight. Issuing them takes at least "
        text += f"{one['slots']:.0f} of its {one['median_us']:.0f} µs, reading its bytes "
        text += f"{one['bytes_us']:.0f}"
        limit = one["bytes_us"] < one["slots"] <= one["median_us"]
        text += ": **instructions are its nearest limit, and not memory**.\n" if limit else ".\n"
        under = [rung.name for rung in (*rungs[:5], *rungs[6:9]) if rung.name in seen.index]
        under = [name for name in under if seen["each"][name] <= afford]
        if under:
            numbers = [name.partition("_")[0] for name in under]
            forms = [name for name in seen.index if name.removesuffix(" (tuned)") in under]
            busy = seen["dram_pct"][forms]
            text += f"- **Rung{'s' * (len(under) > 1)} {listed(numbers)}** issue{'s' * (len(under) == 1)} in "
            text += f"less time than the bytes take: memory is the nearer limit, and is {busy.min():.0f} to "
            text += f"{busy.max():.0f}% busy{', tuned or not' * (len(forms) > len(under))}. Busy is a share "
            text += "of the DRAM's own peak, not of the measured read roof."
    display.say(text.strip())


def beside_arithmetic(spent: Rows, rungs: Any, least: int) -> None:
    """Say what rungs 1 and 2 spend on loads and addresses, beside the `least` instructions of arithmetic."""
    each = spent.set_index("impl")["each"]
    names = [rung.name for rung in rungs[:2]]
    if set(names) <= set(each.index) and (each[names] > least).all():
        one, two = (each[name] - least for name in names)
        display.say(
            f"Both do the {least} instructions of arithmetic that are listed above. Loads, addresses and the "
            f"loop take the rest: {one:.1f} a weight in rung 1, {two:.1f} in rung 2."
        )
