"""The book around the lessons, as Markdown: a page a device, how to add
yours, which kernel to choose, and how the lessons last ran. All of it from recordings and the lessons."""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rooflab import dispatch, paths
from rooflab.analysis import strategies
from rooflab.book import executions, glossary, readme
from rooflab.book.lessons import Opening, opening
from rooflab.book.parameters import recorded_devices
from rooflab.hardware import device, perf_model
from rooflab.records.store import Store, published_devices

_FORMATS = {"fp16": "FP16", "int4_g128": "INT4, groups of 128", "q8_0": "Q8_0"}
# GPUs that are often met, for predictions where nothing was recorded.
_OTHERS = ("t4", "rtx-3060", "rtx-4090", "l4", "a100-80gb", "h100-sxm")
_FOLDED = 12  # rows from which on a table of published figures is behind a line to click


def make(notebooks: Sequence[Path]) -> dict[str, str]:
    """The pages beside the lessons, name -> Markdown, in the order of the site's contents."""
    found = [opening(path) for path in notebooks]
    recorded = recorded_devices(paths.DATA)
    pages = {
        "choose": choose(recorded),
        "devices": devices(recorded),
        **{f"device-{name}": of_device(name, found) for name in recorded},
        **{f"device-{name}": of_published(name) for name in published_devices(paths.DATA)},
        "add-your-gpu": Path(__file__).with_name("add_your_gpu.md").read_text(encoding="utf-8"),
        "cluster": Path(__file__).with_name("cluster.md").read_text(encoding="utf-8"),
        "executions": how_they_ran(recorded, found),
        glossary.PAGE: glossary.page(glossary.terms(), {one.stem: one.title for one in found}),
    }
    return pages


# --- devices ------------------------------------------------------------------------------------------------


def devices(recorded: Sequence[str]) -> str:
    """The list of devices, recorded here or published by others."""
    lines = ["# Devices", "", "Measured by this repository's kernels, on:", ""]
    lines += [f"- [{readme.gpu_of(Store(paths.DATA, name))}](device-{name}.md)" for name in recorded]
    lines += ["", "Figures that others published of theirs, which some lessons hold ours against:", ""]
    for name in published_devices(paths.DATA):
        lines += [f"- [{readme.gpu_of(Store(paths.DATA, name))}](device-{name}.md), `{name}`"]
    pages = [f"device-{name}" for name in (*recorded, *published_devices(paths.DATA))]
    lines += ["", "To put yours beside them: [add your GPU](add-your-gpu.md).", ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *pages, "```", ""])


def of_device(name: str, found: Sequence[Opening]) -> str:
    """A recorded device: its constants, its roofs, its results, and the runs they come from."""
    store = Store(paths.DATA, name)
    runs = store.runs()
    last = runs.iloc[-1]
    lines = [f"# {last['gpu']}", "", readme.device_line(store), ""]
    lines += readme.table(_constants(last))
    lines += ["", "## Roofs", "", "What this device reached in lessons 01 and 01b, beside its datasheet.", ""]
    lines += readme.table(readme.ceilings(store))
    lines += ["", "## Results", "", "Our fastest rung of each operator by its share of the roof, at a size "]
    lines[-1] += "that a peer was measured at too, where there is one; graph clock, cold caches."
    lines += ["", *readme.table(readme.results(store))]
    for said, part in (
        ("What both keep up when power limits them.", readme.kept_up(store)),
        ("The same products by peers that hold the weights in another format.", readme.other_weights(store)),
    ):
        lines += ["", said, "", *readme.table(part)] if len(part) else []
    whole = readme.models(store)
    if len(whole):
        lines += [
            "",
            "Whole models, by the wall clock, random weights of the real shapes.",
            "",
            *readme.table(whole),
        ]
    lines += ["", "## Runs", "", "Each row of the recording names the run it was measured in.", ""]
    return "\n".join([*lines, *readme.table(_runs(store)), ""])


def _constants(run: pd.Series) -> pd.DataFrame:
    spec = device.match(str(run["gpu"]))
    rows = [
        ("Compute capability", run["compute_capability"]),
        ("SMs", run["sms"]),
        ("L2 cache", f"{run['l2_bytes'] / 2**20:,.0f} MiB"),
        ("Memory", f"{run['memory_bytes'] / 2**30:,.0f} GiB"),
    ]
    if spec:
        rows.insert(0, ("Architecture", spec.architecture))
        rows += [("Bandwidth by its datasheet", f"{spec.dram_gb_s:,} GB/s")]
        rows += [("Shared memory of a block", f"{spec.shared_kb_per_block} KB")]
    versions = [f"{name} {run[name]}" for name in ("nvrtc", "cupy", "torch", "cudnn") if run[name]]
    rows += [("Driver, CUDA", f"{run['driver']}, {run['cuda']}"), ("Libraries", ", ".join(versions))]
    return pd.DataFrame(rows, columns=["constant", "value"])


def _runs(store: Store) -> pd.DataFrame:
    held = pd.concat([store.read(study)[["study", "run"]] for study in store.studies()])
    rows = []
    for _, run in store.runs().iterrows():
        mine = held[held["run"] == run["run"]]
        rows.append(
            {
                "run": run["run"],
                "begun": str(run["started"]).replace("T", " ").removesuffix("Z") + " UTC",
                "command": f"`{run['command']}`",
                "commit": run["commit"],
                "rows": f"{len(mine):,}",
                "of": ", ".join(sorted(mine["study"].unique())),
            }
        )
    return pd.DataFrame(rows)


def of_published(name: str) -> str:
    """A device of which there are published figures alone: each table as its source gives it."""
    store = Store(paths.DATA, name)
    runs = store.runs()
    rows = pd.concat([store.read(study) for study in store.studies()], ignore_index=True)
    lines = [f"# {readme.gpu_of(store)}, as published", ""]
    lines += [
        "None of these figures was measured by this repository: they are its sources' own, with their clocks "
        "and their counting of bytes, and nothing here passed the gate.",
        "",
    ]
    for _, run in runs.iterrows():
        mine = rows[rows["run"] == run["run"]]
        if mine.empty:
            continue
        lines += [f"## {run['run'].partition('.')[2].capitalize()}", "", _plain(str(run["note"])) + ".", ""]
        table = readme.table(_figures(mine))
        if len(mine) >= _FOLDED:
            table = [f"<details><summary>{len(mine)} figures</summary>", "", *table, "", "</details>"]
        lines += [*table, ""]
    return "\n".join(lines)


_SHAPE = ("n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window")


def _figures(rows: pd.DataFrame) -> pd.DataFrame:
    made = []
    for _, row in rows.iterrows():
        shape = [f"{name} {row[name]:,}" for name in _SHAPE if not pd.isna(row[name])]
        rates = [("gb_s", "GB/s"), ("tflop_s", "TFLOP/s"), ("tok_s", "tokens/s")]
        made.append(
            {
                "operator": row["operator"],
                "by": row["impl"],
                "of": ", ".join(filter(None, [row["format"], row["model"], *shape])),
                "cache, clock": ", ".join(filter(None, [row["cache"], row["clock"]])) or "not named",
                "time": "" if pd.isna(row["median_us"]) else f"{row['median_us']:,.6g} µs",
                "rate": ", ".join(f"{row[c]:,.4g} {unit}" for c, unit in rates if not pd.isna(row[c])),
            }
        )
    return pd.DataFrame(made)


# --- which kernel -------------------------------------------------------------------------------------------


def choose(recorded: Sequence[str]) -> str:
    """The dispatcher's rule as a page: its tables of the recorded devices, and its predictions elsewhere."""
    lines = [
        "# Choose a kernel",
        "",
        "`rooflab.dispatch.product(x, weights)` multiplies by whichever way was fastest on this GPU for the "
        "nearest recorded shape and number of tokens. This page is that rule, from the same tables. "
        "Lesson 07 is about where they come from, and when to distrust them. What a way "
        "does, its name says in short and [the last table](#the-ways) in words.",
        "",
    ]
    for name in recorded:
        store = Store(paths.DATA, name)
        table = dispatch.table(name)
        lines += [f"## {readme.gpu_of(store)}", ""]
        if table.empty:
            lines += ["No products are recorded yet: `rooflab tune` makes its tables.", ""]
            continue
        lines += [
            "A row is a matrix (rows x columns), a column a number of tokens; an empty cell was not "
            "measured. Each cell names the fastest recorded way, cold, by the graph clock, and how many "
            "times as fast it is as the plain way (cuBLAS on FP16 weights, or after dequantising) where that "
            "is another.",
            "",
        ]
        found = dispatch.lines(table)
        for format_, mine in found.groupby("format", sort=False):
            lines += [
                f"### {_FORMATS[str(format_)]} on {readme.gpu_of(store)}",
                "",
                *readme.table(_ways(mine)),
                "",
            ]
        lines += _attention(store)
    lines += _predictions()
    return "\n".join([*lines, *_legend(), ""])


def _ways(rows: pd.DataFrame) -> pd.DataFrame:
    made: dict[str, dict[int, str]] = {}
    for _, row in rows.iterrows():
        gain = f" {row['gain']:.1f}x" if row["gain"] >= 1.05 else ""
        made.setdefault(f"{row['n']}\u00a0x\u00a0{row['k']}", {})[int(row["batch"])] = (
            f"{row['strategy']}{gain}"
        )
    tokens = sorted({batch for line in made.values() for batch in line})
    table = pd.DataFrame(
        [[shape, *(line.get(batch, "") for batch in tokens)] for shape, line in made.items()],
        columns=["matrix, tokens:", *tokens],
    )
    return table


def _attention(store: Store) -> list[str]:
    rows = store.read("attention")
    rows = rows[(rows["clock"] == "graph") & rows["median_us"].notna()]
    rows = rows[~rows["case"].str.contains(" index=")]  # these ask what indexing costs a rung
    rows = rows.assign(start=rows["case"].str.extract(r" start=(\d+)")[0].astype(float))
    made = []
    shape = ["operator", "seq", "heads", "kv_heads", "head_dim", "window", "causal", "start", "format"]
    for _, mine in rows.groupby(shape, dropna=False, sort=True):
        own = mine[mine["kind"] == "own"].sort_values("median_us")
        peers = mine[mine["kind"] != "own"].sort_values("median_us")
        if own.empty:
            continue
        asked = mine.iloc[0]
        made.append(
            {
                "operator": asked["operator"],
                "tokens": f"{asked['seq']:,}",
                "heads": f"{asked['heads']}/{asked['kv_heads']}",
                "width": asked["head_dim"],
                "format": str(asked["format"]).upper(),
                "looks at": _seen(asked),
                "fastest of ours": own.iloc[0]["impl"],
                "time": _us(own.iloc[0]["median_us"]),
                "fastest peer": f"{peers.iloc[0]['impl']}, {_us(peers.iloc[0]['median_us'])}"
                if len(peers)
                else "",
            }
        )
    if not made:
        return []
    head = [
        f"### Attention on {readme.gpu_of(store)}",
        "",
        "Without a name, `ops.attention` takes the rung that was ",
    ]
    head[-1] += (
        "fastest for the head's width. Here is every recorded shape, with the fastest library timed at that "
        "very shape, which is not every library; *heads* are those of the queries / of keys and values. "
        "*attention* is that of a whole prompt, *decode_attention* that of one new token."
    )
    fold = f"<details><summary>{len(made)} shapes</summary>"
    return [*head, "", fold, "", *readme.table(pd.DataFrame(made)), "", "</details>", ""]


def _seen(row: pd.Series) -> str:
    """What a row's queries look at, in words."""
    if not pd.isna(row["window"]):
        return f"last {row['window']:,}"
    return "all" if pd.isna(row["start"]) else f"all, and {int(row['start']):,} before"


def _us(time: float) -> str:
    return f"{time:,.1f} µs" if time < 1000 else f"{time:,.0f} µs"


def _predictions() -> list[str]:
    """What the dispatcher would choose on GPUs without a recording, by the law of lesson 07b."""
    shape, tokens = (4096, 4096), (1, 8, 64, 256)
    made = []
    for slug in _OTHERS:
        spec = device.get(slug)
        arch = device.sm(spec.compute_capability)
        for format_ in perf_model.FORMATS:
            ways = [dispatch.candidates(format_, *shape, batch, arch, slug, None) for batch in tokens]
            names = [
                dispatch.unrecorded(slug, *shape, batch, found)[0]
                for batch, found in zip(tokens, ways, strict=True)
            ]
            first = spec.name if format_ == perf_model.FORMATS[0] else ""
            made.append([first, _FORMATS[format_].partition(",")[0], *names])
    columns = ["GPU", "weights", *(f"{batch} token{'s' * (batch > 1)}" for batch in tokens)]
    return [
        "## GPUs that the dispatcher has no table for",
        "",
        f"There it predicts, by the law of lesson 07b fitted on {dispatch.REFERENCE} and scaled "
        f"by datasheets; a GPU with the same SMs as {dispatch.REFERENCE} is served by its table. The log "
        f"says so. Here for {shape[0]} x {shape[1]}; `rooflab tune` replaces it by measurements.",
        "",
        *readme.table(pd.DataFrame(made, columns=columns)),
        "",
    ]


def _legend() -> list[str]:
    rows = [
        {
            "way": how.name,
            "weights": _FORMATS[how.format],
            "in lesson 07": strategies.label(how.format, how.name),
            "what it does": how.says,
        }
        for how in perf_model.STRATEGIES
    ]
    return ["## The ways", "", *readme.table(pd.DataFrame(rows))]


# --- executions ---------------------------------------------------------------------------------------------


def how_they_ran(recorded: Sequence[str], found: Sequence[Opening]) -> str:
    """The status page: where, when and with which versions each lesson was executed, and what it measured."""
    lines = [
        "# How the lessons ran",
        "",
        "Live, a lesson measures on the GPU at hand whatever its recording does not hold yet. Replayed, it "
        "reads the recording: these pages and the notebooks in the repository are replays, which CI makes "
        "again and compares: cells, text and tables to the byte, pictures by their pixels within a tolerance "
        "that no reader sees.",
        "",
        "*Cases* are the distinct ones that a lesson asks for (a kernel at a shape), *gated* those of our "
        "own kernels, which passed the gate, *skipped* those that could not run there. *Profiled* are those "
        "it asked of profilers and other instruments. *Now*, where there is such a column, are the cases "
        "measured in that very execution; all others were in the recording. So a live execution shows that "
        "a lesson runs on that GPU from its first cell to its last; its figures are the recording's.",
        "",
    ]
    for name in recorded:
        store = Store(paths.DATA, name)
        none = "No lesson ran live here yet: its figures are of `rooflab record`, whose runs stand on "
        none += f"[its page](device-{name}.md)."
        newest = str(store.runs()["finished"].max()) if len(store.runs()) else ""
        lines += _executed(paths.DATA / name, f"Live on {readme.gpu_of(store)}", found, none, newest=newest)
    none = "These pages show the notebooks as committed: `rooflab report` replays them first."
    lines += _executed(paths.BUILD / "notebooks", "Replayed for these pages", found, none, folded=True)
    return "\n".join(lines)


def _executed(
    folder: Path, heading: str, found: Sequence[Opening], none: str, folded: bool = False, newest: str = ""
) -> list[str]:
    """A section of executions; `newest`: when the recording's last run ended, said where that is later."""
    rows = executions.read(folder)
    rows = rows[rows["lesson"].isin([one.stem for one in found])]
    lines = [f"## {heading}", ""]
    if rows.empty:
        return [*lines, none, ""]
    rows = rows.assign(day=rows["started"].str[:10])
    for where, mine in rows.groupby(_WHERE, sort=False, dropna=False):
        named = dict(zip(_WHERE, where, strict=True))
        named["commit"] = str(named["commit"] or "")[:12]  # as many digits as a checkout says
        versions = [f"{_NAMES.get(name, name)} {value}".strip() for name, value in named.items() if value]
        pages = f"{len(mine)} page{'s' * (len(mine) > 1)}"
        lines += [f"{pages}, {mine['seconds'].sum() / 60:.1f} minutes: {', '.join(versions)}.", ""]
    if newest > rows["started"].max():
        lines += [f"The recording that the lessons show is newer than these executions: {newest[:10]}.", ""]
    made = []
    for _, row in rows.iterrows():
        made.append(
            {
                "lesson": f"[{row['lesson'].partition('_')[0]}]({row['lesson']}.ipynb)",
                "begun, UTC": str(row["started"])[11:19],
                "took": f"{row['seconds']:.0f} s",
                "ended": "well" if row["ending"] == "ok" else row["ending"],
                "cells": row["cells"],
                **{name: row[name] for name in ("cases", "gated", "skipped", "profiled")},
                **({"now": row["measured"]} if rows["measured"].any() else {}),
            }
        )
    table = readme.table(pd.DataFrame(made))
    if folded:
        table = [f"<details><summary>{len(made)} lessons</summary>", "", *table, "", "</details>"]
    return [*lines, *table, ""]


_WHERE = ["day", "gpu", "driver", "cuda", "nvrtc", "cupy", "torch", "python", "os", "commit", "effort"]
_NAMES = {
    "day": "",
    "gpu": "",
    "nvrtc": "NVRTC",
    "cupy": "CuPy",
    "cuda": "CUDA",
    "python": "Python",
    "os": "",
}


def _plain(text: str) -> str:
    """Text in which Markdown finds nothing to set."""
    return re.sub(r"([*_<>\[\]#`$|])", r"\\\1", text).rstrip(".")
