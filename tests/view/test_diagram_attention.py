"""Drawings of attention's and MMQ's kernels: their numbers and orders are those of the sources."""

import needs
import numpy as np
import pytest
from rooflab import ops
from rooflab.errors import UsageError
from rooflab.ops import attention as attention_op
from rooflab.studies import attention, attention_work, drawn
from rooflab.view import diagram
from rooflab.view.diagram import tile_softmax

# --- 06: the softmax of a tile ------------------------------------------------------------------------------


def test_a_query_s_softmax_over_tiles_is_the_kernel_s():
    needs.compiler()
    walked = [(begin, 64) for begin in range(0, 256, 64)]
    states = tile_softmax.after_tiles(192, 64, walked)
    assert tile_softmax.numbers(states[0], 5)[1] == ("rescale", "0"), "nothing came before"
    name = tile_softmax.rung().name
    with ops.on("cpu"):
        q, k, v = attention_work.operands(attention.shape_of(drawn.scenes()["tiles"].case))
        for (begin, keys), state in zip(walked, states, strict=True):  # the kernel ends where its keys do
            out = attention_op.attention(q[192:], k, v, start=192, context=begin + keys, rung=name)
            kernel = np.asarray(out, np.float64)[:, 0, 0]
            assert np.allclose(state.o / state.row_sum, kernel, rtol=0.01, atol=0.01)


def test_a_kernel_that_does_not_rescale_is_drawn_with_other_numbers():
    text = tile_softmax.rung().path.read_text()
    for statement in ("row_sum[half] *= rescale;", "row_max[half] = new_max;"):
        assert statement in text
        other = diagram.attention_tiles(text=text.replace(statement, ""))
        assert other.says != diagram.attention_tiles().says
    with pytest.raises(UsageError, match="no loop over tiles that makes weights"):
        tile_softmax.statements("")
