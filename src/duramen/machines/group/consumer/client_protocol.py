"""What classic consumers put into JoinGroup and take out of SyncGroup, read and written by the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from duramen.machines.group.assignors import Owned
from duramen.machines.group.consumer.commands import TopicPartitions
from duramen.machines.group.consumer.topic_view import TopicView
from duramen.wire.errors import DecodeError
from duramen.wire.records.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from duramen.wire.records.versioned import encode, read_version


class Subscription(NamedTuple):
    """version: what the client's assignment is to be written in."""

    topics: frozenset[str]
    owned: TopicPartitions
    rack: str | None
    version: int


def read_subscription(metadata: bytes, view: TopicView) -> Subscription | None:
    """None for bytes that are no subscription. Topics that are gone are left out of what it says it has."""
    read = _read(ConsumerProtocolSubscription, metadata)
    if read is None:
        return None
    version, told = read
    return Subscription(frozenset(told.topics), _with_ids(told.owned_partitions, view), told.rack_id, version)


def read_assignment(data: bytes, view: TopicView) -> Owned | None:
    """None for bytes that are no assignment, or one of an assignor of the clients' own, whose fields would be lost."""
    if not data:
        return {}
    read = _read(ConsumerProtocolAssignment, data)
    if read is None or read[1].user_data:
        return None
    return dict(_with_ids(read[1].assigned_partitions, view))


def write_assignment(partitions: Iterable[tuple[bytes, Iterable[int]]], version: int, view: TopicView) -> bytes:
    """Topics that are gone are left out."""
    kind = ConsumerProtocolAssignment.TopicPartition
    named = [
        kind(topic=name, partitions=sorted(indexes))
        for topic_id, indexes in partitions
        if (name := view.name_of(topic_id)) is not None
    ]
    return encode(ConsumerProtocolAssignment, ConsumerProtocolAssignment.new(assigned_partitions=named), version)


def _read(message: Any, data: bytes) -> tuple[int, Any] | None:
    try:
        version = read_version(data)
        if version < 0:
            return None
        known = min(version, message.max_version)  # a newer one has the same fields first
        return known, message.decode(data, known, 2)
    except DecodeError:
        return None


def _with_ids(topics: Iterable[Any], view: TopicView) -> TopicPartitions:
    found: dict[bytes, tuple[int, ...]] = {}
    for each in topics:
        topic = view.topic(each.topic)
        if topic is not None and each.partitions:
            found[topic.id] = tuple(sorted({*found.get(topic.id, ()), *each.partitions}))
    return tuple(sorted(found.items()))
