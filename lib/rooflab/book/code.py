"""A Sphinx extension of ours: code whose long lines wrap under themselves, so that no page scrolls sideways.

Each line becomes an element of its own that knows its indentation; site/lessons.css does the rest. Copied
text is the code itself.
"""

import re
from collections.abc import Iterator
from typing import Any

from pygments.formatters import HtmlFormatter
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge

_MARKUP = re.compile(r"<[^>]*>")


class Lines(HtmlFormatter):  # type: ignore[type-arg]
    """Pygments' HTML with a span around each line."""

    def wrap(self, source: Any) -> Any:
        return super().wrap(self._apart(source))

    @staticmethod
    def _apart(source: Any) -> Iterator[tuple[int, str]]:
        for is_code, text in source:
            if is_code:
                shown = _MARKUP.sub("", text)
                indent = len(shown) - len(re.sub(r"^[+-]? *", "", shown))  # of a diff, its sign too
                text = f'<span class="line" style="--indent:{indent}ch">{text}</span>'
            yield is_code, text


def setup(app: Sphinx) -> dict[str, Any]:
    PygmentsBridge.html_formatter = Lines
    return {"parallel_read_safe": True, "parallel_write_safe": True}
