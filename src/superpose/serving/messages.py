"""Classes of the messages in `inference.proto`."""

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_pool = DescriptorPool()  # apart: Triton's client in the same process has messages of these names
for _file in FileDescriptorSet.FromString(
    files("superpose.serving").joinpath("inference.binpb").read_bytes()
).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """Return the class of a message.

    >>> message("ServerLiveResponse")(live=True).live
    True
    """
    return GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def methods() -> list[Any]:
    """Return the descriptors of the service's methods."""
    return list(_pool.FindServiceByName(SERVICE).methods)
