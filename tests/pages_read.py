"""What the committed notebooks say."""

import nbformat
from rooflab.paths import NOTEBOOKS


def said(name):
    """All that a notebook ("03_coalescing") printed or displayed as text."""
    cells = nbformat.read(NOTEBOOKS / f"{name.removesuffix('.ipynb')}.ipynb", as_version=4).cells
    parts = []
    for output in (output for cell in cells if cell.cell_type == "code" for output in cell.outputs):
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/markdown", ""), data.get("text/html", "")]
    return "\n".join(parts)
