"""What lesson 06's page shows: its tables, figures and computed sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rooflab.analysis import attention as analysis
from rooflab.analysis import way
from rooflab.hardware import roofline
from rooflab.lab import Lab
from rooflab.ops import Rung
from rooflab.pages import NEAR, Opening, Rows
from rooflab.pages import facts as facts
from rooflab.pages.lesson_06_limits import busiest, l2_rate, verdict_on
from rooflab.pages.lesson_06_limits import l2_said as l2_said
from rooflab.pages.lesson_06_limits import reads as reads
from rooflab.pages.lesson_06_limits import reads_said as reads_said
from rooflab.pages.lesson_06_limits import under_roofs as under_roofs
from rooflab.pages.lesson_06_limits import units as units
from rooflab.records.case import Case
from rooflab.studies import attention as study
from rooflab.view import display, explorer, page
from rooflab.view.diagram import copies
from rooflab.words import listed, times

ABLE = (
    "say from its reads whether an attention kernel is bound by memory, by shared memory or by tensor cores",
    "compute a softmax in one pass",
    "follow FlashAttention from one dot product to tensor cores; in 06e you write it",
)


def opening(rows: Rows, again: Rows, gpu: object, seq: int, peak: float) -> Opening:
    """The first screen: what the ladder gains, its share of the matrix roof, and the ladder."""
    own = rows[rows["kind"] == "own"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    seen, share = (seq + 1) / 2, study.HEADS // study.KV_HEADS
    gain = f"is {display.speed(first['median_us'] / best['median_us'])} as {first['impl']}"
    gain = "is the fastest rung" if best["impl"] == first["impl"] else gain
    answer = f"On the {gpu} {best['impl']} {gain}, with {best['tflop_s']:,.0f} TFLOP/s"
    roof = ("FP16 matrix", peak, "TFLOP/s")
    answer += f", {best['tflop_s'] / peak:.0%} of the tensor cores' roof." if peak == peak else "."
    answer += (
        f" {first['impl']} reads each key {again['times'].iloc[0]:,.0f} times: for {share} query heads × "
        f"{seen:,.1f} queries that see it on average.{_steps(own)}"
    )
    once = rows.sort_values("median_us").drop_duplicates("impl").sort_index()
    return answer, ABLE, page.ladder(once, gpu, roof, f"Attention, {seq} tokens", y="tflop_s")


def _steps(own: Rows) -> str:
    """What each rung is worth over the one before it, the first of them FlashAttention's tile."""
    us = own.groupby("impl", sort=False)["median_us"].min()
    gains = us.shift() / us
    if "2_tiled" not in gains.index or len(gains) < 3 or gains.isna()["2_tiled"]:
        return ""
    rest = gains.iloc[gains.index.get_loc("2_tiled") + 1 :]
    text = (
        " FlashAttention keeps a tile of queries on the chip and streams the keys past it (`2_tiled`): that "
    )
    text += f"alone is {gains['2_tiled']:.2f} times as fast. The steps after it bring "
    return text + listed(f"{gain:.2f} (`{name}`)" for name, gain in rest.items()) + " times."


def rereads(cases: list[Case]) -> pd.DataFrame:
    """How often cases read K and V: impl, options, GB, and how often each byte is read."""
    found = []
    for case in cases:
        asked, shape = analysis.requested_bytes(case), study.shape_of(case)
        unique = 2 * shape.context * shape.kv_heads * shape.head_dim * 2
        found.append([case.impl, case.options or "", asked / 1e9, asked / unique])
    return pd.DataFrame(found, columns=["impl", "options", "gb", "times"])


def with_bounds(rows: Rows) -> Rows:
    """Rows with the least time of rung 3's own products: half of a kernel's products are those of scores, and
    rung 3 makes two of them an instruction, where the recorded bound has one.
    """
    packed = rows["impl"] == "3_half2"
    return rows.assign(predicted_us=rows["predicted_us"].mask(packed, 0.75 * rows["predicted_us"]))


def predicted_then_measured(rows: Rows, again: Rows, here: Lab, counted: Rows, *names: str) -> None:
    """Say of each rung the least time that its reads from L2 and its products allow, what was measured, their
    ratio and what it says: by its fastest row, beside the rung below, with its busiest unit as `counted`.
    """
    own = rows[rows["kind"] == "own"].sort_values("median_us").drop_duplicates("impl").set_index("impl")
    ladder = [name for name in dict.fromkeys(again["impl"]) if name in own.index]
    asked = again.set_index(["impl", "options"])["gb"]
    rate, lines = l2_rate(here), []
    for name in (name for name in names if name in own.index):
        row = own.loc[name]
        gb, us = asked[name, row["options"] or ""], float(row["median_us"])
        reading, products = 1e6 * gb / rate, float(row["predicted_us"])
        bound = max(products, reading) if reading == reading else products
        by_reads = f"{gb:,.1f} GB from L2 at {rate:,.0f} GB/s, if L1 answers none"
        said = f"at least {bound:,.0f} µs by its products"
        said += f" (its reads: {reading:,.0f} µs, {by_reads})" if reading == reading else ""
        if bound == reading:
            said = f"about {bound:,.0f} µs by its reads ({by_reads}; its products: {products:,.0f} µs)"
        text = f"`{name}`, **predicted**: {said}. **Measured**: {us:,.0f} µs{_built(row, rows)}"
        at = ladder.index(name)
        if at:
            text += f", {display.speed(own.loc[ladder[at - 1], 'median_us'] / us)} as `{ladder[at - 1]}`"
        verdict = verdict_on(us / bound, bound == reading)
        if us / bound > NEAR:
            verdict += busiest(counted, f"{name} {row['options'] or ''}".strip(), rate)
        lines.append(f"{text}. {verdict}")
    if lines:
        display.say(lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines))


def by_shared_memory(rows: Rows, here: Lab, name: str, flops: float, head_dim: int) -> None:
    """Say the least time of a rung that loads a word of shared memory for each multiply-add, by those loads
    and with the shuffles that add up a score, beside what was measured.
    """
    own = rows[rows["impl"] == name].sort_values("median_us")
    if own.empty or not here.spec:
        return
    loads, shuffles = (
        2 * -(-head_dim // 32),
        5,
    )  # turns of a warp for each key: words of key and value, warp_sum
    keys = flops / (4 * head_dim)  # pairs of a query and a key, of all heads
    clocks = int(here.run["sms"]) * here.spec.boost_mhz  # of all SMs in a µs
    least, both = (keys * turns / clocks for turns in (loads, loads + shuffles))
    share = both / own["median_us"].iloc[0]
    text = f"By shared memory: for each query and key a warp loads {loads} × 32 words, and an SM's shared "
    text += f"memory gives 32 words (128 bytes) a clock: at least {least:,.0f} µs ({keys / 1e6:,.0f} million "
    text += f"pairs × {loads} clocks ÷ {int(here.run['sms'])} SMs ÷ {here.spec.boost_mhz / 1e3:.2f} GHz). "
    text += (
        f"A score's {shuffles} shuffles go to the same unit; if each takes a clock as well, {both:,.0f} µs, "
    )
    text += f"{share:.0%} of what was measured."
    display.say(text)


def built_with(rows: Rows, name: str) -> dict[str, int]:
    """The macro QUERIES of a rung's fastest row, where it has one: its listing is of that build."""
    own = rows[rows["impl"] == name].sort_values("median_us").head(1)
    build = "".join(own["options"].fillna("")).partition("queries=")[2]
    return {"QUERIES": int(build)} if build else {}


def twice_the_rows(six: Rung, seven: Rung) -> None:
    """Say how many queries the drawing's steps of two rungs serve, and why the second has shorter tiles."""
    texts = [rung.path.read_text(encoding="utf-8") for rung in (six, seven)]
    (once, few), (twice, many) = (copies.steps_of(text) for text in texts)
    keys, fewer = six.defines["KEYS"], seven.defines["KEYS"]
    ratio = "twice" if many == 2 * few else f"{many // few} times"
    text = f"In the drawing {twice:g} steps of rung 7 serve {many} queries, for which rung 6 needs {ratio} "
    text += f"its {once:g}. A thread has the scores of {ratio} as many queries. So a tile has {fewer} keys "
    display.say(f"{text}instead of {keys}: then they take {few * keys // 128} registers, as before.")


def _built(row: Any, rows: Rows) -> str:
    """With which QUERIES a rung's fastest row was built, and how long the others take."""
    build = str(row["options"] or "").partition("queries=")[2]
    if not build:
        return ""
    others = rows[rows["impl"].eq(row.name) & rows["options"].ne(row["options"])].dropna(subset=["options"])
    said = [
        f"{other['median_us']:,.0f} with {other['options'].partition('queries=')[2]}"
        for other in others.to_dict("records")
    ]
    return f" with QUERIES = {build}" + (f" ({', '.join(said)})" if said else "")


def least_times(
    seq: int, heads: int, head_dim: int, kv_heads: int, sheet: Any, roof: float | None
) -> tuple[float, float]:
    """The least times by the datasheet, and how its tensor peak differs from the measured `roof`; the
    operations and the bytes once, which it returns.
    """
    pairs = roofline.attention_pairs(seq, seq)
    flops = roofline.attention_flops(pairs, heads, head_dim)
    once = roofline.attention_bytes(seq, seq, heads, kv_heads, head_dim)
    found = [("all bytes once, from DRAM", once / sheet[0] / 1e3)]
    found += [("all operations, ordinary FP32 units", flops / sheet[1] / 1e6)]
    found += [("all operations, tensor cores", flops / sheet[2] / 1e6)]
    least = pd.DataFrame(found, columns=["what", "us"])
    display.table(least, {"what": "No faster than", "us": "µs"}, {"us": "{:,.1f}"})
    display.say(
        f"{pairs:,} pairs a head, {flops / 1e9:,.0f} GFLOP in {once / 1e6:,.0f} MB: "
        f"{flops / once:,.0f} operations a byte. Prediction: DRAM is not the limit, "
        "and no kernel takes less than its own arithmetic."
    )
    if roof and roof != sheet[2]:
        display.say(
            f"**Two yardsticks.** *Bounds* and *at least* are by the datasheet's peak, on tensor cores "
            f"{sheet[2]:,.0f} TFLOP/s. The charts' *roofs* were measured: {roof:,.0f} is what a library's "
            f"matrix product reached ([lesson 01b](01b_roofs.ipynb)), {roof / sheet[2]:.0%} of the peak."
        )
    return flops, once


def measured(rows: Rows) -> None:
    """Every contestant with its error, prediction, time, gain and registers."""
    rows["who"] = (rows["impl"] + " " + rows["options"].fillna("")).str.strip()
    rows["off"] = rows["error"] / rows["error_budget"]
    own = rows["kind"] == "own"
    rows["gain"] = (rows["median_us"].shift() / rows["median_us"]).where(own & own.shift(fill_value=False))
    names_of = {"who": "Rung or peer", "off": "Error ÷ allowed"}
    rows["over"] = rows["median_us"] / rows["predicted_us"]
    names_of |= {"predicted_us": "Datasheet: at least (µs)", "median_us": "Median (µs)"}
    names_of |= {"over": "Median ÷ least", "gain": "× the row above", "registers": "Registers"}
    forms = dict.fromkeys(("predicted_us", "median_us"), "{:,.0f}") | {"off": "{:.0%}"}
    forms |= dict.fromkeys(("over", "gain"), "{:.2f}")
    display.table(rows, names_of, forms, "Every rung and peer", folded=True)
    judged = rows.dropna(subset=["over"]).sort_values("over")
    if len(judged):
        faster = judged.loc[judged["over"] < 1, "who"]
        near = judged.iloc[0]
        text = "**Verdict** on the datasheet's least times: "
        text += f"faster than its bound: {listed(faster)}. " if len(faster) else "all take longer. "
        display.say(f"{text}The nearest is {near['who']}, at {near['over']:.2f} times its bound.")


def against_peers(rows: Rows, gpu: str) -> None:
    """Say what the ladder gains as a whole, and where its best stands beside the peers."""
    by = rows.set_index("who")
    own = by[by["kind"] == "own"]
    first, best = own.iloc[0], own.sort_values("median_us").iloc[0]
    text = f"From {first['impl']} to {best['impl']} it is a factor of "
    text += f"{times(first['median_us'] / best['median_us'])} on the {gpu}, by the same formula. "
    peers = by[by["kind"] == "peer"].sort_values("median_us")
    if len(peers):
        text += f"Of the peers {peers.index[0]} is the fastest. "
        for rival in dict.fromkeys([peers.index[0], "torch.sdpa_flash"]):
            if rival in peers.index:
                text += f"{best['impl']} {display.against(best, peers.loc[rival])} {rival}. "
    display.say(text)


def counters(cases: list[Any], names: list[Any], here: Lab) -> Rows:
    """What Nsight Compute counted of the rungs, with `who`, a rung with its options; no rows where it could
    not count.
    """
    own = [c for c in cases if c.kind == "own" and c.impl in names]
    profile = here.profile("attention", own, "ncu", study.COUNTERS)
    counted = analysis.counted(profile, own)
    if len(counted):
        counted["who"] = (counted["impl"] + " " + counted["options"]).str.strip()
    return counted


def takeaway(
    rows: Rows,
    seq: int,
    flops: float,
    once: float,
    again: Rows,
    rungs: dict[str, Any],
    gpu: str,
    matrix: float,
    counted: Rows,
) -> None:
    """The takeaway; a factor of reads is the counted one where both rungs were `counted`."""
    best = rows[rows["kind"] == "own"].sort_values("median_us").iloc[0]
    text = (
        f"- A prompt of {seq} tokens has {flops / once:,.0f} operations a byte. Attention is bound by reads, "
    )
    text += "from L2 or DRAM, only if a kernel makes it so.\n"
    own = rows[rows["kind"] == "own"].sort_values("median_us").drop_duplicates("impl").set_index("impl")
    first, second = (own.loc[name] for name in list(dict.fromkeys(again["impl"]))[:2])
    read = again.set_index(["impl", "options"])["times"]
    fewer = read[first.name, first["options"] or ""] / read[second.name, second["options"] or ""]
    by = counted.set_index("who")["sm_read_bytes"] if len(counted) else pd.Series(dtype=float)
    who = [f"{row.name} {row['options'] or ''}".strip() for row in (first, second)]
    fewer = by[who[0]] / by[who[1]] if set(who) <= set(by.index) else fewer
    step = display.speed(first["median_us"] / second["median_us"])
    text += (
        f"- Tiles that a block shares cut what is read from L2 by a factor of {fewer:.0f}; rung 2 is {step}"
    )
    build = str(second["options"] or "").partition("queries=")[2]
    text += f" (with {build} queries a block)" if build else ""
    gained = first["median_us"] / second["median_us"]
    text += ": once there are fewer reads, something else limits.\n" if 0 < gained < fewer / 2 else ".\n"
    tensor = best["impl"] in list(rungs)[3:]
    text += "- Then arithmetic counts: tensor cores take it to " if tensor else f"- {best['impl']} reaches "
    text += f"{best['tflop_s']:,.0f} TFLOP/s on the {gpu}"
    text += f", {best['roof_fraction']:.0%} of the matrix roof" if matrix else ""
    text += ", once shared memory keeps up.\n" if tensor else ", without tensor cores.\n"
    text += '- A verdict like "memory-bound" is a number. Count it.'
    display.say(text)


def on_the_ladder(here: Lab) -> None:
    """Say which step of the decoder's ladder this page leads to: part 06d's."""
    who = "The online softmax, for one query at a time in [part 06d](06d_decode.ipynb),"
    display.say(way.place("06d", here.store, who))


def explore(here: Lab, names: list[str], heads: int, spec: Any, gpu: str) -> explorer.Explorer:
    """The explorer: every recorded length and width of this page's rungs, `names`, and of their peers."""
    asked = [c for c in here.cases("attention") if c.operator == "attention" and not c.options]
    asked = [c for c in asked if (c.heads, c.format, c.window) == (heads, "fp16", None)]
    rows = here.measure("attention", [c for c in asked if c.kind == "peer" or c.impl in names])

    def bound(case: Case) -> float | None:
        return study.Attention().predict(case, study.Context(device=spec))

    own = rows[rows["kind"] == "own"].sort_values("tflop_s")
    first = {name: own.iloc[-1][name] for name in ("impl", "head_dim", "seq")} if len(own) else None
    return explorer.Explorer(
        "attention",
        rows,
        x="seq",
        y="tflop_s",
        controls={"impl": "Contestant", "head_dim": "Width"},
        roof=here.roof,
        title=f"Attention on {gpu}",
        bound=bound,
        start=first,
        measure=explorer.measurer(here),
    )
