"""What a run's records say: accuracy over time, the task × task matrix, forgetting.

Everything here is a function of the records alone, so it can be told again from a file.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

Record = dict[str, Any]
"""step, task, loss (the mean since the record before), accuracy (by task), end (of a task)."""


def summarise(records: Sequence[Record], tasks: int) -> dict[str, Any]:
    """The result of a run.

    `matrix[i][k]` is the accuracy on task k at the end of the i-th task that was learned, None
    where it was not measured. `first` is the accuracy on the first task over time. Means are over
    the last row: after all of the stream. `backward_transfer` is the mean over all tasks but the
    last of a task's accuracy at the end less that when it had just been learned; `forgetting` is
    how much below its best at the end of any task it is at the end of all.

    >>> records = [
    ...     {"step": 5, "task": 0, "loss": 0.2, "accuracy": {"0": 0.9}, "end": True},
    ...     {"step": 9, "task": 1, "loss": 0.3, "accuracy": {"0": 0.7, "1": 0.8}, "end": True},
    ... ]
    >>> result = summarise(records, tasks=2)
    >>> result["mean_all"], result["matrix"]
    (0.75, [[0.9, None], [0.7, 0.8]])
    >>> round(result["forgetting"], 6), round(result["backward_transfer"], 6)
    (0.2, -0.2)
    """
    ends = [record for record in records if record["end"]]
    matrix = [[record["accuracy"].get(str(k)) for k in range(tasks)] for record in ends]
    final = [value for value in matrix[-1] if value is not None]
    learned: dict[int, float] = {}
    for record in ends:
        learned.setdefault(record["task"], record["accuracy"][str(record["task"])])
    earlier = [k for k in learned if k != ends[-1]["task"]]
    best = {k: max(row[k] for row in matrix if row[k] is not None) for k in earlier}
    last, first = matrix[-1], records[0]["task"]
    return {
        "steps": records[-1]["step"],
        "tasks": tasks,
        "first_task": last[first],
        "last_task": last[ends[-1]["task"]],
        "mean_last_ten": fmean(final[-10:]),
        "mean_all": fmean(final),
        "mean_when_learned": fmean(learned.values()),
        "forgetting": fmean(best[k] - last[k] for k in earlier) if earlier else 0.0,
        "backward_transfer": fmean(last[k] - learned[k] for k in earlier) if earlier else 0.0,
        "final": last,
        "first": [[record["step"], record["accuracy"][str(first)]] for record in records],
        "loss": [[record["step"], record["loss"]] for record in records],
        "matrix": matrix,
    }
