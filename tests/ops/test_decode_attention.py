"""Decode attention on the CPU: every rung against float64, in parts, combined the same way each time."""

import needs
import numpy as np
import pytest
from rooflab import ops, simt
from rooflab.bench import gate
from rooflab.errors import LaunchError, MissingTool
from rooflab.numerics import reference
from rooflab.ops import attention as op
from rooflab.runtime import nvrtc
from shares import thinned
from test_attention import baseline, operands

needs.compiler()

LADDER = op.LADDERS["decode_attention"]
NAMES = [rung.name for rung in LADDER]


def check(name, length, heads=4, kv_heads=2, head_dim=64, capacity=None, window=None, splits=3, **how):
    """Gate one rung on the CPU, two copies of the operands; what lies past `length` is NaN."""
    capacity = capacity or length + 5
    q, k, v = operands(1, capacity, heads, kv_heads, head_dim, seed=length)
    k[length:], v[length:] = np.nan, np.nan
    copies = [[q[0].copy(), k.copy(), v.copy(), np.array([length], np.int32)] for _ in range(2)]
    outputs = [[np.empty((heads, head_dim), np.float16)] for _ in range(2)]
    seen = {"start": length - 1, "window": window, **how}
    expected = reference.attention(q, k[:length], v[:length], **seen)[0]
    workspaces = [op.workspace_for(q[0], splits) for _ in range(2)]

    def launch(i):
        op.decode_attention(
            *copies[i],
            out=outputs[i][0],
            window=window,
            rung=name,
            splits=splits,
            workspace=workspaces[i],
            **how,
        )

    budget = 2 * baseline(q, k[:length], v[:length], **seen)
    with ops.on("cpu"):
        admitted = gate.admit(gate.Work(name, launch, copies, outputs, lambda: expected, budget))
        admitted.recheck()
    assert not any(workspace.arrived.any() or workspace.flagged.any() for workspace in workspaces)
    return outputs[0][0].copy()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 7, 17, 130, 515])
def test_every_rung_passes_the_gate_at_every_length(name, length):
    check(name, length)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", [{"window": 9}, {"window": 1}, {"window": 10**6}, {"scale": 0.3}], ids=str)
def test_windows_and_scales(name, how):
    check(name, 140, **how)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (12, 2), (3, 3), (22, 2)])
def test_query_heads_share_keys_and_values(name, heads, kv_heads):
    check(name, 60, heads, kv_heads)


WIDTHS = [(d, rung.name) for d in (16, 48, 80, 96, 112, 128, 144, 256, 512) for rung in op.decode_rungs(d)]


@pytest.mark.share(3)
@pytest.mark.parametrize(("head_dim", "name"), thinned(WIDTHS))
def test_heads_of_every_width(name, head_dim):
    check(name, 75, 2, 1, head_dim)


@pytest.mark.parametrize("name", NAMES[1:])
def test_any_number_of_parts_gives_the_result_and_each_the_same_bits(name):
    for splits in (1, 2, 16, 33):  # more parts than there are keys for
        first = check(name, 100, splits=splits)
        assert (check(name, 100, splits=splits) == first).all()


def test_a_short_context_uses_as_many_parts_as_it_is_worth():
    """Rung 5 merges no more parts than pay: about the root of the keys a query head, unless MERGE is 0."""

    def used(length, window=None, **how):
        q, k, v = operands(1, 900, 4, 2, 64)
        workspace = op.workspace_for(q[0], 33)
        workspace.parts[:] = np.nan
        how |= {"rung": "5_fragments", "splits": 33, "window": window, "workspace": workspace}
        with ops.on("cpu"):
            out = op.decode_attention(q[0], k, v, np.array([length], np.int32), **how)
        expected = reference.attention(q, k, v, start=length - 1, window=window)[0]
        assert np.abs(out - expected).max() < 5e-3
        parts = np.isfinite(workspace.parts.reshape(4, 33, 2)).all(2).sum(1)
        assert (parts == parts[0]).all()
        return parts[0]

    assert [used(n) for n in (1, 8, 200, 900)] == [1, 3, 11, 22]
    assert used(900, window=8) == 3
    assert used(200, MERGE=4) == 6
    assert used(8, MERGE=0) == 33


@pytest.mark.parametrize("name", op.FRAGMENTS)
def test_fragments_hold_a_tile_of_every_width_in_registers(name):
    try:
        nvrtc.compiler_version()
    except MissingTool as error:
        pytest.skip(str(error))
    rung = ops.rung_of(LADDER, name, "")
    for head_dim, group, brain in ((16, 1, 0), (64, 8, 1), (80, 7, 0), (96, 4, 0), (128, 8, 1), (144, 3, 0)):
        macros = op.decode_tile_of(rung, group, head_dim, "90")
        report = rung.cubin("90", {**macros, "BF16": brain}).resources[rung.entry]
        assert report.spill_bytes == report.stack_bytes == 0 and report.shared_bytes <= 48 * 1024, macros
    for arch in ("80", "89", "90"):
        macros = op.decode_tile_of(rung, 8, 256, arch)
        report = rung.cubin(arch, macros).resources[rung.entry]
        assert report.spill_bytes == report.stack_bytes == 0 and report.shared_bytes <= 48 * 1024, arch


def test_fragments_refuse_a_head_wider_than_registers_hold():
    q, k, v = operands(1, 10, 2, 1, 512)
    says = "up to 256 columns in registers, so it refuses head_dim = 512: take rung 4_cp_async"
    with ops.on("cpu"), pytest.raises(LaunchError, match=says):
        op.decode_attention(q[0], k, v, np.array([10], np.int32), rung="5_fragments")


def test_an_output_of_zero_is_not_taken_for_a_part_that_is_not_there():
    """Parts say that they are there by words that are not zero."""
    q, k, v = operands(1, 300, 4, 2, 64)
    with ops.on("cpu"):
        out = op.decode_attention(q[0], k, 0 * v, np.array([300], np.int32), rung="6_flags_in_data", splits=5)
    assert (out == 0).all()


def test_query_heads_that_a_block_shares_are_dealt_out_evenly():
    rung = ops.rung_of(LADDER, "5_fragments", "")
    groups = (1, 6, 8, 9, 11, 22)
    assert [op.decode_tile_of(rung, g, 128, "90")["GROUP"] for g in groups] == [1, 6, 8, 5, 6, 8]


def test_the_default_is_the_one_that_studies_take_it_for(monkeypatch):
    q, k, v = operands(1, 10, 2, 1, 64)
    asked = []
    load = op.loaded
    monkeypatch.setattr(op, "loaded", lambda rung, macros: asked.append(rung.name) or load(rung, macros))
    with ops.on("cpu"):
        op.decode_attention(q[0], k, v, np.array([10], np.int32))
    assert asked == [op.decode_default(64, 2)] == ["6_flags_in_data"]


@pytest.mark.parametrize("name", NAMES)
def test_the_length_is_read_when_the_kernel_runs(name):
    q, k, v = operands(1, 50, 2, 1, 64)
    length = np.array([1], np.int32)
    with ops.on("cpu"):
        for now in (1, 2, 50):
            length[0] = now
            out = op.decode_attention(q[0], k, v, length, rung=name)
            expected = reference.attention(q, k, v, start=now - 1)[0]
            assert np.abs(out - expected).max() < 5e-3
        length[0] = 999  # past the cache
        assert (op.decode_attention(q[0], k, v, length, rung=name) == out).all()
        length[0] = 0
        assert (op.decode_attention(q[0], k, v, length, rung=name) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_nan_reaches_its_head(name):
    q, k, v = operands(1, 90, 4, 2, 64)
    k[70, 1, 5] = np.nan
    with ops.on("cpu"):
        out = op.decode_attention(q[0], k, v, np.array([90], np.int32), rung=name)
    assert np.isfinite(out[:2]).all() and np.isnan(out[2:]).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_rung_does_what_it_must_not(name):
    """No race, no copy used before it was waited for, no bank conflict in ldmatrix."""
    rung = next(rung for rung in LADDER if rung.name == name)
    q, k, v = operands(1, 150, 4, 2, 64)
    macros = rung.with_defaults(op.decode_tile_of(rung, 2, 64, "89"))
    launch, workspace = op.decode_launch_of(rung, macros), op.workspace_for(q[0], 2)
    c_int, out = op.ctypes.c_int, np.empty_like(q[0])
    arguments = [q[0], k, v, out, np.array([150], np.int32), *map(c_int, (150, 4, 2, 2**31 - 1))]
    arguments.append(op.softmax_scale(None, 64))
    grid = 4 if name == "1_block_per_head" else (2, 2 * -(-2 // launch.queries))
    if name == "6_flags_in_data":
        arguments.append(workspace.flagged)
    elif name != "1_block_per_head":
        arguments += workspace[:3]
    seen = simt.watch(rung, grid, launch.threads, arguments, macros, shared=launch.shared)
    assert not seen.faults, seen.faults[0].sentence
    assert np.abs(out - reference.attention(q, k, v, start=149)[0]).max() < 5e-3
    if name == "4_cp_async":
        rows = seen.requests()
        matrix = rows[(rows["space"] == "shared") & (rows["access"] == "load") & (rows["bytes"] == 16)]
        assert len(matrix) and matrix["conflicts"].mean() < 0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": np.zeros((1, 4, 64), np.float16)}, "one query, q .heads, head_dim."),
        ({"length": np.zeros(2, np.int32)}, "length must hold 1 elements"),
        ({"length": np.zeros(1, np.float32)}, "length must hold uint32"),
        ({"window": 0}, "A window holds 1 to 2.30 keys"),
        ({"splits": 0}, "cut into 1 to 65535 parts, not 0"),
        (
            {"workspace": op.workspace_for(np.zeros((4, 64)), 2), "splits": 3},
            "workspace.outputs must hold 768 elements",
        ),
        ({"rung": "3_packed_gqa", "GROUP": 3}, "GROUP = 3 does not divide 2 heads"),
    ],
)
def test_a_launcher_refuses_in_a_sentence(change, says):
    q, k, v = operands(1, 10, 4, 2, 64)
    given = {"q": q[0], "k": k, "v": v, "length": np.array([10], np.int32), **change}
    with ops.on("cpu"), pytest.raises(LaunchError, match=says):
        op.decode_attention(**given)
