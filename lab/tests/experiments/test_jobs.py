"""Experiments side by side: errors, processes that are killed or stopped."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import settings

from superpose import SuperposeError
from superpose.learning import Interrupted, Quiet
from superpose_lab.experiments.jobs import Job, side_by_side


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_can_wait_until_the_others_have_ended(at_once, tmp_path):
    jobs = [
        Job(settings(tasks=2, seed=seed, method=name), tmp_path / str(seed), str(seed))
        for seed, name in enumerate(["bynary", "binary"])
    ]
    with pytest.raises(SuperposeError, match="unknown method 'bynary'"):
        side_by_side(jobs, at_once, Quiet(), keep_going=True)
    assert (tmp_path / "1" / "result.json").exists()


def test_the_end_of_a_run_is_shown_even_if_the_queue_lost_it(tmp_path, monkeypatch):
    class Collects(Quiet):
        seen = []  # noqa: RUF012 (of this test)

        def show(self, progress):
            self.seen.append(progress)

    monkeypatch.setattr("superpose_lab.experiments.jobs._show", lambda *lost: None)
    side_by_side([Job(settings(tasks=2), tmp_path, "a")], 2, Collects())
    (last,) = Collects.seen
    assert (last.step, last.evaluated) == (last.steps, True)


def test_a_worker_that_is_killed_is_told(tmp_path):
    class Kills(Quiet):
        def show(self, progress):
            for child in multiprocessing.active_children():
                child.kill()

    long = settings(tasks=2, steps=10**5, evaluate_every=5)
    with pytest.raises(SuperposeError, match=r"was killed, .* continue with the same command"):
        side_by_side([Job(long, tmp_path / "a", "a")], 2, Kills())
    with pytest.raises(SuperposeError, match="jobs=0: must be at least 1"):
        side_by_side([Job(long, tmp_path / "b", "b")], 0, Quiet())


@pytest.fixture
def listens():
    """Ctrl-C is heard, even in a process that was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens")
@pytest.mark.parametrize("at_once", [1, 2])
def test_ctrl_c_stops_runs_saved(at_once, tmp_path):
    class Presses(Quiet):
        left = 1

        def show(self, progress):
            if self.left:
                self.left -= 1
                os.kill(os.getpid(), signal.SIGINT)

    long = settings(tasks=2, steps=10**5, evaluate_every=5)
    jobs = [Job(long, tmp_path / name, name) for name in "abc"]
    with pytest.raises(Interrupted, match="stopped"):
        side_by_side(jobs, at_once, Presses())
    assert (tmp_path / "a" / "checkpoint.pt").exists(), "the one that ran is saved"
    assert not (tmp_path / "c").exists(), "the last one was never started"


SIDE_BY_SIDE = """
import pathlib, sys
from small import settings
from superpose_lab.experiments.jobs import Job, side_by_side
from superpose.learning import Quiet
out = pathlib.Path(sys.argv[1])
short, long = settings(tasks=2, steps=2), settings(tasks=2, steps=10**6)
side_by_side([Job(short, out / "short", "short"), Job(long, out / "long", "long")], 2, Quiet())
"""


def test_a_kill_of_the_whole_group_ends_it(tmp_path):
    """As systemd, slurm and `timeout` do it, when one worker is busy and one is idle."""
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SIDE_BY_SIDE, str(tmp_path)],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"},
    )
    try:
        limit = time.monotonic() + 60
        wanted = tmp_path / "short/result.json", tmp_path / "long/metrics.jsonl"
        while not all(path.exists() for path in wanted) and time.monotonic() < limit:
            time.sleep(0.1)
        time.sleep(1)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
