"""`superpose report`: all figures and tables on one page."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg, configure

from superpose.errors import SuperposeError
from superpose.lab.figures import Scale


@configure(FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Put what `superpose reproduce` made on one HTML page that needs nothing beside it.

    Example: superpose report results
    """

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """What was --out of superpose reproduce."""
    scale: Scale = "paper"
    """Which results."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """The page; without it report.html in DIR."""
    markdown: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write this Markdown document instead, with links to the pictures."""
    json: bool = False
    """Print the result as JSON and nothing else."""

    def run(self) -> None:
        """Write the page, or the document."""
        from superpose.lab.figures import document
        from superpose.learning.run_directory import write

        if self.markdown is not None and self.out is not None:
            raise SuperposeError("--out is the HTML page's, and --markdown writes none: give one")
        if self.markdown is not None:
            target = self.markdown
            pictures = os.path.relpath(self.folder / self.scale, target.parent)
            text = document.markdown(self.folder, self.scale, Path(pictures).as_posix())
        else:
            target = self.out or self.folder / "report.html"
            text = document.page(self.folder, self.scale)
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, text.encode())
        print(json.dumps({"file": str(target)}) if self.json else f"written to {target}")
