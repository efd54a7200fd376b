"""One consumer: its requests come one after the other, and move it through its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_group_member import AsyncGroupMember
from duramen.client.aio.async_group_offsets import AsyncGroupOffsets
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.group_offsets import GroupOffset, PartitionNotAssignedError
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.outcomes import may_help
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.gateway.consumers.consumer_bodies import ConsumedRecord
from duramen.gateway.consumers.consumer_positions import UNKNOWN, ConsumerPositions
from duramen.gateway.consumers.consumer_settings import ConsumerSettings
from duramen.gateway.consumers.record_portion import RecordPortion, portion_steps
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

LEAVE_S: Final = 5.0
"""How long the group is asked to let a consumer go; it does so by itself when the session is over."""

_READ_COMMITTED: Final = 1
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_JOIN_S: Final = 10.0
_AWAY_S: Final = 5.0
"""How long a read goes on asking for what does not answer."""
_SLICE_S: Final = 0.5
_SLICE_OF_SEVERAL_S: Final = 0.1
"""How long nodes are let wait at a time: one of them alone, or several, all of which are waited for."""
_SLICE_OF_NONE_S: Final = 0.02
"""How often a consumer looks whether the group has given it something."""


class ConsumerSubscription(NamedTuple):
    """Topics by name, or those whose whole name an expression matches."""

    topics: tuple[str, ...]
    pattern: str | None


class ConsumerReadAnswer(NamedTuple):
    """What a read found, and where the consumer stood then. away: why a partition gave none, if it may do so later."""

    portion: RecordPortion
    started: Mapping[TopicPartition, int]
    away: DuramenError | None = None

    @property
    def records(self) -> list[ConsumedRecord]:
        """The records."""
        return self.portion.records


class ConsumerInstance:
    """A consumer of a group. id: tells it from others of its name; owner: the name of the principal that made it.

    It reads the partitions that its client assigns, or, with a subscription, those that the group gives it as a member.
    turn: to be held by each request while it uses the consumer. last_used_s: of a clock that only goes forward.
    """

    def __init__(
        self, cluster: AsyncCluster, group: str, id: str, owner: str, settings: ConsumerSettings, now_s: float
    ) -> None:
        self.id = id
        self.owner = owner
        self.settings = settings
        self.turn = asyncio.Lock()
        self.last_used_s = now_s
        self.is_ended = False
        self.ends_wanted = 0
        """How many wait for their turn to end it: reads in front of them wait for nothing."""
        self.positions = ConsumerPositions()
        self.subscription: ConsumerSubscription | None = None
        self._cluster = cluster
        self._group = group
        self._offsets = AsyncGroupOffsets(cluster, group)
        self._member: AsyncGroupMember | None = None
        self._handover = _Handover(self)
        self._starting = asyncio.Lock()

    # ---- what is read ------------------------------------------------------------------------------------------

    async def assign(self, wanted: Collection[TopicPartition]) -> None:
        """Read these partitions from now on: from what the group has committed, else as auto.offset.reset says."""
        if self.subscription is not None:
            raise _mutually_exclusive("DELETE …/subscription first")
        await self.commit_answered()
        self.positions.add(*await self._starts(self.positions.missing(wanted)))
        self.positions.keep(wanted)

    async def subscribe(self, wanted: ConsumerSubscription) -> None:
        """Read what the group gives of these topics from now on. KafkaError where the group does not take it."""
        if self.subscription is None and self.positions:
            raise _mutually_exclusive("assign no partitions first")
        await self.commit_answered()
        member = self._member
        if member is None:
            self._handover = _Handover(self)
            member = self._member = AsyncGroupMember(self._cluster, self._group, self._handover)
        self.subscription = wanted
        try:
            member.subscribe(topics=wanted.topics or None, pattern=wanted.pattern)
            await member.joined(_JOIN_S)
        except BaseException:
            await self._leave()
            raise

    async def unsubscribe(self) -> None:
        """Read nothing from now on."""
        await self.commit_answered()
        await self._leave()

    async def end(self) -> None:
        """Leave the group; nothing is committed."""
        self.is_ended = True
        await self._leave()

    async def _leave(self) -> None:
        member, self._member = self._member, None
        self.subscription = None
        self.positions.keep(())
        if member is not None:
            await member.close(LEAVE_S)

    async def _starts(
        self, wanted: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """Where these are to be read from, and for which of them that is what the group has committed."""
        found = await self.committed(wanted) if wanted else {}
        committed = {tp: each.offset for tp, each in found.items()}
        fresh = await self._reset([tp for tp in wanted if tp not in committed])
        return fresh | committed, set(committed)

    async def start_given(self) -> None:
        """The same of those that the group gave and that are not read yet."""
        if self._member is None:
            return
        async with self._starting:
            given = self._handover.given
            before = {tp: given[tp] for tp in self.positions.missing(given)}
            positions, committed = await self._starts(before)
            still = {tp for tp, gift in before.items() if self._handover.given.get(tp) is gift}
            self.positions.add({tp: positions[tp] for tp in still}, committed & still)

    async def _reset(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.settings.reset == "none":
            return dict.fromkeys(wanted, UNKNOWN)
        return await self._ends(wanted, EARLIEST if self.settings.reset == "earliest" else LATEST)

    async def _ends(self, wanted: list[TopicPartition], which: int) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        found = await self._cluster.list_offsets(dict.fromkeys(wanted, which), _READ_COMMITTED)
        return {tp: each.offset for tp, each in found.items()}

    async def seek_to_end(self, wanted: list[TopicPartition], *, beginning: bool) -> None:
        """Go on at the first offset of these partitions, or after the last that is committed."""
        self.positions.check(wanted)
        self.positions.seek(await self._ends(wanted, EARLIEST if beginning else LATEST))

    # ---- records -----------------------------------------------------------------------------------------------

    async def read(self, wait_s: float, max_bytes: int, stopping: asyncio.Event) -> ConsumerReadAnswer:
        """The next records: at once, where there are fetch.min.bytes of them, else what there is after so long.

        What was answered before is committed first, with auto.commit.enable. Problem 500 for a record that the format
        cannot show, where it is the next one. A partition that does not answer holds up no other; why it does not is
        raised where nothing else was found meanwhile.
        """
        await self.commit_answered()
        clock = asyncio.get_running_loop()
        end_s = clock.time() + wait_s
        away_end_s = clock.time() + max(wait_s, _AWAY_S)
        pause_s = 0.0
        while True:
            self._check_member()
            await self.start_given()
            answer = await self._answer(max_bytes, pause_s)
            portion = answer.portion
            is_away = answer.away is not None and not portion.records
            left_s = (away_end_s if is_away else end_s) - clock.time()
            enough = portion.records and portion.size >= self.settings.min_bytes
            if enough or left_s <= 0 or self.ends_wanted or stopping.is_set():
                if answer.away is not None and is_away and left_s <= 0:
                    raise answer.away
                return answer
            pause_s = min(left_s, await self._slice_s() if answer.away is None else _SLICE_OF_SEVERAL_S)
            if portion.records:  # a node counts other bytes than those of keys and values
                await asyncio.sleep(min(pause_s, _SLICE_OF_SEVERAL_S))
                pause_s = 0.0
            elif not self.positions:
                await asyncio.sleep(pause_s)
            else:
                self.positions.move(portion.moved, answer.started)

    async def _answer(self, max_bytes: int, pause_s: float) -> ConsumerReadAnswer:
        started = self.positions.positions
        for tp, offset in started.items():
            if offset == UNKNOWN:
                raise _not_now(f"nothing is committed of {tp}, and auto.offset.reset is none: seek by POST …/positions")
        if not started:
            return ConsumerReadAnswer(RecordPortion([], 0, {}), started)
        answers = await self._fetched(started, max_bytes, pause_s)
        still = [tp for tp in self.positions.still(started) if tp in answers]
        refused = {tp: each for tp in still if isinstance(each := answers[tp], DuramenError)}
        away = next((error for error in refused.values() if may_help(error)), None)
        lost = [tp for tp, error in refused.items() if error.code == ErrorCode.OFFSET_OUT_OF_RANGE]
        await self._go_back(lost)
        fetched = {tp: each for tp in still if isinstance(each := answers[tp], FetchedBytes)}
        portion = await self._portion(fetched, max_bytes)
        if portion.unfit is not None:
            tp, offset, why = portion.unfit
            self.positions.move(portion.moved, started)
            self.positions.passed_over(tp)
            raise ProblemError(
                500,
                "unfit-record",
                f"Error deserializing key/value for partition {tp} at offset {offset} as JSON: {why}. "
                f"If needed, please seek past the record to continue consumption (POST …/positions with {offset + 1}).",
            )
        for tp, error in refused.items() if not portion.records else ():
            if tp not in lost and not may_help(error):
                raise error
        return ConsumerReadAnswer(portion, started, away)

    async def _fetched(
        self, wanted: Mapping[TopicPartition, int], max_bytes: int, pause_s: float
    ) -> dict[TopicPartition, FetchedBytes | DuramenError]:
        return await self._cluster.fetch_available(
            wanted,
            max_bytes,
            _READ_COMMITTED,
            max_wait_ms=int(pause_s * 1000),
            min_bytes=self.settings.min_bytes,
            topic_ids=None if self._member is None else self._member.topic_ids,
            timeout_s=_AWAY_S + pause_s,
        )

    async def _portion(self, fetched: Mapping[TopicPartition, FetchedBytes], max_bytes: int) -> RecordPortion:
        steps = portion_steps(fetched, self.settings.embedded, max_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                portion: RecordPortion = end.value
                return portion
            await asyncio.sleep(0)

    async def _go_back(self, lost: list[TopicPartition]) -> None:
        """Partitions whose position is gone go on as auto.offset.reset says."""
        if lost:
            starts = await self._reset(lost)
            self.positions.seek({tp: offset for tp, offset in starts.items() if tp in self.positions.partitions})

    async def _slice_s(self) -> float:
        leaders = {await self._cluster.leader(tp) for tp in list(self.positions.partitions)}
        if not leaders:
            return _SLICE_S if self._member is None else _SLICE_OF_NONE_S
        return _SLICE_S if len(leaders) == 1 else _SLICE_OF_SEVERAL_S

    def is_current(self, handover: _Handover) -> bool:
        """Whether it is of the present membership."""
        return self._member is not None and self._handover is handover

    def _check_member(self) -> None:
        """Raise what has ended the membership."""
        if self._member is not None and self._member.failure is not None:
            raise self._member.failure

    def sent(self, answer: ConsumerReadAnswer) -> None:
        """The answer has left: the next one goes on after it."""
        if answer.records:
            self.positions.answered(answer.portion.moved, answer.started)
        else:
            self.positions.move(answer.portion.moved, answer.started)

    # ---- commits -----------------------------------------------------------------------------------------------

    async def committed(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """What the group has committed of these partitions."""
        return await (self._offsets if self._member is None else self._member).committed(wanted)

    async def commit(self, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Commit these offsets. KafkaError where they are not the consumer's to commit, or not any more."""
        if offsets:
            await (self._offsets if self._member is None else self._member).commit(offsets)
            self.positions.committed({tp: each.offset for tp, each in offsets.items()})

    async def commit_all(self) -> None:
        """Commit where the consumer is. PartitionNotAssignedError, once, where the group has given away a partition
        of which something was answered and not committed; what is left is committed then."""
        unsaved = self.positions.take_unsaved()
        await self._commit_positions()
        if unsaved:
            raise PartitionNotAssignedError(self._group, unsaved[0])

    async def commit_answered(self) -> None:
        """Commit where the consumer is, with auto.commit.enable. What the group has given away meanwhile is another
        consumer's to answer again; of topics that were deleted there is nothing to commit."""
        if self.settings.auto_commit:
            self.positions.take_unsaved()
            with suppress(PartitionNotAssignedError):
                try:
                    await self._commit_positions()
                except KafkaError as error:
                    if error.code not in _GONE:
                        raise
                    await self._commit_what_is_there()

    async def _commit_what_is_there(self) -> None:
        """Commit topic by topic. One that is gone is not tried again: its partitions do not hold up the others."""
        uncommitted = self.positions.uncommitted
        for topic in {tp.topic for tp in uncommitted}:
            offsets = {tp: offset for tp, offset in uncommitted.items() if tp.topic == topic}
            try:
                await self.commit({tp: GroupOffset(offset) for tp, offset in offsets.items()})
            except KafkaError as error:
                if error.code not in _GONE:
                    raise
                self.positions.committed(offsets)

    async def _commit_positions(self) -> None:
        await self.commit({tp: GroupOffset(offset) for tp, offset in self.positions.uncommitted.items()})


class _Handover:
    """What the group tells a consumer, in between its requests. given: its partitions, and what tells this time from
    another one."""

    def __init__(self, consumer: ConsumerInstance) -> None:
        self._consumer = consumer
        self.given: dict[TopicPartition, object] = {}

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Where to begin is looked up at once, so that what comes from now on is read; else at the next read."""
        self.given.update((tp, object()) for tp in partitions)
        with suppress(DuramenError):
            await self._consumer.start_given()

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """What was answered last is not committed: its client has not come back for more."""
        self._take_away(partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """As `revoked`."""
        self._take_away(partitions)

    def _take_away(self, partitions: frozenset[TopicPartition]) -> None:
        for tp in partitions:
            self.given.pop(tp, None)
        if self._consumer.is_current(self):
            self._consumer.positions.take_away(partitions)


def _mutually_exclusive(remedy: str) -> ProblemError:
    return ProblemError(
        409, "consumer-state", f"Subscription to topics, partitions and pattern are mutually exclusive: {remedy}."
    )


def _not_now(why: str) -> ProblemError:
    return ProblemError(409, "consumer-state", f"{why[0].upper()}{why[1:]}.")
