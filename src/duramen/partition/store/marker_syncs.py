"""Markers in page-cache topics are on stable storage before their transaction may be over; closes before they count.

Their coordinator's log is there. If it said that a transaction is over, and a power cut took a marker, the transaction
would stay open in that partition for ever, and readers of committed data would stand before it. A partition of one copy
journals its markers, so that they share the group commit of all others. Of several copies each is synced: the leader's
when the marker is committed, a follower's before it says that it has the marker (`server/replication`). The record that
closes a stream is synced by each replica before that says that it has the record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.partition import Partition
from duramen.partition.store.flush_policy import FlushPolicy
from duramen.partition.store.services import StoreServices
from duramen.ports import Clock

RETRY_SECONDS: Final = 0.2
"""Between two tries where no sync can be taken now: a disk is full, a truncation is under way."""

WhenHardened = Callable[[KafkaError | None], None]


class MarkerSyncs:
    """Of one store: who waits for what. All that wait for one partition share a sync."""

    def __init__(self, store: StoreServices, flush_policy: FlushPolicy, clock: Clock) -> None:
        self._store = store
        self._flush_policy = flush_policy
        self._clock = clock
        self._waiting: dict[Partition, list[tuple[int, WhenHardened]]] = {}
        flush_policy.on_synced = self._synced

    def wait_for(self, partition: Partition, end: int, is_journaled: bool, done: WhenHardened) -> None:
        """`done` when the markers below `end` are on stable storage, or with why they may not be."""
        if is_journaled and not partition.closed:
            self._store.when_synced(partition.tp, done)
            return
        waiting = self._waiting.get(partition)
        if waiting is not None:  # after the sync that is under way comes another one
            waiting.append((end, done))
            return
        self._waiting[partition] = [(end, done)]
        self._go_on(partition)

    def harden_close(self, partition: Partition) -> None:
        """Have the record that closes it on stable storage; this replica does not count as having it before."""

        def hardened(error: KafkaError | None) -> None:
            if error is None:
                partition.durable(partition.durable_end)

        self.wait_for(partition, partition.log.end_offset, False, hardened)

    def _synced(self, partition: Partition) -> None:
        if partition in self._waiting:
            self._go_on(partition)

    def _go_on(self, partition: Partition) -> None:
        error = self._failure(partition)
        durable_end = partition.log.durable_end
        waiting = self._waiting.pop(partition)
        end_offset = partition.log.end_offset
        left = [] if error is not None else [each for each in waiting if durable_end < each[0] <= end_offset]
        if left:
            self._waiting[partition] = left
            self._flush_policy.sync(partition)
            if not self._flush_policy.is_syncing(partition):
                self._clock.call_later(RETRY_SECONDS, partial(self._synced, partition))
        for end, done in waiting:
            if error is None and end > end_offset:
                done(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.tp} was cut at {end_offset}"))
            elif error is not None or end <= durable_end:
                done(error)

    def _failure(self, partition: Partition) -> KafkaError | None:
        if partition.closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.tp} was closed")
        failed = self._store.home(partition.tp).journal.failed
        if failed is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp}: its directory failed ({failed})")
        return None
