"""Damaged recordings: never a traceback, never called sound. ROOFLAB_FUZZ says how many to try (100)."""

import csv
import io
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from rooflab import paths
from rooflab.book import check, executions
from rooflab.errors import RooflabError, UsageError
from rooflab.lab import open as open_lab
from rooflab.records import profiles, seal
from rooflab.records.case import Case
from rooflab.records.csv_table import read_texts
from rooflab.records.store import Store
from rooflab.records.validate import Finding, validate

MANY = int(os.environ.get("ROOFLAB_FUZZ", "100"))
RECORDED = paths.DATA / "h200"
TABLES = ("bandwidth", "attention")
PROFILES = ("bandwidth_ncu", "environment_gate", "attribution_nsys", "decode_checks", "faults_sanitizer")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of the committed recording, sealed: so small that many damages of it can be tried."""
    folder = tmp_path_factory.mktemp("recordings") / "h200"
    (folder / "profiles").mkdir(parents=True)
    names = [f"{name}.csv" for name in (*TABLES, "executions")] + [
        f"profiles/{name}.csv" for name in PROFILES
    ]
    for name in names:
        lines = (RECORDED / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:5]), encoding="utf-8")
    (folder / "runs.csv").write_bytes((RECORDED / "runs.csv").read_bytes())
    seal.seal(folder)
    assert errors(folder) == []
    return folder


@cache
def recorded_rows(name: str) -> tuple[list[str], list[list[str]]]:
    return read_texts(RECORDED / "profiles" / f"{name}.csv")


def errors(folder: Path) -> list[Finding]:
    """What is wrong with a recording that should hold the profiles of `small`."""
    wanted = {}
    for name in PROFILES:
        header, rows = recorded_rows(name)
        wanted[f"{name}.csv"] = (header, [row[0] for row in rows[:4]])
    found = [*validate(folder, profiles=wanted), *check.damaged_executions(folder)]
    return [finding for finding in found if finding.severity == "error"]


# --- damages: from a file's bytes to others, or None where it has no such part ------------------------------

Damage = Callable[[bytes, random.Random], bytes | None]


def cells(change: Callable[[list[list[str]], random.Random], None]) -> Damage:
    """A damage of the table's cells, header among them."""

    def damage(content: bytes, rng: random.Random) -> bytes:
        rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
        change(rows, rng)
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue().encode()

    return damage


def swapped_columns(rows: list[list[str]], rng: random.Random) -> None:
    a, b = rng.sample(range(len(rows[0])), 2)
    for row in rows:
        row[a], row[b] = row[b], row[a]


def swapped_values(rows: list[list[str]], rng: random.Random) -> None:
    a, b = rng.sample(range(len(rows[0])), 2)
    for row in rows[1:]:
        row[a], row[b] = row[b], row[a]


def lost_column(rows: list[list[str]], rng: random.Random) -> None:
    place = rng.randrange(len(rows[0]))
    for row in rows:
        del row[place]


def lost_row(rows: list[list[str]], rng: random.Random) -> None:
    del rows[rng.randrange(1, len(rows))]


def twice(rows: list[list[str]], rng: random.Random) -> None:
    rows.insert(rng.randrange(1, len(rows)), list(rng.choice(rows[1:])))


def odd_cell(rows: list[list[str]], rng: random.Random) -> None:
    words = (
        "",
        "nan",
        "inf",
        "-1",
        "1e400",
        "0",
        "true",
        "9" * 400,
        "x",
        "<b>",
        "\0",
        "1;2",
        "٣",
        "0x10",
        "1_0",
    )
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice(words)


def flipped(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 40))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def holed(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:a] + content[b + 1 :]


DAMAGES: dict[str, Damage] = {
    "not UTF-8": lambda content, rng: content.decode().encode("utf-16"),
    "latin": lambda content, rng: content[:-2] + b"\xe9" + content[-2:],
    "empty": lambda content, rng: b"",
    "blank": lambda content, rng: b"\n",
    "semicolons": lambda content, rng: content.replace(b",", b";"),
    "tabs": lambda content, rng: content.replace(b",", b"\t"),
    "quoted": lambda content, rng: content[:90] + b'"' + content[90:],
    "zeros": lambda content, rng: content[:200] + b"\0" * 64 + content[264:],
    "cut": cut,
    "holed": holed,
    "flipped": flipped,
    "columns swapped": cells(swapped_columns),
    "values swapped": cells(swapped_values),
    "column lost": cells(lost_column),
    "row lost": cells(lost_row),
    "row twice": cells(twice),
    "odd cell": cells(odd_cell),
    "gone": lambda content, rng: None,
}
# What is wrong whatever the figures say: these are found even in a recording that was sealed afterwards.
PLAIN = {"not UTF-8", "latin", "empty", "blank", "semicolons", "tabs", "columns swapped", "column lost"}


def read(folder: Path, name: str) -> None:
    """Take a table in by the door that lessons and pages use."""
    if name.startswith("profiles/"):
        profiles.read(folder / name)
    elif name == "executions.csv":
        executions.read(folder)
    else:
        store = Store(folder.parent, folder.name)
        store.runs()
        for study in TABLES:
            for _, row in store.read(study).iterrows():
                Case.from_row(row)


def test_damage_is_found_and_never_a_traceback(small: Path) -> None:
    names = sorted(path.relative_to(small).as_posix() for path in small.rglob("*.csv"))
    sealed = (small / seal.NAME).read_bytes()
    tried: Counter[str] = Counter()
    for number in range(MANY):
        rng = random.Random(f"damage {number}")
        name, kind = rng.choice(names), list(DAMAGES)[number % len(DAMAGES)]
        content = (small / name).read_bytes()
        damaged = DAMAGES[kind](content, rng)
        if damaged == content:
            continue
        what = f"damage {number}, {kind}, of {name}"
        tried[kind] += 1
        try:
            (small / name).unlink() if damaged is None else (small / name).write_bytes(damaged)
            assert seal.changes(small) and (number % 20 or errors(small)), f"{what}: sound"
            with pytest.raises(UsageError):
                open_lab("replay", str(small))
            seal.seal(small)  # as if it had been recorded so
            found = errors(small)
            assert found or kind not in PLAIN, f"{what}: sound once it is sealed again"
            try:
                read(small, name)
            except RooflabError as error:
                assert "\n" not in str(error)
        except (AssertionError, RooflabError):
            raise
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            (small / name).write_bytes(content)
            (small / seal.NAME).write_bytes(sealed)
    assert sum(tried.values()) > 0.8 * MANY
    assert errors(small) == []


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"no digest  runs.csv\n", b"0" * 64 + b"  ../runs.csv\n"]
)
def test_a_damaged_seal_is_one_sentence(small: Path, content: bytes) -> None:
    sealed = (small / seal.NAME).read_bytes()
    try:
        (small / seal.NAME).write_bytes(content)
        assert seal.NAME in {finding.where for finding in errors(small)} or errors(small)
        with pytest.raises(UsageError):
            open_lab("replay", str(small))
    finally:
        (small / seal.NAME).write_bytes(sealed)


def test_a_recording_without_a_seal_replays_and_is_not_sound(small: Path) -> None:
    sealed = (small / seal.NAME).read_bytes()
    seal.unseal(small)
    try:
        assert open_lab("replay", str(small)).device == "h200"
        assert [finding.where for finding in errors(small)] == [seal.NAME]
    finally:
        (small / seal.NAME).write_bytes(sealed)


def test_a_deleted_folder_of_profiles_is_found(small: Path) -> None:
    kept = {path: path.read_bytes() for path in (small / "profiles").iterdir()}
    try:
        for path in kept:
            path.unlink()
        (small / "profiles").rmdir()
        seal.seal(small)
        assert {finding.where for finding in errors(small)} == {f"profiles/{name}.csv" for name in PROFILES}
    finally:
        (small / "profiles").mkdir(exist_ok=True)
        for path, content in kept.items():
            path.write_bytes(content)
        seal.seal(small)
