"""The tables of results that docs/results.md, README.md and the site show, made from the recordings."""

import pandas as pd

from rooflab.analysis import another_gpu, way
from rooflab.claims import Evidence
from rooflab.claims.measures import MEASURES
from rooflab.hardware import device
from rooflab.records import compare
from rooflab.records.case import parse_options
from rooflab.records.csv_table import is_blank
from rooflab.records.store import Store
from rooflab.studies.bandwidth import roofs
from rooflab.studies.power import SIZES
from rooflab.view import plot

PEER = "best recorded peer, and published if faster"
STATES = "power"  # the study that holds rows in other states than the lessons' tables
DRAWN = "unseen"  # the study whose shapes change with its seed
# Not kernels of their own: whichever way a dispatcher takes, and many launches in a row.
_ASIDE = ("product", "chain")
# Whole models: what is shown of each study, decoding after a short prompt, and the prompt that a source used.
_WHOLE = (("decode", 128), ("prefill", 1848))
# What an operator does, in the words of a reader who has not seen its name.
WORDS = {
    "attention": "attention of a prompt",
    "decode_attention": "attention of one token",
    "read": "sum of an array",
    "write": "fill an array",
    "copy": "y = x",
    "triad": "a = b + s·c",
    "saxpy": "z = a·x + y",
    "gemv": "FP32 vector × matrix",
    "gemv_rows": "FP16 matrix × vector, as models store it",
    "int4": "INT4 matrix × vector",
    "q8_0": "Q8_0 (8 bits) matrix × vector",
    "mmq": "Q8_0 matrix × the vectors of a prompt",
}
# Peers that do more than the operator asks: what to say of them beside their rate.
_MORE_WORK = {"torch.sum": "adds in 64 bits"}
_COLUMNS = ("operator", "shape", "ours", "time", "achieved", "of its roof", "best recorded peer")
_KEPT = ("operator", "ours, sustained", "peer, sustained")
_OTHERS = ("operator", "ours", "peer", "its weights", "its time", "its bytes")


def compared(store: Store) -> pd.DataFrame:
    """Of each study and operator that is compared with a roof the row that speaks for it: our fastest rung
    by what it achieves (the median of its samples, graph clock, cold), at the sizes that most peers were
    measured at. The same rows are the tables' and numbered in the roofline."""
    found = []
    for study in store.studies():
        everything = store.read(study)
        table = everything[everything["roof"].fillna("").ne("") & everything["roof_fraction"].notna()]
        for operator, group in table.groupby("operator", sort=False):
            if operator in _ASIDE or study in (STATES, DRAWN):
                continue
            cold = group[group["cache"] == "cold"]
            group = cold if len(cold) else group
            own = group[(group["kind"] == "own") & (group["clock"] == "graph")]
            if own.empty:
                continue
            rivals = everything[(everything["operator"] == operator) & (everything["kind"] != "own")]
            among = _most_compared(own, rivals[rivals["median_us"].notna()])
            found.append(among.sort_values("roof_fraction").tail(1))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["operator", "impl"])


def results(store: Store) -> pd.DataFrame:
    """The `compared` rows in words, the best of the recorded peers beside each, by whichever clock of the
    bench shows it best, of those that read the same weights."""
    rows = [
        {
            "operator": best["operator"],
            "shape": shape(best),
            "ours": best["impl"],
            "time": f"{best['median_us']:,.1f} µs",
            "achieved": _achieved(best),
            "of its roof": f"{best['roof_fraction']:.0%} of {best['roof']}",
            "best recorded peer": _peer(_rivals(store, best), best, store),
        }
        for _, best in compared(store).iterrows()
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def kept_up(store: Store) -> pd.DataFrame:
    """What the `compared` rows and their fastest peers keep up when power limits them, where it was timed."""
    rows = [(best["operator"], *_sustained(store, best)) for _, best in compared(store).iterrows()]
    return pd.DataFrame([row for row in rows if row[1]], columns=list(_KEPT))


def other_weights(store: Store) -> pd.DataFrame:
    """The fastest peers of the `compared` products that hold the weights in another format."""
    rows = [
        (best["operator"], f"{best['format']}, {best['median_us']:,.1f} µs", *other)
        for _, best in compared(store).iterrows()
        for other in _other_weights(_rivals(store, best), best)
    ]
    return pd.DataFrame(rows, columns=list(_OTHERS))


def _rivals(store: Store, best: pd.Series) -> pd.DataFrame:
    everything = store.read(str(best["study"]))
    return everything[(everything["operator"] == best["operator"]) & (everything["kind"] != "own")]


def shape(row: pd.Series) -> str:
    """The sizes of a row in words: of attention, with its format, of a product, or of arrays."""
    if not pd.isna(row["seq"]):
        seen = f", window {row['window']:,}" if not pd.isna(row["window"]) else ""
        form = str(row["format"]).upper()
        heads = f"{row['heads']}/{row['kv_heads']}"  # of queries, and of keys and values
        return f"{row['seq']:,} tokens, {heads} heads of {row['head_dim']}{seen}, {form}"
    if not pd.isna(row["k"]):
        tokens = f", {row['batch']:,} tokens" if not pd.isna(row["batch"]) and row["batch"] > 1 else ""
        return f"{row['n']} × {row['k']}{tokens}"
    return f"{plot.size_text(row['n']).removesuffix('B').rstrip()} elements"


def _most_compared(own: pd.DataFrame, rivals: pd.DataFrame) -> pd.DataFrame:
    """Our rows of the problems that the most different rivals were timed on."""
    by_problem = rivals.groupby([*SIZES, "cache"], dropna=False)["impl"].nunique()
    many = pd.DataFrame({"rivals": by_problem}).reset_index()
    counted = own.merge(many, how="left", on=[*SIZES, "cache"])["rivals"].fillna(0).to_numpy()
    return own[counted == counted.max()]


def _achieved(row: pd.Series) -> str:
    return f"{_rate(row):,.0f} GB/s" if _streams(row) else f"{_rate(row):,.1f} TFLOP/s"


def _streams(row: pd.Series) -> bool:
    """Whether bandwidth is what counts of a row: one without a roof is judged by its FLOPs, if it has any."""
    roof = row["roof"] if isinstance(row["roof"], str) and row["roof"] else ""
    return roof.startswith(("dram_", "l2_", "pcie_")) if roof else pd.isna(row["tflop_s"])


def _rate(row: pd.Series) -> float:
    return float(row["gb_s"] if _streams(row) else row["tflop_s"])


def _same_problem(rows: pd.DataFrame, best: pd.Series) -> pd.DataFrame:
    """The rows of the same sizes as `best`, and of the same cache where they name one."""
    for column in (*SIZES, "cache"):
        rows = rows[(rows[column] == best[column]) | (rows[column].isna() & pd.isna(best[column]))]
    return rows


def _named_format(row: pd.Series) -> bool:
    return isinstance(row["format"], str) and row["format"] != ""


def _peer(rivals: pd.DataFrame, best: pd.Series, store: Store | None = None) -> str:
    """The fastest timed rival of the same problem and format; which rivals the recording lacks; and the
    fastest published one of the same GPU, if that is faster than what was recorded."""
    same = _same_problem(rivals, best)
    same = (
        same[same["format"] == best["format"]]
        if _named_format(best)
        else same[same["bytes"] == best["bytes"]]
    )
    timed = same[same["median_us"].notna()].sort_values("median_us")
    found, known = [], 0.0
    if len(timed):
        peer = timed.iloc[0]
        eager = ", called eagerly" if peer["clock"] == "event" else ""
        more = f" (no equal: it {_MORE_WORK[peer['impl']]})" if peer["impl"] in _MORE_WORK else ""
        found, known = [f"{peer['impl']}{more}{eager}: {_achieved(peer)}"], _rate(peer)
    lacking = sorted(set(same.loc[same["median_us"].isna(), "impl"]) - set(timed["impl"]))
    if lacking:
        found.append(f"not recorded: {', '.join(lacking)}")
    if store is not None:
        there = way.published(store, str(best["study"]))
        there = _same_problem(there[there["operator"] == best["operator"]].assign(cache=best["cache"]), best)
        column = "gb_s" if _streams(best) else "tflop_s"
        there = there[there[column] > known].sort_values(column)
        if len(there):
            last = there.iloc[-1]
            unit = "GB/s" if column == "gb_s" else "TFLOP/s"
            found.append(f"published: {last['impl']}, {last['format']}: {last[column]:,.0f} {unit}")
    return "; ".join(found)


def _other_weights(rivals: pd.DataFrame, best: pd.Series) -> list[tuple[str, str, str, str]]:
    """Of each other format of the weights the fastest timed rival of the same product: its name, format and
    time, and how many times the bytes of ours it holds and reads."""
    same = _same_problem(rivals, best)
    same = same[same["median_us"].notna() & (same["format"] != best["format"]) & same["format"].ne("")]
    if same.empty or not _named_format(best) or pd.isna(best["n"]) or pd.isna(best["k"]):
        return []
    fastest = same.sort_values("median_us").drop_duplicates("format")
    shares = fastest["bytes"].astype(float) / float(best["bytes"])
    return [
        (str(row.impl), str(row.format), f"{row.median_us:,.1f} µs", f"{share:.2g}× ours")
        for row, share in zip(fastest.itertuples(), shares, strict=True)
    ]


def _sustained(store: Store, best: pd.Series) -> tuple[str, str]:
    """What the same case and its fastest rival keep up by themselves, from the study of states; "" where
    it was not timed."""
    rows = store.read(STATES)
    rows = rows[(rows["state"] == "sustained") & (rows["operator"] == best["operator"])]
    rows = _same_problem(rows[rows["median_us"].notna() & (rows["format"] == best["format"])], best)
    own, rivals = (
        rows[ours].sort_values("median_us") for ours in (rows["kind"] == "own", rows["kind"] != "own")
    )
    peer = f"{rivals.iloc[0]['impl']}: {_achieved(rivals.iloc[0])}" if len(rivals) else ""
    return (_achieved(own.iloc[0]) if len(own) else ""), peer


def models(store: Store, every: bool = True) -> pd.DataFrame:
    """One row for each model and format (or, not `every`, for a model's fastest), one sequence and the most
    that were measured: the tokens a second of our fastest way through the whole model (wall clock), of the
    fastest recorded peer, and of the fastest published one if that is faster; of those with such weights, if
    there are any, else of all."""
    rows = []
    for study, tokens in _WHOLE:
        table = store.read(study)
        table = table[(table["seq"] == tokens) & table["tok_s"].notna()]
        table = table[table["batch"].isin((1, table["batch"].max()))]
        published = way.published(store, study)
        published = published[published["seq"].isna() | (published["seq"] == tokens)]
        for _, group in table.groupby(["model", "batch"], sort=True):
            model, batch = str(group["model"].iloc[0]), int(group["batch"].iloc[0])
            peers = group[group["kind"] == "peer"]
            there = published[(published["model"] == model) & (published["batch"].fillna(1) == batch)]
            own = group[group["kind"] == "own"]
            if not every and len(own):
                own = own[own["format"] == own.sort_values("tok_s")["format"].iloc[-1]]
            for form in sorted(own["format"].unique()):
                mine = own[own["format"] == form]
                best = mine.sort_values("tok_s").iloc[-1]
                head = str(parse_options(best["options"]).get("head", form))
                many = f"{batch} sequences" if batch > 1 else "one sequence"
                beside = _fastest_alike(peers, form)
                least = float(beside["tok_s"].max()) if len(beside) else 0.0
                more = _fastest_alike(there[there["tok_s"] > least], form)
                named = [f"{row.impl}, {row.format}: {row.tok_s:,.0f}" for row in beside.itertuples()]
                named += [
                    f"published: {row.impl}, {row.format}: {row.tok_s:,.0f}" for row in more.itertuples()
                ]
                rows.append(
                    {
                        "model": model,
                        "weights": form if head == form else f"{form}, {head} head",
                        "what": f"{study}, {many if study == 'decode' else f'{tokens:,} tokens'}",
                        "ours": best["impl"],
                        "tokens a second": f"{best['tok_s']:,.0f}",
                        "of its roof": f"{best['roof_fraction']:.0%} of {best['roof']}",
                        PEER: "; ".join(named),
                    }
                )
    return pd.DataFrame(rows)


_ALIKE = {"int4_g128": ("int4_g128", "q4_0")}  # formats of weights that take about as many bytes


def _fastest_alike(rows: pd.DataFrame, form: str) -> pd.DataFrame:
    """The row with the most tokens a second, among those whose weights are like `form`'s if there are any."""
    alike = rows[rows["format"].isin(_ALIKE.get(form, (form,)))]
    return (alike if len(alike) else rows).sort_values("tok_s").tail(1)


def device_line(store: Store) -> str:
    """Which GPU the figures are of, when they were measured, and of one recording, which may have been
    interrupted and resumed, how long that took; empty without a run.
    """
    runs = store.runs()
    if runs.empty:
        return ""
    last = runs.iloc[-1]
    day, took = str(last["started"])[:10], ""
    once = runs["commit"].nunique() == 1 and runs["started"].astype(str).str[:10].nunique() == 1
    if once and not is_blank(last["finished"]):
        took = f" in {MEASURES['recording_minutes'](Evidence(store)):.0f} minutes"
    when = f"on {day}" if once else f"last on {day}"
    return f"Measured on the {last['gpu']} (driver {last['driver']}, CUDA {last['cuda']}) {when}{took}."


def gpu_of(store: Store) -> str:
    """The name of a recording's GPU."""
    return str(store.runs().iloc[-1]["gpu"])


def ceilings(store: Store) -> pd.DataFrame:
    """The device's roofs: what lesson 01 measured in a burst and, where power holds it, sustained, beside the
    datasheet's dense figure, where it states one."""
    runs = store.runs()
    spec = device.match(str(runs.iloc[-1]["gpu"])) if len(runs) else None
    rows, found = [], roofs(store.read("bandwidth"))
    for name, roof in found.items():
        if name.endswith("_sustained"):
            continue
        kept = found.get(f"{name}_sustained")
        stated = getattr(spec, "dram_gb_s" if name.startswith("dram_") else name, None)
        rows.append(
            {
                "roof": name,
                "measured": f"{roof.value:,.0f} {roof.unit}",
                "sustained": f"{kept.value:,.0f} {kept.unit}" if kept else "",
                "datasheet": f"{stated:,.0f} {roof.unit}" if stated else "",
                "share": f"{roof.value / stated:.0%}" if stated else "",
            }
        )
    return pd.DataFrame(rows, columns=["roof", "measured", "sustained", "datasheet", "share"])


def repeated(store: Store) -> pd.DataFrame:
    """How near a second recording of the same GPU model, if the course keeps one, comes to this one: a row a
    clock, as `rooflab compare` prints them.
    """
    found = compare.repeated(store)
    return pd.DataFrame(
        {
            "clock": found["clock"],
            "cases": found["cases"],
            "median time over ours": found["median"].map("{:.3f}".format),
            f"within {compare.NEAR:.0%}": found["within"].map("{:.1%}".format),
        }
    )


def markdown(store: Store) -> str:
    """The line that names the GPU, what our kernels reach, and its roofs, as Markdown."""
    kernels = results(store)
    if kernels.empty:
        return f"There is no recording of {store.device} yet.\n"
    whole = models(store)
    parts = {
        "Operators": kernels.assign(operator=kernels["operator"].map(_in_words)),
        "Whole models": whole,
        "Sustained, as power allows": kept_up(store),
        "The same products by peers with weights in another format": other_weights(store),
        "Roofs": ceilings(store),
        "The same cases on other cards and hosts": repeated(store),
    }
    notes = {"The same cases on other cards and hosts": _HOSTS}
    if other := another_gpu.recorded(store):
        gpu = other.runs().iloc[-1]["gpu"]
        parts[f"Libraries on the {gpu}"] = another_gpu.libraries(other)
        parts[f"Ours on the {gpu}"] = another_gpu.operators(store, other, WORDS)
        notes[f"Libraries on the {gpu}"] = another_gpu.sentence(other)
        notes[f"Ours on the {gpu}"] = another_gpu.memory(store, other)
    lines = [device_line(store)]
    for place, (head, part) in enumerate(parts.items()):
        if len(part) and place < 2:
            lines += ["", f"**{head}**", "", *table(part)]
            lines += ["", _CONDITIONS[place]]
            lines += ["", _PASSED] if any(map(_passes, part["of its roof"])) else []
            lines += (
                ["", _HEADS] if "weights" in part and part["weights"].str.endswith("q8_0 head").any() else []
            )
        elif len(part):
            lines += ["", f"<details><summary>{head}</summary>", "", *table(part)]
            lines += ["", notes[head]] if head in notes else []
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


_CONDITIONS = (
    "Caches are cold; the clock is a CUDA graph's, but for peers called eagerly. Of attention and quantised "
    "products, which power could slow, the GPU rests before each sample (a burst). Heads are those of "
    "queries / of keys and values. `q8_0` finds its vector in 8 bits; lesson 07 counts what making them "
    "takes. A stream at 100% sets its own roof.",
    f"Decoding starts after {_WHOLE[0][1]} tokens; the clock is the host's; weights are random, of the real "
    "shapes. A peer has weights of as many bits, where such a peer is known. *Published*: by others for this "
    "GPU model, on another card and day.",
)
_PASSED = (
    "A share above 100%: a tensor roof is the rate that cuBLAS reached on a product of 8,192³, not a limit "
    "of the chip. Another kernel can pass it; the datasheet's rate is the limit."
)


def _passes(share: str) -> bool:
    """Whether a share such as "103% of fp16_tensor" is above a tensor roof."""
    return "tensor" in share and float(share.partition("%")[0]) > 100


_HOSTS = (
    "The `graph` clock times the GPU alone. `event` and `wall` also hold what the host takes to launch, and "
    "hosts differ. `rooflab compare h200 examples/second_recording/h200` prints every case."
)

_HEADS = (
    "A head is a model's last matrix, which scores every token of the vocabulary. With its head in Q8_0 a "
    "model reads fewer bytes than on the decoder's ladder, whose INT4 steps keep the head in FP16."
)


def _in_words(operator: str) -> str:
    """An operator with what it does: "mmq: Q8_0 matrix × the vectors of a prompt"."""
    return f"{operator}: {WORDS[operator]}" if operator in WORDS else operator


def table(frame: pd.DataFrame) -> list[str]:
    """The lines of a frame as a table in Markdown, what is missing as an empty cell."""
    shown = frame.astype(object).where(frame.notna(), "")
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|" + " --- |" * len(frame.columns)]
    return lines + [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
        for row in shown.itertuples(index=False)
    ]
