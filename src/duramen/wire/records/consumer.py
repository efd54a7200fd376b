"""The protocol that classic consumers speak with each other inside JoinGroup and SyncGroup: what they subscribe to and
what they are assigned. To the broker both are opaque, but for the topics: `machines.group.classic.subscription`."""

from __future__ import annotations

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
