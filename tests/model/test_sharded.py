"""Superposed models whose parameters are sharded over processes; here one process has them all."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import superpose as sp

pytestmark = pytest.mark.filterwarnings("ignore")  # of a sharding without a GPU, about itself
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def network(private):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    return sp.superpose(net, tasks=3, private=private)


def learn(model):
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for task in (1, [0, 1, 2, 0, 1], 2):
        optimiser.zero_grad()
        model(X, task=task).square().mean().backward()
        optimiser.step()
    return [model(X, task=task) for task in range(3)]


@pytest.mark.parametrize(("private", "layers"), [("per-task", False), ("shared", True)])
def test_sharded_models_learn_as_others_do(mesh, private, layers, tmp_path):
    model = network(private)
    alone = copy.deepcopy(model)
    for layer in (model[0], model[1], model[3]) if layers else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found, expected = learn(model), learn(alone)
    torch.testing.assert_close(found, expected)
    with pytest.raises(sp.SuperposeError, match="sharded over processes: load get_"):
        sp.save(model, tmp_path / "many.safetensors")
    whole = network(private)
    whole.load_state_dict(
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    )
    torch.testing.assert_close([whole(X, task=task) for task in range(3)], expected)


def test_a_sharded_model_takes_the_state_of_another(mesh):
    model, other = network("per-task"), network("per-task")
    for one in (model, other):
        fully_shard(one, mesh=mesh)
    expected = learn(model)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close([other(X, task=task) for task in range(3)], expected)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({n: t for n, t in model.state_dict().items() if "trained.1" not in n})


def test_private_tensors_are_sharded_with_the_model_as_a_whole(mesh):
    model = network("per-task")
    alone = copy.deepcopy(model)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.testing.assert_close(learn(model), learn(alone))
    apart = network("per-task")
    fully_shard(apart.private_state, mesh=mesh)
    with pytest.raises(sp.SuperposeError, match="call fully_shard on the model as a whole"):
        apart(X, task=1)
