"""The noise of solved layers: ridges and spectra."""

import pytest
import torch

from superpose.analysis.solved import Spectrum, ridges


@pytest.mark.parametrize("tasks", [2, 4, 9])
def test_the_others_act_as_a_ridge(tasks):
    """The mean of (A + λ)⁻¹ over random rotations, seen by one task, is (Σ + ω)⁻¹."""
    generator = torch.Generator().manual_seed(tasks)
    size, trials = 80, 12
    values = 0.9 ** torch.arange(size).double()
    omega = float(ridges(values.unsqueeze(0), copies=tasks)[0])
    found = torch.zeros(size, dtype=torch.float64)
    for _ in range(trials):
        total = torch.diag(values)
        for _ in range(tasks - 1):
            q = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
            total = total + q @ torch.diag(values) @ q.T
        found += torch.linalg.inv(total).diagonal() / trials
    predicted = 1 / (values + omega)
    assert ((found - predicted).abs() / predicted).mean() < 0.05


def test_room_is_as_good_as_zeros():
    values = torch.rand(1, 12, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([values, torch.zeros(1, 20)], 1)
    torch.testing.assert_close(ridges(values, 5, room=32), ridges(padded, 5), rtol=1e-4, atol=0.0)
    assert float(ridges(values, 5, room=61)) < 1e-6 < float(ridges(values, 5, room=40))


def test_the_spectrum_tells_the_rank():
    x = torch.randn(200, 3).double() @ torch.randn(3, 10).double()
    y = x @ torch.randn(10, 4).double()
    spectrum = Spectrum.of(x.T @ x, y.T @ x, y.square().sum(), y.square().sum())
    assert spectrum.rank <= 3
    assert spectrum.noise(0.0) == pytest.approx(0, abs=1e-6)
    assert 0 < spectrum.noise(0.1) < spectrum.noise(1.0) < 1
