"""Which records a reader wants: exact keys and headers, and a position that moves on over the others."""

from __future__ import annotations

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_page import BatchPlace, StreamPage
from duramen.gateway.streams.stream_position import position_after
from duramen.gateway.tails.page_forms import MessageForm
from duramen.gateway.tails.record_form import RecordForm
from duramen.gateway.tails.record_match import MatchForm, RecordMatch, record_match
from duramen.gateway.tails.tail_page import TailPage
from duramen.wire.batch import Record

RECORDS = [
    Record(0, 1, b"a", b"0", [(b"from", b"shop"), (b"n", b"1")]),
    Record(1, 1, b"b", b"1", [(b"from", b"shop")]),
    Record(2, 1, None, b"2", [(b"from", None)]),
]
PAGE = StreamPage(RECORDS, [BatchPlace(0, 0)] * 3, position_after(0, 0, 2), True, False)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ([("key", "a")], [b"0"]),
        ([("key", "A")], []),
        ([("header.from", "shop")], [b"0", b"1"]),
        ([("header.from", "shop"), ("header.n", "1"), ("offset", "-1")], [b"0"]),
        ([("header.from", "shop"), ("key", "b")], [b"1"]),
        ([("header.from", "")], []),
    ],
)
def test_what_is_wanted(query: list[tuple[str, str]], values: list[bytes]) -> None:
    match = record_match(query)
    assert match is not None
    found = match.of(PAGE)
    assert (found.messages, found.position) == (values, PAGE.position)
    form = MatchForm(MessageForm("text/plain"), match)
    tail = TailPage(position_after(0, 0, -1), PAGE, 0)
    weight = tail.weight
    assert tail.body(form) == b"".join(values)
    assert b"streamNextOffset" in tail.frame(form, True)  # even where nothing is wanted: the position moves on
    assert tail.weight == weight
    lines = MatchForm(RecordForm("json", False), match).body(PAGE).splitlines()
    assert len(lines) == len(values)


def test_no_wish_and_wrong_ones() -> None:
    assert record_match([("offset", "-1"), ("headers", "x")]) is None
    for query in ([("key", "a"), ("key", "b")], [("header.", "x")]):
        with pytest.raises(ProblemError):
            record_match(query)
    every = RecordMatch(None, ())
    assert every.of(PAGE) is PAGE
    names = {MatchForm(RecordForm("json", False), RecordMatch(key, ())).name for key in (b"a", b"b", None)}
    assert len(names) == 3
