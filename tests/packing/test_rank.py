"""A low-rank part of each packed model, beside the weights that are solved for."""

import itertools

import numpy as np
import pytest
import torch
from packing.problems import Attending, cnn, error, fine_tunes, inputs, nets
from torch import nn

import superpose as sp
from superpose.packing import low_rank
from superpose.packing.least_squares import Moments, Problem
from superpose.packing.low_rank import solve_beside


@pytest.mark.parametrize("family", ["binary", "hadamard", "rotation", "permutation", "phase"])
@pytest.mark.parametrize("has_base", [True, False])
def test_solve_finds_the_parts(family, has_base):
    """All inputs of a layer are used by every task, so there is no room for more than one."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 20))
    models = fine_tunes(base)
    x = {name: torch.randn(900, 24) for name in models}
    given = {"base": base} if has_base else {}
    packed = sp.pack(models, family, calibration=x, rank=2, **given)
    without = sp.pack(models, family, calibration=x, **given)
    for name, net in models.items():
        left, before = (error(made, net, name, x[name]) for made in (packed, without))
        assert left < (1e-3 if has_base else 0.9 * before)
        assert before > 0.1
        y = packed(x[name][:5], task=name)
        torch.testing.assert_close(y, sp.unpack(packed, name)(x[name][:5]), rtol=1e-4, atol=1e-4)


def test_parts_of_groups_patches_and_attention_are_solved_for():
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(8, 24, 3, groups=2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(24 * 16, 12)).eval()  # fmt: skip
    models = fine_tunes(base, "ab")
    x = {name: torch.randn(400, 8, 6, 6) for name in models}
    packed = sp.pack(models, "hadamard", calibration=x, rank=2, base=base)
    for name, net in models.items():
        assert error(packed, net, name, x[name]) < 0.02
    attending = Attending().eval()
    models = fine_tunes(attending, "ab")
    x = {name: (torch.randn(200, 4, 24), torch.randn(200, 5, 24)) for name in models}
    packed = sp.pack(models, "hadamard", calibration=x, rank=2, base=attending,
                     private_layers=["head"])  # fmt: skip
    without = sp.pack(models, "hadamard", calibration=x, base=attending, private_layers=["head"])
    for name, net in models.items():
        wanted = net(*x[name])
        left, before = ((made(*x[name], task=name) - wanted).norm() for made in (packed, without))
        assert left < 0.02 * wanted.norm() < before


def test_each_round_of_solving_gets_nearer(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 300, 12, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 300, 12, generator=generator, dtype=torch.float64) + x
    y[1] += x[1] @ torch.randn(12, 12, generator=generator, dtype=torch.float64)

    def problem():
        made = Problem(slice(None), centre=False, apart=True)
        for task in range(3):
            made.add(task, Moments.of(x[task, None], y[task, None]), Moments())
        return made

    def left(problem):
        w = problem.solution()[0]
        rests = (problem.rest(k, w + problem.given.get(k, 0.0))[0] for k in problem.own)
        return sum(float(rest.energy.sum()) for rest in rests)

    reached = [left(problem())]
    for rounds in (1, 2, 3):
        monkeypatch.setattr(low_rank, "ROUNDS", rounds)
        problems = [problem()]
        found = solve_beside(problems, rank=3)
        reached.append(left(problems[0]))
    assert all(after < 0.99 * before for before, after in itertools.pairwise(reached))
    solved = problems[0]
    w = solved.solution()[0]
    shares = [
        ((y[k] - x[k] @ (w + up @ down)[0].mT).square().sum() / y[k].square().sum()).item()
        for k, (down, up) in found.items()
    ]
    assert left(solved) == pytest.approx(sum(shares), rel=1e-9)  # and is what it says
    down, up = found[1]
    rest = y[1] - x[1] @ w[0].mT
    assert torch.linalg.matrix_rank(up @ down).item() == 3
    whitened = np.linalg.lstsq(x[1].numpy(), rest.numpy(), rcond=None)[0].T @ x[1].numpy().T
    best = np.linalg.svd(whitened, compute_uv=False)[3:]
    error_of_part = (rest - x[1] @ (up @ down)[0].mT).square().sum()
    outside = rest.square().sum() - np.square(whitened).sum()
    assert error_of_part <= 1.05 * (np.square(best).sum() + outside)  # W was fitted once more since


def test_parts_are_distilled_counted_and_saved(tmp_path):
    models, x = nets(), inputs()
    packed = sp.pack(models, "hadamard", method="solve", rank=1, calibration=x)
    tuned = sp.pack(models, "hadamard", method="solve", rank=1, calibration=x, finetune=3)
    before, after = (made.private_tensors("b")["hidden.0.weight_up"] for made in (packed, tuned))
    assert not torch.equal(before, after)
    plain = sp.pack(models, "hadamard", method="solve", calibration=x)
    shapes = [p.shape for p in models["a"].parameters() if p.ndim > 1]
    more = sum(o + i for o, i in shapes if o + i < o * i)
    assert packed.cost().stored - plain.cost().stored == 3 * more
    sp.save(packed, tmp_path / "many.safetensors")
    again = sp.load(tmp_path / "many.safetensors", models["a"])
    for name in models:
        assert torch.equal(again(x[name], task=name), packed(x[name], task=name))


def test_wrong_ranks_are_refused():
    models, x = nets(cnn, "ab"), {name: torch.randn(40, 3, 6, 6) for name in "ab"}
    with pytest.raises(sp.SuperposeError, match="rank=-1: give a whole number"):
        sp.pack(models, calibration=x, rank=-1)
    with pytest.raises(sp.SuperposeError, match="rank=99: a low-rank part has"):
        sp.pack(models, calibration=x, rank=99)
    with pytest.raises(sp.SuperposeError, match=r"rank=1: .* leave conv='channel' out"):
        sp.pack(models, calibration=x, rank=1, conv="channel")


def test_one_eigendecomposition_serves_all_rounds(monkeypatch):
    counted = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: (counted.append(x.shape), eigh(x))[1])
    models = {name: nn.Sequential(nn.Linear(40, 30)) for name in "abc"}
    x = {name: torch.randn(200, 40) for name in models}
    sp.pack(models, "hadamard", calibration=x, rank=2)
    assert sum(shape[-1] == 40 for shape in counted) == 1 + len(models)


def test_a_rank_may_be_numpys():
    model = sp.superpose(nn.Linear(12, 12), rank=np.int64(2), base=True)
    assert type(model.superposition.options.rank) is int
