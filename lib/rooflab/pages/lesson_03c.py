"""What lesson 03c shows: a source's claims about one kernel, each judged by the bars that it set itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.analysis import coalescing, root_cause
from rooflab.analysis.evidence import Evidence
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_03c_counters import FILLS
from rooflab.pages.lesson_03c_counters import block_sizes as block_sizes
from rooflab.pages.lesson_03c_counters import counters as counters
from rooflab.pages.lesson_03c_counters import hit_rates as hit_rates
from rooflab.pages.lesson_03c_counters import padding as padding
from rooflab.pages.lesson_03c_counters import powers as powers
from rooflab.view import diagram, display, explorer
from rooflab.words import listed

N = coalescing.SIZE


def _group(name: str) -> list[claims.Claim]:
    return claims.select(group=name)


def opening(gpu: str, hypotheses: Rows, tests: Rows, evidence: Evidence) -> Opening:
    """The first screen: what refutes a claim, with one claim as the example, and how many hold as stated."""
    tested, meant = (claims.judge(_TESTS[id], evidence) for id in ("H1", "H1 sufficient"))
    text = _score(gpu, _stated(hypotheses, tests))
    if (tested.word, meant.word) == (claims.HOLDS, claims.REFUTED):
        text += " One of them, H1, promises bandwidth, but its test counts how many of the loaded bytes are "
        text += f"used: its kernel uses {tested.measured} and reaches {meant.measured} of the bandwidth."
    text += " The page has four checks: ask what a bar demands of the memory, measure the quantity that the "
    text += "claim names, put the test to a bad kernel, and ask whether the kernel takes the time at all."
    able = [
        "see before measuring that a bar asks for more than the memory has",
        "check that a test measures the quantity that the claim names",
        "try a test on a bad kernel, which must not pass",
    ]
    return text, able, _both_drawn(gpu, evidence)


def _stated(hypotheses: Rows, tests: Rows) -> Rows:
    return pd.concat(board[board["restates"] == ""] for board in (hypotheses, tests))


def _score(gpu: str, stated: Rows) -> str:
    """How many claims hold by their own bars."""
    held, refuted = ((stated["word"] == word).sum() for word in (claims.HOLDS, claims.REFUTED))
    text = f"Of {len(stated)} published claims {held} hold on the {gpu} by their own bars, and {refuted} are "
    text += "refuted"
    between = [(claims.SHORT, "falls short", "fall short")]
    between += [(claims.UNRECORDED, "was not recorded", "were not recorded")]
    for word, one, many in between:
        if count := (stated["word"] == word).sum():
            text += f"; {count} {one if count == 1 else many}"
    return f"{text}."


def verdicts_drawn(gpu: str, hypotheses: Rows, tests: Rows) -> None:
    """Draw every claim in a few words, its verdict and those of its restatements."""
    stated, every = _stated(hypotheses, tests), pd.concat([hypotheses, tests])
    again = every[every["restates"] != ""].groupby("restates")["word"].agg(list)
    judged = [
        diagram.Judged(row.id, row.word, again.get(row.id, []), _few_words(row.id))
        for row in stated.itertuples()
    ]
    diagram.verdicts(judged, FILLS, f"{len(stated)} claims on the {gpu}, and restatements").show()


def _few_words(id: str) -> str:
    """What a claim asks for: its quantity and its bar."""
    test = _TESTS[id]
    return f"{test.quantity} {test.bar.text(test.form)}"


def worked(gpu: str, evidence: Evidence) -> None:
    """Work one claim through: what H1 says, its test, its bar and both verdicts."""
    says = {claim.name: claim.says for claim in _group("hypothesis")}
    steps = [f"**The claim**, H1, made for the {coalescing.CARD.name}: *{says['H1']}*"]
    for id, what in (("H1", "Its own test"), ("H1 sufficient", "Restated")):
        test, found = _TESTS[id], claims.judge(_TESTS[id], evidence)
        line = f"**{what}**: {test.quantity} {test.bar.text(test.form)}. "
        line += f"Our kernel `{test.subject}` on the {gpu}: {found.measured}. **Verdict: {found.word}.**"
        line += f" Why restated: {test.reason}." if test.reason else ""
        steps.append(line)
    display.say("\n".join(f"{place}. {step}" for place, step in enumerate(steps, 1)))


# --- claims on number lines ---------------------------------------------------------------------------------

_TESTS = {id: test for id, _, test in claims.shown([c for g in ("hypothesis", "test") for c in _group(g)])}


def _floor() -> float:
    """Microseconds in which the source's card can read the matrix, by its data sheet."""
    return coalescing.moved() / coalescing.CARD.dram_gb_s / 1e3


def _line(says: str, id: str, marks: Sequence[tuple[float, str]]) -> diagram.Line:
    """A test of the source on a number line, with what was measured."""
    test = _TESTS[id]
    refuted = (test.refuted.sign, test.refuted.value) if test.refuted else None
    found = [(value, words) for value, words in marks if value == value]
    return diagram.Line(says, test.form, (test.bar.sign, test.bar.value), refuted, found)


def _measured(evidence: Evidence, id: str, words: str, subject: str = "") -> tuple[float, str]:
    """What the recording gives for a test's quantity, of its own subject or another, as a mark."""
    found = claims.judge(_TESTS[id], evidence, subject)
    return found.value, f"{found.measured} {words}"


def possible_or_not(gpu: str, evidence: Evidence) -> None:
    """Draw H2 as stated and by the floor: one claim in microseconds and in units of what memory allows."""
    best, _ = _measured(evidence, "H2", "", claims.BEST)
    card = coalescing.CARD.name.removeprefix("GeForce ")
    stated = [(_floor(), f"{_floor():.1f} µs: the least on an {card}, by its memory")]
    stated += [_measured(evidence, "H2", f"by its kernel, {gpu}")]
    floor = f"times: the best kernel on the {gpu}, {best:.1f} µs"
    again = _measured(evidence, "H2 by the floor", floor)
    lines = [
        _line("As stated: the time of a 4,096 × 4,096 product", "H2", stated),
        _line("Restated: that time, divided by what the bytes take at the roof", "H2 by the floor", [again]),
    ]
    diagram.number_lines(lines, "One claim in two units, and what was measured").show()


def _both_drawn(gpu: str, evidence: Evidence) -> diagram.Drawing:
    """Draw H1 by its own test, which counts sectors, and by the bandwidth that it speaks of."""
    counted, read = (_measured(evidence, id, "measured") for id in ("H1", "H1 sufficient"))
    lines = [
        _line("The test: used bytes of the sectors loaded", "H1", [counted]),
        _line("The claim: bandwidth, as a share of the read roof", "H1 sufficient", [read]),
    ]
    return diagram.number_lines(lines, f"One claim, two quantities: the coalesced kernel on the {gpu}")


def tested_and_meant(gpu: str, evidence: Evidence) -> None:
    """Say what H1's two verdicts mean."""
    tested, meant = (claims.judge(_TESTS[id], evidence) for id in ("H1", "H1 sufficient"))
    if claims.UNRECORDED in (tested.word, meant.word):
        return display.say(
            f"On the {gpu} {tested.measured if tested.value != tested.value else meant.measured}."
        )
    text = f"It uses {tested.measured} of what it loads, and reads at {meant.measured} of the roof. "
    if tested.word != meant.word:
        text += f"**By its own test H1 {_verb(tested.word)}; by the bandwidth that it names it "
        text += f"{_verb(meant.word)}.** No wasted byte does not mean many bytes a second: "
        text += "[part 03b](03b_filling.ipynb) finds what was missing, bytes in flight."
    display.say(text)


def _verb(word: str) -> str:
    """A verdict as a verb of the claim: "holds", "is refuted"."""
    return f"is {word}" if word == claims.REFUTED else word


def backwards(gpu: str, evidence: Evidence) -> None:
    """Say which of three kernels are bad, and what E11, the L2 hit rate, says of them."""
    names = {coalescing.STRIDED: "strided", coalescing.COALESCED: "coalesced", claims.BEST: "best"}
    times = {name: coalescing.us(evidence, subject) for subject, name in names.items()}
    text = f"Bad means slow: on the {gpu} "
    text += listed(f"the {name} kernel takes {us:,.1f}" for name, us in times.items()) + " µs."
    if times["coalesced"] > times["strided"]:
        text += " The kernel that the source designed is the slowest of the three."
    words = {name: claims.judge(_TESTS["E11"], evidence, subject) for subject, name in names.items()}
    text += "\n\nTake E11: L2, the cache, has to serve over half of all sectors. "
    text += f"Measured: {listed(f'{each.measured} in the {name} kernel' for name, each in words.items())}."
    if (words["strided"].word, words["best"].word) == (claims.HOLDS, claims.REFUTED):
        text += " **So a bad kernel passes and the best one fails.** L2 serves what was fetched before; the "
        text += "best kernel fetches each sector once, so L2 has nothing to serve."
    display.say(text)


# --- what the bars ask for ----------------------------------------------------------------------------------


def asked_bars(target_us: float) -> Rows:
    """What each bar in microseconds asks of the memory, a row a bar."""
    known = {claim.name: claim.tests[0] for group in ("hypothesis", "test") for claim in _group(group)}
    bars = [("the source's target", target_us, N)]
    bars += [("H2's bar", known["H2"].bar.value, N)]  # the hypothesis that names a time
    bars += [("H2's second bar", known["H2"].refuted.value, N)]
    for test, size in (("E1", 4096), ("E2", 2048), ("E3", 8192)):
        bars += [(f"{test}'s bar", known[test].bar.value, size)]
    asks = pd.DataFrame(bars, columns=["bar", "us", "n"])
    asks["mb"] = [coalescing.moved(size) / 1e6 for size in asks["n"]]
    asks["gb_s"] = asks["mb"] * 1e3 / asks["us"]
    asks["share"] = asks["gb_s"] / coalescing.CARD.dram_gb_s
    asks["possible"] = asks["share"] <= 1
    return asks


def impossible(asks: Rows) -> None:
    """Say which bars ask for more than the card's memory has."""
    beyond, card = asks[~asks["possible"]], coalescing.CARD
    text = ""
    for row in beyond.sort_values("us", ascending=False).itertuples():
        text += f"- {row.us:g} µs, {row.bar}: {row.mb:.1f} MB in that time are {row.gb_s:,.0f} GB/s, "
        text += f"**{row.share:.1f} times what the {card.name} has**.\n"
    if len(beyond):
        text += (
            "\nSo no kernel can meet these bars *cold*, from DRAM. Warm is another question: the matrix of "
        )
        text += (
            f"{coalescing.moved() / 2**20:.0f} MiB fits that card's L2 cache of {card.l2_mb:g} MiB, and a "
        )
        text += "benchmark that repeats one matrix could read it from there. A "
        text += "decoder "
        text += "could not, for it reads every matrix of a model in turn."
    display.say(text or f"No bar asks for more than the {card.name} has.")
    names = {"bar": "Bar", "us": "µs", "n": "n = k", "mb": "MB", "gb_s": "Asks for (GB/s)"}
    names |= {"share": f"Of what the {coalescing.CARD.name} has", "possible": "Possible from DRAM"}
    forms = {"mb": "{:,.1f}", "gb_s": "{:,.0f}", "share": "{:.0%}", "us": "{:g}"}
    caption = "Every bar in microseconds, and what it asks of the memory"
    display.table(asks, names, forms, caption, folded=True)


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


def missing_why(evidence: Evidence, source: Any, gpu: str) -> None:
    """Say what the source's time is of its card's bandwidth, and how long a call with an upload takes."""
    strided = coalescing.us(evidence, coalescing.STRIDED)
    text = f"- The source timed {source.strided_us / 1e3:.2f} ms on its RTX 4090. For the matrix's "
    text += f"{coalescing.moved() / 1e6:.1f} MB that is {coalescing.moved() / source.strided_us / 1e3:.1f} "
    text += f"GB/s, {coalescing.share_of_card(source.strided_us, coalescing.moved()):.1%} of its card's "
    text += f"bandwidth (it writes {claims.get('C-F32').tests[0].bar.value:.1%}).\n"
    text += f"- The same address pattern takes {strided / 1e3:.2f} ms on the {gpu}, "
    text += f"{coalescing.share(evidence, coalescing.STRIDED):.0%} of its bandwidth.\n"
    uploads = evidence.rows("gemv", operator="upload")
    if len(uploads):
        slow = uploads.set_index("impl")["median_us"]["pageable"]
        text += "- A call that first copies the matrix from the host's pageable memory takes "
        kernel = coalescing.us(evidence, coalescing.COALESCED)
        text += (
            f"{slow / 1e3:.2f} ms here, {slow / kernel:.0f} times as long as the kernel that it then runs, "
        )
        text += f"`{coalescing.COALESCED}` in {kernel / 1e3:.2f} ms: "
        text += f"{coalescing.moved() / slow / 1e3:.1f} GB/s.\n"
        if slow > 5 * strided:
            text += "\n**The source's time has the size of a copy, not of a kernel**: with weights that "
            text += f"stay on the GPU the source itself reports {source.resident_us / 1e3:.2f} ms."
    display.say(text)


# --- verdicts -----------------------------------------------------------------------------------------------


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
    text = f"As stated, {', '.join(parts)}. "
    mixed = [id for id in others if id not in lost and claims.REFUTED in again[id]]
    if mended := [id for id in others if id not in (*lost, *mixed)]:
        text += f"Restated, {listed(mended)} {'holds' if len(mended) == 1 else 'hold'}. "
    for id in mixed:
        text += f"{id} holds in one restatement and is refuted in another. "
    if lost:
        text += f"{listed(lost)} {'holds' if len(lost) == 1 else 'hold'} in no form. "
    for id in doubted:
        text += f"{id} holds by its own test, and a restatement of it is refuted. "
    return text.strip()


def _folded(rows: Rows, what: str, surprises: Sequence[str]) -> None:
    """How many hold and what surprises, and every claim with its bars behind a line to click."""
    count = (rows["restates"] == "").sum()
    display.say("\n".join([f"{_tally(rows)}\n", *(f"- {line}" for line in surprises)]))
    display.say(
        f"<details><summary>The {count} {what}, with bars, measured values and restatements</summary>\n\n"
        f"{claims.listed(rows)}\n\n</details>"
    )


def hypotheses_said(verdicts: Rows, asks: Rows) -> None:
    """Say what surprises in the verdicts on the hypotheses, and list all of them."""
    found = verdicts.set_index("id")
    word, value, measured = found["word"], found["value"], found["measured"]
    lines = []
    if word["H2"] == claims.REFUTED and not asks.set_index("bar")["possible"]["H2's bar"]:
        lines.append(
            "H2 asks for more than its card's memory has, whatever the kernel. The best here takes "
            f"{measured['H2 by the floor']} times what its bytes take at the roof."
        )
    if word["H4"] == claims.REFUTED and word["H4 in rows"] == claims.HOLDS:
        lines.append(
            f"H4's wider loads run at {value['H4 in rows']:.2f} times the speed in rows as models store them "
            f"but at {value['H4']:.2f} times in the source's layout, for a reason that part 03b did not find."
        )
    if word["H5"] == claims.HOLDS and word["H5 two-sided"] == claims.REFUTED:
        lines.append("H5 holds by a test that cannot see a loss; tested for gain and loss, it is refuted.")
    _folded(verdicts, "hypotheses", lines)


def tests_said(judged: Rows) -> None:
    """Say what surprises in the verdicts on the tests, and list all of them."""
    found = judged.set_index("id")
    word, value = found["word"], found["value"]
    lines = []
    if value["E8"] < 1:
        lines.append(
            f"E8 asks for {found['says']['E8'].rstrip('.').lower()}. The designed kernel is "
            f"{value['E8']:.2f} times as fast: on this GPU it is slower than the kernel it should replace. "
            f"The best rung is {value['E8 by the best']:.2f} times as fast."
        )
    if word["E9"] == claims.REFUTED and word["E9 by the best"] == claims.HOLDS:
        lines.append(
            f"E9: the designed kernel takes {value['E9']:.1f} times as long as cuBLAS at the worst of three "
            f"sizes, the best rung {value['E9 by the best']:.2f} times."
        )
    if word["E10 by padding"] == claims.REFUTED:
        lines.append(
            f"E10: taking bank conflicts away makes `{coalescing.PADDED}` {value['E10 by padding']:.2f} "
            "times as fast, which is not the factor expected."
        )
    _folded(judged, "tests", lines)


def takeaway(gpu: str, verdicts: Rows, judged: Rows) -> None:
    """What to take away, computed."""
    both = pd.concat([verdicts, judged])
    own = both[both["restates"] == ""]["word"].value_counts()
    again = both[both["restates"] != ""]["word"].value_counts()
    display.say(
        "- Divide before you measure: a bar that asks for more than the memory has needs no experiment.\n"
        "- Measure the quantity that the claim names.\n"
        "- Run your test on a bad kernel. If the kernel passes, change the test.\n"
        "- Time the transfer and the kernel apart, to know which of the two is slow.\n"
        f"- On the {gpu} {own.get(claims.HOLDS, 0)} of {own.sum()} claims hold as stated. "
        f"Of {again.sum()} restatements, many put to the best kernel, {again.get(claims.HOLDS, 0)} hold."
    )


def explored(rows: Rows, here: Lab, gpu: str) -> Any:
    """The explorer of every rung by size and clock; before it, say what was recorded by each."""
    cold = rows[(rows["options"] == "") & (rows["cache"] == "cold")]
    sizes = cold.groupby("clock")["n"].agg(lambda each: sorted(set(each)))
    few = [clock for clock in sizes.index if clock != "graph" and len(sizes[clock]) == 1]
    text = "The *event* and *wall* clocks include what a call costs; the source's mean of a thousand "
    text += "iterations was probably taken by one of these."
    if few:
        clocks = listed(f"*{clock}*" for clock in few)
        text += (
            f" By {clocks} only some contestants were timed, at {sizes[few[0]][0]:,} × {sizes[few[0]][0]:,}."
        )
    display.say(text)
    return explorer.Explorer(
        "gemv-clocks",
        cold,
        x="n",
        y="median_us",
        controls={"impl": "Contestant", "clock": "Clock"},
        labels={"n": "n = k"},
        ylog=True,
        title=f"n × n FP32 products on {gpu}",
        start={"impl": coalescing.COALESCED, "clock": "graph", "n": N},
        measure=explorer.measurer(here),
    )
