"""The schema of records and runs, and the case: what a row's figures were measured on."""

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from rooflab.errors import UsageError
from rooflab.records.csv_table import is_blank, whole

# Column -> how its values are written. Times keep six significant digits, far below their run-to-run spread,
# so that a table diffs well and a rewritten row is the same text.
SCHEMA = {
    **dict.fromkeys(("study", "case", "operator", "impl", "kind", "format", "model", "weights"), "text"),
    **dict.fromkeys(("n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window"), "int"),
    "causal": "bool",
    **dict.fromkeys(("options", "cache", "clock", "state"), "text"),
    **dict.fromkeys(("median_us", "q1_us", "q3_us"), ".6g"),
    "samples": "int",
    "predicted_us": ".6g",
    **dict.fromkeys(("predicted_bytes", "bytes", "flops"), "int"),
    "roof": "text",
    **dict.fromkeys(("gb_s", "tflop_s", "tok_s"), ".6g"),
    **dict.fromkeys(("roof_fraction", "error", "error_budget"), ".4g"),
    **dict.fromkeys(("registers", "spill_bytes", "shared_bytes"), "int"),
    # The GPU during the samples, of rows measured in a named state (rooflab.bench.meter.Reading).
    **dict.fromkeys(("sm_mhz", "power_w", "temperature_c", "power_capped"), ".4g"),
    **dict.fromkeys(("identity", "run"), "text"),
}
COLUMNS = tuple(SCHEMA)

RUN_SCHEMA = {
    **dict.fromkeys(("run", "device", "gpu", "compute_capability"), "text"),
    **dict.fromkeys(("sms", "l2_bytes", "memory_bytes"), "int"),
    **dict.fromkeys(("driver", "cuda", "nvrtc", "torch", "cupy", "cudnn", "python", "os", "commit"), "text"),
    **dict.fromkeys(("command", "effort", "started", "finished"), "text"),
    **dict.fromkeys(("sm_clock_before_mhz", "sm_clock_after_mhz", "memory_clock_mhz"), "int"),
    **dict.fromkeys(("temperature_before_c", "temperature_after_c"), ".6g"),
    **dict.fromkeys(("power_before_w", "power_after_w"), ".6g"),
    "other_processes": "int",
    "note": "text",
}
RUN_COLUMNS = tuple(RUN_SCHEMA)

KINDS = ("own", "baseline", "peer")
CACHES = ("cold", "warm", "")
CLOCKS = ("graph", "graph_pdl", "event", "wall", "ncu", "cupti", "")
STATES = ("burst", "sustained", "after_cool", "after_hot", "")  # of the graph clock, see rooflab.bench.clock
SIZES = ("n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "window")
_WORDS = {"kind": KINDS, "cache": CACHES, "clock": CLOCKS, "state": STATES}
_NAMED = ("operator", "impl", "format", "model", "weights")
_BETWEEN_WORDS = re.compile(r'[\s,"=]')
_BOOLS = {"true": True, "false": False}


def options(**values: int | str | bool) -> str:
    """The tunables that ran as one canonical string, sorted by name: options(unroll=4, blocks=528) is
    "blocks=528 unroll=4". Values are whole numbers, booleans or words; UsageError for others."""
    words = []
    for name, value in sorted(values.items()):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, float) or not re.fullmatch(r'[^\s,"=]+', text):
            raise UsageError(f"Option {name}={value!r} is not a whole number, a boolean or one word.")
        words.append(f"{name}={text}")
    return " ".join(words)


def parse_options(text: str) -> dict[str, int | str | bool]:
    """The inverse of `options`: "blocks=528 fast=true" becomes {"blocks": 528, "fast": True}; UsageError if
    a word is not name=value or a name is repeated."""
    values: dict[str, int | str | bool] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not (name.isidentifier() and equals and value) or "=" in value or name in values:
            raise UsageError(f"Options {text!r} are not distinct words of the form name=value.")
        number = re.fullmatch(r"-?(0|[1-9][0-9]*)", value) and value != "-0"
        values[name] = _BOOLS[value] if value in _BOOLS else int(value) if number else value
    return values


@functools.lru_cache(maxsize=1 << 12)
def _canonical(text: str) -> str:
    return options(**parse_options(text))


@dataclass(frozen=True)
class Case:
    """One thing to measure: an implementation of an operator on one shape, under a named cache and clock, and
    for the graph and the wall clock in a named state of the GPU, or "" where power does not hold it.

    Sizes are elements (n, k, seq, head_dim, window), tokens (batch) or counts (heads, kv_heads); None means
    that the operator has no such size. `options` holds the tunables in any order and is kept sorted.
    UsageError if a name holds a space, comma, quote or "=", a size is not a whole number, kind, cache, clock
    or state is not a known word, or a clock other than graph and wall is given a state."""

    study: str
    operator: str
    impl: str
    kind: str = "own"
    format: str = ""
    model: str = ""
    weights: str = ""
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    seq: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    causal: bool | None = None
    options: str = ""
    cache: str = "cold"
    clock: str = "graph"
    state: str = ""

    def __post_init__(self) -> None:
        check_study(self.study)
        for name in _NAMED:
            value = getattr(self, name)
            if (
                not isinstance(value, str)
                or _BETWEEN_WORDS.search(value)
                or (name == "operator" and "/" in value)
            ):
                raise UsageError(f"A case's {name} is one word without commas, quotes or '=', not {value!r}.")
        if not (self.operator and self.impl):
            raise UsageError("A case needs the names of its operator and of its implementation.")
        for name in SIZES:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(name, value))
                if getattr(self, name) < 0:
                    raise UsageError(f"A case's {name} is a size, so it cannot be {value}.")
        if self.causal is not None:
            object.__setattr__(self, "causal", bool(self.causal))
        object.__setattr__(self, "options", _canonical(self.options))
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                words = ", ".join(word or '""' for word in known)
                raise UsageError(f"A case's {name} is one of {words}, not {getattr(self, name)!r}.")
        if self.state and self.clock not in ("graph", "wall"):
            raise UsageError(
                f"The graph and the wall clock alone have states, so {self.clock!r} takes no {self.state!r}."
            )

    @functools.cached_property
    def id(self) -> str:
        """Readable name, unique within a study, e.g. "read/4_grid n=1073741824 blocks=528 cold graph"."""
        words = [f"{self.operator}/{self.impl}"] + [self.kind] * (self.kind != "own")
        words += [
            f"{name}={value}" for name in ("format", "model", "weights") if (value := getattr(self, name))
        ]
        words += [f"{name}={value}" for name in SIZES if (value := getattr(self, name)) is not None]
        words += [f"causal={str(self.causal).lower()}"] * (self.causal is not None)
        return " ".join(filter(None, [*words, self.options, self.cache, self.clock, self.state]))

    @property
    def matrix(self) -> tuple[int, int, int]:
        """n, k and batch of a product: 0, 0 and 1 where the case has none."""
        return self.n or 0, self.k or 0, self.batch or 1

    @classmethod
    @functools.lru_cache(maxsize=1 << 14)
    def parse(cls, study: str, case_id: str) -> "Case":
        """The case of `study` with this id, the inverse of `id`; UsageError for a word without a place."""
        head, *words = case_id.split()
        operator, _, impl = head.partition("/")
        given: dict[str, Any] = {"operator": operator, "impl": impl, "cache": "", "clock": ""}
        tunables = []
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                column = next((column for column, known in _WORDS.items() if word in known), None)
                if column is None:
                    raise UsageError(
                        f"Case {case_id!r} holds the word {word!r}, which is no kind, cache, clock or state."
                    )
                given[column] = word
            elif name in SIZES:
                given[name] = int(value)
            elif name in ("format", "model", "weights"):
                given[name] = value
            elif name == "causal":
                given[name] = value == "true"
            else:
                tunables.append(word)
        return cls(study, **given, options=" ".join(tunables))

    @classmethod
    def from_row(cls, row: Mapping[str, Any] | pd.Series) -> "Case":
        """The case that a row (dict or Series of COLUMNS) describes; blanks become None or ""."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            value = row.get(field.name, field.default)
            blank = "" if SCHEMA[field.name] == "text" else None
            given[field.name] = blank if is_blank(value) else value
        return cls(**given)

    def row(self) -> dict[str, Any]:
        """The case's own columns, its id among them, to which a measurement adds its figures."""
        return {**asdict(self), "case": self.id}


def check_study(study: str) -> str:
    if not isinstance(study, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", study) or study == "runs":
        raise UsageError(f"A study's name is lower-case letters, digits and underscores, not {study!r}.")
    return study
