"""Balances of accounts, made of a stream of payments: each payment is applied once, whenever this is killed.

    python examples/ledger.py fill   duramen://127.0.0.1:9092/bank 1000           writes payments, and closes the stream
    python examples/ledger.py file   duramen://127.0.0.1:9092/bank ledger.json

A payment has the account as its key and the amount as its value. What differs between the ways is where the position
is kept: always where it changes together with the balances. Each ends when the stream is closed and was read, and
prints what it has. Start it again after a kill: it goes on where it was.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator

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
    print(f"going on after {position}", flush=True)
    return stream.reader(after=position, follow=True)


def apply(record: streams.StreamRecord, balances: dict[str, int]) -> None:
    """One payment."""
    account = (record.key or b"").decode()
    balances[account] = balances.get(account, 0) + int(record.value or b"0")
    balances["payments"] = balances.get("payments", 0) + 1


def with_file(stream: streams.Stream, path: str) -> dict[str, int]:
    """Position and balances are one file, which each save replaces."""
    with streams.FilePositions(path, stream) as store:
        balances: dict[str, int] = store.state or {}
        for record in payments_after(stream, store):
            apply(record, balances)
            store.save(record.dlsn, balances)
        return balances


def main(arguments: list[str]) -> int:
    """The command line above; returns the exit code."""
    match arguments:
        case ["fill", address, count]:
            with streams.open(address) as bank:
                fill(bank, int(count))
            return 0
        case ["file", address, path]:
            with streams.open(address) as bank:
                balances = with_file(bank.stream(PAYMENTS), path)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(balances, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
