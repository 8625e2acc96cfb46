"""A Sphinx extension of ours: formulas as MathML, which browsers draw without any script or font to load."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_logger = logging.getLogger(__name__)


def _mathml(node: nodes.Element, display: str) -> str:
    formula = node.astext()
    try:
        drawn = convert(formula, display=display)
    except Exception as error:  # the converter's own errors share no base
        _logger.warning(
            "formula %r does not convert to MathML: %s", formula, type(error).__name__, location=node
        )
        return ""
    if "\\" in drawn:  # a command that the converter does not know is passed on as text
        _logger.warning("formula %r has a command that MathML lacks", formula, location=node)
    return drawn


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="math">{_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
