"""A network that is taught to be uncertain under a wrong context."""

import pytest
import torch
from learning.problems import make_net, make_stream, stop_after

import superpose as sp
from superpose.learning import Doubt, Quiet, train


def learned(name, **options):
    stream = make_stream(period=150, rows=256)
    settings = {"lr": 3e-3, "display": Quiet(), "optimiser": "adam", **options}
    return train(make_net(units=128), stream, name, **settings), stream


def certainty_of_wrong(model, x):
    """The mean largest probability under contexts in which the rows were not learned."""
    return torch.stack([model(x, task=task).softmax(1).amax(1).mean() for task in (0, 1)]).mean()


def test_wrong_contexts_are_doubtful_and_the_right_one_is_not():
    x = make_stream(rows=256).test(2)[0]
    (plain, _), (doubting, _) = learned("hadamard"), learned("hadamard+doubt")
    plain_model, model = plain.model.eval(), doubting.model.eval()
    with torch.no_grad():
        assert certainty_of_wrong(model, x) < certainty_of_wrong(plain_model, x) - 0.05
        found = model.recognise(x, evidence="entropy").task
        before = plain_model.recognise(x, evidence="entropy").task
    assert found.count(2) > before.count(2)
    assert doubting.result["last_task"] > 0.9


@pytest.mark.parametrize("tasks", [2, [1, 0]])
def test_the_loss_is_that_of_uniform_targets_under_other_contexts(tasks):
    model = sp.superpose(make_net(), "binary", tasks=tasks)
    guard, x = Doubt(model, strength=2.0, samples=5), torch.randn(9, 8)
    loss = guard.penalty(1, x, model(x, task=1))
    wrong = model(x[:5], task=0)  # there is but one other
    uniform = torch.full((5, 2), 0.5)
    expected = 2 * torch.nn.functional.cross_entropy(wrong, uniform)
    torch.testing.assert_close(loss, expected)
    assert model.training


def test_what_is_seen_in_a_wrong_context_is_not_kept():
    outcome, _ = learned(sp.learning.method("hadamard+doubt", recognise=True))
    for task in range(3):
        own = outcome.model.private_tensors(task)
        assert own["0.weight_input_rows"] == 150 * 16


def test_tasks_that_have_not_begun_are_still_their_base():
    """They are not taught doubt: what they compute is the base, which is no one's wrong context."""
    net = make_net(units=128)
    model = sp.superpose(net, "hadamard", tasks=3, base=True)
    x = make_stream(rows=256).test(0)[0]
    for steps, begun in ((20, 1), (170, 2)):
        with pytest.raises(sp.learning.Interrupted):
            train(model, make_stream(period=150, rows=256), "doubt", lr=3e-3, display=Quiet(),
                  stop=stop_after(steps))  # fmt: skip
        model.eval()
        is_base = [torch.equal(model(x, task=task), net(x)) for task in range(3)]
        assert is_base == [False] * begun + [True] * (3 - begun)


@pytest.mark.parametrize("names", [[1, 0, 2], [2, 0, 1]])
def test_names_may_be_numbers_of_other_tasks(names):
    net = make_net(units=128)
    model = sp.superpose(net, "hadamard", tasks=names, base=True)
    x = make_stream(rows=256).test(0)[0]
    with pytest.raises(sp.learning.Interrupted):
        train(model, make_stream(period=150, rows=256), "doubt", lr=3e-3, display=Quiet(),
              stop=stop_after(20))  # fmt: skip
    model.eval()
    assert [torch.equal(model(x, task=task), net(x)) for task in range(3)] == [False, True, True]


def test_tasks_that_have_begun_are_doubtful_of_each_others_rows():
    x = make_stream(rows=256).test(2)[0]
    methods = [sp.learning.method(name, base=True) for name in ("hadamard", "hadamard+doubt")]
    models = [learned(one)[0].model.eval() for one in methods]
    with torch.no_grad():
        plain, doubting = (certainty_of_wrong(model, x) for model in models)
    assert doubting < plain - 0.05


@pytest.mark.parametrize("options", [{"strength": -1}, {"samples": 0}])
def test_wrong_options_are_named(options):
    with pytest.raises(sp.SuperposeError, match="strength of doubt"):
        Doubt(sp.superpose(make_net(), tasks=2), **options)


def test_it_needs_contexts():
    with pytest.raises(sp.SuperposeError, match=r"such as hadamard\+doubt"):
        train(make_net(), make_stream(), "doubt", display=Quiet())


@pytest.mark.parametrize("name", ["projection+doubt", "doubt+projection"])
def test_it_goes_with_projection_and_a_base(name):
    chosen = sp.learning.method(f"hadamard+{name}", base=True)
    outcome = train(make_net(), make_stream(period=20), chosen, lr=1e-3, display=Quiet())
    assert len(outcome.result["final"]) == 3
