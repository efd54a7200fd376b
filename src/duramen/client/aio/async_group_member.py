"""A member of a consumer group on asyncio: it joins, sends heartbeats, and hands partitions over (KIP-848)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.aio.async_group_offsets import AsyncGroupOffsets
from duramen.client.protocol.group_member import (
    CONSUMER_GROUP_HEARTBEAT,
    FIRST_VERSION_WITH_OWN_IDS,
    GroupMembership,
    MembershipChange,
    MembershipEvent,
    MembershipState,
)
from duramen.client.protocol.group_offsets import NO_MEMBER, Committer, GroupOffset, PartitionNotAssignedError
from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.outcomes import may_help
from duramen.client.protocol.routes import GROUP, CoordinatorKey
from duramen.errors import ClosedError, DeadlineError, DuramenError, ErrorCode, KafkaError
from duramen.model import TopicId, TopicPartition

_T = TypeVar("_T")
_ATTEMPT_S: Final = 5.0
"""How long one heartbeat is waited for; the session at the coordinator lasts 45 s by default."""
_NAMES_S: Final = 2.0
_NAMES_PAUSE_S: Final = 0.2
_REMOVED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


class AssignmentListener(Protocol):
    """Whoever reads a member's partitions. One call at a time, in the order in which things happen, while the member
    goes on sending heartbeats. A call that raises, or takes longer than the rebalance time-out, ends the membership."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These are the member's from now on: read on from `AsyncGroupMember.committed`."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop reading these and commit how far they were read; on return another member may have them."""

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop reading these and commit nothing: the group has removed the member, and others may have them. The member
        joins again on return."""


class _NoListener:
    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """As AssignmentListener."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """As AssignmentListener."""

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """As AssignmentListener."""


class AsyncGroupMember:
    """A member of a consumer group, whose coordinator assigns the partitions; for the tasks of the cluster's event
    loop. Use it with `async with`, or `close` it, which leaves the group.

        async with AsyncGroupMember(cluster, "group", listener) as member:
            member.subscribe(topics=["orders"])
            await member.joined()
            ...  # the listener is called for each change; `member.assignment` has the partitions
            await member.commit({TopicPartition("orders", 0): GroupOffset(42, leader_epoch=3)})

    It needs a cluster that serves ConsumerGroupHeartbeat (Duramen, Apache Kafka 4.0 or newer); elsewhere `failure` is
    an error UNSUPPORTED_VERSION. listener: None for a program that looks at `assignment` alone. member_id: a UUID as
    text; None makes one. rebalance_timeout_s: how long the listener may take to give partitions up before the group
    removes the member. instance_id: of a static member, whose partitions are kept for its return for the length of
    its session. assignor: "uniform", "range"; None: the cluster's.

    Coordinators that move, load or are away are looked for until they answer; reading may go on meanwhile. A member
    that was removed joins again. Errors that no repetition mends (a group that is full, no permission, a bad
    expression, an instance id that another member has, ...) end the membership: `failure`.
    """

    def __init__(
        self,
        cluster: AsyncCluster,
        group: str,
        listener: AssignmentListener | None = None,
        *,
        member_id: str | None = None,
        rebalance_timeout_s: float = 300.0,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._listener = listener or _NoListener()
        self._rebalance_timeout_s = rebalance_timeout_s
        self._machine = GroupMembership(
            group,
            member_id or str(uuid.uuid4()),
            rebalance_timeout_ms=int(rebalance_timeout_s * 1000),
            instance_id=instance_id,
            assignor=assignor,
        )
        self._route = CoordinatorKey(group, GROUP)
        self._offsets = AsyncGroupOffsets(cluster, group)
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._events: asyncio.Queue[MembershipEvent] = asyncio.Queue()
        self._negotiated = False
        self._names_due = 0.0
        self._given_up: frozenset[TopicPartition] = frozenset()
        """What the listener has stopped reading and is not acknowledged yet: no commit may begin."""
        self._committing: list[frozenset[TopicPartition]] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- what it is ------------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The group's id."""
        return self._machine.group

    @property
    def member_id(self) -> str:
        """Its id in the group."""
        return self._machine.member_id

    @property
    def epoch(self) -> int:
        """Its epoch in the group; -1 while it is not in it."""
        return self._machine.epoch

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are its own now. One that is being revoked counts until the listener has given it up."""
        return self._machine.assignment

    @property
    def topic_ids(self) -> dict[str, TopicId]:
        """By name, of the topics in `assignment`, for reads that are never of another topic of that name."""
        return self._machine.topic_ids

    @property
    def failure(self) -> BaseException | None:
        """What ended the membership, None while nothing has. `subscribe` clears it and joins again."""
        return self._machine.failure

    # ---- joining and leaving ---------------------------------------------------------------------------------

    def subscribe(self, *, topics: Iterable[str] | None = None, pattern: str | None = None) -> None:
        """Read these topics from now on, or those whose whole name the expression matches (RE2, evaluated by the
        cluster), or both; join if it is not in the group. ConfigError for neither, ClosedError once it is closed."""
        if self._closed:
            raise ClosedError("this member was closed")
        self._machine.subscribe(topics, pattern, self._now())
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._send_heartbeats()), asyncio.create_task(self._call_listener())]
            for task in self._tasks:
                task.add_done_callback(self._ended)
        self._publish()

    async def joined(self, timeout_s: float = 30.0) -> None:
        """Wait until the group has it with its present subscription; what is assigned may come later. Raises `failure`,
        or DeadlineError."""
        machine = self._machine
        await self._when(
            lambda: machine.is_known or machine.failure is not None or machine.state is MembershipState.OUTSIDE,
            f"joining group {self.group}",
            timeout_s,
        )
        if machine.failure is not None:
            raise machine.failure
        if not machine.is_known:
            raise ClosedError(f"this member has left group {self.group}")

    async def unsubscribe(self, timeout_s: float = 30.0) -> None:
        """Leave the group; `subscribe` joins again. On return the listener has given everything up. DeadlineError."""
        self._machine.leave(self._now())
        self._publish()
        await self._when(lambda: self._machine.is_over, f"leaving group {self.group}", timeout_s)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Leave the group, after the listener has given everything up, and end. Where that is not done in time the
        member just ends, and the group has its partitions when its session is over."""
        if self._closed:
            return
        self._closed = True
        try:
            with suppress(DeadlineError):
                if self._tasks:
                    await self.unsubscribe(timeout_s)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # ---- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, GroupOffset], *, timeout_s: float = 30.0) -> None:
        """Commit how far partitions of `assignment` were read; on stable storage when it returns.

        PartitionNotAssignedError for any other partition, KafkaError where the coordinator refuses, DeadlineError. What
        is under way when a partition is given up is waited for before another member gets it.
        """
        partitions = frozenset(offsets)

        async def attempt(committer: Committer, left_s: float) -> None:
            for tp in offsets:
                if tp in self._given_up or tp not in self._machine.assignment:
                    raise PartitionNotAssignedError(self.group, tp)
            await self._offsets.commit(offsets, committer, topic_ids=self._machine.topic_ids, timeout_s=left_s)

        self._committing.append(partitions)
        try:
            await self._at_epoch(f"commit of group {self.group}", attempt, timeout_s)
        finally:
            self._committing.remove(partitions)
            self._notify()

    async def committed(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, GroupOffset]:
        """What the group has committed of these partitions; those of which nothing is are left out. Errors as
        `AsyncGroupOffsets.committed`."""

        async def attempt(committer: Committer, left_s: float) -> dict[TopicPartition, GroupOffset]:
            topic_ids = self._machine.topic_ids
            return await self._offsets.committed(partitions, committer, topic_ids=topic_ids, timeout_s=left_s)

        return await self._at_epoch(f"offsets of group {self.group}", attempt, timeout_s)

    async def _at_epoch(self, what: str, ask: Callable[[Committer, float], Awaitable[_T]], timeout_s: float) -> _T:
        """What `ask` returns at the member's epoch, asked again at the next one where that is an old one."""
        machine = self._machine
        end = self._now() + timeout_s
        while True:
            epoch = machine.epoch
            committer = NO_MEMBER if epoch < 0 else Committer(machine.member_id, epoch, machine.instance_id)
            try:
                return await ask(committer, max(end - self._now(), 0.0))
            except KafkaError as error:
                is_stale = error.code is ErrorCode.STALE_MEMBER_EPOCH
                if is_stale or error.code in _REMOVED:
                    machine.refresh(self._now())
                    self._wake.set()
                if not is_stale:
                    raise
                stale = error
            try:
                await self._when(lambda: machine.epoch != epoch, what, end - self._now())  # noqa: B023
            except DeadlineError:
                raise DeadlineError(f"{what}: not done within {timeout_s:g} s", stale) from stale

    # ---- tasks -----------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        machine = self._machine
        while True:
            self._wake.clear()
            now = self._now()
            request = machine.heartbeat(now)
            if request is not None:
                await self._send(request)
            elif machine.unnamed and self._names_due <= now:
                await self._find_names()
            else:
                moments = [moment for moment in (machine.due, self._names_due if machine.unnamed else None) if moment]
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(moments, default=None)):
                        await self._wake.wait()
            self._publish(wakes=False)

    async def _send(self, request: Any) -> None:
        machine = self._machine
        try:
            if not self._negotiated:
                version = (await self._cluster.api_versions()).version(CONSUMER_GROUP_HEARTBEAT)
                if version < FIRST_VERSION_WITH_OWN_IDS:
                    request.member_id = machine.member_id = ""
                self._negotiated = True
            # Not sent again as it is: after a lost answer the next one says everything.
            response = await self._cluster.call(
                self._route, CONSUMER_GROUP_HEARTBEAT, request, resend=False, timeout_s=_ATTEMPT_S
            )
        except DuramenError as error:
            machine.failed(error, self._now())
            return
        if error_code(response.error_code).retriable:
            self._cluster.forget(self._route)
        machine.answered(response, self._now())

    async def _find_names(self) -> None:
        names: dict[TopicId, str] = {}
        try:
            names = await self._cluster.topic_names(self._machine.unnamed, timeout_s=_NAMES_S)
        except DuramenError as error:
            if not isinstance(error, DeadlineError) and not may_help(error):
                self._machine.give_up(error, self._now())
        self._names_due = self._now() + _NAMES_PAUSE_S
        self._machine.name(names)

    async def _call_listener(self) -> None:
        machine, listener = self._machine, self._listener
        calls = {
            MembershipChange.ASSIGNED: listener.assigned,
            MembershipChange.REVOKED: listener.revoked,
            MembershipChange.LOST: listener.lost,
        }
        while True:
            event = await self._events.get()
            call = asyncio.ensure_future(calls[event.change](event.partitions))
            try:
                await asyncio.wait([call], timeout=self._rebalance_timeout_s)
            finally:
                is_late = call.cancel()
                await asyncio.wait([call])
            if error := self._listener_error(call, event, is_late=is_late):
                machine.give_up(error, self._now())
            if event.change is not MembershipChange.ASSIGNED:
                self._given_up = event.partitions
                await self._when(lambda: not any(each & self._given_up for each in self._committing))
                machine.acknowledge(event, self._now())
                self._given_up = frozenset()
            self._publish()

    def _listener_error(
        self, call: asyncio.Future[None], event: MembershipEvent, *, is_late: bool
    ) -> BaseException | None:
        if not is_late:
            return ClosedError("the listener was cancelled") if call.cancelled() else call.exception()
        what = f"the listener of a member of group {self.group} took longer than {self._rebalance_timeout_s:g} s"
        return DeadlineError(f"{what} over partitions {event.change.value}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that ends by itself has met a bug; whoever waits for the member sees it."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._machine.failure = error
            self._notify()

    def _publish(self, *, wakes: bool = True) -> None:
        """Hand on what the machine has decided."""
        for event in self._machine.events():
            self._events.put_nowait(event)
        if wakes:
            self._wake.set()
        self._notify()

    def _notify(self) -> None:
        """Have everybody who waits for something look again."""
        self._changed.set()
        self._changed.clear()

    async def _when(self, holds: Callable[[], bool], what: str = "", timeout_s: float | None = None) -> None:
        """Return once it is so; DeadlineError."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineError(f"{what}: not done within {timeout_s:g} s") from None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
