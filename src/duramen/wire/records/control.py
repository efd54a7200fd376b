"""Records of control batches: transaction markers, what the metadata quorum writes into its own log, and what closes
a stream or names its writer.

A control record's key is an i16 version (0) and an i16 type. The value of a transaction marker begins with an i16
version; the other messages have their version as their first field instead. Types from FIRST_OWN_TYPE on are ours: a
batch of them has no producer id, or Kafka would take it for a transaction's marker.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Packing
from typing import Any, Final

from duramen.errors import KafkaError
from duramen.ports import Buffer
from duramen.wire.batch import BatchHeader, build_batch, records
from duramen.wire.errors import DecodeError, EncodeError
from duramen.wire.records import versioned
from duramen.wire.records.versioned import Unknown
from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, UINT16, UUID, Array, Field, Struct


class ControlType(IntEnum):
    """What a control record says (ControlRecordType)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    WRITER_OPENED = 100
    STREAM_CLOSED = 101


FIRST_OWN_TYPE: Final = 100


EndTxnMarker = Message("EndTxnMarker", "0-0", None, Field("coordinator_epoch", INT32))

Voter = Struct(
    "Voter",
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID, "1+"),
)

LeaderChangeMessage = Message(
    "LeaderChangeMessage",
    "0-1",
    0,
    Field("version", INT16),
    Field("leader_id", INT32),
    Field("voters", Array(Voter)),
    Field("granting_voters", Array(Voter)),
)

SnapshotHeaderRecord = Message(
    "SnapshotHeaderRecord",
    "0-0",
    0,
    Field("version", INT16),
    Field("last_contained_log_timestamp", INT64),
)

SnapshotFooterRecord = Message("SnapshotFooterRecord", "0-0", 0, Field("version", INT16))

KRaftVersionRecord = Message(
    "KRaftVersionRecord",
    "0-0",
    0,
    Field("version", INT16),
    Field("k_raft_version", INT16),
)

WriterOpenedRecord = Message(
    "WriterOpenedRecord",
    "0-0",
    0,
    Field("version", INT16),
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("name", STRING),
)

StreamClosedRecord = Message("StreamClosedRecord", "0-0", 0, Field("version", INT16))

Endpoint = Struct(
    "Endpoint",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
)

KRaftVersionFeature = Struct(
    "KRaftVersionFeature",
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

QuorumVoter = Struct(
    "Voter",
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
    Field("endpoints", Array(Endpoint)),
    Field("k_raft_version_feature", KRaftVersionFeature),
)

VotersRecord = Message(
    "VotersRecord",
    "0-0",
    0,
    Field("version", INT16),
    Field("voters", Array(QuorumVoter)),
)

_KEY: Final = Packing(">hh")
_MESSAGES: Final = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
    ControlType.WRITER_OPENED: WriterOpenedRecord,
    ControlType.STREAM_CLOSED: StreamClosedRecord,
}


def encode_key(kind: ControlType) -> bytes:
    """The key of a control record."""
    return _KEY.pack(0, kind)


def decode_key(key: Buffer) -> int:
    """The type in a control record's key, as a number: it may be newer than ControlType. Newer keys may be longer."""
    if len(key) < _KEY.size:
        raise DecodeError(f"a control record's key of {len(key)} bytes")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise DecodeError(f"a control record's key of version {version}")
    number: int = kind
    return number


def encode_value(kind: ControlType, value: Any) -> bytes:
    """The value of a control record; but for a marker's, its message's own `version` field decides the version."""
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return versioned.encode(EndTxnMarker, value, 0)
    message = _MESSAGES[kind]
    if type(value).__name__ != message.name:
        raise EncodeError(f"{kind.name} holds a {message.name}, not a {type(value).__name__}")
    return message.encode(value, value.version)


def decode(key: Buffer, value: Buffer) -> tuple[int, Any]:
    """(type, message); the message is Unknown when its type or version is not declared."""
    kind = decode_key(key)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return kind, versioned.decode(EndTxnMarker, value, kind)
    version = versioned.read_version(value)
    try:
        message = _MESSAGES[ControlType(kind)]
    except ValueError:
        return kind, Unknown(kind, version, bytes(value))
    if not message.min_version <= version <= message.max_version:
        return kind, Unknown(kind, version, bytes(value))
    return kind, message.decode(value, version)


def type_of(batch: Buffer, header: BatchHeader) -> int:
    """The type of a control batch's first record; -1 where it cannot be read."""
    try:
        for record in records(batch, header, max_bytes=len(batch)):
            return -1 if record.key is None else decode_key(record.key)
    except (KafkaError, DecodeError):
        pass
    return -1


def build_own(kind: ControlType, value: Any, timestamp_ms: int) -> bytearray:
    """A control batch of ours, still without its place in a log."""
    return build_batch([(encode_key(kind), encode_value(kind, value), (), timestamp_ms)], control=True)


def writer_record(producer_id: int, name: str, timestamp_ms: int) -> bytearray:
    """The control batch that opens a log for one writer; producer_id -1: for nobody."""
    epoch = 0 if producer_id >= 0 else -1
    opened = WriterOpenedRecord.new(version=0, producer_id=producer_id, producer_epoch=epoch, name=name)
    return build_own(ControlType.WRITER_OPENED, opened, timestamp_ms)
