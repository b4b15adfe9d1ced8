"""The laws over modules of PyTorch's own database: a few classes of `benchmarks/foreign.py`."""

import json

import pytest
from scripts import loaded

foreign = loaded("foreign")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Linear", "BatchNorm1d", "GroupNorm", "Embedding", "Softmin"])
def test_a_module_that_nobody_here_wrote_keeps_the_laws(name):
    found = foreign.judged_class(name, foreign.cases([name]))
    assert found["result"] == "right", found["why"]
    assert found["cases"] > 1


def test_all_of_them_did_when_the_results_were_written():
    rows = json.loads(foreign.OUT.read_text())["rows"]
    assert len(rows) > 100
    assert {row["result"] for row in rows} == {"right"}
