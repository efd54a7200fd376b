"""A position in the records that a reader writes to another stream: its output says how far its input was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from duramen.dlsn import Dlsn
from duramen.streams.errors import TruncatedError
from duramen.streams.positions.fenced_appends import (
    FencedAppends,
    PositionDocument,
    check_keeps_all,
    parse_document,
    position_document,
)
from duramen.streams.positions.position_store import NamedStream, check_same_stream
from duramen.streams.records import NewStreamRecord, StreamRecord
from duramen.streams.stream import Stream

POSITION_HEADER: Final = "duramen-position"


class OutputPositions:
    """The position of one reader in one stream, in a header of what it appends to another stream; for one thread.

    The records of a save are one batch, and its last one has the header: output and position are stored together, so
    each input record has its output once, as durably as the output stream's acknowledgements are. Each save is appended
    after everything that was read before: of two processes with one name the second gets PositionTakenError, and
    stores nothing. Others may append to the output, too.
    """

    def __init__(self, output: Stream, stream: NamedStream, reader: str) -> None:
        """stream: the one that is read; reader: a name of yours. ConfigError for an output that deletes old records.
        Errors as `load`.
        """
        check_keeps_all(output)
        self._output = output
        self._stream = stream
        self._reader = reader
        self._appends = FencedAppends(output, self._is_ours)
        self.load()

    def load(self) -> Dlsn | None:
        """The position in the newest record of ours; None where there is none. Reads the output from its end back.

        TruncatedError where no record of ours is left of an output that has lost its beginning: with it the position
        may have gone, and nobody knows what was written. PositionDivergedError where it is of a stream that was
        deleted, and another one has its name.
        """
        first, end = self._output.start(), self._output.end_position()
        found, stop, window = None, end.offset, 1
        while found is None and stop > first:
            begin = max(first, stop - window)
            for record in self._output.reader(begin):
                if record.offset >= stop:
                    break
                found = self._position_in(record) or found
            stop, window = begin, window * 4
        if found is None and first > 0:
            raise TruncatedError(self._output.name, f"the position of {self._reader!r}", first)
        self._appends.begin(end)
        if found is None:
            return None
        where = f"{self._output.name}: the position of {self._reader!r}"
        check_same_stream(where, found.stream_id, self._stream, "take another name of a reader, or another output")
        return found.position

    def save(self, position: Dlsn, records: Sequence[NewStreamRecord] = ()) -> None:
        """Append what was made of the input up to a position, as one batch; durable when this returns.

        Without records nothing is stored: what made no output is read again after a restart, to no effect.
        PositionTakenError: see above. Errors as `Stream.append`; after DeadlineError it may be stored: `load` tells.
        """
        document = position_document(self._reader, self._stream, position)
        if records:
            last = records[-1]
            headers = [*last.headers, (POSITION_HEADER, document)]
            self._appends.append([*records[:-1], replace(last, headers=headers)])

    def _is_ours(self, record: StreamRecord) -> bool:
        return self._position_in(record) is not None

    def _position_in(self, record: StreamRecord) -> PositionDocument | None:
        """This reader's position in a record; a copied record may have those of others, too."""
        for name, value in record.headers:
            if name == POSITION_HEADER:
                found = parse_document(f"{self._output.name} at {record.dlsn}", value)
                if (found.reader, found.stream) == (self._reader, self._stream.topic):
                    return found
        return None
