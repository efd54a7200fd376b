"""Timestamps that the producers of a simulation put into their batches.

In some worlds batches come without any, with some only, or with a header that denies those the records have (as Sarama
wrote them before 1.44).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from duramen.model import NO_TIMESTAMP, TopicPartition
from duramen.wire.batch import NewRecord

KINDS = {"now": 3, "none": 2, "some": 1, "late": 1, "denied": 2}
"""How often each kind of batch comes where a topic has them all. denied: by its header."""
OLD_MS = 20_000
ALIKE = ("now", "none", "denied")
"""Kinds that a topic may have alone."""


class Stamps:
    """Decides the timestamps of the records that producers send, and remembers them in `sent`, by partition and value.

    odd: whether this world has other batches than ordinary ones. alike: topics whose batches are all of one kind.
    aging: a topic of which each batch comes without timestamps, or with some that are older than any retention here.
    """

    aging = ""

    def __init__(self, random: Random, *, odd: bool, alike: Sequence[str] = ()) -> None:
        self.odd = odd
        self.sent: defaultdict[tuple[TopicPartition, bytes | None], set[int]] = defaultdict(set)
        self._random = random
        self._alike = {topic: random.choice(ALIKE) for topic in alike} if odd else {}

    def stamp(self, tp: TopicPartition, rows: list[NewRecord]) -> tuple[list[NewRecord], bool]:
        """The records of a batch with their timestamps, and whether its header is to deny these.

        rows: records that have the time of now.
        """
        kind = "now"
        if tp.topic == self.aging:
            kind = self._random.choice(("none", "old"))
        elif self.odd:
            kind = self._alike.get(tp.topic) or self._random.choices(list(KINDS), list(KINDS.values()))[0]
        stamped = [
            (key, value, headers, self._time(kind, place, now)) for place, (key, value, headers, now) in enumerate(rows)
        ]
        for _, value, _, timestamp in stamped:
            self.sent[tp, value].add(timestamp)
        return stamped, kind == "denied"

    def lacking(self, topic: str) -> bool:
        """Whether no record of the topic has a timestamp."""
        return self._alike.get(topic) == "none" and topic != self.aging

    def some_lack(self, topic: str) -> bool:
        """Whether some records of a topic that expires have none."""
        return self.lacking(topic) or topic == self.aging

    def _time(self, kind: str, place: int, now: int) -> int:
        if kind == "none" or (kind == "some" and place % 2):
            return NO_TIMESTAMP
        if kind == "old":
            return now - OLD_MS
        return now - self._random.choice((0, 1, 500)) if kind == "late" else now
