"""Learning task after task: one loop for all streams, models and methods."""

from superpose.learning.display import Display, Lines, LiveTable, Progress, Quiet
from superpose.learning.interrupt import Interrupted
from superpose.learning.loop import Outcome, train
from superpose.learning.methods import NETWORKS, PENALTIES, Method, method
from superpose.learning.metrics import summarise
from superpose.learning.optimisers import OPTIMISERS, SCHEDULES
from superpose.learning.penalties import EWC, SI, OnlineEWC, Penalty, Quadratic, fisher
from superpose.learning.projection import Projection
from superpose.learning.streams import Batch, Stream, TensorStream

__all__ = [
    "EWC",
    "NETWORKS",
    "OPTIMISERS",
    "PENALTIES",
    "SCHEDULES",
    "SI",
    "Batch",
    "Display",
    "Interrupted",
    "Lines",
    "LiveTable",
    "Method",
    "OnlineEWC",
    "Outcome",
    "Penalty",
    "Progress",
    "Projection",
    "Quadratic",
    "Quiet",
    "Stream",
    "TensorStream",
    "fisher",
    "method",
    "summarise",
    "train",
]
