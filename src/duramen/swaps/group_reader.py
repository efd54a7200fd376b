"""A member of a consumer group that follows a topic through its swaps.

    with GroupReader("127.0.0.1:9092", "audit", "late") as reader:
        while True:
            for message in reader.consume():
                work(message)
            reader.commit()

It is librdkafka's consumer, in an ordinary group, subscribed to every topic of the chain; what it adds is from where
and how far each partition is read. The cuts are asked for behind every answer with records, so no record is handed out
that was written behind a cut after the cut was published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from duramen.client import EARLIEST, LATEST, READ_COMMITTED, Cluster
from duramen.errors import DuramenError
from duramen.model import TopicPartition as Place
from duramen.swaps.cuts import (
    Committed,
    Cut,
    Position,
    generation_in,
    last_commits,
    metadata_of,
    positions,
    topics_of,
)
from duramen.swaps.swap_log import SwapConflictError, SwapLog

ANSWER_SECONDS_MAX: Final = 15.0
LOOK_SECONDS: Final = 1.0
"""How often an idle reader asks for cuts, and a waiting one how far the others of its group are."""


class CutLostError(DuramenError):
    """A group has not read a topic to its cut, and the topic is gone."""


class GroupReader:
    """One member of the group, for one thread. Use it as a context manager, or `close` it.

    topic: the name that was first; later ones are found. start: where a group without offsets begins, "earliest" or
    "latest". settings: further ones of librdkafka. logger: where librdkafka's own lines go, instead of stderr.

    Raises KafkaException (librdkafka's), CutLostError, and the errors of `client.Cluster`.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        settings: Mapping[str, Any] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.group = group
        self.topic = topic
        self._start = EARLIEST if start == "earliest" else LATEST
        self._cluster = Cluster(bootstrap)
        self._log = SwapLog(self._cluster)
        self._cuts: tuple[Cut, ...] = self._log.cuts(topic)
        self._given: set[tuple[str, int]] | None = None
        """What the group's coordinator gave this member; None until it has."""
        self._at: dict[int, Position] = {}
        """Where each partition that was given is read next; its records before that were handed out."""
        self._others: dict[int, int] = {}
        """The generation in which the group stood in each partition, by its commits."""
        self._saved: dict[int, Position] = {}
        """The commit that counts of each partition, as it was last known."""
        self._handed: set[int] = set()
        """Partitions of which records were handed out that are not committed."""
        self._active: dict[tuple[str, int], None] = {}
        """What librdkafka reads now."""
        self._ended: set[int] = set()
        """Partitions of the last topic whose end was seen."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._consumer = Consumer(
            {
                "isolation.level": "read_committed",
                **(settings or {}),
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": start,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "partition.assignment.strategy": "range",  # gives a partition's number in all topics to one member
            },
            **({} if logger is None else {"logger": logger}),
        )
        self._subscribed: list[str] = []
        self._subscribe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group. What was not committed comes again, to whoever gets its partition."""
        self._consumer.close()
        self._cluster.close()

    # ---- reading ---------------------------------------------------------------------------------------------

    def consume(self, count: int = 500, timeout: float = 1.0) -> list[Message]:
        """The next records, at most `count`, in the order of each partition; none after `timeout` seconds.

        A message may also be an error, as librdkafka gives them.
        """
        if time.monotonic() >= self._next_look:
            self._learn()
            if self._waits():
                self._place()
            self._next_look = time.monotonic() + LOOK_SECONDS
        given = self._consumer.consume(count, timeout)
        if any(message.error() is None for message in given):
            self._learn()
        out = [message for message in given if self._take(message)]
        self._handed |= {partition for message in out if (partition := message.partition()) is not None}
        self._move()
        return out

    @property
    def at_end(self) -> bool:
        """Whether all that was given to this member is read, for now."""
        return self._given is not None and not self._waits() and self._at.keys() <= self._ended

    def _waits(self) -> bool:
        """Whether a partition was given to this member of which an older topic is not read to its cut: by another
        member, or here, where all partitions wait for each other."""
        names = topics_of(self.topic, self._cuts)
        last = {name: generation for generation, name in enumerate(names)}
        for topic, partition in self._given or ():
            at = self._at.get(partition)
            if (at is None or self._done(partition, at)) and self._others[partition] < last.get(topic, 0):
                return True
        return False

    def commit(self) -> None:
        """Everything handed out so far is done: durable on return, with the moves from topic to topic in it."""
        self._commit({partition: at for partition, at in self._at.items() if at != self._saved.get(partition)})
        self._handed.clear()

    def _commit(self, wanted: Mapping[int, Position]) -> None:
        names = topics_of(self.topic, self._cuts)
        offsets: dict[tuple[str, int], TopicPartition] = {}
        for partition, at in wanted.items():
            saved = self._saved.get(partition, at)
            for generation in range(saved.generation, at.generation):
                cut = self._cuts[generation]  # so that tools see no lag on what is done with
                _put(offsets, cut.old, partition, cut.until.get(partition, 0), generation)
            _put(offsets, names[at.generation], partition, at.offset or 0, at.generation)
        if not offsets:
            return
        answers: Any = self._consumer.commit(offsets=list(offsets.values()), asynchronous=False)
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
        self._saved.update(wanted)

    # ---- cuts ------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Ask for cuts. Those that are new may mean another topic to subscribe to."""
        found = self._log.cuts(self.topic)
        if found != self._cuts:
            if found[: len(self._cuts)] != self._cuts:
                raise SwapConflictError(f"the swaps of {self.topic} at the node are others than a moment ago")
            self._cuts = found
            self._subscribe()

    def _subscribe(self) -> None:
        names = list(dict.fromkeys(topics_of(self.topic, self._cuts)))
        known = self._cluster.metadata(names).topics
        there = [name for name in names if name in known and not known[name].error]
        wanted = there or names[-1:]
        if wanted != self._subscribed:
            self._subscribed = wanted
            self._consumer.subscribe(wanted, on_assign=self._assigned, on_revoke=self._revoked)

    def _take(self, message: Message) -> bool:
        """Whether the message is for the caller; notes how far its partition is."""
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if topic is None or partition is None or offset is None or (topic, partition) not in self._active:
            return error is not None and error.code() != KafkaError._PARTITION_EOF
        generation, before = self._at[partition]
        last = generation == len(self._cuts)
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._at[partition] = Position(generation, max(before or 0, offset))
                self._ended |= {partition} if last else set()
                return False
            return True
        if offset < (before or 0):
            return False
        self._ended.discard(partition)
        inside = last or offset < self._cuts[generation].until.get(partition, 0)
        self._at[partition] = Position(generation, offset + 1 if inside else offset)
        return inside

    def _move(self) -> None:
        """Go on in the next topic where one is read to its cut; commit that where no record waits for a commit."""
        moved = []
        for partition, at in list(self._at.items()):
            there = at
            while self._done(partition, there):
                cut = self._cuts[there.generation]
                if len(cut.until) != len(cut.start) or (cut.new, partition) not in (self._given or ()):
                    break  # whoever reads the new topic finds in our commit that we are done
                there = Position(there.generation + 1, cut.start.get(partition, 0))
            self._at[partition] = there
            if there != at or (self._done(partition, at) and (self._topic(at), partition) in self._active):
                moved.append(partition)
        if moved:
            self._activate()
            self._commit({partition: self._at[partition] for partition in moved if partition not in self._handed})

    def _done(self, partition: int, at: Position) -> bool:
        """Whether the topic of this generation is read to its cut."""
        if at.generation == len(self._cuts):
            return False
        return (at.offset or 0) >= self._cuts[at.generation].until.get(partition, 0)

    def _topic(self, at: Position) -> str:
        return topics_of(self.topic, self._cuts)[at.generation]

    # ---- the group -------------------------------------------------------------------------------------------

    def _assigned(self, _consumer: Consumer, given: list[TopicPartition]) -> None:
        self._given = {(place.topic, place.partition) for place in given}
        self._place()

    def _revoked(self, _consumer: Consumer, _taken: list[TopicPartition]) -> None:
        # What is known of the positions is kept: when nobody has committed meanwhile, this member goes on there.
        self._given, self._active = None, {}

    def _place(self) -> None:
        """Begin, or go on, with every partition whose present topic was given to this member."""
        names = topics_of(self.topic, self._cuts)
        committed = self._committed(names)
        last = last_commits(names, committed)
        given = sorted(self._given or ())
        spots = positions(self.topic, self._cuts, committed, {partition for _, partition in given})
        self._others = {partition: spot.generation for partition, spot in spots.items()}
        mine = {}
        for topic, partition in given:
            spot = spots[partition]
            known = self._at.get(partition)
            unchanged = last.get(partition) == self._saved.get(partition)
            if known is not None and unchanged and known.generation >= spot.generation:
                spot = known
            if names[spot.generation] == topic:
                mine[partition] = spot
            elif names[spot.generation] not in self._subscribed:
                raise CutLostError(
                    f"group {self.group} has read {names[spot.generation]}-{partition} to offset {spot.offset or 0}, "
                    f"not to its cut at {self._cuts[spot.generation].until.get(partition, 0)}, and that topic is gone; "
                    f"`duramen group reset-offsets` in {names[-1]} goes on without"
                )
        new = {partition: spot for partition, spot in mine.items() if spot.offset is None}
        starts = self._cluster.list_offsets(
            {Place(names[spot.generation], partition): self._start for partition, spot in new.items()}, READ_COMMITTED
        )
        for place, found in starts.items():
            mine[place.partition] = Position(mine[place.partition].generation, found.offset)
        self._handed &= self._at.keys() & {p for p, spot in mine.items() if spot == self._at.get(p)}
        self._at, self._ended = mine, set()
        self._saved = {partition: spot for partition, spot in last.items() if partition in mine}
        self._activate()
        # Where a group begins is written down, so that a later cut finds it there.
        self._commit({partition: mine[partition] for partition in new})

    def _activate(self) -> None:
        """Read what is to be read now, each partition from where it stands."""
        self._active = {
            (self._topic(at), partition): None for partition, at in self._at.items() if not self._done(partition, at)
        }
        self._consumer.assign(
            [TopicPartition(topic, partition, self._at[partition].offset or 0) for topic, partition in self._active]
        )

    def _committed(self, names: list[str]) -> dict[tuple[str, int], Committed]:
        known = self._cluster.metadata(names).topics
        wanted = {(name, partition) for name in names if name in known for partition in known[name].partitions}
        wanted |= {(cut.old, partition) for cut in self._cuts for partition in cut.until}
        asked = [TopicPartition(topic, partition) for topic, partition in sorted(wanted)]
        answers = self._consumer.committed(asked, timeout=ANSWER_SECONDS_MAX) if asked else []
        return {
            (answer.topic, answer.partition): Committed(answer.offset, generation_in(answer.metadata))
            for answer in answers
            if answer.offset >= 0
        }


def _put(
    offsets: dict[tuple[str, int], TopicPartition], topic: str, partition: int, offset: int, generation: int
) -> None:
    offsets[(topic, partition)] = TopicPartition(topic, partition, offset, metadata_of(generation))
