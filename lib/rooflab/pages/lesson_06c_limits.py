"""What lesson 06c predicts of rounding, and how errors lie beside torch's and within the gate's limits."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd

from rooflab.lab import Lab
from rooflab.pages import Rows
from rooflab.studies import attention as study
from rooflab.view import display, plot
from rooflab.words import listed

HALF = 2.0**-11  # the most that rounding to FP16 moves a number, over the number
_LEAST_LIMIT = 2.0**-10  # of a row's largest output: the gate allows FP16 no less
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
    that is predicted for rungs 1 and 4, and for rung 3 with its scores' typical one, over the number.
    """
    products = max(1, width // 64)
    scores = HALF * np.sqrt(products / 3)
    one = f"{1e3 * HALF:.2f}"
    rows = [("outputs rounded to FP16", HALF / np.sqrt(3), HALF, f"{one} at most, ÷ √3 on average")]
    why = f"{one} at most; ÷ √3 on average; errors of {keys:,} keys partly cancel: ÷ √{keys:,}"
    rows += [("weights rounded to FP16", HALF / np.sqrt(3 * keys), HALF, why)]
    why = f"sums of size 1: {one} ÷ √3 for each addition, {products} of either sign: × √{products}"
    rows += [(f"scores in FP16 sums of {products} products (rung 3)", scores, np.nan, why)]
    rows += [("scores, weights and sums in FP32", 2.0**-24, 2.0**-24, "FP32 keeps 24 bits")]
    guess = pd.DataFrame(rows, columns=["what", "typical", "largest", "why"])
    guess[["typical", "largest"]] *= 1e3
    names = {"what": "Rounded", "typical": "Typical (‰)", "largest": "Largest, about (‰)"}
    names |= {"why": "By"}
    forms = dict.fromkeys(("typical", "largest"), "{:.2g}")
    display.table(guess, names, forms, f"Of the number itself; heads of {width}, {keys:,} keys")
    return {"1_scalar": HALF, "4_mma": 2 * HALF, "3_half2": HALF + scores}


def rounding_held(some: Rows, guess: dict[str, float]) -> None:
    """Show whether the errors of rungs 1, 4 and 3 stay within those predicted and within the gate's limits,
    and whether rung 3's is that of a plain computation in its format.
    """
    rounds = {"1_scalar": "outputs", "4_mma": "outputs, weights"}
    rounds |= {"3_half2": "outputs, sums of scores (of size 1)"}
    found = some.drop_duplicates("impl").set_index("impl")
    names = [name for name in guess if name in found.index]
    table = found.loc[names, ["error", "error_budget"]].reset_index(names="impl")
    table["rounds"], table["predicted"] = ([of[n] for n in names] for of in (rounds, guess))
    table["ratio"] = table["error"] / table["predicted"]
    table["held"] = ["yes" if ratio <= 1.02 else "no" for ratio in table["ratio"]]
    table[["predicted", "error", "limit"]] = 1e3 * table[["predicted", "error", "error_budget"]]
    shown = {"impl": "Rung", "rounds": "Rounds to FP16", "predicted": "Predicted (‰)"}
    shown |= {"error": "Measured (‰)", "ratio": "Measured ÷ predicted", "held": "No larger than predicted"}
    shown |= {"limit": "The gate's limit (‰)"}
    forms = dict.fromkeys(("predicted", "error", "limit"), "{:.2g}") | {"ratio": "{:.1f}"}
    if len(table):
        display.table(table, shown, forms, "Verdict on the predicted errors, ‰ of a row's largest output")
    beyond, within = (table[table["held"] == word] for word in ("no", "yes"))
    said = [f"the prediction holds for {listed(within['impl'])}"] if len(within) else []
    said += [f"{row['impl']} errs by {row['ratio']:.1f} times as much" for _, row in beyond.iterrows()]
    text = f"**Verdict on the predictions**: {'; '.join(said) or 'none was measured'}."
    packed = table[(table["impl"] == "3_half2") & (table["held"] == "no")]
    if len(packed):
        text += _packed_explained(packed.iloc[0])
    display.say(f"{text}\n\n{_by_limit(some)}")


def _packed_explained(row: Any) -> str:
    """Why rung 3's error exceeds its prediction, and whether that is its format's doing."""
    text = " That prediction took sums of size 1, and their error grows with their size."
    if row["error_budget"] > _LEAST_LIMIT:
        plain = row["limit"] / 2
        text += f" A plain computation with the same sums errs by {plain:.1f} ‰, {row['impl']} by "
        text += f"{row['error']:.1f} ‰: "
        alike = row["error"] < 1.1 * plain
        text += (
            "the format's error, not a fault of the kernel." if alike else "more than its format explains."
        )
    return text


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


def beside_torch(here: Lab, seq: int) -> Rows:
    """The rows of the ladder's prompt of `seq` tokens, 128 wide, in FP16: one a contestant."""
    cases = [c for c in here.cases("attention") if c.seq == seq and c.operator == "attention"]
    cases = [c for c in cases if c.heads == study.HEADS and not c.window]
    cases = cases or study.ladder(128, seq, device=here.sized)
    rows = here.measure("attention", cases)
    rows = rows[~rows["options"].fillna("").str.contains("shared_kv|queries=8|index=")]
    return rows[rows["head_dim"].eq(128) & rows["format"].eq("fp16")].drop_duplicates("impl")


def errors_beside_torch(here: Lab, seq: int, gpu: str) -> Rows:
    """Draw errors against float64 beside torch's, and what the gate allows; the rows drawn."""
    some = beside_torch(here, seq)
    title = f"Error against float64, {seq} tokens, 128 wide"
    limits = 1e3 * some.set_index("impl")["error_budget"].astype(float)
    names, values, allowed = _alike(1e3 * some.set_index("impl")["error"], limits)
    fig, ax = plot.figure("‰ of a row's largest output", title=title, height=1.2 + 0.34 * len(names))
    plot.bars(ax, names, values, "‰", ("rounding alone, at most", 1e3 * HALF, "‰"))
    for place, (value, limit) in enumerate(zip(values, allowed, strict=True)):
        if limit == limit:
            ax.barh(place, limit, height=0.8, color="0.88", zorder=1)
            # Beside the grey bar, past the number of a short blue one.
            at, past = max(limit, value), 5 if value > 0.4 * max(values) else 34
            words = {"va": "center", "fontsize": 8.5, "color": "0.35"}
            ax.annotate(f"limit {limit:.1f}", (at, place), (past, 0), textcoords="offset points", **words)
    ends = [each for each in (*values, *allowed) if each == each]
    ax.set_xlim(0, 1.22 * max(ends, default=1.0))
    said = f"{title}, on {gpu}, {plot.dates(some)}, in thousandths of each row's largest output. Grey: the "
    plot.show(fig, f"{said}gate's limit for a kernel's number format.")
    return some


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
            text += ": they keep weights in FP32 and round only the output, for which the first table "
            text += f"predicts up to {1e3 * half:.2f} ‰"
        text += "."
    display.say(text)
