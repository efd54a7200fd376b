"""Records of `__consumer_offsets`: committed offsets, classic groups and consumer groups.

The key's version tells what the record is about: 0 and 1 a committed offset, 2 a classic group, 3 to 8 and 16 a
consumer group (`consumer_groups.py`). Others belong to newer kinds of groups and come back as Unknown. A null value
deletes what the key names.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.errors import EncodeError
from duramen.wire.records import consumer_groups
from duramen.wire.records.versioned import Unknown, decode, encode, read_version
from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT32, INT64, STRING, UUID, Array, Field, Struct

OffsetCommitKey = Message(
    "OffsetCommitKey",
    "0-1",
    None,
    Field("group", STRING),
    Field("topic", STRING),
    Field("partition", INT32),
)

OffsetCommitValue = Message(
    "OffsetCommitValue",
    "0-4",
    4,
    Field("offset", INT64),
    Field("leader_epoch", INT32, "3+", default=-1, ignorable=True),
    Field("metadata", STRING),
    Field("commit_timestamp", INT64),
    Field("expire_timestamp", INT64, "1", default=-1, ignorable=True),
    Field("topic_id", UUID, "4+", tagged="4+", tag=0, ignorable=True),
)

GroupMetadataKey = Message(
    "GroupMetadataKey",
    "2-2",
    None,
    Field("group", STRING),
)

MemberMetadata = Struct(
    "MemberMetadata",
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "3+", nullable="3+", default=None, ignorable=True),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("rebalance_timeout", INT32, "1+", ignorable=True),
    Field("session_timeout", INT32),
    Field("subscription", BYTES),
    Field("assignment", BYTES),
)

GroupMetadataValue = Message(
    "GroupMetadataValue",
    "0-4",
    4,
    Field("protocol_type", STRING),
    Field("generation", INT32),
    Field("protocol", STRING, nullable="0+"),
    Field("leader", STRING, nullable="0+"),
    Field("current_state_timestamp", INT64, "2+", default=-1, ignorable=True),
    Field("members", Array(MemberMetadata)),
)

KEY_VERSIONS: Final = {
    "OffsetCommitKey": 1,
    "GroupMetadataKey": 2,
    **{key.name: kind for kind, (key, _) in consumer_groups.MESSAGES.items()},
}
"""The version in which each key is written: part of its identity for compaction, so it never changes."""

VALUE_VERSIONS: Final = {
    "OffsetCommitValue": 3,
    "GroupMetadataValue": 3,
    **{value.name: 0 for _, value in consumer_groups.MESSAGES.values()},
}
"""The version in which values are written unless told otherwise, which is what Kafka 4.3 writes."""

_MESSAGES: Final = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    **consumer_groups.MESSAGES,
}
_NAMES: Final = {0: "offset", 1: "offset", 2: "group"}
_BY_NAME: Final = {message.name: message for pair in _MESSAGES.values() for message in pair}


class OffsetsRecord(NamedTuple):
    """One decoded record. kind: "offset", "group", "consumer-group" or "unknown"; value: None for a tombstone."""

    kind: str
    key: Any
    value: Any


def encode_key(key: Any) -> bytes:
    """The bytes of a key of any of these kinds."""
    return _encode(key, KEY_VERSIONS, None)


def encode_value(value: Any, version: int | None = None) -> bytes:
    """The bytes of a value of any of these kinds."""
    return _encode(value, VALUE_VERSIONS, version)


def _encode(value: Any, versions: dict[str, int], version: int | None) -> bytes:
    name = type(value).__name__
    if name not in versions:
        raise EncodeError(f"{name} is none of {', '.join(versions)}")
    return encode(_BY_NAME[name], value, versions[name] if version is None else version)


def decode_record(key: Buffer, value: Buffer | None) -> OffsetsRecord:
    """The record as objects; a key or value of a newer kind becomes an Unknown in its place."""
    kind = read_version(key)
    if kind not in _MESSAGES:
        data = bytes(key)
        return OffsetsRecord("unknown", Unknown(kind, kind, data), None if value is None else bytes(value))
    of_key, of_value = _MESSAGES[kind]
    decoded = None if value is None else decode(of_value, value, kind)
    return OffsetsRecord(_NAMES.get(kind, "consumer-group"), decode(of_key, key), decoded)
