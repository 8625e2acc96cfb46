"""What lesson 06c's page shows: how far kernels are from exact attention, and what they do at the limits."""

from __future__ import annotations

from typing import Any

from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_06c_faults import nearness as nearness
from rooflab.pages.lesson_06c_faults import planted_faults as planted_faults
from rooflab.pages.lesson_06c_limits import HALF, errors_chart, loud_simulated
from rooflab.pages.lesson_06c_limits import beside_torch as beside_torch
from rooflab.pages.lesson_06c_limits import in_bf16 as in_bf16
from rooflab.pages.lesson_06c_limits import kept as kept
from rooflab.pages.lesson_06c_limits import limits_explained as limits_explained
from rooflab.pages.lesson_06c_limits import nearer_than_torch as nearer_than_torch
from rooflab.pages.lesson_06c_limits import one_sum as one_sum
from rooflab.pages.lesson_06c_limits import rounding_errors as rounding_errors
from rooflab.pages.lesson_06c_limits import rounding_held as rounding_held
from rooflab.pages.lesson_06c_limits import scores_tested as scores_tested
from rooflab.pages.lesson_06c_limits import two_keys as two_keys
from rooflab.pages.lesson_06c_limits import two_outliers as two_outliers
from rooflab.pages.lesson_06c_memory import memory as memory
from rooflab.pages.lesson_06c_shapes import against_allowances as against_allowances
from rooflab.pages.lesson_06c_shapes import errors_by_shape as errors_by_shape
from rooflab.pages.lesson_06c_shapes import over_limit as over_limit
from rooflab.pages.lesson_06c_shapes import source_shapes as source_shapes
from rooflab.pages.lesson_06c_shapes import who_are as who_are
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.view import diagram, display, explorer
from rooflab.words import listed

ABLE = (
    "tell a wrong kernel from one that only rounds in another order",
    "set a tolerance from the arithmetic, and say what in it is chosen",
    "test a kernel on extreme inputs: large scores, NaN, rows that see no key",
)


def opening(here: Lab, some: Rows, seq: int) -> Opening:
    """The first screen: each kernel's error and the gate's limit for it, at `seq` tokens (`some`),
    and what the gate says of the least exact kernel.
    """
    answer = "Judge an error by that of a plain computation with the same roundings."
    chart = errors_chart(some, seq, here.run["gpu"])
    once = some.dropna(subset=["error"]).set_index("impl")
    if len(once) < 2:
        return answer, ABLE, chart
    odd = str(once["error"].idxmax())
    rest = once.drop(odd)
    answer += (
        f" With {seq:,} tokens {len(rest)} of {len(once)} kernels ({who_are(once.index)}) err by at most "
    )
    answer += f"{1e3 * rest['error'].max():.2f} ‰ of a row's largest output"
    peers = rest[rest["kind"] == "peer"]["error"]
    answer += f" (libraries: up to {1e3 * peers.max():.2f} ‰)" if len(peers) else ""
    answer += f"; {odd} errs by {1e3 * once.loc[odd, 'error']:.1f} ‰"
    return f"{answer}{_by_the_gate(once.loc[odd], rest)}.", ABLE, chart


def _by_the_gate(row: Any, rest: Rows) -> str:
    """What the gate says of the error of a row, which is larger than those of the `rest`; or nothing where
    its limit is not recorded.
    """
    limit = float(row["error_budget"])
    if not limit > 0:
        return ""
    if row["error"] > limit:
        return f", and exceeds the gate's limit for its number format, {row['error'] / limit:.1f} times"
    rule = f"uses {row['error'] / limit:.0%} of its limit by the gate, {1e3 * limit:.1f} ‰"
    if row.name != "3_half2" or not limit > rest["error_budget"].max():
        return f" and is right all the same: it {rule}"
    return (
        f" and is right all the same: it adds up scores in FP16, a plain computation that does so errs by "
        f"{1e3 * limit / 2:.1f} ‰, and the gate, this course's check of every kernel, allows twice that"
    )


def units_explained() -> None:
    """Say in which units the page gives errors."""
    display.say(
        "**Units.** The gate measures in *‰ of a row's largest output*: FP16 moves a number by at most "
        f"1/2048 of itself, so rounding alone costs {1e3 * HALF:.2f} ‰ at most. Kernels are compared by "
        "*error ÷ the gate's limit*: above 1 a kernel is wrong. The source's shapes were recorded in *‰ of "
        "the RMS*, the typical output."
    )


def extreme_inputs(answers: Any, rungs: list[Any]) -> Rows:
    """Show what every kernel does with large scores, no key, NaN and repetition; its answers."""
    edges = answers("edges").set_index("impl")
    edges = edges.loc[[n for n in (*rungs, *asks.SDPA) if n in edges.index]].reset_index()
    names = {
        "impl": "Who",
        "loud": "Loud: error (‰ of the RMS)",
        "blind not zero": "Blind: not zero",
    }
    names |= {"NaN in k lost": "NaN in k: hidden", "NaN in v lost": "NaN in v: hidden"}
    names |= {"NaN in k spread": "NaN in k: spread", "NaN in v spread": "NaN in v: spread"}
    names |= {"other bits": f"Other bits in {asks.REPEATS}"}
    edges["loud"] = 1e3 * edges["loud worst_rms"]
    forms = {"loud": "{:.1f}", "other bits": "{:.0f}"}
    shares = ("NaN in k lost", "NaN in v lost", "NaN in k spread", "NaN in v spread")
    forms |= dict.fromkeys(("blind not zero", *shares), "{:.0%}")
    title = (
        "What every kernel does with them, shares of outputs; hidden: no NaN where one belongs; spread: NaN "
    )
    title += "where none belongs; blank: not possible with this kernel"
    display.table(edges, names, forms, title, folded=True)
    return edges


def extreme_inputs_explained(edges: Rows, rungs: list[Any]) -> Rows:
    """Say which kernels err on extreme inputs, and why; the rungs' errors on large scores."""
    by = edges.set_index("impl")
    own = by.loc[[n for n in by.index if n in rungs]]
    text = f"Loud scores reach {by['loudest score'].max():,.0f}. "
    loud = own["loud worst_rms"]
    if loud.max() > 3 * loud.median():
        text += f"{loud.idxmax()} errs by {loud.max() / loud.median():.0f} times as much as the median rung"
        text += _judged_loud(float(loud.max())) if loud.idxmax() == "3_half2" else ". "
    quiet = (own[["blind not zero", "NaN in k lost", "NaN in v lost", "other bits"]] == 0).all(axis=None)
    text += "No rung hides a NaN, invents a result or changes its bits. " if quiet else ""
    display.say(text.rstrip())
    return loud


def nan_spreads(edges: Rows) -> None:
    """Say with which kernels a NaN reaches queries that do not see it, with a picture, and whether that is
    acceptable.
    """
    by = edges.set_index("impl")
    text, spread = "", by[by["NaN in v spread"] > 0]
    if len(spread):
        free = [name for name in by.index if name not in spread.index]
        text += "**A NaN can spread.** A value that is NaN also reaches queries that do **not** see it, with "
        text += f"all but {', '.join(free)}" if free else "every kernel"
        text += ": such a query shares a tile with one that does, and its weight of 0 times NaN is NaN. "
        most = spread["NaN in v spread"]
        if len(most) > 1 and most.max() > 3 * most.median():
            text += f"{most.idxmax()} spreads it to {most.max():.0%} of the outputs, the others to about "
            text += f"{most.median():.0%}; why so many was not looked into. "
    wide = by[by["NaN in k spread"] > 0]
    if len(wide):
        text += f"With {', '.join(wide.index)} a NaN in a key does so too: it adds its mask to the score, "
        text += "and NaN minus infinity is NaN. "
    if text:
        display.say(text.rstrip())
        diagram.nan_leak().show()
        display.say(
            "**Acceptable?** Here, yes: a call has one prompt, and that is lost once a value in it is "
            "NaN. A kernel whose tiles hold keys of several requests must "
            "not do this: one request's NaN would spoil the answer to another."
        )


def _judged_loud(error: float) -> str:
    """Whether rung 3's error on loud inputs is that of its roundings, by a simulation on the CPU."""
    packed, _ = loud_simulated()
    share = error / (2 * packed)
    text = (
        ". **That is what its roundings explain, but coarse**: for scores that large take another rung. "
        if share <= 1
        else ". **That is more than its roundings explain.** "
    )
    return text + (
        "No limit is recorded for loud inputs. On loud inputs with the CPU's own random numbers a plain "
        f"computation with FP16 sums errs by {1e3 * packed:.0f} ‰ of the RMS; the kernel errs by "
        f"{1e3 * error:.0f}, {'less' if share <= 1 else 'more'} than twice as much. "
    )


def words_changed(answers: Any, rungs: list[Any]) -> Rows:
    """How often each kernel changes a decoder's word: its answers, in the table's order."""
    words = answers("words").set_index("impl")
    words = words.loc[[n for n in (*rungs, *asks.SDPA) if n in words.index]].reset_index()
    words["move"] = words["largest move"] / words["spread of logits"]
    return words


def every_word(words: Rows) -> None:
    """Show what each kernel changes, with what the columns mean, folded."""
    names = {"impl": "Who", "changed": "Changed", "changed though apart": "Apart"}
    names |= {"move": "Moved", "least of top 5": "Same of best 5"}
    forms = dict.fromkeys(("changed", "changed though apart", "least of top 5"), "{:.0f}")
    meant = (
        "- *Changed*: how often the decoder would choose another word.\n"
        "- *Apart*: changes where the two best logits differ by more than the kernel moved them. There must "
        "be none.\n"
        "- *Moved*: the largest change of a logit, in units of the logits' standard deviation.\n"
        "- *Same of best 5*: how many of the five best words stay, at the worst place."
    )
    display.fold_parts("Every kernel's words", [meant, (words, names, forms | {"move": "{:.4f}"})])


def words_changed_explained(words: Rows) -> None:
    """Say whether a kernel's errors change a word, which ones do, and how far logits move."""
    changed = words[words["changed"] > 0]
    apart = words[words["changed though apart"] > 0]
    most = words.loc[words["move"].idxmax()]
    count = f"{words['words'].iloc[0]:.0f} words"
    if len(apart):
        text = f"**Clear choices change with {listed(apart['impl'])}**: of {count} some change though their "
        text += "logits are apart. "
    elif len(changed):
        text = f"**No clear choice changes**: of {count} {len(words) - len(changed)} of {len(words)} kernels "
        text += "change none, and the others only between two words with nearly equal logits ("
        pairs = zip(changed["impl"], changed["changed"], strict=True)
        text += "; ".join(f"{who}: {times:.0f}" for who, times in pairs) + "). "
    else:
        text = f"**No choice changes**: of {count} none is changed by any kernel. "
    text += f"Logits move by at most {most['move']:.4f} of their standard deviation ({most['impl']})."
    usual = words["head_dim"].mode().iloc[0]
    for width, other in words[words["head_dim"] != usual].groupby("head_dim"):
        text += f" {listed(other['impl'])} ran in another decoder, whose heads are {width} wide instead of "
        text += f"{usual}; no other kernel was asked there"
        text += (
            ", so whether the kernels or the decoder make words change is not known."
            if (other["changed"].any())
            else "."
        )
    display.say(text)


def takeaway(loud: Rows) -> None:
    """What to take away, computed."""
    text = "- Compare an error with another: that of rounding alone, or that of a plain computation in the "
    text += "same number format. Twice the latter is the gate's limit.\n- Allow what the arithmetic needs. "
    text += "A tolerance wide enough for every kernel hides faults in the exact "
    text += "ones, and so may the gate's first limit.\n"
    text += f"- Test extreme inputs: there {loud.idxmax()}'s error is {loud.max() / loud.median():.0f} times "
    text += "the median rung's."
    display.say(text)


def _recorded_errors(here: Lab) -> Rows:
    """The errors of every recorded shape of the headline's heads, rung 3 left out."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and not c.options]
    cases = [c for c in cases if c.format == "fp16" and c.heads == study.HEADS and c.impl != "3_half2"]
    rows = here.measure("attention", cases)
    return rows.assign(**{"‰": 1e3 * rows["error"].astype(float)})


def _stands_for(rows: Rows) -> dict[str, list[str]]:
    """Of our rungs, then of the libraries: those whose errors differ on some shape, each with the kernels
    that err as it does, in three digits, on every shape of theirs.
    """
    keys = ["seq", "head_dim", "window", "causal"]
    held = rows[rows["error"].notna()].fillna({"window": 0})
    peers = set(held.loc[held["kind"].eq("peer"), "impl"])
    errors = {
        str(name): {tuple(row[key] for key in keys): f"{row['error']:.3g}" for _, row in group.iterrows()}
        for name, group in held.groupby("impl", sort=False)
    }
    found: dict[str, list[str]] = {}
    for name in sorted(errors, key=lambda each: (each in peers, -len(errors[each]))):
        first = next((kept for kept in found if errors[name].items() <= errors[kept].items()), None)
        found.setdefault(name if first is None else first, []).extend([] if first is None else [name])
    return found


def same_errors(here: Lab) -> None:
    """Say which kernels the explorer of errors leaves out, and why."""
    alike = {name: who for name, who in _stands_for(_recorded_errors(here)).items() if who}
    if alike:
        said = "; ".join(f"{listed(who)}, as {name}" for name, who in alike.items())
        display.fold_items(
            "Kernels that are left out too", [f"They err as another one on every shape of theirs: {said}."]
        )


def explore(here: Lab, gpu: str) -> Any:
    """The explorer of errors against float64, by contestant, width and window."""
    rows = _recorded_errors(here)
    rows = rows[rows["impl"].isin(list(_stands_for(rows)))]
    return explorer.Explorer(
        "errors",
        rows,
        x="seq",
        y="‰",
        labels={"‰": "‰ of a row's largest output"},
        controls={"impl": "Contestant", "head_dim": "Width", "window": "Window"},
        title=f"Error against float64 on {gpu}",
        start={"impl": "13_mbarrier_ring", "head_dim": 128, "window": None},
    )
