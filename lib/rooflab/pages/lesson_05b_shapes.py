"""What lesson 05b says of other shapes: shares of the roof, a plain read's, and how many SMs rung 6 fills."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from rooflab.hardware.crossover import LEVEL
from rooflab.lab import Lab
from rooflab.ops import q8_0
from rooflab.pages import Rows, lesson_03b_climb
from rooflab.records.case import Case
from rooflab.studies import q8_0_operands
from rooflab.view import display
from rooflab.words import listed

UNDER_WAY = q8_0.LADDERS["q8_0"][3].defines["UNROLL"]  # loads a lane in rung 4 as the ladder builds it
_MMA = "6_mma"


def level_with(us: Rows) -> str:
    """The contestants within 2% of the fastest of some times by name, in brackets; or nothing."""
    near = [str(name) for name, each in us.items() if name != us.idxmin() and each <= LEVEL * us.min()]
    return f" (level with it, within {LEVEL - 1:.0%}: {listed(near)})" if near else ""


def other_shapes(here: Lab, decode: list[Any]) -> Rows:
    """Show each contestant's share of the roof by shape, and say the fastest, and where rung 5 gains over
    rung 4; all rows.
    """
    every = here.measure("q8_0", [c for c in decode if not c.options])
    single = every[every["batch"] == 1]
    share = single.pivot(index="impl", columns=["n", "k"], values="roof_fraction")
    names = {f"{n:,} × {k:,}": f"{n:,} × {k:,}" for n, k in share.columns}
    start, plain = lesson_03b_climb.start_us(here), _plain_read(here, single)
    shown = share.set_axis(list(names), axis=1)
    if start == start:
        shown.loc["a plain read of Q8_0's bytes, predicted"] = [plain[shape][1] for shape in share.columns]
    forms = dict.fromkeys(names, "{:.0%}")
    title = "Share of the read roof"
    shown = shown.rename_axis("impl").reset_index()
    display.table(shown, {"impl": "Rung or peer"} | names, forms, title, folded=True)
    text = ""
    for (rows_n, k), group in single.groupby(["n", "k"], sort=False):
        us = group.set_index("impl")["median_us"]
        mine = us[group.loc[group["kind"] == "own", "impl"]]
        text += f"- {rows_n:,} × {k:,}: {mine.idxmin()}, {mine.min():.1f} µs{level_with(mine)}"
        if "torch.matmul" in us.index:
            text += f"; FP16 by cuBLAS takes {us['torch.matmul'] / mine.min():.2f} times as long"
        text += ".\n"
    display.say(f"The fastest rung for each:\n\n{text}")
    for said in filter(None, (_beside_a_read(single, start, plain), _one_token(single))):
        display.say(said)
    _filled(here, single)
    return every


def _plain_read(here: Lab, single: Rows) -> dict[tuple[int, int], tuple[float, float]]:
    """By shape, the microseconds and the share of the roof of a read of as many bytes as the fastest rung's:
    lesson 01b's time to start and finish, then the bytes at the roof.
    """
    start, roof = lesson_03b_climb.start_us(here), here.roof["dram_read"].value
    own, found = single[single["kind"] == "own"], {}
    for (n, k), group in own.groupby(["n", "k"]):
        least = float(group.sort_values("median_us")["bytes"].iloc[0]) / roof / 1e3
        found[int(n), int(k)] = (start + least, least / (start + least))
    return found


def _beside_a_read(single: Rows, start: float, plain: dict[tuple[int, int], tuple[float, float]]) -> str:
    """At which shapes a plain read's start and end explain the distance to the roof; "" if not recorded."""
    if start != start:
        return ""
    own, left = single[single["kind"] == "own"], []
    for (n, k), group in own.groupby(["n", "k"], sort=False):
        best, (us, share) = group.sort_values("median_us").iloc[0], plain[int(n), int(k)]
        if best["median_us"] > LEVEL * us:
            left.append(
                f"{n:,} × {k:,} ({best['impl']} {best['roof_fraction']:.0%}, such a read {share:.0%})"
            )
    text = f"A read takes {start:.1f} µs to start and finish ([01b](01b_roofs.ipynb)), then its bytes at the "
    text += "roof. For as many bytes that explains the fastest rung's distance to the roof"
    if len(left) == len(plain):
        return f"{text} in part: {listed(left)}. What takes the rest was not measured."
    if not left:
        return f"{text} at every shape."
    return f"{text}, except at {listed(left)}. What takes the rest there was not measured."


def _one_token(single: Rows) -> str:
    """What rung 5 gains over rung 4 with one token, shape by shape; empty where either was not measured."""
    us = single.pivot(index=["n", "k"], columns="impl", values="median_us")
    if not {"4_planes", "5_batch"} <= set(us):
        return ""
    gain = (us["4_planes"] / us["5_batch"]).dropna()
    if gain.max() <= LEVEL:
        return "With one token rung 5 gains nothing over rung 4 at any of these shapes."
    said = listed(f"{times:.2f} at {n:,} × {k:,}" for (n, k), times in gain[gain > LEVEL].items())
    text = f"With one token rung 5 is faster than rung 4 by factors of {said}"
    if gain.between(1 / LEVEL, LEVEL).any():
        text += f"; level, within {LEVEL - 1:.0%}, at {listed(_shapes(gain.between(1 / LEVEL, LEVEL)))}"
    text += f"; slower at {listed(_shapes(gain < 1 / LEVEL))}. " if (gain < 1 / LEVEL).any() else ". "
    if gain.idxmax()[1] // 16 < 32 * UNDER_WAY:
        text += (
            "The most is where k does not fill rung 4's stretch: a lane of rung 5 still has a load under way "
        )
        text += "for each of its rows."
    return text


def _shapes(chosen: Rows) -> list[str]:
    return [f"{n:,} × {k:,}" for n, k in chosen.index[chosen]]


def _filled(here: Lab, single: Rows) -> None:
    """Say how many blocks rung 6 has for a GPU's SMs, and whether its share of the roof follows that."""
    mine, sms = single[single["impl"] == _MMA].dropna(subset=["roof_fraction"]), int(here.run["sms"])
    if len(mine) < 3:
        return
    lines = []
    for _, row in mine.iterrows():
        rung, macros, _ = q8_0_operands.own_rung(Case.from_row(row))
        blocks = q8_0.matvec_launch(rung, int(row["n"]), macros)[0]
        turns = math.ceil(blocks / sms)
        lines.append(
            (f"{row['n']:,} × {row['k']:,}", blocks, turns, blocks / (turns * sms), row["roof_fraction"])
        )
    names = ["Matrix", "Blocks", "On the fullest SM", "Places filled", "Of the read roof"]
    table = pd.DataFrame(lines, columns=names).sort_values(["Places filled", "Of the read roof"])
    forms = {"Places filled": "{:.0%}", "Of the read roof": "{:.0%}"}
    share, filled, blocks = table["Of the read roof"], table["Places filled"], table["Blocks"]
    rows_each = 16 * q8_0.LADDERS["q8_0"][5].defines["ROW_TILES"]
    text = f"Rung 6 takes {rows_each} rows a block, so it has few blocks: {blocks.min():,} to "
    text += (
        f"{blocks.max():,} for {sms} SMs. The product takes as long as the fullest SM; of the blocks that "
    )
    text += f"all SMs could do in that time {filled.min():.0%} to {filled.max():.0%} are there. Its share of "
    text += (
        "the roof follows this" if share.is_monotonic_increasing else "the roof does not follow this alone"
    )
    display.say(f"{text}, from {share.min():.0%} to {share.max():.0%}. What else it lacks was not measured.")
    title = f"Rung 6's blocks on {sms} SMs, one token; places filled: blocks ÷ SMs ÷ those of the fullest"
    display.table(table, dict(zip(names, names, strict=True)), forms, title, folded=True)
