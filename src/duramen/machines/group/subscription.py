"""Reads which topics a consumer subscribes to from its protocol metadata (ConsumerProtocolSubscription)."""

from __future__ import annotations

from struct import unpack_from
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics of a subscription of any version; None when the bytes are no subscription."""
    size = len(metadata)
    if size < 6:
        return None
    version, count = unpack_from(">hi", metadata)
    # Each name takes two bytes at least: a count beyond that is a lie and must not size anything.
    if version < 0 or not 0 <= count <= (size - 6) // 2:
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
