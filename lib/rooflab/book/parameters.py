"""The parameters of a lesson: read from its parameters cell, and a user's values checked against them."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflab import paths
from rooflab.book.lessons import Lesson
from rooflab.errors import UsageError
from rooflab.hardware.device import gpus_of
from rooflab.numerics import model_shapes
from rooflab.records.store import Store, published_devices

if TYPE_CHECKING:
    import nbformat

CHOICES = {"MODE": ("auto", "live", "replay"), "EFFORT": ("quick", "full")}
_TRUE, _FALSE = ("true", "yes", "on", "1", "y", "t"), ("false", "no", "off", "0", "n", "f")
_SCALARS = {"str": str, "int": int, "float": float, "bool": bool}


@dataclass(frozen=True)
class Takes:
    """The values that a parameter takes: whole numbers from `low` to `high` by `step`, or `choices`."""

    low: int = 0
    high: int = 0
    step: int = 1
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        by = f" that is a multiple of {self.step}" if self.step > 1 else ""
        return f"a whole number from {self.low} to {self.high}{by}"

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return str(value) in self.choices
        return self.low <= value <= self.high and value % self.step == 0


@dataclass(frozen=True)
class Parameter:
    """A parameter. Its type is str, int, float, bool or list[...] of one; an optional one also takes none.
    `takes` is what its comment declares between semicolons, and nowhere else: "4 to 4096 by 4", "one of fp16,
    q8_0" or "a model of the table".
    """

    name: str
    type: str
    optional: bool
    default: Any
    help: str
    takes: Takes | None = None

    def __str__(self) -> str:
        text = f"{self.name}: {self.type}{' | None' if self.optional else ''} = {self.default!r}"
        return f"{text}  ({self.help})" if self.help else text

    def value(self, given: Any) -> Any:
        """The Python value of a user's text or YAML value. Raises UsageError saying what would fit."""
        if self.optional and (given is None or (isinstance(given, str) and given.strip().lower() == "none")):
            return None
        if self.type.startswith("list["):
            inner = self.type[len("list[") : -1]
            items = _items(given) if isinstance(given, str) else given
            if not isinstance(items, list | tuple):
                items = [items]
            if not items:
                raise UsageError(f"{self.name} takes {_spelled(self)}, not an empty one.")
            return [self._taken(self._scalar(inner, item, given)) for item in items]
        value = self._taken(self._scalar(self.type, given, given))
        if self.name in CHOICES and value not in CHOICES[self.name]:
            raise UsageError(f"{self.name} is one of {', '.join(CHOICES[self.name])}, not {given!r}.")
        return value

    def _taken(self, value: Any) -> Any:
        if self.takes is not None and value not in self.takes:
            each = " each" * self.type.startswith("list[")
            raise UsageError(f"{self.name} takes{each} {self.takes}, not {value!r}.")
        return value

    def _scalar(self, kind: str, item: Any, given: Any) -> Any:
        if isinstance(item, list | dict) or item is None:
            raise UsageError(f"{self.name} takes {_spelled(self)}, not {given!r}.")
        text = str(item).strip()
        if kind == "str":
            return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
        if kind == "bool" and text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        if kind in ("int", "float") and not isinstance(item, bool):
            try:
                if kind == "float":
                    return float(text)
                return int(text, 0) if not _looks_scientific(text) else _whole(float(text))
            except ValueError:
                pass
        raise UsageError(f"{self.name} takes {_spelled(self)}, not {given!r}.")


def _looks_scientific(text: str) -> bool:
    return not text.lower().startswith("0x") and any(sign in text for sign in ".eE")


def _whole(number: float) -> int:
    if not number.is_integer():
        raise ValueError(number)
    return int(number)


def _items(text: str) -> list[str]:
    inside = text.strip().removeprefix("[").removesuffix("]").strip()
    return [item.strip() for item in inside.split(",") if item.strip()]


def _spelled(parameter: Parameter) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    many = {"int": "16,64,256", "float": "0.5,1.5", "bool": "true,false", "str": "fp16,int8"}
    if parameter.type.startswith("list["):
        return f"a list such as {many[parameter.type[5:-1]]}"
    return words[parameter.type]


def read(notebook: "nbformat.NotebookNode", name: str) -> list[Parameter]:
    """The parameters of a notebook: the annotated assignments of its one cell tagged `parameters`, in order.
    Raises UsageError where the cell is missing, is there twice, or holds anything but such assignments."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise UsageError(f"{name} has {len(cells)} cells tagged `parameters`: a lesson has exactly one.")
    source = cells[0].source
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return [_parameter(statement, comments, name) for statement in ast.parse(source).body]


def _parameter(statement: ast.stmt, comments: Mapping[int, str], notebook: str) -> Parameter:
    if (
        not isinstance(statement, ast.AnnAssign)
        or not isinstance(statement.target, ast.Name)
        or statement.value is None
    ):
        raise UsageError(
            f"line {statement.lineno} of the parameters cell of {notebook} is not of the form "
            "`NAME: type = value  # help`."
        )
    kind = ast.unparse(statement.annotation)
    optional = kind.endswith(" | None")
    kind = kind.removesuffix(" | None")
    inner = kind.removeprefix("list[").removesuffix("]") if kind.startswith("list[") else kind
    if inner not in _SCALARS:
        raise UsageError(
            f"{statement.target.id} in {notebook} has type {kind}: "
            "parameters are str, int, float, bool or list[...] of one."
        )
    try:
        default = ast.literal_eval(statement.value)
    except ValueError:
        raise UsageError(
            f"{statement.target.id} in {notebook} has a default that is not a plain value."
        ) from None
    comment = comments.get(statement.end_lineno or statement.lineno, "")
    return Parameter(statement.target.id, kind, optional, default, comment, _takes(comment))


def _takes(comment: str) -> Takes | None:
    for part in comment.split("; "):
        if span := re.fullmatch(r"(\d+) to (\d+)(?: by (\d+))?", part):
            return Takes(int(span[1]), int(span[2]), int(span[3] or 1))
        if part.startswith("one of "):
            return Takes(choices=tuple(part.removeprefix("one of ").split(", ")))
        if part == "a model of the table":
            return Takes(choices=tuple(model_shapes.names()))
    return None


def of(lesson: Lesson) -> list[Parameter]:
    """The parameters of a lesson's notebook."""
    from rooflab.book.notebook_format import nbformat

    try:
        return read(nbformat.read(lesson.path, as_version=4), lesson.path.name)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise UsageError(f"{lesson.path} is not a notebook: {error}".split("\n")[0]) from None


def split(assignments: Iterable[str]) -> dict[str, str]:
    """{"N": "4096"} from ["N=4096"]."""
    given = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"a parameter is given as NAME=VALUE, not {text!r}.")
        given[name.strip()] = value
    return given


def assign(lessons: Sequence[Lesson], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each lesson (by stem) the values of those parameters that it has. Raises UsageError for a name
    that no lesson has, listing what each has, and for a value that does not fit its type."""
    known = {lesson.stem: of(lesson) for lesson in lessons}
    unknown = [name for name in given if not any(name == p.name for found in known.values() for p in found)]
    if unknown:
        listing = "\n".join(
            f"  {stem}:\n" + "\n".join(f"    {p}" for p in found) for stem, found in known.items()
        )
        raise UsageError(f"no lesson asked for has a parameter {', '.join(unknown)}; they have\n{listing}")
    values = {
        stem: {p.name: p.value(given[p.name]) for p in found if p.name in given}
        for stem, found in known.items()
    }
    for named in values.values():
        if named.get("MODE") != "live" and named.get("DEVICE") is not None:
            named["DEVICE"] = recording(named["DEVICE"])
    return values


def recording(device: str) -> str:
    """A recording as a notebook can name it from any folder: data/'s name as it is, a path made
    absolute. Raises UsageError where there is neither."""
    if (Path(device) / "runs.csv").is_file():
        return str(Path(device).resolve())
    known = [*recorded_devices(paths.DATA), *published_devices(paths.DATA)]
    if device not in known:
        raise UsageError(
            f"there is no recording {device!r}: it is one of data/'s ({', '.join(known) or 'none yet'}) or a "
            "folder that holds a runs.csv."
        )
    return device


def store_of(device: str) -> Store:
    """The store of a recording named as `recording` takes it."""
    found = Path(recording(device))
    return Store(found.parent, found.name) if found.is_absolute() else Store(paths.DATA, device)


def recorded_devices(root: Path) -> list[str]:
    """The devices that this course recorded: the folders of data/ with runs, published figures and recordings
    of several GPUs aside.
    """
    found = (path.parent.name for path in root.glob("*/runs.csv"))
    return sorted(name for name in found if name != "published" and gpus_of(name) == 1)


def merge(given: Mapping[str, Any], shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and those given by shorthand (mode, device, effort; None is not given) together. Raises
    UsageError where both give one."""
    added = {name.upper(): value for name, value in shorthands.items() if value is not None}
    for name in added:
        if name in given:
            raise UsageError(f"{name.lower()} and the parameter {name} say the same thing: give one of them.")
    return {**given, **added}
