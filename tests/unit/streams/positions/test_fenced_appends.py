"""Appends behind all that was read, where what was appended before may be lost."""

from __future__ import annotations

from typing import Literal

import pytest

from duramen.dlsn import Dlsn
from duramen.streams.errors import PositionDivergedError, StreamEndMovedError
from duramen.streams.positions.fenced_appends import FencedAppends
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord
from duramen.streams.stream import Stream


class LosingStream(Stream):
    """A stream without a log: it knows where it ends, and which of its batches are lost by now."""

    def __init__(self, durability: Literal["stable", "page-cache"]) -> None:
        self.name = "s"
        self.durability: Literal["stable", "page-cache"] = durability
        self.ends_at = 0
        self.lost: set[Dlsn] = set()
        self.looked_at: list[Dlsn] = []

    def append(self, records: list[NewStreamRecord], *, expected_position: int) -> Receipt:  # type: ignore[override]
        if expected_position != self.ends_at:
            raise StreamEndMovedError("elsewhere", self.ends_at)
        at, self.ends_at = self.ends_at, self.ends_at + len(records)
        return Receipt(at, Dlsn(1, at, 0), self.ends_at, 0, self.durability, 1)

    def reader(self, start: Dlsn) -> object:  # type: ignore[override]
        self.looked_at.append(start)
        if start in self.lost:
            raise PositionDivergedError("lost")
        return iter([object()])


TWO = [NewStreamRecord(b"a"), NewStreamRecord(b"b")]


def test_a_lost_append_is_seen_where_others_filled_its_place() -> None:
    stream = LosingStream("page-cache")
    appends = FencedAppends(stream, lambda record: False)
    appends.append(TWO)
    appends.append(TWO)
    assert stream.looked_at == [Dlsn(1, 0, 1)]
    stream.lost.add(Dlsn(1, 2, 1))
    with pytest.raises(PositionDivergedError):
        appends.append(TWO)
    assert stream.ends_at == 4
    appends.begin(4, Dlsn(9, 3, 0))
    appends.append(TWO)
    assert stream.looked_at[-1] == Dlsn(9, 3, 0)


def test_an_end_in_front_of_what_was_appended_is_said() -> None:
    stream = LosingStream("stable")
    appends = FencedAppends(stream, lambda record: False)
    appends.append(TWO)
    stream.ends_at = 1
    with pytest.raises(StreamEndMovedError):
        appends.append(TWO)


def test_what_is_on_stable_storage_is_not_looked_at_again() -> None:
    stream = LosingStream("stable")
    appends = FencedAppends(stream, lambda record: False)
    appends.append(TWO)
    appends.append(TWO)
    assert stream.looked_at == []
    appends.begin(4, Dlsn(1, 3, 0))
    appends.append(TWO)
    assert stream.looked_at == [Dlsn(1, 3, 0)], "of what was read nobody knows it"
