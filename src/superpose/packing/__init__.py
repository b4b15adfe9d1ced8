"""Offline storage: pack trained models into one, get them back."""

from superpose.packing.additive import Additive
from superpose.packing.delta import Delta
from superpose.packing.joint import Joint
from superpose.packing.methods import METHODS, PackingMethod, PackingOptions, register
from superpose.packing.packed import Packed, set_private, unpack
from superpose.packing.packing import pack
from superpose.packing.solve import Solve
from superpose.packing.sum import Sum

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
