"""Penalties, hooks that hold weights near where earlier tasks left them: EWC and SI.

Both are a quadratic, strength/2 · Σ precision ⊙ (θ − centre)². They differ in what they know of a
weight's importance. The gradient is added after `backward`, so the data's own gradient is seen
first, and a step costs the same for any number of tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.hooks import Hook
from superpose.learning.labelled import Labelled
from superpose.model import Superposed
from superpose.nn import ComplexBatchNorm


def real(tensor: Tensor) -> Tensor:
    """The tensor itself, or the real and imaginary parts (…, 2) of a complex one, not copied."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that more than one task uses."""
    own: set[nn.Parameter] = set()
    if isinstance(model, Superposed):
        own = {p for task in model.tasks for p in model.private_parameters(task)}
    return [p for p in model.parameters() if p.requires_grad and p not in own]


def mixes_rows(model: nn.Module) -> bool:
    """Whether a norm without running statistics makes a row's output depend on its batch."""
    kinds = (nn.modules.batchnorm._BatchNorm, ComplexBatchNorm)
    norms = (module for module in model.modules() if isinstance(module, kinds))
    return any(norm.running_mean is None for norm in norms)


class Quadratic(Hook, ABC):
    """strength/2 · Σ precision ⊙ (θ − centre)² of the parameters that all tasks share."""

    def __init__(self, strength: float) -> None:
        if not strength >= 0:
            raise SuperposeError(f"strength={strength}: a penalty's strength is at least 0")
        self.strength = strength
        self.tensors: dict[str, list[Tensor]] = {}

    row_by_row = False
    """Whether it wants the logits of single rows, where rows do not mix."""

    @abstractmethod
    def consolidate(self, logits: Iterable[Tensor], generator: torch.Generator) -> None:
        """Renew `precision` and `centre` for the task that was just learned, by its logits."""

    def notice(self) -> None:
        """See the data's own gradient."""

    def begin(self, model: nn.Module) -> None:
        """Start with no task behind."""
        self.model, self.parameters = model, shared_parameters(model)
        if not self.parameters:
            raise SuperposeError(
                "ewc and si protect shared parameters; this network has none: use another method"
            )
        self.values = [real(parameter.data) for parameter in self.parameters]
        self.tensors = {name: self._zeros() for name in ("precision", "centre", *self.OWN)}
        self.active = False

    OWN: ClassVar[tuple[str, ...]] = ()
    """Names of further tensors to remember for each parameter; they start as zeros."""

    def after_backward(self) -> None:
        """Add strength · precision ⊙ (θ − centre) to the gradient."""
        self.notice()
        if self.active:
            away = torch._foreach_sub(self.values, self.tensors["centre"])
            torch._foreach_addcmul_(
                self.gradients(), self.tensors["precision"], away, value=self.strength
            )

    def after_task(self, batches: Iterable[Labelled], generator: torch.Generator) -> None:
        """Hold what the task needs from now on."""
        alone = self.row_by_row and not mixes_rows(self.model)
        parts = (part for batch in batches for part in batch.split(1 if alone else len(batch)))
        self.consolidate((part.through(self.model) for part in parts), generator)
        self.active = True

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter, zeros for one that this task does not use."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [real(p.grad) for p in self.parameters if p.grad is not None]

    def value(self) -> float:
        """strength/2 · Σ precision ⊙ (θ − centre)²."""
        away = torch._foreach_sub(self.values, self.tensors["centre"])
        terms = zip(self.tensors["precision"], away, strict=True)
        return self.strength / 2 * sum(float((p * a.square()).sum()) for p, a in terms)

    def describe(self) -> dict[str, Any]:
        """Its name and options."""
        options = {k: v for k, v in vars(self).items() if isinstance(v, int | float)}
        options.pop("active", None)
        return {**super().describe(), **options}

    def state_dict(self) -> dict[str, Any]:
        """Its tensors, and whether a task is behind."""
        return {"active": self.active, "tensors": self.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the tensors of another."""
        self.active = state["active"]
        for name, saved in state["tensors"].items():
            torch._foreach_copy_(self.tensors[name], saved)

    @property
    def numbers(self) -> int:
        """All its tensors."""
        return sum(tensor.numel() for kind in self.tensors.values() for tensor in kind)

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(value) for value in self.values]


class EWC(Quadratic):
    """Elastic weight consolidation (Kirkpatrick et al. 2017), one penalty for each task.

    The penalty of task k is λ/2 · Σ F_k ⊙ (θ − θ_k)², with the diagonal Fisher information F_k at
    the parameters θ_k that the task ended with. The sum over tasks is one quadratic whose precision
    is Σ F_k and whose centre is the mean of θ_k weighted by F_k, so two numbers a parameter hold
    all tasks exactly.

    F_k is the mean over `samples` of the task's training rows of (∂ log p(y|x) / ∂θ)², row by row,
    with y drawn from the model's own p(y|x).
    """

    row_by_row = True

    def __init__(self, strength: float = 1.0, samples: int = 1024) -> None:
        super().__init__(strength)
        self.samples = samples

    def consolidate(self, logits: Iterable[Tensor], generator: torch.Generator) -> None:
        """Σ F_k, and the mean of θ_k weighted by F_k."""
        found = fisher(self.parameters, logits, self.samples, generator)
        precision, centre = self.tensors["precision"], self.tensors["centre"]
        for i, new in enumerate(found):
            total = precision[i] + new
            share = torch.where(total > 0, new / total, 1.0)  # all of it where nothing is known
            centre[i].lerp_(self.values[i], share)
            precision[i].copy_(total)


class OnlineEWC(EWC):
    """EWC with a running Fisher information (Schwarz et al. 2018): λ/2 · Σ F̃ ⊙ (θ − θ_k)².

    F̃ ← decay · F̃ + F_k, and the centre is where the last task ended.
    """

    def __init__(self, strength: float = 10.0, samples: int = 1024, decay: float = 1.0) -> None:
        super().__init__(strength, samples)
        self.decay = decay

    def consolidate(self, logits: Iterable[Tensor], generator: torch.Generator) -> None:
        """F̃ ← decay · F̃ + F_k, centred at θ_k."""
        found = fisher(self.parameters, logits, self.samples, generator)
        torch._foreach_mul_(self.tensors["precision"], self.decay)
        torch._foreach_add_(self.tensors["precision"], found)
        torch._foreach_copy_(self.tensors["centre"], self.values)


class SI(Quadratic):
    """Synaptic intelligence (Zenke et al. 2017): c · Σ Ω ⊙ (θ − θ_k)², centred at the last task.

    ω = −Σ g ⊙ Δθ along a task's path is how much each parameter lowered the loss, g being the
    data's own gradient and Δθ what the optimiser did. At the task's end Ω grows by
    max(ω, 0) / (Δ² + ξ), where Δ is how far the parameter came in the task: a parameter that
    raised the loss is not held, nor pushed away.
    """

    def __init__(self, strength: float = 3.0, damping: float = 0.1) -> None:
        super().__init__(strength)
        self.damping = damping

    OWN = ("path", "travelled", "gradient", "before")

    def notice(self) -> None:
        """Note the data's gradient and where the step starts."""
        torch._foreach_copy_(self.tensors["gradient"], self.gradients())
        torch._foreach_copy_(self.tensors["before"], self.values)

    def after_step(self) -> None:
        """ω ← ω − g ⊙ Δθ."""
        moved = torch._foreach_sub(self.values, self.tensors["before"])
        torch._foreach_addcmul_(self.tensors["path"], self.tensors["gradient"], moved, value=-1.0)
        torch._foreach_add_(self.tensors["travelled"], moved)

    def consolidate(self, logits: Iterable[Tensor], generator: torch.Generator) -> None:
        """Ω ← Ω + max(ω, 0) / (Δ² + ξ), centred at θ_k; a new path starts."""
        gained = torch._foreach_clamp_min(self.tensors["path"], 0.0)
        squared = torch._foreach_mul(self.tensors["travelled"], self.tensors["travelled"])
        torch._foreach_add_(squared, self.damping)
        # c Ω is strength/2 · precision, so the precision is 2 Ω
        torch._foreach_addcdiv_(self.tensors["precision"], gained, squared, value=2.0)
        torch._foreach_copy_(self.tensors["centre"], self.values)
        torch._foreach_zero_(self.tensors["path"])
        torch._foreach_zero_(self.tensors["travelled"])


def fisher(
    parameters: Sequence[nn.Parameter],
    logits: Iterable[Tensor],
    samples: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """The diagonal of the Fisher information: mean over rows of (∂ log p(y|x) / ∂θ)², y ~ p(y|x).

    Each row has a backward pass of its own (a batch's mean gradient squared is something else),
    which goes through its whole batch. So it is quickest with logits (1, classes) of single rows,
    and right with batches where a network normalises by the batch.
    """
    total = [torch.zeros_like(real(parameter.data)) for parameter in parameters]
    rows = 0
    for batch in logits:
        log_p = F.log_softmax(batch, dim=1)  # (B, classes)
        drawn = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator)
        log_likelihood = log_p.gather(1, drawn.to(log_p.device)).squeeze(1)  # (B,)
        for one in log_likelihood[: samples - rows]:
            gradients = torch.autograd.grad(
                one, parameters, retain_graph=True, materialize_grads=True
            )
            found = [real(gradient) for gradient in gradients]
            torch._foreach_addcmul_(total, found, found)
            rows += 1
        if rows == samples:
            break
    if not rows:
        raise SuperposeError("the Fisher information needs at least one row of the task")
    return [sum_ / rows for sum_ in total]
