"""The machine code of a few tokens' products, as the law divides real models' matrices."""

import re

import pytest
from rooflab import engine
from rooflab.errors import MissingTool
from rooflab.ops import batch_ops, decoder
from rooflab.ops.batch_plan import macros_for, plan_for
from rooflab.runtime import nvrtc
from shares import pairs, thinned

(RUNG,) = batch_ops.LADDERS["batch_product"]
THEN = {"qkv": batch_ops.ROPE, "gate_up": batch_ops.GATE, "out": batch_ops.PARTS, "down": batch_ops.PARTS}


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("model", "format", "tokens"),
    thinned(
        pairs(
            (model, format, tokens)
            for model, counts in (("qwen2.5-1.5b", (1, 4, 8, 32)), ("llama-3-8b", (1, 8)))
            for format in decoder.FORMATS
            for tokens in counts
        )
    ),
)
def test_nothing_spills_and_every_copy_names_registers_that_a_gpu_takes(model, format, tokens):
    """A compiler (13.0) has given copies an odd register for the descriptor, which takes two from an even one
    on: the GPU ends with an illegal instruction, and neither the CPU target nor the resources show it.
    """
    for name, (n, k) in engine.spec(model).shape.matrices.items():
        if name == "head":
            continue
        then, kind = THEN[name], decoder.FORMATS.index(format)
        plan = plan_for(n, k, tokens, format, then == batch_ops.PARTS, 132)
        macros = macros_for(plan, n, tokens, kind, "90")[0] | {"FORMAT": kind, "EPILOGUE": then}
        try:
            cubin = RUNG.cubin("90", macros)
            code = nvrtc.sass(cubin, RUNG.entry)
        except MissingTool as error:
            pytest.skip(str(error))
        assert cubin.resources[RUNG.entry].spill_bytes == 0
        named = re.findall(r"desc\[UR(\d+)\]", " ".join(code))
        assert named and all(int(number) % 2 == 0 for number in named)
