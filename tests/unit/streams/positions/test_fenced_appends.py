"""Appends behind all that was read, where what was appended before may be lost."""

from __future__ import annotations

import pytest

from duramen.dlsn import FIRST, Dlsn, expected_end
from duramen.streams.errors import PositionDivergedError, StreamEndMovedError
from duramen.streams.positions.fenced_appends import FencedAppends
from duramen.streams.positions.position_store import PositionTakenError
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord, StreamRecord
from duramen.streams.stream import Stream


class LosingStream(Stream):
    """A stream of records that are known by the leader epochs that they were stored in. One batch has one record."""

    def __init__(self) -> None:
        self.name = "s"
        self.epoch = 0
        self.stored: list[int] = []

    @property
    def _place(self) -> Dlsn:
        return Dlsn(self.stored[-1] + 1, len(self.stored) - 1, 1) if self.stored else FIRST

    def append(self, records: list[NewStreamRecord], *, expected_position: Dlsn) -> Receipt:  # type: ignore[override]
        wanted = expected_end(expected_position)
        if wanted.offset != len(self.stored):
            raise StreamEndMovedError("elsewhere", len(self.stored))
        if wanted.offset and wanted.epoch != self.stored[-1]:
            raise PositionDivergedError("lost", len(self.stored))
        at = len(self.stored)
        self.stored += [self.epoch] * len(records)
        return Receipt(at, Dlsn(self.epoch + 1, at, 0), len(self.stored), self.epoch, "page-cache", 1)

    def end_position(self) -> Dlsn:
        return self._place

    def reader(self, start: Dlsn) -> object:  # type: ignore[override]
        if start.offset and self.stored[start.offset - 1] != start.leader_epoch:
            raise PositionDivergedError("lost")
        places = range(start.offset, len(self.stored))
        return iter([StreamRecord(at, Dlsn(self.stored[at] + 1, at, 0), 0, b"k", b"", ()) for at in places])


ONE = [NewStreamRecord(b"a")]


@pytest.fixture
def stream() -> LosingStream:
    return LosingStream()


def test_a_lost_append_is_seen_where_others_filled_its_place(stream: LosingStream) -> None:
    appends = FencedAppends(stream, lambda record: False)
    appends.append(ONE)
    appends.append([*ONE, *ONE])
    stream.epoch = 1
    stream.stored[1:] = [1, 1]
    with pytest.raises(PositionDivergedError):
        appends.append(ONE)
    assert stream.stored == [0, 1, 1]
    appends.begin(stream.end_position())
    appends.append(ONE)
    assert stream.stored == [0, 1, 1, 1]


def test_a_lost_append_is_seen_where_others_went_beyond_its_place(stream: LosingStream) -> None:
    appends = FencedAppends(stream, lambda record: False)
    appends.append(ONE)
    stream.stored[:] = [1, 1]
    with pytest.raises(PositionDivergedError):
        appends.append(ONE)


def test_an_end_in_front_of_what_was_appended_is_said(stream: LosingStream) -> None:
    appends = FencedAppends(stream, lambda record: False)
    appends.append([*ONE, *ONE])
    stream.stored.pop()
    with pytest.raises(PositionDivergedError, match="ends at 1"):
        appends.append(ONE)


def test_others_are_passed_over_but_one_like_ours(stream: LosingStream) -> None:
    ours: list[int] = []
    appends = FencedAppends(stream, lambda record: record.offset in ours)
    appends.append(ONE)
    stream.epoch = 3
    stream.stored += [2, 3]
    appends.append(ONE)
    assert stream.stored == [0, 2, 3, 3]
    ours.append(4)
    stream.stored.append(3)
    with pytest.raises(PositionTakenError):
        appends.append(ONE)
