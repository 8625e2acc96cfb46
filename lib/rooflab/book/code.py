"""A Sphinx extension of ours: code whose long lines wrap under themselves, so that no page scrolls sideways.

Each line becomes an element of its own that knows its level of indentation; site/lessons.css does the rest.
Copied text is the code itself. Names, operators, punctuation and spaces are plain text: elements for them
would be half of a page with many kernels.
"""

import re
from collections.abc import Iterator
from typing import Any

from pygments.formatters import HtmlFormatter
from pygments.token import Name, Operator, Punctuation, Whitespace
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge

DEEPEST = 15  # levels of four spaces that lessons.css has
_MARKUP = re.compile(r"<[^>]*>")


class Lines(HtmlFormatter):  # type: ignore[type-arg]
    """Pygments' HTML with a span around each line."""

    def _get_css_classes(self, ttype: Any) -> str:
        return "" if ttype in (Name, Operator, Punctuation, Whitespace) else super()._get_css_classes(ttype)

    def wrap(self, source: Any) -> Any:
        return super().wrap(self._apart(source))

    @staticmethod
    def _apart(source: Any) -> Iterator[tuple[int, str]]:
        for is_code, text in source:
            if is_code:
                shown = _MARKUP.sub("", text)
                indent = len(shown) - len(re.sub(r"^[+-]? *", "", shown))  # of a diff, its sign too
                level = f" i{min(indent // 4, DEEPEST)}" if indent >= 4 else ""
                text = f'<span class="line{level}">{text}</span>'
            yield is_code, text


def setup(app: Sphinx) -> dict[str, Any]:
    PygmentsBridge.html_formatter = Lines
    return {"parallel_read_safe": True, "parallel_write_safe": True}
