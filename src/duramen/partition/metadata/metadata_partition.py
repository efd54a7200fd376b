"""The partition `__cluster_metadata-0`: what of it is committed says the quorum, not this replica by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.errors import check
from duramen.partition.replica.partition import PLAIN, Partition
from duramen.ports import Buffer
from duramen.storage import LogDirectory, TransactionGuard, append_as_follower
from duramen.wire.batch import BatchHeader


class MetadataPartition(Partition):
    """Its high watermark moves by `commit` alone.

    on_durable: more of it is on stable storage here. on_appended: a batch of this node's own is in the log.
    """

    __slots__ = ("on_appended", "on_durable")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_appended: Callable[[], None] = lambda: None
        self.on_durable: Callable[[], None] = lambda: None

    def lead_quorum(self, epoch: int) -> None:
        """Take appends of the node's own in this epoch of the quorum."""
        local = self.replication.local
        self.replication.lead(epoch, (local,), (local,), -1, -1, self.log.end_offset)

    def commit(self, end: int) -> None:
        """Everything below `end`, which is in the log, is on stable storage of a majority of the voters."""
        check(
            end <= self.log.end_offset, f"{self.tp}: {end} cannot be committed, the log ends at {self.log.end_offset}"
        )
        if end > self.replication.high_watermark:
            self.replication.high_watermark = end
            self._settle()

    def begin_commit_at(self, position: int) -> None:
        """At a start: what is below, the end of the latest snapshot, is committed; the rest, whatever this replica knew
        before it stopped, is when a leader says so. Else nobody would hear that a leader has said it.
        """
        self.replication.high_watermark = position

    def begin_at(self, home: LogDirectory, offset: int) -> None:
        """Drop the log: it begins anew at `offset`. Whoever reads it is told by `commit`, once it can go on there."""
        home.begin_anew(self.log, offset)
        self.touched()

    def durable(self, end: int) -> None:
        """This replica has everything below `end` on stable storage."""
        self.on_durable()

    def append_local(self, batch: bytearray, now_ms: int, guard: TransactionGuard | None = PLAIN) -> int:
        end = super().append_local(batch, now_ms, guard)
        self.on_appended()
        return end

    def append_as_follower(self, data: Buffer, header: BatchHeader, now_ms: int) -> None:
        """Append a batch as the leader has it. What `storage.append_as_follower` raises."""
        append_as_follower(self.log, data, header, now_ms)
        self.touched()
