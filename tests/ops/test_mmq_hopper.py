"""MMQ's rung 6 on the CPU: warpgroup products, copies and barriers emulated (see test_attention_hopper)."""

import ctypes
import re

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.errors import LaunchError, MissingTool
from rooflab.ops import mmq, q8_0
from rooflab.paths import ROOT
from rooflab.runtime import nvrtc
from test_mmq import operands

needs.compiler()

RUNG = ops.rung_of(mmq.LADDERS["mmq"], "6_wgmma", "")
EMULATION = "\n".join(
    (ROOT / "tests" / "simt_kernels" / name).read_text() for name in ("hopper.h", "hopper_mmq.h")
)
WORDS = {
    "tma_copy_box": "byte_box",
    **{"warpgroup_": "wgm_", "wgmma_": "wgmm_", "mbarrier_": "mbar_", "setmaxnreg_": "setmxr_"},
    "const __grid_constant__ TensorMap ": "const long long* __restrict__ ",
}
SOURCE = RUNG.path.read_text()
for word, ours in WORDS.items():
    SOURCE = re.sub(rf"\b{word}", ours, SOURCE)
SOURCE = re.sub(r"&(quants|xq)\b", r"\1", SOURCE).replace(
    "unsigned char ring[];", "unsigned char ring[];\n    emulate(ring);"
)
SOURCE = SOURCE.replace("\n\n", f"\n{EMULATION}\n", 1)  # the first blank line follows the includes


def with_fault(right, wrong):
    """The source with a fault planted, once, where it says `right`."""
    assert SOURCE.count(right) == 1
    return SOURCE.replace(right, wrong)


def standing_in(address, rows, columns, element, box, swizzle):
    """What the emulation takes for a tensor map: sizes, a box's sizes, and the matrix."""
    assert (element, swizzle, box[1]) == ("int8", 128, 128)
    head = np.array([rows, columns, *box], np.int64).tobytes()
    return np.frombuffer(head + ctypes.string_at(address, rows * columns), np.int64)


@pytest.fixture(autouse=True)
def maps(monkeypatch):
    monkeypatch.setattr(nvrtc, "tensor_map", standing_in)


def error_of(n, k, batch, source=SOURCE, **options):
    """The largest error by that allowed; what is not written is infinitely wrong."""
    w, x, expected, allowed = operands("planes", n, k, batch)
    out = np.full((batch, n), np.nan, np.float16)
    with ops.on("cpu"), ops.swapped(RUNG, source) as uses:
        mmq.product(x, w, out=out, rung=RUNG.name, **options)
    assert uses == [RUNG.entry]
    return float(np.nan_to_num(np.abs(out - expected), nan=np.inf).max()) / allowed


def watched(n, k, batch, source=SOURCE, **options):
    """The same launch under the watcher: what it saw."""
    w, x, expected, allowed = operands("planes", n, k, batch)
    macros = RUNG.with_defaults({**mmq.options_for(RUNG, n, batch), **options})
    grid, threads, shared = mmq.launch_shape(RUNG, n, batch, macros)
    out = np.full((batch, n), np.nan, np.float16)
    given = [*q8_0.arrays_of(w), *q8_0.arrays_of(x)]
    for i, rows in ((0, n), (2, batch)):
        box = (64 if macros["NARROW"] else 128, 128)
        given[i] = standing_in(given[i].ctypes.data, rows, k, "int8", box, 128)
    sizes = map(ctypes.c_int, (n, k, batch))
    seen = simt.watch(source, grid, threads, [*given, out, *sizes], macros, entry=RUNG.entry, shared=shared)
    return seen.faults, np.abs(out - expected).max() <= allowed


@pytest.mark.parametrize(
    ("n", "k", "batch"),
    [
        (1, 128, 1),  # one chunk: with NARROW three of a block's warpgroups have nothing to multiply
        (70, 256, 20),
        (65, 640, 33),
        (128, 1664, 64),  # more chunks than the ring has narrow places
        (257, 384, 129),  # one token over: wide and narrow blocks
        (200, 1152, 150),
    ],
)
@pytest.mark.parametrize("narrow", [0, 1])
def test_last_tokens_are_right_in_blocks_of_either_kind(n, k, batch, narrow):
    assert error_of(n, k, batch, NARROW=narrow) <= 1


@pytest.mark.parametrize(("n", "k", "batch"), [(64, 256, 65), (129, 128, 127), (130, 768, 128)])
def test_wide_blocks_are_right(n, k, batch):
    assert error_of(n, k, batch) <= 1
    with pytest.raises(LaunchError, match=f"no use for NARROW with {batch} tokens"):
        error_of(n, k, batch, NARROW=1)


@pytest.mark.parametrize(("batch", "narrow"), [(64, 1), (150, 1), (128, 0)])
def test_a_short_ring_is_right(batch, narrow):
    assert error_of(66, 1152, batch, STAGES=2, NARROW=narrow) <= 1


def test_narrow_blocks_come_last_and_only_where_they_spare_time():
    assert mmq.wgmma_blocks(8192, 1848) == (14 * 64, 128)
    assert mmq.wgmma_blocks(8192, 2048) == (16 * 64, 0)
    assert mmq.wgmma_blocks(1, 129) == (1, 1) and mmq.wgmma_blocks(129, 192) == (2, 3)
    macros = RUNG.with_defaults(mmq.options_for(RUNG, 8192, 1848))
    assert mmq.launch_shape(RUNG, 8192, 1848, macros) == ((1024, 1), 640, RUNG.dynamic_shared)
    for n, batch in ((17920, 1848), (1536, 1848), (8192, 2048), (14336, 20), (14336, 65)):
        macros = RUNG.with_defaults(mmq.options_for(RUNG, n, batch))
        assert mmq.launch_shape(RUNG, n, batch, macros)[0] == (-(-batch // 128), -(-n // 128))


@pytest.mark.parametrize(
    ("right", "wrong", "kinds"),
    [
        ("for (int g = 0; g < 4; ++g)", "for (int g = 0; g < 3; ++g)", "narrow"),  # one's share left out
        ("TURNS == 1 ? 0 : group;", "0;", "narrow"),  # all multiply the same
        ("(g * 32 + j + e) * 128", "(g * 32 + i + e) * 128", "narrow"),  # the first quarter four times
        ("(block - wide_blocks) * 64", "block * 64", "mixed"),  # numbered from the first wide one
        ("batch - token0 > 64 ? 2 : 1", "1", "ragged wide"),  # no second half
        ("token0 + first,", "token0,", "mixed"),
        ("row0 + first,", "row0,", "mixed"),
        ("at / 64 * 4 + at % 8 / 2", "at % 8 / 2", "wide mixed"),
        ("ring_scales + 4 * T::ROWS + half", "ring_scales + 640 + half", "narrow mixed"),
    ],
)
def test_a_planted_fault_is_seen(right, wrong, kinds):
    source = with_fault(right, wrong)
    shapes = {
        "narrow": (70, 640, 33),
        "ragged": (130, 256, 100),
        "wide": (130, 640, 128),
        "mixed": (130, 640, 150),
    }
    for kind in kinds.split():
        assert error_of(*shapes[kind], source, NARROW=int(kind in ("narrow", "mixed"))) > 1, kind


# Places are used again.
@pytest.mark.parametrize(("k", "batch", "narrow"), [(768, 20, 1), (768, 20, 0), (512, 100, 0)])
def test_nothing_is_read_before_it_is_there_or_overwritten_before_it_was_used(k, batch, narrow):
    faults, right = watched(60, k, batch, STAGES=2, NARROW=narrow)
    assert not faults, faults[0].sentence
    assert right


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (c >= T::PLACES) mbar_wait(empty + s, (c / T::PLACES + 1) % 2);", ""),
        ("mbar_wait(full + s, c / T::PLACES % 2);", ""),
        ("    wgm_wait_turn(1, 512);  // all tiles have arrived and been multiplied\n", ""),
        ("    wgm_wait_turn(1, 512);\n", ""),
    ],
)
def test_a_missing_wait_is_seen(right, wrong):
    faults, good = watched(60, 768, 20, with_fault(right, wrong), STAGES=2, NARROW=1)
    assert any(fault.kind == "race" for fault in faults) or not good


@pytest.mark.parametrize("narrow", [0, 1])
def test_it_compiles_unspilled_for_the_registers_it_hands_out(narrow):
    try:
        nvrtc.compiler_version()
    except MissingTool as error:
        pytest.skip(str(error))
    report = RUNG.cubin("90", {"NARROW": narrow}).resources[RUNG.entry]
    assert report.spill_bytes == report.stack_bytes == 0
    assert report.shared_bytes + RUNG.dynamic_shared <= 227 * 1024
    # 640 threads get what the kernel is compiled for; four warpgroups then have 112 and one 32.
    assert 5 * report.registers == 4 * 112 + 32
