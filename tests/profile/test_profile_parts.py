"""Whose kernel is whose: by ranges, by launch order, by name; summed up over steps that must be alike."""

import dataclasses
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from rooflab.errors import MissingTool, UsageError
from rooflab.numerics import model_shapes
from rooflab.profile import nsys, parts

DATA = Path(__file__).parents[1] / "data"
QWEN = model_shapes.get("qwen2.5-1.5b")
ONE = dataclasses.replace(QWEN, layers=1, vocab=4096)  # what tests/data/nsys/decode.sql was traced with
ORDER = ["q", "k", "v", "o", "gate", "up", "down"]


def database(path, edit=""):
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / "nsys" / "decode.sql").read_text() + edit)
    connection.close()
    return path


@pytest.fixture(scope="module")
def activities(tmp_path_factory):
    path = database(tmp_path_factory.mktemp("nsys") / "decode.sqlite")
    return nsys.read(path).with_cases().activities


def test_ranges_name_the_parts_of_an_eager_step(activities):
    table = parts.table(activities, 2, {"eager": ONE, "graph": ONE}, {})
    eager = table[table["case"] == "eager"]
    products = eager[eager["class"] == "weight"]
    assert products["part"].tolist() == [*ORDER, "lm_head"] and (products["launches"] == 1).all()
    found = set(eager["part"])
    assert {"embed", "rope", "norm", "cache", "attention", "act", "mask", "sample", "rewind"} <= found
    assert set(eager["class"]) <= set(parts.CLASSES)
    assert eager["launches"].sum() == len(activities[activities["case"] == "eager"]) / 2
    assert (eager["q1_us"] <= eager["us"]).all() and (eager["us"] <= eager["q3_us"]).all()
    total = activities.loc[activities["case"] == "eager", "duration_ns"].sum() / 2e3
    assert eager["us"].sum() == pytest.approx(total, rel=0.05)


def test_a_graph_takes_its_parts_from_the_eager_trace_of_the_same_kernels(activities):
    models = {"eager": ONE, "graph": ONE}
    table = parts.table(activities, 2, models, {"graph": "eager"})
    keys = ["part", "class", "kernel", "grid", "block", "launches"]
    eager, graph = (table.loc[table["case"] == case, keys].values.tolist() for case in ("eager", "graph"))
    assert eager == graph
    # With no such trace, launch order still tells the weight products apart, and names give the rest a class.
    alone = parts.table(activities[activities["case"] == "graph"], 2, models, {"graph": "eager"})
    assert alone.loc[alone["class"] == "weight", "part"].tolist() == [*ORDER, "lm_head"]
    assert set(alone.loc[alone["part"] == "", "class"]) >= {"attention", "copy", "elementwise", "reduce"}


def test_starts_are_those_of_one_step(activities):
    eager = activities[activities["case"] == "eager"]
    table = parts.table(eager, 2, {"eager": ONE}, {})
    starts = sorted(float(start) for each in table["starts"] for start in each.split())
    assert len(starts) == len(eager) / 2 and starts[0] == 0 and starts == sorted(starts)
    assert all(len(each.split()) == n for each, n in zip(table["starts"], table["launches"], strict=True))


def test_twenty_eight_layers_need_28_times_7_and_one_weight_products():
    layer = ["norm", "nvjet_q", "nvjet_k", "gemvNSP_v", "flash_fwd", "splitKreduce_kernel", "cutlass_o"]
    layer += ["rsqrt", "nvjet_gate", "void gemv2T_up", "silu", "xmma_gemm_down"]
    names = ["cutlass_80_simt_sgemm", *layer * 28, "nvjet_head", "ArgMaxOps"]
    found = parts.by_order(names, QWEN)
    assert sum(part != "" for part in found) == 28 * 7 + 1 == model_shapes.gemvs(QWEN) + 1
    assert [part for part in found if part] == [*ORDER * 28, "lm_head"]
    assert not any(parts.by_order(names[:-2], QWEN)), "one product too few: nothing is guessed"


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        ("nvjet_sm90_hsh_128x8_64x12_4x1_v_bz_TNT", "gate", "weight"),
        ("void cublasLt::splitKreduce_kernel<32, 16>(int)", "down", "reduce"),
        ("void at::native::elementwise_kernel<copy_kernel_cuda>", "q", "copy"),
        ("nvjet_sm90_hss_64x8", "attention", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16", "attention", "attention"),
        ("void at::native::elementwise_kernel<direct_copy_kernel_cuda>", "attention", "copy"),
        ("void at::native::reduce_kernel<512, 1, MeanOps<float>>", "norm", "norm"),
        ("cutlass_80_simt_sgemm_128x32", "rope", "rope"),
        ("void at::native::index_elementwise_kernel<index_copy_kernel_impl>", "cache", "copy"),
        ("cutlass_80_simt_sgemm_128x32", "", "elementwise"),
        ("void gemvNSP_kernel<__half>", "", "weight"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_11", "", "norm"),
        ("triton_poi_fused_mul_silu_8", "", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_attention_clone_where_5", "", "attention"),
        ("memset", "k", "copy"),
    ],
)
def test_a_class_is_told_by_place_first_and_name_second(name, part, expected):
    assert parts.class_of(name, part) == expected


def test_a_label_tells_kernels_of_one_template_apart():
    add = (
        "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::Half, {}<float>>>()"
    )
    names = [add.format(f"at::native::binary_internal::{which}Functor") for which in ("Mul", "Div")]
    assert [parts.label(name) for name in names] == [
        "vectorized_elementwise_kernel MulFunctor",
        "vectorized_elementwise_kernel DivFunctor",
    ]
    long = "triton_poi_fused_" + "_".join(["add"] * 40)
    assert len(parts.label(long + "_1")) <= 72 and parts.label(long + "_1") != parts.label(long + "_2")


def test_a_path_names_layer_and_part():
    assert parts.part_of("decode/x wall > layer.14 > q") == (14, "q")
    assert parts.part_of("decode/x wall > layer.3") == (3, "")
    assert parts.part_of("decode/x wall") == parts.part_of("") == (None, "")


def test_steps_that_differ_are_refused(activities):
    eager = activities[activities["case"] == "eager"]
    for broken in (eager.iloc[:-1], eager.assign(name=[f"k{i}" for i in range(len(eager))])):
        with pytest.raises(UsageError, match="eager: its 2 traced steps did not launch the same kernels"):
            parts.steps(broken, 2)
    with pytest.raises(UsageError, match="did not launch the same kernels"):
        parts.steps(eager.iloc[:0], 2)


# --- the export itself: empty, cut off, denied --------------------------------------------------------------


def test_an_export_without_kernels_says_so(tmp_path):
    path = database(tmp_path / "empty.sqlite", "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL;")
    with pytest.raises(UsageError, match="holds no kernel"):
        nsys.read(path)


def test_a_denied_recording_names_the_permission(tmp_path):
    edit = (
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL; CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);"
        "INSERT INTO DIAGNOSTIC_EVENT VALUES ('CUPTI_ERROR_INSUFFICIENT_PRIVILEGES');"
    )
    with pytest.raises(MissingTool, match="ERR_NVGPUCTRPERM"):
        nsys.read(database(tmp_path / "denied.sqlite", edit))


def test_a_truncated_export_is_refused(tmp_path):
    path = database(tmp_path / "whole.sqlite")
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UsageError, match="cut off"):
        nsys.read(cut)


def test_columns_are_those_of_a_recorded_profile(activities):
    table = parts.table(activities, 2, {"eager": ONE, "graph": ONE}, {})
    assert list(table.columns) == ["case", *table.columns[1:]] and set(table.columns[1:]) == set(
        parts.COLUMNS
    )
    assert isinstance(table, pd.DataFrame)
