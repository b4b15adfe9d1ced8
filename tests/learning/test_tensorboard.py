"""The optional TensorBoard log of a run."""

import sys
import types

import pytest
from learning.problems import make_net, make_stream

from superpose.errors import SuperposeError
from superpose.learning import Quiet, train


def test_tensorboard_is_asked_for_by_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SuperposeError, match=r'pip install "superpose\[tensorboard\]"'):
        train(make_net(), make_stream(), out=tmp_path, display=Quiet(), tensorboard=True)
    assert not any(tmp_path.iterdir())


def test_tensorboard_is_told_every_record(tmp_path, monkeypatch):
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    stream = make_stream(tasks=2, period=6)
    outcome = train(make_net(), stream, out=tmp_path, display=Quiet(), tensorboard=True)
    result = outcome.result
    assert told[0] == (str(tmp_path / "tensorboard"), None)
    assert ("accuracy/task 0", result["first_task"], 12) in told
    assert ("loss", result["loss"][0][1], 6) in told
    assert told[-1] == "closed"
