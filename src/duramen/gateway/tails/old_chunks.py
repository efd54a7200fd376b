"""Chunks of what lies far behind the ends of partitions, kept for all who read there. Pure.

A chunk is what one read from a position gave, where more followed: in a topic that is not compacted, and as long as
its partition has the same leader, nothing else will ever be there, but for what is truncated.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import NamedTuple

from duramen.dlsn import Dlsn
from duramen.gateway.tails.tail_page import TailPage


class ChunkKey(NamedTuple):
    """Whose chunk it is. leader_epoch: of the partition when it was read; another leader may have another history."""

    topic_id: bytes
    partition: int
    leader_epoch: int


class OldChunks:
    """The chunks of a gateway. max_bytes: of all together; what was not used for longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[ChunkKey, int], TailPage] = OrderedDict()
        self._starts: dict[ChunkKey, list[int]] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: ChunkKey, position: Dlsn) -> TailPage | None:
        """What lies after the position, where a chunk has that and shows that the position is of its history."""
        starts = self._starts.get(key, [])
        at = bisect_right(starts, position.offset)
        if not at:
            return None
        place = (key, starts[at - 1])
        chunk = self._kept[place]
        if position.offset >= chunk.position.offset or not _has(chunk, position):
            return None
        self._kept.move_to_end(place)
        return chunk.after(position)

    def add(self, key: ChunkKey, chunk: TailPage) -> None:
        """Keep a chunk; one from the same start goes."""
        place = (key, chunk.start.offset)
        if place in self._kept:
            self._drop(place)
        self._kept[place] = chunk
        insort(self._starts.setdefault(key, []), chunk.start.offset)
        chunk.grown = self._grow
        self._grow(chunk.weight)

    def truncate(self, key: ChunkKey, log_start: int) -> None:
        """What lies before the start of the log is no more."""
        for start in [start for start in self._starts.get(key, []) if start < log_start]:
            self._drop((key, start))

    def _grow(self, by: int) -> None:
        self.held_bytes += by
        while self.held_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: tuple[ChunkKey, int]) -> None:
        key, start = place
        chunk = self._kept.pop(place)
        chunk.grown = None
        self.held_bytes -= chunk.weight
        starts = self._starts[key]
        starts.remove(start)
        if not starts:
            del self._starts[key]


def _has(chunk: TailPage, position: Dlsn) -> bool:
    """Whether the record that the position names, or is behind, is in the chunk, or the chunk begins there."""
    if position == chunk.start:
        return True
    named = chunk.page.at(position.offset - 1 if position.slot else position.offset)
    return named is not None and (named.leader_epoch, named.base_offset) == (position.leader_epoch, position.entry)
