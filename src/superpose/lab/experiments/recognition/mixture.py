"""The gradient as evidence: SupSup's one pass through a mixture of all contexts."""

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Superposed, layers, private_state
from superpose.model.batch import Batch
from superpose.nn.flat import RECOGNITION
from superpose.recognition import Evidence, Judged


class Mixture(Evidence):
    """−∂H/∂α_k: how much more of context k in Σ α_k C(k) lowers the entropy H of the outputs.

    It is for an MLP with ReLU whose layers are superposed and nothing else: no biases, no centring,
    no low-rank parts. It is here, and not in `superpose.recognition`, because it hardly finds
    tasks: the signs of many contexts average to nothing.
    """

    def judge(self, model: Superposed, batch: Batch, tasks: Tensor) -> Judged:
        """Run all rows once, forwards and backwards."""
        groups = private_state(model).groups.values()
        other = [part.path for group in groups if group.kind != RECOGNITION for part in group.parts]
        if other:
            raise SuperposeError(f"a mixture of contexts leaves out {', '.join(other)}")
        (x, *_), _ = batch.take(torch.arange(batch.rows))
        numbers = tasks[0].tolist()
        with torch.enable_grad():
            alpha = torch.full((len(x), len(numbers)), 1 / len(numbers)).to(x).requires_grad_()
            own = layers(model)
            h = x.flatten(1)
            for layer in own:
                bound = (layer.contexts["weight"].derive(k).to(h.device, h.dtype) for k in numbers)
                mixed = sum(alpha[:, k : k + 1] * one.bind(h) for k, one in enumerate(bound))
                h = mixed @ layer.stored("weight").T
                h = h if layer is own[-1] else h.relu()
            logs = h.log_softmax(1)
            entropy = -(logs.exp() * logs).sum()
            (slope,) = torch.autograd.grad(entropy, alpha)
        return Judged(-slope)
