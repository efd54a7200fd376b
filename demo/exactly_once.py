"""Orders are copied by a transactional program that is killed three times, and the node twice; each order counts once.

Run by `make demo-exactly-once`. Exit status 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from demo import exactly_once_report, summary
from demo.__main__ import ROOT, alone, interruptible
from demo.biller import BILLS, GROUP, HEADER, ORDERS
from demo.display import Display
from demo.node import SERVE, Node
from demo.orders import Order, orders
from demo.proof import Finding, finding
from demo.writer import Writer

DATA = ROOT / "demo-exactly-once-data"
PARTITIONS = 4
ROWS = 60_000
WRITE_SECONDS = 20.0
"""The orders come in over so long, and the program follows them."""
KILLS = ((0.15, "the program"), (0.4, "node and program"), (0.65, "program and node"))
"""At which part of the orders billed, and who: the first of two some milliseconds before the other."""
WAIT_SECONDS_MAX = 60.0
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}


class Bill(NamedTuple):
    """A record of the bills. transaction: the name of the one that wrote it."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    transaction: str


class Note(NamedTuple):
    """A line of the program's journal. what: begun, committed, rolled-back."""

    at: float
    transaction: str
    what: str
    orders: int


class Kill(NamedTuple):
    """Who was killed when, and when the next transaction was committed."""

    what: str
    at: float
    again: float


def notes(journal: Path) -> list[Note]:
    """All of the journal; its last line may be cut off."""
    found = []
    for line in journal.read_text().splitlines() if journal.exists() else ():
        at, name, what, count = line.split()
        found.append(Note(float(at), name, what, int(count)))
    return found


class Demo:
    """One run, in acts."""

    def __init__(self, display: Display, command: str, data: Path, rows: int) -> None:
        self.display = display
        self.rows = rows
        self.journal = data / "journal"
        self.log = data / "biller.log"
        self.node = Node(command, data / "node", data / "node.log")
        self.writer = Writer(self.node.address, ORDERS, rows)
        self.orders = orders(rows)
        self.biller: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.kills: list[Kill] = []
        self.began = 0.0
        self.stood: list[int] = []
        self.ends: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody is left behind, whatever happened."""
        self.kill_biller()
        self.node.kill()

    def run(self) -> None:
        seconds = self.node.start()
        self.display.say(f"node ready on {self.node.address} after {seconds:.2f} s")
        admin = AdminClient({"bootstrap.servers": self.node.address, **QUIET})
        topics = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in (ORDERS, BILLS)]
        for created in admin.create_topics(topics, operation_timeout=30).values():
            created.result(WAIT_SECONDS_MAX)
        self.start_biller()
        self.display.say(f"orders come in; a program copies each of them to {BILLS!r}, in transactions")
        self.display.bar("orders billed", self.rows)
        self.began = time.monotonic()
        for part, who in KILLS:
            wanted = int(self.rows * part)
            self._wait(lambda wanted=wanted: self.billed() >= wanted, "the bills")  # type: ignore[misc]
            self._strike(who)
        self._wait(lambda: self.writer.sent == self.rows, "the last orders")
        self.writer.finish(lambda _: None)
        self._wait(self._is_done, "the last bills")
        self.display.update("orders billed", self.rows)

    def start_biller(self) -> None:
        self.lives += 1
        words = [sys.executable, "-m", "demo.biller", self.node.address, str(self.journal), str(self.lives)]
        with self.log.open("ab") as log:
            self.biller = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill_biller(self) -> None:
        if self.biller is not None:
            self.biller.kill()
            self.biller.wait()
            self.biller = None

    def billed(self) -> int:
        """As the program has it."""
        return sum(note.orders for note in notes(self.journal) if note.what == "committed")

    def _strike(self, who: str) -> None:
        """kill -9 in the middle of a transaction, and both are started again."""
        begun, until = len(notes(self.journal)), time.monotonic() + WAIT_SECONDS_MAX
        while len(now := notes(self.journal)) == begun or now[-1].what != "begun":
            if time.monotonic() > until:
                raise SystemExit(f"waited {WAIT_SECONDS_MAX:.0f} seconds in vain for a transaction; see {self.log}")
            self._write(0.001)  # a program that has caught up begins none without orders
        at = time.monotonic()
        steps: dict[str, Callable[[], None]] = {"node": self.node.kill, "program": self.kill_biller}
        for name in who.split():
            if name in steps:
                steps[name]()
        told = self.billed()
        self.display.say(
            f"[red]kill -9[/red] of {who} in transaction {now[-1].transaction}, {told:,} orders are billed"
        )
        if "node" in who:
            self.node.start()
        self.start_biller()
        self._wait(lambda: self.billed() > told, "the next bills")
        again = next(note.at for note in notes(self.journal) if note.what == "committed" and note.at > at)
        self.kills.append(Kill(who, at - self.began, again - self.began))
        self.display.say(f"it goes on, {again - at:.1f} s later")

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        """Until it comes true; orders come in meanwhile. SystemExit when it takes too long."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while not ready():
            if time.monotonic() > until:
                raise SystemExit(f"waited {WAIT_SECONDS_MAX:.0f} seconds in vain for {what}; see {self.log}")
            if self.biller is not None and self.biller.poll() is not None:
                raise SystemExit(f"the program has ended by itself; see {self.log}")
            self._write(0.02)
            self.display.update("orders billed", self.billed())

    def _write(self, seconds: float) -> None:
        """The orders that are due by now, and so long for their answers."""
        due = min(self.rows, int(self.rows * (time.monotonic() - self.began) / WRITE_SECONDS))
        if due > self.writer.sent:
            self.writer.write(self.orders, due, lambda _: None)
        self.writer.serve(seconds)

    def _is_done(self) -> bool:
        """Whether the group stands behind the last order, with no transaction open."""
        self.stood, self.ends = positions(self.node.address)
        return self.stood == self.ends


def positions(address: str) -> tuple[list[int], list[int]]:
    """Where the group stands in the orders, and their ends; no partition is asked for longer than a moment."""
    settings = {"bootstrap.servers": address, "group.id": GROUP, "enable.auto.commit": False, **QUIET}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    places = [TopicPartition(ORDERS, number) for number in range(PARTITIONS)]
    try:
        stood = [max(place.offset, 0) for place in consumer.committed(places, 5)]
        return stood, [consumer.get_watermark_offsets(place, 5)[1] for place in places]
    except KafkaException:
        return [], [-1]
    finally:
        consumer.close()


def read(address: str, topic: str, isolation: str) -> tuple[list[Bill], list[int]]:
    """Everything of a topic as a reader of this isolation finds it, and where the reading ended in each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "nobody", "enable.auto.commit": False, **QUIET,
            "isolation.level": isolation, "auto.offset.reset": "earliest", "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[Bill] = []
    ends: dict[int, int] = {}
    until = time.monotonic() + WAIT_SECONDS_MAX
    while len(ends) < PARTITIONS and time.monotonic() < until:
        for each in consumer.consume(5000, 0.2):
            partition, offset, error = each.partition() or 0, each.offset() or 0, each.error()
            if error is None:
                name = dict(each.headers() or ()).get(HEADER) or b""
                named = name if isinstance(name, str) else name.decode()
                found.append(Bill(partition, offset, each.key() or b"", each.value() or b"", named))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = offset
    consumer.close()
    return found, [ends.get(number, -1) for number in range(PARTITIONS)]


class Evidence(NamedTuple):
    """What the proof is made from: the input, the bills as two kinds of readers find them, and the journal."""

    orders: Sequence[Order]
    incoming: Sequence[Bill]
    committed: Sequence[Bill]
    everything: Sequence[Bill]
    stable: Sequence[int]
    ends: Sequence[int]
    journal: Sequence[Note]
    stood: Sequence[int]
    order_ends: Sequence[int]


def by_partition(records: Iterable[Bill]) -> dict[int, list[tuple[bytes, bytes]]]:
    """Keys and values in the order of their offsets."""
    found: dict[int, list[tuple[bytes, bytes]]] = {number: [] for number in range(PARTITIONS)}
    for each in sorted(records):
        found[each.partition].append((each.key, each.value))
    return found


def prove(seen: Evidence) -> list[Finding]:
    """Everything that is claimed; nothing here trusts a counter of the node or of the program."""
    wanted = Counter((order.key, order.value) for order in seen.orders)
    billed = Counter((bill.key, bill.value) for bill in seen.committed)
    lost = [value.decode() for (_, value), count in (wanted - billed).items() for _ in range(count)]
    strange = [f"{value.decode()}: {billed[key, value]} times" for key, value in billed - wanted]
    rolled_back = {note.transaction for note in seen.journal if note.what == "rolled-back"}
    committed = {note.transaction for note in seen.journal if note.what == "committed"}
    cut_off = {note.transaction for note in seen.journal} - rolled_back - committed
    visible = {bill.transaction for bill in seen.committed}
    shown = sorted(visible & rolled_back)
    lacking = sorted(committed - visible)
    there = Counter(bill.transaction for bill in seen.everything)
    given = Counter(bill.transaction for bill in seen.committed)
    torn = [f"{name}: {given[name]} of {there[name]}" for name in sorted(visible) if given[name] != there[name]]
    unseen = len(seen.everything) - len(seen.committed)
    incoming, copied = by_partition(seen.incoming), by_partition(seen.committed)
    moved = [f"partition {number}" for number in range(PARTITIONS) if incoming[number] != copied[number]]
    held = [f"stable to {list(seen.stable)}, written to {list(seen.ends)}"] if seen.stable != seen.ends else []
    apart = [f"it stands at {list(seen.stood)}, the ends are {list(seen.order_ends)}"]
    return [
        finding(f"each of the {len(seen.orders):,} orders is billed", lost),
        finding("no order is billed twice, and nothing else is billed", strange),
        finding("in each partition the bills have the order in which the orders came in", moved),
        finding(
            f"nothing is read of the {len(rolled_back)} transactions that were rolled back "
            f"({unseen:,} records of such and of killed ones lie in the log, unseen)",
            shown,
        ),
        finding(f"all of the {len(committed)} transactions whose commit was answered are read", lacking),
        finding(f"each transaction is read whole or not at all, the {len(cut_off)} cut off by a kill, too", torn),
        finding("the group stands behind the last order", apart if seen.stood != seen.order_ends else []),
        finding("no transaction is left open", held),
    ]


def perform(console: Console, command: str, data: Path, rows: int) -> int:
    """The demo, the proof, the report; 0 when every claim holds."""
    began = time.monotonic()
    with Display(console) as display, Demo(display, command, data, rows) as demo:
        demo.run()
        display.say("reading everything back, as readers of committed data do, and as those of everything")
        incoming, _ = read(demo.node.address, ORDERS, "read_committed")
        committed, stable = read(demo.node.address, BILLS, "read_committed")
        everything, ends = read(demo.node.address, BILLS, "read_uncommitted")
        journal = notes(demo.journal)
        input_ = list(orders(rows))
        seen = Evidence(input_, incoming, committed, everything, stable, ends, journal, demo.stood, demo.ends)
        findings = prove(seen)
        status = demo.node.stop()
        display.say(f"node stopped by SIGTERM (exit status {status})")
    summary.show_findings(console, "Proof, from what was read back", findings)
    seconds = time.monotonic() - began
    page = data / "report.html"
    moments = [(note.at - demo.began, note.what, note.orders) for note in journal]
    facts = exactly_once_report.Facts(
        rows, seconds, sum(1 for note in journal if note.what == "committed"),
        sum(1 for note in journal if note.what == "rolled-back"), len(everything) - len(committed),
    )  # fmt: skip
    exactly_once_report.write(page, facts, moments, [(kill.what, kill.at, kill.again) for kill in demo.kills], findings)
    console.print(f"\n[bold]all in all[/bold] {seconds:.0f} s; the report with charts: {page}", soft_wrap=True)
    if all(found.holds for found in findings):
        console.print("[bold green]Every claim holds.[/bold green]")
        return 0
    console.print("[bold red]A claim does not hold: see ✗ above.[/bold red]")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.exactly_once", description=__doc__)
    parser.add_argument("--server", default=SERVE, help="command of the node, with {bin}, {port} and {data}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder for everything the demo leaves behind")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"how many orders; {ROWS:,} by default")
    options = parser.parse_args(arguments)
    if options.rows < 1000:
        parser.error("--rows: 1,000 at least")
    console = Console()
    console.print("[bold]Duramen[/bold]: orders are billed in transactions, and who bills them is killed\n")
    with alone(options.data), interruptible() as interrupted:
        shutil.rmtree(options.data, ignore_errors=True)
        (options.data / "node").mkdir(parents=True)
        try:
            return perform(console, options.server, options.data, options.rows)
        except (KeyboardInterrupt, SystemError):
            # The client library makes a SystemError of a Ctrl-C that comes while it reports deliveries.
            if not interrupted:
                raise
            console.print("\nstopped; the next run starts from the beginning")
            return 130


if __name__ == "__main__":
    sys.exit(main())
