"""The producer snapshots in a log's directory: which there are, which one is read, and which may go."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence

from duramen.model import TopicId
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file
from duramen.storage.segment.producer_snapshot import (
    SnapshotHome,
    decode_aborted,
    decode_kafka,
    decode_ours,
    decode_stream,
    encode_kafka,
    encode_ours,
)
from duramen.storage.segment.producer_state import Producer, ProducerStates
from duramen.storage.segment.segment import PRODUCERS, SNAPSHOT, file_name, parse_name

SnapshotKind = tuple[str, Callable[[bytes, SnapshotHome], list[Producer] | None]]

OURS: tuple[SnapshotKind, ...] = ((PRODUCERS, decode_ours),)
OURS_OR_KAFKAS: tuple[SnapshotKind, ...] = (*OURS, (SNAPSHOT, lambda data, _: decode_kafka(data)))
"""Files with producers, best first: ours has five batches of each, Kafka's the last one."""


class ProducerSnapshots:
    """Of one log. offsets: up to which they speak, ascending.

    kept: those that stay, because batches they speak of may be gone. writing: offset of a snapshot that is being
    written to stay, -1 for none: nothing else writes files of its names, which others would not sync.
    """

    __slots__ = ("_disk", "_partition", "_topic_id", "directory", "kept", "offsets", "writing")

    def __init__(self, disk: Disk, directory: str, topic_id: TopicId, partition: int) -> None:
        self._disk = disk
        self.directory = directory
        self._topic_id = topic_id
        self._partition = partition
        self.offsets: tuple[int, ...] = ()
        self.kept: tuple[int, ...] = ()
        self.writing = -1

    def path_of(self, offset: int, suffix: str) -> str:
        """Path of one of a snapshot's two files."""
        return posixpath.join(self.directory, file_name(offset, suffix))

    def encode(self, producers: ProducerStates, offset: int, aborted: Sequence[int]) -> tuple[tuple[str, bytes], ...]:
        """(suffix, content) of Kafka's file and of ours. aborted: bases of segments with aborted transactions."""
        ours = encode_ours(producers, SnapshotHome(self._topic_id, self._partition, offset), aborted)
        return (SNAPSHOT, encode_kafka(producers)), (PRODUCERS, ours)

    def find_again(self) -> None:
        """Which there are, by the directory: a start may not have believed all that it found. OSError."""
        names = map(parse_name, self._disk.list_directory(self.directory))
        self.offsets = tuple(
            sorted({name[0] for name in names if name is not None and name[1] in (SNAPSHOT, PRODUCERS)})
        )

    def keep(self, offset: int, durable_end: int) -> None:
        """There is a synced one at `offset`: it stays, and others need not once it is sure to be read."""
        self.offsets = tuple(sorted({*self.offsets, offset}))
        others = self.kept if offset > durable_end else ()
        self.kept = (*others, offset)

    def without(self, stay: Iterable[int]) -> list[str]:
        """Paths of the files of all but those at the offsets of `stay`."""
        gone = [offset for offset in self.offsets if offset not in stay]
        return [self.path_of(offset, suffix) for offset in gone for suffix in (SNAPSHOT, PRODUCERS)]

    def written(self, offset: int, stay: Iterable[int]) -> None:
        """One was written at `offset`, and the files of others but those of `stay` were removed."""
        self.offsets = (*(old for old in self.offsets if old in stay and old != offset), offset)

    def drop_beyond(self, end: int) -> None:
        """Remove those beyond the log's end: they describe a history that was truncated. OSError."""
        beyond = [offset for offset in self.offsets if offset > end]
        self.offsets = tuple(offset for offset in self.offsets if offset <= end)
        for offset in beyond:
            for suffix in (SNAPSHOT, PRODUCERS):
                path = self.path_of(offset, suffix)
                if self._disk.exists(path):
                    self._disk.remove(path)
        if beyond:
            self._disk.sync_directory(self.directory)

    def restore(self, producers: ProducerStates, kinds: Sequence[SnapshotKind]) -> int:
        """Restore producers from the newest readable one of the best kind; returns the offset it speaks up to, or -1.

        A damaged snapshot of ours is answered by an older one or by the batches, not by Kafka's: that knows one batch
        of each producer, and a client that sends an older one again would be refused instead of recognised.
        """
        for suffix, decode in kinds:
            damaged = False
            for offset in reversed(self.offsets):
                data = read_file(self._disk, self.path_of(offset, suffix))
                found = (
                    decode(data, SnapshotHome(self._topic_id, self._partition, offset)) if data is not None else None
                )
                damaged = damaged or (data is not None and found is None)
                if found is not None and data is not None:
                    producers.restore(found)
                    if suffix == PRODUCERS:
                        producers.stream = decode_stream(data)
                    return offset
            if damaged:
                break
        return -1

    def restore_expired(self, producers: ProducerStates, known_to: int, start_offset: int) -> None:
        """Restore producers whose batches retention took, by Kafka's snapshot above `known_to`, where ours is lost."""
        for offset in reversed(self.offsets):
            if offset <= known_to:
                return
            data = read_file(self._disk, self.path_of(offset, SNAPSHOT))
            found = None if data is None else decode_kafka(data)
            if found is not None:
                producers.restore(
                    each for each in found if each.last_offset < start_offset and producers.get(each.id) is None
                )
                return

    def aborted_bases(self) -> frozenset[int] | None:
        """Bases of the segments that had aborted transactions, by the newest readable one of ours; None without one."""
        for offset in reversed(self.offsets):
            data = read_file(self._disk, self.path_of(offset, PRODUCERS))
            home = SnapshotHome(self._topic_id, self._partition, offset)
            aborted = None if data is None else decode_aborted(data, home)
            if aborted is not None:
                return frozenset(aborted)
        return None
