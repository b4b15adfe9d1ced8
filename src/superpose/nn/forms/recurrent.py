"""Recurrent layers: PyTorch's kernels on the weights of the task, the tasks of a batch in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from superpose.nn.layer import Layer
from superpose.nn.layout import Along, Layout
from superpose.nn.view import LayerView, View, active, viewing

if TYPE_CHECKING:
    from superpose.nn.options import Options


class Recurrent(Layer):
    """`nn.RNN`, `nn.LSTM` and `nn.GRU`: input and hidden state are bound at every step."""

    one_by_one = True
    batch_first: bool
    _flat_weights_names: list[str]

    @classmethod
    def layouts(cls, module: nn.Module, options: Options) -> dict[str, Layout]:
        return {name: Along(-1) for name in module._parameters if name.startswith("weight")}

    @property
    def _flat_weights(self) -> list[Any]:
        """As PyTorch's kernels take them."""
        return [getattr(self, name) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: Any) -> None:
        pass

    def forward(self, input: Any, hx: Any = None) -> Any:
        own, rows = self.own()
        if rows is not None:
            return self.by_task(own, rows, input, hx)
        with viewing(View({self.path: self.read_once(own)}), self.home, active.again):
            return super(Layer, self).forward(input, hx)

    def by_task(self, own: LayerView, rows: Tensor, *inputs: Any, **options: Any) -> Any:
        x = inputs[0] if inputs else next(iter(options.values()))
        if isinstance(x, PackedSequence) or x.ndim != 3:
            raise self.not_direct(
                "is given a packed or single sequence, in which it cannot tell the rows"
            )
        return super().by_task(own, rows, *inputs, **options)

    def rows_given(self, leaves: Sequence[Any], rows: Tensor) -> list[int | None]:
        """The input's rows are where `batch_first` says; those of states come second."""
        dims = [None if x is None else 1 for x in leaves]
        dims[0] = 0 if self.batch_first else 1
        if leaves[0].shape[dims[0]] != rows.shape[0]:
            raise self.not_direct(
                f"is given {tuple(leaves[0].shape)}, in which it cannot tell the {len(rows)} rows"
            )
        return dims

    def rows_returned(self, leaves: Sequence[Any]) -> list[int]:
        return [0 if self.batch_first else 1, *[1] * (len(leaves) - 1)]
