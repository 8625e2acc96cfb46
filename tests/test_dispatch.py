"""The dispatcher: recorded tables, predictions for GPUs without one, switches, logs, refusals; every way that
runs without a GPU, on the CPU.
"""

import logging

import numpy as np
import pandas as pd
import pytest
from rooflab import dispatch, ops, simt
from rooflab.errors import LaunchError, MissingTool, UsageError
from rooflab.hardware import device, perf_model
from rooflab.numerics import quant
from rooflab.ops import int4, q8_0
from rooflab.records.case import Case
from rooflab.records.store import Store

try:
    simt.build.compiler()
    COMPILER = ""
except MissingTool as error:  # named, and not forgiven where ROOFLAB_REQUIRE_ALL is set
    COMPILER = str(error)
needs_compiler = pytest.mark.skipif(bool(COMPILER), reason=COMPILER or "there is one")

N, K = 64, 256


@pytest.fixture(autouse=True)
def nothing_reverted(monkeypatch):
    monkeypatch.delenv(dispatch.PLAIN, raising=False)


def random(rows, k, seed):
    rng = np.random.default_rng(seed)
    return ((rng.standard_normal((rows, k)) + 0.2) * np.where(rng.random((rows, k)) < 1 / 64, 9, 1)).astype(
        np.float16
    )


def weights(format):
    """Weights [N, K] in every order, and what they stand for."""
    w = random(N, K, 1) / np.float16(16)
    if format == "fp16":
        return dispatch.halves(w), w
    if format == "int4_g128":
        packed = quant.quantise_int4(w.astype(np.float32))
        rows = int4.Rows(*packed)
        return dispatch.int4_weights(rows, int4.repack(*packed)), quant.dequantise_int4(packed)
    blocks = quant.quantise_q8_0(w)
    held = dispatch.q8_0_weights(quant.to_planes(blocks), q8_0.Blocks(quant.to_bytes(blocks)))
    return held, quant.dequantise_q8(blocks)


def recorded(root, lines, slug="h200", **common):
    """A recording of study regimes that holds these lines: format, way, n, k, batch, microseconds."""
    store = Store(root, slug)
    run = store.begin({"gpu": device.get(slug).name, "commit": "x"})
    rows = []
    for format, name, n, k, batch, us in lines:
        case = Case("regimes", "product", name, format=format, n=n, k=k, batch=batch, **common)
        rows.append(case.row() | {"median_us": us, "q1_us": us, "q3_us": us, "samples": 20, "identity": "x"})
    store.add("regimes", rows, run)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A place for recordings in which the fixture's user writes; the repository's own are out of sight."""
    monkeypatch.setenv("ROOFLAB_STORE", str(tmp_path))
    monkeypatch.setattr(dispatch.paths, "DATA", tmp_path / "none")
    return tmp_path


LINES = (
    ("q8_0", "dp4a", 4096, 4096, 1, 6.0),
    ("q8_0", "dp4a", 4096, 4096, 4, 8.0),
    ("q8_0", "mma", 4096, 4096, 4, 7.5),
    ("q8_0", "two_op", 4096, 4096, 4, 30.0),
    ("q8_0", "mma", 4096, 4096, 16, 8.0),
    ("q8_0", "mmq_fp16_wgmma", 4096, 4096, 256, 20.0),
    ("q8_0", "two_op", 4096, 4096, 256, 19.0),
    ("q8_0", "two_op", 512, 4096, 1, 1.0),
)


@pytest.mark.parametrize(
    ("n", "batch", "name", "line"),
    [
        (4096, 1, "dp4a", "4096 x 4096, 1 token"),
        (4096, 3, "mma", "4096 x 4096, 4 tokens"),  # the smallest recorded number that is large enough
        (4096, 9, "mma", "4096 x 4096, 16 tokens"),
        (4096, 9999, "two_op", "4096 x 4096, 256 tokens"),  # beyond all: the largest
        (5000, 1, "dp4a", "4096 x 4096, 1 token"),  # the nearest shape
        (700, 1, "two_op", "512 x 4096, 1 token"),
    ],
)
def test_the_recorded_table_decides(store, n, batch, name, line):
    recorded(store, LINES)
    found = dispatch.choose("q8_0", n, 4096, batch, "h200")
    assert (found.strategy, found.why) == (name, f"recorded on h200: {line}")


@pytest.mark.parametrize("common", [{"clock": "event"}, {"clock": "wall"}, {"cache": "warm"}])
def test_only_cold_rows_of_the_graph_clock_decide(store, common):
    """A call's cost and a warm cache change the order of ways."""
    recorded(store, LINES)
    recorded(store, [("q8_0", "two_op", 4096, 4096, 1, 0.5)], **common)
    assert len(dispatch.table("h200")) == len(LINES)
    assert dispatch.choose("q8_0", 4096, 4096, 1, "h200").strategy == "dp4a"


def test_a_shape_sixteen_times_off_is_near_and_a_farther_one_is_not(store):
    recorded(store, LINES[:1])
    for n, k in ((16 * 4096, 4096), (4096, 256), (4 * 4096, 1024)):
        assert dispatch.choose("q8_0", n, k, 1, "h200").why.startswith("recorded"), (n, k)
    for n, k in ((16 * 4096 + 64, 4096), (4096, 4096 * 16 + 128), (4 * 4096, 4096 * 4 + 128), (250, 4096)):
        assert dispatch.choose("q8_0", n, k, 1, "h200").why.startswith("predicted"), (n, k)


def test_a_way_that_cannot_take_the_shape_or_is_not_held_is_no_candidate(store):
    recorded(store, LINES)
    assert dispatch.choose("q8_0", 4096, 4096, 256, "h200", held=["planes"]).strategy == "mmq_fp16_wgmma"
    assert dispatch.choose("q8_0", 4096, 4096, 256, "h200", held=["blocks"]).strategy == "two_op"
    # k = 4128 is a multiple of 32 and not of 128: the int8 tensor cores cannot take it.
    assert dispatch.choose("q8_0", 4096, 4128, 4, "h200").strategy == "dp4a"
    with pytest.raises(
        LaunchError, match=r"No strategy multiplies 4 tokens .* dp4a: k = 4097 is no multiple of 32"
    ):
        dispatch.choose("q8_0", 4096, 4097, 4, "h200")


def test_a_gpu_without_a_table_gets_the_prediction_and_is_told_so(store):
    found = dispatch.choose("q8_0", 4096, 4096, 1, "rtx-4090")
    assert found.why == "predicted, by the bound alone: nothing near is recorded on rtx-4090"
    recorded(store, LINES, "rtx-4090")
    assert dispatch.choose("q8_0", 4096, 4096, 1, "rtx-4090").why.startswith("recorded on rtx-4090")
    far = dispatch.choose("q8_0", 65536, 65536, 1, "rtx-4090")
    assert far.why.startswith("predicted") and far.strategy in ("dp4a", "mmq", "mma")
    unknown = dispatch.choose("fp16", 4096, 4096, 1, None, "89")
    assert "this device is in no table, so as if it were h200" in unknown.why


def test_predictions_are_fitted_on_the_reference_recording(store, monkeypatch):
    recorded(store / "none", LINES)  # the repository's
    (store / "none" / "h200" / "bandwidth.csv").write_text(
        (dispatch.paths.ROOT / "data" / "h200" / "bandwidth.csv").read_text()
    )
    runs = store / "none" / "h200" / "runs.csv"
    text = (dispatch.paths.ROOT / "data" / "h200" / "runs.csv").read_text()
    runs.write_text(text + runs.read_text().partition("\n")[2])
    machine, fit = dispatch.reference()
    assert fit.rows == len(LINES) and fit.own["q8_0", "dp4a"].launch_us > 0
    assert 4000 < machine.gb_s < 4800 and machine.peaks["fp16_tensor"] < 989
    assert dispatch.choose("q8_0", 4096, 4096, 1, "rtx-4090").why.startswith("predicted, fitted on h200")


def test_a_gpu_with_the_same_sms_is_served_by_the_reference_table(store):
    recorded(store / "none", LINES)
    served = dispatch.choose("q8_0", 4096, 4096, 1, "h100-sxm")
    assert served.why.startswith("recorded on h200, which has the same SMs: ")
    assert served.strategy == dispatch.choose("q8_0", 4096, 4096, 1, "h200").strategy
    assert dispatch.choose("q8_0", 4096, 4096, 1, "h100-pcie").why.startswith("predicted")  # fewer of them
    assert dispatch.choose("q8_0", 4096 * 40, 4096, 1, "h100-sxm").why.startswith("predicted")  # none near
    recorded(store / "none", LINES, "h100-sxm")
    assert dispatch.choose("q8_0", 4096, 4096, 1, "h100-sxm").why.startswith("recorded on h100-sxm: ")


def test_predictions_follow_the_reference_recording_that_is_there_now(store):
    assert dispatch.reference()[1] == perf_model.NOTHING
    recorded(store, LINES[:3])
    assert dispatch.reference()[1].rows == 3
    recorded(store, LINES)
    assert dispatch.reference()[1].rows == len(LINES)


def test_hopper_s_rungs_are_offered_to_hopper_alone(store):
    ways = {slug: _names("q8_0", 512, slug) for slug in ("h200", "rtx-4090", "t4")}
    assert {"mmq_fp16_wgmma", "mmq_wgmma"} <= set(ways["h200"])
    assert not {"mmq_fp16_wgmma", "mmq_wgmma"} & {*ways["rtx-4090"], *ways["t4"]}
    assert "mmq" in ways["rtx-4090"] and "mmq" not in ways["t4"] and "mmq_blocks" in ways["t4"]
    rungs = {gpu: dispatch.choose("int4_g128", 4096, 4096, 100, gpu) for gpu in ("h200", "rtx-4090", "t4")}
    assert rungs["h200"].rung in ("11_tma", "13_stream_k")
    assert rungs["rtx-4090"].rung in ("9_shared_x", "6_batched", "") and rungs["t4"].rung != "9_shared_x"


def _names(format, batch, slug):
    arch = device.get(slug).sm
    return [how.name for how in dispatch.candidates(format, 4096, 4096, batch, arch, slug, None)]


@pytest.mark.parametrize("format", perf_model.FORMATS)
@pytest.mark.parametrize("slug", device.names())
@pytest.mark.parametrize("batch", [1, 5, 16, 64, 300])
def test_every_gpu_of_the_table_has_a_way_for_every_format(format, slug, batch):
    found = dispatch.choose(format, 4096, 4096, batch, slug)
    launched = dispatch.rung_for(perf_model.strategy(format, found.strategy), 4096, 4096, batch, slug)
    assert found.rung == (launched[0].name if launched else "")
    if launched:  # a rung that this architecture can load
        rung, arch = launched[0], device.get(slug).sm
        assert rung.arch_for(arch) in rung.archs or any(
            a.isdigit() and int(a) <= int(arch) for a in rung.archs
        )


# --- switches, logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["all", "q8_0", "q8_0/dp4a", "fp16, q8_0"])
def test_the_environment_reverts_a_choice_to_the_plain_way(store, monkeypatch, words):
    recorded(store, LINES)
    monkeypatch.setenv(dispatch.PLAIN, words)
    found = dispatch.choose("q8_0", 4096, 4096, 1, "h200")
    assert (found.strategy, found.rung) == ("two_op", "")
    assert found.why == "reverted by ROOFLAB_PLAIN from dp4a"


def test_reverting_one_way_leaves_the_others(store):
    recorded(store, LINES)
    with dispatch.reverted("q8_0/mma"):
        assert dispatch.choose("q8_0", 4096, 4096, 1, "h200").strategy == "dp4a"
        assert dispatch.choose("q8_0", 4096, 4096, 4, "h200").why == "reverted by reverted() from mma"
    assert dispatch.choose("q8_0", 4096, 4096, 4, "h200").strategy == "mma"
    with dispatch.reverted():
        for format in perf_model.FORMATS:
            assert perf_model.strategy(format, dispatch.choose(format, 4096, 4096, 4, "h200").strategy).plain


def test_what_cannot_be_reverted_is_refused(monkeypatch, store):
    with pytest.raises(UsageError, match="'q4' cannot be reverted: name a format"), dispatch.reverted("q4"):
        pass
    monkeypatch.setenv(dispatch.PLAIN, "fast")
    with pytest.raises(UsageError, match="'fast' cannot be reverted"):
        dispatch.choose("fp16", 64, 64, 1, "h200")
    monkeypatch.setenv(dispatch.PLAIN, "all")
    with pytest.raises(LaunchError, match="the plain strategy cannot run: two_op needs the weights in rows"):
        dispatch.choose("int4_g128", 4096, 4096, 1, "h200", held=["tiles"])


# --- multiplying, on the CPU --------------------------------------------------------------------------------

RUN = [
    *[("fp16", name, 1) for name in ("gemv", "cublas")],
    *[("int4_g128", name, batch) for name in ("loop", "fused_rows", "fused", "two_op") for batch in (1, 3)],
    *[("q8_0", name, batch) for name in ("dp4a", "mma", "mmq", "mmq_blocks", "two_op") for batch in (1, 5)],
]


@needs_compiler
@pytest.mark.parametrize(("format", "name", "batch"), RUN)
def test_every_way_multiplies(format, name, batch):
    held, exact = weights(format)
    x = random(batch, K, 7)
    expected = x.astype(np.float64) @ exact.astype(np.float64).T
    out = dispatch.product(x, held, by=name, target="cpu")
    error = np.abs(out - expected).max() / np.sqrt((expected**2).mean())
    # Activations in Q8_1 are rounded to 8 bits; everything else is exact but for the output's rounding.
    assert error < (0.1 if format == "q8_0" and name != "two_op" else 0.005)
    assert dispatch.last().strategy == name and dispatch.last().why == "asked for by name"


@needs_compiler
def test_a_product_says_once_what_runs_and_every_time_on_request(caplog):
    held, _ = weights("int4_g128")
    x = random(2, K, 3)
    dispatch._chosen.cache_clear()
    with caplog.at_level(logging.INFO, logger="rooflab.dispatch"), ops.on("cpu"):
        dispatch.product(x, held)
        dispatch.product(x, held)
    (line,) = caplog.messages
    choice = dispatch.last()
    assert line == dispatch.says(choice, N, K, 2)
    assert line.startswith(f"int4_g128 [{N}, {K}] x 2: {choice.strategy} (rung {choice.rung}); predicted")
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="rooflab.dispatch"), ops.on("cpu"):
        dispatch.product(x, held)
        with dispatch.reverted("int4_g128"):
            dispatch.product(x, held)
    reverted = [line for line in caplog.messages if "reverted by reverted()" in line]
    assert len(caplog.messages) == 3 and len(reverted) == 2  # at INFO as it is new, and at DEBUG
    assert dispatch.last().strategy == "two_op"


@needs_compiler
def test_reverting_changes_the_path_and_not_the_result():
    held, _ = weights("q8_0")
    x = random(1, K, 5)
    fast = dispatch.product(x, held, by="dp4a", target="cpu")
    with dispatch.reverted():
        slow = dispatch.product(x, held, target="cpu")
    assert dispatch.last().strategy == "two_op"
    assert np.abs(fast.astype(float) - slow).max() < 0.05 * np.abs(slow.astype(float)).max()


def test_wrong_operands_are_refused_in_a_sentence():
    held, _ = weights("fp16")
    with ops.on("cpu"), pytest.raises(LaunchError, match="x has k = 128 and the weights have k = 256"):
        dispatch.product(random(1, 128, 0), held)
    with ops.on("cpu"), pytest.raises(LaunchError, match="gemv: it takes up to 1 token, not 2"):
        dispatch.product(random(2, K, 0), held, by="gemv")
    tiles = int4.repack(*quant.quantise_int4(random(N, K, 1).astype(np.float32)))
    with (
        ops.on("cpu"),
        pytest.raises(LaunchError, match="two_op needs the weights in rows, and tiles are held"),
    ):
        dispatch.product(random(1, K, 0), dispatch.int4_weights(tiles), by="two_op")
    with pytest.raises(UsageError, match="several orders are of one shape"):
        dispatch.int4_weights(tiles, int4.Rows(np.zeros((2, 32), np.int32), np.zeros((2, 2), np.float16)))


@needs_compiler
def test_two_products_of_one_stream_share_room_and_not_results():
    held, exact = weights("q8_0")
    first, second = random(2, K, 1), random(2, K, 2)
    with ops.on("cpu"):
        a, b = dispatch.product(first, held, by="dp4a"), dispatch.product(second, held, by="dp4a")
    for out, x in ((a, first), (b, second)):
        expected = x.astype(np.float64) @ exact.astype(np.float64).T
        assert np.abs(out - expected).max() < 0.05 * np.sqrt((expected**2).mean())


def test_a_table_of_the_machine_s_own_goes_before_the_repository_s(store):
    recorded(store / "none", LINES)
    assert len(dispatch.table("h200")) == len(LINES)
    recorded(store, LINES[:2])
    assert len(dispatch.table("h200")) == 2
    assert isinstance(dispatch.table(None), pd.DataFrame) and dispatch.table(None).empty


def test_a_table_s_lines_name_the_fastest_way_and_what_it_is_worth(store):
    recorded(store, LINES)
    found = dispatch.lines(dispatch.table("h200")).set_index(["n", "batch"])
    assert found.loc[(4096, 4)].to_dict() == {
        **{"format": "q8_0", "k": 4096, "strategy": "mma", "us": 7.5, "plain_us": 30.0, "gain": 4.0}
    }
    assert found.loc[(4096, 256), "gain"] == 1.0 and np.isnan(found.loc[(4096, 16), "plain_us"])


def test_a_tie_on_the_nearest_shape_is_decided_by_the_others_with_as_many_tokens():
    """Whole tiles won one line by a thousandth, and took 1.6 times as long where it was the nearest."""

    def shape(n, tiles, halves):
        return [("q8_0", impl, n, 4096, 256, us) for impl, us in (("mmq_tiles", tiles), ("mmq_fp16", halves))]

    rows = pd.DataFrame(
        [*shape(4096, 50.1, 50.0), *shape(8192, 80.0, 95.0), *shape(28672, 300.0, 330.0)],
        columns=["format", "impl", "n", "k", "batch", "median_us"],
    )
    names = ["mmq_tiles", "mmq_fp16"]
    assert dispatch.fastest(rows, 5000, 4096, 256, names) == ("mmq_tiles", "4096 x 4096, 256 tokens")
    clear = rows.assign(median_us=[52.0, *rows["median_us"][1:]])
    assert dispatch.fastest(clear, 5000, 4096, 256, names)[0] == "mmq_fp16", "not a tie: 4 percent"
    alone = rows[rows["n"] == 4096]
    assert dispatch.fastest(alone, 5000, 4096, 256, names)[0] == "mmq_fp16"
