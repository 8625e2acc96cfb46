"""Many parameter sets over lessons in one go, from a YAML file that is checked whole before anything
starts."""

import re
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rooflab import paths
from rooflab.book import lessons, parameters, run
from rooflab.errors import UsageError

OUTPUT = paths.BUILD / "batch"
_MOST = 10_000  # values of a file, those that an alias repeats counted again
_SHORTHANDS = ("mode", "device", "effort")
_KEYS = {"lessons", "parameters", "gpu", *_SHORTHANDS}


class _Loader(yaml.SafeLoader):
    """YAML whose mappings name nothing twice: the first of two would be dropped in silence."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1} names {name!r} a second time")
            seen |= {name} if isinstance(name, Hashable) else set()
        return super().construct_mapping(node, deep)


def read(path: Path, folder: Path | None = None, elsewhere: bool = False) -> list[run.Job]:
    """The jobs of a batch file: a mapping `sets`, each set with `lessons` (all of them if left out),
    `parameters` and the shorthands mode, device, effort; `limit` is minutes a lesson. For jobs that run
    `elsewhere`, on a cluster, a set may name its `gpu`, a resource of workers. Raises UsageError naming the
    set and what is wrong with it; outputs go to build/batch/<set>/."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}), so it is not YAML.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply to be a batch of sets.") from None
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that there is not is a ValueError
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if _many(content):
        raise UsageError(f"{path} holds more than {_MOST} values, or some that hold themselves.")
    if not isinstance(content, dict) or not isinstance(content.get("sets"), dict) or not content["sets"]:
        raise UsageError(
            f"{path} needs a mapping `sets:` that names at least one set; see examples/batch.yml."
        )
    _refuse_other_keys(path.name, content, {"sets", "limit"})
    texts = [str(name) for name in content["sets"]]
    for name in texts:
        if texts.count(name) > 1:
            raise UsageError(f"{path} names two sets {name}, once in quotes: they would write one folder.")
    limit = content.get("limit")
    if limit is not None and (type(limit) not in (int, float) or not 0 < limit < 1e6):
        raise UsageError(f"`limit` in {path} is minutes a lesson, more than 0, not {limit!r}.")
    jobs = []
    for name, chosen in content["sets"].items():
        try:
            jobs += _jobs(str(name), chosen or {}, limit, folder, elsewhere)
        except UsageError as error:
            raise UsageError(f"set {name!r}: {error}") from None
    return jobs


def _many(content: Any) -> bool:
    """Whether a file's values are too many to look at, as aliases of aliases are."""
    left, seen = [content], 0
    while left and seen <= _MOST:
        value = left.pop()
        seen += 1
        if isinstance(value, dict | list):
            left += [*value, *value.values()] if isinstance(value, dict) else value
    return seen > _MOST


def _jobs(name: str, chosen: Any, limit: float | None, folder: Path | None, elsewhere: bool) -> list[run.Job]:
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise UsageError(
            "a set's name is up to 100 letters, digits, `-`, `_` and `.`, because it names a folder."
        )
    if not isinstance(chosen, dict):
        raise UsageError("a set is a mapping with lessons, parameters, mode, device or effort.")
    _refuse_other_keys("a set", chosen, _KEYS)
    words = chosen.get("lessons", [])
    words = [str(word) for word in (words if isinstance(words, list) else [words])]
    given = chosen.get("parameters") or {}
    if not isinstance(given, dict):
        raise UsageError("`parameters` is a mapping of names to values.")
    for key in given:
        if not isinstance(key, str):
            raise UsageError(f"a parameter's name is a word such as DEVICE, not {key!r}.")
    given = parameters.merge(given, {key: chosen.get(key) for key in _SHORTHANDS})
    gpu = str(chosen.get("gpu") or "")
    if gpu and not re.fullmatch(r"[\w.-]{1,100}", gpu):
        raise UsageError(f"`gpu` is the name of a GPU such as rtx-4090, not {gpu!r}.")
    if gpu and not elsewhere:
        raise UsageError("`gpu` chooses among a cluster's workers: give --scheduler, or leave it out.")
    jobs = run.plan(lessons.find(words, folder), given, limit, OUTPUT / name, f"{name}/", elsewhere)
    return [replace(job, gpu=gpu) for job in jobs]


def _refuse_other_keys(where: str, mapping: Mapping[Any, Any], allowed: set[str]) -> None:
    others = [str(key) for key in mapping if key not in allowed]
    if others:
        raise UsageError(f"{where} does not take {', '.join(others)}: it takes {', '.join(sorted(allowed))}.")
