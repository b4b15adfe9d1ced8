"""Precision and devices: autocast, half precision, another default device."""

import copy

import cases
import pytest
import torch
from checks import learned_gradients, rows_one_by_one
from networks import cnn, mlp
from torch import nn

import superpose as sp


@pytest.mark.parametrize("family", [n for n in cases.NAMES if n not in ("complex", "onepower")])
def test_autocast_to_bfloat16(family):
    model = sp.superpose(mlp(), family, tasks=3)
    x = torch.randn(4, 12)
    with torch.autocast("cpu", torch.bfloat16):
        for task in (1, [0, 1, 2, 1]):
            output = model(x, task=task)
            assert output.dtype == torch.bfloat16
            torch.testing.assert_close(output.float(), model(x, task=task).float())
    torch.testing.assert_close(output.float(), model(x, task=[0, 1, 2, 1]), rtol=0.1, atol=0.1)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half(x.bfloat16(), task=1).dtype == torch.bfloat16


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm])
def test_autocast_gives_rows_of_many_tasks_the_type_that_one_has(norm):
    layer = norm(2, 4) if norm is nn.GroupNorm else norm(4)
    model = sp.superpose(nn.Sequential(nn.Conv2d(3, 4, 3), layer), tasks=3).eval()
    x = torch.randn(2, 3, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x, task=[0, 1]).dtype == model(x, task=1).dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("family", ["binary", "phase", "hadamard", "rotation", "block-rotation"])
def test_half_precision(family, learnable, dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(5, 32)
    model = sp.superpose(net, family, tasks=2, learnable=learnable)
    narrow = sp.superpose(net.to(dtype), family, tasks=2, learnable=learnable)
    for task in (1, [0, 1, 1, 0, 1]):
        output = narrow(x.to(dtype), task=task)
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), model(x, task=task), rtol=0.1, atol=0.1)
    output.square().sum().backward()
    if learnable:
        assert learned_gradients(narrow)["0.weight_context of 1"].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("learnable", [False, True])
def test_half_precision_has_no_complex_numbers_and_is_widened(learnable, dtype):
    net = nn.Sequential(nn.Linear(8, 4)).to(dtype)
    model = sp.superpose(net, "complex", tasks=2, learnable=learnable)
    wide = sp.superpose(copy.deepcopy(net).float(), "complex", tasks=2, learnable=learnable)
    x = torch.randn(5, 8).to(dtype)
    torch.testing.assert_close(model(x, task=1), wide(x.float(), task=1), rtol=0.1, atol=0.1)


def test_another_default_device(tmp_path):
    with torch.device("meta"):
        model = sp.superpose(nn.Linear(4, 4, device="cpu"), "hadamard", tasks=2)
        sp.save(model, tmp_path / "model.safetensors")
        planned = sp.plan(nn.Linear(4, 4, device="cpu"), tasks=2, rank=2)
    assert model(torch.ones(2, 4, device="cpu"), task=1).device.type == "cpu"
    assert planned.noise == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_other_devices(device):
    if not getattr(torch, device).is_available():
        pytest.skip(f"there is no {device} here")
    model = sp.superpose(mlp(), "hadamard", tasks=3)
    x = torch.randn(4, 12)
    expected = model(x, task=[0, 1, 2, 0])
    found = model.to(device)(x.to(device), task=torch.tensor([0, 1, 2, 0], device=device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["bfloat16", "autocast"])
@pytest.mark.parametrize("options", [{"rank": 2}, {"centre": "task"}], ids=str)
def test_fine_tuning_in_bfloat16(options, way):
    """Law 9 is exact for one task, the loss falls, and mixed rows are what they are alone."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if way == "bfloat16" else torch.float32
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(dtype)
    x, y = torch.randn(64, 32).to(dtype), torch.randint(0, 4, (2, 64))
    model = sp.superpose(net, "hadamard", tasks=3, base=True, **options)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run(one, *inputs, **task):
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            return one(*inputs, **task)

    for task in range(2):
        assert torch.equal(run(model.eval(), x, task=task), run(net, x))
        model.begin(task)
        model.train()
        for _ in range(40):
            loss = nn.functional.cross_entropy(run(model, x, task=task).float(), y[task])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert loss.item() < 0.01  # 1.39 at first; float32 comes to 0.003
    model.eval()
    tasks = torch.arange(64) % 3
    with torch.no_grad():
        mixed, base = run(model, x, task=tasks), run(net, x)
        assert mixed.dtype == torch.bfloat16
        alone = run(rows_one_by_one, model, tasks.tolist(), x)
    rounding = 2 * torch.finfo(torch.bfloat16).eps * float(base.abs().max() + alone.abs().max())
    close = {"rtol": 0, "atol": rounding}
    torch.testing.assert_close(mixed, alone, **close)
    torch.testing.assert_close(mixed[tasks == 2], base[tasks == 2], **close)
    assert (mixed - base)[tasks < 2].abs().max() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "cnn", "norms"])
def test_a_mixed_batch_of_tasks_that_have_learned_nothing_is_the_base_to_the_last_bit(name, dtype):
    """Layers that know a bias for each row round once more than those that know one."""
    makes = {
        "mlp": (mlp, (12,)),
        "cnn": (cnn, (3, 6, 6)),
        "norms": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), (6,)),
    }
    make, shape = makes[name]
    net, x = make().to(dtype).eval(), torch.randn(6, *shape).to(dtype)
    model = sp.superpose(net, tasks=4, base=True).eval()
    model.begin(3)
    (model(x, task=3).float() - 1).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    with torch.no_grad():
        model.private_tensors(3)[next(iter(model.private_tensors(3)))] += 0.1
        assert torch.equal(model(x, task=[0, 1, 2, 1, 1, 0]), net(x))
        rows = model(x, task=[0, 3, 2, 1, 3, 0])
    slack = 10 * torch.finfo(dtype).eps * net(x).abs().max().item() + 1e-6
    torch.testing.assert_close(rows[[0, 2]], net(x)[[0, 2]], rtol=0, atol=slack)
    torch.testing.assert_close(rows[[1, 4]], model(x, task=3)[[1, 4]], rtol=0, atol=2 * slack)
