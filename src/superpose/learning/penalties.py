"""Penalties, guards that hold weights near where earlier tasks left them: EWC and SI.

Both are a quadratic, strength/2 · Σ precision ⊙ (θ − centre)². They differ in what they know of a
weight's importance. The gradient is added after `backward`, so the data's own gradient is seen
first, and a step costs the same for any number of tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from superpose.errors import SuperposeError
from superpose.learning.guards import Guard, Run, copy_tensors, named_shared, single_rows
from superpose.nn import ComplexBatchNorm

Likelihood = Callable[[Any, torch.Generator], Tensor]  # of outputs: log p of a y drawn from them


def real(tensor: Tensor) -> Tensor:
    """The tensor itself, or the real and imaginary parts (…, 2) of a complex one, not copied."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mixes_rows(model: nn.Module) -> bool:
    """Whether a norm without running statistics makes a row's output depend on its batch."""
    kinds = (nn.modules.batchnorm._BatchNorm, ComplexBatchNorm)
    norms = (module for module in model.modules() if isinstance(module, kinds))
    return any(norm.running_mean is None for norm in norms)


class Quadratic(Guard):
    """strength/2 · Σ precision ⊙ (θ − centre)² of the parameters that all tasks share."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("strength",)
    KEPT: ClassVar[tuple[str, ...]] = ()
    """Names of further tensors to keep for each parameter; they start as zeros."""

    def __init__(self, model: nn.Module, strength: float) -> None:
        if not strength >= 0:
            raise SuperposeError(f"strength={strength}: a penalty's strength is at least 0")
        super().__init__(model)
        named = named_shared(self.model)
        if not named:
            raise SuperposeError(
                "ewc and si protect shared parameters; this network has none: use another method"
            )
        self.strength, self.names, self.parameters = strength, list(named), list(named.values())
        kept = ("precision", "centre", *self.KEPT)
        self.tensors = {what: [torch.zeros_like(value) for value in self.values] for what in kept}
        self.active, self.steps = False, 0

    @property
    def values(self) -> list[Tensor]:
        """θ."""
        return [real(parameter.data) for parameter in self.parameters]

    @abstractmethod
    def consolidate(self, batches: Iterable[Any], run: Run) -> None:
        """Renew `precision` and `centre` for the task that was just learned."""

    def notice(self) -> None:
        """See the data's own gradient."""

    def after_backward(self) -> None:
        """Add strength · precision ⊙ (θ − centre) to the gradient."""
        self.steps += 1
        self.notice()
        if self.active:
            away = torch._foreach_sub(self.values, self.tensors["centre"])
            torch._foreach_addcmul_(
                self.gradients(), self.tensors["precision"], away, value=self.strength
            )

    def remember(self, task: Any, batches: Iterable[Any], run: Run) -> None:
        """Hold what the task needs from now on."""
        self.consolidate(batches, run)
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

    def state_dict(self) -> dict[str, Any]:
        """Its tensors by name, how many steps there were, and whether a task is behind."""
        tensors = {
            what: dict(zip(self.names, kept, strict=True)) for what, kept in self.tensors.items()
        }
        return {"active": self.active, "steps": self.steps, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the tensors of another."""
        for what, kept in self.tensors.items():
            copy_tensors(dict(zip(self.names, kept, strict=True)), state["tensors"][what])
        self.active, self.steps = state["active"], state["steps"]

    @property
    def numbers(self) -> int:
        """All its tensors."""
        return sum(tensor.numel() for kept in self.tensors.values() for tensor in kept)


def drawn_class(outputs: Any, generator: torch.Generator) -> Tensor:
    """log p(y|x) of each row, y drawn from the softmax of a classifier's logits (rows, …, classes).

    Of outputs with several places, such as those of a language model, it is the sum over them.
    """
    logits = getattr(outputs, "logits", outputs)
    log_p = logits.log_softmax(-1).flatten(0, -2)  # (places, classes)
    drawn = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator)
    log_likelihood = log_p.gather(1, drawn.to(log_p.device)).squeeze(1)
    return log_likelihood if logits.ndim == 2 else log_likelihood.view(len(logits), -1).sum(1)


def drawn_value(outputs: Tensor, generator: torch.Generator) -> Tensor:
    """log p(y|x) of each row, up to a constant, y drawn around a regression's outputs (rows, …)."""
    noise = torch.randn(outputs.shape, generator=generator).to(outputs)
    return -(outputs - (outputs.detach() + noise)).square().flatten(1).sum(1) / 2


class EWC(Quadratic):
    """Elastic weight consolidation (Kirkpatrick et al. 2017), one penalty for each task.

    The penalty of task k is λ/2 · Σ F_k ⊙ (θ − θ_k)², with the diagonal Fisher information F_k at
    the parameters θ_k that the task ended with. The sum over tasks is one quadratic whose precision
    is Σ F_k and whose centre is the mean of θ_k weighted by F_k, so two numbers a parameter hold
    all tasks exactly.

    F_k is the mean over `samples` of the task's training rows of (∂ log p(y|x) / ∂θ)², row by row,
    with y drawn from the model's own p(y|x): a class from its softmax, or, with
    `likelihood=drawn_value`, a value around its output, for a regression.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> guard = EWC(net, strength=3.0, samples=64)
    >>> guard.end(None, [torch.randn(64, 4)])
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("strength", "samples")

    def __init__(
        self,
        model: nn.Module,
        strength: float = 1.0,
        samples: int = 1024,
        likelihood: Likelihood = drawn_class,
        seed: int = 0,
    ) -> None:
        super().__init__(model, strength)
        self.samples, self.likelihood, self.seed = samples, likelihood, seed

    def consolidate(self, batches: Iterable[Any], run: Run) -> None:
        """Σ F_k, and the mean of θ_k weighted by F_k."""
        found = self.information(batches, run)
        precision, centre = self.tensors["precision"], self.tensors["centre"]
        for i, (new, value) in enumerate(zip(found, self.values, strict=True)):
            total = precision[i] + new
            share = torch.where(total > 0, new / total, 1.0)  # all of it where nothing is known
            centre[i].lerp_(value, share)
            precision[i].copy_(total)

    def information(self, batches: Iterable[Any], run: Run) -> list[Tensor]:
        """F_k, with draws of its own for each task."""
        generator = torch.Generator().manual_seed(self.seed + self.steps)
        alone = not mixes_rows(self.model)
        rows = (row for batch in batches for row in (single_rows(batch) if alone else [batch]))
        logs = (self.likelihood(run(row), generator) for row in rows)
        return fisher(self.parameters, logs, self.samples)


class OnlineEWC(EWC):
    """EWC with a running Fisher information (Schwarz et al. 2018): λ/2 · Σ F̃ ⊙ (θ − θ_k)².

    F̃ ← decay · F̃ + F_k, and the centre is where the last task ended.
    """

    OPTIONS = ("strength", "samples", "decay")

    def __init__(
        self,
        model: nn.Module,
        strength: float = 10.0,
        samples: int = 1024,
        decay: float = 1.0,
        likelihood: Likelihood = drawn_class,
        seed: int = 0,
    ) -> None:
        super().__init__(model, strength, samples, likelihood, seed)
        self.decay = decay

    def consolidate(self, batches: Iterable[Any], run: Run) -> None:
        """F̃ ← decay · F̃ + F_k, centred at θ_k."""
        found = self.information(batches, run)
        torch._foreach_mul_(self.tensors["precision"], self.decay)
        torch._foreach_add_(self.tensors["precision"], found)
        torch._foreach_copy_(self.tensors["centre"], self.values)


class SI(Quadratic):
    """Synaptic intelligence (Zenke et al. 2017): c · Σ Ω ⊙ (θ − θ_k)², centred at the last task.

    ω = −Σ g ⊙ Δθ along a task's path is how much each parameter lowered the loss, g being the
    data's own gradient and Δθ what the optimiser did. At the task's end Ω grows by
    max(ω, 0) / (Δ² + ξ), where Δ is how far the parameter came in the task: a parameter that
    raised the loss is not held, nor pushed away. A loop calls `after_step`, too.
    """

    OPTIONS = ("strength", "damping")
    KEPT = ("path", "travelled", "gradient", "before")

    def __init__(self, model: nn.Module, strength: float = 3.0, damping: float = 0.1) -> None:
        super().__init__(model, strength)
        self.damping = damping

    def notice(self) -> None:
        """Note the data's gradient and where the step starts."""
        torch._foreach_copy_(self.tensors["gradient"], self.gradients())
        torch._foreach_copy_(self.tensors["before"], self.values)

    def after_step(self) -> None:
        """ω ← ω − g ⊙ Δθ."""
        moved = torch._foreach_sub(self.values, self.tensors["before"])
        torch._foreach_addcmul_(self.tensors["path"], self.tensors["gradient"], moved, value=-1.0)
        torch._foreach_add_(self.tensors["travelled"], moved)

    def consolidate(self, batches: Iterable[Any], run: Run) -> None:
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
    parameters: Sequence[nn.Parameter], likelihoods: Iterable[Tensor], samples: int
) -> list[Tensor]:
    """The diagonal of the Fisher information: the mean over rows of (∂ log p(y|x) / ∂θ)².

    `likelihoods` has log p(y|x) of rows (B,), with y drawn from p(y|x). Each row has a backward
    pass of its own (a batch's mean gradient squared is something else), which goes through its
    whole batch. So it is quickest with single rows, and right with batches where a network
    normalises by the batch.
    """
    total = [torch.zeros_like(real(parameter.data)) for parameter in parameters]
    found = 0
    for one in _rows(likelihoods, samples):
        gradients = torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True)
        parts = [real(gradient) for gradient in gradients]
        torch._foreach_addcmul_(total, parts, parts)
        found += 1
    if not found:
        raise SuperposeError(
            "the Fisher information needs at least one row of the task: give batches that can be "
            "read again, such as a list or a DataLoader"
        )
    return [sum_ / found for sum_ in total]


def _rows(likelihoods: Iterable[Tensor], samples: int) -> Iterator[Tensor]:
    left = samples
    for batch in likelihoods:
        yield from batch[:left]
        left -= len(batch)
        if left <= 0:
            return
