"""One sink: who owns it, what is staged for it, the batches that were committed and how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.sink.commands import COMMITTED, FINISHED, NO_BATCH, BatchDescription, SinkDescription
from duramen.machines.sink.pieces import Parts, Pieces, Target

REMEMBERED_BATCHES: Final = 32
"""Finished batches of a sink for which a repeated commit gets its answer again."""
NO_SINK_EPOCH: Final = -1
PRODUCER_EPOCH: Final = 0
"""Epoch of every sink's producer id: runs are fenced by the sink's epoch, so the sequences go on for ever."""


class Staged(NamedTuple):
    """Records waiting in the staging log for a commit. The handle is their first offset there, until they are moved."""

    epoch: int
    batch_id: int
    task: str
    first_offset: int
    next_offset: int
    bytes: int
    staged_ms: int
    parts: Parts

    @property
    def records(self) -> int:
        return self.next_offset - self.first_offset

    def at(self, first_offset: int) -> Staged:
        """The same records at another place; they are no younger there, and a commit may come as before."""
        return self._replace(first_offset=first_offset, next_offset=first_offset + self.records)


class CommittedShare(NamedTuple):
    """What one partition gets of a committed batch; pieces in order, none when it is finished."""

    target: Target
    base_sequence: int
    records: int
    bytes: int
    pieces: Pieces
    base_offset: int = -1
    last_offset: int = -1
    dropped: bool = False


@dataclass(slots=True)
class SinkCommit:
    """A committed batch. state: COMMITTED or FINISHED.

    handles: what it takes its shares from, in order; needed_from: their lowest offset in the staging log. Both are
    for a batch that is not finished.
    """

    batch_id: int
    epoch: int
    committed_ms: int
    state: int
    producer_id: int
    metadata: bytes | None
    shares: tuple[CommittedShare, ...]
    handles: tuple[int, ...] = ()
    needed_from: int | None = None


@dataclass(slots=True)
class Sink:
    """Durable state of one sink; changed by applied records only."""

    id: str
    epoch: int = NO_SINK_EPOCH
    run_id: str = ""
    producer_id: int = -1
    ephemeral: bool = False
    claimed_ms: int = 0
    last_batch: int = NO_BATCH
    runs: dict[str, int] = field(default_factory=dict)
    """Epoch of the runs that have claimed it, of the last MAX_RUNS: a superseded one stays refused."""
    staged: dict[int, Staged] = field(default_factory=dict)
    staged_bytes: int = 0
    staged_parts: int = 0
    commits: dict[int, SinkCommit] = field(default_factory=dict)
    """By batch: the unfinished ones and the last finished ones."""
    sequences: dict[Target, int] = field(default_factory=dict)
    """Sequence of the next record for a partition; 0 where there is none."""

    def check_epoch(self, epoch: int) -> None:
        """Whether a call of this epoch may change anything; KafkaError when it may not."""
        if epoch < self.epoch:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"sink {self.id}: epoch {epoch} was superseded; run {self.run_id} has claimed epoch {self.epoch}",
            )
        if epoch > self.epoch:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"sink {self.id} has no epoch {epoch}; claim it first")

    def check_batch(self, batch_id: int) -> SinkCommit | None:
        """The batch's commit, None when it may still be committed. KafkaError when nothing is known of it any more."""
        if batch_id < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a batch id of {batch_id}")
        found = self.commits.get(batch_id)
        if found is None and batch_id <= self.last_batch:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sink {self.id}: batch {batch_id} lies below {self.last_batch}, the last one that was committed,"
                " and is not remembered; batch ids have to grow",
            )
        return found

    def stage(self, handle: int, staged: Staged) -> None:
        self.unstage(handle)
        self.staged[handle] = staged
        self.staged_bytes += staged.bytes
        self.staged_parts += len(staged.parts)

    def unstage(self, handle: int) -> Staged | None:
        """Let a handle go; what it held, None when there is none."""
        staged = self.staged.pop(handle, None)
        if staged is not None:
            self.staged_bytes -= staged.bytes
            self.staged_parts -= len(staged.parts)
        return staged

    def given_up(self, limit_ms: int) -> Iterator[int]:
        """Handles of batches for which nothing was staged since then. A batch whose tasks still come has its first ones
        for as long as it takes: their commit is yet to come, and without them it would be made in vain, each time."""
        old = [(handle, staged.batch_id) for handle, staged in self.staged.items() if staged.staged_ms <= limit_ms]
        going_on = {staged.batch_id for staged in self.staged.values() if staged.staged_ms > limit_ms} if old else set()
        return (handle for handle, batch_id in old if batch_id not in going_on)

    def unfinished(self) -> Iterator[SinkCommit]:
        """Committed batches whose staging is still needed, oldest first."""
        return (commit for _, commit in sorted(self.commits.items()) if commit.state == COMMITTED)

    def forgettable(self) -> list[int]:
        """Finished batches beyond those that are remembered."""
        finished = [batch_id for batch_id, commit in self.commits.items() if commit.state == FINISHED]
        return sorted(finished)[:-REMEMBERED_BATCHES]

    @property
    def last_used_ms(self) -> int:
        """Its last claim or commit."""
        return max([self.claimed_ms, *(commit.committed_ms for commit in self.commits.values())])

    def oldest_needed(self) -> int | None:
        """Lowest offset of the staging log that this sink may still read; None when it needs nothing."""
        needed = [staged.first_offset for staged in self.staged.values()]
        needed += [commit.needed_from for commit in self.unfinished() if commit.needed_from is not None]
        return min(needed, default=None)

    def describe(self) -> SinkDescription:
        last = self.commits.get(self.last_batch)
        return SinkDescription(
            self.id,
            self.epoch,
            self.run_id,
            self.ephemeral,
            self.producer_id,
            self.last_batch,
            None if last is None else last.metadata,
            tuple(
                BatchDescription(
                    commit.batch_id,
                    commit.epoch,
                    commit.committed_ms,
                    commit.state,
                    sum(share.records for share in commit.shares),
                    sum(share.bytes for share in commit.shares),
                )
                for _, commit in sorted(self.commits.items())
            ),
            len(self.staged),
            self.staged_bytes,
        )
