"""Apply renames.csv once: files, entry points, operators, and the recorded rows that name them.

    python scripts/rename.py --check    what would be renamed, and whether it can be
    python scripts/rename.py            rename in this checkout, which must have no uncommitted changes

Nothing is measured again. A row's identity keeps its source and machine parts. Its launch part digests a text
that holds names, so it is replaced by the digest of the renamed text, and only if renaming the old text gives
the new code's text to the letter. Delete both files once they were applied.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("renames.csv")
SKIPPED = ("scripts/rename", "coverage.csv")
TEXTS = {".py", ".cu", ".cuh", ".ipynb", ".md", ".csv", ".toml", ".yml", ".h", ".sql", ".json", ".txt"}


def table() -> list[dict[str, str]]:
    with TABLE.open() as lines:
        return list(csv.DictReader(lines))


def entries() -> dict[str, str]:
    """Old -> new name of every kernel whose rung or operator is renamed, as declared before."""
    from rooflab import ops

    operators = {row["old"]: row["new"] for row in table() if row["kind"] == "operator"}
    rungs = {(row["operator"], row["old"]): row["new"] for row in table() if row["kind"] == "rung"}
    found = {}
    for module in ops.modules():
        for operator, ladder in module.LADDERS.items():
            for rung in ladder:
                name = rungs.get((operator, rung.name), rung.name)
                if operator in operators or name != rung.name:
                    found[rung.entry] = f"{operators.get(operator, operator)}_{name.partition('_')[2]}"
    return found


def words() -> dict[str, str]:
    """Everything that is replaced wherever it occurs as a word."""
    found: dict[str, str] = {}
    for row in table():
        if not row["where"] and found.setdefault(row["old"], row["new"]) != row["new"]:
            raise SystemExit(f"{row['old']} has two new names; a word can have only one.")
    return found | entries()


def renamer(whole: dict[str, str]) -> Callable[[str, str], str]:
    """The function (text, path) -> text with new names."""
    pattern = re.compile(rf"\b({'|'.join(sorted(map(re.escape, whole), key=len, reverse=True))})\b")
    bound = [row for row in table() if row["where"]]

    def renamed(text: str, path: str) -> str:
        for row in bound:
            old, new, where = row["old"], row["new"], row["where"].split()
            if row["kind"] == "text":
                text = text.replace(old, new) if path in where else text
                continue
            # A word of prose, too: replaced as a folder, behind a module's name, in tables as a field, and in
            # the files that the table names.
            places = [rf"\b{old}(?=/[1-9]_)", rf"(?<=kernels/){old}\b"]
            places += [rf'(?<=LADDERS\["){old}\b', rf'(?<=LADDERS\[\\"){old}\b']
            places += [rf"(?<={re.escape(module)}){old}\b" for module in where if module.endswith(".")]
            if path in where:
                places.append(rf"\b{old}\b")
            elif path.startswith("data/cpu") or path.endswith("q8_0.csv"):
                places.append(rf"(?m:(?<![^,\n]){old}(?=,|$))")
            text = re.sub("|".join(places), new, text)
        return pattern.sub(lambda found: whole[found[1]], text)

    return renamed


def launch_texts() -> dict[str, dict[str, Any]]:
    """(study, case) of every recorded own row -> the launch part of its identity now, and the texts that it
    digests without the sources of further kernels, whose names change as their files do.
    """
    from rooflab import kernel, lab, ops, studies
    from rooflab.studies import static

    found: dict[str, dict[str, Any]] = {}
    taken: list[str] = []

    def noted(launch: str, source: str, machine: bytes | None) -> str:
        taken.append(launch)
        return real(launch, source, machine)

    real, ops.identity = ops.identity, noted  # type: ignore[assignment]
    store, whole = lab.open("replay", "h200").store, kernel.whole_source
    for name in studies.names():
        study = studies.get(name)
        rows = static.read() if name == "static" else store.read(name)
        known = set(rows[rows["kind"] == "own"]["case"])
        for path in (store.folder / "profiles").glob(f"{name}_*.csv"):
            known |= {row["case"] for row in rows_of(path)[1]}
        for case in (study.case(text) for text in sorted(known)):
            if case.kind != "own":
                continue
            launch = study.identity(case, None).partition(".")[0]
            taken.clear()
            kernel.whole_source = lambda path: ""
            study.identity(case, None)
            kernel.whole_source = whole
            found[f"{name} {case.id}"] = {"launch": launch, "texts": list(taken)}
    return found


def child(task: str) -> object:
    """What this script's `task` prints as JSON, by a process of its own: imports see the present files."""
    done = subprocess.run([sys.executable, __file__, task], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{task} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def tracked() -> Iterator[str]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True)
    for path in listed.stdout.splitlines():
        if (Path(path).suffix in TEXTS or path == "Makefile") and not path.startswith(SKIPPED):
            yield path


def unbound(text: str) -> str:
    """A text in which words that are renamed in some places alone are the same, old or new."""
    for row in table():
        if row["kind"] == "operator" and row["where"]:
            text = re.sub(rf"\b({row['old']}|{row['new']})\b", row["new"], text)
    return text


def current_traces() -> dict[str, dict[str, str]]:
    """The identities that data/cpu's tables of the simulated kernels should have now, by what names a row."""
    from rooflab import ops, studies
    from rooflab.studies import mutations, suite, traces

    kinds = {"bandwidth": "bandwidth_traces.csv", "gemv": "gemv_traces.csv"}
    found: dict[str, dict[str, str]] = {name: {} for name in (*kinds.values(), "suite.csv", "mutations.csv")}
    for study, name in kinds.items():
        with (ROOT / "data/cpu" / name).open() as lines:
            for row in csv.DictReader(lines):
                found[name][row["case"]] = traces.current(study, studies.get(study).case(row["case"]))
    for module in ops.modules():
        for operator, ladder in module.LADDERS.items():
            for rung in ladder:
                found["suite.csv"][f"{operator} {rung.name}"] = suite.current(rung)
    for hosts in mutations.mutants():
        for operator, mutant in hosts:
            key = f"{operator} {mutant.rung.name} {mutant.file} {mutant.mutation.name} {mutant.code}"
            found["mutations.csv"][key] = mutations.current(mutant)
    return found


KEYS: dict[str, Callable[[dict[str, str]], str]] = {
    "bandwidth_traces.csv": lambda row: row["case"],
    "gemv_traces.csv": lambda row: row["case"],
    "suite.csv": lambda row: f"{row['operator']} {row['rung']}",
    "mutations.csv": lambda row: " ".join(row[k] for k in ("operator", "rung", "file", "mutation", "code")),
}


def rows_of(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    with path.open(newline="") as lines:
        reader = csv.DictReader(lines)
        rows = list(reader)
    return list(reader.fieldnames or []), rows


def carry_traces(now: dict[str, dict[str, str]], was_current: set[tuple[str, int]]) -> None:
    for name, key in KEYS.items():
        path = ROOT / "data/cpu" / name
        columns, rows = rows_of(path)
        for number, row in enumerate(rows):
            if (name, number) in was_current:
                row["identity"] = now[name][key(row)]
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(out.getvalue())


def reseal() -> None:
    """Write the checksums of the recording again, whose rows this script changes on purpose."""
    seal = ROOT / "data/h200/SHA256SUMS"
    if seal.is_file():
        command = f"sha256sum *.csv profiles/*.csv > {seal.name}"
        subprocess.run(command, shell=True, check=True, cwd=seal.parent)


def main() -> None:
    task = sys.argv[1] if len(sys.argv) > 1 else ""
    if task == "texts":
        print(json.dumps(launch_texts()))
        return
    if task == "traces":
        print(json.dumps(current_traces()))
        return
    whole = words()
    renamed = renamer(whole)
    moves = [(path, renamed(path, path)) for path in tracked()]
    operators = {row["old"]: row["new"] for row in table() if row["kind"] == "operator"}
    moves = [
        (old, re.sub(r"^kernels/(\w+)/", lambda m: f"kernels/{operators.get(m[1], m[1])}/", new))
        for old, new in moves
    ]
    moves = [(old, new) for old, new in moves if old != new]
    for old, new in moves:
        print(f"{old} -> {new}")
    taken = [new for _, new in moves if (ROOT / new).exists()]
    if taken:
        raise SystemExit(f"There is already {', '.join(taken)}: choose other names in {TABLE.name}.")
    if task == "--check":
        return
    if subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, cwd=ROOT).stdout:
        raise SystemExit("There are uncommitted changes: commit them first, so that this can be undone.")
    before = child("texts")
    traces = child("traces")
    assert isinstance(before, dict) and isinstance(traces, dict)
    was_current = {
        (name, number)
        for name, key in KEYS.items()
        for number, row in enumerate(rows_of(ROOT / "data/cpu" / name)[1])
        if traces[name].get(key(row)) == row["identity"]
    }
    for path in tracked():
        file = ROOT / path
        text = file.read_text(encoding="utf-8")
        fresh = renamed(text, path)
        if path.startswith("kernels/") and path.endswith(".cu"):
            # The header's first line names operator, number and rung in words: "// attention 11, boxes: ...".
            words_of = {row["old"]: row["new"] for row in table() if row["kind"] == "rung"}
            name = words_of.get(file.stem, file.stem).partition("_")[2].replace("_", " ")
            fresh = re.sub(r"^(// \w+ \d+), [\w ]+:", rf"\1, {name}:", fresh, count=1)
            old = file.parent.name
            if old in operators:
                fresh = re.sub(rf"^// {old} ", f"// {operators[old]} ", fresh, count=1)
        if fresh != text:
            file.write_text(fresh, encoding="utf-8")
    for old, new in moves:
        (ROOT / new).parent.mkdir(exist_ok=True)
        subprocess.run(["git", "mv", old, new], check=True, cwd=ROOT)
    reseal()
    after = child("texts")
    assert isinstance(after, dict)
    digests: dict[str, str] = {}
    differ: list[str] = []
    for key, was in before.items():
        study, _, case = key.partition(" ")
        now = after[f"{study} {renamed(case, f'data/h200/{study}.csv')}"]
        for old_text, new_text in zip(was["texts"], now["texts"], strict=True):
            expected, got = unbound(renamed(old_text, "")), unbound(new_text)
            if expected != got:
                at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), -80)
                differ.append(f"{case}: {expected[at - 60 : at + 60]!r} is now {got[at - 60 : at + 60]!r}")
        digests[was["launch"]] = now["launch"]
    if differ:
        raise SystemExit("Launch rules that change by more than names:\n" + "\n".join(differ))
    changed = {old: new for old, new in digests.items() if old != new}
    if set(changed) & set(changed.values()):
        raise SystemExit("An old launch digest is also a new one; renames must not chain.")
    for path in tracked():
        if path.startswith("data/") and path.endswith(".csv"):
            file = ROOT / path
            text = file.read_text()
            fresh = re.sub(r"\b([0-9a-f]{10})(?=\.[0-9a-f]{10}\.)", lambda m: changed.get(m[1], m[1]), text)
            if fresh != text:
                file.write_text(fresh)
    reseal()
    fresh_traces = child("traces")
    assert isinstance(fresh_traces, dict)
    carry_traces(fresh_traces, was_current)
    print(f"{len(moves)} files moved, {len(changed)} launch digests carried over, {len(was_current)} traces.")


if __name__ == "__main__":
    main()
