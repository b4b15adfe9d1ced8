"""Packing methods whose weights are found for all models together."""

from __future__ import annotations

import copy
import functools
from typing import Any, ClassVar

from torch import nn

from superpose.errors import SuperposeError
from superpose.model import Name
from superpose.packing.methods import PackingMethod, PackingOptions
from superpose.packing.packed import Packed, unpack
from superpose.packing.sources import Source, Sources


class Joint(PackingMethod):
    """Weights in which no model has a part of its own: a subclass writes `fill`.

    To add or replace a model they are found again for all of them. The models stored before are
    read out of the weights as they are, so the result is not quite that of packing from the start.
    """

    needs_inputs: ClassVar[bool] = False
    """Whether finding the weights again takes calibration inputs of all tasks."""

    def add(self, packed: Packed, name: str, model: nn.Module, options: PackingOptions) -> None:
        """Find the weights again, with one model more."""
        self._check_inputs(options)
        after = copy.deepcopy(packed)
        after.add_task(name)
        self.fill(after, Sources({**_models(packed), name: model}), options)
        packed.add_task(name)
        packed.load_state_dict(after.state_dict())

    def remove(self, packed: Packed, name: Name, model: nn.Module | None) -> None:
        """Forget the task; the weights stay as they are."""
        if model is not None:
            raise SuperposeError(
                f"method {self.name!r} stores no term that could be subtracted: remove a task by "
                "its name alone"
            )
        packed.remove_task(name)

    def replace(
        self,
        packed: Packed,
        name: Name,
        model: nn.Module,
        old: nn.Module | None,
        options: PackingOptions,
    ) -> None:
        """Find the weights again, with another model."""
        self._check_inputs(options)
        after = copy.deepcopy(packed)
        self.fill(after, Sources({**_models(packed), name: model}), options)
        packed.load_state_dict(after.state_dict())

    def _check_inputs(self, options: PackingOptions) -> None:
        if self.needs_inputs and options.calibration is None:
            raise SuperposeError(
                "the weights of a solved model are found again for all of its tasks: give "
                "calibration=…, inputs of each task, as when it was packed"
            )


def _models(packed: Packed) -> dict[Any, Source]:
    """The stored models, each read out when it is wanted."""
    return {name: functools.partial(unpack, packed, name) for name in packed.tasks}
