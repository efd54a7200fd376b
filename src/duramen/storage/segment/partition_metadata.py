"""Partition directories: their names, and the topic id in Kafka's `partition.metadata` (version 0)."""

from __future__ import annotations

import posixpath
from collections.abc import Container
from typing import Final

from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_from_text, topic_id_text
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file

PARTITION_METADATA: Final = "partition.metadata"


def encode_partition_metadata(topic_id_text: str) -> bytes:
    """Kafka's partition.metadata, version 0."""
    return f"version: 0\ntopic_id: {topic_id_text}\n".encode()


def decode_partition_metadata(content: bytes) -> str | None:
    """The topic id's text; None when the file is damaged."""
    values = dict(line.split(": ", 1) for line in content.decode("latin-1").splitlines() if ": " in line)
    return values.get("topic_id", "").strip() or None if values.get("version", "").strip() == "0" else None


def partition_names(disk: Disk, path: str, known: Container[TopicPartition] = ()) -> list[str]:
    """Names of the partition directories in a log directory; files may be among them. OSError.

    known: by whoever else knows some. A topic's name may begin with a dot, and so do those of directories that are none
    of ours, as `.Trash-1000`: of these only what is known, or has a metadata file, is a partition's.
    """
    found = []
    for name in disk.list_directory(path):
        tp = parse_partition_name(name)
        is_hidden = name.startswith(".") and tp not in known
        if tp is not None and not (is_hidden and not disk.exists(posixpath.join(path, name, PARTITION_METADATA))):
            found.append(name)
    return found


def read_topic_id(disk: Disk, directory: str) -> TopicId:
    """The topic id in a partition directory's metadata file; NO_TOPIC_ID when that is missing or damaged. OSError."""
    content = read_file(disk, posixpath.join(directory, PARTITION_METADATA))
    text = decode_partition_metadata(content) if content is not None else None
    if text is None:
        return NO_TOPIC_ID
    try:
        return topic_id_from_text(text)
    except ValueError:
        return NO_TOPIC_ID


def is_damaged_id(found: TopicId, wanted: TopicId, known: Container[TopicId]) -> bool:
    """Whether what a metadata file says instead of a topic's id is no other topic's: nothing, or one bit of its text
    differs. known: topics that there are, or were.
    """
    if found == NO_TOPIC_ID:
        return True
    pairs = zip(topic_id_text(found), topic_id_text(wanted), strict=True)
    return found not in known and sum((ord(a) ^ ord(b)).bit_count() for a, b in pairs) == 1


def parse_partition_name(name: str) -> TopicPartition | None:
    """`topic-partition` of a directory's name; None for `-delete`, `-stray`, `-future` and all else."""
    topic, _, partition = name.rpartition("-")
    if not topic or not (partition.isascii() and partition.isdecimal()):
        return None
    return TopicPartition(topic, int(partition))
