"""Golden vectors: if one of these fails, every checkpoint ever saved has become unreadable."""

import hashlib

import numpy as np
import pytest

from superpose import keys
from superpose.keys import Key

KEY = Key(seed=7, layer="blocks.3.conv1.weight", task=41)
UNICODE = Key(seed=2**40, layer="schicht-ä", task=0)


def digest(array):
    little = array.astype(array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()[:16]


def test_the_canonical_byte_string_is_unambiguous():
    assert KEY.encode() == (
        b"\0\0\0\0\0\0\0\x0fsuperpose-key-1"
        b"\0\0\0\0\0\0\0\x017"
        b"\0\0\0\0\0\0\0\x15blocks.3.conv1.weight"
        b"\0\0\0\0\0\0\0\x0241"
    )
    assert Key(1, "2", 3).encode() != Key(12, "", 3).encode()


def test_first_values():
    assert KEY.bytes(8).hex() == "e61f4d5a72d9964f"
    assert keys.signs(KEY, 12).tolist() == [1, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1, -1]
    assert keys.phases(KEY, 2).tolist() == [-0.14726067194715142, -0.18910447089001536]
    assert keys.permutation(KEY, 8).tolist() == [2, 0, 6, 4, 5, 7, 3, 1]
    bits = [value.hex() for value in keys.normals(KEY, 3).tolist()]
    assert bits == ["0x1.8585bea2f4533p+0", "-0x1.2bb4056738711p-3", "0x1.35a2c1125c935p+0"]


@pytest.mark.parametrize(
    ("key", "function", "expected"),
    [
        (KEY, keys.signs, "0b2068c0611bdc71"),
        (KEY, keys.phases, "ebd34214609c475a"),
        (KEY, keys.permutation, "64d1b43cad83a4d2"),
        (KEY, keys.normals, "ca64658cc5dabba0"),
        (UNICODE, keys.signs, "7855bc180cf56a7a"),
        (UNICODE, keys.phases, "6a9d522da423994d"),
        (UNICODE, keys.permutation, "1ad0a5c2c264dab3"),
        (UNICODE, keys.normals, "de10ae1d4abe387d"),
    ],
)
def test_a_thousand_values(key, function, expected):
    assert digest(function(key, 1001)) == expected


def test_a_shorter_draw_is_the_start_of_a_longer_one():
    for function in (keys.signs, keys.phases, keys.normals):
        assert np.array_equal(function(KEY, 33), function(KEY, 100)[:33])


def test_cosine_and_sine_need_no_library():
    turns = np.linspace(-2, 2, 10_001)
    cosine, sine = keys.unit(turns)
    assert np.abs(cosine - np.cos(2 * np.pi * turns)).max() < 2e-15
    assert np.abs(sine - np.sin(2 * np.pi * turns)).max() < 2e-15


def test_draws_have_the_distribution_they_claim():
    count = 100_000
    normals = keys.normals(KEY, count)
    error = 5 / count**0.5
    assert abs(normals.mean()) < error
    assert abs((normals**2).mean() - 1) < error * 2**0.5
    assert abs((normals**4).mean() - 3) < error * 96**0.5
    assert abs(keys.signs(KEY, count).mean()) < error
    phases = keys.phases(KEY, count)
    assert -0.5 <= phases.min() < -0.49 < 0.49 < phases.max() < 0.5
    assert abs(np.exp(2j * np.pi * phases).mean()) < error
    assert sorted(keys.permutation(KEY, 1000)) == list(range(1000))
