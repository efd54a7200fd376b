"""A position in a SQLite database, saved in the caller's own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.dlsn import Dlsn
from duramen.streams.positions.position_store import (
    NamedStream,
    NoTransactionError,
    check_same_stream,
    position_taken,
    position_text,
    stored_position,
)

if TYPE_CHECKING:
    import sqlite3

_LEGACY: Final = -1
"""sqlite3.LEGACY_TRANSACTION_CONTROL, which Python has from 3.12 on."""
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'duramen_positions'"
_CREATE: Final = """CREATE TABLE IF NOT EXISTS duramen_positions (
    reader TEXT NOT NULL, stream TEXT NOT NULL, position TEXT NOT NULL, stream_id TEXT, PRIMARY KEY (reader, stream)
) WITHOUT ROWID"""
_HAS_ID: Final = "SELECT 1 FROM pragma_table_info('duramen_positions') WHERE name = 'stream_id'"
_ADD_ID: Final = "ALTER TABLE duramen_positions ADD COLUMN stream_id TEXT"
"""Which a table of an earlier release lacks."""
_LOAD: Final = "SELECT position, {} FROM duramen_positions WHERE reader = ? AND stream = ?"
_FIRST: Final = (
    "INSERT INTO duramen_positions (position, stream_id, reader, stream) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_MOVE: Final = (
    "UPDATE duramen_positions SET position = ?, stream_id = ? WHERE reader = ? AND stream = ? AND position = ?"
)


class SqlitePositions:
    """The position of one reader in one stream, in the table `duramen_positions`; for the thread of the connection.

    A save is part of the transaction that the connection is in, and this class never commits: what the transaction
    writes and the position are both there or neither is. So each record takes effect once, as durably as the database
    is (its `PRAGMA synchronous`). A save moves the position only from where this store saw it last: of two processes
    with one name the second gets PositionTakenError, and its transaction has to be rolled back. After any transaction
    that was rolled back call `load`, and read on from there.
    """

    def __init__(self, connection: sqlite3.Connection, stream: NamedStream, reader: str) -> None:
        """reader: a name of yours, one for each purpose. Errors of sqlite3 are not changed, here and in all calls."""
        if not hasattr(connection, "in_transaction"):
            raise TypeError(f"a position is kept by a sqlite3.Connection, not {type(connection).__name__}")
        self._connection = connection
        self._stream = stream
        self._reader = reader
        self._last: str | None = None
        self.load()

    def load(self) -> Dlsn | None:
        """The position that is stored, as the connection sees it now; None where there is none.

        PositionDivergedError where it is of a stream that was deleted, and another one has its name.
        """
        self._last = None
        if self._ask(_IS_THERE).fetchone() is None:
            return None
        found = _LOAD.format("stream_id" if self._ask(_HAS_ID).fetchone() else "NULL")
        row = self._ask(found, self._reader, self._stream.topic).fetchone()
        if row is None:
            return None
        text, stream_id = (_text(each) for each in row)
        where = f"duramen_positions, {self._reader!r},"
        check_same_stream(where, stream_id, self._stream, "delete its row, or take another name of a reader")
        self._last = text
        return stored_position(where.rstrip(","), text)

    def save(self, position: Dlsn) -> None:
        """Store the position in the caller's transaction; sqlite3 begins it here where it would before an INSERT.

        NoTransactionError in autocommit mode outside of a transaction. PositionTakenError: see above.
        """
        text = position_text(position)
        if not self._connection.in_transaction:
            self._begin()
        self._ask(_CREATE)
        if self._ask(_HAS_ID).fetchone() is None:
            self._ask(_ADD_ID)
        values = (text, self._stream.stream_id, self._reader, self._stream.topic)
        moved = self._ask(_FIRST, *values) if self._last is None else self._ask(_MOVE, *values, self._last)
        if moved.rowcount != 1:
            raise position_taken(self._reader, self._stream.topic, self._last)
        self._last = text

    def _begin(self) -> None:
        """What sqlite3 does in front of an INSERT: CREATE TABLE alone would not be part of the transaction."""
        if self._connection.isolation_level is None or getattr(self._connection, "autocommit", _LEGACY) is True:
            raise NoTransactionError(
                "this connection commits each statement: BEGIN a transaction, write what the records do, save, COMMIT"
            )
        self._ask(f"BEGIN {self._connection.isolation_level}")

    def _ask(self, statement: str, *values: str) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        row_factory: Any = None
        cursor.row_factory = row_factory  # of the caller's, who may have set another one for the connection
        return cursor.execute(statement, values)


def _text(found: Any) -> Any:
    """As text, whatever the connection's text_factory makes of it."""
    return found.decode() if isinstance(found, bytes) else found
