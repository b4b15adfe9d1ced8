"""Layers that people write themselves: subclasses with a forward of their own, modules by hand."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

import superpose as sp


class Standardised(nn.Conv2d):
    """As in networks without batch norm: the kernel is standardised, then given a gain."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        kernel = self.gain * (self.weight - mean) / deviation
        return F.conv2d(x, kernel, self.bias, self.stride, self.padding, groups=self.groups)


class Masked(nn.Linear):
    """Writes into its weight before it uses it."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.register_buffer("mask", torch.ones_like(self.weight).tril())

    def forward(self, input):
        self.weight.data *= self.mask
        return super().forward(input)


class Quadratic(nn.Linear):
    """Not linear in its weight, and with an option."""

    def forward(self, x, scale=1.0):
        return F.linear(x, scale * self.weight.square(), self.bias)


class Tripled(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return 3 * super()._conv_forward(input, weight, bias)


class NormAct(nn.BatchNorm2d):
    """A norm and its activation in one, as timm has them."""

    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(super().forward(x))


class ChannelsLast(nn.LayerNorm):
    """A layer norm over channels."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class RootMeanSquare(nn.Module):
    """As language models write it themselves."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def twice(self, x):
        return 2 * self.weight * x


class OwnBatchNorm(nn.Module):
    """As written by hand: statistics are set anew, and there is something else inside."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, features))
        self.register_buffer("mean", torch.zeros(features))
        self.act = nn.ReLU()

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.act(self.scale * (x - self.mean))


class OwnLinear(nn.Module):
    """As written by hand."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs))
        self.offset = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.kernel.T + self.offset


class Experts(nn.Module):
    """A matrix for each expert, as mixtures of experts keep them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, inputs))
        self.down = nn.Parameter(torch.randn(3, outputs, 8))
        self.register_buffer("constants", torch.ones(3, 8))

    def forward(self, x, share):
        hidden = torch.einsum("...i,eoi->...eo", x, self.up).relu() + self.constants
        return torch.einsum("...ei,eoi,...e->...o", hidden, self.down, share)


sp.nn.register(OwnLinear, {"kernel": -1})
sp.nn.register(Experts, {"up": -1, "down": -1})


class Mixture(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.gate, self.experts = nn.Linear(inputs, 3), Experts(inputs, outputs)

    def forward(self, x):
        return self.experts(x, share=self.gate(x).softmax(-1))


CUSTOM = {
    "standardised": lambda: (nn.Sequential(Standardised(4, 6, 3), nn.Flatten()), (4, 5, 5)),
    "grouped": lambda: (nn.Sequential(Standardised(4, 6, 3, groups=2), nn.Flatten()), (4, 5, 5)),
    "tripled": lambda: (nn.Sequential(Tripled(4, 6, 3), nn.Flatten()), (4, 5, 5)),
    "quadratic": lambda: (nn.Sequential(Quadratic(7, 6), nn.ReLU()), (7,)),
    "tokens": lambda: (nn.Sequential(Quadratic(7, 6), nn.Flatten()), (3, 7)),
    "norm with activation": lambda: (nn.Sequential(nn.Conv2d(4, 6, 3), NormAct(6)), (4, 5, 5)),
    "own linear": lambda: (nn.Sequential(OwnLinear(7, 6), nn.ReLU(), OwnLinear(6, 3)), (7,)),
    "own linear, tokens": lambda: (nn.Sequential(OwnLinear(7, 6)), (3, 7)),
    "mixture of experts": lambda: (nn.Sequential(Mixture(7, 6)), (7,)),
    "own norm": lambda: (nn.Sequential(nn.Linear(7, 6), RootMeanSquare(6)), (3, 7)),
    "slope": lambda: (nn.Sequential(nn.Linear(7, 6), nn.PReLU()), (7,)),
    "channels last": lambda: (nn.Sequential(nn.Conv2d(4, 6, 3), ChannelsLast(6)), (4, 5, 5)),
}


def wrapped(module):
    """As `accelerate` does: the forward of one module is replaced, its class stays."""
    module.forward = functools.partial(_tripled, type(module).forward, module)
    return module


def _tripled(forward, module, *inputs):
    return 3 * forward(module, *inputs)


class LayerNorm2d(nn.LayerNorm):
    """As ConvNeXt of torchvision and timm have it: over channels, on the tensors that it reads."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class BatchNormAct2d(nn.BatchNorm2d):
    """As EfficientNet and MobileNet of timm have it: PyTorch's own code, and an activation."""

    def __init__(self, features, act=nn.SiLU):
        super().__init__(features)
        self.drop, self.act = nn.Identity(), act(inplace=True)

    def forward(self, x):
        momentum = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training,
            momentum, self.eps,
        )  # fmt: skip
        return self.act(self.drop(y))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = LayerNorm2d(width)
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(self.depthwise(x)))))


def convnext(width=32, classes=10):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=4), LayerNorm2d(width),
        ConvNeXtBlock(width), ConvNeXtBlock(width),
        LayerNorm2d(width), nn.Conv2d(width, 2 * width, 2, stride=2),
        ConvNeXtBlock(2 * width), ConvNeXtBlock(2 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(2 * width),
        nn.Linear(2 * width, classes),
    )  # fmt: skip


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x):
        return x * self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))).sigmoid()


class InvertedResidual(nn.Module):
    def __init__(self, width, wider, act, gate, stride=1):
        super().__init__()
        self.up, self.norm1 = nn.Conv2d(width, wider, 1, bias=False), BatchNormAct2d(wider, act)
        self.depthwise = nn.Conv2d(wider, wider, 3, stride, 1, groups=wider, bias=False)
        self.norm2, self.gate = BatchNormAct2d(wider, act), Gate(wider) if gate else nn.Identity()
        self.down, self.norm3 = nn.Conv2d(wider, width, 1, bias=False), nn.BatchNorm2d(width)
        self.stride = stride

    def forward(self, x):
        y = self.norm2(self.depthwise(self.norm1(self.up(x))))
        y = self.norm3(self.down(self.gate(y)))
        return x + y if self.stride == 1 else y


def inverted(act, gate, width=24, classes=10):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), BatchNormAct2d(width, act),
        InvertedResidual(width, 4 * width, act, gate),
        InvertedResidual(width, 4 * width, act, gate, 2),
        InvertedResidual(width, 4 * width, act, gate),
        nn.Conv2d(width, 8 * width, 1, bias=False), BatchNormAct2d(8 * width, act),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
    )  # fmt: skip


IMAGE_NETWORKS = {
    "ConvNeXt": convnext,
    "EfficientNet": functools.partial(inverted, nn.SiLU, True),
    "MobileNet": functools.partial(inverted, nn.ReLU6, False),
}
"""Image networks as people write them, whose norms are the channels', each a subclass."""
