"""Resolves each partition directory's topic id: `partition.metadata`, else checkpoint, manifest or journal."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from duramen.errors import StorageError
from duramen.model import NO_TOPIC_ID, LogKey, TopicId, TopicPartition, topic_id_text
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CLEAN_SHUTDOWN, DirectoryCheckpoint
from duramen.storage.checkpoint.manifest import deleted_since, journaled_ids, kept_ids, known_ids
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.parallel import Together
from duramen.storage.journal.reader import JournalContents
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    encode_partition_metadata,
    is_damaged_id,
    parse_partition_name,
    partition_names,
    read_topic_id,
)
from duramen.storage.segment.segment import log_name, parse_base

NO_ID = (
    f"{PARTITION_METADATA} is missing or damaged, so the topic's id is not known; "
    "restore it (two lines: `version: 0` and `topic_id: ` with the id)"
)


class PartitionDirectory(NamedTuple):
    """One partition directory: its name, and its topic's id (all zeros when partition.metadata is missing).

    vacant: nothing at all is in it.
    """

    tp: TopicPartition
    topic_id: TopicId
    path: str
    vacant: bool = False

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.tp.partition


def find_partitions(
    disk: Disk, path: str, ids: Mapping[TopicPartition, TopicId], together: Together, damage: list[str]
) -> list[PartitionDirectory]:
    """The partition directories. OSError.

    ids: by our last checkpoint; a metadata file that cannot be read is made again from them, which `damage` says.
    """

    def look(name: str, tp: TopicPartition) -> tuple[PartitionDirectory, str] | None:
        directory = posixpath.join(path, name)
        vacant, made_again = False, ""
        try:
            topic_id = read_topic_id(disk, directory)
            if topic_id == NO_TOPIC_ID:
                vacant = not disk.list_directory(directory)
        except NotADirectoryError:
            return None
        if topic_id == NO_TOPIC_ID and tp in ids:
            topic_id = ids[tp]
            made_again = posixpath.join(directory, PARTITION_METADATA)
            replace_file(disk, made_again, encode_partition_metadata(topic_id_text(topic_id)))
        return PartitionDirectory(tp, topic_id, directory, vacant), made_again

    names = [(name, parse_partition_name(name)) for name in partition_names(disk, path, ids)]
    looks = list(filter(None, together([partial(look, name, tp) for name, tp in names if tp is not None])))
    damage += [f"{made_again}: it was missing or damaged; it was made again" for _, made_again in looks if made_again]
    return [found for found, _ in looks]


def identified(
    disk: Disk,
    path: str,
    found: list[PartitionDirectory],
    contents: JournalContents,
    leftovers: list[str],
    damage: list[str],
    checkpoint: DirectoryCheckpoint | None,
    *,
    clean: bool,
) -> list[PartitionDirectory]:
    """The partitions whose topic id is known; what a crash left of a creation goes, other doubt stops the start.

    An id that neither the checkpoint nor the journal knows is damage where the journal has the topic's creation.
    """
    known = []
    made: dict[TopicPartition, TopicId] | None = None
    told: set[TopicId] = set()
    for partition in found:
        if partition.topic_id != NO_TOPIC_ID and (
            clean or (checkpoint is not None and partition.key in checkpoint.logs)
        ):
            known.append(partition)
            continue
        if made is None:
            made, told = journaled_ids(disk, path, contents), known_ids(disk, path, checkpoint, contents.entries)
        wanted = made.get(partition.tp)
        if partition.topic_id != NO_TOPIC_ID and (
            wanted is None or not is_damaged_id(partition.topic_id, wanted, told)
        ):
            known.append(partition)
        elif wanted is not None:
            metadata = posixpath.join(partition.path, PARTITION_METADATA)
            replace_file(disk, metadata, encode_partition_metadata(topic_id_text(wanted)))
            damage.append(f"{metadata}: it was missing or damaged; it was made again")
            known.append(partition._replace(topic_id=wanted))
        elif clean and partition.vacant:
            damage.append(f"{partition.path}: nothing is in it, and no log is known by its name")
        elif not clean and all(_is_empty(disk, partition.path, base) for base in bases_in(disk, partition.path)):
            leftovers.append(partition.path)
        else:
            raise StorageError(f"{partition.path}: {NO_ID}")
    return known


def refuse_foreign(
    disk: Disk,
    path: str,
    found: list[PartitionDirectory],
    contents: JournalContents,
    ids: Mapping[TopicPartition, TopicId],
    checkpoint: DirectoryCheckpoint | None,
) -> None:
    """StorageError for the directory of another topic in a partition's place: it would be cut by that one's journal.

    ids: by our last checkpoint. OSError.
    """
    made: dict[TopicPartition, TopicId] | None = None
    gone: set[LogKey] = set()
    for partition in found:
        if ids.get(partition.tp) == partition.topic_id:
            continue
        if made is None:
            made, gone = journaled_ids(disk, path, contents), deleted_since(contents)
        if partition.key not in gone and _is_there(checkpoint, partition.key, partition.tp):
            continue
        wanted = made.get(partition.tp, ids.get(partition.tp))
        if wanted not in (None, partition.topic_id):
            raise StorageError(f"{partition.path}: {_foreign(partition.topic_id, wanted)}")


def _is_there(checkpoint: DirectoryCheckpoint | None, key: LogKey, tp: TopicPartition) -> bool:
    """Whether the checkpoint knows the log by that name. It may know another one, too, whose directory is gone."""
    point = None if checkpoint is None else checkpoint.logs.get(key)
    return point is not None and point.tp == tp


def _foreign(found: TopicId, wanted: TopicId) -> str:
    return (
        f"its {PARTITION_METADATA} names topic id {topic_id_text(found)}, "
        f"but topic id {topic_id_text(wanted)} was here: another topic's directory, or file, is in its place. "
        "Put it back; where only that file is wrong, remove it, "
        "and the next start makes it again"
    )


def refused_homes(
    disk: Disk, path: str, journal: JournalContents, checkpoint: DirectoryCheckpoint | None
) -> dict[str, str]:
    """Partition directories for whose sake the next start refuses, and why: nobody knows their topic's id, or they
    are another topic's. checkpoint: what the next start goes by. The journal is open. OSError.
    """
    clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
    known = {**kept_ids(disk, path, checkpoint, journal), **journaled_ids(disk, path, journal)}
    told, gone = known_ids(disk, path, checkpoint, journal.entries), deleted_since(journal)
    refused = {}
    for name in partition_names(disk, path, known):
        tp, home = parse_partition_name(name), posixpath.join(path, name)
        if tp is None:
            continue
        try:
            found = read_topic_id(disk, home)
            names = disk.list_directory(home)
        except NotADirectoryError:
            continue
        wanted = known.get(tp)
        if wanted is not None:
            key = found, tp.partition
            is_there = found == wanted or (key not in gone and _is_there(checkpoint, key, tp))
            if not (is_there or is_damaged_id(found, wanted, told)):
                refused[home] = _foreign(found, wanted)
        elif found == NO_TOPIC_ID and (
            names if clean else any(not _is_empty(disk, home, base) for base in bases_in(disk, home))
        ):
            refused[home] = NO_ID
    return refused


def _is_empty(disk: Disk, path: str, base: int) -> bool:
    return size_of(disk, path, base) == 0


def size_of(disk: Disk, path: str, base: int) -> int:
    """Bytes of a segment file. OSError."""
    file = disk.open(posixpath.join(path, log_name(base)))
    try:
        return file.size()
    finally:
        file.close()


def bases_in(disk: Disk, path: str) -> list[int]:
    """Base offsets of the segments in a partition directory, ascending. OSError."""
    return sorted(base for base in map(parse_base, disk.list_directory(path)) if base is not None)
