"""What the quorum's machine asks of the shell; executed in order."""

from __future__ import annotations

from typing import NamedTuple

from duramen.machines.raft.election_state import ElectionState
from duramen.machines.raft.messages import FetchRequest, FetchResponse, Request, Response, SnapshotRequest
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.voters import VoterEndpoint

ANYBODY = -1
"""To whom a Send goes that looks for the leader: one of the bootstrap servers."""


class SaveState(NamedTuple):
    """Write and sync this off the loop, then say StateSaved; of several only the last one need be written."""

    version: int
    state: ElectionState


class Send(NamedTuple):
    """Comes back as one Replied. endpoint: where that node listens, as far as is known here."""

    to: int
    request: Request
    endpoint: VoterEndpoint | None


class Answer(NamedTuple):
    """The answer to the request with this ticket."""

    ticket: int
    response: Response


class BecameLeader(NamedTuple):
    """Append the LeaderChange record of this epoch, and KRaftVersion and Voters behind it where the log has none."""

    epoch: int
    granted: tuple[int, ...]
    """Who voted for it."""


class TakeRecords(NamedTuple):
    """Append the records of this response: they begin at the log's end, in this epoch. Or say AppendFailed."""

    response: FetchResponse


class Truncate(NamedTuple):
    """Cut the log here: what lies above is not in the leader's."""

    offset: int


class LoadSnapshot(NamedTuple):
    """Fetch this snapshot from the leader, check all of it, then begin the log anew at its end.

    It ends with LogMoved or SnapshotFailed, or is given up when `Raft.loading` is not this one any more. Each answer
    on the way is told as Replied. The same one again, while it is under way, changes nothing.
    """

    leader_id: int
    snapshot: OffsetEpoch


class CommitAdvanced(NamedTuple):
    """All below `offset` is committed, and in the log here."""

    offset: int


class LeaderChanged(NamedTuple):
    """Who leads (-1: nobody is known) in which epoch; whether this node does is told by the machine's role."""

    leader_id: int
    epoch: int


class ReadLog(NamedTuple):
    """Read whole batches from `offset`, uncommitted ones too, and answer with what `Raft.fetch_answer` makes of it."""

    ticket: int
    offset: int
    request: FetchRequest


class ReadSnapshot(NamedTuple):
    """Answer with a piece of the snapshot, or SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE (`Raft.snapshot_answer`)."""

    ticket: int
    request: SnapshotRequest


class Halt(NamedTuple):
    """This node must not go on. The machine does nothing more."""

    reason: str


Effect = (
    SaveState
    | Send
    | Answer
    | BecameLeader
    | TakeRecords
    | Truncate
    | LoadSnapshot
    | CommitAdvanced
    | LeaderChanged
    | ReadLog
    | ReadSnapshot
    | Halt
)
LEAVING = (Send, Answer, ReadLog, ReadSnapshot)
"""Others see these: they wait until what they are based on is on stable storage."""
