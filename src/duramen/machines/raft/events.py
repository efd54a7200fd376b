"""What the shell tells the quorum's machine."""

from __future__ import annotations

from typing import NamedTuple

from duramen.machines.raft.messages import Request, Response


class Started(NamedTuple):
    """The log is open; comes once, before everything else."""


class DeadlinePassed(NamedTuple):
    """The machine's `deadline` is over."""


class StateSaved(NamedTuple):
    """The state of SaveState(version), or of a later one, is on stable storage."""

    version: int


class LogMoved(NamedTuple):
    """The log's end or durable end changed: an append, a group commit, a cut, a snapshot that it begins with now."""


class Received(NamedTuple):
    """A request came in; `ticket` stands for whoever waits for the answer."""

    ticket: int
    sender: int
    request: Request


class Replied(NamedTuple):
    """What came of a Send: its answer, or None when it was lost, timed out or refused by the network."""

    to: int
    request: Request
    response: Response | None


class PeerDied(NamedTuple):
    """The connection to that process ended, and its address refuses now: it is gone, not silent (CLUSTER.md §3.6)."""

    id: int


class LoopWasLate(NamedTuple):
    """This node's own loop stood still, so that what others sent was not read."""

    seconds: float


class Stopping(NamedTuple):
    """The process is about to end in good order."""


class AppendFailed(NamedTuple):
    """The own log takes no more writes."""


class SnapshotFailed(NamedTuple):
    """The snapshot of LoadSnapshot could not be had, or is not whole."""


class AnswerParked(NamedTuple):
    """Whoever waits for records is to fetch again, which shows that it still follows."""


Event = (
    Started
    | DeadlinePassed
    | StateSaved
    | LogMoved
    | Received
    | Replied
    | PeerDied
    | LoopWasLate
    | Stopping
    | AppendFailed
    | SnapshotFailed
    | AnswerParked
)
