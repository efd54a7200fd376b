"""The pace of cold reads: whose reply is filled from the disk next, and how fast, so that others do not feel it.

Who reads gigabytes of old data would else take the disk, the processors and the interpreter from those who follow the
end of a log. While nobody else is served, cold reads run at full speed, and what they bring stays in memory: of several
readers only the first waits for the disk. While somebody is, it does not stay there, one runs at a time, and the
next one begins when the bytes of the last have been paid for at `duramen.cold.read.bytes.per.second`. Replies wait in
the order of their requests; a connection has one at most, so readers take turns, and those who have not read their last
one come last. The more of them wait, the less each brings, and none waits for its payment longer than
`PATIENCE_SECONDS`: a delay must not become a client's time-out.

Recent bytes that the machine took out of memory are no such reads: they are read at once and stay in memory, as those
who follow the end need them. And nobody is held back for what was served to himself.

What is read is memory until it is sent: reads of either kind begin only while `UnreadReplies` has room, and bring less
the less there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.ports import Timer, World
from duramen.server.net.loop import after_others
from duramen.server.net.reply_memory import UnreadReplies
from duramen.storage import Recall

if TYPE_CHECKING:
    from duramen.server.net.connection import ClientConnection

RECENT_LANE = "recent"
LANES = ("cold-0", "cold-1")
"""Replies whose cold bytes are read at the same time: more would only share the disk and take turns in Python."""

MOST_RECALLS = 4
"""Replies of which what follows them is brought back at the same time: behind more it would come too late."""

BUSY_SECONDS = 1.0
"""How long others count as being served after a produce request or a reply from memory."""

CATCHING_UP = 2
"""Times the rate at which bytes arrive that old ones may be read: who has fallen behind must be able to catch up."""

METER_SECONDS = 0.5
"""Over how long, at least, the rate of what arrives is measured."""

REPLY_BYTES = 4 << 20
"""Cold bytes in one reply: they are memory until they are sent. More partitions wait for the next request."""

PACED_REPLY_BYTES = 256 << 10
"""The same while others are served: what they may have to wait for at once."""

LEAST_REPLY_BYTES = 64 << 10
"""What a reply may always bring, however many others wait."""

ROUND_SECONDS = 5.0
"""In which all who wait shall have had their turn."""

PATIENCE_SECONDS = 10.0
"""After which a reply is filled whether what went before is paid for or not: clients give up after thirty."""

SEND_SECONDS = 5.0
"""In which a reply leaves at any rate once it is filled."""

LEAST_WAIT_SECONDS = 0.001
"""A timer that comes a rounding error early must not be set again for no time at all."""

CREDIT_SECONDS = 0.05
"""How far behind the clock a payment may begin: what came too late by the timers' inaccuracy is made up for."""

Limit = Callable[[int], int]
"""(most bytes) the work should bring -> what it then may bring; on the loop, when its turn has come."""

Done = Callable[[Any, BaseException | None], None]
"""(result, error) of the work; on the loop."""


class _WaitingReply:
    """A reply that waits for its turn."""

    __slots__ = ("connection", "done", "limit", "recent", "since", "work")

    def __init__(
        self,
        connection: ClientConnection,
        limit: Limit,
        work: Callable[[], Any],
        done: Done,
        since: float,
        *,
        recent: bool,
    ) -> None:
        self.connection = connection
        self.limit = limit
        self.work = work
        self.done = done
        self.since = since
        self.recent = recent


class ColdReads:
    """All cold reads of one broker; on the loop. `arrived` tells how many bytes clients have sent so far."""

    def __init__(self, world: World, arrived: Callable[[], int], unread: UnreadReplies, bytes_per_second: int) -> None:
        clock = self._clock = world.clock
        self._executor = world.executor
        self._unread = unread
        unread.on_room = lambda: clock.call_soon(self._start)
        self._arrived = arrived
        self.bytes_per_second = bytes_per_second
        """While others are served; 0 never holds anybody back."""
        self.busy_at = float("-inf")
        """When somebody was served last who reads nothing from the disk, the latest of them aside."""
        self._latest: ClientConnection | None = None
        self._latest_at = float("-inf")
        self.bytes_read = 0
        self.waited_seconds = 0.0
        """What replies waited for their turn, all together."""
        self._recalling = 0
        self._waiting: deque[_WaitingReply] = deque()
        self._idle = list(LANES)
        self._due = float("-inf")
        self._timer: Timer | None = None
        self._metered = (clock.monotonic(), arrived())
        self._arriving = 0.0

    # ---- what requests ask -----------------------------------------------------------------------------------

    def submit(
        self, connection: ClientConnection, limit: Limit, work: Callable[[], Any], done: Done, *, recent: bool = False
    ) -> None:
        """Run `work` off the loop when its turn has come, then `done`; neither if the connection has ended by then.

        recent: it only brings back what was in memory a moment ago: its turn is now, if there is room.
        """
        now = self._clock.monotonic()
        waiting = _WaitingReply(connection, limit, work, done, now, recent=recent)
        if recent:
            self.served(connection)
            if self._unread.has_room:
                self._run(RECENT_LANE, waiting, lambda: None)
                return
        else:
            connection.read_cold_at = now
        self._waiting.append(waiting)
        if self._is_paced(connection, now):
            after_others(self._clock, self._start)  # this turn has done enough for old data
        else:
            self._start()

    def served(self, connection: ClientConnection) -> None:
        """A reply with records from memory leaves: for somebody else, unless it is one of those who read old data.

        Not called for what is in memory because one of those has read it.
        """
        now = connection.last_active
        if now - connection.read_cold_at > BUSY_SECONDS:
            if connection is not self._latest:
                self.busy_at = max(self.busy_at, self._latest_at)
                self._latest = connection
            self._latest_at = now

    def is_alone(self, reader: ClientConnection) -> bool:
        """Whether nobody else is served: what this one reads may then stay in memory for who reads it next."""
        return not self._is_beside_others(reader, self._clock.monotonic())

    def forget(self, connection: ClientConnection) -> None:
        """The connection has ended: that somebody was served counts on, who it was does not."""
        if connection is self._latest:
            self.busy_at = max(self.busy_at, self._latest_at)
            self._latest = None

    def reply_bytes(self, connection: ClientConnection | None, *, recent: bool = False) -> int:
        """How many cold bytes a reply to this connection may bring now."""
        most, share = REPLY_BYTES, self._unread.share(len(self._waiting))
        if not recent and self._is_paced(connection, self._clock.monotonic()):
            most = PACED_REPLY_BYTES
            share = min(share, int(self.bytes_per_second * ROUND_SECONDS) // (len(self._waiting) + 1))
        return min(most, max(LEAST_REPLY_BYTES, share))

    def leaving(self, connection: ClientConnection, size: int) -> tuple[float, int]:
        """How a reply with so many bytes from the disk leaves: at how many bytes a second (0: at once), and how many
        milliseconds the client may as well wait behind it."""
        debt_ms = self.debt_ms(connection)
        if size == 0 or not self._is_paced(connection, self._clock.monotonic()):
            return 0.0, debt_ms
        rate = max(self._rate, size / SEND_SECONDS)
        return rate, max(0, debt_ms - round(size / rate * 1000))

    def debt_ms(self, connection: ClientConnection | None) -> int:
        """For how many milliseconds no cold read will begin: what a client may as well wait before it asks again."""
        now = self._clock.monotonic()
        return max(0, round((self._due - now) * 1000)) if self._is_paced(connection, now) else 0

    def __len__(self) -> int:
        """Replies that wait."""
        return len(self._waiting)

    # ---- turns -----------------------------------------------------------------------------------------------

    def _is_paced(self, reader: ClientConnection | None, now: float) -> bool:
        return self.bytes_per_second > 0 and self._is_beside_others(reader, now)

    def _is_beside_others(self, reader: ClientConnection | None, now: float) -> bool:
        """Whether somebody else than the reader is being served."""
        busy_at = self.busy_at if reader is not None and reader is self._latest else max(self.busy_at, self._latest_at)
        return now - busy_at < BUSY_SECONDS

    def _start(self) -> None:
        """Begin what may begin now, and come back when more may."""
        while self._idle and (waiting := self._next()) is not None:
            now = self._clock.monotonic()
            if self._is_paced(waiting.connection, now):
                if len(self._idle) < len(LANES):
                    return
                due = min(self._due, waiting.since + PATIENCE_SECONDS)
                if now < due:
                    if self._timer is None:
                        # Looked at again sooner where the payment is a large one: the others may have fallen silent.
                        wait = min(max(due - now, LEAST_WAIT_SECONDS), BUSY_SECONDS)
                        self._timer = self._clock.call_later(wait, self._on_due)
                    return
            self._waiting.remove(waiting)
            self.waited_seconds += now - waiting.since
            lane = self._idle.pop()
            self._run(lane, waiting, partial(self._idle.append, lane))

    def _next(self) -> _WaitingReply | None:
        """Whose turn it is, if anybody's: who has a reply unread comes last, and not at all while memory is short."""
        while self._waiting and self._waiting[0].connection.closed:
            self._waiting.popleft()
        if not self._waiting or not self._unread.has_room:
            return None
        last = self._waiting[0] if self._unread.short_since is None else None
        ready = (each for each in self._waiting if not each.connection.closed)
        return next((each for each in ready if each.connection.outbox.unread_since is None), last)

    def _on_due(self) -> None:
        self._timer = None
        after_others(self._clock, self._start)

    def _run(self, lane: str, waiting: _WaitingReply, free: Callable[[], None]) -> None:
        size = waiting.limit(self.reply_bytes(waiting.connection, recent=waiting.recent))

        def arrived(result: Any, error: BaseException | None) -> None:
            if waiting.recent:
                finished(result, error)
            else:
                after_others(self._clock, partial(finished, result, error))

        def finished(result: Any, error: BaseException | None) -> None:
            free()
            self._unread.give(size)
            try:
                waiting.done(result, error)
            finally:
                self._start()

        self._unread.take(size)
        self._executor.submit(lane, waiting.work, arrived)

    def recall(self, recalls: Sequence[Recall]) -> None:
        """Bring back what somebody will probably read next. Nobody waits for it, and errors are for who reads it."""
        if not recalls or self._recalling >= MOST_RECALLS:
            return
        self._recalling += 1

        def work() -> None:
            for recall in recalls:
                recall.run()

        def done(result: Any, error: BaseException | None) -> None:
            self._recalling -= 1
            for recall in recalls:
                recall.complete()

        self._executor.submit(RECENT_LANE, work, done)

    def pay(self, connection: ClientConnection | None, size: int) -> None:
        """So many bytes came from the disk: the next read waits until they are paid for."""
        now = self._clock.monotonic()
        self.bytes_read += size
        began, before = self._metered
        if now - began >= METER_SECONDS:
            self._metered = now, self._arrived()
            self._arriving = (self._metered[1] - before) / (now - began)
        if self._is_paced(connection, now):
            due = max(self._due, now - CREDIT_SECONDS) + size / self._rate
            self._due = min(due, now + PATIENCE_SECONDS)  # nobody waits longer: the rate may be raised, or tiny

    @property
    def _rate(self) -> float:
        return max(self.bytes_per_second, CATCHING_UP * self._arriving)

    def close(self) -> None:
        """Begin nothing any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
