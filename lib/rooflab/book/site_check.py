"""What a built site must not have: broken links, remote files, pages too heavy."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST_BYTES = 1_700_000  # of a page with all that it loads: the theme is 0.7 MB, a page of many kernels 0.8 MB


class _Links(HTMLParser):
    """The addresses that a page loads (src, link and so on) and those it leads to (a href), and its
    anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if not value:
                continue
            if (tag == "a" and name == "href") or name == "srcset":  # a window loads one of two pictures
                self.leads.append(value)
            elif name in ("src", "poster", "data") or (name == "href" and tag != "a"):
                self.loads.append(value)


def problems(site: Path) -> list[str]:
    """What in a built site would load from elsewhere, leads to a page, file or anchor that is not there, or
    weighs more than MOST_BYTES with all that it loads.
    """
    pages = {path.resolve(): _Links() for path in site.rglob("*.html")}
    for path, links in pages.items():
        links.feed(path.read_text(encoding="utf-8"))
    found = []
    for path, links in pages.items():
        local = [parts.path for parts in map(urlsplit, links.loads) if not parts.scheme]
        loaded = {(path.parent / unquote(each)).resolve() for each in local}
        loaded = {
            each for each in loaded if each.is_file() and each not in pages
        }  # neighbours are named, too
        weight = sum(each.stat().st_size for each in {path, *loaded})
        if weight > MOST_BYTES:
            found.append(f"{path.name} weighs {weight:,} bytes with what it loads; {MOST_BYTES:,} may be.")
        for address in links.loads + links.leads:
            parts = urlsplit(address)
            if parts.scheme == "data" or (
                parts.scheme and address in links.leads and address not in links.loads
            ):
                continue
            if parts.scheme or parts.netloc or parts.path.startswith("/"):
                found.append(f"{path.name} loads {address} from elsewhere.")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{path.name} leads to {address}, which is not there.")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path.name} leads to {address}, whose anchor is not there.")
    for style in site.rglob("*.css"):
        for address in re.findall(
            r"(?:url\(|@import\s)\s*['\"]?(https?:)?//[^)'\"]*", style.read_text(errors="replace")
        ):
            found.append(f"{style.name} loads {address} from elsewhere.")
    return found
