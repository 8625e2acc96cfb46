"""CPU traces as records: how each line of a rung uses memory, watched on the CPU and kept in data/cpu.

A trace depends on no device: `rooflab trace` makes it on any machine with a C++ compiler, and a test makes it
again and compares. One table a study, a row for every line of the source that accesses a buffer: what the
whole launch asked for there, and the first request in full, for a picture of its lanes
(rooflab.view.access_diagram).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from rooflab import ops, simt, studies
from rooflab.bench import gate
from rooflab.errors import MissingRecording, UsageError
from rooflab.ops import stream
from rooflab.paths import DATA, KERNELS
from rooflab.records.case import Case
from rooflab.records.csv_table import natural_key
from rooflab.records.fingerprint import identity
from rooflab.runtime.nvrtc import portable_headers
from rooflab.studies import gemv

COLUMNS = (
    *("case", "kernel", "file", "code", "access", "space", "buffer", "bytes", "requests", "lanes"),
    *("sectors", "bytes_used", "bytes_moved", "conflicts", "addresses", "identity"),
)


def _streams() -> list[Case]:
    """Every rung of lesson 01 over 128 KiB: whole tiles."""
    return [
        Case("bandwidth", operator, rung.name, n=1 << 15, cache="warm", clock="graph")
        for operator, ladder in stream.LADDERS.items()
        for rung in ladder
    ]


# study -> its traced cases: small shapes, whose contestants run under ops.on("cpu")
TRACED: dict[str, Callable[[], Sequence[Case]]] = {"bandwidth": _streams, "gemv": gemv.traced}


def path(study: str, root: Path | None = None) -> Path:
    """Where a study's traces are kept."""
    return (root or DATA) / "cpu" / f"{study}_traces.csv"


def read(study: str, root: Path | None = None) -> pd.DataFrame:
    """The recorded traces of a study, COLUMNS; MissingRecording names the command that makes them."""
    if study not in TRACED:
        raise UsageError(f"Study {study} has no traces; {', '.join(TRACED)} have.")
    file = path(study, root)
    if not file.is_file():
        raise MissingRecording(f"The traces of {study} are not recorded: `rooflab trace {study}` makes them.")
    return pd.read_csv(file, keep_default_na=False, na_values={"sectors": [""], "conflicts": [""]})


def make(study: str, cases: Sequence[Case] | None = None) -> pd.DataFrame:
    """Gate the cases on the CPU, watch one launch of each, and tabulate it: COLUMNS."""
    frames = [_trace(study, case) for case in (TRACED[study]() if cases is None else cases)]
    table = pd.concat(frames, ignore_index=True)
    order = sorted(range(len(table)), key=lambda k: (natural_key(table["case"][k]), k))
    return table.loc[order].reset_index(drop=True)


def write(study: str, root: Path | None = None) -> Path:
    """Make a study's traces and record them."""
    table, file = make(study), path(study, root)
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, lineterminator="\n", float_format="%.6g")
    return file


def current(study: str, case: Case) -> str:
    """The identity of a case's trace: launch rule with macros, and source; inline PTX and the machine's code
    have no part in it, because the CPU runs neither.
    """
    rung, macros, rule = _described(study, case)
    text = rung.path.read_text()
    source = "\n".join([*portable_headers(text).values(), text])
    return identity(f"{rule}\n{sorted(macros.items())}", source, None)


def _described(study: str, case: Case) -> tuple[ops.Rung, Mapping[str, int], str]:
    described = studies.get(study).rung(case)
    assert described is not None, case.id
    return described


def _trace(study: str, case: Case) -> pd.DataFrame:
    with ops.on("cpu"):
        (work,) = studies.get(study).contestants([case])
        gate.admit(work)
        with simt.watched_launches() as launches:
            work.launch(0)
    rung, _, _ = _described(study, case)
    now = current(study, case)
    rows = []
    for seen in launches:
        if seen.faults:
            raise UsageError(f"{case.id} has a fault, so it has no trace: {seen.faults[0]}")
        requests, accesses = seen.requests(), seen.accesses()
        first = accesses[accesses["request"] == 0]
        for place, line, access, space, buffer in _places(accesses):
            own = requests[(requests["line"] == line) & (requests["access"] == access)]
            own = own[(own["buffer"] == buffer) & (own["space"] == space)]
            lanes = first[first["place"] == place]
            file, _, number = line.rpartition(":")
            rows.append(
                {
                    "case": case.id,
                    "kernel": rung.entry,
                    "file": file,
                    "code": _code(file, int(number)),
                    "access": access,
                    "space": space,
                    "buffer": buffer,
                    "bytes": int(lanes["bytes"].iloc[0]),
                    "requests": len(own),
                    "lanes": own["lanes"].mean(),
                    "sectors": own["sectors"].sum() if space == "global" else float("nan"),
                    "bytes_used": int(own["bytes_used"].sum()),
                    "bytes_moved": int(own["bytes_moved"].sum()),
                    "conflicts": own["conflicts"].sum() if space == "shared" else float("nan"),
                    "addresses": _addresses(lanes),
                    "identity": now,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _places(accesses: pd.DataFrame) -> list[tuple[int, str, str, str, str]]:
    """Place, line, access, space and buffer of each line's first access of a kind, in the source's order."""
    keys = ["line", "access", "space", "buffer"]
    found = accesses.drop_duplicates(keys)[["place", *keys]].itertuples(index=False, name=None)
    return sorted(found, key=lambda row: (natural_key(row[1]), row[2:]))


def _addresses(lanes: pd.DataFrame) -> str:
    """First byte of each of the 32 lanes of the first warp that was there, "-" for one that took no part."""
    block, warp = min(zip(lanes["block"], lanes["warp"], strict=True))
    own = lanes[(lanes["block"] == block) & (lanes["warp"] == warp)]
    of = dict(zip(own["lane"], own["address"], strict=True))
    return " ".join(str(of.get(lane, "-")) for lane in range(32))


def _code(file: str, number: int) -> str:
    """The text of a line of the source: unlike its number it stays, whatever is written above it."""
    return (KERNELS / file).read_text().splitlines()[number - 1].strip()
