"""What a handle holds for which partition, and where a partition finds its share; packed, as there may be millions."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from duramen.model import TopicId

Target = tuple[TopicId, int]
"""A partition of a topic that is meant for good: (topic id, partition)."""

_PART: Final = Struct(">16siqq")


class StagedPart(NamedTuple):
    """What a handle holds for one partition; its parts lie one behind the other in the staging log."""

    topic_id: TopicId
    partition: int
    records: int
    bytes: int


class Parts:
    """The parts of one handle, in order; 36 bytes each."""

    __slots__ = ("_packed",)

    def __init__(self, parts: Iterable[StagedPart]) -> None:
        self._packed = b"".join(_PART.pack(*part) for part in parts)

    def __len__(self) -> int:
        return len(self._packed) // _PART.size

    def __iter__(self) -> Iterator[StagedPart]:
        return map(StagedPart._make, self.tuples())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parts) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    def tuples(self) -> Iterator[tuple[TopicId, int, int, int]]:
        """The fields of each part."""
        return _PART.iter_unpack(self._packed)


class StagedRange(NamedTuple):
    """Record batches in the staging log, from first_offset up to next_offset."""

    first_offset: int
    next_offset: int
    bytes: int


class Pieces:
    """The pieces of one share, in order; 24 bytes each."""

    __slots__ = ("_numbers",)

    def __init__(self, pieces: Iterable[StagedRange] = ()) -> None:
        self._numbers = array("q", [number for piece in pieces for number in piece])

    def __len__(self) -> int:
        return len(self._numbers) // 3

    def __getitem__(self, number: int) -> StagedRange:
        return StagedRange(*self._numbers[3 * number : 3 * number + 3])

    def __iter__(self) -> Iterator[StagedRange]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pieces) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(tuple(self._numbers))

    @property
    def records(self) -> int:
        """How many there are in all pieces."""
        return sum(self._numbers[1::3]) - sum(self._numbers[::3])

    @property
    def bytes(self) -> int:
        return sum(self._numbers[2::3])

    def extend(self, piece: tuple[int, int, int]) -> None:
        """One more."""
        self._numbers.extend(piece)


def gathered(handles: Iterable[tuple[int, Parts]]) -> dict[Target, Pieces]:
    """Every partition's pieces in (first offset, parts) of handles, in their order."""
    found: dict[Target, Pieces] = {}
    for first, parts in handles:
        for topic_id, partition, records, size in parts.tuples():
            target = topic_id, partition
            pieces = found.get(target)
            if pieces is None:
                pieces = found[target] = Pieces()
            pieces.extend((first, first + records, size))
            first += records
    return found
