"""The tables in the documents are those of the committed results."""

import pytest
from scripts import ROOT, loaded

tables = loaded("tables")


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_in_step_with_results(path):
    text = path.read_text()
    assert "<!-- end -->" in text
    assert tables.renewed(text) == text, "run python benchmarks/tables.py"


def test_a_table_is_replaced_and_the_rest_is_kept(monkeypatch):
    monkeypatch.setitem(tables.TABLES, "speed", lambda: "new")
    text = "a\n<!-- speed: how -->\nold\nold\n<!-- end -->\nb\n"
    assert tables.renewed(text) == "a\n<!-- speed: how -->\nnew\n<!-- end -->\nb\n"


def test_links_in_documents_lead_somewhere():
    import re

    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"
