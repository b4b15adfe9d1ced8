"""What tritonclient, which we did not write, makes of a server: `triton.py HTTP GRPC FOLDER`.

It runs in an environment without superpose; FOLDER has the inputs and the answers in process.
"""

import sys
from pathlib import Path
from queue import Queue

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

WHERE_HTTP, WHERE_GRPC, FOLDER = sys.argv[1:]
X = np.load(Path(FOLDER) / "x.npy")
EXPECTED = dict(np.load(Path(FOLDER) / "expected.npz"))
TASKS = list(EXPECTED)
CONTROL = {"authorization": "Bearer secret"}


def close(answer, task):
    np.testing.assert_allclose(answer.as_numpy("output"), EXPECTED[task], atol=1e-4)


def refused(call, part):
    told = ""
    try:
        call()
    except InferenceServerException as error:
        told = str(error)
    assert part in told, told


def given(module, **binary):
    tensor = module.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, **binary)
    return [tensor]


def common(client, module):
    """What both protocols can be asked, by the same calls."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(TASKS[0])
    assert not client.is_model_ready("birds")
    for task in TASKS:
        close(client.infer(task, given(module)), task)
    task = TASKS[1]
    close(client.infer("many", given(module), parameters={"task": task}), task)
    wanted = [module.InferRequestedOutput("output")]
    close(client.infer(task, given(module), outputs=wanted, request_id="7"), task)
    refused(lambda: client.infer("birds", given(module)), "there is no model 'birds'")
    wrong = module.InferInput("x", [1, 2], "FP32")
    wrong.set_data_from_numpy(X[:1, :2])
    refused(lambda: client.infer(task, [wrong]), "it takes [-1,")
    refused(lambda: client.unload_model(task), "token")
    client.unload_model(task, headers=CONTROL)
    assert not client.is_model_ready(task)
    refused(lambda: client.infer(task, given(module)), "that is loaded")
    client.load_model(task, headers=CONTROL)
    close(client.infer(task, given(module)), task)


def http():
    with over_http.InferenceServerClient(WHERE_HTTP, concurrency=8) as client:
        common(client, over_http)
        for binary in (True, False):
            for back in (True, False):
                wanted = [over_http.InferRequestedOutput("output", binary_data=back)]
                inputs = given(over_http, binary_data=binary)
                close(client.infer(TASKS[0], inputs, outputs=wanted), TASKS[0])
        metadata = client.get_model_metadata(TASKS[0])
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, X.shape[1]]}]
        version = metadata["versions"][0]
        close(client.infer(TASKS[0], given(over_http), model_version=version), TASKS[0])
        assert client.get_model_config(TASKS[0])["input"][0]["data_type"] == "TYPE_FP32"
        told = client.get_inference_statistics(TASKS[0])["model_stats"][0]
        assert told["inference_count"] >= len(X)
        names = {one["name"] for one in client.get_model_repository_index()}
        assert names == {"many", *TASKS}
        assert client.get_server_metadata()["name"] == "superpose"
        waiting = [(t, client.async_infer(t, given(over_http))) for t in TASKS * 8]
        for task, one in waiting:
            close(one.get_result(), task)


def grpc():
    with over_grpc.InferenceServerClient(WHERE_GRPC) as client:
        common(client, over_grpc)
        config = client.get_model_config(TASKS[0], as_json=True)["config"]
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        assert client.get_model_metadata(TASKS[0]).inputs[0].shape[1] == X.shape[1]
        told = client.get_inference_statistics(TASKS[0]).model_stats[0]
        assert told.inference_count >= len(X)
        assert len(client.get_model_repository_index().models) == len(TASKS) + 1
        answers = Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, task in enumerate(TASKS * 10):
            client.async_stream_infer(task, given(over_grpc), request_id=str(number))
        client.async_stream_infer("birds", given(over_grpc))
        for number, task in enumerate(TASKS * 10):
            result, error = answers.get(timeout=60)
            assert error is None, error
            assert result.get_response().id == str(number)
            close(result, task)
        assert "birds" in str(answers.get(timeout=60)[1])
        client.stop_stream()


http()
grpc()
print("done")
