"""Explorers without a browser: what they hold, choose, draw and say, and what Measure does with a case."""

import base64
import html
import itertools
import json
import re
import shlex
import threading
import time
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pandas as pd
import pytest
import rooflab.lab
from made_up import CONTROLS, ROOFS, RUNGS, frame, row
from rooflab import studies
from rooflab.cli import parser
from rooflab.errors import DeviceMismatch, GateError, RooflabError, UsageError
from rooflab.records.case import Case
from rooflab.studies import bandwidth
from rooflab.view.explorer import Explorer, measurer
from rooflab.view.explorer_axes import BOTTOM, LEFT, RIGHT, TOP, path, short, view
from rooflab.view.explorer_facts import packed
from rooflab.view.explorer_svg import GROUPS, OWN_INK, Chart
from stand_in import Machine


def explorer(**changes) -> Explorer:
    given = {"controls": CONTROLS, "roof": ROOFS, "title": "Made-up GPU"} | changes
    return Explorer("ladder", given.pop("frame", frame()), **given)


def page(made: Explorer) -> tuple[str, dict, str]:
    """(the HTML, its data, the still image's SVG)"""
    text = made._repr_mimebundle_()["text/html"]
    data = json.loads(html.unescape(re.search(r"data-explorer='([^']*)'", text)[1]))
    still = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', text)[1]
    return text, data, base64.b64decode(still).decode()


def inside(svg: str, group: str) -> list:
    root = ET.fromstring(svg)
    return list(next(g for g in root.iter() if g.get("data-group") == group))


def test_the_page_stands_without_its_script():
    text, data, still = page(explorer())
    assert "<script" not in text and "<svg" not in text and "<select" not in text
    assert 'alt="Made-up GPU. Rung 3_grid, Stream read, Cache cold, Elements 256 Mi: ' in text
    assert len(text) < 40_000 and len(data["cases"]) == len(frame())
    assert inside(still, "line")[0].get("d").count("L") == 6
    assert len(inside(still, "others")) == 2 and len(inside(still, "ring")) == 1


def test_what_is_shown_repeats_to_the_byte_and_holds_no_address():
    first, second = (explorer()._repr_mimebundle_() for _ in range(2))
    assert first["text/html"] == second["text/html"]
    assert first["text/plain"] == second["text/plain"] == "Explorer ladder: 76 recorded cases"
    assert "application/vnd.jupyter.widget-view+json" in first
    assert 'id="explorer-ladder"' in first["text/html"]


def test_the_line_of_text_is_computed_from_the_row():
    made = Chart(frame(), "n", "gb_s", CONTROLS, ROOFS)
    found = frame()
    found = found[(found.impl == "2_vector") & (found.operator == "copy") & (found.cache == "warm")]
    it = found[found.n == 2**24].iloc[0]
    line = made.line(["2_vector", "copy", "warm"], 2**24)
    assert line.startswith("Rung 2_vector, Stream copy, Cache warm, Elements 16 Mi: ")
    assert f"{it.gb_s:.3g} GB/s; {it.median_us:.3g} µs; " in line
    assert f"; {it.gb_s / 154:.0%} of DRAM copy." in line


@pytest.mark.parametrize(
    ("study", "impl", "said"),
    [
        ("gemv", "1_strided", "at least 7 µs (data sheet)"),
        ("gemv", "2_coalesced", "at least 7 µs (Little's law)"),
        ("decode", "3_persistent", "predicted 7 µs"),
    ],
)
def test_a_bound_is_said_with_its_source(study, impl, said):
    row = Case(study, "gemv", impl, n=8, k=8, cache="cold").row() | {"median_us": 9.0, "predicted_us": 7.0}
    made = Chart(pd.DataFrame([row]), "n", "median_us", {"impl": "Rung"})
    assert said in made.line([impl], 8)
    told = Chart(
        pd.DataFrame([row]), "n", "median_us", {"impl": "Rung"}, foretold="at least {} µs (read roof)"
    )
    assert "at least 7 µs (read roof)" in told.line([impl], 8)


def test_what_facts_share_is_held_once_and_they_can_be_put_together_again():
    facts = ["5 GB/s; 7 µs; at least 3 µs (data sheet)", "6 GB/s; at least 3 µs (data sheet)", "7 GB/s; 7 µs"]
    words, held = packed(facts)
    assert words == ["at least 3 µs (data sheet)"] and held == [
        ["5 GB/s; 7 µs", 0],
        ["6 GB/s", 0],
        ["7 GB/s; 7 µs"],
    ]
    assert ["; ".join(words[p] if isinstance(p, int) else p for p in each) for each in held] == facts


def test_a_curve_is_open_where_only_others_were_measured():
    far, ticks = [(60.0, 9.0), (400.0, 8.0), (430.0, 7.0)], [60.0, 150.0, 250.0, 350.0, 400.0, 430.0]
    assert path(far, ticks) == "M60.0 9.0M400.0 8.0L430.0 7.0"
    assert path(far, [60.0, 250.0, 400.0, 430.0]) == "M60.0 9.0L400.0 8.0L430.0 7.0", "few sizes between"
    assert path([(60.0, 9.0), (100.0, 8.0)], [70.0, 80.0, 90.0]) == "M60.0 9.0L100.0 8.0", "near"


def test_an_unrecorded_choice_names_the_nearest_recorded_case():
    made = Chart(frame(), "n", "gb_s", CONTROLS, ROOFS)
    chosen = ["1_word", "read", "cold"]
    line = made.line(chosen, 2**28)
    assert line.startswith(
        "Not recorded: Rung 1_word, Stream read, Cache cold, Elements 256 Mi. Nearest recorded "
    )
    assert "case: Rung 1_word, Stream read, Cache cold, Elements 16 Mi: " in line
    # Between 2^20 and 2^22 the middle of the logarithms is 2^21.
    assert made.x.values[made.points[made.nearest(chosen, 2.1 * 2**20)].x] == 2**22
    assert made.x.values[made.points[made.nearest(chosen, 1.9 * 2**20)].x] == 2**20
    assert made.groups(chosen, 3 * 2**20)["wanted"] and not made.groups(chosen, 2**20)["wanted"]


def test_the_row_shown_first_is_the_best_or_the_one_that_is_asked_for():
    rows = frame()
    best = Chart(rows, "n", "gb_s", CONTROLS, ROOFS)
    shown = best.rows.iloc[best.start]
    assert shown["gb_s"] == rows["gb_s"].max()
    other = rows[rows["gb_s"] != rows["gb_s"].max()].iloc[0]
    wanted = {"n": int(other["n"]), **{column: other[column] for column in CONTROLS}}
    asked = Chart(rows, "n", "gb_s", CONTROLS, ROOFS, start=wanted)
    assert asked.rows.iloc[asked.start]["case"] == other["case"]
    assert Chart(rows, "n", "gb_s", CONTROLS, ROOFS, start={"n": -1}).start == best.start


def test_a_slice_with_many_sizes_is_shown_before_a_faster_one_with_few():
    rows = frame()
    alone = rows["case"].str.contains("warm") & (rows["n"] != rows["n"].max())
    few = rows[~alone].assign(gb_s=rows["gb_s"].where(rows["cache"] == "cold", 10 * rows["gb_s"]))
    shown = Chart(few, "n", "gb_s", CONTROLS)
    assert (
        shown.rows.loc[shown.start, "cache"] == "cold" != shown.rows.loc[shown.rows["gb_s"].idxmax(), "cache"]
    )


def test_one_size_is_no_choice_and_its_value_stands_left_of_the_names():
    rows = frame()
    made = explorer(frame=rows[rows["n"] == rows["n"].max()])
    assert made._size not in made.children[0].children, "a slider with one stop"
    (value,) = inside(page(made)[2], "value")
    names = [float(name.get("x")) for name in inside(page(made)[2], "names")]
    assert value.get("text-anchor") == "end" and float(value.get("x")) < min(names)


def test_a_better_rate_stands_higher_and_a_larger_size_further_right():
    made = Chart(frame(), "n", "gb_s", CONTROLS, ROOFS)
    (slice_, seen), *_ = made.views.items()
    mine = [k for k, point in enumerate(made.points) if point.picks[1:] == slice_]
    rates = made.rows["gb_s"].astype(float)
    by_rate = sorted(mine, key=lambda k: rates[k])
    assert [made.points[k].py for k in by_rate] == sorted((made.points[k].py for k in mine), reverse=True)
    places = [seen.to_x(v) for v in made.x.values]
    assert places == sorted(places) and places[0] > LEFT and places[-1] < RIGHT
    # equal ratios of sizes, equal distances
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.11)
    assert seen.to_y(0) > seen.to_y(182) > seen.to_y(190)


def test_the_axes_hold_the_shown_curves_and_little_more():
    """A slice of slow, small cases is not flattened by a fast, large one that is not in the drawing."""
    rows = frame()
    slow = (rows["operator"] == "copy") & (rows["cache"] == "warm")
    rows = rows[~slow | (rows["n"] <= 2**20)].copy()
    rows.loc[slow, "gb_s"] = rows.loc[slow, "gb_s"] / 1000
    for ylog in (False, True):
        made = Chart(rows, "n", "gb_s", CONTROLS, ylog=ylog)
        assert len(made.views) == 4
        for slice_, seen in made.views.items():
            mine = [point for point in made.points if point.picks[1:] == slice_]
            heights = [height for point in mine for height in (point.py, point.told)]
            widths = [point.px for point in mine]
            assert TOP <= min(heights) < TOP + 25, "the highest point is near the top"
            assert max(heights) <= BOTTOM and (not ylog or max(heights) > BOTTOM - 25)
            assert min(widths) == LEFT + 8 and max(widths) == RIGHT - 12
            ticks = [py for py, _ in seen.y_ticks]
            assert len(ticks) >= 2 and all(TOP <= py <= BOTTOM for py in ticks)
        small = made.views[(1, 1)]
        assert [text for _, text in small.x_ticks] == ["64 Ki", "256 Ki", "1 Mi"]
        assert small.place(2**28) is None, "a size beyond the axis has no line"


@pytest.mark.parametrize("count", [2, 6, 14])
def test_no_name_runs_into_another_and_each_is_led_to_its_curve(count):
    """Curves that end together are named in a column, a curve that ends before beside its end."""
    curves = {j: [(x, 100.0 + j) for x in (1, 2, 4, 8)] for j in range(count)}
    curves |= {count: [(1, 50.0), (2, 60.0)], count + 1: [(1, 52.0)]}
    names = [f"a curve's name {j}" for j in curves]
    seen = view(curves, {x: str(x) for x in (1, 2, 4, 8)}, names, xlog=True, ylog=True)
    assert sorted(j for j, _, _ in seen.names) == sorted(curves)
    for (i, x0, y0), (j, x1, y1) in itertools.combinations(seen.names, 2):
        wide = 5.8 * max(len(names[i]), len(names[j]))
        assert abs(x0 - x1) >= wide or abs(y0 - y1) >= 10.8, (names[i], names[j])
    column = [(y, j) for j, x, y in seen.names if x == max(x for _, x, _ in seen.names)]
    assert [j for _, j in sorted(column, reverse=True)] == list(range(count)), "in the order of their ends"
    for j, x, y in seen.names:
        end = curves[j][-1]
        px, py = seen.to_x(end[0]), seen.to_y(end[1])
        led = f"M{short(px + 3)} {py}L{short(x - 2)} {short(y - 3)}" in seen.leaders
        assert led == (abs(y - 3 - py) > 4.05) or abs(abs(y - 3 - py) - 4) < 0.1


@pytest.mark.parametrize("through", [0, 1, 3])
def test_names_of_curves_that_end_together_keep_the_order_of_their_ends(through):
    """Beside curves that go on: as many rungs as were measured at one size alone."""
    lone = {j: [(4, y)] for j, y in enumerate((4.0, 6.6, 10.4, 47.0, 170.0, 230.0))}
    on = {10 + j: [(1, 40.0 + 70 * j), (4, 60.0 + 80 * j), (16, 60.0 + 90 * j)] for j in range(through)}
    names = [f"a curve's name {j}" for j in range(20)]
    xs = (1, 4, 16)
    curves = lone | on | {19: [(1, 700.0), (16, 720.0)]}
    seen = view(curves, {x: str(x) for x in xs}, names, xlog=True, ylog=False)
    placed = {j: (x, y) for j, x, y in seen.names}
    heights = [placed[j][1] for j in lone]
    assert heights == sorted(heights, reverse=True), "the lowest curve's name is the lowest"
    assert all(below - above >= 10.8 for below, above in itertools.pairwise(heights))
    assert len({placed[j][0] for j in lone}) == 1 and all(TOP <= y <= BOTTOM for y in heights)


# --- predictions ------------------------------------------------------------


def test_the_chosen_curves_predictions_are_a_dashed_line_of_that_name():
    """At the height at which the prediction would have been measured: of rates as of times."""
    rows = frame()
    for y, ylog in (("gb_s", False), ("median_us", True)):
        made = Chart(rows, "n", y, CONTROLS, ROOFS if y == "gb_s" else None, ylog=ylog)
        for picks in (["2_vector", "copy", "warm"], ["1_word", "read", "cold"]):
            groups = made.groups(picks, 2**20)
            mine = rows[(rows.impl == picks[0]) & (rows.operator == picks[1]) & (rows.cache == picks[2])]
            seen = made.views[made.points[made.nearest(picks, 2**20)].picks[1:]]
            wanted = mine.bytes / mine.predicted_us / 1e3 if y == "gb_s" else mine.predicted_us
            spots = [
                f"{seen.to_x(n)} {seen.to_y(value)}"
                for n, value in zip(mine.n, wanted.astype(float), strict=True)
            ]
            assert groups["predicted"] == f'<path d="M{"L".join(spots)}"/>'
            assert groups["predicted-name"].endswith(">predicted</text>")
    assert "stroke-dasharray" in GROUPS["predicted"]


def test_without_predictions_there_is_no_such_line():
    rows = frame()
    none = rows.assign(predicted_us=None)
    text, data, still = page(explorer(frame=none))
    assert not inside(still, "predicted") and not inside(still, "predicted-name")
    assert "Dashed" not in text and all("told" not in seen for seen in data["views"].values())
    few = rows.assign(predicted_us=rows.predicted_us.where(rows.impl == "2_vector"))
    made = Chart(few, "n", "gb_s", CONTROLS, ROOFS)
    assert made.groups(["2_vector", "read", "cold"], 2**20)["predicted"]
    assert not made.groups(["3_grid", "read", "cold"], 2**20)["predicted"], "another one's are not drawn"
    other = rows.assign(**{"%": rows.gb_s})
    made = Chart(other, "n", "%", CONTROLS)
    assert not made.groups(["2_vector", "read", "cold"], 2**20)["predicted"], "neither a time nor a rate"
    lone = rows[(rows.n == 2**20) & (rows.cache == "cold")]
    made = Chart(lone, "n", "gb_s", CONTROLS)
    assert "h16" in made.groups(["2_vector", "read"], 2**20)["predicted"], "a short line at a lone one"


def test_the_name_of_the_predictions_meets_no_other_letters():
    made = Chart(frame(), "n", "gb_s", CONTROLS, ROOFS)
    for slice_, seen in made.views.items():
        roofs = {seen.to_y(made.levels[p.roof]) for p in made.points if p.picks[1:] == slice_}
        assert len(seen.told_names) == len(RUNGS)
        for _, x, y in seen.told_names:
            assert LEFT <= x <= RIGHT - 50 and TOP <= y <= BOTTOM
            for roof in roofs:
                assert x > LEFT + 150 or y - 8 > roof - 3 or y + 2 < roof - 14, "the roof's name"


def test_a_still_says_what_it_is_of():
    text, _, _ = page(explorer())
    assert "A still image of recorded cases: " in text and " Dashed: what was predicted." in text
    rows = frame()[["impl", "n", "gb_s"]].drop_duplicates(["impl", "n"]).assign(case=lambda f: f.index)
    text, _, _ = page(explorer(frame=rows, controls={"impl": "Rung"}, roof=None))
    assert "A still image of computed points: " in text and "recorded" not in text


def test_a_control_with_one_option_is_not_shown():
    rows = frame()
    one = explorer(frame=rows[rows.impl == "2_vector"])
    shown = [widget.description for widget in one.children[0].children]
    assert shown == ["Stream", "Cache", "Elements"], "the rung is in the text"
    assert "Rung 2_vector, " in one._text.value
    assert [widget.description for widget in explorer().children[0].children] == ["Rung", *shown]


def test_ticks_of_a_logarithmic_axis_are_plain_numbers():
    seen = view({0: [(1, 42.0), (2, 1594.0)]}, {1: "1", 2: "2"}, ["a"], xlog=True, ylog=True)
    assert [text for _, text in seen.y_ticks] == ["50", "100", "200", "500", "1,000"]
    seen = view({0: [(1, 5.2), (2, 5.3)]}, {1: "1", 2: "2"}, ["a"], xlog=True, ylog=True)
    assert len(seen.y_ticks) >= 2
    seen = view({0: [(1, 0.004), (2, 2e6)]}, {1: "1", 2: "2"}, ["a"], xlog=True, ylog=True)
    assert [text for _, text in seen.y_ticks][-1] == "1,000,000" and len(seen.y_ticks) <= 9


def test_the_roof_is_that_of_the_shown_row():
    made = Chart(frame(), "n", "gb_s", CONTROLS, ROOFS)
    read, copy = (made.groups(["3_grid", s, "cold"], 2**20)["roof-label"] for s in ("read", "copy"))
    assert "DRAM read 182 GB/s" in read and "DRAM copy 154 GB/s" in copy
    one = Chart(frame(), "n", "gb_s", CONTROLS, ("Peak", 200.0, "GB/s"))
    assert "Peak 200 GB/s" in one.groups(["3_grid", "copy", "cold"], 2**20)["roof-label"]
    none = Chart(frame(), "n", "gb_s", CONTROLS)
    assert not none.groups(["3_grid", "copy", "cold"], 2**20)["roof"]


def test_times_share_the_page_with_rates():
    made = Chart(frame(), "n", "median_us", CONTROLS, ylog=True)
    largest = made.rows[made.rows.n == 2**28]
    assert (
        made.start == largest["median_us"].astype(float).idxmin()
        and "q1" in made.points[0].facts
        and made.points[0].facts.count("µs") == 3
    )


def test_every_group_is_in_the_drawing_in_every_state():
    made = explorer()
    for svg in (page(made)[2], made._chart.svg(["1_word", "copy", "warm"], 2**16)):
        root = ET.fromstring(svg)
        assert [g.get("data-group") for g in root.iter() if g.get("data-group")] == list(GROUPS)


def test_markup_in_data_stays_text():
    rows = frame().assign(impl=lambda f: f.impl.replace("1_word", "<b>'&\"</b>"))
    text, data, still = page(explorer(frame=rows, title="<i>'&"))
    assert "<b>" not in text and "<i>" not in text
    assert "<b>'&\"</b>" in data["controls"][0]["values"]
    ET.fromstring(still)


def test_unusable_frames_are_refused_in_a_sentence():
    with pytest.raises(UsageError, match="add a control for cache"):
        explorer(controls={"impl": "Rung", "operator": "Stream"})
    with pytest.raises(UsageError, match="no column 'colour'"):
        explorer(controls={"colour": "Colour"})
    with pytest.raises(UsageError, match="at least one control"):
        explorer(controls={})
    with pytest.raises(UsageError, match="needs recorded cases"):
        explorer(frame=frame().assign(gb_s=None))
    with pytest.raises(UsageError, match="TFLOP/s"):
        explorer(roof=("Peak", 1.0, "TFLOP/s"))
    with pytest.raises(UsageError, match="name is letters"):
        Explorer("a b", frame(), controls=CONTROLS)
    with pytest.raises(DeviceMismatch):
        explorer(frame=pd.concat([frame(), frame().assign(run="2026-01-09.1", median_us=1.0)]))
    many = pd.concat([frame().assign(batch=b, case=lambda f, b=b: f.case + f" batch={b}") for b in range(20)])
    with pytest.raises(UsageError, match="pass fewer rows"):
        explorer(frame=many, controls=CONTROLS | {"batch": "Batch"})


# --- with a kernel ------------------------------------------------------------


def choose(made: Explorer, size: float, *picks) -> str:
    for widget, value in zip(made._picks, picks, strict=True):
        widget.value = value
    made._size.value = size
    return html.unescape(re.sub("<[^>]+>", "", made._text.value))


def test_controls_redraw_figure_and_text():
    made = explorer()
    before = made._drawing.value
    line = choose(made, 2**16, "1_word", "copy", "warm")
    assert line.startswith("Rung 1_word, Stream copy, Cache warm, Elements 64 Ki: ")
    assert made._drawing.value != before
    assert page(made)[0] == page(explorer())[0], "the page keeps the default state, whatever was chosen since"


def test_sizes_between_the_recorded_ones_show_their_own_bound():
    asked = []

    def bound(case: Case) -> float:
        asked.append(case)
        return 1234.0

    made = explorer(bound=bound)
    line = choose(made, 5 * 2**20, "2_vector", "read", "warm")
    assert line.startswith(
        "Bound of Rung 2_vector, Stream read, Cache warm, Elements 5 Mi: 1234 µs. Not recorded"
    )
    assert asked[-1] == Case("bandwidth", "read", "2_vector", n=5 * 2**20, cache="warm")


def test_without_a_gpu_there_is_no_button():
    assert measurer(SimpleNamespace(mode="replay")) is None
    assert not hasattr(explorer(), "_button")


class FakeLab:
    """A lab whose GPU runs everything at 77 GB/s, or refuses; `gate` lets a test hold it at work."""

    mode = "live"

    def __init__(self, refusal: Exception | None = None, skip: bool = False):
        self.say, self.refusal, self.skip, self.asked = print, refusal, skip, []
        self.progress, self.gate = SimpleNamespace(where="notebook"), threading.Event()
        self.gate.set()

    def measure(self, study: str, cases: list[Case]) -> pd.DataFrame:
        assert self.progress.where == "lines", "progress is told beside the button"
        self.asked += [(study, case) for case in cases]
        assert self.gate.wait(60)
        if self.refusal:
            raise self.refusal
        self.say("bandwidth case 1/1" if not self.skip else "bandwidth skipped it: it needs 99.0 GiB")
        return pd.DataFrame([] if self.skip else [row(c, 77.0, 1.0) for c in cases])


def status(made: Explorer) -> str:
    return html.unescape(re.sub("<[^>]+>", "", made._status.value))


def measured(made: Explorer) -> None:
    """Click, and wait until nothing is at work."""
    made._button.click()
    settled(made)


def settled(made: Explorer) -> None:
    worker = made._worker
    while worker.ident is not None:
        worker.join(60)
        worker = made._worker


def test_measure_measures_exactly_the_choice_and_shows_it():
    lab = FakeLab()
    made = explorer(measure=measurer(lab))
    choose(made, 5 * 2**20, "2_vector", "copy", "warm")
    said = []
    made._status.observe(lambda change: said.append(change["new"]), "value")
    measured(made)
    assert lab.asked == [("bandwidth", Case("bandwidth", "copy", "2_vector", n=5 * 2**20, cache="warm"))]
    assert any("bandwidth case 1/1" in line for line in said), "progress is told while it measures"
    assert status(made).startswith("Measured copy/2_vector n=5242880")
    text = html.unescape(made._text.value)
    assert "Measured here: Rung 2_vector, Stream copy, Cache warm, Elements 5 Mi: 77 GB/s" in text
    assert lab.say is print and lab.progress.where == "notebook" and made._cancel.disabled


def test_any_size_can_be_measured_and_copied_as_a_case():
    lab = FakeLab()
    made = explorer(measure=measurer(lab))
    choose(made, 2**20, "2_vector", "copy", "warm")
    made._exact.value = 12345
    case = Case("bandwidth", "copy", "2_vector", n=12345, cache="warm")
    assert made.case == case
    words = shlex.split(made._command.value)
    assert words == ["rooflab", "measure", "bandwidth", "--case", case.id]
    asked = parser().parse_args(words[1:])
    assert studies.get(asked.study).case(asked.case[0]) == case
    measured(made)
    assert lab.asked == [("bandwidth", case)] and "Measured here: " in made._text.value
    marks = inside(made._drawing.value.partition(">")[2].removesuffix("</div>"), "own")
    assert len(marks) == 1
    made._exact.value = 0
    assert made.case.n == 2**20


def test_own_results_stand_beside_recorded_ones():
    made = explorer(measure=measurer(FakeLab()))
    line = choose(made, 2**20, "2_vector", "copy", "warm")
    recorded = made._chart.rows.copy()
    measured(made)
    pd.testing.assert_frame_equal(made._chart.rows, recorded)
    text = html.unescape(re.sub("<[^>]+>", "", made._text.value))
    assert text.startswith("Measured here: ") and "77 GB/s" in text and text.endswith(line)
    measured(made)
    assert len(made._own) == 1, "measured again, it is the newest"
    drawn = made._drawing.value
    assert f'<g data-group="own" fill="{OWN_INK}"><path' in drawn and OWN_INK not in page(made)[2]


def test_several_shapes_wait_and_can_be_cancelled():
    lab = FakeLab()
    made = explorer(measure=measurer(lab))
    lab.gate.clear()
    for size in (2**16, 2**18, 2**20):
        choose(made, size, "2_vector", "copy", "warm")
        made._button.click()
    assert status(made).startswith(("2 wait", "3 wait")) and not made._cancel.disabled
    lab.gate.set()
    settled(made)
    assert [case.n for _, case in lab.asked] == [2**16, 2**18, 2**20] and len(made._own) == 3
    lab.gate.clear()
    for size in (2**22, 2**24):
        choose(made, size, "2_vector", "copy", "warm")
        made._button.click()
        while len(lab.asked) < 4:
            time.sleep(0.01)
    made._cancel.click()
    assert status(made) == "1 dropped; the case at work comes to its end."
    lab.gate.set()
    settled(made)
    assert len(lab.asked) == 4 and made._cancel.disabled and len(made._own) == 4


@pytest.mark.parametrize(
    ("lab", "sentence"),
    [
        (FakeLab(GateError("Output 7 is off by 3 ulp.")), "Output 7 is off by 3 ulp."),
        (FakeLab(RuntimeError("driver\nmany lines")), "Not measured, RuntimeError: driver"),
        (FakeLab(skip=True), "bandwidth skipped it: it needs 99.0 GiB"),
    ],
)
def test_a_failed_measurement_is_one_sentence_beside_the_button(lab, sentence):
    made = explorer(measure=measurer(lab))
    before = made._text.value
    measured(made)
    assert status(made) == sentence
    assert made._text.value == before and lab.say is print


def test_a_stand_in_gpu_measures_what_an_explorer_asks_for(tmp_path, monkeypatch):
    machine = Machine("rtx-3060")
    monkeypatch.setenv("ROOFLAB_STORE", str(tmp_path))
    with machine.present():
        here = rooflab.lab.open("live", effort="quick")
        rows = here.measure("bandwidth", bandwidth.ladder("read", 2**20) + bandwidth.ladder("read", 2**24))
        rows = rows[rows["kind"] == "own"]
        made = Explorer("read", rows, controls={"impl": "Rung"}, measure=measurer(here))
        made._exact.value = 3_000_000
        measured(made)
        assert status(made).startswith("Measured read/"), status(made)
        assert here.store.read("bandwidth")["n"].eq(3_000_000).sum() == 1
    assert "Measured here: " in made._text.value


def test_measurer_names_the_reason_of_a_skip():
    with pytest.raises(RooflabError, match=re.escape("99.0 GiB")):
        measurer(FakeLab(skip=True))(Case("bandwidth", "read", "1_word", n=8), lambda line: None)
