"""Bodies are read alike with orjson and without."""

import pytest

from superpose.serving import RequestError, http_body


@pytest.fixture(params=["json", "orjson"])
def reader(request, monkeypatch):
    if request.param == "json":
        monkeypatch.setattr(http_body, "orjson", None)
    elif http_body.orjson is None:
        pytest.skip("orjson is not installed")
    return http_body.json_object


def test_an_object(reader):
    text = '{"a": [1, -2.5, true, null, [3e2]], "é": {"b": "\\u00e9"}, "a": [0.1]}'
    assert reader(text.encode()) == {"a": [0.1], "é": {"b": "é"}}
    assert [type(one) for one in reader(b'{"a": [1, 1.0, true]}')["a"]] == [int, float, bool]


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
def test_what_is_no_object_of_json_is_refused(reader, text):
    with pytest.raises(RequestError, match="the body is not") as refused:
        reader(text)
    assert refused.value.status == 400
