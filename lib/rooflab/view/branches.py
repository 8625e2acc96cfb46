"""Branches that constants decide: a CUDA source without those that a build leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CONSTANTS = re.compile(r"\bconstexpr (?:int|unsigned|bool) ([^;]+);")
_BRANCH = re.compile(r"( *)if constexpr \((.+?)\)(?: (\{|[^{].*;.*))?(?: *//.*)?")


def taken(text: str, macros: Mapping[str, int]) -> str:
    """A source in which an `if constexpr` that these macros decide has given way to its branch. A condition
    may name macros and the source's constants; others stay as they are.
    """
    known, kept = _known(text, macros), list[str]()
    lines = text.splitlines()
    while lines:
        found = _BRANCH.fullmatch(lines[0])
        holds = _value(found[2], known) if found else None
        if found is None or holds is None:
            kept.append(lines.pop(0))
            continue
        one, other = _both(lines, found[1], found[3] or "")
        lines[:0] = one if holds else other  # it may have a branch itself
    return "\n".join(kept) + "\n"


def _both(lines: list[str], indent: str, rest: str) -> tuple[list[str], list[str]]:
    """The two branches that `lines` begins with, as they are without their condition; takes them away."""
    del lines[0]
    if rest != "{":
        one = [f"{indent}{rest}"] if rest else _statement(lines)
        if lines and lines[0] == f"{indent}else":
            del lines[0]
            return one, _statement(lines)
        return one, []
    ends = (f"{indent}}}", f"{indent}}} else {{")
    one = _block(lines, ends)
    return one, _block(lines, ends[:1]) if lines.pop(0) == ends[1] and lines else []


def _block(lines: list[str], ends: tuple[str, ...]) -> list[str]:
    """The lines up to one of these, which stays where two blocks follow each other, less an indentation."""
    count = next(k for k, line in enumerate(lines) if line in ends)
    inside = [line[4:] if line.startswith("    ") else line for line in lines[:count]]
    del lines[: count + (len(ends) == 1)]
    return inside


def _statement(lines: list[str]) -> list[str]:
    """The next statement, of a line, less an indentation."""
    return [lines.pop(0)[4:]]


def _known(text: str, macros: Mapping[str, int]) -> dict[str, int]:
    """The macros and the constants that follow from them."""
    known = dict(macros)
    for found in _CONSTANTS.finditer(text):
        for each in re.split(r",\s*(?=\w+ = )", found[1]):
            name, _, expression = each.partition(" = ")
            value = _value(expression, known)
            if value is not None:
                known.setdefault(name, value)
    return known


def _value(expression: str, known: Mapping[str, int]) -> int | None:
    """What an expression of whole numbers comes to; None where it names something else."""
    if not re.fullmatch(r"[\w\s()+\-*/%<>=!&|]+", expression):
        return None
    if not set(re.findall(r"[A-Za-z_]\w*", expression)) <= set(known):
        return None
    python = expression.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    return int(eval(re.sub(r"!(?!=)", " not ", python).strip(), {"__builtins__": {}}, dict(known)))
