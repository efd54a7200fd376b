"""What a member of a group does when the records it wants are not there any more: it says so, and knows where to go on.

Records expire, are deleted, or go with their topic, of which another may have the name by now: its id tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message

from duramen.client import EARLIEST, LATEST, READ_UNCOMMITTED, Cluster, TopicMetadata
from duramen.model import NO_TOPIC_ID, TopicId, topic_id_from_text
from duramen.model import TopicPartition as Place
from duramen.swaps.cut_overs import CutOver, Where
from duramen.swaps.swap_log import SwapLog, existing

_LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
"""What librdkafka says, once, of a partition in which it does not find the offset that it was told to read next."""


def is_loss(message: Message) -> bool:
    """Whether it says that its partition does not hold its offset; nothing more comes of that partition then."""
    error = message.error()
    return error is not None and error.code() in _LOST


def _sought(loss: Message, given: Sequence[Message], at: int | None) -> int:
    """The offset that the caller needs next, who has had all below `at` (None: unknown) and gets the other messages.

    Not that of the loss: librdkafka may give it late, of where it was before it was told to go on elsewhere, perhaps in
    a topic that is gone. A log that was cut off inside of what was read goes on where the loss says.
    """
    lost, error = loss.offset() or 0, loss.error()
    if at is None:
        return lost
    for message in given:
        same = (message.topic(), message.partition()) == (loss.topic(), loss.partition())
        if same and message.error() is None:
            at = max(at, (message.offset() or 0) + 1)
    return min(at, lost) if error is not None and error.code() == KafkaError._LOG_TRUNCATION else at


class FoundLosses(NamedTuple):
    """Losses: where to go on in their partitions, and the topics that were made anew, with their new ids."""

    go_on: dict[Where, int]
    anew: dict[str, TopicId]


NO_LOSS: Final = FoundLosses({}, {})


class MeantCuts:
    """Chains as one reader goes by them: behind a cut to a topic that was made anew since, at its first record."""

    def __init__(self, log: SwapLog, cluster: Cluster, tell: Callable[[str], None]) -> None:
        self._log = log
        self._cluster = cluster
        self._tell = tell
        self._seen: list[tuple[CutOver, CutOver]] = []
        """Each cut, and what it was taken for: what was said of one once holds."""

    def cuts(self, topic: str) -> tuple[CutOver, ...]:
        """See SwapLog."""
        return tuple(self._taken(cut) for cut in self._log.cuts(topic))

    def _taken(self, cut: CutOver) -> CutOver:
        for seen, taken in self._seen:
            if seen == cut:
                return taken
        there = existing(self._cluster, [cut.new]) if cut.new_id else {}
        taken = cut
        if cut.new in there and there[cut.new].topic_id not in (NO_TOPIC_ID, topic_id_from_text(cut.new_id)):
            told = f"who comes from {cut.old} reads it from its first record"
            self._tell(f"topic {cut.new} was deleted and made anew since its swap: {told}")
            taken = cut._replace(start=dict.fromkeys(cut.start, 0))
        self._seen.append((cut, taken))
        return taken


class Losses:
    """The topics that one reader means, by their ids. tell: is called with a sentence for every loss."""

    def __init__(self, cluster: Cluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._ids: dict[str, TopicId] = {}

    def know(self, topics: Sequence[str]) -> None:
        """Positions in these topics are from now on meant in those that have the names today."""
        self._ids = {name: topic.topic_id for name, topic in existing(self._cluster, topics).items()} | self._ids

    def among(self, given: list[Message], places: Mapping[Where, int | None]) -> tuple[list[Message], FoundLosses]:
        """The messages that are of the topics that are meant, and the losses that the others tell of.

        places: what is read, and from which offset on, if that is known: the caller has had all below it. This asks for
        the ids behind the messages: who has a record of a new topic finds its id.
        The same is found again until the reader has gone there, and it is `accept`ed.
        """
        found = existing(self._cluster, sorted({topic for topic, _ in places}))
        now = {name: topic.topic_id for name, topic in found.items()}
        anew = {name: topic_id for name, topic_id in now.items() if self._ids.get(name, topic_id) != topic_id}
        wanted: dict[Where, int] = dict.fromkeys((where for where in places if where[0] in anew), 0)
        for message in given:
            topic, partition = message.topic(), message.partition()
            if is_loss(message) and topic is not None and partition is not None and topic not in anew:
                where = topic, partition
                wanted |= {where: _sought(message, given, places[where])} if where in places else {}
        kept = [message for message in given if message.topic() not in anew and not is_loss(message)]
        return kept, FoundLosses(self._nearest(wanted, found, anew), anew) if wanted else NO_LOSS

    def accept(self, losses: FoundLosses) -> None:
        """The reader has gone on."""
        self._ids |= losses.anew

    def _nearest(
        self, wanted: dict[Where, int], found: dict[str, TopicMetadata], anew: Collection[str]
    ) -> dict[Where, int]:
        """Of each partition the offset that is nearest to the wanted one. Those that are gone wait where they are."""
        there = [Place(*where) for where in wanted if where[0] in found and where[1] in found[where[0]].partitions]
        first, end = (
            self._cluster.list_offsets(dict.fromkeys(there, which), READ_UNCOMMITTED) for which in (EARLIEST, LATEST)
        )
        for topic in sorted(anew):
            self._tell(f"topic {topic} was deleted and made anew; it is read from its first record")
        nearest = dict(wanted)
        for place in there:
            at, start, stop = wanted[place], first[place].offset, end[place].offset
            nearest[place] = min(max(at, start), stop)
            if at > stop:
                self._tell(
                    f"{place}: the log ends at offset {stop}, in front of {at}, where it was read: it was cut off"
                )
            elif at < start and place.topic not in anew:
                self._tell(f"{place}: offsets {at} to {start - 1} were gone before they were read; going on at {start}")
        return nearest
