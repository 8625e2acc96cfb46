"""Models to turn: the page's numbers are those of the functions, and the functions those of the lessons."""

import html
import itertools
import json
import math
import re

import pandas as pd
import pytest
from rooflab.analysis import ablation
from rooflab.analysis import attention as attention_of_kernels
from rooflab.errors import UsageError
from rooflab.hardware import device, roofline
from rooflab.lab import open as open_lab
from rooflab.numerics import model_shapes
from rooflab.pages import lesson_04b
from rooflab.studies import decode, drawn, links, split
from rooflab.view import diagram, models
from rooflab.view.access_diagram import Request
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
            "; ".join(data["words"][part] if isinstance(part, int) else part for part in case[count + 3]),
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
        says = model.says(**{column: row[column] for column in model.turns}) if model.says else ""
        words = "; ".join(filter(None, (measured(y, unit), says)))
        assert facts == words, "the page's words"
        assert chart.line(chosen, row[model.x]).endswith(f": {words}."), "the widget's words"
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
    assert models.stride_says(1, 4, 16) == "5 sectors"
    assert models.occupancy(256, 64, 2, h200.name) == (h200.shared_kb_per_block + 1) // 129
    assert models.occupancy_says(256, 64, 2, h200.name) == "136 registers, 128 KiB; limit: shared memory"
    assert models.occupancy(512, 16, 1, h200.name) == 0 < models.occupancy(512, 16, 2, h200.name)
    assert models.occupancy_says(512, 16, 1, h200.name) == "304 registers, 64 KiB; a thread has at most 255"
    last, *others = (device.get(slug).name for slug in ("rtx-4090", "l4", "rtx-3060"))
    turns = models.MODELS["occupancy"].turns
    for block in itertools.product(turns["width"], turns["keys"], turns["sharers"]):
        held = models.occupancy(*block, last), models.occupancy_says(*block, last)
        assert all(
            (models.occupancy(*block, gpu), models.occupancy_says(*block, gpu)) == held for gpu in others
        )
    slots = h200.sms * 128 * h200.boost_mhz / 1e3
    assert models.instructions(8, 4, h200.name) == pytest.approx(100 * slots / 8 / (h200.dram_gb_s * 2))
    assert models.crossover(1, 4, h200.name) < models.crossover(1, 16, h200.name)
    assert models.crossover(1024, 4, h200.name) == models.crossover(1024, 16, h200.name), "arithmetic binds"
    assert (
        models.attention(131072, "512", 32, h200.name) < models.attention(131072, "none", 32, h200.name) / 50
    )
    assert models.attention_says(1, "none", 32, h200.name).startswith("1.64e-05 GFLOP, 0.0205 MB: bytes")
    assert models.attention_says(131072, "none", 32, h200.name).endswith(": FLOPs decide")
    eight, none = (models.phases(us, 5, "fp16", "qwen2.5-1.5b", h200.name) for us in (8.0, 0.0))
    assert eight < none == models.phases(0.0, 50, "fp16", "qwen2.5-1.5b", h200.name), "free phases"
    layers = model_shapes.get("qwen2.5-1.5b").layers
    assert 1e6 / eight - 1e6 / none == pytest.approx(8 * (5 * layers + 1))


def test_rows_that_start_in_one_bank_take_a_turn_each():
    """As the attention kernels ask on the CPU: the rows of 4_mma and of 5_padded, eight at a time."""
    assert models.banks(0, 128, 4) == 32 and models.banks(4, 128, 4) == 1
    assert models.banks_says(0, 128, 4) == "31 by conflicts"
    assert math.isnan(models.banks(4, 256, 16)), "16 bytes are not read from between two"
    for scene, padding in (("tiles", 0), ("padded tiles", 16)):
        one = diagram.memory.lanes_in_banks(drawn.read("requests", scene))
        lanes = list(one.taking_part().values())
        row = lanes[1] - lanes[0] - padding
        mine = models.down_a_column(row, padding, one.width)
        assert (
            Request(tuple(lanes[:8]), one.width, "").turns()
            == Request(mine.places[:8], one.width, "").turns()
        )
        eight = len(Request(tuple(lanes[:8]), one.width, "").turns())
        assert models.banks(padding, row, one.width) == 4 * eight, "four times eight rows"


def test_a_link_costs_what_its_table_says():
    assert models.LINKS["NVLink"] == links.SHEET_GB_S
    assert models.LINKS["PCIe 5"] == 16 * device.PCIE_LANE_GB_S[5]
    size = 2 * model_shapes.get("llama-3-8b").hidden
    wire = links.crossing("all_reduce", links.all_reduce.DEFAULT, size, 2) / links.SHEET_GB_S / 1e3
    assert models.wire_us(2, "llama-3-8b", "NVLink") == wire
    on = {link: models.shared(2.0, 4, link, "llama-3-8b", "fp16") for link in models.LINKS}
    assert on["NVLink"] > on["PCIe 6"] > on["PCIe 5"] > on["PCIe 4"]
    alone = {models.shared(us, 1, "PCIe 3", "llama-3-8b", "fp16") for us in (1.0, 32.0)}
    assert len(alone) == 1, "one GPU has nothing to sum"


def test_the_page_on_instructions_and_its_model_follow_one_law(monkeypatch):
    h200, drawn_with, said = device.get("h200"), [], []
    spent = pd.DataFrame({"impl": pd.Series(dtype=str), "each": pd.Series(dtype=float)})
    monkeypatch.setattr(
        lesson_04b.diagram, "budget", lambda afford, *_: drawn_with.append(afford) or NoDrawing()
    )
    monkeypatch.setattr(lesson_04b.display, "say", said.append)
    monkeypatch.setattr(lesson_04b.display, "table", lambda *_, **__: None)

    def shown() -> tuple[float, float]:
        ghz = h200.boost_mhz / 1e3
        lesson_04b.instruction_budget(h200.sms, ghz, h200.dram_gb_s, 0.5, h200.name, spent)
        return drawn_with[-1], models.instructions(1e4, 4, h200.name)

    afford, percent = shown()
    assert percent == pytest.approx(100 * afford / 1e4) and f"**{afford:.1f} instructions**" in said[-1]
    law = roofline.instructions_afforded
    monkeypatch.setattr(roofline, "instructions_afforded", lambda *given: 3 * law(*given))
    assert shown() == pytest.approx((3 * afford, 3 * percent)), "both ask the one function"


class NoDrawing:
    def show(self) -> None:
        """A drawing that is not wanted here."""


def test_laws_are_those_that_the_studies_and_pages_call():
    """A model, a study and a page that say the same law call one function of it."""
    gb_s = device.get(models.SHARED_BY).dram_gb_s
    sum_us = split.sum_us(split.SEPARATE, 2 * model_shapes.get("llama-3-8b").hidden, 2)
    wire = models.wire_us(2, "llama-3-8b", "NVLink")
    told = models.shared(sum_us - wire, 2, "NVLink", "llama-3-8b", "fp16")
    for study in (split, links):
        assert 1e6 / told == pytest.approx(study.token_us("llama-3-8b", "fp16", split.SEPARATE, 2, gb_s))
    h200 = device.get("h200")
    chip = (h200.dram_gb_s, h200.sms, h200.boost_mhz / 1e3)
    afforded = roofline.instructions_afforded(4, *chip)
    assert models.instructions(2 * afforded, 4, h200.name) == pytest.approx(50)
    limits = roofline.residency_limits(72, 128, 32 * 1024)
    assert limits == attention_of_kernels.limits_of(72, 128, 32 * 1024)
    assert roofline.residency(72, 128, 32 * 1024) == min(limits.values())


def test_the_decoders_law_is_the_models():
    here = open_lab("replay", "h200")
    rows = ablation.named(here.measure("decode", here.held("decode", here.cases("decode"))))
    fixed, rate, mine = ablation.law(rows, "3_persistent", here.roof["dram_read"].value)
    assert len(mine) and set(mine["seq"]) == {decode.PROMPT}
    for row in mine.to_dict("records"):
        assert row["law_us"] == roofline.phases_us(row["phases"], fixed, row["bytes"], rate)
