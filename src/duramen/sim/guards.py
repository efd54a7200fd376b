"""Guards that a simulation can remove, to show that its invariants would notice.

Removing one replaces a port's or an object's method for the duration of a `with` block, in this process only: the
production code has no switch for it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from duramen.machines.metadata.image import BrokerImage, MetadataImage
from duramen.model import METADATA_TOPIC_ID
from duramen.partition.partition import Partition, Read
from duramen.sim.disk import CrashFile
from duramen.storage.journal_reader import JournalEntry
from duramen.storage.recovery_plan import Plan


class Guard(ABC):
    """Something that keeps a promise; its docstring says what happens without it."""

    owner: type[Any]
    method: str

    @abstractmethod
    def replacement(self, original: Any) -> Any:
        """The method without the guard."""


class Sync(Guard):
    """File.sync does nothing: what is acknowledged may exist in the page cache only."""

    owner = CrashFile
    method = "sync"

    def replacement(self, original: Any) -> Any:
        """Sync nothing, successfully."""

        def sync(file: CrashFile) -> None:
            file.size()

        return sync


class JournalReplay(Guard):
    """Recovery does not replay the journal's batches (the metadata's own aside): segments keep only what was synced."""

    owner = Plan
    method = "_write"

    def replacement(self, original: Any) -> Any:
        """Fold only the metadata log's batches into the plan."""

        def write(plan: Plan, entry: JournalEntry) -> None:
            if entry.topic_id == METADATA_TOPIC_ID:
                original(plan, entry)

        return write


class EpochBump(Guard):
    """A start does not raise the leader epochs: offsets lost in a power cut are given again in the same epoch."""

    owner = MetadataImage
    method = "start_broker"

    def replacement(self, original: Any) -> Any:
        """Register the broker and leave its partitions alone."""

        def start_broker(image: MetadataImage, broker: BrokerImage) -> None:
            image.brokers[broker.id] = broker

        return start_broker


class ReadBound(Guard):
    """Consumers may read to the log end instead of the high watermark: they see what a power cut can take back."""

    owner = Partition
    method = "read"

    def replacement(self, original: Any) -> Any:
        """Read as if everything in the files were committed."""

        def read(
            partition: Partition, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True
        ) -> Read:
            replication = partition.replication
            kept = replication.high_watermark
            replication.high_watermark = max(kept, partition.log.end_offset)
            try:
                found: Read = original(partition, offset, max_bytes, isolation, at_least_one=at_least_one)
            finally:
                replication.high_watermark = kept
            return found

        return read


GUARDS: dict[str, Guard] = {
    "sync": Sync(),
    "journal-replay": JournalReplay(),
    "epoch-bump": EpochBump(),
    "read-bound": ReadBound(),
}
"""Every guard by the name that BREAK= takes."""


@contextlib.contextmanager
def removed(name: str) -> Iterator[None]:
    """Run without the guard; KeyError for an unknown name."""
    guard = GUARDS[name]
    original = getattr(guard.owner, guard.method)
    setattr(guard.owner, guard.method, guard.replacement(original))
    try:
        yield
    finally:
        setattr(guard.owner, guard.method, original)
