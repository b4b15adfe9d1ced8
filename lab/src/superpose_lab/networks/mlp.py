"""The paper's fully connected network."""

from torch import Tensor, nn


class MLP(nn.Module):
    """`hidden` layers of `units` with ReLU between them, Xavier-normal weights.

    >>> MLP(784, 256, 10)
    MLP(784-256-256-10)
    """

    def __init__(
        self, inputs: int, units: int, classes: int, hidden: int = 2, bias: bool = False
    ) -> None:
        super().__init__()
        self.sizes = [inputs, *[units] * hidden, classes]
        layers: list[nn.Module] = [nn.Flatten()]
        for size, following in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            linear = nn.Linear(size, following, bias=bias)
            nn.init.xavier_normal_(linear.weight)
            layers += [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of x (B, …)."""
        return self.layers(x)

    def __repr__(self) -> str:
        return f"MLP({'-'.join(map(str, self.sizes))})"
