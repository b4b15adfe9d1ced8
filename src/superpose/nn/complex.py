"""Complex-valued layers: what a real architecture becomes for the complex and onepower families.

Linear layers and convolutions are the real ones with complex weights, so they need no classes but
for their constructors. Norms and non-linearities have to be told what to do with complex numbers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from superpose import functional, keys
from superpose.contexts import Family
from superpose.errors import SuperposeError
from superpose.keys import Key
from superpose.nn.conv import Conv2d
from superpose.nn.linear import Linear
from superpose.nn.norm import ChannelNorm

SPLIT = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Hardtanh, nn.Hardswish, nn.Sigmoid, nn.Softplus, nn.PReLU,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
)  # fmt: skip
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
AS_THEY_ARE = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Split(nn.Module):
    """f(Re x) + i f(Im x): the paper's non-linearity is the split ReLU.

    >>> Split(nn.ReLU())(torch.tensor([1 - 2j, -3 + 4j]))
    tensor([1.+0.j, 0.+4.j])
    """

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Each part by itself."""
        return torch.complex(self.function(x.real), self.function(x.imag))


class SplitReLU(Split):
    """ReLU of the real and of the imaginary part."""

    def __init__(self) -> None:
        super().__init__(nn.ReLU())


class ComplexDropout(nn.Module):
    """Drops a complex number as a whole."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """One mask for both parts."""
        return x * self.dropout(torch.ones_like(x.real))


class ComplexBatchNorm(nn.Module):
    """Batch norm of complex numbers: both parts are whitened together, (B, C) or (B, C, …)."""

    weight: Any
    bias: Any
    running_mean: Tensor | None
    running_covariance: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        half = torch.tensor([0.5**0.5, 0.5**0.5, 0.0])  # so that the whole has variance one
        weight = half.repeat(num_features, 1)
        bias = torch.zeros(num_features, dtype=torch.complex64)
        self.register_parameter("weight", nn.Parameter(weight) if affine else None)
        self.register_parameter("bias", nn.Parameter(bias) if affine else None)
        mean = torch.zeros(num_features, dtype=torch.complex64)
        covariance = torch.tensor([0.5, 0.5, 0.0]).repeat(num_features, 1)
        self.register_buffer("running_mean", mean if track_running_stats else None)
        self.register_buffer("running_covariance", covariance if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch when training or when nothing was tracked."""
        return self.normalise(x, self.weight, self.bias, self.running_mean, self.running_covariance)

    def normalise(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        covariance: Tensor | None,
    ) -> Tensor:
        """The same with other tensors; running statistics are updated in place."""
        if not self.training and mean is not None and covariance is not None:
            return functional.complex_batch_norm(x, mean, covariance, weight, bias)
        batch_mean, batch_covariance = functional.complex_statistics(x, self.eps)
        if mean is not None and covariance is not None:
            with torch.no_grad():
                mean.lerp_(batch_mean.to(mean.dtype), torch.tensor(self.momentum + 0j))
                covariance.lerp_(batch_covariance, self.momentum)
        return functional.complex_batch_norm(x, batch_mean, batch_covariance, weight, bias)


class SuperposedComplexBatchNorm(ChannelNorm, ComplexBatchNorm):
    """Complex batch norm for each task."""

    def forward(self, x: Tensor) -> Tensor:
        """As the plain layer does, with the task's tensors."""
        selected, rows = self.selected()
        own = self.own(selected, "weight", "bias", "running_mean", "running_covariance")
        if rows is not None:
            self.check_rows(x, rows)
            self.check_statistics(self.training or own[2] is None)
        return self.normalise(x, *own)


class ComplexLinear(Linear):
    """A linear layer with complex weights and a complex context for each task.

    >>> ComplexLinear(8, 3)(torch.ones(2, 8), task=1).dtype
    torch.complex64
    """

    def __init__(self, *arguments: Any, family: str | Family = "complex", **options: Any) -> None:
        super().__init__(*arguments, family=family, **options)
        make_complex(self, self.contexts["weight"].seed, self.layer)


class ComplexConv2d(Conv2d):
    """A convolution with complex weights and a complex context for each task.

    >>> ComplexConv2d(3, 8, 3)(torch.ones(2, 3, 5, 5), task=1).dtype
    torch.complex64
    """

    def __init__(self, *arguments: Any, family: str | Family = "complex", **options: Any) -> None:
        super().__init__(*arguments, family=family, **options)
        make_complex(self, self.contexts["weight"].seed, self.layer)


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
        done[module] = _complex_module(module, seed, name, done)
    return done[module]


def _complex_module(
    module: nn.Module, seed: int, name: str, done: dict[nn.Module, nn.Module]
) -> nn.Module:
    if isinstance(module, SPLIT):
        return Split(module)
    if isinstance(module, nn.Dropout):
        return ComplexDropout(module)
    if isinstance(module, NORMS):
        return ComplexBatchNorm(
            module.num_features,
            module.eps,
            module.momentum or 0.1,
            module.affine,
            module.track_running_stats,
        )
    if isinstance(module, WEIGHTED):
        make_complex(module, seed, name)
        return module
    unknown_torch = type(module).__module__.startswith("torch.nn")
    own = next(module.parameters(recurse=False), None)
    if own is not None or (unknown_torch and not isinstance(module, AS_THEY_ARE)):
        raise SuperposeError(
            f"{type(module).__name__} {name!r} has no complex-valued form here: use the family "
            "'phase', which is complex superposition for a real network"
        )
    for child_name, child in list(module.named_children()):
        full = f"{name}.{child_name}" if name else child_name
        setattr(module, child_name, complexify(child, seed, full, done))
    return module
