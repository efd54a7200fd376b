"""Whose the partition directories of a log directory are: by their own metadata files, else by who else knows."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from duramen.errors import StorageError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_from_text, topic_id_text
from duramen.ports import Disk
from duramen.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    PARTITION_METADATA,
    DirectoryCheckpoint,
    decode_partition_metadata,
    encode_partition_metadata,
    parse_partition_name,
    read_file,
    replace_file,
)
from duramen.storage.journal_reader import JournalContents
from duramen.storage.recovery_plan import LogKey
from duramen.storage.segment import log_name, parse_base
from duramen.storage.together import Together
from duramen.storage.vouching import journaled_ids

NO_ID = (
    f"{PARTITION_METADATA} is missing or damaged, so the topic's id is not known; "
    "restore it (two lines: `version: 0` and `topic_id: ` with the id)"
)


class Found(NamedTuple):
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
) -> list[Found]:
    """The partition directories. OSError.

    ids: by our last checkpoint; a metadata file that cannot be read is made again from them, which `damage` says.
    """

    def look(name: str, tp: TopicPartition) -> tuple[Found, str] | None:
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
        return Found(tp, topic_id, directory, vacant), made_again

    names = [(name, parse_partition_name(name)) for name in disk.list_directory(path) if not name.startswith(".")]
    looks = list(filter(None, together([partial(look, name, tp) for name, tp in names if tp is not None])))
    damage += [f"{made_again}: it was missing or damaged; it was made again" for _, made_again in looks if made_again]
    return [found for found, _ in looks]


def identified(
    disk: Disk,
    path: str,
    found: list[Found],
    contents: JournalContents,
    leftovers: list[str],
    damage: list[str],
    checkpoint: DirectoryCheckpoint | None,
    *,
    clean: bool,
) -> list[Found]:
    """The partitions whose topic id is known; what a crash left of a creation goes, other doubt stops the start.

    An id that neither the checkpoint nor the journal knows is damage where the journal has the topic's creation.
    """
    known = []
    made: dict[TopicPartition, TopicId] | None = None
    told = set(checkpoint.logs if checkpoint is not None else ())
    for partition in found:
        if partition.topic_id != NO_TOPIC_ID and (clean or partition.key in told):
            known.append(partition)
            continue
        if made is None:
            made = journaled_ids(disk, path, contents)
            told |= {(entry[2], entry[3]) for entry in contents.entries}
        if partition.topic_id != NO_TOPIC_ID and (partition.key in told or partition.tp not in made):
            known.append(partition)
        elif partition.tp in made:
            metadata = posixpath.join(partition.path, PARTITION_METADATA)
            replace_file(disk, metadata, encode_partition_metadata(topic_id_text(made[partition.tp])))
            damage.append(f"{metadata}: it was missing or damaged; it was made again")
            known.append(partition._replace(topic_id=made[partition.tp]))
        elif clean and partition.vacant:
            damage.append(f"{partition.path}: nothing is in it, and no log is known by its name")
        elif not clean and all(_is_empty(disk, partition.path, base) for base in bases_in(disk, partition.path)):
            leftovers.append(partition.path)
        else:
            raise StorageError(f"{partition.path}: {NO_ID}")
    return known


def refused_homes(disk: Disk, path: str, journal: JournalContents, ids: Mapping[TopicPartition, TopicId]) -> list[str]:
    """Partition directories for whose sake the next start refuses, since nobody knows their topic's id. OSError.

    ids: by our last checkpoint. The journal is open.
    """
    clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
    known = {*ids, *journaled_ids(disk, path, journal)}
    refused = []
    for name in disk.list_directory(path):
        tp, home = parse_partition_name(name), posixpath.join(path, name)
        if tp is None or tp in known:
            continue
        try:
            is_known = read_topic_id(disk, home) != NO_TOPIC_ID
            names = disk.list_directory(home)
        except NotADirectoryError:
            continue
        if not is_known and (names if clean else any(not _is_empty(disk, home, base) for base in bases_in(disk, home))):
            refused.append(home)
    return refused


def read_topic_id(disk: Disk, directory: str) -> TopicId:
    """The topic id in a partition directory's metadata file; NO_TOPIC_ID when that is missing or damaged."""
    content = read_file(disk, posixpath.join(directory, PARTITION_METADATA))
    text = decode_partition_metadata(content) if content is not None else None
    if text is None:
        return NO_TOPIC_ID
    try:
        return topic_id_from_text(text)
    except ValueError:
        return NO_TOPIC_ID


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
