"""The HTML site: one page a lesson from executed notebooks, readable from file://, loading nothing from
elsewhere."""

import contextlib
import hashlib
import io
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rooflab import __version__, paths
from rooflab.book import glossary, home, lessons, listings, normal
from rooflab.book.execute import plain
from rooflab.book.notebook_format import nbformat
from rooflab.book.site_check import MOST_BYTES as MOST_BYTES
from rooflab.book.site_check import problems as problems
from rooflab.errors import MissingTool, RooflabError
from rooflab.view import narrow

ASSETS = Path(__file__).resolve().parents[1] / "site"  # explorer.js and explorer.css, the lessons' explorers
OUTPUT = paths.BUILD / "site"
_SOURCE = paths.BUILD / "site-source"

# A roof: the slope of memory, the plateau of arithmetic.
_LOGO = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" rx="10"
fill="#0072B2"/><path d="M10 52 32 20h22" fill="none" stroke="#fff" stroke-width="7" stroke-linejoin="round"
stroke-linecap="round"/></svg>
"""

_STYLE = """img.logo__image { max-height: 3.5rem !important; width: auto !important; }
table.table { font-size: .8rem; }
table.table th, table.table td { padding: .2rem .5rem; }
table.table td:last-child { overflow-wrap: anywhere; }
html[data-theme="light"] .highlight .gi { color: #0a5c2b; }
html[data-theme="light"] .highlight .gd { color: #a3121f; }
html[data-theme="dark"] .highlight .gi { color: #7ee787; }
html[data-theme="dark"] .highlight .gd { color: #ffa198; }
"""

_INDEX = """# rooflab

A measured course in LLM inference kernels. Numbered notebooks walk from measuring a GPU's bandwidth to a
whole decoder, and hold each kernel against its *roof*: the rate at which memory can deliver its bytes, or the
chip do its arithmetic. You need Python, but neither CUDA nor a GPU: the pages show what was recorded. Every
number was measured on a named GPU or says who published it, and one command measures ours again on yours.

{device}

{way}
{begin}
{pictures}
## Whose claims are on trial

The claims on trial come from three public projects. In the lessons listed behind it, each is called *the
source*, or by its name:
[decode-roofline](https://github.com/rishi-more-2003/decode-roofline), which profiled Qwen2.5-1.5B on an RTX
4070 Laptop (lessons 02, 04 and 07); [realizar](https://github.com/paiml/realizar), whose specification names
goals for an RTX 4090 (lessons 00 to 03); and [SharpInference](https://github.com/pekkah/SharpInference),
whose pull request took a model from matrix-vector products to tensor cores (lessons 05, 06 and 08).

{contents}
{more}
```{{toctree}}
:hidden:
:caption: Lessons

{lessons}
```

```{{toctree}}
:hidden:
:caption: Reference

{pages}
```
"""


_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def build(
    notebooks: Sequence[Path],
    table: str,
    output: Path = OUTPUT,
    source: Path = _SOURCE,
    around: Mapping[str, str] | None = None,
    way: str = "",
    pictures: str = "",
) -> Path:
    """Build the site from executed notebooks, the Markdown of the results, that of the pages `around` the
    lessons (see rooflab.book.pages.make), and that of the `way` through them and of the recording's
    `pictures`; the path of its first page.
    Raises RooflabError with Sphinx's warnings where there is one; the pages are written nevertheless."""
    try:
        from sphinx.application import Sphinx
        from sphinx.util.docutils import docutils_namespace, patch_docutils
    except ModuleNotFoundError as error:
        raise MissingTool(
            f"The HTML site needs {str(error.name).split('.')[0]}: pip install -r requirements.txt."
        ) from error

    _write_source(notebooks, source, table, around or {}, way, pictures)
    for folder in (output, source / "_doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    warnings = io.StringIO()
    with patch_docutils(), docutils_namespace(), contextlib.redirect_stdout(io.StringIO()):
        app = Sphinx(
            source,
            None,
            output,
            source / "_doctrees",
            "html",
            _configuration(source),
            None,
            warnings,
            freshenv=True,
        )
        app.build(force_all=True)
    for template in (output / "_static").glob("*webpack-macros.html"):
        template.unlink()  # the theme leaves its own templates there
    _lighten(output)
    _narrow(output, notebooks)
    _confine(output)
    said = plain(warnings.getvalue()).strip()
    if app.statuscode != 0 or said:
        raise RooflabError("the site has warnings:\n" + (said or "Sphinx gave no reason."))
    return output / "index.html"


# The theme's icons come twice: by this script of 1.5 MB, and as a font that its style sheet names.
_ICONS = re.compile(r'\s*<(?:script|link)\b[^>]*"[^"]*scripts/fontawesome\.js[^"]*"[^>]*>(?:</script>)?')


# A space between a number and its unit, and before it what is no sentence: code, and tags.
_UNIT = re.compile(
    r"(<(pre|code|script|style)\b.*?</\2>|<[^>]*>)"
    r"|(?<=\d) (?=%|[µnm]s\b|[KMG]i?B\b|[GT]B/s|TFLOP/s|tok/s)",
    re.DOTALL,
)


def _lighten(site: Path) -> None:
    """Leave out the script that draws what the font draws, and keep a number and its unit on one line."""
    for path in site.rglob("*.html"):
        text = _ICONS.sub("", path.read_text(encoding="utf-8"))
        path.write_text(_UNIT.sub(lambda found: found[1] or "\u00a0", text), encoding="utf-8")
    for script in (site / "_static" / "scripts").glob("fontawesome.js*"):
        script.unlink()


_PICTURE = re.compile(r'<img\b[^>]*\bsrc="_images/([^"/]+)\.png"[^>]*>')
_PHONE = "(max-width: 600px)"  # as lessons.css has it


def _narrow(site: Path, notebooks: Sequence[Path]) -> None:
    """Give each picture that was also drawn for a phone that other form, where the window is narrow."""
    known: dict[str, bytes] = {}
    for path in notebooks:
        for cell in normal.read(path).cells:
            for data in (output.get("data", {}) for output in cell.get("outputs", [])):
                if narrow.MIME in data:
                    wide = hashlib.sha256(b64decode(data["image/png"])).hexdigest()
                    known[wide] = b64decode(data[narrow.MIME])
    names = set()
    for image in sorted((site / "_images").glob("*.png")) if known else ():
        if other := known.get(hashlib.sha256(image.read_bytes()).hexdigest()):
            image.with_name(f"{image.stem}-narrow.png").write_bytes(other)
            names.add(image.stem)

    def replaced(found: re.Match[str]) -> str:
        if found[1] not in names:
            return found[0]
        source = f'<source media="{_PHONE}" srcset="_images/{found[1]}-narrow.png">'
        return f"<picture>{source}{found[0]}</picture>"

    for page in site.glob("*.html") if names else ():
        text = page.read_text(encoding="utf-8")
        page.write_text(_PICTURE.sub(replaced, text), encoding="utf-8")


# What a page of the site may do, beside the scripts that it may run: load from its own folder alone.
_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; script-src 'self' 'unsafe-hashes' {hashes}"
)
_CHARSET = '<meta charset="utf-8" />'
_PAGE_NAME = "DOCUMENTATION_OPTIONS.pagename = '{}';"
_PRINT = "window.print()"  # of the theme's download button, which the search page lacks


def _confine(site: Path) -> None:
    """Give every page a Content-Security-Policy that runs the site's own scripts and no others.

    Inline scripts are known by their digests: those of the search page, which shows nothing of any recording,
    the line that names the page, and what the print button does.
    """
    theirs = _Scripts()
    theirs.feed((site / "search.html").read_text(encoding="utf-8"))
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(site).with_suffix("").as_posix()
        if _CHARSET not in text:
            raise RooflabError(f"{path.name} has no place for its Content-Security-Policy.")
        known = {*theirs.found, _PAGE_NAME.format(name), _PRINT}
        hashes = [b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in sorted(known)]
        policy = _POLICY.format(hashes=" ".join(f"'sha256-{one}'" for one in hashes))
        meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
        path.write_text(text.replace(_CHARSET, f"{_CHARSET}{meta}", 1), encoding="utf-8")


class _Scripts(HTMLParser):
    """The inline scripts of a page and what its elements do when they are clicked, as texts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and "src" not in dict(attributes)
        self.found += [value for name, value in attributes if name.startswith("on") and value]

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def _configuration(source: Path) -> dict[str, object]:
    ours = sorted(path.name for path in ASSETS.glob("*")) if ASSETS.is_dir() else []
    return {
        "project": "rooflab",
        "author": "rooflab",
        "version": __version__,
        "extensions": ["myst_nb", "rooflab.book.code", "rooflab.book.mathml"],
        "exclude_patterns": ["_doctrees", "files"],
        "nb_execution_mode": "off",
        "nb_ipywidgets_js": {},
        "nb_code_prompt_show": "Parameters and imports",
        "nb_code_prompt_hide": "Parameters and imports",
        "nb_mime_priority_overrides": [("html", "application/vnd.jupyter.widget-view+json", None)],
        "myst_enable_extensions": ["dollarmath", "amsmath"],
        "myst_heading_anchors": 3,
        "html_math_renderer": "mathml",
        "html_theme": "sphinx_book_theme",
        "html_title": "rooflab",
        "html_logo": "_static/logo.svg",
        "html_favicon": "_static/logo.svg",
        "html_static_path": [str(source / "_static")],
        "html_js_files": ["glossary.js", *(name for name in ours if name.endswith(".js"))],
        "html_css_files": ["rooflab.css", *(name for name in ours if name.endswith(".css"))],
        "html_show_search_summary": False,  # it fetches pages, which file:// does not allow
        "html_context": {"default_mode": "auto"},
        "html_use_index": False,
        "html_show_copyright": False,
        "html_last_updated_fmt": None,
        "html_theme_options": {
            "use_source_button": False,
            "use_repository_button": False,
            "use_issues_button": False,
            "use_edit_page_button": False,
            "navigation_with_keys": False,
            "navbar_persistent": [],  # the sidebar has the search
            "max_navbar_depth": 1,  # what the theme folds below has no name for a screen reader
        },
    }


def _write_source(
    notebooks: Sequence[Path], source: Path, table: str, around: Mapping[str, str], way: str, pictures: str
) -> None:
    shutil.rmtree(source, ignore_errors=True)
    static = source / "_static"
    static.mkdir(parents=True)
    (static / "logo.svg").write_text(_LOGO, encoding="utf-8")
    (static / "rooflab.css").write_text(_STYLE, encoding="utf-8")
    if ASSETS.is_dir():
        for asset in ASSETS.glob("*.*"):
            shutil.copy(asset, static)
    terms = glossary.terms() if glossary.PAGE in around else []
    (static / "glossary.js").write_text(glossary.script(terms), encoding="utf-8")
    for path in notebooks:
        notebook = nbformat.reads(normal.normalise(normal.read(path)), as_version=4)
        cells = [part for cell in _arranged(notebook.cells) for part in _as_cuda(cell)]
        notebook.cells = listings.inserted(cells)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _local_links(cell.source, {p.name for p in notebooks}, source)
        if terms:
            _link_terms(notebook.cells, terms, path.stem)
        notebook.cells = [part for cell in notebook.cells for part in _one_image_a_cell(cell)]
        for cell in notebook.cells:
            for shown in cell.get("outputs", []):
                if said := shown.get("data", {}).get("text/markdown"):
                    shown.data["text/markdown"] = _links_of_output(said, static)
                if "image/png" in shown.get("data", {}):  # plot.show leaves the figure's caption as its text
                    cell.metadata["mystnb"] = {"image": {"alt": "".join(shown.data["text/plain"])}}
        nbformat.write(notebook, source / path.name)
    head = table.partition("\n")[0]
    around = {"results": f"# Results\n\n{table.strip()}\n", **around}
    for name, text in around.items():
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    tops = [name for name in around if not name.startswith("device-")]  # devices.md leads to those
    more = [f"- [{around[name].partition(chr(10))[0].removeprefix('# ')}]({name}.md)" for name in tops]
    found = [lessons.opening(path) for path in notebooks]
    (source / "index.md").write_text(
        _INDEX.format(
            device=head,
            way=way,
            begin=home.begin(found),
            pictures=pictures,
            contents=home.contents(found),
            more="\n".join(["## Reference", "", *more, ""]) if more else "",
            lessons="\n".join(path.stem for path in notebooks),
            pages="\n".join(tops),
        ),
        encoding="utf-8",
    )


def _links_of_output(said: str, static: Path) -> str:
    """What a cell printed with links that work on the site, as Sphinx resolves none in it: to a notebook's
    page, and to a copy of a file of the repository."""

    def copied(link: re.Match[str]) -> str:
        file, target = paths.ROOT / link[1], static / "files" / link[1]
        if not file.is_file():
            return link[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
        return f"](_static/files/{link[1]})"

    return re.sub(r"\]\(\.\./([\w./-]+)\)", copied, re.sub(r"(\]\(\w+)\.ipynb\b", r"\1.html", said))


def _arranged(cells: list[Any]) -> list[Any]:
    """The cells as the page shows them: parameters and imports are one folded cell behind the opening, and
    the code of hidden cells is left out."""
    for cell in cells:
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["tags"] = ["remove-input"]
    at = next((k for k, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])), None)
    if at is None:
        return cells
    codes = [k for k in range(at, len(cells)) if cells[k].cell_type == "code"]
    held = [k for k in codes[:2] if k == at or re.match(r"(import|from) ", cells[k].source)]
    folded = nbformat.v4.new_code_cell(
        "\n\n".join(cells[k].source for k in held), metadata={"tags": ["hide-input"]}
    )
    folded["id"] = f"{cells[at]['id']}-folded"
    for k in held:
        cells[k].metadata["tags"] = ["remove-input"]
    opened = next((k for k in codes[:4] if "page.opening(" in cells[k].source), held[-1])
    return [*cells[: opened + 1], folded, *cells[opened + 1 :]]


def _as_cuda(cell: Any) -> list[Any]:
    """A cell with a reader's kernel as a block of CUDA and what it said; any other cell as it is."""
    if not cell.source.startswith("%%kernel "):
        return [cell]
    block = nbformat.v4.new_markdown_cell(f"```cuda\n{cell.source}\n```")
    block["id"] = f"{cell['id']}-cuda"
    cell.metadata["tags"] = ["remove-input"]
    return [block, cell]


def _link_terms(cells: Sequence[Any], terms: Sequence[glossary.Term], stem: str) -> None:
    """Lead the first mention of each term on a page, in its text or in what a cell shows, to the glossary."""
    holders: list[tuple[Any, str]] = []
    outputs = set()
    for cell in cells:
        if cell.cell_type == "markdown":
            holders.append((cell, "source"))
        for shown in cell.get("outputs", []):
            if "text/markdown" in shown.get("data", {}):
                outputs.add(len(holders))
                holders.append((shown.data, "text/markdown"))
    texts = ["".join(holder[name]) for holder, name in holders]
    for (holder, name), text in zip(holders, glossary.linked(texts, terms, stem, outputs), strict=True):
        holder[name] = text


def _one_image_a_cell(cell: Any) -> list[Any]:
    """A cell, or it and others that show its later outputs, one image each: MyST-NB takes one alternative
    text for all images of a cell."""
    groups: list[list[Any]] = [[]]
    pictured = False
    for shown in cell.get("outputs", []):
        image = "image/png" in shown.get("data", {})
        if image and pictured:
            groups.append([])
        pictured = pictured or image
        groups[-1].append(shown)
    parts = [cell]
    for number, outputs in enumerate(groups[1:], 2):
        # MyST-NB leaves out a cell without source, whatever its outputs.
        part = nbformat.v4.new_code_cell("#", outputs=outputs, metadata={"tags": ["remove-input"]})
        part["id"] = f"{cell['id']}-{number}"
        parts.append(part)
    if len(groups) > 1:
        cell["outputs"] = groups[0]
    return parts


def _local_links(text: str, pages: set[str], source: Path) -> str:
    """Markdown whose links to files of the repository lead to copies of them in the site. A link to a
    folder, or to a lesson that this site leaves out, becomes its text."""

    def replaced(match: re.Match[str]) -> str:
        bang, label, target, anchor = match.groups()
        if target in pages:
            return match[0]
        file = (paths.NOTEBOOKS / unquote(target)).resolve()
        if not file.is_file() or not file.is_relative_to(paths.ROOT) or file.suffix == ".ipynb":
            return label[1:-1]
        copy = source / "files" / file.relative_to(paths.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        return f"{bang}{label}({copy.relative_to(source).as_posix()})"

    return _LINK.sub(replaced, text)
