"""New classes: each task is another group of classes under the same few labels."""

from dataclasses import dataclass

from superpose import SuperposeError
from superpose_lab.data.datasets import Dataset, normalise
from superpose_lab.data.image_stream import ImageStream, Periodic
from superpose_lab.data.pool import Pair, Pool


@dataclass(frozen=True, eq=False)
class Incremental(Periodic, ImageStream):
    """Every `period` steps the next `group` of n classes: task k has kn … kn + n − 1, shifted to 0.

    `first`, if there is one, takes the place of the first group. With CIFAR-100 as the data set
    and CIFAR-10 as `first` this is the paper's sequence: CIFAR-10, then classes 10–19, 20–29, …

    >>> from superpose_lab.data import load
    >>> stream = Incremental(load("digits"), group=2, tasks=5, period=10, batch_size=4)
    >>> stream.batch(25).task, stream.groups[2], stream.batch(25).y.max() < 2
    (2, range(4, 6), tensor(True))
    """

    first: Dataset | None = None
    group: int = 10
    tasks: int = 5
    period: int = 20000

    @property
    def groups(self) -> list[range]:
        """The classes of each task, as the data set numbers them."""
        starts = range(0, self.group * self.tasks, self.group)
        ranges = [range(start, start + self.group) for start in starts]
        return ranges if self.first is None else [range(self.first.classes), *ranges[1:]]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return self.dataset.shape

    @property
    def classes(self) -> int:
        """The size of one group: all tasks share their labels."""
        return self.group

    def _fill(self) -> tuple[Pool, ...]:
        if self.group * self.tasks > self.dataset.classes:
            raise SuperposeError(
                f"{self.tasks} tasks of {self.group} classes need {self.group * self.tasks}, "
                f"but {self.dataset.name} has {self.dataset.classes}: ask for fewer tasks"
            )
        first = self.first or self.dataset
        if (first.kind, first.shape) != (self.dataset.kind, self.dataset.shape):
            raise SuperposeError(
                f"{first.name} has {first.kind} images of {first.shape}, {self.dataset.name} "
                f"{self.dataset.kind} ones of {self.dataset.shape}: a stream has one kind and shape"
            )
        if len(self.groups[0]) > self.group:
            raise SuperposeError(
                f"{first.name} has {first.classes} classes, but a task has {self.group}"
            )
        return tuple(
            self._pool(self.dataset if number else first, classes, number)
            for number, classes in enumerate(self.groups)
        )

    def _train(self, step: int) -> Pair:
        task, within = divmod(step, self.period)
        images, labels = self._pools[task].draw(within)
        return normalise(images, self.dataset.kind), labels

    def _test(self, task: int) -> Pair:
        images, labels = self._pools[task].test
        return normalise(images, self.dataset.kind), labels
