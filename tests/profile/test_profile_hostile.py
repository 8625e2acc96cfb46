"""Exports of profilers, damaged in every way: a table, or one sentence. $ROOFLAB_FUZZ says how many of each
kind of damage are tried (30).
"""

import copy
import json
import math
import os
import random
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from rooflab.errors import RooflabError
from rooflab.profile import cupti, ncu, nsys, trace

MANY = int(os.environ.get("ROOFLAB_FUZZ", "30"))
DATA = Path(__file__).parents[1] / "data"
KINETO = (DATA / "kineto" / "trace.json").read_text()
RAW = (DATA / "ncu" / "raw.csv").read_text()
SQL = (DATA / "nsys" / "decode.sql").read_text()
ODD = [None, "", "x", "12", -1, 1.5, 2**63 - 1, -(2**63), 10**30, True, [], [1, 2], {}, {"a": 1}, math.nan]
ODD += [math.inf, 1e308, "\x00", "\ud800"]


def sound(read):
    """What was read, once it is a whole table; None if it was refused in a sentence."""
    try:
        found = read()
    except RooflabError as error:
        said = str(error)
        assert said.endswith(".") and "\n" not in said and len(said) < 700, said
        return None
    if isinstance(found, pd.DataFrame):
        assert len(found) and found["id"].dtype == int
        return found
    rows = found.activities
    assert list(rows) == list(trace.COLUMNS) and len(rows) and (rows["kind"] == "kernel").any()
    for name in ("start_ns", "duration_ns", "stream", "node", "correlation", "bytes"):
        assert rows[name].dtype == "int64" and (rows[name] >= 0).all()
    assert (found.calls["total_ns"] >= 0).all()
    return found


def bytes_changed(rng, raw):
    raw = bytearray(raw)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(raw))
        what = rng.randrange(4)
        if what == 0:
            raw[at] = rng.randrange(256)
        elif what == 1:
            raw[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            del raw[at : at + rng.choice((1, 7, len(raw)))]
            if not raw:
                return b""
        else:
            raw[at:at] = raw[rng.randrange(len(raw)) :][: rng.randint(1, 40)]
    return bytes(raw)


# --- CUPTI by torch.profiler --------------------------------------------------------------------------------


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def test_a_trace_of_cupti_by_types():
    rng, whole = random.Random(1), json.loads(KINETO)
    where = [path for path in places(whole) if path]
    assert sound(lambda: cupti.parse(json.dumps(whole)))
    refused = 0
    for _ in range(4 * MANY):
        made = copy.deepcopy(whole)
        path = rng.choice(where)
        inner = made
        for key in path[:-1]:
            inner = inner[key]
        if rng.random() < 0.2:
            del inner[path[-1]]
        else:
            inner[path[-1]] = rng.choice(ODD)
        refused += sound(lambda made=made: cupti.parse(json.dumps(made))) is None
    assert refused > MANY // 10


def test_a_trace_of_cupti_by_bytes():
    rng = random.Random(2)
    for _ in range(2 * MANY):
        text = bytes_changed(rng, KINETO.encode()).decode(errors="replace")
        sound(lambda text=text: cupti.parse(text))


@pytest.mark.parametrize(
    "text", ["[" * 99_999, "1" * 5000, "null", '{"traceEvents": [1]}', "1e999999999", ""]
)
def test_what_is_no_trace(text):
    assert sound(lambda: cupti.parse(text)) is None
    dear = KINETO.replace('"dur":', '"dur": 1e999999999, "was":', 1)
    assert dear != KINETO and sound(lambda: cupti.parse(dear)) is None


# --- Nsight Compute -----------------------------------------------------------------------------------------


def test_a_page_of_ncu_by_bytes():
    rng = random.Random(3)
    for _ in range(4 * MANY):
        text = bytes_changed(rng, RAW.encode()).decode(errors="replace")
        sound(lambda text=text: ncu.parse(text))


def test_a_page_of_ncu_by_cells():
    rng = random.Random(4)
    cells = [
        (row, at)
        for row, line in enumerate(RAW.splitlines())
        for at in range(len(line.split('","')))
        if line.startswith('"')
    ]
    texts = ["", "x", "-1", "1e999", "nan", "(!)", "12,3,4", "99999999999999999999", "\x00", "0x10", "1.5"]
    lines = RAW.splitlines()
    for _ in range(4 * MANY):
        made = list(lines)
        for _ in range(rng.randint(1, 3)):
            row, at = rng.choice(cells)
            parts = made[row].strip('"').split('","')
            what = rng.random()
            if at >= len(parts):
                continue
            if what < 0.7:
                parts[at] = rng.choice(texts)
            elif what < 0.85:
                parts[at] = parts[rng.randrange(len(parts))]
            else:
                del parts[at]
            made[row] = '"' + '","'.join(parts) + '"'
        sound(lambda made=made: ncu.parse("\n".join(made) + "\n"))


# --- Nsight Systems -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """A whole export."""
    path = tmp_path_factory.mktemp("nsys") / "whole.sqlite"
    database = sqlite3.connect(path)
    database.executescript(SQL)
    database.commit()
    database.close()
    assert sound(lambda: nsys.read(path))
    return path


def test_an_export_of_nsys_by_types(export, tmp_path):
    rng, path = random.Random(5), tmp_path / "made.sqlite"
    odd = [None, "", "x", "12", -1, 1.5, 2**63 - 1, -(2**63), b"", b"\xff\xfe", math.inf, "\x00"]
    refused = 0
    for _ in range(2 * MANY):
        path.write_bytes(export.read_bytes())
        database = sqlite3.connect(path)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.randint(1, 3)):
            table = rng.choice(tables)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            column, what = rng.choice(columns or [""]), rng.random()
            try:
                if what < 0.8:
                    row = f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET ?)"
                    count = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                    database.execute(
                        f'UPDATE {table} SET "{column}" = ? WHERE rowid = {row}',
                        (rng.choice(odd), rng.randrange(max(1, count))),
                    )
                elif what < 0.9:
                    database.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other')
                else:
                    database.execute(f"DROP TABLE {table}")
                    tables.remove(table)
            except sqlite3.Error:  # what the schema itself forbids
                continue
        database.commit()
        database.close()
        refused += sound(lambda: nsys.read(path)) is None
    assert refused > MANY // 10


def test_an_export_of_nsys_by_bytes(export, tmp_path):
    rng, path = random.Random(6), tmp_path / "made.sqlite"
    for _ in range(2 * MANY):
        path.write_bytes(bytes_changed(rng, export.read_bytes()))
        sound(lambda: nsys.read(path))
