"""Requests and sectors of the GEMV ladders: what watching counts is what Nsight Compute counted on the GPU.

The recording holds the small products of studies.gemv.traced(); each runs here through its op, watched. First
the machine code is asked whether it loads and stores in the widths of the source, so that counts can agree.
One load of the source is none in it: of a load_acquire whose value nobody uses the compiler keeps the fence.
"""

import functools
import re

import needs
import numpy as np
import pandas as pd
import pytest
from rooflab import ops, simt, studies
from rooflab.paths import DATA, KERNELS
from rooflab.runtime import nvrtc
from rooflab.studies import gemv as study
from rooflab.studies import traces
from shares import thinned

needs.compiler()

CASES = study.traced()
COUNTED = ("load_requests", "load_sectors", "store_requests", "store_sectors")
PROFILE = DATA / "h200" / "profiles" / "gemv_ncu.csv"


@functools.cache
def watched(case):
    """The case's contestant, launched once through its op, watched."""
    with ops.on("cpu"):
        (work,) = studies.get("gemv").contestants([case])
        with simt.watched_launches() as launches:
            work.launch(0)
    (seen,) = launches
    assert seen.faults == []
    return seen


def fence_alone(code):
    """Whether a line of the source is an acquiring load as a statement, its value dropped."""
    return code.startswith("load_acquire(")


def code_at(line):
    file, _, number = line.rpartition(":")
    path = KERNELS / file
    known = path.is_file() and number.isdigit()
    return path.read_text().splitlines()[int(number) - 1].strip() if known else ""


def counts(seen):
    """The four counters of a watched launch: global memory, atomics apart."""
    rows = seen.requests()
    assert seen.sectors().tolist() == rows.loc[rows["space"] == "global", "sectors"].tolist()
    rows = rows[(rows["space"] == "global") & ~rows["line"].map(lambda line: fence_alone(code_at(line)))]
    found = {}
    for access in ("load", "store"):
        own = rows[rows["access"] == access]
        found[f"{access}_requests"], found[f"{access}_sectors"] = len(own), int(own["sectors"].sum())
    return found


WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def listing(case):
    """The case's machine code for an H200."""
    rung, macros, _ = study.own_rung(case)
    return nvrtc.sass(rung.cubin("90", macros), rung.entry)


def widths_in_sass(case, opcode):
    """Bytes a lane that the global loads (LDG) or stores (STG) of the case's rung move on an H200."""
    found = set()
    for line in listing(case):
        words = re.sub(r"^@\S+ ", "", line).split()[0].split(".")
        if words[0] == opcode:
            found.add(next((size for word, size in WIDTHS.items() if word in words), 4))
    return found


RUNGS = sorted({(case.operator, case.impl) for case in CASES})


@pytest.mark.share(2)
@pytest.mark.parametrize("rung", thinned(RUNGS, step=3), ids="/".join)
def test_the_machine_code_loads_and_stores_in_the_widths_of_the_source(rung):
    """No load of the source is split in two, none are merged into a wider one."""
    cases = [case for case in CASES if (case.operator, case.impl) == rung]
    accesses = pd.concat([watched(case).accesses() for case in cases])
    accesses = accesses[accesses["space"] == "global"]
    for access, opcode in (("load", "LDG"), ("store", "STG")):
        source = set(accesses[accesses["access"] == access]["bytes"])
        compiled = set().union(*(widths_in_sass(case, opcode) for case in cases))
        assert compiled == source, access
    strong = [line for line in listing(cases[0]) if re.search(r"LDG\S*\.STRONG", line)]
    assert not strong  # what fence_alone leaves out is no load there


def recorded(case):
    """What ncu counted of the case on the H200."""
    if not PROFILE.is_file():
        pytest.skip("gemv is not profiled yet: `rooflab record 03` makes the recording that is compared here")
    profile = pd.read_csv(PROFILE)
    if case.id not in set(profile["case"]) or not set(COUNTED) <= set(profile.columns):
        pytest.skip(f"the recorded profile of gemv does not hold {case.id}")
    (row,) = profile[profile["case"] == case.id].to_dict("records")
    return row


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_requests_and_sectors_are_those_that_ncu_counted(case):
    row = recorded(case)
    if simt.build.family() != "gcc":
        pytest.skip("loads stand where the source has them only on g++")
    assert counts(watched(case)) == {name: row[name] for name in COUNTED}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_recorded_trace_and_the_recorded_counters_agree(case):
    """The same comparison of two records."""
    row = recorded(case)
    rows = traces.read("gemv")
    rows = rows[(rows["case"] == case.id) & (rows["space"] == "global") & ~rows["code"].map(fence_alone)]
    for access in ("load", "store"):
        own = rows[rows["access"] == access]
        counted = (row[f"{access}_requests"], row[f"{access}_sectors"])
        assert (own["requests"].sum(), own["sectors"].sum()) == counted, access


def test_a_count_can_be_wrong():
    """Two mappings of one product do not count alike, so the comparison above says something."""
    found = {}
    for case in CASES:
        if case.operator == "gemv" and (case.n, case.k) == (512, 256):
            found[case.impl] = counts(watched(case))
    strided, coalesced = found["1_strided"], found["2_coalesced"]
    assert strided["load_sectors"] > 4 * coalesced["load_sectors"]
    assert len({tuple(sorted(c.items())) for c in found.values()}) >= 4
    matrix = 512 * 256 * 4
    assert coalesced["load_sectors"] >= matrix // 32
    # A warp's 4-byte loads of neighbours ask for 128 bytes each.
    assert coalesced["load_requests"] >= matrix // 128


def test_watched_launches_see_what_an_op_does_and_then_no_more():
    from rooflab.ops import stream

    x = np.arange(256, dtype=np.uint32)
    with simt.watched_launches() as launches:
        out = stream.copy(x, rung="1_scalar", target="cpu")
        assert len(launches) == 1 and (out == x).all()
    assert counts(launches[0]) == {
        "load_requests": 8,
        "load_sectors": 32,
        "store_requests": 8,
        "store_sectors": 32,
    }
    stream.copy(x, rung="1_scalar", target="cpu")
    assert len(launches) == 1
