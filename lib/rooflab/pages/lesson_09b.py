"""What lesson 09b's page shows: planted faults, a checklist of numeric and repeat tests, and machine code."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab import claims
from rooflab.claims import scorecard
from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.pages.lesson_09b_faults import changed as changed
from rooflab.pages.lesson_09b_faults import faults_by_kind as faults_by_kind
from rooflab.pages.lesson_09b_faults import mutant_list as mutant_list
from rooflab.pages.lesson_09b_faults import mutants_by_operator as mutants_by_operator
from rooflab.pages.lesson_09b_faults import mutants_counted as mutants_counted
from rooflab.pages.lesson_09b_faults import opening as opening
from rooflab.pages.lesson_09b_faults import run_facts as run_facts
from rooflab.pages.lesson_09b_faults import survivors as survivors
from rooflab.studies import faults as planted
from rooflab.studies import static
from rooflab.verify import mutations, suite
from rooflab.view import display
from rooflab.view.filter_list import Board
from rooflab.words import counted, listed


def numeric_checks() -> Rows:
    """Show the specification's numeric checks on every FP32 rung; all trials of the suite."""
    trials = suite.read()
    numeric = trials[trials["item"].str.startswith("D")].copy()
    numeric["held"] = numeric["value"] <= numeric["bound"]
    sums = (
        numeric.groupby(["item", "quantity", "bound"], sort=False)
        .agg(rungs=("held", "size"), held=("held", "sum"), worst=("value", "max"))
        .reset_index()
    )
    names = {
        "item": "Item",
        "quantity": "Quantity",
        "worst": "Worst rung",
        "bound": "Bound",
        "held": "Rungs that hold",
        "rungs": "Of",
    }
    forms = {"worst": "{:.3g}", "bound": "{:.3g}"}
    display.table(sums[sums["item"] != "D6 unit"], names, forms, "The ten numeric checks", folded=True)
    return trials


def impossible_bound(trials: Rows) -> None:
    """Say which bound FP32 cannot keep."""
    unit = trials[trials["item"] == "D6 unit"].iloc[0]
    text = f"D6 asks for an error under {unit['bound']:g} on a product whose largest output is so large that "
    text += f"neighbouring FP32 numbers lie {unit['value']:g} apart: FP32 cannot keep it. Against a bound "
    text += "that FP32 can keep, twice the error of sums in the order of k, it is judged as *D6 possible*."
    display.say(text if unit["value"] > unit["bound"] else "D6's bound can be written in FP32 here.")


def repeated_on_cpu(trials: Rows) -> None:
    """Show determinism and isolation on the CPU target."""
    again = trials[trials["item"].isin(["F1", "F2", "F2 back", "F5"])].copy()
    again["held"] = again["value"] <= again["bound"]
    rows = again.groupby("item", sort=False).agg(n=("held", "size"), held=("held", "sum")).reset_index()
    says = {
        "F1": f"the last rung of each operator, {suite.RUNS} launches on the CPU: one result",
        "F2": "after another input the result is right",
        "F2 back": "and the first input gives its first bits again",
        "F5": "wrong inputs are refused, and harm nothing",
    }
    rows["says"] = rows["item"].map(says)
    rows = rows.set_index("item").reindex([i for i in says if i in set(rows["item"])]).reset_index()
    named = {"item": "Item", "says": "What", "held": "Holds", "n": "Of"}
    display.table(rows, named, caption="The kernels on the CPU", folded=True)


def repeated_on_gpu(evidence: Any, gpu: str) -> None:
    """Show determinism, memory and refusals of the decoder on the GPU."""
    asked = {
        ("repeated", "distinct", "runs"): "F1: distinct results of a prompt, generated greedily {} times",
        ("sampled", "distinct", "runs"): "F1: distinct results of it, sampled {} times with one seed",
        ("long", "not numbers", "steps"): "F3: logits that are not numbers after {} steps",
        ("long", "bytes gone", "steps"): "F4: bytes of GPU memory gone after {} steps",
        ("refused", "changed afterwards", "wrong inputs"): "generations changed by {} refused inputs",
    }
    rows = []
    for (question, quantity, often), says in asked.items():
        says = says.format(_times(evidence, question, often))
        try:
            values = evidence.answer("decode", question, quantity)
            rows.append({"says": says, "value": f"{values.max():,.0f}"})
        except claims.NoEvidence as missing:
            rows.append({"says": says, "value": f"not recorded: {missing}"})
    named = {"says": "The decoder of lesson 08", "value": gpu}
    display.table(pd.DataFrame(rows), named, caption=f"The decoder on the {gpu}", folded=True)


def _times(evidence: Any, question: str, quantity: str) -> str:
    """How often a question was asked, in digits; "many" where that was not recorded."""
    try:
        return f"{evidence.answer('decode', question, quantity).min():,.0f}"
    except claims.NoEvidence:
        return "many"


def not_zeroed_instruments(here: Lab) -> None:
    """Show what each instrument says of a kernel that does not zero its output."""
    asked = [case for case in planted.cases() if case.impl == "not_zeroed"]
    faults = here.profile("faults", asked, "sanitizer")
    faults["tool"] = faults["case"].str.extract(r"tool=(\w+)")[0]
    names = {
        "tool": "Instrument",
        "reports": "Reports",
        "first_right": "First call right",
        "second_right": "Second call right",
    }
    faults = faults.replace({"True": "yes", "False": "no", True: "yes", False: "no"})
    tools = listed(each for each in faults["tool"] if each not in ("none", "watch"))
    watched = "watch" in set(faults["tool"])
    who = f"Neither compute-sanitizer ({tools}) nor the watcher" if watched else f"None of {tools}"
    silent = not pd.to_numeric(faults["reports"]).any()
    if silent:
        display.say(
            f"{who} reports it, because a kernel may read what the last call left. Only the second answer "
            "shows the bug."
        )
    display.table(faults, names, caption="What each instrument says" if silent else "", folded=silent)


def instructions_by_rung() -> None:
    """Show the instructions that the checklist asks for, by rung."""
    facts = static.read_sass()
    facts["operator"] = facts["case"].str.partition("/")[0]
    facts["rung"] = facts["case"].str.partition(" ")[0]
    facts["arch"] = facts["case"].str.extract(r"arch=(\w+)")[0]
    show = facts[facts["operator"].isin(["gemv", "gemv_rows", "mmq", "attention"])]
    show = show[show["arch"] == show.groupby(["operator", "rung"])["arch"].transform("max")]
    names = {
        "rung": "Rung",
        "shared_memory": "Shared",
        "barriers": "Barriers",
        "shuffles": "Shuffles",
        "tensor_products": "Tensor",
        "loads_16b": "Wide loads",
    }
    display.table(
        show,
        names,
        {name: "{:.0f}" for name in list(names)[1:]},
        "Instructions in each rung's code, for the newest architecture of three",
        folded=True,
    )


def points_by_section(evidence: Any) -> tuple[Rows, Rows]:
    """Show the points of each section; the verdicts on the items that have any, and the totals."""
    verdicts = scorecard.board((item for item in claims.stated() if item.points), evidence)
    stated, best = scorecard.tally(verdicts), scorecard.tally(verdicts, "best")
    both = stated[["section", "what", "of", scorecard.PASS, scorecard.FAIL, scorecard.OPEN]].copy()
    both["best"] = best[scorecard.PASS]
    total = both[["of", scorecard.PASS, scorecard.FAIL, scorecard.OPEN, "best"]].sum()
    both = pd.concat([both, pd.DataFrame([{"section": "", "what": "in all", **total}])])
    names = {
        "section": "Letter",
        "what": "Section",
        "of": "Points",
        scorecard.PASS: "Pass",
        scorecard.FAIL: "Fail",
        scorecard.OPEN: "Not ours to test",
        "best": "Pass, best kernel",
    }
    display.table(both, names)
    return verdicts, total


def marks(verdicts: Rows) -> None:
    """Show which marks the points reach, and what they lack."""
    rows = []
    for r, top in zip(*[scorecard.marks(verdicts, c).itertuples() for c in ("verdict", "best")], strict=True):
        row = {"mark": r.mark, "asked": f"{r.points} of {r.of}"}
        for column, found in (("design", r), ("best", top)):
            names = ", ".join(found.lacking[:4]) + (", ..." if len(found.lacking) > 4 else "")
            lacks = f"; lacks {len(found.lacking)} items ({names})" if found.lacking else ""
            row[column] = f"{found.reached}{lacks}"
        rows.append(row)
    names = {
        "mark": "Mark",
        "asked": "Asks for",
        "design": "The source's design",
        "best": "The course's best",
    }
    caption = "The marks: points, and items that a mark names and that do not pass"
    display.table(pd.DataFrame(rows), names, caption=caption, folded=True)


def point_list(verdicts: Rows, evidence: Any) -> Board:
    """The list of points, to filter."""
    points = verdicts[verdicts["points"] > 0].copy()
    points["outcome"] = points["verdict"].map(scorecard.outcome)
    points["section"] = (
        points["id"].str.slice(2, 3) + ", " + points["id"].str.slice(2, 3).map(scorecard.SECTIONS)
    )
    measured = points["measured"].map(lambda text: f"; measured {text}" if text else "")
    tested = points["tested"] + measured
    counted = points["points"].map(lambda n: f"{n} point{'s' * (n > 1)}. ")
    restated = points["verdict"].isin([claims.RESCALED, claims.DIRECTION])
    rescaled = points["id"].where(restated).map(lambda name: _as_stated(name, evidence), na_action="ignore")
    rescaled = rescaled.fillna("")
    limits = (" " + points["beside"]).where(points["beside"] != "", "")
    points["note"] = counted + tested + "." + rescaled + limits
    controls = {"section": "Section", "outcome": "Outcome"}
    return Board(
        "points",
        points,
        controls=controls,
        word="outcome",
        lesson="lesson",
        start={"outcome": scorecard.FAIL},
        what="items",
    )


def _as_stated(name: str, evidence: Any) -> str:
    """What was measured against an item's own bar, of an item whose restated bar is met."""
    own = [claims.judge(test, evidence) for test in claims.get(name).tests if not test.restated]
    said = "; ".join(f"{each.tested}; measured {each.measured}" for each in own if each.value == each.value)
    return f" This bar is rescaled; as stated the item fails{f' ({said})' if said else ''}."


def takeaway(dead: int, killed: Rows, open_: Rows) -> None:
    """What to take away, computed."""
    holes = counted(len(open_), "hole is", "holes are") if len(open_) else "no hole is"
    lines = [
        f"- {dead} of {len(killed)} faults planted in {mutations.attacked()} are noticed; {holes} known.",
        "- Results alone do not show every missing barrier. A watcher must check the accesses.",
        "- Ragged shapes are not enough: choose shapes that are ragged at each of the kernel's boundaries.",
    ]
    display.say("\n".join(lines))
