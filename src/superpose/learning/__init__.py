"""Learning task after task: guards for any training loop, and one small loop."""

from superpose.learning.display import Display, Lines, LiveTable, Progress, Quiet
from superpose.learning.doubt import Doubt
from superpose.learning.evaluation import accuracy
from superpose.learning.guards import Guard, Guards, shared_parameters
from superpose.learning.interrupt import Interrupted
from superpose.learning.loop import Outcome, train
from superpose.learning.methods import GUARDS, NETWORKS, Method, method
from superpose.learning.metrics import summarise
from superpose.learning.optimisers import OPTIMISERS, SCHEDULES
from superpose.learning.penalties import (
    EWC,
    SI,
    OnlineEWC,
    Quadratic,
    drawn_class,
    drawn_value,
    fisher,
)
from superpose.learning.projection import Projection
from superpose.learning.replay import Replay
from superpose.learning.streams import Batch, Stream, TensorStream

__all__ = [
    "EWC",
    "GUARDS",
    "NETWORKS",
    "OPTIMISERS",
    "SCHEDULES",
    "SI",
    "Batch",
    "Display",
    "Doubt",
    "Guard",
    "Guards",
    "Interrupted",
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
    "accuracy",
    "drawn_class",
    "drawn_value",
    "fisher",
    "method",
    "shared_parameters",
    "summarise",
    "train",
]
