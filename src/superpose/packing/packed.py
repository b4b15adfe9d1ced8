"""The packed model: a superposed model whose weights were computed from models, not trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.model import Name, Superposed, layers, private_state, unsuperpose
from superpose.nn.additions import added_to
from superpose.nn.flat import RECOGNITION
from superpose.nn.names import joined
from superpose.nn.quantised import is_quantised
from superpose.packing.calibration import Rows
from superpose.packing.methods import PackingMethod, PackingOptions
from superpose.packing.sources import Source, checked, opened, shape_of

ROUNDED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The types of numbers that files may hold, finest first."""


class Packed(Superposed):
    """A superposed model whose weights were computed from models, not trained."""

    packing_method: PackingMethod
    starts_from_base = False  # what is stored for a task need not show in its private tensors

    @property
    def method(self) -> str:
        """The name of the method that it was packed by."""
        return self.packing_method.name

    def add(
        self,
        name: str,
        model: Source,
        calibration: Mapping[Any, Any] | None = None,
        *,
        batch_size: int = 256,
        finetune: int = 0,
    ) -> None:
        """Store one more model.

        With `sum`, and with `delta` if it was given a `base`, the result is that of packing all of
        them from the start; without one, the base stays the mean of the first models. With `solve`
        the weights are found again from the calibration inputs of all tasks, the models stored
        before being read out of the weights as they are, so it is not quite the same.
        """
        options = self._options(calibration, batch_size, finetune)
        self.packing_method.add(self, name, self._fitting(name, model), options)
        self.remember_calibration(name, calibration)

    def remove(self, name: Name, model: Source | None = None) -> None:
        """Forget a model. With `sum` and `delta`, given the model, its term is subtracted too.

        Otherwise the weights stay as they are, and so do the outputs of the others, bit for bit.
        Another model than the one that is stored is told by what each has for itself (biases,
        norms, low-rank parts), and refused. A network that has nothing of the kind tells nothing:
        another model spoils the others then.
        """
        removed = None if model is None else self._fitting(name, model)
        self.packing_method.remove(self, name, removed)

    def replace(
        self,
        name: Name,
        model: Source,
        old: Source | None = None,
        calibration: Mapping[Any, Any] | None = None,
        *,
        batch_size: int = 256,
        finetune: int = 0,
    ) -> None:
        """Store another model under a name; with `sum` and `delta` in place of the `old` one.

        The `old` one has to be the model that is stored now, as for `remove`.
        """
        options = self._options(calibration, batch_size, finetune)
        new = self._fitting(name, model)
        before = None if old is None else self._fitting(name, old)
        self.packing_method.replace(self, name, new, before, options)
        self.remember_calibration(name, calibration)

    def remember_calibration(self, name: Name, calibration: Mapping[Any, Any] | None) -> None:
        """Where tasks are recognised, forget what the inputs of one were, and keep these."""
        if self.superposition.conversion.recognise is None:
            return
        number = self.superposition.number(name)
        for group in private_state(self).groups.values():
            if group.kind == RECOGNITION:
                group.of(number).zero_()
        if calibration is not None and name in calibration:
            rows = Rows.of(name, calibration[name])
            self.remember(*rows.positional, task=name, **rows.named)

    def _options(
        self, calibration: Mapping[Any, Any] | None, batch_size: int, finetune: int
    ) -> PackingOptions:
        options = PackingOptions(calibration, batch_size=batch_size, finetune=finetune)
        self.packing_method.check(options)
        return options

    def _fitting(self, name: Name, model: Source) -> nn.Module:
        """The model, if it fits beside those that are stored."""
        if any(map(is_quantised, self.parameters())):
            raise SuperposeError(
                f"model {name!r}: the weights are quantised, and another model changes all of "
                "them: load the packed model in full, change it, and quantise it then"
            )
        net = opened(name, model)
        own = unsuperpose(self).state_dict()
        state = checked(name, net, {key: shape_of(t) for key, t in own.items()})
        for key in self.summary().shared:
            if key in own and not torch.equal(state[key], own[key]):
                raise SuperposeError(
                    f"model {name!r}: {key} is shared by all stored models and differs in this "
                    "one: pack them from the start, together"
                )
        return net


def unpack(packed: Superposed, name: Name) -> nn.Module:
    """One model as the plain module: its weights are W C(k), its private parameters its own."""
    plain = unsuperpose(packed, name)
    vars(plain).pop("packing_method", None)
    return plain


def set_private(packed: Packed, name: Name, net: nn.Module) -> None:
    """Give a task the private tensors of a model: biases, norms, layers that are not superposed."""
    number = packed.superposition.number(name)
    state = net.state_dict()
    for layer in layers(packed):
        for tensor, own in layer.private.items():
            if added_to(layer, tensor) is None:
                own.of(number).detach().copy_(state[joined(layer.path, tensor)])


def check_stored(packed: Packed, name: Name, net: nn.Module) -> None:
    """Refuse a model whose private tensors are not the task's, so that no wrong term is subtracted.

    The task's may have been rounded since: they may have been in a file of fewer bits.
    """
    number = packed.superposition.number(name)
    state = net.state_dict()
    stored = {
        joined(layer.path, tensor): own.of(number).detach()
        for layer in layers(packed)
        for tensor, own in layer.private.items()
        if added_to(layer, tensor) is None
    }
    differing = (
        next((key for key, own in stored.items() if not _same(state[key], own, dtype)), None)
        for dtype in ROUNDED
    )
    first = next(differing)
    if first is not None and None not in differing:
        raise another_model(name, first)


def another_model(name: Name, tensor: str) -> SuperposeError:
    """The error of a model that is not the one that is stored."""
    return SuperposeError(
        f"model {name!r}: {tensor} is not the one that is stored, so this is another "
        "model, or the packed one was trained further since: give the model that was packed, "
        f"or remove {name!r} by its name alone"
    )


def _same(given: Tensor, own: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor is the one that is stored, if that was rounded to this type before."""
    if not own.is_floating_point():
        return torch.equal(given.to(own), own)
    rounded = given.to(dtype).to(own)
    return torch.allclose(rounded, own, rtol=torch.finfo(own.dtype).eps, atol=0.0)
