"""A low-rank part of each packed model, beside what is superposed."""

import copy
import itertools

import numpy as np
import pytest
import reference
import torch
from checks import rows_one_by_one
from networks import LAYERS, MLP, cnn, inputs, nets, wide
from packing.problems import Attending, error, fitted
from torch import nn

import superpose as sp
from superpose.keys import Key
from superpose.packing import low_rank
from superpose.packing.least_squares import Moments, Problem
from superpose.packing.low_rank import solve_beside


def fine_tunes(base, names="abcd", rank=2):
    """Copies of a network whose matrices differ from its own by so many directions."""
    generator = torch.Generator().manual_seed(5)
    found = {name: copy.deepcopy(base) for name in names}
    for net in found.values():
        for tensor in net.parameters():
            rows = tensor.data.flatten(1) if tensor.ndim > 1 else tensor.data[:, None]
            left = torch.randn(len(rows), rank, generator=generator)
            right = torch.randn(rank, rows.shape[1], generator=generator)
            rows += 0.1 * left @ right
    return found


def test_a_sum_keeps_the_nearest_part_and_superposes_the_rest():
    models = {name: nn.Linear(6, 5, bias=False) for name in "abc"}
    packed = sp.pack(models, "hadamard", method="sum", rank=2, seed=7)
    stored = np.zeros((5, 6))
    for number, (name, net) in enumerate(models.items()):
        weight = net.weight.detach().double().numpy()
        left, values, right = np.linalg.svd(weight)
        part = (left[:, :2] * values[:2]) @ right[:2]
        own = packed.private_tensors(name)
        made = own["weight_up"] @ own["weight_down"]
        np.testing.assert_allclose(made.detach().numpy(), part, rtol=1e-4, atol=1e-5)
        dense = reference.hadamard(Key(7, "weight", number), 6)
        stored += (weight - part) @ np.linalg.inv(dense)
    np.testing.assert_allclose(packed.weight.detach().numpy(), stored, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["sum", "delta"])
@pytest.mark.parametrize("random_pairing", [False, True])
def test_add_remove_and_replace_are_exact(method, random_pairing):
    if method == "sum" and random_pairing:
        return
    models, x = nets(cnn, "abcd"), torch.randn(5, 3, 6, 6)
    options = {"rank": 1, "method": method}
    if method == "delta":
        options |= {"base": models["d"], "random_pairing": random_pairing}

    def packing(names):
        return sp.pack({n: models[n] for n in names}, "phase", **options).eval()

    def same(one, other, names):
        for name in names:
            a, b = one(x, task=name), other(x, task=name)
            assert (a - b).norm() <= 2e-6 * b.norm()

    packed = packing("ab")
    packed.add("c", models["c"])
    same(packed, packing("abc"), "abc")
    packed.remove("c", models["c"])
    same(packed, packing("ab"), "ab")
    packed.replace("a", models["c"], old=models["a"])
    packed.rename_task("a", "c")
    fresh = sp.pack({"c": models["c"], "b": models["b"]}, "phase", **options).eval()
    same(packed, fresh, "cb")


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_fine_tunes_of_few_directions_are_kept_whole(name):
    torch.manual_seed(0)
    base, shape = LAYERS[name]()
    base, x = base.eval(), torch.randn(5, *shape)
    models = fine_tunes(base, "ab", rank=1)
    if name == "conv2d depthwise":
        with pytest.raises(sp.SuperposeError, match=r"rank=1: .* in no superposed layer"):
            sp.pack(models, "hadamard", method="delta", base=base, rank=1)
        return
    packed = sp.pack(models, "hadamard", method="delta", base=base, rank=1)
    without = sp.pack(models, "hadamard", method="delta", base=base)
    for task, model in models.items():
        y = packed(x, task=task)
        torch.testing.assert_close(y, sp.unpack(packed, task)(x), rtol=1e-4, atol=1e-5)
        left, before = ((made(x, task=task) - model(x)).norm() for made in (packed, without))
        assert left < 0.9 * before  # layers in which a part is no smaller than the weight have none
    tasks = [list(models)[i % 2] for i in range(5)]
    torch.testing.assert_close(
        packed(x, task=tasks), rows_one_by_one(packed, tasks, x), rtol=1e-4, atol=1e-5
    )


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
    models, x = nets(wide), inputs()
    packed = sp.pack(models, "hadamard", method="solve", rank=1, calibration=x)
    tuned = sp.pack(models, "hadamard", method="solve", rank=1, calibration=x, finetune=3)
    before, after = (made.private_tensors("b")["layers.1.weight_up"] for made in (packed, tuned))
    assert not torch.equal(before, after)
    plain = sp.pack(models, "hadamard", method="solve", calibration=x)
    shapes = [p.shape for p in models["a"].parameters() if p.ndim > 1]
    more = sum(o + i for o, i in shapes if o + i < o * i)
    assert packed.cost().stored - plain.cost().stored == 3 * more
    sp.save(packed, tmp_path / "many.safetensors")
    again = sp.load(tmp_path / "many.safetensors", models["a"])
    for name in models:
        assert torch.equal(again(x[name], task=name), packed(x[name], task=name))
    again.add("d", models["a"], calibration={**x, "d": x["a"]})
    assert error(again, models["a"], "d", x["a"]) < 1e-2


@pytest.mark.parametrize("method", ["sum", "solve"])
def test_crosstalk_is_that_of_what_is_superposed(method):
    torch.manual_seed(0)
    models = {name: nn.Sequential(nn.Linear(96, 64)) for name in "abcd"}
    x = {name: torch.randn(800, 96) for name in models}
    packed = sp.pack(models, "hadamard", method=method, rank=8, **fitted(method, x))
    layer = sp.crosstalk(packed, models, x).layers[0]
    noise = [error(packed, net, name, x[name]) ** 2 for name, net in models.items()]
    assert layer.measured == pytest.approx(sum(noise) / 4, rel=0.2)
    if method == "sum":
        assert layer.predicted == pytest.approx(layer.measured, rel=0.2)
    else:
        assert layer.predicted is None


def test_wrong_ranks_are_refused():
    models, x = nets(cnn, "ab"), {name: torch.randn(40, 3, 6, 6) for name in "ab"}
    with pytest.raises(sp.SuperposeError, match="rank=-1: give a whole number"):
        sp.pack(models, calibration=x, rank=-1)
    with pytest.raises(sp.SuperposeError, match="rank=99: a low-rank part has"):
        sp.pack(models, calibration=x, rank=99)
    with pytest.raises(sp.SuperposeError, match=r"rank=1: .* leave conv='channel' out"):
        sp.pack(models, calibration=x, rank=1, conv="channel")

    class Mine(sp.packing.Joint):
        name = "mine"

        def fill(self, packed, sources, options):
            """Store nothing."""

    with pytest.raises(sp.SuperposeError, match="rank=1 is for method 'solve' or 'sum' or 'delta'"):
        sp.pack(models, method=Mine(), rank=1)


@pytest.mark.parametrize("method", ["sum", "delta"])
def test_a_part_that_was_trained_is_not_subtracted(method, tmp_path):
    base = MLP(24, 32, 20)  # without biases: the parts alone tell models apart
    models = fine_tunes(base, "abc", rank=3)
    packed = sp.pack(models, method=method, base=base, rank=2)
    with pytest.raises(sp.SuperposeError, match=r"model 'b': layers.* another model, or the pack"):
        packed.remove("b", models["c"])
    for dtype in (torch.bfloat16, torch.float16, None):
        sp.save(packed, tmp_path / "many.safetensors", dtype=dtype)
        sp.load(tmp_path / "many.safetensors", base).remove("b", models["b"])
    with torch.no_grad():
        packed.private_tensors("b")["layers.3.weight_up"].mul_(1.05)
    with pytest.raises(sp.SuperposeError, match=r"model 'b': layers\.3\.weight is not the one"):
        packed.replace("b", models["a"], old=models["b"])
    packed.remove("b")


def test_tied_tables_of_one_model_are_kept():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.middle = nn.Embedding(7, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 7)
            self.head.weight = self.words.weight

        def forward(self, ids):
            return self.head(self.middle(self.words(ids)))

    net, ids = Tied().eval(), torch.randint(7, (40, 3))
    for models in ({"a": net}, {"a": net, "b": copy.deepcopy(net)}):
        for method in ("sum", "delta", "solve"):
            given = {"calibration": dict.fromkeys(models, ids)} if method == "solve" else {}
            packed = sp.pack(models, "hadamard", method=method, **given)
            assert torch.equal(packed.words.weight, net.words.weight)
            if len(models) == 1:
                assert error(packed, net, "a", ids) < 1e-3


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
    assert type(model.superposition.conversion.rank) is int
