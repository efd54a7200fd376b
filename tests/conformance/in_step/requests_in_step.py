"""Random requests to Apache Kafka and to a node, in step; where the two answer differently is sorted by class.

    make conformance-in-step [SEED=n] [REQUESTS=n] [CHAPTER=transactions-7: only this one, each request shown]

What differs on purpose stands in `known.py`, with its row of decision 0007.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks.kafka_peer import KafkaPeer, PeerUnavailableError, jars
from tests.conformance.in_step.chapter import Asked, Chapter, Ended
from tests.conformance.in_step.feature_chapters import Features
from tests.conformance.in_step.group_chapters import Groups, StaticGroups
from tests.conformance.in_step.known import reason
from tests.conformance.in_step.side import Side
from tests.conformance.in_step.transaction_chapters import Markers, Transactions
from tests.worlds.served_node import Served

from duramen.wire.messages import API

KINDS: dict[str, type[Chapter]] = {
    "transactions": Transactions,
    "groups": Groups,
    "static": StaticGroups,
    "markers": Markers,
    "features": Features,
}
CHAPTER_REQUESTS = 60
FIND, GROUP, TRANSACTION = 10, 0, 1
WARM_UP_S = 30.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.assignment.interval.ms": "0"}
"""An interval would begin a moment earlier on one of the two."""


def warm_up(sides: list[Side]) -> None:
    """Have both make their topics for groups and transactions."""
    for side in sides:
        for kind in (GROUP, TRANSACTION):
            until = time.monotonic() + WARM_UP_S
            answer = None
            while answer is None or any(each.error_code for each in answer.coordinators):
                if time.monotonic() > until:
                    raise RuntimeError(f"{side.name} has no coordinator: {answer}")
                time.sleep(0.1)
                answer, _ = side.ask(FIND, 4, {"key_type": kind, "coordinator_keys": ["warm"]})


class Peer(KafkaPeer):
    """Apache Kafka with the same settings."""

    def configure(self) -> None:
        super().configure()
        with self._properties.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in SETTINGS.items())


class Book:
    """What was asked, and where the answers differed."""

    def __init__(self, shows: bool) -> None:
        self.asked: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.lines: list[str] = []
        self._shows = shows

    def on_asked(self, asked: Asked) -> bool:
        self.asked[API[asked.key].name] += 1
        line = f"{asked.chapter} {asked.words}"
        self.lines.append(f"{line}\n      {asked.plain[next(iter(asked.plain))]}")
        if self._shows:
            sys.stdout.write(self.lines[-1] + "\n")
        if not asked.differences:
            return True
        shown = [*self.lines[:-1], line, *(f"      {side:8} {plain}" for side, plain in asked.plain.items())]
        why = reason(asked)
        if why is not None:
            self.known[why] += 1
            self.examples.setdefault(why, shown)
            return False
        name = f"{API[asked.key].name}: " + "; ".join(sorted(set(asked.differences))[:3])
        self.classes[name] += 1
        sys.stderr.write(f"{asked.chapter}, request {sum(self.asked.values())}: {name}\n")
        self.examples.setdefault(name, shown)
        return False


def run(sides: list[Side], seed: int, requests: int, only: str, kinds: list[str]) -> Book:
    book = Book(bool(only))
    number = 0
    while sum(book.asked.values()) < requests:
        kind = kinds[number % len(kinds)]
        name = only or f"{kind}-{seed}-{number}"
        chapter = KINDS[name.partition("-")[0]](name, Random(name), sides, book.on_asked)
        book.lines.clear()
        try:
            chapter.begin()
            for _ in range(CHAPTER_REQUESTS):
                chapter.step()
        except Ended:
            pass
        finally:
            chapter.end()
        number += 1
        if only:
            break
    return book


def report(book: Book, seconds: float) -> None:
    total = sum(book.asked.values())
    for name, count in book.classes.most_common():
        sys.stdout.write(f"\n## {count} x {name}\n" + "".join(f"  {line}\n" for line in book.examples[name]))
    sys.stdout.write("\n" + ", ".join(f"{name} {count}" for name, count in sorted(book.asked.items())) + "\n")
    for why, count in book.known.most_common():
        sys.stdout.write(f"on purpose: {count} x {why}, as in: {book.examples[why][-3][:200]}\n")
    found = sum(book.classes.values())
    sys.stdout.write(
        f"{total} requests in {seconds:.0f} s; answered differently: {sum(book.known.values())} on purpose, "
        f"{found} not, of {len(book.classes)} classes\n"
    )


def compare(kafka: int, node: int, chosen: argparse.Namespace) -> int:
    """The status: 1 where something differed."""
    sides = [Side("Kafka", kafka), Side("here", node)]
    began = time.monotonic()
    warm_up(sides)
    book = run(sides, chosen.seed, chosen.requests, chosen.chapter, chosen.kinds.split(","))
    report(book, time.monotonic() - began)
    return 1 if book.classes else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance-in-step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--chapter", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ports", default="", help="of a Kafka and a node that run already")
    chosen = parser.parse_args()
    if chosen.ports:
        return compare(*map(int, chosen.ports.split(",")), chosen)
    try:
        jars()
    except PeerUnavailableError as reason:
        sys.stdout.write(f"Apache Kafka is not at hand: {reason}\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        kafka = Peer(Path(folder) / "kafka")
        kafka.prepare()
        (Path(folder) / "node").mkdir()
        node = Served(Path(folder) / "node", SETTINGS)
        try:
            kafka.start()
            node.start()
            return compare(kafka.port, node.port, chosen)
        finally:
            kafka.kill()
            node.kill()


if __name__ == "__main__":
    sys.exit(main())
