"""What lesson 06c says of the gate's limits, and how errors lie beside torch's and within them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from rooflab.lab import Lab
from rooflab.ops import attention as op
from rooflab.pages import Rows
from rooflab.pages.lesson_06c_rounding import HALF
from rooflab.studies import attention as study
from rooflab.studies import attention_work
from rooflab.view import display, plot
from rooflab.words import listed, spans

LEAST_LIMIT = 2.0**-10  # of a row's largest output: the gate allows FP16 no less
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
    parts = [("rungs " if len(numbers) > 1 else "rung ") + spans(numbers)] if numbers else []
    others = [name.removeprefix("torch.sdpa_") for name in who if not name[0].isdigit()]
    parts += ["libraries: " + ", ".join(others)] if others else []
    return "\n".join(textwrap.fill(part, _LABEL) for part in parts)


def all_but(out: Iterable[object], of: Iterable[object]) -> str:
    """Those of some kernels that are not `out`, in words: "all kernels", or "all kernels but 3_half2"."""
    names, every = [str(name) for name in out], list(of)
    if len(names) == len(every):
        return "no kernels"
    few = len(names) <= len(every) / 2
    return (
        f"all kernels but {listed(names)}"
        if few and names
        else "all kernels"
        if few
        else (f"{len(every) - len(names)} of {len(every)} kernels")
    )


def rounding_held(some: Rows, guess: dict[str, float]) -> None:
    """Show how far rungs 1, 4 and 3 are from a simulation of their roundings and from the estimates."""
    rounds = {"1_scalar": "outputs", "4_mma": "outputs, weights"}
    rounds |= {"3_half2": "outputs, weights, sums of scores"}
    found = some.drop_duplicates("impl").set_index("impl")
    names = [name for name in rounds if name in found.index]
    table = found.loc[names, ["error", "error_budget"]].reset_index(names="impl")
    table["rounds"], table["predicted"] = ([of.get(n, np.nan) for n in names] for of in (rounds, guess))
    # Half a limit is the simulation's error, but where the limit is a step of FP16; rung 1 has FP32 weights
    held = table["error_budget"].astype(float).where(table["error_budget"] > LEAST_LIMIT) / 2
    table["simulated"] = held.where(table["impl"] != "1_scalar")
    ratio = (table["error"] / table["predicted"]).dropna()
    display.say(_simulated(table.dropna(subset=["simulated", "error"])))
    reached = listed(f"{r:.0%} ({table['impl'][k]})" for k, r in ratio.items())
    text = f"**Verdict on the estimates**: {'they hold' if ratio.between(0.5, 2).all() else 'not all hold'}. "
    text += f"Measured errors come to {reached} of the estimate; a factor of two was allowed."
    display.say(text if len(ratio) else "**Verdict on the estimates**: none was measured.")
    figures = ["simulated", "error", "predicted"]
    table[figures] = 1e3 * table[figures]
    shown = {"impl": "Rung", "rounds": "Rounds to FP16", "error": "Measured (‰)"}
    shown |= {"simulated": "Simulated (‰)", "predicted": "Estimated (‰)"}
    forms = dict.fromkeys(figures, "{:.2g}")
    if len(table):
        caption = "Largest errors, ‰ of a row's largest output; 1_scalar: its FP32 weights are not simulated"
        display.table(table, shown, forms, caption)


def _simulated(rows: Rows) -> str:
    """What simulations of rungs' roundings say of their errors."""
    if rows.empty:
        return "**Verdict of the simulation**: none is recorded."
    near = (rows["error"] / rows["simulated"]).between(0.9, 1.1)
    pairs = zip(rows["impl"], rows["error"], rows["simulated"], strict=True)
    said = "; ".join(f"{who} errs by {1e3 * e:.2g} ‰, its simulation by {1e3 * s:.2g}" for who, e, s in pairs)
    text = "**Verdict of the simulation**, which is the gate's plain computation with a rung's roundings, on "
    text += f"the same inputs: {said}. "
    if near.all():
        return text + "That is consistent with the roundings that they declare."
    return f"{text}More than a tenth apart, which is unexplained: {listed(rows['impl'][~near])}."


def kept(some: Rows) -> None:
    """Say which kernels keep the gate's limit for their declared roundings."""
    display.say(_by_limit(some))


def _by_limit(some: Rows) -> str:
    """Which kernels keep the gate's limit for their declared roundings."""
    judged = some[some["error_budget"] > 0]
    out = judged[judged["error"] > judged["error_budget"]]
    text = f"**Verdict by the gate**: {all_but(out['impl'], judged['impl'])} keep the limit of their "
    text += "declared roundings" + (f"; wrong: {listed(out['impl'])}." if len(out) else ".")
    return text


def limits_explained(here: Lab, some: Rows, seq: int) -> None:
    """Say once which limit applies to whom, with the recorded limits at `seq` tokens."""
    by = some.drop_duplicates("impl").set_index("impl")["error_budget"].astype(float)
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "bf16"]
    brain = here.measure("attention", [c for c in cases if c.seq == seq]) if cases else pd.DataFrame()
    rest = by.drop("3_half2", errors="ignore")
    lines = [
        ("libraries, and all rungs but 3_half2", "outputs and weights, to FP16", rest.max()),
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
        "**Which limit applies to whom.** *Exact* is attention in float64. The *plain* computation has "
        "scores and sums in float32, no tiles, and rounds what the kernel is declared to round. The limit is "
        "twice the error of that, and no less than a step of the number format, 1/1024 for FP16:"
    )
    display.table(table, names, {"limit": "{:.1f}"}, "The gate's limits, ‰ of a row's largest output")
    _declared(float(by.get("3_half2", np.nan)), float(rest.max()), some)
    text = "1_scalar, 2_tiled and torch.sdpa_math keep weights in FP32, for which the gate has no plain "
    text += "computation: they are held to the first limit."
    if rest.max() > 2 * HALF:
        text += f" Twice their own rounding would be {2e3 * HALF:.2f} ‰: an error between the two would pass."
    display.say(text)


def _declared(own: float, first: float, some: Rows) -> None:
    """Show where rung 3's FP16 sums are declared, line by line, and say what a declaration cannot do."""
    text = next(r for r in op.LADDERS["attention"] if r.name == "3_half2").path.read_text(encoding="utf-8")
    header = " ".join(line.strip("/ ") for line in text.splitlines() if line.startswith("//"))
    says = re.search(r"[A-Z][^.]* in FP16[^.:]*", header)
    code = re.search(r"\w+ = __hfma2\(.*;", text)
    rule = inspect.getsource(attention_work.packed_fp16).strip().splitlines()[-1].strip()
    found = some.drop_duplicates("impl").set_index("impl")["error"]
    error = float(found.get("3_half2", np.nan))
    held = ""
    if error == error and first == first:
        held = f" Without it 3_half2 is held to {1e3 * first:.1f} ‰, and with an error of "
        held += f"{1e3 * error:.1f} it is {'wrong' if error > first else 'right'}."
    display.say(
        "*Declared* means: the kernel's source says so, and the gate's code names the kernel. For 3_half2:"
        f"\n\n```text\n3_half2.cu says     {says[0] if says else ''}\n"
        f"3_half2.cu does     {code[0] if code else ''}\nthe gate's code     {rule}\n```\n\n"
        "**Can a bad kernel declare its badness?** Not by itself: the gate reads this line of its own code, "
        f"not the kernel.{held} Whoever adds such a line allows more: the gate then asks only whether the "
        "kernel rounds as declared. Whether the wider limit is good enough, its user must judge."
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
    said = f"{title}, on {gpu}, {plot.dates(some)}, in thousandths of the largest output of a row "
    said += "(a query's output in a head). Grey, to the black mark: the gate's limit for a kernel's declared "
    said += "roundings. Dashed: rounding the output alone, "
    return fig, f"{said}{1e3 * HALF:.2f} ‰ at most."


def in_bf16(here: Lab, seq: int) -> Rows:
    """Say in one line how far the builds for bfloat16 err on the prompt of `seq` tokens, and their limit;
    their rows.
    """
    cases = [c for c in here.cases("attention") if c.operator == "attention" and c.format == "bf16"]
    rows = here.measure("attention", [c for c in cases if c.seq == seq]) if cases else pd.DataFrame()
    own = rows[rows["kind"].eq("own")].dropna(subset=["error"]) if len(rows) else rows
    if own.empty:
        display.say("**In bfloat16** no error is recorded at this length.")
        return rows
    limit, error = float(own["error_budget"].min()), float(own["error"].max())
    text = f"**In bfloat16** {own['impl'].nunique()} rungs err by up to {1e3 * error:.1f} ‰ on this prompt, "
    worst = float((own["error"] / own["error_budget"]).max())
    text += f"and the limit is {1e3 * limit:.1f}"
    display.say(f"{text}: " + ("all keep it." if worst <= 1 else "not all keep it."))
    return rows


def nearer_than_torch(some: Rows) -> None:
    """Say which rungs are further from float64 than every library."""
    own, peer = some[some["kind"] == "own"], some[some["kind"] == "peer"].dropna(subset=["error"])
    if len(peer):
        far, least = own[own["error"] > 1.01 * peer["error"].max()], 1e3 * peer["error"].max()
        text = f"**Beside the libraries**: the least exact of them errs by {least:.2f} ‰; "
        named = [f"{who} ({1e3 * error:.2g})" for who, error in zip(far["impl"], far["error"], strict=True)]
        text += f"further off: {listed(named)}." if named else "no rung is further off."
        display.say(text)
