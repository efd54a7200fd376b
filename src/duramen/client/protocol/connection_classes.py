"""Which requests share a connection: answers come in the order of requests, so what may take long has its own."""

from __future__ import annotations

from enum import Enum, unique
from typing import Final

from duramen.client.protocol.fetch import FETCH
from duramen.client.protocol.produce import PRODUCE


@unique
class ConnectionClass(Enum):
    """What a connection is for."""

    CALLS = "calls"
    """Short requests: metadata, offsets, and whatever is not named below."""
    WRITES = "writes"
    """Produce and ConditionalAppend, whose answers wait for replicas and disks."""
    READS = "reads"
    """Fetches of what is there, whose answers are large."""
    WAITS = "waits"
    """Requests that the node may hold back for a while; one at a time on each connection."""


CONDITIONAL_APPEND: Final = 10031
_WRITES: Final = frozenset((PRODUCE, CONDITIONAL_APPEND))


def class_of(key: int, wait_s: float) -> ConnectionClass:
    """The class for an API's request that the node may hold back for `wait_s`."""
    if wait_s > 0:
        return ConnectionClass.WAITS
    if key == FETCH:
        return ConnectionClass.READS
    return ConnectionClass.WRITES if key in _WRITES else ConnectionClass.CALLS
