"""Linear layers: y = W₀x + W·C(k)·(x − μₖ) + Bₖ·Aₖ·x + bₖ"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import functional
from superpose.nn.layer import Layer, Met, opened
from superpose.nn.layout import Along, Layout
from superpose.nn.quantised import check_learns, full
from superpose.nn.view import LayerView

if TYPE_CHECKING:
    from superpose.nn.options import Options

MANY_ROWS = 12  # a product with x costs what signs cost for this many times as many outputs


class Linear(Layer):
    """`nn.Linear`: the input is bound."""

    has_complex_form = True
    transposed: ClassVar[bool] = False  # whether the weight is (inputs, outputs)

    @classmethod
    def layouts(cls, module: nn.Module, options: Options) -> dict[str, Layout]:
        return {"weight": Along(-1)}

    def input_features(self, name: str) -> int:
        return self.bound[name].context.dim

    def is_linear_map(self, name: str) -> bool:
        return True

    def inputs_of(self, name: str, plain: Any, inputs: Any, options: Any, seed: int) -> list[Met]:
        x = inputs[0] if inputs else next(iter(options.values()))
        return [Met(slice(None), x.reshape(1, -1, x.shape[-1]))]

    def forward(self, input: Tensor) -> Tensor:
        own, rows = self.own()
        if rows is not None:
            return self.by_row(own, rows, input)
        if own.contexts and not (self.has_base and self._weight_is_cheaper(input)):
            y = self.equation(own, input)
        else:  # closed, private as a whole, or many rows: the plain product with the weight read
            y = super(Layer, self).forward(input)
        if self.training and self.acts.note:
            self.note(own, input)
        return y

    def equation(self, own: LayerView, x: Tensor) -> Tensor:
        """y = W₀x + W·C(k)·(x − μₖ) + Bₖ·Aₖ·x + bₖ"""
        tensors = own.tensors
        kept: Any = self._parameters
        weight = kept["weight"]
        bias = tensors["bias"] if "bias" in tensors else kept["bias"]
        if weight.__class__ is not nn.Parameter and self.training and torch.is_grad_enabled():
            check_learns(self, "weight", weight)
        if weight.is_complex():
            x = functional.complex_like(x, weight)
        bound = x
        for kind, _ in self.acts.before:
            bound = kind.before(own, "weight", bound)
        bound = own.contexts["weight"].bind(bound)
        fused = bias if bias is None or bias.ndim == 1 else None
        matrix = full(weight).mT if self.transposed else weight
        y = F.linear(bound, matrix, None if self.has_base else fused)
        for kind, _ in self.acts.beside:
            y = y + kind.beside(own, "weight", x)
        if own.gate:
            y = opened(y, own.gate)
        if self.has_base:
            bases: Any = self._modules["bases"]
            base = bases._parameters["weight"]
            if base.__class__ is not nn.Parameter and self.training:
                base = full(base)  # a quantised product may round x: no gradient
            y = y + F.linear(x, full(base).mT if self.transposed else base, fused)
        return y if fused is bias else y + (bias if bias.dtype is y.dtype else bias.to(y.dtype))

    def by_row(self, own: LayerView, rows: Tensor, x: Tensor) -> Tensor:
        """The same equation on x (rows, …, inputs), with private vectors (rows, 1, numbers)."""
        dim = 0 if x.ndim == 2 and x.shape[0] == rows.shape[0] else self.rows_in(x, rows)
        if own.contexts and x.ndim == 2 and not self.acts.beside:
            y = self.equation(own, x)
        else:
            front = x if dim == 0 else x.movedim(dim, 0)
            flat = front if front.ndim == 3 else front.reshape(front.shape[0], -1, front.shape[-1])
            y = self._rows_first(own, flat).reshape(*front.shape[:-1], -1)
            y = y if dim == 0 else y.movedim(0, dim)
        if self.training and self.acts.note:
            self.note(own, x, rows)
        return y

    def _rows_first(self, own: LayerView, x: Tensor) -> Tensor:
        """Of x (rows, places, inputs)."""
        spread = {n: t.unsqueeze(1) if t.ndim == 2 else t for n, t in own.tensors.items()}
        if own.contexts:
            contexts = {name: context.by_row() for name, context in own.contexts.items()}
            return self.equation(LayerView(contexts, spread, own.gate), x)
        kept: Any = self._parameters
        bias = spread.get("bias", kept["bias"])
        if "weight" in spread:  # private as a whole
            y = x @ (spread["weight"] if self.transposed else spread["weight"].mT)
        else:  # a frozen weight, and a private bias
            y = F.linear(x, full(kept["weight"]).mT if self.transposed else kept["weight"])
        return y if bias is None else y + bias.to(y.dtype)

    def _weight_is_cheaper(self, x: Tensor) -> bool:
        """Whether W₀ + W·C(k) as one weight is less work than a product for each of the two."""
        weight: Any = self._parameters["weight"]
        if x.numel() * MANY_ROWS < weight.numel() * self.bound["weight"].context.family.effort:
            return False
        bases: Any = self._modules["bases"]
        base = bases._parameters["weight"]
        kinds = (weight.__class__, base.__class__)
        return kinds == (nn.Parameter, nn.Parameter)  # quantised ones have products of their own


class TransposedLinear(Linear):
    """GPT-2's `Conv1D`, whose weight is (inputs, outputs)."""

    has_complex_form = False
    transposed = True

    @classmethod
    def layouts(cls, module: nn.Module, options: Options) -> dict[str, Layout]:
        return {"weight": Along(-2)}

    def forward(self, x: Tensor) -> Tensor:  # as `transformers` calls it
        return super().forward(x)


class Projection(Linear):
    """The out-projection of PyTorch's attention, which is read and never called."""

    has_complex_form = False

    def input_features(self, name: str) -> int:
        return 0

    @property
    def called(self) -> str:
        return self.path.removesuffix(".out_proj")

    def inputs_of(self, name: str, plain: Any, inputs: Any, options: Any, seed: int) -> list[Met]:
        x = _attended(plain, inputs, options)
        return [Met(slice(None), x.reshape(1, -1, x.shape[-1]))]


def _attended(attention: Any, inputs: Any, options: Any) -> Tensor:
    """What the out-projection is given: the layer's output with the identity in its place."""
    own = {"out_proj.weight": torch.eye(attention.embed_dim).to(attention.out_proj.weight)}
    if attention.out_proj.bias is not None:
        own["out_proj.bias"] = torch.zeros_like(attention.out_proj.bias)
    hooks, attention._forward_pre_hooks = (
        attention._forward_pre_hooks,
        type(attention._forward_pre_hooks)(),
    )
    try:
        y: Tensor = torch.func.functional_call(attention, own, inputs, options)[0]
        return y
    finally:
        attention._forward_pre_hooks = hooks
