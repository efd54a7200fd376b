"""What a replica that does not lead makes of its leader's answers: append, cut, begin anew, wait, or give up.

Pure. Each Fetch names the end of the follower's log and the epoch of what is there last; the leader compares that with
its own history, and answers with what follows or, where they part, with the end that it has of that epoch (KIP-320,
-595). Then the follower cuts its log where both agree as far as both can know, and asks again, until there is nothing
to cut. An answer counts only while log and leader epoch are what they were when that end was named.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from duramen.errors import ErrorCode
from duramen.model import NO_EPOCH

MOST_PAUSE: Final = 1.0
"""Longest pause (s) behind an error, however often it comes back."""


class FollowerState(Enum):
    """Where a follower stands with its leader."""

    COMPARING = "comparing"
    """Nothing of this epoch is appended before the leader has found that this log is the beginning of its own."""
    FETCHING = "fetching"
    CUTTING = "cutting"
    """What the leader does not have goes, and the log takes no appends until it is gone."""
    WAITING = "waiting"
    """For a pause to pass, or for other metadata."""
    OFFLINE = "offline"
    """It keeps what it has, and follows nobody in this epoch."""


class FollowedLog(Protocol):
    """The follower's log. Offsets are exclusive ends."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int:
        """The latest that it knows, of its last batch most often; -1: none."""

    @property
    def latest_epoch_start(self) -> int:
        """Where that one begins."""

    @property
    def high_watermark(self) -> int: ...

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` that it knows, and its end; (-1, -1) where that is later than all."""


class FetchPosition(NamedTuple):
    """What a Fetch names of one partition: in which epoch it is asked for, from where on, and what is there before."""

    leader_epoch: int
    offset: int
    last_epoch: int


class FetchedPartition(NamedTuple):
    """A leader's answer about one partition. -1: it does not say."""

    error: ErrorCode
    high_watermark: int = -1
    log_start: int = -1
    diverging_epoch: int = -1
    diverging_end: int = -1


class Append(NamedTuple):
    """The histories agree: what the answer brings, if anything, is what comes next."""


class Cut(NamedTuple):
    """Everything from `offset` on goes; at the end of the log, an epoch in which nothing was written."""

    offset: int


class BeginAnew(NamedTuple):
    """The log goes, and begins with `offset`, empty."""

    offset: int


class Pause(NamedTuple):
    """Ask again after so many seconds, or when metadata moves. reason: what an operator should see, once."""

    seconds: float
    reason: str = ""


class GiveUp(NamedTuple):
    """Follow no more in this epoch; nothing is deleted."""

    reason: str


class Ignore(NamedTuple):
    """The answer is to a question that is old by now."""


FollowerStep = Append | Cut | BeginAnew | Pause | GiveUp | Ignore

APPEND: Final = Append()
IGNORE: Final = Ignore()


class Following:
    """One replica's following of one leader after the other."""

    __slots__ = ("_backoff", "_pause", "_told", "epoch", "leader", "named", "named_in", "reason", "state")

    def __init__(self, backoff: float) -> None:
        """backoff: seconds of the first pause behind an error; each one that follows is twice as long."""
        self._backoff = self._pause = backoff
        self.leader = -1
        self.epoch = NO_EPOCH
        self.state = FollowerState.WAITING
        self.reason = ""
        """Why it is offline."""
        self.named: FetchPosition | None = None
        """What the leader goes by; None: nothing that is worth an answer."""
        self.named_in = 0
        """The number of the Fetch that named it: answers to those before it are not about it."""
        self._told = ""
        """What was reported last."""

    def follow(self, leader: int, epoch: int, log: FollowedLog) -> GiveUp | None:
        """`leader` leads from `epoch` on. A step where it cannot be followed."""
        self.leader, self.epoch = leader, epoch
        self.state = FollowerState.COMPARING
        self.reason = ""
        self.named = None
        self._pause = self._backoff
        if log.latest_epoch > epoch:
            # What this node knows of the cluster may be old, or an older snapshot of it: nothing is cut by that.
            return self._give_up(f"the log is in epoch {log.latest_epoch}, and its partition in {epoch}")
        return None

    def forget(self) -> None:
        """What was named is not known to anybody any more: another session, or none."""
        self.named = None

    def wake(self) -> None:
        """A pause is over, or what it waited for has come."""
        if self.state in (FollowerState.WAITING, FollowerState.CUTTING):
            self.state = FollowerState.COMPARING
        self.named = None

    @property
    def is_offline(self) -> bool:
        return self.state is FollowerState.OFFLINE

    # ---- asking and being answered -----------------------------------------------------------------------------

    def name(self, log: FollowedLog, number: int) -> FetchPosition:
        """What Fetch `number` says of this log, all of which is where its topic's durability wants it."""
        self.named = FetchPosition(self.epoch, log.end_offset, log.latest_epoch)
        self.named_in = number
        return self.named

    def hear(self, number: int, answer: FetchedPartition, log: FollowedLog, *, may_lose: bool) -> FollowerStep:
        """What the answer to Fetch `number` means.

        may_lose: whether what is below the watermark may go: in a page-cache topic, or behind an unclean election.
        """
        if self.named is None or number < self.named_in or self.is_offline:
            return IGNORE
        if self.named != (self.epoch, log.end_offset, log.latest_epoch):
            self.named = None
            return IGNORE
        if answer.error is ErrorCode.NONE and answer.diverging_end < 0:
            self.state = FollowerState.FETCHING
            self._pause = self._backoff
            self._told = ""
            return APPEND
        self.named = None
        if answer.error is ErrorCode.NONE:
            return self._diverged(answer.diverging_epoch, answer.diverging_end, log, may_lose=may_lose)
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(answer, log, may_lose=may_lose)
        return self.pause(f"the leader answers {answer.error.name}" if answer.error in _TOLD else "")

    def _diverged(self, epoch: int, end: int, log: FollowedLog, *, may_lose: bool) -> FollowerStep:
        """The leader has no more of `epoch` than `end`, and `epoch` is its largest that is not above what was named.

        -1: all that it has is younger, and it begins at `end`.
        """
        if epoch == NO_EPOCH:
            if end < log.high_watermark and not may_lose:
                return self._loses(end, log)
            self.state = FollowerState.CUTTING
            return BeginAnew(end)
        offset = cut_offset(log, epoch, end)
        if offset is None:
            return self.pause(f"the leader of epoch {self.epoch} compares with epoch {epoch}, which says nothing")
        if offset >= log.end_offset:
            if log.latest_epoch_start < log.end_offset:
                return self.pause("the leader finds another history, and nothing that could be cut")
            offset = log.end_offset
        elif offset < log.high_watermark and not may_lose:
            return self._loses(offset, log)
        self.state = FollowerState.CUTTING
        return Cut(offset)

    def _loses(self, offset: int, log: FollowedLog) -> GiveUp:
        return self._give_up(
            f"the leader of epoch {self.epoch} has other records from {offset} on, and this replica is committed up to "
            f"{log.high_watermark}"
        )

    def _out_of_range(self, answer: FetchedPartition, log: FollowedLog, *, may_lose: bool) -> FollowerStep:
        is_below = answer.log_start > log.end_offset
        is_empty = log.start_offset == log.end_offset
        if is_below or (is_empty and may_lose and 0 <= answer.log_start != log.end_offset):
            self.state = FollowerState.CUTTING
            return BeginAnew(answer.log_start)
        return self.pause(f"the leader says that {log.end_offset} is out of its range")

    def appended(self) -> None:
        """The log has another end: it is to be named anew."""
        self.named = None

    def pause(self, reason: str = "") -> Pause:
        """Something is in the way, of this partition alone."""
        self.state = FollowerState.WAITING
        self.named = None
        seconds, self._pause = self._pause, min(MOST_PAUSE, max(2 * self._pause, 0.001))
        news = reason if reason != self._told else ""
        if reason:
            self._told = reason
        return Pause(seconds, news)

    def _give_up(self, reason: str) -> GiveUp:
        self.state = FollowerState.OFFLINE
        self.reason = reason
        self.named = None
        return GiveUp(reason)


_TOLD: Final = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR})
"""Errors of a leader that do not pass with the next metadata."""


def cut_offset(log: FollowedLog, epoch: int, end: int) -> int | None:
    """Where a follower cuts its log whose leader has `epoch` up to `end`, and no later one that the follower knows.

    None: that says nothing. Where the follower does not have the epoch it cuts at the end of the one before, and the
    next answer says more.
    """
    if epoch < 0 or end < 0:
        return None
    own_epoch, own_end = log.end_of_epoch(epoch)
    if own_epoch < 0:
        return None  # later than all that is here: whoever compared went by something else
    return min(own_end, end) if own_epoch == epoch else own_end
