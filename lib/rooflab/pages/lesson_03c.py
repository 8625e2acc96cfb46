"""What lesson 03c shows: a source's claims about one kernel, each judged by the bars that it set itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rooflab import claims
from rooflab.analysis import coalescing, root_cause
from rooflab.analysis.evidence import Evidence
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.profile import ncu
from rooflab.studies import gemv as study
from rooflab.view import display, explorer, page, plot

N = coalescing.SIZE


def opening(gpu: str, hypotheses: Rows, tests: Rows) -> Opening:
    """The first screen: how many of the source's claims hold as stated, from the two boards."""
    stated = pd.concat(board[board["restates"] == ""] for board in (hypotheses, tests))
    held, refuted = ((stated["word"] == word).sum() for word in (claims.HOLDS, claims.REFUTED))
    text = "A claim can be tested once it names a quantity, a bar to pass and a bar that refutes it. By the "
    text += (
        f"source's own bars, {held} of its {len(stated)} claims hold on the {gpu} and {refuted} are refuted."
    )
    able = [
        "turn a claim about speed into a quantity and two bars",
        "see that a bar asks for more than the memory has, before measuring",
        "tell a test that can fail from one that cannot",
    ]
    return text, able, verdicts_chart(gpu, hypotheses, tests)


def verdicts_chart(gpu: str, hypotheses: Rows, tests: Rows) -> tuple[Figure, str]:
    """How many claims met which verdict, as stated and restated, and the caption."""
    counts = {}
    for name, board in (("hypotheses", hypotheses), ("tests", tests)):
        own = board["restates"] == ""
        for how, rows in (("as stated", board[own]), ("restated", board[~own])):
            counts[f"{len(rows)} {name}, {how}"] = rows["word"].value_counts()
    words = [word for word in claims.VERDICTS if any(word in each for each in counts.values())]
    title = f"Verdicts on the source's claims, judged on the {gpu}"
    fig, ax = plot.figure("claims", title=title, height=2.5)
    fig.set_figwidth(page.WIDEST)
    parts = {word: [each.get(word, 0) for each in counts.values()] for word in words}
    plot.stacked(ax, list(counts), parts, "claims")
    said = [
        f"{name}: " + ", ".join(f"{word} {each[word]}" for word in words if word in each)
        for name, each in counts.items()
    ]
    return fig, f"{title}. {'; '.join(said)}."


def claimed(hypotheses: Rows) -> None:
    """List what the hypotheses say."""
    own = hypotheses[hypotheses["restates"] == ""]
    display.say("\n".join(f"- **{row.id}**: {row.says}" for row in own.itertuples()))


# --- what the bars ask for ----------------------------------------------------------------------------------


def asked_bars(target_us: float) -> Rows:
    """Show what each bar in microseconds asks of the memory, and return it."""
    known = {claim.name: claim.tests[0] for group in ("hypothesis", "test") for claim in _group(group)}
    bars = [("target of the source", target_us, N)]
    bars += [("H2 holds below", known["H2"].bar.value, N)]
    bars += [("H2 is refuted above", known["H2"].refuted.value, N)]
    for test, size in (("E1", 4096), ("E2", 2048), ("E3", 8192)):
        bars += [(f"{test} passes below", known[test].bar.value, size)]
    asks = pd.DataFrame(bars, columns=["bar", "us", "n"])
    asks["mb"] = [coalescing.moved(size) / 1e6 for size in asks["n"]]
    asks["gb_s"] = asks["mb"] * 1e3 / asks["us"]
    asks["share"] = asks["gb_s"] / coalescing.CARD.dram_gb_s
    asks["possible"] = asks["share"] <= 1
    names = {"bar": "Bar", "us": "µs", "n": "n = k", "mb": "MB", "gb_s": "Asks for (GB/s)"}
    names |= {"share": f"Of what the {coalescing.CARD.name} has", "possible": "Possible from DRAM"}
    forms = {"mb": "{:,.1f}", "gb_s": "{:,.0f}", "share": "{:.0%}", "us": "{:g}"}
    display.table(asks, names, forms)
    return asks


def _group(name: str) -> list[claims.Claim]:
    return claims.select(group=name)


def impossible(asks: Rows) -> None:
    """Say which bars ask for more than the card's memory has."""
    beyond, card = asks[~asks["possible"]], coalescing.CARD
    text = f"{len(beyond)} of {len(asks)} bars ask for more than that card's memory has: "
    text += ", ".join(f"“{row.bar} {row.us:g} µs” ({row.share:.1f} times)" for row in beyond.itertuples())
    text += (
        f". A matrix of {coalescing.moved() / 2**20:.0f} MiB does fit a cache of {card.l2_mb:g} MiB. So a "
    )
    text += "benchmark that repeats one matrix could meet them. A decoder, which reads every matrix of a "
    display.say(text + "model in turn, could not.")


# --- five whys ----------------------------------------------------------------------------------------------


def whys(evidence: Evidence, source: Any, gpu: str) -> None:
    """List the source's whys, each with its own numbers and with what was measured here."""
    lines = []
    for why in root_cause.whys(evidence, source).itertuples():
        lines.append(f"1. **{why.why}** {why.answer}")
        lines.append(f"    - The source's numbers: {why.theirs}.")
        lines.append(f"    - Measured on {gpu}: {why.here}.")
    head = "Why by why: the source's answer, its own numbers, and what was measured"
    display.say(f"<details><summary>{head}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")


def uploaded(evidence: Evidence, gpu: str) -> None:
    """Draw one product with the matrix carried over in each call, and with the matrix on the GPU."""
    uploads = evidence.rows("gemv", operator="upload").copy()
    uploads["name"] = "upload (" + uploads["impl"] + ") + kernel"
    kernels = {"kernel: coalesced": coalescing.COALESCED, "kernel: strided": coalescing.STRIDED}
    alone = pd.DataFrame([evidence.row("gemv", **coalescing.square(impl)) for impl in kernels.values()])
    alone["name"] = list(kernels)
    calls = pd.concat([uploads, alone])
    title = f"One product, {N} × {N}: uploaded or resident"
    fig, ax = plot.figure("ms", title=title, height=2.2)
    low, high = calls["q1_us"] / 1e3, calls["q3_us"] / 1e3
    plot.bars(ax, list(calls["name"]), calls["median_us"] / 1e3, "ms", None, low, high)
    plot.show(fig, plot.caption(calls, gpu, title, y="median_us"))


def missing_why(evidence: Evidence, source: Any, gpu: str) -> None:
    """Say what the source's time is of its card's bandwidth, and how long a call with an upload takes."""
    strided = coalescing.us(evidence, coalescing.STRIDED)
    text = f"The source's {source.strided_us / 1e3:.2f} ms are "
    text += f"{coalescing.share_of_card(source.strided_us, coalescing.moved()):.1%} of its card's "
    text += (
        f"bandwidth; the same address pattern reaches {coalescing.share(evidence, coalescing.STRIDED):.0%} "
    )
    text += f"of the {gpu}'s. "
    uploads = evidence.rows("gemv", operator="upload")
    if len(uploads):
        slow = uploads.set_index("impl")["median_us"]["pageable"]
        text += f"A call that carries the matrix over takes {slow / 1e3:.2f} ms here, "
        text += f"{slow / strided:.0f} times the strided kernel. "
        if slow > 5 * strided:
            text += "**The why that was not asked comes first: is the time in the kernel at all?**"
    display.say(text)


# --- verdicts -----------------------------------------------------------------------------------------------


def board(rows: Rows, what: str, gpu: str, whole: bool = False) -> None:
    """Show a claim a row, sorted by its verdict, beside it the verdicts on its restatements, by their short
    names or, `whole`, in their own words.
    """
    again = rows[rows["restates"] != ""]
    pairs = zip(again["id"], again["restates"], again["says"], again["word"], strict=True)
    short = pd.Series(
        [
            f" {says.rstrip('.')}: {word}." if whole else f"{id.removeprefix(of)}: {word}"
            for id, of, says, word in pairs
        ],
        again.index,
    )
    own = rows[rows["restates"] == ""]
    own = own.sort_values("word", key=lambda words: words.map(claims.VERDICTS.index), kind="stable")
    own = own.assign(again=own["id"].map(short.groupby(again["restates"]).agg(("" if whole else ",").join)))
    names = {"id": what, "says": "Claim", "word": "As stated", "again": "Restated"}
    display.table(own, names, {}, f"Judged on {gpu}")


def _tally(rows: Rows) -> str:
    """How many claims met which verdict, and what restating changed, in two or three sentences."""
    own = rows[rows["restates"] == ""].set_index("id")["word"]
    again = rows.groupby("restates")["word"].agg(set)
    verbs = {claims.HOLDS: ("holds", "hold"), claims.SHORT: ("falls short", "fall short")}
    verbs |= {claims.REFUTED: ("is refuted", "are refuted")}
    verbs |= {claims.UNRECORDED: ("was not recorded", "were not recorded")}
    parts = []
    for word, (one, many) in verbs.items():
        ids = own.index[own == word]
        if len(ids):
            names = f" ({', '.join(ids)})" if len(ids) < 4 else ""
            parts.append(f"{len(ids)} {one if len(ids) == 1 else many}{names}")
    others = own.index[own != claims.HOLDS]
    lost = [id for id in others if claims.HOLDS not in again.get(id, ())]
    doubted = [id for id in own.index.difference(others) if claims.REFUTED in again.get(id, ())]
    text = f"**As stated, of {len(own)}: {', '.join(parts)}.** "
    if len(others):
        text += f"A restatement holds for {len(others) - len(lost)} of the other {len(others)}"
        text += f" (not for {', '.join(lost)}). " if lost else ". "
    text += f"Of {', '.join(doubted)} at least one restatement is refuted. " if doubted else ""
    return text + "What surprises:"


def _folded(rows: Rows, what: str) -> None:
    """The full list of a board, behind a line to click."""
    head = f"All {what} and their restatements: bars, measured values, reasons"
    display.say(f"<details><summary>{head}</summary>\n\n{claims.listed(rows)}\n\n</details>")


def hypotheses_said(verdicts: Rows, asks: Rows) -> None:
    """Say what surprises in the verdicts on the hypotheses, and list all of them."""
    found = verdicts.set_index("id")
    word, value, measured = found["word"], found["value"], found["measured"]
    lines = []
    if word["H1"] == claims.HOLDS and word["H1 sufficient"] == claims.REFUTED:
        lines.append(
            "H1 passes its own test, and the bandwidth it promises does not come: its test counts sectors "
            f"({measured['H1']} are used), its claim speaks of bandwidth ({measured['H1 sufficient']} of the "
            "roof)."
        )
    if word["H2"] == claims.REFUTED and not asks.set_index("bar")["possible"]["H2 holds below"]:
        lines.append(
            "H2 asks for more than its card's memory has, whatever the kernel. The best here takes "
            f"{measured['H2 by the floor']} times what its bytes take at the roof."
        )
    if word["H4"] == claims.REFUTED and word["H4 in rows"] == claims.HOLDS:
        lines.append(
            f"H4's wider loads run at {value['H4']:.2f} times the speed in the source's layout, and at "
            f"{value['H4 in rows']:.2f} times in rows as models store them. What counts is the number of "
            "bytes in flight, not the width of a load."
        )
    if word["H5"] == claims.HOLDS and word["H5 two-sided"] == claims.REFUTED:
        lines.append("H5 holds by a test that cannot see a loss; tested for gain and loss, it is refuted.")
    display.say("\n".join([f"{_tally(verdicts)}\n", *(f"- {line}" for line in lines)]))
    _folded(verdicts, "hypotheses")


def tests_said(judged: Rows) -> None:
    """Say what surprises in the verdicts on the tests, and list all of them."""
    found = judged.set_index("id")
    word, value, measured = found["word"], found["value"], found["measured"]
    lines = []
    if value["E8"] < 1:
        lines.append(
            f"E8 asks for {found['says']['E8'].rstrip('.').lower()}. The designed kernel is "
            f"{value['E8']:.2f} times as fast: on this GPU it is slower than the kernel it should replace. "
            f"The best rung is {value['E8 by the best']:.2f} times as fast."
        )
    if word["E9"] == claims.REFUTED and word["E9 by the best"] == claims.HOLDS:
        lines.append(
            f"E9: it takes {value['E9']:.1f} times as long as cuBLAS at the worst of three sizes, the best "
            f"rung {value['E9 by the best']:.2f} times. The bar can be met, but not by this kernel."
        )
    if word["E10 by padding"] == claims.REFUTED:
        lines.append(
            f"E10: taking bank conflicts away makes `{coalescing.PADDED}` {value['E10 by padding']:.2f} "
            "times as fast, which is not the factor expected."
        )
    if word["E11"] == claims.REFUTED and word["E11 cold"] == claims.HOLDS:
        lines.append(
            f"E11 wants a high hit rate in L2. The best rung has {measured['E11 cold']}, which is right: it "
            "reads nothing twice."
        )
    display.say("\n".join([f"{_tally(judged)}\n", *(f"- {line}" for line in lines)]))
    _folded(judged, "tests")


# --- H5, counters, E10 and E11 ------------------------------------------------------------------------------


def block_sizes(here: Lab, gpu: str, read_roof: float) -> None:
    """Draw the bandwidth of two rungs by the size of a block, and say how much it changes."""
    impls = (coalescing.COALESCED, coalescing.FILLED)
    sweep = here.measure("gemv", [case for impl in impls for case in study.blocks_sweep(impl)])
    sweep["threads"] = sweep["options"].str.extract(r"threads=(\d+)")[0].astype(int)
    title = "GEMV by threads a block"
    fig, ax = plot.figure("threads a block", "GB/s", title, xlog=True, height=2.8)
    text, level = "", True
    for impl, mine in sweep.groupby("impl", sort=False):
        plot.series(ax, mine["threads"], *plot.band(mine), label=impl)
        fast, slow = mine.loc[mine["gb_s"].idxmax()], mine.loc[mine["gb_s"].idxmin()]
        text += f"- {impl}: from {slow['gb_s']:,.0f} GB/s at {slow['threads']} threads to "
        text += f"{fast['gb_s']:,.0f} at {fast['threads']}, a factor of "
        text += f"{fast['gb_s'] / slow['gb_s']:.2f}.\n"
        level = level and mine["gb_s"].max() < 1.2 * mine["gb_s"].min()
    plot.roof_line(ax, read_roof, f"read {read_roof:,.0f} GB/s")
    ax.set_xticks(study.BLOCKS, study.BLOCKS)
    plot.label_ends(ax)
    plot.show(fig, plot.caption(sweep, gpu, title, ("read", read_roof, "GB/s")))
    if level:
        text += "\nThe size of a block changes neither: the number of bytes in flight is the same for each."
    display.say(text)


def counters(counted: Rows) -> None:
    """List nvprof's counters that the tests name: what each is today, and its value for rung 2."""
    seen = counted[(counted["impl"] == coalescing.COALESCED) & (counted["n"] == N)]
    seen = seen[seen["cache"] == "cold"]
    lines = []
    for old, new in ncu.NVPROF.items():
        if new in study.COUNTERS:
            names = "` ÷ `".join(ncu.METRICS[new].ncu)
            value = f"{seen[new].max():,.4g}" if len(seen) else "not counted"  # of one row
            value += " %" if len(seen) and ncu.METRICS[new].unit == "%" else ""
            lines.append(f"- **{old}**, {value} here: {ncu.METRICS[new].meaning}. Now `{names}`")
    head = "nvprof's names, what counts the same today, and what it counts of the coalesced rung"
    display.say(f"<details><summary>{head}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")


def padding(here: Lab, counted: Rows, gpu: str) -> None:
    """Show bank conflicts and time with and without padding, and say what padding saves."""
    table = counted[(counted["impl"] == coalescing.PADDED) & (counted["n"] == N)]
    table = table[table["cache"] == "cold"].copy()
    table["option"] = table["options"].replace("", "pad=1")  # the default
    table["us"] = table["option"].map(
        here.measure("gemv", study.padding(N)).set_index("options")["median_us"]
    )
    table["pad"] = table["option"].map({"pad=0": "none", "pad=1": "1 float"})
    names = {"pad": "Padding", "shared_load_conflicts": "Bank conflicts"}
    names |= {"shared_efficiency_pct": "Shared efficiency %", "us": "µs"}
    forms = {"shared_load_conflicts": "{:,.0f}", "us": "{:.2f}", "shared_efficiency_pct": "{:.0f}"}
    display.table(table, names, forms, coalescing.PADDED)
    text = f"Nothing was counted on {gpu}, so the conflicts stay a prediction."
    if set(table["pad"]) == {"none", "1 float"}:
        without, padded = (table.set_index("pad").loc[name] for name in ("none", "1 float"))
        saved = without["shared_load_conflicts"] - padded["shared_load_conflicts"]
        share = 1 - padded["us"] / without["us"]
        text = f"Padding takes away {saved:,.0f} conflicts and {'saves' if share >= 0 else 'adds'} "
        text += f"{abs(share):.0%} of the time"
        text += ": the table is read once, at the end of a block" if abs(share) < 0.05 else ""
        text += ". And a low efficiency need not be a conflict. In rung 2, the subject of E10, all lanes "
        text += "read the same number of x at the same time: one pass serves them all, and most of what it "
        text += "could carry is not used."
    display.say(text)


def hit_rates(counted: Rows, evidence: Evidence, gpu: str) -> None:
    """Say what the L2 hit rates of three rungs depend on, and show them."""
    some = [coalescing.STRIDED, coalescing.COALESCED, coalescing.PADDED]
    hits = counted[(counted["kind"] == "own") & counted["impl"].isin(some) & (counted["options"] == "")]
    hits = hits[hits["n"] >= coalescing.WARM].copy()
    hits["dram"] = hits["dram_read_bytes"] / hits["n"].map(coalescing.moved)
    cold, warm = (
        coalescing.us(evidence, coalescing.PADDED, coalescing.WARM, cache) for cache in ("cold", "warm")
    )
    text = f"By the graph clock a warm {coalescing.PADDED} takes {warm:.1f} µs at "
    text += f"{coalescing.WARM} × {coalescing.WARM}, a cold one {cold:.1f}. "
    small = hits[(hits["cache"] == "warm") & (hits["n"] == coalescing.WARM)]
    if len(small) and (small["dram"] > 0.5).all():
        text += "But the profiler's *warm* launches read their matrix from DRAM again. A likely cause is "
        text += "what it does between two passes over a kernel: it saves and restores memory. What it calls "
        text += "warm is not, so there is no hit rate to judge E11 by."
    else:
        for row in small.itertuples():
            text += f"Counted warm, {row.impl} finds {row.l2_hit_pct:.0f} % of its sectors in the "
            text += f"L2 and reads {row.dram:.2f} of its matrix from DRAM. "
        text += "A hit rate says what ran before, and a decoder's products always run cold."
    display.say(text)
    names = {"impl": "Rung", "n": "n = k", "cache": "Cache"}
    names |= {"l2_hit_pct": "L2 hits %", "dram": "DRAM ÷ matrix"}
    forms = {"l2_hit_pct": "{:.0f}", "dram": "{:.2f}"}
    display.table(hits, names, forms, f"Hit rates counted by ncu on {gpu}", folded=True)


# --- can the test fail --------------------------------------------------------------------------------------


def powers(tests: Sequence[claims.Claim], evidence: Evidence, gpu: str) -> None:
    """Show the verdict of each test on three kernels, and say which tests tell a bad one from a good one."""
    subjects = [coalescing.STRIDED, coalescing.COALESCED, claims.BEST]
    found = claims.powers([claim for claim in tests if claim.name != "E8"], evidence, subjects)
    shown = found[["id", "bars"]].copy()
    for subject in subjects:
        shown[subject] = [
            (f"{each.measured}, " if each.value == each.value else "") + each.word for each in found[subject]
        ]
    words = [[each.word for each in found[subject]] for subject in subjects]
    each = list(zip(found["id"], *words, strict=True))
    tells = [i for i, bad, _, good in each if bad == claims.REFUTED and good == claims.HOLDS]
    blind = [i for i, bad, middle, good in each if bad == middle == good]
    against = [i for i, bad, _, good in each if bad == claims.HOLDS and good == claims.REFUTED]
    text = f"On the {gpu}, tests that the strided kernel fails and the best passes: "
    text += f"{', '.join(tells) or 'none'}. "
    text += f"Tests with the same verdict for all three: {', '.join(blind)}. " if blind else ""
    if against:
        text += f"**Tests that the strided kernel passes and the best fails: {', '.join(against)}.** "
    if "E11" in against:
        text += "A high L2 hit rate sounds good. But where data is read once, it means that sectors were "
        text += "fetched more than once."
    display.say(text)
    names = {"id": "Test", "bars": "Bar"} | {subject: subject for subject in subjects}
    display.table(shown, names, caption="Every test on the three kernels", folded=True)


def takeaway(gpu: str, verdicts: Rows, judged: Rows) -> None:
    """What to take away, computed."""
    both = pd.concat([verdicts, judged])
    own = both[both["restates"] == ""]["word"].value_counts()
    again = both[both["restates"] != ""]["word"].value_counts()
    display.say(
        f"- As stated, on the {gpu}: of {own.sum()} claims {own.get(claims.HOLDS, 0)} hold, "
        f"and {own.get(claims.REFUTED, 0)} are refuted. Of {again.sum()} restatements "
        f"{again.get(claims.HOLDS, 0)} hold and {again.get(claims.REFUTED, 0)} are refuted.\n"
        "- Divide before you measure: a bar that asks for more than the memory has needs no experiment.\n"
        "- Time the transfer and the kernel apart, to know which of the two is slow.\n"
        "- Run your test on a bad kernel. If the kernel passes, change the test."
    )


def explored(rows: Rows, here: Lab, gpu: str) -> Any:
    """The explorer of every rung by size and clock."""
    return explorer.Explorer(
        "gemv-clocks",
        rows[(rows["options"] == "") & (rows["cache"] == "cold")],
        x="n",
        y="median_us",
        controls={"impl": "Contestant", "clock": "Clock"},
        labels={"n": "n = k"},
        ylog=True,
        title=f"n × n FP32 products on {gpu}",
        start={"impl": coalescing.COALESCED, "clock": "graph", "n": N},
        measure=explorer.measurer(here),
    )
