"""Rows of a batch: where layers find them, and when they cannot."""

import pytest
import torch
from checks import TASKS, randomise_private, rows_one_by_one
from networks import CrossAttention, First, SelfAttention, encoder
from torch import nn

import superpose as sp


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_sequence_layers_know_where_their_rows_are(batch_first):
    torch.manual_seed(0)
    x = torch.randn(5, 5, 8)  # as many tokens as rows: a guess could be wrong
    for net in (encoder(batch_first=batch_first), First(nn.GRU(8, 4, batch_first=batch_first))):
        dim = 0 if batch_first else 1
        where = {"batch_dim": dim} if isinstance(net, First) else {}  # which PyTorch does not know
        model = randomise_private(sp.superpose(net, tasks=4, **where))
        mixed = model(x, task=TASKS)
        each = [model(x.select(dim, i).unsqueeze(dim), task=int(t)) for i, t in enumerate(TASKS)]
        torch.testing.assert_close(mixed, torch.cat(each, dim))


def test_rows_that_cannot_be_told_apart_raise():
    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            return self.linear(x.flatten(0, 1))

    tasks = [0, 1, 0]
    with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks, .*\(1, 2, 6\)"):
        sp.superpose(nn.Linear(6, 4))(torch.randn(1, 2, 6), task=tasks)
    with pytest.raises(sp.SuperposeError, match="folds the rows into other dimensions"):
        sp.superpose(Folding())(torch.randn(3, 2, 6), task=tasks)
    square = torch.randn(3, 3, 6)
    first = sp.superpose(nn.Linear(6, 4))
    torch.testing.assert_close(first(square, task=tasks)[1], first(square[1], task=1))
    declared = sp.superpose(nn.Linear(6, 4), batch_dim=1)
    torch.testing.assert_close(declared(square, task=tasks)[:, 1], declared(square[:, 1], task=1))
    with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks, .*\(6, 3, 4, 4\)"):
        sp.superpose(nn.Conv2d(3, 2, 1))(torch.randn(6, 3, 4, 4), task=tasks)
    for shape in ((3, 3, 2, 4, 4), (3, 4, 4)):  # no row of it is an input
        with pytest.raises(RuntimeError, match=r"conv2d|channels"):
            sp.superpose(nn.Conv2d(3, 2, 1))(torch.randn(*shape), task=tasks)
    alone = torch.randn(3, 6)
    with pytest.raises(sp.SuperposeError, match=r"there are 3 tasks, .*\(3, 6\)"):
        sp.superpose(nn.MultiheadAttention(6, 2))(alone, alone, alone, task=tasks)
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
        sp.superpose(net)(torch.randn(3, 6), task=tasks)
    net[1] = nn.BatchNorm1d(4, track_running_stats=False)
    for model in (sp.superpose(net), sp.superpose(net).eval()):
        with pytest.raises(sp.SuperposeError, match="takes statistics over the rows of the batch"):
            model(torch.randn(3, 6), task=tasks)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 6), torch.randn(2, 6)])
    model = sp.superpose(nn.LSTM(6, 4))
    assert model(packed, task=1)[0].data.shape == (6, 4)
    with pytest.raises(sp.SuperposeError, match="there are 2 tasks"):
        model(packed, task=[0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda dropout: First(nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)),
        lambda dropout: SelfAttention(dropout=dropout),
        lambda dropout: CrossAttention(dropout=dropout),
    ],
    ids=["recurrent", "attention", "attention without weights"],
)
def test_rows_of_many_tasks_are_dropped_out_while_training_only(make):
    torch.manual_seed(0)
    model, x = sp.superpose(make(0.5), tasks=4), torch.randn(5, 3, 8)
    assert (model(x, task=TASKS) - model(x, task=TASKS)).abs().max() > 1e-3
    model.eval()
    torch.testing.assert_close(model(x, task=TASKS), rows_one_by_one(model, TASKS, x))
    last = sp.superpose(First(nn.LSTM(8, 8, 2, batch_first=True, dropout=1.0)), tasks=4)
    assert last(x, task=TASKS).abs().max() > 0, "the last layer's output is not dropped out"


def test_rows_are_second_only_where_something_comes_before_the_features():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.outer(self.inner(x).mean(0))

    model = randomise_private(sp.superpose(Pooled(), tasks=4, batch_dim=1))
    x = torch.randn(5, 3, 6)  # (tokens, rows, features), and 3 features for 3 rows in the end
    each = [model(x[:, i : i + 1], task=task) for i, task in enumerate((2, 0, 1))]
    torch.testing.assert_close(model(x, task=[2, 0, 1]), torch.cat(each))
    assert model.summary().mixed == ["direct"]


def test_channels_are_not_taken_for_rows():
    with pytest.raises(sp.SuperposeError, match=r"is given \(3, 5, 5\), in which .* the 3 rows"):
        sp.nn.Conv2d(3, 4, 3)(torch.randn(3, 5, 5), task=[0, 1, 2])


@pytest.mark.parametrize("rows", [1, 4])
def test_another_number_of_rows_is_refused(rows):
    told = rf"is given \({rows}, 3, 5, 5\), in which .* the 3 rows"
    with pytest.raises(sp.SuperposeError, match=told):
        sp.nn.Conv2d(3, 4, 3)(torch.randn(rows, 3, 5, 5), task=[0, 1, 2])
