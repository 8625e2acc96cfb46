"""`pytest --nbval notebooks` replays with the lean set alone, and finds whatever its cells show otherwise."""

import base64
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from rooflab import paths
from rooflab.book import check, normal, strict
from rooflab.view import plot

LOOK = f"""
import importlib.util, os, shutil, subprocess, sys
import rooflab.lab, rooflab.studies
found = [name for name in {strict.HIDDEN} if importlib.util.find_spec(name)]
found += [t for t in ("nvcc", "cc", "c++", "g++", "clang", "ncu", "nsys", "nvidia-smi") if shutil.which(t)]
found += [name for name in ("cupy", "torch", "cuda", "triton") if name in sys.modules]
found += [name for name in os.environ if name.startswith("ROOFLAB_") and name != "ROOFLAB_MODE"]
child = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('cuda'))"]
print(found, os.environ["ROOFLAB_MODE"], subprocess.run(child, capture_output=True, text=True).stdout)
"""


def _seen(text: str) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text=text)


def _display(text: str) -> nbformat.NotebookNode:
    return new_output("display_data", data={"text/plain": text})


def _shown(last: float) -> bytes:
    fig, axes = plot.figure("tokens", "GB/s", "A series")
    plot.series(axes, [1, 2, 3], [1.0, 2.0, last], label="ours")
    return plot.png(fig)


def _picture(last: float) -> nbformat.NotebookNode:
    return new_output(
        "display_data", data={"image/png": base64.b64encode(_shown(last)).decode(), "text/plain": "x"}
    )


DRAW = """
from rooflab.view import plot
fig, axes = plot.figure("tokens", "GB/s", "A series")
plot.series(axes, [1, 2, 3], [1.0, 2.0, 3.0], label="ours")
plot.show(fig, "x")
"""


def _nbval(folder: Path, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        *check.NBVAL[4:],
        "-c",
        os.devnull,
        f"--rootdir={folder}",
        *options,
    ]
    return subprocess.run(
        [*command, str(folder)], env={**os.environ, **settings}, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How strict nbval judges one cell each: its source, and the outputs that a committed notebook shows."""
    cells = {
        "text": ("print(1)", [_seen("1\n")]),
        "another_text": ("print(1)", [_seen("2\n")]),
        "stderr": ("import sys; print(1, file=sys.stderr)", [_seen("1\n")]),
        "order": (
            "display(1); print(2)",
            [_seen("2\n"), _display("1")],
        ),
        "between": ("print(1); display(1); print(2)", [_seen("1\n"), _display("1"), _seen("2\n")]),
        "moved": ("print(1); display(1); print(2)", [_seen("1\n2\n"), _display("1")]),
        "picture": (DRAW, [_picture(3.0001), _seen("x\n")]),
        "another_picture": (DRAW, [_picture(3.05), _seen("x\n")]),
        "no_picture": (DRAW, [_display("x"), _seen("x\n")]),
        "failing": ("1 / 0", []),
        "lean": (LOOK, [_seen("[] replay None None\n\n")]),
    }
    folder = tmp_path_factory.mktemp("strict")
    (folder / "conftest.py").write_text((paths.NOTEBOOKS / "conftest.py").read_text())
    notebook = new_notebook(cells=[new_code_cell(s, outputs=o, execution_count=1) for s, o in cells.values()])
    (folder / "all.ipynb").write_text(normal.normalise(notebook))
    junit = folder / "junit.xml"
    done = _nbval(folder, f"--junit-xml={junit}", ROOFLAB_EFFORT="quick")
    assert done.returncode == 1, done.stdout + done.stderr
    reports = ElementTree.parse(junit).getroot().iter("testcase")
    return {
        name: "".join(failure.text or "" for failure in case)
        for name, case in zip(cells, reports, strict=True)
    }


def test_nbval_lets_pass_what_is_committed(verdicts: dict[str, str]) -> None:
    assert verdicts["text"] == verdicts["picture"] == verdicts["between"] == ""


@pytest.mark.parametrize(
    "name", ["another_text", "stderr", "order", "moved", "another_picture", "no_picture", "failing"]
)
def test_nbval_finds_what_differs(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name]


def test_kernels_see_the_lean_set_alone(verdicts: dict[str, str]) -> None:
    assert verdicts["lean"] == ""


# A stand-in for another CPU's mathematics: the last bit of each logarithm, exponential and power moves, whole
# numbers excepted.
NUDGE = """
import numpy
class _Nudged:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def __call__(self, *arguments, **options):
        found = self.real(*arguments, **options)
        if options.get("out") is not None or getattr(found, "dtype", None) != numpy.float64:
            return found
        return numpy.where(found == numpy.rint(found), found, found * (1 + 2.0**-52))[()]
for _name in ("log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "power", "float_power"):
    setattr(numpy, _name, _Nudged(getattr(numpy, _name)))
"""
MACHINES = {
    "older": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # NumPy passes over what a CPU lacks
        "OPENBLAS_CORETYPE": "Sandybridge",
        "OPENBLAS_NUM_THREADS": "1",
        "TZ": "America/St_Johns",
        "LC_ALL": "C",
    },
    "another": {
        "OPENBLAS_NUM_THREADS": "4",
        "TZ": "Asia/Kolkata",
        "LC_ALL": "de_DE.UTF-8",
        "LANG": "de_DE.UTF-8",
    },
}
if not os.environ.get("ROOFLAB_ALL_MACHINES"):  # all that differs at once
    MACHINES = {"another": {**MACHINES["older"], **MACHINES["another"]}}


@pytest.mark.parametrize("machine", MACHINES)
def test_another_machine_shows_the_same(machine: str, tmp_path: Path) -> None:
    """Lesson 07b fits logarithms and draws dashed lines: the one whose bytes differ between CPUs."""
    (tmp_path / "07b_predicting.ipynb").write_bytes((paths.NOTEBOOKS / "07b_predicting.ipynb").read_bytes())
    nudge = f"from rooflab.book import strict\nstrict._BLOCKER += {NUDGE!r}\n" if machine == "another" else ""
    (tmp_path / "conftest.py").write_text(nudge + (paths.NOTEBOOKS / "conftest.py").read_text())
    done = _nbval(tmp_path, **MACHINES[machine])
    assert done.returncode == 0, done.stdout + done.stderr
