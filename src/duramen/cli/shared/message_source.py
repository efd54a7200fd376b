"""Where `duramen consume` reads from: messages, the ends that were reached, topics that are deleted and made again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

from confluent_kafka import Message, TopicPartition

from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.outlet import Place
from duramen.cli.shared.output import PROGRESS_AFTER_SECONDS, note
from duramen.cli.shared.retry import Patience
from duramen.client import Cluster as Client
from duramen.errors import DuramenError
from duramen.librdkafka import LibraryConsumer
from duramen.swaps.losses import Losses, is_loss
from duramen.swaps.swap_log import existing

LOOK_SECONDS = 5.0
"""Between two questions, while nothing comes, whether the topic is still there."""


class MessageSource(NamedTuple):
    """Where messages come from: at most so many in so many seconds; whether all is read; who is told what is done.

    commit: is told behind which record of each partition all is done, and for how many seconds it may wait. go_on: is
    told of a partition that does not hold the offset that is to be read next. hold: reading gives no records, or does
    so again.
    """

    read: Callable[[int, float], list[Message]]
    at_end: Callable[[], bool]
    commit: Callable[[Mapping[Place, int], float], object] | None
    go_on: Callable[[Message], None] | None = None
    hold: Callable[[bool], object] | None = None


class Ends:
    """Which partitions have been read to their end, to know when to stop."""

    def __init__(self) -> None:
        self.known = False
        self.assigned: set[tuple[str, int]] = set()
        self.reached: set[tuple[str, int]] = set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """These came to us; none where a group has more members than partitions."""
        self.known = True
        self.assigned |= {(tp.topic, tp.partition) for tp in partitions}

    def revoke(self, partitions: list[TopicPartition]) -> None:
        """These go to somebody; who has what is not known until the next assignment."""
        self.known = False
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self.assigned -= gone
        self.reached -= gone

    @property
    def all_reached(self) -> bool:
        """Whether there is nothing left to read for now."""
        return self.known and self.assigned <= self.reached


class JoinNotice:
    """Tells who waits for longer than a second that it is the group which is waited for."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told_at = time.monotonic() + PROGRESS_AFTER_SECONDS

    def look(self, joined: bool) -> None:
        """Between two looks for records; only the first wait is told."""
        if joined:
            self._told_at = math.inf
        elif time.monotonic() >= self._told_at:
            note(f"joining group {self._group} …")
            self._told_at = math.inf


class TopicNameReader:
    """Reads partitions of the topics that have the names now; of one that is made anew, from its first record.

    The node is asked for the topics' ids behind each batch of records: who has a record of a new topic finds its id.
    """

    def __init__(
        self,
        cluster: ClusterAccess,
        consumer: LibraryConsumer,
        topics: Sequence[str],
        partitions: tuple[int, ...],
        ends: Ends,
        patience: Patience,
    ) -> None:
        self._patience = patience
        self._consumer = consumer
        self._topics = topics
        self._partitions = partitions
        self._ends = ends
        self._client = Client(cluster.answering(), timeout_s=cluster.timeout)
        self._losses = Losses(self._client, note)
        self._at: dict[tuple[str, int], int] = {}
        """Where partitions are read next that were gone on with behind a loss."""
        self._gone: set[str] = set()
        self._looks_at = time.monotonic() + LOOK_SECONDS
        try:
            self._losses.know(topics)
        except BaseException:
            self._client.close()
            raise

    def read(self, count: int, timeout: float) -> list[Message]:
        """The next messages of what is assigned, as `Consumer.consume`; losses are told, and gone behind."""
        given = self._consumer.consume(count, timeout)
        if not any(message.error() is None or is_loss(message) for message in given):
            self._look()
            return given
        at = {place: self._at.get(place) for place in self._ends.assigned}
        kept, losses = self._patience.ask(lambda: self._losses.among(given, at))
        for message in kept if self._at else ():
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if message.error() is None and topic is not None and partition is not None and offset is not None:
                self._at[topic, partition] = offset + 1
        if losses.go_on:
            places = dict(losses.go_on)
            for topic in losses.anew if not self._partitions else ():  # there may be more partitions, or fewer
                numbers = self._patience.ask(partial(self._client.partitions, topic))
                known = {place: at for place, at in losses.go_on.items() if place[0] == topic}
                places = {place: at for place, at in places.items() if place not in known}
                places |= {(topic, number): known.get((topic, number), 0) for number in numbers}
            anew = {place for place in self._ends.assigned if place[0] in losses.anew}
            self._go_on(places, anew | losses.go_on.keys())
        self._losses.accept(losses)
        return kept

    def _look(self) -> None:
        """Nothing came: now and then it is asked whether the topics are still there, and told when one, or the node,
        is not."""
        if time.monotonic() < self._looks_at:
            return
        try:
            with self._patience.telling():
                gone = set(self._topics) - existing(self._client, self._topics).keys()
        except (DuramenError, OSError) as error:  # the library waits for it
            gone = self._gone
            self._patience.tell(str(error))
        for topic in sorted(gone - self._gone):
            note(f"topic {topic} was deleted; waiting for a new one of its name")
        self._gone = gone
        self._looks_at = time.monotonic() + LOOK_SECONDS

    def _go_on(self, places: Mapping[tuple[str, int], int], left: Collection[tuple[str, int]]) -> None:
        gone = [TopicPartition(*place) for place in left]
        moved = [TopicPartition(*place, offset) for place, offset in places.items()]
        self._at = {**{place: at for place, at in self._at.items() if place not in left}, **places}
        self._consumer.incremental_unassign(gone)
        self._ends.revoke(gone)
        self._consumer.incremental_assign(moved)
        self._ends.assign(moved)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()
