"""Records of `__cluster_metadata`: brokers, topics, partitions, configuration and producer ids (KIP-631, KIP-868).

A record's value is a frame: the varint 1 (the frame's version), the varint of its type, the varint of its version, and
the message. There are no keys.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.errors import DecodeError, EncodeError
from duramen.wire.records.versioned import Unknown
from duramen.wire.runtime import read_uvarint, uvarint
from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16, UUID, Array, Field, Struct

FRAME_VERSION: Final = 1

BrokerEndpoint = Struct(
    "BrokerEndpoint",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
    Field("security_protocol", INT16),
)

BrokerFeature = Struct(
    "BrokerFeature",
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

RegisterBrokerRecord = Message(
    "RegisterBrokerRecord",
    "0-4",
    0,
    Field("broker_id", INT32),
    Field("is_migrating_zk_broker", BOOL, "2+"),
    Field("incarnation_id", UUID),
    Field("broker_epoch", INT64),
    Field("end_points", Array(BrokerEndpoint)),
    Field("features", Array(BrokerFeature)),
    Field("rack", STRING, nullable="0+"),
    Field("fenced", BOOL, default=True),
    Field("in_controlled_shutdown", BOOL, "1+"),
    Field("log_dirs", Array(UUID), "3+", tagged="3+", tag=0),
    Field("cordoned_log_dirs", Array(UUID), "4+", nullable="4+", tagged="4+", tag=1, default=None),
)

UnregisterBrokerRecord = Message(
    "UnregisterBrokerRecord",
    "0-0",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64),
)

TopicRecord = Message(
    "TopicRecord",
    "0-0",
    0,
    Field("name", STRING),
    Field("topic_id", UUID),
)

PartitionRecord = Message(
    "PartitionRecord",
    "0-2",
    0,
    Field("partition_id", INT32, default=-1),
    Field("topic_id", UUID),
    Field("replicas", Array(INT32)),
    Field("isr", Array(INT32)),
    Field("removing_replicas", Array(INT32)),
    Field("adding_replicas", Array(INT32)),
    Field("leader", INT32, default=-1),
    Field("leader_recovery_state", INT8, tagged="0+", tag=0),
    Field("leader_epoch", INT32, default=-1),
    Field("partition_epoch", INT32, default=-1),
    Field("directories", Array(UUID), "1+"),
    Field("eligible_leader_replicas", Array(INT32), "2+", nullable="2+", tagged="2+", tag=1, default=None),
    Field("last_known_elr", Array(INT32), "2+", nullable="2+", tagged="2+", tag=2, default=None),
)

ConfigRecord = Message(
    "ConfigRecord",
    "0-0",
    0,
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
)

PartitionChangeRecord = Message(
    "PartitionChangeRecord",
    "0-2",
    0,
    Field("partition_id", INT32, default=-1),
    Field("topic_id", UUID),
    Field("isr", Array(INT32), nullable="0+", tagged="0+", tag=0, default=None),
    Field("leader", INT32, tagged="0+", tag=1, default=-2),
    Field("replicas", Array(INT32), nullable="0+", tagged="0+", tag=2, default=None),
    Field("removing_replicas", Array(INT32), nullable="0+", tagged="0+", tag=3, default=None),
    Field("adding_replicas", Array(INT32), nullable="0+", tagged="0+", tag=4, default=None),
    Field("leader_recovery_state", INT8, tagged="0+", tag=5, default=-1),
    Field("directories", Array(UUID), "1+", nullable="1+", tagged="1+", tag=8, default=None),
    Field("eligible_leader_replicas", Array(INT32), "2+", nullable="2+", tagged="2+", tag=6, default=None),
    Field("last_known_elr", Array(INT32), "2+", nullable="2+", tagged="2+", tag=7, default=None),
)

RemoveTopicRecord = Message("RemoveTopicRecord", "0-0", 0, Field("topic_id", UUID))

FeatureLevelRecord = Message(
    "FeatureLevelRecord",
    "0-0",
    0,
    Field("name", STRING),
    Field("feature_level", INT16),
)

ProducerIdsRecord = Message(
    "ProducerIdsRecord",
    "0-0",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64, default=-1),
    Field("next_producer_id", INT64),
)

BrokerRegistrationChangeRecord = Message(
    "BrokerRegistrationChangeRecord",
    "0-3",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64),
    Field("fenced", INT8, tagged="0+", tag=0),
    Field("in_controlled_shutdown", INT8, "1+", tagged="1+", tag=1),
    Field("log_dirs", Array(UUID), "2+", tagged="2+", tag=2),
    Field("cordoned_log_dirs", Array(UUID), "3+", nullable="3+", tagged="3+", tag=3, default=None),
)

NoOpRecord = Message("NoOpRecord", "0-0", 0)

BeginTransactionRecord = Message(
    "BeginTransactionRecord",
    "0-0",
    0,
    Field("name", STRING, nullable="0+", tagged="0+", tag=0, default=None),
)

EndTransactionRecord = Message("EndTransactionRecord", "0-0", 0)

AbortTransactionRecord = Message(
    "AbortTransactionRecord",
    "0-0",
    0,
    Field("reason", STRING, nullable="0+", tagged="0+", tag=0, default=None),
)

TYPES: Final = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    9: RemoveTopicRecord,
    12: FeatureLevelRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    20: NoOpRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
}
"""Declared record types by number."""

_NUMBERS: Final = {message.name: number for number, message in TYPES.items()}


class MetadataRecord(NamedTuple):
    """A decoded record: its type's name ("TopicRecord", or "Unknown") and its message."""

    kind: str
    value: Any


def encode_value(value: Any, version: int | None = None) -> bytes:
    """The frame of one record, in its newest version unless told otherwise."""
    number = _NUMBERS.get(type(value).__name__)
    if number is None:
        raise EncodeError(f"{type(value).__name__} is no metadata record")
    message = TYPES[number]
    chosen = message.max_version if version is None else version
    return uvarint(FRAME_VERSION) + uvarint(number) + uvarint(chosen) + message.encode(value, chosen)


def decode(data: Buffer) -> MetadataRecord:
    """(type name, message); Unknown for types and versions that are not declared. DecodeError for anything else."""
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        frame, position = read_uvarint(view, 0)
        if frame != FRAME_VERSION:
            raise DecodeError(f"a metadata record in a frame of version {frame}")
        number, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except IndexError as error:
        raise DecodeError(f"a metadata record of {len(view)} bytes is truncated") from error
    message = TYPES.get(number)
    if message is None or not message.min_version <= version <= message.max_version:
        return MetadataRecord("Unknown", Unknown(number, version, bytes(view)))
    return MetadataRecord(message.name, message.decode(view, version, position))
