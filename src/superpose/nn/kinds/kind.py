"""What a kind of private tensor is: its names, its start, and where it acts in the equation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from superpose.contexts import Context

if TYPE_CHECKING:
    from superpose.nn.layer import Layer
    from superpose.nn.view import LayerView

ACTS = ("context", "prepare", "before", "beside", "matrix", "bias", "note")


class Kind:
    """Private tensors that tasks have beside a bound weight: y = W₀x + W·C(k)·x + bₖ.

    A subclass says what a task starts from (`starts`) and defines those of the acts that it has;
    they are listed for each layer when the model is made, so a layer asks nobody else. The names
    of its tensors are the weight's, with an ending.
    """

    flat: ClassVar[str] = "trained"  # which flat tensor has its numbers: see `private.py`
    words: ClassVar[str] = ""  # for `summary()`
    option: str = ""  # of `superpose`, that asks for it

    def starts(self, layer: Layer, name: str) -> dict[str, Tensor] | None:
        """A task's first tensors, by the endings of their names; None if the weight has none."""
        raise NotImplementedError

    def context(
        self,
        layer: Layer,
        name: str,
        tensors: dict[str, Tensor],
        tasks: list[int],
        index: Tensor | None,
    ) -> Context:
        """C(k), made of what was learned."""
        raise NotImplementedError

    def prepare(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Put beside the task's tensors something more that a pass needs."""

    def before(self, own: LayerView, name: str, x: Tensor) -> Tensor:
        """The input, less something, before it is bound."""
        raise NotImplementedError

    def beside(self, own: LayerView, name: str, x: Tensor) -> Tensor:
        """What is added to the product."""
        raise NotImplementedError

    def matrix(self, own: LayerView, name: str, matrix: Tensor) -> Tensor:
        """The matrix of a weight that is read, with the same effect."""
        raise NotImplementedError

    def bias(self, layer: Layer, own: LayerView, name: str, bias: Tensor | None) -> Tensor:
        """The bias of a layer whose weight is read, with the same effect."""
        raise NotImplementedError

    def note(self, layer: Layer, own: LayerView, name: str, x: Tensor) -> None:
        """Keep something of the input (rows, …, features), in training."""

    def has(self, act: str) -> bool:
        """Whether it acts there."""
        return getattr(type(self), act) is not getattr(Kind, act)


class Acts(NamedTuple):
    """The kinds that act on a layer, each with the name of the weight, for each act."""

    context: list[tuple[Kind, str]]
    prepare: list[tuple[Kind, str]]
    before: list[tuple[Kind, str]]
    beside: list[tuple[Kind, str]]
    matrix: list[tuple[Kind, str]]
    bias: list[tuple[Kind, str]]
    note: list[tuple[Kind, str]]

    @classmethod
    def of(cls, pairs: list[tuple[Kind, str]]) -> Acts:
        """Sort kinds, each with the weight that it is for, by where they act."""
        return cls(*([pair for pair in pairs if pair[0].has(act)] for act in ACTS))

    @property
    def kinds(self) -> list[tuple[Kind, str]]:
        """All of them."""
        every: list[Any] = [pair for pairs in self for pair in pairs]
        return list(dict.fromkeys(every))
