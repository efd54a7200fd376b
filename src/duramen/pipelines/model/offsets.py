"""Which records a table contains: the next offset of every partition, merged, compared and written as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from duramen.errors import ConfigError

NO_OFFSET = "-"
"""Spark's word for a source of which a batch has nothing yet."""
PARTITION_DIGITS, OFFSET_DIGITS = 10, 19
"""Of records as text that is ordered as they are."""
_CAUSE = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)@(?P<offset>\d+)")


class Cause(NamedTuple):
    """The record that a row came from; written `topic-partition@offset`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def ordered(self) -> str:
        """The same as text that is greater for a later record of the partition."""
        return f"{self.topic}-{self.partition:0{PARTITION_DIGITS}}@{self.offset:0{OFFSET_DIGITS}}"

    @classmethod
    def parse(cls, text: str) -> Cause:
        """From `topic-partition@offset`. ConfigError for anything else."""
        match = _CAUSE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text}: expected topic-partition@offset, such as flights-3@1234")
        return cls(match["topic"], int(match["partition"]), int(match["offset"]))


class Offsets:
    """For every partition the offset of the first record that is *not* contained. Immutable."""

    def __init__(self, ends: Mapping[tuple[str, int], int] | None = None) -> None:
        self._ends = dict(ends or {})

    def __iter__(self) -> Iterator[tuple[tuple[str, int], int]]:
        return iter(sorted(self._ends.items()))

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and self._ends == other._ends

    def __hash__(self) -> int:
        return hash(frozenset(self._ends.items()))

    def __repr__(self) -> str:
        return f"Offsets({self.to_json()})"

    def end(self, topic: str, partition: int) -> int:
        """The partition's first offset that is not contained; 0 when nothing of it is."""
        return self._ends.get((topic, partition), 0)

    def contains(self, cause: Cause) -> bool:
        return cause.offset < self.end(cause.topic, cause.partition)

    def joined(self, other: Offsets) -> Offsets:
        """What either contains."""
        ends = dict(self._ends)
        for place, end in other:
            ends[place] = max(end, ends.get(place, 0))
        return Offsets(ends)

    def behind(self, other: Offsets) -> int:
        """How many offsets `other` contains that this does not."""
        return sum(max(0, end - self.end(*place)) for place, end in other)

    def of(self, topic: str) -> Offsets:
        """The part about one topic."""
        return Offsets({place: end for place, end in self._ends.items() if place[0] == topic})

    def to_json(self) -> dict[str, dict[str, int]]:
        """As Spark's Kafka source writes them: topic → partition → offset."""
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), end in self:
            found.setdefault(topic, {})[str(partition)] = end
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Mapping[str, int]]) -> Offsets:
        return cls({(topic, int(p)): int(end) for topic, ends in found.items() for p, end in ends.items()})

    @classmethod
    def from_source(cls, text: str, number: int = 0) -> Offsets:
        """From the offset a Spark source wrote: ours and Kafka's name partitions, a file or a rate source counts.

        number: of the source among those of its query, which stands for the partition where there is none.
        """
        found: Any = json.loads(text)
        if isinstance(found, dict) and all(isinstance(ends, dict) for ends in found.values()):
            return cls.from_json({t: {p: e for p, e in ends.items() if p.isdigit()} for t, ends in found.items()})
        count = found.get("logOffset", 0) if isinstance(found, dict) else found
        return cls({("", number): int(count) + 1})

    @classmethod
    def from_sources(cls, texts: Iterable[str]) -> Offsets:
        """From the offsets of all sources of a query, `-` where one has none yet.

        A topic that is read twice, as by a join with itself, is contained as far as both have read it.
        """
        ends: dict[tuple[str, int], int] = {}
        for number, text in enumerate(texts):
            for place, end in cls.from_source(text, number) if text != NO_OFFSET else ():
                ends[place] = min(end, ends.get(place, end))
        return cls(ends)
