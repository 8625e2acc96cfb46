"""What lesson 03c shows: realizar's claims about one kernel, each judged by the bars that it set itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.analysis import coalescing, root_cause
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_03c_copy import called, calls_drawn
from rooflab.pages.lesson_03c_copy import missing_why as missing_why
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


def opening(gpu: str, hypotheses: Rows, tests: Rows, evidence: Evidence, source: Any) -> Opening:
    """The first screen: the four checks, how many claims hold as stated, and the copy beside the kernel."""
    found = called(evidence)
    part = f" ({found.kernel / 1e3:.2f} of {found.call / 1e3:.2f} ms here)" if found else ""
    text = f"Four checks: take the copy out of the kernel's time{part}, ask whether the memory can meet the "
    text += "bar, measure what the claim names, and see that a slow kernel fails the test. "
    text += _score(gpu, _stated(hypotheses, tests))
    if found:
        text += " The picture is the first check: does the kernel take the time, or a copy?"
    able = [
        "tell a slow kernel from a slow copy",
        "see before measuring that a bar asks for more than the memory has",
        "check that a test measures the quantity that the claim names",
        "try a test on a bad kernel, which must not pass",
    ]
    return text, able, calls_drawn(gpu, evidence, source)


def _stated(hypotheses: Rows, tests: Rows) -> Rows:
    return pd.concat(board[board["restates"] == ""] for board in (hypotheses, tests))


def _score(gpu: str, stated: Rows) -> str:
    """How many claims hold by their own bars, and what a verdict on another card is worth."""
    held, refuted = ((stated["word"] == word).sum() for word in (claims.HOLDS, claims.REFUTED))
    text = (
        f"Put to the {gpu}, {held} of realizar's {len(stated)} claims hold by their own bars, and {refuted} "
    )
    text += "are refuted"
    between = [(claims.SHORT, "falls short", "fall short")]
    between += [(claims.UNRECORDED, "was not recorded", "were not recorded")]
    between += [(claims.ELSEWHERE, "cannot be tested here", "cannot be tested here")]
    for word, one, many in between:
        if count := (stated["word"] == word).sum():
            text += f"; {count} {one if count == 1 else many}"
    card = coalescing.CARD.name.removeprefix("GeForce ")
    if card not in gpu:
        text += (
            f". The claims are about an {card}: a verdict here says whether one carries over, not whether "
        )
        text += "it is true there"
    return f"{text}."


def verdicts_drawn(gpu: str, hypotheses: Rows, tests: Rows, evidence: Evidence) -> None:
    """Draw every claim in a few words, its verdict and those of its restatements, with the kernels."""
    stated, every = _stated(hypotheses, tests), pd.concat([hypotheses, tests])
    best = _best(evidence)
    judged = []
    for row in stated.itertuples():
        again = [
            diagram.Found(each.word, f"{each.id.removeprefix(row.id).strip()} · {_called_so(each, best)}")
            for each in every[every["restates"] == row.id].itertuples()
        ]
        test = _TESTS[row.id]
        words = f"{test.quantity}\n{test.bar.text(test.form)}"
        judged.append(diagram.Judged(row.id, diagram.Found(row.word, _called_so(row, best)), again, words))
    diagram.verdicts(judged, FILLS, f"{len(stated)} claims on the {gpu}, and restatements").show()
    display.say("\n".join(f"- {line}" for line in _on_the_grid(every)))


def _best(evidence: Evidence) -> str:
    """The rung that is the best kernel; "" where none was recorded."""
    try:
        return str(evidence.row("gemv", **coalescing.square(claims.BEST))["impl"])
    except NoEvidence:
        return ""


def _called_so(row: Any, best: str) -> str:
    """What the page calls the kernel of a verdict."""
    names = {best: "best", coalescing.STRIDED: "strided", coalescing.COALESCED: "coalesced"}
    return names.get(row.subject, row.subject)


def _on_the_grid(every: Rows) -> list[str]:
    """What the grid does not explain by itself: two claims of one test, one bar put to two kernels."""
    found, lines = every.set_index("id"), []
    same = [_TESTS[id] for id in ("H1", "E6")]
    if len({(test.subject, test.quantity, test.bar) for test in same}) == 1:
        lines.append("H1 and E6 are one test, counted twice.")
    one, other = found["word"]["H3 as refined"], found["word"]["E4 by the roof"]
    if (one, other) == (claims.REFUTED, claims.HOLDS):
        bar = _TESTS["H3 as refined"].bar.value
        lines.append(
            f"H3 as refined and E4 ask the same, {bar:,.0f} products a second, and the coalesced kernel does "
            f"{found['measured']['H3 as refined']}. E4's restatement holds because it is put to the best "
            "kernel."
        )
    return lines


def kernels_said(evidence: Evidence) -> None:
    """Say which three kernels the page puts to the tests."""
    text = "**Three kernels**, written here from realizar's description: *strided*, the one that it had; "
    text += "*coalesced*, the one that it designed; and *best*, the fastest of lessons 03 and 03b"
    best = _best(evidence)
    display.say(f"- {text}{f' (`{best}`)' if best else ''}, which is ours.")


# --- claims on number lines ---------------------------------------------------------------------------------

_TESTS = {id: test for id, _, test in claims.shown([c for g in ("hypothesis", "test") for c in _group(g)])}


def _floor() -> float:
    """Microseconds in which realizar's card can read the matrix, by its data sheet."""
    return coalescing.moved() / coalescing.CARD.dram_gb_s / 1e3


def _line(says: str, id: str, marks: Sequence[tuple[float, str]]) -> diagram.Line:
    """A test of realizar's on a number line, with what was measured."""
    test = _TESTS[id]
    refuted = (test.refuted.sign, test.refuted.value) if test.refuted else None
    found = [(value, words) for value, words in marks if value == value]
    return diagram.Line(says, test.form, (test.bar.sign, test.bar.value), refuted, found)


def _measured(evidence: Evidence, id: str, words: str, subject: str = "") -> tuple[float, str]:
    """What the recording gives for a test's quantity, of its own subject or another, as a mark."""
    found = claims.judge(_TESTS[id], evidence, subject)
    return found.value, f"{found.measured} {words}"


def possible_or_not(gpu: str, evidence: Evidence) -> None:
    """Draw H2 as stated and by the floor, with both kernels: a claim in microseconds, and in units of what
    memory allows.
    """
    card = coalescing.CARD.name.removeprefix("GeForce ")
    kernels = {coalescing.COALESCED: "coalesced", claims.BEST: "best"}
    stated = [(_floor(), f"{_floor():.1f} µs: least of an {card}")]
    stated += [_measured(evidence, "H2", name, impl) for impl, name in kernels.items()]
    again = [_measured(evidence, "H2 by the floor", name, impl) for impl, name in kernels.items()]
    lines = [
        _line("As stated: the time of a 4,096 × 4,096 product", "H2", stated),
        _line("Restated: that time over what the bytes take at the roof", "H2 by the floor", again),
    ]
    diagram.number_lines(lines, f"H2 in two units: both kernels on the {gpu}").show()


def both_drawn(gpu: str, evidence: Evidence) -> None:
    """Draw H1 by its own test, which counts sectors, and by the bandwidth that it speaks of."""
    counted, read = (_measured(evidence, id, "measured") for id in ("H1", "H1 sufficient"))
    lines = [
        _line("The test: used bytes of the sectors loaded", "H1", [counted]),
        _line("The claim: bandwidth, as a share of the read roof", "H1 sufficient", [read]),
    ]
    diagram.number_lines(lines, f"H1, two quantities: the coalesced kernel on the {gpu}").show()


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
        text += " The kernel that realizar designed is the slowest of the three."
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
    bars = [("realizar's target", target_us, N)]
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


def carried_over(gpu: str, evidence: Evidence) -> None:
    """Say that a bar in microseconds does not carry over, where the best kernel meets H2's here and the
    realizar's card cannot.
    """
    found, card = claims.judge(_TESTS["H2"], evidence, claims.BEST), coalescing.CARD.name
    if found.word == claims.HOLDS and _floor() > _TESTS["H2"].bar.value:
        display.say(
            f"On the {gpu} the best kernel takes {found.measured} and meets a bar that no kernel on the "
            f"{card} can. So a bar in microseconds does not carry over to another card; a share of what "
            "memory allows does."
        )


# --- five whys ----------------------------------------------------------------------------------------------


def whys(evidence: Evidence, source: Any, gpu: str) -> None:
    """List realizar's whys, each with its own numbers and with what was measured here."""
    lines = []
    for why in root_cause.whys(evidence, source).itertuples():
        lines.append(f"1. **{why.why}** {why.answer}")
        lines.append(f"    - Realizar's numbers: {why.theirs}.")
        lines.append(f"    - Measured on {gpu}: {why.here}.")
    head = "Why by why: realizar's answer, its own numbers, and what was measured"
    display.say(f"<details><summary>{head}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")


# --- verdicts -----------------------------------------------------------------------------------------------


def _folded(rows: Rows, what: str, surprises: Sequence[str]) -> None:
    """What surprises, and every claim with its bars behind a line to click."""
    count = (rows["restates"] == "").sum()
    if surprises:
        display.say("\n".join(f"- {line}" for line in surprises))
    display.say(
        f"<details><summary>The {count} {what}, with bars, measured values and restatements</summary>\n\n"
        f"{claims.listed(rows)}\n\n</details>"
    )


def hypotheses_said(verdicts: Rows) -> None:
    """Say what surprises in the verdicts on the hypotheses, and list all of them."""
    found = verdicts.set_index("id")
    word, value = found["word"], found["value"]
    lines = []
    if word["H3"] == claims.ELSEWHERE:
        lines.append(
            "H3 is a decoder's rate on another card. [Lesson 09](09_scorecard.ipynb), which judges every "
            "statement of this specification, leaves it out, and its target in tokens a second (C-F6) too: a "
            "decoder's fixed times do not scale with the bandwidth ([02c](02c_rule.ipynb))."
        )
    if word["H4"] == claims.REFUTED and word["H4 in rows"] == claims.HOLDS:
        lines.append(
            f"H4: in realizar's layout, loads of 16 bytes a lane have {value['H4']:.2f} times the speed of "
            "4 bytes, by a kernel with a quarter of the threads; why, part 03b did not find. Its restatement "
            f"compares 16 bytes with 2, in FP16 rows as models store them: {value['H4 in rows']:.2f} times. "
            "The two rungs unroll differently too."
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
            f"E8 asks for {found['says']['E8'].rstrip('.').lower()}. The coalesced kernel has "
            f"{value['E8']:.2f} times that speed, so it is the slower one; the best has "
            f"{value['E8 by the best']:.2f} times."
        )
    if word["E10 by padding"] == claims.REFUTED:
        lines.append(
            f"E10 restated says: {found['says']['E10 by padding'].rstrip('.').lower()}. Taking them away "
            f"makes `{coalescing.PADDED}` {value['E10 by padding']:.2f} times as fast."
        )
    _folded(judged, "tests", lines)


def takeaway() -> None:
    """What to take away: the four checks."""
    display.say(
        "- Time the copy and the kernel apart, to know which of the two is slow.\n"
        "- Divide before you measure: a bar that asks for more than the memory has needs no experiment.\n"
        "- Measure the quantity that the claim names.\n"
        "- Run your test on a bad kernel. If the kernel passes, change the test."
    )


def explored(rows: Rows, here: Lab, gpu: str) -> Any:
    """The explorer of every rung by size and clock; before it, say what was recorded by each."""
    cold = rows[(rows["options"] == "") & (rows["cache"] == "cold")]
    sizes = cold.groupby("clock")["n"].agg(lambda each: sorted(set(each)))
    few = [clock for clock in sizes.index if clock != "graph" and len(sizes[clock]) == 1]
    text = "The *event* and *wall* clocks include what a call costs; realizar's mean of a thousand "
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
