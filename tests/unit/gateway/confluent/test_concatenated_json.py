"""A body of JSON objects is cut where they end, whatever the parts in which it comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.confluent.concatenated_json import ConcatenatedJson

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text('"\\{}[] a\u00e9\u2028', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\{}', max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(max_size=2), VALUES, max_size=3), st.sampled_from(["", " ", "\n", "\r\n\t"])),
        max_size=5,
    ),
    st.booleans(),
    st.integers(1, 9),
)
def test_every_object_comes_out_as_it_went_in(objects: list[tuple[Any, str]], ascii_only: bool, size: int) -> None:
    texts = [json.dumps(each, ensure_ascii=ascii_only).encode() for each, _ in objects]
    body = b"".join(text + blanks.encode() for text, (_, blanks) in zip(texts, objects, strict=True))
    cutter = ConcatenatedJson()
    found = []
    for start in range(0, len(body), size):
        found += cutter.feed(body[start : start + size])
        assert cutter.wrong is None
    assert found + cutter.end() == texts
    assert (cutter.wrong, cutter.held) == (None, 0)


@pytest.mark.parametrize(
    ("body", "objects", "why"),
    [
        (b'{"a": 1} [2]', 1, "at byte 9: "),
        (b"  1{}", 0, "at byte 2: "),
        (b"{}{}}", 2, "at byte 4: "),
        (b'{}{"a": "}', 1, "begins at byte 2"),
        (b'{"a": "\\', 0, "begins at byte 0"),
    ],
)
def test_what_is_no_object_is_refused_behind_those_before_it(body: bytes, objects: int, why: str) -> None:
    cutter = ConcatenatedJson()
    found = cutter.feed(body) + cutter.end()
    assert len(found) == objects
    assert cutter.wrong is not None
    assert why in cutter.wrong.detail
    assert not cutter.feed(b"{}")


def test_a_long_string_in_small_parts_is_not_looked_at_again() -> None:
    cutter = ConcatenatedJson()
    body = b'{"a": "' + b"x\\n" * 200_000 + b'"}'
    found = [piece for start in range(0, len(body), 16) for piece in cutter.feed(body[start : start + 16])]
    assert found == [body]
