"""Superposed models: conversion, the choice of the task, mixed batches."""

from superpose.model.conversion import build, check_network, superpose, unsuperpose
from superpose.model.superposed import Superposed, layers, private_state
from superpose.model.tasks import Name, Superposition, Task, check_names, labels_of, several

__all__ = [
    "Name",
    "Superposed",
    "Superposition",
    "Task",
    "build",
    "check_names",
    "check_network",
    "labels_of",
    "layers",
    "private_state",
    "several",
    "superpose",
    "unsuperpose",
]
