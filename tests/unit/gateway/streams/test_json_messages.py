"""JSON bodies are cut into messages and joined to pages without a byte being changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.json_messages import join_messages, split_messages

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values=st.lists(VALUES, max_size=6), indent=st.none() | st.integers(0, 2))
def test_an_array_is_cut_into_its_elements(values: list[object], indent: int | None) -> None:
    messages = split_messages(json.dumps(values, indent=indent).encode())
    assert [json.loads(message) for message in messages] == values
    assert json.loads(join_messages(messages)) == values


@pytest.mark.parametrize(
    "message",
    [b"9223372036854775808", b"1.10", b"1e400", b'{"b":1,"a":1.0}', b'"\\ud83d\\ude00 \\u0000"', b'{"a" : [ 1 ]}'],
)
def test_a_message_stays_as_it_is(message: bytes) -> None:
    assert split_messages(b" [ " + message + b" ]\n") == [message]
    if not message.startswith(b"["):
        assert split_messages(message + b"\n") == [message]


def test_one_level_is_flattened() -> None:
    assert split_messages(b"[[1,2],[3]]") == [b"[1,2]", b"[3]"]
    assert split_messages(b"[]") == []
    assert join_messages([]) == b"[]"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a": tru}', "byte 7"),
        (b"[1,]", "byte 3"),
        (b"1 2", "byte 3"),
        (b"NaN", "byte 0"),
        (b"\xef\xbb\xbf1", "byte 0"),
        (b'["\xff"]', "UTF-8 at byte 2"),
        (b"[" * 100_000, "too deeply"),
        (b'"a', "in the middle"),
        (b" ", "it is empty"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(body: bytes, why: str) -> None:
    with pytest.raises(ProblemError, match=why) as refused:
        split_messages(body)
    assert refused.value.status == 400
