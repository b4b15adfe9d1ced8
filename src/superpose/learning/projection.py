"""Steps that keep away from what earlier tasks need: gradients projected in the bound space.

A step dW changes what a layer gives task k by dW·C(k)·x, so it costs nothing where no earlier task
has inputs. With Λ = Σₖ E[C(k) x xᵀ C(k)ᵀ] over the tasks learned so far, each scaled to a mean
eigenvalue of one, the gradient G of a layer's weight (outputs, inputs) becomes

    G P  with  P = (I + strength · Λ)⁻¹.

By Woodbury's identity this is the projector of OWM (Zeng et al. 2019, orthogonal weights
modification), I − A (Aᵀ A + α I)⁻¹ Aᵀ with the earlier inputs as columns of A. OGD (Farajtabar et
al. 2019) and GPM (Saha et al. 2021) are kin: they take directions out whole, of gradients or of
inputs. Here the inputs are those that the shared weight meets, C(k)·x; each task weighs as much as
another, however large its inputs are; and there is a pace: the usual optimisers scale a gradient to
the size of its steps again, so the learning rate of what tasks share is multiplied with √(tr P/M),
M being the inputs. Tasks tread more lightly as room gets scarce. With the family `identity` it is
OWM with these two changes.

Contexts and projection need each other: contexts turn the tasks' inputs apart, so that a direction
that one task needs is one that another can do without, and projection takes care of those few
directions, the mean of the activations first, that carry most of the crosstalk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.guards import Guard, Run, copy_tensors, rows_in
from superpose.model import Superposed
from superpose.nn import Layer
from superpose.quiet import quiet_run


class Projection(Guard):
    """G P for the linear, convolution and attention layers of a superposed model.

    It keeps Λ and P: twice (inputs)² numbers for each layer, for any number of tasks. Λ is
    estimated from `samples` rows of each task. The out-projection of `nn.MultiheadAttention`, which
    is read and never called, is left alone.

    >>> import superpose as sp
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = sp.superpose(net, "hadamard", tasks=["a", "b"])
    >>> guard = Projection(model)
    >>> guard.end("a", [torch.randn(64, 4)])
    >>> guard.pace < 1
    True
    """

    OPTIONS = ("strength", "samples")

    def __init__(self, model: nn.Module, strength: float = 1.0, samples: int = 2048) -> None:
        if not strength >= 0 or samples < 1:
            raise SuperposeError(
                f"strength={strength}, samples={samples}: a projection's strength is at least 0, "
                "and it needs at least one row of each task"
            )
        super().__init__(model)
        self.strength, self.samples = strength, samples
        layers = self.model.superposed_layers if isinstance(self.model, Superposed) else []
        self.weights = {
            f"{layer.path}.{name}": (layer, name)
            for layer in layers
            for name in layer.bound
            if layer.is_linear_map(name) and layer.called == layer.path
        }
        if not self.weights or any(
            layer.stored(n).is_complex() for layer, n in self.weights.values()
        ):
            raise SuperposeError(
                "projection guides the linear and convolution layers of a superposed network, and "
                "its weights are real: use it with a family, such as hadamard+projection, but not "
                "with complex or onepower"
            )
        if layers[0] is self.model:
            raise SuperposeError(
                f"{type(model).__name__} is one layer, whose inputs projection cannot see: put it "
                "inside a module of its own"
            )
        self.needed = {full: self._zeros(*weight) for full, weight in self.weights.items()}  # Λ
        self.guides: dict[str, Tensor] = {}  # P (groups, inputs, inputs)

    @torch.no_grad()
    def after_backward(self) -> None:
        """Project the gradients."""
        for full, guide in self.guides.items():
            layer, name = self.weights[full]
            gradient, layout = layer.stored(name).grad, layer.bound[name].layout
            if gradient is not None:
                guided = layout.to_blocks(gradient) @ guide.to(gradient)
                gradient.copy_(layout.from_blocks(guided))

    def remember(self, task: Any, batches: Iterable[Any], run: Run) -> None:
        """Add the task's inputs to Λ."""
        rows = 0
        with quiet_run(), self._watching() as found:
            for batch in batches:
                run(batch)
                rows += rows_in(batch)
                if rows >= self.samples:
                    break
        if not rows:
            raise SuperposeError(
                f"projection was given no rows of task {task!r}: give batches that can be read "
                "again, such as a list or a DataLoader, not a generator that is used up"
            )
        for full, own in found.items():
            mean = own.diagonal(dim1=-2, dim2=-1).mean()
            self.needed[full] += own / mean.clamp_min(torch.finfo(mean.dtype).tiny)
        self._guide()

    @contextmanager
    def _watching(self) -> Iterator[dict[str, Tensor]]:
        """Σ C(k) x xᵀ C(k)ᵀ of what runs through the model in here."""
        found = {full: torch.zeros_like(needed) for full, needed in self.needed.items()}
        with ExitStack() as stack:
            for full, (layer, name) in self.weights.items():
                hook = self._noting(layer, name, found[full])
                handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            yield found

    def _noting(self, layer: Layer, name: str, found: Tensor) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
            own, _ = layer.own()
            for met in layer.inputs_of(name, module, inputs, options, seed=0):
                x = layer.bound_inputs(name, own, met.x)  # (groups, rows, inputs)
                found.add_(x.mT @ x)

        return note

    def _zeros(self, layer: Layer, name: str) -> Tensor:
        weight = layer.stored(name)
        blocks = layer.bound[name].layout.to_blocks(weight.detach())
        return torch.zeros(len(blocks), blocks.shape[-1], blocks.shape[-1], device=weight.device)

    def _guide(self) -> None:
        """P = (I + strength · Λ)⁻¹, and the pace √(tr P / M), the mean over all weights."""
        for full, needed in self.needed.items():
            eye = torch.eye(needed.shape[-1], dtype=torch.float64, device=needed.device)
            self.guides[full] = torch.linalg.inv(eye + self.strength * needed.double()).to(needed)
        sizes = [layer.stored(name).numel() for layer, name in self.weights.values()]
        room = [float(guide.diagonal(dim1=-2, dim2=-1).mean()) for guide in self.guides.values()]
        shares = (size * share**0.5 for size, share in zip(sizes, room, strict=True))
        self.pace = sum(shares) / sum(sizes)

    def state_dict(self) -> dict[str, Any]:
        """Λ, and whether a task is behind."""
        return {"active": bool(self.guides), "needed": dict(self.needed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the Λ of another."""
        copy_tensors(self.needed, state["needed"])
        self.guides, self.pace = {}, 1.0
        if state["active"]:
            self._guide()

    @property
    def numbers(self) -> int:
        """Λ and P."""
        return 2 * sum(needed.numel() for needed in self.needed.values())
