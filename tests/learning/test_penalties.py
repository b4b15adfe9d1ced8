"""EWC and SI on problems whose answers are known in closed form."""

from dataclasses import replace

import pytest
import torch
from learning.problems import make_stream
from torch import nn

from superpose.errors import SuperposeError
from superpose.learning import (
    EWC,
    SI,
    OnlineEWC,
    Quiet,
    drawn_class,
    drawn_value,
    fisher,
    method,
    train,
)


class Known(EWC):
    """EWC whose Fisher information is given instead of estimated."""

    def __init__(self, model, strength, given):
        super().__init__(model, strength)
        self.given = iter(given)

    def information(self, batches, run):
        return [next(self.given)]


def generator():
    return torch.Generator().manual_seed(0)


def drawn(logits):
    """log p(y|x) of batches, y drawn."""
    own = generator()
    return (drawn_class(batch, own) for batch in logits)


def test_the_optimum_of_ewc_is_the_precision_weighted_mean():
    torch.manual_seed(0)
    centres, information = torch.randn(4, 5).double(), torch.rand(4, 5).double()
    information[:, 4] = 0  # nothing is known of the last parameter
    theta = nn.Parameter(torch.zeros(5).double())
    penalty = Known(nn.ParameterList([theta]), 3.0, information)
    for centre in centres:  # four tasks, each a quadratic loss whose minimum is its centre
        with torch.no_grad():
            theta.copy_(centre)
        penalty.end(None, [])
    start = torch.randn(5).double()
    with torch.no_grad():
        theta.copy_(start)
    for _ in range(2000):
        theta.grad = None
        penalty.after_backward()
        with torch.no_grad():
            theta -= 0.05 * theta.grad
    expected = (information * centres).sum(0) / information.sum(0)
    torch.testing.assert_close(theta[:4], expected[:4])
    assert theta[4] == start[4], "what no task needs is free"


def test_ewc_is_one_penalty_for_each_task_summed():
    torch.manual_seed(0)
    centres, information = torch.randn(3, 6).double(), torch.rand(3, 6).double()
    theta = nn.Parameter(torch.zeros(6).double())
    penalty = Known(nn.ParameterList([theta]), 7.0, information)
    for centre in centres:
        with torch.no_grad():
            theta.copy_(centre)
        penalty.end(None, [])
    with torch.no_grad():
        theta.copy_(torch.randn(6))
    theta.grad = None
    penalty.after_backward()
    separate = sum(
        7 / 2 * f @ (theta - c).square() for f, c in zip(information, centres, strict=True)
    )
    expected, constant = torch.autograd.grad(separate, theta)[0], separate.item() - penalty.value()
    torch.testing.assert_close(theta.grad, expected)
    with torch.no_grad():
        theta.copy_(torch.randn(6))
    moved = sum(
        7 / 2 * f @ (theta - c).square() for f, c in zip(information, centres, strict=True)
    ).item()
    assert moved - penalty.value() == pytest.approx(constant), "they differ by a constant alone"


def test_online_ewc_keeps_a_running_precision_around_the_last_task():
    torch.manual_seed(0)
    net = nn.Linear(3, 4).double()
    penalty = OnlineEWC(net, strength=2.0, samples=8, decay=0.5)
    x, found = torch.randn(8, 3).double(), []
    for _ in range(2):
        with torch.no_grad():
            net.weight.normal_()
        found.append(fisher(list(net.parameters()), drawn([net(x)]), 8))
        penalty.end(None, [x])
    weight, bias = (0.5 * old + new for old, new in zip(*found, strict=True))
    torch.testing.assert_close(penalty.tensors["precision"], [weight, bias])
    torch.testing.assert_close(penalty.tensors["centre"][0], net.weight.detach())
    assert penalty.value() == 0


def test_fisher_of_softmax_regression_is_the_closed_form():
    """For logits W x the information of W_cj is the mean of p_c (1 − p_c) x_j²."""
    torch.manual_seed(0)
    net = nn.Linear(3, 4, bias=False).double()
    x = torch.randn(4000, 3).double()
    p = net(x).softmax(1).detach()
    expected = torch.einsum("nc,nj->cj", p * (1 - p), x.square()) / len(x)
    (found,) = fisher([net.weight], drawn(net(x).split(100)), len(x))
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0)
    (half,) = fisher([net.weight], drawn(net(x).split(100)), 2000)
    assert not torch.equal(half, found)
    torch.testing.assert_close(half, expected, rtol=0.15, atol=0)
    few = [fisher([net.weight], drawn(net(x[:10]).split(5)), n)[0] for n in (10, 1024)]
    assert torch.equal(*few), "the mean is over the rows that there are"


def test_a_network_that_normalises_by_the_batch_is_asked_in_batches():
    def learned(norm):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 2))
        seen = []

        def noted(outputs, generator):
            seen.append(len(outputs))
            return drawn_class(outputs, generator)

        told = replace(
            method("standard"),
            guard=lambda model, seed: EWC(model, samples=32, likelihood=noted),
        )
        train(net, make_stream(tasks=2, period=5), told, display=Quiet())
        return seen

    assert learned(nn.BatchNorm1d(16)) == [1] * 32
    assert learned(nn.Identity()) == [1] * 32
    assert learned(nn.BatchNorm1d(16, track_running_stats=False)) == [16, 16]


def test_fisher_squares_rows_and_not_their_mean():
    """Two rows that pull apart have a mean gradient of nothing, and information all the same."""
    net = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(net.weight)
    (found,) = fisher([net.weight], drawn([net(torch.tensor([[2.0], [-2.0]]))]), 2)
    torch.testing.assert_close(found, torch.ones(2, 1))  # p (1 − p) x² = 1/4 · 4


def test_fisher_of_complex_parameters_is_that_of_their_two_parts():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
    parts = nn.Parameter(torch.view_as_real(weight.detach()).clone())
    x = torch.randn(10, 2, dtype=torch.complex128)
    (found,) = fisher([weight], drawn([(x @ weight.T).real]), 10)
    (expected,) = fisher([parts], drawn([(x @ torch.view_as_complex(parts).T).real]), 10)
    assert found.shape == (3, 2, 2)
    torch.testing.assert_close(found, expected)


def test_the_path_integral_of_si_is_the_change_of_the_loss():
    """Along small steps of gradient descent, Σ ω = −∫ g · dθ is how far the loss fell."""
    torch.manual_seed(0)
    root = torch.randn(5, 5).double()
    curvature, minimum = root @ root.T, torch.randn(5).double()

    def loss(theta):
        return (theta - minimum) @ curvature @ (theta - minimum) / 2

    theta = nn.Parameter(torch.randn(5).double())
    penalty = SI(nn.ParameterList([theta]))
    before = loss(theta).item()
    for _ in range(1000):
        theta.grad = None
        loss(theta).backward()
        penalty.after_backward()
        with torch.no_grad():
            theta -= 1e-4 * theta.grad
        penalty.after_step()
    fell = before - loss(theta).item()
    assert fell > 0.1
    assert penalty.tensors["path"][0].sum().item() == pytest.approx(fell, rel=2e-3)


def test_si_shares_the_loss_out_to_each_parameter_of_a_separable_problem():
    curvature = torch.tensor([1.0, 4.0, 0.0]).double()
    theta = nn.Parameter(torch.ones(3).double())
    penalty = SI(nn.ParameterList([theta]), strength=5.0, damping=0.1)
    for _ in range(4000):
        theta.grad = None
        (curvature @ theta.square() / 2).backward()
        penalty.after_backward()
        with torch.no_grad():
            theta -= 4e-3 * theta.grad
        penalty.after_step()
    penalty.end(None, [])
    # Each fell by curvature/2 while it went from 1 to 0; Ω = fell / (1² + ξ), the precision is 2 Ω.
    expected = curvature / 2 / 1.1
    torch.testing.assert_close(penalty.tensors["precision"][0], 2 * expected, rtol=2e-2, atol=1e-9)
    torch.testing.assert_close(penalty.tensors["centre"][0], theta.detach())
    with torch.no_grad():
        theta.fill_(2)
    theta.grad = None
    penalty.after_backward()
    # The gradient of c Ω (θ − θ*)².
    away = 2 - penalty.tensors["centre"][0]
    torch.testing.assert_close(theta.grad, 2 * 5 * expected * away, rtol=2e-2, atol=1e-9)
    assert not penalty.tensors["path"][0].any(), "the next task has a path of its own"
    assert not penalty.tensors["travelled"][0].any()


def test_si_reads_the_gradient_of_the_data_alone():
    theta = nn.Parameter(torch.ones(2))
    penalty = SI(nn.ParameterList([theta]), strength=10.0)
    penalty.tensors["precision"][0].fill_(2.0)
    penalty.active = True
    theta.grad = torch.tensor([0.5, -0.5])
    penalty.after_backward()
    torch.testing.assert_close(theta.grad, torch.tensor([20.5, 19.5]))
    with torch.no_grad():
        theta += torch.tensor([0.1, 0.1])
    penalty.after_step()
    torch.testing.assert_close(penalty.tensors["path"][0], torch.tensor([-0.05, 0.05]))


def test_a_parameter_that_raised_the_loss_is_not_pushed_away():
    theta = nn.Parameter(torch.zeros(2))
    penalty = SI(nn.ParameterList([theta]))
    theta.grad = torch.tensor([1.0, -1.0])
    penalty.after_backward()
    with torch.no_grad():
        theta += 1.0
    penalty.after_step()
    penalty.end(None, [])
    assert penalty.tensors["precision"][0].tolist() == [0.0, pytest.approx(2 / 1.1)]
    assert (penalty.strength, penalty.describe()["strength"]) == (3.0, 3.0)


@pytest.mark.parametrize("make", [EWC, OnlineEWC, SI])
def test_nothing_is_held_before_the_first_task_ends(make):
    net = nn.Linear(3, 2)
    penalty = make(net, strength=1e6)
    net(torch.ones(1, 3)).sum().backward()
    before = [p.grad.clone() for p in net.parameters()]
    penalty.after_backward()
    assert all(torch.equal(p.grad, b) for p, b in zip(net.parameters(), before, strict=True))


def test_errors_name_the_value():
    with pytest.raises(SuperposeError, match=r"strength=-1: a penalty's strength is at least 0"):
        EWC(nn.Linear(2, 2), -1)
    with pytest.raises(SuperposeError, match="this network has none"):
        SI(nn.Identity())


def test_fisher_of_a_regression_is_the_mean_square_of_its_inputs():
    """For y ~ N(w x, 1) the information of w_j is the mean of x_j²."""
    torch.manual_seed(0)
    net, x = nn.Linear(3, 1, bias=False).double(), torch.randn(4000, 3).double()
    guard = EWC(net, samples=len(x), likelihood=drawn_value)
    guard.end(None, x.split(100))
    (found,) = guard.tensors["precision"]
    torch.testing.assert_close(found[0], x.square().mean(0), rtol=0.1, atol=0)


def test_the_log_likelihood_of_many_places_is_their_sum():
    torch.manual_seed(0)
    logits = torch.randn(4, 5, 3).double()
    one = drawn_class(logits, generator())
    flat = drawn_class(logits.flatten(0, 1), generator())
    torch.testing.assert_close(one, flat.view(4, 5).sum(1))
    outputs = type("Outputs", (), {"logits": logits})()
    torch.testing.assert_close(drawn_class(outputs, generator()), one)


def test_each_task_has_draws_of_its_own_and_a_resumed_one_the_same():
    net, x = nn.Linear(3, 4), torch.randn(8, 3)
    guard, seen = EWC(net, samples=8), []

    def noted(outputs, own):
        seen.append(own.initial_seed())
        return drawn_class(outputs, own)

    guard.likelihood = noted
    for _ in range(2):
        guard.after_backward()
        guard.end(None, [x])
    again = EWC(net, samples=8, likelihood=noted, seed=5)
    again.load_state_dict(guard.state_dict())
    again.end(None, [x])
    assert list(dict.fromkeys(seen)) == [1, 2, 7]
