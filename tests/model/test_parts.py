"""Parts of a model that are called by themselves, as `generate` calls an encoder."""

import pytest
import torch
from checks import randomise_private
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

import superpose as sp


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def test_a_part_has_the_task_that_was_chosen_around_it():
    torch.manual_seed(0)
    model, x = randomise_private(sp.superpose(small(), tasks=3)), torch.randn(4, 6)
    with pytest.raises(sp.SuperposeError, match="with one task where a part"):
        model[0](x)
    for task in range(3):
        plain = sp.unsuperpose(model, task)
        with model.task(task):
            torch.testing.assert_close(model[1](model[0](x)), plain[1](plain[0](x)))
    with model.task(0), model.task(2):
        torch.testing.assert_close(model[0](x), sp.unsuperpose(model, 2)[0](x))
    with model.task([0, 1, 2, 0]), pytest.raises(sp.SuperposeError, match="with one task where"):
        model[0](x)
    with pytest.raises(sp.SuperposeError, match="no task is active"):
        model[0](x)


def test_parts_of_two_models_with_the_same_names_have_their_own_tasks():
    torch.manual_seed(0)
    one, two = (randomise_private(sp.superpose(small(), tasks=3, seed=seed)) for seed in (0, 1))
    x = torch.randn(4, 6)
    with one.task(1), two.task(2):
        torch.testing.assert_close(one[0](x), sp.unsuperpose(one, 1)[0](x))
        torch.testing.assert_close(two[0](x), sp.unsuperpose(two, 2)[0](x))
    with one.task(1), pytest.raises(sp.SuperposeError, match="no task is active"):
        two[0](x)


def test_a_part_learns_for_its_task():
    torch.manual_seed(0)
    model, x = randomise_private(sp.superpose(small(), tasks=3)), torch.randn(4, 6)
    with model.task(1):
        model[0](x).square().sum().backward()
    assert model[0].weight.grad.abs().max() > 0
    assert model.private_parameters(1)[0].grad.abs().max() > 0
    assert model.private_parameters(0)[0].grad is None


def test_an_encoder_decoder_generates_what_the_tasks_own_network_does():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=60, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = randomise_private(sp.superpose(T5ForConditionalGeneration(config), tasks=3)).eval()
    ids, options = torch.arange(3, 17).view(2, 7), {"max_new_tokens": 6, "do_sample": False}
    plain = [sp.unsuperpose(model, task).generate(ids, **options) for task in range(3)]
    assert not torch.equal(plain[0], plain[1])
    for task in range(3):
        assert torch.equal(model.generate(ids, task=task, **options), plain[task])
        with model.task(task):
            assert torch.equal(model.generate(ids, **options), plain[task])
    both = model.generate(ids, task=[0, 1], **options)  # its encoder, too, has a task for each row
    assert torch.equal(both[:1], plain[0][:1])
    assert torch.equal(both[1:], plain[1][1:])
    model.mixed = "grouped"
    assert torch.equal(model.generate(ids, task=[0, 1], **options), both)
