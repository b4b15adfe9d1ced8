"""The messages of `inference.proto`, as classes."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# a pool of its own: another package in the process, such as Triton's client, may have these names
_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString(
    files("superpose.serving").joinpath("inference.binpb").read_bytes()
).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """The class of a message.

    >>> message("ServerLiveResponse")(live=True).live
    True
    """
    return GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def methods() -> list[Any]:
    """The calls of the service, each with its name and the kinds of its messages."""
    return list(_pool.FindServiceByName(SERVICE).methods)
