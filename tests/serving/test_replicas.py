"""Processes that serve one file change together."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from serving.served import INPUTS, change, infer, make, rows, service_of, serving

import superpose as sp
from superpose.serving import Options, Repository, repository
from superpose.serving.request_error import RequestError

FILE = "many.safetensors"


@pytest.fixture
def packed(tmp_path, nets):
    made = sp.pack({name: nets[name] for name in "ab"}, method="sum")
    sp.save(made, tmp_path / FILE)
    made.nets = nets
    return made


@pytest.fixture
def two(packed, tmp_path):
    made = [Repository(tmp_path / FILE, make) for _ in range(2)]
    for one in made:
        one.join()
    yield made
    for one in made:
        one.replicas.leave()


def following(one):
    """A thread in which a repository follows until it is stopped."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            one.follow()
            stop.wait(0.005)

    thread = threading.Thread(target=run)
    thread.start()

    def end():
        stop.set()
        thread.join()

    return end


def test_a_change_returns_when_all_have_followed(two):
    first, second = two
    done = threading.Event()

    def add():
        first.load("c", {"file": "c.safetensors"})
        done.set()

    thread = threading.Thread(target=add)
    thread.start()
    while "c" not in first.version.tasks:
        assert not done.wait(0.01)
    assert not done.wait(0.1)  # the second has not followed
    assert "c" not in second.version.tasks
    assert second.follow()
    thread.join()
    assert done.is_set()
    assert second.version.digest == first.version.digest
    assert not second.follow()


def test_numbers_are_given_once_for_all(two, packed):
    """One adds c, the other d: each on top of the other, whatever it had seen."""
    ends = [following(one) for one in two]
    adding = [
        threading.Thread(target=one.load, args=(name, {"file": f"{name}.safetensors"}))
        for one, name in zip(two, "cd", strict=True)
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    for end in ends:
        end()
    names = [one.version.model.superposition.names for one in two]
    assert names[0] == names[1]
    assert sorted(names[0]) == list("abcd")
    assert sorted(names[0].values()) == [0, 1, 2, 3]
    x = torch.randn(3, INPUTS)
    for task in "abcd":
        torch.testing.assert_close(
            two[0].version.model(x, task=task), two[1].version.model(x, task=task)
        )


def test_unloading_and_a_new_file_reach_all(two, packed, tmp_path):
    first, second = two
    end = following(second)
    first.unload("a")
    assert second.unloaded == {"a"}
    first.load("a")
    assert second.unloaded == frozenset()
    new = sp.pack({"e": packed.nets["c"], "f": packed.nets["d"]}, method="sum")
    sp.save(new, tmp_path / FILE)
    first.load("many")
    assert list(second.version.tasks) == ["e", "f"]
    end()


def test_one_that_does_not_follow_is_told_of(two, monkeypatch):
    monkeypatch.setattr(repository, "FOLLOW", 0.05)
    with pytest.raises(RequestError, match="1 other processes have not followed") as refused:
        two[0].unload("a")
    assert refused.value.status == 503
    assert f"-{os.getpid()}-" in refused.value.message  # which
    two[1].replicas.leave()
    two[0].load("a")  # nobody is waited for


JOIN = """
import sys
from pathlib import Path
from superpose.serving.replicas import Replicas
one = Replicas(Path(sys.argv[1]))
one.join()
one.tell("old")
print("joined", flush=True)
sys.stdin.read()
"""


def test_a_process_that_was_killed_is_not_waited_for(two, tmp_path):
    first, second = two
    second.replicas.leave()
    folder = str(tmp_path / f"{FILE}.serving")
    other = subprocess.Popen(
        [sys.executable, "-c", JOIN, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"joined\n"
    assert len(first.replicas.behind("new")) == 1
    other.kill()
    other.communicate()
    assert first.replicas.behind("new") == []
    first.unload("a")


def test_two_servers(packed, tmp_path):
    x = torch.randn(3, INPUTS)
    with serving(service_of(tmp_path)) as first, serving(service_of(tmp_path)) as second:
        assert change(first, "load", "c", file="c.safetensors").status == 200
        packed.add("c", packed.nets["c"])
        for server in (first, second):
            torch.testing.assert_close(
                rows(infer(server, "c", x)), packed(x, task="c"), atol=1e-4, rtol=1e-4
            )
        assert change(second, "unload", "c").status == 200
        assert infer(first, "c", x).status == 404


def mapped_file(tensor):
    """The file that the memory of a tensor is mapped from."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in where.split("-"))
        if start <= tensor.data_ptr() < end:
            return path[0] if path else None
    raise AssertionError("it is nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_mapped_from_a_copy_that_nobody_writes_to(packed, tmp_path):
    options = Options(map_weights=True)
    one, other = (Repository(tmp_path / FILE, make, options) for _ in range(2))
    x = torch.randn(3, INPUTS)
    before = packed(x, task="a")
    for repo in (one, other):
        files = {mapped_file(p) for n, p in repo.version.model.named_parameters() if "." in n}
        assert f"{tmp_path}/{FILE}.serving/mapped/{repo.version.digest}.safetensors" in files
    (tmp_path / FILE).write_bytes(b"")  # in place
    for repo in (one, other):
        torch.testing.assert_close(repo.version.model(x, task="a"), before)
    sp.save(packed, tmp_path / FILE)
    one.load("c", {"file": "c.safetensors"})
    folder = tmp_path / f"{FILE}.serving" / "mapped"
    assert [path.stem for path in folder.iterdir()] == [one.version.digest]
    torch.testing.assert_close(other.version.model(x, task="a"), before)  # it is mapped still
