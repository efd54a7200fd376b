"""Decides broker registrations, producer id blocks and leader elections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import (
    OK,
    AllocateProducerIds,
    BrokerStopping,
    ElectLeaders,
    ProducerIds,
    RegisterBroker,
    Registered,
    Result,
    SkipProducerIds,
)
from duramen.machines.metadata.image import BROKER_RESOURCE, NO_LEADER, MetadataImage, PartitionImage
from duramen.model import FIRST_SINK_PRODUCER_ID, TopicPartition

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids handed to a broker at once, as in Kafka."""
METADATA_VERSION: Final = ("metadata.version", 30)
"""The feature level a new log starts with: 4.3-IV0, the first whose records are written here."""
MIN_IN_SYNC: Final = "min.insync.replicas"
EVERY_BROKER: Final = ""
"""The name of the resource whose settings are every broker's."""

PREFERRED: Final = 0
UNCLEAN: Final = 1


def begin_cluster(image: MetadataImage, config: BrokerConfig) -> tuple[list[LogRecord], bool]:
    """Records that a log begins with, if it has none of them.

    They make the file's `min.insync.replicas` the cluster-wide setting, as Kafka does where leaders may be elected from
    eligible replicas (KIP-966): how many copies count is one answer, not one per node.
    """
    if image.features:
        return [], True
    fewest = str(config.integer(MIN_IN_SYNC))
    return [codec.feature(*METADATA_VERSION), codec.config(BROKER_RESOURCE, EVERY_BROKER, MIN_IN_SYNC, fewest)], True


def register(image: MetadataImage, command: RegisterBroker) -> tuple[list[LogRecord], Registered]:
    """Records of a start, and its broker epoch: the offset at which the registration itself will stand.

    Kafka leaves partitions without a leader when their last replica stops. The broker leads again those of which it
    holds everything that was committed (it was in sync, or eligible: KIP-966).
    """
    registered = Registered(image.next_offset)
    records = [codec.register_broker(command, registered.broker_epoch)]
    for name, index in _all_partitions(image):
        topic = image.topics[name]
        partition = topic.partitions[index]
        if partition.leader == NO_LEADER and command.node_id in (*partition.isr, *partition.elr):
            records.append(codec.new_leader(topic.id, index, command.node_id, unclean=not partition.isr))
    return records, registered


def stopping(image: MetadataImage, command: BrokerStopping) -> list[LogRecord]:
    """Records that fence a broker for a clean stop; KafkaError when it is not the one that is registered."""
    _check_epoch(image, command.node_id, command.broker_epoch)
    return [codec.broker_stopping(command.node_id, command.broker_epoch)]


def allocate(image: MetadataImage, command: AllocateProducerIds) -> tuple[list[LogRecord], ProducerIds]:
    """The record that uses up the next block, and the block."""
    _check_epoch(image, command.node_id, command.broker_epoch)
    first = image.next_producer_id
    if first > FIRST_SINK_PRODUCER_ID - PRODUCER_ID_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids.")
    record = codec.producer_ids(command.node_id, command.broker_epoch, first + PRODUCER_ID_BLOCK)
    return [record], ProducerIds(first, PRODUCER_ID_BLOCK)


def skip_producer_ids(image: MetadataImage, command: SkipProducerIds) -> tuple[list[LogRecord], None]:
    """The record behind which no id below `least` is handed out."""
    if command.least <= image.next_producer_id:
        return [], None
    return [codec.producer_ids(command.node_id, -1, command.least)], None


def _check_epoch(image: MetadataImage, node_id: int, broker_epoch: int) -> None:
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
    if broker.epoch != broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {node_id} registered again with epoch {broker.epoch}")


def elect(image: MetadataImage, command: ElectLeaders) -> tuple[list[LogRecord], list[tuple[str, int, Result]]]:
    """Records and one answer per partition; for the whole cluster only partitions that change are answered."""
    if command.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown election type {command.election_type}")
    records: list[LogRecord] = []
    answers: list[tuple[str, int, Result]] = []
    asked = _all_partitions(image) if command.partitions is None else iter(command.partitions)
    for name, index in asked:
        result = _elect_one(image, name, index, command.election_type, records)
        if command.partitions is not None or result.error != ErrorCode.ELECTION_NOT_NEEDED:
            answers.append((name, index, result))
    return records, answers


def _all_partitions(image: MetadataImage) -> Iterator[tuple[str, int]]:
    for name in image.names():
        for index in range(len(image.topics[name].partitions)):
            yield name, index


def _elect_one(image: MetadataImage, name: str, index: int, election_type: int, records: list[LogRecord]) -> Result:
    topic = image.topics.get(name)
    if topic is None:
        return Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = image.partition(TopicPartition(name, index))
    if partition is None:
        return Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if election_type == PREFERRED and partition.leader == partition.preferred_leader:
        return Result(ErrorCode.ELECTION_NOT_NEEDED, "The preferred leader leads already.")
    if election_type == UNCLEAN and partition.leader != NO_LEADER:
        return Result(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
    leader = _candidate(image, partition, election_type)
    if leader is None:
        if election_type == PREFERRED:
            return Result(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader is not available.")
        return Result(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica can become leader.")
    records.append(codec.new_leader(topic.id, index, leader, unclean=leader not in partition.isr))
    return OK


def _candidate(image: MetadataImage, partition: PartitionImage, election_type: int) -> int | None:
    def is_active(node_id: int) -> bool:
        broker = image.brokers.get(node_id)
        return broker is not None and broker.active

    if election_type == PREFERRED:
        node_id = partition.preferred_leader
        return node_id if is_active(node_id) and node_id in partition.isr else None
    alive = [node_id for node_id in partition.replicas if is_active(node_id)]
    return next((node_id for node_id in alive if node_id in partition.isr), alive[0] if alive else None)
