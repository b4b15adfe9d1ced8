"""EfficientNet-lite0, a small convolution network that is pretrained on ImageNet."""

import os
from collections import OrderedDict

from safetensors.torch import load
from torch import Tensor, nn

from superpose_lab.data.materials import material

EPS, MOMENTUM = 1e-3, 0.01
# Blocks, kernel, stride of the first, channels, how many times wider inside.
STAGES = (
    (1, 3, 1, 16, 1),
    (2, 3, 2, 24, 6),
    (2, 5, 2, 40, 6),
    (3, 3, 2, 80, 6),
    (3, 5, 1, 112, 6),
    (4, 5, 2, 192, 6),
    (1, 3, 1, 320, 6),
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the images it learned from


def convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """Convolution, norm and ReLU6, padded as TensorFlow does: for an even size, less at the top."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    padding = (kernel - 1) // 2
    if stride == 2:
        less, more = (kernel - 2) // 2, (kernel - 1) // 2
        parts["pad"], padding = nn.ZeroPad2d((less, more, less, more)), 0
    parts["conv"] = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    parts["norm"] = nn.BatchNorm2d(outputs, EPS, MOMENTUM)
    if act:
        parts["act"] = nn.ReLU6()
    return nn.Sequential(parts)


class Block(nn.Module):
    """Wider by a 1 × 1 convolution, one convolution a channel, narrow again, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, times: int) -> None:
        super().__init__()
        inside = inputs * times
        self.expand = convolution(inputs, inside) if times > 1 else nn.Identity()
        self.depthwise = convolution(inside, inside, kernel, stride, groups=inside)
        self.project = convolution(inside, outputs, act=False)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, H / stride, W / stride)."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


class EfficientNetLite0(nn.Module):
    """The network, with a head of its own; sizes of images are multiples of 32.

    >>> import torch
    >>> EfficientNetLite0(10).eval()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = convolution(3, 32, kernel=3, stride=2)
        blocks, inputs = [], 32
        for count, kernel, stride, outputs, times in STAGES:
            for number in range(count):
                first = number == 0
                blocks.append(Block(inputs, outputs, kernel, stride if first else 1, times))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = convolution(inputs, 1280)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of normalised images (B, 3, H, W)."""
        return self.head(self.flatten(self.pool(self.last(self.blocks(self.stem(x))))))


def efficientnet_lite0(data_dir: str | os.PathLike[str] | None = None) -> EfficientNetLite0:
    """The network with its ImageNet weights and classes."""
    net = EfficientNetLite0()
    (contents,) = material("efficientnet-lite0", data_dir).values()
    weights = load(contents.tobytes())
    state = {_renamed(name): tensor for name, tensor in weights.items()}
    net.load_state_dict(state)
    return net


def _renamed(name: str) -> str:
    """The name here of a tensor of `efficientnet-lite-pytorch`."""
    outer = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "last.conv"}
    outer |= {"_bn1": "last.norm", "_fc": "head"}
    inner = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_bn1": "depthwise.norm"}
    inner |= {"_depthwise_conv": "depthwise.conv", "_bn2": "project.norm"}
    inner |= {"_project_conv": "project.conv"}
    first, *rest = name.split(".")
    if first != "_blocks":
        return ".".join([outer[first], *rest])
    number, part, *rest = rest
    return ".".join(["blocks", number, inner[part], *rest])
