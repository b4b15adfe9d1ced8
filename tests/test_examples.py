"""Every example runs, and shows what it says."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    result = load(path).main()
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


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
