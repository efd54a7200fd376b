"""Reading a stream: its records in order, from a position that is checked against the history it names."""

from __future__ import annotations

from duramen.dlsn import Dlsn
from duramen.streams.immediate import run
from duramen.streams.record_cursor import RecordCursor
from duramen.streams.records import StreamRecord


class Reader:
    """An iterator over a stream's records; `Stream.reader` gives it. For one thread."""

    def __init__(self, cursor: RecordCursor) -> None:
        self._cursor = cursor

    @property
    def position(self) -> int:
        """Offset of the next record; one that is read from here gives what this one has not given yet."""
        return self._cursor.position

    @property
    def dlsn(self) -> Dlsn:
        """The same as a DLSN, to be kept: a reader that starts there checks that the history is still this one."""
        return self._cursor.dlsn

    @property
    def stream_id(self) -> str:
        """The id of the stream that is read (hexadecimal): one that is made later under its name has another.

        "" where the cluster has no ids. Over HTTP it is the `Stream-Id`.
        """
        return self._cursor.stream_id

    @property
    def is_ended(self) -> bool:
        """Whether the stream is closed and all of it was read."""
        return self._cursor.is_ended

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> StreamRecord:
        record = self._cursor.take()
        if record is None and not self._cursor.is_ended:
            record = run(self._cursor.next())
        if record is None:
            raise StopIteration
        return record
