"""Recurrent layers and cells."""

import pytest
import torch
from checks import TASKS, randomise_private
from torch import nn

import superpose as sp


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_rows_start_from_the_states_that_they_are_given(kind):
    torch.manual_seed(0)
    net = kind(6, 4, 2, batch_first=True, bidirectional=True).double()
    model = randomise_private(sp.superpose(net, tasks=4))
    x, states = torch.randn(5, 3, 6).double(), torch.randn(2, 4, 5, 4).double()

    def started(rows):
        parts = tuple(states[:, :, rows].contiguous())
        return parts if kind is nn.LSTM else parts[0]

    mixed, _ = model(x, started(slice(None)), task=TASKS)
    for i, task in enumerate(TASKS.tolist()):
        row = slice(i, i + 1)
        torch.testing.assert_close(mixed[row], model(x[row], started(row), task=task)[0])


def test_cells_of_recurrent_networks():
    torch.manual_seed(0)
    model = randomise_private(sp.superpose(nn.LSTMCell(7, 6), tasks=4))
    assert model.summary().superposed == ["weight_ih", "weight_hh"]
    x, state = torch.randn(5, 7), (torch.randn(5, 6), torch.randn(5, 6))
    for own, plain in zip(model(x, state, task=1), sp.unsuperpose(model, 1)(x, state), strict=True):
        torch.testing.assert_close(own, plain)
    mixed = model(x, state, task=TASKS)
    assert (mixed[0] - model(x, state, task=1)[0]).abs().max() > 1e-2
    for row, task in enumerate(TASKS):
        own = slice(row, row + 1)
        alone = model(x[own], (state[0][own], state[1][own]), task=task)
        torch.testing.assert_close((mixed[0][own], mixed[1][own]), alone)
    model = randomise_private(sp.superpose(nn.GRUCell(7, 6), tasks=4))
    mixed = model(x, hx=state[0], task=TASKS)
    for row, task in enumerate(TASKS):
        alone = model(x[row : row + 1], hx=state[0][row : row + 1], task=task)
        torch.testing.assert_close(mixed[row : row + 1], alone)
