"""The task found, not told: which of its tasks an input of a superposed model belongs to."""

from superpose.nn import Statistics
from superpose.recognition.evidence import Evidence, Judged
from superpose.recognition.finding import EVIDENCE, Found, recognise
from superpose.recognition.inputs import Inputs
from superpose.recognition.memory import duplicates, join, keep, recognisable, remember
from superpose.recognition.outputs import Outputs

__all__ = [
    "EVIDENCE",
    "Evidence",
    "Found",
    "Inputs",
    "Judged",
    "Outputs",
    "Statistics",
    "duplicates",
    "join",
    "keep",
    "recognisable",
    "recognise",
    "remember",
]
