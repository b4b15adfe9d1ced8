"""The document, and the page: remarks, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from superpose.lab.figures import document, produce
from superpose.lab.figures.page import page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LOOK = """
<script>
addEventListener("load", async () => {
  const told = {}, $ = (what, where = document) => where.querySelector(what);
  const table = $("#table1").closest("section").querySelectorAll("table")[1];
  const column = place => [...table.tBodies[0].rows].map(row => row.cells[place].textContent);
  const numbers = [...table.tHead.rows[0].cells].findIndex(cell => cell.className === "n");
  const button = $("button", table.tHead.rows[0].cells[numbers]);
  told.written = column(numbers);
  button.click();
  told.up = column(numbers);
  told.ascending = button.parentElement.ariaSort;
  button.click();
  told.down = column(numbers);
  told.descending = button.parentElement.ariaSort;
  const colour = () => getComputedStyle(document.body).backgroundColor;
  told.dark = [colour()];
  for (let i = 0; i < 2; i++) { $("#theme").click(); told.dark.push(colour()); }
  const figure = $(".figure"), dialog = $("dialog");
  figure.focus();
  figure.click();
  told.open = dialog.open;
  told.same = $("img", dialog).src === $("img", figure).src && $("img", dialog).src.length > 1000;
  $("button", dialog).click();
  told.closed = !dialog.open && document.activeElement === figure;
  told.wide = document.documentElement.scrollWidth - innerWidth;
  const leads = link => document.getElementById(link.hash.slice(1));
  told.broken = [...document.querySelectorAll("a")].filter(link => !leads(link)).length;
  parent.postMessage(JSON.stringify(told), "*");
});
</script>
"""
FRAME = """<!doctype html><iframe src="page.html" style="width: {width}px; height: 800px"></iframe>
<pre></pre>
<script>onmessage = event => {{ document.querySelector("pre").textContent = event.data; }}</script>
"""


def test_what_was_found_out_is_told_beside_the_numbers(tmp_path: Path) -> None:
    produce.make("table1", "smoke", tmp_path)
    (tmp_path / "smoke" / "table1.md").write_text(
        "A < B, as expected.\n\nMore in `code` and [there](#ours).\n"
    )
    text = document.markdown(tmp_path, "smoke", "pictures")
    assert "\n\nA < B, as expected.\n\nMore in `code` and [there](#ours).\n\n" in text
    shown = page(tmp_path, "smoke")
    assert "<p>A &lt; B, as expected.</p>" in shown
    assert '<p>More in <code>code</code> and <a href="#ours">there</a>.</p>' in shown


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for name in ("table1", "fig-geometry"):
        produce.make(name, "smoke", folder)
    return folder


def test_the_page_asks_nobody_else_for_anything(made: Path) -> None:
    text = page(made, "smoke")
    assert "<!--" not in text, "a part of the template was not filled in"
    assert "default-src 'none'" in text
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(each.startswith(("data:image/svg+xml;base64,", "#")) for each in sources)
    assert "://" not in re.sub(r'src="[^"]*"', "", text)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_sorts_tables_enlarges_figures_and_switches_colours(
    made: Path, tmp_path: Path, width: int
) -> None:
    text = page(made, "smoke").replace("</body>", LOOK + "</body>")
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    url = (tmp_path / "frame.html").as_uri()
    shown = subprocess.run(
        [*command, "--virtual-time-budget=5000", url], capture_output=True, text=True, timeout=120
    ).stdout
    told = json.loads(re.search("<pre>(.*?)</pre>", shown, re.S)[1])  # type: ignore[index]
    known = [int(each.replace(",", "")) for each in told["written"] if each != "–"]
    unknown = ["–"] * told["written"].count("–")
    assert told["up"] == [*(f"{each:,}" for each in sorted(known)), *unknown]
    assert told["down"] == [*(f"{each:,}" for each in sorted(known, reverse=True)), *unknown]
    assert (told["ascending"], told["descending"]) == ("ascending", "descending")
    first, other, again = told["dark"]
    assert first == again
    assert first != other
    assert [told["open"], told["same"], told["closed"]] == [True, True, True]
    assert told["wide"] <= 0, "the page is wider than the screen"
    assert told["broken"] == 0
