"""Recurrent layers in superposition: the input and the hidden state are bound at every step."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from superpose.errors import SuperposeError
from superpose.nn.layer import MatrixLayout
from superpose.nn.selection import Selected, TaskIds
from superpose.nn.standalone import standalone

State = Tensor | tuple[Tensor, Tensor]


class RecurrentLayer(MatrixLayout, nn.RNNBase):
    """Binds `weight_ih`, `weight_hh` (and `weight_hr`) of every layer and direction."""

    def bound(self) -> dict[str, tuple[int, int]]:
        """Every weight matrix."""
        weights = {n: p for n, p in self.named_parameters(recurse=False) if n.startswith("weight")}
        return {name: (weight.shape[1], 1) for name, weight in weights.items()}

    def gates(
        self, selected: Selected, kind: str, suffix: str, x: Tensor, rows: int, bias: bool = True
    ) -> Tensor:
        """W C(k) x + b, each row by its own task; kind is ih, hh or hr."""
        y = self.product(selected, f"weight_{kind}{suffix}", x, rows)
        if not bias:
            return y
        own = selected.private.get(f"bias_{kind}{suffix}", getattr(self, f"bias_{kind}{suffix}"))
        return self.add_bias(y, own, rows)


class SequenceLayer(RecurrentLayer):
    """RNN, LSTM and GRU over a whole sequence.

    One task for the batch runs PyTorch's own kernels on W C(k). One task per row takes the
    sequence step by step, because each row's hidden state has to be bound by its own context.
    """

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None, task: TaskIds | None = None
    ) -> tuple[Any, Any]:
        """Outputs and last state, in the shapes of the plain layer."""
        selected, rows = self.selected(task)
        if rows is None:
            plain = self.plain_with(self.plain_tensors(selected))
            plain._flat_weights = [getattr(plain, name) for name in self._flat_weights_names]
            return self.plain_class.forward(plain, input, hx)
        if isinstance(input, PackedSequence) or input.ndim != 3:
            raise SuperposeError(
                f"layer {self.path!r} takes one task per row for a padded batch of sequences "
                "only: run a packed or single sequence once per task"
            )
        steps = input if self.batch_first else input.transpose(0, 1)
        self.check_rows(steps, rows)
        outputs, state = self._by_row(selected, steps, hx, rows)
        return outputs if self.batch_first else outputs.transpose(0, 1), state

    def _by_row(self, selected: Selected, x: Tensor, hx: Any, rows: int) -> tuple[Tensor, State]:
        directions = 2 if self.bidirectional else 1
        is_lstm = self.mode == "LSTM"
        zeros = [x.new_zeros(rows, self.proj_size or self.hidden_size)]
        if is_lstm:
            zeros.append(x.new_zeros(rows, self.hidden_size))
        given = None if hx is None else (hx if is_lstm else (hx,))
        last: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                number = layer * directions + direction
                state = zeros if given is None else [part[number] for part in given]
                gates = self.gates(selected, "ih", suffix, x, rows, self.bias)  # (B, T, gates)
                order = range(x.shape[1] - 1, -1, -1) if direction else range(x.shape[1])
                hidden = [x] * x.shape[1]
                for t in order:
                    state = self._step(selected, suffix, gates[:, t], state, rows)
                    hidden[t] = state[0]
                outputs.append(torch.stack(hidden, 1))
                last.append(state)
            x = torch.cat(outputs, -1)
            if layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        parts = tuple(torch.stack(part) for part in zip(*last, strict=True))
        return x, parts if is_lstm else parts[0]  # type: ignore[return-value]

    def _step(
        self, selected: Selected, suffix: str, gates: Tensor, state: list[Tensor], rows: int
    ) -> list[Tensor]:
        hidden = self.gates(selected, "hh", suffix, state[0], rows, self.bias)
        if self.mode == "LSTM":
            i, f, g, o = (gates + hidden).chunk(4, -1)
            cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            h = o.sigmoid() * cell.tanh()
            return [
                self.gates(selected, "hr", suffix, h, rows, False) if self.proj_size else h,
                cell,
            ]
        if self.mode == "GRU":
            (xr, xz, xn), (hr, hz, hn) = gates.chunk(3, -1), hidden.chunk(3, -1)
            keep = (xz + hz).sigmoid()
            new = (xn + (xr + hr).sigmoid() * hn).tanh()
            return [(1 - keep) * new + keep * state[0]]
        return [(gates + hidden).relu() if self.mode == "RNN_RELU" else (gates + hidden).tanh()]


class RNN(SequenceLayer, nn.RNN):
    """`nn.RNN` with contexts for each task."""

    __init__ = standalone(nn.RNN)


class LSTM(SequenceLayer, nn.LSTM):
    """`nn.LSTM` with contexts for each task.

    >>> layer = LSTM(4, 8, batch_first=True, family="binary")
    >>> outputs, _ = layer(torch.ones(2, 3, 4), task=[0, 1])
    >>> outputs.shape
    torch.Size([2, 3, 8])
    """

    __init__ = standalone(nn.LSTM)


class GRU(SequenceLayer, nn.GRU):
    """`nn.GRU` with contexts for each task."""

    __init__ = standalone(nn.GRU)
