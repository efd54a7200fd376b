"""One stream: appends that say where they went, reading, truncation, and closing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from duramen.dlsn import Dlsn, dlsn_at
from duramen.errors import ErrorCode, KafkaError, StreamClosedError
from duramen.streams.errors import PositionDivergedError, StreamEndMovedError
from duramen.streams.link import NO_CONDITION, StreamAnswer, StreamLink
from duramen.streams.place import StreamPlace
from duramen.streams.reader import Reader, offset_before
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord, rows_of
from duramen.streams.writer import WRITER_BYTES, StreamWriter

Position = Literal["start", "end"] | int | Dlsn | datetime
"""Where to read from: an offset, a record's DLSN, the first record of a time (with a time zone) or later."""
Records = bytes | bytearray | memoryview | NewStreamRecord | Iterable[bytes | NewStreamRecord]


class Stream:
    """One stream of a namespace; `Namespace.stream` gives it. It holds nothing that has to be closed.

    Its calls raise NoSuchStreamError where the stream is not there, DeadlineError when the time limit of the namespace
    passed (an append may be stored then), NetworkError, StorageError, and KafkaError for other refusals.
    """

    def __init__(self, link: StreamLink, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        """The Kafka topic that holds it, in its partition 0."""
        self._link = link
        self._place = StreamPlace(link, name, topic)

    def __repr__(self) -> str:
        return f"<duramen.streams.Stream {self.name!r}>"

    def append(self, records: Records, *, expected_position: int | None = None, close: bool = False) -> Receipt:
        """Store records as one batch, all of them or none, and say where once they are durable.

        records: bytes for one record's value, a NewStreamRecord, or several of either; together no larger than the
        topic's max.message.bytes. expected_position: the offset at which the stream has to end; StreamEndMovedError
        with the real end where it does not, and nothing is stored. close: nothing is appended behind them, by anybody.
        StreamClosedError where the stream is closed. A connection that is lost on the way never stores them twice.
        """
        rows = rows_of(records, time.time_ns() // 1_000_000)
        with self._place.errors():
            answer = self._link.append(self.topic, rows, _condition(expected_position), close=close)
        self._check(answer)
        end = answer.base_offset + len(rows)
        return Receipt(
            answer.base_offset,
            dlsn_at(answer.base_offset, answer.base_offset, answer.leader_epoch),
            end,
            answer.leader_epoch,
            "stable" if answer.stable else "page-cache",
            answer.copies,
        )

    def writer(self, *, expected_position: int | None = None, max_bytes: int = WRITER_BYTES) -> StreamWriter:
        """A writer that gathers records and appends them as one batch per flush; a context manager that flushes.

        expected_position: each batch is appended only where the one before it ended, the first at this offset: who
        else appends meanwhile ends it with StreamEndMovedError. max_bytes: of records that are gathered before they
        are appended without being asked to.
        """
        return StreamWriter(self.append, expected_position, max_bytes)

    def reader(self, start: Position = "start", *, after: Dlsn | None = None, follow: bool = False) -> Reader:
        """The records from a position on, in order, as an iterator.

        after: instead of `start`, the record behind this one, to go on where a reader stopped. follow: wait at the end
        for more, until the stream is closed; else stop there. TruncatedError with the first offset where the position
        lies before it; PositionDivergedError where it names a record that the stream does not hold.
        """
        if after is not None and start != "start":
            raise TypeError("a reader has a start or an `after`, not both")
        with self._place.errors():
            place = after if after is not None else self._find(start)
            return Reader(self._place, place, skips=after is not None, follow=follow)

    def truncate(self, before: Position) -> int:
        """Delete every record before a position, durably; the offset of the first that is left."""
        with self._place.errors():
            place = self._find(before)
            if isinstance(place, Dlsn):
                place = Reader(self._place, place, skips=False, follow=False).checked()
            first, end = self._place.bounds()
            if place > end:
                raise PositionDivergedError(f"{self.name} ends at {end}, in front of {place}", end)
            return first if place <= first else self._link.truncate(self.topic, place)

    def close_stream(self, *, expected_position: int | None = None) -> None:
        """Let nothing be appended any more, by anybody, for ever; readers that follow end when they reach the end.

        Durable when it returns. Closing it again does nothing. expected_position: as in `append`.
        """
        with self._place.errors():
            answer = self._link.append(self.topic, None, _condition(expected_position), close=True)
        self._check(answer)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, asked now."""
        return self._place.is_closed()

    def start(self) -> int:
        """Offset of the first record that is kept, asked now."""
        return self._place.bounds()[0]

    def end(self) -> int:
        """Offset behind the last record, where the next goes, asked now."""
        return self._place.bounds()[1]

    def _find(self, position: Position) -> int | Dlsn:
        if position == "start":
            return self._place.bounds()[0]
        if position == "end":
            return self._place.bounds()[1]
        if isinstance(position, datetime):
            if position.tzinfo is None:
                raise ValueError(f"{position} has no time zone; give it one, such as datetime.UTC")
            found = self._link.offset_at(self.topic, max(0, int(position.timestamp() * 1000)))
            return self._place.bounds()[1] if found is None else found
        if isinstance(position, Dlsn):
            return offset_before(position) if not position.is_record else position
        if isinstance(position, int) and not isinstance(position, bool) and 0 <= position < 1 << 63:
            return position
        raise TypeError(f'a position is "start", "end", an offset, a Dlsn or a datetime, not {position!r:.80}')

    def _check(self, answer: StreamAnswer) -> None:
        if answer.code is ErrorCode.NONE:
            return
        if answer.code is ErrorCode.END_IS_ELSEWHERE:
            raise StreamEndMovedError(f"{self.name}: {answer.message}", answer.end_offset)
        if answer.code is ErrorCode.STREAM_CLOSED:
            raise StreamClosedError(self.name)
        raise KafkaError(answer.code, f"{self.name}: {answer.message or answer.code.name}")


def _condition(expected: int | None) -> int:
    if expected is None:
        return NO_CONDITION
    if not isinstance(expected, int) or isinstance(expected, bool) or not 0 <= expected < 1 << 63:
        raise TypeError(f"expected_position is an offset or None, not {expected!r:.80}")
    return expected
