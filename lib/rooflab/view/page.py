"""The large pieces of a lesson's page: its first screen, a kernel shown whole, and one that it only links.

All are Markdown, so that a notebook reads as well on a code host, which keeps neither styles nor scripts; on
the site site/page.js sets the callouts into the margin and the changes behind a tab. A lesson calls them from
small cells tagged `hide-input`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from rooflab import ops, paths
from rooflab.errors import UsageError
from rooflab.ops import Rung
from rooflab.records import yaml_file
from rooflab.runtime import nvrtc
from rooflab.view import plot
from rooflab.view.diagram.svg import Drawing
from rooflab.view.display import as_built, body_of, changes, say

MARKS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
WIDEST = 7.4  # inches: the width of a page's text
RESULT = 100  # characters in which an answer holds its result
BRIEF = re.compile(r"\*\*\[`(\w+/\w+)`\]\(\.\./kernels/")  # how what `linked` shows begins
NOTED = 60  # characters in which a note has said what its line does
_KEYS = {"pseudocode", "notes", "helpers", "below", "built", "values"}


def opening(answer: str, able: Sequence[str], chart: tuple[Figure, str] | Drawing | None) -> None:
    """Show a lesson's first screen under its title and question: the result in bold, the chart with its
    caption, and what the reader will be able to do, as ends of "After this page you can".

    `answer` is computed by the cell that calls this: its first sentence, or two where that is short, is the
    result. `chart` is what `ladder` gives, or a figure of the lesson's own (plot.figure with a height of at
    most 2.6) and its caption, or a drawing; None where nothing was measured that it could show. Raises
    UsageError without an answer or without anything to do.
    """
    if not answer or not able:
        raise UsageError("An opening needs its sentence and what the reader will be able to do.")
    say(_emphasised(answer))
    if isinstance(chart, Drawing):
        chart.show()
    elif chart is not None:
        plot.show(*chart)
    say("After this page you can\n\n" + "\n".join(f"- {each}" for each in able))


def _emphasised(answer: str) -> str:
    """Whole sentences of an answer in bold until they are long enough to hold the result, at most its first
    paragraph; the rest plain.
    """
    ends = [match.start() for match in re.finditer(r"(?<=[.?!])\s+", answer)]
    end = next((end for end in ends if end >= RESULT or answer[end] == "\n"), len(answer))
    return f"**{answer[:end]}**{answer[end:]}"


def ladder(
    rows: pd.DataFrame,
    device: object,
    roof: plot.Roof,
    title: str,
    *,
    y: str = "gb_s",
    does: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
) -> tuple[Figure, str]:
    """The ladder of an opening and its caption: own rungs by their numbers and, last, the fastest of the
    peers, as bars of `y` (gb_s, tflop_s or tok_s) under `roof`, (name, value, unit of y). `does` has words
    that follow a rung's name; rungs in `order` come last, as they stand there.
    """
    own = rows[rows["kind"] == "own"]
    number = own["impl"].str.extract(r"^(\d+)", expand=False).astype(float)
    number = number.mask(
        own["impl"].isin(order), own["impl"].map({name: 1e3 + k for k, name in enumerate(order)})
    )
    own = own.loc[number.sort_values(kind="stable").index]
    peers = rows[(rows["kind"] == "peer") & rows[y].notna()]
    shown = pd.concat([own, peers.sort_values(y).tail(1)])
    unit = plot.UNITS[y]
    fig, ax = plot.figure(unit, title=title, height=1.1 + 0.21 * len(shown))
    fig.set_figwidth(WIDEST)
    names = [
        f"{name} (peer)" if kind == "peer" else ": ".join(filter(None, (name, (does or {}).get(name))))
        for name, kind in shown[["impl", "kind"]].to_numpy()
    ]
    rate, low, high = plot.band(shown, y)
    plot.bars(ax, names, rate, unit, (f"{roof[0]} roof", *roof[1:]), low, high)
    for patch, kind in zip(ax.patches, shown["kind"], strict=True):
        if kind == "peer":
            patch.set_facecolor(plot.PEER_COLOUR)
    return fig, plot.caption(shown, device, title, roof, y=y)


def kernel(rung: Rung, pseudocode: str = "", callouts: Mapping[str, str] | None = None, **how: Any) -> None:
    """Show a rung whole: what `whole` writes of the same arguments."""
    display(Markdown(whole(rung, pseudocode, callouts, **how)))


def linked(*keys: str) -> None:
    """Show rungs that the section links ("operator/name") in brief, for a reader of the notebook alone; the
    site shows the whole listing in its place (rooflab.book.listings).
    """
    for key in keys:
        display(Markdown(brief(named(key))))


def brief(rung: Rung) -> str:
    """A rung that a page links, as Markdown: its name and link, its pseudocode, and of its numbered notes
    each line with the first sentences of its note. UsageError for a rung without notes.
    """
    entry = notes_of(rung.operator).get(rung.name)
    if entry is None:
        raise UsageError(f"kernels/{rung.operator}/notes.yaml has nothing on {rung.name}.")
    source = _source(rung, entry.get("helpers", ()), {**entry.get("built", {}), **entry.get("values", {})})
    _, notes = _marked(source, entry["notes"], rung)
    return "\n\n".join(
        [
            f"**[`{rung.key}`](../kernels/{rung.key}.cu)**: {rung.idea}.",
            f"```text\n{entry['pseudocode'].strip(chr(10)).rstrip()}\n```",
            "\n".join(f"{k}. {_quoted(line)}: {_begun(note)}" for k, (line, note) in enumerate(notes, 1)),
        ]
    )


def _begun(note: str) -> str:
    """Whole sentences of a note until they have said something."""
    ends = (match.start() for match in re.finditer(r"(?<=[\w`)*][.?!])\s+", note))
    return note[: next((end for end in ends if end >= NOTED), len(note))].rstrip()


@functools.cache
def notes_of(operator: str) -> dict[str, dict[str, Any]]:
    """By rung of the operator that a page links, what its listing has: `pseudocode` of 10 to 15 lines;
    `notes`, a piece of one line of the source to what that line does; optional `helpers`, functions of
    kernels/common to show with it, `below`, the rung ("operator/name") to compare with where that is not the
    one that it changes, and `built`, macros that decide what is listed; and `values`, macros of the build
    that is listed, named in it.
    """
    file = paths.KERNELS / operator / "notes.yaml"
    found = yaml_file.loaded(file) if file.is_file() else {}
    for name, entry in found.items():
        if not {"pseudocode", "notes"} <= set(entry) <= _KEYS:
            raise UsageError(f"{file}: {name} has {', '.join(sorted(entry))}; it takes {', '.join(_KEYS)}.")
    return dict(found)


def named(key: str) -> Rung:
    """The rung "operator/name"."""
    operator, _, name = key.partition("/")
    return ops.rung_of(ops.module_of(operator).LADDERS[operator], name, name)


def whole(
    rung: Rung,
    pseudocode: str = "",
    callouts: Mapping[str, str] | None = None,
    *,
    helpers: Sequence[str] = (),
    below: Rung | None = None,
    built: Mapping[str, int] | None = None,
    values: Mapping[str, int] | None = None,
    folded: bool = False,
    launch: bool = True,
    aside: bool = False,
) -> str:
    """A rung whole, as Markdown: its launch, pseudocode of 10 to 15 lines, the source with numbered callouts,
    and the changes from the rung `below`, where one is given.

    `callouts` maps a piece of the source, found on one line, or first there, to what that line
    does, in Markdown; they are numbered by their lines. `helpers` are functions of kernels/common that carry
    the idea, shown before the kernel: a name, or the beginning of a signature where a name is overloaded
    ("load_streaming(const uint4*"), behind its header's name where several have it ("ring_tma.cuh/fetch").
    `built` leaves only what these macros do of rung and helpers, as display.as_built says; so do `values`,
    which are named with the launch instead of the macros' defaults. `folded` puts
    the source and the changes behind a line to click, for every kernel of a page but its main ones;
    pseudocode stays in sight, and so do callouts, each under the line that it explains, but on the site,
    where a script sets them beside the code. `launch` False puts the launch and its constants behind that
    line as well, for a kernel whose page explains none of them. `aside`, of a folded kernel, puts its
    pseudocode there, too. Raises UsageError where a callout or a helper is not found.
    """
    built, said = {**(built or {}), **(values or {})}, _launch(rung, built or {}, values or {})
    code, notes = _marked(_source(rung, helpers, built), callouts or {}, rung)
    listed = "\n".join(
        f"{number}. {f'{_quoted(line)} <br>' if folded else ''}{note}"
        for number, (line, note) in enumerate(notes, 1)
    )
    head = f"**`{rung.operator}/{rung.name}`**: {rung.idea}.{said if launch else ''}"
    parts = [f'<div class="rooflab-kernel">\n\n{head}']
    steps = [f"```text\n{pseudocode.strip(chr(10)).rstrip()}\n```"] if pseudocode else []
    parts += [] if aside and folded else steps
    if folded:
        parts += [f'<div class="callouts">\n\n{listed}\n\n</div>'] if notes else []
        summary = f"The whole kernel: {len(code.splitlines())} lines"
        parts.append(f'<details class="source"><summary>{summary}</summary>')
        parts += [] if launch else [said.strip()]
        parts += steps if aside else []
    parts.append(f'<div class="whole">\n\n```cuda\n{code}\n```')
    if notes and not folded:
        parts.append(f'<div class="callouts popout">\n\n{listed}\n\n</div>')
    parts.append("</div>")
    if below is not None and changes(below, rung, built):  # a macro alone may be what differs
        parts.append(_changed(below, rung, built))
    if folded:
        parts.append("</details>")
    parts.append("</div>")
    return "\n\n".join(parts)


def _source(rung: Rung, helpers: Sequence[str], built: Mapping[str, int]) -> str:
    """A rung's source as built, with helpers between its lines of #include and the rest."""
    includes, text = _includes(body_of(rung, built).strip("\n"))
    return "\n\n".join([*includes, *(helper(rung, each, built) for each in helpers), text])


def helper(rung: Rung, name: str, built: Mapping[str, int] | None = None) -> str:
    """The source of a function that a rung takes from kernels/common, its comment included, under a line that
    says which file it is from.
    """
    whose, _, name = name.rpartition("/")
    wanted = re.escape(name) + ("" if "(" in name else r"\(")
    signature = re.compile(rf"^(?:[\w:<>,*& ]+?[ *&])?{wanted}", re.MULTILINE)
    for header, text in nvrtc.headers_of(rung.path.read_text()).items():
        text = as_built(text, built or {})
        found = signature.search(text) if header.endswith(whose) else None
        if found is None:
            continue
        lines = text.splitlines()
        at = text.count("\n", 0, found.start())
        first = at
        while first and re.match(r"//|template\b", lines[first - 1]):
            first -= 1
        last = at
        while not re.search(r"^\}|^\S.*[;}]$", lines[last]):
            last += 1
        return "\n".join([f"// from {header}", *lines[first : last + 1]])
    raise UsageError(f"{rung.operator}/{rung.name} includes no header with a function {name!r}.")


def _includes(text: str) -> tuple[list[str], str]:
    """The lines of #include that a source begins with, as one piece or none, and the rest."""
    lines = text.splitlines()
    count = next(k for k, line in enumerate(lines) if line and not line.startswith("#include"))
    head = "\n".join(line for line in lines[:count] if line)
    return [head] if head else [], "\n".join(lines[count:])


def _marked(text: str, callouts: Mapping[str, str], rung: Rung) -> tuple[str, list[tuple[str, str]]]:
    """The source with a mark at the end of each called line; each such line, unmarked, and its note, in the
    order of the marks.
    """
    lines, at = text.splitlines(), dict[int, str]()
    for piece, note in callouts.items():
        places = [number for number, line in enumerate(lines) if piece in line]
        if not places:
            raise UsageError(f"{rung.operator}/{rung.name} has no line with {piece!r} to call out.")
        if places[0] in at or lines[places[0]].endswith("\\"):
            raise UsageError(f"the line with {piece!r} can't take a callout: it has one, or continues below.")
        at[places[0]] = note
    notes = [(lines[number], at[number]) for number in sorted(at)]
    for mark, number in zip(MARKS, sorted(at), strict=False):
        lines[number] += f"  {mark}" if "//" in lines[number] else f"  // {mark}"
    return "\n".join(lines), notes


def _quoted(line: str) -> str:
    """A line of a source as code in a sentence, without its own comment."""
    return f"`{line.partition('//')[0].strip()}`"


def _launch(rung: Rung, built: Mapping[str, int], values: Mapping[str, int]) -> str:
    """The launch, of the header's comment, and the macros with their defaults or `values`, without what
    `built` fixes.
    """
    head = re.search(r"^// Launch +(.+(?:\n//  +\S.*)*)", rung.path.read_text(), re.MULTILINE)
    said = " ".join(line.strip("/ ") for line in head[1].splitlines()) if head else ""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", said)
    said = " ".join(each for each in sentences if not any(f"-D{name}" in each for name in built))
    left = {name: value for name, value in rung.defines.items() if name not in built}
    macros = ", ".join(f"`{name}` = {value}" for name, value in {**left, **values}.items())
    said = re.sub(r"(?: x|(?<=\w)) ceil\(", " × ceil(", said)
    said = re.sub(r"([*_<\[|])", r"\\\1", said)
    return (f" *Launch:* {said}" if said else "") + (
        f" *Built{' here' * bool(values)} with* {macros}." if macros else ""
    )


def _changed(below: Rung, rung: Rung, built: Mapping[str, int] | None) -> str:
    lines = changes(below, rung, built)
    count = sum(line[0] in "+-" for line in lines)
    same = below.operator == rung.operator
    old, new = (each.name if same else each.key for each in (below, rung))
    text = "```diff\n" + "\n".join([f"--- {old}.cu", f"+++ {new}.cu", *lines]) + "\n```"
    head = f"Changes from {old}: {count} lines"
    if "// Branch " in rung.path.read_text():
        head = f"A new branch: {count} lines differ from {old}"
    return f'<details class="changes"><summary>{head}</summary>\n\n{text}\n\n</details>'
