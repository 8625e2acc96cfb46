"""What counters say to lesson 03c's claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rooflab import claims
from rooflab.analysis import coalescing
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.profile import ncu
from rooflab.studies import gemv as study
from rooflab.view import diagram, display
from rooflab.view.diagram.svg import AMBER, GREY, NONE, SKY
from rooflab.words import listed

FILLS = {claims.HOLDS: SKY, claims.SHORT: GREY, claims.REFUTED: AMBER}
FILLS |= {claims.UNRECORDED: NONE, claims.ELSEWHERE: NONE}


def block_sizes(here: Lab) -> None:
    """Say how much the bandwidth of two rungs changes with the size of a block."""
    impls = (coalescing.COALESCED, coalescing.FILLED)
    sweep = here.measure("gemv", [case for impl in impls for case in study.blocks_sweep(impl)])
    sweep["threads"] = sweep["options"].str.extract(r"threads=(\d+)")[0].astype(int)
    lines, level = [], True
    for impl, mine in sweep.groupby("impl", sort=False):
        fast, slow = mine.loc[mine["gb_s"].idxmax()], mine.loc[mine["gb_s"].idxmin()]
        text = f"`{impl}`: from {slow['gb_s']:,.0f} GB/s at {slow['threads']} threads a block to "
        text += f"{fast['gb_s']:,.0f} at {fast['threads']}, a factor of "
        lines.append(text + f"{fast['gb_s'] / slow['gb_s']:.2f}.")
        level = level and mine["gb_s"].max() < 1.2 * mine["gb_s"].min()
    if level:
        most = max(mine["gb_s"].max() / mine["gb_s"].min() for _, mine in sweep.groupby("impl"))
        lines.append(
            f"The size of a block changes neither by more than {most - 1:.0%}: the bytes in flight are the "
            "same for each."
        )
    display.fold_items("H5: does the size of a block matter?", lines)


def counters(counted: Rows) -> None:
    """List nvprof's counters that the tests name: what each is today, and its value for rung 2."""
    seen = counted[(counted["impl"] == coalescing.COALESCED) & (counted["n"] == coalescing.SIZE)]
    seen = seen[seen["cache"] == "cold"]
    lines = []
    for old, new in ncu.NVPROF.items():
        if new in study.COUNTERS:
            names = "` ÷ `".join(ncu.METRICS[new].ncu)
            value = f"{seen[new].max():,.4g}" if len(seen) else "not counted"  # of one row
            value += "%" if len(seen) and ncu.METRICS[new].unit == "%" else ""
            lines.append(f"- **{old}**, {value} here: {ncu.METRICS[new].meaning}. Now `{names}`")
    head = "nvprof's names, what counts the same today, and what it counts of the coalesced rung"
    display.say(f"<details><summary>{head}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")


def padding(here: Lab, counted: Rows, gpu: str) -> None:
    """Say what a bank conflict is, and what padding saves of conflicts and of time."""
    table = counted[(counted["impl"] == coalescing.PADDED) & (counted["n"] == coalescing.SIZE)]
    table = table[table["cache"] == "cold"].copy()
    table["option"] = table["options"].replace("", "pad=1")  # the default
    times = here.measure("gemv", study.padding(coalescing.SIZE)).set_index("options")["median_us"]
    table["us"] = table["option"].map(times)
    table = table.set_index("option")
    lines = [
        "Shared memory lies in 32 **banks** that answer side by side. Lanes that want different words of one "
        f"bank wait for each other: a **bank conflict**. `{coalescing.PADDED}` sums through a table whose "
        "columns its lanes read. *Padding* gives the rows an odd length, so that the lanes meet 32 banks."
    ]
    if {"pad=0", "pad=1"} <= set(table.index):
        without, padded = table.loc["pad=0"], table.loc["pad=1"]
        saved = without["shared_load_conflicts"] - padded["shared_load_conflicts"]
        share = 1 - padded["us"] / without["us"]
        text = f"Padding takes away {saved:,.0f} conflicts and {'saves' if share >= 0 else 'adds'} "
        text += f"{abs(share):.0%} of the time, {without['us']:.2f} to {padded['us']:.2f} µs"
        lines.append(
            text + (": the table is read once, at the end of a block." if abs(share) < 0.05 else ".")
        )
        lines.append(
            "A low efficiency need not be a conflict: in rung 2, the subject of E10, all lanes read the same "
            "number of x, and one pass serves them all."
        )
    else:
        lines.append(f"Nothing was counted on {gpu}, so the conflicts stay a prediction.")
    display.fold_items("E10: do bank conflicts cost time?", lines)


def hit_rates(counted: Rows, evidence: Evidence) -> None:
    """Say what the L2 hit rates of three rungs depend on."""
    some = [coalescing.STRIDED, coalescing.COALESCED, coalescing.PADDED]
    hits = counted[(counted["kind"] == "own") & counted["impl"].isin(some) & (counted["options"] == "")]
    hits = hits[hits["n"] >= coalescing.WARM].copy()
    hits["dram"] = hits["dram_read_bytes"] / hits["n"].map(coalescing.moved)
    cold, warm = (
        coalescing.us(evidence, coalescing.PADDED, coalescing.WARM, cache) for cache in ("cold", "warm")
    )
    lines = ["Cold, the profiler empties the cache before each pass; warm, it should hold what ran before."]
    lines.append(
        f"By the graph clock a warm `{coalescing.PADDED}` takes {warm:.1f} µs at {coalescing.WARM:,} × "
        f"{coalescing.WARM:,}, a cold one {cold:.1f}."
    )
    small = hits[(hits["cache"] == "warm") & (hits["n"] == coalescing.WARM)]
    if len(small) and (small["dram"] > 0.5).all():
        lines.append(
            "But the profiler's *warm* launches read their matrix from DRAM again, so there is no warm hit "
            "rate to judge E11 by. A likely cause: it saves and restores memory between two passes."
        )
    for row in hits.sort_values(["cache", "impl", "n"]).itertuples():
        lines.append(
            f"`{row.impl}`, {row.n:,} × {row.n:,}, {row.cache}: {row.l2_hit_pct:.0f}% of its sectors are in "
            f"L2, and {row.dram:.0%} of the matrix's size is read from DRAM."
        )
    lines.append("A hit rate says what ran before, and a decoder's products always run cold.")
    display.fold_items("E11: what do L2's hit rates depend on?", lines)


def powers(tests: Sequence[claims.Claim], evidence: Evidence, gpu: str) -> None:
    """Draw the verdict of each test on three kernels, and say which tests tell a bad one from a good one."""
    subjects = {coalescing.STRIDED: "strided", coalescing.COALESCED: "coalesced", claims.BEST: "best"}
    put = [claim for claim in tests if claim.name != "E8"]  # which compares two of them
    found = claims.powers(put, evidence, subjects)
    asked = {claim.name: claim.tests[0] for claim in put}
    rows = [
        diagram.Tried(
            row["id"],
            f"{asked[row['id']].quantity} {asked[row['id']].bar.text(asked[row['id']].form)}",
            [_measured(row[subject]) for subject in subjects],
        )
        for _, row in found.iterrows()
    ]
    heads = [name + _taking(evidence, subject) for subject, name in subjects.items()]
    diagram.tried(rows, heads, FILLS, f"Realizar's tests, put to three kernels on the {gpu}").show()
    words = [[each.word for each in found[subject]] for subject in subjects]
    each = list(zip(found["id"], *words, strict=True))
    by_roof = {claim.name: test for claim in put for test in claim.tests[1:] if _is_share(test)}
    lines = _by_power(each, _fooled(each, evidence), lambda ids: _as_shares(ids, by_roof, evidence))
    lines.append("**Left out**: E8, whose bar is the strided kernel's own time.")
    display.say("\n".join(f"- {line}" for line in lines) + _by_kernel(each))


def _measured(verdict: claims.Verdict) -> tuple[str, str]:
    """What a cell of the drawing says, and its verdict: the value, or the verdict's word without one."""
    return (verdict.measured if verdict.value == verdict.value else verdict.word), verdict.word


def _taking(evidence: Evidence, subject: str) -> str:
    """A kernel's time, as the second line of its head; nothing where it was not timed."""
    try:
        return f"\n{coalescing.us(evidence, subject):,.1f} µs"
    except NoEvidence:
        return ""


def _is_share(test: claims.Test) -> bool:
    return test.quantity == "share of the read roof"  # of a matrix of coalescing.SIZE


def _as_shares(ids: Sequence[str], by_roof: Mapping[str, claims.Test], evidence: Evidence) -> str:
    """That lax tests do their work where their bars are shares of the roof; nothing where they do not."""
    try:
        bad, good = (coalescing.share(evidence, impl) for impl in (coalescing.STRIDED, claims.BEST))
    except NoEvidence:
        return ""
    asked = [by_roof[i].bar.value for i in ids if i in by_roof]
    if len(asked) < len(ids) or not bad < min(asked) <= max(asked) < good:
        return ""
    low, high = (f"{share:.0%}" for share in (min(asked), max(asked)))
    span = low if low == high else f"{low} to {high}"
    return (
        f" Their bars ask {span} of the bandwidth of the card that they were set for. Here the strided "
        f"kernel has {bad:.0%} of the roof and the best {good:.0%}: as shares of the roof these tests do "
        "their work, in their own units they are lax on this card."
    )


def _by_power(
    each: Sequence[tuple[str, ...]], fooled: Sequence[str], lax: Callable[[Sequence[str]], str]
) -> list[str]:
    """What the tests do, a line a kind: `each` is a test with its verdicts on the three kernels, and `lax`
    says more of those that pass a bad kernel and a good one.
    """
    holds, refuted = claims.HOLDS, claims.REFUTED
    blind = [i for i, bad, middle, good in each if bad == middle == good != claims.UNRECORDED]
    left = [row for row in each if row[0] not in (*blind, *fooled)]
    kinds = {
        "**Do their work**: they refute the strided kernel and pass the best": (refuted, holds),
        "**Backwards**: the strided kernel passes and the best fails": (holds, refuted),
        "**Lax**: the strided kernel passes as well as the best": (holds, holds),
        "**Strict**: both are refuted": (refuted, refuted),
    }
    lines = []
    for says, pair in kinds.items():
        if ids := [i for i, bad, _, good in left if (bad, good) == pair]:
            lines.append(f"{says}: {listed(ids)}.{lax(ids) if pair == (holds, holds) else ''}")
    if fooled:
        lines.append(
            f"**Fooled**: they refute the strided kernel and pass the coalesced one, which is slower still: "
            f"{listed(fooled)}. What is counted is not speed."
        )
    if blind:
        lines.append(f"**Blind**: one verdict for all three kernels: {listed(blind)}.")
    if unknown := [i for i, *words in left if claims.UNRECORDED in words]:
        lines.append(f"**Open**: of one of the three nothing was recorded: {listed(unknown)}.")
    return lines


def _by_kernel(each: Sequence[tuple[str, ...]]) -> str:
    """Which claims fail by realizar's kernel and not by their bar, as a sentence; nothing without any."""
    kernel = [i for i, _, middle, good in each if (middle, good) == (claims.REFUTED, claims.HOLDS)]
    if not kernel:
        return ""
    bars, them = ("this bar", "it") if len(kernel) == 1 else ("these bars", "them")
    return (
        f"\n\n**The kernel fails, not the bar**: the coalesced kernel misses {bars}, and the best kernel "
        f"meets {them} as stated: {listed(kernel)}."
    )


def _fooled(each: Sequence[tuple[str, ...]], evidence: Evidence) -> list[str]:
    """The tests that refute the strided kernel and pass the coalesced one, where that is the slower one."""
    try:
        strided, coalesced = (coalescing.us(evidence, i) for i in (coalescing.STRIDED, coalescing.COALESCED))
    except NoEvidence:
        return []
    if coalesced <= strided:
        return []
    return [i for i, bad, middle, _ in each if bad == claims.REFUTED and middle == claims.HOLDS]
