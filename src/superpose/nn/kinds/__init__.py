"""Kinds of private tensors beside a bound weight: y = W₀x + W·C(k)·(x − μₖ) + Bₖ·Aₖ·x + bₖ."""

from superpose.nn.kinds.input_statistics import InputStatistics
from superpose.nn.kinds.kind import Acts, Kind
from superpose.nn.kinds.learned_context import LearnedContext
from superpose.nn.kinds.low_rank import LowRank
from superpose.nn.kinds.mean import RowMean, TaskMean

__all__ = ["Acts", "InputStatistics", "Kind", "LearnedContext", "LowRank", "RowMean", "TaskMean"]
