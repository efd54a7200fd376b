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

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from duramen.client import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Cluster
from duramen.errors import DuramenError
from duramen.librdkafka import LibraryConsumer
from duramen.model import TopicPartition as Place
from duramen.swaps.cut_overs import (
    Committed,
    CutOver,
    Position,
    Where,
    beginning,
    commits_of,
    is_read,
    last_commits,
    positions,
    topics_of,
    written_down,
)
from duramen.swaps.group_commits import ANSWER_SECONDS, read_commits, write_commits
from duramen.swaps.losses import NO_LOSS, FoundLosses, Losses, MeantCuts, is_loss
from duramen.swaps.swap_log import SwapConflictError, SwapLog, existing

GROUP_WENT_ON: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.GROUP_ID_NOT_FOUND,
    }
)
"""Commits that are refused because the group is given its partitions anew, or is gone and begins anew."""

_log = logging.getLogger("duramen.swaps")

LOOK_SECONDS: Final = 1.0
"""How often an idle reader asks for cuts, and a waiting one how far the others of its group are."""


class Handover(NamedTuple):
    """What became of records that were handed out.

    done: behind the last that is, by topic and partition. undone: the first of those that come again, to whoever gets
    the partition.
    """

    done: Mapping[Where, int]
    undone: Mapping[Where, int]


class CutLostError(DuramenError):
    """A group has not read a topic to its cut, and the topic is gone."""

    def __init__(self, group: str, where: Where, offset: int, cut: int, last: str) -> None:
        """where: up to which `offset` the group has read it, not to its `cut`; last: the last topic of the chain."""
        super().__init__(
            f"group {group} has read {where[0]}-{where[1]} to offset {offset}, not to its cut at {cut}, and that topic "
            f"is gone; `duramen group reset-offsets` in {last} goes on without"
        )


class GroupReader:
    """One member of the group, for one thread. Use it as a context manager, or `close` it.

    topic: the name that was first; later ones are found. start: where a group without offsets begins, "earliest" or
    "latest". settings: further ones of librdkafka. logger: where librdkafka's own lines go, instead of stderr.
    tell: gets a sentence for records that were gone before they were read; reading goes on at the first behind them.
    handover: is asked, before the group gives its partitions anew, how far the records that were handed out are done.
    answer_seconds: for what the group has committed; PendingCommitsError where a transaction keeps it back for longer.

    Raises KafkaException (librdkafka's), PendingCommitsError, CutLostError, SwapConflictError, and the errors of
    `client.Cluster`. Whoever asks again after an error gets what he would have got: no record is lost by it, and none
    comes twice.
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
        tell: Callable[[str], None] = _log.warning,
        handover: Callable[[], Handover] | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._handover = handover
        self.group = group
        self.topic = topic
        self._start = EARLIEST if start == "earliest" else LATEST
        everything = (settings or {}).get("isolation.level") == "read_uncommitted"
        self._isolation = READ_UNCOMMITTED if everything else READ_COMMITTED
        self._cuts: tuple[CutOver, ...] = ()
        self._given: set[Where] | None = None
        """What the group's coordinator gave this member; None until it has."""
        self._placed = False
        """Whether everything below is that of `_given`."""
        self._at: dict[int, Position] = {}
        """Where each partition that was given is read next; its records before that were handed out."""
        self._others: dict[int, int] = {}  # the generation in which the group stood in each partition, by its commits
        self._began = 0  # the generation in which the group began
        self._saved: dict[int, Position] = {}
        """The commit that counts of each partition, as it was last known."""
        self._unsure: dict[int, Position] = {}  # commits that failed, and may have been made all the same
        self._handed: dict[int, Position] = {}
        """Where records end that were handed out and are not committed."""
        self._undo: tuple[dict[int, Position], dict[int, Position], dict[int, Position]] = {}, {}, {}
        """The positions, commits and records handed out that an answer nobody got goes back to."""
        self._paused = False
        self._active: dict[Where, None] = {}  # what librdkafka reads now
        self._ended: set[int] = set()  # partitions of the last topic whose end was seen
        self._subscribed: list[str] = []
        self._behind = False  # whether a commit was refused: the group has gone on without this member
        self._closed = False
        self._next_look = time.monotonic() + LOOK_SECONDS
        config = _config(bootstrap, group, settings or {})
        self._consumer = LibraryConsumer(config, **({} if logger is None else {"logger": logger}))
        self._cluster = Cluster(bootstrap)
        self._log = MeantCuts(SwapLog(self._cluster), self._cluster, tell)
        self._losses = Losses(self._cluster, tell)
        try:
            self._learn()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group. What was not committed comes again, to whoever gets its partition."""
        self._closed = True
        try:
            self._consumer.close()
        finally:
            self._cluster.close()

    # ---- reading ---------------------------------------------------------------------------------------------

    def consume(self, count: int = 500, timeout: float = 1.0) -> list[Message]:
        """The next records, at most `count`, in the order of each partition; none after `timeout` seconds.

        timeout: negative to wait for as long as it takes. A message may also be an error, as librdkafka gives them.
        """
        until = time.monotonic() + (timeout if timeout >= 0 else math.inf)
        while True:
            left = max(0.0, until - time.monotonic())
            # In a topic that was swapped nothing comes any more: nobody waits there for longer than from look to look.
            found = self._turn(count, min(left, LOOK_SECONDS))
            if found or left <= LOOK_SECONDS:
                return found

    def _turn(self, count: int, timeout: float) -> list[Message]:
        try:
            looked = not self._behind and self._look()
            self._behind = False
            return self._next(count, timeout, looked)
        except KafkaException as error:
            if error.args[0].code() not in GROUP_WENT_ON:
                raise
        # librdkafka tells what is ours by now when it is asked for records, and only then.
        self._placed, self._active, self._behind = False, {}, True
        return []

    def _next(self, count: int, timeout: float, looked: bool) -> list[Message]:
        self._keep()
        try:
            given = self._consumer.consume(count, timeout)
            losses = NO_LOSS
            if looked or any(message.error() is None or is_loss(message) for message in given):
                self._learn()
                given, losses = self._losses.among(given, {each: self._at[each[1]].offset for each in self._active})
            out = [message for message in given if self._take(message)]
            if losses.go_on:
                self._go_on(losses)
            if self._placed:
                self._move()
            self._losses.accept(losses)
        except BaseException:
            # The caller gets nothing of this: the next call goes back to where the last one left it.
            self._at, self._saved, self._handed = self._undo
            self._placed = False
            raise
        return out

    def _keep(self) -> None:
        self._undo = dict(self._at), dict(self._saved), dict(self._handed)

    def pause(self) -> None:
        """Hand out no records until `resume`; who goes on calling `consume` remains a member of the group."""
        self._paused = True
        self._pause()

    def _pause(self) -> None:
        self._consumer.pause([TopicPartition(topic, partition) for topic, partition in self._active])

    def resume(self) -> None:
        """Hand out records again."""
        self._paused = False
        self._consumer.resume([TopicPartition(topic, partition) for topic, partition in self._active])

    def _go_on(self, losses: FoundLosses) -> None:
        for (topic, partition), offset in losses.go_on.items():
            self._at[partition] = Position(self._at[partition].generation, offset)
            self._ended.discard(partition)
            if topic in losses.anew:  # what the group had committed went with the topic
                self._saved.pop(partition, None)
        self._activate()

    def _look(self) -> bool:
        """Whether it was time: go to where this member has to read, and see from time to time what the others do."""
        if not self._is_due and time.monotonic() < self._next_look:
            return False
        self._learn()
        if self._is_due or self._waits():
            self._place()
        self._next_look = time.monotonic() + LOOK_SECONDS
        return True

    @property
    def _is_due(self) -> bool:
        return self._given is not None and not self._placed

    @property
    def joined(self) -> bool:
        """Whether the group has given this member its partitions, which may be none."""
        return self._given is not None

    @property
    def at_end(self) -> bool:
        """Whether all that was given to this member is read, for now."""
        return self._placed and not self._waits() and self._at.keys() <= self._ended

    def _waits(self) -> bool:
        """Whether a partition was given to this member of which an older topic is not read to its cut: by another
        member, or here, where all partitions wait for each other."""
        names = topics_of(self.topic, self._cuts)
        last = {name: generation for generation, name in enumerate(names)}
        for topic, partition in self._given or ():
            at = self._at.get(partition)
            if (at is None or self._done(partition, at)) and self._others.get(partition, 0) < last.get(topic, 0):
                return True
        return False

    def commit(self, done: Mapping[Where, int] | None = None, *, seconds: float = math.inf) -> None:
        """Everything handed out so far is done: durable on return, with the moves from topic to topic in it.

        done: only what lies before these offsets is, by topic and partition; of partitions without one nothing.
        seconds: to wait for an answer. Behind it, and where a signal ends the waiting, it may be committed or not.
        """
        if self._is_due:
            self._look()  # a partition that went to another member is not ours to commit
        self._commit_done(done, seconds)

    def _commit_done(self, done: Mapping[Where, int] | None, seconds: float = math.inf) -> None:
        wanted, left = {}, {}
        for partition, at in self._at.items():
            end = self._handed.get(partition)
            reached = end if end is None or done is None else self._reached(end, partition, done)
            if end is not None and reached != end:
                left[partition] = end
            spot = at if reached == end else reached
            if spot is not None and spot != self._saved.get(partition):
                wanted[partition] = spot
        self._commit(wanted, {}, seconds)
        self._handed = left

    def _reached(self, end: Position, partition: int, done: Mapping[Where, int]) -> Position | None:
        offset = done.get((self._topic(end), partition))
        return None if offset is None else Position(end.generation, offset)

    def _take_back(self, undone: Mapping[Where, int]) -> None:
        """These were handed out, and are not read."""
        generations = {name: generation for generation, name in enumerate(topics_of(self.topic, self._cuts))}
        for (topic, partition), offset in undone.items():
            if partition in self._at and topic in generations:
                spot = self._at[partition] = Position(generations[topic], offset)
                self._ended.discard(partition)
                if spot == self._saved.get(partition):
                    self._handed.pop(partition, None)
                else:
                    self._handed[partition] = spot
        self._keep()

    def _commit(
        self, wanted: Mapping[int, Position], more: Mapping[Where, Committed], seconds: float = math.inf
    ) -> None:
        names = topics_of(self.topic, self._cuts)
        offsets = dict(more)
        for partition, at in wanted.items():
            before = self._saved.get(partition, at)
            offsets |= commits_of(self.topic, self._cuts, partition, before, at, self._began)
        self._unsure.update(wanted)
        needed = {(names[at.generation], partition) for partition, at in wanted.items()}
        write_commits(self._consumer, offsets, needed, seconds)
        self._saved.update(wanted)
        for partition in wanted:
            del self._unsure[partition]

    # ---- cuts ------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Ask for cuts. Those that are new may mean another topic to subscribe to."""
        found = self._log.cuts(self.topic)
        if found[: len(self._cuts)] != self._cuts:
            raise SwapConflictError(f"the swaps of {self.topic} at the node are others than a moment ago")
        if found != self._cuts or not self._subscribed:
            self._subscribe(topics_of(self.topic, found))
            self._cuts = found

    def _subscribe(self, names: list[str]) -> None:
        there = existing(self._cluster, names)
        wanted = list(dict.fromkeys(name for name in names if name in there)) or names[-1:]
        if wanted != self._subscribed:
            self._consumer.subscribe(wanted, on_assign=self._assigned, on_revoke=self._revoked)
            self._subscribed = wanted

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
        at = self._at[partition] = Position(generation, offset + 1 if inside else offset)
        if inside:
            self._handed[partition] = at
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
            self._commit({partition: self._at[partition] for partition in moved if partition not in self._handed}, {})

    def _done(self, partition: int, at: Position) -> bool:
        return is_read(self._cuts, at, partition)

    # ---- the group -------------------------------------------------------------------------------------------

    def _assigned(self, _consumer: object, given: list[TopicPartition]) -> None:
        if not self._closed:  # librdkafka gives partitions while it closes, and answers nothing that is asked then
            self._given = {(place.topic, place.partition) for place in given}
            self._look()

    def _revoked(self, _consumer: object, _taken: list[TopicPartition]) -> None:
        if self._handover is not None and not self._closed:
            done, undone = self._handover()
            if self._placed:
                # Where it cannot be committed any more, others read again what is done.
                with contextlib.suppress(KafkaException):
                    self._commit_done(done)
            self._take_back(undone)
        # What is known of the positions is kept: when nobody has committed meanwhile, this member goes on there.
        self._given, self._placed, self._active = None, False, {}

    def _topic(self, at: Position) -> str:
        return topics_of(self.topic, self._cuts)[at.generation]

    def _place(self) -> None:
        """Begin, or go on, with every partition whose present topic was given to this member."""
        self._placed = False
        self._losses.know(topics_of(self.topic, self._cuts))
        committed = read_commits(
            self._consumer, self._cluster, self.group, self.topic, self._cuts, self._answer_seconds
        )
        last = last_commits(self.topic, self._cuts, committed)
        mine = self._mine(committed, last)
        names = topics_of(self.topic, self._cuts)
        unknown = [Place(names[spot.generation], p) for p, spot in mine.items() if spot.offset is None]
        starts = self._cluster.list_offsets(dict.fromkeys(unknown, self._start), self._isolation)
        mine |= {p: Position(mine[p].generation, at.offset) for (_, p), at in starts.items()}
        self._handed = {p: end for p, end in self._handed.items() if p in mine and mine[p] == self._at.get(p)}
        self._at, self._ended = mine, set()
        self._began = beginning(self.topic, self._cuts, committed)
        self._saved = {partition: spot for partition, spot in last.items() if partition in mine}
        self._activate()
        # Where a group begins, and in which generation others have committed, is written down: a later cut finds it.
        begun = {p: spot for p, spot in mine.items() if p not in last and p not in self._handed}
        told: dict[Where, Committed] = {}
        for partition, spot in self._saved.items():
            told |= written_down(self.topic, self._cuts, committed, partition, spot.generation)
        self._commit(begun, told)
        self._placed = True

    def _mine(self, committed: Mapping[Where, Committed], last: Mapping[int, Position]) -> dict[int, Position]:
        """Where this member reads: what it knows itself, unless the group has gone on, or back, without it."""
        names = topics_of(self.topic, self._cuts)
        given = sorted(self._given or ())
        spots = positions(self.topic, self._cuts, committed, {partition for _, partition in given})
        self._others = {partition: spot.generation for partition, spot in spots.items()}
        mine = {}
        for topic, partition in given:
            spot = spots[partition]
            known = self._at.get(partition)
            saved = last.get(partition)
            ours = saved == self._saved.get(partition) or (saved is not None and saved == self._unsure.get(partition))
            if known is not None and ours and known.generation >= spot.generation:
                spot = known
            if names[spot.generation] == topic:
                mine[partition] = spot
            elif names[spot.generation] not in self._subscribed:
                where, cut = (names[spot.generation], partition), self._cuts[spot.generation].until.get(partition, 0)
                raise CutLostError(self.group, where, spot.offset or 0, cut, names[-1])
        return mine

    def _activate(self) -> None:
        """Read what is to be read now, each partition from where it stands."""
        self._active = {
            (self._topic(at), partition): None for partition, at in self._at.items() if not self._done(partition, at)
        }
        self._consumer.assign(
            [TopicPartition(topic, partition, self._at[partition].offset or 0) for topic, partition in self._active]
        )
        if self._paused:
            self._pause()


def _config(bootstrap: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "isolation.level": "read_committed",
        **settings,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "error",  # what is read is said to it: it only has to say what is not there
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "partition.assignment.strategy": "range",  # gives a partition's number in all topics to one member
    }
