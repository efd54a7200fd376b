"""Makes and reads the records of `__cluster_metadata`, each as one call with plain arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, TransactionMarks
from duramen.machines.metadata.commands import RegisterBroker
from duramen.machines.metadata.image import (
    TOPIC_RESOURCE,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from duramen.wire.records import cluster_metadata as schema
from duramen.wire.records.control import ControlType, decode_key
from duramen.wire.records.versioned import Unknown
from duramen.wire.schema import Message

NO_LEADER_CHANGE: Final = -2
"""PartitionChangeRecord.leader when the leader stays; -1 would mean that there is none."""

_VERSIONS: Final = {"RegisterBrokerRecord": 3, "BrokerRegistrationChangeRecord": 2}
"""Versions written here where they are not the newest: cordoned directories (KIP-1066) are not used."""


def decode(record: LogRecord) -> tuple[str, Any]:
    """(name of the record's schema, message); "Unknown" for types that mean nothing here. CORRUPT_MESSAGE if none."""
    if record.value is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a metadata record has no value")
    return schema.decode(record.value)


def apply_control(image: MetadataImage, record: LogRecord) -> None:
    """Keep the newest control record of each type that a snapshot has to hand on."""
    if record.key is not None:
        kind = decode_key(record.key)
        if kind in (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS):
            image.quorum[kind] = record


def check_skippable(message: Any) -> None:
    """UNSUPPORTED_VERSION for a record type known here in a version that is not: it may say something that matters."""
    if isinstance(message, Unknown) and message.kind in schema.TYPES:
        name = schema.TYPES[message.kind].name
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{name} of version {message.version} in the metadata log")


def _record(message: Message, **fields: Any) -> LogRecord:
    return LogRecord(None, schema.encode_value(message.new(**fields), _VERSIONS.get(message.name)))


def register_broker(command: RegisterBroker, broker_epoch: int) -> LogRecord:
    """A broker that starts: it is fenced until it has applied this."""
    message = schema.RegisterBrokerRecord
    return _record(
        schema.RegisterBrokerRecord,
        broker_id=command.node_id,
        incarnation_id=command.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=[
            message.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in command.endpoints
        ],
        features=[
            message.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in command.features
        ],
        rack=command.rack,
        fenced=True,
        log_dirs=list(command.directories),
    )


def broker_state(broker: BrokerImage) -> LogRecord:
    """A registered broker as it is, for a snapshot."""
    message = schema.RegisterBrokerRecord
    return _record(
        schema.RegisterBrokerRecord,
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            message.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in broker.endpoints
        ],
        features=[
            message.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
    )


def broker_change(broker: BrokerImage, *, fenced: bool | None = None, stopping: bool = False) -> LogRecord:
    """A registered broker is fenced, or no longer, or it begins to stop. None: as it was."""
    return _record(
        schema.BrokerRegistrationChangeRecord,
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=0 if fenced is None else 1 if fenced else -1,
        in_controlled_shutdown=int(stopping),
    )


def unregister_broker(broker: BrokerImage) -> LogRecord:
    return _record(schema.UnregisterBrokerRecord, broker_id=broker.id, broker_epoch=broker.epoch)


def topic(name: str, topic_id: bytes) -> LogRecord:
    return _record(schema.TopicRecord, name=name, topic_id=topic_id)


def remove_topic(topic_id: bytes) -> LogRecord:
    return _record(schema.RemoveTopicRecord, topic_id=topic_id)


def partition(topic_id: bytes, index: int, replicas: Sequence[int], isr: Sequence[int], leader: int) -> LogRecord:
    """A partition's first record: both its epochs are 0."""
    return _record(
        schema.PartitionRecord,
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=list(isr),
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=[UNASSIGNED_DIRECTORY] * len(replicas),
    )


def partition_state(topic_id: bytes, index: int, partition: PartitionImage) -> LogRecord:
    """A partition as it is, for a snapshot."""
    return _record(
        schema.PartitionRecord,
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def partition_change(
    topic_id: bytes,
    index: int,
    *,
    leader: int = NO_LEADER_CHANGE,
    isr: Sequence[int] | None = None,
    directories: Sequence[bytes] | None = None,
) -> LogRecord:
    """What of a partition changes; the others stay. A leader, even the same one again, begins a new leader epoch."""
    return _record(
        schema.PartitionChangeRecord,
        partition_id=index,
        topic_id=topic_id,
        leader=leader,
        isr=None if isr is None else list(isr),
        directories=None if directories is None else list(directories),
    )


def leader_alone(topic_id: bytes, index: int, leader: int) -> LogRecord:
    """A leader from outside of the in-sync replicas, who becomes the only one of them."""
    return _record(
        schema.PartitionChangeRecord,
        partition_id=index,
        topic_id=topic_id,
        leader=leader,
        isr=[leader],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


def config(resource_type: int, resource_name: str, key: str, value: str | None) -> LogRecord:
    """One setting of one resource; value None removes it."""
    return _record(schema.ConfigRecord, resource_type=resource_type, resource_name=resource_name, name=key, value=value)


def topic_config(topic_name: str, key: str, value: str | None) -> LogRecord:
    return config(TOPIC_RESOURCE, topic_name, key, value)


def producer_ids(node_id: int, broker_epoch: int, next_producer_id: int) -> LogRecord:
    return _record(
        schema.ProducerIdsRecord, broker_id=node_id, broker_epoch=broker_epoch, next_producer_id=next_producer_id
    )


def feature(name: str, level: int) -> LogRecord:
    return _record(schema.FeatureLevelRecord, name=name, feature_level=level)


TRANSACTION_MARKS: Final = TransactionMarks(
    begin=_record(schema.BeginTransactionRecord, name="large change"),
    end=_record(schema.EndTransactionRecord),
    abort=_record(schema.AbortTransactionRecord, reason="the rest of the change could not be written"),
)
