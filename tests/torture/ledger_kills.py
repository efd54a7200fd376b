"""The ledger of the examples, killed while it applies payments, with its position in each kind of store.

    python -m tests.torture.ledger_kills --kills 20 --seed 1

A thread appends payments to a stream of a real node all the while. The ledger is killed with SIGKILL at a random moment
of its work, again and again, started again each time, and at the end left to finish. Where the store has no lock, each
fourth time it is paused instead, while another one begins: of both one may go on. What the last one has is compared
with what another client of the same log adds up.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.worlds.served_node import ROOT, Served
from tests.worlds.served_postgres import ServedPostgres, postgres_programs

import duramen
from duramen import streams

LEDGER = ROOT / "examples" / "ledger.py"
WAIT_SECONDS = 60.0
PAYMENTS = "payments"
PAUSE_SECONDS = 0.02
MOST_IN_A_LIFE = 400
"""More payments than are applied before a kill."""


@dataclass(frozen=True)
class Ledger:
    """How one way of keeping positions is run. words: of its command line, of a folder and an address.

    is_fenced: a process that was paused finds that another one took its place, and holds nothing meanwhile that keeps
    the other one waiting.
    """

    way: str
    words: Callable[[Path, str], list[str]]
    is_fenced: bool = False


LEDGERS = [
    Ledger("file", lambda folder, address: ["file", address, str(folder / "ledger.json")]),
    Ledger("sqlite", lambda folder, address: ["sqlite", address, str(folder / "ledger.db")]),
    Ledger("topic", lambda _, address: ["topic", address, "balances"], is_fenced=True),
    Ledger("output", lambda _, address: ["output", address, "booked"], is_fenced=True),
    Ledger("group", lambda folder, address: ["group", address, str(folder / "bookings.db")]),
]


@dataclass(frozen=True)
class LedgerOutcome:
    """What became of one ledger. positions: where each of its lives went on."""

    way: str
    positions: list[str]
    ledger: dict[str, int]
    log: dict[str, int]

    @property
    def is_right(self) -> bool:
        return self.ledger == self.log


def payment(chance: random.Random) -> streams.NewStreamRecord:
    """To one of twenty accounts."""
    account = b"account-%d" % chance.randrange(20)
    return streams.NewStreamRecord(b"%d" % chance.randrange(-50, 100), key=account)


class Payer:
    """Appends payments until it is stopped, then closes the stream."""

    def __init__(self, address: str, seed: int, pause_s: float) -> None:
        self._chance = random.Random(seed)
        self._address = address
        self._pause_s = pause_s
        self._stopping = threading.Event()
        with streams.open(address) as bank:
            bank.create(PAYMENTS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with streams.open(self._address) as bank:
            stream = bank.stream(PAYMENTS)
            while not self._stopping.is_set():
                stream.append([payment(self._chance) for _ in range(self._chance.randrange(1, 8))])
                self._stopping.wait(self._pause_s)
            stream.append(payment(self._chance), close=True)


def added_up(bootstrap: str, topic: str) -> dict[str, int]:
    """The balances by librdkafka, from the first record to the last."""
    sums: Counter[str] = Counter()
    settings = {"bootstrap.servers": bootstrap, "group.id": "oracle", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(WAIT_SECONDS)) is not None:
        if message.error() is not None:  # the end
            break
        sums[message.key().decode()] += int(message.value())
        sums["payments"] += 1
    consumer.close()
    return dict(sums)


class Life:
    """One process of a ledger, from its first payment on. began: the position behind which it went on."""

    def __init__(self, way: str, command: list[str]) -> None:
        self.way = way
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.began = first.removeprefix("going on after ").strip()
        if self.began == first.strip():
            self.fail(f"{first}{self.end()}")

    def fail(self, what: str) -> None:
        raise AssertionError(f"{self.way}: {what}")

    def end(self, *, kills: bool = True) -> str:
        """What it printed to stdout, or to stderr where it ended with an error; killed first, or waited for."""
        if kills:
            self.process.kill()
        try:
            printed, errors = self.process.communicate(timeout=WAIT_SECONDS)
        finally:
            self.process.kill()
        return printed if self.process.returncode == 0 else errors

    def check_runs(self) -> None:
        if self.process.poll() is not None:
            self.fail(f"it ended by itself: {self.end()}")


def supersede(old: Life, command: list[str], pause_s: float) -> None:
    """Pause a life, begin another and let the old one go on: the one that lost the position has to stop."""
    old.process.send_signal(signal.SIGSTOP)
    new = Life(old.way, command)
    time.sleep(pause_s)
    old.process.send_signal(signal.SIGCONT)
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until and old.process.poll() is None and new.process.poll() is None:
        time.sleep(0.01)
    loser, winner = (old, new) if old.process.poll() is not None else (new, old)
    why = loser.end()
    winner.check_runs()
    winner.end()
    if "PositionTakenError" not in why:
        loser.fail(f"two of one name went on: {why}")


def lives(
    ledger: Ledger, folder: Path, address: str, kills: int, chance: random.Random, last: Callable[[], None]
) -> tuple[list[str], str]:
    """Start and kill the ledger; where each life went on, and what the last printed. last: called in front of it."""
    command = [sys.executable, str(LEDGER), *ledger.words(folder, address)]
    began = []
    for number in range(kills):
        life = Life(ledger.way, command)
        began.append(life.began)
        time.sleep(chance.uniform(0.0, 0.2))
        life.check_runs()
        if ledger.is_fenced and number % 4 == 3:
            supersede(life, command, chance.uniform(0.0, 0.2))
        life.end()
    last()
    life = Life(ledger.way, command)
    printed = life.end(kills=False)
    if life.process.returncode != 0:
        life.fail(printed)
    return [*began, life.began], printed


def run_ledger(ledger: Ledger, folder: Path, bootstrap: str, kills: int, seed: int) -> LedgerOutcome:
    """One ledger through its kills, in a folder and a namespace of its own."""
    own = folder / ledger.way
    own.mkdir()
    space = f"bank-{ledger.way}"
    address = f"duramen://{bootstrap}/{space}"
    payer = Payer(address, seed, PAUSE_SECONDS)
    try:
        positions, printed = lives(ledger, own, address, kills, random.Random(seed), payer.stop)
    finally:
        payer.stop()
    return LedgerOutcome(ledger.way, positions, json.loads(printed), added_up(bootstrap, f"{space}.{PAYMENTS}"))


def run_in_directory(folder: Path, kills: int, seed: int) -> LedgerOutcome:
    """The ledger in a compacted topic, where it is the engine itself that is killed: the log is a directory."""
    data = folder / "log"
    address = f"duramen+file://{data}?namespace=bank"
    chance = random.Random(seed)
    with streams.open(address) as bank:
        stream = bank.create(PAYMENTS)
        for _ in range(kills + 1):
            stream.append([payment(chance) for _ in range(MOST_IN_A_LIFE)])
        stream.close_stream()
    ledger = Ledger("directory", lambda _, address: ["topic", address, "balances"])
    positions, printed = lives(ledger, folder, address, kills, chance, lambda: None)
    sums: Counter[str] = Counter()
    with duramen.open(data) as log:
        for record in log.topic(f"bank.{PAYMENTS}").read(0):
            assert record.key is not None
            sums[record.key.decode()] += int(record.value or b"")
            sums["payments"] += 1
    return LedgerOutcome(ledger.way, positions, json.loads(printed), dict(sums))


def torture(folder: Path, kills: int, seed: int, ledgers: list[Ledger]) -> list[LedgerOutcome]:
    """All ledgers at the same time, against one node."""
    node = Served(folder, {"offsets.topic.num.partitions": "2"})
    node.start()
    try:
        with ThreadPoolExecutor(len(ledgers)) as runs:
            return list(runs.map(lambda each: run_ledger(each, folder, node.bootstrap, kills, seed), ledgers))
    finally:
        node.kill()


def main() -> int:
    """The command line above; 1 where a ledger is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duramen-positions-") as folder, ExitStack() as servers:
        ledgers = LEDGERS
        programs = postgres_programs() if find_spec("psycopg") else None
        if programs is None:
            print("postgres   skipped: it needs PostgreSQL and psycopg")
        else:
            conninfo = servers.enter_context(ServedPostgres(programs)).conninfo
            ledgers = [*LEDGERS, Ledger("postgres", lambda _, address: ["postgres", address, conninfo])]
        outcomes = torture(Path(folder), chosen.kills, chosen.seed, ledgers)
        outcomes.append(run_in_directory(Path(folder), chosen.kills, chosen.seed))
    for each in outcomes:
        verdict = "each applied once" if each.is_right else f"WRONG: {each.ledger} instead of {each.log}"
        places, payments = len(set(each.positions)), each.log["payments"]
        print(f"{each.way:<10} {chosen.kills} kills at {places} positions, {payments} payments: {verdict}")
    return 0 if all(each.is_right for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
