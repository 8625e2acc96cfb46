"""What lesson 05's page shows: the Q8_0 format byte by byte, and the quantiser of activations."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pandas as pd

from rooflab import paths
from rooflab.lab import Lab
from rooflab.numerics import quant
from rooflab.pages import Opening, Rows, bars
from rooflab.studies import q8_0 as study
from rooflab.view import diagram, display, explorer, plot

_BLOCKS, _PLANES = "3_scale", "4_planes"  # rungs of part 05b


def _layouts(here: Lab) -> Rows:
    """Part 05b's product of blocks, of planes with one load at a time, and of planes with several: a row
    each, with its name in `layout`, of those that were measured.
    """
    rows = here.measure("q8_0", here.held("q8_0", study.ladder(*study.SHAPES[0])))
    one = here.held("q8_0", study.loads(*study.SHAPES[0])[:1])
    rows = rows[rows["impl"].isin([_BLOCKS, _PLANES])]
    alone = here.measure("q8_0", one) if one else rows[:0]
    return pd.concat(
        [
            rows[rows["impl"] == _BLOCKS].assign(layout="34-byte blocks, 2 bytes a load"),
            alone.assign(layout="planes, 16 bytes a load, one at a time"),
            rows[rows["impl"] == _PLANES].assign(layout="planes, 16 bytes a load, several"),
        ]
    )


def opening(here: Lab) -> Opening:
    """The first screen: where the bytes of a block lie, and what another layout of them is worth."""
    rows, gpu = _layouts(here), here.run["gpu"]
    us = rows.set_index("layout")["median_us"]
    answer = f"34 bytes hold 32 weights, {34 * 8 / 32:.1f} bits each. 34 is no multiple of 4, so a lane that "
    answer += (
        "takes a block by itself can rely on 2-byte loads alone. The same bytes as planes are read 16 at "
    )
    answer += "a time"
    if len(us) > 1 and us.index[0].startswith("34"):
        answer += f": on the {gpu} the first kernel that reads planes "
        answer += f"{display.against(rows.iloc[1], rows.iloc[0])} the last that reads blocks "
        answer += "([05b](05b_decode.ipynb) lists its other changes)"
    able = (
        "decode a Q8_0 block from a GGUF file, byte by byte",
        "say what alignment does to a warp's loads",
        "quantise activations, and know what that costs",
    )
    return answer + ".", able, diagram.q8_layouts()


def layouts_compared(here: Lab) -> None:
    """Draw the read speed of part 05b's product by layout; nothing where a layout was not measured."""
    rows, gpu = _layouts(here), here.run["gpu"]
    if len(rows) < 2:
        return
    text = "What is that worth? [Part 05b](05b_decode.ipynb) builds kernels for one token's product."
    if len(rows) > 2:
        text += " The first bar is of the last that reads blocks, the second of the first that reads planes, "
        text += "in which more than the layout changes. The third asks for several loads before it uses the "
        text += "first, which 05b explains:"
    display.say(text)
    title, (n, k) = "Read speed of one product, one token", study.SHAPES[0]
    roof = ("read", here.roof["dram_read"].value, "GB/s")
    fig, _ = bars(rows, list(rows["layout"]), gpu, title, roof, "gb_s")
    said = f"{title}, {n:,} × {k:,} on {gpu}, {plot.dates(rows)}: part 05b's rung 3 (34-byte "
    said += "blocks), and rung 4 (planes) by the loads that a lane has under way."
    plot.show(fig, said)


def gguf_file() -> tuple[Any, int, Any]:
    """Read a GGUF file and say what its head holds: the bytes, where blocks begin, the blocks."""
    raw = (paths.ROOT / "examples" / "blocks.gguf").read_bytes()
    magic, version, tensors = struct.unpack_from("<4sIQ", raw)
    name = b"blk.0.ffn_up.weight"
    at = raw.index(name) + len(name)
    dimensions, k, n, kind, place = struct.unpack_from("<IQQIQ", raw, at)
    start = -(-(at + 32) // 32) * 32 + place  # data begin at a multiple of 32
    blocks = np.frombuffer(raw, quant.Q8_0, n * k // 32, start).reshape(n, -1)
    display.say(
        f"{len(raw)} bytes: {magic.decode()} version {version}, {tensors} tensor, "
        f"`{name.decode()}` of {n} rows by {k}, type {kind} (Q8_0), {blocks.size} blocks "
        f"from byte {start} on. The header and the file's end are padded to a multiple of 32 bytes."
    )
    return raw, start, blocks


def first_block(raw: Any, start: int) -> None:
    """Show the first bytes of a block."""
    head = raw[start : start + 34]
    bits = f"{head[1]:08b}{head[0]:08b}"
    sign, exponent, fraction = bits[0], bits[1:6], bits[6:]
    scale = (1 + int(fraction, 2) / 1024) * 2.0 ** (int(exponent, 2) - 15)
    lines = [("0, 1", head[:2].hex(" "), f"{sign} {exponent} {fraction}", f"scale {scale:.8f}")]
    for i in (2, 3, 33):
        q = head[i] - 256 * (head[i] > 127)
        value = f"{q} × scale = {q * scale:.6f}"
        lines.append((f"{i}", f"{head[i]:02x}", f"{head[i]:08b}", value))
    lines = pd.DataFrame(lines, columns=["byte", "hex", "bits", "is"])
    display.table(lines, {"byte": "Byte", "hex": "Hex", "bits": "Bits", "is": "Is"})


def round_trip(blocks: Any, raw: Any, start: int) -> None:
    """Say that bytes to weights and back, and planes and back, change nothing."""
    weights = quant.dequantise_q8(blocks)
    again = quant.to_bytes(quant.quantise_q8_0(weights)).tobytes()
    planes = quant.to_planes(blocks)
    back = quant.to_bytes(quant.from_planes(planes)).tobytes()
    same = raw[start : start + blocks.nbytes]
    verdict = {True: "the same", False: "NOT the same"}
    display.say(
        f"The first weight is {weights[0, 0]:.6f}. Quantised again, all {len(same)} bytes are "
        f"{verdict[again == same]}; repacked into planes (below) and back, {verdict[back == same]}."
    )


def cost_of_an_outlier() -> None:
    """Show what one large number costs the precision of its block."""

    def lost(times):
        x = np.random.default_rng(1).standard_normal((64, 4096))
        x[:, ::256] *= times  # one number in 256
        x = x.astype(np.float32)
        error = quant.dequantise_q8(quant.quantise_q8_1(x)) - x
        rest = np.ones(256, bool)  # of a block with a large number, the 31 others
        rest[0], rest[32:] = False, False
        rest = np.tile(rest, 16)
        return [
            float(np.sqrt((error[:, i] ** 2).mean() / (x[:, i] ** 2).mean())) for i in (slice(None), rest)
        ]

    grown = pd.DataFrame({"times": [1, 8, 64]})
    grown[["lost", "beside"]] = [lost(times) for times in grown["times"]]
    grown["times"] = ["1 (no outlier)", *(f"{times}" for times in grown["times"][1:])]
    names = {"times": "One number in 256, made so many times larger"}
    names |= {"lost": "Typical error of all numbers, of their typical size"}
    names |= {"beside": "Of the outlier's 31 neighbours"}
    display.table(grown, names, dict.fromkeys(("lost", "beside"), "{:.1%}"))


def alignment() -> None:
    """Show where the quants of neighbouring blocks start, and in planes."""
    starts = pd.DataFrame({"block": range(6)})
    starts["byte"] = 34 * starts["block"] + 2
    starts["mod4"], starts["mod16"] = starts["byte"] % 4, starts["byte"] % 16
    starts["plane"] = 32 * starts["block"]
    names = {"block": "Block", "byte": "Quants start at", "mod4": "mod 4", "mod16": "mod 16"}
    names["plane"] = "In a plane of quants"
    display.table(starts, names, caption="Where the quants of neighbouring blocks start", folded=True)


def quantisers(here: Lab, k: int, copy_roof: float) -> Rows:
    """Show both quantisers by number of tokens; the rows."""
    cases = [c for c in here.cases("q8_0") if c.operator == "q8_1" and c.k == k]
    rows = here.measure("q8_0", cases or study.quantisers(k))
    rows["floor"] = rows["bytes"] / copy_roof / 1e3
    names = {"batch": "Tokens", "impl": "Rung", "floor": "At the copy roof (µs)"}
    names |= {"median_us": "Median (µs)", "gb_s": "GB/s", "error": "Largest error"}
    forms = {"floor": "{:.2f}", "median_us": "{:.2f}", "gb_s": "{:,.0f}", "error": "{:g}"}
    caption = "Both quantisers by number of tokens"
    written = rows["batch"].max() * k * 34 / 32
    if written < int(here.run["l2_bytes"]):
        caption += (
            f". The copy roof is no least time: the output, {written / 1e6:.0f} MB at most, fits the L2"
        )
    display.table(rows.sort_values(["batch", "impl"]), names, forms, caption, folded=True)
    return rows


def quantisers_drawn(k: int, rows: Rows, rungs: Any, gpu: str) -> None:
    """Draw both quantisers by number of tokens."""
    title = f"Quantising tokens of {k} activations, cold"
    fig, ax = plot.figure("tokens", "µs", title, xlog=True, ylog=True)
    for impl, group in rows.groupby("impl"):
        plot.series(ax, group["batch"], *plot.band(group, "median_us"), label=impl)
    floor = rows[rows["impl"] == rungs[-1].name].sort_values("batch")
    plot.series(ax, floor["batch"], floor["floor"], label="bytes at the copy roof")
    ticks = sorted(rows["batch"].unique())
    ax.set_xticks(ticks, [str(tokens) for tokens in ticks])
    plot.round_ticks(ax)
    plot.label_ends(ax)
    text = plot.caption(rows, gpu, title, y="median_us")
    plot.show(fig, text + " Few tokens pay for a launch, many for their bytes.")


def quantisers_compared(rows: Rows, rungs: Any, gpu: str) -> Rows:
    """Say what quantising few tokens and many costs; the row of the fewest."""
    last = rows[rows["impl"] == rungs[-1].name].set_index("batch")
    few, many = last.loc[last.index.min()], last.loc[last.index.max()]
    text = f"On the {gpu}, {rungs[-1].name} takes {few['median_us']:.1f} µs for "
    text += f"{last.index.min()} token and {many['median_us']:.1f} µs for {last.index.max()}, "
    text += f"{many['median_us'] / many['floor']:.1f} times what its bytes take at the copy roof. "
    slow = rows[rows["impl"] == rungs[0].name].set_index("batch")
    verdict = display.against(many, slow.loc[last.index.max()])
    text += f"At {last.index.max()} tokens it {verdict} {rungs[0].name}."
    first = slow.loc[last.index.max(), "median_us"]
    if first > 1.5 * many["median_us"]:
        text += (
            f" That rung takes {first / slow.loc[last.index.max(), 'floor']:.1f} times what its bytes take "
        )
        text += (
            "there: a lane has one number, so a warp's load brings 64 bytes, it stores single bytes, and the "
        )
        text += (
            "largest of a block takes five shuffles. Rung 2 has eight numbers a lane, loads 16 bytes, and "
        )
        text += "shuffles twice. Which of these saves most was not measured."
    display.say(text)
    return few


def takeaway(few: Rows, gpu: str) -> None:
    """What to take away, computed."""
    text = "- Q8_0 is 34 bytes for 32 weights: a scale in FP16, and 32 whole numbers.\n"
    text += "- A block's error follows its largest number.\n"
    text += (
        "- 34 is not a multiple of 4, so a lane can rely on 2-byte loads of a block alone. Planes are read "
        "16 bytes at a "
    )
    text += "time, and repacking into them loses nothing.\n"
    text += (
        f"- Quantising one token takes {few['median_us']:.1f} µs on the {gpu}; at the copy roof its bytes "
    )
    text += f"would take {few['floor']:.1g} µs."
    text += " The rest is a kernel's start and end." if few["median_us"] > 2 * few["floor"] else ""
    display.say(text)


def explore(rows: Rows, copy_roof: float, gpu: str, here: Lab) -> Any:
    """The explorer of both quantisers, by number of tokens."""
    return explorer.Explorer(
        "q8-quantise",
        rows.assign(predicted_us=rows["floor"]),  # by the copy roof, as everywhere on the page
        x="batch",
        controls={"impl": "Rung", "k": "Activations"},
        roof=("DRAM copy", copy_roof, "GB/s"),
        title=f"Quantising to Q8_1 on {gpu}",
        foretold="{} µs at the measured copy roof",
        bound=lambda case: case.batch * case.k * (2 + 34 / 32) / copy_roof / 1e3,
        measure=explorer.measurer(here),
    )
