"""Positions of several partitions as one text: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.dlsn import Dlsn
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.tails.topic_position import parse_topic_position, topic_position_text

TOPIC_ID = bytes(range(16))
DLSNS = st.builds(Dlsn, st.integers(1, 2**31), st.integers(0, 2**62), st.integers(0, 2**31 - 1))


@given(st.dictionaries(st.integers(0, 10_000), DLSNS, max_size=20))
def test_what_goes_in_comes_out(positions: dict[int, Dlsn]) -> None:
    text = topic_position_text(TOPIC_ID, positions)
    assert not set(text) & set(",&=?/+ \r\n")
    assert parse_topic_position(text, TOPIC_ID, "offset") == positions


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: b"\x01" + TOPIC_ID[:4] + rest))
def test_any_bytes_are_a_position_or_refused(data: bytes) -> None:
    text = base64.urlsafe_b64encode(data).decode()
    with contextlib.suppress(ProblemError):
        assert all(position.is_record for position in parse_topic_position(text, TOPIC_ID, "offset").values())


@pytest.mark.parametrize("text", ["", "é", "AQ", "0" * 70_000, "00000001-0000000000000000-00000000"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(ProblemError, match="offset"):
        parse_topic_position(text, TOPIC_ID, "offset")


def test_another_topic_of_the_name() -> None:
    text = topic_position_text(TOPIC_ID, {0: Dlsn(1, 0, 0)})
    with pytest.raises(ProblemError) as refused:
        parse_topic_position(text, bytes(16), "offset")
    assert refused.value.status == 409
