"""`superpose report`: all figures and tables on one page."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.errors import SuperposeError
from superpose.lab.figures import Scale
from superpose.options import Flag, unset


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Put all reproduced figures and tables on one HTML page.

    The page is one file: open it in a browser, or send it to someone.

    Example: superpose report results --scale quick --out report.html
    """

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """The directory that superpose reproduce wrote to, its --out."""
    scale: Scale = "paper"
    """The scale that the results were made at."""
    out: Annotated[Path | None, unset("FILE", "report.html in DIR")] = None
    """The HTML file to write."""
    markdown: Annotated[Path | None, unset("FILE", "write HTML")] = None
    """Write this Markdown file instead, with links to the figures."""
    json: Flag = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Write the page, or the document."""
        from superpose.lab.figures.document import markdown
        from superpose.lab.figures.page import page
        from superpose.learning.run_directory import write

        if self.markdown is not None and self.out is not None:
            raise SuperposeError(
                "--out is for the HTML page and --markdown is for Markdown: give one of them"
            )
        if self.markdown is not None:
            target = self.markdown
            pictures = os.path.relpath(self.folder / self.scale, target.parent)
            text = markdown(self.folder, self.scale, Path(pictures).as_posix())
        else:
            target = self.out or self.folder / "report.html"
            text = page(self.folder, self.scale)
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, text.encode())
        print(json.dumps({"file": str(target)}) if self.json else f"written to {target}")
