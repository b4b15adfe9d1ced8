"""The documentation site, built from the pages as `make docs` builds it."""

import importlib
import re
import subprocess
import sys
import xml.etree.ElementTree
from html.parser import HTMLParser

import pytest
from documents import ROOT
from scripts import module_at
from sphinx.util.inventory import InventoryFile

MODULES = (
    "",
    ".analysis",
    ".contexts",
    ".learning",
    ".nn",
    ".packing",
    ".recognition",
    ".serving",
)
ELSEWHERE = {  # names that are one thing with another
    "superpose.recognition.Statistics": "superpose.nn.Statistics",
    "superpose.packing.Packed": "superpose.Packed",
    "superpose.packing.pack": "superpose.pack",
    "superpose.packing.unpack": "superpose.unpack",
}
LOADED = {  # what a browser fetches to show a page
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
KEPT = (
    "canonical",
    "next",
    "prev",
    "index",
    "search",
    "author",
    "help",
)  # links that fetch nothing


class Loaded(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self, html):
        super().__init__()
        self.addresses = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        address = told.get(LOADED.get(tag))
        if address and not (tag == "link" and told.get("rel") in KEPT):
            self.addresses.append(address)


def outside(html):
    """The addresses among them that are not of the site itself."""
    fetched = [one for one in Loaded(html).addresses if re.match(r"(?:[a-z]+:)?//", one)]
    return fetched + in_style("".join(re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL)))


def in_style(css):
    return re.findall(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')\s]+)", css)


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ["https://cdn.example/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/css">', ["//fonts.example/css"]),
        ('<style>@import "https://a.example/x.css";</style>', ["https://a.example/x.css"]),
        ('<img src="_images/a.png"><a href="https://example.org">read</a>', []),
    ],
)
def test_what_is_outside_is_noticed(html, found):
    assert outside(html) == found


def test_the_site(tmp_path):
    """One test, because it is built once."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees"]
    built = subprocess.run(
        [*command, ROOT / "docs", site], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr

    pages = sorted(site.rglob("*.html"))
    shown = {page.relative_to(site).with_suffix(".md").as_posix() for page in pages}
    sources = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert sources <= shown

    for page in pages:
        assert outside(page.read_text()) == [], page.name
    for style in site.rglob("*.css"):
        assert in_style(style.read_text()) == [], style.name

    front = (site / "index.html").read_text()
    for source in sources - {"index.md"}:
        assert f'href="{source.removesuffix(".md")}.html"' in front, (
            f"{source} is not in the navigation"
        )

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {name for kind, names in inventory.data.items() if "py:" in kind for name in names}
    for module in (*(f"superpose{end}" for end in MODULES), "superpose_lab.networks"):
        for name in importlib.import_module(module).__all__:
            full = f"{module}.{name}"
            assert ELSEWHERE.get(full, full) in described, f"{full} is not in the reference"


def test_pictures_have_no_background_and_keep_their_letters(tmp_path):
    module_at(ROOT / "docs" / "pictures.py").main(tmp_path)
    drawn = sorted(tmp_path.glob("*.svg"))
    kept = ROOT / "docs" / "pictures"
    assert [picture.name for picture in drawn] == sorted(file.name for file in kept.iterdir())
    for picture in drawn:
        for text in (picture.read_text(), (kept / picture.name).read_text()):
            tree = xml.etree.ElementTree.fromstring(text)
            assert any(element.tag.endswith("text") for element in tree.iter())
            assert "#ffffff" not in text
