"""The controller: decides about metadata with the metadata machine on its log.

Shared by the server and by `duramen.open`: topics made in one are topics in the other. What is committed reaches the
partitions through the publisher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.commands import CreateTopics, DeleteTopics, NewTopic, TopicCreated, TopicRef
from duramen.machines.metadata.machine import MetadataMachine
from duramen.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    OFFSETS_TOPIC,
    SINK_STATE_TOPIC,
    SINK_TOPICS,
    TopicId,
    TopicPartition,
)
from duramen.partition.host.host import Host
from duramen.partition.metadata.directory_checks import check_metadata
from duramen.partition.metadata.metadata_repair import MetadataRepair
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.metadata.snapshots import Report, Snapshots
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.wire.batch import build_batch
from duramen.wire.records import control

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

SMALLEST_SEGMENT_BYTES = 1024 * 1024
"""Kafka accepts a smaller `offsets.topic.segment.bytes` for the broker than `segment.bytes` for a topic."""

SINK_SEGMENT_BYTES = 64 * 1024 * 1024
"""Of the sinks' topics: staged records are deleted by whole segments."""

METADATA_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""No setting for topics reaches the metadata log: a topic whose records went would be forgotten. Snapshots cut it."""

Created = Callable[["list[TopicCreated] | DuramenError"], None]


class Controller:
    """The metadata log of one node and the machine on it. Owned by the loop thread.

    publisher: gets what is committed. report(event, **fields): takes what an operator should see.
    """

    def __init__(self, world: World, store: Store, publisher: MetadataPublisher, node_id: int, report: Report) -> None:
        self._world = world
        self._store = store
        self._publisher = publisher
        self._node_id = node_id
        self._report = report
        self.machine = MetadataMachine(publisher.config)
        self.host: Host
        self._repair = MetadataRepair(store, publisher.closed_directories, publisher.readopted)
        publisher.on_reconfigured.append(self._reconfigured)
        publisher.withdraw_by(self._withdraw)

    # ---- start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the metadata log, and have the publisher open what it names."""
        publisher = self._publisher
        check_metadata(self._store.directories)
        config = _metadata_config(publisher.config)
        self.partition = partition = self._store.open_partition(METADATA_PARTITION, METADATA_TOPIC_ID, config)
        partition.lead(max(partition.log.epochs.latest + 1, 1), (self._node_id,), (self._node_id,))
        self.host = Host(partition, self.machine, self._world.clock)
        self._repair.find_losses(self._world.disk, self.machine, self._report)
        self._snapshots = Snapshots(
            self._world,
            self._store,
            partition,
            publisher.config,
            self._report,
            lambda: publisher.image,
            self._may_snapshot,
        )
        forgiving = self._repair.is_beginning_recorded(partition)
        self.host.load(self._snapshots.load(self.machine, forgiving=forgiving), self._repair.note_gap)
        self._snapshots.is_due = self._repair.found
        publisher.load(self.machine.image.copy())
        self.host.observers.append(self._committed)
        now = self._world.clock.wall_ms()
        opening = leader_change(self._node_id)
        end = partition.append_local(build_batch([(opening.key, opening.value, (), now)], control=True), now)
        self.machine.apply_control(opening, end - 1)
        publisher.reconfigure()
        self._repair.record_again(self.host, self.machine, self._node_id, now, self.new_topic)
        publisher.start(self.machine.removed)

    def _committed(self, records: list[LogRecord], end: int) -> None:
        self._publisher.publish(records, end)
        self._snapshots.committed(records)

    def _may_snapshot(self) -> bool:
        return self.host.failed is None and self._publisher.is_settled

    def _reconfigured(self, config: BrokerConfig) -> None:
        self.machine.config = config

    # ---- creating topics -------------------------------------------------------------------------------------

    def create(self, topics: list[NewTopic], done: Created) -> None:
        """Create topics with the broker's defaults where they leave something open; answers when they can be used."""
        config = self._publisher.config
        command = CreateTopics(
            tuple(topics),
            False,
            config.integer("num.partitions"),
            config.integer("default.replication.factor"),
        )
        self.submit(command, done)

    def submit(self, command: Any, done: Callable[[Any], None]) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed and its partitions are there."""
        publisher = self._publisher
        self.host.submit(
            command, lambda answer: publisher.when_published(lambda: done(publisher.with_creation_errors(answer)))
        )

    def _withdraw(self, topic_id: TopicId, done: Callable[[Any], None]) -> None:
        if self.host.failed is None:
            self.host.submit(DeleteTopics((TopicRef(None, topic_id),)), done)

    def new_topic(self, name: str, partitions: int = -1, configs: dict[str, str] | None = None) -> NewTopic:
        """A topic of this name; internal topics get the partitions and settings they are born with."""
        config = self._publisher.config
        settings: list[tuple[str, str | None]] = [*(configs or {}).items()]
        if name == OFFSETS_TOPIC:
            partitions = config.integer("offsets.topic.num.partitions")
            settings = [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(max(config.integer("offsets.topic.segment.bytes"), SMALLEST_SEGMENT_BYTES))),
            ]
        elif name in SINK_TOPICS:
            partitions = config.integer("duramen.sink.topic.num.partitions")
            settings = [
                ("compression.type", "producer"),
                ("message.timestamp.type", "CreateTime"),
                ("segment.bytes", str(SINK_SEGMENT_BYTES)),
            ]
            if name == SINK_STATE_TOPIC:
                settings.append(("cleanup.policy", "compact"))
            else:
                # Its records go when nothing needs them any more, which only the sinks' coordinator knows.
                settings += [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")]
        return NewTopic(name, self.new_uuid(), partitions, -1, (), tuple(settings))

    def new_uuid(self) -> bytes:
        """16 random bytes that Kafka accepts as an id: no dash first in text form, not one of the reserved few."""
        while True:
            raw = self._world.entropy.random_bytes(16)
            if raw[0] & 0xFC != 0xF8 and any(raw[:15]):
                return raw


def _metadata_config(config: BrokerConfig) -> TopicConfig:
    segments = {
        "segment.bytes": str(config.integer("metadata.log.segment.bytes")),
        "segment.ms": str(config.integer("metadata.log.segment.ms")),
    }
    return TopicConfig(config, METADATA_CONFIG | segments)


def leader_change(node_id: int) -> LogRecord:
    """The control record with which a quorum leader opens its epoch; its only voter is itself (KIP-595)."""
    voter = control.LeaderChangeMessage.Voter(voter_id=node_id)
    message = control.LeaderChangeMessage.new(version=0, leader_id=node_id, voters=[voter], granting_voters=[voter])
    kind = control.ControlType.LEADER_CHANGE
    return LogRecord(control.encode_key(kind), control.encode_value(kind, message))


def silent(event: str, **fields: Any) -> None:
    """A report that goes nowhere."""
