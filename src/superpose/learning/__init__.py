"""Learning task after task: one loop for all streams, models and methods."""

from superpose.learning.display import Display, Lines, LiveTable, Progress, Quiet
from superpose.learning.doubt import Doubt
from superpose.learning.hooks import Hook, Hooks
from superpose.learning.interrupt import Interrupted
from superpose.learning.labelled import Labelled
from superpose.learning.loop import Outcome, train
from superpose.learning.methods import HOOKS, NETWORKS, Method, method
from superpose.learning.metrics import summarise
from superpose.learning.optimisers import OPTIMISERS, SCHEDULES
from superpose.learning.penalties import EWC, SI, OnlineEWC, Quadratic, fisher, shared_parameters
from superpose.learning.projection import Projection
from superpose.learning.replay import Replay
from superpose.learning.streams import Batch, Stream, TensorStream

__all__ = [
    "EWC",
    "HOOKS",
    "NETWORKS",
    "OPTIMISERS",
    "SCHEDULES",
    "SI",
    "Batch",
    "Display",
    "Doubt",
    "Hook",
    "Hooks",
    "Interrupted",
    "Labelled",
    "Lines",
    "LiveTable",
    "Method",
    "OnlineEWC",
    "Outcome",
    "Progress",
    "Projection",
    "Quadratic",
    "Quiet",
    "Replay",
    "Stream",
    "TensorStream",
    "fisher",
    "method",
    "shared_parameters",
    "summarise",
    "train",
]
