"""Many models behind one standard protocol; needs the extra `serve`."""

from superpose.serving.ray_serve import ray_deployment
from superpose.serving.repository import Repository
from superpose.serving.request_error import RequestError
from superpose.serving.server import Server
from superpose.serving.service import Answer, Limits, Service
from superpose.serving.signature import TensorSpec
from superpose.serving.tensors import TensorData
from superpose.serving.tokens import Tokens
from superpose.serving.version import Options, Version

__all__ = [
    "Answer",
    "Limits",
    "Options",
    "Repository",
    "RequestError",
    "Server",
    "Service",
    "TensorData",
    "TensorSpec",
    "Tokens",
    "Version",
    "ray_deployment",
]
