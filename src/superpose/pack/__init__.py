"""Offline storage: pack trained models into one, get them back."""

from superpose.pack.additive import Additive
from superpose.pack.delta import Delta
from superpose.pack.joint import Joint
from superpose.pack.methods import METHODS, PackingMethod, PackingOptions, register
from superpose.pack.packed import Packed, set_private, unpack
from superpose.pack.packing import pack
from superpose.pack.solve import Solve
from superpose.pack.sum import Sum

__all__ = [
    "METHODS",
    "Additive",
    "Delta",
    "Joint",
    "Packed",
    "PackingMethod",
    "PackingOptions",
    "Solve",
    "Sum",
    "pack",
    "register",
    "set_private",
    "unpack",
]

register(Solve())
register(Sum())
register(Delta())
