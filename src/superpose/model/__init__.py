"""Superposed models: conversion, the choice of the task, mixed batches."""

from superpose.model.superposed import (
    Superposed,
    build,
    layers,
    private_state,
    superpose,
    unsuperpose,
)
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
