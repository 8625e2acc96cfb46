"""How a notebook continues where its recording lacks a case.

`answer_missing` lets the notebook's shell answer a MissingRecording with one sentence instead of a traceback.
The names that such a cell would have bound are taken away, so that no later cell shows an older value under
them; a cell that needs one of them says so in one sentence, too. All others run. Outputs carry the key
`LACKING` in their metadata, by which a runner knows that the page is shown in part.
"""

from __future__ import annotations

import ast
import linecache
import os
import shlex
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from rooflab.errors import LACKING, MissingRecording

_HOUSE = ("MODE", "DEVICE", "EFFORT")


class _Answers:
    """What a shell's cells could not show so far."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # that cells would have bound
        self.answered: BaseException | None = None

    def __call__(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType,
        tb_offset: int | None = None,
    ) -> None:
        if isinstance(error, MissingRecording):
            text = error.sentence(page_command(shell) if error.cases else "")
        elif isinstance(error, NameError) and error.name in self.names and _ends_in_page(shell, trace):
            text = f"This needs `{error.name}` of a cell above whose cases the recording lacks."
        else:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return
        self._forget(shell, trace)
        self.answered = error
        shown = {"text/plain": f"Not shown: {text}", "text/markdown": f"**Not shown:** {text}"}
        display(shown, raw=True, metadata={LACKING: text})

    def _forget(self, shell: Any, trace: TracebackType) -> None:
        """Take away what the cell would have bound from the statement on at which it ended."""
        frame = _at(shell, trace)
        if frame is None:
            return
        source = "".join(linecache.getlines(frame.tb_frame.f_code.co_filename))
        bound = {
            name
            for statement in ast.parse(source).body
            if (statement.end_lineno or 0) >= frame.tb_lineno
            for name in _bound(statement)
        }
        for name in bound:
            if not isinstance(shell.user_ns.get(name), ModuleType):
                shell.user_ns.pop(name, None)
                self.names.add(name)

    def settle(self, result: Any) -> None:
        """Let the cell count as one that ran, after its error was answered."""
        if result.error_in_exec is not None and result.error_in_exec is self.answered:
            result.error_in_exec = None


def _at(shell: Any, trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that lies in the cell itself."""
    while trace is not None and trace.tb_frame.f_globals is not shell.user_ns:
        trace = trace.tb_next
    return trace


def _ends_in_page(shell: Any, trace: TracebackType) -> bool:
    """Whether the error was raised by code of the page, not by what it calls."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals is shell.user_ns


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement at the top of a cell binds, or changes by an assignment to a part of them."""
    found = set()
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    left: list[ast.AST] = [statement]
    while left:
        node = left.pop()
        if isinstance(node, inner):
            found.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        if isinstance(getattr(node, "ctx", None), ast.Store):
            while isinstance(node, ast.Subscript | ast.Attribute):
                node = node.value
            if isinstance(node, ast.Name):
                found.add(node.id)
        left += ast.iter_child_nodes(node)
    return found


def page_command(shell: Any) -> str:
    """The command that measures what this page asks for, with its parameters as they stand; "" where the
    notebook's name is not known.
    """
    words = (os.environ.get("ROOFLAB_LESSON"), os.environ.get("JPY_SESSION_NAME"))
    name = next(filter(None, (*words, shell.user_ns.get("__vsc_ipynb_file__"))), "")
    if not name:
        return ""
    values = [
        f"{parameter}={_text(value)}"
        for parameter, value in _parameters(shell).items()
        if parameter not in _HOUSE and value is not None
    ]
    effort = ["--effort", "quick"] if shell.user_ns.get("EFFORT") == "quick" else []
    given = [word for value in values for word in ("-p", value)]
    return shlex.join(["rooflab", "run", Path(str(name)).stem, "--mode", "live", *effort, *given])


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _parameters(shell: Any) -> dict[str, Any]:
    """The values of the page's parameters: what its cell of annotated assignments names."""
    for cell in shell.user_ns.get("In", []):
        if cell.startswith("MODE: str"):
            named = [s.target for s in ast.parse(cell).body if isinstance(s, ast.AnnAssign)]
            names = [target.id for target in named if isinstance(target, ast.Name)]
            return {name: shell.user_ns[name] for name in names if name in shell.user_ns}
    return {}


def answer_missing() -> None:
    """From now on the notebook at work continues after cells whose cases are not recorded; nothing without a
    notebook, or where it does so already.
    """
    shell = get_ipython()
    if shell is None or MissingRecording in shell.custom_exceptions:
        return
    answers = _Answers()
    shell.set_custom_exc((MissingRecording, NameError), answers)
    shell.events.register("post_run_cell", answers.settle)
