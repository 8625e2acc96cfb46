"""Models to turn: the page's numbers are those of the functions, and the functions those of the lessons."""

import html
import json
import math
import re

import pytest
from rooflab.analysis import ablation
from rooflab.errors import UsageError
from rooflab.hardware import device, roofline
from rooflab.lab import open as open_lab
from rooflab.studies import decode
from rooflab.view import models
from rooflab.view.captions import UNITS, measured


def page_of(made):
    """The data that an explorer's page holds."""
    text = made._repr_mimebundle_()["text/html"]
    return json.loads(html.unescape(re.search(r"data-explorer='([^']*)'", text)[1]))


@pytest.mark.parametrize("name", models.MODELS)
def test_page_widget_and_function_say_the_same(name):
    model, made = models.MODELS[name], models.explorer(name, "NVIDIA H200")
    data = page_of(made)
    count = len(data["controls"])
    columns = [column for column in model.turns if column != model.x]
    shown = {}
    for case in data["cases"]:
        picks = [data["controls"][k]["values"][case[k]] for k in range(count)]
        shown[(*picks, data["x"]["values"][case[count]])] = (
            tuple(case[:count]),
            case[count + 1],
            case[count + 3],
        )
    assert count == len(columns)
    unit = UNITS.get(model.y, model.y)
    chart, seen = made._chart, 0
    for row in model.table().to_dict("records"):
        chosen = [row[column] for column in columns]
        y = model.of(**{column: row[column] for column in model.turns})
        if math.isnan(y):
            assert (*chosen, row[model.x]) not in shown
            continue
        y = float(f"{y:.4g}")
        picks, height, facts = shown[(*chosen, row[model.x])]
        assert height == chart.views[picks[1:]].to_y(y), "the page's curve"
        assert facts == measured(y, unit), "the page's words"
        assert chart.line(chosen, row[model.x]).endswith(f": {measured(y, unit)}."), "the widget's words"
        seen += 1
    assert seen == len(data["cases"]) > 40
    assert len(made._page) < 21_000


def test_a_known_gpu_is_chosen_first_and_an_unknown_one_is_not_missed():
    def opened(gpu):
        chart = models.explorer("little", gpu)._chart
        return chart.picks(chart.start)[1]

    assert opened("NVIDIA GeForce RTX 3060") == device.get("rtx-3060").name
    assert opened("NVIDIA Unlisted 1") == opened("") == device.get("h200").name
    with pytest.raises(UsageError, match="no model 'nothing' to turn; there are little, stride"):
        models.explorer("nothing")


def test_laws_at_points_that_can_be_checked_by_hand():
    h200 = device.get("h200")
    assert models.little(64, 400, h200.name) == h200.dram_gb_s, "the roof ends it"
    assert models.little(1, 1000, h200.name) == pytest.approx(1024 * h200.sms / 1000)
    assert models.stride(1, 4, 0) == 100 and models.stride(32, 4, 0) == 12.5
    assert models.stride(1, 4, 16) == pytest.approx(100 * 128 / 160), "a fifth sector"
    assert models.tile(128, 128) == 64
    assert models.occupancy(128, 1, h200.name) == (h200.shared_kb_per_block + 1) // 33
    slots = h200.sms * 128 * h200.boost_mhz / 1e3
    assert models.instructions(8, 4, h200.name) == pytest.approx(100 * slots / 8 / (h200.dram_gb_s * 2))
    assert models.crossover(1, 4, h200.name) < models.crossover(1, 16, h200.name)
    assert models.crossover(1024, 4, h200.name) == models.crossover(1024, 16, h200.name), "arithmetic binds"
    assert (
        models.attention(131072, "512", 32, h200.name) < models.attention(131072, "none", 32, h200.name) / 50
    )
    assert models.phases(8.0, "fp16", "qwen2.5-1.5b", h200.name) < models.phases(
        0.0, "fp16", "qwen2.5-1.5b", h200.name
    )


def test_the_decoders_law_is_the_models():
    here = open_lab("replay", "h200")
    rows = ablation.named(here.measure("decode", here.held("decode", here.cases("decode"))))
    fixed, rate, mine = ablation.law(rows, "3_persistent", here.roof["dram_read"].value)
    assert len(mine) and set(mine["seq"]) == {decode.PROMPT}
    for row in mine.to_dict("records"):
        assert row["law_us"] == roofline.phases_us(row["phases"], fixed, row["bytes"], rate)
