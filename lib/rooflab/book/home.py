"""The site's first page, as Markdown: the decoder's ladder, the recording's pictures, and contents with
paths to read by and how long they take. All of it from recordings and the lessons."""

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from rooflab import paths
from rooflab.analysis import way
from rooflab.book import readme
from rooflab.book.lessons import Opening
from rooflab.book.parameters import recorded_devices
from rooflab.hardware import device
from rooflab.records.store import Store
from rooflab.studies import decode
from rooflab.view.diagram import report

# What to read with little time: each longer path holds the shorter one.
PATHS = (
    (
        "An hour",
        "CUDA from zero, how to time a kernel, what a roof is, why the order of reading matters, a product "
        "that models use, what fewer bytes bring, and the decoder made of it all",
        ("00", "00b", "01", "03", "03d", "04", "08"),
    ),
    (
        "A day",
        "the first part of every lesson on one GPU, and the parts that climb a whole ladder",
        (
            *("00", "00a", "00b", "01", "02", "03", "03b", "03d", "04", "04b"),
            *("05", "05b", "05d", "06", "06b", "06e", "07", "08", "09"),
        ),
    ),
    ("A week", "all of it in order, with the exercises", ()),
)
_ROOFS = {"fp16_tensor": "FP16 tensor", "bf16_tensor": "BF16 tensor", "int8_tensor": "int8 tensor"}
_ROOFS |= {"dram_read": "read", "dram_triad": "triad (reads and writes)"}
PACE = 200  # words that a reader of such text reads a minute


def chosen(found: Iterable[Opening], names: Sequence[str]) -> list[Opening]:
    """The lessons of a path, by number and part, as far as there are; no names means all."""
    return [one for one in found if not names or one.name in names]


def begin(found: Sequence[Opening]) -> str:
    """The paths through the lessons, and how long each takes to read."""
    lines = ["## Where to begin", ""]
    for name, why, names in PATHS:
        mine = chosen(found, names)
        links = ", ".join(f"[{one.name}]({one.stem}.ipynb)" for one in mine)
        lines += [f"- **{name}**: {why}. {links if names else f'All {len(found)} pages'}; {reading(mine)}."]
    lines += ["", f"Reading is counted at {PACE} words a minute, without what is folded away."]
    lines[-1] += " The rest of a day or a week is for the exercises."
    lines += ["", "Each page ends with a link to the next. Exercises need no GPU unless they say so.", ""]
    return "\n".join(lines)


# The lessons by what they are about: a heading, and the numbers of its lessons.
GROUPS = (
    ("Measure a GPU, and find where its time goes", ("00", "01", "02")),
    ("Read memory at full speed", ("03",)),
    ("Read fewer bytes", ("04", "05")),
    ("Attention", ("06",)),
    ("Choose a kernel, and build the decoder", ("07", "08")),
    ("Judge claims", ("09",)),
    ("Two GPUs", ("10",)),
)


def contents(found: Sequence[Opening]) -> str:
    """Every lesson with its question, in groups; lessons that no group names come last."""
    lines = ["## Lessons", ""]
    named = {number for _, numbers in GROUPS for number in numbers}
    rest = tuple({one.stem[:2]: None for one in found if one.stem[:2] not in named})
    for head, numbers in (*GROUPS, ("More", rest)):
        mine = [one for one in found if one.stem[:2] in numbers]
        if mine:
            lines += [f"**{head}**", "", *_listed(mine), ""]
    return "\n".join(lines)


def _listed(found: Iterable[Opening]) -> list[str]:
    lines = []
    for one in found:
        head = re.sub(r"^Lesson (\w+): ", r"\1 ", one.title)
        stop = "" if head.endswith("?") else "."
        lines += [f"- [{head}]({one.stem}.ipynb)" + (f"{stop} {one.question}" if one.question else "")]
    return lines


def reading(pages: Iterable[Opening]) -> str:
    """How long the pages take to read: minutes, or hours where they are several."""
    minutes = sum(one.words for one in pages) / PACE
    return f"{minutes:.0f} minutes of reading" if minutes < 90 else f"{minutes / 60:.1f} hours of reading"


def the_way(store: Store, found: Sequence[Opening]) -> str:
    """The decoder's ladder, each step with the lesson that it comes from; nothing where none was recorded."""
    climbed = way.ladder(store)
    if climbed.empty:
        return ""
    lines = [f"## From {way.ends(climbed)}", ""]
    text = f"What the course builds up to: {decode.MODEL} writes one text on {readme.gpu_of(store)}, "
    text += f"after a prompt of {decode.PROMPT} tokens, at first by a library's own loop, at last by one "
    lines += [f"{text}kernel that makes all tokens, with weights of a quarter of the bytes.", ""]
    return "\n".join([*lines, way.bars(store, {one.stem for one in found}), "", way.like_for_like(store), ""])


def pictures(store: Store) -> str:
    """A recording's roofline and its GPU's place among the recorded ones, as HTML; nothing without roofs."""
    if store.runs().empty:
        return ""
    others = [Store(paths.DATA, name) for name in recorded_devices(paths.DATA)]
    stores = [store, *(each for each in others if each.folder.resolve() != store.folder.resolve())]
    rows = readme.compared(store)
    roofline, places = report.roofline(store, rows), report.places(stores, readme.gpu_of(store))
    shown = []
    if roofline:
        said = "The higher a kernel, the faster it computes; the further right, the more arithmetic it has "
        said += f"for each byte. {_whose_roofs(rows)} (FLOP: one addition or multiplication. "
        said += "FP16: 16-bit numbers. Other names are in the [glossary](glossary.md).) The "
        said += "[results](results.md) say "
        said += f"what each numbered operator does, and at which shape.\n\n{_above(store)}"
        shown += [roofline._repr_mimebundle_()["text/html"], "", said]
    if places:
        shown += ["", places._repr_mimebundle_()["text/html"]]
    return "\n".join(["## How near to the roofs", "", *shown, ""]) if shown else ""


def _whose_roofs(rows: pd.DataFrame) -> str:
    """What the percentage of each numbered operator is of, and which operators set their own roof."""
    named = rows[(rows["flops"] > 0) & (rows["bytes"] > 0)] if len(rows) else rows
    named = named.sort_values("roof_fraction", ascending=False) if len(named) else named
    text = "A percentage is of the operator's own roof"
    text += ", which is named behind it." if len(named) else "."
    for number, (operator, roof) in enumerate(zip(named["operator"], named.get("roof", ()), strict=False), 1):
        if (operator, roof) == ("mmq", "fp16_tensor"):
            text += f" Number {number} has 8-bit weights, but its products are FP16 ones."
        if roof == f"dram_{operator}":
            text += f" Number {number} set its roof itself, so it is at 100% by definition."
    return text


def _above(store: Store) -> str:
    """Which kernels are above a measured roof, at what shape, and why they can be; nothing where none is."""
    points = report.kernels(store)
    over = points[points["roof_fraction"] > 1].sort_values("roof_fraction")
    if over.empty:
        return ""
    most, many = over.iloc[-1], len(over)
    sheet = getattr(device.match(readme.gpu_of(store)), str(most["roof"]), None)
    squares = f"{many} of the kernels drawn are" if many > 1 else "One of the kernels drawn is"
    roof = _ROOFS.get(str(most["roof"]), most["roof"])
    text = "A tensor roof is the rate that a library's product of random matrices reached, not the most that "
    text += "the chip can do, so a kernel may pass it.\n\n<details><summary>Which kernels are above a roof"
    text += f"</summary>\n\n{squares} above a roof, the highest "
    text += f"{most['operator']} `{most['impl']}` ({readme.shape(most)}) at {most['roof_fraction']:.0%} of "
    text += f"the {roof} roof."
    text += f" This kernel is at {most['rate'] / sheet:.0%} of the data sheet." if sheet else ""
    return f"{text}\n\n</details>"
