"""Complex-valued layers: what a real architecture becomes for the complex and onepower families.

Linear layers and convolutions are the real ones with complex weights, so they need no classes but
for their constructors. Norms and non-linearities have to be told what to do with complex numbers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from superpose import functional, keys
from superpose.errors import SuperposeError
from superpose.keys import Key
from superpose.nn.registry import computes_as, computes_by_class, declaration

SPLIT = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Hardtanh, nn.Hardswish, nn.Sigmoid, nn.Softplus, nn.PReLU,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
)  # fmt: skip
AS_THEY_ARE = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
TENSORS = ("weight", "bias", "running_mean", "running_covariance", "num_batches_tracked")


class Split(nn.Module):
    """f(Re x) + i f(Im x): the paper's non-linearity is the split ReLU.

    >>> Split(nn.ReLU())(torch.tensor([1 - 2j, -3 + 4j]))
    tensor([1.+0.j, 0.+4.j])
    """

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, input: Tensor) -> Tensor:
        """Each part by itself."""
        return torch.complex(self.function(input.real), self.function(input.imag))


class SplitReLU(Split):
    """ReLU of the real and of the imaginary part."""

    def __init__(self) -> None:
        super().__init__(nn.ReLU())


class ComplexDropout(nn.Module):
    """Drops a complex number as a whole."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, input: Tensor) -> Tensor:
        """One mask for both parts."""
        return input * self.dropout(torch.ones_like(input.real))


class ComplexBatchNorm(nn.Module):
    """Batch norm of complex numbers: both parts are whitened together, (B, C) or (B, C, …).

    The options are those of PyTorch's batch norm; `dtype` is that of the real and imaginary part.
    """

    weight: Any
    bias: Any
    running_mean: Tensor | None
    running_covariance: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        real = functional.wide(dtype or torch.get_default_dtype())
        zeros = torch.zeros(num_features, dtype=real.to_complex(), device=device)
        halves = torch.tensor([0.5, 0.5, 0.0], dtype=real, device=device).repeat(num_features, 1)
        weight, shift = halves.sqrt(), zeros.clone()  # so that the whole has variance one
        self.register_parameter("weight", nn.Parameter(weight) if affine else None)
        self.register_parameter("bias", nn.Parameter(shift) if affine and bias else None)
        tracked, averaged = track_running_stats, track_running_stats and momentum is None
        count = torch.tensor(0, device=device)
        self.register_buffer("running_mean", zeros if tracked else None)
        self.register_buffer("running_covariance", halves if tracked else None)
        self.register_buffer("num_batches_tracked", count if averaged else None)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the batch when training or when nothing was tracked."""
        return self.normalise(input, *(getattr(self, name) for name in TENSORS))

    def normalise(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        covariance: Tensor | None,
        count: Tensor | None,
    ) -> Tensor:
        """The same with other tensors; running statistics are updated in place.

        With a count of the batches they are the average over all of them.
        """
        if not self.training and mean is not None and covariance is not None:
            return functional.complex_batch_norm(x, mean, covariance, weight, bias)
        batch_mean, batch_covariance = functional.complex_statistics(x, self.eps)
        if mean is not None and covariance is not None:
            with torch.no_grad():
                new: Any = self.momentum if count is None else 1 / float(count.add_(1))
                mean.lerp_(batch_mean.to(mean.dtype), mean.new_tensor(new))
                covariance.lerp_(batch_covariance.to(covariance.dtype), new)
        return functional.complex_batch_norm(x, batch_mean, batch_covariance, weight, bias)


def make_complex(layer: Any, seed: int, name: str) -> None:
    """Give the weight's entries random phases at their old sizes; make the bias complex."""
    weight = layer.weight.detach()
    turns = torch.from_numpy(keys.phases(Key(seed, f"{name}.weight:initial", 0), weight.numel()))
    turned = weight.abs() * functional.phasors(turns).view(weight.shape).to(weight.device)
    trained = layer.weight.requires_grad
    dtype = functional.wide(weight.dtype).to_complex()
    layer.weight = nn.Parameter(turned.to(dtype), trained)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach().to(dtype), layer.bias.requires_grad)


def complexify(
    module: nn.Module, seed: int, name: str = "", done: dict[nn.Module, nn.Module] | None = None
) -> nn.Module:
    """The complex-valued network of a real architecture; modules are changed in place."""
    done = {} if done is None else done
    if module not in done:
        done[module] = made = _complex_module(module, seed, name, done)
        if made is not module:
            made.train(module.training)
    return done[module]


def _complex_module(
    module: nn.Module, seed: int, name: str, done: dict[nn.Module, nn.Module]
) -> nn.Module:
    if isinstance(module, SPLIT):
        return Split(module)
    if isinstance(module, nn.Dropout):
        return ComplexDropout(module)
    if _is_one_of(NORMS, module):
        return _complex_norm(module)
    if _has_complex_weight(module):
        make_complex(module, seed, name)
        return module
    unknown_torch = type(module).__module__.startswith("torch.nn")
    own = next(module.parameters(recurse=False), None)
    if own is not None or (unknown_torch and not isinstance(module, AS_THEY_ARE)):
        raise SuperposeError(
            f"{type(module).__name__} {name!r} has no complex-valued form here: use the family "
            "'phase', which is complex superposition for a real network"
        )
    for child_name, child in module._modules.items():  # a child with two names has both
        if child is not None:
            full = f"{name}.{child_name}" if name else child_name
            setattr(module, child_name, complexify(child, seed, full, done))
    return module


def _has_complex_weight(module: nn.Module) -> bool:
    found = declaration(module)
    if found is None or isinstance(found.form, Mapping):
        return False
    same = computes_as(module, found.kind) and computes_by_class(module)
    return found.form.has_complex_form and same


def _is_one_of(kinds: tuple[type[nn.Module], ...], module: nn.Module) -> bool:
    same = (isinstance(module, kind) and computes_as(module, kind) for kind in kinds)
    return any(same) and computes_by_class(module)


def _complex_norm(module: Any) -> ComplexBatchNorm:
    like = module.weight if module.affine else module.running_mean
    norm = ComplexBatchNorm(
        module.num_features,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
        getattr(like, "device", None),
        getattr(like, "dtype", None),
        bias=module.bias is not None,
    )
    for name, parameter in norm.named_parameters():
        parameter.requires_grad_(getattr(module, name).requires_grad)
    return norm
