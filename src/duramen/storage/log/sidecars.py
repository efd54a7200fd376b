"""The files beside a log's segments: what of index tails, leader epochs and producer snapshots is not on disk yet.

All of it can be rebuilt from the segments. So it is written first, and synced only when a clean stop is going to rely
on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from duramen.ports import Disk
from duramen.storage.files.disk_full import retriable_write
from duramen.storage.log.snapshot_files import ProducerSnapshots
from duramen.storage.segment.leader_epochs import EpochCache
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.segment import Segment


class SideWrite(NamedTuple):
    """Bytes for a sidecar. whole: they replace the file; else they are added, which a roll may do at the same time."""

    path: str
    position: int
    data: bytes
    whole: bool = False


class Sidecars(NamedTuple):
    """What a log's sidecars need: writes, files that become superfluous, and how many index entries that covers.

    stay: offsets of the older producer snapshots that do not become so. snapshot: offset of the new one, -1 for none.
    """

    writes: list[SideWrite]
    epochs: bytes | None
    removed: list[str]
    stay: frozenset[int]
    index_counts: list[tuple[Segment, int, int]]
    snapshot: int


class SummarizedLog(Protocol):
    """What of a log its sidecars are made of; see `Log`."""

    disk: Disk
    active: Segment
    segments: list[Segment]
    end_offset: int
    epochs: EpochCache
    producers: ProducerStates
    snapshots: ProducerSnapshots
    rebuild_from: tuple[int, ...] | None


def collect_sidecars(log: SummarizedLog, *, final: bool, full: bool, synced: bool) -> Sidecars:
    """The bytes of side files that are not on disk yet.

    final: close the active segment's time index too; full: with a producer snapshot at the log's end; synced: that
    is going to be synced, so no older one is needed any more.
    """
    writes: list[SideWrite] = []
    counts: list[tuple[Segment, int, int]] = []
    active = log.active
    if active.index is not None and active.times is not None:
        writes += [SideWrite(*each) for each in active.pending_index_writes(final=final)]
        counts.append((active, len(active.index), len(active.times)))
    removed: list[str] = []
    snapshot = -1
    snapshots = log.snapshots
    stay = frozenset(segment.base_offset for segment in log.segments)
    if not synced:
        stay = stay.union(snapshots.kept)
    if full and log.rebuild_from is None and log.end_offset not in (*snapshots.offsets[-1:], snapshots.writing):
        snapshot = log.end_offset
        for suffix, data in encode_snapshot(log):
            writes.append(SideWrite(snapshots.path_of(snapshot, suffix), 0, data, True))
        removed = snapshots.without(stay)
    epochs = log.epochs.encode() if log.epochs.changed else None
    return Sidecars(writes, epochs, removed, stay, counts, snapshot)


def encode_snapshot(log: SummarizedLog) -> tuple[tuple[str, bytes], ...]:
    """A producer snapshot at the log's end, as (suffix, content) of Kafka's file and of ours."""
    aborted = [segment.base_offset for segment in log.segments if segment.has_aborted]
    return log.snapshots.encode(log.producers, log.end_offset, aborted)


def write_sidecars(
    disk: Disk, sidecars: Sidecars, *, sync: bool, still_there: Callable[[], None] = lambda: None
) -> None:
    """Write the collected bytes, but not the epochs; `still_there` is asked before each file. NoRoomError, OSError."""
    for path, position, data, whole in sidecars.writes:
        still_there()
        with retriable_write():
            file = disk.open(path, create=True, write=True)
        try:
            with retriable_write():
                if whole:
                    file.truncate(0)
                if data:
                    file.pwritev([data], position)
            if sync:
                file.sync()
        finally:
            file.close()
    for path in sidecars.removed:
        still_there()
        with suppress(FileNotFoundError):  # a roll and a checkpoint may be at it at the same time
            disk.remove(path)


def account_sidecars(log: SummarizedLog, sidecars: Sidecars) -> None:
    """They were written."""
    for segment, entries, time_entries in sidecars.index_counts:
        if segment.index is not None and segment.times is not None:
            segment.index.written = min(max(entries, segment.index.written), len(segment.index))
            segment.times.written = min(max(time_entries, segment.times.written), len(segment.times))
    if sidecars.snapshot >= 0:
        log.snapshots.written(sidecars.snapshot, sidecars.stay)


def save_sidecars(log: SummarizedLog) -> None:
    """The active segment is closed, by a roll or a stop: write all its side files, synced by neither. OSError."""
    sidecars = collect_sidecars(log, final=True, full=True, synced=False)
    write_sidecars(log.disk, sidecars, sync=False)
    account_sidecars(log, sidecars)
