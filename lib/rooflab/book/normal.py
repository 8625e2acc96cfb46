"""The normal form of a committed notebook: outputs and counts kept, all that differs from run to run
left out.

Two replays of a notebook, on any two machines, have the same normal form byte for byte: so `git diff`
shows what changed in the lesson, and nothing else.
"""

import copy
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rooflab.errors import UsageError
from rooflab.table import write_atomically

MAX_BYTES = 300_000
_KEPT_CELL_METADATA = ("tags", "jupyter")
_DROPPED_TAGS = ("injected-parameters", "papermill-error-cell-tag")
_FORBIDDEN_TAGS = ("nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "raises-exception")
_WIDGET = "application/vnd.jupyter.widget-view+json"


def read(path: Path) -> NotebookNode:
    """A notebook file. Raises UsageError where it is not one."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, UnicodeDecodeError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise UsageError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from None


def normalise(notebook: NotebookNode) -> str:
    """The text of the notebook in normal form: one space of indent, a newline at the end, cells named
    c00, c01, ..., executed cells counted 1..n in the order in which they ran."""
    cells = [copy.deepcopy(c) for c in notebook.cells if not set(_DROPPED_TAGS) & set(_tags(c))]
    counts = sorted(c.execution_count for c in cells if c.get("execution_count"))
    for number, cell in enumerate(cells):
        cell.id = f"c{number:02d}"
        cell.metadata = {name: cell.metadata[name] for name in _KEPT_CELL_METADATA if cell.metadata.get(name)}
        if cell.cell_type != "code":
            continue
        cell.execution_count = counts.index(cell.execution_count) + 1 if cell.execution_count else None
        cell.outputs = _outputs(cell.outputs, cell.execution_count)
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
            if "text/html" in output.data:
                output.data.pop(_WIDGET, None)
            if "image/png" in output.data:
                output.data["image/png"] = output.data["image/png"].strip() + "\n"
            if output.output_type == "execute_result":
                output.execution_count = count
        joined.append(output)
    return joined


def is_normal(path: Path) -> bool:
    """Whether the file is its own normal form, byte for byte."""
    return path.read_bytes() == normalise(read(path)).encode()


def rewrite(source: Path, target: Path) -> bool:
    """Write the normal form of an executed notebook to target; whether that changed the file."""
    text = normalise(read(source))
    if target.exists() and target.read_bytes() == text.encode():
        return False
    write_atomically(target, text)
    return True


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
