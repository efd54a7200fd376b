"""What the sink machine is asked and what it answers. Times are milliseconds, sizes bytes."""

from __future__ import annotations

from typing import NamedTuple

from duramen.machines.sink.pieces import StagedPart
from duramen.model import TopicId

NO_BATCH = -1

COMMITTED = 1
"""State of a batch: its record is written, its records are on their way."""
FINISHED = 2
"""State of a batch: its records are where they belong, and nothing needs its staging any more."""


class ClaimEpoch(NamedTuple):
    """producer_id: a fresh one, used when the sink is new."""

    sink_id: str
    run_id: str
    ephemeral: bool
    producer_id: int


class Claimed(NamedTuple):
    """last_batch: NO_BATCH before the first commit."""

    epoch: int
    last_batch: int


class AdmitStage(NamedTuple):
    """May this epoch stage for this batch? Asked before bytes are stored. Answered with whether it is committed.

    parts: how many, in any number of handles.
    """

    sink_id: str
    epoch: int
    batch_id: int
    parts: int


class NewHandle(NamedTuple):
    """Record batches that are durable in the staging log from first_offset on, which is the handle."""

    first_offset: int
    parts: tuple[StagedPart, ...]


class RecordStaged(NamedTuple):
    """The bytes of these handles are durable: record them. Answered with whether the batch is committed."""

    sink_id: str
    epoch: int
    batch_id: int
    task: str
    handles: tuple[NewHandle, ...]


class MoveStaged(NamedTuple):
    """The records of this handle are durable in the staging log at another place, too: mean that one from now on.

    Answered with whether the handle still meant first_offset, its place until now; otherwise nothing changes.
    """

    sink_id: str
    handle: int
    first_offset: int
    new_first_offset: int


class CommitStaged(NamedTuple):
    """The commit point of a batch. Answered with Committed."""

    sink_id: str
    epoch: int
    batch_id: int
    handles: tuple[int, ...]
    metadata: bytes | None


class BatchCommitted(NamedTuple):
    """The batch is committed; already: it was so before this call."""

    already: bool


class ShareDone(NamedTuple):
    """Where one partition's share of a batch went; offsets are -1 where they are not known."""

    base_offset: int
    last_offset: int
    dropped: bool


class FinishCommit(NamedTuple):
    """Every share of the batch is durable where it belongs, or its topic is gone. Answered with True.

    producer_id: the batch's; another sink may have this name by now, and a batch of this number.
    """

    sink_id: str
    batch_id: int
    producer_id: int
    shares: tuple[ShareDone, ...]


class AbortStaged(NamedTuple):
    """Let handles of a batch go; None: all of them. Answered with Aborted."""

    sink_id: str
    epoch: int
    batch_id: int
    handles: tuple[int, ...] | None


class Aborted(NamedTuple):
    """released: handles that were let go; left: those that another such command lets go, as these were many."""

    already_committed: bool
    released: int
    left: int


class DescribeSink(NamedTuple):
    """Answered with SinkDescription."""

    sink_id: str


class BatchDescription(NamedTuple):
    batch_id: int
    epoch: int
    committed_ms: int
    state: int
    records: int
    bytes: int


class SinkDescription(NamedTuple):
    """batches: those that are remembered, oldest first."""

    sink_id: str
    epoch: int
    run_id: str
    ephemeral: bool
    producer_id: int
    last_batch: int
    last_metadata: bytes | None
    batches: tuple[BatchDescription, ...]
    staged_handles: int
    staged_bytes: int


class ListSinks(NamedTuple):
    """Answered with a list of SinkDescription."""


class ReleaseSink(NamedTuple):
    """Forget the sink. Answered with True."""

    sink_id: str
    epoch: int


class TopicIdsDeleted(NamedTuple):
    """These topics are gone for good: what is kept about their partitions goes, too. Answered with True."""

    topic_ids: tuple[TopicId, ...]


class SlicesRefused(NamedTuple):
    """The log did not take a slice of tombstones."""
