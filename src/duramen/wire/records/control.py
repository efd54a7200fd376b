"""Records of control batches: transaction markers, and what the metadata quorum writes into its own log.

A control record's key is an i16 version (0) and an i16 type. The value of a transaction marker begins with an i16
version; the quorum's messages have their version as their first field instead.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Packing
from typing import Any, Final

from duramen.ports import Buffer
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
_QUORUM_MESSAGES: Final = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
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
    """The value of a control record; its message's own `version` field decides the version of the quorum's."""
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return versioned.encode(EndTxnMarker, value, 0)
    message = _QUORUM_MESSAGES[kind]
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
        message = _QUORUM_MESSAGES[ControlType(kind)]
    except ValueError:
        return kind, Unknown(kind, version, bytes(value))
    if not message.min_version <= version <= message.max_version:
        return kind, Unknown(kind, version, bytes(value))
    return kind, message.decode(value, version)
