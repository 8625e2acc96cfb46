"""mypy's plugin for lib/rooflab/pages: what a page takes out of a DataFrame there is of any type.

By pandas' stubs a cell may be of two dozen types and a `.loc` of as many forms. pyproject.toml leaves out all
that mypy would say of them in pages; finding it, and wording it, took half of its time.
"""

from collections.abc import Callable

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny

# Of a frame or a series, and of a row that `itertuples` gives.
_ENDS, _ROW = (".loc", ".iloc"), ".PandasNamedTuple."


def _any_in_pages(context: AttributeContext) -> Type:
    path = getattr(context.api, "path", "").replace("\\", "/")
    return AnyType(TypeOfAny.special_form) if "rooflab/pages/" in path else context.default_attr_type


class _Pages(Plugin):
    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        of_pandas = fullname.startswith("pandas.")
        return _any_in_pages if of_pandas and (fullname.endswith(_ENDS) or _ROW in fullname) else None


def plugin(version: str) -> type[Plugin]:
    return _Pages
