"""Superposed models: conversion, the choice of the task, mixed batches."""

from superpose.model.superposed import (
    Name,
    Superposed,
    Superposition,
    Task,
    build,
    check_names,
    layers,
    private_state,
    several,
    superpose,
    unsuperpose,
)

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
