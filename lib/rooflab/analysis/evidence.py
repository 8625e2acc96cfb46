"""What claims are judged by: everything that a recording holds, read and never measured.

Evidence answers in numbers, or raises NoEvidence with the name of the record that is missing; so a scorecard
can be made of a recording that is not complete, and a later one fills it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd

from rooflab import ops, paths, studies
from rooflab.errors import MissingRecording, RooflabError
from rooflab.hardware import device as devices
from rooflab.records import profiles
from rooflab.records.case import Case
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.store import Store
from rooflab.studies import launch_rule, static
from rooflab.studies.bandwidth import Roof, roofs
from rooflab.verify import mutations, suite

PEERS = "h200-peers"  # others' figures on the recorded GPU's model
Made = TypeVar("Made")
BEST = "best"  # as `impl`: every own contestant, whatever its options, of which `row` takes the fastest


class NoEvidence(RooflabError):
    """What a claim is about was not recorded; the sentence says what is missing."""


class Evidence:
    """The recording of one device, beside the records that belong to no device and the published ones.

    `tables` (by study) and `profiles` (by study and tool) take the place of the store's: a lesson hands in
    what it has just measured.
    """

    def __init__(
        self,
        store: Store,
        tables: Mapping[str, pd.DataFrame] | None = None,
        profiles: Mapping[tuple[str, str], pd.DataFrame] | None = None,
    ):
        self.store = store
        self._rows = {study: _taken(rows) for study, rows in (tables or {}).items()}
        self._tables = {key: _taken(rows) for key, rows in (profiles or {}).items()}
        self._counted: dict[str, list[Case]] = {}
        self._chosen: dict[tuple[Any, ...], np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._made: dict[str, Any] = {}
        self._always: dict[str, Any] = {}
        self._published: dict[tuple[str, str], pd.DataFrame] = {}
        self._stores: dict[str, Store] = {}

    def only(self, **where: Any) -> Evidence:
        """The same evidence, but of the recorded rows those alone that have these values (as for `rows`)."""
        fewer = copy.copy(self)
        fewer._always, fewer._made = {**self._always, **where}, {}
        return fewer

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made at the first call of this name; it is not to be changed."""
        if name not in self._made:
            self._made[name] = make()
        return cast(Made, self._made[name])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The recording's runs, oldest first."""
        return self.store.runs()

    @property
    def gpu(self) -> str:
        """The name of the recorded GPU, or nothing."""
        return str(self.runs["gpu"].iloc[-1]) if len(self.runs) else ""

    @cached_property
    def spec(self) -> devices.Device | None:
        """The datasheet's figures of the recorded GPU, None for one that the table lacks."""
        return devices.match(self.gpu)

    def datasheet(self) -> devices.Device:
        """The same; NoEvidence for a GPU that the table lacks."""
        if self.spec is None:
            raise NoEvidence(f"no datasheet of {self.gpu or 'this GPU'}")
        return self.spec

    @cached_property
    def roof(self) -> dict[str, Roof]:
        """The device's measured ceilings."""
        return roofs(self.store.read("bandwidth"))

    def ceiling(self, name: str) -> float:
        """A measured ceiling in GB/s, TFLOP/s or TOP/s; NoEvidence if it is not recorded."""
        if name not in self.roof:
            raise NoEvidence(f"no roof {name} in study bandwidth")
        return float(self.roof[name].value)

    def rows(self, study: str, device: str = "", portable: bool = False, **where: Any) -> pd.DataFrame:
        """The recorded rows of a study that have these values in these columns; NoEvidence says which rows
        are missing.

        A value may be a list (any of them), None (blank), a pattern with "*", or a function of the value. As
        `impl`, BEST means every own contestant. `device` names a published device instead of the recorded
        one; `portable` leaves out the rungs that only one architecture runs.
        """
        where = where if device else {**self._always, **where}
        if where.get("impl") == BEST:
            where = {name: value for name, value in where.items() if name not in ("impl", "options")}
            where["kind"] = "own"
        if device.endswith("-peers") and self.published(device).runs()["gpu"].iloc[0] != self.gpu:
            raise NoEvidence(f"no published {study} of others on {self.gpu or 'this GPU'}")
        found = self.published_rows(device, study) if device else self._own(study)
        chosen = np.ones(len(found), dtype=bool)
        for name, value in where.items():
            if name not in found:
                raise NoEvidence(f"no column {name} in study {study}")
            chosen &= self._where(found, (device, study, name), value)
        found = found[chosen] if where else found
        if portable:
            found = found[[_portable(*names) for names in zip(found["operator"], found["impl"], strict=True)]]
        if found.empty:
            words = " ".join(f"{k}={v}" for k, v in where.items() if not callable(v) and v not in ("", None))
            raise NoEvidence(" ".join(f"no row {words} in study {study} {device and f'of {device}'}".split()))
        return found

    def _where(
        self, rows: pd.DataFrame, column: tuple[str, str, str], value: Any
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Where a column (of device, study, name) holds a value: claims ask the same again and again."""
        key = (*column, type(value), tuple(value) if isinstance(value, list | set) else value)
        if key not in self._chosen:
            self._chosen[key] = _has(rows[column[-1]], value)
        return self._chosen[key]

    def _own(self, study: str) -> pd.DataFrame:
        if study not in self._rows:
            self._rows[study] = _taken(self.store.read(study))
        return self._rows[study]

    def row(self, study: str, **where: Any) -> pd.Series:
        """The fastest of the rows wanted: that of the shortest median, or of the most tokens a second where
        none has a time.
        """
        found = self.rows(study, **where)
        timed = found["median_us"].notna().any()
        values = (found["median_us"] if timed else -found["tok_s"]).to_numpy(float, na_value=np.inf)
        return found.iloc[values.argmin()]

    def us(self, study: str, **where: Any) -> float:
        """The shortest recorded median among the rows wanted, in microseconds."""
        return float(self.rows(study, **where)["median_us"].min())

    def table(self, study: str, tool: str) -> pd.DataFrame:
        """What an instrument recorded for a study; NoEvidence if there is nothing."""
        key = (study, tool)
        if key not in self._tables:
            path = self.store.folder / "profiles" / f"{study}_{tool}.csv"
            if not path.is_file():
                raise NoEvidence(f"no profile of study {study} by {tool}")
            self._tables[key] = profiles.read(path)
        return self._tables[key]

    def counter(self, study: str, name: str, **where: Any) -> float:
        """A counter of Nsight Compute, of the first counted case that has these values; BEST as `impl` means
        the rung that is the fastest there.
        """
        if where.get("impl") == BEST:
            where["impl"] = self.row(study, **where)["impl"]
        frame = self.table(study, "ncu")
        if study not in self._counted:
            self._counted[study] = [studies.get(study).case(case) for case in frame["case"]]
        for case, value in zip(self._counted[study], frame.get(name, pd.Series(dtype=float)), strict=False):
            if value != "" and all(getattr(case, key) == want for key, want in where.items()):
                return float(value)
        raise NoEvidence(f"no counter {name} of study {study} for {where}")

    def answer(self, study: str, question: str, quantity: str, tool: str = "checks") -> pd.Series:
        """The values of a quantity over the cases of a question ("repeated"), by case."""
        frame = self.table(study, tool)
        chosen = frame["case"].astype(str).str.startswith(f"{question}/") & (frame["quantity"] == quantity)
        if not chosen.any():
            raise NoEvidence(f"no {quantity!r} of {question} among the checks of study {study}")
        return frame[chosen].set_index("case")["value"].astype(float)

    def traced(
        self, seq: int | None = None, operator: str = "decode", variant: str = "eager"
    ) -> pd.DataFrame:
        """The launches of one traced case of study attribution, with its classes and parts."""
        for tool in ("nsys", "cupti"):
            try:
                frame = launch_rule.named(self.table("attribution", tool).drop(columns=["identity", "run"]))
            except NoEvidence:
                continue
            frame = frame[(frame["operator"] == operator) & (frame["variant"] == variant)]
            if seq is not None:
                frame = frame[frame["seq"] == seq]
            if len(frame):
                return frame[frame["case"] == frame["case"].iloc[0]]
        raise NoEvidence(f"no traced {operator} of study attribution at {seq} tokens")

    def published(self, name: str) -> Store:
        """A published device's tables."""
        if name not in self._stores:
            self._stores[name] = Store(paths.DATA, name)
        return self._stores[name]

    def published_rows(self, name: str, study: str) -> pd.DataFrame:
        """A published device's rows of a study."""
        if (name, study) not in self._published:
            self._published[name, study] = self.published(name).read(study)
        return self._published[name, study]

    @cached_property
    def suite(self) -> pd.DataFrame:
        """The numeric suite's record."""
        return _recorded(suite.read)

    @cached_property
    def mutants(self) -> pd.DataFrame:
        """The kill table."""
        return _recorded(mutations.read)

    @cached_property
    def static(self) -> pd.DataFrame:
        """The compiler's reports of every rung."""
        return _recorded(static.read)

    @cached_property
    def sass(self) -> pd.DataFrame:
        """Instructions counted in every rung."""
        return _recorded(static.read_sass)

    def own_timed(self) -> pd.DataFrame:
        """Every timed row of an own kernel, of all studies that are recorded."""
        found = []
        for study in self.store.studies():
            try:
                rows = self.rows(study, kind="own")
            except NoEvidence:
                continue
            found.append(rows[rows["median_us"].notna()])
        if not found:
            raise NoEvidence("no timed row of an own kernel")
        return pd.concat(found, ignore_index=True)


def _has(column: pd.Series, value: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where a column holds what is wanted."""
    if value is None:
        return column.isna().to_numpy(dtype=bool)
    if isinstance(value, str) and "*" in value:
        pattern = value
        value = lambda each: fnmatchcase(str(each), pattern)  # noqa: E731
    if callable(value):
        return np.fromiter((bool(value(each)) for each in column), dtype=bool, count=len(column))
    if isinstance(value, str):
        column = column.fillna("")
    same = column.isin(value) if isinstance(value, list | tuple | set) else column == value
    return np.asarray(same.fillna(False), dtype=bool)


def _portable(operator: str, impl: str) -> bool:
    """Whether more than one architecture runs a rung; True for what is no rung."""
    for module in ops.modules():
        for rung in module.LADDERS.get(operator, ()):
            if rung.name == impl:
                return any(arch.isdigit() for arch in rung.archs)
    return True


def _taken(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of cases that were not skipped."""
    if "identity" not in rows:
        return rows
    taken = [not str(identity).startswith(SKIPPED) for identity in rows["identity"]]
    return rows[pd.Series(taken, rows.index, dtype=bool)]


def _recorded(read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    try:
        return read()
    except MissingRecording as missing:
        raise NoEvidence(str(missing)) from None
