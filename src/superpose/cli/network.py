"""Networks by name and files of tensors, for the storage commands."""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from superpose.errors import SuperposeError

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Network:
    """Options that name the network's architecture."""

    net: Annotated[str, arg(metavar="MODULE:FUNCTION")]
    """The function that makes the network, or the config.json of a transformers model."""
    net_args: Annotated[str, arg(metavar="JSON")] = "{}"
    """Arguments of that function, as a JSON object such as '{"width": 64}'."""

    def make(self) -> "nn.Module":
        """Make the network, with whatever weights it starts from."""
        from torch import nn

        made = self._from_config() if self.net.endswith(".json") else self._from_function()
        if not isinstance(made, nn.Module):
            raise SuperposeError(
                f"--net {self.net} returned a {type(made).__name__}: it must be a torch.nn.Module"
            )
        return made

    def load(self, path: Path) -> "nn.Module":
        """Make the network and load a plain state dict, a safetensors file."""
        net = self.make()
        tensors, own = read_tensors(path), net.state_dict()
        places = {own[name].data_ptr() for name in tensors if name in own}
        missing = [n for n in own if n not in tensors and own[n].data_ptr() not in places]
        extra = [name for name in tensors if name not in own]
        other = [n for n in tensors if n in own and tensors[n].shape != own[n].shape]
        for names, problem in (
            (missing, "the file has no tensor"),
            (extra, "the network has no tensor"),
            (other, "the shapes differ for tensor"),
        ):
            if names:
                raise SuperposeError(f"{path} does not fit --net {self.net}: {problem} {names[0]}")
        net.load_state_dict(tensors, strict=False)
        return net

    def _from_function(self) -> Any:
        module, colon, function = self.net.partition(":")
        if not (module and colon and function):
            raise SuperposeError(
                f"--net {self.net}: write it as MODULE:FUNCTION, such as mypackage.nets:make"
            )
        try:
            arguments = json.loads(self.net_args)
        except ValueError as error:
            raise SuperposeError(f"--net-args {self.net_args}: not JSON ({error})") from error
        if not isinstance(arguments, dict):
            raise SuperposeError(
                f"--net-args {self.net_args}: write it as a JSON object, as in '{{\"width\": 64}}'"
            )
        if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 (sys.path has text)
            sys.path.insert(0, "")  # as `python -m` does
        try:
            found: Any = importlib.import_module(module)
            for part in function.split("."):
                found = getattr(found, part)
            return found(**arguments)
        except Exception as error:  # of the user's own code, any
            problem = f"{type(error).__name__}: {error}"
            raise SuperposeError(f"--net {self.net} cannot be made: {problem}") from error

    def _from_config(self) -> Any:
        try:
            import transformers
        except ImportError as error:
            raise SuperposeError("--net with a config needs `pip install transformers`") from error
        try:
            described = json.loads(Path(self.net).read_text())
            kind: Any = getattr(transformers, described["architectures"][0])
        except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise SuperposeError(
                f"--net {self.net}: not a config of transformers that names its architecture "
                f"({error})"
            ) from error
        return kind(kind.config_class.from_dict(described))


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Read a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise SuperposeError(f"{path}: there is no such file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise SuperposeError(
            f"{path} is damaged or not a safetensors file ({error}): take another copy of it"
        ) from error


def read_inputs(path: Path) -> Any:
    """Read a network's inputs: the file's only tensor, or all of them by name."""
    tensors = read_tensors(path)
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def check_apart(out: Path, *read: Path | None) -> None:
    """Refuse to write over a file that is read."""
    for path in read:
        if path is not None and path.resolve() == out.resolve():
            raise SuperposeError(
                f"--out {out} would overwrite a file that is read: choose another name"
            )


def named_files(words: Sequence[str], option: str) -> dict[str, Path]:
    """Parse NAME=FILE words into a mapping.

    >>> named_files(["a=x.safetensors"], "pack")
    {'a': PosixPath('x.safetensors')}
    """
    found: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise SuperposeError(f"{option} {word}: write it as NAME=FILE")
        if name in found:
            raise SuperposeError(f"{option}: the name {name} is given twice: choose another")
        found[name] = Path(path)
    return found
