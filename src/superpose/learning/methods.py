"""Methods by name: how a network is made ready for many tasks, and which guards it learns with.

The two are independent choices: `binary` is a way to make a network ready, `ewc` a guard of the
plain network, `binary+ewc` both, and `binary+ewc+replay` has two guards.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from superpose import contexts
from superpose.cost import size
from superpose.errors import SuperposeError
from superpose.learning.doubt import Doubt
from superpose.learning.guards import Guard, Guards
from superpose.learning.penalties import EWC, SI, OnlineEWC
from superpose.learning.projection import Projection
from superpose.learning.replay import Replay
from superpose.learning.streams import Select
from superpose.model import Superposed, several, superpose, unsuperpose

GUARDS: dict[str, Callable[..., Guard]] = {
    "ewc": EWC,
    "ewc-online": OnlineEWC,
    "si": SI,
    "replay": Replay,
    "projection": Projection,
    "doubt": Doubt,
}
FAST: dict[str, contexts.Family] = {
    "fast": contexts.Complex(),
    "fast-localmix": contexts.LocalMix(contexts.Complex()),
}
NETWORKS = ("standard", "multihead", "separate", *contexts.FAMILIES, *FAST)
PLAIN_OPTIONS = ("private", "private_layers", "skip", "conv")  # of networks without contexts


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
    """How a network is made ready for many tasks, and what guards it.

    `select` says which number of a batch the network is told: that of its task (heads, separate
    networks), of its context (superposition), or none.
    """

    name: str
    make: Callable[[nn.Module, int, int], nn.Module]  # (network, tasks or contexts, seed)
    select: Select = "none"
    guard: Callable[[nn.Module, int], Guard] = lambda model, seed: Guard(model)


def method(
    name: str,
    *,
    strength: float | None = None,
    samples: int | None = None,
    head: str | None = None,
    **options: Any,
) -> Method:
    """Make the method of a name: a network, guards, or a network and guards joined by `+`.

    Networks: `standard` (as it comes), `multihead` (an output layer for each task, the last linear
    one unless `head` names another), `separate` (a network for each task), a family's name, `fast`
    and `fast-localmix` (complex contexts, for a stream with a new context at every step).
    Guards: the penalties `ewc`, `ewc-online` and `si`, `replay`, and, for superposed networks,
    `projection` and `doubt`. `strength` and `samples` go to those guards that have them; what else
    is given goes to `superpose`, such as `private="none"`. Other options of a guard, or one of your
    own: `dataclasses.replace(method("binary"), guard=lambda model, seed: Mine(model))`.

    >>> chosen = method("hadamard+projection+replay", strength=3)
    >>> guard = chosen.guard(chosen.make(nn.Sequential(nn.Linear(4, 2)), 2, 0), 0)
    >>> guard.describe()["guards"][0]
    {'name': 'Projection', 'strength': 3, 'samples': 2048}
    """
    network, *held = name.split("+")
    if network in GUARDS:
        network, held = "standard", [network, *held]
    networks = dict.fromkeys((*NETWORKS, *contexts.FAMILIES))
    if network not in networks or not all(one in GUARDS for one in held):
        raise SuperposeError(
            f"unknown method {name!r}: use one of {', '.join(networks)}, a guard "
            f"({', '.join(GUARDS)}), or several joined by +, such as binary+ewc"
        )
    if held and network == "separate":
        raise SuperposeError(
            f"method {name!r}: separate networks share nothing that {' and '.join(held)} could "
            "hold on to: use 'separate' alone"
        )
    if network == "standard" and options.get("private_layers"):
        raise SuperposeError(
            f"{name} is one network that is not told the task, so no layer of it can be private: "
            "use a family, or identity for a network without contexts"
        )
    if head is not None and network != "multihead":
        raise SuperposeError(
            f"method {name!r}: head={head!r} names the layer of multihead; a family takes "
            "private_layers=[…]"
        )
    ignored = [one for one, value in options.items() if value and one not in PLAIN_OPTIONS]
    if network in ("standard", "separate") and ignored:
        raise SuperposeError(
            f"method {name!r}: there is nothing superposed that {ignored[0]} could be of: leave it "
            "out, or use a family"
        )
    unknown = [one for one in options if one not in inspect.signature(superpose).parameters]
    if unknown or "tasks" in options:
        raise SuperposeError(
            f"method {name!r} takes no {(unknown or ['tasks'])[0]}: what it does not know goes to "
            "superpose(…), but for tasks, which are those of the stream"
        )
    guard = _guard(name, held, {"strength": strength, "samples": samples})
    if network in ("standard", "separate"):

        def plain(net: nn.Module, count: int, seed: int) -> nn.Module:
            net = _plain(net, options)
            return net if network == "standard" else Separate(net, count)

        return Method(name, plain, "none" if network == "standard" else "task", guard)
    if network == "multihead":

        def multihead(net: nn.Module, count: int, seed: int) -> nn.Module:
            layers = several("private_layers", options.get("private_layers", ()))
            own = {
                "private": "shared",
                **options,
                "private_layers": [*layers, head or _last_linear(net)],
            }
            return superpose(net, "identity", count, seed=seed, **own)

        return Method(name, multihead, "task", guard)

    def superposed(net: nn.Module, count: int, seed: int) -> nn.Module:
        return superpose(net, FAST.get(network, network), count, seed=seed, **options)

    return Method(name, superposed, "context", guard)


def _guard(
    name: str, held: list[str], options: dict[str, Any]
) -> Callable[[nn.Module, int], Guard]:
    """Make the guards of these names, each with those of the options that it has."""
    given = {option: value for option, value in options.items() if value is not None}
    takes = {one: inspect.signature(make).parameters.keys() for one, make in GUARDS.items()}
    for option in given:
        if not any(option in takes[one] for one in held):
            other = next(one for one in GUARDS if option in takes[one])
            raise SuperposeError(
                f"{name} has no guard for it, so it takes no {option}: add one that has, such as "
                f"+{other}"
            )

    def make(model: nn.Module, seed: int) -> Guard:
        wanted = {**given, "seed": seed}
        guards = [
            GUARDS[one](model, **{o: v for o, v in wanted.items() if o in takes[one]})
            for one in held
        ]
        return guards[0] if len(guards) == 1 else Guards(*guards) if guards else Guard(model)

    return make


def as_method(wanted: str | Method | Guard, model: nn.Module) -> Method:
    """Read a name, or take a guard; a superposed model is left as it is, and told the context."""
    if isinstance(wanted, Guard):
        if wanted.model is not model:
            raise SuperposeError(
                f"{type(wanted).__name__} guards another model: make it of the one that learns"
            )
        name, select = type(wanted).__name__, "context" if isinstance(model, Superposed) else "none"
        return Method(name, _as_it_is, select, lambda model, seed: wanted)  # type: ignore[arg-type]
    chosen = method(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(model, Superposed):
        return chosen
    if chosen.select != "none":
        raise SuperposeError(
            f"the model is superposed already, so it cannot be made {chosen.name!r}: leave the "
            "method out, or give the plain network"
        )
    return Method(chosen.name, _as_it_is, "context", chosen.guard)


def _as_it_is(net: nn.Module, count: int, seed: int) -> nn.Module:
    return net


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
