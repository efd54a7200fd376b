"""Balances of accounts, made of a stream of payments: each payment is applied once, whenever this is killed.

    python examples/ledger.py fill   duramen://127.0.0.1:9092/bank 1000           writes payments, and closes the stream
    python examples/ledger.py file   duramen://127.0.0.1:9092/bank ledger.json
    python examples/ledger.py sqlite duramen://127.0.0.1:9092/bank ledger.db
    python examples/ledger.py postgres duramen://127.0.0.1:9092/bank 'dbname=bank'    (needs psycopg)
    python examples/ledger.py topic  duramen://127.0.0.1:9092/bank balances
    python examples/ledger.py output duramen://127.0.0.1:9092/bank booked
    python examples/ledger.py group  duramen://127.0.0.1:9092/bank bookings.db

A payment has the account as its key and the amount as its value. What differs between the ways is where the position
is kept: always where it changes together with the balances. Each ends when the stream is closed and was read, and
prints what it has. Start it again after a kill: it goes on where it was.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing

from duramen import streams

PAYMENTS = "payments"


def fill(bank: streams.Namespace, count: int) -> None:
    """Write payments and close the stream behind them."""
    payments = bank.create(PAYMENTS)
    with payments.writer() as writer:
        for _ in range(count):
            amount = b"%d" % random.randrange(-50, 100)
            writer.write(streams.NewStreamRecord(amount, key=b"account-%d" % random.randrange(20)))
    payments.close_stream()


def payments_after(stream: streams.Stream, store: streams.PositionStore) -> Iterator[streams.StreamRecord]:
    """What is not applied yet, until the stream is closed."""
    position = store.load()
    reader = stream.reader(after=position, follow=True)
    for number, record in enumerate(reader):
        if number == 0:
            print(f"going on after {position}", flush=True)
        yield record


def changes(record: streams.StreamRecord) -> dict[str, int]:
    """What one payment adds to which rows of the ledger."""
    return {(record.key or b"").decode(): int(record.value or b"0"), "payments": 1}


def with_file(bank: streams.Namespace, path: str) -> dict[str, int]:
    """Position and balances are one file, which each save replaces."""
    stream = bank.stream(PAYMENTS)
    with streams.FilePositions(path, stream) as store:
        balances: dict[str, int] = store.state or {}
        for record in payments_after(stream, store):
            for account, amount in changes(record).items():
                balances[account] = balances.get(account, 0) + amount
            store.save(record.dlsn, balances)
        return balances


def with_sqlite(bank: streams.Namespace, path: str) -> dict[str, int]:
    """Position and balances are rows that one transaction changes."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount INTEGER)")
        stream = bank.stream(PAYMENTS)
        store = streams.SqlitePositions(database, stream, "ledger")
        for record in payments_after(stream, store):
            with database:
                for account, amount in changes(record).items():
                    add = "ON CONFLICT (account) DO UPDATE SET amount = amount + excluded.amount"
                    database.execute(f"INSERT INTO balances VALUES (?, ?) {add}", (account, amount))
                store.save(record.dlsn)
        return dict(database.execute("SELECT account, amount FROM balances"))


def with_postgres(bank: streams.Namespace, conninfo: str) -> dict[str, int]:
    """The same in PostgreSQL, by the driver of your choice."""
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as database:
        database.execute("CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, amount bigint)")
        stream = bank.stream(PAYMENTS)
        store = streams.PostgresPositions(database, stream, "ledger")
        for record in payments_after(stream, store):
            with database.transaction():
                for account, amount in changes(record).items():
                    add = "ON CONFLICT (account) DO UPDATE SET amount = balances.amount + excluded.amount"
                    database.execute(f"INSERT INTO balances VALUES (%s, %s) {add}", (account, amount))
                store.save(record.dlsn)
        return dict(database.execute("SELECT account, amount FROM balances").fetchall())


def with_topic(bank: streams.Namespace, name: str) -> dict[str, int]:
    """Position and balances are records of a compacted topic, those that change together one batch."""
    table = bank.stream(name) if bank.exists(name) else bank.create(name, cleanup_policy="compact")
    stream = bank.stream(PAYMENTS)
    store = streams.TopicPositions(table, stream, "ledger")
    balances = {account.decode(): int(amount) for account, amount in store.rows.items()}
    for record in payments_after(stream, store):
        changed = changes(record)
        for account, amount in changed.items():
            balances[account] = balances.get(account, 0) + amount
        store.save(
            record.dlsn, [streams.NewStreamRecord(b"%d" % balances[each], key=each.encode()) for each in changed]
        )
    return balances


def with_output(bank: streams.Namespace, name: str) -> dict[str, int]:
    """Each payment is booked in another stream, where the booking has the payment's position in a header."""
    output = bank.stream(name) if bank.exists(name) else bank.create(name, retention_ms=-1)
    stream = bank.stream(PAYMENTS)
    store = streams.OutputPositions(output, stream, "ledger")
    for record in payments_after(stream, store):
        store.save(record.dlsn, [streams.NewStreamRecord(record.value, key=record.key)])
    balances: dict[str, int] = {}
    for booking in output.reader():
        for account, amount in changes(booking).items():
            balances[account] = balances.get(account, 0) + amount
    return balances


def with_group(bank: streams.Namespace, path: str) -> dict[str, int]:
    """The position is a committed offset, where tools see the lag. What comes again is known by its DLSN."""
    stream = bank.stream(PAYMENTS)
    nodes = bank.address.removeprefix("duramen://").partition("/")[0]
    with closing(sqlite3.connect(path)) as database, streams.GroupPositions(nodes, stream, "ledger") as store:
        database.execute("CREATE TABLE IF NOT EXISTS bookings (dlsn TEXT PRIMARY KEY, account TEXT, amount INTEGER)")
        last = None
        for number, record in enumerate(payments_after(stream, store), 1):
            last = record.dlsn
            booking = (str(record.dlsn), (record.key or b"").decode(), int(record.value or b"0"))
            with database:
                database.execute("INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", booking)
            if number % 5 == 0:
                store.save(last)
        if last is not None:
            store.save(last)
        balances = dict(database.execute("SELECT account, sum(amount) FROM bookings GROUP BY account"))
        ((balances["payments"],),) = database.execute("SELECT count(*) FROM bookings")
        return balances


WAYS = {
    "file": with_file,
    "sqlite": with_sqlite,
    "postgres": with_postgres,
    "topic": with_topic,
    "output": with_output,
    "group": with_group,
}


def main(arguments: list[str]) -> int:
    """The command line above; returns the exit code."""
    match arguments:
        case ["fill", address, count]:
            with streams.open(address) as bank:
                fill(bank, int(count))
        case [way, address, place] if way in WAYS:
            with streams.open(address) as bank:
                print(json.dumps(WAYS[way](bank, place), sort_keys=True))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
