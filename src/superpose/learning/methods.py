"""Methods by name: how a network is made ready for many tasks, and what holds its weights.

The two are independent choices: `binary` is a way to make a network ready, `ewc` a penalty on top
of the plain network, `binary+ewc` both.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from superpose import contexts
from superpose.cost import size
from superpose.errors import SuperposeError
from superpose.learning.penalties import EWC, SI, OnlineEWC, Penalty
from superpose.learning.projection import Projection
from superpose.model import Superposed, several, superpose, unsuperpose

PENALTIES: dict[str, Callable[..., Penalty]] = {
    "ewc": EWC,
    "ewc-online": OnlineEWC,
    "si": SI,
    "projection": Projection,
    "projection-means": functools.partial(Projection, means=True),
}
FAST: dict[str, contexts.Family] = {
    "fast": contexts.Complex(),
    "fast-localmix": contexts.LocalMix(contexts.Complex()),
}
NETWORKS = ("standard", "multihead", "separate", *contexts.FAMILIES, *FAST)


class Separate(nn.Module):
    """One network for each task: nothing is shared, so nothing is forgotten."""

    def __init__(self, net: nn.Module, tasks: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(copy.deepcopy(net) for _ in range(tasks))

    def forward(self, x: Tensor, task: int) -> Tensor:
        """What the task's own network says."""
        return self.nets[task](x)


@dataclass(frozen=True)
class Method:
    """What `method` makes of a name.

    `select` says which number of a batch the network is told: that of its task (heads, separate
    networks), of its context (superposition), or none.
    """

    name: str
    make: Callable[[nn.Module, int, int], nn.Module]  # (network, tasks or contexts, seed)
    select: Literal["task", "context", "none"] = "none"
    penalty: Penalty = field(default_factory=Penalty)


def method(
    name: str,
    *,
    strength: float | None = None,
    head: str | None = None,
    **options: Any,
) -> Method:
    """The method of a name: a network, a penalty, or `network+penalty`.

    Networks: `standard` (as it comes), `multihead` (an output layer for each task, the last linear
    one unless `head` names another), `separate` (a network for each task), a family's name, `fast`
    and `fast-localmix` (complex contexts, for a stream with a new context at every step).
    Penalties: `ewc`, `ewc-online`, `si` and, for superposed networks, `projection` and
    `projection-means`; `strength` is theirs. What else is given goes to `superpose`, such as
    `private="none"`. Other options of a penalty, or one of your own:
    `dataclasses.replace(method("binary"), penalty=EWC(samples=4096))`.

    >>> method("binary+ewc", strength=3).penalty.strength
    3
    """
    network, both, held = name.partition("+")
    if network in PENALTIES and not both:
        network, held = "standard", network
    if network not in NETWORKS or (both and held not in PENALTIES):
        raise SuperposeError(
            f"unknown method {name!r}: use one of {', '.join(NETWORKS)}, a penalty "
            f"({', '.join(PENALTIES)}), or both joined by +, such as binary+ewc"
        )
    if held and network == "separate":
        raise SuperposeError(f"{name}: separate networks share nothing that {held} could hold")
    if strength is not None and not held:
        raise SuperposeError(f"{name} has no penalty, so it takes no strength: add +ewc or +si")
    if network == "standard" and options.get("private_layers"):
        raise SuperposeError(
            f"{name} is one network that is not told the task, so no layer of it can be private: "
            "use a family, or identity for a network without contexts"
        )
    given = {} if strength is None else {"strength": strength}
    penalty = PENALTIES[held](**given) if held else Penalty()
    if network in ("standard", "separate"):

        def plain(net: nn.Module, count: int, seed: int) -> nn.Module:
            net = _plain(net, options)
            return net if network == "standard" else Separate(net, count)

        return Method(name, plain, "none" if network == "standard" else "task", penalty)
    if network == "multihead":

        def multihead(net: nn.Module, count: int, seed: int) -> nn.Module:
            layers = several("private_layers", options.get("private_layers", ()))
            own = {
                "private": "shared",
                **options,
                "private_layers": [*layers, head or _last_linear(net)],
            }
            return superpose(net, "identity", count, seed=seed, **own)

        return Method(name, multihead, "task", penalty)

    def superposed(net: nn.Module, count: int, seed: int) -> nn.Module:
        return superpose(net, FAST.get(network, network), count, seed=seed, **options)

    return Method(name, superposed, "context", penalty)


def as_method(wanted: str | Method, model: nn.Module) -> Method:
    """Read a name; `standard` leaves a superposed model as it is, and tells it the context."""
    chosen = method(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(model, Superposed):
        return chosen
    if chosen.select != "none":
        raise SuperposeError(
            f"the model is superposed already, so it cannot be made {chosen.name!r}: leave the "
            "method out, or give the plain network"
        )
    return Method(chosen.name, lambda net, count, seed: net, "context", chosen.penalty)


def numbers_stored(model: nn.Module) -> dict[str, int]:
    """How many numbers the model keeps; contexts are derived from keys and count as nothing."""
    if isinstance(model, Superposed):
        cost = model.cost()
        return {"stored": cost.stored, "private_per_task": cost.private_per_task}
    return {"stored": size([model]).numbers}


def _plain(net: nn.Module, options: dict[str, Any]) -> nn.Module:
    """The network without what `private="none"` takes away, so that methods compare like nets."""
    if options.get("private") != "none":
        return net
    return unsuperpose(superpose(net, "identity", tasks=1, **options))


def _last_linear(net: nn.Module) -> str:
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise SuperposeError("multihead: the network has no linear layer; name one with head=…")
    return names[-1]
