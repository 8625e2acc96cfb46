"""The machine code of decode_step at a real model's sizes: nothing spills, and all loads are issued before
the first of them is used.
"""

import re

import pytest
from rooflab import engine
from rooflab.errors import MissingTool
from rooflab.ops import decoder
from rooflab.runtime import nvrtc
from shares import pairs, thinned

LADDER = {rung.name: rung for rung in decoder.LADDERS["decode_step"]}
FORMATS = [
    *zip(decoder.FORMATS, ("fp16", "q8_0", "fp16"), strict=True),
    ("q8_0", "fp16"),
    ("int4_g128", "q8_0"),
]


def built(name, format, head, model="qwen2.5-1.5b"):
    shape, rung = engine.spec(model).shape, LADDER[name]
    macros = decoder.macros_for(rung, shape, format, head, "90", {}, decoder.blocks_for(shape, format, 132))
    try:
        return rung.cubin("90", macros), rung.entry
    except MissingTool as error:
        pytest.skip(str(error))


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "format", "head"),
    thinned(
        pairs(
            (name, format, head)
            for format, head in FORMATS
            for name in ("7_split_k", "8_tensor_attention", "9_flags_in_data", "10_int4_bytes")
            if name != "10_int4_bytes" or format == "int4_g128"
        )
    ),  # two seconds each
)
def test_no_format_spills(name, format, head):
    cubin, entry = built(name, format, head)
    assert cubin.resources[entry].spill_bytes == 0
    # All threads of the one block that an SM holds get the registers that the launch bounds leave them.
    assert cubin.resources[entry].registers <= 168


@pytest.mark.parametrize(("model", "loads"), [("qwen2.5-1.5b", 4), ("llama-3-8b", 8)])
def test_a_thread_issues_all_loads_of_the_residual_before_it_converts_one(model, loads):
    """A conversion waits for its load: between two loads it would make the second wait for the first. It
    takes 16 bytes to load two elements; the code is there twice, for a layer's norms and for the head's.
    """
    cubin, entry = built("7_split_k", "fp16", "fp16", model)
    kinds = []
    for line in nvrtc.sass(cubin, entry):
        word = re.sub(r"^@!?U?P\d ", "", line).split()[0]
        if word == "LDG.E.128.STRONG.GPU":
            kinds.append("load")
        elif word == "I2F.S64":
            kinds.append("convert")
        elif word.startswith(("BAR", "HMMA")):
            kinds.append("other")
    text = "".join({"load": "l", "convert": "c", "other": " "}[kind] for kind in kinds)
    found = [run for run in text.split() if "c" in run]
    assert len(found) == 2
    for run in found:
        assert re.fullmatch(r"l+c+", run) and run.count("l") == loads and run.count("c") == 2 * loads
