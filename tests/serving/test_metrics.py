"""Counters: Prometheus's metrics and Triton's statistics."""

import pytest
import torch
from serving.served import INPUTS, TASKS, call, infer, metrics, path_of, recognising, service_of
from serving.served import serving as serving_

PATH = path_of("cats") + "/infer"


@pytest.fixture
def x():
    return torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))


def statistics(server, path):
    return call(server, "GET", f"{path}/stats").json["model_stats"]


def test_statistics_count_rows_requests_and_batches(server, x):
    for _ in range(3):
        infer(server, "cats", x)
    infer(server, "dogs", x[:1])
    infer(server, "dogs", x[:, :2])  # refused
    (cats,) = statistics(server, path_of("cats"))
    assert cats["name"] == "cats"
    assert cats["version"] == server.service.repository.version.name
    assert (cats["inference_count"], cats["execution_count"]) == (9, 3)
    assert cats["last_inference"] > 1_700_000_000_000  # milliseconds
    durations = cats["inference_stats"]
    for step in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert durations[step]["count"] == 3
        assert durations[step]["ns"] > 0
    steps = sum(durations[step]["ns"] for step in durations if step not in ("success", "fail"))
    assert steps < durations["success"]["ns"]
    assert durations["fail"] == durations["cache_hit"] == {"count": 0, "ns": 0}
    every = statistics(server, "/v2/models")
    assert [one["name"] for one in every] == TASKS
    dogs = every[1]["inference_stats"]
    assert (dogs["success"]["count"], dogs["fail"]["count"]) == (1, 1)
    (whole,) = statistics(server, path_of("many"))
    assert (whole["inference_count"], whole["execution_count"]) == (10, 4)


def test_recognised_rows_are_counted_for_the_whole_model(tmp_path):
    _, given = recognising(tmp_path)
    with serving_(service_of(tmp_path)) as server:
        assert infer(server, "many", given["low"][:2], parameters={"task": "auto"}).status == 200
        (whole,) = statistics(server, path_of("many"))
        assert whole["inference_count"] == 2
        assert metrics(server)['superpose_rows_total{task="auto"}'] == 2


def test_metrics_add_up(server, x):
    for size in (1, 2, 2):
        infer(server, "cats", x[:1].repeat(size, 1))
    now = metrics(server)
    assert now['superpose_batch_rows_bucket{le="1.0"}'] == 1
    assert now['superpose_batch_rows_bucket{le="2.0"}'] == 3
    assert (now["superpose_batch_rows_sum"], now["superpose_batch_rows_count"]) == (5, 3)
    below = [
        value
        for name, value in now.items()
        if name.startswith("superpose_latency_seconds_bucket") and 'task="cats"' in name
    ]
    assert below == sorted(below)
    assert below[-1] == 3
    assert 0 < now['superpose_latency_seconds_sum{task="cats"}'] < 60


def test_labels_are_bounded(server, x):
    server.service.traffic.most_labels = 2
    for task in (*TASKS, "cats"):
        infer(server, task, x)
    for number in range(5):
        infer(server, f"unknown {number}", x)
    infer(server, "cats", x[:, :3])
    call(server, "POST", PATH, b"{")
    now = metrics(server)
    assert now['superpose_requests_total{task="cats"}'] == 2
    assert now['superpose_rows_total{task="dogs"}'] == 3
    assert now['superpose_requests_total{task="_other"}'] == 2
    assert now['superpose_latency_seconds_count{task="_other"}'] == 2
    assert now['superpose_errors_total{status="404",task="_none"}'] == 5
    assert now['superpose_errors_total{status="400",task="cats"}'] == 2
    assert now['superpose_latency_seconds_count{task="cats"}'] == 2
    assert now["superpose_batch_rows_count"] == 5
    assert now["superpose_queue_rows"] == 0
    assert not any("unknown" in name or "últimos" in name for name in now)
