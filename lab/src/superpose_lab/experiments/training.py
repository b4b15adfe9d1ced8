"""The one place where the lab calls the library's training loop."""

from typing import Any

from torch import nn

from superpose.learning import Method, Outcome, Stream, train


def learn(
    net: nn.Module,
    stream: Stream,
    method: str | Method = "standard",
    *,
    tasks_known: bool = True,
    **options: Any,
) -> Outcome:
    """Learn a stream, task after task; `options` are those of `superpose.learning.train`."""
    return train(net, stream, method, tasks="told" if tasks_known else "found", **options)
