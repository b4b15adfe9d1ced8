"""Mixtures of contexts; products and powers are the operators `*` and `**` of base.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from superpose.contexts.base import Composition, Context, Family, Phased
from superpose.errors import SuperposeError
from superpose.keys import Key


def mix(contexts: Sequence[Context], weights: Sequence[float] | None = None) -> Context:
    """The context whose phases are the weighted average of the phases, Σ w φ / Σ w.

    >>> from superpose.contexts import Phase
    >>> a, b = (Phase().context(Key(0, "layer", task), 8) for task in (0, 1))
    >>> bool((mix([a, b]).turns - (a.turns + b.turns) / 2).abs().max() < 1e-12)
    True
    """
    weights = [1.0] * len(contexts) if weights is None else list(weights)
    if not contexts or len(weights) != len(contexts):
        raise SuperposeError(f"{len(contexts)} contexts and {len(weights)} weights: give one each")
    if sum(weights) == 0:
        raise SuperposeError(f"the weights {weights} sum to zero: no average exists")
    first = contexts[0]
    if not isinstance(first, Phased) or any(type(other) is not type(first) for other in contexts):
        kinds = ", ".join(sorted({type(context).__name__ for context in contexts}))
        raise SuperposeError(
            f"only contexts made of phases can be mixed, all of one kind; got {kinds}: use the "
            "families complex, onepower or phase"
        )
    phased = [context for context in contexts if isinstance(context, Phased)]
    terms = [context.turns * weight for context, weight in zip(phased, weights, strict=True)]
    return first.with_turns(torch.stack(terms).sum(0) / sum(weights))


@dataclass(frozen=True)
class LocalMix(Composition):
    """A task's phases averaged with those of the `window` tasks before and after it.

    Neighbouring tasks then share what they learn; over complex contexts, one per step, it is the
    paper's pspFastLocalMix. `weights` are those of the 2 · window + 1 tasks, equal by default.
    """

    family: Family
    window: int = 1
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Take the weights as a list too; what has them as a tuple can be looked up."""
        super().__post_init__()
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))

    def context(self, key: Key, dim: int) -> Context:
        """exp(i · average of φ(k − window) … φ(k + window))."""
        neighbours = range(key.task - self.window, key.task + self.window + 1)
        contexts = [self.family.context(Key(key.seed, key.layer, k), dim) for k in neighbours]
        return mix(contexts, self.weights)
