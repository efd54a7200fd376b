"""Guards that keep what a log holds where something may be taken out of it: by compaction, retention, and recovery.

`mutations/mutations.py` says what guards are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from duramen.sim.mutations.mutation import Guard
from duramen.sim.world.plan import Plan
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.segment_rewrite import CleaningRules
from duramen.storage.log import retention
from duramen.storage.log.log import Log
from duramen.storage.recovery import replay
from duramen.storage.segment.segment import Segment


class LastOfKey(Guard):
    """Compaction takes a key's last record for one that a younger one replaces."""

    owner = OffsetMap
    method = "put"
    caught_by = "CompactionKeepsTheLast"
    plan = Plan(features=("compacted", "small journal"))

    def replacement(self, original: Any) -> Any:
        """Remember the offset behind the last one."""
        return lambda offsets, key, offset: original(offsets, key, offset + 1)


class TombstoneAge(Guard):
    """A tombstone goes with the pass after the one that met it, whatever delete.retention.ms says."""

    owner = CleaningRules
    method = "horizon"
    caught_by = "CompactionKeepsTheLast"
    plan = Plan(
        features=("compacted", "small journal"), partitions=1, readers=0, members=0, page_cache=False, churn=False
    )

    def replacement(self, original: Any) -> Any:
        """A horizon that is over."""
        return property(lambda rules: 0)


class UnstampedAge(Guard):
    """Where a topic is compacted, too, segments without timestamps expire with an old one behind them."""

    owner = retention
    method = "_removable"
    caught_by = "RetentionNeverEarly"
    plan = Plan(features=("expiring",), partitions=1, members=0, page_cache=False, churn=False)

    def replacement(self, original: Any) -> Any:
        """Also look at those with timestamps alone."""

        def removable(log: Log, segments: Sequence[Segment], *arguments: Any) -> int:
            passed = "compact" in getattr(log.config, "cleanup_policy", ())
            stamped = [segment for segment in segments if not passed or segment.max_timestamp >= 0]
            found: int = max(original(log, each, *arguments) for each in (segments, stamped))
            return found

        return removable


class KilledTail(Guard):
    """A start behind a kill leaves out the last unsynced batch in each segment of a page-cache log."""

    owner = replay
    method = "scan"
    caught_by = "AcknowledgedNeverLost"
    also = ("NothingReadVanishes", "OffsetStability")  # whoever looks first
    plan = Plan(faults=("kill", "kill in a call"), partitions=1, members=0, churn=False)

    def replacement(self, original: Any) -> Any:
        """End a batch earlier where unsynced batches are accepted."""

        def scan(*arguments: Any, **options: Any) -> Iterator[Any]:
            found = list(original(*arguments, **options))
            yield from found[:-1] if "expect_offset" in options else found

        return scan
