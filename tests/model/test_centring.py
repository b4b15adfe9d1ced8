"""The mean that is taken out of what a layer binds: of a task's inputs, or of each row."""

import pytest
import torch
from checks import rows_one_by_one
from networks import LAYERS, mlp
from torch import nn

import superpose as sp
from superpose.nn.kinds.mean import MOMENTUM


def centred(name, family="hadamard", **options):
    """A model whose tasks have seen inputs of their own."""
    torch.manual_seed(0)
    net, shape = LAYERS[name]()
    model = sp.superpose(net.double(), family, tasks=3, centre="task", **options)
    for task in range(3):
        for _ in range(3):
            model(torch.rand(7, *shape, dtype=torch.float64) + task, task=task)
    return model.eval(), torch.randn(5, *shape, dtype=torch.float64)


@pytest.mark.parametrize("conv", ["kernel", "channel"])
@pytest.mark.parametrize(
    "name", ["conv1d", "conv2d circular", "conv2d groups", "linear over tokens"]
)
def test_a_centred_layer_is_the_plain_one_with_another_bias(name, conv):
    model, x = centred(name, conv=conv)
    means = [model.private_tensors(task)["weight_mean"].mean() for task in range(3)]
    assert means == pytest.approx([0.5, 1.5, 2.5], abs=0.1)
    for task in range(3):
        plain = sp.unsuperpose(model, task)
        torch.testing.assert_close(plain(x), model(x, task=task))
        own = model.private_tensors(task)["bias"]
        assert (plain.bias - own).abs().max() > 1e-2
    rows = [2, 0, 1, 1, 0]
    torch.testing.assert_close(model(x, task=rows), rows_one_by_one(model, rows, x))


def test_an_input_that_is_its_mean_gives_the_bias_alone():
    model, _ = centred("linear over tokens", "binary")
    own = model.private_tensors(1)
    x = own["weight_mean"].expand(2, 3, -1)
    torch.testing.assert_close(model(x, task=1), own["bias"].expand(2, 3, -1))
    for name, mode in [("conv2d", "kernel"), ("conv2d", "channel"), ("conv2d groups", "channel")]:
        conv, _ = centred(name, "binary", conv=mode)
        own = conv.private_tensors(1)
        x = own["weight_mean"].view(1, -1, 1, 1).expand(1, -1, 7, 7)
        expected = own["bias"].view(1, -1, 1, 1).expand(1, -1, 3, 3)
        torch.testing.assert_close(conv(x, task=1), expected)


def test_a_running_mean_is_an_average_first_and_then_forgets():
    model = sp.superpose(nn.Linear(4, 2), tasks=2, centre="task")
    batches = torch.randn(100, 8, 4)
    for count, batch in enumerate(batches[:10], 1):
        model(batch, task=1)
        expected = batches[:count].mean((0, 1))
        torch.testing.assert_close(model.private_tensors(1)["weight_mean"], expected)
    for batch in batches[10:]:
        before = model.private_tensors(1)["weight_mean"].clone()
        model(batch, task=1)
    expected = before + MOMENTUM * (batch.mean(0) - before)
    torch.testing.assert_close(model.private_tensors(1)["weight_mean"], expected)
    assert model.private_tensors(1)["weight_seen"] == 100
    assert not model.private_tensors(0)["weight_mean"].any()
    model.eval()(batches[0], task=1)
    torch.testing.assert_close(model.private_tensors(1)["weight_mean"], expected)
    model.train()(torch.empty(0, 4), task=1)
    assert model.private_tensors(1)["weight_mean"].isfinite().all()


def test_a_pass_has_the_mean_that_was_there_when_it_began():
    """So rows of a batch do not change one another, and what is computed again is the same."""
    model = sp.superpose(nn.Linear(4, 2), tasks=2, centre="task")
    x = torch.rand(8, 4)
    first, again = model(x, task=0), model(x, task=0)
    context = model.bound["weight"].context.derive(0)
    own = model.private_tensors(0)
    bound = context.bind_weight(model.stored("weight"))
    torch.testing.assert_close(first, x @ bound.T + own["bias"])
    torch.testing.assert_close(again, (x - x.mean(0)) @ bound.T + own["bias"])


def test_a_mixed_batch_in_training_moves_the_mean_of_each_task():
    model = sp.superpose(mlp(), "hadamard", tasks=3, centre="task")
    x, rows = torch.rand(6, 12), [0, 2, 1, 2, 2, 0]
    for way in ("grouped", "direct"):
        model.mixed = way
        model(x, task=rows)  # the second time, the same mean again
        for task in range(3):
            own = model.private_tensors(task)
            places = [place for place, one in enumerate(rows) if one == task]
            torch.testing.assert_close(own["layers.1.weight_mean"], x[places].mean(0))
            assert own["layers.1.weight_seen"] == (1 if way == "grouped" else 2)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at
def test_a_compiled_model_keeps_its_means():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = sp.superpose(mlp(), "hadamard", tasks=2, centre="task")
    twin = sp.superpose(mlp(), "hadamard", tasks=2, centre="task")
    twin.load_state_dict(model.state_dict())
    compiled, x = torch.compile(model, backend="aot_eager"), torch.rand(6, 12)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, task=1), twin(x, task=1))
    for name, tensor in twin.private_tensors(1).items():
        torch.testing.assert_close(model.private_tensors(1)[name], tensor)


def test_layers_in_front_of_a_batch_norm_are_centred_too():
    """Its running mean stays, while the mean of what W gives moves with what other tasks learn."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, bias=False), nn.Flatten(),
        nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2),
    )  # fmt: skip
    model = sp.superpose(net, tasks=2, centre="task")
    assert model.summary().centred == ["0.weight", "2.weight", "4.weight", "6.weight"]
    assert "centred: 0.weight, 2.weight, 4.weight, 6.weight" in str(model.summary())
    assert sp.superpose(net, tasks=2, centre="rows").summary().centred[0] == "0.weight"
    without = sp.superpose(net, tasks=2)
    more = model.cost().private_per_task - without.cost().private_per_task
    assert more == 3 + 4 + 16 + 8 + 4
    with pytest.raises(sp.SuperposeError, match="centre: the network has no linear or conv"):
        sp.superpose(nn.LSTM(3, 4), centre="task")
    with pytest.raises(sp.SuperposeError, match="centre='mean': use 'task' or 'rows'"):
        sp.superpose(mlp(), centre="mean")


def with_biases(model, task):
    """Read out, with a warning that layers have a bias which those of the network had not."""
    with pytest.warns(UserWarning, match=r"bias .*is new: the layer had no bias"):
        return sp.unsuperpose(model, task)


@pytest.mark.parametrize("private", ["per-task", "shared", "none"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_without_a_bias_is_centred_too_and_read_out_with_one(bias, private):
    net = nn.Sequential(nn.Conv1d(3, 4, 2, bias=bias), nn.Flatten(), nn.Linear(12, 2, bias=bias))
    model = sp.superpose(net, "hadamard", tasks=2, centre="task", private=private)
    for task in range(2):
        model(torch.rand(9, 3, 4) + task, task=task)
    model.eval()
    x = torch.randn(4, 3, 4)
    for task in range(2):
        kept = bias and private != "none"
        plain = sp.unsuperpose(model, task) if kept else with_biases(model, task)
        assert plain[2].bias.abs().max() > 1e-2
        torch.testing.assert_close(plain(x), model(x, task=task))
    rows = [1, 0, 0, 1]
    torch.testing.assert_close(model(x, task=rows), rows_one_by_one(model, rows, x))


def test_a_layer_with_a_forward_pass_of_its_own_has_no_mean():
    """What it does with its input is not known, so that no shift of its bias is the same."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    net, x = nn.Sequential(Doubled(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.rand(4, 6)
    model = sp.superpose(net, tasks=2, centre="task")
    model(x, task=1)
    assert model.summary().centred == ["2.weight"]
    assert "0.weight_mean" not in model.private_tensors(1)
    assert model.private_tensors(1)["2.weight_mean"].any()


def test_what_other_tasks_learn_leaves_the_mean_in_front_of_a_batch_norm():
    net = nn.Sequential(nn.Linear(12, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = sp.superpose(net, "hadamard", tasks=2, centre="task")
    for _ in range(40):
        model(torch.randn(64, 12) + 3, task=0)
    model.eval()
    mean = model.private_tensors(0)["0.weight_mean"].clone().unsqueeze(0)
    before = model(mean, task=0)
    with torch.no_grad():
        model[0].weight += torch.randn(8, 12)  # what another task learned
    torch.testing.assert_close(model(mean, task=0), before)
