"""What rendered pages claim, read sentence by sentence: where one contradicts itself, the table beside it,
or the recording that it is about.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Table = list[list[str]]  # rows of texts, the header first

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
OPENED = "application/x-rooflab-opened"  # the type under which a replay notes a recording that a cell read


@dataclass
class Cell:
    """What a cell says (prose, captions), shows (tables), and reads beside the page's own recording."""

    number: int
    prose: str
    tables: list[Table] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)


def cell(number: int, printed: str, outputs: Sequence[dict[str, str]]) -> Cell:
    """A cell from what it printed and displayed."""
    prose, tables, opened = [printed], [], []
    for output in outputs:
        opened += [output[OPENED]] if OPENED in output else []
        shown = output.get("text/html", "")
        tables += [_rows(body) for body in re.findall(r"<table.*?</table>", shown, re.S)]
        said = output.get("text/markdown", "")
        prose.append("" if said.startswith("```") else re.sub(r"```.*?```", "", said, flags=re.S))
        prose += [_plain(text) for text in re.findall(r"<caption>.*?</caption>", shown, re.S)]
    return Cell(number, "\n".join(text for text in prose if text.strip()), tables, opened)


def _rows(body: str) -> Table:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.S)
    return [[_plain(each) for each in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)] for row in rows]


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", text)).strip()


def number(text: str) -> float:
    return float(text.replace(",", ""))


def contradictions(cells: Sequence[Cell], gpu: str, counted: bool = True) -> list[str]:
    """What is wrong with a page about a recording of `gpu`, one line each; `counted` says whether its
    recording holds counters and traces."""
    found = []
    whole = " ".join(each.prose + str(each.tables) for each in cells)
    borrowed = False  # up to this cell
    for i, each in enumerate(cells):
        borrowed = borrowed or bool(_BORROWED.search(each.prose))
        before = ""
        for sentence in sentences(each.prose):
            said = [*_alone(sentence), *_after(sentence, before), *_against(sentence, cells[: i + 1])]
            before = sentence
            if not counted and not borrowed and _COUNTED.search(sentence):
                said.append("speaks of counters that the recording lacks")
            if "NVIDIA H200" not in gpu and not borrowed and _OURS.search(sentence):
                said.append("gives a figure to the H200, which this recording is not of")
            found += [f"[{each.number}] {what}: {sentence}" for what in said]
        for name in dict.fromkeys(
            each.opened if each.prose or each.tables else ()
        ):  # what is read may be shown
            if not (borrowed if name in ("h200", "h200-x2") else _named(name, whole)):
                found.append(f"[{each.number}] shows figures of {name} without its name")
    return found


_BORROWED = re.compile(r"[Tt]he figures that follow are those of a recorded \*\*NVIDIA H200\*\*")
_COUNTED = re.compile(r"counters? (?:agree|show|find|differ)|is counted (?:as|within)|GPU counted is")
_OURS = re.compile(r"\bOn (?:the |a )?\**NVIDIA H200\b")
_CALLED = {"h200": "NVIDIA H200", "h200-peers": "H200", "rtx-4070-laptop-published": "laptop|4070"}
_CALLED |= {"rtx-4090-published": "4090|publish|source|story", "rtx-4070-ti-published": "4070|publish|source"}
_CALLED |= {"rtx-4090-peers": "4090", "h200-x4": "four (GPUs|H200s)"}
_CALLED |= dict.fromkeys(("h100-sxm", "h100-sxm-x2"), "H100")


def _named(recording: str, text: str) -> bool:
    return re.search(_CALLED[recording], text, re.I) is not None


def sentences(prose: str) -> Iterator[str]:
    """The sentences of a text, each item of a list one or more."""
    for line in re.sub(r"\n(?![-\n*])", " ", prose).splitlines():
        yield from (s.strip() for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`*(])", line) if s.strip())


# --- a sentence alone ---------------------------------------------------------------------------------------

_NEVER = (
    (r"(?<![\w`/.])(?:nan|inf|<NA>|NaT)(?![\w`])|\b(?:on|at|by) None\b", "states no figure"),
    (r"(?<![\d.,])0 of 0\b", "counts nothing"),
    (r"(?<![\d.,×] )(?<![\d.,])-0(?:\.0+)?\s?%", "states a negative nothing"),
    (r"(?:costs?|saves?|takes?|adds?|leaves out) (?:\*\*)?-\d", "gives a cost or a saving the wrong sign"),
    (r"(?:\s|\*)-\d[\d,.]*\*{0,2} (?:µs|ms|ns)\b(?! (?:off|away))", "states a negative time"),
    (r"(?<![\d.,])0(?:\.0+)? times\b(?! NaN)", "rounds a ratio to nothing"),
)
# A claim, the number it speaks of, and what must hold of it.
_SIDES = (
    (rf"\b(?:wins?|won|gains?|beats?)\b[^.;:]*? by \**({_NUMBER}) times", 1, "wins by a factor under one"),
    (
        rf"\b(?:wins|still|removes|helps|beats)\b[^;:]*?\**({_NUMBER})\** times as fast",
        1,
        "praises what is slower",
    ),
    (rf"\b(?:wins|brings) \**({_NUMBER}) times", 1, "wins by a factor under one"),
    (rf"\bgrows (?:by a factor of )?({_NUMBER}) times", 1, "grows by a factor under one"),
    (rf"\bcut [^.;]*? and the time by ({_NUMBER})", 1, "cuts a time by a factor under one"),
    (rf"\bremoves (?:the )?waiting and is ({_NUMBER})", 1, "praises what is slower"),
)


def _alone(sentence: str) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "`code`", sentence)
    for pattern, what in _NEVER:
        if re.search(pattern, text):
            yield what
    for pattern, least, what in _SIDES:
        yield from (what for found in re.finditer(pattern, text) if number(found[1]) < least)
    for few, many in re.findall(
        r"(?<![\d.,])(\d[\d,]*) of (\d[\d,]*)(?![\d.,]*\d)(?! (?:the|its|FP16))", text
    ):
        if number(few) > number(many):
            yield "counts more than there are"
    pair = re.search(rf"smaller the matrices.*? at ({_NUMBER})% .*? at ({_NUMBER})%", text)
    if pair and number(pair[1]) > number(pair[2]):
        yield "says that small matrices lose where they do not"
    pair = re.search(rf"memory is the limit.*?DRAM ({_NUMBER}) % busy.*?({_NUMBER}) % of the issue", text)
    if pair and number(pair[1]) < number(pair[2]):
        yield "calls memory the limit where the issue slots are busier"


def _after(sentence: str, before: str) -> Iterator[str]:
    """What a sentence concludes from the one before it."""
    figures = [number(text) for text in re.findall(rf"({_NUMBER}) ?%", before)]
    if "does not depend on which" in sentence and figures and max(figures) >= 5:
        yield "sees no difference where there is one"
    if "bottleneck has moved" in sentence and len(figures) > 1 and not figures[-1] < 50 <= figures[-2]:
        yield "sees a bottleneck move that did not"


# --- a sentence and the tables of its page ------------------------------------------------------------------

_WHO = r"`?([\w.]*\w(?: queries=\d+)?)`?"
_RACE = re.compile(rf"{_WHO} (?:runs at ({_NUMBER}) times the speed of|(is level with)) {_WHO}")
_BEST = re.compile(rf"(?:[Tt]he best rung of `?\w+`? is|[Tt]he fastest rung is|[Tt]he fastest way is) {_WHO}")
_TENSOR = re.compile(rf"tensor cores take it to ({_NUMBER}) TFLOP/s")
_TIME = re.compile(r"median|µs|\bms\b", re.I)
_PLAIN_RUNGS = ("1_scalar", "2_tiled", "3_half2")


def _against(sentence: str, cells: Sequence[Cell]) -> Iterator[str]:
    tables = [table for each in reversed(cells) for table in each.tables]
    for one, ratio, _, other in _RACE.findall(sentence.rstrip(".")):
        seen = [us[other] / us[one] for us in _times(tables) if one in us and other in us and us[one]]
        if ratio and seen and not any(abs(each / number(ratio) - 1) < 0.06 for each in seen):
            yield f"{one} over {other} is {seen[0]:.2f} in the table"
        if not ratio and seen and not any(0.75 < each < 1.33 for each in seen):
            yield f"{one} and {other} are not level in the table"
    near = [table for each in cells[-3:] for table in each.tables]
    for name in _BEST.findall(sentence):
        held = [us for us in _times(near) if name in us]
        if held and not any(
            us[name] <= 1.01 * min(v for k, v in us.items() if k[:1].isdigit()) for us in held
        ):
            yield f"{name} is not the fastest in the table"
    if found := _TENSOR.search(sentence):
        rows = [row for table in tables for row in table if found[1] in row]
        if any(row[0].startswith(_PLAIN_RUNGS) for row in rows[:1]):
            yield "praises tensor cores for a rung without them"


def _times(tables: Sequence[Table]) -> Iterator[dict[str, float]]:
    """Of each table with a column of times: name in its first column -> time, if the name is there once."""
    for head, *rows in tables:
        columns = [
            i for i, name in enumerate(head) if i and _TIME.search(name) and "predict" not in name.lower()
        ]
        columns.sort(key=lambda i: "median" not in head[i].lower())
        names = [row[0] for row in rows if len(row) == len(head)]
        for column in columns[:1]:
            cells = {row[0]: row[column] for row in rows if len(row) == len(head)}
            yield {
                name: number(text)
                for name, text in cells.items()
                if names.count(name) == 1 and re.fullmatch(_NUMBER, text)
            }
