"""Transactions over three nodes: coordinator and leaders are not the same, and any of them dies at any moment."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.cluster_load import QUIET
from tests.worlds.controller_trio import ControllerTrio, ServedController, waited
from tests.worlds.served_node import only_duramen
from tests.worlds.transaction_load import COMMITTED, Transactions, values_of

pytestmark = [pytest.mark.timeout(300), only_duramen]

WAIT_SECONDS = 60.0
KILLS = 2
"""Of each kind; `make torture-exactly-once NODES=3` has 30 faults."""
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerTrio]:
    with ControllerTrio.formed(tmp_path_factory.mktemp("transactions"), SETTINGS) as trio:
        yield trio


@pytest.fixture
def trio(nodes: ControllerTrio) -> ControllerTrio:
    """Whole, whatever the test before has left."""
    nodes.whole()
    return nodes


def leaders(trio: ControllerTrio, topic: str) -> dict[int, int]:
    """The leader of each partition."""
    client = AdminClient({"bootstrap.servers": trio.bootstrap, **QUIET})
    return {
        index: part.leader for index, part in client.list_topics(topic, timeout=20).topics[topic].partitions.items()
    }


def create(trio: ControllerTrio, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": trio.bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, 2, 3) for topic in topics]).values():
        future.result(WAIT_SECONDS)
    trio.whole()


def check(trio: ControllerTrio, writer: Transactions, topics: list[str]) -> None:
    trio.whole()
    Producer({"bootstrap.servers": trio.bootstrap, "transactional.id": writer.id, **QUIET}).init_transactions(60)
    writer.check({topic: values_of(trio.nodes[0].bootstrap, topic, COMMITTED) for topic in topics})


def coordinators(trio: ControllerTrio) -> list[ServedController]:
    """Those who lead a partition of `__transaction_state`."""
    return [trio.node(each) for each in sorted(set(leaders(trio, "__transaction_state").values()))]


def test_markers_reach_every_node(trio: ControllerTrio) -> None:
    topics = ["far-a", "far-b"]
    create(trio, *topics)
    with Transactions(trio.bootstrap, topics, "far", 1) as writer:
        writer.goes_on(30)
    assert len(set(leaders(trio, "far-a").values()) | set(leaders(trio, "far-b").values())) > 1
    check(trio, writer, topics)


@pytest.mark.parametrize("who", ["coordinator", "leader", "any"])
def test_all_or_nothing_whoever_is_killed(trio: ControllerTrio, who: str) -> None:
    topics = [f"{who}-a", f"{who}-b"]
    create(trio, *topics)
    chance = random.Random(who)
    with Transactions(trio.bootstrap, topics, who, 2) as writer:
        for _ in range(KILLS):
            writer.goes_on()
            victims = {
                "coordinator": lambda: coordinators(trio),
                "leader": lambda: [trio.node(each) for each in leaders(trio, topics[0]).values()],
                "any": lambda: list(trio.nodes),
            }[who]()
            victim = chance.choice(victims)
            time.sleep(chance.random() / 10)
            victim.kill()
            writer.goes_on()
            trio.whole()
        writer.goes_on()
    check(trio, writer, topics)


def test_a_coordinator_that_dies_between_the_decision_and_the_markers(trio: ControllerTrio) -> None:
    """The leader of the partition is paused, so the markers cannot be written before the coordinator is dead."""
    create(trio, "paused")
    producer = Producer({"bootstrap.servers": trio.bootstrap, "transactional.id": "between", "linger.ms": 0, **QUIET})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("paused", b"x", partition=partition)
    producer.commit_transaction(WAIT_SECONDS)
    for node in trio.nodes:  # whoever coordinates it
        node.kill()
        trio.whole()
    waited(
        lambda: values_of(trio.nodes[0].bootstrap, "paused", COMMITTED) == [b"x", b"x"],
        "the markers were never written",
    )
