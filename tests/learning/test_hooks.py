"""Hooks: what they see and may change, and methods that a user would write with them."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from learning.problems import make_net, make_stream, same_weights

from superpose.learning import Hook, Method, Quiet, method, train

QUIET = {"display": Quiet(), "lr": 1e-2}


def plain(hook):
    """The network as it comes, with a hook."""
    return replace(method("standard"), hook=hook)


def test_hooks_are_called_in_their_order():
    class Noting(Hook):
        def __init__(self):
            self.calls = []

        def begin(self, model):
            self.calls.append(f"begin {len(list(model.parameters()))}")
            self.parameter = next(model.parameters())

        def end(self):
            self.calls.append("end")

        def before_forward(self, batch):
            assert (batch.x.shape, batch.select) == ((16, 8), "none")
            self.calls.append(f"before {batch.task} {batch.context}")
            return batch

        def after_forward(self, batch, logits, loss):
            torch.testing.assert_close(F.cross_entropy(logits, batch.y), loss)
            self.calls.append("forward")
            return loss

        def after_backward(self):
            assert self.parameter.grad is not None
            self.before = self.parameter.detach().clone()
            self.calls.append("backward")

        def after_step(self):
            assert not torch.equal(self.before, self.parameter)
            self.calls.append("step")

        def after_task(self, batches, generator):
            assert [tuple(each.x.shape) for each in batches] == [(16, 8)] * 2
            assert len(list(batches)) == 2, "they can be asked for again"
            self.calls.append("task")

    noting = Noting()
    train(make_net(), make_stream(period=2), Method("n", lambda n, c, s: n, hook=noting), **QUIET)
    steps = [2 * [f"before {k} {k}", "forward", "backward", "step"] for k in range(3)]
    assert noting.calls == ["begin 4", *steps[0], "task", *steps[1], "task", *steps[2], "end"]


def test_a_hook_sets_the_pace_and_sees_the_latest_batches_first():
    seen = []

    class Slower(Hook):
        pace = 0.5

        def begin(self, model):
            self.model = model

        def after_task(self, batches, generator):
            assert not self.model.training
            latest = next(iter(batches)).through(self.model)
            seen.append((latest.detach(), generator.initial_seed()))

    stream = make_stream(tasks=2, period=3)
    options = {"optimiser": "sgd", "display": Quiet()}
    slow = Method("slow", lambda n, c, s: n, hook=Slower())
    half = train(make_net(), stream, slow, lr=0.2, **options)
    assert same_weights(half.model, train(make_net(), stream, lr=0.1, **options).model)
    first = replace(stream, data=stream.data[:1])
    learned = train(make_net(), first, lr=0.1, **options).model
    torch.testing.assert_close(seen[0][0], learned(stream.batch(2).x))
    third = make_stream(tasks=3, period=3)
    train(make_net(), third, slow, lr=0.2, **options)
    assert len({seed for _, seed in seen[1:]}) == 2, "each task has draws of its own"
