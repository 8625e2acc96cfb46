"""Which kernel, and how often it reads the weights: of launch rules and recorded rows."""

import pandas as pd
from rooflab import dispatch
from rooflab.hardware import perf_model
from rooflab.ops import mmq
from rooflab.view import diagram
from rooflab.view.diagram.passes import tiles_of

NAMES = {how.name: how.name for how in perf_model.STRATEGIES}


def test_tiles_are_those_of_the_launch_rule(monkeypatch):
    n, k = 8192, 8192
    assert tiles_of("q8_0/5_batch", n, k, 20) == (8, 8, 4), "dp4a takes eight tokens a launch"
    assert tiles_of("q8_0/6_mma", n, k, 9) == (16,) and tiles_of("5_large_tiles", n, k, 65) == (64, 64)
    assert tiles_of("6_wgmma", n, k, 33) == (64,) and tiles_of("6_wgmma", n, k, 65) == (128,)
    assert tiles_of("torch.matmul", n, k, 9) == ()
    for batch in (33, 200, 700):
        assert sum(tiles_of("6_wgmma", n, k, batch)) >= batch
    assert sum(tiles_of("7_fp16_wgmma", n, k, 300)) >= 300
    monkeypatch.setattr(mmq, "WIDTHS", (64,))
    assert tiles_of("7_fp16_wgmma", n, k, 129) == (64, 64, 64)


def test_one_token_more_begins_a_pass():
    rows = pd.DataFrame(
        [
            ("dp4a", "q8_0/5_batch", 8, 1.0),
            ("dp4a", "q8_0/5_batch", 9, 2.0),
            ("FP16", "torch.matmul", 9, 3.0),
        ],
        columns=["way", "impl", "batch", "median_us"],
    ).assign(n=8192, k=8192)
    drawing = diagram.passes(rows)
    assert [caption for caption, _ in drawing.frames] == ["8 tokens", "9 tokens"]
    assert "8 tokens: dp4a (5_batch): 1.0 µs, 1 pass of 8 tokens." in drawing.says
    assert "9 tokens: dp4a (5_batch): 2.0 µs, 2 passes of up to 8 tokens; FP16: 3.0 µs" in drawing.says
    assert diagram.passes(rows.assign(batch=7)) is None, "nothing is drawn of what was not recorded"


def test_a_choice_follows_the_table():
    rows = dispatch.table("h200")
    asked = ("q8_0", 6144, 4096, 40)
    drawing, picked = diagram.choice(rows, "h200", asked, NAMES), dispatch.choose(*asked, slug="h200")
    assert f"So {picked.strategy} is launched" in drawing.says
    assert "shape is 4,096 × 4,096; its line for 64 tokens" in drawing.says
    slower = rows.assign(median_us=rows["median_us"].mask(rows["impl"] == picked.strategy, 1e4))
    other = diagram.choice(slower, "h200", asked, NAMES)
    assert f"So {picked.strategy} is launched" not in other.says and other.svg() != drawing.svg()
    few = diagram.choice(rows, "h200", ("q8_0", 6144, 4096, 9999), NAMES)
    assert "Most recorded tokens, fewer than 9999: 256" in few.svg()
    assert diagram.choice(rows, "h200", ("q8_0", 128, 1 << 20, 1), NAMES) is None, "no shape is near"
