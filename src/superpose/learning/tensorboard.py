"""The optional TensorBoard log of a run."""

from pathlib import Path
from typing import Any, Self

from superpose.errors import SuperposeError
from superpose.learning.metrics import Record


def writer_class() -> Any:
    """PyTorch's writer; asked for before anything is written, so that it is not missed later."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SuperposeError(
            'TensorBoard is not installed: pip install "superpose[tensorboard]"'
        ) from error
    return SummaryWriter


class TensorBoard:
    """Writes records to a folder, from a step on: what was written beyond it is taken back."""

    def __init__(self, folder: Path, step: int) -> None:
        purge = step + 1 if step else None
        self._writer: Any = writer_class()(str(folder), purge_step=purge)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def __call__(self, record: Record) -> None:
        """Add a record's loss and accuracies."""
        self._writer.add_scalar("loss", record["loss"], record["step"])
        for task, value in record["accuracy"].items():
            self._writer.add_scalar(f"accuracy/task {task}", value, record["step"])
