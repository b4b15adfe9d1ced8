"""Remarks on a figure, in the document and on the page."""

from pathlib import Path

from superpose.lab.figures import (
    document,
    produce,
)


def test_what_was_found_out_is_told_beside_the_numbers(tmp_path: Path) -> None:
    produce.make("table1", "smoke", tmp_path)
    (tmp_path / "smoke" / "table1.md").write_text(
        "A < B, as expected.\n\nMore in `code` and [there](#ours).\n"
    )
    text = document.markdown(tmp_path, "smoke", "pictures")
    assert "\n\nA < B, as expected.\n\nMore in `code` and [there](#ours).\n\n" in text
    page = document.page(tmp_path, "smoke")
    assert "<p>A &lt; B, as expected.</p>" in page
    assert '<p>More in <code>code</code> and <a href="#ours">there</a>.</p>' in page
