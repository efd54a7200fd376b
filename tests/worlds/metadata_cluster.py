"""A metadata machine behind a host whose log commits at once, and brokers that register and are heard."""

from __future__ import annotations

from typing import Any

from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.config import BrokerConfig
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import (
    TOPIC_RESOURCE,
    BeginCluster,
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreateTopics,
    Endpoint,
    MetadataMachine,
    NewTopic,
    RegisterBroker,
    Registered,
    SetConfigs,
    codec,
)
from duramen.machines.metadata.features import OFFERED
from duramen.model import TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.host.record_writer import RecordWriter


def topic_id(number: int) -> bytes:
    """An id, of a topic or whatever else has one."""
    return number.to_bytes(16, "big")


def registration(node_id: int = 1, incarnation: int = 7, directory: int | None = None, **more: Any) -> RegisterBroker:
    """Of a process; its log directory is its node's own unless it is said to be another one."""
    endpoints = (Endpoint("PLAINTEXT", "localhost", 9091 + node_id, 0),)
    home = topic_id(1000 + node_id if directory is None else directory)
    given = {"rack": "r", "features": (("metadata.version", 1, 30), *OFFERED[1:]), "directories": (home,), **more}
    return RegisterBroker(node_id, topic_id(incarnation), endpoints, **given)


def change(name: str, *operations: tuple[str, int, str | None], kind: int = TOPIC_RESOURCE, **more: Any) -> SetConfigs:
    """Settings of one resource."""
    return SetConfigs((ConfigChange(kind, name, tuple(ConfigOperation(*op) for op in operations), **more),))


def summary(machine: MetadataMachine) -> Any:
    """What a replay has to build again."""
    image = machine.image
    return (
        image.topics,
        image.brokers,
        image.configs,
        image.features,
        image.next_producer_id,
        image.partition_count,
        image.names(),
    )


class Cluster:
    """The active controller of node 1, and its log."""

    def __init__(self, config: BrokerConfig, *, register: bool = True) -> None:
        self.config = config
        self.clock = FakeClock()
        self.partition = FakePartition()
        self.partition.commit_at_once = True
        self.begin()
        self.ask(BeginCluster())
        if register:
            self.start()

    def begin(self, config: BrokerConfig | None = None, **options: Any) -> None:
        """Another controller, which has the log and nothing else; config: of its node."""
        if hasattr(self, "host"):
            self.host.close()
        self.machine = MetadataMachine(config or self.config)
        self.host = Host(self.partition, self.machine, self.clock, **options)
        self.host.load()

    @property
    def image(self) -> Any:
        return self.machine.image

    def ask(self, command: Any) -> Any:
        """The answer, which has to come at once."""
        answers: list[Any] = []
        self.host.submit(command, answers.append)
        assert len(answers) == 1
        return answers[0]

    def create(self, name: str, number: int = 1, **options: Any) -> Any:
        """One topic."""
        return self.ask(CreateTopics((NewTopic(name, topic_id(number), **options),)))[0]

    def write(self, *records: LogRecord) -> None:
        """Have records in the log that the machine has not decided."""
        RecordWriter(self.partition, self.machine, 1 << 20, 0).append(list(records), self.clock.wall_ms())

    def lay(self, name: str, *replicas: tuple[int, ...], number: int = 1) -> None:
        """A topic whose partitions have these replicas, all in sync, and are led by the first."""
        partitions = (codec.partition(topic_id(number), index, on, on, on[0]) for index, on in enumerate(replicas))
        self.write(codec.topic(name, topic_id(number)), *partitions)

    def start(self, node_id: int = 1, incarnation: int = 7, **more: Any) -> Any:
        """A process registers and is unfenced; what the registration was answered."""
        answers: list[Any] = []
        self.host.submit(registration(node_id, incarnation, **more), answers.append)
        self.clock.advance(0)
        (answer,) = answers
        if isinstance(answer, Registered):
            assert not self.beat(node_id).is_fenced
        return answer

    def beat(self, node_id: int, **wishes: bool) -> Any:
        """A heartbeat of a broker that has applied all that there is."""
        epoch = self.image.brokers[node_id].epoch
        return self.ask(BrokerHeartbeat(node_id, epoch, self.partition.log_end_offset - 1, **wishes))

    def state(self, topic: str, index: int = 0) -> tuple[int, int, tuple[int, ...]]:
        """Leader, leader epoch and in-sync replicas, as the log has them."""
        partition = self.image.partition(TopicPartition(topic, index))
        return partition.leader, partition.leader_epoch, partition.isr

    def leader(self, topic: str, index: int = 0) -> int:
        """Who leads now."""
        return self.image.leader(self.image.partition(TopicPartition(topic, index)))

    def replayed(self) -> MetadataMachine:
        """What a new machine makes of the log."""
        machine = MetadataMachine(self.config)
        host = Host(self.partition, machine, self.clock)
        host.load()
        host.close()
        return machine
