"""Drawings of single rungs of the products, read off their sources and launch rules."""

import pytest
from rooflab.errors import UsageError
from rooflab.ops import gemv, q8_0
from rooflab.paths import KERNELS
from rooflab.view import diagram
from rooflab.view.diagram.asked_first import loads
from rooflab.view.diagram.reading import Part, part_of
from rooflab.view.diagram.tiles_in_turns import divided_first, pieces

GEMV, Q8 = gemv.LADDERS["gemv"], q8_0.LADDERS["q8_0"]
STREAM_K = (KERNELS / "common" / "stream_k.cuh").read_text()


def test_what_is_asked_for_first_is_what_the_source_unrolls():
    drawing = diagram.asked_first(GEMV[2:5])
    for words in ("rung 3: 4 warps, 4 loads of 4 bytes", "rung 5: 1 warp, 8 loads of 16 bytes a lane, 4 KiB"):
        assert words in drawing.says
    text = GEMV[3].path.read_text().replace("#pragma unroll 4", "#pragma unroll 2")
    fewer = diagram.asked_first(GEMV[2:5], {"4_vector": text})
    assert "rung 4: 1 warp, 2 loads" in fewer.says and fewer.svg() != drawing.svg()
    assert loads(GEMV[4].path.read_text(), {"UNROLL": 6}) == (6, 16)
    with pytest.raises(UsageError, match="neither"):
        loads("int a;", {})


def test_every_step_of_every_tile_is_taken_once():
    for tiles, steps, blocks in ((6, 8, 4), (7, 5, 4), (3, 8, 4), (8, 8, 4)):
        taken = [piece for mine in pieces(tiles, steps, blocks, blocks) for piece in mine]
        found = sorted((p.tile, p.begin + k) for p in taken for k in range(p.steps))
        assert found == [(tile, k) for tile in range(tiles) for k in range(steps)]


def test_tiles_are_divided_by_the_source_s_expressions():
    drawing = diagram.tiles_in_turns()
    assert (
        "tiles 4, 5 are divided along k" in drawing.says
        and "Rung 12: a block a tile, done after 20" in drawing.says
    )
    assert "blocks that stay, divided tiles first, done after 17" in drawing.says
    last = [mine[::-1] for mine in pieces(6, 8, 4, 4)]
    assert divided_first(pieces(6, 8, 4, 4), 8) and not divided_first(last, 8)
    assert not divided_first(pieces(8, 8, 4, 4), 8), "none is divided"
    whole = STREAM_K.replace("whole = tiles / BLOCKS * BLOCKS", "whole = tiles / BLOCKS * BLOCKS + 1")
    assert diagram.tiles_in_turns(text=whole).svg() != drawing.svg()
    assert "no tile is divided" in diagram.tiles_in_turns(tiles=8).says
    with pytest.raises(UsageError, match="stream_k"):
        diagram.tiles_in_turns(text="")


def test_warps_of_a_q8_block_divide_rows_or_k(monkeypatch, tmp_path):
    assert part_of(Q8[3]) == Part(4, 1, 1, 1) and part_of(Q8[4]) == Part(1, 4, 4, 4)
    whole = diagram.warps_on_weights(Q8[3:5]).svg()
    other = tmp_path / "5_batch.cu"
    other.write_text(Q8[4].path.read_text().replace("c += THREADS", "c += 32"))
    monkeypatch.setattr(
        type(Q8[4]),
        "path",
        property(lambda rung: other if rung.name == "5_batch" else KERNELS / "q8_0" / f"{rung.name}.cu"),
    )
    assert diagram.warps_on_weights(Q8[3:5]).svg() != whole
