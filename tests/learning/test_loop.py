"""The loop against one written by hand, and what plugs into it."""

import math

import pytest
import torch
import torch.nn.functional as F
from learning.problems import make_net, make_stream, same_weights
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.learning import (
    NETWORKS,
    Method,
    Quiet,
    TensorStream,
    method,
    train,
)
from superpose.learning.evaluation import Timetable, accuracy
from superpose.learning.methods import Separate
from superpose.learning.streams import segments

QUIET = {"display": Quiet(), "lr": 1e-2}


def by_hand(net, stream, call, optimiser, rate, reset=False, label_smoothing=0.0):
    """The least that learns a stream."""
    for step in range(len(stream)):
        x, y, _, context = stream.batch(step)
        within = step % stream.period / stream.period
        if reset and within == 0:
            optimiser.state.clear()
        optimiser.param_groups[0]["lr"] = rate(within)
        optimiser.zero_grad()
        logits = call(net, x, context)
        F.cross_entropy(logits, y, label_smoothing=label_smoothing).backward()
        optimiser.step()
    return net


def warm_cosine(within):
    if within < 0.1:
        return 0.1 + 0.9 * (within / 0.1)
    return (1 + math.cos(math.pi * (within - 0.1) / 0.9)) / 2


def test_it_is_the_loop_one_would_write_by_hand():
    stream, net = make_stream(), make_net()
    expected = by_hand(
        net_copy := make_net(),
        stream,
        lambda net, x, context: net(x),
        torch.optim.RMSprop(net_copy.parameters()),
        lambda within: 1e-3,
    )
    outcome = train(net, stream, lr=1e-3, display=Quiet(), evaluate_every=7)
    assert outcome.model is net
    assert same_weights(net, expected)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ("cosine", lambda within: 1e-2 * (1 + math.cos(math.pi * within)) / 2),
        ("linear", lambda within: 1e-2 * (1 - within)),
        ("warm-cosine", lambda within: 1e-2 * warm_cosine(within)),
    ],
)
def test_schedules_resets_smooth_labels_and_superposition_by_hand(schedule, rate):
    stream = make_stream()
    model = sp.superpose(make_net(), "binary", stream.tasks)
    expected = by_hand(
        model,
        stream,
        lambda net, x, context: net(x, task=context),
        torch.optim.Adam(model.parameters()),
        rate,
        reset=True,
        label_smoothing=0.1,
    )
    options = {"optimiser": "adam", "schedule": schedule, "reset": True, "label_smoothing": 0.1}
    plain = make_net()
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    outcome = train(plain, stream, "binary", **QUIET, **options)
    assert same_weights(outcome.model, expected)
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())
    for change in ({"reset": False}, {"label_smoothing": 0.0}):
        other = train(make_net(), stream, "binary", **QUIET, **(options | change))
        assert not same_weights(other.model, expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_learns(name):
    stream = make_stream()
    outcome = train(make_net(), stream, name, **QUIET)
    result = outcome.result
    assert result["method"] == name
    assert result["mean_when_learned"] > 0.9
    assert result["steps"] == len(stream) == 180
    if name in ("multihead", "separate"):
        assert result["mean_all"] > 0.9


def test_superposition_and_penalties_keep_what_the_plain_network_forgets():
    stream = make_stream(tasks=4)
    first = {
        name: train(make_net(units=256), stream, name, **QUIET).result["first_task"]
        for name in ("standard", "binary", "hadamard")
    }
    assert first["standard"] < 0.7
    assert min(first["binary"], first["hadamard"]) > 0.9


@pytest.mark.parametrize("name", ["ewc", "ewc-online", "si"])
def test_a_penalty_trades_new_tasks_for_old_ones(name):
    stream, options = make_stream(tasks=2), {"display": Quiet(), "lr": 3e-3}
    plain = train(make_net(), stream, **options).result
    some = train(make_net(), stream, method(name, strength=300), **options).result
    held = train(make_net(), stream, method(name, strength=1e4), **options).result
    assert held["first_task"] > 0.95 > 0.6 > plain["first_task"]
    assert plain["first_task"] < some["first_task"]
    assert plain["last_task"] > some["last_task"]
    assert plain["last_task"] > 0.95 > 0.6 > held["last_task"]
    none = train(make_net(), stream, method(name, strength=0), **options).result
    assert none["final"] == plain["final"]


def test_keys_and_a_penalty_are_independent_choices():
    stream = make_stream()
    options = {"private": "shared"}
    keys = train(make_net(), stream, method("binary", **options), **QUIET)
    both = train(make_net(), stream, method("binary+ewc", strength=0.0, **options), **QUIET)
    assert same_weights(keys.model, both.model)
    held = train(make_net(), stream, method("binary+ewc", strength=1e4, **options), **QUIET)
    assert held.result["backward_transfer"] > keys.result["backward_transfer"]
    shared = sum(p.numel() for p in make_net().parameters())
    assert held.result["numbers"]["penalty"] == 2 * shared


def test_separate_networks_do_not_touch_each_other():
    outcome = train(make_net(), make_stream(), "separate", **QUIET)
    assert isinstance(outcome.model, Separate)
    assert outcome.result["forgetting"] == 0
    assert outcome.result["backward_transfer"] == 0
    plain = sum(p.numel() for p in make_net().parameters())
    assert outcome.result["numbers"]["stored"] == 3 * plain


def test_multihead_shares_all_but_the_head():
    outcome = train(make_net(), make_stream(), "multihead", **QUIET)
    model = outcome.model
    heads = [model.private_parameters(task) for task in range(3)]
    assert [p.shape for p in heads[0]] == [(2 * 64 + 2,)]
    assert not torch.equal(heads[0][0], heads[1][0])
    x, _ = make_stream().test(0)
    model.eval()
    assert not torch.equal(model(x, task=0), model(x, task=1))
    named = train(make_net(), make_stream(), method("multihead", head="0"), **QUIET)
    own = named.model.private_tensors(0)
    assert {name: tensor.shape for name, tensor in own.items()} == {
        "0.weight": (64, 8),
        "0.bias": (64,),
    }


def test_a_superposed_model_is_taken_as_it_is():
    model = sp.superpose(make_net(), "phase", tasks=3)
    outcome = train(model, make_stream(), **QUIET)
    assert outcome.model is model
    assert outcome.result["mean_when_learned"] > 0.9
    with pytest.raises(SuperposeError, match="superposed already"):
        train(model, make_stream(), "binary", **QUIET)


def test_a_batch_is_read_in_its_context_and_a_test_in_that_of_its_task():
    told = []

    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x, task):
            told.append((task, self.training))
            return self.layer(x)

    class Turning:
        tasks, contexts = 2, 5
        inner = make_stream(tasks=2, period=3)

        def __len__(self):
            return 6

        def task_at(self, step):
            return step // 3

        def batch(self, step):
            x, y, task, _ = self.inner.batch(step)
            return x, y, task, step % 5

        def test(self, task):
            return self.inner.test(task)

    counts = []

    def make(net, count, seed):
        counts.append(count)
        return net

    train(Told(), Turning(), Method("told", make, "context"), **QUIET)
    assert [task for task, training in told if training] == [0, 1, 2, 3, 4, 0]
    assert [task for task, training in told if not training] == [0, 0, 1]
    told.clear()
    train(Told(), Turning(), Method("told", make, "task"), **QUIET)
    assert [task for task, training in told if training] == [0, 0, 0, 1, 1, 1]
    assert counts == [5, 2]


def test_dropout_has_random_numbers_of_its_own():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = train(make_net(dropout=0.5), make_stream(), **QUIET).model
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    two = train(make_net(dropout=0.5), make_stream(), **QUIET).model
    other = train(make_net(dropout=0.5), make_stream(), **QUIET, seed=1).model
    assert same_weights(one, two)
    assert not same_weights(one, other)


def test_accuracy_is_the_share_told_right_with_dropout_off():
    class Sign(nn.Module):
        def forward(self, x):
            assert not self.training
            return torch.stack([-x[:, 0], x[:, 0]], 1)

    model = Sign()
    x = torch.tensor([[1.0], [-1.0], [2.0], [3.0], [-1.0]])
    y = torch.tensor([1, 0, 0, 1, 1])
    assert accuracy(model, x, y) == accuracy(model, x, y, rows=2) == 3 / 5
    assert model.training


@pytest.mark.parametrize(("matrix", "second"), [("full", [0, 1]), ("ends", [0, 1])])
def test_which_tasks_are_tested_when(matrix, second):
    stream = make_stream(tasks=4, period=10)
    parts = segments(stream)
    plan = Timetable(stream, parts, matrix, every=5)
    assert plan.due(parts[0], 4) == []
    assert plan.due(parts[0], 5) == [0]
    assert plan.due(parts[1], 20) == second
    assert plan.due(parts[2], 25) == [0, 2]
    assert plan.due(parts[2], 30) == ([0, 1, 2] if matrix == "full" else [0, 2])
    assert plan.due(parts[3], 40) == [0, 1, 2, 3]


def test_auto_is_full_up_to_twenty_tasks():
    for tasks, expected in ((20, "full"), (21, "ends")):
        stream = make_stream(tasks=tasks, period=1, dim=21)
        assert Timetable(stream, segments(stream), "auto", 1).matrix == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bynary"}, "unknown method 'bynary': use one of standard, multihead"),
        ({"method": "binary+l2"}, r"unknown method 'binary\+l2'"),
        ({"method": "separate+ewc"}, "share nothing that ewc could hold"),
        ({"optimiser": "sdg"}, "unknown optimiser 'sdg': use one of rmsprop, sgd"),
        (
            {"schedule": "step"},
            "unknown schedule 'step': use one of constant, cosine, warm-cosine, linear",
        ),
        ({"matrix": "all"}, "matrix='all': use one of auto, full, ends"),
        ({"lr": -1.0}, "lr=-1.0: a learning rate is a number above 0"),
        ({"label_smoothing": 1.5}, "label_smoothing=1.5: it is a share, from 0 to 1"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
    ],
)
def test_what_is_off_is_named(options, message):
    with pytest.raises(SuperposeError, match=message):
        train(make_net(), make_stream(), **({"display": Quiet()} | options))


def test_a_strength_needs_a_guard_that_has_one():
    with pytest.raises(SuperposeError, match="takes no strength"):
        method("binary", strength=1.0)
    with pytest.raises(SuperposeError, match=r"replay .* takes no strength: .* \+ewc"):
        method("replay", strength=1.0)


def test_divergence_stops_the_run():
    with pytest.raises(SuperposeError, match=r"broke down at step 60: .*lower learning rate"):
        train(make_net(), make_stream(), optimiser="sgd", lr=1e6, display=Quiet())


def test_divergence_in_the_first_steps_is_seen_when_they_end():
    stream = make_stream(period=5)
    with pytest.raises(SuperposeError, match=r"broke down at step 5: the loss is .* at first"):
        train(make_net(), stream, optimiser="rmsprop", lr=1e9, display=Quiet())


def test_a_loss_that_is_not_a_number_stops_the_run():
    net = make_net()
    nn.init.constant_(net[3].bias, math.nan)
    with pytest.raises(SuperposeError, match=r"step 60: the loss is nan"):
        train(net, make_stream(), **QUIET)


def test_a_dead_network_stops_the_run():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    nn.init.constant_(net[0].bias, -1e3)
    with pytest.raises(SuperposeError, match="all gradients are zero"):
        train(net, make_stream(), **QUIET)


def test_a_task_may_be_learned_perfectly():
    x = torch.cat([torch.ones(64, 8), -torch.ones(64, 8)])
    y = (x[:, 0] > 0).long()
    stream = TensorStream([(x, y, x, y)], period=300, batch_size=16)
    outcome = train(make_net(), stream, optimiser="adam", lr=0.3, display=Quiet())
    assert outcome.result["mean_all"] == 1


def test_an_optimiser_of_ones_own():
    seen = []

    def make(parameters):
        seen.append(torch.optim.SGD(parameters, lr=0.5, momentum=0.9))
        return seen[0]

    train(make_net(), make_stream(), optimiser=make, schedule="linear", display=Quiet())
    assert seen[0].param_groups[0]["lr"] == pytest.approx(0.5 / 60)


class Answer(nn.Module):
    """A network that returns an object, as those of `transformers` do."""

    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, x):
        return {"logits": self.net(x)}


@pytest.mark.parametrize("name", ["standard", "binary", "hadamard+projection", "ewc", "separate"])
def test_a_network_that_returns_no_logits_is_told(name):
    message = r"Answer returned a dict, and `train` needs logits.*self\.net\(x\)\.logits"
    wrapped = message.replace("Answer", "Separate") if name == "separate" else message
    with pytest.raises(SuperposeError, match=wrapped):
        train(Answer(), make_stream(), name, **QUIET)
