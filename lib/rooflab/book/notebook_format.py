"""nbformat, imported without a grammar that takes a second to build and that no notebook needs."""

import sys

# jsonschema, by which nbformat checks notebooks, imports it where JupyterLab has brought it: to check IRIs.
_GRAMMAR = "rfc3987_syntax"
_unknown = _GRAMMAR not in sys.modules
if _unknown:
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]
try:
    import nbformat
finally:
    if _unknown:
        del sys.modules[_GRAMMAR]

NotebookNode = nbformat.NotebookNode

__all__ = ["NotebookNode", "nbformat"]
