"""Text tables: one canonical form for every value, read strictly, replaced whole and never torn."""

import csv
import io
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from rooflab.errors import UsageError

_MEND = "restore the file, or delete the line and measure its case again"
_BOOLS = {"true": True, "false": False}
_DTYPES = {"text": "str", "int": "Int64", "bool": "boolean"}
# Signs by which HTML, Markdown or a template would take a text for more than a text. No table holds them, so
# that what is read from one can be written into any page.
_SIGNS = re.compile(r'[<>&"`\[\]{}|\\*#$^]')
_KINDS = {
    "text": "a text of one line without signs of HTML or Markdown",
    "int": "a whole number",
    "bool": "true or false",
}


def is_plain(text: str) -> bool:
    """Whether a text is of one line and no part of it could be markup."""
    return text.isprintable() and not _SIGNS.search(text)


def plain(text: str) -> str:
    """A text from elsewhere (a driver's name, a library's message, a command) as a table can hold it."""
    line = " ".join(text.split())
    return line if is_plain(line) else "".join(c if is_plain(c) else "_" for c in line)


@lru_cache(maxsize=1 << 14)
def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """Sort key that orders the numbers in a name as numbers: n=4096 before n=16384."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), text


def is_blank(value: Any) -> bool:
    return value is None or value is pd.NA or bool(value != value)


def whole(name: str, value: Any) -> int:
    if not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UsageError(f"{name} is a whole number, not {value!r}.")


def to_text(name: str, how: str, value: Any) -> str:
    """One value as a table holds it; `how` is "text", "int", "bool" or a float format; UsageError if it does
    not fit."""
    if is_blank(value):
        return ""
    if how == "text":
        if not isinstance(value, str) or not is_plain(value):
            raise UsageError(f"{name} is {_KINDS[how]}, not {value!r}.")
        return value
    if how == "int":
        return str(whole(name, value))
    if how == "bool":
        return str(bool(value)).lower()
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is a number, not {value!r}.") from None
    if number in (float("inf"), float("-inf")):
        raise UsageError(f"{name} is infinite, which no measurement is.")
    return format(number, how)


def from_text(how: str, text: str) -> Any:
    """The inverse of `to_text`: blank is None ("" for text); ValueError or KeyError if it does not fit."""
    if how == "text":
        if not is_plain(text):
            raise ValueError(text)
        return text
    if not text:
        return None
    if how == "bool":
        return _BOOLS[text]
    number = int(text) if how == "int" else float(text)
    if not abs(number) < 2**63 if how == "int" else not math.isfinite(number):
        raise ValueError(text)
    return number


def read_table(path: Path, schema: Mapping[str, str]) -> list[dict[str, str]]:
    """The rows of a table as texts, [] if there is no such file; UsageError naming file and line if it is not
    whole or its columns are not those of `schema`."""
    if not path.is_file():
        return []
    return [dict(zip(schema, cells, strict=True)) for cells in read_texts(path, schema)[1]]


def read_texts(path: Path, columns: Iterable[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table as texts; UsageError naming file and line if it is not whole, not there, or
    its columns are not `columns` (by default any distinct names)."""
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text (byte {error.start}), so it is not a table of rooflab."
        ) from None
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    rows = []
    try:
        header = next(reader, [])
        _check_header(path, header, header if columns is None else list(columns))
        for cells in reader:
            if len(cells) != len(header):
                why = f"{len(cells)} cells where the header has {len(header)}"
                raise UsageError(f"{path}, line {reader.line_num}: {why}; {_MEND}.")
            rows.append(cells)
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {reader.line_num}: not a line of a table ({error}); {_MEND}."
        ) from None
    if not content.endswith("\n"):
        raise UsageError(
            f"{path}, line {reader.line_num}: the file ends in the middle of this line; {_MEND}."
        )
    return header, rows


def _check_header(path: Path, header: list[str], wanted: list[str]) -> None:
    if header != wanted:
        missing, extra = [c for c in wanted if c not in header], [c for c in header if c not in wanted]
        why = "has its columns in another order"
        if missing or extra:
            why = f"lacks {', '.join(missing[:3])}" if missing else f"has also {', '.join(extra[:3])}"
        raise UsageError(f"{path}, line 1: the header {why}; it should be {','.join(wanted)}.")
    if not header or "" in header or len(set(header)) < len(header):
        raise UsageError(f"{path}, line 1: the header does not name every column once.")


def table_text(rows: Iterable[Mapping[str, str]], schema: Mapping[str, str]) -> str:
    """The canonical text of a table: header, rows as given, minimal quotes, "\\n" at each line's end."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(schema)
    writer.writerows([row[name] for name in schema] for row in rows)
    return buffer.getvalue()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content so that a reader, or a machine that dies, has the old or the new one whole."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name, so the next writer overwrites a killed one's
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # the new name itself must reach the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def values_of(rows: list[dict[str, str]], schema: Mapping[str, str], path: Path) -> dict[str, list[Any]]:
    """The values of `schema`'s columns in rows of texts, blank as None; errors name the table."""
    columns = {}
    for name, how in schema.items():
        values: list[Any] = [row[name] for row in rows]
        if how != "text" or not is_plain("".join(values)):  # plain all at once, for there are many
            for place, text in enumerate(values):
                try:
                    values[place] = from_text(how, text)
                except (ValueError, KeyError):
                    kind = _KINDS.get(how, "a number")
                    raise UsageError(f"{path}, line {place + 2}: {name} is {text!r}, not {kind}.") from None
        columns[name] = values
    return columns


def frame(rows: list[dict[str, str]], schema: Mapping[str, str], path: Path) -> pd.DataFrame:
    """Rows of texts as a DataFrame of `schema`'s columns (str, Int64, boolean, float64); errors name it."""
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=_DTYPES.get(schema[name], "float64"))
            for name, values in values_of(rows, schema, path).items()
        }
    )
