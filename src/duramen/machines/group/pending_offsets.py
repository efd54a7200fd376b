"""Offsets of transactions that are open: whose they are, and which of them will count when their marker comes.

The last *record* of a position counts, and not the last marker: the log's compaction goes by records, too. All records
come in the order of the log, so what is written after a pending offset supersedes it at once, and no committed offset
has to remember where it was written. The superseded one stays, without a value: its transaction is open all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from duramen.machines.group.commands import CommittedOffset

Position = tuple[str, int]
"""(topic, partition)"""


class PendingOffset(NamedTuple):
    """An offset of an open transaction. record: where it is in the log; committed: None where a later record counts."""

    record: int
    committed: CommittedOffset | None


class PendingOffsets:
    """Of one machine, by producer id: a producer has one transaction at a time."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[tuple[str, Position], PendingOffset]] = {}
        self._groups: dict[str, dict[Position, dict[int, None]]] = {}
        """Which producers have one of a position; nothing in it is empty."""

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def positions(self, group_id: str) -> dict[Position, dict[int, None]]:
        """The group's positions with pending offsets, and the producers; not to be changed by the caller."""
        return self._groups.get(group_id, {})

    def values(self, group_id: str) -> Iterator[tuple[Position, CommittedOffset]]:
        """What the group gets by the transactions that are open, if they commit."""
        for position, producers in self.positions(group_id).items():
            for producer_id in producers:
                committed = self._producers[producer_id][group_id, position].committed
                if committed is not None:
                    yield position, committed

    def add(self, producer_id: int, group_id: str, position: Position, pending: PendingOffset) -> None:
        """A producer has written an offset in its transaction."""
        self._producers.setdefault(producer_id, {})[group_id, position] = pending
        self._groups.setdefault(group_id, {}).setdefault(position, {})[producer_id] = None

    def supersede(self, group_id: str, position: Position, record: int) -> None:
        """The group has an offset of this position that is written in `record`: what was written before loses."""
        for producer_id in self._groups.get(group_id, {}).get(position, ()):
            offsets = self._producers[producer_id]
            if offsets[group_id, position].record < record:
                offsets[group_id, position] = offsets[group_id, position]._replace(committed=None)

    def drop(self, group_id: str, position: Position) -> None:
        """The position was removed from the group."""
        for producer_id in self._take(group_id, position):
            offsets = self._producers[producer_id]
            del offsets[group_id, position]
            if not offsets:
                del self._producers[producer_id]

    def end(self, producer_id: int) -> dict[tuple[str, Position], PendingOffset]:
        """The producer's transaction is over; what it has written, by group and position."""
        ended = self._producers.pop(producer_id, {})
        for group_id, position in ended:
            producers = self._groups[group_id][position]
            del producers[producer_id]
            if not producers:
                self._take(group_id, position)
        return ended

    def _take(self, group_id: str, position: Position) -> dict[int, None]:
        positions = self._groups.get(group_id, {})
        producers = positions.pop(position, {})
        if group_id in self._groups and not positions:
            del self._groups[group_id]
        return producers

    def snapshot(self) -> dict[int, dict[tuple[str, Position], PendingOffset]]:
        """A copy, to compare states by."""
        return {producer_id: dict(offsets) for producer_id, offsets in self._producers.items()}
