"""Multi-head attention in superposition: each projection has a context."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.contexts import Family
from superpose.errors import SuperposeError
from superpose.nn.layer import MatrixLayout
from superpose.nn.linear import Linear
from superpose.nn.selection import Selected, TaskIds
from superpose.nn.standalone import derived


class MultiheadAttention(MatrixLayout, nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose in- and out-projections are bound.

    One task for the batch runs PyTorch's own attention on the weights W C(k). One task per row
    binds the inputs of the projections instead, which is the same model.

    >>> layer = MultiheadAttention(8, 2, batch_first=True, family="binary")
    >>> x = torch.ones(3, 5, 8)
    >>> layer(x, x, x, task=[2, 0, 2])[0].shape
    torch.Size([3, 5, 8])
    """

    is_linear_map = True  # each of its projections is

    def __init__(
        self,
        *arguments: Any,
        family: str | Family = "binary",
        seed: int = 0,
        layer: str = "MultiheadAttention",
        **options: Any,
    ) -> None:
        nn.MultiheadAttention.__init__(self, *arguments, **options)
        chosen = derived(family)
        self.superpose(nn.MultiheadAttention, layer, chosen, seed, batch_dim=0)
        self.out_proj.__class__ = Linear
        assert isinstance(self.out_proj, Linear)
        self.out_proj.superpose(nn.Linear, f"{layer}.out_proj", chosen, seed, batch_dim=0)

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
        batched = query.ndim == 3
        if batched and self.batch_first == (rows is None):  # torch: time first; by row: rows first
            query, key, value = _transposed([query, key, value])
        if rows is not None:
            if not batched:
                raise SuperposeError(
                    f"layer {self.path!r} was given {tuple(query.shape)}, which has no dimension "
                    "for rows of different tasks: give a batch, or run it once per task"
                )
            if is_causal and attn_mask is None:  # what PyTorch says for one task
                raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
            q, k, v = self._project_by_row(selected, [query, key, value], rows)
            y, attention = self._attend(q, k, v, key_padding_mask, attn_mask, need_weights)
            out = self.out_proj
            y = out(y, task) if isinstance(out, Linear) else out(y)
            if attention is not None and average_attn_weights:
                attention = attention.mean(1)
            return y if self.batch_first else y.transpose(0, 1), attention
        own, out = self.plain_with(self.plain_tensors(selected)), self._plain_out(task)
        y, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            own.in_proj_weight,
            own.in_proj_bias,
            own.bias_k,
            own.bias_v,
            self.add_zero_attn,
            self.dropout,
            out.weight,
            out.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=self.in_proj_weight is None,
            q_proj_weight=own.q_proj_weight,
            k_proj_weight=own.k_proj_weight,
            v_proj_weight=own.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return y.transpose(0, 1) if self.batch_first and batched else y, weights

    def _plain_out(self, task: TaskIds | None) -> Any:
        out = self.out_proj
        if not isinstance(out, Linear):
            return out
        return out.plain_with(out.plain_tensors(out.selected(task)[0]))

    def _project_by_row(self, selected: Selected, inputs: list[Tensor], rows: int) -> list[Tensor]:
        """Queries, keys and values (B, T, E), each row bound by its own contexts."""
        bias = selected.private.get("in_proj_bias", self.in_proj_bias)
        joint = self.in_proj_weight is not None
        if joint and inputs[0] is inputs[1] is inputs[2]:
            y = self.product(selected, "in_proj_weight", inputs[0], rows)
            projected = list(self.add_bias(y, bias, rows).chunk(3, -1))
        else:
            biases = [None] * 3 if bias is None else bias.chunk(3, -1)
            starts = (0, self.embed_dim, 2 * self.embed_dim)
            parts = [slice(start, start + self.embed_dim) if joint else None for start in starts]
            names = ["in_proj_weight"] * 3 if joint else list(self.bound())
            projected = []
            for x, name, part, own in zip(inputs, names, parts, biases, strict=True):
                y = self.product(selected, name, x, rows, part)
                projected.append(self.add_bias(y, own, rows))
        for side, name in ((1, "bias_k"), (2, "bias_v")):
            extra = selected.private.get(name, getattr(self, name))
            if extra is not None:
                self.check_rows(projected[side], rows)
                row = extra.reshape(-1, 1, self.embed_dim).expand(rows, 1, -1)
                projected[side] = torch.cat([projected[side], row], 1)
        return projected

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(q kᵀ / √d) v (B, T, E), and the weights (B, heads, queries, keys) if needed."""
        if self.add_zero_attn:
            k, v = (F.pad(side, (0, 0, 0, 1)) for side in (k, v))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        bias = self._mask(padding, mask, q, k.shape[-2])
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            y = F.scaled_dot_product_attention(q, k, v, bias, dropout)
            return y.transpose(1, 2).flatten(-2), None
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = (scores if bias is None else scores + bias).softmax(-1)
        weights = F.dropout(weights, dropout)
        return (weights @ v).transpose(1, 2).flatten(-2), weights

    def _mask(
        self, padding: Tensor | None, mask: Tensor | None, like: Tensor, keys: int
    ) -> Tensor | None:
        """Both masks as numbers to add, over the keys that were given; added keys are seen."""
        both = []
        if mask is not None:
            numbers = _additive(mask, like)
            by_head = numbers.ndim == 3  # (B · heads, queries, keys)
            both.append(numbers.unflatten(0, (-1, self.num_heads)) if by_head else numbers)
        if padding is not None:
            both.append(_additive(padding, like)[:, None, None, :])
        padded = [F.pad(numbers, (0, keys - numbers.shape[-1])) for numbers in both]
        return sum(padded[1:], padded[0]) if padded else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _transposed(inputs: list[Tensor]) -> list[Tensor]:
    """Each transposed, equal ones staying the same tensor, which torch takes for self-attention."""
    seen: dict[int, Tensor] = {}
    return [seen.setdefault(id(x), x.transpose(0, 1)) for x in inputs]
