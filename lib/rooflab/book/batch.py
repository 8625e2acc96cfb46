"""Many parameter sets over lessons in one go, from a YAML file that is checked whole before anything
starts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rooflab import paths
from rooflab.book import lessons, parameters, run
from rooflab.errors import UsageError

OUTPUT = paths.BUILD / "batch"
_SHORTHANDS = ("mode", "device", "effort")
_KEYS = {"lessons", "parameters", *_SHORTHANDS}


def read(path: Path, folder: Path | None = None) -> list[run.Job]:
    """The jobs of a batch file: a mapping `sets`, each set with `lessons` (all of them if left out),
    `parameters` and the shorthands mode, device, effort; `limit` is minutes a lesson. Raises UsageError
    naming the set and what is wrong with it; outputs go to build/batch/<set>/."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}".replace("\n", " ")) from None
    if not isinstance(content, dict) or not isinstance(content.get("sets"), dict) or not content["sets"]:
        raise UsageError(
            f"{path} needs a mapping `sets:` that names at least one set; see examples/batch.yml."
        )
    _refuse_other_keys(path.name, content, {"sets", "limit"})
    limit = content.get("limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0):
        raise UsageError(f"`limit` in {path} is minutes a lesson, more than 0, not {limit!r}.")
    jobs = []
    for name, chosen in content["sets"].items():
        try:
            jobs += _jobs(str(name), chosen or {}, limit, folder)
        except UsageError as error:
            raise UsageError(f"set {name!r}: {error}") from None
    return jobs


def _jobs(name: str, chosen: Any, limit: float | None, folder: Path | None) -> list[run.Job]:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise UsageError("a set's name is letters, digits, `-`, `_` and `.`, because it names a folder.")
    if not isinstance(chosen, dict):
        raise UsageError("a set is a mapping with lessons, parameters, mode, device or effort.")
    _refuse_other_keys("a set", chosen, _KEYS)
    words = chosen.get("lessons", [])
    words = [str(word) for word in (words if isinstance(words, list) else [words])]
    given = chosen.get("parameters") or {}
    if not isinstance(given, dict):
        raise UsageError("`parameters` is a mapping of names to values.")
    given = parameters.merge(given, {key: chosen.get(key) for key in _SHORTHANDS})
    return run.plan(lessons.find(words, folder), given, limit, OUTPUT / name, prefix=f"{name}/")


def _refuse_other_keys(where: str, mapping: Mapping[Any, Any], allowed: set[str]) -> None:
    others = [str(key) for key in mapping if key not in allowed]
    if others:
        raise UsageError(f"{where} does not take {', '.join(others)}: it takes {', '.join(sorted(allowed))}.")
