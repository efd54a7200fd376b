"""Transactional copiers and the nodes below them are killed and paused at random moments; each record counts once.

    python -m tests.torture.exactly_once --faults 50 --nodes 1 --seed 7

An idempotent producer writes numbered records. Two copiers, one group, copy them to a second topic and a third copies
that one on; each keeps its positions in its transactions and aborts some by itself. After every tenth fault all is let
come to rest, and then the three topics have the same records in the same order, partition by partition: nothing of an
aborted transaction, nothing twice, nothing lost, and no transaction hangs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.torture.committed import Content, content
from tests.torture.copier import ABORTED, FENCED, QUIET
from tests.torture.cuts import RecordedNode
from tests.torture.kills import SETTINGS, VARIED
from tests.torture.ledger import number_of, value_of, verdict
from tests.torture.load import Client
from tests.torture.nodes import CLUSTER
from tests.torture.programs import Program
from tests.torture.shadow import apply, read
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_node import FOREIGN, Served

PARTITIONS = 4
FIRST, SECOND, THIRD = "first", "second", "third"
FAULTS = {1: 50, 3: 30}
"""How many a whole run has, by the number of nodes."""
RATE = 300
"""Records a second that are written at most."""
REST_SECONDS = 120.0
"""By then all that was written is copied twice, when nothing is killed any more."""
TIMEOUT_MS = 10_000
HANGS_SECONDS = 30.0
"""After all is copied, and a time-out has passed, no partition is held back by an open transaction for longer."""
QUICK = {
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
TRIO = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}


class Copier(Program):
    """A copier's process, started again whenever it has ended."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        super().__init__(name, folder)
        self.words = words

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.torture.copier", *self.words]


class ExactlyOnce:
    """The nodes, the copiers, and what was found."""

    def __init__(
        self, folder: Path, seed: int, nodes: int = 1, *, protocol: str = "classic", kinds: Container[str] | None = None
    ) -> None:
        """kinds: of the faults, where not all are wanted."""
        self.kinds = kinds
        self.random = random.Random(seed)
        self.seed = seed
        self.folder = folder
        self.trio: ControllerTrio | None = None
        self.settings = SETTINGS | QUICK
        if nodes == 1:
            (folder / "node").mkdir()
            kind = Served if FOREIGN else RecordedNode
            self.nodes: list[Served] = [kind(folder / "node", dict(self.settings))]
        else:
            self.settings |= CLUSTER | QUICK | TRIO
            self.trio = ControllerTrio(folder, self.settings, nodes=nodes)
            self.nodes = list(self.trio.nodes)
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)
        stages = [("one", FIRST, SECOND, "g1"), ("two", FIRST, SECOND, "g1"), ("three", SECOND, THIRD, "g2")]
        options = ["--seed", str(seed), "--protocol", protocol, "--timeout-ms", str(TIMEOUT_MS)]
        self.copiers = [
            Copier(name, folder, [self.bootstrap, source, target, group, f"copier-{name}", *options])
            for name, source, target, group in stages
        ]
        self.writer: Client | None = None
        self.running = threading.Event()
        self.sent = 0
        self.acknowledged = 0
        self.refused: list[str] = []
        self.faults: list[str] = []
        self.deck: list[tuple[str, Callable[[], None]]] = []
        self.broken: list[str] = []
        self.copied = 0
        self.aborted = 0
        self.fenced = 0
        self.began = time.monotonic()

    def run(
        self, faults: int, seconds_max: float, *, per_check: int = 10, pause: tuple[float, float] = (0.5, 4.0)
    ) -> None:
        self._start()
        try:
            while not self.broken and len(self.faults) < faults and time.monotonic() - self.began < seconds_max:
                time.sleep(self.random.uniform(*pause))
                self._one_fault()
                self._look()
                if len(self.faults) % per_check == 0 or len(self.faults) == faults:
                    self._check()
        finally:
            self._end()

    def line(self) -> str:
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(Counter(self.faults).items()))
        fenced = self.fenced + sum(copier.fenced for copier in self.copiers)
        stuck = sum(copier.stuck for copier in self.copiers)
        return (
            f"{len(self.faults)} faults ({kinds}), {self.acknowledged:,} records acknowledged, "
            f"{self.copied:,} compared, {self.aborted:,} of aborted transactions unseen, "
            f"{fenced} times a copier was fenced and {stuck} times stuck, {len(self.broken)} promises broken"
        )

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # -- begin and end

    def _start(self) -> None:
        if self.trio is not None:
            self.trio.form()
            self.trio.whole()
        else:
            self.nodes[0].start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        topics = [NewTopic(name, PARTITIONS, min(3, len(self.nodes))) for name in (FIRST, SECOND, THIRD)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        for copier in self.copiers:
            copier.start()
        self.running.set()
        self.writer = Client(self._write)
        self.began = time.monotonic()

    def _end(self) -> None:
        for process in [*(node.process for node in self.nodes), *(copier.process for copier in self.copiers)]:
            if process is not None:
                process.send_signal(signal.SIGCONT)
        try:
            if self.writer is not None:
                self.writer.stop()
        except (KafkaException, AssertionError, TimeoutError) as error:
            self.broken.append(f"the writer did not end: {error}")
        for copier in self.copiers:
            copier.kill()
        for node in self.nodes:
            node.kill()

    def _write(self, client: Client) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 2,
                "message.timeout.ms": 300_000, **QUIET,
            }
        )  # fmt: skip

        def heard(error: object, _: object) -> None:
            self.acknowledged += error is None
            if error is not None:
                self.refused.append(str(error))

        while not client.stopping.is_set():
            if self.running.is_set() and self.sent - self.acknowledged < 10 * RATE:
                producer.produce(FIRST, value_of(self.sent), b"%d" % (self.sent % 50), on_delivery=heard)
                self.sent += 1
                producer.poll(0)
                time.sleep(1 / RATE)
            else:
                producer.poll(0.01)

    # -- faults

    def _one_fault(self) -> None:
        if not self.deck:
            self.deck = self._cards()
        kind, strike = self.deck.pop()
        self.faults.append(kind)
        self.say(f"fault {len(self.faults)}: {kind}")
        strike()

    def _cards(self) -> list[tuple[str, Callable[[], None]]]:
        cards: list[tuple[str, Callable[[], None]]] = [
            ("node killed", lambda: self._kill_nodes(1)),
            ("node killed", lambda: self._kill_nodes(1)),
            ("node paused", self._pause_node),
            ("node stopped", self._stop_node),
            ("copier killed", lambda: self._kill_copiers(1)),
            ("copier killed", lambda: self._kill_copiers(1)),
            ("copiers killed", lambda: self._kill_copiers(3)),
            ("copier paused", self._pause_copier),
            ("copier replaced", self._replace_copier),
            ("node and copier killed", self._kill_both),
        ]
        if self.trio is not None:
            cards += [("nodes killed", lambda: self._kill_nodes(2)), ("nodes killed", lambda: self._kill_nodes(3))]
        elif isinstance(self.nodes[0], RecordedNode):
            cards += [("power cut", self._cut_power)]
        cards = [card for card in cards if self.kinds is None or card[0] in self.kinds]
        self.random.shuffle(cards)
        return cards

    def _moment(self) -> float:
        """Shorter and longer than sessions and time-outs are."""
        return self.random.choice((0.0, self.random.uniform(0.1, 1.0), self.random.uniform(2.0, 5.0)))

    def _kill_nodes(self, count: int) -> None:
        victims = self.random.sample(self.nodes, count)
        for node in victims:
            node.kill()
        for node in victims:
            time.sleep(self._moment() / count)
            self._launch(node)

    def _pause_node(self) -> None:
        process = self.random.choice(self.nodes).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.choice((self.random.uniform(0.2, 2.0), self.random.uniform(6.0, 12.0))))
        process.send_signal(signal.SIGCONT)

    def _stop_node(self) -> None:
        node = self.random.choice(self.nodes)
        status = node.stop()
        if status and not FOREIGN:
            self.broken.append(f"a clean stop ended with {status}:\n{node.log()}")
        time.sleep(self._moment())
        self._launch(node)

    def _kill_copiers(self, count: int) -> None:
        victims = self.random.sample(self.copiers, count)
        for copier in victims:
            copier.kill()
        time.sleep(self._moment())
        for copier in victims:
            copier.start()

    def _pause_copier(self) -> None:
        """For longer than its session: another one has its partitions when it goes on."""
        copier = self.random.choice(self.copiers)
        copier.send(signal.SIGSTOP)
        time.sleep(self.random.choice((self.random.uniform(0.2, 2.0), self.random.uniform(7.0, 13.0))))
        copier.send(signal.SIGCONT)

    def _replace_copier(self) -> None:
        """A second process takes its transactional id while it sleeps; it wakes as a zombie."""
        copier = self.random.choice(self.copiers)
        copier.send(signal.SIGSTOP)
        zombie = copier.process
        copier.start()
        time.sleep(self.random.uniform(1.0, 8.0))
        assert zombie is not None
        zombie.send_signal(signal.SIGCONT)
        time.sleep(self.random.uniform(0.5, 4.0))
        self.fenced += zombie.poll() == FENCED
        zombie.kill()
        zombie.wait()

    def _kill_both(self) -> None:
        node, copier = self.random.choice(self.nodes), self.random.choice(self.copiers)
        first, second = self.random.sample([node.kill, copier.kill], 2)
        first()
        time.sleep(self.random.uniform(0.0, 0.2))
        second()
        time.sleep(self._moment())
        copier.start()
        time.sleep(self.random.uniform(0.0, 0.5))
        self._launch(node)

    def _cut_power(self) -> None:
        """Nothing is left but what was synced."""
        node = self.nodes[0]
        assert isinstance(node, RecordedNode)
        node.kill()
        before = self.folder / "before"
        node.folder.rename(before)
        apply(read(node.notebook), node.folder)
        shutil.rmtree(before)
        self._launch(node)

    def _launch(self, node: Served) -> None:
        """With other settings, and now and then killed once more on its way."""
        changed = {name: self.random.choice(values) for name, values in VARIED.items()}
        if isinstance(node, ServedController):
            assert self.trio is not None
            node.configure(self.trio.nodes, self.settings | changed)
        else:
            node.settings = self.settings | changed
        while self.random.random() < 0.15:
            node.launch()
            time.sleep(self.random.uniform(0.05, 1.5))
            node.kill()
        node.launch()

    # -- checks

    def _look(self) -> None:
        """Everybody is still there."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is not None:
                self.broken.append(f"a node ended by itself:\n{node.log()}")
        self.broken += [said for copier in self.copiers if (said := copier.look())]
        if self.refused:
            self.broken.append(f"the writer was refused: {self.refused[0]}")

    def _check(self) -> None:
        if self.broken:
            return
        self.running.clear()
        if self.trio is not None:
            self.trio.whole()
        try:
            first = self._rest(FIRST, "g1", lambda: self.sent == self.acknowledged)
            second = self._rest(SECOND, "g2", lambda: True)
            third = self._unheld(THIRD)
        except (AssertionError, KafkaException) as error:
            self.broken.append(str(error))
            self._look()
            return
        self._compare(FIRST, first, SECOND, second)
        self._compare(FIRST, first, THIRD, third)
        self._numbers(first)
        self.copied = sum(len(each.records) for each in first)
        everything = [content(self.bootstrap, SECOND, index, committed=False) for index in range(PARTITIONS)]
        everything += [content(self.bootstrap, THIRD, index, committed=False) for index in range(PARTITIONS)]
        self.aborted = sum(len(each.records) for each in everything) - 2 * self.copied
        self.say(self.line())
        self.running.set()

    def _rest(self, topic: str, group: str, ready: Callable[[], bool]) -> list[Content]:
        """What is committed in the topic, as soon as the group has committed its positions behind all of it."""
        until = time.monotonic() + REST_SECONDS
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET}
        )
        try:
            while True:
                self._look()
                assert not self.broken, "a program ended"
                ends: list[int] = []
                stood: list[int] = []
                if ready():
                    found = [content(self.bootstrap, topic, index) for index in range(PARTITIONS)]
                    ends = [each.records[-1].offset + 1 if each.records else 0 for each in found]
                    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
                    try:
                        stood = [max(place.offset, 0) for place in consumer.committed(places, 10)]
                    except KafkaException:
                        stood = []
                    if stood == ends:
                        return self._unheld(topic)
                assert time.monotonic() < until, (
                    f"{group} does not come to the end of {topic} in {REST_SECONDS:.0f} s: it is at {stood} of {ends}, "
                    f"{self.acknowledged} of {self.sent} acknowledged"
                )
                time.sleep(0.2)
        finally:
            consumer.close()

    def _unheld(self, topic: str) -> list[Content]:
        """What is committed, once no open transaction holds it back any more."""
        until = time.monotonic() + TIMEOUT_MS / 1000 + HANGS_SECONDS
        while True:
            found = [content(self.bootstrap, topic, index) for index in range(PARTITIONS)]
            ends = [content(self.bootstrap, topic, index, committed=False).end for index in range(PARTITIONS)]
            stable = [each.end for each in found]
            if stable == ends:
                return found
            assert time.monotonic() < until, f"a transaction hangs in {topic}: stable to {stable} of {ends}"
            time.sleep(0.3)

    def _compare(self, name: str, wanted: list[Content], other: str, found: list[Content]) -> None:
        self.broken += copying_faults(name, wanted, other, found)

    def _numbers(self, first: list[Content]) -> None:
        """Each number that was acknowledged is there, once."""
        numbers = Counter(number_of(each.value) for part in first for each in part.records)
        if numbers != Counter(range(self.sent)):
            lacking = sorted(set(range(self.sent)) - set(numbers))
            self.broken.append(f"{FIRST} lacks {lacking[:5]}, twice: {[n for n, c in numbers.items() if c > 1][:5]}")


def copying_faults(name: str, wanted: list[Content], other: str, found: list[Content]) -> list[str]:
    """What differs: each partition has the same records in the same order."""
    broken: list[str] = []
    for index, (mine, theirs) in enumerate(zip(wanted, found, strict=True)):
        ours, copied = [each[1:] for each in mine.records], [each[1:] for each in theirs.records]
        if ours == copied:
            continue
        times = Counter(copied)
        lost = [value[:40] for _, value in ours if not times[_, value]]
        doubled = [(value[:40], count) for (_, value), count in times.items() if count > 1]
        marked = [value[:40] for _, value in copied if value.startswith(ABORTED)]
        broken.append(
            f"{other}-{index} has {len(copied)} records and {name}-{index} {len(ours)}: "
            f"{len(lost)} lost {lost[:3]}, {len(doubled)} doubled {doubled[:3]}, "
            f"{len(marked)} of aborted transactions {marked[:3]}, order: {first_difference(ours, copied)}"
        )
    return broken


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> str:
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return f"record {number} is {str(other)[:60]}, not {str(mine)[:60]}"
    return f"the same for {min(len(ours), len(theirs))} records"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.exactly_once", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(FAULTS), help="one node after the other run")
    parser.add_argument("--faults", type=int, help=f"of each run (default: {FAULTS} by nodes)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time, whatever was reached")
    options = parser.parse_args()
    return max(run(nodes, options) for nodes in options.nodes)


def run(nodes: int, options: argparse.Namespace) -> int:
    """One run; its exit status."""
    folder = Path(tempfile.mkdtemp(prefix="duramen-exactly-once-"))
    faults = FAULTS.get(nodes, 30) if options.faults is None else options.faults
    print(f"seed {options.seed}, {nodes} nodes, {faults} faults, {options.protocol}, in {folder}", flush=True)
    torture = ExactlyOnce(folder, options.seed, nodes, protocol=options.protocol)
    try:
        torture.run(faults, options.minutes * 60)
    except KeyboardInterrupt:
        print("ended by hand", file=sys.stderr)
        return 130
    print(torture.line())
    return verdict(torture.broken, folder)


if __name__ == "__main__":
    sys.exit(main())
