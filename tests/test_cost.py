"""What a model costs, beside Table 1 of the paper."""

import pytest
from networks import mlp
from torch import nn

import superpose as sp


@pytest.mark.parametrize(
    ("family", "parameters", "one_more"),
    [
        ("identity", lambda m, n: m * n, lambda m, n: 0),
        ("rotation", lambda m, n: m * (n + m), lambda m, n: m * m),
        ("binary", lambda m, n: m * (n + 1), lambda m, n: m),
        ("complex", lambda m, n: 2 * m * (n + 0.5), lambda m, n: m),
        ("onepower", lambda m, n: 2 * m * (n + 0.5), lambda m, n: 1),
    ],
)
def test_cost_is_table_1_of_the_paper(family, parameters, one_more):
    m, n = 24, 10
    cost = sp.superpose(nn.Linear(m, n, bias=False), family, tasks=7).cost()
    assert cost.paper_parameters == parameters(m, n)
    assert cost.paper_per_task == one_more(m, n)
    assert cost.plain == m * n
    assert cost.separate == 7 * m * n
    assert cost.private_per_task == 0
    assert cost.stored == (2 if family in ("complex", "onepower") else 1) * m * n


def test_contexts_of_groups_and_of_blocks_that_do_not_fit_are_counted():
    grouped = sp.superpose(nn.Conv2d(8, 8, 3, groups=4, bias=False), tasks=2).cost()
    assert grouped.paper_per_task == 4 * (2 * 9)
    blocks = sp.superpose(nn.Linear(20, 3, bias=False), "block-rotation", tasks=2).cost()
    assert blocks.paper_per_task == 2 * 16**2


def test_cost_counts_what_is_really_stored():
    model = sp.superpose(mlp(), tasks=50)
    cost = model.cost()
    assert cost.private_per_task == 16 + 16 + 5
    assert cost.stored == sum(tensor.numel() for tensor in model.state_dict().values())
    assert cost.stored_bytes == 4 * cost.stored
    assert cost.as_dict()["separate"] == 50 * cost.plain
    assert "50 separate models" in str(cost)
