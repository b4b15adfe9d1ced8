"""Many models behind one standard protocol; needs the extra `serve`."""

from superpose.serving.cluster import Cluster, Scale
from superpose.serving.repository import Repository
from superpose.serving.request_error import RequestError
from superpose.serving.server import Server
from superpose.serving.service import Limits, Service
from superpose.serving.signature import TensorSpec
from superpose.serving.tensors import TensorData
from superpose.serving.tokens import Tokens
from superpose.serving.version import Options, Version

__all__ = [
    "Cluster",
    "Limits",
    "Options",
    "Repository",
    "RequestError",
    "Scale",
    "Server",
    "Service",
    "TensorData",
    "TensorSpec",
    "Tokens",
    "Version",
]
