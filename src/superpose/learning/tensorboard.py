"""The optional TensorBoard log of a run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from superpose.errors import SuperposeError
from superpose.learning.metrics import Record


def open_log(folder: Path, step: int, stack: ExitStack) -> Any:
    """A writer that goes on at a step: what was logged beyond it is taken back."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SuperposeError(
            "TensorBoard is not installed: pip install 'superpose[tensorboard]'"
        ) from error
    return stack.enter_context(SummaryWriter(str(folder), purge_step=step + 1 if step else None))


def log(writer: Any, record: Record) -> None:
    """Add a record's loss and accuracies."""
    writer.add_scalar("loss", record["loss"], record["step"])
    for task, value in record["accuracy"].items():
        writer.add_scalar(f"accuracy/task {task}", value, record["step"])
