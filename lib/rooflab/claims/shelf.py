"""What claims are judged by: everything that a recording holds, read and never measured.

A Shelf answers in numbers, or raises NoEvidence with the name of the record that is missing; so a scoreboard
can be made of a recording that is not complete, and a later one fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rooflab import device as devices
from rooflab import paths, studies
from rooflab.analysis import token_rate
from rooflab.claims import NoEvidence, coalescing
from rooflab.claims.coalescing import Evidence
from rooflab.errors import MissingRecording, RooflabError
from rooflab.identity import SKIPPED
from rooflab.profile import recorded
from rooflab.record import Store
from rooflab.studies import launch_rule, mutations, static, suite
from rooflab.studies.bandwidth import Roof, roofs

LAPTOP, RTX_4090, RTX_4070_TI = "rtx-4070-laptop-published", "rtx-4090-published", "rtx-4070-ti-published"


class Shelf:
    """The recording of one device, beside the course's records that hang on none and the published ones."""

    def __init__(self, store: Store):
        self.store = store
        self._rows: dict[str, pd.DataFrame] = {}
        self._tables: dict[tuple[str, str], pd.DataFrame] = {}
        self._published: dict[tuple[str, str], pd.DataFrame] = {}

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

    @cached_property
    def roof(self) -> dict[str, Roof]:
        """The device's measured ceilings."""
        return roofs(self.store.read("bandwidth"))

    def ceiling(self, name: str) -> float:
        """A measured ceiling; NoEvidence if it is not recorded."""
        if name not in self.roof:
            raise NoEvidence(f"no roof {name} in study bandwidth")
        return float(self.roof[name].value)

    def rows(self, study: str, **wanted: Any) -> pd.DataFrame:
        """The recorded rows of a study that have these values in these columns (a callable tests a value);
        NoEvidence says which rows are missing.
        """
        if study not in self._rows:
            rows = self.store.read(study)
            self._rows[study] = _taken(rows)
        found = self._rows[study]
        chosen = np.ones(len(found), dtype=bool)
        for name, value in wanted.items():
            if callable(value):
                chosen &= np.fromiter(
                    (bool(value(each)) for each in found[name]), dtype=bool, count=len(found)
                )
            else:
                chosen &= np.asarray((found[name] == value).fillna(False), dtype=bool)
        found = found[chosen] if len(wanted) else found
        if found.empty:
            words = " ".join(f"{k}={v}" for k, v in wanted.items() if not callable(v))
            raise NoEvidence(f"no row {words} in study {study}".replace("  ", " "))
        return found

    def us(self, study: str, **wanted: Any) -> float:
        """The shortest recorded median among the rows wanted, in microseconds."""
        return float(self.rows(study, **wanted)["median_us"].min())

    def best(self, study: str, column: str = "median_us", **wanted: Any) -> pd.Series:
        """The own row with the best time (or the largest figure of another column)."""
        rows = self.rows(study, **{"kind": "own", **wanted})
        rows = rows[rows[column].notna()]
        if rows.empty:
            raise NoEvidence(f"no {column} in study {study}")
        return rows.sort_values(column, ascending=column.endswith("_us"), kind="stable").iloc[0]

    def table(self, study: str, tool: str) -> pd.DataFrame:
        """What an instrument recorded for a study; NoEvidence if there is nothing."""
        key = (study, tool)
        if key not in self._tables:
            path = self.store.folder / "profiles" / f"{study}_{tool}.csv"
            if not path.is_file():
                raise NoEvidence(f"no profile of study {study} by {tool}")
            self._tables[key] = recorded.read(path)
        return self._tables[key]

    def counter(self, study: str, name: str, **wanted: Any) -> float:
        """A counter of Nsight Compute, of the first counted case that has these values."""
        frame = self.table(study, "ncu")
        for case, value in zip(frame["case"], frame.get(name, pd.Series(dtype=float)), strict=False):
            parsed = studies.get(study).case(case)
            if all(getattr(parsed, key) == want for key, want in wanted.items()):
                return float(value)
        raise NoEvidence(f"no counter {name} of study {study} for {wanted}")

    def answer(self, study: str, question: str, quantity: str, tool: str = "checks") -> pd.Series:
        """The values of a quantity over the cases of a question ("repeated"), by case."""
        frame = self.table(study, tool)
        chosen = frame["case"].astype(str).str.startswith(f"{question}/") & (frame["quantity"] == quantity)
        if not chosen.any():
            raise NoEvidence(f"no {quantity!r} of {question} among the checks of study {study}")
        return frame[chosen].set_index("case")["value"].astype(float)

    @cached_property
    def coalescing(self) -> Evidence:
        """The evidence of lesson 03's claims; NoEvidence where the recording lacks it."""
        rows = self.rows("gemv")
        try:
            profile = coalescing.counters(self.table("gemv", "ncu").drop(columns="identity"))
        except NoEvidence:
            profile = pd.DataFrame()
        read = self.ceiling("dram_read")
        try:
            models = token_rate.of_models(coalescing._tuned(rows), coalescing.gemv.FAMILIES)
            by_model = dict(zip(models["model"], models["bytes"] / models["us"] / 1e3 / read, strict=True))
        except (RooflabError, KeyError, ValueError):
            by_model = {}
        return Evidence(
            rows[rows["operator"] == "gemv"],
            profile[profile["operator"] == "gemv"] if len(profile) else profile,
            read,
            by_model,
            rows[rows["operator"] == "upload"],
            rows[rows["operator"] == "gemv_rows"],
        )

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
        return Store(paths.DATA, name)

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


def _taken(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of cases that were not skipped."""
    taken = [not str(identity).startswith(SKIPPED) for identity in rows["identity"]]
    return rows[pd.Series(taken, rows.index, dtype=bool)]


def _recorded(read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    try:
        return read()
    except MissingRecording as missing:
        raise NoEvidence(str(missing)) from None


def among(values: Sequence[Any]) -> Callable[[Any], bool]:
    """A test for `Shelf.rows`: the value is one of these."""
    return lambda value: value in values
