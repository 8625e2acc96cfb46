"""Normal form: two runs give the same cells, text and pictures, and what must not be committed is found."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_output
from rooflab import paths
from rooflab.book import lessons, normal, readme, run
from rooflab.errors import UsageError
from rooflab.records.case import parse_options
from rooflab.records.store import Store
from rooflab.view import plot

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def test_two_runs_have_one_normal_form(lesson: Callable[..., Path], tmp_path: Path) -> None:
    source = "import sys\nfor i in range(3): print(i); sys.stdout.flush()"
    widget = "import ipywidgets\nipywidgets.IntSlider()"
    figure = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    path = lesson("00_first", source, figure, "1 + 1", widget)
    texts = []
    for name, values in (("a", {}), ("b", {"MODE": "replay"})):
        jobs = run.plan(lessons.find([], path.parent), values, output=tmp_path / name)
        [outcome] = run.run(jobs, say=lambda line: None)
        assert outcome.ok, outcome.explanation()
        normal.rewrite(outcome.job.output, tmp_path / f"{name}.ipynb")
        texts.append((tmp_path / f"{name}.ipynb").read_text())
    # The widget's id is the one thing that a cell without an HTML face makes at random.
    first, second = (json.loads(text)["cells"] for text in texts)
    assert first[:-1] == second[:-1]
    assert [cell["execution_count"] for cell in first[1:]] == [1, 2, 3, 4, 5]
    assert [cell["id"] for cell in first] == ["c00", "c01", "c02", "c03", "c04", "c05"]
    assert first[2]["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["0\n", "1\n", "2\n"]}]
    assert "papermill" not in texts[0] and "widgets" not in json.loads(texts[0])["metadata"]
    assert texts[0].endswith("}\n") and texts[0].startswith('{\n "cells"')
    assert normal.is_normal(tmp_path / "a.ipynb")


def _executed(path: Path, tags: list[str] | None = None) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
    notebook.cells[-1].metadata["tags"] = tags or []
    return notebook


def _problems(notebook: nbformat.NotebookNode, path: Path) -> list[str]:
    path.write_text(normal.normalise(notebook))
    return normal.problems(path)


def test_a_sound_notebook_has_no_problem_and_each_fault_is_found(lesson: Callable[..., Path]) -> None:
    path = lesson("00_first", "1", "2")
    assert _problems(_executed(path), path) == []
    path = lesson("00_first", "1", "2")
    notebook = _executed(path)
    notebook.cells[2].execution_count = None
    assert "not run whole" in _problems(notebook, path)[0]
    for tag in ("nbval-skip", "raises-exception"):
        path = lesson("00_first", "1")
        assert tag in _problems(_executed(path, [tag]), path)[0]
    path = lesson("00_first", "1")
    notebook = _executed(path)
    notebook.cells[-1].outputs = [new_output("stream", name="stderr", text="warning: x\n")]
    assert "stderr" in _problems(notebook, path)[0]
    notebook.cells[-1].outputs = [new_output("error", ename="ValueError", evalue="x", traceback=[])]
    assert "ValueError" in _problems(notebook, path)[0]
    notebook.cells[-1].outputs = [new_output("stream", name="stdout", text="x" * normal.MAX_BYTES)]
    assert "the limit is" in _problems(notebook, path)[0]


def test_order_of_execution_is_kept_so_that_a_muddle_shows(lesson: Callable[..., Path]) -> None:
    path = lesson("00_first", "1", "2")
    notebook = _executed(path)
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 2, 1
    assert "[2, 1, 3]" in _problems(notebook, path)[0]


def test_another_indent_is_not_normal(lesson: Callable[..., Path]) -> None:
    path = lesson("00_first", "1")
    path.write_text(json.dumps(_executed(path), indent=2))
    assert not normal.is_normal(path)
    assert any("refresh" in problem for problem in normal.problems(path))


def test_live_widget_references_go_where_html_stands_and_nothing_else(lesson: Callable[..., Path]) -> None:
    path = lesson("00_first")
    notebook = _executed(path)
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "abc"}}
    both = new_output("display_data", data={**widget, "text/html": "<p>x</p>", "image/png": PNG})
    alone = new_output("display_data", data={**widget, "text/plain": "x"})
    notebook.cells.append(new_code_cell("w", outputs=[both, alone], execution_count=2))
    again = nbformat.reads(normal.normalise(notebook), as_version=4).cells[-1].outputs
    assert set(again[0].data) == {"text/html", "image/png"} and again[0].data["image/png"].strip() == PNG
    assert set(again[1].data) == set(alone.data)
    assert "model_id" in both.data["application/vnd.jupyter.widget-view+json"], "the argument was changed"


OURS, PEER = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0], [90.0, 150.0, 260.0, 390.0, 480.0, 500.0]


def _drawn(
    ours: list[float] = OURS,
    peer: list[float] = PEER,
    names: tuple[str, str] = ("ours", "peer"),
    text: str = "412",
    spread: float = 0.05,
    height: float = 3.6,
) -> bytes:
    """The picture of two series, dashes, a band and a text, as lessons draw them."""
    fig, axes = plot.figure("tokens", "GB/s", "Two series", xlog=True, height=height)
    x, middle = [1, 2, 4, 8, 16, 32], np.array(ours)
    plot.series(axes, x, middle, middle * (1 - spread), middle * (1 + spread), label=names[0])
    plot.series(axes, x, peer, label=names[1])
    plot.roof_line(axes, 700, "roof 700 GB/s")
    axes.annotate(text, (8, 200), fontsize=8)
    plot.label_ends(axes)
    return plot.png(fig)


def _moved(values: list[float], by: float) -> list[float]:
    """The values with the fourth changed by a share of itself."""
    return [*values[:3], values[3] * (1 + by), *values[4:]]


def _picture(drawn: bytes, caption: str = "a caption") -> nbformat.NotebookNode:
    data = {"image/png": base64.b64encode(drawn).decode(), "text/plain": caption}
    return new_output("display_data", data=data)


PLANTED = {
    "a point by a hundredth": {"ours": _moved(OURS, 0.01)},
    "a point of a dashed series": {"peer": _moved(PEER, -0.01)},
    "a point left out": {"ours": [*OURS[:3], float("nan"), *OURS[4:]]},
    "the values of two points": {"ours": [*OURS[:2], OURS[3], OURS[2], *OURS[4:]]},
    "a digit": {"text": "413"},
    "a label": {"names": ("ours", "peers")},
    "the labels' order": {"names": ("peer", "ours")},
    "the series' order": {"ours": PEER, "peer": OURS, "names": ("peer", "ours")},
    "a band's width": {"spread": 0.07},
    "the height": {"height": 3.7},
}


@pytest.mark.parametrize("change", PLANTED.values(), ids=PLANTED)
def test_a_picture_that_shows_something_else_is_not_alike(change: dict[str, Any]) -> None:
    assert not normal.alike(_drawn(), _drawn(**change))


def test_a_picture_is_alike_where_rounding_alone_differs() -> None:
    moved = _drawn(ours=_moved(OURS, 1e-4))
    assert moved != _drawn(), "this change has to reach the bytes, or the tolerance is not tried"
    assert normal.alike(moved, _drawn())
    assert not normal.alike(b"", _drawn()) and not normal.alike(_drawn()[:-400], _drawn())


def test_refresh_keeps_a_picture_that_is_alike_and_nothing_else(
    lesson: Callable[..., Path], tmp_path: Path
) -> None:
    def shows(*outputs: nbformat.NotebookNode, source: str = "draw()") -> nbformat.NotebookNode:
        notebook = _executed(lesson("00_first"))
        notebook.cells.append(new_code_cell(source, outputs=list(outputs), execution_count=2))
        return notebook

    committed, source = tmp_path / "committed.ipynb", tmp_path / "source.ipynb"
    first, second = _picture(_drawn()), _picture(_drawn(spread=0.2))
    before = normal.normalise(shows(first, second))
    nearly = _picture(_drawn(ours=_moved(OURS, 1e-4)))
    cases: dict[str, tuple[nbformat.NotebookNode, bool]] = {
        "alike": (shows(nearly, second), True),
        "a point": (shows(_picture(_drawn(ours=_moved(OURS, 0.01))), second), False),
        "the pictures' order": (shows(second, nearly), False),
        "a picture twice": (shows(nearly, nearly, second), False),
        "a picture less": (shows(nearly), False),
        "a caption": (shows(_picture(_drawn(ours=_moved(OURS, 1e-4)), "another"), second), False),
        "a cell": (shows(nearly, second, source="draw(1)"), False),
        "a text": (shows(nearly, second, new_output("stream", name="stdout", text="0.1\n")), False),
        "a broken picture": (shows(_picture(b"broken"), second), False),
    }
    for name, (notebook, kept) in cases.items():
        committed.write_text(before)
        nbformat.write(notebook, source)
        assert normal.same(source, committed) == kept, name
        assert normal.rewrite(source, committed) != kept, name
        assert (committed.read_text() == before) == kept, name
        assert normal.same(source, committed), name
        # A text that changed takes no picture with it.
        assert (first.data["image/png"] in committed.read_text()) == (
            name not in ("a point", "a caption", "a broken picture")
        ), name


def test_a_broken_committed_picture_is_written_anew(lesson: Callable[..., Path], tmp_path: Path) -> None:
    notebook = _executed(lesson("00_first", "draw()"))
    committed, source = tmp_path / "committed.ipynb", tmp_path / "source.ipynb"
    notebook.cells[-1].outputs = [_picture(_drawn())]
    nbformat.write(notebook, source)
    for broken in ("AAAAA", base64.b64encode(_drawn()[:200]).decode()):
        notebook.cells[-1].outputs[0].data["image/png"] = broken
        committed.write_text(normal.normalise(notebook))
        assert not normal.same(source, committed) and normal.rewrite(source, committed)
        assert normal.same(source, committed)


def test_what_is_not_a_notebook_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("{")
    with pytest.raises(UsageError, match="is not a notebook"):
        normal.read(tmp_path / "x.ipynb")


def _course() -> list[Path]:
    return sorted(paths.NOTEBOOKS.glob("*.ipynb"))


def test_the_course_has_its_notebooks() -> None:
    assert len(_course()) >= 2


@pytest.mark.parametrize("path", _course(), ids=lambda path: path.stem)
def test_committed_notebooks_are_in_normal_form_and_whole(path: Path) -> None:
    assert normal.problems(path) == []


def test_readme_puts_a_peer_of_the_same_work_beside_ours() -> None:
    row = {"format": "fp16", "n": None, "k": None, "batch": None, "cache": "cold", "seq": 16384, "heads": 32}
    row |= {"kv_heads": 8, "head_dim": 256, "window": None, "causal": True, "roof": "fp16_tensor"}
    row |= {"clock": "graph", "kind": "peer"}
    row |= {"bytes": 8, "gb_s": float("nan"), "study": "attention", "operator": "attention"}
    narrow = row | {"impl": "narrow", "window": 512, "median_us": 1.0, "tflop_s": 100.0}
    whole = row | {"impl": "whole", "median_us": 9.0, "tflop_s": 600.0}
    ours = pd.Series(row | {"kind": "own", "impl": "ours", "median_us": 8.0, "tflop_s": 700.0})
    rivals = pd.DataFrame([narrow, whole])
    assert readme._peer(rivals, ours) == "whole: 600.0 TFLOP/s"
    absent = row | {"impl": "absent", "median_us": float("nan"), "tflop_s": float("nan")}
    shown = readme._peer(pd.DataFrame([narrow, whole, absent]), ours)
    assert shown == "whole: 600.0 TFLOP/s; not recorded: absent"


def test_readme_names_what_other_weights_take_in_memory() -> None:
    row = {"n": 8, "k": 8, "batch": 4, "cache": "cold", **dict.fromkeys(readme.SIZES[3:])}
    row |= {"roof": "", "gb_s": 1.0, "tflop_s": 1.0}
    ours = pd.Series(row | {"format": "q8_0", "bytes": 100, "median_us": 9.0})
    rivals = [
        row | {"impl": "halves", "format": "fp16", "bytes": 190, "median_us": 12.0},
        row | {"impl": "eights", "format": "fp8", "bytes": 95, "median_us": 5.0},
        row | {"impl": "slow", "format": "fp8", "bytes": 95, "median_us": 6.0},
        row | {"impl": "alike", "format": "q8_0", "bytes": 100, "median_us": 1.0},
        row | {"impl": "larger", "format": "fp16", "bytes": 190, "median_us": 1.0, "n": 16},
    ]
    shown = readme._other_weights(pd.DataFrame(rivals), ours)
    assert shown == [("eights", "fp8", "5.0 µs", "0.95× ours"), ("halves", "fp16", "12.0 µs", "1.9× ours")]


def test_readme_says_the_shape_of_each_result_and_stays_narrow() -> None:
    """A site's page gives a table about 105 letters; a wider one is cut off until it is scrolled."""
    store = Store(paths.DATA, "h200")
    shown, rows = readme.results(store), readme.compared(store)
    assert list(shown["shape"]) == [readme.shape(row) for _, row in rows.iterrows()]
    assert shown["shape"].str.contains(" heads of | × | elements").all()
    for table in (
        shown,
        readme.kept_up(store),
        readme.other_weights(store),
        readme.models(store),
    ):
        assert len(table)
        least = sum(
            max(len(word) for text in (column, *table[column]) for word in text.split()) for column in table
        )
        assert least + 2 * len(table.columns) <= 105, list(table.columns)


def test_readme_shows_a_published_peer_that_is_faster_than_the_recorded_ones() -> None:
    store = Store(paths.DATA, "h200")
    rows, shown = store.read("decode"), readme.models(store)
    there = Store(paths.DATA, "h200-peers").read("decode")
    [row] = shown[
        (shown["model"] == "llama-3-8b")
        & (shown["what"] == "decode, one sequence")
        & shown["weights"].str.startswith("int4")
    ].to_dict("records")
    mine = rows[(rows["model"] == "llama-3-8b") & (rows["kind"] == "peer") & (rows["batch"] == 1)]
    best = there[there["model"] == "llama-3-8b"]["tok_s"].max()
    assert best > mine["tok_s"].max() and row[readme.PEER].endswith(f": {best:,.0f}")


def test_readme_shows_the_fastest_way_through_each_model() -> None:
    store = Store(paths.DATA, "h200")
    rows, shown = store.read("decode"), readme.models(store)
    assert set(shown["what"].str.partition(",")[0]) == {"decode", "prefill"}
    mine = rows[(rows["model"] == "qwen2.5-1.5b") & (rows["batch"] == 1) & (rows["seq"] == 128)]
    for form, held in mine[mine["kind"] == "own"].groupby("format"):
        [row] = shown[
            (shown["model"] == "qwen2.5-1.5b")
            & (shown["weights"].str.partition(",")[0] == form)
            & (shown["what"] == "decode, one sequence")
        ].to_dict("records")
        assert row["tokens a second"] == f"{held['tok_s'].max():,.0f}"
        best = held.loc[held["tok_s"].idxmax()]
        head = parse_options(best["options"]).get("head", form)
        assert row["weights"] == (form if head == form else f"{form}, {head} head")
        recorded = row[readme.PEER].partition("; ")[0]
        assert recorded.endswith(f": {mine[mine['kind'] == 'peer']['tok_s'].max():,.0f}")
