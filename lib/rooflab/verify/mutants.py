"""Planted faults: what a rung's source becomes when one thing in it is wrong.

A mutation is a rule, a pattern in the source and its replacement; it is put to every portable rung
alike, and to the course's headers that a rung includes, so the faults are not picked for being easily found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from rooflab.ops import Rung
from rooflab.runtime.nvrtc import portable_headers


class Mutation(NamedTuple):
    """A rule: its name, what is wrong afterwards, the pattern, what replaces it, and of how many places in a
    file (the first, and the last if two) a mutant is made.
    """

    name: str
    says: str
    pattern: str
    becomes: str
    places: int = 1


MUTATIONS = (
    Mutation("barrier", "a barrier of the block is missing", r"__syncthreads\(\);", "", 2),
    Mutation("warp barrier", "a barrier of the warp is missing", r"__syncwarp\(\);", ""),
    Mutation("wait", "a copy is read before it has arrived", r"copy_async_wait<[^>]*>\(\);", "", 2),
    Mutation("guard", "a guard lets one too many in", r"(\bif \([^;{\n]*?[\w\])]) < (?=[\w(])", r"\1 <= ", 2),
    Mutation(
        "leave", "one too many stays where threads leave", r"(\bif \([^;{]*?) >= (?=[^;]*return)", r"\1 > "
    ),
    Mutation(
        "overrun",
        "a loop takes a turn too many",
        r"(\bfor \([^;]*;[^;]*?[\w\])]) < (?=[a-z][^;]*; (?:\+\+|[a-z] \+= ))",
        r"\1 <= ",
    ),
    Mutation(
        "tail",
        "a loop leaves the last turn out",
        r"(\bfor \([^;]*;[^;]*?[\w\])] < )([^;]*)(?=; \+\+)",
        r"\1(\2) - 1",
        2,
    ),
    Mutation(
        "overwrite",
        "a sum forgets what it held",
        r"(\b\w*(?:sum|total|part|squares|score)\w*(?:\[[^\]]*\])*(?:\.\w)?) \+= ",
        r"\1 = ",
    ),
    Mutation(
        "forget",
        "a fused sum forgets what it held",
        r"((\b[a-z]\w*(?:\[[^\]=]*\])*(?:\.\w)?) = fmaf\([^;]*, )\2\)",
        r"\g<1>0.0f)",
    ),
    Mutation(
        "dirty",
        "an accumulator does not start at 0",
        r"(\b\w*(?:sum|total|squares)\w* = )0(?:\.0f)?(?=[;,])",
        r"\g<1>1",
    ),
    Mutation(
        "dirty array",
        "an accumulator does not start at 0",
        r"(float \w*(?:sum|o)\w*(?:\[\w+\])+ = )\{\}",
        r"\1{1.0f}",
    ),
    Mutation(
        "scale",
        "a neighbour's scale is taken",
        r"(?<!float )(?<!half )(?<!unsigned )(\b\w*(?:scales?|xs)\[)([^\[\]]*[a-z][^\[\]]*)(?=\])",
        r"\1(\2) ^ 1",
    ),
    Mutation("unscaled", "a scale is left out", r" \* (?:scale|by|inv_sum|x_scale)\b(?!\s*\()", ""),
    Mutation(
        "pair",
        "the halves of a pair are mixed up",
        r"(?<!threadIdx)(?<!blockIdx)(?<!gridDim)\.x\b(?=[^=]*;)",
        ".y",
    ),
    Mutation(
        "sign", "a signed byte is read as unsigned", r"static_cast<signed char>", "static_cast<unsigned char>"
    ),
    Mutation("nibble", "codes are taken in the wrong order", r">> 4 \* t", ">> 4 * (7 - t)"),
    Mutation("nibbles", "codes are taken in the wrong order", r"0x000f000fu", "0x00f000f0u"),
    Mutation("zero", "the zero point is off by one", r"- 8\)", "- 7)"),
    Mutation("zeros", "the zero point is off by one", r"0x64086408u", "0x64076407u"),
    Mutation("offsets", "the zero point is off by one", r"0x5c205c20u", "0x5c1c5c1cu"),
    Mutation("causal", "the causal mask is missing", r"if \(!causal\)", "if (true)"),
    Mutation(
        "seen",
        "the causal mask is missing",
        r"(Seen seen = [^;]*?seen_from\([^;]*?, context, )causal",
        r"\1false",
    ),
    Mutation(
        "diagonal", "a query sees one key too few", r"min\(context, position \+ 1\)", "min(context, position)"
    ),
    Mutation("window", "a window is one key too wide", r"position \+ 1 - window", "position - window"),
    Mutation(
        "rescale",
        "a larger score does not rescale what came before",
        r"exp2_approx\(row_max(\[\w\])? - new_max\)",
        "1.0f",
    ),
    Mutation("heads", "heads read another group's keys", r"head / \(heads / kv_heads\)", "head % kv_heads"),
    Mutation("clamp", "rows beyond the last are read", r"\bmin\(([^(),]+), ((?:n|batch) - 1)\)", r"(\1)", 2),
    Mutation("lanes", "a warp's sum leaves half of its lanes out", r"(offset = )16", r"\g<1>8"),
    Mutation("last", "no block is the last to arrive", r"== parts - 1", "== parts"),
    Mutation("counter", "a counter is not put back to 0", r"\*counter = 0;", ""),
    Mutation(
        "stride",
        "a thread's next turn is too near",
        r"(\w \+= )(?:32 \* )?(?:THREADS|WARPS|32)\b(?=\))",
        r"\g<1>16",
    ),
    Mutation(
        "turned",
        "a rotation turns the wrong way",
        r"b \* cos_sin\.x \+ a \* cos_sin\.y",
        "b * cos_sin.x - a * cos_sin.y",
    ),
    Mutation("epsilon", "a mean is a sum", r"squares / width", "squares"),
)


@dataclass(frozen=True)
class Mutant:
    """A rung with one fault: in which file, by which mutation, the line before and after, and the source."""

    rung: Rung
    file: str
    mutation: Mutation
    code: str
    mutant: str
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """What it is called in a record: "gemv/2_coalesced guard: if (column < n) y[column] = sum;"."""
        where = "" if self.file == f"{self.rung.operator}/{self.rung.name}.cu" else f" in {self.file}"
        return f"{self.rung.operator}/{self.rung.name} {self.mutation.name}{where}: {self.code}"


@lru_cache(maxsize=512)
def _masked(source: str) -> str:
    """The source with comments and preprocessor lines blanked, place for place."""
    hidden = r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*"
    return re.sub(hidden, lambda found: " " * len(found[0]), source, flags=re.MULTILINE | re.DOTALL)


def sites(source: str, mutation: Mutation, within: Sequence[tuple[int, int]]) -> list[re.Match[str]]:
    """The places where a mutation is put to a source, or to some parts of it: the first, and the last if it
    asks for two.
    """
    found = [one for one in _all_sites(source, mutation) if any(a <= one.start() < b for a, b in within)]
    return found[:1] + (found[-1:] if mutation.places > 1 and len(found) > 1 else [])


@lru_cache(maxsize=1 << 15)  # rungs have headers in common
def _all_sites(source: str, mutation: Mutation) -> list[re.Match[str]]:
    return list(re.finditer(mutation.pattern, _masked(source), re.MULTILINE))


def _line(source: str, start: int) -> str:
    """The line of a source that holds a place, without its indentation."""
    end = source.find("\n", start)
    return source[source.rfind("\n", 0, start) + 1 : end if end >= 0 else None].strip()


def _functions(source: str) -> list[tuple[str, int, int]]:
    """(name, start, end) of what a header defines: functions, constants and macros, in order."""
    starts = (
        r"^(?:template <[^\n]*>\n)?__device__ inline [^(\n]*?\b(\w+)\(|^constexpr \w+ (\w+)|^#define (\w+)"
    )
    found = list(re.finditer(starts, source, re.MULTILINE))
    ends = [*(one.start() for one in found[1:]), len(source)]
    return [(one[1] or one[2] or one[3], one.start(), end) for one, end in zip(found, ends, strict=True)]


def _used(whole: str, headers: dict[str, str]) -> set[str]:
    """Names that a rung's source uses of its headers, directly or through each other."""
    bodies = {name: text[a:b] for text in headers.values() for name, a, b in _functions(text)}
    used: set[str] = set()
    queue = [whole]
    while queue:
        words = set(re.findall(r"\w+", _masked(queue.pop()))) & set(bodies)
        queue += [bodies[name] for name in words - used]
        used |= words
    return used


def _inlined(text: str, headers: dict[str, str], seen: dict[str, bool], under_if: bool = False) -> str:
    """A source with each header in the place where it is first included, directly or through another one;
    `seen` collects their names in that order, and whether the compiler reads each in any case. One between
    #if and #endif has a guard of its own: the other branch may include it, too.
    """
    lines, depth = [], 0
    for line in text.split("\n"):
        depth += line.startswith("#if")
        depth -= line.startswith("#endif")
        found = re.fullmatch(r'#include "([^"]+)"', line)
        if not found or found[1] not in headers:
            lines.append(line)
            continue
        name, maybe = found[1], under_if or depth > 0
        if seen.get(name):
            lines.append("")
            continue
        guarded = maybe or name in seen
        seen[name] = not maybe
        body = _inlined(headers[name].replace("#pragma once\n", ""), headers, seen, maybe)
        guard = "INLINED_" + re.sub(r"\W", "_", name)
        lines.append(f"#ifndef {guard}\n#define {guard}\n{body}\n#endif" if guarded else body)
    return "\n".join(lines)


def of(rung: Rung) -> Iterator[Mutant]:
    """Every mutant of a rung: of its own source, and of what it uses of the course's headers. The headers of
    a folder of their own (common/decoder) count as one file, in the order in which they are included.
    """
    whole = rung.path.read_text()
    own = f"{rung.operator}/{rung.name}.cu"
    headers = portable_headers(whole)
    used, order = _used(whole, headers), dict[str, bool]()
    _inlined(whole, headers, order)
    groups = {own: [(own, whole, [(0, len(whole))])]}
    for name in order:
        folder = name.rpartition("/")[0]
        parts = [(a, b) for function, a, b in _functions(headers[name]) if function in used]
        groups.setdefault(name if folder == "common" else folder, []).append((name, headers[name], parts))
    for group in groups.values():
        for mutation in MUTATIONS:
            places = [
                (file, source, found)
                for file, source, parts in group
                for found in sites(source, mutation, parts)
            ]
            last = places[-1:] if mutation.places > 1 and len(places) > 1 else []
            for file, source, found in places[:1] + last:
                changed = source[: found.start()] + found.expand(mutation.becomes) + source[found.end() :]
                text = changed if file == own else _inlined(whole, {**headers, file: changed}, {})
                place = found.end() - 1 if mutation.becomes else found.start()
                yield Mutant(rung, file, mutation, _line(source, place), _line(changed, found.start()), text)
