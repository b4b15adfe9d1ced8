"""What to expect of stored models: `plan` predicts it, `crosstalk` measures it.

Noise is always a share of energy: ‖what a layer gives − what it should give‖² / ‖what it should‖².
For the sum of equation 1 it is predicted in `summed`, for `solve` in `solved`.
"""

from superpose.analysis.comparison import Crosstalk, LayerCrosstalk, crosstalk
from superpose.analysis.planning import LayerPlan, Plan, plan

__all__ = ["Crosstalk", "LayerCrosstalk", "LayerPlan", "Plan", "crosstalk", "plan"]
