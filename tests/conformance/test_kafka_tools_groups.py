"""kafka-groups.sh, kafka-consumer-groups.sh and kafka-features.sh for groups of both protocols, as Kafka 4.3.1 answers.

Java's own consumer of the new protocol (KIP-848) is here, too. Every call is a JVM, so the usual run has one of them;
DURAMEN_ALL_TOOLS=1 (`make conformance-kafka-tools`) has all.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.kafka_peer import CONSUMER_GROUPS, TOOL_FLAGS, java_command, tool
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.kafka_tables import SECONDS, run
from tests.worlds.served_node import Served

TOOLS = "org.apache.kafka.tools."
GROUPS = TOOLS + "GroupsCommand"
FEATURES = TOOLS + "FeatureCommand"
CONSOLE_CONSUMER = TOOLS + "consumer.ConsoleConsumer"
VERIFIABLE_CONSUMER = TOOLS + "VerifiableConsumer"
TOPIC = "of-both-groups"
PROTOCOLS = {"classic": "Classic", "consumer": "Consumer"}
"""group.protocol, and the type of such a group."""
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
heavy = pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]
MODERN, CLASSIC = ("--describe", "--group", "full-consumer"), ("--describe", "--group", "full-classic")
OFFSETS = r"GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID\n"
STATE = r"GROUP COORDINATOR \(ID\) ASSIGNMENT-STRATEGY STATE "
MEMBERS = r"GROUP CONSUMER-ID HOST CLIENT-ID #PARTITIONS "
EPOCHS = r"CURRENT-EPOCH CURRENT-ASSIGNMENT TARGET-EPOCH TARGET-ASSIGNMENT\n"
BOTH = rf"{TOPIC}:0,1"
SHORT = "members"
CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "groups": (GROUPS, ("--list",), r"^GROUP TYPE PROTOCOL\n(?s:.*)full-classic Classic consumer"),
    "consumer groups": (GROUPS, ("--list", "--group-type", "consumer"), r"full-consumer Consumer consumer"),
    "states": (
        CONSUMER_GROUPS,
        ("--list", "--state"),
        r"(?s:(?=.*full-consumer Stable)(?=.*left-consumer Empty).*left-classic Empty)",
    ),
    "types": (
        CONSUMER_GROUPS,
        ("--list", "--type", "classic"),
        r"^GROUP TYPE\n(?!(?s:.*)Consumer)(?s:.*)full-classic Classic",
    ),
    "offsets": (CONSUMER_GROUPS, MODERN, OFFSETS + rf"full-consumer {TOPIC} 0 5 5 0 \S+ /127\.0\.0\.1 it\n"),
    "members": (
        CONSUMER_GROUPS,
        (*MODERN, "--members", "--verbose"),
        (MEMBERS + EPOCHS + rf"full-consumer \S+ /127\.0\.0\.1 it 2 (\d+) {BOTH} \1 {BOTH}"),
    ),
    "state": (
        CONSUMER_GROUPS,
        (*MODERN, "--state"),
        (STATE + r"#MEMBERS\nfull-consumer \S+ \(1\) uniform Stable 1"),
    ),
    "epochs": (
        CONSUMER_GROUPS,
        (*MODERN, "--state", "--verbose"),
        (STATE + r"GROUP-EPOCH TARGET-ASSIGNMENT-EPOCH #MEMBERS\nfull-consumer \S+ \(1\) uniform Stable (\d+) \1 1"),
    ),
    "classic offsets": (
        CONSUMER_GROUPS,
        CLASSIC,
        (OFFSETS + rf"full-classic {TOPIC} 0 5 5 0 it-\S+ /127\.0\.0\.1 it\n"),
    ),
    "classic members": (
        CONSUMER_GROUPS,
        (*CLASSIC, "--members", "--verbose"),
        (MEMBERS + EPOCHS + rf"full-classic it-\S+ /127\.0\.0\.1 it 2 - {BOTH} - -"),
    ),
    "classic state": (
        CONSUMER_GROUPS,
        (*CLASSIC, "--state", "--verbose"),
        r"full-classic \S+ \(1\) range Stable - - 1",
    ),
    "all": (
        CONSUMER_GROUPS,
        ("--describe", "--all-groups"),
        r"(?s:(?=.*full-classic)(?=.*left-classic)(?=.*left-consumer).*full-consumer)",
    ),
    "nobody": (
        CONSUMER_GROUPS,
        ("--describe", "--group", "left-consumer", "--members"),
        r"group 'left-consumer' has no active members",
    ),
    "reset while used": (
        CONSUMER_GROUPS,
        ("--reset-offsets", "--group", "full-consumer", "--topic", TOPIC, "--to-earliest", "--execute"),
        r"inactive, but the current state is Stable",
    ),
    "deleted while used": (
        CONSUMER_GROUPS,
        ("--delete", "--group", "full-consumer"),
        r"GroupNotEmptyException: The group is not empty",
    ),
    "offsets deleted while used": (
        CONSUMER_GROUPS,
        ("--delete-offsets", "--group", "full-consumer", "--topic", f"{TOPIC}:0"),
        r"GroupSubscribedToTopicException",
    ),
}


def create(node: Served, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(SECONDS)


def fill(node: Served, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(SECONDS) == 0


def member(node: Served, group: str, protocol: str, topic: str, count: int) -> Consumer:
    """It has read as many records and has committed that."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": group, "group.protocol": protocol, "client.id": "it",
         "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
    )  # fmt: skip
    consumer.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    while count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        count -= message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    return consumer


@pytest.fixture(scope="module")
def groups(node: Served) -> Iterator[None]:
    """Of each protocol one group with a member and one that everybody has left."""
    create(node, TOPIC)
    fill(node, TOPIC, 10)
    members = [member(node, f"full-{protocol}", protocol, TOPIC, 10) for protocol in PROTOCOLS]
    for protocol in PROTOCOLS:
        member(node, f"left-{protocol}", protocol, TOPIC, 10).close()
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(0.2):
            for each in members:
                each.poll(0)

    polling = threading.Thread(target=poll)
    polling.start()
    yield
    ended.set()
    polling.join()
    for each in members:
        each.close()


@pytest.mark.parametrize("case", CASES if ALL else [SHORT])
def test_groups(node: Served, groups: None, case: str) -> None:
    classname, words, told = CASES[case]
    text = run(classname, node, *words)
    assert re.search(told, text), text


@heavy
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_group_is_moved_and_deleted(node: Served, name: Callable[[str], str], protocol: str) -> None:
    group, topic = name("moved"), name("moved-of")
    create(node, topic)
    fill(node, topic, 10)
    member(node, group, protocol, topic, 10).close()
    reset = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0")
    assert re.search(rf"{group} {topic} 0 2", run(CONSUMER_GROUPS, node, *reset, "--to-offset", "2", "--execute"))
    told = run(CONSUMER_GROUPS, node, "--describe", "--group", group)
    assert re.search(OFFSETS + rf"{group} {topic} 0 2 5 3 - - -\n{group} {topic} 1 5 5 0 - - -", told)
    assert "Successful" in run(CONSUMER_GROUPS, node, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert f"('{group}') was successful" in run(CONSUMER_GROUPS, node, "--delete", "--group", group)
    assert "GroupIdNotFoundException" in run(CONSUMER_GROUPS, node, "--delete", "--group", group)
    assert group not in run(GROUPS, node, "--list").split()


@heavy
def test_features_of_transactions_and_groups(serve: Callable[..., Served]) -> None:
    node = serve()
    for feature, level in (("transaction.version", 2), ("group.version", 1)):
        told = run(FEATURES, node, "describe")
        assert re.search(
            rf"{feature}\s+SupportedMinVersion: 0\s+SupportedMaxVersion: {level}\s+FinalizedVersionLevel: {level}\s",
            told,
        )
        above = run(FEATURES, node, "upgrade", "--feature", f"{feature}={level + 1}", status=1)
        assert f"only supports versions 0-{level}" in above
        assert f"{feature} was downgraded to 0" in run(FEATURES, node, "downgrade", "--feature", f"{feature}=0")
        assert re.search(rf"{feature}\s.*FinalizedVersionLevel: 0\s", run(FEATURES, node, "describe"))
        assert f"{feature} was upgraded to {level}" in run(FEATURES, node, "upgrade", "--feature", f"{feature}={level}")


@heavy
def test_java_consumer_of_the_new_protocol_reads(node: Served, name: Callable[[str], str]) -> None:
    topic, group = name("read"), name("reads")
    create(node, topic)
    fill(node, topic, 20)
    how = ("--topic", topic, "--group", group, "--command-property", "group.protocol=consumer")
    console = (CONSOLE_CONSUMER, "--bootstrap-server", node.bootstrap, *how, "--max-messages")
    first = tool(*console, "20", "--from-beginning", timeout=SECONDS)
    assert sorted(map(int, first.stdout.split())) == list(range(20))
    fill(node, topic, 4)
    again = tool(*console, "4", timeout=SECONDS)
    assert sorted(map(int, again.stdout.split())) == list(range(4)), "it goes on where the group stood"
    assert re.search(rf"{group} Consumer consumer", run(GROUPS, node, "--list"))


@heavy
def test_two_java_members_of_the_new_protocol_share_though_the_node_is_killed(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    """Each record reaches one of them, in the order of its partition; none is skipped."""
    node = serve()
    create(node, "shared")
    members = []
    for number in range(2):
        words = ("--bootstrap-server", node.bootstrap, "--topic", "shared", "--group-id", "sharing")
        how = ("--group-protocol", "consumer", "--reset-policy", "earliest", "--verbose")
        with (tmp_path / f"{number}.log").open("wb") as log:
            command = java_command(VERIFIABLE_CONSUMER, *words, *how, flags=TOOL_FLAGS)
            members.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))

    def read() -> set[tuple[int, int]]:
        """Partition and offset of what either of them has been given."""
        shown = "".join((tmp_path / f"{number}.log").read_text() for number in range(2))
        events = re.findall(r'\{[^{}]*"name":"record_data"[^{}]*\}', shown)
        places = (re.search(r'"partition":(\d+).*"offset":(\d+)|"offset":(\d+).*"partition":(\d+)', e) for e in events)
        return {(int(m[1] or m[4]), int(m[2] or m[3])) for m in places if m is not None}

    def until(wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not wanted():
            assert time.monotonic() < deadline, (read(), (tmp_path / "0.log").read_text()[-3000:])
            time.sleep(0.2)

    def partitions(number: int) -> int:
        """How many it has now."""
        shown = (tmp_path / f"{number}.log").read_text()
        found = re.findall(r'"name":"partitions_(assigned|revoked)","partitions":\[(.*?)\]', shown)
        return sum((1 if what == "assigned" else -1) * listed.count('"topic"') for what, listed in found)

    try:
        until(lambda: partitions(0) == 1 and partitions(1) == 1)
        fill(node, "shared", 100)
        until(lambda: len(read()) == 100)
        node.kill()
        node.start()
        fill(node, "shared", 100)
        until(lambda: read() == {(partition, offset) for partition in range(2) for offset in range(100)})
        told = run(CONSUMER_GROUPS, node, "--describe", "--group", "sharing", "--state")
        assert re.search(r"sharing \S+ \(1\) uniform Stable 2", told), told
    finally:
        for each in members:
            each.kill()
            each.wait()
