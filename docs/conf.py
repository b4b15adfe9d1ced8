"""The documentation site: `make docs` builds it from the Markdown files in this folder."""

import re
from importlib import metadata

project = "superpose"
author = "the superpose authors"
release = metadata.version("superpose")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["pictures"]
myst_heading_anchors = 4  # the anchors that GitHub gives headings
default_role = "code"  # docstrings put names between single backticks

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
suppress_warnings = ["misc.highlighting_failure"]  # a test runs the code, which is stricter
smartquotes = False  # quotation marks are those of code
copybutton_prompt_text = "$ "

# The order of the pages. It stands here, and not in index.md, so that GitHub shows that page well.
NAVIGATION = {
    "Start": ["tutorial", "concepts", "faq", "examples"],
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
        "reference/pack",
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


def keep_asterisks(app, what, name, item, options, lines):
    """Asterisks of docstrings are products and patterns, not emphasis."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[place] = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line)


def setup(app):
    """Sphinx calls this with the site that it builds."""
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", keep_asterisks)
