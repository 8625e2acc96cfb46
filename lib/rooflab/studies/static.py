"""Study `static`: registers, spills, shared memory and SASS facts of every rung, for every architecture it
declares.

Needs NVRTC and nvdisasm, no GPU. Tests compile the rungs again and compare with the recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from rooflab import kernel
from rooflab.case import Case, options
from rooflab.ops import Rung, modules, probes
from rooflab.studies.base import Context, Count, Outcome, Sized, Study

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

    name, lesson, needs_gpu = "static", "00", False

    def cases(self, effort: str = "full", device: Sized | None = None) -> list[Case]:
        return [
            Case("static", operator, impl, options=options(arch=f"sm_{arch}"), cache="", clock="")
            for operator, impl, rung, _ in _rungs()
            for arch in rung.archs
        ]

    def profiles(
        self, effort: str = "full", device: Sized | None = None
    ) -> list[tuple[str, list[Case], Sequence[str] | None]]:
        return [("sass", [case for case in self.cases() if _arch(case) in SASS_ARCHS], None)]

    def memory_bytes(self, case: Case) -> int:
        return 0

    def count(self, case: Case) -> Count:
        return Count(None, None, "")

    def predict(self, case: Case, context: Context) -> float | None:
        return None

    def rung(self, case: Case) -> tuple[Rung, Mapping[str, int], str] | None:
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


def _found(study: Static, case: Case) -> tuple[Rung, Mapping[str, int], str]:
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
        listing = kernel.sass(rung.cubin(_arch(case), macros), rung.entry)
        opcodes = [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in listing]
        row: dict[str, Any] = {"case": case.id, "instructions": len(opcodes)}
        row |= {fact: sum(bool(re.fullmatch(p, o)) for o in opcodes) for fact, p in FACTS.items()}
        rows.append(row)
    return pd.DataFrame(rows)
