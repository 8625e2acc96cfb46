"""What lesson 03e's page shows: four faulty kernels, their results, and which instrument reports them."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rooflab import ops
from rooflab.lab import Lab
from rooflab.ops import faults
from rooflab.pages import Opening, Rows
from rooflab.studies import faults as study
from rooflab.verify.subjects import portable
from rooflab.view import diagram, display, narrow, plot
from rooflab.words import listed

SANITIZERS = study.INSTRUMENTS[1:-1]  # compute-sanitizer's tools; "none" is before them, the watcher after
_SIZES = {"friendly": study.FRIENDLY, "ragged": study.UNFRIENDLY}
# What is wrong with each kernel, and the sanitizer's tool that should report it; "" for none.
EXPECTED = {
    "early_exit": ("threads without a column return before the barrier", "synccheck"),
    "half_barrier": ("one barrier is inside a condition", "synccheck"),
    "fixed_tile": ("k numbers go into a tile of 4096", "memcheck"),
    "not_zeroed": ("adds to what y held before", ""),
}
_TILE = 256  # numbers of x in half_barrier's tile, and threads of its block
_SAME = "same size"  # of a fault that does not depend on it, and runs at one
_QUIET = ("right", "silent", _SAME)  # what a test says that noticed nothing


def gathered(here: Lab) -> tuple[Rows, str]:
    """What every instrument said of every faulty kernel, and the GPU: one row a kernel, size and tool."""
    found = here.profile("faults", study.cases(), "sanitizer")
    if found.empty:
        here = display.borrowed(here, "compute-sanitizer was not run")
        found = here.profile("faults", study.cases(), "sanitizer")
    cases = [study.Faults().case(name) for name in found["case"]]
    found["fault"] = [case.impl for case in cases]
    found["tool"] = [case.options.removeprefix("tool=") for case in cases]
    found["size"] = [f"n = {case.n}, k = {case.k}" for case in cases]
    for call in ("first", "second"):
        found[call] = (
            found[f"{call}_right"].astype(str).map({"True": "right", "False": "wrong", "": "no result"})
        )
    return found, here.run["gpu"]


def _results(reports: Rows) -> pd.DataFrame:
    """What the first call gave at each size, and the second where the first was right, a row a fault."""
    plain = reports[reports["tool"] == "none"]
    first = dict(zip(zip(plain["fault"], plain["size"], strict=True), plain["first"], strict=True))
    found = pd.DataFrame(
        {
            f"{size} size": {fault: first[fault, f"n = {n}, k = {k}"] for fault, (n, k) in sizes.items()}
            for size, sizes in _SIZES.items()
        }
    )
    same = [study.FRIENDLY[str(fault)] == study.UNFRIENDLY[str(fault)] for fault in found.index]
    found.loc[same, "ragged size"] = _SAME
    later = plain[(plain["first"] == "right") & (plain["second"] != "right")].set_index("fault")["second"]
    found["second call"] = [later.get(fault, "right") for fault in found.index]
    return found


def _said(reports: Rows) -> pd.DataFrame:
    """How many reports each instrument made of each fault at the ragged size, a row a fault."""
    seen = reports[reports["tool"] != "none"].pivot(index="fault", columns="tool", values="reports")
    return seen.reindex(index=list(faults.FAULTS), columns=list(study.INSTRUMENTS[1:]))


def opening(reports: Rows, gpu: str) -> Opening:
    """The first screen: who notices which fault."""
    results, said = _results(reports), _said(reports) > 0
    wrong = ~results.isin(_QUIET)
    reported = said[list(SANITIZERS)].any(axis=1)
    every = (
        "together they find all of them"
        if (wrong.any(axis=1) | reported).all()
        else "even so, some stay unseen"
    )
    more = wrong["second call"] & ~wrong["friendly size"] & ~wrong["ragged size"]
    answer = (
        f"On the {gpu} the first result shows {wrong['friendly size'].sum()} of {len(wrong)} faulty kernels "
        f"at a friendly size and {wrong['ragged size'].sum()} at a ragged one, a second call {more.sum()} "
        f"more; compute-sanitizer reports {reported.sum()}. Run your test at both sizes and twice, and the "
        f"sanitizer as well: {every}."
    )
    able = [
        "name the input sizes that bring a mistake out",
        "choose between memcheck, racecheck, synccheck and initcheck, and know what none of them sees",
        "mend a barrier that some threads miss, a tile that is too small and a sum that is not reset",
    ]
    notices = said.replace({True: "reports", False: "silent"}).rename(columns={"watch": "watcher"})
    cells = pd.concat([results, notices], axis=1)
    title = f"Which test notices which mistake, on {gpu}"
    noticed = "; ".join(f"{fault}: {listed(row.index[~row.isin(_QUIET)])}" for fault, row in cells.iterrows())
    return answer, able, (_noticed(cells, title), f"{title}, {plot.dates(reports)}. {noticed}.")


def _noticed(cells: pd.DataFrame, title: str) -> Figure:
    """A grid of words, dark where a test notices a fault."""
    fig, ax = plot.figure(title=title, height=2.8)
    fig.set_figwidth(8.4)
    fig.set_gid(narrow.WIDE)
    for down, fault in enumerate(cells.index):
        for across, word in enumerate(cells.loc[fault]):
            quiet = word in _QUIET
            fill = "#EDEDED" if quiet else plot.COLOURS[0]
            ax.add_patch(Rectangle((across + 0.03, down + 0.06), 0.94, 0.88, color=fill, linewidth=0))
            colour = "#333333" if quiet else "white"
            ax.text(across + 0.5, down + 0.5, word, ha="center", va="center", color=colour, fontsize=8.5)
    ax.set(xlim=(0, cells.shape[1]), ylim=(len(cells), 0))
    ax.set_xticks([k + 0.5 for k in range(cells.shape[1])], [name.replace(" ", "\n") for name in cells])
    names = [f"{fault}:\n{textwrap.fill(EXPECTED[str(fault)][0], 25)}" for fault in cells.index]
    ax.set_yticks([k + 0.5 for k in range(len(cells))], names, fontsize=8)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return fig


def barriers_met() -> None:
    """Draw which barrier each thread comes to, in the kernels whose barriers some threads miss."""
    diagram.barriers_met().show()


def mistakes() -> None:
    """Show what is wrong with each kernel."""
    rows = [(fault, what) for fault, (what, _) in EXPECTED.items()]
    display.table(pd.DataFrame(rows, columns=["fault", "what"]), {"fault": "Kernel", "what": "The mistake"})


def predicted() -> None:
    """Show, folded, which tool should report each mistake."""
    rows = [(fault, tool or "none: every access is legal") for fault, (_, tool) in EXPECTED.items()]
    names = {"fault": "Kernel", "tool": "Expected to be reported by"}
    display.table(pd.DataFrame(rows, columns=list(names)), names, caption="Our prediction", folded=True)


def results(reports: Rows, gpu: str) -> None:
    """Show what the calls of every kernel gave at its friendly and its ragged size, without an instrument."""
    found = _results(reports)
    quiet = found.isin(_QUIET)
    table = pd.DataFrame({"fault": found.index})
    names = {"fault": "Fault"}
    for size, sizes in _SIZES.items():
        table[f"{size} n"] = ["{} × {}".format(*sizes[str(fault)]) for fault in found.index]
        table[size] = found[f"{size} size"].to_numpy()
        names |= {f"{size} n": f"{size.capitalize()} n × k", size: f"First result, {size}"}
    table["second"] = found["second call"].to_numpy()
    display.table(
        table, names | {"second": "Second result, at a size where the first is right"}, caption=f"On {gpu}"
    )
    by = {
        "a ragged size": found.index[quiet["friendly size"] & ~quiet["ragged size"]],
        "a second call": found.index[~quiet["second call"]],
    }
    said = [f"{how} shows {listed(who)}" for how, who in by.items() if len(who)]
    never = found.index[quiet.all(axis=1)]
    if len(never):
        said.append(f"{listed(never)} never {'shows' if len(never) == 1 else 'show'} in a result")
    if said:
        text = "; ".join(said)
        display.say(f"**{text[0].upper()}{text[1:]}.**")


def first_reports(reports: Rows, gpu: str) -> None:
    """Show the first sentence of each instrument that reports something."""
    names = {"fault": "Fault", "tool": "Instrument", "says": "First report"}
    said = reports[(reports["tool"] != "none") & (reports["reports"] > 0)].replace({"watch": "watcher"})
    display.table(said, names, caption=f"On {gpu}; the watcher on the CPU")


def judged(reports: Rows, gpu: str) -> None:
    """Say how many predictions of which sanitizer reports a fault hold, and why others don't."""
    said = _said(reports) > 0
    missed = []
    for fault, (_, tool) in EXPECTED.items():
        seen = [name for name in SANITIZERS if said.loc[fault, name]]
        if seen != [tool] * bool(tool):
            missed.append(f"**{fault}**: expected {tool or 'no report'}, got {listed(seen)}.")
    text = f"{len(EXPECTED) - len(missed)} of {len(EXPECTED)} predictions hold on the {gpu}. "
    display.say(text + " ".join(missed))
    ragged = _results(reports)["ragged size"]
    if ragged["early_exit"] == "wrong" and not said.loc["early_exit", list(SANITIZERS)].any():
        display.say(
            "**Why early_exit is silent.** Since Volta (sm_70) a barrier waits only for the threads that "
            "have not ended. Those that left early do not hang it, so synccheck has nothing to report. But "
            "they did not load their part of the tile, and the others read whatever was in shared memory "
            "before; initcheck looks at DRAM only."
        )
    if ragged["half_barrier"] == "right" and said.loc["half_barrier", "synccheck"]:
        display.say(_lucky(*study.UNFRIENDLY["half_barrier"]))
    if said.loc["early_exit", "watch"]:
        display.say(
            "**Why the watcher reports early_exit all the same.** It holds a kernel to the stricter rule: "
            "all threads of a block come to the barrier. It stops the block there, before a number is read "
            "that was never stored; that it would report as well, as *uninitialised* (lesson 00)."
        )


def _lucky(n: int, k: int) -> str:
    """Why half_barrier's result is right with one block of n columns and k rows: who waits where, and who
    stores the second tile.
    """
    text = "**Why half_barrier is right, most likely.** "
    if n % 32:
        text += f"Lanes of warp {n // 32} wait at both barriers: since Volta the lanes of a warp may part "
        text += "and wait apart, which lesson 00 leaves out. "
    text += "The GPU counts who waits, and not at which of the two barriers. "
    text += f"So the {_TILE - n} threads at barrier 2 let the {n} at barrier 1 go on, and x_tile is complete "
    text += "by then: all threads store before either barrier. "
    text += f"From here on the {_TILE - n} are a tile ahead and could overwrite numbers that the {n} still "
    text += "read. "
    rest = k - _TILE
    if 0 < rest <= n:
        text += f"But of k = {k} only {rest} numbers are left, and threads 0 to {rest - 1} store those: "
        text += f"threads with a column. **It is luck: with a k above {_TILE + n} they could.** "
    return text + "A test of results alone misses this kernel, so run a sanitizer too."


def takeaway(reports: Rows) -> None:
    """What to take away, computed."""
    results, said = _results(reports), _said(reports) > 0
    plain = reports[(reports["tool"] == "none") & (reports["first"] == "right")]
    silent = [fault for fault in said.index if not said.loc[fault, list(SANITIZERS)].any()]
    caught = ~results[["ragged size", "second call"]].isin(_QUIET).all(axis=1)
    text = f"- At some size {plain['fault'].nunique()} of {len(results)} faulty kernels give a right first "
    text += "result. One friendly call is not a test.\n"
    if silent:
        text += (
            f"- No tool of compute-sanitizer reports {listed(silent).replace(' and ', ' or ')} here. Each "
        )
    else:
        text += "- Each "
    text += (
        "tool looks for one kind of mistake.\n- The gate fills the output with NaN before it compares every "
    )
    text += f"element. By its result it refuses {listed(caught.index[caught])} at the sizes above"
    if not caught.all():
        missed = caught.index[~caught]
        text += f", and lets {listed(missed)} pass"
        if said.loc[missed, "watch"].all():
            text += ". `rooflab gate` stops what passes: it runs every rung that the CPU target can run "
            text += f"({len(portable())} of {len(list(ops.rungs()))}) under the watcher"
    display.say(f"{text}.")
