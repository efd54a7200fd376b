"""The nouns every layer shares: topics, partitions, ids, and what stands for none.

Offsets, epochs and times are plain ints on purpose: the hot path handles hundreds of thousands a second. An offset is a
record's position in its partition, from 0; a leader epoch grows by at least one whenever a partition's leader starts
anew; a time counts milliseconds, that of day from 1970-01-01T00:00Z.
"""

from __future__ import annotations

import base64
import hashlib
from typing import NamedTuple

TopicId = bytes
"""A topic's UUID as its 16 raw bytes: it tells a re-created topic from its predecessor (KIP-516)."""

NO_TOPIC_ID: TopicId = bytes(16)
METADATA_TOPIC_ID: TopicId = bytes(15) + b"\x01"
"""Kafka reserves this id for `__cluster_metadata` (Uuid.METADATA_TOPIC_ID)."""

METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SINK_STATE_TOPIC = "__duramen_sink_state"
STAGING_TOPIC = "__duramen_staging"
INTERNAL_TOPICS = frozenset({METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SINK_STATE_TOPIC, STAGING_TOPIC})
STATE_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SINK_STATE_TOPIC, STAGING_TOPIC})
"""Coordinators keep their state in them, and find it by the number of partitions, which stays what it was at birth."""
SINK_TOPICS = frozenset({SINK_STATE_TOPIC, STAGING_TOPIC})
"""What is committed may be in nothing but these: they keep the shape they were born with, and are not deleted."""
UNREADABLE_TOPICS = frozenset({METADATA_TOPIC, STAGING_TOPIC})
"""No client reads them, whatever it knows of them: the cluster's own log, and records that are not committed."""

FIRST_NAMED_PRODUCER_ID = 1 << 61
"""Producer ids from here on are made from writers' names; any client may write with them, and no coordinator gives them
away.
"""
FIRST_SINK_PRODUCER_ID = 1 << 62
"""Producer ids from here on belong to sinks: given by the coordinator, refused from clients."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1


def named_producer_id(name: str) -> int:
    """The producer id of a named writer: 61 bits of its name's SHA-256."""
    return FIRST_NAMED_PRODUCER_ID | int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 3


def is_named(producer_id: int) -> bool:
    """Whether the id is a named writer's, whose batches have one sequence each, however many records they hold."""
    return FIRST_NAMED_PRODUCER_ID <= producer_id < FIRST_SINK_PRODUCER_ID


MOST_ID_CHARACTERS = 4_096
"""Of the ids that clients make up for groups, members and transactions; the protocol's strings have 32,767 bytes. What
a coordinator keeps of them is bounded in number: with this it is in bytes, too. Kafka's clients make ids of 36.
"""


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_id_text(topic_id: TopicId) -> str:
    """The id as Kafka prints it: URL-safe base64 of the 16 bytes without padding (22 characters)."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def topic_id_from_text(text: str) -> TopicId:
    """Inverse of `topic_id_text`; raises ValueError unless it names exactly 16 bytes."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"a topic id is 16 bytes, {text!r} holds {len(raw)}")
    return raw


LogKey = tuple[TopicId, int]
