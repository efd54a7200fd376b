"""A position in the caller's transaction of PostgreSQL, by psycopg. Skipped where either is not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.served_postgres import ServedPostgres, postgres_programs

from duramen.dlsn import Dlsn
from duramen.streams import NoTransactionError, PositionDivergedError, PositionTakenError, PostgresPositions

psycopg = pytest.importorskip("psycopg", reason="there is no psycopg")
PROGRAMS = postgres_programs()
pytestmark = pytest.mark.skipif(PROGRAMS is None, reason="there is no PostgreSQL")

ORDERS = SimpleNamespace(topic="finance.orders", stream_id="a1" * 16)
A, B, C = Dlsn(1, 0, 0), Dlsn(1, 0, 1), Dlsn(3, 7, 2)


@pytest.fixture(scope="module")
def postgres() -> Iterator[ServedPostgres]:
    assert PROGRAMS is not None
    with ServedPostgres(PROGRAMS) as served:
        yield served


@pytest.fixture
def conninfo(postgres: ServedPostgres) -> str:
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS effects, duramen_positions")
        connection.execute("CREATE TABLE effects (value int)")
    return postgres.conninfo


def seen_by_others(conninfo: str) -> tuple[int, Dlsn | None]:
    """How many effects, and the position."""
    with psycopg.connect(conninfo, autocommit=True) as other:
        ((count,),) = other.execute("SELECT count(*) FROM effects").fetchall()
        return count, PostgresPositions(other, ORDERS, "audit").load()


def apply(connection: Any, store: PostgresPositions, position: Dlsn) -> None:
    """An effect and its position in one transaction."""
    with connection.transaction():
        connection.execute("INSERT INTO effects VALUES (1)")
        store.save(position)


@pytest.mark.parametrize("autocommit", [True, False])
def test_effect_and_position_commit_together(conninfo: str, autocommit: bool) -> None:
    with psycopg.connect(conninfo, autocommit=autocommit) as connection:
        store = PostgresPositions(connection, ORDERS, "audit")
        connection.rollback()
        for number, position in enumerate((A, B, C), 1):
            with connection.transaction():
                connection.execute("INSERT INTO effects VALUES (1)")
                store.save(position)
                assert seen_by_others(conninfo)[0] == number - 1
            assert seen_by_others(conninfo) == (number, position)
        with pytest.raises(ZeroDivisionError), connection.transaction():
            raise apply(connection, store, A) or ZeroDivisionError
        assert seen_by_others(conninfo) == (3, C)
        with pytest.raises(PositionTakenError):
            apply(connection, store, B)
        assert store.load() == C
        connection.rollback()
        apply(connection, store, A)
        assert seen_by_others(conninfo) == (4, A)


def test_a_table_that_was_rolled_back_is_made_again(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        store = PostgresPositions(connection, ORDERS, "audit")
        store.save(A)
        connection.rollback()
        assert store.load() is None
        store.save(A)
        store.save(B)
        connection.commit()
    assert seen_by_others(conninfo) == (0, B)


def test_outside_of_a_transaction_nothing_is_saved(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        store = PostgresPositions(connection, ORDERS, "audit")
        with pytest.raises(NoTransactionError, match="begin a transaction"):
            store.save(A)
        assert store.load() is None
        apply(connection, store, A)
        assert store.load() == A
        with pytest.raises(NoTransactionError):
            store.save(B)
    assert seen_by_others(conninfo) == (1, A)


@pytest.mark.parametrize("before", [None, A])
def test_of_two_processes_with_one_name_the_second_is_refused(conninfo: str, before: Dlsn | None) -> None:
    """Also where it comes while the first one's transaction is open: it waits for that."""
    with (
        psycopg.connect(conninfo, autocommit=True) as one,
        psycopg.connect(conninfo, autocommit=True) as two,
    ):
        if before is not None:
            apply(one, PostgresPositions(one, ORDERS, "audit"), before)
        first, second = PostgresPositions(one, ORDERS, "audit"), PostgresPositions(two, ORDERS, "audit")
        refused: list[PositionTakenError] = []

        def other() -> None:
            try:
                apply(two, second, B)
            except PositionTakenError as error:
                refused.append(error)

        if before is None:  # the table is there for both
            with one.transaction():
                PostgresPositions(one, ORDERS, "else").save(A)
        with one.transaction():
            one.execute("INSERT INTO effects VALUES (1)")
            first.save(B)
            waiting = threading.Thread(target=other)
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
        waiting.join(10)
        assert len(refused) == 1
    assert seen_by_others(conninfo) == (1 if before is None else 2, B)


def test_a_row_of_a_stream_that_was_made_again_is_refused_and_one_without_an_id_is_taken(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "CREATE TABLE duramen_positions (reader text NOT NULL, stream text NOT NULL, position text NOT NULL, "
            "PRIMARY KEY (reader, stream))"
        )
        connection.execute("INSERT INTO duramen_positions VALUES ('audit', 'finance.orders', %s)", (str(A),))
        connection.commit()
        store = PostgresPositions(connection, ORDERS, "audit")
        assert store.load() == A
        store.save(B)
        connection.commit()
        assert PostgresPositions(connection, ORDERS, "audit").load() == B
        with pytest.raises(PositionDivergedError, match=r"made again since.*delete its row"):
            PostgresPositions(connection, SimpleNamespace(topic="finance.orders", stream_id="b2" * 16), "audit")
