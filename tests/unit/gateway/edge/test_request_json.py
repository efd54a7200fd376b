"""JSON of requests is decoded, or refused with the field in front."""

from __future__ import annotations

import msgspec
import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_json import decoded_json

NUMBERS = msgspec.json.Decoder(dict[str, list[int]])
RAW = msgspec.json.Decoder(msgspec.Raw)


def test_what_is_right_is_decoded() -> None:
    assert decoded_json(b'{"a":[1]}', NUMBERS, "body") == {"a": [1]}
    assert decoded_json('{"a":[1]}', NUMBERS, "message") == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "where", "detail"),
    [
        (b'{"a":1}', "body", "a: it has to be an array, not a whole number"),
        (b'{"a":1}', "line 3", "line 3.a: it has to be an array, not a whole number"),
        ('{"a":1}', "Stream-Settings", "Stream-Settings.a: it has to be an array, not a whole number"),
        (b'{"a b":1}', "body", 'body["a b"]: it has to be an array, not a whole number'),
        (b"1", "body", "body: it has to be an object, not a whole number"),
        (b"\xff", "body", "body: it is not UTF-8 at byte 0"),
    ],
)
def test_what_is_wrong_is_named(text: bytes | str, where: str, detail: str) -> None:
    with pytest.raises(ProblemError) as caught:
        decoded_json(text, NUMBERS, where)
    assert (caught.value.status, caught.value.code, caught.value.detail) == (400, "bad-request", detail)


def test_an_example_follows() -> None:
    with pytest.raises(ProblemError, match=r'^body: .*; as in \{"a": \[1\]\}$'):
        decoded_json(b"1", NUMBERS, "body", '{"a": [1]}')


def test_what_stays_as_it_is_is_utf_8_and_not_too_deep() -> None:
    with pytest.raises(ProblemError, match=r"^body: it is not UTF-8 at byte 1$"):
        decoded_json(b'"\xff"', RAW, "body")
    with pytest.raises(ProblemError, match=r"^body: it nests too deeply$"):
        decoded_json(b"[" * 100_000, RAW, "body")
