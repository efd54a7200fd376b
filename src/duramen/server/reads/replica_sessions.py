"""Fetch sessions of replicas: what a follower has of each partition, and which of them have something for it.

A follower names a partition when its position has changed, or when it has taken what it was sent; until then it counts
as *answered*, and nothing is read for it. So a request costs what it names and an answer what it brings: an append puts
its partition on the session's list once, a Fetch that waits is one registration, and an idle poll touches no partition.

    quiet ──▶ ready (records, or an error) ──▶ answered ──▶ quiet, when it is named again
      │ └──▶ reading (off the loop) ──▶ ready
      └────▶ late (another high watermark or log start alone) ──▶ told, and quiet

Such a session is its connection's, is not counted among consumers', and ends with its connection. One Fetch waits in it
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from duramen.model import TopicId
from duramen.partition.replica.partition import Partition
from duramen.ports import Clock, Entropy, Executor, Timer
from duramen.server.net.loop import after_others
from duramen.server.reads.fetch_sessions import NO_SESSION, Records
from duramen.storage import Pending

if TYPE_CHECKING:
    from duramen.server.net.connection import ClientConnection

LATE_SECONDS = 0.02
"""In which a follower hears of a high watermark that moved, or a log start, where no records take them along."""

COLD_BYTES = 4 << 20
"""What a session may have read off the loop and not sent yet, or be reading: a single read of more aside."""

LANE: Final = "replica"
CATCH_UP_LANE: Final = "replica-catch-up"
"""Replicas that are far behind read in a lane of their own: who is in sync never waits for them."""

QUIET: Final = 0
LATE: Final = 1
READY: Final = 2
READING: Final = 3
STARVED: Final = 4
"""It would be read off the loop, and the session has no room for what that brings."""
ANSWERED: Final = 5


class ReplicaPosition:
    """What a follower has of one partition, and what it was told of it."""

    __slots__ = (
        "brought_back",
        "epoch",
        "failure",
        "found",
        "index",
        "max_bytes",
        "offset",
        "partition",
        "reserved",
        "state",
        "told_damage",
        "told_high_watermark",
        "told_log_start",
        "topic_id",
        "turn",
        "unwritten",
        "verdict",
    )

    def __init__(self, topic_id: TopicId, index: int) -> None:
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        """Where it is led here, and the follower may have it."""
        self.epoch = -1
        """The leader epoch it is followed in."""
        self.offset = -1
        self.max_bytes = 0
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.state = ANSWERED
        self.verdict: Any = None
        """What it is told instead of records."""
        self.turn = 0
        """Counts how often it was named: what was read before is of no use."""
        self.found: Records | None = None
        """What was read off the loop."""
        self.failure: BaseException | None = None
        """Why that failed."""
        self.brought_back = False
        """Whether what was to be read is in memory again, for the same read to send."""
        self.unwritten = False
        """Whether its records were looked for in front of the commit that writes them."""
        self.reserved = 0
        """Of the session's COLD_BYTES."""
        self.told_damage = ""
        """Reported last."""

    @property
    def is_led(self) -> bool:
        """Whether it is still led here in the epoch that the follower named."""
        partition = self.partition
        if partition is None or partition.closed:
            return False
        replication = partition.replication
        return replication.is_leader and replication.epoch == self.epoch


class Answering(Protocol):
    """Answers the Fetch that waits. due: with what there is, be it nothing (`expired`) or too little."""

    def __call__(self, *, due: bool, expired: bool) -> None: ...


class ReplicaSession:
    """One follower's partitions on one connection. node_id, broker_epoch: who it is.

    counts_log_ends: its offsets tell what is written there, and not what is durable. answer: sends what is ready.
    """

    def __init__(
        self,
        session_id: int,
        node_id: int,
        broker_epoch: int,
        clock: Clock,
        executor: Executor,
        *,
        counts_log_ends: bool = False,
        is_far_behind: bool = False,
    ) -> None:
        self.id = session_id
        """NO_SESSION: it is for one request alone."""
        self.epoch = 1
        """Of the next request."""
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.counts_log_ends = counts_log_ends
        self.positions: dict[tuple[TopicId, int], ReplicaPosition] = {}
        self.ready: dict[ReplicaPosition, None] = {}
        """In the order in which they became so: who had records goes last."""
        self.late: dict[ReplicaPosition, None] = {}
        self.closed = False
        self.answer: Answering = _nothing
        self._lane = CATCH_UP_LANE if is_far_behind else LANE
        self._clock = clock
        self._executor = executor
        self._watched: dict[Partition, ReplicaPosition] = {}
        self._moved = self.moved  # one object, however many partitions know it
        self._waits = False
        self._waking = False
        self._expiry: Timer | None = None
        self._late_timer: Timer | None = None
        self._starved: dict[ReplicaPosition, None] = {}
        self._reserved = 0

    # ---- what the follower says ------------------------------------------------------------------------------

    def name(self, topic_id: TopicId, index: int) -> ReplicaPosition:
        """The position that the follower names: what was read for it before is of no use."""
        key = (topic_id, index)
        position = self.positions.get(key)
        if position is None:
            position = self.positions[key] = ReplicaPosition(topic_id, index)
        else:
            self._settle(position, ANSWERED)
        position.turn += 1
        return position

    def follow(self, position: ReplicaPosition, partition: Partition) -> None:
        """The follower may have what it lacks of this partition."""
        if position.partition is not partition:
            self._unfollow(position)
            position.partition = partition
            position.told_high_watermark = position.told_log_start = -1
            self._watched[partition] = position
            partition.watch_end(self._moved)
        position.state = QUIET
        self.moved(partition)

    def refuse(self, position: ReplicaPosition, verdict: Any) -> None:
        """The follower is told this instead."""
        self._unfollow(position)
        position.verdict = verdict
        self._make_ready(position)

    def forget(self, topic_id: TopicId, index: int) -> None:
        """The follower does not want it any more."""
        position = self.positions.pop((topic_id, index), None)
        if position is not None:
            self._settle(position, ANSWERED)
            self._unfollow(position)
            position.turn += 1

    def _unfollow(self, position: ReplicaPosition) -> None:
        partition, position.partition = position.partition, None
        if partition is not None:
            del self._watched[partition]
            partition.unwatch_end(self._moved)

    # ---- what happens here -----------------------------------------------------------------------------------

    def moved(self, partition: Partition) -> None:
        """Its log end, high watermark, log start or leadership is another one."""
        position = self._watched.get(partition)
        if position is None:
            return
        state = position.state
        if state > LATE:
            if state == READY:
                self._wake_soon()  # it may be enough by now
        elif partition.log.end_offset > position.offset or not position.is_led:
            self._make_ready(position)
        elif state == QUIET and (
            partition.replication.high_watermark != position.told_high_watermark
            or partition.log.start_offset != position.told_log_start
        ):
            position.state = LATE
            self.late[position] = None
            self._be_late()

    def _make_ready(self, position: ReplicaPosition) -> None:
        if position.state == LATE:
            del self.late[position]
        position.state = READY
        self.ready[position] = None
        self._wake_soon()

    def _wake_soon(self) -> None:
        """Answer behind the commit of this turn: with all that the turn brought."""
        if self._waits and not self._waking:
            self._waking = True
            after_others(self._clock, self._wake)

    def _wake(self) -> None:
        self._waking = False
        if self._waits and self.ready:
            self.answer(due=False, expired=False)

    def look_again(self, position: ReplicaPosition) -> None:
        """Its records are not written yet: they will be with the next commit, or later where the disk is full."""
        if position.unwritten:
            self._be_late()
        else:
            position.unwritten = True
            self._wake_soon()

    def _be_late(self) -> None:
        if self._waits and self._late_timer is None:
            self._late_timer = self._clock.call_later(LATE_SECONDS, self._is_late)

    def _is_late(self) -> None:
        self._late_timer = None
        if self._waits and (self.late or self.ready):
            self.answer(due=True, expired=False)

    # ---- waiting ---------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """A Fetch is here: it is answered when there is something for it, or after so long."""
        self._waits = True
        self._expiry = self._clock.call_later(max(seconds, 0.0), self._expire)
        if self.ready:
            self._wake_soon()
        if self.late:
            self._be_late()

    def interrupt(self) -> None:
        """Another Fetch is here: the one that waits, if one does, is answered with what there is."""
        if self._waits:
            self.answer(due=True, expired=True)

    def end_wait(self) -> None:
        """It is being answered."""
        self._waits = False
        self.answer = _nothing
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        self._expiry = None
        if self._waits:
            self.answer(due=True, expired=True)

    def told(self, position: ReplicaPosition, data: Any, *, answered: bool) -> None:
        """The follower is sent this of it; answered: it has to name it before it gets more."""
        position.told_high_watermark = data.high_watermark
        position.told_log_start = data.log_start_offset
        self._settle(position, ANSWERED if answered else QUIET)

    def _settle(self, position: ReplicaPosition, state: int) -> None:
        """Take it from whatever list it is on, and let go what was read for it."""
        before = position.state
        if before == READY:
            del self.ready[position]
        elif before == LATE:
            del self.late[position]
        elif before == STARVED:
            del self._starved[position]
        position.state = state
        position.verdict = position.found = position.failure = None
        position.brought_back = position.unwritten = False
        self._reserved -= position.reserved
        position.reserved = 0
        if self._starved:
            self._feed()

    def close(self) -> None:
        """Nobody asks in it any more."""
        self.closed = True
        self.end_wait()
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        for position in self.positions.values():
            self._unfollow(position)
            position.turn += 1
        self.positions = {}
        self.ready = {}
        self.late = {}
        self._starved = {}

    # ---- reads off the loop ----------------------------------------------------------------------------------

    def read_off_loop(self, position: ReplicaPosition, pending: Pending) -> None:
        """Have its next records read off the loop; others of the session do not wait for them."""
        del self.ready[position]
        if self._reserved and self._reserved + pending.size > COLD_BYTES:
            position.state = STARVED
            self._starved[position] = None
            return
        position.state = READING
        if position.brought_back:
            pending.recall = None  # it was taken out of memory again
        pending.limit(pending.size)
        self._reserved += pending.size
        self._executor.submit(
            self._lane, partial(_read, pending), partial(self._was_read, position, position.turn, pending)
        )

    def _was_read(
        self, position: ReplicaPosition, turn: int, pending: Pending, found: Records | None, error: BaseException | None
    ) -> None:
        pending.complete()
        self._reserved -= pending.size
        if self.closed:
            return
        if position.turn == turn:
            span = pending.span
            if error is not None:
                position.failure = error.with_traceback(None)  # which would keep all that was read
            elif found is None:
                position.brought_back = True
            elif not found.size:
                pass  # nothing is left where it was looked for, and the next read goes on
            elif span is not None:
                position.found = Records([span], span.length)
            else:
                position.found = found
                position.reserved = pending.size
                self._reserved += pending.size
            self._make_ready(position)
        if self._starved:
            self._feed()

    def _feed(self) -> None:
        """Look again at so many of those who wait for room as there is room for."""
        room = COLD_BYTES - self._reserved
        while self._starved and room > 0:
            position = next(iter(self._starved))
            del self._starved[position]
            room -= max(position.max_bytes, 1)
            self._make_ready(position)


def _read(pending: Pending) -> Records | None:
    """Any thread: verified records; None where they are in memory again, from where the same read takes them."""
    if pending.bring_back():
        return None
    data = pending.run().data
    kept = bytes(data) if 2 * len(data) < len(data.obj) else data  # type: ignore[arg-type]
    return Records([kept] if len(kept) else [], len(kept))


def _nothing(*, due: bool, expired: bool) -> None:
    """Nobody waits."""


class ReplicaSessions:
    """Those of one broker, by their connections."""

    def __init__(self, clock: Clock, executor: Executor, entropy: Entropy) -> None:
        self._clock = clock
        self._executor = executor
        self._entropy = entropy
        self._sessions: dict[ClientConnection, tuple[ReplicaSession, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, connection: ClientConnection) -> ReplicaSession | None:
        """The connection's session."""
        found = self._sessions.get(connection)
        return None if found is None else found[0]

    def begin(
        self,
        connection: ClientConnection,
        node_id: int,
        broker_epoch: int,
        *,
        counts_log_ends: bool = False,
        is_far_behind: bool = False,
        is_lasting: bool = True,
    ) -> ReplicaSession:
        """A new session in the place of the one that the connection may have."""
        self.end(connection)
        session_id = NO_SESSION
        while is_lasting and session_id == NO_SESSION:
            session_id = int.from_bytes(self._entropy.random_bytes(4), "big") & 0x7FFFFFFF
        session = ReplicaSession(
            session_id,
            node_id,
            broker_epoch,
            self._clock,
            self._executor,
            counts_log_ends=counts_log_ends,
            is_far_behind=is_far_behind,
        )
        end = partial(self.end, connection)
        self._sessions[connection] = session, end
        connection.on_close(end)
        return session

    def end(self, connection: ClientConnection) -> None:
        """Forget its session, if there is one, and what it watches."""
        found = self._sessions.pop(connection, None)
        if found is not None:
            session, end = found
            connection.forget(end)
            session.close()
