"""A shortlist: cheap evidence first, and dear evidence for the few tasks that are left."""

from __future__ import annotations

import torch
from torch import Tensor

from superpose.errors import SuperposeError
from superpose.model import Superposed
from superpose.model.batch import Batch
from superpose.recognition.evidence import Evidence, Judged
from superpose.recognition.inputs import Inputs
from superpose.recognition.outputs import Outputs


class Shortlist(Evidence):
    """The `keep` likeliest tasks of each row by the `first` evidence are judged by the `second`.

    So a row has at most `keep` forward passes, whatever the number of tasks. Tasks that are not on
    its list have the score −∞.
    """

    def __init__(
        self, first: Evidence | None = None, second: Evidence | None = None, keep: int = 8
    ) -> None:
        if keep < 2:
            raise SuperposeError(f"keep={keep}: a shortlist has at least two tasks")
        self.first, self.second, self.keep = first or Inputs(), second or Outputs(), keep

    def of_all_rows(self, model: Superposed, batch: Batch, numbers: list[int]) -> list[int]:
        """One list for rows that are of one task: the likeliest by the evidence of all of them."""
        if len(numbers) <= self.keep:
            return numbers
        possible = torch.tensor([numbers]).expand(batch.rows, -1)
        scores = self.first.judge(model, batch, possible).scores.sum(0)
        return [numbers[place] for place in scores.topk(self.keep).indices.sort().values.tolist()]

    def judge(self, model: Superposed, batch: Batch, tasks: Tensor) -> Judged:
        """Both, one after the other."""
        cheap = self.first.judge(model, batch, tasks)
        if tasks.shape[1] <= self.keep:
            dear = self.second.judge(model, batch, tasks)
            return Judged(dear.scores, cheap.surprise)
        best = cheap.scores.topk(self.keep, 1).indices
        few = tasks.to(best.device).gather(1, best)
        dear = self.second.judge(model, batch, few)
        none = torch.full_like(cheap.scores, -torch.inf)
        return Judged(none.scatter(1, best, dear.scores.to(none)), cheap.surprise)
