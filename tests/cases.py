"""One row a family: a new family is a new row here, and passes every law."""

from dataclasses import dataclass
from functools import partial

import pytest
import reference

from superpose import contexts
from superpose.contexts import Family


@dataclass(frozen=True)
class Case:
    family: Family
    matrix: object  # (key, dim) → dense C as a NumPy array, written independently
    exact: bool = False  # unbind undoes bind without rounding
    commutes: bool = True

    def __str__(self) -> str:
        return type(self.family).__name__


CASES = [
    Case(contexts.Identity(), reference.identity, exact=True),
    Case(contexts.Binary(), reference.binary, exact=True),
    Case(contexts.Complex(), reference.complex_),
    Case(contexts.OnePower(), reference.onepower),
    Case(contexts.Rotation(), reference.rotation, commutes=False),
    Case(contexts.Permutation(), reference.permutation, exact=True, commutes=False),
    Case(contexts.BlockRotation(), partial(reference.block_rotation, size=16), commutes=False),
    Case(
        contexts.BlockRotation(block_size=5),
        partial(reference.block_rotation, size=5),
        commutes=False,
    ),
    Case(contexts.Phase(), reference.phase),
    Case(contexts.Hadamard(), reference.hadamard, commutes=False),
]
NAMES = list(contexts.FAMILIES)
REAL = [name for name in NAMES if name not in ("complex", "onepower")]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_family = pytest.mark.parametrize("family", NAMES)
real_family = pytest.mark.parametrize("family", REAL)
