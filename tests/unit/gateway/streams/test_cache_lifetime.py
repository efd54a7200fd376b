"""What may be kept by who read it, and for how long."""

from __future__ import annotations

import pytest

from duramen.dlsn import Dlsn
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.cache_lifetime import FOR_A_MINUTE, FOR_EVER, REVALIDATED, cache_control, check_stream_id
from duramen.gateway.streams.stream_expiry import NEVER
from duramen.gateway.streams.stream_page import StreamPage, empty_page
from duramen.gateway.streams.stream_position import START
from duramen.gateway.streams.stream_topics import StreamInfo

INFO = StreamInfo("a", b"\x01" * 16, "text/plain", NEVER, 0)
THERE = Dlsn(1, 4, 1)
FULL = StreamPage((), (), Dlsn(1, 9, 1), False, False)


def test_only_what_can_never_change_is_kept_for_ever() -> None:
    named = INFO.topic_id.hex()
    assert cache_control(INFO, THERE, FULL, named) == FOR_EVER
    assert cache_control(INFO, THERE, FULL, None) == FOR_A_MINUTE  # another stream may get the name
    assert cache_control(INFO, START, FULL, named) == FOR_A_MINUTE  # the beginning moves
    assert cache_control(INFO._replace(is_compacted=True), THERE, FULL, named) == FOR_A_MINUTE
    assert cache_control(INFO, THERE, empty_page(THERE, closed=False), named) == REVALIDATED


def test_another_stream_of_the_name_is_another_history() -> None:
    check_stream_id(INFO, None)
    check_stream_id(INFO, "01" * 16)
    with pytest.raises(ProblemError) as refused:
        check_stream_id(INFO, "02" * 16)
    assert refused.value.status == 409
