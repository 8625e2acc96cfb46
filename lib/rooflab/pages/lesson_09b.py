"""What lesson 09b's page shows: planted faults, a checklist of numeric and repeat tests, and machine code."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from rooflab import claims, ops
from rooflab.claims import scorecard
from rooflab.lab import Lab
from rooflab.pages import Opening, Rows, one_line
from rooflab.studies import faults as planted
from rooflab.studies import static
from rooflab.verify import mutations, suite
from rooflab.view import diagram, display
from rooflab.view.filter_list import Board
from rooflab.words import counted, listed


def opening(killed: Rows) -> Opening:
    """The first screen: how many planted faults are noticed, and by what."""
    left = killed[killed["killed"] == ""]
    open_ = left[mutations.is_open(left)]
    dead, wrong = len(killed) - len(left), int((killed["killed"] == "gate").sum())
    answer = f"Of {len(killed)} faults planted in {mutations.attacked()} the gate notices {wrong} by wrong "
    answer += f"results, and a failed launch, a time limit or the watcher {dead - wrong} more; "
    answer += f"{len(left) - len(open_)} survive for a written reason"
    answer += f", and {len(open_)} without one." if len(open_) else "."
    same = (~left["reason"].str.contains(_TESTED)).sum() - len(open_)
    answer += f" {same} of these compute the same as the original." if same > 0 else ""
    able = (
        "test a test by planting faults in what it judges",
        "say which faults results alone do not show",
        "choose shapes that a fault cannot hide in",
    )
    return answer, able, _stopped(killed)


_TESTED = r"\bhave a test\b"  # in the reason of a survivor that differs for some inputs
_WRONG_NUMBER = {"scale", "overwrite", "forget", "zero", "zeros", "nibble", "nibbles", "sign", "pair"}
_WRONG_ORDER = {"barrier", "warp barrier"}
# The rules whose faults an instrument is there for.
_TYPICAL = {"The gate compares results": _WRONG_NUMBER, "The watcher checks each access": _WRONG_ORDER}
_INSTRUMENTS = {  # with the verdicts that are theirs
    "The launch fails or never ends": ("launch", "crash", "time", "compiler"),
    "The gate compares results": ("gate",),
    "The watcher checks each access": ("watcher",),
}


_WHY = {  # what the CPU says of a launch that fails, in words
    "divergent barrier": "a thread waits for the rest of its warp, which never comes",
    "inactive lane": "a thread asks for the value of a lane that does not take part",
    "endless wait": "a thread waits for a value that no other writes",
}


def _stopped(killed: Rows) -> diagram.Drawing:
    """Who stops how many mutants, each with an example: the shortest line of a kind that is its own to
    notice.
    """
    found = []
    for name, verdicts in _INSTRUMENTS.items():
        mine = killed[killed["killed"].isin(verdicts)]
        if len(mine):
            wanted = _TYPICAL.get(name, set())
            one = min(
                mine.itertuples(),
                key=lambda row: (row.mutation not in wanted, not row.mutant, len(row.code), row.code),
            )
            why = _WHY.get(one.says, "")
            found.append(diagram.Instrument(name, len(mine), one.code, one.mutant or "nothing", why))
    left = killed[killed["killed"] == ""]
    open_ = int(mutations.is_open(left).sum())
    says = f"{open_} of them a hole" if open_ else "for each a reason is written"
    return diagram.passed_on(len(killed), found, says)


def run_facts(killed: Rows) -> None:
    """The facts of the run, in one line, and what vouches for the rungs without planted faults."""
    portable, every = mutations.portable(), len(list(ops.rungs()))
    facts = {
        "Mutants tried": len(killed),
        "Rules that made them": killed["mutation"].nunique(),
        "Rungs attacked": f"{len(portable)} of {every}",
        "Operators attacked": len(mutations.OPERATORS),
        "Where": "the kernels' own sources, compiled for the CPU, no GPU",
    }
    one_line(facts)
    if every > len(portable):
        display.say(
            f"The other {every - len(portable)} rungs need instructions of one generation, such as Hopper's "
            "`wgmma` and TMA, which the CPU target refuses. No fault is planted in them. They pass the gate "
            "on a GPU, and tests run most of their sources on the CPU with these instructions emulated."
        )


def faults_by_kind(killed: Rows) -> None:
    """Show who noticed each kind of fault first."""
    wrong_place = {"guard", "overrun", "clamp", "leave"}
    groups = {
        "a wrong number": _WRONG_NUMBER,
        "a missing barrier": _WRONG_ORDER,
        "beyond the end": wrong_place,
    }
    what = {name: what for what, names in groups.items() for name in names}
    grouped = killed.assign(operator=killed["mutation"].map(what).fillna("other"))
    rows = mutations.by_operator(grouped).set_index("operator")
    rows = rows.reindex([name for name in (*groups, "other") if name in rows.index]).reset_index()
    usual = grouped.loc[grouped["operator"] == "other", "fault"].value_counts().index[:2]
    rows["other"] += rows["launch"]
    rows["left"] = rows["equivalent"] + rows["open"]
    names = {
        "operator": "Fault",
        "mutants": "Mutants",
        "gate": "Gate",
        "watcher": "Watcher",
        "other": "Other",
        "left": "Survive",
    }
    by = rows.set_index("operator")
    rows["operator"] = rows["operator"].replace("other", f"of other rules, such as: {'; '.join(usual)}")
    display.table(rows, names, caption="Other: the launch fails, a crash, or a run without end")
    number, order = by.loc["a wrong number"], by.loc["a missing barrier"]
    outside = by.loc["beyond the end"]
    last = f" Of {outside['mutants']} accesses beyond the end it notices {outside['gate']}, the watcher "
    last += f"{outside['watcher']} more"
    last += ": results show fewer of them, as predicted" if outside["gate"] < outside["watcher"] else ""
    last += f". {outside['other']} fail at launch or do not end, and {outside['left']} survive."
    said = (
        f"**Verdict**: of {number['mutants']} wrong numbers the gate notices {number['gate']}. Of "
        f"{order['mutants']} missing "
        f"barriers it notices {order['gate']}: on the CPU target threads run in an order of their own, and "
        "results "
        f"differ more often than predicted. {order['watcher']} are left to the watcher."
        if order["gate"] > order["watcher"]
        else f"**Verdict**: of {number['mutants']} wrong numbers the gate notices {number['gate']}; of "
        f"{order['mutants']} missing barriers the watcher alone notices {order['watcher']}."
    )
    display.say(said + last)


def mutants_by_operator(killed: Rows) -> None:
    """Show who noticed each operator's mutants first."""
    table = mutations.by_operator(killed)
    table["other"] += table["launch"]
    columns = {
        "operator": "Operator",
        "mutants": "Mutants",
        "gate": "Gate",
        "watcher": "Watcher",
        "other": "Other",
        "equivalent": "Explained",
        "open": "Open",
    }
    display.table(
        table,
        columns,
        caption="By operator and who noticed first; explained: its reason is below; open: a hole",
        folded=True,
    )


def mutants_counted(killed: Rows) -> tuple[Rows, Rows, int]:
    """Say how many mutants are killed: the survivors, the open ones among them, the number killed."""
    left = killed[killed["killed"] == ""]
    open_ = left[mutations.is_open(left)]
    dead = len(killed) - len(left)
    text = f"**{dead} of {len(killed)} mutants are killed** ({dead / len(killed):.0%}), "
    share = (killed["killed"] == "gate").sum()
    text += f"{share} by wrong results alone. {len(left) - len(open_)} survive; each reason is below. "
    if len(open_):
        text += f"**{len(open_)} survive that a GPU could tell apart: known holes of this gate.**"
    display.say(text)
    return left, open_, dead


def changed(code: str, mutant: str, beside: int = 5, most: int = 70) -> str:
    """A line of code and its mutant, "before → after", without what both begin and end with except for
    `beside` words; a side longer than `most` letters is cut.
    """
    if not mutant:
        return f"{code if len(code) <= most else code[:most] + '…'} → nothing"
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (code, mutant))
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    room = min(len(a), len(b)) - first
    ends = zip(reversed(a), reversed(b), strict=False)
    last = min(next((i for i, (x, y) in enumerate(ends) if x != y), room), room)
    start = max(0, first - 2 * beside)
    sides = []
    for words in (a, b):
        end = min(len(words), len(words) - last + 2 * beside)
        text = "".join(words[start:end]).strip()
        text = f"{'…' if start else ''}{text}{'…' if end < len(words) else ''}"
        sides.append(text if len(text) <= most else f"{text[:most]}…")
    return " → ".join(sides)


def mutant_list(killed: Rows) -> Board:
    """The list of mutants, to filter."""
    shown = killed.assign(
        name=killed["operator"] + "/" + killed["rung"],
        word=killed["killed"].replace({"": "survives", "launch": "fault at launch"}),
    )
    pairs = zip(shown["code"], shown["mutant"].fillna(""), strict=True)
    shown["text"] = shown["fault"] + ": " + [changed(*pair) for pair in pairs]
    shape = shown["shape"].str.replace(r"\b1 tokens\b", "1 token", regex=True)  # as it was recorded
    shape = shape.map(lambda s: f"at {s}: " if s else "")
    shown["note"] = shape + shown["says"].where(shown["killed"] != "", shown["reason"])
    some = shown.groupby(["operator", "mutation"], sort=False).head(1)
    controls = {"operator": "Operator", "word": "Killed by"}
    return Board(
        "mutants",
        some,
        controls=controls,
        head="name",
        word="word",
        text="text",
        start={"operator": "int4"},
        what="mutants, one of each rule and operator",
    )


def survivors(left: Rows) -> None:
    """List the surviving mutants, each with its reason."""
    lines = []
    for r in left.itertuples():
        why = r.reason[:1].upper() + r.reason[1:] if r.reason else "**No reason yet**"
        lines.append(f"`{r.operator}/{r.rung}`, {r.fault}: `{r.code[:90]}`. {why}.")
    if lines:
        known = left[(left["reason"] != "") & (left["mutant"].fillna("") != "")]
        if len(known):
            one = known.loc[known["code"].str.len().idxmin()]
            display.say(
                f"For example, `{one['operator']}/{one['rung']}`: `{changed(one['code'], one['mutant'])}`. "
                f"{one['reason'][:1].upper()}{one['reason'][1:]}."
            )
        display.fold_items(f"The {counted(len(lines), 'survivor')}, each with its reason", lines)
    else:
        display.say("No mutant survives.")


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
        "F1": "the last rung of each operator, 100 launches: one result",
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
        ("repeated", "distinct"): "distinct results of a prompt, generated greedily again and again",
        ("sampled", "distinct"): "distinct results of it, sampled with one seed",
        ("long", "bytes gone"): "bytes of GPU memory gone after many steps",
        ("long", "not numbers"): "logits that are not numbers after them",
        ("refused", "changed afterwards"): "generations changed by refused inputs",
    }
    rows = []
    for (question, quantity), says in asked.items():
        try:
            values = evidence.answer("decode", question, quantity)
            rows.append({"says": says, "value": f"{values.max():,.0f}"})
        except claims.NoEvidence as missing:
            rows.append({"says": says, "value": f"not recorded: {missing}"})
    named = {"says": "The decoder of lesson 08", "value": gpu}
    display.table(pd.DataFrame(rows), named, caption=f"The decoder on the {gpu}", folded=True)


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
    """Show the points of each section; all verdicts and the totals."""
    verdicts = scorecard.board(claims.stated(), evidence)
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
