"""No rung raises a false alarm: every portable rung of every operator, watched on ragged shapes.

The streams and matrix-vector products are watched in test_simt_gates.py; here are the operators with more
than one kind of operand, each by its study's own contestants or by its op.
"""

from dataclasses import replace

import numpy as np
import pytest
from rooflab import engine, ops, simt, studies
from rooflab.bench import gate
from rooflab.engine.weights import random_tensors
from rooflab.errors import MissingTool
from rooflab.numerics import quant, reference
from rooflab.ops import decoder, decoder_ops, gemma_ops, int4
from rooflab.studies.attention import Attention
from test_attention_study import SMALL as ATTENTION
from test_decoder import RUNGS, rows_right, tiny
from test_q8_studies import small as q8_cases
from test_simt_gates import study_cases

try:
    simt.build.compiler()
except MissingTool as error:  # named, and not forgiven where ROOFLAB_REQUIRE_ALL is set
    pytest.skip(str(error), allow_module_level=True)

INT4 = [rung for rung in int4.LADDERS["int4"] if any(arch.isdigit() for arch in rung.archs)]
Q8 = list(q8_cases())


def alarms(launches):
    assert launches
    return [str(fault) for seen in launches for fault in seen.faults]


@pytest.mark.parametrize("case", [*Q8, *ATTENTION], ids=lambda case: f"{case.study} {case.id}")
def test_a_studys_contestant_raises_no_alarm(case):
    study = Attention() if case.study == "attention" else studies.get(case.study)
    with ops.on("cpu"):
        (work,) = study.contestants([replace(case, cache="warm") if case.study == "attention" else case])
        with simt.watched_launches() as launches:
            work.launch(0)
    assert alarms(launches) == []


@pytest.mark.parametrize("rung", INT4, ids=lambda rung: rung.name)
@pytest.mark.parametrize("batch", [1, 3])
def test_an_int4_product_raises_no_alarm_and_is_right(rung, batch):
    rng = np.random.default_rng(batch)
    n, k = 70, 384
    packed = quant.quantise_int4(rng.standard_normal((n, k)).astype(np.float32) + np.float32(0.1))
    rows = int4.Rows(packed.qweight, packed.scales)
    weights = int4.repack(packed.qweight, packed.scales) if rung in int4.TILED else rows
    x = (rng.standard_normal((batch, k)) + 0.25).astype(np.float16)
    expected = reference.gemm(quant.dequantise_int4(packed), x.astype(np.float32))
    with ops.on("cpu"), simt.watched_launches() as launches:
        got = int4.matmul(x, weights, rung=rung.name)
    assert alarms(launches) == []
    assert np.abs(got - expected).max() <= gate.error_budget(2e-3, expected, "float16")


def test_dequantising_int4_raises_no_alarm():
    packed = quant.quantise_int4(np.random.default_rng(1).standard_normal((5, 256)).astype(np.float32))
    with ops.on("cpu"), simt.watched_launches() as launches:
        got = int4.dequantise(int4.Rows(packed.qweight, packed.scales))
    assert alarms(launches) == [] and np.abs(got - quant.dequantise_int4(packed)).max() < 1e-3


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("format", decoder.FORMATS)
def test_a_decoded_token_raises_no_alarm(rung, format):
    spec = tiny(layers=1, vocab=64)
    weights = engine.pack(spec, random_tensors(spec, on="cpu"), format, "fp16", capacity=8)
    one = engine.Engine(spec, weights, paths=engine.Paths(decode=rung), blocks=2)
    with simt.watched_launches() as launches:
        one.prefill([3, 4])
    assert alarms(launches) == [] and one.position == 2


def test_the_kernels_between_a_prompts_products_raise_no_alarm():
    with simt.watched_launches() as launches:
        rows_right()
    assert alarms(launches) == []


def test_every_portable_rung_of_every_operator_is_watched():
    found = {(case.operator, case.impl) for case in (*study_cases(), *Q8, *ATTENTION)}
    found |= {("int4", rung.name) for rung in INT4}
    found |= {("int4_dequantise", rung.name) for rung in int4.LADDERS["int4_dequantise"]}
    for module in (decoder, decoder_ops, gemma_ops):  # rows: in test_engine_gemma.py
        found |= {(operator, rung.name) for operator, ladder in module.LADDERS.items() for rung in ladder}
    for module in ops.modules():
        for operator, ladder in module.LADDERS.items():
            for rung in ladder:
                if any(arch.isdigit() for arch in rung.archs):
                    assert (operator, rung.name) in found
