"""Method `sum`: the paper's equation 1, for study."""

from superpose.packing.additive import Additive


class Sum(Additive):
    """W = Σₖ Wₖ C(k)⁻¹."""

    name = "sum"
