"""Attention: masks, hints, and the encoder's fused path."""

import pytest
import torch
from checks import TASKS, randomise_private
from torch import nn

import superpose as sp


def test_attention_masks_of_every_kind():
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True).double()
    model = randomise_private(sp.superpose(net, "hadamard", tasks=4)).eval()
    q, k, v = (torch.randn(5, t, d, dtype=torch.float64) for t, d in ((3, 8), (4, 6), (4, 5)))
    padding = torch.zeros(5, 4, dtype=torch.bool)
    padding[1:, 3], padding[2, 2] = True, True
    mask = torch.triu(torch.ones(3, 4, dtype=torch.bool), 1)
    numbers = torch.randn(10, 3, 4, dtype=torch.float64)
    for options in ({}, {"key_padding_mask": padding}, {"attn_mask": mask, "need_weights": False}):
        found, weights = model(q, k, v, task=TASKS, **options)
        for i, task in enumerate(TASKS.tolist()):
            own = dict(options)
            if "key_padding_mask" in own:
                own["key_padding_mask"] = padding[i : i + 1]
            expected, seen = model(q[i : i + 1], k[i : i + 1], v[i : i + 1], task=task, **own)
            torch.testing.assert_close(found[i : i + 1], expected)
            if weights is not None:
                torch.testing.assert_close(weights[i : i + 1], seen)
    extras = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    extra = randomise_private(sp.superpose(extras.double(), tasks=4)).eval()
    x = torch.randn(5, 4, 8, dtype=torch.float64)
    options = {"attn_mask": torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)}
    mixed = extra(x, x, x, task=TASKS, **options)[0]
    each = [extra(*[x[i : i + 1]] * 3, task=int(t), **options)[0] for i, t in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each))
    for way in ("direct", "grouped"):  # the mask is (rows · heads, …)
        model.mixed = way
        found = model(q, k, v, task=TASKS, attn_mask=numbers, average_attn_weights=False)
        for i, task in enumerate(TASKS.tolist()):
            own = [x[i : i + 1] for x in (q, k, v)]
            options = {"attn_mask": numbers[2 * i : 2 * i + 2], "average_attn_weights": False}
            expected = model(*own, task=task, **options)
            torch.testing.assert_close(tuple(y[i : i + 1] for y in found), expected)
    with pytest.raises(sp.SuperposeError, match=r"there are 5 tasks, .*\(8, 3, 4\)"):
        model(q, k, v, task=TASKS, attn_mask=numbers[:8])


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_causal_hint_needs_its_mask(need_weights):
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, batch_first=True)
    model = randomise_private(sp.superpose(net, tasks=4)).eval()
    x = torch.randn(5, 3, 8)
    options = {"is_causal": True, "need_weights": need_weights}
    for task in (2, TASKS):
        with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
            model(x, x, x, task=task, **options)
    options["attn_mask"] = nn.Transformer.generate_square_subsequent_mask(3)
    mixed = model(x, x, x, task=TASKS, **options)[0]
    each = [model(*[x[i : i + 1]] * 3, task=int(t), **options)[0] for i, t in enumerate(TASKS)]
    torch.testing.assert_close(mixed, torch.cat(each))
    assert (mixed - model(x, x, x, task=TASKS)[0]).abs().max() > 1e-3


def test_attention_that_is_called_by_itself_has_the_task_that_was_chosen():
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model, x = randomise_private(sp.superpose(net, tasks=3)).eval(), torch.randn(2, 3, 8)
    for task in range(3):
        with model.task(task):
            y = model.self_attn(x, x, x)[0]
        torch.testing.assert_close(y, sp.unsuperpose(model, task).self_attn(x, x, x)[0])
    with pytest.raises(sp.SuperposeError, match="no task is active"):
        model.self_attn(x, x, x)
