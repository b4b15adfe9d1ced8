"""Tasks: their names and numbers, and how one is chosen."""

from functools import partial

import numpy as np
import pytest
import torch
from networks import mlp
from torch import nn

import superpose as sp


def test_unknown_tasks_are_named_with_the_known_ones():
    model = sp.superpose(mlp(), tasks=["cats", "dogs"])
    x = torch.randn(2, 12)
    for task in ("birds", 2, -1, [0, 7], torch.tensor([0, 7]), True):
        with pytest.raises(sp.SuperposeError, match=r"unknown task .*'cats', 'dogs'"):
            model(x, task=task)
    with pytest.raises(sp.SuperposeError, match="no task was given: call model"):
        model(x)
    for task in (1.5, [], None, [None], [[]], [[0], [1]], [[[0]]]):
        with pytest.raises(sp.SuperposeError, match=r"task=.*: give a task's name"):
            model.superposition.ids(task)
    one_task = (model.remove_task, model.private_parameters, partial(sp.unsuperpose, model))
    for function in (*one_task, partial(model.rename_task, new="birds")):
        with pytest.raises(sp.SuperposeError, match=r"task=\['cats'\]: give one task"):
            function(["cats"])


def test_numbers_that_name_tasks_are_names():
    model = sp.superpose(mlp(), tasks=[1, 2, "three"])
    plain = sp.superpose(mlp(), tasks=3)
    x = torch.randn(2, 12)
    for named, number in ((1, 0), (2, 1), ("three", 2)):
        assert torch.equal(model(x, task=named), plain(x, task=number))
        with model.task(named):
            assert torch.equal(model(x), plain(x, task=number))
    with pytest.raises(sp.SuperposeError, match="unknown task 0"):
        model(x, task=0)
    assert model.add_task() == 3
    assert sp.superpose(mlp(), tasks=[7, 1]).add_task() == 8


def test_tasks_may_be_numpys_numbers():
    model = sp.superpose(mlp(), tasks=3)
    x = torch.randn(2, 12)
    for number in (np.int64(2), np.array(2)):
        assert torch.equal(model(x, task=number), model(x, task=2))
    for rows in (np.array([0, 2]), [np.int64(0), np.int64(2)]):
        assert torch.equal(model(x, task=rows), model(x, task=[0, 2]))


def test_tasks_can_be_added_renamed_and_listed():
    model = sp.superpose(mlp(), tasks=["a", "b"])
    x = torch.randn(3, 12)
    before = model(x, task="b")
    assert model.add_task("c") == "c"
    model.rename_task("b", "beta")
    assert model.tasks == ["a", "beta", "c"]
    assert torch.equal(model(x, task="beta"), before)
    assert torch.equal(model(x, task=1), before)
    assert model(x, task=["a", "c", "beta"]).shape == (3, 5)
    three = sp.superpose(mlp(), tasks=3)
    torch.testing.assert_close(model(x, task="c"), three(x, task=2))
    assert three.add_task() == 3
    model.rename_task(2, "gamma")
    assert model.tasks == ["a", "beta", "gamma"]
    with pytest.raises(sp.SuperposeError, match="two tasks cannot both be called 'a'"):
        model.add_task("a")
    with pytest.raises(sp.SuperposeError, match="unknown task 'b'"):
        model.rename_task("b", "d")


def test_with_task_chooses_for_code_that_only_calls_the_model():
    model, other = sp.superpose(mlp(), tasks=3), sp.superpose(mlp(), "phase", tasks=["x"])
    x = torch.randn(3, 12)
    with model.task(2), other.task("x"):
        assert torch.equal(model(x), model(x, task=2))
        assert torch.equal(other(x), other(x, task="x"))
        with model.task([0, 1, 2]):
            assert torch.equal(model(x), model(x, task=[0, 1, 2]))
        assert torch.equal(model(x), model(x, task=2))
        assert torch.equal(model(x, task=0), model(x, task=0))
    with pytest.raises(sp.SuperposeError, match="no task was given"):
        model(x)


def test_a_state_is_not_read_as_that_of_other_tasks_or_contexts(tmp_path):
    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    model = sp.superpose(net, "hadamard", tasks=["a", "b"])
    with torch.no_grad():
        model.private_tensors("a")["bias"] += 1
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")

    def into(family="hadamard", **options):
        other = sp.superpose(net, family, **options)
        other.load_state_dict(state)
        return other

    for tasks in (["a", "b"], ["a", "b", "c"], 2):  # numbers are no names
        assert torch.equal(into(tasks=tasks)(x, task=0), model(x, task="a"))
    with pytest.raises(sp.SuperposeError, match="task 0 is 'a' in the state and 'b' in the model"):
        into(tasks=["b", "a"])
    with pytest.raises(
        sp.SuperposeError, match=r"task 1 is 'b' in .* and 'c' in the model.*rename_task"
    ):
        into(tasks=["a", "c"])
    with pytest.raises(sp.SuperposeError, match="seed: the state was saved with 0, and the model"):
        into(tasks=["a", "b"], seed=1)
    with pytest.raises(sp.SuperposeError, match=r"family: .*Hadamard.*Binary.*the same family"):
        into("binary", tasks=["a", "b"])
    state = dict(state)  # as a file of another format has it, which tells nothing
    into(tasks=["b", "a"])
    whole = nn.Sequential(model, nn.ReLU())
    nn.Sequential(into(tasks=["a", "b"]), nn.ReLU()).load_state_dict(whole.state_dict())
    with pytest.raises(sp.SuperposeError, match="in the state and"):
        nn.Sequential(into(tasks=["b", "a"]), nn.ReLU()).load_state_dict(whole.state_dict())


def test_the_number_of_a_task_names_no_other():
    model = sp.superpose(torch.nn.Linear(4, 2), tasks=["a", "b"])
    with pytest.raises(sp.SuperposeError, match="1 cannot name a task: it is the number of 'b'"):
        model.rename_task("a", 1)
    with pytest.raises(sp.SuperposeError, match="0 cannot name a task: it is the number of 'a'"):
        model.add_task(0)
    assert model.tasks == ["a", "b"]


def test_a_number_is_never_given_to_another_task():
    """Its contexts would find what the task that was removed has learned."""
    model, x = sp.superpose(mlp(), tasks=["a", "b"]), torch.randn(3, 12)
    removed = model(x, task="b")
    model.remove_task("b")
    for name in ("c", "b"):
        model.add_task(name)
        assert (model(x, task=name) - removed).abs().max() > 1e-2
    assert model.superposition.names == {"a": 0, "c": 2, "b": 3}
