"""What a log knows of its producers, read again behind a truncation: from a snapshot and the batches that follow it.

It may be much to read, so another thread does, with files and a state of its own. Until it has, the log takes no
appends, writes no snapshot and claims to know somebody: none of its files may say that there is nobody to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from duramen.errors import CorruptLogError, KafkaError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk, File
from duramen.storage.files.disk_full import retriable_open
from duramen.storage.log.snapshot_files import OURS, ProducerSnapshots
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.scan import scan
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import read_marker


class TruncatedLog(Protocol):
    """What is asked of the log, when the job is made and when it has run."""

    disk: Disk
    path: str
    tp: TopicPartition
    topic_id: TopicId
    segments: list[Segment]
    start_offset: int
    truncations: int


class ProducerRebuild:
    """The job: `run` on any thread; the log takes over what was `found`. snapshots: offsets of those to begin with."""

    __slots__ = ("_disk", "_first", "_log", "_segments", "_snapshots", "_start_offset", "_truncations", "found")

    def __init__(self, log: TruncatedLog, snapshots: Iterable[int]) -> None:
        self._log = log
        self._disk = log.disk
        self._segments = [(segment, segment.path, segment.size, segment.next_offset) for segment in log.segments]
        self._first = log.segments[0].base_offset
        self._start_offset = log.start_offset
        self._truncations = log.truncations
        self._snapshots = ProducerSnapshots(log.disk, log.path, log.topic_id, log.tp.partition)
        self._snapshots.offsets = tuple(snapshots)
        self.found = ProducerStates()

    @property
    def overtaken(self) -> bool:
        """Whether files that were to be read got other names meanwhile, or lost them: it is to be done again."""
        now = [(segment, segment.path) for segment in self._log.segments]
        return now != [each[:2] for each in self._segments] or self._truncations != self._log.truncations

    def run(self) -> None:
        """Read what there is. NoRoomError, OSError, CorruptLogError."""
        found = ProducerStates()
        known_to = self._snapshots.restore(found, OURS)  # Kafka's know the last batch of each alone
        producers_from = max(self._first, known_to)
        for segment, path, size, next_offset in self._segments:
            if size and next_offset > producers_from:
                with retriable_open():
                    file = self._disk.open(path)
                try:
                    self._read(segment, file, size, producers_from, found)
                finally:
                    file.close()
        self._snapshots.restore_expired(found, known_to, self._start_offset)
        self.found = found

    def _read(self, segment: Segment, file: File, size: int, start: int, found: ProducerStates) -> None:
        """The batches from offset `start` on. Only the index of the active segment is at hand; it does not grow now."""
        index, base = segment.index, segment.base_offset
        position = index.position_for(start - base) if index is not None and start > base else 0
        for at, header, ok in scan(file, position, size, crc=False):
            if not ok or header is None:
                raise CorruptLogError(file.path, at, size, "no batch starts here", base)
            is_tracked = header.producer_id >= 0 or header.is_control
            if not is_tracked or header.base_offset < start:
                continue
            if not header.is_control:
                found.update(header)
                continue
            data = file.pread(header.size, at)
            if header.producer_id < 0:
                found.take_control(data, header)
                continue
            try:
                marker = read_marker(data, header)
            except KafkaError as error:
                raise CorruptLogError(file.path, at, at + header.size, str(error), header.base_offset) from error
            if marker is not None:
                found.end_transaction(header, marker)
