"""The results table of README.md and of the site's first page, made from the recordings and never typed."""

import pandas as pd

from rooflab import paths
from rooflab.errors import UsageError
from rooflab.record import Store

BEGIN, END = "<!-- results: begin (made by `rooflab refresh`) -->", "<!-- results: end -->"
_COLUMNS = ("study", "operator", "ours", "time", "achieved", "of its roof", "best peer")


def results(store: Store) -> pd.DataFrame:
    """One row for each study and operator that is compared with a roof: our fastest rung by what it
    achieves (the median of its samples), and the best other implementation of the same case beside
    it."""
    rows = []
    for study in store.studies():
        table = store.read(study)
        table = table[table["roof"].fillna("").ne("") & table["roof_fraction"].notna()]
        for operator, group in table.groupby("operator", sort=False):
            named = group[(group["clock"] == "graph") & (group["cache"] == "cold")]
            group = named if len(named) else group
            own = group[group["kind"] == "own"]
            if own.empty:
                continue
            best = own.sort_values("roof_fraction").iloc[-1]
            rows.append(
                {
                    "study": study,
                    "operator": operator,
                    "ours": best["impl"],
                    "time": f"{best['median_us']:,.1f} µs",
                    "achieved": _achieved(best),
                    "of its roof": f"{best['roof_fraction']:.0%} of {best['roof']}",
                    "best peer": _peer(group, best),
                }
            )
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _achieved(row: pd.Series) -> str:
    if str(row["roof"]).startswith(("dram_", "l2_", "pcie_")):
        return f"{row['gb_s']:,.0f} GB/s"
    return f"{row['tflop_s']:,.1f} TFLOP/s"


def _peer(group: pd.DataFrame, best: pd.Series) -> str:
    shape = ["format", "n", "k", "batch", "seq", "heads", "head_dim", "cache", "clock"]
    same = group[group["kind"] != "own"]
    for column in shape:
        same = same[(same[column] == best[column]) | (same[column].isna() & pd.isna(best[column]))]
    if same.empty:
        return ""
    peer = same.sort_values("median_us").iloc[0]
    return f"{peer['impl']}: {_achieved(peer)}"


def device_line(store: Store) -> str:
    """Which GPU the figures are of, and when they were measured; empty without a run."""
    runs = store.runs()
    if runs.empty:
        return ""
    last = runs.iloc[-1]
    day = str(last["started"])[:10]
    return f"Measured on one {last['gpu']} (driver {last['driver']}, CUDA {last['cuda']}), last on {day}."


def markdown(store: Store) -> str:
    """The table and the line above it, as Markdown."""
    table = results(store)
    if table.empty:
        return f"There is no recording of {store.device} yet.\n"
    lines = [device_line(store), "", "| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def current(text: str) -> str:
    """README's text as the recording of the course's own GPU, data/h200, makes it."""
    return updated(text, markdown(Store(paths.DATA, "h200")))


def updated(text: str, table: str) -> str:
    """README's text with the table between its markers. Raises UsageError where the markers are missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"README.md lacks the markers {BEGIN} and {END}, between which its table goes.")
    return f"{head}{BEGIN}\n{table}{END}{tail}"
