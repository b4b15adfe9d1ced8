"""The options of `superpose` that say how a network is converted: files keep all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

from superpose.errors import SuperposeError
from superpose.nn.statistics import Statistics, as_statistics

PRIVATE_MODES = ("per-task", "shared", "none")
CONV_MODES = ("kernel", "channel")
TASK, ROWS = "task", "rows"  # what is centred: a task's inputs, or each row of them
WAYS = ("grouped", "direct")


@dataclass
class Options:
    """How a network is converted: see `superpose`."""

    private: str = "per-task"
    private_layers: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    learn: tuple[str, ...] = ()
    conv: str = "kernel"
    batch_dim: Any = None
    base: bool = False
    mixed: str | None = None
    frozen: tuple[str, ...] = ()  # parameters that do not learn, and are not bound
    centre: str | None = None
    min_inputs: int = 0
    rank: int = 0
    recognise: Statistics | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the network."""
        for option in ("private_layers", "skip", "learn", "frozen"):
            setattr(self, option, tuple(getattr(self, option)))
        self.recognise = as_statistics(self.recognise)
        if self.private not in PRIVATE_MODES:
            raise SuperposeError(f"private={self.private!r}: use one of {', '.join(PRIVATE_MODES)}")
        if self.conv not in CONV_MODES:
            raise SuperposeError(f"conv={self.conv!r}: use one of {', '.join(CONV_MODES)}")
        check_way(self.mixed)
        if self.centre not in (None, TASK, ROWS):
            raise SuperposeError(f"centre={self.centre!r}: use 'task' or 'rows'")
        for name in ("min_inputs", "rank"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
                raise SuperposeError(f"{name}={value!r}: give a whole number, 0 for none")
            setattr(self, name, int(value))
        self._check_batch_dim()
        if self.private != "per-task" and self.base:
            raise SuperposeError(
                f"private={self.private!r}: with a base, biases and norms are each task's own, or "
                "the tasks would change the base of one another: leave private out"
            )
        if self.learn and not self.base:
            raise SuperposeError(
                "learn: without a base all that tasks share learns, as in the plain network: leave "
                "learn out"
            )

    def _check_batch_dim(self) -> None:
        dims = self.batch_dim if isinstance(self.batch_dim, dict) else {"": self.batch_dim}
        for argument, dim in dims.items():
            several = argument == "return" and isinstance(dim, (list, tuple))
            for one in dim if several else [dim]:
                if one not in (None, 0, 1) or isinstance(one, bool):
                    where = f"{{{argument!r}: {dim!r}}}" if argument else repr(dim)
                    raise SuperposeError(
                        f"batch_dim={where}: use 0 or 1, the dimension of the rows; or None for an "
                        "argument without rows, as in batch_dim={'mask': None}; of what is "
                        "returned, one for each tensor, batch_dim={'return': [0, None]}"
                    )

    def described(self) -> dict[str, Any]:
        """Its fields, for files and records."""
        kept = None if self.recognise is None else self.recognise.described()
        return asdict(self) | {"recognise": kept}


def check_way(way: str | None) -> None:
    """Refuse a way of mixed batches that there is not."""
    if way is not None and way not in WAYS:
        raise SuperposeError(
            f"mixed={way!r}: use 'grouped', which is right for every network, or 'direct' where "
            "sp.check_mixed says that it is right, too"
        )
