"""The maths on tensors alone."""

import torch

from superpose import functional


def test_hadamard_is_fast_for_every_size_and_differentiable():
    for size in (1, 2, 3, 28, 64, 67, 134, 784, 1024):
        x = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
        y = functional.hadamard(x)
        torch.testing.assert_close(functional.hadamard(y), x)
        (gradient,) = torch.autograd.grad((y * y.detach()).sum(), x)
        torch.testing.assert_close(gradient, x)
