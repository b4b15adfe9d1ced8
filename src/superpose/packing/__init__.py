"""Offline storage: pack trained models into one set of weights, and get them back.

A method is a function: `solve.solve`, or `additive.add` for `sum` and `delta`, once per model.
"""

from superpose.packing.packed import METHODS, Packed, unpack
from superpose.packing.packing import pack

__all__ = ["METHODS", "Packed", "pack", "unpack"]
