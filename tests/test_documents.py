"""Documents say what is so: tables, code, commands, links and spelling."""

import os
import re
import shlex
import subprocess
import sys
from unittest.mock import patch

import documents
import pytest
import torch
from documents import DOCUMENTS, ROOT
from scripts import loaded

import superpose_lab.cli
from superpose import cli, contexts

tables = loaded("tables")

QUESTIONS = [
    "how-do-i-add-a-task-later",
    "can-i-use-my-own-model",
    "how-many-tasks-fit",
    "what-does-it-cost",
    "can-i-keep-batchnorm",
    "can-i-train-on-several-gpus",
    "how-do-i-get-one-plain-model-back",
    "can-the-model-find-the-task-by-itself",
    "how-do-i-serve-it",
    "how-do-i-cite-it",
]


def named(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=named)
def test_tables_are_in_step_with_results(path):
    text = path.read_text()
    assert "<!-- end -->" in text
    assert tables.renewed(text) == text, "run python benchmarks/tables.py"


def test_a_table_is_replaced_and_the_rest_is_kept(monkeypatch):
    monkeypatch.setitem(tables.TABLES, "speed", lambda: "new")
    text = "a\n<!-- speed: how -->\nold\nold\n<!-- end -->\nb\n"
    assert tables.renewed(text) == "a\n<!-- speed: how -->\nnew\n<!-- end -->\nb\n"


WITH_PYTHON = [
    path
    for path in DOCUMENTS
    if any(block.language == "python" for block in documents.blocks(path))
]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=named)
def test_python_runs_and_prints_what_the_page_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contexts, "FAMILIES", dict(contexts.FAMILIES))  # a page may register one
    with torch.random.fork_rng(), patch.dict(os.environ):  # a page may set variables
        torch.manual_seed(0)
        results = documents.printed(path)
    for block, real in results:
        if block.shown is not None:
            assert documents.agree(block.shown, real), (
                f"line {block.line} prints\n{real}\nrun python tests/documents.py {named(path)}"
            )


def test_blocks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup\nx = 1\n-->\n# Title\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
        "```text\nnot printed\n```\n- a list\n  ```python\n  print(x + 1)\n  ```\n"
    )
    found = documents.blocks(page)
    assert [block.language for block in found] == ["setup", "python", "text", "python"]
    assert [block.shown for block in found] == [None, "1\n", None, None]
    assert [real for _, real in documents.printed(page)] == ["1\n", "2\n"]
    page.write_text(page.read_text().replace("\n1\n", "\nold\nold\n"))
    documents.renew(page)
    assert "```text\n1\n```\n```text\nnot printed\n" in page.read_text()


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("accuracy 94%", "accuracy 93%\n", True),
        ("accuracy 94%", "accuracy 31%", False),
        ("12,345 bytes", "12,345 bytes", True),
        ("tasks: a b", "tasks: b a", False),
        ("True", "", False),
        ("1 2", "1 2 3", False),
    ],
)
def test_what_a_page_shows_may_differ_in_last_digits_only(shown, real, same):
    assert documents.agree(shown, real) is same


PLACEHOLDER = re.compile(r"…|\b[A-Z]{3,}\b")


def commands():
    """Every `superpose …` of blocks of shell and of the prose, with the page that it is on."""
    for path in DOCUMENTS:
        found = []
        for block in documents.blocks(path):
            if block.language in ("console", "sh", "bash", ""):
                lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
                found += [line.strip().removeprefix("$ ") for line in lines]
        for code in documents.inline_code(path):
            if len(code.split()) > 2 and not PLACEHOLDER.search(code):
                found.append(code)
        for line in dict.fromkeys(found):
            if line.startswith(("superpose ", "superpose-lab ")):
                yield pytest.param(line, id=f"{named(path)}: {line[:60]}")


@pytest.mark.parametrize("line", list(commands()))
def test_commands_are_understood(line):
    command, *words = shlex.split(line, comments=True)
    parse = {"superpose": cli.parse, "superpose-lab": superpose_lab.cli.parse}[command]
    assert hasattr(parse(words), "run")


def test_a_command_that_is_wrong_is_not_understood():
    with pytest.raises(SystemExit):
        cli.parse(["serve", "--no-such-option"])


def outcome_of(path, link):
    """Why a link leads nowhere, or nothing."""
    if re.match(r"[a-z]+:", link):
        return None
    target, _, anchor = link.partition("#")
    file = (path.parent / target).resolve() if target else path
    if not file.exists():
        return f"{link}: no such file"
    if anchor and file.suffix == ".md" and anchor not in documents.headings(file):
        return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path):
    assert [told for link in documents.links(path) if (told := outcome_of(path, link))] == []


def test_a_link_that_leads_nowhere_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n## Same\n## Same\n")
    assert documents.headings(page) == ["one-two-three", "same", "same-1"]
    for link in ("page.md", "#same-1", "page.md#one-two-three", "https://example.org/#x"):
        assert outcome_of(page, link) is None
    for link in ("other.md", "#same-2", "page.md#two"):
        assert outcome_of(page, link) is not None


def clicks(start, count):
    """The places, page and anchor, that so many clicks from a page lead to."""
    places, pages = set(), {start}
    for _ in range(count):
        found = set()
        for page in pages:
            for link in documents.links(page):
                target, _, anchor = link.partition("#")
                file = (page.parent / target).resolve() if target else page
                if file.suffix == ".md" and file.is_file():
                    found.add((file, anchor))
        places |= found
        pages = {file for file, _ in found}
    return places


def test_ten_questions_are_answered_within_two_clicks():
    faq = ROOT / "docs" / "faq.md"
    reached = clicks(ROOT / "docs" / "index.md", 2)
    assert [question for question in QUESTIONS if (faq, question) not in reached] == []
    sections = re.split(r"^## ", faq.read_text(), flags=re.MULTILINE)[1:]
    answers = dict(zip(documents.headings(faq)[1:], sections, strict=True))
    assert [question for question in QUESTIONS if "```" not in answers[question]] == []


def test_spelling():
    places = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "examples", "src", "lab"]
    found = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
