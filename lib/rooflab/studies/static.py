"""Study `static`: registers, spills, shared memory and SASS facts of every rung, for every architecture it
declares.

Needs NVRTC and nvdisasm but no GPU: `rooflab trace static` records it in data/cpu on any
machine. Tests compile the rungs again and compare with the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rooflab.errors import MissingRecording
from rooflab.ops import Rung, modules, probes
from rooflab.paths import DATA
from rooflab.records.case import SCHEMA, Case, options
from rooflab.records.csv_table import frame, read_table, table_text, to_text, write_atomically
from rooflab.runtime import nvrtc
from rooflab.studies.base import Context, Count, Described, Outcome, Profile, Sized, Study

# What the instructions of a kernel are counted by: our name -> SASS opcodes.
FACTS = {
    "loads_16b": r"LDG\.E\.128\b.*|LDG\.E\.[A-Z0-9.]*128.*",
    "loads_4b": r"LDG\.E(?!.*(128|64|U8|U16|S8|S16)).*",
    "stores_16b": r"STG\.E\.[A-Z0-9.]*128.*|STG\.E\.128.*",
    "stores_4b": r"STG\.E(?!.*(128|64|U8|U16)).*",
    "local_memory": r"(LDL|STL).*",
    "shared_memory": r"(LDS|STS).*",
    "barriers": r"BAR\..*",
    "shuffles": r"SHFL\..*",
    "fused_multiply_adds": r"FFMA.*",
    "conversions": r"I2FP?(\..*)?",
    "tensor_products": r"(HMMA|IMMA|HGMMA|IGMMA)\..*",
}


SASS_ARCHS = ("75", "89", "90")  # one of each generation that the lessons look at


def _rungs() -> Iterator[tuple[str, str, Rung, str]]:
    """(operator, impl, rung, launch rule) of everything that is compiled."""
    for module in modules():
        for operator, ladder in module.LADDERS.items():
            for rung in ladder:
                yield operator, rung.name, rung, module.launch_rule(rung)
    for rung in (*probes.LADDER, probes.TOUCH_DEPENDENT):
        impl = f"{rung.name}_dependent" if rung is probes.TOUCH_DEPENDENT else rung.name
        yield rung.name, impl, rung, probes.launch_rule(rung)
    for name in probes.CHEATS:
        rung = probes.cheat_rung(name)
        yield "cheat", name, rung, probes.launch_rule(rung)


class Static(Study):
    """What the compiler made of every rung; lesson 00 reads it first."""

    name, lesson, needs_gpu, everywhere = "static", "00", False, True

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        return [
            Case("static", operator, impl, options=options(arch=f"sm_{arch}"), cache="", clock="")
            for operator, impl, rung, _ in _rungs()
            for arch in rung.archs
        ]

    def profiles(self, effort: str = "full", device: Sized | None = None) -> list[Profile]:
        return [("sass", [case for case in self.cases() if _arch(case) in SASS_ARCHS], None)]

    def memory_bytes(self, case: Case) -> int:
        return 0

    def count(self, case: Case) -> Count:
        return Count(None, None, "")

    def predict(self, case: Case, context: Context) -> float | None:
        return None

    def rung(self, case: Case) -> Described | None:
        for operator, impl, rung, rule in _rungs():
            if (operator, impl) == (case.operator, case.impl):
                return rung, rung.defines, rule
        return None

    def identity(self, case: Case, arch: str | None) -> str:
        rung, macros, rule = _found(self, case)
        return rung.identity(rule, macros, None if arch is None else _arch(case))

    def measure_group(self, group: Sequence[Case], context: Context) -> Outcome:
        """Compile and report; nothing is timed."""
        rows = []
        for case in group:
            rung, macros, _ = _found(self, case)
            report = rung.cubin(_arch(case), macros).resources[rung.entry]
            rows.append(
                {
                    **case.row(),
                    "registers": report.registers,
                    "spill_bytes": report.spill_bytes,
                    "shared_bytes": report.shared_bytes,
                    "identity": self.identity(case, _arch(case)),
                }
            )
        return Outcome(rows)


# What a report holds of a record's columns; the others are blank.
_COLUMNS = (
    *("study", "case", "operator", "impl", "kind", "options"),
    *("registers", "spill_bytes", "shared_bytes", "identity"),
)
_SCHEMA = {name: SCHEMA[name] for name in _COLUMNS}


def path(table: str = "static", root: Path | None = None) -> Path:
    """Where the reports ("static") or the SASS facts ("static_sass") are kept."""
    return (root or DATA) / "cpu" / f"{table}.csv"


def write(root: Path | None = None) -> list[Path]:
    """Compile every rung and record the reports and the SASS facts; returns the two files."""
    study = Static()
    rows = study.measure_group(study.cases(), Context()).rows
    texts = [
        {
            name: to_text(name, how, row["case"] if name == "case" else row.get(name))
            for name, how in _SCHEMA.items()
        }
        for row in rows
    ]
    ((_, chosen, _),) = study.profiles()
    facts = sass_facts(chosen)
    facts["identity"] = [study.identity(case, _arch(case)) for case in chosen]
    reports, sass = path(root=root), path("static_sass", root)
    reports.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(reports, table_text(texts, _SCHEMA))
    write_atomically(sass, facts.to_csv(index=False, lineterminator="\n"))
    return [reports, sass]


def read(root: Path | None = None) -> pd.DataFrame:
    """The recorded reports, all columns of a record; MissingRecording names the command that makes them."""
    file = _there(path(root=root))
    rows = [{**dict.fromkeys(SCHEMA, ""), **row} for row in read_table(file, _SCHEMA)]
    return frame(rows, SCHEMA, file)


def read_sass(root: Path | None = None) -> pd.DataFrame:
    """The recorded SASS facts: those of `sass_facts`, an identity, and no run."""
    return pd.read_csv(_there(path("static_sass", root)), keep_default_na=False).assign(run="")


def _there(file: Path) -> Path:
    if not file.is_file():
        raise MissingRecording("The compiler's reports are not recorded: `rooflab trace static` makes them.")
    return file


def _found(study: Static, case: Case) -> Described:
    found = study.rung(case)
    assert found is not None, case.id
    return found


def _arch(case: Case) -> str:
    return case.options.removeprefix("arch=sm_")


def sass_facts(cases: Sequence[Case]) -> pd.DataFrame:
    """Instruction counts of each case's kernel: case, instructions, and one column for each of FACTS."""
    study, rows = Static(), []
    for case in cases:
        rung, macros, _ = _found(study, case)
        listing = nvrtc.sass(rung.cubin(_arch(case), macros), rung.entry)
        opcodes = [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in listing]
        row: dict[str, Any] = {"case": case.id, "instructions": len(opcodes)}
        row |= {fact: sum(bool(re.fullmatch(p, o)) for o in opcodes) for fact, p in FACTS.items()}
        rows.append(row)
    return pd.DataFrame(rows)
