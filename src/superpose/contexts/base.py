"""What a context is, and what a family is: everything that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Self, TypeVar

import torch
import torch.export
from torch import Tensor

from superpose import functional
from superpose.errors import SuperposeError
from superpose.keys import Key

C = TypeVar("C", bound=type["Context"])


def register_context(context: C) -> C:
    """Let `torch.func` and `torch.compile` see the tensors inside a context."""
    torch.export.register_dataclass(context)
    return context


@dataclass(frozen=True, eq=False)
class Context(ABC):
    """C(k), an invertible linear map of the last dimension. Its fields are its tensors.

    A context of one task acts on x of shape (…, M). Contexts of B tasks, put together by `stack`,
    have fields that begin with B and act on x of shape (B, M), each on its own row; `by_row` lets
    them act on x of shape (B, N, M).
    """

    @abstractmethod
    def bind(self, x: Tensor) -> Tensor:
        """C x."""

    @abstractmethod
    def transpose(self) -> Context:
        """Cᵀ."""

    @abstractmethod
    def inverse(self) -> Context:
        """C⁻¹."""

    def unbind(self, x: Tensor) -> Tensor:
        """C⁻¹ x."""
        return self.inverse().bind(x)

    def bind_weight(self, weight: Tensor) -> Tensor:
        """W C, so that linear(bind(x), W) = linear(x, bind_weight(W)): reads a model out."""
        return self.transpose().bind(weight)

    def unbind_weight(self, weight: Tensor) -> Tensor:
        """W C⁻¹: how a model is stored (equation 1 of the paper)."""
        return self.inverse().transpose().bind(weight)

    def __mul__(self, other: Context) -> Context:
        """(a * b).bind(x) = a.bind(b.bind(x))."""
        return Product(self, other)

    def __pow__(self, exponent: float) -> Context:
        """C multiplied by itself; a negative exponent multiplies C⁻¹. Phases take any exponent."""
        if isinstance(self, Phased):
            return self.with_turns(self.turns * exponent)
        if exponent != int(exponent):
            raise SuperposeError(
                f"a {type(self).__name__} context has no power {exponent}: use a whole number, or "
                "a family made of phases (complex, onepower, phase)"
            )
        power: Context = Unchanged()
        for _ in range(abs(int(exponent))):
            power = self * power
        return power if exponent >= 0 else power.inverse()

    def map(self, function: Callable[..., Tensor], *others: Self) -> Self:
        """The context whose tensors are function(tensor, those of the others in the same place)."""
        mapped = []
        names: tuple[str, ...] = self.__match_args__  # of the fields, with no call of `fields`
        for name in names:
            values = [getattr(context, name) for context in (self, *others)]
            nested = isinstance(values[0], Context)
            mapped.append(values[0].map(function, *values[1:]) if nested else function(*values))
        return type(self)(*mapped)

    def take(self, index: Tensor) -> Self:
        """Of stacked contexts, that of `index[i]` for row i."""
        names: tuple[str, ...] = self.__match_args__
        values = [getattr(self, name) for name in names]
        return type(self)(
            *[v.take(index) if isinstance(v, Context) else v.index_select(0, index) for v in values]
        )

    def by_row(self) -> Self:
        """Stacked contexts, ready to act on (B, N, M)."""
        return self.map(lambda tensor: tensor.unsqueeze(1))

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same context on a device, real and complex numbers in the precision of `dtype`."""

        def move(tensor: Tensor) -> Tensor:
            if tensor.is_complex():
                return tensor.to(device, functional.wide(dtype).to_complex())
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return self.map(move)


def stack(contexts: Sequence[Context], index: Tensor | None = None) -> Context:
    """Contexts of several tasks as one with a leading dimension; `index` repeats them by row."""

    def join(*tensors: Tensor) -> Tensor:
        joined = torch.stack(tensors)
        return joined if index is None else joined.index_select(0, index)

    return contexts[0].map(join, *contexts[1:])


@register_context
@dataclass(frozen=True, eq=False)
class Unchanged(Context):
    """C = I; gives back the very tensor it was given."""

    def bind(self, x: Tensor) -> Tensor:
        """Return x itself."""
        return x

    def transpose(self) -> Context:
        """I."""
        return self

    def inverse(self) -> Context:
        """I."""
        return self


@register_context
@dataclass(frozen=True, eq=False)
class Product(Context):
    """C = outer · inner."""

    outer: Context
    inner: Context

    def bind(self, x: Tensor) -> Tensor:
        """outer (inner x)."""
        return self.outer.bind(self.inner.bind(x))

    def transpose(self) -> Context:
        """innerᵀ · outerᵀ."""
        return Product(self.inner.transpose(), self.outer.transpose())

    def inverse(self) -> Context:
        """inner⁻¹ · outer⁻¹."""
        return Product(self.inner.inverse(), self.outer.inverse())


@dataclass(frozen=True, eq=False)
class Phased(Context):
    """A context made of phases: complex numbers of length one, (…, number of phases)."""

    phasors: Tensor

    @property
    def turns(self) -> Tensor:
        """The phases in turns, in [−½, ½]."""
        return functional.turns(self.phasors)

    def with_turns(self, turns: Tensor) -> Self:
        """A context of the same kind with other phases."""
        return type(self)(functional.phasors(turns, learned=turns.requires_grad))

    def inverse(self) -> Context:
        """The phases negated."""
        return type(self)(self.phasors.conj())


@dataclass(frozen=True)
class Family(ABC):
    """How contexts are made: a pure function from a key and a size to a context."""

    effort: ClassVar[int] = 1  # of binding a row, in multiples of what signs take

    @abstractmethod
    def context(self, key: Key, dim: int) -> Context:
        """C(k) of one layer for one task, in float64."""

    @abstractmethod
    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ⟨w, C(s)⁻¹ C(k) x⟩ over two random tasks s ≠ k (Proposition 2).

        w and x are (…, M) and broadcast. Summed over the stored models it is the crosstalk.
        """

    def __mul__(self, other: Family) -> Family:
        """The family whose context is the product of both families' contexts."""
        return ProductOf(self, other)

    def __pow__(self, exponent: float) -> Family:
        """The family whose context is a power of this family's."""
        return PowerOf(self, exponent)

    @property
    def complex_valued(self) -> bool:
        """Whether binding a real vector gives a complex one."""
        derived = replace(self, learnable=False) if isinstance(self, Drawn) else self  # any size
        return derived.context(Key(0, "", 1), 2).bind(torch.zeros(2, device="cpu")).is_complex()


@dataclass(frozen=True)
class Drawn(Family):
    """A family whose contexts are made of numbers drawn from the key, which can also be learned."""

    learnable: bool = field(default=False, kw_only=True)

    @abstractmethod
    def draw(self, key: Key, dim: int) -> Tensor:
        """The numbers of one task."""

    @abstractmethod
    def make(self, numbers: Tensor) -> Context:
        """The context of these numbers, differentiable in them; leading dimensions are batches."""

    def context(self, key: Key, dim: int) -> Context:
        """make(draw(key, dim))."""
        return self.make(self.draw(key, dim))


def with_learning(family: Family, learnable: bool) -> Family:
    """The family with its numbers learned or fixed; an error if it has none to learn."""
    if not learnable:
        return family
    if not isinstance(family, Drawn):
        raise SuperposeError(
            f"{type(family).__name__} has no numbers to learn: leave learnable out, or use one of "
            "binary, complex, onepower, phase, rotation, block-rotation, hadamard"
        )
    return replace(family, learnable=True)


@dataclass(frozen=True)
class Composition(Family):
    """A family made of others; its contexts are derived, never learned."""

    def __post_init__(self) -> None:
        """Take no part that wants to be learned: nothing would train it."""
        for one in fields(self):
            part = getattr(self, one.name)
            if isinstance(part, Drawn) and part.learnable:
                raise SuperposeError(
                    f"{type(part).__name__}(learnable=True) is part of a {type(self).__name__}, "
                    "which has no numbers to learn: leave learnable out, or use it by itself"
                )

    def moments(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Not known in closed form."""
        raise SuperposeError(
            f"the crosstalk of {self} has no closed form: measure it instead of predicting it"
        )


@dataclass(frozen=True)
class ProductOf(Composition):
    """C(k) = outer's C(k) times inner's C(k), each from a key of its own."""

    outer: Family
    inner: Family

    def context(self, key: Key, dim: int) -> Context:
        """The product of two independent contexts."""
        outer = Key(key.seed, f"{key.layer}:outer", key.task)
        inner = Key(key.seed, f"{key.layer}:inner", key.task)
        return self.outer.context(outer, dim) * self.inner.context(inner, dim)


@dataclass(frozen=True)
class PowerOf(Composition):
    """C(k) = the family's C(k) raised to a power."""

    family: Family
    exponent: float

    def context(self, key: Key, dim: int) -> Context:
        """A power of one context."""
        return self.family.context(key, dim) ** self.exponent
