"""The protocol that classic consumers speak with each other inside JoinGroup and SyncGroup: what they subscribe to and
what they are assigned. The broker reads it to describe groups and to tell which topics a group still uses."""

from __future__ import annotations

from typing import Any

from duramen.ports import Buffer
from duramen.wire.errors import DecodeError
from duramen.wire.records.versioned import VERSION, encode, read_version
from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT32, STRING, Array, Field, Struct

TopicPartition = Struct(
    "TopicPartition",
    Field("topic", STRING),
    Field("partitions", Array(INT32)),
)

ConsumerProtocolSubscription = Message(
    "ConsumerProtocolSubscription",
    "0-3",
    None,
    Field("topics", Array(STRING)),
    Field("user_data", BYTES, nullable="0+", default=None),
    Field("owned_partitions", Array(TopicPartition), "1+", ignorable=True),
    Field("generation_id", INT32, "2+", default=-1, ignorable=True),
    Field("rack_id", STRING, "3+", nullable="3+", default=None, ignorable=True),
)

ConsumerProtocolAssignment = Message(
    "ConsumerProtocolAssignment",
    "0-3",
    None,
    Field("assigned_partitions", Array(TopicPartition)),
    Field("user_data", BYTES, nullable="0+", default=None),
)


def encode_subscription(value: Any, version: int = 3) -> bytes:
    """A member's metadata for JoinGroup."""
    return encode(ConsumerProtocolSubscription, value, version)


def encode_assignment(value: Any, version: int = 3) -> bytes:
    """A member's assignment for SyncGroup."""
    return encode(ConsumerProtocolAssignment, value, version)


def decode_subscription(data: Buffer) -> Any:
    """A member's subscription; DecodeError when it is none (members of other protocol types send what they like)."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: Buffer) -> Any:
    """A member's assignment; DecodeError when it is none."""
    return _decode(ConsumerProtocolAssignment, data)


def _decode(message: Message, data: Buffer) -> Any:
    """Newer versions only append fields, so they are read as the newest known one and the rest is left alone."""
    version = read_version(data)
    if version < 0:
        raise DecodeError(f"{message.name} of version {version}")
    return message.decode_from(data, min(version, message.max_version), VERSION.size)[0]
