"""The documentation site: `make docs` builds it from the Markdown files in this folder."""

import json
import re
from importlib import metadata
from pathlib import Path

project = "superpose"
author = "the superpose authors"
release = metadata.version("superpose")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_heading_anchors = 4  # the anchors that GitHub gives headings
default_role = "code"  # docstrings put names between single backticks

autodoc_default_options = {"no-value": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 72
add_module_names = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "superpose"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/mark.svg"
html_logo = "_static/mark.svg"
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # quotation marks are those of code
copybutton_prompt_text = "$ "

# The order of the pages. It stands here, and not in index.md, so that GitHub shows that page well.
NAVIGATION = {
    "Start": ["Tutorial <tutorial>", "Concepts <concepts>", "faq"],
    "Examples": ["examples", "notebooks/continual_learning", "notebooks/many_models_one_server"],
    "Guides": [
        "models",
        "learning",
        "finetuning",
        "recognition",
        "storage",
        "serving",
        "families",
        "precision",
        "data",
    ],
    "Results": ["reproduction", "speed"],
    "Reference": [
        "reference/index",
        "reference/core",
        "reference/nn",
        "reference/contexts",
        "reference/learning",
        "reference/recognition",
        "reference/packing",
        "reference/analysis",
        "reference/serving",
        "reference/lab",
        "glossary",
        "changelog",
    ],
}


def add_navigation(app, docname, source):
    """Give the front page the list of all pages."""
    if docname == "index":
        for caption, pages in NAVIGATION.items():
            lines = ["```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```"]
            source[0] += "\n" + "\n".join(lines) + "\n"


def show_notebook(app, docname, source):
    """Put the cells of a notebook, and what they showed, on its page."""
    if docname.startswith("notebooks/"):
        file = Path(app.srcdir).parent / "examples" / f"{docname}.ipynb"
        app.env.note_dependency(file)
        cells = map(as_markdown, json.loads(file.read_text())["cells"])
        source[0] = "\n\n".join([*cells, source[0]])


def as_markdown(cell):
    """A cell of a notebook as Markdown."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    parts = [f"```python\n{text}\n```"]
    for shown in cell["outputs"]:
        if shown["output_type"] == "stream":
            parts.append(f"```text\n{''.join(shown['text'])}```")
        else:
            parts.append(f"![](data:image/png;base64,{shown['data']['image/png']})")
    return "\n\n".join(parts)


def keep_asterisks(app, what, name, item, options, lines):
    """Asterisks of docstrings are products and patterns, not emphasis."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[place] = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line)


def setup(app):
    """Sphinx calls this with the site that it builds."""
    app.connect("source-read", add_navigation)
    app.connect("source-read", show_notebook)
    app.connect("autodoc-process-docstring", keep_asterisks)
