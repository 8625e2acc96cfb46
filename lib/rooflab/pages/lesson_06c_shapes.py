"""What lesson 06c shows of the source's shapes: its allowances, and every kernel beside the gate's limit."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rooflab import ops
from rooflab.analysis import attention as analysis
from rooflab.pages import Rows
from rooflab.pages.lesson_06c_limits import HALF, LEAST_LIMIT, all_of
from rooflab.studies import attention as study
from rooflab.studies import attention_checks as asks
from rooflab.studies import attention_work
from rooflab.view import display, plot
from rooflab.words import counted

FP16_SUMS = "3_half2"  # the rung that adds up scores in FP16


class Inputs(NamedTuple):
    """One of the source's shapes with random numbers of the CPU's: exact outputs, their RMS, and the gate's
    limits in units of a row's largest output, for sums of scores in FP32 and in FP16.
    """

    words: str
    shape: study.Shape
    q: Any
    k: Any
    v: Any
    expected: Any
    rms: float
    limits: tuple[float, float]

    def error(self, out: Any) -> float:
        """The largest error of an output as the gate takes it: in units of its row's largest exact output."""
        unit = abs(self.expected).max(axis=-1, keepdims=True)
        return float((abs(out.astype(float) - self.expected) / unit).max())


@functools.cache
def on_cpu() -> tuple[Inputs, ...]:
    """Every shape of the source's, computed here."""
    found = []
    for case in asks.tolerance():
        if case.impl != FP16_SUMS:
            continue
        shape = study.shape_of(case)
        with ops.on("cpu"):
            q, k, v = attention_work.operands(shape)
            expected = attention_work.exact(q, k, v, shape)
            plain = [_half(attention_work.exact(q, k, v, shape, _half, packed)) for packed in (False, True)]
        rms = float(np.sqrt((expected**2).mean()))
        given = Inputs(analysis.in_words(case), shape, q, k, v, expected, rms, (0.0, 0.0))
        first, second = (max(2 * given.error(each), LEAST_LIMIT) for each in plain)
        found.append(given._replace(limits=(first, second)))
    return tuple(found)


def _half(x: Any) -> Any:
    """Numbers rounded to FP16."""
    return x.astype(np.float16).astype(np.float32)


def share(found: Rows) -> pd.Series:
    """Of each row: its error over twice what rounding the exact output costs on its shape. NaN for rung 3,
    which adds up scores in FP16 and so may err by more.
    """
    limit = 2 * found.groupby("config")["rounding"].transform("max")
    return (found["worst_rms"] / limit).where(found["impl"] != FP16_SUMS)


def over_limit(found: Rows, gpu: str) -> None:
    """Draw each kernel's error over twice what rounding the output costs, on each of the source's shapes, and
    say who stays below.
    """
    found = found[found["impl"] != FP16_SUMS]
    shares = share(found)
    over = shares.groupby(found["impl"]).max()
    title = "Error ÷ twice what rounding the output costs"
    alike = _agreeing(found)
    fig, ax = plot.figure("times", title=title, height=1.0 + 0.42 * len(alike))
    for place, (_, errors) in enumerate(alike):
        equal = errors.round(2).groupby(errors.round(2))
        high = equal.cumcount() - (equal.transform("size") - 1) / 2
        ax.plot(errors, place - 0.075 * high, "o", color=plot.COLOURS[0], markersize=4)
    ax.set_yticks(range(len(alike)), [all_of(who) for who, _ in alike], fontsize=8.5)
    ax.set_ylim(len(alike) - 0.5, -0.5)
    ax.axvline(1.0, color="black", linewidth=1.4, zorder=1)
    ax.set_xlim(0, max(1.1, 1.05 * float(over.max())))
    plot.show(
        fig,
        f"{title}, on {gpu}: a dot for each of the source's {found['config'].nunique()} shapes that a kernel "
        "can do. Kernels whose dots are equal where both can do a shape share a line.",
    )
    display.say(
        f"{_kept(over)} The gate's own limits, by row, are not recorded for these shapes; this stands in for "
        f"them. {FP16_SUMS} is left out: its FP16 sums cost more."
    )


def _kept(over: pd.Series) -> str:
    """Which kernels err by less than twice what rounding costs on the source's shapes."""
    out = over[over > 1]
    text = (
        f"**{len(over) - len(out)} of {len(over)} kernels** ({who_are(over.index)}) **err by less than twice "
    )
    text += "what rounding the output costs, on every shape**"
    return text + (f"; beyond it: {', '.join(out.index)}." if len(out) else ".")


def who_are(impls: Any) -> str:
    """Kernels as so many rungs and so many of the libraries'."""
    own = sum(str(name)[0].isdigit() for name in impls)
    parts = [counted(own, "rung")] if own else []
    return " and ".join([*parts, f"{len(impls) - own} of libraries"] if own < len(impls) else parts)


def _agreeing(found: Rows) -> list[tuple[list[str], pd.Series]]:
    """Kernels in groups whose errors over the gate's limit are equal, to two digits, on every shape that two
    of them run, and the group's errors by shape; the group with the largest error first.
    """
    table = found.assign(over=share(found)).pivot(index="impl", columns="config", values="over")
    groups: list[tuple[list[str], dict[str, float]]] = []
    for name in table.count(axis=1).sort_values(ascending=False, kind="stable").index:
        mine = table.loc[name].dropna().to_dict()
        shared = [(group, set(mine) & set(group[1])) for group in groups]
        fits = [
            group
            for group, shapes in shared
            if shapes and all(round(mine[shape], 2) == round(group[1][shape], 2) for shape in shapes)
        ]
        if not fits:
            groups.append(([str(name)], dict(mine)))
            continue
        who, errors = max(fits, key=lambda group: len(group[0]))
        who.append(str(name))
        errors.update({shape: error for shape, error in mine.items() if shape not in errors})
    found_so = [(who, pd.Series(errors).sort_index()) for who, errors in groups]
    return sorted(found_so, key=lambda group: -group[1].max())


def source_shapes(answers: Any) -> tuple[Rows, Any]:
    """List the shapes of the source's tests; the answers of every kernel, and the shapes."""
    found = answers("tolerance")
    named = found["config"].unique()
    items = "\n".join(f"{i}. {name}" for i, name in enumerate(named, 1))
    display.say(f"<details><summary>The shapes, by number</summary>\n\n{items}\n\n</details>")
    return found, named


def errors_by_shape(found: Rows, named: Any, rungs: list[Any]) -> list[Any]:
    """Show the largest error of every kernel on each shape; the kernels in the table's order."""
    found["thousandths"] = 1e3 * found["worst_rms"]
    table = found.pivot(index="impl", columns="config", values="thousandths")[list(named)]
    table.columns = [str(i) for i, _ in enumerate(named, 1)]
    order = [n for n in (*rungs, *asks.SDPA) if n in table.index]
    table = table.loc[order].reset_index()
    least = 1e3 * found.groupby("config", sort=False)["rounding"].max()
    bottom = pd.DataFrame([["rounding alone", *least[list(named)]]], columns=table.columns)
    table = pd.concat([table, bottom], ignore_index=True)
    names = {"impl": "Who"} | {c: c for c in table.columns[1:]}
    forms = dict.fromkeys(names, "{:.1f}") | {"impl": "{}"}
    display.table(
        table,
        names,
        forms,
        "Largest error of every kernel, ‰ of the RMS, by shape; blank where a kernel cannot do the shape",
        folded=True,
    )
    return order


def against_allowances(found: Rows, order: list[Any], rungs: list[Any]) -> None:
    """Say which kernels exceed each of the source's allowances."""
    worst = found.groupby("impl")["worst_rms"].max()
    floor = found["rounding"].max()
    text = f"**The source's allowances** are in RMS. An output {floor / HALF:.1f} times the RMS is off by "
    text += f"up to {floor / HALF:.1f} × {1e3 * HALF:.2f} = {1e3 * floor:.1f} ‰ by rounding to FP16 alone; "
    text += "the source's outputs are FP32.\n\n"
    for name, allowed in asks.TOLERANCES.items():
        out = [who for who in order if worst[who] > allowed]
        who = "all, because ours and torch's round their outputs to FP16" if len(out) == len(order) else ""
        who = who or ", ".join(out)
        text += f"- {1e3 * allowed:g} ‰ ({name}): " + (f"exceeded by {who}" if out else "kept by all") + ".\n"
    display.fold_parts("Who keeps the source's allowances", [text])
