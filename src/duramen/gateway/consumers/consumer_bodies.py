"""Bodies of requests to a consumer, and of their answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.model import TopicPartition

PARTITIONS_MAX: Final = 10_000
PATTERN_LENGTH_MAX: Final = 1000
METADATA_LENGTH_MAX: Final = 4096
"""Characters: Kafka's offset.metadata.max.bytes."""

_Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Partitions = msgspec.Meta(max_length=PARTITIONS_MAX)


class ConsumerMade(msgspec.Struct):
    """A new consumer. base_uri: where it is."""

    instance_id: str
    base_uri: str


class NamedPartition(msgspec.Struct, forbid_unknown_fields=True):
    """A partition by its names."""

    topic: _Topic
    partition: _Partition


class NamedPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """Several."""

    partitions: Annotated[list[NamedPartition], _Partitions]


class WantedSubscription(msgspec.Struct, forbid_unknown_fields=True):
    """Topics by name, or topic_pattern: a regular expression that their whole names match."""

    topics: Annotated[list[_Topic], _Partitions] | None = None
    topic_pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_LENGTH_MAX)] | None = None


class SubscribedTopics(msgspec.Struct):
    """The topics that a consumer has subscribed to; with a pattern, those that it reads now."""

    topics: list[str]


class WantedOffset(msgspec.Struct, forbid_unknown_fields=True):
    """An offset in a partition. metadata: what is kept beside a committed one."""

    topic: _Topic
    partition: _Partition
    offset: Annotated[int, msgspec.Meta(ge=-1, lt=(1 << 63) - 1)]
    metadata: Annotated[str, msgspec.Meta(max_length=METADATA_LENGTH_MAX)] | None = None


class WantedOffsets(msgspec.Struct, forbid_unknown_fields=True):
    """Several."""

    offsets: Annotated[list[WantedOffset], _Partitions]


class ConsumerOffset(msgspec.Struct):
    """Where a group goes on in a partition."""

    topic: str
    partition: int
    offset: int
    metadata: str


class ConsumerOffsets(msgspec.Struct):
    """Of the partitions that were asked for and have one."""

    offsets: list[ConsumerOffset]


class ConsumedRecord(msgspec.Struct):
    """A record. key, value: base64 in the binary format, JSON in the JSON format; null for none."""

    topic: str
    key: msgspec.Raw
    value: msgspec.Raw
    partition: int
    offset: int


_PARTITIONS: Final = msgspec.json.Decoder(NamedPartitions)
_SUBSCRIPTION: Final = msgspec.json.Decoder(WantedSubscription)
_OFFSETS: Final = msgspec.json.Decoder(WantedOffsets)


def partitions_of(body: bytes) -> list[TopicPartition]:
    """The partitions that a body names, each once. Problem 400."""
    given = decoded_json(body, _PARTITIONS, "body")
    return list(dict.fromkeys(TopicPartition(each.topic, each.partition) for each in given.partitions))


def subscription_of(body: bytes) -> WantedSubscription:
    """The subscription in a body. Problem 400, 409."""
    given = decoded_json(body, _SUBSCRIPTION, "body")
    if given.topics and given.topic_pattern:
        raise ProblemError(
            409,
            "consumer-state",
            "Subscription to topics, partitions and pattern are mutually exclusive: give topics or topic_pattern.",
        )
    if not given.topics and not given.topic_pattern:
        raise bad_request("topics", "it names topics, or topic_pattern has an expression; DELETE ends a subscription")
    return given


def offsets_of(body: bytes) -> dict[TopicPartition, WantedOffset]:
    """The offsets in a body, by partition. Problem 400."""
    given = decoded_json(body, _OFFSETS, "body")
    found = {TopicPartition(each.topic, each.partition): each for each in given.offsets}
    if len(found) < len(given.offsets):
        raise bad_request("offsets", "a partition is named twice")
    return found


def named(tps: Iterable[TopicPartition]) -> NamedPartitions:
    """Partitions as they are sent, by name."""
    return NamedPartitions([NamedPartition(tp.topic, tp.partition) for tp in sorted(tps)])
