"""Every example runs, and shows what it says."""

from pathlib import Path

import notebooks
import pytest
import torch
from documents import agree
from notebooks import NOTEBOOKS
from scripts import module_at

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    result = module_at(path).main()
    assert capsys.readouterr().out
    if path.stem == "fine_tune_again_and_again":
        kept, forgot = result
        assert kept > 0.8
        assert forgot < 0.4
    elif path.stem == "two_tasks_one_network":
        together, alone = result
        assert together > 0.9
        assert alone < 0.6
    elif path.stem == "find_the_task":
        right, noticed = result
        assert right > 0.98
        assert noticed > 0.9
    elif path.stem == "own_model_and_data":
        assert min(result["binary"], result["hadamard+ewc-online"]) > result["standard"] + 0.1
    elif path.stem == "compose_contexts" or path.stem.startswith("serve_"):
        torch.testing.assert_close(*result, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_what_it_did_when_it_was_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        results = notebooks.run(path)
    assert any(shown["output_type"] == "stream" for cell, _ in results for shown in cell["outputs"])
    for cell, outputs in results:
        kinds = [one["output_type"] for one in outputs]
        assert kinds == [one["output_type"] for one in cell["outputs"]]
        assert agree(notebooks.printed(cell["outputs"]), notebooks.printed(outputs))


def test_examples_are_on_their_page():
    page = (ROOT / "docs" / "examples.md").read_text()
    for path in (*EXAMPLES, *NOTEBOOKS):
        assert f"(../{path.relative_to(ROOT).as_posix()})" in page
