"""Streams of a user's own tensors."""

import pytest
import torch

from superpose.errors import SuperposeError
from superpose.learning import TensorStream


def test_streams_of_ones_own_are_checked():
    x, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    for options, message in (
        ({"period": 0}, "period=0: must be at least 1"),
        ({"batch_size": 0}, "batch_size=0: must be at least 1"),
        ({"batch_size": 9}, "batch_size 9 is more than the 8 rows of task 0"),
    ):
        with pytest.raises(SuperposeError, match=message):
            TensorStream([(x, y, x, y)], **options)
    with pytest.raises(SuperposeError, match="task 0 has no rows to be tested on"):
        TensorStream([(x, y, x[:0], y[:0])], batch_size=4)


def dealt(stream, epoch, batches=4):
    """The rows of an epoch, in the order in which they come."""
    steps = range(epoch * batches, (epoch + 1) * batches)
    return torch.cat([stream.batch(step).x for step in steps]).flatten().tolist()


def numbered(**options):
    x, y = torch.arange(36.0).view(-1, 1), torch.arange(36)
    return TensorStream([(x, y, x, y)] * 2, period=40, batch_size=9, **options)


def test_every_epoch_has_all_rows_in_an_order_of_its_own():
    stream = numbered()
    orders = [dealt(stream, epoch) for epoch in range(20)]  # ten epochs of each task
    assert all(sorted(order) == list(range(36)) for order in orders)
    assert len(set(map(tuple, orders))) == 20
    batches = {tuple(sorted(order[:9])) for order in orders}
    assert len(batches) == 20, "which rows meet in a batch differs too"
    assert orders[0] != sorted(orders[0])


def test_an_order_is_that_of_its_seed_and_step():
    assert dealt(numbered(), 1) == dealt(numbered(), 1)
    assert dealt(numbered(seed=1), 1) != dealt(numbered(), 1)
    x, y, task, context = numbered().batch(43)
    assert torch.equal(x.flatten().long(), y)
    assert (task, context) == (1, 1)
