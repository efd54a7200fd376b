"""The small files of a log directory: Kafka's offset checkpoints, meta.properties, and ours.

Every file is replaced whole: written under another name, synced, renamed, names synced. All of them can be deleted and
rebuilt, but for `duramen-forgone`, which is there only while a repair gives a journal up (`repair/journal_reset.py`),
and `duramen-formatting`, while the directory is formatted (`formatter.py`);
`duramen-checkpoint` repeats what recovery wants to know, keyed by topic id and closed by a CRC. Formats: Kafka's
OffsetCheckpointFile version 0, MetaProperties version 1, LeaderEpochCheckpointFile version 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from duramen.errors import StorageError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.segment.leader_epochs import Epochs
from duramen.storage.segment.recovery_point import ActiveState, LogPoint

RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
CLEANER: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
CHECKPOINT: Final = "duramen-checkpoint"
CLEANED: Final = "duramen-cleaned"
JOURNAL_RESET: Final = "duramen-forgone"
FORMATTING: Final = "duramen-formatting"


# ---- Kafka's offset checkpoints


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint: version, count, one `topic partition offset` per line."""
    lines = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    return ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, int] | None:
    """Inverse of `encode_offsets`; None when the content is not a whole checkpoint."""
    try:
        lines = content.decode("ascii").splitlines()
        if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
            return None
        offsets = {}
        for line in lines[2:]:
            topic, partition, offset = line.split(" ")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError:
        return None
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The checkpoint in `path`; empty when it is missing or damaged (it can always be rebuilt)."""
    content = read_file(disk, path)
    return (decode_offsets(content) if content is not None else None) or {}


# ---- up to where compaction has been, by topic id


class CleanedLog(NamedTuple):
    """What passes leave behind of a log. offset: up to where they have looked; late_ms: see `Cleaner`."""

    offset: int
    late_ms: int = 0


def encode_cleaned(cleaned: Mapping[tuple[TopicId, int], CleanedLog]) -> bytes:
    """`duramen-cleaned`: what Kafka's cleaner-offset-checkpoint says, by topic id, for names are used again; and more.

    A line is "topic_id partition offset late_ms".
    """
    lines = [
        f"{topic_id.hex()} {partition} {each.offset} {each.late_ms}"
        for (topic_id, partition), each in sorted(cleaned.items())
    ]
    return encode_lines([f"{CLEANED} 2 {len(lines)}", *lines])


def decode_cleaned(content: bytes) -> dict[tuple[TopicId, int], CleanedLog] | None:
    """Inverse of `encode_cleaned`, also of version 1, without late_ms; None when it is damaged."""
    found = decode_lines(content, f"{CLEANED} ")
    if found is None:
        return None
    head, *lines = found
    if head not in (f"{CLEANED} 1 {len(lines)}", f"{CLEANED} 2 {len(lines)}"):
        return None
    words = [line.split(" ") for line in lines]
    return {
        (bytes.fromhex(topic_id), int(partition)): CleanedLog(*map(int, rest)) for topic_id, partition, *rest in words
    }


# ---- leader epochs of one partition


# ---- meta.properties


class MetaProperties(NamedTuple):
    """Whose directory this is."""

    cluster_id: str
    node_id: int
    directory_id: str


def encode_meta(meta: MetaProperties) -> bytes:
    """meta.properties, version 1."""
    return (
        f"#\ncluster.id={meta.cluster_id}\ndirectory.id={meta.directory_id}\nnode.id={meta.node_id}\nversion=1\n"
    ).encode()


def decode_meta(content: bytes, path: str) -> MetaProperties:
    """Inverse of `encode_meta`, for Kafka's files too; StorageError names what is missing."""
    values: dict[str, str] = {}
    for line in content.decode("latin-1").splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = stripped.partition("=")
            values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    if values.get("version") not in ("0", "1"):
        raise StorageError(f"{path}: version {values.get('version')!r} is not known (0 and 1 are)")
    node_id = values.get("node.id", values.get("broker.id", ""))
    if not node_id.lstrip("-").isdecimal() or not values.get("cluster.id"):
        raise StorageError(f"{path}: it names no node.id or no cluster.id; restore it from a sibling directory")
    return MetaProperties(values["cluster.id"], int(node_id), values.get("directory.id", ""))


# ---- our own checkpoint


NO_EPOCHS, UNKNOWN = "-", "?"
"""In the file: a log that has had no epoch, and where nothing is known of a log's epochs, or of its segments."""


class DirectoryCheckpoint(NamedTuple):
    """The whole `duramen-checkpoint`: the journal generation and LSN it was taken at, and a point for every log.

    epochs: (epoch, start offset) pairs of the logs that were served. segments: base offsets that a log had, where it
    had several, but not those that compaction was merging (`checkpoint/expected_segments.py`).
    """

    generation: int
    checkpoint_lsn: int
    logs: Mapping[tuple[TopicId, int], LogPoint]
    epochs: Mapping[tuple[TopicId, int], Epochs] = MappingProxyType({})
    segments: Mapping[tuple[TopicId, int], tuple[int, ...]] = MappingProxyType({})


def encode_checkpoint(checkpoint: DirectoryCheckpoint) -> bytes:
    """Text lines, the last one with the CRC-32C of those before it.

    Version 1 had no states, version 2 neither epochs nor segments. A position with a sign is that of an end that
    `is_least`; versions before read it as any other. A recovery point with a sign is that of a log that is
    `unjournaled`: that is version 4, for whoever read it as any other would cut off what is behind it.
    """
    version = 4 if any(point.unjournaled for point in checkpoint.logs.values()) else 3
    lines = [f"duramen-checkpoint {version} {checkpoint.generation} {checkpoint.checkpoint_lsn} {len(checkpoint.logs)}"]
    for key, point in sorted(checkpoint.logs.items()):
        pairs = checkpoint.epochs.get(key)
        epochs = UNKNOWN if pairs is None else ",".join(f"{epoch}:{start}" for epoch, start in pairs) or NO_EPOCHS
        segments = ",".join(map(str, checkpoint.segments.get(key, ()))) or UNKNOWN
        line = (
            f"{key[0].hex()} {point.tp.topic} {key[1]} {epochs} {segments} {point.start_offset} "
            f"{'+' * point.unjournaled}{point.recovery_point} {point.segment_base} "
            f"{'+' * point.is_least}{point.position}"
        )
        lines.append(line if point.state is None else f"{line} {' '.join(map(str, point.state))}")
    return encode_lines(lines)


def decode_checkpoint(content: bytes) -> DirectoryCheckpoint | None:
    """Inverse of `encode_checkpoint`; None when it is damaged."""
    lines = decode_lines(content, "duramen-checkpoint ")
    if lines is None:
        return None
    _, version, generation, lsn, count = lines[0].split(" ")
    if version not in ("1", "2", "3", "4") or int(count) != len(lines) - 1:
        return None
    logs: dict[tuple[TopicId, int], LogPoint] = {}
    epochs: dict[tuple[TopicId, int], Epochs] = {}
    segments: dict[tuple[TopicId, int], tuple[int, ...]] = {}
    for line in lines[1:]:
        topic_id, topic, number, *rest = line.split(" ")
        key = bytes.fromhex(topic_id), int(number)
        if version in ("3", "4"):
            told, bases, *rest = rest
            if told != UNKNOWN:
                pairs = [] if told == NO_EPOCHS else [pair.split(":") for pair in told.split(",")]
                epochs[key] = tuple((int(epoch), int(start)) for epoch, start in pairs)
            if bases != UNKNOWN:
                segments[key] = tuple(map(int, bases.split(",")))
        start, point, base, position, *numbers = map(int, rest)
        state = ActiveState(*numbers) if numbers else None
        unjournaled, is_least = rest[1].startswith("+"), rest[3].startswith("+")
        logs[key] = LogPoint(TopicPartition(topic, key[1]), start, point, base, position, state, is_least, unjournaled)
    return DirectoryCheckpoint(int(generation), int(lsn), logs, epochs, segments)


def read_checkpoint(disk: Disk, directory: str) -> DirectoryCheckpoint | None:
    """The directory's checkpoint; None when it is missing or damaged."""
    content = read_file(disk, posixpath.join(directory, CHECKPOINT))
    return None if content is None else decode_checkpoint(content)


# ---- partition directories
