"""The log as the quorum's machine reads it, and how two histories are compared (KIP-101, -320, -595)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from duramen.machines.raft.voters import Voters


class OffsetEpoch(NamedTuple):
    """An end: all below `offset` is there, and the last of it was written in `epoch` (-1: nothing is there)."""

    offset: int
    epoch: int


class RaftLog(Protocol):
    """One replica of the log. Offsets are exclusive ends. Only the shell changes it, and says LogMoved then."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def durable_end(self) -> int:
        """All below is on stable storage."""

    @property
    def latest_epoch(self) -> int:
        """Of the last batch, or of the snapshot that the log begins with; -1 where there is neither."""

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        """The largest epoch that is not above `epoch` and that the log has, and where it ends; epoch -1: none."""

    @property
    def latest_snapshot(self) -> OffsetEpoch | None:
        """The newest snapshot that is whole."""

    @property
    def voters(self) -> Voters:
        """From the latest VotersRecord in log or snapshot, committed or not."""


class Comparison(NamedTuple):
    """What a leader finds in a follower's end: neither is set where the follower's log is a piece of its own.

    diverging: the follower cuts its log at the end that this epoch has in both. snapshot: it begins with this one.
    """

    diverging: OffsetEpoch | None = None
    snapshot: OffsetEpoch | None = None
    is_impossible: bool = False
    """A snapshot is needed and there is none."""


SAME = Comparison()


def compare(log: RaftLog, offset: int, last_epoch: int) -> Comparison:
    """How the leader's log stands to that of a follower that ends at `offset` with a batch of `last_epoch`."""
    start = log.start_offset
    if offset == 0 and start == 0:
        return SAME
    if offset < start:
        return _from_snapshot(log)
    end = log.end_of_epoch(last_epoch)
    if end.epoch == last_epoch and offset <= end.offset:
        return SAME
    if log.latest_snapshot == (offset, last_epoch):
        return SAME
    if start > 0 and (end.epoch < 0 or end.offset < start or offset == start):
        return _from_snapshot(log)  # where they part lies before the log's start
    return Comparison(diverging=end)


def _from_snapshot(log: RaftLog) -> Comparison:
    snapshot = log.latest_snapshot
    if snapshot is None or snapshot.offset < log.start_offset:
        return Comparison(is_impossible=True)
    return Comparison(snapshot=snapshot)


def cut_for(log: RaftLog, diverging: OffsetEpoch) -> int:
    """Where a follower cuts its log, when the leader has no more of an epoch than `diverging`; 0: nothing is common."""
    end = log.end_of_epoch(diverging.epoch)
    if end.epoch < 0:
        return 0
    return min(end.offset, diverging.offset) if end.epoch == diverging.epoch else end.offset
