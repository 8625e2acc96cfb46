"""What lesson 06c's page shows: how far kernels are from exact attention, and what they do at the limits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Opening, Rows
from rooflab.pages.lesson_06c_faults import nearness as nearness
from rooflab.pages.lesson_06c_faults import planted_faults as planted_faults
from rooflab.pages.lesson_06c_limits import all_but, all_of, errors_chart
from rooflab.pages.lesson_06c_limits import beside_torch as beside_torch
from rooflab.pages.lesson_06c_limits import in_bf16 as in_bf16
from rooflab.pages.lesson_06c_limits import kept as kept
from rooflab.pages.lesson_06c_limits import limits_explained as limits_explained
from rooflab.pages.lesson_06c_limits import nearer_than_torch as nearer_than_torch
from rooflab.pages.lesson_06c_limits import rounding_held as rounding_held
from rooflab.pages.lesson_06c_memory import memory as memory
from rooflab.pages.lesson_06c_rounding import loud_simulated
from rooflab.pages.lesson_06c_rounding import rounding_errors as rounding_errors
from rooflab.pages.lesson_06c_rounding import sums_of_scores as sums_of_scores
from rooflab.pages.lesson_06c_shapes import source_test as source_test
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
    answer += f" With {seq:,} tokens {all_but([odd], once.index)} err by at most "
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
        return f", and exceeds the gate's limit for its declared roundings, {row['error'] / limit:.1f} times"
    rule = f"uses {row['error'] / limit:.0%} of its limit by the gate, {1e3 * limit:.1f} ‰"
    if row.name != "3_half2" or not limit > rest["error_budget"].max():
        return f" and is right by the gate: it {rule}"
    return (
        f" and is right by the gate: it adds up scores in FP16, a plain computation that does so errs by "
        f"{1e3 * limit / 2:.1f} ‰, and the gate, this course's check of every kernel, allows twice that"
    )


def tested(some: Rows, rungs: list[Any]) -> None:
    """Say which kernels are tested, with those of the rungs that cannot do the first chart's shape."""
    missing = [name for name in rungs if name not in set(some.dropna(subset=["error"])["impl"])]
    text = (
        f"**Who is tested.** *All kernels* means part 06's {len(rungs)} rungs and kernels of libraries, as "
    )
    text += "far as they can do a test's shape"
    text += f": at the first chart's, all but {listed(missing)}." if missing else "."
    text += (
        " Faults are planted in a computation on the CPU. The tests after them take our rungs, and of the "
    )
    text += "libraries torch's alone."
    display.say(text)


def yardsticks() -> None:
    """Show the units in which the page gives errors, each with what it is used for."""
    rows = [
        (
            "‰ of a row's largest output",
            "errors, where no other yardstick is named; a row is a query's output in a head",
        ),
        ("error ÷ the gate's limit", "planted faults; above 1 a kernel is wrong"),
        (
            "‰ of the RMS, the typical output",
            "tests of the source, SharpInference, where this course's kernels began; large scores",
        ),
        ("error ÷ what rounding the output costs", "the source's shapes on the GPU"),
    ]
    table = pd.DataFrame(rows, columns=["unit", "use"])
    display.table(table, {"unit": "Yardstick", "use": "Used for"}, {}, "The yardsticks")


def extreme_inputs(answers: Any, rungs: list[Any]) -> tuple[Rows, Rows]:
    """Say what kernels do with large scores, no key, NaN and repetition; the answers, and the rungs' errors
    on large scores.
    """
    edges = answers("edges").set_index("impl")
    edges = edges.loc[[n for n in (*rungs, *asks.SDPA) if n in edges.index]].reset_index()
    own = edges[edges["impl"].isin(rungs)].set_index("impl")
    loud = own["loud worst_rms"]
    most = edges["loudest score"].max()
    lines = [f"**Loud**: scores up to {most:,.0f}{_overflow(float(most))}. {_on_loud(loud)}"]
    lines += [
        "**Blind**: a query whose window lies past the cache sees no key. It must give zeros, not 0/0. "
    ]
    lines[-1] += _all_right(own["blind not zero"])
    lines += ["**NaN** in one key or value: every query that sees it must give NaN. "]
    lines[-1] += _all_right(own[["NaN in k lost", "NaN in v lost"]].max(axis=1))
    lines += [f"**Again**: the same call {asks.REPEATS} times must give the same bits. "]
    lines[-1] += _all_right(own["other bits"])
    display.say("\n".join(f"- {line}" for line in lines))
    return edges, loud


def every_extreme(edges: Rows) -> None:
    """Show, folded, what every kernel does with extreme inputs."""
    names = {"impl": "Who", "loud": "Loud: error (‰ of the RMS)", "blind not zero": "Blind: not zero"}
    names |= {"NaN in k lost": "NaN in k: hidden", "NaN in v lost": "NaN in v: hidden"}
    names |= {"NaN in k spread": "NaN in k: spread", "NaN in v spread": "NaN in v: spread"}
    names |= {"other bits": f"Other bits in {asks.REPEATS} calls"}
    shares = [name for name in names if name.startswith(("NaN", "blind"))]
    forms = {"loud": "{:.1f}", "other bits": "{:.0f}"} | dict.fromkeys(shares, "{:.0%}")
    meant = (
        "Shares are of outputs, one for each query and head. *Hidden*: of those that see the NaN, how many "
    )
    meant += "are not NaN. *Spread*: of the queries before the NaN, which do not see it, how many are NaN. "
    meant += "Blank: not possible with this kernel."
    table = edges.assign(loud=1e3 * edges["loud worst_rms"])
    far = _how_far(edges.set_index("impl")["NaN in v spread"].loc[lambda share: share > 0])
    display.fold_parts("Every kernel on extreme inputs", [f"{meant} {far}".strip(), (table, names, forms)])


def _overflow(most: float) -> str:
    """What FP32 makes of the exponential of a score."""
    return (
        ", whose exponentials overflow FP32 unless the largest is subtracted first"
        if most > np.log(np.finfo(np.float32).max)
        else ""
    )


def _all_right(wrong: Any) -> str:
    """Which rungs do right, by how often each does not."""
    bad = [str(name) for name, share in wrong.items() if share > 0]
    return f"Wrong: {listed(bad)}." if bad else "All rungs do."


def _on_loud(loud: Rows) -> str:
    """Which rung errs most on large scores, and what is known of the reason."""
    worst = str(loud.idxmax())
    if not loud.max() > 3 * loud.median():
        return f"No rung errs by more than {loud.max() / loud.median():.1f} times the median rung's error."
    text = f"{worst} errs by {loud.max() / loud.median():.0f} times as much as the median rung"
    return text + (_judged_loud(float(loud.max()), float(loud.median())) if worst == "3_half2" else ".")


def nan_spreads(edges: Rows) -> None:
    """Say with which kernels a NaN reaches queries that do not see it, with a picture, and whether that is
    acceptable.
    """
    by = edges.set_index("impl")
    text, spread = "", by[by["NaN in v spread"] > 0]
    if len(spread):
        text += "**A NaN can spread.** A value that is NaN also reaches queries that do **not** see it, with "
        text += all_but([name for name in by.index if name not in spread.index], by.index)
        text += ": such a query shares a tile with one that does, and its weight of 0 times NaN is NaN. "
        by_key = [name for name in ("1_scalar", "2_tiled", "3_half2") if name in by.index]
        if by_key and not set(by_key) & set(spread.index):
            text += f"In {listed(by_key)} a warp goes through the keys that its query sees, and no others. "
    wide = by[by["NaN in k spread"] > 0]
    if len(wide):
        text += f"With {', '.join(wide.index)} a NaN in a key spreads too: it adds its mask to the score, "
        text += "and NaN minus infinity is NaN. "
    if text:
        display.say(text.rstrip())
        diagram.nan_leak().show()
        display.say(
            "**Acceptable?** Here, yes: a call has one prompt, and that is lost once a value in it is "
            "NaN. A kernel whose tiles hold keys of several requests must "
            "not do this: one request's NaN would spoil the answer to another."
        )


def _keys_a_tile(rung: Any, macros: dict[str, int]) -> int:
    """The keys of a rung's tile, by its macros or, where it has one size, by its source; or 0."""
    fixed = re.search(r"\bKEYS = (\d+)[,;]", rung.path.read_text(encoding="utf-8"))
    return macros.get("KEYS") or (int(fixed[1]) if fixed else 0)


def _how_far(spread: Rows) -> str:
    """Which kernels spread a NaN further than others do, and why: by the first key of the tile that holds it,
    where that accounts for the shares.
    """
    far = spread[spread > 3 * spread.median()] if len(spread) else spread
    if far.empty:
        return ""
    text = f"{listed(far.index)} {'spreads' if len(far) == 1 else 'spread'} a NaN in a value to "
    text += f"{spread.max():.0%} of these, others to about {spread.median():.0%}. "
    own = {case.impl: case for case in asks.edges() if case.kind == "own" and case.impl in spread.index}
    tiles = {name: _keys_a_tile(*study.own_rung(case)[:2]) for name, case in own.items()}
    case = next(iter(own.values()), None)
    if case is None:
        return text
    place, share = case.seq - 10, 1 / case.kv_heads
    tiles = {n: k for n, k in tiles.items() if k and abs(place % k / place * share - spread[n]) < 0.01}
    if not set(tiles) & set(far.index):
        return text
    text += (
        f"The NaN is at key {place}, in one of {case.kv_heads} heads of keys, and queries from its tile's "
    )
    text += "first key on read it. "
    for first in sorted({place - place % keys for keys in tiles.values()}):
        group = [name for name, keys in tiles.items() if place - place % keys == first]
        sizes = listed(sorted({tiles[name] for name in group}))
        count = "all" if not first else f"{place - first} of the"
        text += f"In tiles of {sizes} keys ({all_of(group)}) that is key {first}: {count} {place} earlier "
        text += "queries. "
    if "torch.sdpa_math" in far.index:
        text += "torch.sdpa_math has no tiles: it multiplies whole rows of weights. "
    return f"{text}Rungs 15 to 17 choose their tile by the prompt, and this one has only {case.seq} tokens."


def _judged_loud(error: float, median: float) -> str:
    """What a simulation on the CPU says of rung 3's error on loud inputs, beside the median rung's."""
    packed, plain = loud_simulated()
    explained = error / median <= 2 * packed / plain
    text = ": **too coarse for scores that large; take another rung there.** Its FP16 sums "
    text += "can explain that" if explained else "alone do not explain that"
    text += f": on other loud inputs, on the CPU, they make a plain computation err by {packed / plain:.0f} "
    text += "times as much as FP32 sums do."
    return text + (" To round as declared is not always enough." if explained else "")


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
        "- *Apart*: changes where the two best logits differ by more than twice the largest move there; only "
        "a NaN can cause one.\n"
        "- *Moved*: the largest change of a logit, in units of the logits' standard deviation.\n"
        "- *Same of best 5*: how many of the five best words stay, at the worst place."
    )
    display.fold_parts("Every kernel's words", [meant, (words, names, forms | {"move": "{:.4f}"})])


def words_changed_explained(words: Rows) -> None:
    """Say how many words each kernel's errors change and how far they move logits, and what that tells."""
    changed, apart = words[words["changed"] > 0], words[words["changed though apart"] > 0]
    pairs = zip(changed["impl"], changed["changed"], strict=True)
    some = listed(f"{who} changes {times:.0f}" for who, times in pairs)
    rest = len(words) - len(changed)
    some += f", the other {rest} kernels none" if rest else ""
    some = some if len(changed) else "no kernel changes any"
    text = f"**Of {words['words'].iloc[0]:.0f} words {some}; "
    text += f"logits move by at most {words['move'].max():.4f} of their standard deviation** "
    text += f"({words.loc[words['move'].idxmax(), 'impl']}). {' '.join(_other_decoders(words))}"
    text = f"{text.rstrip()}\n\nA word can change only where the two best logits differ by less than twice "
    text += "the largest move. So a small move already implies that no clear choice changes"
    text += f", except by a NaN: {listed(apart['impl'])}. " if len(apart) else ". "
    display.say(f"{text}No planted fault ran here: how many words one would change is not known.")


def _other_decoders(words: Rows) -> list[str]:
    """Which kernels ran in another decoder than most, and that no other kernel was asked there."""
    usual = words["head_dim"].mode().iloc[0]
    return [
        f"{listed(other['impl'])} ran in another decoder, with heads {width} wide instead of {usual}, and no "
        "other kernel ran there"
        + (": whether kernel or decoder makes words change is not known." if other["changed"].any() else ".")
        for width, other in words[words["head_dim"] != usual].groupby("head_dim")
    ]


def takeaway(edges: Rows, loud: Rows) -> None:
    """What to take away, computed."""
    text = (
        "- Compare an error with that of a plain computation with the same roundings. The gate's limit is "
        "twice that, and at least a step of the number format.\n"
        "- Allow what the arithmetic needs. A tolerance wide enough for every kernel hides faults in "
        "the exact ones.\n"
    )
    text += f"- Test extreme inputs. On large scores {loud.idxmax()}'s error is "
    text += f"{loud.max() / loud.median():.0f} times the median rung's."
    if (edges["NaN in v spread"] > 0).any():
        text += " A weight of 0 does not stop a NaN, so it can reach queries that do not see it."
    display.say(text)


def _recorded_errors(here: Lab) -> Rows:
    """The errors of every recorded shape of the headline's heads, rung 3 left out."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and not c.options]
    cases = [c for c in cases if c.format == "fp16" and c.heads == study.HEADS and c.impl != "3_half2"]
    rows = here.measure("attention", cases)
    blank = dict.fromkeys(("median_us", "q1_us", "q3_us", "predicted_us"), float("nan"))  # errors, no times
    return rows.assign(**{"‰": 1e3 * rows["error"].astype(float)}, **blank)


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
