"""What the state of a GPU does to a kernel, from the rows of the study `power`, in tables and sentences."""

from __future__ import annotations

import pandas as pd

from rooflab.studies import power
from rooflab.words import counted, listed, times

# The states in the order in which a page shows them, and how it calls them.
NAMES = {
    "burst": "burst",
    "after_cool": "behind copies",
    "sustained": "sustained",
    "after_hot": "behind matrix products",
}
DUEL = {
    "shape": "shape",
    "ours": "ours",
    "burst": "× peer, in a burst",
    "burst_peer": "its fastest peer",
    "sustained": "× peer, sustained",
    "sustained_peer": "its fastest peer, sustained",
}
DUEL_FORMATS = {"burst": "{:.2f}", "sustained": "{:.2f}"}


def of_one(rows: pd.DataFrame, operator: str) -> pd.DataFrame:
    """Our leading kernel of an operator at the last of its problems that were measured in most states, a row
    for each state in the order of NAMES: columns state, name (the state in words, with its clock), median_us,
    q1_us, q3_us, sm_mhz, and slower, the time over that of the burst.
    """
    mine = rows[(rows["operator"] == operator) & (rows["kind"] == "own")]
    problems = mine.groupby([*power.SIZES, "impl"], dropna=False)["state"].transform("nunique")
    mine = mine[problems == problems.max()]
    problem = mine.groupby([*power.SIZES, "impl"], dropna=False).ngroup()
    mine = mine[problem == problem.iloc[-1]] if len(mine) else mine
    mine = mine.set_index("state").reindex([state for state in NAMES if state in set(mine["state"])])
    clocks = [f", {mhz:,.0f} MHz" if pd.notna(mhz) else "" for mhz in mine["sm_mhz"]]
    found = mine.assign(name=[NAMES[state] + mhz for state, mhz in zip(mine.index, clocks, strict=True)])
    first = mine["median_us"].get("burst", float("nan"))
    columns = ["name", "median_us", "q1_us", "q3_us", "sm_mhz", "slower", "impl", "run"]
    return found.assign(slower=mine["median_us"] / first).reset_index()[["state", *columns]]


def touched(moved: pd.DataFrame) -> str:
    """Which of our fastest kernels, one a problem, a hot neighbour slows most, and which it hardly touches,
    of `power.moved`'s rows, in a sentence.
    """
    ours = moved[moved["kind"] == "own"]
    if ours.empty:
        return ""
    ours = ours.sort_values("burst_us").drop_duplicates(["operator", *power.SIZES]).sort_values("ratio")
    ours = ours.drop_duplicates("operator", keep="last")
    worst, rest = ours.iloc[-1], ours[ours["ratio"] <= power.MOVES]
    if worst["ratio"] <= power.MOVES:
        return "None of our fastest kernels is slowed by more than 2% behind the products."
    text = f"Of our fastest kernels `{worst['operator']}/{worst['impl']}` loses most behind products, "
    text += f"{worst['ratio'] - 1:.0%}"
    if len(rest):
        names = listed(f"`{name}`" for name in rest["operator"])
        text += f"; of {names} none loses more than {100 * (power.MOVES - 1):.0f}%"
    return f"{text}."


def kept(rows: pd.DataFrame, *operators: str) -> str:
    """What share of its burst the fastest kernel of each operator keeps up by itself, in a sentence."""
    both = power.held(rows)
    both = both[both["operator"].isin(operators) & (both["kind"] == "own")]
    best = both.sort_values("burst_us").drop_duplicates("operator").sort_values("operator")
    shares = [f"{row.operator} {row.kept:.0%}" for row in best.itertuples()]
    if not shares:
        return ""
    lose = "lose nothing" if best["kept"].min() > 0.98 else "lose something"
    return f"The memory kernels {lose} when they run on: {', '.join(shares)} of the burst."


def shape(row: pd.Series) -> str:
    """The sizes of a problem in words."""
    if pd.notna(row["seq"]) and pd.isna(row["head_dim"]):  # a whole model
        return f"{row['model']}, {int(row['seq']):,} tokens"
    if pd.notna(row["seq"]):
        noun = "keys" if row["operator"] == "decode_attention" else "tokens"
        window = f", window {int(row['window'])}" if pd.notna(row["window"]) else ""
        masked = ", not causal" if str(row["causal"]).lower() == "false" else ""
        return f"{int(row['seq']):,} {noun}, {int(row['head_dim'])} wide{window}{masked}"
    if pd.notna(row["n"]) and pd.notna(row["k"]):
        tokens = int(row["batch"]) if pd.notna(row["batch"]) else 1
        return f"{int(row['n']):,} × {int(row['k']):,}, {tokens} token{'s' * (tokens != 1)}"
    return f"{int(row['n']):,} elements"


def duels(rows: pd.DataFrame, *operators: str, formats: bool = False) -> pd.DataFrame:
    """Ours beside the fastest recorded peer, a row a problem: columns of DUEL, where burst and sustained are
    our speed over the peer's, both in that state. Without `formats` peers read the same weights as ours.
    """
    mine = rows[rows["operator"].isin(operators) & rows["median_us"].notna()]
    if not formats:
        ours = set(mine.loc[mine["kind"] == "own", "format"])
        mine = mine[mine["format"].isin(ours)]
    keys = ["operator", *power.SIZES]
    sides = {state: power.rivals(mine, state) for state in ("burst", "sustained")}
    if any(side.empty for side in sides.values()):
        return pd.DataFrame(columns=list(DUEL))
    found = sides["burst"].merge(sides["sustained"], on=keys, suffixes=("", "_sustained"))
    return pd.DataFrame(
        {
            "shape": [shape(row) for _, row in found.iterrows()],
            "ours": found["ours"],
            "burst": found["ratio"],
            "burst_peer": found["peer"],
            "sustained": found["ratio_sustained"],
            "sustained_peer": found["peer_sustained"],
        }
    )


def says(found: pd.DataFrame) -> str:
    """How ours fares against the fastest recorded peers in both states, in a sentence."""
    if found.empty:
        return "No peer was measured here in both states."
    parts: dict[str, list[str]] = {}
    for state, words in (("burst", "in bursts"), ("sustained", "sustained")):
        ahead = int((found[state] > power.MOVES).sum())
        behind = int((found[state] < 1 / power.MOVES).sum())
        level = len(found) - ahead - behind
        counts = {"ahead": ahead, "level": level, "behind": behind}
        said = [f"{word} on {n if n < len(found) else 'all'}" for word, n in counts.items() if n]
        parts.setdefault(" and ".join(filter(None, [", ".join(said[:-1]), said[-1]])), []).append(words)
    worst = found.sort_values("burst").iloc[0]
    standing = "; ".join(f"{said}, {' and '.join(words)}" for said, words in parts.items())
    text = f"Of {counted(len(found), 'problem')} ours is {standing}. "
    if worst["burst"] < 1 / power.MOVES:
        text += f"Farthest behind: {worst['shape']}, {times(worst['burst'])} times "
        text += f"{worst['burst_peer']}'s speed."
    return text


def of_a_work(rows: pd.DataFrame, what: str, tokens: int = 0) -> str:
    """What `what`, one kind of work in several states, takes in each, in a sentence; empty unless `rows` have
    it in a burst and sustained. With the rate where the work is of so many `tokens`.
    """
    mine = rows[rows["median_us"].notna()].drop_duplicates("state").set_index("state")
    if not {"burst", "sustained"} <= set(mine.index):
        return ""
    us = mine["median_us"]
    rate = {state: f"{1e6 * tokens / each:,.0f} tok/s" if tokens else "" for state, each in us.items()}
    more = {state: f", {each}" if each else "" for state, each in rate.items()}
    text = f"{what} takes {us['burst'] / 1e3:.2f} ms after a rest (*burst*{more['burst']}) and "
    text += f"{us['sustained'] / 1e3:.2f} ms while it runs on by itself (*sustained*{more['sustained']})"
    if "after_hot" in us:
        text += f"; right behind matrix products {us['after_hot'] / 1e3:.2f} ms"
        text += f" ({rate['after_hot']})" if tokens else ""
    held = mine["power_capped"]["sustained"]
    if held > 0.5:
        text += f". Sustained, the driver holds the clock down for power in {held:.0%} of the readings"
    return f"{text}."
