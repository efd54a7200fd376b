"""Where the coordinator of a sink meets the partitions that its committed batches go to.

`Destinations` is all that it knows of them. Here it is the partitions of the same process; a leader elsewhere is
reached by another implementation of the same three calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.sink.pieces import Target
from duramen.machines.sink.state import CommittedShare
from duramen.partition.replica.parked_appends import Done
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.staged_appends import append_staged
from duramen.partition.store.store import Store
from duramen.ports import Clock
from duramen.wire.batch import MAX_SEQUENCE

LARGEST_DISTANCE: Final = 1 << 30
"""Records by which a producer's state may be ahead of a share; more is after it, as sequences go round."""
HARDEN_SECONDS: Final = 0.2
"""Between two looks at whether a page-cache topic's records are on stable storage."""


class Standing(NamedTuple):
    """How much of a share a partition has already.

    records: the first so many; base_offset, last_offset: of its first and last record, -1 where that is not known or
    not there; end: after everything of this producer, 0 without.
    """

    records: int
    base_offset: int
    last_offset: int
    end: int


class Destinations(Protocol):
    """Partitions that committed batches go to. Answers come on the loop, perhaps before the call returns."""

    def stand(self, share: CommittedShare, producer_id: int, answer: Callable[[Standing | KafkaError], None]) -> None:
        """How much of the share is there. UNKNOWN_TOPIC_ID: the topic is gone for good."""

    def append(self, target: Target, batch: memoryview, done: Done) -> None:
        """Append one stamped batch, or find that it is there; `done` when it is below the high watermark."""

    def settle(self, target: Target, end: int, *, durable: bool, done: Callable[[KafkaError | None], None]) -> None:
        """`done` when everything below `end` can be read; durable: and no power cut takes it back."""


class LocalDestinations:
    """The partitions of this process."""

    def __init__(
        self, store: Store, clock: Clock, image: Callable[[], MetadataImage], report: Callable[..., None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._image = image
        self._report = report

    def _partition(self, target: Target) -> Partition:
        """KafkaError UNKNOWN_TOPIC_ID when the topic was deleted; another when it cannot be had now."""
        topic_id, index = target
        if self._image().topic_by_id(topic_id) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted")
        partition = self._store.partition_by_id(topic_id, index)
        if partition is None or partition.closed or not partition.replication.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition {index} is not led here now")
        return partition

    def stand(self, share: CommittedShare, producer_id: int, answer: Callable[[Standing | KafkaError], None]) -> None:
        try:
            partition = self._partition(share.target)
            partition.log.check_whole()  # until then nobody knows what is there
        except KafkaError as error:
            answer(error)
            return
        producer = partition.log.producers.get(producer_id)
        if producer is None or not producer.batches:
            answer(Standing(0, -1, -1, 0))
            return
        records = (producer.last_sequence + 1 - share.base_sequence) & MAX_SEQUENCE
        if records > LARGEST_DISTANCE:
            # A share begins when the one before it is there, which is durable before it is forgotten: what is missing
            # was taken from the partition afterwards (a repair of the log). What follows goes on without it.
            self._report(
                "sink-records-missing",
                partition=str(partition.tp),
                last_sequence=producer.last_sequence,
                next_sequence=share.base_sequence,
            )
            end = producer.last_offset + 1
            partition.log.producers.forget(producer_id)
            answer(Standing(0, -1, -1, end))
            return
        # More than the share has: it was there before a crash, and the next batch, too.
        records = min(records, share.records)
        last_sequence = (share.base_sequence + share.records - 1) & MAX_SEQUENCE
        first = next((batch[2] for batch in producer.batches if records and batch[0] == share.base_sequence), -1)
        last = next((batch[3] for batch in producer.batches if batch[1] == last_sequence), -1)
        answer(Standing(records, first, last if records == share.records else -1, producer.last_offset + 1))

    def append(self, target: Target, batch: memoryview, done: Done) -> None:
        try:
            partition = self._partition(target)
        except KafkaError as error:
            done(error)
            return
        append_staged(partition, batch, self._clock.wall_ms(), done)

    def settle(self, target: Target, end: int, *, durable: bool, done: Callable[[KafkaError | None], None]) -> None:
        try:
            partition = self._partition(target)
        except KafkaError as error:
            done(error)
            return
        is_there = partition.high_watermark >= end and (not durable or partition.log.durable_end >= end)
        if is_there:
            done(None)
            return
        if durable:
            self._store.flush_policy.sync(partition)
        self._clock.call_later(HARDEN_SECONDS, partial(self.settle, target, end, durable=durable, done=done))
