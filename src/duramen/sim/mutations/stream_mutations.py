"""Guards of streams that a simulation can do without: a promise about closing, writers or positions breaks then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duramen.client.protocol import list_offsets, positions
from duramen.gateway.tails.tail_rings import TailRings
from duramen.partition.replica import append_times, batch_rules, conditional_append, exclusive_writer, partition
from duramen.partition.replica.conditional_append import ConditionalBatch, ConditionalResult
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.server.handlers import conditional_append as handler
from duramen.sim.mutations.mutations import Guard
from duramen.sim.world.plan import KINDS
from duramen.storage.segment.producer_state import Duplicate, ProducerStates
from duramen.wire.batch import BatchHeader

STREAMS = KINDS["streams"].single


class ClosedRefuses(Guard):
    """A closed stream takes appends."""

    owner = Partition
    method = "check_open"
    caught_by = "NothingBehindAClose"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Look at nothing."""
        return lambda partition: None


class NamedDuplicates(Guard):
    """A batch that a named writer sends again is stored again."""

    owner = ProducerStates
    method = "_check_named"
    caught_by = "NamedOnce"
    also = ("ReadOnce",)  # who follows may come to the second one before the log is read as a whole
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Take what is stored for new."""

        def check_named(states: ProducerStates, header: BatchHeader) -> None:
            original(states, header)

        return check_named


class WriterAlone(Guard):
    """An exclusive stream takes appends of any writer."""

    owner = Partition
    method = "check_writer"
    caught_by = "FencedUnacknowledged"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Look at nothing."""
        return lambda partition, header: None


class ExpectedEnd(Guard):
    """An append goes to the end of the log, wherever it was to be."""

    owner = handler
    method = "append_conditionally"
    caught_by = "OneAtAPosition"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Expect nothing."""

        def append(partition: Partition, wanted: ConditionalBatch, now_ms: int, done: Any) -> None:
            original(partition, wanted._replace(expected_offset=-1), now_ms, done)

        return append


class StoredEpoch(Guard):
    """A batch that was stored before is answered with the epoch of whoever leads now."""

    owner = conditional_append
    method = "_stored"
    caught_by = "PositionLasts"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Put the newest epoch in."""

        def stored(partition: Partition, duplicate: Duplicate) -> ConditionalResult:
            found: ConditionalResult = original(partition, duplicate)
            return found._replace(leader_epoch=partition.leader_epoch)

        return stored


class StableOpening(Guard):
    """An opening of a page-cache stream is answered when it is in the page cache: a power cut takes it."""

    owner = exclusive_writer
    method = "park_stable"
    caught_by = "FencedUnacknowledged"
    plan = replace(STREAMS, faults=("power cut", "power cut in a call"))

    def replacement(self, original: Any) -> Any:
        """Wait for the replicas alone."""

        def park(partition: Partition, end: int, done: Any) -> None:
            def committed(result: Any) -> None:
                done(None if isinstance(result, Appended) else result)

            partition.park(end, -1, committed, Appended(end - 1, -1, partition.log_start_offset))

        return park


class StableClose(Guard):
    """A close of a page-cache stream counts when it is in the page cache: who was told of it finds the stream open when
    a power cut has taken it.
    """

    owner = Partition
    method = "durable_end"
    caught_by = "NothingBehindAClose"
    also = ("ReadOnce",)
    plan = replace(STREAMS, faults=("power cut", "power cut in a call"))

    def replacement(self, original: Any) -> Any:
        """Go by the topic's durability alone."""
        return property(
            lambda partition: partition.log.durable_end if partition.is_stable else partition.log_end_offset
        )


class TxidOrder(Guard):
    """A transaction id of a batch's header is not compared with the last one of the log."""

    owner = append_times
    method = "check_txid"
    caught_by = "TxidsNeverStepBack"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Compare nothing."""
        return lambda txid, last: None


class TxidOrderInside(Guard):
    """The ids of a batch of several records are not compared."""

    owner = batch_rules
    method = "_check_txids"
    caught_by = "TxidsNeverStepBack"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Compare nothing."""
        return lambda payload, header, last_txid: None


class TxidKept(Guard):
    """A start does not know the last transaction id of the log."""

    owner = partition
    method = "find_last_txid"
    caught_by = "TxidsNeverStepBack"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Begin with the least."""

        return lambda config, segments: None if config.txid == "none" else 0


class PositionChecked(Guard):
    """A position is an offset: whatever is stored there now is taken for its record."""

    owner = positions
    method = "_check"
    caught_by = "PositionLasts"
    also = ("Progress", "ReadOnce")  # behind the end of a log that has become shorter readers ask for ever
    plan = replace(STREAMS, faults=("power cut", "power cut in a call"))

    def replacement(self, original: Any) -> Any:
        """Believe it."""
        return lambda dlsn, log: iter(())


class PlaceOfTime(Guard):
    """A look-up by time leads behind the record that it is to find."""

    owner = list_offsets
    method = "parsed"
    caught_by = "TruncationExact"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Say one more."""

        def parsed(response: Any) -> Any:
            found = original(response)
            return {
                tp: each._replace(offset=each.offset + 1) if getattr(each, "timestamp", -1) >= 0 else each
                for tp, each in found.items()
            }

        return parsed


class ReaderMoved(Guard):
    """A reader who fell behind a shared read and caught up alone is given once more what it has read."""

    owner = TailRings
    method = "moved"
    caught_by = "ReadOnce"
    plan = STREAMS

    def replacement(self, original: Any) -> Any:
        """Leave it where it was."""
        return lambda rings, reader, position: None


STREAM_GUARDS: dict[str, Guard] = {
    "closed-refuses": ClosedRefuses(),
    "named-duplicates": NamedDuplicates(),
    "writer-alone": WriterAlone(),
    "expected-end": ExpectedEnd(),
    "stored-epoch": StoredEpoch(),
    "stable-opening": StableOpening(),
    "stable-close": StableClose(),
    "txid-order": TxidOrder(),
    "txid-order-inside": TxidOrderInside(),
    "txid-kept": TxidKept(),
    "position-checked": PositionChecked(),
    "place-of-time": PlaceOfTime(),
    "reader-moved": ReaderMoved(),
}
"""By the name that BREAK= takes."""
