"""What the client of kserve makes of a server: `kserve_client.py HTTP GRPC FOLDER`."""

import asyncio
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

WHERE_HTTP, WHERE_GRPC, FOLDER = sys.argv[1:]
X = np.load(Path(FOLDER) / "x.npy")
EXPECTED = dict(np.load(Path(FOLDER) / "expected.npz"))


def request(task, binary):
    tensor = InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return InferRequest(model_name=task, infer_inputs=[tensor])


async def main():
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = f"http://{WHERE_HTTP}"
    assert await rest.is_server_live(url)
    assert await rest.is_server_ready(url)
    for task, expected in EXPECTED.items():
        assert await rest.is_model_ready(url, task)
        for binary in (True, False):
            answer = await rest.infer(url, request(task, binary), model_name=task)
            np.testing.assert_allclose(answer.outputs[0].as_numpy(), expected, atol=1e-4)
    grpc = InferenceGRPCClient(WHERE_GRPC)
    assert await grpc.is_server_ready()
    for task, expected in EXPECTED.items():
        answer = await grpc.infer(request(task, True))
        np.testing.assert_allclose(answer.outputs[0].as_numpy(), expected, atol=1e-4)


asyncio.run(main())
print("done")
