"""What lesson 06c predicts of rounding, and how errors lie beside torch's and within the gate's limits."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.records.case import Case
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display, plot
from rooflab.words import listed

HALF = 2.0**-11  # the most that rounding to FP16 moves a number, over the number
LEAST_LIMIT = 2.0**-10  # of a row's largest output: the gate allows FP16 no less
_PRODUCT = 64.0  # of two outliers, each four times a random number of about 2
_LABEL = 30  # letters of a line beside a chart


def _alike(errors: pd.Series, limits: pd.Series) -> tuple[list[str], list[float], list[float]]:
    """Kernels whose errors and limits are equal in three digits as one bar: all their names, the error and
    the limit; the largest error on top.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, error in errors.sort_values(ascending=False, kind="stable").items():
        groups.setdefault((f"{error:.3g}", f"{limits[name]:.3g}"), []).append(str(name))
    return (
        [all_of(who) for who in groups.values()],
        [float(error) for error, _ in groups],
        [float(limit) for _, limit in groups],
    )


def all_of(who: list[str]) -> str:
    """The names of some kernels in few words, on lines of a chart's label: a single one in full, several
    rungs by their numbers, those that follow each other as "4 to 9".
    """
    if len(who) == 1:
        return who[0]
    numbers = sorted(int(name.partition("_")[0]) for name in who if name[0].isdigit())
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    parts = [("rungs " if len(numbers) > 1 else "rung ") + ", ".join(said)] if numbers else []
    others = [name.removeprefix("torch.sdpa_") for name in who if not name[0].isdigit()]
    parts += ["libraries: " + ", ".join(others)] if others else []
    return "\n".join(textwrap.fill(part, _LABEL) for part in parts)


def rounding_errors(width: int = 128, keys: int = 4096) -> dict[str, float]:
    """Show what rounding costs, by what is rounded, for heads of `width` over `keys` keys; the largest error
    that is predicted for rungs 1, 4 and 3, over the number.
    """
    one = f"{1e3 * HALF:.2f}"
    why = f"{one} at most, ÷ √3 on average"
    rows = [("outputs rounded to FP16", "an output", HALF / np.sqrt(3), HALF, why)]
    why = f"as one weight's, {one} and ÷ √3: of many keys errors partly cancel, and so do values"
    rows += [("weights rounded to FP16", "an output", HALF / np.sqrt(3), HALF, why)]
    why = f"{one} ÷ √3 a rounding; × √{width} roundings; ÷ √{width}, a score's scale; largest: two outliers"
    sums = _of_outliers(width)
    rows += [("scores added up in FP16 (rung 3)", "a score, absolute", HALF / np.sqrt(3), sums, why)]
    rows += [("scores, weights and sums in FP32", "each", 2.0**-24, 2.0**-24, "FP32 keeps 24 bits")]
    guess = pd.DataFrame(rows, columns=["what", "of", "typical", "largest", "why"])
    guess[["typical", "largest"]] *= 1e3
    names = {"what": "Rounded", "of": "Error of", "typical": "Typical (‰)"}
    names |= {"largest": "Largest, about (‰)"}
    names |= {"why": "By"}
    for name in ("typical", "largest"):
        guess[name] = [_two_digits(value) for value in guess[name]]
    caption = f"What rounding leaves; heads of {width}, {keys:,} keys"
    display.table(guess, names, {}, caption)
    return {"1_scalar": HALF, "4_mma": 2 * HALF, "3_half2": 2 * HALF + sums}


def _of_outliers(width: int) -> float:
    """About how far a score is off whose largest product is that of two outliers, as rung 3 adds it up."""
    step = float(np.spacing(np.float16(_PRODUCT))) / 2
    return width // attention_work.SUMS * step / float(np.sqrt(width))


def two_outliers(width: int = 128) -> None:
    """Say what the product of two outliers costs a score of rung 3."""
    apart, rounds = float(np.spacing(np.float16(_PRODUCT))), width // attention_work.SUMS
    display.say(
        "**The largest error of a score, estimated.** It comes where two outliers meet. The numbers are "
        "normal with a spread of 1, so some of many outliers are four times a number of about 2, and the "
        f"product of two such is about {_PRODUCT:.0f}. From there on FP16 numbers lie {apart:g} apart, and a "
        "rounding takes up to half of that. The sum that it is in is rounded "
        f"{rounds} times: {rounds} × {apart / 2:.3f} ÷ √{width} = {_of_outliers(width):.4f}. (A product "
        f"of {2 * _PRODUCT:.0f} or more would cost twice that, and is rarer.)"
    )


def two_keys(width: int = 128) -> None:
    """Show how an error of a score reaches an output, by a query that sees two keys."""
    off = _of_outliers(width)
    scores, values = np.array([[1.0, 1.0], [1.0 + off, 1.0]]), np.array([3.0, -1.0])
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    outputs = weights @ values
    lines = ["         scores            weights             output = 3 × first - second"]
    for name, score, weight, output in zip(("exact", "rung 3"), scores, weights, outputs, strict=True):
        line = f"{name:<7}  {score[0]:.4f}  {score[1]:.4f}    {weight[0]:.5f}  {weight[1]:.5f}"
        lines.append(f"{line}    {output:.4f}")
    text = "\n".join(lines)
    moved = abs(outputs[1] / outputs[0] - 1)
    display.say(
        "**From a score to an output.** A query sees two keys with equal scores, whose values are 3 and -1. "
        f"The first score is off by {off:.4f}:\n\n```text\n{text}\n```\n\n"
        f"The output is off by {1e3 * moved:.1f} ‰. An error of one score moves the output by that "
        "error × the key's weight × the distance of its value from the output: here "
        f"{off:.4f} × 0.5 × (3 - 1). The example is picked to pass an error on as it is: so we take about "
        f"{1e3 * off:.1f} ‰ as the size of the largest. It is no bound: the query's other scores are off "
        "too, and values may lie farther apart.\n\n"
        "**The estimate for a rung adds up the largest errors of its roundings.** "
        f"Rung 1 rounds outputs ({1e3 * HALF:.2f} ‰); rung 4 weights too ({2e3 * HALF:.2f}); rung 3 sums of "
        f"scores as well: {1e3 * (2 * HALF + off):.1f} ‰."
    )


def _two_digits(value: float) -> str:
    """A figure in two digits without a power of ten."""
    return np.format_float_positional(value, 2, unique=False, fractional=False, trim="-")


def one_sum(numbers: Sequence[tuple[float, float]] = ((1.328125, 0.765625), (0.703125, 1.078125))) -> None:
    """Show one FP16 sum of rung 3, step by step: each product that comes, and what the rounding takes."""
    total, whole = np.float16(0), 0.0
    lines = [f"{'product':<30}  {'sum':<8}   {'in FP16':<8}   off by"]
    for a, b in numbers:
        product = float(np.float16(a)) * float(np.float16(b))
        exact, whole = float(total) + product, whole + product
        total = np.float16(exact)
        comes = f"{float(np.float16(a)):.6f} × {float(np.float16(b)):.6f} = {product:.6f}"
        lines.append(f"{comes:<30}  {exact:.6f}   {float(total):.6f}   {float(total) - exact:+.6f}")
    text = "\n".join(lines)
    off = float(total) - whole
    display.say(f"```text\n{text}\n```\n\nThe sum is {whole:.6f}; this one is off by {off:+.6f}.")


def loud_simulated() -> tuple[float, float]:
    """The largest error, in RMS of the outputs, of the plain computations with FP16 sums of scores and with
    FP32 sums, on loud inputs with random numbers of the CPU's.
    """
    case = next(case for case in asks.edges() if case.impl == "3_half2")
    shape = study.shape_of(case)

    def half(x: Any) -> Any:
        return x.astype(np.float16).astype(np.float32)

    with ops.on("cpu"):
        q, k, v = attention_work.operands(shape)
        loud = (q.astype(np.float32) * asks.LOUD).astype(np.float16)
        expected = attention_work.exact(loud, k, v, shape)
        rms = np.sqrt((expected**2).mean())
        packed, plain = (
            half(attention_work.exact(loud, k, v, shape, half, packed=way)) for way in (True, False)
        )
    return float(abs(packed - expected).max() / rms), float(abs(plain - expected).max() / rms)


def scores_tested(width: int = 128, tokens: int = 256) -> None:
    """Add up scores of random inputs as rung 3 does, on the CPU, and say how far they are off beside what
    the table predicts.
    """
    shape = study.shape_of(study.ladder(width, tokens)[0])
    with ops.on("cpu"):
        q, k, _ = attention_work.operands(shape)
    query, keys = q[:, 0].astype(np.float32), k[:, 0].astype(np.float32)
    exact = query.astype(float) @ keys.T.astype(float)
    off = abs(attention_work.packed_scores(query, keys) - exact) / np.sqrt(width)
    typical, largest = float(np.sqrt((off**2).mean())), float(off.max())
    worst = np.unravel_index(int(off.argmax()), off.shape)
    product = float(abs(query[worst[0]] * keys[worst[1]]).max())
    most = _of_outliers(width)
    display.say(
        f"**Test** on the CPU, {off.size:,} scores of such inputs: typically off by {typical:.5f}, predicted "
        f"{HALF / np.sqrt(3):.5f}; the largest error is {largest:.4f}, predicted about {most:.4f}. The "
        f"largest product in that score is {product:.0f}"
        + ("." if largest <= most else ": larger than was assumed.")
    )


def rounding_held(some: Rows, guess: dict[str, float]) -> None:
    """Show whether errors stay within those predicted, how far rung 3 is from a simulation of its sums, and
    the gate's limits.
    """
    rounds = {"1_scalar": "outputs", "4_mma": "outputs, weights"}
    rounds |= {"3_half2": "outputs, weights, sums of scores"}
    found = some.drop_duplicates("impl").set_index("impl")
    packed = float(found["error_budget"].get("3_half2", np.nan)) / 2
    if not 2 * packed > LEAST_LIMIT:  # then the limit is not twice what the simulation errs by
        packed = np.nan
    names = [name for name in rounds if name in found.index]
    table = found.loc[names, ["error", "error_budget"]].reset_index(names="impl")
    table["rounds"], table["predicted"] = ([of.get(n, np.nan) for n in names] for of in (rounds, guess))
    table["simulated"] = [packed if name == "3_half2" else np.nan for name in names]
    ratio = (table["error"] / table["predicted"]).dropna()
    within = table["impl"][ratio.index][ratio <= 1.02]
    beyond = [f"{table['impl'][k]} errs by {r:.1f} times as much" for k, r in ratio.items() if r > 1.02]
    figures = ["predicted", "simulated", "error", "limit"]
    table["limit"] = table["error_budget"]
    table[figures] = 1e3 * table[figures]
    shown = {"impl": "Rung", "rounds": "Rounds to FP16", "predicted": "Estimated largest (‰)"}
    shown |= {"simulated": "Simulated (‰)", "error": "Measured (‰)", "limit": "The gate's limit (‰)"}
    forms = dict.fromkeys(figures, "{:.2g}")
    if len(table):
        display.table(table, shown, forms, "Verdict on the predicted errors, ‰ of a row's largest output")
    said = [f"errors are no larger than estimated with {listed(within)}"] if len(within) else []
    text = f"**Verdict on the predictions**: {'; '.join([*said, *beyond]) or 'none was measured'}."
    if packed == packed:
        text += _simulated(float(found["error"]["3_half2"]), packed)
    display.say(text)


def _simulated(error: float, packed: float) -> str:
    """What a simulation of rung 3's sums says of its error."""
    text = " 3_half2 is also *simulated*: the plain computation that the gate takes adds up scores in the "
    text += f"same FP16 sums, on the same inputs. That errs by {1e3 * packed:.1f} ‰ of a row's largest "
    text += f"output, the kernel by {1e3 * error:.1f}. "
    if 0.9 < error / packed < 1.1:
        text += "So the kernel rounds as it is thought to. "
    else:
        text += "The two differ by more than a tenth, which is unexplained. "
    return text.rstrip()


def kept(some: Rows) -> None:
    """Say which kernels keep the gate's limit for their format."""
    display.say(_by_limit(some))


def _by_limit(some: Rows) -> str:
    """Which kernels keep the gate's limit for their format."""
    judged = some[some["error_budget"] > 0]
    out = judged[judged["error"] > judged["error_budget"]]
    text = f"**Verdict by the gate**: {len(judged) - len(out)} of {len(judged)} kernels keep the limit of "
    text += "their format" + (f"; wrong: {listed(out['impl'])}." if len(out) else ".")
    own = judged[(judged["impl"] == "3_half2") & judged["error"].le(judged["error_budget"])]
    others = judged[judged["impl"] != "3_half2"]["error_budget"]
    if len(own) and len(others) and own["error"].iloc[0] > others.max():
        text += " 3_half2 is right only as a kernel whose sums are FP16: in one that promises FP32 sums the "
        text += "same error would be a fault."
    return text


def limits_explained(here: Lab, some: Rows, seq: int) -> None:
    """Say once which limit applies to whom, with the recorded limits at `seq` tokens."""
    by = some.drop_duplicates("impl").set_index("impl")["error_budget"].astype(float)
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "bf16"]
    brain = here.measure("attention", [c for c in cases if c.seq == seq]) if cases else pd.DataFrame()
    rest = by.drop("3_half2", errors="ignore")
    lines = [
        ("rungs but 3_half2, and libraries", "outputs and weights, to FP16", rest.max()),
        ("3_half2", "these, and sums of scores, to FP16", by.get("3_half2", np.nan)),
        ("builds for bfloat16", "outputs and weights, to bfloat16", np.nan),
    ]
    if len(brain) and brain["error_budget"].notna().any():
        lines[-1] = (*lines[-1][:2], float(brain["error_budget"].max()))
    table = pd.DataFrame(lines, columns=["who", "rounds", "limit"])
    table["limit"] *= 1e3
    names = {"who": "Kernels", "rounds": "Their plain computation rounds"}
    names |= {"limit": f"Limit, {seq:,} tokens (‰)"}
    display.say(
        "**Which limit applies to whom.** A kernel's limit is twice the error of a plain computation on the "
        "same inputs, and no less than 1/1024, a step of FP16. What that computation rounds goes by what the "
        "kernel's source declares. There are three:"
    )
    display.table(table, names, {"limit": "{:.1f}"}, "The gate's limits, ‰ of a row's largest output")
    display.say(
        "1_scalar, 2_tiled and torch.sdpa_math keep weights in FP32. They are held to the first limit all "
        "the same, which is wider than they need."
    )


def beside_torch(here: Lab, seq: int) -> Rows:
    """The rows of the ladder's prompt of `seq` tokens, 128 wide, in FP16: one a contestant."""
    cases = [c for c in here.cases("attention") if c.seq == seq and c.operator == "attention"]
    cases = [c for c in cases if c.heads == study.HEADS and not c.window]
    cases = cases or study.ladder(128, seq, device=here.sized)
    rows = here.measure("attention", cases)
    rows = rows[~rows["options"].fillna("").str.contains("shared_kv|queries=8|index=")]
    return rows[rows["head_dim"].eq(128) & rows["format"].eq("fp16")].drop_duplicates("impl")


def errors_chart(some: Rows, seq: int, gpu: str) -> tuple[Any, str]:
    """The chart of errors against float64 of `some` rows, with what the gate allows, and its caption."""
    title = f"Error against float64, {seq} tokens, 128 wide"
    limits = 1e3 * some.set_index("impl")["error_budget"].astype(float)
    names, values, allowed = _alike(1e3 * some.set_index("impl")["error"], limits)
    fig, ax = plot.figure("‰ of a row's largest output", title=title, height=1.2 + 0.34 * len(names))
    ax.barh(range(len(names)), values, height=0.5, color=plot.COLOURS[0], zorder=2)
    ax.set_yticks(range(len(names)), names, fontsize=8.5)
    ax.set_ylim(len(names) - 0.5, -0.5)
    for place, (value, limit) in enumerate(zip(values, allowed, strict=True)):
        words, at = f"{value:.2g}", max(value, 0.0)
        if limit == limit:
            ax.barh(place, limit, height=0.8, color="0.9", zorder=1)
            ax.vlines(limit, place - 0.4, place + 0.4, color="black", linewidth=2, zorder=3)
            words, at = f"{value:.2g}, limit {limit:.2g}", max(value, limit)
        words_at = {"va": "center", "fontsize": 8.5, "textcoords": "offset points"}
        ax.annotate(words, (at, place), (6, 0), **words_at)
    ax.axvline(1e3 * HALF, color="black", linewidth=1, linestyle="--", zorder=3)
    ends = [each for each in (*values, *allowed) if each == each]
    ax.set_xlim(0, 1.22 * max(ends, default=1.0))
    said = (
        f"{title}, on {gpu}, {plot.dates(some)}, in thousandths of each row's largest output. Grey, to the "
    )
    said += "black mark: the gate's limit for a kernel's number format. Dashed: rounding the output alone, "
    return fig, f"{said}{1e3 * HALF:.2f} ‰ at most."


def _held_to(exact: Rows, half: float) -> str:
    """Why the most exact kernels are held to the limit of FP16 weights, and what that lets pass."""
    limit = float(exact["error_budget"].max())
    own = 2 * half
    if not limit > own or exact["error"].max() > half:
        return ""
    return (
        f" The gate still allows them {1e3 * limit:.1f} ‰, the limit of FP16 weights. Twice their own "
        f"rounding would be {1e3 * own:.2f} ‰; they keep that too, but an error between the two would pass."
    )


def _tiles_differ(own: Rows) -> str:
    """What differs between Hopper's rungs, which round alike, where their errors differ: keys of a tile, and
    when outputs are rescaled.
    """
    rows = own[own["impl"].isin(op.HOPPER)].dropna(subset=["error"])
    keys = {str(row["impl"]): study.own_rung(Case.from_row(row))[1].get("KEYS") for _, row in rows.iterrows()}
    rows = rows.assign(keys=rows["impl"].map(keys)).dropna(subset=["keys"])
    if rows["keys"].nunique() < 2 or rows["error"].nunique() < 2:
        return ""
    said = [f"{count:.0f} keys in {listed(group['impl'])}" for count, group in rows.groupby("keys")]
    text = f"Hopper's rungs round the same numbers, but in other tiles ({'; '.join(said)}), and from rung "
    text += "11 on a row's weights may be relative to an earlier largest score ([06b](06b_wide.ipynb)). Both "
    return f"{text}change which way a weight rounds.{_same_tile(rows)}"


def _same_tile(rows: Rows) -> str:
    """What two Hopper rungs with tiles of one size, one with the late rescale and one without, tell of the
    reason for different errors.
    """
    old = rows[rows["impl"] == "9_wgmma"]
    for _, first in old.iterrows():
        later = rows[rows["keys"].eq(first["keys"]) & rows["impl"].ne(first["impl"])]
        if later.empty:
            continue
        second = later.iloc[0]
        two = f"{1e3 * first['error']:.2f} and {1e3 * second['error']:.2f} ‰"
        text = f" {first['impl']} and {second['impl']} have tiles of one size, and err by {two}"
        if f"{first['error']:.3g}" == f"{second['error']:.3g}":
            return f"{text}: alike, so here the late rescale changes nothing."
        return (
            f"{text}. So the tile is not what sets these two apart. The late rescale can: of what else "
            "differs between them, packing and who copies, neither touches a row's numbers."
        )
    return " No two of them differ in one of these alone, so which it is is not recorded."


def in_bf16(here: Lab, seq: int) -> None:
    """Say in one line how far the builds for bfloat16 err on the prompt of `seq` tokens, and their limit."""
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "bf16"]
    rows = here.measure("attention", [c for c in cases if c.seq == seq]) if cases else pd.DataFrame()
    own = rows[rows["kind"].eq("own")].dropna(subset=["error"]) if len(rows) else rows
    if own.empty:
        display.say("**In bfloat16** no error is recorded at this length.")
        return
    limit, error = float(own["error_budget"].min()), float(own["error"].max())
    text = f"**In bfloat16**, which keeps 8 bits, {own['impl'].nunique()} rungs err by up to "
    text += f"{1e3 * error:.1f} ‰ on this prompt; the plain computation, with "
    text += f"weights and outputs in bfloat16, by {1e3 * limit / 2:.1f}, "
    worst = float((own["error"] / own["error_budget"]).max())
    worst = float((own["error"] / own["error_budget"]).max())
    text += f"and the limit is {1e3 * limit:.1f} ‰"
    display.say(f"{text}: " + ("all keep it." if worst <= 1 else "not all keep it."))


def nearer_than_torch(some: Rows, half: float) -> None:
    """Say which rungs are no further from float64 than torch's backends."""
    own, peer = some[some["kind"] == "own"], some[some["kind"] == "peer"]
    text = ""
    if len(peer):
        as_good = own[own["error"] <= 1.01 * peer["error"].max()]
        text += f"Of the {len(own)} rungs that do this shape {len(as_good)} are no further from float64 "
        text += "than torch's least exact "
        text += f"backend ({1e3 * peer['error'].max():.2f} ‰)"
        far = own[own["error"] > 1.01 * peer["error"].max()]
        text += f". Further away: {', '.join(far['impl'])}." if len(far) else "."
        exact = some[some["error"] <= 1.01 * some["error"].min()]
        text += (
            f" The smallest error, {1e3 * exact['error'].min():.2f} ‰, is that of {', '.join(exact['impl'])}"
        )
        if exact["error"].max() <= half:
            text += ": they keep weights in FP32 and round only the output, for which *What rounding leaves* "
            text += f"predicts up to {1e3 * half:.2f} ‰"
        text += "." + _held_to(exact, half)
    display.say(text)
    tiles = _tiles_differ(own)
    if tiles:
        display.fold_parts("Why Hopper's rungs do not all err alike", [tiles])
