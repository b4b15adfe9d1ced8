"""Superposed models: conversion, the choice of the task, mixed batches."""

from superpose.model.batch import Batch, rows_of
from superpose.model.checked import Checked, check_mixed
from superpose.model.conversion import build, check_network, read_out, superpose, unsuperpose
from superpose.model.distributed import agree
from superpose.model.model import Superposed
from superpose.model.tasks import Name, Superposition, Task, check_names, labels_of, several

__all__ = [
    "Batch",
    "Checked",
    "Name",
    "Superposed",
    "Superposition",
    "Task",
    "agree",
    "build",
    "check_mixed",
    "check_names",
    "check_network",
    "labels_of",
    "read_out",
    "rows_of",
    "several",
    "superpose",
    "unsuperpose",
]
