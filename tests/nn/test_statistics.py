"""Statistics of inputs, batch by batch, beside all rows at once and a dense Gaussian."""

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.errors import SuperposeError
from superpose.nn.statistics import FLOOR, PRIOR, Statistics, Usual


def empty(features, rank=0):
    shapes = [(), (features,), (features,), (2,), (rank, features)]
    return Usual.of(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


def rows(count=300, features=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=generator, dtype=torch.float64)
    drawn = torch.randn(count, features, generator=generator, dtype=torch.float64)
    return drawn @ mixing + torch.arange(features)


def several(*usual):
    return Usual(*(torch.stack(tensors) for tensors in zip(*usual, strict=True)))


def test_batches_of_any_size_give_the_mean_and_variance_of_all_rows():
    x, own = rows(), empty(6)
    for batch in x.split([1, 7, 100, 192]):
        own.update(batch)
    torch.testing.assert_close(own.mean[0], x.mean(0))
    torch.testing.assert_close(own.variance, x.var(0, correction=0))
    assert own.rows == 300


def test_a_whole_basis_is_the_covariance_and_a_part_its_largest_directions():
    x, own, part = rows(), empty(6, rank=6), empty(6, rank=2)
    for batch in x.split([30, 170, 100]):
        own.update(batch)
        part.update(batch)
    covariance = x.T.cov(correction=0)
    torch.testing.assert_close(own.basis.T @ own.basis, covariance)
    values, _ = torch.linalg.eigh(covariance)
    found = part.basis.square().sum(1)
    torch.testing.assert_close(found, values[-2:], rtol=0.05, atol=0)  # what is left out is lost


@pytest.mark.parametrize("rank", [0, 2, 6])
def test_distances_are_those_of_the_dense_gaussian(rank):
    first, second, x = empty(6, rank), empty(6, rank), rows(20, seed=1)
    first.update(rows())
    second.update(rows(100, seed=2))
    squared, volume = several(first, second).distances(x)
    for column, own in enumerate((first, second)):
        average = own.variance.mean()
        rest = (own.variance - own.basis.square().sum(0)).clamp_min(0)
        smooth = (own.rows * rest + PRIOR * average) / (own.rows + PRIOR) + FLOOR * average
        dense = torch.diag(smooth) + own.basis.T @ own.basis
        away = x - own.mean
        expected = (away @ dense.inverse() * away).sum(1)
        torch.testing.assert_close(squared[:, column, 0], expected)
        torch.testing.assert_close(volume[column], dense.logdet())


def test_distances_keep_small_differences_of_inputs_with_a_large_mean():
    own, moved = empty(6), empty(6)
    own.update(rows())
    moved.update(rows() + 1e6)
    near, _ = several(own).distances(rows(20, seed=1))
    far, _ = several(moved).distances(rows(20, seed=1) + 1e6)
    torch.testing.assert_close(far, near, rtol=1e-4, atol=0)


def test_own_rows_are_no_surprise_and_others_are():
    own = empty(6)
    for batch in rows(2000).split(50):
        own.update(batch)
    known = several(own)
    usual = known.surprise(known.nearest(known.distances(rows(2000))[0]))
    assert abs(usual.mean()) < 0.2
    assert usual.std() == pytest.approx(1, abs=0.2)
    other = known.surprise(known.nearest(known.distances(rows(2000) + 30)[0]))
    assert other.min() > 3
    assert (
        known.surprise(known.nearest(known.distances(rows(2000))[0])) > 3
    ).double().mean() < 0.02


def test_usual_distances_are_those_of_rows_that_were_not_seen_yet():
    own = empty(6)
    own.update(rows(40))
    first = several(own).distances(rows(40))[0].log()
    torch.testing.assert_close(own.distance[0], first.mean())
    more = rows(40, seed=3)
    second = several(own).distances(more)[0].log()
    own.update(more)
    torch.testing.assert_close(own.distance[0], (first.mean() + second.mean()) / 2)
    both = torch.cat([first, second])
    torch.testing.assert_close(own.distance[1], both.var(correction=0))


def test_statistics_that_forget_follow_the_latest_batches():
    own = empty(3)
    for step in range(200):
        own.update(torch.full((10, 3), float(step), dtype=torch.float64), forget=0.5)
    assert own.mean[0] == pytest.approx([198.0] * 3, abs=0.01)
    assert own.rows == 20


def test_statistics_with_the_most_rows_stay_as_they_are():
    own = empty(6, rank=2)
    own.update(rows(100), most=150)
    own.update(rows(100, seed=1), most=150)
    before = [tensor.clone() for tensor in own]
    own.update(rows(100, seed=2), most=150)
    assert own.rows == 200
    for tensor, same in zip(own, before, strict=True):
        if tensor is own.basis:  # its directions may turn or change sides
            tensor, same = tensor.T @ tensor, same.T @ same
        torch.testing.assert_close(tensor, same)


def test_rows_that_are_all_the_same_leave_numbers_behind():
    own = empty(3)
    own.update(torch.ones(5, 3, dtype=torch.float64))
    known = several(own)
    squared, volume = known.distances(torch.tensor([[1.0] * 3, [2.0] * 3], dtype=torch.float64))
    assert squared.isfinite().all()
    assert volume.isfinite().all()
    assert known.surprise(squared)[1] > 3


@pytest.mark.parametrize("options", [{"rank": -1}, {"rank": 1.5}, {"forget": 1.0}, {"most": 1}])
def test_wrong_options_are_named(options):
    (name,) = options
    with pytest.raises(SuperposeError, match=f"^{name}="):
        Statistics(**options)


def test_layers_keep_as_many_rows_as_was_said_wherever_they_are():
    wanted = sp.nn.Statistics(most=8)
    model = sp.superpose(nn.Linear(4, 2), tasks=2, recognise=wanted, batch_dim=1)
    for _ in range(3):
        model(torch.randn(3, 6, 4), task=1)  # six rows of three tokens
    own = model.private_tensors(1)
    assert own["weight_input_rows"] == 12  # of the third batch, none
    assert model.private_tensors(0)["weight_input_rows"] == 0
