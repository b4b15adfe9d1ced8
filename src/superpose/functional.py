"""The maths on tensors alone: no classes, no state. Every function acts on the last dimension."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superpose import keys

DENSE_HARTLEY = 64  # up to this size a matrix product beats a Fourier transform
HADAMARD_FACTOR = 32  # the Walsh-Hadamard transform as a product of factors of at most this size


def permute(x: Tensor, index: Tensor) -> Tensor:
    """y[…, j] = x[…, index[…, j]]; one index for all rows (M,) or one per row (B, 1, M)."""
    if index.ndim == 1:
        return x.index_select(-1, index)
    return x.gather(-1, index.expand(x.shape))


def turn(x: Tensor, phasors: Tensor) -> Tensor:
    """Multiply each plane (x[2j], x[2j+1]), read as one complex number, by phasors[j].

    >>> turn(torch.tensor([1.0, 0.0, 3.0, 4.0]), torch.tensor([1j, 1]))
    tensor([0., 1., 3., 4.])
    """
    if x.is_complex():
        return torch.complex(turn(x.real, phasors), turn(x.imag, phasors))
    pairs = widened(x).unflatten(-1, (-1, 2)).contiguous()
    if not torch.compiler.is_compiling() and pairs.storage_offset() % 2:
        pairs = pairs.clone()  # a part of a tensor may begin where no complex number can
    planes = torch.view_as_complex(pairs)
    turned = planes * phasors.to(planes.dtype)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The real numbers to compute with: half precision has no complex numbers and no QR."""
    return torch.promote_types(dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """The same numbers, ready to compute with."""
    return x.to(wide(x.dtype))


def phasors(turns: Tensor, learned: bool = False) -> Tensor:
    """exp(2πi t): the same bits on every machine if t is derived, differentiable if it is learned.

    >>> phasors(torch.tensor([0.0, 0.25]))
    tensor([1.+0.j, 0.+1.j])
    """
    if learned:
        angle = 2 * torch.pi * widened(turns)
        return torch.complex(angle.cos(), angle.sin())
    cosine, sine = keys.unit(turns.detach().double().cpu().numpy())
    exact = torch.complex(torch.from_numpy(cosine), torch.from_numpy(sine))
    return exact.to(turns.device, wide(turns.dtype).to_complex())


def turns(phasors: Tensor) -> Tensor:
    """The phase of a complex number in turns, in [−½, ½]."""
    return phasors.angle() / (2 * torch.pi)


def rotate(x: Tensor, matrix: Tensor) -> Tensor:
    """y = C x; one matrix for all rows (M, M), or one per row.

    Those are (B, M, M) for x of (B, M), and (B, 1, M, M) for x of (B, N, M).
    """
    matrix = matrix.to(x.dtype)
    if matrix.ndim == 2:
        return F.linear(x, matrix)
    return torch.einsum("b...i,bji->b...j", x, matrix.flatten(0, -3))


def rotate_blocks(x: Tensor, blocks: Tensor) -> Tensor:
    """Block-diagonal C of blocks (…, ⌈M/b⌉, b, b); coordinates past M are zeros, then dropped."""
    count, size = blocks.shape[-3], blocks.shape[-1]
    padded = F.pad(x, (0, count * size - x.shape[-1])).unflatten(-1, (count, size))
    rotated = torch.einsum("...ni,...nji->...nj", padded, blocks.to(x.dtype))
    return rotated.flatten(-2)[..., : x.shape[-1]]


def orthogonalise(normals: Tensor) -> Tensor:
    """The orthogonal factor Q of A = QR with R's diagonal positive.

    For a matrix of independent normals it is a uniform (Haar) draw from O(M), and the sign rule
    makes it unique, so that every implementation of QR gives the same matrix up to rounding.
    """
    q, r = torch.linalg.qr(widened(normals))
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    return q * torch.where(diagonal < 0, -1, 1).unsqueeze(-2)


def hadamard(x: Tensor) -> Tensor:
    """y = H x, H symmetric and orthogonal for any M, in O(M log M) and with no stored numbers.

    With M = 2ᵃ · m, m odd, H is the Kronecker product of the discrete Hartley matrix of size m and
    the Walsh-Hadamard matrix of size 2ᵃ, so for a power of two it is Walsh-Hadamard itself.

    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    size = x.shape[-1]
    power = size & -size  # the largest power of two that divides it
    y = _walsh_hadamard(x.unflatten(-1, (size // power, power)))  # (…, m, 2ᵃ)
    return (_hartley(y) if power < size else y).flatten(-2)


def _walsh_hadamard(x: Tensor) -> Tensor:
    """Of the last dimension, as a Kronecker product: a factor from the right, one from the left."""
    size = x.shape[-1]
    right = min(size, HADAMARD_FACTOR)
    left = size // right
    y = x.unflatten(-1, (left, right)) @ _walsh_hadamard_matrix(right).to(x)
    if left > HADAMARD_FACTOR:
        y = _walsh_hadamard(y.mT).mT
    elif left > 1:
        y = _walsh_hadamard_matrix(left).to(x) @ y
    return y.flatten(-2)


def _once(function: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
    """Make a matrix once for each size; the compiler, which cannot see a cache, makes its own."""
    cached = lru_cache(torch.inference_mode(False)(function))
    return lambda size: function(size) if torch.compiler.is_compiling() else cached(size)


@_once
def _walsh_hadamard_matrix(size: int) -> Tensor:
    if size == 1:
        return torch.ones(1, 1, dtype=torch.float64, device="cpu")
    half = _walsh_hadamard_matrix(size // 2)
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64, device="cpu")
    return torch.kron(signs, half) * 0.5**0.5


def _hartley(x: Tensor) -> Tensor:
    """y[…, j, :] = Σₖ (cos + sin)(2πjk/m) x[…, k, :] / √m."""
    size = x.shape[-2]
    if size <= DENSE_HARTLEY:
        return _hartley_matrix(size).to(x) @ x
    if x.is_complex():
        return torch.complex(_hartley(x.real), _hartley(x.imag))
    spectrum = torch.fft.fft(widened(x), dim=-2, norm="ortho")
    return (spectrum.real - spectrum.imag).to(x.dtype)


@_once
def _hartley_matrix(size: int) -> Tensor:
    index = torch.arange(size, dtype=torch.float64, device="cpu")
    angle = 2 * torch.pi / size * (torch.outer(index, index) % size)
    return (angle.cos() + angle.sin()) / size**0.5


def complex_like(x: Tensor, weight: Tensor) -> Tensor:
    """x, made complex if the weight that it is to meet is complex."""
    return x.to(weight.dtype) if weight.is_complex() and not x.is_complex() else x


def complex_batch_norm(
    x: Tensor, mean: Tensor, covariance: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Whiten the real and imaginary part of each channel together, then scale and shift.

    x is (B, C, …) complex; the covariance and the symmetric 2 × 2 `weight` are (…, C, 3), holding
    the entries (real-real, imaginary-imaginary, real-imaginary); mean and bias are (…, C) complex,
    where … is nothing, or B when each row has its own.
    """

    def channels(tensor: Tensor) -> Tensor:
        return tensor.view(-1, x.shape[1], *[1] * (x.ndim - 2))

    rr, ii, ri = (channels(entry) for entry in covariance.unbind(-1))
    both = rr * ii
    s = (both - ri * ri).clamp_min(torch.finfo(both.dtype).eps * both).sqrt()  # may cancel to < 0
    scale = 1 / (s * (rr + ii + 2 * s).sqrt())  # V^(−1/2) = scale · [[ii + s, −ri], [−ri, rr + s]]
    centred = x - channels(mean)
    real, imag = centred.real, centred.imag
    real, imag = scale * ((ii + s) * real - ri * imag), scale * ((rr + s) * imag - ri * real)
    if weight is not None:
        rr, ii, ri = (channels(entry) for entry in weight.unbind(-1))
        real, imag = rr * real + ri * imag, ri * real + ii * imag
    y = torch.complex(real, imag)
    return y if bias is None else y + channels(bias)


def complex_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean (C,) and covariance (C, 3) of the channels of x (B, C, …) complex."""
    channels = x.transpose(0, 1).flatten(1)
    mean = channels.mean(1)
    centred = channels - mean.unsqueeze(1)
    real, imag = centred.real, centred.imag
    entries = (real.square().mean(1) + eps, imag.square().mean(1) + eps, (real * imag).mean(1))
    return mean, torch.stack(entries, -1)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, guide: Tensor | None = None
) -> Tensor:
    """W x + b; with a guide P (M, M), the gradient for W is multiplied by P from the right.

    P is applied to the inputs, of which a batch has fewer rows than W.
    """
    if guide is None:
        return F.linear(x, weight, bias)
    y: Tensor = _GuidedLinear.apply(x, weight, guide)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias


class _GuidedLinear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, guide: Tensor) -> Tensor:
        return F.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, guide = ctx.saved_tensors
        for_x = grad @ weight.to(grad.dtype) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return for_x, None, None
        guided = x.reshape(-1, x.shape[-1]).to(guide.dtype) @ guide
        for_weight = grad.reshape(-1, grad.shape[-1]).mT @ guided.to(grad.dtype)
        return for_x, for_weight.to(weight.dtype), None
