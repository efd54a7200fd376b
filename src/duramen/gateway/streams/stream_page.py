"""What a reader of a stream gets at a time: records out of fetched batches, and the position after them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from typing import NamedTuple

from duramen.client.protocol.fetch import FetchedBytes
from duramen.dlsn import Dlsn, identified_text
from duramen.gateway.streams.stream_position import position_after
from duramen.wire.aborted import AbortedTransactions
from duramen.wire.batch import Record, batches, records
from duramen.wire.records.control import ControlType, decode_key

STEP_RECORDS = 100
"""Decoded at a time, where others are not to wait: about half a millisecond."""

INFLATED_MAX = 128 << 20
"""Bytes that one compressed batch may become."""


class BatchPlace(NamedTuple):
    """The batch that a record came in."""

    leader_epoch: int
    base_offset: int


class StreamPage(NamedTuple):
    """Records in order, and where to go on. places: the batch of each record.

    up_to_date: nothing more could be read; closed: nothing will come. log_start: the log's first offset then.
    stream_id: of the stream (hexadecimal), where its events are to name it.
    """

    records: Sequence[Record]
    places: Sequence[BatchPlace]
    position: Dlsn
    up_to_date: bool
    closed: bool
    log_start: int = 0
    stream_id: str = ""

    @property
    def event_id(self) -> str:
        """The position after it, of this stream alone: an EventSource gives it back with an address that has just the
        name."""
        return identified_text(self.position, self.stream_id)

    @property
    def messages(self) -> list[bytes]:
        """The values; b"" for a record without one."""
        return [record.value or b"" for record in self.records]

    @property
    def size(self) -> int:
        """Bytes of keys, values and headers."""
        return sum(map(_size, self.records))

    def at(self, offset: int) -> BatchPlace | None:
        """The batch of the record at an offset, if it is one of these."""
        index = bisect_left(self.records, offset, key=_offset)
        return self.places[index] if index < len(self.records) and self.records[index].offset == offset else None

    def after(self, position: Dlsn) -> StreamPage:
        """Without the records in front of a position."""
        first = bisect_left(self.records, position.offset, key=_offset)
        return self._replace(records=self.records[first:], places=self.places[first:])

    def part(self, first: int, end: int) -> StreamPage:
        """Records from one to before another, counted from 0; what it says of the position is not theirs."""
        return self._replace(records=self.records[first:end], places=self.places[first:end])

    def first(self, count: int) -> StreamPage:
        """The first records alone, 1 or more of them; the position is after the last."""
        records, places = self.records[:count], self.places[:count]
        position = position_after(places[-1].leader_epoch, places[-1].base_offset, records[-1].offset)
        return self._replace(records=records, places=places, position=position, up_to_date=False, closed=False)


def empty_page(position: Dlsn, *, closed: bool) -> StreamPage:
    """What lies after the last record."""
    return StreamPage((), (), position, True, closed)


def read_page(fetched: FetchedBytes, asked: Dlsn) -> StreamPage:
    """The same as `page_steps`, at once."""
    steps = page_steps(fetched, asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            page: StreamPage = end.value
            return page


def page_steps(fetched: FetchedBytes, asked: Dlsn) -> Generator[None, None, StreamPage]:
    """The committed records at and after the position asked for.

    Control records and those of aborted transactions are passed over. After a closing mark stands nothing, so the
    position stays in front of it: whoever held that position before the closing finds the end there, too.
    """
    aborted = AbortedTransactions(fetched.aborted)
    found: list[Record] = []
    places: list[BatchPlace] = []
    position = asked
    closed = False
    for start, header in batches(fetched.data):
        batch = fetched.data[start : start + header.size]
        hidden = aborted.hides(header, batch)
        if header.is_control and header.producer_id < 0 and _is_closing(batch):
            closed = True
            break
        if not hidden and not header.is_control:
            place = BatchPlace(header.leader_epoch, header.base_offset)
            for number, record in enumerate(records(batch, header, max_bytes=INFLATED_MAX), 1):
                if record.offset >= asked.offset:
                    found.append(record)
                    places.append(place)
                if not number % STEP_RECORDS:
                    yield
        position = position_after(header.leader_epoch, header.base_offset, header.last_offset)
    up_to_date = closed or max(position.offset, fetched.next_offset) >= fetched.last_stable_offset
    return StreamPage(found, places, position, up_to_date, closed, fetched.log_start_offset)


def _offset(record: Record) -> int:
    return record.offset


def _size(record: Record) -> int:
    size = len(record.value or b"") + len(record.key or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else size


def _is_closing(batch: memoryview) -> bool:
    first = next(records(batch, max_bytes=INFLATED_MAX), None)
    return first is not None and first.key is not None and decode_key(first.key) == ControlType.STREAM_CLOSED
