"""Steps that keep away from what earlier tasks need: gradients projected in the bound space.

A step dW changes what a layer gives task k by dW C(k) x, so it costs nothing where no earlier task
has inputs. With Λ = Σₖ E[C(k) x xᵀ C(k)ᵀ] over the tasks learned so far, each scaled to a mean
eigenvalue of one, the gradient G of a layer's weight (outputs, inputs) becomes

    G P  with  P = (I + strength · Λ)⁻¹.

The usual optimisers scale a gradient to the size of its steps again, so the learning rate of what
tasks share is multiplied with √(tr P / M), M being the inputs: tasks tread more lightly as room
gets scarce.

Contexts and projection need each other: contexts turn the tasks' inputs apart, so that a direction
that one task needs is one that another can do without, and projection takes care of those few
directions, the mean of the activations first, that carry most of the crosstalk.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.hooks import Hook
from superpose.learning.labelled import Labelled
from superpose.model import layers
from superpose.nn.attention import MultiheadAttention
from superpose.nn.centring import centred_inputs
from superpose.nn.linear import LinearLayer
from superpose.packing.inputs import Weight


class Projection(Hook):
    """G P for the linear and convolution layers of a superposed model.

    It keeps Λ and P: twice (inputs)² numbers for each layer, for any number of tasks. Λ is
    estimated from `samples` rows of each task. With `means`, Λ has only the mean of each task's
    inputs in it, one direction a task; it is there to tell how much of the crosstalk lies in it.
    """

    def __init__(self, strength: float = 1.0, samples: int = 2048, means: bool = False) -> None:
        if not strength >= 0 or samples < 1:
            raise SuperposeError(
                f"strength={strength}, samples={samples}: a projection's strength is at least 0, "
                "and it needs at least one row of each task"
            )
        self.strength, self.samples, self.means = strength, samples, means
        self.weights: list[Weight] = []
        self.needed: list[Tensor] = []  # Λ (groups, inputs, inputs)
        self.guides: list[Tensor] = []  # P

    def begin(self, model: nn.Module) -> None:
        """Find the weights that it can guide, with no task behind."""
        found = [
            Weight(layer, name)
            for layer in layers(model)
            for name in layer.contexts
            if layer.is_linear_map and not isinstance(layer, MultiheadAttention)
        ]
        self.weights = [weight for weight in found if not weight.inside_attention]
        if not self.weights or any(weight.tensor.is_complex() for weight in self.weights):
            raise SuperposeError(
                "projection guides the linear and convolution layers of a superposed network, and "
                "its weights are real: use it with a family, such as hadamard+projection, but not "
                "with complex or onepower"
            )
        if not self.weights[0].layer.path:
            raise SuperposeError(
                f"{type(model).__name__} is one layer, whose inputs projection cannot see: put it "
                "inside a module of its own"
            )
        self.model = model
        shapes = [weight.matrix(weight.tensor.detach()).shape for weight in self.weights]
        self.needed = [
            torch.zeros(groups, inputs, inputs, device=weight.tensor.device)
            for weight, (groups, _, inputs) in zip(self.weights, shapes, strict=True)
        ]
        self.guides, self.pace = [], 1.0

    def end(self) -> None:
        """Leave the layers as they were."""
        for weight in self.weights:
            weight.layer.guides.clear()

    def after_backward(self) -> None:
        """Project the gradients of convolutions; linear layers have done so by themselves."""
        for weight, guide in zip(self.weights, self.guides, strict=False):
            gradient = weight.tensor.grad
            if gradient is not None and not isinstance(weight.layer, LinearLayer):
                gradient.copy_(weight.from_matrix(weight.matrix(gradient) @ guide.to(gradient)))

    def after_task(self, batches: Iterable[Labelled], generator: torch.Generator) -> None:
        """Add the task's inputs to Λ."""
        rows = 0
        with torch.no_grad(), self._watching() as found:
            for batch in batches:
                batch.through(self.model)
                rows += len(batch)
                if rows >= self.samples:
                    break
        for needed, own in zip(self.needed, found, strict=True):
            mean = own.diagonal(dim1=-2, dim2=-1).mean()
            needed += own / mean.clamp_min(torch.finfo(mean.dtype).tiny)
        self._guide()

    @contextmanager
    def _watching(self) -> Iterator[list[Tensor]]:
        """Σ C(k) x xᵀ C(k)ᵀ of what runs through the model in here."""
        found = [torch.zeros_like(needed) for needed in self.needed]

        def noted(weight: Weight, own: Tensor) -> Callable[..., None]:
            def note(module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
                selected = weight.layer.selected()[0]
                context = selected.contexts[weight.name]
                for part in weight.inputs(module, arguments, named, seed=0):
                    centred = centred_inputs(weight.layer, selected, weight.name, part.x)
                    x = weight.bind(centred, context)  # (groups, rows, inputs)
                    x = x.mean(1, keepdim=True) if self.means else x
                    own.add_(x.mT @ x)

            return note

        handles = [
            weight.layer.register_forward_pre_hook(noted(weight, own), with_kwargs=True)
            for weight, own in zip(self.weights, found, strict=True)
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()

    def _guide(self) -> None:
        self.guides = []
        for weight, needed in zip(self.weights, self.needed, strict=True):
            eye = torch.eye(needed.shape[-1], dtype=torch.float64, device=needed.device)
            guide = torch.linalg.inv(eye + self.strength * needed.double()).to(needed)
            self.guides.append(guide)
            if isinstance(weight.layer, LinearLayer):
                weight.layer.guides[weight.name] = guide[0].to(weight.tensor)
        sizes = [weight.tensor.numel() for weight in self.weights]
        room = [float(guide.diagonal(dim1=-2, dim2=-1).mean()) for guide in self.guides]
        shares = (size * share**0.5 for size, share in zip(sizes, room, strict=True))
        self.pace = sum(shares) / sum(sizes)

    def describe(self) -> dict[str, Any]:
        """Its name and options."""
        options = {"strength": self.strength, "samples": self.samples, "means": self.means}
        return {**super().describe(), **options}

    def state_dict(self) -> dict[str, Any]:
        """Λ, and whether a task is behind."""
        return {"active": bool(self.guides), "needed": self.needed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the Λ of another."""
        for own, saved in zip(self.needed, state["needed"], strict=True):
            own.copy_(saved)
        if state["active"]:
            self._guide()

    @property
    def numbers(self) -> int:
        """Λ and P."""
        return 2 * sum(needed.numel() for needed in self.needed)
