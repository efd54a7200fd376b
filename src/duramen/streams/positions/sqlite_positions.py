"""A position in a SQLite database, saved in the caller's own transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.dlsn import Dlsn
from duramen.streams.positions.position_store import (
    NamedStream,
    NoTransactionError,
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
    reader TEXT NOT NULL, stream TEXT NOT NULL, position TEXT NOT NULL, PRIMARY KEY (reader, stream)
) WITHOUT ROWID"""
_LOAD: Final = "SELECT position FROM duramen_positions WHERE reader = ? AND stream = ?"
_FIRST: Final = "INSERT INTO duramen_positions (position, reader, stream) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_MOVE: Final = "UPDATE duramen_positions SET position = ? WHERE reader = ? AND stream = ? AND position = ?"


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
        self._connection = connection
        self._topic = stream.topic
        self._reader = reader
        self._last: str | None = None
        self.load()

    def load(self) -> Dlsn | None:
        """The position that is stored, as the connection sees it now; None where there is none."""
        row = self._ask(_LOAD, self._reader, self._topic).fetchone() if self._ask(_IS_THERE).fetchone() else None
        if row is None:
            self._last = None
            return None
        (text,) = row
        self._last = text.decode() if isinstance(text, bytes) else text  # as the connection's text_factory has it
        return stored_position(f"duramen_positions, {self._reader!r}", self._last)

    def save(self, position: Dlsn) -> None:
        """Store the position in the caller's transaction; sqlite3 begins it here where it would before an INSERT.

        NoTransactionError in autocommit mode outside of a transaction. PositionTakenError: see above.
        """
        text = position_text(position)
        if not self._connection.in_transaction:
            self._begin()
        self._ask(_CREATE)
        if self._last is None:
            moved = self._ask(_FIRST, text, self._reader, self._topic)
        else:
            moved = self._ask(_MOVE, text, self._reader, self._topic, self._last)
        if moved.rowcount != 1:
            raise position_taken(self._reader, self._topic, self._last)
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
