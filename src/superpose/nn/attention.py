"""Multi-head attention in superposition: each projection has a context."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose import contexts
from superpose.contexts import Context, Family
from superpose.nn.layer import MatrixLayout
from superpose.nn.linear import Linear
from superpose.nn.selection import Selected, TaskIds


class MultiheadAttention(MatrixLayout, nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose in- and out-projections are bound.

    One task for the batch runs PyTorch's own attention on the weights W C(k). One task per row
    binds the inputs of the projections instead, which is the same model.

    >>> layer = MultiheadAttention(8, 2, batch_first=True, family="binary")
    >>> x = torch.ones(3, 5, 8)
    >>> layer(x, x, x, task=[2, 0, 2])[0].shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        *arguments: Any,
        family: str | Family = "binary",
        seed: int = 0,
        layer: str = "MultiheadAttention",
        **options: Any,
    ) -> None:
        nn.MultiheadAttention.__init__(self, *arguments, **options)
        chosen = contexts.family(family)
        self.superpose(nn.MultiheadAttention, layer, chosen, seed, batch_dim=0)
        self.out_proj.__class__ = Linear
        assert isinstance(self.out_proj, Linear)
        self.out_proj.superpose(nn.Linear, f"{layer}.out_proj", chosen, seed)

    def bound(self) -> dict[str, tuple[int, int]]:
        """The joint in-projection if sizes are equal, else those of queries, keys and values."""
        if self.in_proj_weight is not None:
            return {"in_proj_weight": (self.embed_dim, 1)}
        sizes = {"q": self.embed_dim, "k": self.kdim, "v": self.vdim}
        return {f"{name}_proj_weight": (size, 1) for name, size in sizes.items()}

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
        task: TaskIds | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention output and weights, in the shapes of `nn.MultiheadAttention`."""
        selected, rows = self.selected(task)
        out, out_bias = self._out(task)
        joint = self.in_proj_weight is not None
        batched = query.ndim == 3
        if batched and self.batch_first == (rows is None):  # torch: time first; by row: rows first
            query, key, value = _transposed([query, key, value])
        if rows is not None:
            q, k, v = self._project_by_row(selected, [query, key, value], rows)
            y, attention = self._attend(q, k, v, key_padding_mask, attn_mask)
            y = y if out is None else self.bind(out, y, rows)
            y = self.add_bias(F.linear(y, self.out_proj.weight), out_bias, rows)
            seen = attention.mean(1) if average_attn_weights else attention
            return y if self.batch_first else y.transpose(0, 1), seen if need_weights else None
        bound = {
            name: context.bind_weight(getattr(self, name))
            for name, context in selected.contexts.items()
        }
        own = {name: bound.get(name, getattr(self, name)) for name in self.bound()}
        y, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            own.get("in_proj_weight"),
            selected.private.get("in_proj_bias", self.in_proj_bias),
            selected.private.get("bias_k", self.bias_k),
            selected.private.get("bias_v", self.bias_v),
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight if out is None else out.bind_weight(self.out_proj.weight),
            out_bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not joint,
            q_proj_weight=own.get("q_proj_weight"),
            k_proj_weight=own.get("k_proj_weight"),
            v_proj_weight=own.get("v_proj_weight"),
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return y.transpose(0, 1) if self.batch_first and batched else y, weights

    def _out(self, task: TaskIds | None) -> tuple[Context | None, Tensor | None]:
        if not isinstance(self.out_proj, Linear):
            return None, self.out_proj.bias
        selected, _ = self.out_proj.selected(task)
        return selected.contexts.get("weight"), selected.private.get("bias", self.out_proj.bias)

    def _project_by_row(self, selected: Selected, inputs: list[Tensor], rows: int) -> list[Tensor]:
        """Queries, keys and values (B, T, E), each row bound by its own contexts."""
        joint = self.in_proj_weight is not None
        names = ["in_proj_weight"] * 3 if joint else [f"{n}_proj_weight" for n in "qkv"]
        weights = self.in_proj_weight.chunk(3) if joint else [getattr(self, n) for n in names]
        bias = selected.private.get("in_proj_bias", self.in_proj_bias)
        biases = [None] * 3 if bias is None else bias.chunk(3, -1)
        projected = []
        for x, name, weight, part in zip(inputs, names, weights, biases, strict=True):
            context = selected.contexts.get(name)
            bound = x if context is None else self.bind(context, x, rows)
            projected.append(self.add_bias(F.linear(bound, weight), part, rows))
        for side, name in ((1, "bias_k"), (2, "bias_v")):
            extra = selected.private.get(name, getattr(self, name))
            if extra is not None:
                row = extra.reshape(-1, 1, self.embed_dim).expand(rows, 1, -1)
                projected[side] = torch.cat([projected[side], row], 1)
        return projected

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """softmax(q kᵀ / √d) v (B, T, E), and the weights (B, heads, queries, keys)."""
        if self.add_zero_attn:
            k, v = (F.pad(side, (0, 0, 0, 1)) for side in (k, v))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = (scores + self._mask(padding, mask, scores)).softmax(-1)
        weights = F.dropout(weights, self.dropout, self.training)
        return (weights @ v).transpose(1, 2).flatten(-2), weights

    def _mask(self, padding: Tensor | None, mask: Tensor | None, scores: Tensor) -> Tensor:
        """Both masks as numbers to add, over the keys that were given; added keys are seen."""
        total = scores.new_zeros(())
        if mask is not None:
            numbers = _additive(mask, scores)
            if numbers.ndim == 3:  # (B · heads, queries, keys)
                numbers = numbers.unflatten(0, (-1, self.num_heads))
            total = total + F.pad(numbers, (0, scores.shape[-1] - numbers.shape[-1]))
        if padding is not None:
            numbers = _additive(padding, scores)[:, None, None, :]
            total = total + F.pad(numbers, (0, scores.shape[-1] - numbers.shape[-1]))
        return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _transposed(inputs: list[Tensor]) -> list[Tensor]:
    """Each transposed, equal ones staying the same tensor, which torch takes for self-attention."""
    seen: dict[int, Tensor] = {}
    return [seen.setdefault(id(x), x.transpose(0, 1)) for x in inputs]
