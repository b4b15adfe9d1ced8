"""Uses that could go wrong without an error: each is right, or refused with a sentence."""

import copy
import multiprocessing

import pytest
import torch
import torch.distributed as dist
from checks import assert_same_bits, learn, whole_state
from modules import Residual, Words, ids
from networks import mlp
from silent import Two, opened
from torch import nn
from torch.nn.utils import prune

import superpose as sp
from superpose.nn.private import is_private


@pytest.mark.parametrize("bias", [True, False])
def test_a_backward_changes_no_model(bias):
    """Of a task that is its base; a saliency map, too, where nothing private takes a gradient."""
    net, x = Two(bias).eval(), torch.randn(5, 8, requires_grad=True)
    model = opened(net)
    others = model(x, task=0).detach()
    for task in (1, [1, 2, 1, 1, 2]):
        model(x, task=task).square().sum().backward()
        assert torch.equal(model(x, task=1), net(x))
        assert torch.equal(model(x, task=0), others)
    assert model.begun == [0]
    assert x.grad.abs().max() > 0
    assert all(p.grad is None for p in model.parameters())


class Normaliser(nn.Module):
    """A running normaliser, written by hand."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def test_a_buffer_that_tasks_share_does_not_move_their_base():
    net, x = nn.Sequential(nn.Linear(8, 8), Normaliser()).eval(), torch.randn(6, 8) + 3
    model = sp.superpose(net, tasks=3, base=True)
    model.begin(0)
    with pytest.raises(sp.SuperposeError, match=r"'1.mean', which all tasks share, was changed"):
        model.train()(x, task=0)
    own = sp.superpose(net, tasks=3, base=True, private_layers=["1"])
    own.begin(0)
    own.train()(x, task=0)
    assert torch.equal(own.eval()(x, task=1), net(x))
    assert (own(x, task=0) - net(x)).abs().max() > 0.1


def _process(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model = sp.superpose(net, "hadamard", tasks=3, base=True, centre="task").train()
    model.begin(rank)  # another task in each process, and task 2 in both
    model.begin(2)
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 8, generator=generator) + rank, task=rank)
        for _ in range(rank + 1):
            model(torch.randn(4, 8, generator=generator) + rank, task=2)
        before = whole_state(model)
        for _ in range(2):  # with nothing new, a second time changes nothing
            sp.agree(model)
    torch.save((model.begun, before, whole_state(model)), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_processes_that_learn_other_tasks_agree(tmp_path):
    processes = multiprocessing.get_context("fork")
    started = [processes.Process(target=_process, args=(r, tmp_path)) for r in range(2)]
    for one in started:
        one.start()
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    (begun, alone, zero), (others, its, one) = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    assert begun == others == [0, 1, 2]
    assert_same_bits(zero, one)
    mean, count = "1.running_mean of", "1.num_batches_tracked of"
    assert torch.equal(zero[f"{mean} 0"], alone[f"{mean} 0"])  # only that process has seen it
    assert torch.equal(zero[f"{mean} 1"], its[f"{mean} 1"])
    assert int(zero[f"{count} 0"]) == int(zero[f"{count} 1"]) == int(zero[f"{count} 2"]) == 3
    both = (alone[f"{mean} 2"] + 2 * its[f"{mean} 2"]) / 3
    torch.testing.assert_close(zero[f"{mean} 2"], both)
    assert float(zero["0.weight_seen of 2"]) == 3
    with pytest.raises(sp.SuperposeError, match="Linear is not superposed"):
        sp.agree(nn.Linear(2, 2))


def test_a_file_of_a_frozen_network_is_frozen_in_one_that_is_not(tmp_path):
    net, x = Two(), torch.randn(4, 8)
    net.first.weight.requires_grad_(False)
    model = sp.superpose(net, tasks=3)
    sp.save(model, tmp_path / "model.safetensors")
    again = sp.load(tmp_path / "model.safetensors", Two())
    learn(again, x, 0)
    assert torch.equal(again.first.weight, net.first.weight)
    assert not torch.equal(again.second.stored("weight"), net.second.weight)


def test_statistics_are_reset_and_updated_for_the_task_that_was_chosen():
    model, x = sp.superpose(Residual(), tasks=2), torch.randn(6, 3, 5, 5)
    model.train()(x, task=0)
    model(x, task=1)
    before = whole_state(model)
    with model.task(0):
        model.norm.reset_running_stats()
    after = whole_state(model)
    assert float(after["norm.running_mean of 0"].abs().max()) == 0
    assert int(after["norm.num_batches_tracked of 0"]) == 0
    assert_same_bits(
        {n: t for n, t in after.items() if "of 0" not in n},
        {n: t for n, t in before.items() if "of 0" not in n},
    )
    with model.task(0), torch.no_grad():
        torch.optim.swa_utils.update_bn([x, x], model)
    assert int(whole_state(model)["norm.num_batches_tracked of 0"]) == 2
    assert int(whole_state(model)["norm.num_batches_tracked of 1"]) == 1
    assert not model.norm.stored("running_mean").any()


@pytest.mark.parametrize(
    "write", [lambda b: nn.init.constant_(b, 9), lambda b: b.data.copy_(b + 1)]
)
def test_what_is_written_outside_a_task_is_refused(write, tmp_path):
    for use in (
        lambda model: model.begin(0),
        lambda model: model.add_task("c"),
        lambda model: model.train(),
        lambda model: model.eval(),
        lambda model: model.state_dict(),
        lambda model: sp.save(model, tmp_path / "model.safetensors"),
        lambda model: sp.unsuperpose(model, 0),
    ):
        model = sp.superpose(Two(), tasks=2)
        with model.task(1):  # which is how it is meant
            nn.init.constant_(model.second.bias, 9)
        use(model)
        assert float(model.private_tensors(1)["second.bias"].detach().min()) == 9
        write(model.second.bias)
        with pytest.raises(sp.SuperposeError, match=r"second.bias was written to outside a task"):
            use(model)


def test_a_number_that_names_no_task_is_not_taken_for_one():
    model = sp.superpose(nn.Linear(4, 2), tasks=["a", 0])
    model.remove_task(0)
    x = torch.randn(2, 4)
    for task in (0, {"a"}, {"a": 1}, b"a", None.__class__, iter(["a"])):
        with pytest.raises(sp.SuperposeError, match=r"unknown task|give a task's name or number"):
            model(x, task=task)


def test_the_state_of_a_plain_network_is_not_taken_for_superposed_weights():
    net = mlp()
    for options in ({}, {"base": True}, {"private": "shared"}):
        model = sp.superpose(net, tasks=2, **options)
        for strict in (True, False):
            with pytest.raises(sp.SuperposeError, match="is not that of a superposed model"):
                model.load_state_dict(net.state_dict(), strict=strict)
        assert "private_state.tasks_begun" in model.state_dict()
        model.load_state_dict(model.state_dict())


def weight_normed():
    net = nn.Sequential(nn.Linear(4, 4), prune.l1_unstructured(nn.Linear(4, 2), "weight", 0.5))
    net(torch.ones(1, 4)).sum().backward()
    return net


def test_a_network_that_cannot_be_copied_says_why():
    with pytest.raises(sp.SuperposeError, match=r"cannot be copied.*prune\.remove"):
        sp.superpose(weight_normed(), tasks=2)


def frozen_norms(model):
    model.norm = nn.Identity()


def synchronised(model):
    nn.SyncBatchNorm.convert_sync_batchnorm(model)


def new_head(model):
    model.head = nn.Linear(6, 4)


def new_first(model):
    model.stem = nn.Conv2d(3, 6, 1)


@pytest.mark.parametrize("replace", [frozen_norms, synchronised, new_head, new_first])
def test_layers_that_are_replaced_afterwards_are_refused(replace, tmp_path):
    for use in (
        lambda model: model.train(),
        lambda model: model.begin(0),
        lambda model: sp.unsuperpose(model, 0),
        lambda model: sp.save(model, tmp_path / "model.safetensors"),
    ):
        model = sp.superpose(Residual(), tasks=2, base=True, rank=1)
        replace(model)
        with pytest.raises(sp.SuperposeError, match=r"was replaced after.*sp.unsuperpose"):
            use(model)


def test_a_part_of_a_model_says_that_it_has_no_tasks():
    model = sp.superpose(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), tasks=2)
    with pytest.raises(sp.SuperposeError, match="a part of a superposed model has no tasks"):
        model[:2]
    assert len(model) == 3
    assert [*model] == [model[0], model[1], model[-1]]
    with pytest.raises(IndexError):
        model[3]
    with pytest.raises(sp.SuperposeError, match="no task is active for layer '0'"):
        nn.Sequential(*model.children())(torch.ones(1, 4))


def test_the_state_grows_when_a_task_begins_not_when_it_learns():
    """So tools that pair the tensors of two models go on pairing them."""
    model, x = sp.superpose(mlp(), tasks=3, base=True), torch.randn(5, 12)
    declared = list(model.state_dict())
    model.begin(0)
    begun = list(model.state_dict())
    assert [name for name in begun if name not in declared] == ["private_state.trained.0"]
    average = torch.optim.swa_utils.AveragedModel(model)
    learn(model, x, 0)
    assert list(model.state_dict()) == begun
    twin = copy.deepcopy(model)
    learn(model, x, 0)
    average.update_parameters(model)
    average.update_parameters(twin)
    model.eval(), twin.eval(), average.module.eval()
    own = (model.private_parameters(0)[0] + twin.private_parameters(0)[0]) / 2
    torch.testing.assert_close(average.module.private_parameters(0)[0], own)
    assert torch.equal(average.module(x, task=1), model(x, task=1))


def test_tables_that_do_not_learn_with_a_base_are_told_in_one_line():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.table = (
                nn.Parameter(torch.randn(8, 8)),
                nn.Parameter(torch.ones(3, 8)),
            )

        def forward(self, x):
            return x @ self.weight.T + self.table.sum(0)

    sp.nn.register(Biased, {"weight": -1})
    told = r"do not learn: 1.places.weight, 1.scale, 1.token, 1.words.weight\. .*learn=\["
    with pytest.warns(UserWarning, match=told) as found:
        model = sp.superpose(nn.Sequential(nn.Identity(), Words()), tasks=2, base=True)
    assert [one.filename for one in found] == [__file__]
    assert model.summary().learns == []
    assert "does not learn: 1.token, 1.scale, 1.words.weight" in str(model.summary())
    chosen = {"private_layers": ["1.token", "1.words"], "learn": ["1.scale", "1.places.*"]}
    quiet = sp.superpose(nn.Sequential(nn.Identity(), Words()), tasks=2, base=True, **chosen)
    assert quiet.summary().learns == ["1.scale", "1.places.weight"]
    before = {name: p.clone() for name, p in quiet.named_parameters()}
    learn(quiet, ids(4), 0)
    moved = {n for n, p in quiet.named_parameters() if not torch.equal(p, before[n])}
    assert {"1.scale", "1.places.weight"} <= moved
    assert all(
        is_private(n) or n in quiet.summary().learns or "body" in n or "head" in n for n in moved
    )
    own = sp.superpose(nn.Sequential(Biased()), tasks=2, base=True)  # beside a weight: each task's
    assert own.summary().private == ["0.table"]
