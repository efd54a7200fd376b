"""Records as lines: what is written can be read back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.cli.shared.records import (
    Incoming,
    Outgoing,
    from_json,
    from_line,
    from_object,
    to_full,
    to_json,
    to_key_value,
    to_value,
    unescape,
)

CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)


@given(key=CONTENT, value=CONTENT, headers=HEADERS, timestamp=st.integers(0, 2**62))
def test_json_loses_nothing(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    line = to_json(Incoming("t", 3, 7, timestamp, key, value, headers))
    assert b"\n" not in line
    assert from_json(line) == Outgoing(key, value, headers, 3, timestamp)


def test_json_values_that_are_no_strings_stay_json() -> None:
    record = from_json(b'{"key": 5, "value": {"a": [1, null]}, "headers": {"h": "x", "n": null}}')
    assert record == Outgoing(b"5", b'{"a":[1,null]}', [("h", b"x"), ("n", None)])
    assert from_json(b"{}") == Outgoing(None, None, [])


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "0.10", "1.0", "12345678901234567890.123456789", "1" * 30])
def test_numbers_stay_as_they_are_written(number: str) -> None:
    text = number.encode()
    line = b'{"key": %s, "value": {"n": [%s]}, "headers": [["h", %s]]}' % (text, text, text)
    assert from_json(line) == Outgoing(text, b'{"n":[%s]}' % text, [("h", text)])
    assert from_object(b'{"n": %s}' % text, "n").key == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "not JSON"),
        (b'{"value": {"n": NaN}}', "NaN is no number of JSON"),
        (b'{"value": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"value": %s1%s}' % (b"[" * 990, b"]" * 990), "nested too deeply|not JSON"),
        (b'{"partition": 1.0}', "partition is not a whole number"),
        (b'{"headers": [[1.5, "a"]]}', "headers is neither"),
        (b'{"headers": [1.5]}', "headers is neither"),
        (b"[1]", "not a JSON object"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"partition": -1}', "partition is not a whole number"),
        (b'{"timestamp": true}', "timestamp is not a whole number"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"headers": 5}', "headers is neither"),
        (b'{"headers": [["a"]]}', "headers is neither"),
        (b'{"headers": [["a", {"base64": "?"}]]}', "not base64"),
        (rb'{"headers": [["\ud800", "a"]]}', "name of a header is not text"),
        (rb'{"headers": {"a\udfff": "a"}}', "name of a header is not text"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_json_says_why(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(line)


def test_lines() -> None:
    assert from_line(b"a:b", None, None, None) == Outgoing(None, b"a:b", [])
    assert from_line(b"a:b:c", b":", None, None) == Outgoing(b"a", b"b:c", [])
    assert from_line(b"x", None, b"k", None) == Outgoing(b"k", b"x", [])
    assert from_line(b"a:NULL", b":", None, b"NULL") == Outgoing(b"a", None, [])
    assert from_line(b"", None, None, None) == Outgoing(None, b"", [])
    with pytest.raises(ValueError, match="no key separator ':'"):
        from_line(b"ab", b":", None, None)


def test_key_from_a_field() -> None:
    line = b'{"user": "u1", "n": 1}'
    assert from_object(line, "user") == Outgoing(b"u1", line, [])
    assert from_object(line, "n") == Outgoing(b"1", line, [])
    assert from_object(line, "missing") == Outgoing(None, line, [])


def test_formats_for_people() -> None:
    record = Incoming("t", 1, 2, 1_767_225_600_000, b"k", None, [("h", b"\xff"), ("n", None)])
    assert to_value(record, b"-") == b"-"
    assert to_key_value(record, b"=", b"-") == b"k=-"
    assert to_full(record, b"=", b"-") == rb"1:2  2026-01-01T00:00:00.000Z  [h=\xff,n=null]  k=-"
    assert to_full(record._replace(timestamp_ms=-1, headers=[]), b"=", b"-") == b"1:2  -  k=-"
    assert json.loads(to_json(record._replace(timestamp_ms=-1)))["timestamp"] is None


def test_separators_as_typed() -> None:
    assert unescape(r"\t") == "\t"
    assert unescape(":") == ":"
    assert unescape(r"\x1f") == "\x1f"
    assert unescape("→") == "→"
    with pytest.raises(ValueError, match="truncated"):
        unescape(r"\x1")
