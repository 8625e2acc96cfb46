"""The normal form of a committed notebook: outputs and counts kept, all that differs from run to run
left out.

Two replays of a notebook, on any two machines, have the same cells, text and tables to the byte. Their
pictures may differ by what no reader sees: a CPU's own logarithm differs in its last bit, a dash of a line
then ends a hundredth of a pixel further on, and the 64 colours of the PNG are other ones. So a committed
picture stays where the replay's is `alike`, and `git diff` shows what changed in the lesson, and nothing
else.
"""

import base64
import binascii
import copy
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from rooflab.book.notebook_format import NotebookNode, nbformat
from rooflab.errors import UsageError
from rooflab.records.csv_table import write_atomically
from rooflab.view import narrow

MAX_BYTES = 300_000
_KEPT_CELL_METADATA = ("tags", "jupyter")
_DROPPED_TAGS = ("injected-parameters", "papermill-error-cell-tag")
_FORBIDDEN_TAGS = ("nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "raises-exception")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_PNG = "image/png"
# Pixels a side of a square: by how many levels of 255 the mean of any such square may differ in any channel,
# where two pictures are alike. Rounding moves a square of 3 by up to 28 (through the choice of 64 colours);
# a changed digit, or a point moved by a pixel, by 75 and more. The larger square finds a faint area, such as
# a band of quartiles, that changed.
TOLERANCE = {3: 40.0, 8: 12.0}


def read(path: Path) -> NotebookNode:
    """A notebook file. Raises UsageError where it is not one."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, UnicodeDecodeError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise UsageError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from None


def alike(one: bytes, other: bytes) -> bool:
    """Whether a reader sees the same in two pictures, given as the bytes of their files: the same size, and
    no difference beyond TOLERANCE. What is not a picture is alike only itself."""
    if one == other:
        return True
    first, second = _pixels(one), _pixels(other)
    if first is None or second is None or first.shape != second.shape:
        return False
    difference = first - second
    return all(_largest_mean(difference, side) <= levels for side, levels in TOLERANCE.items())


def _pixels(picture: bytes) -> np.ndarray | None:
    """A picture's levels, 0 to 255, as an array of rows, columns and the channels red, green, blue, alpha."""
    try:
        return np.asarray(Image.open(io.BytesIO(picture)).convert("RGBA"), dtype=np.int64)
    except (OSError, SyntaxError, ValueError):  # Pillow raises each for some broken PNG
        return None


def _largest_mean(difference: np.ndarray, side: int) -> float:
    """The largest mean, sign left out, over any square of side x side pixels; all is alike outside."""
    sums = np.pad(difference, ((side, side), (side, side), (0, 0))).cumsum(0).cumsum(1)
    squares = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    return float(np.abs(squares).max()) / side**2


def normalise(notebook: NotebookNode, committed: NotebookNode | None = None) -> str:
    """The text of the notebook in normal form: one space of indent, a newline at the end, cells named
    c00, c01, ..., executed cells counted 1..n in the order in which they ran. A picture that is alike the
    one with the same caption in the committed notebook is taken from there."""
    cells = [copy.deepcopy(c) for c in notebook.cells if not set(_DROPPED_TAGS) & set(_tags(c))]
    counts = sorted(c.execution_count for c in cells if c.get("execution_count"))
    for number, cell in enumerate(cells):
        cell.id = f"c{number:02d}"
        cell.metadata = {name: cell.metadata[name] for name in _KEPT_CELL_METADATA if cell.metadata.get(name)}
        if cell.cell_type != "code":
            continue
        cell.execution_count = counts.index(cell.execution_count) + 1 if cell.execution_count else None
        cell.outputs = _outputs(cell.outputs, cell.execution_count)
    if committed is not None:
        _keep_pictures(cells, committed)
    return nbformat.writes(
        NotebookNode(
            cells=cells,
            metadata={
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            nbformat=4,
            nbformat_minor=5,
        )
    ).rstrip("\n") + ("\n")


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _outputs(outputs: list[NotebookNode], count: int | None) -> list[NotebookNode]:
    """Outputs with neighbouring streams of one name joined, and without metadata and live widget
    references."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            if joined and joined[-1].output_type == "stream" and joined[-1].name == output.name:
                joined[-1].text += output.text
                continue
        elif output.output_type in ("display_data", "execute_result"):
            output.metadata = {}
            output.data.pop(narrow.MIME, None)  # the site alone has it
            if "text/html" in output.data:
                output.data.pop(_WIDGET, None)
            if _PNG in output.data:
                output.data[_PNG] = output.data[_PNG].strip() + "\n"
            if output.output_type == "execute_result":
                output.execution_count = count
        joined.append(output)
    return joined


def _pictures(cells: list[NotebookNode]) -> list[tuple[str, NotebookNode]]:
    """Each PNG among the cells' outputs: what it is shown with, its caption, and the data that hold both."""
    held = [
        output.data for cell in cells for output in cell.get("outputs", []) if _PNG in output.get("data", {})
    ]
    return [(json.dumps({k: v for k, v in data.items() if k != _PNG}, sort_keys=True), data) for data in held]


def _keep_pictures(cells: list[NotebookNode], committed: NotebookNode) -> None:
    """Put the committed notebook's pictures in place of those that are alike; each is used once."""
    known: dict[str, list[str]] = {}
    for caption, data in _pictures(committed.cells):
        known.setdefault(caption, []).append(data[_PNG])
    for caption, data in _pictures(cells):
        for kept in known.get(caption, []):
            if alike(_decoded(kept), _decoded(data[_PNG])):
                data[_PNG] = kept
                known[caption].remove(kept)
                break


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def is_normal(path: Path) -> bool:
    """Whether the file is its own normal form, byte for byte."""
    return path.read_bytes() == normalise(read(path)).encode()


def rewrite(source: Path, target: Path) -> bool:
    """Write the normal form of an executed notebook to target, whose pictures stay where they are alike;
    whether that changed the file."""
    text = normalise(read(source), read(target) if target.exists() else None)
    if target.exists() and target.read_bytes() == text.encode():
        return False
    write_atomically(target, text)
    return True


def same(source: Path, committed: Path) -> bool:
    """Whether an executed notebook is what is committed: cells and text to the byte, pictures alike."""
    return normalise(read(source), read(committed)).encode() == committed.read_bytes()


def problems(path: Path) -> list[str]:
    """What keeps a committed notebook from being one: one sentence each, none where all is well."""
    notebook = read(path)
    found = []
    size = path.stat().st_size
    if size >= MAX_BYTES:
        found.append(f"{path.name} has {size} bytes: the limit is {MAX_BYTES}.")
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"{path.name} was not run whole and in order: its execution counts are {counts}.")
    for number, cell in enumerate(notebook.cells, 1):
        forbidden = [tag for tag in _tags(cell) if tag in _FORBIDDEN_TAGS]
        if forbidden:
            found.append(
                f"cell {number} of {path.name} is tagged {forbidden[0]}, which hides it from checks."
            )
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append(f"cell {number} of {path.name} holds an error: {output.ename}.")
            if output.output_type == "stream" and output.name == "stderr":
                found.append(
                    f"cell {number} of {path.name} printed to stderr: {output.text.splitlines()[0]!r}."
                )
    if not is_normal(path):
        found.append(f"{path.name} is not in normal form: run `rooflab refresh`.")
    return found
