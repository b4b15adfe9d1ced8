"""Documents as programs: the Python of a page runs in order, in one namespace.

    python tests/documents.py docs/tutorial.md    # writes what the blocks print into the page

Code that a reader need not see stands in a comment at the top, `<!-- setup`, a line each, `-->`.
A block of `text` right after one of Python is what that one prints.
"""

import contextlib
import functools
import io
import itertools
import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PLACES = {"": "*.md", "docs": "**/*.md", "examples": "**/*.md", "lab": "*.md"}
DOCUMENTS = sorted(path for place, names in PLACES.items() for path in (ROOT / place).glob(names))
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
TOLERANCE = 0.05  # of each number: another processor adds in another order


class Block(NamedTuple):
    """A fenced block, or a setup, and the line on which its text begins."""

    language: str
    text: str
    line: int
    shown: str | None = None  # what the page says that it prints


def tokens(path: Path) -> list[Token]:
    return _parsed(path.read_text())


@functools.cache
def _parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks(path: Path) -> list[Block]:
    """All blocks of a page in order; a setup's language is `setup`."""
    found: list[Block] = []
    before: Token | None = None
    for token in tokens(path):
        if token.type == "html_block" and token.content.startswith("<!-- setup\n"):
            text = token.content.removeprefix("<!-- setup\n").rpartition("-->")[0]
            found.append(Block("setup", text, token.map[0] + 1))
        elif token.type == "fence":
            language = token.info.partition(" ")[0]
            if language == "text" and before is not None and before.info == "python":
                found[-1] = found[-1]._replace(shown=token.content)
            else:
                found.append(Block(language, token.content, token.map[0] + 1))
        before = token
    return found


def printed(path: Path) -> list[tuple[Block, str]]:
    """Each Python block of a page, run, and what it printed."""
    scope = {"__name__": path.stem}
    results = []
    for block in blocks(path):
        if block.language not in ("setup", "python"):
            continue
        code = compile("\n" * block.line + block.text, str(path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, scope)
        if block.language == "python":
            results.append((block, out.getvalue()))
    return results


def agree(shown: str, real: str) -> bool:
    """Whether two texts are the same, but for last digits of numbers and spaces at line ends."""

    def words(text: str) -> list[str]:
        return [line.rstrip() for line in NUMBER.sub("#", text).strip().splitlines()]

    def numbers(text: str) -> list[float]:
        return [float(number.replace(",", "")) for number in NUMBER.findall(text)]

    pairs = zip(numbers(shown), numbers(real), strict=False)
    return words(shown) == words(real) and all(
        math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs
    )


def headings(path: Path) -> list[str]:
    """The anchors of a page, as GitHub names them, and those written as `<a id="…">`."""
    found: list[str] = []
    own = tokens(path)
    for before, token in itertools.pairwise(own):
        if before.type == "heading_open":
            told = "".join(
                child.content
                for child in token.children or []
                if child.type in ("text", "code_inline")
            )
            slug = re.sub(r"[^\w\- ]", "", told.lower()).replace(" ", "-")
            again = sum(
                one == slug or re.fullmatch(rf"{slug}-\d+", one) is not None for one in found
            )
            found.append(f"{slug}-{again}" if again else slug)
    return found + re.findall(r'<a (?:id|name)="([^"]+)"', path.read_text())


def links(path: Path) -> list[str]:
    """Where the links and images of a page lead."""
    inline = [child for token in tokens(path) for child in token.children or []]
    return [
        str(child.attrs[name])
        for child in inline
        for name in ("href", "src")
        if name in child.attrs
    ]


def inline_code(path: Path) -> list[str]:
    """The code within sentences and tables."""
    inline = [child for token in tokens(path) for child in token.children or []]
    return [child.content for child in inline if child.type == "code_inline"]


def renew(path: Path) -> None:
    """Write what the blocks print where the page shows it."""
    lines = path.read_text().splitlines(keepends=True)
    for block, real in reversed(printed(path)):
        if block.shown is not None:
            end = block.line + block.text.count("\n")
            start = next(i for i in range(end, len(lines)) if lines[i].startswith("```text")) + 1
            kept = "\n".join(line.rstrip() for line in real.strip("\n").splitlines()) + "\n"
            lines[start : start + block.shown.count("\n")] = [kept]
    path.write_text("".join(lines))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(Path(name))
