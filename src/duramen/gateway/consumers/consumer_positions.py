"""What one consumer reads, and how far it is: its assignment, its positions, and what of them is committed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

UNKNOWN: Final = -1
"""The position of a partition that waits for a seek."""


class ConsumerPositions:
    """The state of one consumer, whose requests come one after the other.

    A position is the offset of the next record that is answered, or UNKNOWN. It moves when an answer has been sent, and
    never before, so what was not sent is read again.
    """

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, int] = {}
        """In the order in which they are read next."""
        self._committed: dict[TopicPartition, int] = {}
        """As far as this consumer knows."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """What is read."""
        return self._positions.keys()

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The offset of the next record of each partition; those that are to be read first come first."""
        return dict(self._positions)

    @property
    def uncommitted(self) -> Mapping[TopicPartition, int]:
        """Positions that are not known to be committed."""
        return {
            tp: offset for tp, offset in self._positions.items() if offset not in (UNKNOWN, self._committed.get(tp))
        }

    def replace(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from now on. Those that are read already stay where they are."""
        self._positions = {tp: self._positions.get(tp, offset) for tp, offset in positions.items()}
        self._committed = {tp: offset for tp, offset in self._committed.items() if tp in self._positions}

    def missing(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that have no position here."""
        return [tp for tp in wanted if tp not in self._positions]

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on at these offsets. Problem 404 for a partition that is not read, and then none is moved."""
        self.check(offsets)
        self._positions.update(offsets)

    def check(self, wanted: Iterable[TopicPartition]) -> None:
        """Problem 404 for a partition that is not read."""
        for tp in self.missing(wanted):
            raise ProblemError(404, "no-such-partition", f"{tp} is not assigned to this consumer.")

    def answered(self, moved: Mapping[TopicPartition, int]) -> None:
        """Records in front of these offsets were sent. Other partitions have their turn first the next time."""
        for tp, offset in moved.items():
            if tp in self._positions:
                del self._positions[tp]
                self._positions[tp] = offset

    def passed_over(self, tp: TopicPartition) -> None:
        """Nothing can be sent of this partition: others have their turn first."""
        self.answered({tp: self._positions[tp]})

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are committed."""
        self._committed.update((tp, offset) for tp, offset in offsets.items() if tp in self._positions)
