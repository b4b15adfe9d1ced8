"""Multi-head attention: the projections are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from superpose.errors import SuperposeError
from superpose.nn.layer import Layer, Met
from superpose.nn.layout import Along, Layout
from superpose.nn.view import LayerView, View, active, viewing

if TYPE_CHECKING:
    from superpose.nn.options import Options


class Attention(Layer):
    """`nn.MultiheadAttention`: PyTorch's own attention on the weights of the task."""

    embed_dim: int
    num_heads: int
    batch_first: bool

    @classmethod
    def layouts(cls, module: Any, options: Options) -> dict[str, Layout]:
        joint = module.in_proj_weight is not None
        names = ["in_proj_weight"] if joint else [f"{side}_proj_weight" for side in "qkv"]
        return dict.fromkeys(names, Along(-1))

    def is_linear_map(self, name: str) -> bool:
        return True

    def inputs_of(self, name: str, plain: Any, inputs: Any, options: Any, seed: int) -> list[Met]:
        sides = [*inputs[:3], *(options[n] for n in ("query", "key", "value") if n in options)]
        if name != "in_proj_weight":
            sides = [sides["qkv".index(name[0])]]
        flat = [x.reshape(1, -1, x.shape[-1]) for x in sides]
        if len(sides) == 1 or sides[0] is sides[1] is sides[2]:
            return [Met(slice(None), flat[0])]
        size = flat[0].shape[-1]
        return [Met(slice(i * size, (i + 1) * size), x) for i, x in enumerate(flat)]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        own, rows = self.own()
        options = {
            "need_weights": need_weights, "average_attn_weights": average_attn_weights,
            "is_causal": is_causal,
        }  # fmt: skip
        if rows is not None:
            sides = (query, key, value)
            return self.by_row(own, rows, *sides, key_padding_mask, attn_mask, **options)
        masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        return self._attend(own, query, key, value, **masks, **options)

    def _attend(self, own: LayerView, *sides: Tensor, **options: Any) -> Any:
        """PyTorch's own pass, on tensors that are read once: it looks at them several times."""
        views = self._layers_inside() | {self.path: self.read_once(own)}
        with viewing(View(views), self.home, active.again):
            return super().forward(*sides, **options)

    def by_row(self, own: LayerView, rows: Tensor, *inputs: Any, **options: Any) -> Any:
        """Queries, keys and values have rows where the layer has them; masks, where PyTorch has."""
        *sides, padding, mask = inputs
        if sides[0].ndim != 3:
            raise SuperposeError(
                f"layer {self.path!r} was given {tuple(sides[0].shape)}, which has no dimension "
                "for rows of different tasks: give a batch, or run it once per task"
            )
        dim = 0 if self.batch_first else 1
        if any(x.shape[dim] != rows.shape[0] for x in sides):
            raise self.not_direct(
                f"is given {tuple(sides[0].shape)}, in which it cannot tell the {len(rows)} rows"
            )
        same = sides[0] is sides[1] is sides[2]
        each = [x.movedim(dim, 0) for x in (sides[:1] if same else sides)]
        folded = mask is not None and mask.ndim == 3  # (rows · heads, queries, keys)
        if folded:
            mask = mask.unflatten(0, (rows.shape[0], -1))
        masks = {"key_padding_mask": padding, "attn_mask": mask}
        dims = {"key_padding_mask": padding is not None, "attn_mask": folded}

        def alone(layers: dict[str, LayerView], masks: Any, *sides: Tensor) -> Any:
            with viewing(View(layers), self.home, active.again):
                y, attention = self._attend(
                    layers[self.path],
                    *(s.unsqueeze(dim) for s in (sides * 3)[:3]),
                    **_one(masks),
                    **options,
                )
            return y.squeeze(dim), None if attention is None else attention.squeeze(0)

        where = {name: 0 if by_row else None for name, by_row in dims.items()}
        need = bool(options["need_weights"])
        out: Any = (dim, 0 if need else None)
        mapped = torch.vmap(alone, (0, where, *[0] * len(each)), out, randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels would run row by row
            return mapped(self._layers_inside(), masks, *each)


def _one(masks: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """The masks of one row, as a batch of one."""
    padding = masks["key_padding_mask"]
    return masks if padding is None else {**masks, "key_padding_mask": padding.unsqueeze(0)}
