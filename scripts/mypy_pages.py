"""mypy's plugin for lib/rooflab/pages: what a page takes out of a DataFrame there is of any type.

By pandas' stubs a cell may be of two dozen types and a `.loc` of as many forms. pyproject.toml leaves out all
that mypy would say of them in pages; finding it, and wording it, took half of its time.
"""

import gc
from collections.abc import Callable

from mypy.plugin import AttributeContext, MethodSigContext, Plugin
from mypy.types import AnyType, CallableType, FunctionLike, Type, TypeOfAny

# Of a frame or a series, and of a row that `itertuples` gives.
_ENDS, _ROW = (".loc", ".iloc"), ".PandasNamedTuple."
_ITEMS = ("pandas.core.frame.DataFrame.__getitem__", "pandas.core.series.Series.__getitem__")


def _in_pages(context: AttributeContext | MethodSigContext) -> bool:
    return "rooflab/pages/" in getattr(context.api, "path", "").replace("\\", "/")


def _any_in_pages(context: AttributeContext) -> Type:
    return AnyType(TypeOfAny.special_form) if _in_pages(context) else context.default_attr_type


def _item_in_pages(context: MethodSigContext) -> FunctionLike:
    """`frame[...]` gives anything: the first of its overloads will do, with any argument and result."""
    first = context.default_signature.items[0]
    if not _in_pages(context) or not isinstance(first, CallableType):
        return context.default_signature
    of_any = AnyType(TypeOfAny.special_form)
    return first.copy_modified(arg_types=[of_any] * len(first.arg_types), ret_type=of_any)


class _Pages(Plugin):
    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        of_pandas = fullname.startswith("pandas.")
        return _any_in_pages if of_pandas and (fullname.endswith(_ENDS) or _ROW in fullname) else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        return _item_in_pages if fullname in _ITEMS else None


def plugin(version: str) -> type[Plugin]:
    # What mypy makes it keeps: looking through it for cycles took a quarter of its time.
    gc.set_threshold(2_000_000, 50, 1000)
    return _Pages
