"""What superposition costs: numbers and bytes, beside the paper's Table 1 and separate models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from superpose.contexts import (
    Binary,
    BlockRotation,
    Complex,
    Family,
    Hadamard,
    Identity,
    LayerContext,
    OnePower,
    Permutation,
    Phase,
    Rotation,
)
from superpose.keys import Key
from superpose.nn.private import Private, is_private
from superpose.nn.quantised import nbytes

NUMBERS: dict[type[Family], Callable[[Any, int], int]] = {
    Identity: lambda family, m: 0,
    Binary: lambda family, m: m,
    Complex: lambda family, m: m,
    OnePower: lambda family, m: 1,
    Rotation: lambda family, m: m * m,
    Permutation: lambda family, m: m,
    BlockRotation: lambda family, m: -(-m // family.block_size) * family.block_size**2,
    Phase: lambda family, m: (m + 1) // 2,
    Hadamard: lambda family, m: 2 * m,
}


def context_numbers(family: Family, dim: int, first: bool = False) -> int:
    """How many numbers the context of one task takes if it is stored, as the paper stores it.

    The first task of onepower brings the context whose powers all others are.

    >>> [context_numbers(family, 256) for family in (Binary(), OnePower(), Rotation())]
    [256, 1, 65536]
    """
    if first and isinstance(family, OnePower):
        return dim
    if type(family) in NUMBERS:
        return NUMBERS[type(family)](family, dim)
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel()
        return tensor

    family.context(Key(0, "", 1), dim).map(count)
    return total


@dataclass(frozen=True)
class Cost:
    """Numbers (a complex one counts as two) and bytes of a superposed model.

    `paper_*` is what the paper's Table 1 counts, contexts stored; `stored_*` is what is really
    kept here, where fixed contexts are derived from keys; `separate_*` is one plain model a task.
    """

    tasks: int
    learned: int  # tasks whose private tensors differ from the start: only those are stored
    shared: int
    first_context: int
    context_per_task: int
    private: int
    private_per_task: int
    plain: int
    shared_bytes: int
    private_bytes: int
    private_bytes_per_task: int
    plain_bytes: int

    @property
    def paper_parameters(self) -> int:
        """Table 1, "# parameters": the weights and the first model's context."""
        return self.shared + self.first_context

    @property
    def paper_per_task(self) -> int:
        """Table 1, "+1 model": what one more model adds."""
        return self.context_per_task

    @property
    def stored(self) -> int:
        """All numbers kept here."""
        return self.shared + self.private

    @property
    def stored_bytes(self) -> int:
        """All bytes kept here."""
        return self.shared_bytes + self.private_bytes

    @property
    def separate(self) -> int:
        """Numbers of one plain model for each task."""
        return self.tasks * self.plain

    @property
    def separate_bytes(self) -> int:
        """Bytes of one plain model for each task."""
        return self.tasks * self.plain_bytes

    def as_dict(self) -> dict[str, int]:
        """All of it, for JSON."""
        derived = [name for name, value in vars(Cost).items() if isinstance(value, property)]
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def __str__(self) -> str:
        rows: list[tuple[str, int | str, int | str]] = [
            ("", "numbers", "bytes"),
            ("shared by all tasks", self.shared, self.shared_bytes),
            ("private to a task", self.private_per_task, self.private_bytes_per_task),
            (
                f"stored, {self.learned} of {self.tasks} have private numbers",
                self.stored,
                self.stored_bytes,
            ),
            (f"{self.tasks} separate models", self.separate, self.separate_bytes),
            ("Table 1: # parameters", self.paper_parameters, ""),
            ("Table 1: +1 model", self.paper_per_task, ""),
        ]
        return "\n".join(f"{a:<36}{_grouped(b):>16}{_grouped(c):>18}".rstrip() for a, b, c in rows)


def _grouped(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def cost(
    model: nn.Module,
    bound: list[LayerContext],
    private: Private,
    tasks: int,
    plain: Size,
) -> Cost:
    """Count a superposed model, given its contexts, private tensors and the plain model's size."""
    flats = list(private.flats.values())
    kept = [one.own[task] for one in flats for task in one.learned()]
    own = Size(sum(map(numbers, kept)), sum(map(nbytes, kept)))
    shared = size([model], lambda name: not is_private(name))
    return Cost(
        tasks=tasks,
        learned=len({task for one in flats for task in one.learned()}),
        shared=shared.numbers,
        first_context=sum(c.groups * context_numbers(c.family, c.dim, first=True) for c in bound),
        context_per_task=sum(c.groups * context_numbers(c.family, c.dim) for c in bound),
        private=own.numbers,
        private_per_task=sum(numbers(one.start) for one in flats),
        plain=plain.numbers,
        shared_bytes=shared.bytes,
        private_bytes=own.bytes,
        private_bytes_per_task=sum(one.start.nbytes for one in flats),
        plain_bytes=plain.bytes,
    )


class Size(NamedTuple):
    """Real numbers, a complex one being two, and bytes."""

    numbers: int
    bytes: int


def size(modules: Iterable[nn.Module], counted: Callable[[str], bool] = bool) -> Size:
    """The size of what modules keep in their state, tensors that they share counted once."""
    states = (module.state_dict(keep_vars=True).items() for module in modules)
    kept = (tensor for state in states for name, tensor in state if counted(name))
    tensors = {id(t): t for t in kept if isinstance(t, Tensor)}.values()
    return Size(sum(map(numbers, tensors)), sum(map(nbytes, tensors)))


def numbers(tensor: Tensor) -> int:
    """How many real numbers it has."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)
