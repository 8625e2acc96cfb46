"""Whether a recording is complete, gated, fresh and plausible: what `rooflab validate` says of a folder."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rooflab.errors import RooflabError, UsageError
from rooflab.hardware import device
from rooflab.records import profiles, seal
from rooflab.records.case import RUN_SCHEMA, SCHEMA, Case
from rooflab.records.csv_table import frame, is_blank, natural_key, read_table, table_text, to_text
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import NO_STUDY, derive

MAX_FILE_BYTES = 400_000
MIN_SAMPLES = 5
MAX_ROOF_FRACTION = 1.02  # clocks and rotation leave a roof 2 % uncertain; above it something was not counted
_PROFILERS = ("ncu", "cupti")  # their times are of few replays by nature


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("error") or worth knowing ("warning"), and in which file and line."""

    severity: str
    where: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.sentence}"


# What to do about a finding, by words that its sentence holds.
_ADVICE = {
    "after the recording was sealed": "Restore changed files from where the recording came from.",
    "is stale": "Stale rows were measured on other code than this checkout's. On their GPU `rooflab record` "
    "measures them again; or check out the commit that runs.csv names.",
    "are not recorded": "What is missing is measured by `rooflab record`, with the effort of the recording: "
    "it continues where it stopped, and says of each case it skips why.",
    "has no recording": "A study without a table is measured by `rooflab record STUDY`.",
    "not yet measured": "A rung newer than a recording is measured by `rooflab record` on that GPU; "
    "`rooflab trace` records on any machine what data/cpu holds.",
    "no longer expected": "Rows that no study asks for any more do no harm; recording into an empty folder "
    "leaves them out.",
    "names no clean commit": "Commit first and record then: a run on an edited tree cannot be looked up.",
    "other processes": "Other processes take bandwidth and clocks: end them and record the rows again.",
    "more than the roof allows": "A rate above its roof means that the roof was recorded on a slower day "
    "(`rooflab record bandwidth`), or that bytes are counted that are not moved.",
    "the limit": "Long tables do not diff: leave out what is not needed.",
}


def condensed(findings: Iterable[Finding], most: int = 3) -> list[str]:
    """Findings as lines to read: `most` of each severity and file, how many more there are, and at the end
    what to do about them."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.where.partition(",")[0]), []).append(finding)
    lines, advice = [], []
    for (severity, file), found in groups.items():
        lines += [str(finding) for finding in found[:most]]
        if len(found) > most:
            lines.append(f"{severity}: {file}: and {len(found) - most} more.")
        advice += [what for words, what in _ADVICE.items() if any(words in f.sentence for f in found)]
    return lines + list(dict.fromkeys(advice))


def validate(
    folder: Path,
    studies: Iterable[str] | None = None,
    expected: Callable[[str], list[Case]] | None = None,
    changed: Callable[[Case, str], str | None] | None = None,
    roofs: Mapping[str, float] | None = None,
    profiles: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None,
) -> list[Finding]:
    """Everything wrong with the recording in `folder` (data/<device>, or data/published, whose cited figures
    need no gate, samples or one device); an empty list is a sound recording.

    `studies`: the names that there should be (default: whatever is there). `expected(study)`: the cases that
    a complete recording holds. `changed(case, recorded)`: the identity of a case's code now where figures
    recorded under `recorded` are stale, else None. `roofs`: ceilings as for `record.derive`, to recompute
    roof_fraction by. `profiles`: header and cases of each file that profiles/ should hold. UsageError if
    there is no such folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; a recording is a folder such as data/h200.")
    published = folder.name == "published"
    known = None if studies is None else list(studies)
    runs, findings = _runs(folder, published)
    for file in sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    ):
        if (size := file.stat().st_size) > MAX_FILE_BYTES:
            sentence = f"{size} bytes, above the {MAX_FILE_BYTES} that a recording's file may have."
            findings.append(Finding("error", str(file.relative_to(folder)), sentence))
    if not published:
        findings += [*_sealed(folder), *_profiles(folder / "profiles", runs, profiles or {})]
    paths = {path.stem: path for path in sorted(folder.glob("[!.]*.csv")) if path.name not in NO_STUDY}
    for study, path in paths.items():
        if known is not None and study not in known and not published:
            sentence = f"no study has this name; the studies are {', '.join(known)}."
            findings.append(Finding("error", path.name, sentence))
            continue
        findings += _table(
            path, runs, published, None if expected is None else expected(study), changed, roofs
        )
    for study in known or ():
        if study not in paths and not published and (expected is None or expected(study)):
            findings.append(Finding("error", f"{study}.csv", f"study {study} has no recording."))
    if not paths:
        findings.append(Finding("error", folder.name, "there is no table of any study in this folder."))
    return findings


def _sealed(folder: Path) -> Iterator[Finding]:
    if not seal.is_sealed(folder):
        sentence = "there is none: no run has ended since the last change. " + seal.RESEAL.format(folder)
        yield Finding("error", seal.NAME, sentence)
        return
    try:
        for name, sentence in seal.changes(folder).items():
            yield Finding("error", name, sentence)
    except UsageError as error:
        yield Finding("error", seal.NAME, str(error))


def _profiles(
    folder: Path, runs: dict[str, str], wanted: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> Iterator[Finding]:
    """What is wrong with the profiles: of those that are there, and of those that should be."""
    there = {path.name: path for path in sorted(folder.glob("[!.]*.csv"))}
    for name in sorted({*there, *wanted}):
        where = f"profiles/{name}"
        if name not in there:
            yield Finding("error", where, "there is no such profile; `rooflab record` takes it.")
            continue
        header, cases = wanted.get(name, (None, ()))
        found = profiles.problems(there[name], header, runs)
        yield from (Finding("error", where, sentence) for sentence in found)
        if wanted and not found:
            held = set(profiles.texts(there[name])["case"])
            yield from _completeness(Path(where), held, list(cases))


def _runs(folder: Path, published: bool) -> tuple[dict[str, str], list[Finding]]:
    path = folder / "runs.csv"
    try:
        rows = read_table(path, RUN_SCHEMA)
        frame(rows, RUN_SCHEMA, path)
    except UsageError as error:
        return {}, [Finding("error", path.name, str(error))]
    if not rows:
        return {}, [
            Finding("error", path.name, "there are no runs, so nothing says how figures were measured.")
        ]
    findings = []

    def say(severity: str, line: int, sentence: str) -> None:
        findings.append(Finding(severity, f"{path.name}, line {line}", sentence))

    names = [row["run"] for row in rows]
    for line, row in enumerate(rows, 2):
        if names.index(row["run"]) != line - 2:
            say("error", line, f"run {row['run']} is there twice.")
        if published:
            if not row["note"]:
                say("error", line, f"published run {row['run']} does not cite its source in its note.")
            continue
        if row["gpu"] != rows[0]["gpu"]:
            say(
                "error",
                line,
                f"a run of {row['gpu']} in the recording of {rows[0]['gpu']}; one folder, one GPU.",
            )
        if row["device"] != folder.name:
            say("error", line, f"a run of device {row['device']!r} in the folder of {folder.name}.")
        if not row["finished"]:
            say("warning", line, f"run {row['run']} did not finish, so its clocks afterwards are unknown.")
        if row["commit"].endswith("+") or not row["commit"]:
            say(
                "warning",
                line,
                f"run {row['run']} names no clean commit, so its sources cannot be looked up.",
            )
        if row["other_processes"] not in ("", "0"):
            say(
                "warning",
                line,
                f"run {row['run']} shared its GPU with {row['other_processes']} other processes.",
            )
    return {row["run"]: row["device"] for row in rows}, findings


def _table(
    path: Path,
    runs: dict[str, str],
    published: bool,
    expected: list[Case] | None,
    changed: Callable[[Case, str], str | None] | None,
    roofs: Mapping[str, float] | None,
) -> list[Finding]:
    try:
        rows = read_table(path, SCHEMA)
        df = frame(rows, SCHEMA, path)
        derived = derive(df, roofs or {})[["gb_s", "tflop_s", "roof_fraction"]].to_dict("records")
    except UsageError as error:
        return [Finding("error", path.name, str(error))]
    findings: list[Finding] = []
    seen: set[tuple] = set()

    def say(severity: str, line: int, sentence: str) -> None:
        findings.append(Finding(severity, f"{path.name}, line {line}", sentence))

    for line, (row, texts, again) in enumerate(zip(df.to_dict("records"), rows, derived, strict=True), 2):
        try:
            case = Case.from_row(cast(dict[str, Any], row))
        except RooflabError as error:
            say("error", line, str(error))
            continue
        if case.id != row["case"]:
            say("error", line, f"case {row['case']!r} has the columns of {case.id!r}.")
        if not published and case.study != path.stem:
            say("error", line, f"a row of study {case.study!r} in the table of {path.stem}.")
        if row["run"] not in runs:
            say("error", line, f"its run {row['run']!r} is not in runs.csv.")
        key = (case.study, case.id, runs.get(texts["run"]))
        if key in seen:
            say("error", line, f"case {case.id!r} is there twice.")
        seen.add(key)
        rough = [n for n, how in SCHEMA.items() if to_text(n, how, row[n]) != texts[n]]
        if rough:
            say("error", line, f"{rough[0]} is {texts[rough[0]]!r}, not as rooflab writes it.")
        if not published:
            for sentence in _row(row, again, roofs, runs.get(texts["run"], "")):
                say("error", line, sentence)
            skipped = str(row["identity"]).startswith(SKIPPED)
            now = changed(case, str(row["identity"])) if changed and not skipped else None
            if now is not None:
                say(
                    "error",
                    line,
                    f"{case.id} is stale: recorded as {row['identity']}, its code is now {now}.",
                )
    ids = [row["case"] for row in rows]
    if not published and (
        ids != sorted(ids, key=natural_key) or path.read_bytes() != table_text(rows, SCHEMA).encode()
    ):
        findings.append(
            Finding("error", path.name, "its lines are not in the order or the quoting rooflab writes.")
        )
    bare = df[df["median_us"].notna() & df["roof_fraction"].isna()]["roof"].replace("", None).dropna()
    for name, count in bare[~bare.isin(roofs)].value_counts().items() if roofs is not None else ():
        sentence = f"{count} rows have no share of {name}, which this recording has no measurement of."
        findings.append(Finding("warning", path.name, sentence))
    if expected is not None and not published:
        findings += _completeness(Path(path.name), set(ids), [case.id for case in expected])
    return findings


def _row(
    row: Mapping[Any, Any], again: Mapping[Any, Any], roofs: Mapping[str, float] | None, slug: str
) -> list[str]:
    """What is wrong with one measured row's figures; comparisons are written so that a blank fails."""
    found = []
    if not math.isnan(row["median_us"]):
        if not row["q1_us"] <= row["median_us"] <= row["q3_us"] or not row["q1_us"] > 0:
            found.append(
                f"q1, median, q3 are {row['q1_us']}, {row['median_us']}, {row['q3_us']} us: not in order."
            )
        samples = 0 if is_blank(row["samples"]) else row["samples"]
        if samples < MIN_SAMPLES and row["clock"] not in _PROFILERS:
            found.append(f"{samples} samples are too few for quartiles; {MIN_SAMPLES} are the least.")
        if not row["clock"]:
            found.append("a time without the name of its clock.")
        if row["kind"] == "own" and not row["error"] <= row["error_budget"]:
            found.append(f"a time without a passed gate: error {row['error']}, budget {row['error_budget']}.")
        if row["roof"] and math.isnan(row["roof_fraction"]) and (roofs is None or row["roof"] in roofs):
            found.append(f"no fraction of the roof {row['roof']} that it is compared with.")
    if row["roof_fraction"] > MAX_ROOF_FRACTION and not _under_the_datasheet(row, slug):
        found.append(f"{row['roof_fraction']} of its roof {row['roof']}: more than the roof allows.")
    for name in ("gb_s", "tflop_s", *(["roof_fraction"] if roofs is not None else [])):
        if to_text(name, SCHEMA[name], row[name]) != to_text(name, SCHEMA[name], again[name]):
            found.append(f"{name} is {row[name]}, but {again[name]} by bytes, flops, time and roof.")
    if not row["identity"]:
        found.append("no identity, so nothing says which code it was measured on.")
    return found


def _under_the_datasheet(row: Mapping[Any, Any], slug: str) -> bool:
    """Whether a rate above a roof of tensor cores is still one that the chip can have. Such a roof is what a
    library's product reached at the clock that its power left it; a kernel that draws less power runs at a
    higher one. No memory's roof gives way like this."""
    known = device.get(slug) if slug in device.names() else None
    name = row["roof"].removesuffix("_sustained")
    peak = getattr(known, name, None) if known and name.endswith("_tensor") else None
    return peak is not None and row["tflop_s"] <= peak


def _completeness(path: Path, recorded: set[str], expected: list[str]) -> list[Finding]:
    findings = []
    for severity, sentence, ids in (
        ("error", "expected cases are not recorded", [case for case in expected if case not in recorded]),
        (
            "warning",
            "recorded cases are no longer expected",
            sorted(recorded - set(expected), key=natural_key),
        ),
    ):
        if ids:
            shown = "; ".join(ids[:3]) + ("; ..." if len(ids) > 3 else "")
            findings.append(Finding(severity, str(path), f"{len(ids)} {sentence}: {shown}."))
    return findings
