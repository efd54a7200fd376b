"""Positions are DLSNs: the one after a batch is where the next begins, and texts sort as they do."""

from __future__ import annotations

import pytest

from duramen.dlsn import BEFORE_FIRST, INVALID
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_position import START, parse_position, parse_position_in, position_after


def test_behind_a_batch_comes_the_next() -> None:
    position = position_after(4, 10, 12)
    assert (position.offset, position.leader_epoch) == (13, 4)
    assert str(START) < str(position) < str(position_after(4, 13, 13)) < str(position_after(5, 14, 14))
    assert parse_position(str(position)) == position
    assert position_after(-1, 0, 0).lssn == 1


def test_positions_of_distributedlog() -> None:
    position = position_after(4, 10, 12)
    assert parse_position(position.base64_text) == position
    assert parse_position(str(BEFORE_FIRST)) == START


@pytest.mark.parametrize("text", ["", "0", "-2", "a,b", "1 2", f"{START} ", "f" * 34, str(INVALID)])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="offset"):
        parse_position(text)


def test_an_offset_is_sent_to_where_it_is_found() -> None:
    with pytest.raises(ProblemError, match=r"found by \.position\?offset=5$"):
        parse_position("5")


def test_a_position_may_say_which_stream_of_the_name_it_is_of() -> None:
    here, stream_id = position_after(4, 10, 12), "a1b2c3d4" + "0" * 24
    assert parse_position_in(str(here), stream_id) == here
    assert parse_position_in(f"{here}.a1b2c3d4", stream_id) == here
    with pytest.raises(ProblemError, match=r"from: the stream of this name is another one") as refused:
        parse_position_in(f"{here}.a1b2c3d5", stream_id, "from")
    assert (refused.value.status, refused.value.code) == (409, "position-diverged")
    for text in (f"{here}.", f"{here}.a1b2", "5.a1b2c3d4", ".a1b2c3d4"):
        with pytest.raises(ProblemError, match="offset") as wrong:
            parse_position_in(text, stream_id)
        assert wrong.value.status == 400
