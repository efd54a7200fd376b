"""A position in a compacted topic, in one batch with the rows that the application keeps there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duramen.dlsn import Dlsn
from duramen.streams.positions.fenced_appends import (
    FencedAppends,
    PositionDocument,
    check_keeps_last,
    parse_document,
    position_document,
)
from duramen.streams.positions.position_store import NamedStream, check_same_stream
from duramen.streams.records import NewStreamRecord, StreamRecord
from duramen.streams.stream import Stream

_FRONT: Final = "duramen-position"


class TopicPositions:
    """The position of one reader in one stream, as a record of a stream with cleanup.policy=compact; for one thread.

    A save is one batch: the record of the position, whose key has the reader's name, and those that the application
    gives with it. All of it is stored or nothing, so a table that these records make (the newest of each key) is exact.
    It is as durable as the stream's acknowledgements are. Each save is appended after everything that was read before:
    of two processes with one name the second gets PositionTakenError, and stores nothing.
    """

    def __init__(self, table: Stream, stream: NamedStream, reader: str) -> None:
        """table: where the position is kept; stream: the one that is read; reader: a name of yours.

        ConfigError for a table without cleanup.policy=compact, or with an end of retention beside it. Errors as `load`.
        """
        check_keeps_last(table)
        self._table = table
        self._stream = stream
        self._reader = reader
        self._key = f"{_FRONT}/{reader}/{stream.topic}".encode()
        self._appends = FencedAppends(table, self._is_ours)
        self.rows: dict[bytes, bytes] = {}
        """The application's records as `load` found them: the newest value of each key."""
        self.load()

    def load(self) -> Dlsn | None:
        """The position that is stored, None where there is none; and `rows`. Reads the whole stream.

        PositionDivergedError where it is of a stream that was deleted, and another one has its name.
        """
        found: PositionDocument | None = None
        rows: dict[bytes, bytes] = {}
        end = self._table.end_position()
        for record in self._table.reader():
            if record.offset >= end.offset:
                end = record.dlsn.next
            if self._is_ours(record):
                where = f"{self._table.name} at {record.dlsn}"
                found = None if record.value is None else parse_document(where, record.value)
            elif record.key is not None and not record.key.startswith(f"{_FRONT}/".encode()):
                if record.value is None:
                    rows.pop(record.key, None)
                else:
                    rows[record.key] = record.value
        self._appends.begin(end)
        self.rows = rows
        if found is None:
            return None
        remedy = "keep the position in another table, or take another name of a reader"
        where = f"{self._table.name}: the position of {self._reader!r}"
        check_same_stream(where, found.stream_id, self._stream, remedy)
        return found.position

    def save(self, position: Dlsn, records: Iterable[NewStreamRecord] = ()) -> None:
        """Store a position, and records with keys of your own, as one batch; durable when this returns.

        PositionTakenError: see above. Errors as `Stream.append`; after DeadlineError it may be stored: `load` tells.
        """
        document = position_document(self._reader, self._stream, position)
        self._appends.append([*records, NewStreamRecord(document, self._key)])

    def _is_ours(self, record: StreamRecord) -> bool:
        return record.key == self._key
