"""Notebooks: their cells run in order, in one namespace, as plain Python.

    python tests/notebooks.py examples/notebooks/*.ipynb    # runs them, and writes what they show

A kernel of Jupyter would bring some 70 MB of packages and show the same: the cells have no magics.
"""

import base64
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def run(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each code cell, and the outputs of its run: what it printed, and the figures that it drew."""
    scope = {"__name__": path.stem}
    results = []
    try:
        for number, cell in enumerate(read(path)["cells"], start=1):
            if cell["cell_type"] == "code":
                code = compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(code, scope)
                results.append((cell, [*_printed(out.getvalue()), *_drawn()]))
    finally:  # a cell that fails leaves no server behind
        for started in scope.values():
            if isinstance(started, subprocess.Popen):
                started.kill()
    return results


def printed(outputs: list[dict[str, Any]]) -> str:
    """The text among the outputs of a cell."""
    return "".join("".join(one["text"]) for one in outputs if one["output_type"] == "stream")


def _printed(text: str) -> list[dict[str, Any]]:
    if not text:
        return []
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}]


def _drawn() -> list[dict[str, Any]]:
    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=100, bbox_inches="tight")
        picture = base64.b64encode(file.getvalue()).decode()
        data = {"image/png": picture, "text/plain": ["<Figure>"]}
        found.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return found


def renew(path: Path) -> None:
    """Run a notebook, and write what it shows into it."""
    notebook = read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, (_, outputs)) in enumerate(zip(cells, run(path), strict=True), start=1):
        cell |= {"execution_count": count, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    plt.switch_backend("agg")
    for name in sys.argv[1:]:
        renew(Path(name))
