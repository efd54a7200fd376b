"""A position in the caller's transaction of SQLite."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duramen.dlsn import Dlsn
from duramen.streams.errors import PositionDivergedError
from duramen.streams.positions.position_store import NoTransactionError, PositionTakenError
from duramen.streams.positions.sqlite_positions import SqlitePositions

ORDERS = SimpleNamespace(topic="finance.orders", stream_id="a1" * 16)
A, B, C = Dlsn(1, 0, 0), Dlsn(1, 0, 1), Dlsn(3, 7, 2)

MODES: dict[str, dict[str, Any]] = {
    "deferred": {},
    "immediate": {"isolation_level": "IMMEDIATE"},
    "none": {"isolation_level": None},
}
if sys.version_info >= (3, 12):
    MODES |= {"autocommit": {"autocommit": True}, "no autocommit": {"autocommit": False}}
COMMITTING = {"none", "autocommit"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.db"


def test_what_is_no_connection_is_named() -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"sqlite3.Connection, not NoneType"):
        SqlitePositions(nothing, ORDERS, "audit")


def connected(path: Path, **mode: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0.1, **mode)


@pytest.fixture(params=sorted(MODES))
def database(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """A connection, and whether it commits each statement."""
    with closing(connected(path, **MODES[request.param])) as connection:
        connection.execute("CREATE TABLE effects (value)")
        connection.commit()
        yield connection, request.param in COMMITTING


def begin(database: tuple[sqlite3.Connection, bool]) -> sqlite3.Connection:
    connection, commits = database
    if commits:
        connection.execute("BEGIN")
    return connection


def seen_by_others(path: Path) -> tuple[int, Dlsn | None]:
    """How many effects, and the position."""
    with closing(connected(path)) as other:
        ((count,),) = other.execute("SELECT count(*) FROM effects").fetchall()
        return count, SqlitePositions(other, ORDERS, "audit").load()


def apply(connection: sqlite3.Connection, store: SqlitePositions, position: Dlsn) -> None:
    """An effect and its position in one transaction."""
    with connection:
        connection.execute("INSERT INTO effects VALUES (1)")
        store.save(position)


@pytest.mark.parametrize("effect_first", [True, False])
def test_effect_and_position_commit_together(
    path: Path, database: tuple[sqlite3.Connection, bool], effect_first: bool
) -> None:
    store = SqlitePositions(database[0], ORDERS, "audit")
    assert store.load() is None
    for number, position in enumerate((A, B, C), 1):
        connection = begin(database)
        if effect_first:
            connection.execute("INSERT INTO effects VALUES (1)")
        store.save(position)
        if not effect_first:
            connection.execute("INSERT INTO effects VALUES (1)")
        assert connection.in_transaction
        assert seen_by_others(path)[0] == number - 1
        connection.commit()
        assert seen_by_others(path) == (number, position)


def test_what_is_rolled_back_is_done_again(path: Path, database: tuple[sqlite3.Connection, bool]) -> None:
    store = SqlitePositions(database[0], ORDERS, "audit")
    connection = begin(database)
    store.save(A)
    connection.rollback()
    assert (seen_by_others(path), store.load()) == ((0, None), None)
    connection = begin(database)
    store.save(A)
    connection.commit()
    connection = begin(database)
    store.save(B)
    connection.rollback()
    connection = begin(database)
    with pytest.raises(PositionTakenError, match="roll back, load"):
        store.save(C)
    connection.rollback()
    assert store.load() == A
    connection = begin(database)
    store.save(B)
    connection.commit()
    assert seen_by_others(path) == (0, B)


def test_outside_of_a_transaction_nothing_is_saved(path: Path) -> None:
    for mode in COMMITTING & MODES.keys():
        with closing(connected(path, **MODES[mode])) as connection:
            store = SqlitePositions(connection, ORDERS, "audit")
            with pytest.raises(NoTransactionError, match="BEGIN a transaction"):
                store.save(A)
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_of_two_processes_with_one_name_the_second_is_refused(path: Path) -> None:
    with closing(connected(path)) as one, closing(connected(path)) as two:
        one.execute("CREATE TABLE effects (value)")
        first, second = SqlitePositions(one, ORDERS, "audit"), SqlitePositions(two, ORDERS, "audit")
        with one:
            first.save(A)
        with pytest.raises(PositionTakenError):
            apply(two, second, A)
        assert second.load() == A
        with two:
            second.save(B)
        with pytest.raises(PositionTakenError):
            apply(one, first, B)
        assert seen_by_others(path) == (0, B)


def test_readers_and_streams_have_positions_of_their_own(path: Path) -> None:
    with closing(connected(path)) as connection:
        connection.row_factory = lambda cursor, row: {"row": row}
        connection.text_factory = bytes
        places = [("audit", "a"), ("audit", "b"), ("bill", "a"), ("", "a")]
        stores = [
            SqlitePositions(connection, SimpleNamespace(topic=topic, stream_id=""), reader) for reader, topic in places
        ]
        with connection:
            for slot, store in enumerate(stores):
                store.save(Dlsn(1, 0, slot))
        assert [store.load() for store in stores] == [Dlsn(1, 0, slot) for slot in range(4)]


def test_a_transaction_that_is_killed_leaves_nothing(path: Path) -> None:
    with closing(connected(path)) as connection:
        connection.execute("CREATE TABLE effects (value)")
        SqlitePositions(connection, ORDERS, "audit").save(A)
    assert seen_by_others(path) == (0, None)


def test_a_row_of_a_stream_that_was_made_again_is_refused_and_one_without_an_id_is_taken() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE duramen_positions (reader TEXT NOT NULL, stream TEXT NOT NULL, position TEXT NOT NULL, "
        "PRIMARY KEY (reader, stream)) WITHOUT ROWID"
    )
    first, later = Dlsn(1, 0, 0), Dlsn(1, 0, 1)
    with connection:
        connection.execute("INSERT INTO duramen_positions VALUES ('audit', 'finance.orders', ?)", (str(first),))
    store = SqlitePositions(connection, ORDERS, "audit")
    assert store.load() == first
    with connection:
        store.save(later)
    assert SqlitePositions(connection, ORDERS, "audit").load() == later
    with pytest.raises(PositionDivergedError, match=r"made again since.*delete its row"):
        SqlitePositions(connection, SimpleNamespace(topic="finance.orders", stream_id="b2" * 16), "audit")
