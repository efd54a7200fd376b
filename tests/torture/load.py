"""Clients that keep a node busy and write into the ledger what it told them: producers, readers, an administrator."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaProducer
from tests.torture.ledger import OUTAGE_SECONDS, SECONDS, Ledger, Sent, value_of
from tests.torture.odd_writers import CONFIGS, OUTLIVE_POWER, OddWriter

PARTITIONS = 3
KEYS = 40
IN_FLIGHT = 3000
"""Unacknowledged records per writer; a pause begins there."""
SILENT = {
    "log_level": 0,
    "error_cb": lambda error: None,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 2000,
}


class Client:
    """A thread that works until it is stopped; what it raises is raised again by `check` and `stop`."""

    def __init__(self, work: Callable[[Client], None]) -> None:
        self.stopping = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._work = self._threads.submit(work, self)

    def check(self) -> None:
        if self._work.done():
            self._work.result()

    def stop(self) -> None:
        self.stopping.set()
        self._work.result(2 * SECONDS)
        self._threads.shutdown()


class Load:
    """One generation of topics and the clients that use them. `pause` lets everything under way come to an answer."""

    def __init__(
        self,
        bootstrap: str,
        ledger: Ledger,
        generation: int,
        seed: int,
        *,
        power: bool = False,
        others: bool = False,
        replicas: int = 1,
        few: bool = False,
    ) -> None:
        """power: power cuts are to come, so that nothing is written which one may take.

        others: a client that is not librdkafka writes, too (kafka-python, which leaves sockets open on the way).
        replicas: copies of each partition; of several each one's retention is its own.
        few: one topic with an idempotent writer and its readers is all there is.
        """
        self.bootstrap = bootstrap
        self.ledger = ledger
        self.random = random.Random(seed * 1000 + generation)
        self.prefix = f"g{generation}"
        self.replicas = replicas
        self.patience = OUTAGE_SECONDS if power or replicas > 1 else SECONDS
        self.running = threading.Event()
        self.idle = 0
        self.clients: list[Client] = []
        self.topics = {
            "exact": {},
            "cached": {"duramen.ack.durability": "page-cache"},
            "packed": {"segment.bytes": "1048576"},
        }
        self.odd = {kind: configs for kind, configs in CONFIGS.items() if not power or kind in OUTLIVE_POWER}
        if replicas > 1:
            del self.odd["passing"]
        self.topics |= self.odd
        if power:
            del self.topics["cached"]
        if others:
            self.topics["other"] = {}
        if few:
            self.topics, self.odd = {"exact": {}}, {}

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **SILENT})
        wanted = [
            NewTopic(f"{self.prefix}-{kind}", PARTITIONS, self.replicas, config=c) for kind, c in self.topics.items()
        ]
        for topic, future in admin.create_topics(wanted, request_timeout=SECONDS).items():
            future.result(SECONDS)
            self.ledger.created[topic] = time.monotonic()
        self.running.set()
        self._client(self._confluent("exact", {"enable.idempotence": True}))
        if "cached" in self.topics:
            self._client(self._confluent("cached", {"enable.idempotence": True, "compression.type": "lz4"}))
        if "packed" in self.topics:
            packed = {"enable.idempotence": False, "acks": "all", "compression.type": "zstd"}
            self._client(self._confluent("packed", packed))
        if "other" in self.topics:
            self._client(self._kafka_python("other"))
        for kind in self.odd:
            self._client(self._odd(kind))
        for member in range(2):
            self._client(self._reader("exact", f"{self.prefix}-readers", member))
        if "packed" in self.topics:
            self._client(self._administrator)

    def _client(self, work: Callable[[Client], None]) -> None:
        self.clients.append(Client(work))

    def pause(self) -> None:
        """No new records from now on; returns when every record that was sent has its answer."""
        self.running.clear()
        deadline = time.monotonic() + self.patience
        while any(sent.sent > len(sent.acknowledged) + len(sent.lost) for sent in self._accounts()):
            for client in self.clients:
                client.check()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no answers for {self.patience} s: {[self._open(sent) for sent in self._accounts()]}"
                )
            time.sleep(0.005)

    def go_on(self) -> None:
        self.running.set()

    def stop(self) -> None:
        for client in self.clients:
            client.stopping.set()
        for client in self.clients:
            client.stop()

    def remove(self) -> None:
        """Delete this generation's topics: their files have to go as surely as records have to stay."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **SILENT})
        for kind in self.topics:
            self._delete(admin, f"{self.prefix}-{kind}")

    def _accounts(self) -> list[Sent]:
        return [sent for topic, sent in self.ledger.sent.items() if topic.startswith(f"{self.prefix}-")]

    def _open(self, sent: Sent) -> str:
        return f"{sent.topic} {sent.sent - len(sent.acknowledged) - len(sent.lost)} of {sent.sent}"

    def _account(self, kind: str, *, exactly_once: bool) -> Sent:
        topic = f"{self.prefix}-{kind}"
        return self.ledger.sent.setdefault(topic, Sent(topic, exactly_once))

    # -- writers

    def _confluent(self, kind: str, config: dict[str, Any]) -> Callable[[Client], None]:
        sent = self._account(kind, exactly_once=config["enable.idempotence"])

        def delivered(number: int) -> Callable[[KafkaError | None, Message], None]:
            def note(error: KafkaError | None, message: Message) -> None:
                with self.ledger.guard:
                    if error is None:
                        sent.acknowledged[number] = (message.partition(), message.offset(), time.monotonic())
                    else:
                        sent.lost.append(f"{number}: {error}")

            return note

        def work(client: Client) -> None:
            producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap, "linger.ms": 1, "message.timeout.ms": self.patience * 1000,
                    **SILENT, **config,
                }
            )  # fmt: skip
            while not client.stopping.is_set():
                busy = sent.sent - len(sent.acknowledged) - len(sent.lost)
                if self.running.is_set() and busy < IN_FLIGHT:
                    number = sent.sent
                    sent.sent += 1
                    producer.produce(
                        sent.topic, value_of(number), b"%d" % (number % KEYS), on_delivery=delivered(number)
                    )
                    producer.poll(0 if number % 32 else 0.002)
                else:
                    producer.poll(0.005)
            producer.flush(SECONDS)

        return work

    def _kafka_python(self, kind: str) -> Callable[[Client], None]:
        sent = self._account(kind, exactly_once=False)

        def work(client: Client) -> None:
            producer = KafkaProducer(
                bootstrap_servers=self.bootstrap, acks="all", linger_ms=2, retries=1000,
                reconnect_backoff_ms=20, reconnect_backoff_max_ms=100, retry_backoff_ms=20,
                delivery_timeout_ms=self.patience * 1000, request_timeout_ms=5000,
            )  # fmt: skip
            while not client.stopping.is_set():
                busy = sent.sent - len(sent.acknowledged) - len(sent.lost)
                if not self.running.is_set() or busy >= 200:
                    time.sleep(0.005)
                    continue
                number = sent.sent
                future = producer.send(sent.topic, value_of(number), b"%d" % (number % KEYS))
                sent.sent += 1
                future.add_callback(self._noted, sent, number)
                future.add_errback(lambda error, number=number: sent.lost.append(f"{number}: {error}"))
                time.sleep(0.001)
            producer.close(SECONDS)

        return work

    def _odd(self, kind: str) -> Callable[[Client], None]:
        writer = OddWriter(
            self.bootstrap, self.ledger, f"{self.prefix}-{kind}", PARTITIONS, self.random.getrandbits(32), self.patience
        )

        def work(client: Client) -> None:
            with writer.cluster:
                while not client.stopping.is_set():
                    if self.running.is_set():
                        writer.write()
                    time.sleep(0.005)

        return work

    def _noted(self, sent: Sent, number: int, metadata: Any) -> None:
        with self.ledger.guard:
            sent.acknowledged[number] = (metadata.partition, metadata.offset, time.monotonic())

    # -- readers

    def _reader(self, kind: str, group: str, member: int) -> Callable[[Client], None]:
        topic = f"{self.prefix}-{kind}"

        def work(client: Client) -> None:
            consumer = Consumer(
                {
                    "bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False,
                    "auto.offset.reset": "earliest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
                    "client.id": f"member-{member}", **SILENT,
                }
            )  # fmt: skip
            consumer.subscribe([topic])
            try:
                while not client.stopping.is_set():
                    self._step(consumer, group)
            finally:
                consumer.close()

        return work

    def _step(self, consumer: Consumer, group: str) -> None:
        """Read a little and commit it; the answer to the commit is a promise."""
        last: dict[tuple[str, int], int] = {}
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                last[message.topic(), message.partition()] = message.offset() + 1
        for (topic, partition), offset in last.items():
            key = (group, topic, partition)
            self.ledger.commits_tried[key] = max(self.ledger.commits_tried[key], offset)
            try:
                answers = consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
            except KafkaException:
                continue  # no answer, or no longer a member: no promise
            if answers is not None and all(answer.error is None for answer in answers):
                with self.ledger.guard:
                    self.ledger.commits[key].append((offset, time.monotonic()))

    # -- the administrator

    def _administrator(self, client: Client) -> None:
        """Topics that come and go, and records deleted on request, while everything else goes on."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **SILENT})
        number = 0
        while not client.stopping.wait(self.random.uniform(0.05, 0.3)):
            if not self.running.is_set():
                continue
            number += 1
            topic = f"{self.prefix}-brief-{number}"
            try:
                admin.create_topics([NewTopic(topic, 2, self.replicas)], request_timeout=2)[topic].result(3)
                self.ledger.created[topic] = time.monotonic()
                self._delete_records(admin, f"{self.prefix}-packed", self.random.randrange(PARTITIONS))
                if number % 8 == 0:
                    self._grow(admin, f"{self.prefix}-packed", PARTITIONS + number // 8)
                self._delete(admin, topic)
            except (KafkaException, TimeoutError):
                continue  # killed meanwhile: it may have happened or not

    def _delete(self, admin: AdminClient, topic: str) -> None:
        self.ledger.deleting.add(topic)
        try:
            admin.delete_topics([topic], request_timeout=2)[topic].result(3)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        self.ledger.deleted[topic] = time.monotonic()
        self.ledger.forget(topic)

    def _grow(self, admin: AdminClient, topic: str, count: int) -> None:
        admin.create_partitions([NewPartitions(topic, count)], request_timeout=2)[topic].result(3)
        self.ledger.partitions[topic] = (count, time.monotonic())

    def _delete_records(self, admin: AdminClient, topic: str, partition: int) -> None:
        place = (topic, partition)
        with self.ledger.guard:
            sent = self.ledger.sent[topic]
            known = [offset for where, offset, _ in sent.acknowledged.values() if where == partition]
        if len(known) < 100:
            return
        offset = sorted(known)[len(known) // 3]
        self.ledger.starts_tried[place] = max(self.ledger.starts_tried[place], offset)
        request = TopicPartition(topic, partition, offset)
        for answer in admin.delete_records([request], request_timeout=2).values():
            answer.result(3)
            self.ledger.starts[place].append((offset, time.monotonic()))
