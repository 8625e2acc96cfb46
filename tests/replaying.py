"""All lessons replayed in this process: what their cells show for a recording, and where they fail.

A Jupyter kernel a lesson would take minutes. Here cells run in one IPython shell that imports the library
once, and figures are neither laid out nor painted unless asked for.
"""

import atexit
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import nbformat
import pandas as pd
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from rooflab import paths
from rooflab.errors import LACKING
from rooflab.records.store import Store
from rooflab.view import plot
from stand_in import Machine
from traitlets.config import Config

PARAMETERS = "parameters"
_ONE_PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\x9cc`\0\0\0\x02\0\x01"
    b"H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82"
)


@dataclass(frozen=True)
class Shown:
    """What one code cell put on the page: printed text, and outputs as dicts of MIME types."""

    cell: int  # counted from 0 among all cells of the notebook
    source: str
    text: str
    outputs: list[dict[str, Any]]
    lacking: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Replay:
    """One lesson's cells until the end, or until the one that failed with `error`."""

    lesson: str
    shown: list[Shown] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def lacking(self) -> list[str]:
        """What cells said in place of cases that the recording lacks."""
        return [text for each in self.shown for text in each.lacking]

    @property
    def whole(self) -> bool:
        """Whether every cell showed what it is for."""
        return self.error is None and not self.lacking

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.lesson}: {'; '.join(self.lacking) or 'well'}"
        at = self.shown[-1].source.strip().splitlines()
        where, here = "", self.error.__traceback__
        while here is not None:  # the innermost line of the library
            if (name := here.tb_frame.f_code.co_filename).startswith(str(paths.ROOT / "lib")):
                where = f" ({Path(name).relative_to(paths.ROOT / 'lib')}:{here.tb_lineno})"
            here = here.tb_next
        what = f"{type(self.error).__name__}: {self.error}"
        return f"{self.lesson}: {what}{where}, in the cell that begins {at[:2]}"


@cache
def _cells(path: Path) -> list[tuple[int, str, bool]]:
    notebook = nbformat.read(path, as_version=4)
    return [
        (i, cell.source, PARAMETERS in cell.metadata.get("tags", []))
        for i, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
    ]


def lessons() -> list[str]:
    """The stems of all lessons, in order."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb"))


@contextmanager
def _shell() -> Iterator[InteractiveShell]:
    """A shell that keeps no history, runs in notebooks/ ."""
    before = os.getcwd()
    config = Config(
        HistoryManager={"enabled": False}, InteractiveShell={"colors": "nocolor", "autoindent": False}
    )
    matplotlib.use("Agg")
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    from rooflab.exercises import kernels

    kernels.register_magic()
    os.chdir(paths.NOTEBOOKS)
    try:
        yield shell
    finally:
        os.chdir(before)
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
        atexit.unregister(shell.atexit_operations)  # which resets it and collects garbage, once a shell


def replay(
    device: str | Path, stems: Iterable[str] | None = None, painted: bool = False, **given: Any
) -> list[Replay]:
    """Replay lessons (all by default) over a recording: a device's name, or a folder. `given` sets further
    parameters. A cell that fails ends its lesson, not the others.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"ROOFLAB_MODE": "replay"}))
        stack.enter_context(mock.patch.object(Store, "read", _reading_once(Store.read)))
        if not painted:
            stack.enter_context(mock.patch.object(plot, "png", lambda figure: _ONE_PIXEL))
            stack.enter_context(mock.patch.object(Figure, "draw_without_rendering", lambda figure: None))
        shell = stack.enter_context(_shell())
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(200_000, 20, 100)  # tables are many small objects, few of them in circles
        values = {**given, "DEVICE": str(device)}
        return [_replay(shell, stem, values) for stem in stems or lessons()]


def live(
    machine: Machine, store: Path, stems: Iterable[str], effort: str = "quick", **given: Any
) -> list[Replay]:
    """Run lessons that measure on a machine that is not here (stand_in.Machine), into `store`."""
    settings = {"ROOFLAB_MODE": "live", "ROOFLAB_STORE": str(store), "ROOFLAB_COMMAND": "rooflab run"}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, settings))
        stack.enter_context(machine.present())
        stack.enter_context(mock.patch("os.fsync"))
        stack.enter_context(mock.patch.object(plot, "png", lambda figure: _ONE_PIXEL))
        stack.enter_context(mock.patch.object(Figure, "draw_without_rendering", lambda figure: None))
        shell = stack.enter_context(_shell())
        return [_replay(shell, stem, {"EFFORT": effort, **given}) for stem in stems]


def _reading_once(real: Callable[[Store, str], pd.DataFrame]) -> Callable[[Store, str], pd.DataFrame]:
    """Store.read, which parses a table once for all lessons."""

    @cache
    def read(root: Path, device: str, study: str) -> pd.DataFrame:
        return real(Store(root, device), study)

    return lambda store, study: read(store.root, store.device, study).copy(deep=False)


def _replay(shell: InteractiveShell, stem: str, values: dict[str, Any]) -> Replay:
    with mock.patch.object(shell.displayhook, "flush"):  # which collects garbage, for half a second a lesson
        shell.reset(new_session=False, aggressive=False)
    shell.set_custom_exc((), None)  # what the lesson before lacked is not known any more
    shown: list[Shown] = []
    for cell, source, parameters in _cells(paths.NOTEBOOKS / f"{stem}.ipynb"):
        if parameters:
            source += "".join(
                f"\n{name} = {value!r}" for name, value in values.items() if f"{name}:" in source
            )
        with capture_output() as captured:
            done = shell.run_cell(source, store_history=True)
        outputs = [dict(output.data) for output in captured.outputs]
        lacking = [out.metadata[LACKING] for out in captured.outputs if LACKING in (out.metadata or {})]
        shown.append(Shown(cell, source, captured.stdout, outputs, lacking))
        error = done.error_before_exec or done.error_in_exec
        if error is not None:
            return Replay(stem, shown, error)
    return Replay(stem, shown)
