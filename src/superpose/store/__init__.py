"""Offline storage: pack trained models into one, get them back."""

from superpose.store.packed import METHODS, Packed, pack, unpack

__all__ = ["METHODS", "Packed", "pack", "unpack"]
