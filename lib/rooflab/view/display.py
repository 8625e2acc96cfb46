"""What a notebook puts on its page beside figures: computed sentences, tables, sources and diffs."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display

from rooflab import lab as labs
from rooflab.errors import UsageError
from rooflab.hardware import crossover
from rooflab.lab.lacking import beyond
from rooflab.ops import Rung
from rooflab.view import branches
from rooflab.view.captions import contestants
from rooflab.words import listed, times


def say(text: str) -> None:
    """Display Markdown: how a sentence states a number, interpolated from rows instead of typed."""
    display(Markdown(text))


def table(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    formats: Mapping[str, str] | None = None,
    caption: str = "",
    folded: bool = False,
) -> None:
    """Display `columns` (name in the frame -> heading) of a frame as a plain HTML table.

    `formats` gives format specifications for numbers ("{:,.1f}"); a missing value shows as an empty cell.
    Rungs that the frame's recording lacks (Lab.measure) get a row that says so.
    `folded` shows the caption as a line to click instead, for tables that only back a figure or a sentence.
    """
    body = _html(frame, columns, formats, "" if folded else caption)
    if folded:
        body = f'<details style="margin-bottom: 1em"><summary>{caption}</summary>\n{body}\n</details>'
    display(HTML(body))


def fold(summary: str, tables: Iterable[Sequence[Any]], lean: bool = False) -> None:
    """Display tables behind one line to click; each is given as the first arguments of `table`: frame,
    columns and, where wanted, formats and a caption. `lean` writes a row a line, not a cell a line: of a
    long table half the bytes.
    """
    inside = "\n".join(_html(*each, lean=lean) for each in tables)
    display(HTML(f"<details><summary>{summary}</summary>\n{inside}\n</details>"))


def fold_parts(summary: str, parts: Iterable[str | Sequence[Any]], lean: bool = False) -> None:
    """Display paragraphs of Markdown, and tables given as for `fold`, behind one line to click."""
    inside = "\n\n".join(each if isinstance(each, str) else _html(*each, lean=lean) for each in parts)
    say(f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>")


def fold_items(summary: str, lines: Iterable[str]) -> None:
    """Display a list of Markdown lines behind one line to click."""
    items = "\n".join(f"- {line}" for line in lines)
    say(f"<details><summary>{summary}</summary>\n\n{items}\n\n</details>")


def _html(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    formats: Mapping[str, str] | None = None,
    caption: str = "",
    *,
    lean: bool = False,
) -> str:
    shown = pd.DataFrame(
        {
            heading: [_cell(value, (formats or {}).get(name)) for value in frame[name]]
            for name, heading in columns.items()
        }
    )
    if "impl" in frame:
        for rung in frame.attrs.get("not_yet_measured", ()):
            shown.loc[len(shown)] = [rung, *["not yet measured", *[""] * len(columns)][: len(columns) - 1]]
    body = shown.to_html(index=False, border=0, classes="rooflab", justify="left")
    body = re.sub(r"\n +", "\n", re.sub(r"\s+(<t[dh]\b|</tr>)", r"\1", body)) if lean else body
    return body.replace("<thead>", f"<caption>{caption}</caption>\n  <thead>", 1) if caption else body


def _cell(value: object, form: str | None) -> str:
    if value is None or value is pd.NA or value != value:  # NaN is not itself
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if form:
        return form.format(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_built(text: str, macros: Mapping[str, int]) -> str:
    """CUDA C++ as the preprocessor leaves it for these macros: what they leave out is gone, and so are the
    directives that ask for them alone (NAME, NAME == n, NAME >= n or NAME > n). Everything else stays.
    """
    kept: list[str] = []
    asked: list[bool | None] = []  # of every open conditional: whether it holds, None if it asks for others
    for line in text.splitlines():
        directive = re.match(r"#(if|ifdef|ifndef|elif|else|endif)\b *(.*)", line)
        word, rest = (directive[1], directive[2]) if directive else ("", "")
        if word.startswith("if"):
            condition = re.fullmatch(r"(\w+)(?: (==|>=|>) (\d+))?", rest)
            if condition is None or condition[1] not in macros:
                asked.append(None)
            elif word == "if":
                value, number = macros[condition[1]], int(condition[3] or 0)
                holds = {"==": value == number, ">=": value >= number, ">": value > number}
                asked.append(holds.get(condition[2], value != 0))
            else:
                asked.append(word == "ifdef")
        ours = bool(asked) and asked[-1] is not None and word != ""
        if ours and word == "elif":
            raise UsageError(f"as_built follows #if, #else and #endif, not {line.strip()!r}.")
        if ours and word == "else":
            asked[-1] = not asked[-1]
        if not ours and all(holds is not False for holds in asked):
            kept.append(line)
        if word == "endif":
            asked.pop()
    return "\n".join(kept) + "\n"


def body_of(rung: Rung, built: Mapping[str, int] | None = None) -> str:
    """A rung's source from its first directive or function on: without the header comment; with `built`
    only what these macros leave of it.
    """
    text = as_built(rung.path.read_text(), built or {})
    text = branches.taken(text, built) if built else text
    start = re.search(r'^(#|extern "C"|__device__|template)', text, re.MULTILINE)
    return text[start.start() if start else 0 :]


def source(rung: Rung, built: Mapping[str, int] | None = None) -> None:
    """Display a rung's source, header comment and all; with `built` only what these macros leave of it."""
    display(Markdown(f"```cuda\n{as_built(rung.path.read_text(), built or {}).rstrip()}\n```"))


def header(rung: Rung) -> None:
    """Display a rung's header comment as a list: purpose, shapes, bytes, launch, and what changed."""
    lines = itertools.takewhile(lambda line: line.startswith("//"), rung.path.read_text().splitlines())
    first, text = next(lines)[2:].strip(), ""
    for line in (line[2:].removeprefix(" ") for line in lines):
        label = re.match(r"([A-Z]\w*) +(?=\S)", line)
        line = re.sub(r"([*_<\[|])", r"\\\1", line[label.end() if label else 0 :].strip())
        text += f"\n- **{label[1]}**: {line}" if label else f" {line}" if line else ""
    display(Markdown(f"**{first}**\n{text}"))


def diff(below: Rung, rung: Rung, folded: bool = False, built: Mapping[str, int] | None = None) -> None:
    """Display what changed from the rung below: a unified diff without header comments, where lines that only
    moved to the right or left count as the same. `folded` shows a line to click instead, for long ones;
    `built` shows only what these macros leave of both.
    """
    lines = [f"--- {below.name}.cu", f"+++ {rung.name}.cu", *changes(below, rung, built)]
    text = "```diff\n" + "\n".join(lines) + "\n```"
    if folded:
        head = f"{rung.name}: {rung.idea} ({len(lines) - 2} lines of changes from {below.name})"
        text = f"<details><summary>{head}</summary>\n\n{text}\n\n</details>"
    display(Markdown(text))


def changes(below: Rung, rung: Rung, built: Mapping[str, int] | None = None) -> list[str]:
    """The lines of a unified diff from the rung below, as `diff` shows them, without its two head lines."""
    before, after = body_of(below, built), body_of(rung, built)
    if below.operator == rung.operator:  # entry names differ in every rung; they would hide what changed
        before, after = (
            text.replace(each.entry, rung.operator) for each, text in ((below, before), (rung, after))
        )
    return list(_changes(before.splitlines(), after.splitlines()))


def _changes(before: list[str], after: list[str]) -> Iterator[str]:
    """Unified diff of two texts' lines with two lines of context, indentation ignored."""
    old, new = ([line.strip() for line in lines] for lines in (before, after))
    for group in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_grouped_opcodes(2):
        spans = (group[0][1], group[-1][2], group[0][3], group[-1][4])
        yield f"@@ -{spans[0] + 1},{spans[1] - spans[0]} +{spans[2] + 1},{spans[3] - spans[2]} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in after[j1:j2])
            else:
                yield from (f"-{line}" for line in before[i1:i2])
                yield from (f"+{line}" for line in after[j1:j2])


def level(row: pd.Series, other: pd.Series) -> bool:
    """Whether two times agree: their quartiles overlap, or their medians lie within 2 % of each other."""
    return crossover.verdict(row, other) == crossover.NEITHER


def against(row: pd.Series, other: pd.Series) -> str:
    """How the speed of `row` compares with that of `other`, as the middle of a sentence: "is level with", or
    "runs at 1.14 times the speed of".
    """
    if level(row, other):
        return "is level with"
    return f"runs at {float(other['median_us']) / float(row['median_us']):.2f} times the speed of"


def speed(ratio: float) -> str:
    """What a ratio of speeds says of the first, to stand behind "is": "3.2 times as fast", "as fast" within
    2 %, or "slower, at 0.48 times the speed".
    """
    if 1 / crossover.LEVEL <= ratio <= crossover.LEVEL:
        return "as fast"
    return f"{times(ratio)} times as fast" if ratio > 1 else f"slower, at {times(ratio)} times the speed"


def gain(row: pd.Series, other: pd.Series) -> str:
    """How many times as fast as `other` a row is, by the medians: "3.9"; where the quartiles of either are
    more than 5 % apart, the least and the most that the quartiles give: "3.5 to 3.9".
    """
    if not (crossover.scattered(row) or crossover.scattered(other)):
        return times(other["median_us"] / row["median_us"])
    low, high = (times(other[a] / row[b]) for a, b in (("q1_us", "q3_us"), ("q3_us", "q1_us")))
    return low if low == high else f"{low} to {high}"


def change(ratio: float) -> str:
    """What a quantity does that ends at `ratio` times its start: "grows 3.2 times", "stays as it is" within
    2 %, or "falls to 0.48 of it".
    """
    if 1 / crossover.LEVEL <= ratio <= crossover.LEVEL:
        return "stays as it is"
    return f"grows {times(ratio)} times" if ratio > 1 else f"falls to {times(ratio)} of it"


def power_rows(lab: labs.Lab, *operators: str) -> pd.DataFrame:
    """The rows of the study `power` that the lab can give, of `operators` alone if any are named: a page that
    shows one operator measures no other.
    """
    cases = [case for case in lab.cases("power") if not operators or case.operator in operators]
    return lab.measure("power", lab.held("power", cases))


def borrowed(lab: labs.Lab, why: str) -> labs.Lab:
    """The committed recording of an H200, for what a page's own recording lacks: `why` is the clause that
    says so, such as "nothing was traced". The page says whose figures follow.
    """
    other = labs.open("replay", "h200")
    say(f"On the {lab.run.gpu} {why}: the figures that follow are those of a recorded **{other.run.gpu}**.")
    return other


def several(mode: str, device: str, effort: str, gpus: int, study: str = "links") -> labs.Lab:
    """A lab over so many GPUs of one host. Where no recording of `study` is of so many of `device`, it is a
    committed one, and the page says so.
    """
    lab = labs.open(mode, device, effort, gpus=gpus, study=study)
    if lab.mode == "replay" and lab.device != f"{Path(device).name}-x{gpus}":
        why = f"Of {gpus} such GPUs nothing was recorded"
        say(f"{why}: the figures that follow are those of a recorded **{lab.run['gpu']}**.")
    return lab


def holding(lab: labs.Lab, study: str, *names: str, tool: str = "", model: str | None = None) -> labs.Lab:
    """The lab itself if it can give what a page is about: timed own rows of a study, each of `names` (an impl
    of the study or a roof), of a `model` alone if it is given, and rows of an instrument. Else the committed
    recording, `borrowed`.
    """
    lacking = beyond(lab, study, names, tool, model)
    if not lacking:
        return lab
    here = "was recorded" if lab.mode == "replay" else "can be measured"
    return borrowed(lab, f"no {listed(lacking).replace(' and ', ' or ')} {here}")


def standings(rows: pd.DataFrame) -> str:
    """A ladder in words: the fastest own rung, who is level with it, and what share of its speed others
    reach.
    """
    own = rows[rows["kind"] == "own"]
    best = own.sort_values("median_us").iloc[0]
    even, apart = [], []
    for (_, row), name in zip(rows.iterrows(), contestants(rows), strict=True):
        if row["case"] == best["case"]:
            continue
        if level(row, best):
            even.append(name)
        else:
            apart.append(f"{name} {best['median_us'] / row['median_us']:.0%}")
    text = f"The best rung of `{best['operator']}` is `{best['impl']}` with **{best['gb_s']:,.0f} GB/s**."
    text += f" Level with it: {', '.join(even)}." if even else ""
    return text + (f" The others reach, of its speed: {', '.join(apart)}." if apart else "")
