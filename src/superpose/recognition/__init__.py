"""The task found, not told: which of its tasks an input of a superposed model belongs to."""

from superpose.nn.statistics import Statistics
from superpose.recognition.evidence import Evidence, Judged
from superpose.recognition.finding import EVIDENCE, Found, recognise
from superpose.recognition.inputs import Inputs
from superpose.recognition.memory import duplicates, join, keep, recognisable, remember
from superpose.recognition.outputs import Outputs
from superpose.recognition.shortlist import Shortlist

__all__ = [
    "EVIDENCE",
    "Evidence",
    "Found",
    "Inputs",
    "Judged",
    "Outputs",
    "Shortlist",
    "Statistics",
    "duplicates",
    "join",
    "keep",
    "recognisable",
    "recognise",
    "remember",
]
