"""What a reader meets on a lesson's page: the answer first, kernels whole, hardly any plumbing."""

import ast
import re

import nbformat
import pytest
from rooflab import paths
from rooflab.book import lessons
from rooflab.errors import UsageError
from rooflab.ops import gemv, int4
from rooflab.view import page

CELLS = {lesson.stem: nbformat.read(lesson.path, as_version=4).cells for lesson in lessons.all_lessons()}
VIEWS = ("access_diagram", "diagram", "display", "explorer", "filter_list", "page", "plot")
MOST = 5  # lines of arranging in a cell
OPEN = 220  # lines of a page's unfolded kernels
SHARE = 0.05  # of a page's lines that may be visible plumbing


def wrapped(text: str, width: int = 90) -> int:
    """How many lines a text takes."""
    return sum(1 + len(line) // width for line in text.splitlines())


def output_lines(output: nbformat.NotebookNode) -> int:
    """About how many lines of a page an output takes: a picture 18, a table one a row."""
    data = output.get("data", {})
    if "image/png" in data:
        return 18
    if "text/html" in data:
        return data["text/html"].count("<tr") or 18
    return wrapped(data.get("text/markdown", "") or output.get("text", ""))


def shown(cell: nbformat.NotebookNode) -> bool:
    """Whether the site shows a code cell's source unfolded."""
    tags = cell.metadata.get("tags", [])
    return not {"hide-input", "parameters"} & set(tags) and not re.match(r"(import|from) ", cell.source)


def an_exercise(cell: nbformat.NotebookNode) -> bool:
    return "exercises.check(" in cell.source or cell.source.startswith("%%")


def arranging(cell: nbformat.NotebookNode) -> int:
    """Lines of a code cell that arrange what is shown: all of a cell that names a view, but for the calls
    that hold a page's own text, page.opening and page.kernel."""
    if an_exercise(cell) or not re.search(rf"\b({'|'.join(VIEWS)})\.", cell.source):
        return 0
    lines = 0
    for statement in ast.parse(cell.source).body:
        called = (
            statement.value.func
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            else None
        )
        if called is None or not ast.unparse(called).startswith("page."):
            lines += statement.end_lineno - statement.lineno + 1
    return lines


def plumbing(stem: str) -> float:
    """The share of a page's lines that are visible plumbing."""
    of_page = visible = 0
    for cell in CELLS[stem]:
        if cell.cell_type == "markdown":
            of_page += wrapped(cell.source)
            continue
        of_page += sum(map(output_lines, cell.get("outputs", [])))
        if shown(cell):
            of_page += wrapped(cell.source)
            visible += arranging(cell)
    return visible / of_page


def long_cells(stem: str) -> list[str]:
    """Cells, shown or hidden on the site, with more arranging than a code host's reader should scroll by."""
    codes = [
        c for c in CELLS[stem] if c.cell_type == "code" and "parameters" not in c.metadata.get("tags", [])
    ]
    return [
        cell.id for cell in codes if arranging(cell) > MOST and not re.match(r"(import|from) ", cell.source)
    ]


def lone_diffs(stem: str) -> int:
    """Diffs of more than 40 changed lines that no whole kernel stands beside."""
    found = 0
    for cell in CELLS[stem]:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            if 'class="rooflab-kernel"' in text:
                continue
            for diff in re.findall(r"```diff\n(.*?)\n```", text, re.DOTALL):
                found += sum(line[0] in "+-" for line in diff.splitlines()[2:] if line) > 40
    return found


@pytest.mark.parametrize("stem", CELLS)
def test_the_first_screen_has_the_answer_the_chart_and_what_it_is_for(stem: str) -> None:
    first = [cell for cell in CELLS[stem] if cell.cell_type == "code"][:4]
    opened = [cell for cell in first if "page.opening(" in cell.source]
    (cell,) = opened
    said = [output.get("data", {}) for output in cell.outputs]
    bold = re.match(r"\*\*([^*]+)\*\*", said[0]["text/markdown"])
    assert bold and re.search(r"\d", bold[1]), "the result stands in bold, first"
    assert bold[1].count(". ") <= 1, "in a sentence, or in two where the first is short"
    assert any("image/png" in data or "rooflab-drawing" in data.get("text/html", "") for data in said)
    assert "After this page you can" in said[-1]["text/markdown"]


@pytest.mark.parametrize("stem", CELLS)
def test_hardly_any_line_of_a_page_is_plumbing(stem: str) -> None:
    assert plumbing(stem) < SHARE


@pytest.mark.parametrize("stem", CELLS)
def test_a_cell_arranges_in_five_lines(stem: str) -> None:
    assert long_cells(stem) == []


@pytest.mark.parametrize("stem", CELLS)
def test_every_column_of_a_table_has_a_heading(stem: str) -> None:
    outputs = [output.get("data", {}) for cell in CELLS[stem] for output in cell.get("outputs", [])]
    texts = [data.get(kind, "") for data in outputs for kind in ("text/html", "text/markdown")]
    texts += [cell.source for cell in CELLS[stem] if cell.cell_type == "markdown"]
    empty = [
        text[:200]
        for text in texts
        if "<th></th>" in text or re.search(r"^\|( *\|.*| .*\| *\|.*)\n\|-", text, re.MULTILINE)
    ]
    assert not empty


@pytest.mark.parametrize("stem", CELLS)
def test_a_long_diff_is_never_the_only_view(stem: str) -> None:
    assert lone_diffs(stem) == 0


# --- rooflab.view.page --------------------------------------------------------------------------------------

STRIDED, COALESCED = gemv.LADDERS["gemv"][:2]


def kernel(monkeypatch: pytest.MonkeyPatch, *arguments: object, **options: object) -> str:
    """What page.kernel displays."""
    said: list[str] = []
    monkeypatch.setattr(page, "display", lambda markdown: said.append(markdown.data))
    page.kernel(*arguments, **options)  # type: ignore[arg-type]
    return "".join(said)


def test_a_kernel_is_whole_with_its_helpers_marks_and_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = {"if (lane == 0)": "One lane stores.", "sum = warp_sum": "Five shuffles."}
    text = kernel(monkeypatch, STRIDED, "for each column:\n    sum", notes, helpers=("warp_sum",))
    assert "sum = warp_sum(sum);  // ①\n" in text and "y[column] = sum;  // ②\n" in text
    assert "1. Five shuffles.\n2. One lane stores." in text, "numbered by their lines"
    source = STRIDED.path.read_text()
    for line in source[source.index('extern "C"') :].splitlines():
        assert line in text, "a line of the rung is missing"
    assert "// from common/reduce.cuh\ntemplate <typename T>\n__device__ inline T warp_sum(T value) {" in text
    assert "__shfl_xor_sync" in text and "block_sum" not in text
    assert "`THREADS` = 32" in text and "ceil(n / (THREADS / 32)) blocks" in text
    beside = kernel(monkeypatch, COALESCED, below=STRIDED)
    assert "Changes from 1_strided: 20 lines" in beside and "-    sum = warp_sum(sum);" in beside
    assert "+    __shared__ float x_tile[TILE];" in beside


def test_a_folded_kernel_keeps_its_pseudocode_and_callouts_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = {"y[column] = sum;": "One thread a column stores."}
    text = kernel(monkeypatch, COALESCED, "for each column:\n    sum", notes, below=STRIDED, folded=True)
    before, _, inside = text.partition('<details class="source"><summary>The whole kernel: ')
    assert "for each column" in before and "```cuda" not in before
    called = next(line for line in COALESCED.path.read_text().splitlines() if "y[column] = sum;" in line)
    assert f"1. `{called.strip()}` <br>One thread a column stores." in before, "the note quotes its line"
    assert "```cuda" in inside and "// ①" in inside and "Changes from 1_strided" in inside
    assert "One thread a column stores." not in inside
    assert text.count("<details") == text.count("</details>") == 2
    assert "<details" not in kernel(monkeypatch, COALESCED)


def test_pseudocode_goes_aside_with_a_folded_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = '<details class="source"><summary>The whole kernel: '
    before, _, inside = kernel(monkeypatch, COALESCED, "for each", folded=True, aside=True).partition(fold)
    assert "for each" in inside and "for each" not in before
    assert "```text\nfor each\n```" in kernel(monkeypatch, COALESCED, "for each", aside=True)


@pytest.mark.parametrize("stem", CELLS)
def test_a_page_folds_kernels_beyond_its_main_ones(stem: str) -> None:
    outputs = [output for cell in CELLS[stem] for output in cell.get("outputs", [])]
    said = [output.get("data", {}).get("text/markdown", "") for output in outputs]
    unfolded = [text for text in said if 'class="whole"' in text and 'class="source"' not in text]
    sources = [re.findall(r"```cuda\n(.*?)\n```", text, re.DOTALL)[0] for text in unfolded]
    assert sum(len(source.splitlines()) for source in sources) <= OPEN


def test_a_lost_callout_or_helper_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no line with 'nowhere'"):
        kernel(monkeypatch, STRIDED, "", {"nowhere": "x"})
    with pytest.raises(UsageError, match="has one"):
        kernel(monkeypatch, STRIDED, "", {"sum = warp_sum": "x", "warp_sum(sum)": "y"})
    with pytest.raises(UsageError, match="no header with a function 'block_product'"):
        kernel(monkeypatch, STRIDED, helpers=("block_product",))


def test_a_helper_comes_with_its_comment_and_an_overload_by_its_signature() -> None:
    magic = next(rung for rung in int4.LADDERS["int4"] if rung.name == "3_magic")
    found = page.helper(magic, "int4_to_halves")
    assert found.startswith("// from common/int4.cuh\n// The eight codes") and found.endswith("\n}")
    last = gemv.LADDERS["gemv"][-1]
    assert "load_streaming(const uint2* p) {" in page.helper(last, "load_streaming(const uint2* p")
    assert paths.KERNELS.joinpath("common/ptx/cache_hints.cuh").read_text().count("load_streaming(") > 2


def test_an_opening_without_its_parts_is_refused() -> None:
    with pytest.raises(UsageError, match="needs its sentence"):
        page.opening("", ["x"], (None, ""))  # type: ignore[arg-type]
