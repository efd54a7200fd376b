"""Reading a stream: its records in order, from a position that is checked against the history it names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from duramen.dlsn import INVALID, Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.streams.errors import PositionDivergedError
from duramen.streams.link import Stretch
from duramen.streams.place import StreamPlace
from duramen.streams.records import StoredBatch, StreamRecord, stored_batches
from duramen.wire.batch import BatchHeader


def offset_before(position: Dlsn) -> int:
    """The offset for a position that is no record's, such as BEFORE_FIRST. ValueError for INVALID, which is none."""
    if position == INVALID:
        raise ValueError("the invalid DLSN is no position")
    return max(position.offset, 0)


class Reader:
    """An iterator over a stream's records. position: offset of the next one.

    is_ended: whether the stream is closed and all of it was read. `Stream.reader` gives it.
    """

    def __init__(self, stream: StreamPlace, place: int | Dlsn, *, skips: bool, follow: bool) -> None:
        self.is_ended = False
        self._stream = stream
        self._follow = follow
        self._unchecked = place if isinstance(place, Dlsn) else None
        self._place = place
        self._asked_closed = False
        offset = place.offset if isinstance(place, Dlsn) else place
        self._fetched = offset
        self._read = offset + skips
        self._stretch: deque[StoredBatch] = deque()
        self._records: Iterator[StreamRecord] = iter(())
        if isinstance(place, Dlsn) and skips and offset + 1 == stream.bounds()[0]:
            self._fetched, self._unchecked = offset + 1, None  # the record itself was truncated, and nothing behind it

    @property
    def position(self) -> int:
        """Offset of the next record; one that is read from here gives what this one has not given yet."""
        return self._read

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> StreamRecord:
        while True:
            for record in self._records:
                if record.offset >= self._read:
                    self._read = record.offset + 1
                    return record
            if self.is_ended or not self._advance():
                raise StopIteration

    def checked(self) -> int:
        """The offset of the position, once the batch that holds it was seen to be of its history."""
        if not self._stretch:
            self._fetch()
        return self._read

    def _advance(self) -> bool:
        """Take the next batch; False at the end."""
        if not self._stretch:
            stretch = self._fetch()
            if not self._stretch:
                return self._follow and self._wait(stretch.bound)
        batch = self._stretch.popleft()
        self._records = iter(batch.records)
        self.is_ended = batch.closes
        return True

    def _fetch(self) -> Stretch:
        stream = self._stream
        with stream.errors():
            try:
                stretch = stream.link.fetch(stream.topic, self._fetched)
            except KafkaError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise stream.out_of_range(self._place, self._fetched) from error
                raise
        self._stretch.extend(stored_batches(stretch.data, stretch.aborted, self._fetched))
        if self._stretch:
            if self._unchecked is not None:
                self._check(self._unchecked, self._stretch[0].header)
                self._unchecked = None
            self._fetched = self._stretch[-1].header.next_offset
        return stretch

    def _check(self, place: Dlsn, header: BatchHeader) -> None:
        """PositionDivergedError where another history's record has this position's offset.

        A batch behind the position (the record was compacted away) can only be of its epoch or a later one.
        """
        is_held = header.base_offset <= place.offset
        if header.leader_epoch == place.leader_epoch or (not is_held and header.leader_epoch > place.leader_epoch):
            return
        self._stretch.clear()
        text = f"{self._stream.name}: {place} names a record that was lost; offset {place.offset} holds another one"
        raise PositionDivergedError(text)

    def _wait(self, bound: int) -> bool:
        """Wait at the end for more; False where nothing will come."""
        if not self._asked_closed:  # later on the record that closes the stream is seen
            self._asked_closed = True
            self.is_ended = self._stream.is_closed()
            if self.is_ended and self._stream.bounds()[1] <= self._fetched:
                return False
            self.is_ended = False
        with self._stream.errors():
            self._stream.link.wait(self._stream.topic, max(bound, self._fetched))
        return True
