"""Many models in one set of weights, each given back by its context."""

from superpose import contexts, models, nn
from superpose.errors import SuperposeError
from superpose.model import Superposed, superpose, unsuperpose

__all__ = ["SuperposeError", "Superposed", "contexts", "models", "nn", "superpose", "unsuperpose"]
