"""The state of a superposed model: what is checked, saved, loaded, moved and copied."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model.views import Views
from superpose.nn.flats import STATISTICS
from superpose.nn.private import BEGUN, STATE

MEANING = "superposition"  # in the metadata of a state
DERIVED = (
    "_kept_views",
    "_layers",
    "_shared",
    "_waiting",
    "_way",
)  # is found again when it is needed


class State(Views):
    """The part of a superposed model that keeps its state true."""

    def check_layers(self) -> None:
        """Refuse layers that were replaced, and starts of tasks that were written to."""
        for name in DERIVED:
            self.__dict__.pop(name, None)
        self.private_state.check_starts({layer.path: layer for layer in self.superposed_layers})

    def train(self, mode: bool = True) -> Self:
        """As for any module, with a look at layers that were replaced since."""
        if STATE in self._modules:
            self.check_layers()
        return super().train(mode)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Statistics of tasks: `DistributedDataParallel` leaves them to `sp.agree`."""
        return [
            f"{STATE}.{name}.{task}"
            for name, flats in self.private_state.flats.items()
            if flats.kind.startswith(STATISTICS) or flats.kind == "recognition"
            for task in flats.own
        ]

    def _replicate_for_data_parallel(self) -> Any:
        raise SuperposeError(
            "nn.DataParallel copies a model in each pass, and its copies have no tasks: use "
            "torch.nn.parallel.DistributedDataParallel, and sp.agree(model)"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.__dict__.pop("_kept_views", None)
        made: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return made

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """As for any module; what its tensors mean is kept beside PyTorch's number of versions."""
        self.check_layers()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        beside = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if beside is not None:
            beside[MEANING] = self.superposition.meaning()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any
    ) -> None:
        """Refuse a state of something else before any of it is read."""
        if f"{prefix}{STATE}.{BEGUN}" not in state_dict:
            raise SuperposeError(
                "the state is not that of a superposed model, and its weights would be scrambled: "
                "load it into the plain network, and superpose that with base=True; of a "
                "superposed model, give the whole state"
            )
        differences = self.superposition.differences(local_metadata.get(MEANING))
        if differences:
            raise SuperposeError("; ".join(differences))
        self.__dict__.pop("_kept_views", None)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    def __getstate__(self) -> dict[str, Any]:
        plain: Any = super()  # recurrent layers leave out references that have no copy
        state = plain.__getstate__()
        return {k: v for k, v in state.items() if k not in DERIVED}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return made
