"""What nbval is held to in notebooks/: pytest hooks, which notebooks/conftest.py takes over.

Kernels see the lean set alone, as on a machine without a GPU, its packages or a compiler. A cell's outputs
are compared in normal form: nbval itself leaves out pictures, the order of outputs of different kinds, and
which stream a text went to.
"""

import atexit
import copy
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, coalesce_streams

from rooflab.book import normal

HIDDEN = ("cupy", "cupyx", "torch", "cuda", "triton", "nvidia", "numba", "pycuda", "flashinfer")
# In every Python started with this on its path, kernels too, these packages are as if not installed.
_BLOCKER = f"""
import importlib.machinery
_real = importlib.machinery.PathFinder.find_spec
def _find(name, path=None, target=None):
    return None if name.partition(".")[0] in {HIDDEN!r} else _real(name, path, target)
importlib.machinery.PathFinder.find_spec = _find
"""
_OUTPUT_TIMEOUT_S = 60.0  # nbval's own 5 are too few on a loaded machine


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rooflab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "sitecustomize.py").write_text(_BLOCKER)
    (folder / "empty").mkdir()
    return folder


def lean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a kernel that replays with the lean set alone: the packages in HIDDEN can't be
    found, nor any compiler or tool, and no ROOFLAB_ setting holds but the mode."""
    library = str(Path(__file__).resolve().parents[2])
    return {
        **{name: value for name, value in environment.items() if not name.startswith("ROOFLAB_")},
        "PYTHONPATH": os.pathsep.join([str(_folder()), library]),
        "PYTHONHASHSEED": "0",
        "PATH": str(_folder() / "empty"),
        "CUDA_VISIBLE_DEVICES": "",
        "ROOFLAB_MODE": "replay",
    }


def problem(cell: NotebookNode, outputs: list[NotebookNode]) -> str:
    """What is wrong with a cell's outputs beside the committed ones: a sentence and the first lines that
    differ, "" where nothing is."""
    new, committed = (nbformat.v4.new_notebook(cells=[NotebookNode(cell, id="c")]) for _ in range(2))
    new.cells[0] = NotebookNode(cell, id="c", outputs=outputs)
    before, after = normal.normalise(committed).splitlines(), normal.normalise(new, committed).splitlines()
    if before == after:
        return ""
    compared = difflib.unified_diff(before, after, "committed", "replayed", n=1, lineterm="")
    lines = [line[:200] for line in compared]
    return "\n".join(["the outputs are not the committed ones: run `rooflab refresh`.", *lines[:20]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """nbval starts a notebook's kernel before its first cell."""
    with mock.patch.dict(os.environ, lean(os.environ), clear=True):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if not isinstance(item, IPyNbCell):
        return (yield)
    cell: Any = item
    cell.output_timeout = _OUTPUT_TIMEOUT_S
    committed = copy.deepcopy(cell.cell)
    seen: list[list[NotebookNode]] = []

    def join(outputs: list[NotebookNode]) -> list[NotebookNode]:
        """nbval joins all streams of one name, in place, and loses where they were."""
        seen.append(copy.deepcopy(outputs))
        return coalesce_streams(outputs)

    with mock.patch("nbval.plugin.coalesce_streams", join):
        result = yield
    found = problem(committed, seen[0])
    if found:
        cell.raise_cell_error(found)
    return result
