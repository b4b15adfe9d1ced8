"""Superposed models: conversion, the choice of the task, mixed batches."""

from superpose.model.conversion import build, superpose, unsuperpose
from superpose.model.superposed import Superposed, layers, private_state
from superpose.model.tasks import Name, Superposition, Task, check_names, several

__all__ = [
    "Name",
    "Superposed",
    "Superposition",
    "Task",
    "build",
    "check_names",
    "layers",
    "private_state",
    "several",
    "superpose",
    "unsuperpose",
]
