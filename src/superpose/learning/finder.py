"""Tasks found while learning: which context a batch belongs to, when nobody tells.

A batch is compared with what the contexts begun so far have seen (`superpose.recognition`). As
long as it is nothing strange to the context at work, that goes on. If it is, the likeliest of the
others that it is not strange to is taken up again, and if there is none, a new one is begun.
Statistics are made of the first rows of a context, so that inputs that drift away get strange.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from torch import Tensor

from superpose.errors import SuperposeError
from superpose.learning.streams import Past, Segment, Stream
from superpose.model import Name, Superposed, rows_of
from superpose.nn import Statistics
from superpose.quiet import evaluating, quiet_run
from superpose.recognition import duplicates, keep
from superpose.recognition.evidence import listed
from superpose.recognition.finding import FARTHEST, FARTHEST_TOGETHER
from superpose.recognition.inputs import LEAST_ROWS, compare, inputs_of, keeping, rows_seen

FOUND = "found"
MOST_CONTEXTS = 1000  # that can be begun; one that is not costs a name
FIRST_ROWS = 2560  # of a context, that its statistics are made of


@dataclass
class Span:
    """Steps start … stop − 1 in one context, and how many of them were of which task."""

    context: int
    start: int
    stop: int
    met: dict[str, int]


class Finder:
    """The contexts that were begun, and when each was at work."""

    def __init__(self, model: Any, stream: Stream) -> None:
        if not isinstance(model, Superposed):
            raise SuperposeError(
                "tasks='found' begins a context for each task that it finds, so it needs a "
                "superposed network: use a family as method, such as binary"
            )
        names = model.superposition.names.items()
        if any(
            n != k or (name != k and isinstance(name, int)) for k, (name, n) in enumerate(names)
        ):
            raise SuperposeError(
                "tasks='found' takes contexts in the order of their numbers, and some tasks were "
                "removed, or have the numbers of others as names: give a network that is made with "
                "tasks=N, or with names that are texts"
            )
        self.model, self.stream = model, stream
        kept = model.superposition.options.recognise
        if kept is not None and kept.only_told:
            raise SuperposeError(
                f"tasks='found' needs statistics that are taken in training, and {kept} are told "
                "by model.remember: leave base and classes out of them"
            )
        if kept is None:
            keep(model, Statistics(most=FIRST_ROWS))
        self.given = len(model.tasks)
        self.contexts = self._known()
        if self.contexts and model.superposition.spent > self.given:
            raise SuperposeError(
                f"tasks='found' gives the next number to a new context, and {self.given} was that "
                "of a task that was removed: tell the tasks"
            )
        if self.contexts:  # it has learned before: room for as many as a new one has
            for _ in range(MOST_CONTEXTS - self.given):
                model.add_task()
        self.spans: list[Span] = []
        self.names = {number: name for name, number in model.superposition.names.items()}

    def _known(self) -> int:
        """How many contexts have been at work before, which are the first ones."""
        layer, numbers = keeping(self.model), list(range(self.given))
        assert layer is not None
        rows = rows_seen(self.model, layer, numbers)
        known = [number for number in numbers if rows[number] >= LEAST_ROWS]
        learned = sorted(self.model.private_state.learned() - set(known))
        if learned:
            raise SuperposeError(
                f"tasks='found': {listed(self.model, learned)} learned before, and nothing is "
                "known of the inputs: call model.remember(x, task=…) with some of them"
            )
        if known != list(range(len(known))):
            raise SuperposeError(
                f"tasks='found' takes contexts in their order, and {listed(self.model, known)} "
                "have inputs, and are not the first ones: remember inputs of those before, or tell "
                "tasks"
            )
        return len(known)

    def look(self, step: int, batch: tuple[Tensor, Tensor, int, int]) -> Past | None:
        """Decide whose the batch of a step is; give what ended before it, if something did.

        The stream's own task is noted for the record, and not looked at.
        """
        x, _, task, _ = batch
        context = self._context(x)
        ended = None
        if not self.spans or context != self.context:
            if self.spans:
                last = self.spans[-1]
                part, name = Segment(last.context, last.start, step), self.names[last.context]
                ended = Past(self.stream, part, name, lambda batch: name)
            self.spans.append(Span(context, step, step, {}))
        now = self.spans[-1]
        now.stop = step + 1
        now.met[str(task)] = now.met.get(str(task), 0) + 1
        return ended

    @property
    def context(self) -> int:
        """The number of the context at work."""
        return self.spans[-1].context

    @property
    def now(self) -> Name:
        """Its name, which the network is told."""
        return self.names[self.context]

    @property
    def begins(self) -> bool:
        """Whether it is at work for the first step since another was."""
        return self.spans[-1].stop == self.spans[-1].start + 1

    def recognise(self, x: Tensor, together: bool = False) -> Any:
        """The context of each row, or of all rows."""
        known = self.model.recognisable
        if len(known) == 1:
            return known[0]
        return self.model.recognise(x, among=known, together=together).task

    def _context(self, x: Tensor) -> int:
        if len(x) < 2:
            raise SuperposeError(
                "tasks='found' compares batches, and one of a single row says too little: use a "
                "larger batch_size"
            )
        if not self.contexts:
            return self._begin()
        now = self.context if self.spans else 0
        layer = keeping(self.model)
        assert layer is not None
        with evaluating(self.model), quiet_run():
            reached = inputs_of(self.model, layer, now, rows_of(self.model, (x,), {}))
        if not reached.same_in_all_tasks:
            raise SuperposeError(
                f"tasks='found' looks at inputs before they are learned from, and those of layer "
                f"{layer.path!r} depend on the task: keep statistics of the first layer"
            )
        judged = compare(self.model, layer, list(range(self.contexts)), reached.x)
        assert judged.surprise is not None
        strange = judged.surprise.mean(0)
        if not strange.isfinite().all():
            raise SuperposeError("the inputs hold numbers that are not finite: no task is found")
        limit = max(FARTHEST / sqrt(len(x)), FARTHEST_TOGETHER)
        if self.spans and strange[now] <= limit:
            return now
        scores = judged.scores.sum(0).masked_fill(strange > limit, -float("inf"))
        return self._begin() if (strange > limit).all() else int(scores.argmax())

    def _begin(self) -> int:
        if self.contexts == len(self.model.tasks):
            raise SuperposeError(
                f"all {self.contexts} contexts were begun: the inputs change from batch to batch "
                "more than within one; use larger batches, or tell the tasks"
            )
        self.contexts += 1
        return self.contexts - 1

    def summary(self, together: list[float]) -> dict[str, Any]:
        """When each context began and which task it met then, every change, and what is alike.

        `together` is the accuracy on each test set, its rows recognised together.
        """
        begun: dict[int, dict[str, Any]] = {}
        for span in self.spans:
            first = {"context": span.context, "step": span.start, "task": int(next(iter(span.met)))}
            begun.setdefault(span.context, first)
        return {
            "contexts": self.contexts,
            "begun": list(begun.values()),
            "spans": [[s.context, s.start, s.stop, s.met] for s in self.spans],
            "together": together,
            "joinable": [list(pair) for pair in duplicates(self.model)],
        }

    def trim(self) -> None:
        """Forget the contexts that were not begun; those of a model that had learned stay."""
        kept = self.given if self.given < len(self.model.tasks) else 1
        spent = self.model.superposition.spent
        for task in self.model.tasks[max(self.contexts, kept) :]:
            self.model.remove_task(task)
        self.model.superposition.spent = spent  # numbers that were never at work can be given again

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs; statistics are in the model."""
        spans = [[s.context, s.start, s.stop, dict(s.met)] for s in self.spans]
        return {"contexts": self.contexts, "spans": spans}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another left off."""
        self.contexts = state["contexts"]
        self.spans = [
            Span(context, start, stop, dict(met)) for context, start, stop, met in state["spans"]
        ]
