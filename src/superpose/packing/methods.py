"""Packing methods: what each of them has to do, and which there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from superpose.errors import SuperposeError, kind_of
from superpose.model import Name, Superposed
from superpose.packing.sources import Sources

if TYPE_CHECKING:
    from superpose.packing.packed import Packed


@dataclass(frozen=True)
class PackingOptions:
    """What `pack`, `add` and `replace` were given beside the models."""

    calibration: Mapping[Any, Any] | None = None
    base: nn.Module | None = None
    random_pairing: bool = False
    batch_size: int = 256
    finetune: int = 0
    input_shape: tuple[int, ...] | None = None
    rank: int = 0
    track: Callable[[Any, str], Any] = lambda steps, label: steps  # shows progress

    def __post_init__(self) -> None:
        if self.finetune < 0:
            raise SuperposeError(f"finetune={self.finetune}: it is a number of steps")
        if self.calibration is not None and not isinstance(self.calibration, Mapping):
            raise SuperposeError(
                f"calibration is {kind_of(self.calibration)}: give a mapping from names of models "
                "to their inputs, as in {'cats': inputs}"
            )
        if isinstance(self.base, Superposed):
            raise SuperposeError("the base is superposed: give unsuperpose(base, task)")
        if self.base is not None and not isinstance(self.base, nn.Module):
            raise SuperposeError(
                f"base is {kind_of(self.base)}: give the network that the models were fine-tuned "
                "from, a module; a state dict goes into one with load_state_dict()"
            )


class PackingMethod(ABC):
    """How the weights of a packed model are found from the models that it stores.

    Subclass `Additive` if each model is a term of a sum, `Joint` if all of them are needed to find
    the weights; then little is left to write. `register` makes a method known by its `name`, which
    is what a file keeps of it.
    """

    name: str
    takes: ClassVar[frozenset[str]] = frozenset()
    """Of `finetune`, `random_pairing`, `rank`, those that it makes use of; others are refused."""

    @abstractmethod
    def fill(self, packed: Packed, sources: Sources, options: PackingOptions) -> None:
        """Set weights and private tensors for all tasks; in `pack` the weights start at zero."""

    @abstractmethod
    def add(self, packed: Packed, name: str, model: nn.Module, options: PackingOptions) -> None:
        """Store one more model, under a name that is new."""

    @abstractmethod
    def remove(self, packed: Packed, name: Name, model: nn.Module | None) -> None:
        """Forget a task; where the model is given, as if it had never been stored."""

    @abstractmethod
    def replace(
        self,
        packed: Packed,
        name: Name,
        model: nn.Module,
        old: nn.Module | None,
        options: PackingOptions,
    ) -> None:
        """Store another model under a name that is there, in place of the `old` one."""

    def base(self, sources: Sources, given: nn.Module | None) -> nn.Module | None:
        """The model from which differences are stored, if it is differences."""
        return given

    def check(self, options: PackingOptions) -> None:
        """Refuse an option that it makes no use of."""
        for option in ("random_pairing", "finetune", "rank"):
            value = getattr(options, option)
            if value and option not in self.takes:
                given = option if value is True else f"{option}={value}"
                users = [repr(name) for name, one in METHODS.items() if option in one.takes]
                raise SuperposeError(
                    f"{given} is for method {' or '.join(users)}, and this one is {self.name!r}"
                )


METHODS: dict[str, PackingMethod] = {}
"""The methods that are known by name."""


def register(method: PackingMethod) -> None:
    """Make a method known by its name, to `pack` and to files that were packed by it."""
    METHODS[method.name] = known(method)


def known(method: str | PackingMethod) -> PackingMethod:
    """The method of a name, or the one that is given, whose name must not be another's."""
    if isinstance(method, str):
        if method not in METHODS:
            raise SuperposeError(f"method={method!r}: use one of {', '.join(METHODS)}")
        return METHODS[method]
    if not isinstance(method, PackingMethod):
        raise SuperposeError(
            f"method={method!r}: give a name, one of {', '.join(METHODS)}, or a PackingMethod"
        )
    if not getattr(method, "name", ""):
        raise SuperposeError(f"{type(method).__name__} has no name, which a file would keep of it")
    other = METHODS.get(method.name, method)
    if _origin(other) != _origin(method):
        raise SuperposeError(
            f"{type(method).__name__} is named {method.name!r}, and so is {type(other).__name__}: "
            "files could not tell them apart; give yours another name"
        )
    return method


def stored(name: str) -> PackingMethod:
    """The method of a name that was read from a file."""
    if name not in METHODS:
        raise SuperposeError(
            f"the models were packed by method {name!r}, which is not known here: "
            "superpose.packing.register it before loading"
        )
    return METHODS[name]


def _origin(method: PackingMethod) -> tuple[str, str]:
    """Where a class was written; one that is defined again, as in a notebook, is the same."""
    return type(method).__module__, type(method).__qualname__
