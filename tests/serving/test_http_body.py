"""Bodies of requests are read, or refused with the reason."""

import pytest

from superpose.serving import RequestError
from superpose.serving.http_body import json_object, split


def test_an_object():
    text = '{"a": [1, -2.5, true, null, [3e2]], "é": {"b": "\\u00e9"}, "a": [0.1]}'
    assert json_object(text.encode()) == {"a": [0.1], "é": {"b": "é"}}
    assert [type(one) for one in json_object(b'{"a": [1, 1.0, true]}')["a"]] == [int, float, bool]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 01}',
        b'{"a": 1',
        b'{"a": 1} {}',
        b"\xef\xbb\xbf{}",
        b'{"a":' * 5000,
        b"[1]",
        b"1",
    ],
)
def test_what_is_no_object_of_json_is_refused(text):
    with pytest.raises(RequestError, match="the body is not") as refused:
        json_object(text)
    assert refused.value.status == 400


@pytest.mark.parametrize("told", ["3", "-1", "two", "9" * 5000])
def test_a_length_of_the_json_part_that_cannot_be(told):
    with pytest.raises(RequestError, match="Inference-Header-Content-Length"):
        split(b"{}", told)
