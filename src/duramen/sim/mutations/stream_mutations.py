"""Guards of streams that a simulation can do without: a promise about closing, writers or positions breaks then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duramen.partition.replica import conditional_append, exclusive_writer
from duramen.partition.replica.conditional_append import ConditionalBatch, ConditionalResult
from duramen.partition.replica.partition import Appended, Partition
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


class StableClose(StableOpening):
    """The same of a close."""

    owner = conditional_append
    caught_by = "NothingBehindAClose"


STREAM_GUARDS: dict[str, Guard] = {
    "closed-refuses": ClosedRefuses(),
    "named-duplicates": NamedDuplicates(),
    "writer-alone": WriterAlone(),
    "expected-end": ExpectedEnd(),
    "stored-epoch": StoredEpoch(),
    "stable-opening": StableOpening(),
    "stable-close": StableClose(),
}
"""By the name that BREAK= takes."""
