"""A position in a PostgreSQL database, saved in the caller's own transaction, over whatever driver the caller has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from duramen.dlsn import Dlsn
from duramen.streams.positions.position_store import (
    NamedStream,
    NoTransactionError,
    check_same_stream,
    position_taken,
    position_text,
    stored_position,
)

_NO_ACTIVE_TRANSACTION: Final = "25P01"
_IS_THERE: Final = "SELECT to_regclass('duramen_positions') IS NOT NULL"
_HAS_ID: Final = """SELECT count(*) FROM pg_attribute
    WHERE attrelid = to_regclass('duramen_positions') AND attname = 'stream_id' AND NOT attisdropped"""
_ADD_ID: Final = "ALTER TABLE duramen_positions ADD COLUMN IF NOT EXISTS stream_id text"
"""Which a table of an earlier release lacks."""
_CREATE: Final = """CREATE TABLE IF NOT EXISTS duramen_positions (
    reader text NOT NULL, stream text NOT NULL, position text NOT NULL, stream_id text, PRIMARY KEY (reader, stream)
)"""
# What an UPDATE takes anyway; alone among statements without effect it is refused where no transaction is.
_IN_TRANSACTION: Final = "LOCK TABLE duramen_positions IN ROW EXCLUSIVE MODE"
_LOAD: Final = "SELECT position FROM duramen_positions WHERE reader = %s AND stream = %s"
_LOAD_ID: Final = "SELECT stream_id FROM duramen_positions WHERE reader = %s AND stream = %s AND position = %s"
_FIRST: Final = (
    "INSERT INTO duramen_positions (position, stream_id, reader, stream) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
)
_MOVE: Final = (
    "UPDATE duramen_positions SET position = %s, stream_id = %s WHERE reader = %s AND stream = %s AND position = %s"
)


class DatabaseConnection(Protocol):
    """A connection of Python's DB-API 2.0 with the parameter style `format`, such as psycopg's."""

    def cursor(self) -> Any:
        """A new cursor."""
        ...


class PostgresPositions:
    """The position of one reader in one stream, in the table `duramen_positions`; for the thread of the connection.

    As `SqlitePositions`: a save is part of the transaction that the connection is in, this class never commits, and the
    position moves only from where this store saw it last, so that of two processes with one name the second gets
    PositionTakenError. After a transaction that was rolled back call `load`, and read on from there. No driver is
    imported: the connection is the caller's.
    """

    def __init__(self, connection: DatabaseConnection, stream: NamedStream, reader: str) -> None:
        """reader: a name of yours, one for each purpose. Errors of the driver are not changed, here and in all calls.

        Outside of autocommit mode the look at the table begins a transaction, as every statement does.
        """
        if not hasattr(connection, "cursor"):
            raise TypeError(f"a position is kept by a connection of a driver, not {type(connection).__name__}")
        self._connection = connection
        self._stream = stream
        self._reader = reader
        self._last: str | None = None
        self._is_made = False
        self.load()

    def load(self) -> Dlsn | None:
        """The position that is stored, as the connection sees it now; None where there is none.

        PositionDivergedError where it is of a stream that was deleted, and another one has its name.
        """
        self._last = None
        self._is_made = bool(self._value(_HAS_ID))
        if not self._is_made and not self._value(_IS_THERE):
            return None
        place = (self._reader, self._stream.topic)
        text = self._value(_LOAD, *place)
        if text is None:
            return None
        where = f"duramen_positions, {self._reader!r}"
        position = stored_position(where, text)
        stored_id = self._value(_LOAD_ID, *place, text) if self._is_made else None
        check_same_stream(f"{where},", stored_id, self._stream, "delete its row, or take another name of a reader")
        self._last = text
        return position

    def save(self, position: Dlsn) -> None:
        """Store the position in the caller's transaction, which a connection that is in autocommit mode has to begin.

        NoTransactionError where there is none. PositionTakenError: see above.
        """
        text = position_text(position)
        if not self._is_made:  # until `load` has seen it: who makes it may be rolled back
            self._run(_CREATE)
            if not self._value(_HAS_ID):
                self._run(_ADD_ID)
        self._check_transaction()
        values = (text, self._stream.stream_id, self._reader, self._stream.topic)
        moved = self._run(_FIRST, *values) if self._last is None else self._run(_MOVE, *values, self._last)
        if moved != 1:
            raise position_taken(self._reader, self._stream.topic, self._last)
        self._last = text

    def _check_transaction(self) -> None:
        errors: type[BaseException] | tuple[()] = getattr(self._connection, "Error", ())
        try:
            self._run(_IN_TRANSACTION)
        except errors as error:
            if getattr(error, "sqlstate", None) != _NO_ACTIVE_TRANSACTION:
                raise
            raise NoTransactionError(
                "this connection commits each statement: begin a transaction, write what the records do, save, commit"
            ) from error

    def _run(self, statement: str, *values: str) -> int:
        """How many rows it changed."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _value(self, statement: str, *values: str) -> Any:
        """The one column of its first row; None without a row."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            row = cursor.fetchone()
        finally:
            cursor.close()
        if isinstance(row, Mapping):  # as some drivers give rows where they are asked to
            row = list(row.values())
        return None if row is None else row[0]
