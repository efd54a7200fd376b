"""What one consumer reads, and how far it is: its partitions, its positions, and what of them is committed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

UNKNOWN: Final = -1
"""The position of a partition that waits for a seek."""


class ConsumerPositions:
    """The state of one consumer, whose requests come one after the other; the group may change it meanwhile.

    A position is the offset of the next record that is answered, or UNKNOWN. It moves when an answer has been sent, and
    never before, so what was not sent is read again.
    """

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, int] = {}
        """In the order in which they are read next."""
        self._committed: dict[TopicPartition, int] = {}
        """As far as this consumer knows."""
        self._answered: set[TopicPartition] = set()
        """Of which something was sent since the last commit."""
        self._unsaved: dict[TopicPartition, None] = {}
        """Taken away with something of it answered that was not committed."""

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

    # ---- which partitions ----------------------------------------------------------------------------------------

    def missing(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that have no position here."""
        return [tp for tp in wanted if tp not in self._positions]

    def add(self, positions: Mapping[TopicPartition, int], committed: Iterable[TopicPartition]) -> None:
        """Read these, too. committed: those of them whose position is what the group has committed."""
        self._positions.update(positions)
        self._committed.update((tp, positions[tp]) for tp in committed)
        self._unsaved = {tp: None for tp in self._unsaved if tp not in positions}

    def keep(self, wanted: Collection[TopicPartition]) -> None:
        """Read none but these from now on."""
        self._positions = {tp: offset for tp, offset in self._positions.items() if tp in wanted}
        self._committed = {tp: offset for tp, offset in self._committed.items() if tp in wanted}
        self._answered.intersection_update(wanted)

    def take_away(self, gone: Collection[TopicPartition]) -> None:
        """Others read these from now on."""
        self._unsaved.update(dict.fromkeys(tp for tp in self._positions if tp in gone and tp in self._answered))
        self.keep(self._positions.keys() - gone)

    def take_unsaved(self) -> list[TopicPartition]:
        """Those that were taken away with something answered and not committed, said once."""
        found, self._unsaved = list(self._unsaved), {}
        return found

    # ---- where ---------------------------------------------------------------------------------------------------

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on at these offsets. Problem 404 for a partition that is not read, and then none is moved."""
        self.check(offsets)
        self._positions.update(offsets)

    def check(self, wanted: Iterable[TopicPartition]) -> None:
        """Problem 404 for a partition that is not read."""
        for tp in self.missing(wanted):
            raise ProblemError(404, "no-such-partition", f"{tp} is not assigned to this consumer.")

    def still(self, started: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Those that are read and stand where they stood at a start."""
        return [tp for tp, offset in started.items() if self._positions.get(tp) == offset]

    def move(self, moved: Mapping[TopicPartition, int], started: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Go on at these offsets, of what was read from a start; those that moved. What was sought or taken away
        meanwhile stays as it is now. Other partitions have their turn first the next time."""
        found = self.still({tp: started[tp] for tp in moved})
        for tp in found:
            del self._positions[tp]
            self._positions[tp] = moved[tp]
        return found

    def answered(self, moved: Mapping[TopicPartition, int], started: Mapping[TopicPartition, int]) -> None:
        """The same, when records in front of these offsets were sent."""
        self._answered.update(self.move(moved, started))

    def passed_over(self, tp: TopicPartition) -> None:
        """Nothing can be sent of this partition: others have their turn first."""
        if tp in self._positions:
            self._positions[tp] = self._positions.pop(tp)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are committed."""
        self._committed.update((tp, offset) for tp, offset in offsets.items() if tp in self._positions)
        self._answered.difference_update(offsets)
