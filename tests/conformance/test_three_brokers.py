"""Three nodes, each broker and controller, partitions of one copy: any client, one address, one node killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tests.worlds.controller_trio import ControllerTrio
from tests.worlds.served_node import only_duramen

pytestmark = [pytest.mark.timeout(180), only_duramen]

WAIT_SECONDS = 40.0
SESSION_S = 3.0
BETWEEN_HEARTBEATS_S = 0.5
AT_ONCE_S = 1.5
"""It takes a tenth of that on a machine that has nothing else to do."""
QUIET = {"log_level": 0}
"""Clients that outlive a test look for its nodes, and say so."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerTrio]:
    trio = ControllerTrio(tmp_path_factory.mktemp("brokers"), {"offsets.topic.num.partitions": "6"})
    trio.form()
    trio.launch()
    try:
        for node in trio.nodes:
            node.says("is ready")
        yield trio
        trio.stop()  # which is clean
    finally:
        trio.kill()


def waited(what: Callable[[], Any]) -> Any:
    """What it returns, as soon as that is true."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Leaders by partition, as this node tells them; -1 without one."""
    described = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(topic, timeout=20).topics[topic]
    return {index: partition.leader for index, partition in described.partitions.items()}


def leaders_change(bootstrap: str, topic: str, after: dict[int, int], act: Callable[[], None]) -> float:
    """Seconds from this act until the node tells these leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.list_topics(topic, timeout=20)
    begun = time.monotonic()
    act()
    while {each: found.leader for each, found in partitions_of(admin, topic).items()} != after:
        assert time.monotonic() < begun + WAIT_SECONDS
        time.sleep(0.01)
    return time.monotonic() - begun


def partitions_of(admin: AdminClient, topic: str) -> dict[int, Any]:
    return admin.list_topics(topic, timeout=20).topics[topic].partitions


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    failed: list[Any] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []


def consumed(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **QUIET})
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + WAIT_SECONDS
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_partitions_are_spread_evenly_and_every_node_says_the_same(trio: ControllerTrio) -> None:
    create(trio.node(2).bootstrap, "spread", 12)
    told = [leaders(node.bootstrap, "spread") for node in trio.nodes]
    assert told[0] == told[1] == told[2]
    assert [list(told[0].values()).count(node) for node in (1, 2, 3)] == [4, 4, 4]


def test_any_client_works_with_one_address_and_groups_anywhere(trio: ControllerTrio) -> None:
    create(trio.node(1).bootstrap, "any", 6)
    values = [b"%d" % number for number in range(300)]
    produce(trio.node(3).bootstrap, "any", values)
    for number, node in enumerate(trio.nodes):
        assert sorted(consumed(node.bootstrap, "any", f"group-{number}", 300)) == sorted(values)
    python = KafkaProducer(bootstrap_servers=trio.node(2).bootstrap)
    for number in range(20):
        python.send("any", b"p%d" % number).get(20)
    python.close()
    reader = KafkaConsumer(
        "any",
        bootstrap_servers=trio.node(1).bootstrap,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=4000,
    )
    assert sum(1 for _ in reader) == 320
    reader.close()


def test_a_killed_node_s_partitions_wait_for_it_and_the_others_serve(trio: ControllerTrio) -> None:
    create(trio.node(1).bootstrap, "waits", 6)
    produce(trio.node(1).bootstrap, "waits", [b"%d" % number for number in range(120)])
    before = leaders(trio.node(1).bootstrap, "waits")
    killed = trio.node(2)
    left = {index: -1 if leader == 2 else leader for index, leader in before.items()}
    seconds = leaders_change(trio.node(1).bootstrap, "waits", left, killed.kill)
    assert seconds < AT_ONCE_S, "its session has ended, and only by that it was fenced"
    for node in (trio.node(1), trio.node(3)):
        waited(lambda node=node: leaders(node.bootstrap, "waits") == left)
    producer = Producer({"bootstrap.servers": trio.node(3).bootstrap, **QUIET})
    failed: list[Any] = []
    for index in (index for index, leader in left.items() if leader > 0):
        producer.produce("waits", b"meanwhile", partition=index, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(20) == 0
    assert [error for error in failed if error] == []
    killed.launch()
    waited(lambda: leaders(trio.node(1).bootstrap, "waits") == before)
    more = sum(1 for leader in left.values() if leader > 0)
    found = consumed(killed.bootstrap, "waits", "behind", 120 + more)
    assert sorted(found) == sorted([b"%d" % number for number in range(120)] + [b"meanwhile"] * more)


def test_a_stopped_node_keeps_what_it_leads_until_its_session_ends(trio: ControllerTrio) -> None:
    create(trio.node(1).bootstrap, "stops", 6)
    before = leaders(trio.node(1).bootstrap, "stops")
    active = trio.leader().leader_id
    stopped = next(node for node in trio.nodes if node.id != active)
    other = next(node for node in trio.nodes if node.id not in (active, stopped.id))
    left = {index: -1 if leader == stopped.id else leader for index, leader in before.items()}
    process = stopped.process
    assert process is not None
    try:
        stop = partial(process.send_signal, signal.SIGSTOP)
        assert leaders_change(other.bootstrap, "stops", left, stop) > SESSION_S - BETWEEN_HEARTBEATS_S - 0.1
    finally:
        process.send_signal(signal.SIGCONT)
    waited(lambda: leaders(other.bootstrap, "stops") == before)
