"""The small files of a log directory: Kafka's offset checkpoints, meta.properties, the clean-shutdown file, and ours.

Every file is replaced whole: written under another name, synced, renamed, names synced. All of them can be deleted and
rebuilt, but for `duramen-forgone`, which is there only while a repair gives a journal up (`repair/journal_reset.py`);
`duramen-checkpoint` repeats what recovery wants to know, keyed by topic id and closed by a CRC. Formats: Kafka's
OffsetCheckpointFile version 0, MetaProperties version 1, LeaderEpochCheckpointFile version 0.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from duramen.errors import StorageError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_from_text, topic_id_text
from duramen.ports import Disk
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.files.disk_full import writing

RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
CLEANER: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
CHECKPOINT: Final = "duramen-checkpoint"
CLEANED: Final = "duramen-cleaned"
FORGONE: Final = "duramen-forgone"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
LARGEST_EPOCH: Final = 1 << 30
"""No partition is led so often, whatever a damaged file says."""

MAX_FILE_BYTES: Final = 64 << 20
"""No checkpoint is larger; whatever claims to be is damaged."""
MAX_SIDE_BYTES: Final = 2**31 - 1
"""The same of a log's side files, which grow with its producers (60 to 190 bytes each) and its index entries."""
_SIDES = (".producers", ".snapshot", ".index", ".timeindex", ".txnindex")


def read_file(disk: Disk, path: str) -> bytes | None:
    """Content of a small file, None when it does not exist; StorageError when it is absurdly large."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > (MAX_SIDE_BYTES if path.endswith(_SIDES) else MAX_FILE_BYTES):
            raise StorageError(f"{path}: {size} bytes is too large for this kind of file")
        return file.pread(size, 0)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, content: bytes, *, sync: bool = True, durable_name: bool = True) -> None:
    """Give the file this content, all or nothing. With `durable_name` the new content survives a power cut.

    Without `sync` a power cut may leave anything in the file: its reader has to tell.

    NoRoomError: the old content stays. So it is after a sync that found no room, for the next try begins by cutting off
    all that this one wrote. OSError.
    """
    temporary = path + ".tmp"
    with writing():
        file = disk.open(temporary, create=True, write=True)
        try:
            file.truncate(0)
            if content:
                file.pwritev([content], 0)
            if sync:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    if durable_name:
        disk.sync_directory(posixpath.dirname(path))


def remove_file(disk: Disk, path: str) -> bool:
    """Remove a file if it is there; the caller syncs the name."""
    if not disk.exists(path):
        return False
    disk.remove(path)
    return True


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


class Cleaned(NamedTuple):
    """What passes leave behind of a log. offset: up to where they have looked; late_ms: see `Cleaner`."""

    offset: int
    late_ms: int = 0


def encode_cleaned(cleaned: Mapping[tuple[TopicId, int], Cleaned]) -> bytes:
    """`duramen-cleaned`: what Kafka's cleaner-offset-checkpoint says, by topic id, for names are used again; and more.

    A line is "topic_id partition offset late_ms".
    """
    lines = [
        f"{topic_id.hex()} {partition} {each.offset} {each.late_ms}"
        for (topic_id, partition), each in sorted(cleaned.items())
    ]
    return encode_lines([f"{CLEANED} 2 {len(lines)}", *lines])


def decode_cleaned(content: bytes) -> dict[tuple[TopicId, int], Cleaned] | None:
    """Inverse of `encode_cleaned`, also of version 1, without late_ms; None when it is damaged."""
    found = decode_lines(content, f"{CLEANED} ")
    if found is None:
        return None
    head, *lines = found
    if head not in (f"{CLEANED} 1 {len(lines)}", f"{CLEANED} 2 {len(lines)}"):
        return None
    words = [line.split(" ") for line in lines]
    return {(bytes.fromhex(topic_id), int(partition)): Cleaned(*map(int, rest)) for topic_id, partition, *rest in words}


# ---- leader epochs of one partition


def latest_epoch(disk: Disk, home: str) -> int:
    """The latest leader epoch in a partition directory's checkpoint that can be one; -1 without. OSError."""
    known = read_epochs(disk, posixpath.join(home, LEADER_EPOCHS)) or ()
    return max((epoch for epoch, _ in known if epoch <= LARGEST_EPOCH), default=-1)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]] | None:
    """(epoch, start offset) pairs of a leader-epoch-checkpoint, ascending; None when missing or damaged."""
    content = read_file(disk, path)
    if content is None:
        return None
    try:
        lines = content.decode("ascii").splitlines()
        if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
            return None
        epochs = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines[2:])]
    except ValueError:
        return None
    return epochs


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """A leader-epoch-checkpoint."""
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    return ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode()


# ---- meta.properties and the clean-shutdown file


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


def encode_clean_shutdown(broker_epoch: int = -1) -> bytes:
    """Kafka's clean-shutdown file; -1 says that the broker epoch is not known."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


# ---- our own checkpoint


class ActiveState(NamedTuple):
    """What a start need not find out again of the segment that the recovery point lies in.

    index_entries, index_crc, time_entries, time_crc: the beginning of its index files that speaks of bytes below the
    point, with its CRC-32C, so that the files themselves need no sync. Timestamps (ms) as in `Segment`.
    producers: how many were known at the point; transactions: how many segments had a `.txnindex`.
    """

    index_entries: int
    index_crc: int
    time_entries: int
    time_crc: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    producers: int
    transactions: int


Epochs = tuple[tuple[int, int], ...]
"""(leader epoch, start offset) pairs, ascending."""
NO_EPOCHS, UNKNOWN = "-", "?"
"""In the file: a log that has had no epoch, and where nothing is known of a log's epochs, or of its segments."""


class LogPoint(NamedTuple):
    """What was on stable storage of one log: all below `recovery_point`, which lies at `position` of `segment_base`.

    state: None when it is not known (after a cut, or in a checkpoint of an earlier version). is_least: the log was left
    offline when nobody knew where it ends: it reaches so far at least, and its last segment has those bytes.
    unjournaled: when the journal began that goes with the checkpoint, appends were not journaled (page-cache topics).
    """

    tp: TopicPartition
    start_offset: int
    recovery_point: int
    segment_base: int
    position: int
    state: ActiveState | None = None
    is_least: bool = False
    unjournaled: bool = False


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
