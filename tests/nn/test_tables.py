"""Embeddings that each task has for itself."""

import copy

import pytest
import torch
from checks import TASKS, gradients, randomise_private, rows_one_by_one, whole_state
from torch import nn

import superpose as sp


class Reader(nn.Module):
    """Words and positions are looked up, the latter once for all rows."""

    def __init__(self, batch_first=True, **options):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6, **options), nn.Embedding(4, 6)
        self.linear = nn.Linear(6, 3)
        self.batch_first = batch_first

    def forward(self, ids):
        places = torch.arange(ids.shape[1 if self.batch_first else 0])
        places = self.places(places.unsqueeze(0 if self.batch_first else 1))
        return self.linear(self.words(ids) + places)


IDS = torch.tensor([[2, 0, 8, 2], [1, 1, 2, 8], [3, 4, 5, 6], [8, 8, 8, 2], [7, 2, 2, 1]])


def private_tables(**options):
    torch.manual_seed(0)
    dim = 0 if options.get("batch_first", True) else 1
    net, tables = Reader(**options).double(), ["words", "places"]
    model = sp.superpose(net, tasks=4, private_layers=tables, batch_dim=dim)
    return randomise_private(model)


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}, {"sparse": True}],
)
def test_private_tables(options):
    model = private_tables(**options)
    plain, one = sp.unsuperpose(model, 2), model(IDS, task=2)
    torch.testing.assert_close(one, plain(IDS))
    alone, found = gradients(plain, plain(IDS)), gradients(model, one)
    for table in ("words", "places"):
        expected = alone[f"{table}.weight"].to_dense()  # a part of a tensor has no sparse one
        torch.testing.assert_close(found[f"{table}.weight of 2"], expected)
    mixed, each = model(IDS, task=TASKS), rows_one_by_one(model, TASKS, IDS)
    torch.testing.assert_close(mixed, each)
    if model.words.scale_grad_by_freq:
        return  # by how often a word is in the batch
    found, expected = gradients(model, mixed), gradients(model, each)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    learned = found["words.weight of 2"].abs().sum(1).nonzero().flatten()
    assert set(learned.tolist()) == {0, 2, 8} - {model.words.padding_idx}


def test_a_table_is_looked_up_along_the_rows():
    model = private_tables(batch_first=False)
    mixed = model(IDS.T, task=TASKS)
    each = [model(IDS[i : i + 1].T, task=int(task)) for i, task in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each, 1))


def test_a_table_with_a_largest_norm():
    model = private_tables(max_norm=0.5)
    plain = sp.unsuperpose(model, 2)
    torch.testing.assert_close(model(IDS, task=2), plain(IDS))
    own = model.private_tensors(2)["words.weight"]
    torch.testing.assert_close(own, plain.words.weight)
    assert own.detach().norm(dim=1).max() < 0.5 + 1e-6
    model = private_tables(max_norm=0.5)
    alone = copy.deepcopy(model)
    mixed, each = model(IDS, task=TASKS), rows_one_by_one(alone, TASKS, IDS)
    torch.testing.assert_close(mixed, each)
    torch.testing.assert_close(whole_state(model), whole_state(alone))
    assert (mixed - alone(IDS, task=1)).abs().max() > 1e-2


def test_a_table_that_is_shortened_leaves_what_was_used_before_it_as_it_was():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.norm = nn.Embedding(9, 6), nn.LayerNorm(6)
            self.short, self.head = nn.Embedding(9, 6, max_norm=0.5), nn.Linear(6, 3)

        def forward(self, ids):
            return self.head(self.norm(self.words(ids)) + self.short(ids))

    torch.manual_seed(0)
    net = Net()
    model = sp.superpose(net, "identity", tasks=2, private_layers=["words", "short"])
    found, expected = gradients(model, model(IDS, task=1)), gradients(net, net(IDS))
    for name, gradient in expected.items():
        own = f"{name} of 1"
        torch.testing.assert_close(found[own if own in found else name], gradient)
