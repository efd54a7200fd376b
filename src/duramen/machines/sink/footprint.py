"""What the sinks of one machine take up: in the staging log, and of topics."""

from __future__ import annotations

from collections.abc import Collection

from duramen.machines.sink.state import Sink, Staged
from duramen.model import TopicId


def topics(sinks: Collection[Sink]) -> set[TopicId]:
    """Ids of all topics for whose partitions sequences are kept."""
    return {topic_id for sink in sinks for topic_id, _ in sink.sequences}


def needed_bytes(sinks: Collection[Sink]) -> int:
    """Bytes of the staging log that any of them may still read."""
    under_way = sum(share.bytes for sink in sinks for commit in sink.unfinished() for share in commit.shares)
    return under_way + sum(sink.staged_bytes for sink in sinks)


def oldest_staged(sinks: Collection[Sink]) -> tuple[str, int, Staged] | None:
    """Sink and handle whose records lie first in the staging log; None when others that are committed lie before."""
    places = ((staged.first_offset, sink.id, handle) for sink in sinks for handle, staged in sink.staged.items())
    first, sink_id, handle = min(places, default=(-1, "", -1))
    needed = (sink.oldest_needed() for sink in sinks)
    if first < 0 or first != min((offset for offset in needed if offset is not None), default=-1):
        return None
    return sink_id, handle, next(sink.staged[handle] for sink in sinks if sink.id == sink_id)
