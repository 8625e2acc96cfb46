"""A study whose cases are other studies': their operands, contestants, bounds and identities, measured under
another name.
"""

from __future__ import annotations

from collections.abc import Sequence

from rooflab.bench import gate
from rooflab.hardware.device import Device
from rooflab.records.case import Case
from rooflab.studies.base import Context, Count, Described, Study


class Borrowing(Study):
    """Everything about a case is asked of the study that owns it; `lent` says which, and the case there."""

    def lent(self, case: Case) -> tuple[Study, Case]:
        """The study that owns the case, and the case as that study knows it, in no state."""
        raise NotImplementedError

    def needs(self, case: Case) -> str | None:
        owner, case = self.lent(case)
        return owner.needs(case)

    def refuses(self, case: Case, capability: int) -> str | None:
        owner, case = self.lent(case)
        return owner.refuses(case, capability)

    def memory_bytes(self, case: Case) -> int:
        owner, case = self.lent(case)
        return owner.memory_bytes(case)

    def shared_bytes(self, case: Case) -> int:
        owner, case = self.lent(case)
        return owner.shared_bytes(case)

    def group(self, case: Case) -> tuple:
        owner, case = self.lent(case)
        return (case.operator, *owner.group(case))

    def contestants(self, cases: Sequence[Case]) -> list[gate.Work]:
        owner = self.lent(cases[0])[0]
        plain = [self.lent(case)[1] for case in cases]
        distinct = list(dict.fromkeys(plain))  # cases that differ in their state alone share their work
        works = dict(zip(distinct, owner.contestants(distinct), strict=True))
        return [works[case] for case in plain]

    def count(self, case: Case) -> Count:
        owner, case = self.lent(case)
        return owner.count(case)

    def predict(self, case: Case, context: Context) -> float | None:
        owner, case = self.lent(case)
        return owner.predict(case, context)

    def foretold(self, case: Case) -> str:
        owner, case = self.lent(case)
        return owner.foretold(case)

    def rung(self, case: Case) -> Described | None:
        owner, case = self.lent(case)
        return owner.rung(case)

    def identity(self, case: Case, arch: str | None) -> str:
        owner, case = self.lent(case)
        return owner.identity(case, arch)

    def launch_us(self, case: Case, device: Device) -> float:
        owner, case = self.lent(case)
        return owner.launch_us(case, device)
