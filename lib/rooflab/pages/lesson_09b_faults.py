"""What lesson 09b's page shows of the planted faults: who notices which, and which survive."""

from __future__ import annotations

import re

from rooflab import ops
from rooflab.analysis.evidence import Evidence, NoEvidence
from rooflab.pages import Opening, Rows, one_line
from rooflab.verify import mutations
from rooflab.verify.subjects import is_portable
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
    tested = int(left["reason"].str.contains(_TESTED).sum())
    if (same := len(left) - len(open_) - tested) > 0:
        answer += f" {same} of these compute the same as the original"
        answer += f", and {tested} {_other_test(tested)}." if tested else "."
    able = (
        "test a test by planting faults in what it judges",
        "say which faults results alone do not show",
        "choose shapes that a fault cannot hide in",
    )
    return answer, able, _stopped(killed)


_TESTED = r"\bhave a test\b"  # in the reason of a survivor that differs for some inputs
# The rules by kind of fault; what none has is a hand-over from a thread or a copy to another.
_WRONG_NUMBER = {"scale", "unscaled", "overwrite", "forget", "dirty", "dirty array", "rescale", "lanes"}
_WRONG_NUMBER |= {"zero", "zeros", "offsets", "nibble", "nibbles", "sign", "pair", "turned", "epsilon"}
_WRONG_NUMBER |= {"tail", "stride", "causal", "seen", "diagonal", "window", "heads"}
_WRONG_ORDER = {"barrier", "warp barrier"}
_WRONG_PLACE = {"guard", "overrun", "clamp", "leave"}
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


def _other_test(count: int) -> str:
    """Of survivors that differ for some inputs, what catches them."""
    return "is caught by a test outside the gate" if count == 1 else "are caught by tests outside the gate"


def run_facts(killed: Rows, evidence: Evidence) -> None:
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
            f"{_fastest_refused(evidence)}"
        )


_SIZES = ("format", "n", "k", "batch", "seq", "context", "heads", "kv_heads", "head_dim", "window", "causal")


def _fastest_refused(evidence: Evidence) -> str:
    """At how many recorded shapes of an operator a rung that the CPU target refuses is our fastest."""
    refused: dict[str, set[str]] = {}
    for operator, rung in ops.rungs():
        if not is_portable(rung):
            refused.setdefault(operator, set()).add(rung.name)
    parts = []
    for operator, names in refused.items():
        try:
            rows = evidence.rows(operator, operator=operator, kind="own", clock="graph")
        except NoEvidence:
            continue
        best = rows.sort_values("median_us").drop_duplicates([name for name in _SIZES if name in rows])
        if len(first := best.loc[best["impl"].isin(names), "impl"]):
            who = listed(f"`{name}`" for name in first.value_counts().index)
            parts.append(f"{len(first)} of {len(best)} shapes of `{operator}` ({who})")
    if not parts:
        return ""
    return f" On the {evidence.gpu} they hold our fastest rungs of several operators: at {listed(parts)}."


def faults_by_kind(killed: Rows) -> None:
    """Show who noticed each kind of fault first."""
    groups = {
        "a wrong number": _WRONG_NUMBER,
        "a missing barrier": _WRONG_ORDER,
        "beyond the end": _WRONG_PLACE,
    }
    what = {name: what for what, names in groups.items() for name in names}
    grouped = killed.assign(operator=killed["mutation"].map(what).fillna("a wrong hand-over"))
    rows = mutations.by_operator(grouped).set_index("operator")
    rows = rows.reindex([name for name in (*groups, "a wrong hand-over") if name in rows.index]).reset_index()
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
    display.table(rows, names, caption="Other: the launch fails, a crash, or a run without end")
    rules = grouped.groupby("operator")["fault"].unique()
    lines = [f"**{kind[0].upper()}{kind[1:]}**: {'; '.join(rules[kind])}." for kind in by.index]
    display.fold_items("The rules of each kind", lines)
    number, order = by.loc["a wrong number"], by.loc["a missing barrier"]
    outside = by.loc["beyond the end"]
    last = f" Of {outside['mutants']} accesses beyond the end it notices {outside['gate']}, the watcher "
    last += f"{outside['watcher']} more"
    last += ": results show fewer of them, as predicted" if outside["gate"] < outside["watcher"] else ""
    last += f". {outside['other']} fail at launch or do not end, and {outside['left']} survive."
    said = f"**Verdict**: of {number['mutants']} wrong numbers the gate notices {number['gate']}"
    said += f", and {number['left']} survive, with the reasons below. " if number["left"] else ". "
    said += (
        f"Of {order['mutants']} missing barriers it notices {order['gate']}: on the CPU target threads run "
        "in an order of their own, and results differ more often than predicted. "
        f"{order['watcher']} are left to the watcher."
        if order["gate"] > order["watcher"]
        else f"Of {order['mutants']} missing barriers the watcher alone notices {order['watcher']}."
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
