"""What is found in a data directory that `log verify` checks.

Three kinds of findings. `damage`: stored records differ from what was written. `index`: a side file does not fit its
segment; the next start rebuilds it. `tail`: bytes above the recovery point that are no whole batch, after an unclean
stop: the next start replaces them from the journal or, when they were never acknowledged, cuts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.storage.checkpoint.scrub_progress import ScrubProgress


class Finding(NamedTuple):
    """Something wrong: its kind (module docstring), file, bytes start..end, offsets concerned (-1 unknown)."""

    kind: str
    path: str
    start: int
    end: int
    offset: int
    what: str
    last_offset: int = -1


@dataclass(slots=True)
class SegmentReport:
    """What one segment holds; next_offset is behind its last sound batch.

    deleted: how many of its records lie below the log start; where compaction left gaps in a batch across it, at least.
    """

    base_offset: int
    size: int
    batches: int = 0
    records: int = 0
    deleted: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    sealed: bool = False


@dataclass(slots=True)
class PartitionReport:
    """What one partition's directory holds. readable: first and last offsets of what a start, or a repair, leaves.

    start_offset: the first that readers see; records: how many from there on.
    """

    name: str
    topic_id: str | None
    start_offset: int = 0
    segments: list[SegmentReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    readable: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(finding.kind == "damage" for finding in self.findings)

    @property
    def records(self) -> int:
        return sum(segment.records - segment.deleted for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


@dataclass(slots=True)
class DirectoryReport:
    """What a data directory holds; journal_entries is None where there is no journal, as in Kafka's directories.

    scrub: how far the node's scrubber was, and what it knew to be damaged. needs_journal: repair refuses without
    `--journal`, and nobody knows what is readable behind that.
    """

    path: str
    cluster_id: str
    node_id: int
    clean: bool
    journal_entries: int | None = None
    partitions: list[PartitionReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    scrub: ScrubProgress | None = None
    needs_journal: bool = False

    def all_findings(self) -> Iterator[Finding]:
        """The directory's own and those of its partitions."""
        yield from self.findings
        for partition in self.partitions:
            yield from partition.findings


def damage_finding(error: CorruptLogError) -> Finding:
    """What the storage says of a damaged place, as a finding."""
    return Finding("damage", error.path, error.start, error.end, error.offset, error.reason)
