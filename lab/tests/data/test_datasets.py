import sys

import numpy as np
import pytest
import torch

from superpose import SuperposeError
from superpose_lab.data import Dataset, LabelledImages, directory, load, normalise


def test_digits_are_whole_and_their_splits_do_not_overlap():
    from sklearn.datasets import load_digits

    original, digits = load_digits(), load("digits")
    assert (len(digits.train.labels), len(digits.test.labels)) == (1437, 360)
    images = np.concatenate([digits.train.images, digits.test.images]).reshape(1797, 64)
    np.testing.assert_array_equal(images, np.rint(original.data * 255 / 16))
    assert images.max() == 255
    both = np.concatenate([digits.train.labels, digits.test.labels])
    np.testing.assert_array_equal(both, original.target)
    assert set(np.bincount(digits.test.labels)) <= set(range(33, 39)), "classes are out of balance"


def test_normalising_is_the_formula_and_leaves_the_pixels_alone():
    pixels = torch.arange(256, dtype=torch.uint8)
    exact = pixels.double()
    grey, colour = normalise(pixels, "grey"), normalise(pixels, "colour")
    assert grey.dtype == colour.dtype == torch.float32
    torch.testing.assert_close(grey, ((exact / 255 - 0.1307) / 0.3081).float())
    torch.testing.assert_close(colour, (exact / 255 * 2 - 1).float())
    already = torch.ones(3)
    normalise(already, "grey")
    assert already.equal(torch.ones(3))


IMAGES, LABELS = np.zeros((4, 1, 3, 3), np.uint8), np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (IMAGES[:, 0], LABELS, r"uint8 of \(N, C, H, W\).*not uint8 of \(4, 3, 3\)"),
        (IMAGES.astype(float), LABELS, "not float64"),
        (IMAGES[:, :, :2], LABELS, r"not uint8 of \(4, 1, 2, 3\)"),
        (IMAGES, LABELS[:3], r"4 integers, one an image, not int64 of \(3,\)"),
        (IMAGES, LABELS / 2, "not float64"),
        (IMAGES, LABELS + 1, "labels run from 1 to 2, which is outside 0 … 1"),
        (IMAGES, LABELS - 1, "labels run from -1 to 0"),
    ],
)
def test_wrong_shapes_and_labels_are_refused(images, labels, reason):
    good = LabelledImages(IMAGES, LABELS)
    Dataset("mine", "grey", 2, good, good)
    with pytest.raises(SuperposeError, match=f"mine: .*{reason}"):
        Dataset("mine", "grey", 2, good, LabelledImages(images, labels))
    with pytest.raises(SuperposeError, match="kind must be grey or colour, not 'pink'"):
        Dataset("mine", "pink", 2, good, good)


def test_the_digest_tells_every_pixel_and_label_apart():
    def made(images=IMAGES, labels=LABELS):
        train, test = LabelledImages(IMAGES, LABELS), LabelledImages(images, labels)
        return Dataset("mine", "grey", 2, train, test).digest

    other = IMAGES.copy()
    other[3, 0, 2, 2] = 1
    digests = {made(), made(images=other), made(labels=1 - LABELS)}
    assert len(digests) == 3
    assert made(labels=LABELS.astype(np.uint8)) == made()


def test_the_data_directory_is_the_argument_or_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SUPERPOSE_DATA", "~/sets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert directory("~/mine") == (tmp_path / "mine", "argument")
    assert directory() == (tmp_path / "sets", "SUPERPOSE_DATA")
    monkeypatch.delenv("SUPERPOSE_DATA")
    assert directory() == (tmp_path / "xdg" / "superpose", "user cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert directory().path == tmp_path / ".cache" / "superpose"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert directory().path == tmp_path / "Library" / "Caches" / "superpose"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert directory().path == tmp_path / "local" / "superpose"
