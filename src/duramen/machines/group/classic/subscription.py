"""Reads which topics a consumer subscribes to from its protocol metadata (ConsumerProtocolSubscription)."""

from __future__ import annotations

from collections.abc import Iterable
from struct import unpack_from
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

MOST_TOPICS: Final = 200_000
"""Of all members together, each counted: they are read while everybody waits, and a name takes two bytes or more."""


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all of these; None when that cannot be determined, or takes too long to find out."""
    found: set[str] = set()
    left = MOST_TOPICS
    for metadata in subscriptions:
        topics = subscribed_topics(metadata, left)
        if topics is None:
            return None
        found |= topics
        left -= unpack_from(">i", metadata, 2)[0]
    return frozenset(found)


def subscribed_topics(metadata: bytes, most: int = MOST_TOPICS) -> set[str] | None:
    """The topics of a subscription of any version; None when the bytes are no subscription, or one of more topics."""
    size = len(metadata)
    if size < 6:
        return None
    version, count = unpack_from(">hi", metadata)
    # Each name takes two bytes at least: a count beyond that is a lie and must not size anything.
    if version < 0 or not 0 <= count <= min((size - 6) // 2, most):
        return None
    position = 6
    topics: set[str] = set()
    for _ in range(count):
        if position + 2 > size:
            return None
        (length,) = unpack_from(">h", metadata, position)
        position += 2
        if length < 0 or position + length > size:
            return None
        try:
            topics.add(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return topics
