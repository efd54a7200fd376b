"""Faults of a cluster's nodes under load: kill -9, pauses, clean restarts, two at once, all at once; an outside ledger.

    python -m tests.torture.nodes --faults 40 --seed 7

Each node is broker and controller, and is started with other settings each time. After every tenth fault all that was
acknowledged is read back, by librdkafka and by kafka-python, the nodes are stopped, and their disks compared.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import KafkaException
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from tests.torture.kills import SETTINGS, VARIED
from tests.torture.ledger import Audit, Ledger, Sent, number_of, verdict
from tests.torture.load import Load
from tests.torture.odd_writers import CONFIGS
from tests.torture.replicas import differences
from tests.worlds.controller_trio import ControllerTrio, ServedController

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.client.protocol import metadata
from duramen.errors import DuramenError
from duramen.wire.messages import API

CLUSTER = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
}
METADATA = 3
WHOLE_SECONDS = 180.0
"""By then every replica is in sync again."""
LOOK_SECONDS = 2.0
WAITS_UNTIL_WHOLE = 0.6
"""How often the next fault waits until every replica is in sync."""
READ_BACK_SECONDS = 60.0


class Fault(NamedTuple):
    """What was done, when, and how many records of each topic had been sent by then."""

    kind: str
    nodes: tuple[int, ...]
    at: float
    sent: dict[str, int]


class ClusterTorture:
    """The nodes, their clients and what was found."""

    def __init__(self, folder: Path, seed: int, nodes: int = 3, *, few: bool = False) -> None:
        """few: see Load."""
        self.few = few
        self.random = random.Random(seed)
        self.seed = seed
        replicas = str(min(3, nodes))
        settings = {name: replicas if "factor" in name else value for name, value in CLUSTER.items()}
        if nodes < 3:
            settings["min.insync.replicas"] = "1"
        self.replicas = int(replicas)
        self.settings = SETTINGS | settings
        self.cluster = ControllerTrio(folder, self.settings, nodes=nodes)
        self.bootstrap = ",".join(node.bootstrap for node in self.cluster.nodes)
        self.ledger = Ledger()
        self.load: Load | None = None
        self.faults: list[Fault] = []
        self.deck: list[tuple[str, Callable[[], Sequence[ServedController]]]] = []
        self.broken: list[str] = []
        self.generation = 0
        self.records = 0
        self.compared = 0
        self.acknowledged = 0
        self.outages: list[tuple[str, float]] = []
        self.whole_after: list[float] = []
        self.began = time.monotonic()

    def run(self, faults: int, seconds_max: float, *, per_generation: int = 10) -> None:
        """So many faults, the checks between them, and the last one behind them all."""
        self.cluster.form()
        self.cluster.launch()
        self.began = time.monotonic()
        try:
            self._next_generation()
            while not self.broken and len(self.faults) < faults and time.monotonic() - self.began < seconds_max:
                self._one_fault()
                if not self.broken and (len(self.faults) % per_generation == 0 or len(self.faults) == faults):
                    self._check()
                    if not self.broken and len(self.faults) < faults:
                        self.cluster.launch()
                        self._next_generation()
        finally:
            for node in self.cluster.nodes:
                if node.process is not None:
                    node.process.send_signal(signal.SIGCONT)
            self._stop_load()
            self.cluster.kill()

    def line(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(f.kind for f in self.faults).items()))
        return (
            f"{len(self.faults)} faults ({kinds}), {self.acknowledged_now():,} records acknowledged, "
            f"{self.records:,} read back, {self.compared:,} batches compared on the disks, "
            f"{len(self.broken)} promises broken"
        )

    def acknowledged_now(self) -> int:
        return self.acknowledged + self.ledger.acknowledged()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    # -- faults

    def _one_fault(self) -> None:
        assert self.load is not None
        time.sleep(self.random.uniform(0.5, 3.0))
        for client in self.load.clients:
            try:
                client.check()
            except KafkaException as error:  # as an idempotent writer whose last records are gone
                self.broken.append(f"a client gave up: {error}")
                self.until_whole()
                self.broken += Audit(self.bootstrap, self.ledger).run()
                return
        if not self.deck:
            self.deck = self._cards()
        kind, choose = self.deck.pop()
        victims = list(choose())
        sent = {sent.topic: sent.sent for sent in self.ledger.sent.values()}
        self.faults.append(Fault(kind, tuple(node.id for node in victims), time.monotonic(), sent))
        self.say(f"fault {len(self.faults)}: {kind} {[node.id for node in victims]}")
        {"pause": self._pause, "stop": self._stop, "pause and kill": self._pause_and_kill}.get(kind, self._kill)(
            victims
        )
        if self.random.random() < WAITS_UNTIL_WHOLE:
            self.until_whole()

    def _cards(self) -> list[tuple[str, Callable[[], Sequence[ServedController]]]]:
        """Each kind of fault, in an order of their own; drawn until none is left."""
        nodes, any_of = self.cluster.nodes, self.random.sample
        cards: list[tuple[str, Callable[[], Sequence[ServedController]]]] = [
            ("kill", lambda: any_of(nodes, 1)),
            ("kill the most leading", lambda: [self._leading()]),
            ("kill the active controller", lambda: [self._controller()]),
            ("pause", lambda: any_of(nodes, 1)),
            ("pause", lambda: [self._leading()]),
            ("pause and kill", lambda: any_of(nodes, 2) if len(nodes) > 1 else nodes),
            ("stop", lambda: any_of(nodes, 1)),
            ("stop", lambda: [self._controller()]),
            ("kill two", lambda: any_of(nodes, 2) if len(nodes) > 1 else nodes),
            ("kill all", lambda: nodes),
        ]
        self.random.shuffle(cards)
        return cards

    def _kill(self, victims: Sequence[ServedController]) -> None:
        for node in victims:
            node.kill()
        for node in self.random.sample(victims, len(victims)):
            # Shorter and longer than a session: who is back before it is over was never missed.
            time.sleep(self.random.choice((0.0, self.random.uniform(0.1, 1.0), self.random.uniform(3.0, 6.0))))
            self._launch(node)

    def _pause(self, victims: Sequence[ServedController]) -> None:
        seconds = self.random.choice((self.random.uniform(0.2, 2.0), self.random.uniform(4.0, 10.0)))
        for node in victims:
            assert node.process is not None
            node.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for node in victims:
            assert node.process is not None
            node.process.send_signal(signal.SIGCONT)

    def _pause_and_kill(self, victims: Sequence[ServedController]) -> None:
        """One is paused; another one is killed and back before the first one goes on."""
        paused, killed = victims[0], victims[-1]
        assert paused.process is not None
        paused.process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.0, 4.0))
        killed.kill()
        time.sleep(self.random.uniform(0.0, 4.0))
        if killed is not paused:
            self._launch(killed)
            time.sleep(self.random.uniform(0.0, 3.0))
            paused.process.send_signal(signal.SIGCONT)
        else:
            self._launch(killed)

    def _stop(self, victims: Sequence[ServedController]) -> None:
        for node in victims:
            status = node.stop()
            if status:
                self.broken.append(f"node {node.id}: a clean stop ended with {status}:\n{node.log()}")
            time.sleep(self.random.uniform(0.0, 3.0))
            self._launch(node)

    def _launch(self, node: ServedController) -> None:
        """Start it with other settings, and now and then kill it once more on its way."""
        changed = {name: self.random.choice(values) for name, values in VARIED.items()}
        node.configure(self.cluster.nodes, self.settings | changed)
        while self.random.random() < 0.15:
            node.launch()
            time.sleep(self.random.uniform(0.05, 1.5))
            node.kill()
        node.launch()

    def _stop_load(self) -> None:
        """Of clients that have given up one is told."""
        try:
            if self.load is not None:
                self.load.stop()
        except (KafkaException, AssertionError, TimeoutError) as error:
            self.broken.append(f"a client did not end: {error}")

    # -- what the cluster says of itself

    def _controller(self) -> ServedController:
        until = time.monotonic() + WHOLE_SECONDS
        while (leader := self.cluster.look().leader) is None:
            if time.monotonic() > until:
                raise AssertionError(f"no active controller for {WHOLE_SECONDS:.0f} s")
            time.sleep(0.1)
        return self.cluster.node(leader.leader_id)

    def _leading(self) -> ServedController:
        """The one that leads most partitions of the load."""
        for node in self.random.sample(self.cluster.nodes, len(self.cluster.nodes)):
            leaders = Counter(leader for leader, _, _ in self._look(node)[1] if leader > 0)
            if leaders:
                return self.cluster.node(leaders.most_common(1)[0][0])
        return self.cluster.nodes[0]

    def _look(self, node: ServedController) -> tuple[set[int], list[tuple[int, int, int]]]:
        """The brokers that this node knows; of each partition its leader, its in-sync replicas and its replicas."""
        until = time.monotonic() + LOOK_SECONDS
        try:
            connection = BlockingConnection("127.0.0.1", node.port, "torture", until, MAX_FRAME_BYTES)
            try:
                answer = connection.call(METADATA, metadata.request(API[METADATA].request, None), until)
            finally:
                connection.close()
        except (DuramenError, OSError):
            return set(), []
        brokers = {broker.node_id for broker in answer.brokers}
        return brokers, [
            (each.leader_id if each.leader_id in brokers else -1, len(each.isr_nodes), len(each.replica_nodes))
            for topic in answer.topics
            for each in topic.partitions
        ]

    def is_whole(self) -> bool:
        """Whether every node knows all nodes, that every replica is in sync, and that each partition has a leader."""
        for node in self.cluster.nodes:
            brokers, partitions = self._look(node)
            if len(brokers) < len(self.cluster.nodes):
                return False
            if any(leader < 0 or in_sync < replicas for leader, in_sync, replicas in partitions):
                return False
        return True

    def until_whole(self) -> None:
        began = time.monotonic()
        while not self.is_whole():
            for node in self.cluster.nodes:
                if node.process is not None and node.process.poll() is not None:
                    self.broken.append(f"node {node.id} ended by itself:\n{node.log()}")
                    return
            if time.monotonic() - began > WHOLE_SECONDS:
                looks = [self._look(node) for node in self.cluster.nodes]
                lacking = [(brokers, [each for each in those if each[1] < each[2]]) for brokers, those in looks]
                self.broken.append(f"not every replica is in sync after {WHOLE_SECONDS:.0f} s: {lacking}")
                return
            time.sleep(0.1)
        self.whole_after.append(time.monotonic() - began)

    # -- checks

    def _next_generation(self) -> None:
        self.until_whole()
        if self.load is not None:
            self.acknowledged += self.ledger.acknowledged()
            self.load.remove()
            self.generation += 1
        self.load = Load(
            self.bootstrap, self.ledger, self.generation, self.seed, others=True, replicas=self.replicas, few=self.few
        )
        self.load.start()

    def _check(self) -> None:
        """Everything is read back, twice, and lies the same on every disk."""
        assert self.load is not None
        self.until_whole()
        if self.broken:
            return
        try:
            self.load.pause()
        except (KafkaException, AssertionError) as error:
            self.broken.append(f"a client has no answer: {error}")
        self._stop_load()
        audit = Audit(self.bootstrap, self.ledger)
        self.broken += audit.run()
        self.records += audit.records
        for sent in list(self.ledger.sent.values()):
            if sent.exactly_once and not sent.compacted:
                self.broken += self._read_back(sent)
        self._measure_outages()
        self.until_whole()
        try:
            self.cluster.stop()
        except AssertionError as error:
            self.broken.append(f"a clean stop of all nodes failed: {error}")
        thinned = [
            f"{self.load.prefix}-{kind}" for kind, c in CONFIGS.items() if "compact" in c.get("cleanup.policy", "")
        ]
        found, compared = differences([node.data for node in self.cluster.nodes], f"{self.load.prefix}-", thinned)
        self.broken += found
        self.compared += compared
        self.say(self.line())

    def _read_back(self, sent: Sent) -> list[str]:
        """With another client: nothing acknowledged is missing, nothing is there twice, and it is in order."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","), enable_auto_commit=False, auto_offset_reset="earliest",
            check_crcs=True, max_poll_records=5000,
        )  # fmt: skip
        found: list[str] = []
        try:
            for index in sorted(consumer.partitions_for_topic(sent.topic) or ()):
                place = PythonPartition(sent.topic, index)
                consumer.assign([place])
                consumer.seek_to_beginning(place)
                start, end = consumer.position(place), consumer.end_offsets([place])[place]
                numbers: list[int] = []
                until = time.monotonic() + READ_BACK_SECONDS
                while consumer.position(place) < end and time.monotonic() < until:
                    for records in consumer.poll(1000).values():
                        numbers += [number_of(record.value) for record in records]
                self.records += len(numbers)
                had = set(numbers)
                lost = [
                    number
                    for number, (where, offset, _) in sent.acknowledged.items()
                    if where == index and offset >= start and number not in had
                ]
                if lost:
                    found.append(f"{sent.topic}-{index}: kafka-python lacks {len(lost)}, as {min(lost)}")
                if len(had) != len(numbers):
                    found.append(f"{sent.topic}-{index}: kafka-python has {len(numbers) - len(had)} twice")
                if numbers != sorted(numbers):
                    found.append(f"{sent.topic}-{index}: kafka-python has them out of order")
        finally:
            consumer.close()
        return found

    def _measure_outages(self) -> None:
        """How long after each fault of this generation every partition of one topic had acknowledged something new."""
        assert self.load is not None
        sent = self.ledger.sent[f"{self.load.prefix}-exact"]
        for fault in self.faults:
            if sent.topic not in fault.sent:
                continue
            first: dict[int, float] = {}
            for number, (where, _, heard) in sent.acknowledged.items():
                if number >= fault.sent[sent.topic]:
                    first[where] = min(first.get(where, heard), heard)
            if first:
                self.outages.append((fault.kind, max(first.values()) - fault.at))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "big"))
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time, whatever was reached")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="duramen-torture-nodes-"))
    print(f"seed {options.seed}, {options.nodes} nodes, {options.faults} faults, in {folder}", flush=True)
    torture = ClusterTorture(folder, options.seed, options.nodes)
    try:
        torture.run(options.faults, options.minutes * 60)
    except KeyboardInterrupt:
        print("ended by hand", file=sys.stderr)
        return 130
    print(torture.line())
    for kind in sorted({kind for kind, _ in torture.outages}):
        taken = [seconds for each, seconds in torture.outages if each == kind]
        print(f"  written again after {median(taken):.2f} s (median), {max(taken):.2f} s (most): {kind}")
    if torture.whole_after:
        most = max(torture.whole_after)
        print(f"  every replica in sync after {median(torture.whole_after):.2f} s (median), {most:.2f} s (most)")
    return verdict(torture.broken, folder)


if __name__ == "__main__":
    sys.exit(main())
