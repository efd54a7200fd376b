"""Positions in both texts, their order, and DistributedLog's constants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.dlsn import (
    BEFORE_FIRST,
    FIRST,
    INVALID,
    NOWHERE,
    Dlsn,
    LogEnd,
    dlsn_at,
    expected_end,
    identified_text,
    is_of,
    parse_dlsn,
    parse_identified,
)

positions = st.builds(Dlsn, st.integers(1, 2**31), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
int64 = st.integers(-(2**63), 2**63 - 1)


@given(positions)
def test_a_position_comes_back_from_both_texts(position: Dlsn) -> None:
    assert parse_dlsn(str(position)) == parse_dlsn(position.base64_text) == position
    assert (len(str(position)), len(position.base64_text)) == (34, 36)


@given(st.builds(Dlsn, int64, int64, int64))
def test_base64_has_what_names_no_record_too(position: Dlsn) -> None:
    assert parse_dlsn(position.base64_text) == position
    assert parse_dlsn(str(position)) == position


@given(positions, positions)
def test_texts_sort_as_positions_do(one: Dlsn, other: Dlsn) -> None:
    assert (one < other) == (str(one) < str(other))
    assert one < one.next
    assert not one < other < one.next


@given(st.text(max_size=40))
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A.*\Z"):
        parse_dlsn("!" + text)


def test_the_constants_are_those_of_distributedlog() -> None:
    """25 bytes: version 1, then three big-endian numbers of eight; laid out by hand."""
    assert BEFORE_FIRST.next == FIRST == Dlsn(1, 0, 0)
    assert INVALID == Dlsn(0, -1, -1) < BEFORE_FIRST < FIRST
    assert FIRST.base64_text == "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA=="
    assert BEFORE_FIRST.base64_text == "AQAAAAAAAAABAAAAAAAAAAD//////////w=="
    assert INVALID.base64_text == "AQAAAAAAAAAA/////////////////////w=="
    assert parse_dlsn("AQAAAAAAAABjAAAAAAAAAFgAAAAAAAAATQ==") == Dlsn(99, 88, 77)
    assert str(Dlsn(99, 88, 77)) == "00000063-0000000000000058-0000004d"


def test_it_names_a_record_by_epoch_and_offset() -> None:
    position = dlsn_at(107, base_offset=100, leader_epoch=4)
    assert position == Dlsn(5, 100, 7)
    assert (position.offset, position.leader_epoch) == (107, 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00000001-0000000000000000-0000000",  # too short
        "00000001-0000000000000000-0000000A",  # two texts for one position
        "00000000-0000000000000000-00000000",  # there is no epoch -1
        "00000001-8000000000000000-00000000",
        "00000001-0000000000000000-80000000",
        "AAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA==",  # version 0
        "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAB==",  # bits behind the last
        "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAA",
        "٠٠٠٠٠٠٠١-0000000000000000-00000000",
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no DLSN|no record's position"):
        parse_dlsn(text)


def test_a_text_tells_positions_of_streams_of_one_name_apart() -> None:
    here = Dlsn(3, 7, 2)
    text = identified_text(here, "a1b2c3d4" + "00" * 12)
    assert text == f"{here}.a1b2c3d4"
    assert parse_identified(text) == (here, "a1b2c3d4")
    assert parse_identified(identified_text(here, "")) == parse_identified(here.base64_text) == (here, "")
    for other in (f"{here}.", f"{here}.A1B2C3D4", f"{here}.a1b2c3d", f"{text}.a1b2c3d4", "7.a1b2c3d4"):
        with pytest.raises(ValueError, match="is no DLSN"):
            parse_identified(other)
    assert is_of("a1b2c3d4" + "00" * 12, "a1b2c3d4")
    assert is_of("", "a1b2c3d4")
    assert is_of("a1", "")
    assert not is_of("a1b2c3d5" + "00" * 12, "a1b2c3d4")


def test_where_a_log_has_to_end() -> None:
    assert [expected_end(each) for each in (BEFORE_FIRST, FIRST)] == [LogEnd(0)] * 2
    assert expected_end(Dlsn(4, 10, 3)) == LogEnd(13, 3)
    assert expected_end(Dlsn(4, 10, 0)) == NOWHERE
