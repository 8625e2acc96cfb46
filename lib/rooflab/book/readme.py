"""The results of README.md and of the site's first page, tables and picture, made from the recordings."""

from pathlib import Path

import pandas as pd

from rooflab import device, paths, plot
from rooflab.book import lessons
from rooflab.case import parse_options
from rooflab.errors import UsageError
from rooflab.record import Store
from rooflab.studies.bandwidth import roofs

BEGIN, END = "<!-- results: begin (made by `rooflab refresh`) -->", "<!-- results: end -->"
LESSONS = ("<!-- lessons: begin (made by `rooflab refresh`) -->", "<!-- lessons: end -->")
# Not kernels of their own: whichever way a dispatcher takes, and many launches in a row.
_ASIDE = ("product", "chain")
# Whole models: what is shown of each study, decoding after a short prompt, and the prompt that a source used.
_WHOLE = (("decode", 128), ("prefill", 1848))
_COLUMNS = ("operator", "ours", "time", "achieved", "of its roof", "best peer")


def results(store: Store) -> pd.DataFrame:
    """One row for each study and operator that is compared with a roof: our fastest rung by what it
    achieves (the median of its samples, graph clock, cold), at a size that peers were measured at if there
    is one, and the best of those peers beside it, by whichever clock of the bench shows it best."""
    rows = []
    for study in store.studies():
        table = store.read(study)
        table = table[table["roof"].fillna("").ne("") & table["roof_fraction"].notna()]
        for operator, group in table.groupby("operator", sort=False):
            if operator in _ASIDE:
                continue
            cold = group[group["cache"] == "cold"]
            group = cold if len(cold) else group
            own = group[(group["kind"] == "own") & (group["clock"] == "graph")]
            if own.empty:
                continue
            sizes = set(group.loc[group["kind"] != "own", "bytes"])
            beside = own[own["bytes"].isin(sizes)]
            best = (beside if len(beside) else own).sort_values("roof_fraction").iloc[-1]
            rows.append(
                {
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
    named = isinstance(best["format"], str) and best["format"] != ""
    shape = ["format" if named else "bytes", "n", "k", "batch", "cache"]
    shape += ["seq", "heads", "kv_heads", "head_dim", "window", "causal"]
    same = group[group["kind"] != "own"]
    for column in shape:
        same = same[(same[column] == best[column]) | (same[column].isna() & pd.isna(best[column]))]
    if same.empty:
        return ""
    peer = same.sort_values("median_us").iloc[0]
    eager = ", called eagerly" if peer["clock"] == "event" else ""
    return f"{peer['impl']}{eager}: {_achieved(peer)}"


def models(store: Store, every: bool = True) -> pd.DataFrame:
    """One row for each model and format (or, not `every`, for a model's fastest), one sequence and the most
    that were measured: the tokens a second of our fastest way through the whole model (wall clock), and of
    the fastest peer on the same work."""
    rows = []
    for study, tokens in _WHOLE:
        table = store.read(study)
        table = table[(table["seq"] == tokens) & table["tok_s"].notna()]
        table = table[table["batch"].isin((1, table["batch"].max()))]
        for _, group in table.groupby(["model", "batch"], sort=True):
            model, batch = str(group["model"].iloc[0]), int(group["batch"].iloc[0])
            peers = group[group["kind"] == "peer"].sort_values("tok_s")
            peer = peers.iloc[-1] if len(peers) else None
            own = group[group["kind"] == "own"]
            if not every:
                own = own[own["format"] == own.sort_values("tok_s")["format"].iloc[-1]]
            for form, mine in own.groupby("format", sort=True):
                best = mine.sort_values("tok_s").iloc[-1]
                head = str(parse_options(best["options"]).get("head", form))
                many = f"{batch} sequences" if batch > 1 else "one sequence"
                rows.append(
                    {
                        "model": model,
                        "weights": form if head == form else f"{form}, {head} head",
                        "what": f"{study}, {many if study == 'decode' else f'{tokens:,} tokens'}",
                        "ours": best["impl"],
                        "tokens a second": f"{best['tok_s']:,.0f}",
                        "of its roof": f"{best['roof_fraction']:.0%} of {best['roof']}",
                        "best peer": ""
                        if peer is None
                        else f"{peer['impl']}, {peer['format']}: {peer['tok_s']:,.0f}",
                    }
                )
    return pd.DataFrame(rows)


def device_line(store: Store) -> str:
    """Which GPU the figures are of, and when they were measured; empty without a run."""
    runs = store.runs()
    if runs.empty:
        return ""
    last = runs.iloc[-1]
    day = str(last["started"])[:10]
    return f"Measured on the {last['gpu']} (driver {last['driver']}, CUDA {last['cuda']}), last on {day}."


def ceilings(store: Store) -> pd.DataFrame:
    """The device's roofs: what lesson 01 measured beside the datasheet's dense figure, where it states
    one."""
    runs = store.runs()
    spec = device.match(str(runs.iloc[-1]["gpu"])) if len(runs) else None
    rows = []
    for name, roof in roofs(store.read("bandwidth")).items():
        stated = getattr(spec, "dram_gb_s" if name.startswith("dram_") else name, None)
        rows.append(
            {
                "roof": name,
                "measured": f"{roof.value:,.0f} {roof.unit}",
                "datasheet": f"{stated:,.0f} {roof.unit}" if stated else "",
                "share": f"{roof.value / stated:.0%}" if stated else "",
            }
        )
    return pd.DataFrame(rows, columns=["roof", "measured", "datasheet", "share"])


def markdown(store: Store) -> str:
    """The line that names the GPU, its roofs, and what our kernels reach, as Markdown."""
    kernels = results(store)
    if kernels.empty:
        return f"There is no recording of {store.device} yet.\n"
    whole = models(store, every=False)
    parts = [kernels, *([whole] if len(whole) else []), ceilings(store)]
    return "\n".join([device_line(store), *(line for part in parts for line in ("", *_table(part)))]) + "\n"


def _table(frame: pd.DataFrame) -> list[str]:
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + " --- |" * len(frame.columns)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in frame.itertuples(index=False)]


def picture(store: Store) -> bytes | None:
    """README's picture: the ladder of the read stream, best launch of each rung, under the roof. PNG
    bytes, or None without such rows."""
    table = store.read("bandwidth")
    ladder = table[
        (table["operator"] == "read")
        & (table["kind"] == "own")
        & (table["clock"] == "graph")
        & (table["cache"] == "cold")
    ]
    if ladder.empty:
        return None
    best = ladder.sort_values("gb_s").drop_duplicates("impl", keep="last").sort_values("impl")
    roof = roofs(table).get("dram_read")
    gpu = store.runs().iloc[-1]["gpu"]
    figure, axes = plot.figure(f"read bandwidth of the {gpu}, GB/s", height=2.6)
    line = None if roof is None else ("measured roof", roof.value, roof.unit)
    plot.bars(axes, list(best["impl"]), best["gb_s"], "GB/s", line)
    return plot.png(figure)


def lesson_list(folder: Path) -> str:
    """Every notebook by its title, a row a lesson, as Markdown with links from the repository's root."""
    rows: dict[str, list[str]] = {}
    for lesson in lessons.all_lessons(folder):
        title = lessons.opening(lesson.path).title.partition(": ")[2] or lesson.stem
        rows.setdefault(lesson.number, []).append(f"[{title}](notebooks/{lesson.path.name})")
    lines = ["| lesson | parts |", "| --- | --- |"]
    return "\n".join(lines + [f"| {number} | {', '.join(parts)} |" for number, parts in rows.items()]) + "\n"


def current(text: str) -> str:
    """README's text as the lessons and the recording of the course's own GPU, data/h200, make it."""
    if LESSONS[0] in text:
        text = updated(text, lesson_list(paths.NOTEBOOKS), *LESSONS)
    return updated(text, markdown(Store(paths.DATA, "h200")))


def updated(text: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """README's text with what was made between two markers. Raises UsageError where they are missing."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"README.md lacks the markers {begin} and {end}, between which its table goes.")
    return f"{head}{begin}\n{made}{end}{tail}"
