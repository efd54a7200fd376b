"""Guards of streams that a simulation can do without: a promise about closing, writers or positions breaks then."""

from __future__ import annotations

from typing import Any

from duramen.partition.replica.partition import Partition
from duramen.sim.mutations.mutations import Guard
from duramen.sim.world.plan import KINDS
from duramen.storage.segment.producer_state import ProducerStates
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


STREAM_GUARDS: dict[str, Guard] = {
    "closed-refuses": ClosedRefuses(),
    "named-duplicates": NamedDuplicates(),
}
"""By the name that BREAK= takes."""
