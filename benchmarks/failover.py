"""Measures a leader's death: from kill -9 to the first write that is acknowledged behind it, over twenty kills.

Three nodes on this machine, topics of three copies of which two must have a write, acks=all. In every other try the
leader that dies is the active controller as well. Two clients write at the same time: confluent-kafka as it comes,
idempotent, with its own back-off; and one of ours that asks again at once, so that the difference is the client's. Then
a few leaders fall silent (SIGSTOP): nothing is refused, and what tells is the end of a session. There only our client
counts: librdkafka waits for the answer to the request that is under way for as long as its time-outs say. `make
failover`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from benchmarks import machine
from benchmarks.broker_process import LOOPBACK, BrokerFailedError
from benchmarks.cluster import store
from benchmarks.cluster_nodes import ClusterNode, NodesCluster
from benchmarks.run import working_directory
from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.errors import DuramenError
from duramen.wire.batch import build_batch
from duramen.wire.errors import DecodeError
from duramen.wire.messages.metadata import MetadataRequest
from duramen.wire.messages.produce import ProduceRequest

TOPIC = "failover"
QUIET = {"log_level": 0}
PRODUCE, METADATA = 0, 3
ATTEMPT_SECONDS = 1.0
"""For one answer; a dead node refuses at once, and a silent one is left after so long."""
SHUNNED_SECONDS = 3.0
"""A node that failed is not asked who leads for so long."""
BETWEEN_ATTEMPTS = 0.01
BETWEEN_WRITES = 0.01
SETTLED_SECONDS = 1.0
"""Of writes in front of each death."""
LONGEST_SECONDS = 60.0


class Writer:
    """Writes to one partition, one record after the other, and remembers when writes begun later were acknowledged."""

    name = ""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self.nodes = nodes
        self.partition = 0
        self.failed: list[str] = []
        self._since = 0.0
        self._first: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def watch(self) -> None:
        """From now on."""
        self._first = None
        self._since = time.monotonic()

    def acknowledged(self, begun: float, when: float) -> None:
        if begun >= self._since and self._first is None:
            self._first = when

    def seconds(self) -> float | None:
        """Until the first acknowledgement of a write that was begun since."""
        return None if self._first is None else self._first - self._since

    def _run(self) -> None:
        raise NotImplementedError


class Confluent(Writer):
    """confluent-kafka, idempotent, its defaults."""

    name = "confluent-kafka"

    def _run(self) -> None:
        bootstrap = ",".join(node.bootstrap for node in self.nodes)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})

        def delivered(begun: float) -> Callable[[Any, Any], None]:
            def told(error: Any, _: Any) -> None:
                if error is not None:
                    self.failed.append(str(error))
                else:
                    self.acknowledged(begun, time.monotonic())

            return told

        while not self._ended.is_set():
            producer.produce(TOPIC, b"c" * 100, partition=self.partition, on_delivery=delivered(time.monotonic()))
            time.sleep(BETWEEN_WRITES)  # a poll returns with each acknowledgement, and a queue would grow
            producer.poll(0)
        left = producer.flush(60)
        if left:
            self.failed.append(f"{left} without an answer")


class Raw(Writer):
    """Ours: one request at a time, and metadata from whoever answers as soon as one fails."""

    name = "no back-off"

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        super().__init__(nodes)
        self._connections: dict[int, BlockingConnection] = {}
        self._leader: tuple[int, int] | None = None
        """Partition and node."""
        self._failed_at: dict[int, float] = {}

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            if self._write():
                self.acknowledged(begun, time.monotonic())
                time.sleep(BETWEEN_WRITES)
            else:
                time.sleep(BETWEEN_ATTEMPTS)
        for connection in self._connections.values():
            connection.close()

    def _write(self) -> bool:
        partition = self.partition
        if self._leader is None or self._leader[0] != partition:
            leader = self._find(partition)
            if leader is None:
                return False
            self._leader = partition, leader
        data = ProduceRequest.PartitionProduceData(
            index=partition, records=build_batch([(None, b"r" * 100, (), int(time.time() * 1000))])
        )
        topics = [ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])]
        request = ProduceRequest.new(acks=-1, timeout_ms=int(ATTEMPT_SECONDS * 1000), topic_data=topics)
        answer = self._ask(self._leader[1], PRODUCE, request, 12)  # by name
        if answer is None or answer.responses[0].partition_responses[0].error_code:
            self._leader = None
            return False
        return True

    def _find(self, partition: int) -> int | None:
        """The leader, as a node tells that may itself be dead."""
        since = time.monotonic() - SHUNNED_SECONDS
        ids = [node.id for node in self.nodes]
        asked = random.choice([each for each in ids if self._failed_at.get(each, 0.0) < since] or ids)
        topics = [MetadataRequest.MetadataRequestTopic(name=TOPIC)]
        answer = self._ask(asked, METADATA, MetadataRequest.new(topics=topics, allow_auto_topic_creation=False), 8)
        if answer is None:
            return None
        parts = answer.topics[0].partitions
        return next(
            (each.leader_id for each in parts if each.partition_index == partition and each.leader_id > 0), None
        )

    def _ask(self, node_id: int, key: int, request: Any, version: int) -> Any | None:
        until = time.monotonic() + ATTEMPT_SECONDS
        connection = self._connections.get(node_id)
        try:
            if connection is None or connection.closed:
                port = self.nodes[node_id - 1].port
                connection = BlockingConnection(LOOPBACK, port, "failover", until, MAX_FRAME_BYTES)
                self._connections[node_id] = connection
            return connection.call(key, request, until, version)
        except (DuramenError, DecodeError):
            self._connections.pop(node_id, None)
            self._failed_at[node_id] = time.monotonic()
            return None


class Failovers:
    """The tries, one after the other."""

    def __init__(self, cluster: NodesCluster) -> None:
        self.cluster = cluster
        self._raw = Raw(cluster.nodes)
        self.writers: list[Writer] = [Confluent(cluster.nodes), self._raw]
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})

    def run(self, kills: int, silences: int) -> list[dict[str, Any]]:
        ids = [node.id for node in self.cluster.nodes]
        self.cluster.create_topic(TOPIC, [[*ids[at:], *ids[:at]] for at in range(len(ids))], "fsync")
        for writer in self.writers:
            writer.start()
        tries = []
        try:
            for number in range(kills + silences):
                found = self._try(with_controller=number % 2 == 0, silent=number >= kills)
                tries.append(found)
                print(_line(number, found), flush=True)
        finally:
            for writer in self.writers:
                writer.stop()
        return tries

    def _try(self, *, with_controller: bool, silent: bool) -> dict[str, Any]:
        self._in_first_places()
        controller = self.cluster.active_controller()
        victim = controller
        if not with_controller:
            victim = random.choice([node for node in self.cluster.nodes if node is not controller])
        for writer in self.writers:
            writer.partition = victim.id - 1
        for writer in self.writers:
            writer.watch()
        time.sleep(SETTLED_SECONDS)
        self._await(self.writers)
        pid = victim.pid
        for writer in self.writers:
            writer.watch()
        os.kill(pid, signal.SIGSTOP if silent else signal.SIGKILL)
        counted = [self._raw] if silent else self.writers
        try:
            self._await(counted)
        finally:
            if silent:
                os.kill(pid, signal.SIGCONT)
        if not silent:
            victim.stop()
            victim.start()
        seconds = {writer.name: round(writer.seconds() or 0.0, 3) for writer in counted}
        return {"silent": silent, "with_controller": victim is controller, "seconds": seconds}

    def _await(self, writers: Sequence[Writer]) -> None:
        """Until each of them has had a write acknowledged that it began since it watches."""
        until = time.monotonic() + LONGEST_SECONDS
        while any(writer.seconds() is None for writer in writers):
            if time.monotonic() > until:
                waiting = [writer.name for writer in writers if writer.seconds() is None]
                raise BrokerFailedError(f"nothing is acknowledged for {LONGEST_SECONDS:.0f} s: {waiting}")
            time.sleep(0.002)

    def _in_first_places(self) -> None:
        """As soon as all copies are in sync, every node leads one partition again."""
        until = time.monotonic() + LONGEST_SECONDS
        while True:
            with contextlib.suppress(KafkaException):
                parts = self._admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
                if all(part.leader == part.replicas[0] for part in parts.values()):
                    return
                if all(len(part.isrs) == len(part.replicas) for part in parts.values()):
                    places = [Place(TOPIC, index) for index in parts]
                    self._admin.elect_leaders(ElectionType.PREFERRED, places).result(10)
            if time.monotonic() > until:
                raise BrokerFailedError(f"not all copies are in sync after {LONGEST_SECONDS:.0f} s")
            time.sleep(0.05)


def _line(number: int, found: dict[str, Any]) -> str:
    how = "silent" if found["silent"] else "killed"
    who = "leader and active controller" if found["with_controller"] else "leader"
    times = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in found["seconds"].items())
    return f"{number + 1:3} {how} {who}: {times}"


def quantiles(values: Sequence[float]) -> list[float]:
    """Least, median, 90th percentile and most."""
    ordered = sorted(values)
    return [ordered[0], statistics.median(ordered), ordered[max(0, -(-len(ordered) * 9 // 10) - 1)], ordered[-1]]


def table(facts: dict[str, Any]) -> str:
    """As Markdown."""
    rows = [
        f"From a leader's death to the first acknowledged write, ms ({facts['versions'].get('duramen', 'Duramen')})",
        "",
        "| what happened | client | tries | min | median | p90 | max |",
        "|---|---|---|---|---|---|---|",
    ]
    tries = facts["tries"]
    kinds = (
        ("kill -9, all", lambda each: not each["silent"]),
        ("kill -9 of a leader", lambda each: not each["silent"] and not each["with_controller"]),
        ("kill -9 of leader and active controller", lambda each: not each["silent"] and each["with_controller"]),
        ("SIGSTOP, all", lambda each: each["silent"]),
    )
    for title, fits in kinds:
        some = [each["seconds"] for each in tries if fits(each)]
        for name in some[0] if some else ():
            values = quantiles([seconds[name] for seconds in some])
            cells = " | ".join(f"{value * 1000:.0f}" for value in values)
            rows.append(f"| {title} | {name} | {len(some)} | {cells} |")
    rows += ["", f"Writes that failed: {len(facts['failed'])}. {facts['seconds']:.0f} s in all."]
    return "\n".join(rows) + "\n"


def measure(options: argparse.Namespace) -> int:
    """Measure, print, store."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory(options.data_dir))
        facts: dict[str, Any] = {
            "benchmark": "failover",
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            **machine.commit(),
            "versions": machine.versions(),
            "machine": machine.describe(directory),
            "disk": machine.fdatasync_ms(directory),
        }
        cluster = NodesCluster(directory)
        stack.callback(cluster.stop)
        cluster.form()
        cluster.start()
        failovers = Failovers(cluster)
        facts["tries"] = failovers.run(options.kills, options.silences)
        facts["failed"] = [each for writer in failovers.writers for each in writer.failed]
    facts["seconds"] = round(time.monotonic() - began, 1)
    page = table(facts)
    print(page, flush=True)
    store(facts, page, is_whole=options.kills >= 20)
    return 1 if facts["failed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--silences", type=int, default=4, help="leaders that are stopped with SIGSTOP")
    parser.add_argument("--data-dir", type=Path, help="parent of the data directories (default: .cache)")

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, end)
    try:
        return measure(parser.parse_args())
    except KeyboardInterrupt:
        print("stopped; the nodes are down and their data is removed")
        return 130
    except BrokerFailedError as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
