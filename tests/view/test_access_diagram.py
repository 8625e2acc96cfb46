"""Requests of a warp: sectors and banks of typed mappings, against counting byte by byte; their pictures."""

import needs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab import simt
from rooflab.errors import UsageError
from rooflab.view import access_diagram, plot


@pytest.mark.parametrize(
    ("mapping", "width", "sectors", "used"),
    [
        ("lane * 4", 4, 4, 128),
        ("4 * lane + 4", 4, 5, 128),
        ("lane * n * 4", 4, 32, 128),
        ("lane * 16", 16, 16, 512),
        ("threadIdx.x / 8 * n * 4 + threadIdx.x % 8 * 16", 16, 16, 512),
        ("0", 4, 1, 4),
        ("(lane ^ 1) << 2", 4, 4, 128),
        ("lane * 34", 2, 32, 64),
        ("24 + lane * 16", 16, 17, 512),
    ],
)
def test_sectors_of_typed_mappings(mapping, width, sectors, used):
    request = access_diagram.typed(mapping, width, n=4096)
    assert (len(request.sectors()), request.bytes_used()) == (sectors, used)


@pytest.mark.parametrize(
    ("mapping", "width", "turns", "conflicts"),
    [
        ("lane * 4", 4, 1, 0),
        ("lane * 8", 4, 2, 1),
        ("lane * 32 * 4", 4, 32, 31),
        ("lane * 33 * 4", 4, 1, 0),
        ("0", 4, 1, 0),
        ("lane / 2 * 4", 2, 1, 0),
        ("lane * 16", 16, 4, 0),
        ("lane * 8", 8, 2, 0),
        ("lane * 32", 16, 8, 4),
    ],
)
def test_turns_of_the_banks(mapping, width, turns, conflicts):
    request = access_diagram.typed(mapping, width)
    assert (len(request.turns()), request.conflicts()) == (turns, conflicts)
    served = sorted(lane for turn in request.turns() for who in turn.values() for lane in who)
    assert served == sorted(list(range(32)) * max(1, width // 4))


@given(
    st.lists(st.none() | st.integers(0, 4096).map(lambda k: 4 * k), min_size=1, max_size=32),
    st.sampled_from([4, 8, 16]),
)
def test_they_agree_with_the_watchers_tables(places, width):
    """The same counting as simt.watching's, which works on whole tables."""
    from rooflab.simt.watching import _passes

    places = [None if place is None else place // width * width for place in places]
    if all(place is None for place in places):
        return
    request = access_diagram.Request(tuple(places), width, "drawn by lot")
    import pandas as pd

    taking = request.taking_part()
    frame = pd.DataFrame({"address": taking.values(), "lane": taking.keys(), "bytes": width, "group": 0})
    passes, needed = _passes(frame.astype(np.int64), 1)
    assert passes[0] == len(request.turns()) and passes[0] - needed[0] == request.conflicts()
    bytes_ = {place + k for place in taking.values() for k in range(width)}
    assert request.bytes_used() == len(bytes_) and len(request.sectors()) == len({b // 32 for b in bytes_})


def test_a_function_is_a_mapping_too_and_lanes_may_stay_away():
    request = access_diagram.typed(lambda lane: None if lane % 4 else 4 * lane)
    assert request.taking_part() == {lane: 4 * lane for lane in range(0, 32, 4)}
    assert len(request.sectors()) == 4 and request.bytes_used() == 32


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ("lane *", "is no mapping of lanes to bytes"),
        ("lane * rows", "speaks of rows, which is none of lane, n"),
        ("lane ** 2", "it is made of whole numbers"),
        ("f(lane)", "it is made of whole numbers"),
        ("__import__('os')", "it is made of whole numbers"),
        ("lane / 0", "is no mapping"),
        ("lane * 0.5", "it is made of whole numbers"),
        ("-4 * lane", "is not below 0"),
        ("1 << (1 << 40)", "is no mapping"),
    ],
)
def test_what_is_no_mapping_is_refused_in_a_sentence(mapping, says):
    with pytest.raises(UsageError, match=says.replace("*", r"\*")):
        access_diagram.typed(mapping, n=8)
    with pytest.raises(UsageError, match="lanes of 1, 2, 4, 8 or 16 bytes"):
        access_diagram.typed("lane", 3)


def test_captions_are_computed():
    assert access_diagram.caption(access_diagram.typed("lane * n * 4", n=1024)) == (
        "lane * n * 4: 32 lanes, 4 bytes each, 128 bytes in 32 sectors: "
        "12.5% of the 1024 bytes moved are used."
    )
    assert access_diagram.caption(access_diagram.typed("0")).endswith(
        "4 bytes in 1 sector: 12.5% of the 32 bytes moved are used."
    )
    assert access_diagram.caption(access_diagram.typed("lane * 8"), "banks") == (
        "lane * 8: 32 lanes, 4 bytes each, 2 turns of shared memory, 1 of them bank conflicts."
    )
    assert access_diagram.caption(access_diagram.typed("lane * 4"), "banks").endswith(
        "none of them a bank conflict."
    )


def texts(figure):
    (axes,) = figure.axes
    return axes, [text.get_text() for text in axes.texts]


def test_a_picture_has_a_row_a_sector_and_a_cell_a_lane():
    axes, cells = texts(access_diagram.figure(access_diagram.typed("lane * 64")))
    assert cells == [str(lane) for lane in range(32)] and len(axes.get_yticks()) == 32
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "64", "128"]
    axes, cells = texts(access_diagram.figure(access_diagram.typed("8 + lane * 16", 16)))
    assert len(axes.get_yticks()) == 17 and cells.count("1") == 2  # lane 1 lies in two sectors
    axes, cells = texts(access_diagram.figure(access_diagram.typed("lane / 8 * 4")))
    assert cells == ["0-7", "8-15", "16-23", "24-31"]
    axes, cells = texts(access_diagram.figure(access_diagram.typed("24 + lane * 64", 16)))
    assert len(axes.get_yticks()) == 32 and axes.get_title("left").endswith("(the first 32 of 64 sectors)")
    axes, cells = texts(access_diagram.figure(access_diagram.typed("lane * 8"), "banks"))
    assert len(axes.get_yticks()) == 2 and len(cells) == 32
    with pytest.raises(UsageError, match="not of 'caches'"):
        access_diagram.figure(access_diagram.typed("lane"), "caches")


def test_the_same_request_gives_the_same_bytes():
    first, second = (plot.png(access_diagram.figure(access_diagram.typed("lane * 12"))) for _ in range(2))
    assert first == second


def test_a_kernel_that_a_reader_types_is_drawn_from_its_accesses():
    needs.compiler()
    source = """
extern "C" __global__ void turned(const float* x, float* y) {
    __shared__ float tile[32 * 32];
    tile[threadIdx.x * 32] = x[threadIdx.x * 16];
    __syncwarp();
    if (threadIdx.x % 2) y[threadIdx.x] = tile[threadIdx.x * 32];
}"""
    x, y = np.ones(512, np.float32), np.zeros(32, np.float32)
    seen = simt.watch(source, 1, 32, [x, y])
    load = access_diagram.watched(seen, "load", "x")
    assert load.places == tuple(64 * lane for lane in range(32)) and load.what == "load of x (kernel.cu:4)"
    assert access_diagram.watched(seen, "store", "").conflicts() == 31
    assert sorted(access_diagram.watched(seen, "store", "y").taking_part()) == list(range(1, 32, 2))
    with pytest.raises(UsageError, match="Warp 3 of block 0 made no such load of x"):
        access_diagram.watched(seen, "load", "x", warp=3)
