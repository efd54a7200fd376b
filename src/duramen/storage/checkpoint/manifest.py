"""Checksummed copy of what Kafka's small text files say: a damaged one is written again from it at a start.

`duramen-checkpoint` repeats of each partition the topic id, the leader epochs and, when there are several, the segments
(`checkpoint/expected_segments.py`): in one file with what it says of the logs, so that at any moment all of it counts
or nothing. `duramen-directory` repeats whose directory this is, and the topic ids for when the checkpoint is lost. It
is written in front of each checkpoint, and names its journal generation and LSN: it tells one that is older than it
should be. `restore` runs before anything else of a start looks at the files these two cover. Where Kafka itself has
used the directory since, Kafka's files are the truth, and our seals may speak of segments that it has compacted: they
go.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.model import NO_TOPIC_ID, LogKey, TopicId, TopicPartition, topic_id_text
from duramen.ports import Disk
from duramen.storage.checkpoint.clean_shutdown import kafka_was_here
from duramen.storage.checkpoint.expected_segments import ExpectedSegments
from duramen.storage.checkpoint.kafka_files import (
    CLEAN_SHUTDOWN,
    CLEANED,
    LOG_START,
    RECOVERY_POINT,
    DirectoryCheckpoint,
    MetaProperties,
    decode_offsets,
    encode_offsets,
    read_checkpoint,
)
from duramen.storage.files.atomic import read_file, remove_file, replace_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.journal.format import EntryKind, part_name
from duramen.storage.journal.reader import JournalContents, JournalEntry, read_journal
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, Epochs, encode_epochs, read_epochs
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    encode_partition_metadata,
    is_damaged_id,
    parse_partition_name,
    partition_names,
    read_topic_id,
)
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import parse_base

_CREATE, _DELETE = EntryKind.CREATE, EntryKind.DELETE  # looked up once: there may be very many entries
MANIFEST = "duramen-directory"
SEALS = (".seal", ".sealing")
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
"""Kafka's for the directory of a partition whose topic is gone, and of which nobody said that it may go: it is kept."""
LONGEST_NAME = 255
"""Bytes of the name of a file or directory."""


class DirectoryManifest(NamedTuple):
    """The content of `duramen-directory`. logs: each partition's name."""

    identity: MetaProperties
    generation: int
    lsn: int
    logs: Mapping[LogKey, TopicPartition]


def encode_manifest(manifest: DirectoryManifest) -> bytes:
    """Text lines, the last one with the CRC-32C of those before it."""
    identity = manifest.identity
    counts = f"{manifest.generation} {manifest.lsn} {len(manifest.logs)}"
    lines = [f"{MANIFEST} 3 {counts} {identity.node_id} {identity.cluster_id} {identity.directory_id}"]
    for (topic_id, partition), tp in sorted(manifest.logs.items()):
        lines.append(f"{topic_id.hex()} {tp.topic} {partition}")
    return encode_lines(lines)


def decode_manifest(content: bytes) -> DirectoryManifest | None:
    """Inverse of `encode_manifest`; None when it is damaged. Versions 1 and 2 said more of each log."""
    found = decode_lines(content, f"{MANIFEST} ")
    if found is None:
        return None
    head, *lines = found
    _, version, *words = head.split(" ")
    if version not in ("1", "2", "3"):
        return None
    generation, lsn, count, *lists, node, cluster, directory = words
    if int(count) + sum(map(int, lists)) != len(lines):
        return None
    logs: dict[LogKey, TopicPartition] = {}
    for line in lines[: int(count)]:
        topic_id, topic, partition, *_ = line.split(" ")
        logs[bytes.fromhex(topic_id), int(partition)] = TopicPartition(topic, int(partition))
    return DirectoryManifest(MetaProperties(cluster, int(node), directory), int(generation), int(lsn), logs)


def is_outdated(disk: Disk, path: str, checkpoint: DirectoryCheckpoint, journal: JournalContents) -> bool:
    """Whether a later checkpoint than this was on stable storage: its write was lost, or an older file was put back.

    A start writes both our files, of the generation that its journal will have; a stop writes them, then a bare journal
    of the next one. So a bare journal tells the generation, and `duramen-directory` the LSN unless a start has begun to
    replace it; any other journal tells what its own beginning relies on.
    """
    if not journal.empty:
        told = (checkpoint.generation, checkpoint.checkpoint_lsn)
        return told < (journal.generation, journal.checkpoint_lsn)
    content = read_file(disk, posixpath.join(path, MANIFEST))
    manifest = None if content is None else decode_manifest(content)
    newest = (journal.generation - 1, 0)
    if manifest is not None and manifest.generation < journal.generation:
        newest = max(newest, (manifest.generation, manifest.lsn))
    return (checkpoint.generation, checkpoint.checkpoint_lsn) < newest


def held_journal(disk: Disk, path: str, hold: int = 0) -> JournalContents:
    """As `read_journal`; damaged, too, where it is not the one that goes with the checkpoint beside it. OSError.

    After a clean stop nothing is in it. Else it has the checkpoint's generation or a later one, or the checkpoint is
    what a start wrote before it began the next journal: then that goes on with the entry at which this one ends. The
    first start of all has nothing but a checkpoint without logs then.
    """
    contents = read_journal(disk, path, hold)
    checkpoint = read_checkpoint(disk, path)
    is_clean = disk.exists(posixpath.join(path, CLEAN_SHUTDOWN))
    if checkpoint is None or is_clean or contents.damage is not None or checkpoint.generation <= contents.generation:
        return contents
    is_next = (checkpoint.generation, checkpoint.checkpoint_lsn) == (contents.generation + 1, contents.next_lsn)
    if is_next and (contents.generation >= 0 or not _has_partitions(disk, path)):
        return contents
    what = "it is missing" if not contents.names else f"it is missing; {contents.names[0]} is an earlier one's"
    contents.generation, contents.next_lsn = checkpoint.generation, checkpoint.checkpoint_lsn
    contents.checkpoint_lsn, contents.durable_lsn = contents.next_lsn, contents.next_lsn - 1
    contents.entries, contents.unproven, contents.torn_entries, contents.empty = [], [], 0, False
    contents.foreign = set(range(len(contents.names)))
    contents.gone, contents.missing = True, "the journal is missing"
    contents.damage = CorruptLogError(posixpath.join(path, part_name(contents.generation, 0)), 0, 0, what)
    return contents


def _has_partitions(disk: Disk, path: str) -> bool:
    for name in partition_names(disk, path):
        with suppress(NotADirectoryError):
            disk.list_directory(posixpath.join(path, name))
            return True
    return False


def checkpoint_of_stop(disk: Disk, path: str) -> DirectoryCheckpoint | None:
    """The checkpoint of our clean stop, if that was the last thing that happened here; None, too, when it is lost."""
    if not disk.exists(posixpath.join(path, CLEAN_SHUTDOWN)) or kafka_was_here(disk, path):
        return None
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None:
        return None
    journal = read_journal(disk, path)
    journal.close()
    return None if is_outdated(disk, path, checkpoint, journal) else checkpoint


def listed_segments(
    disk: Disk, path: str, checkpoint: DirectoryCheckpoint | None
) -> Mapping[TopicPartition, ExpectedSegments] | None:
    """The lists of our clean stop, with this checkpoint. None where Kafka, which may compact, stopped last. OSError."""
    if kafka_was_here(disk, path):
        return None
    if checkpoint is None:
        return {}
    return {point.tp: ExpectedSegments(checkpoint.segments.get(key, ())) for key, point in checkpoint.logs.items()}


def missing_segments(
    names: Sequence[str], listed: ExpectedSegments | None, point: LogPoint | None
) -> list[tuple[int, int]]:
    """First and last offset of each segment that a log must have and has not, as far as no journal is asked.

    names: in its directory. listed: of our clean stop, None where Kafka stopped last; where nothing is on the list
    the checkpoint names one, and seals whose segments are gone tell. point: of the log in that stop's checkpoint.
    """
    if listed is None:
        return []
    if not listed.bases:
        listed = listed._replace(bases=named_segment(point))
    wanted = listed.and_sealed(names, start_known=point is not None)
    present = [base for base in map(parse_base, names) if base is not None]
    start, end = (0, -1) if point is None else (point.start_offset, point.recovery_point)
    return wanted.missing(present, start, end)


def named_segment(point: LogPoint | None) -> tuple[int, ...]:
    """The segment that a log must have which is on no list, by a checkpoint that counts; it may have been empty."""
    if point is None or point.state is None or not point.position:
        return ()
    return (point.segment_base,)


def restore(
    disk: Disk,
    path: str,
    checkpoint: DirectoryCheckpoint | None,
    entries: Sequence[JournalEntry],
    damage: list[str],
    *,
    clean: bool,
) -> bool:
    """Make Kafka's text files again where they differ from what our checkpoint vouches for; says so in `damage`.

    False when Kafka was here since, and our checkpoint must not be believed.
    """
    if clean and kafka_was_here(disk, path):
        _drop_seals(disk, path)
        remove_file(disk, posixpath.join(path, CLEANED))  # it may have compacted on
        return False
    for file in to_restore(disk, path, checkpoint, entries, clean=clean):
        replace_file(disk, file.path, file.content)
        if file.is_told:
            damage.append(f"{file.path}: it was missing or damaged; it was made again")
    return True


class Restored(NamedTuple):
    """A text file and what a start writes into it. is_told: it was not right that it differed."""

    path: str
    content: bytes
    is_told: bool = True


def to_restore(
    disk: Disk, path: str, checkpoint: DirectoryCheckpoint | None, entries: Sequence[JournalEntry], *, clean: bool
) -> Iterator[Restored]:
    """Kafka's text files that differ from what our checkpoint, which is to be believed, vouches for. OSError."""
    if checkpoint is None:
        return
    if clean:
        points = checkpoint.logs.values()
        yield from _offsets(disk, path, LOG_START, {p.tp: p.start_offset for p in points if p.start_offset > 0})
        yield from _offsets(disk, path, RECOVERY_POINT, {p.tp: p.recovery_point for p in points})
    created: set[LogKey] = set()
    deleted = set(deleted_here(disk, path))
    known: set[TopicId] | None = None
    for entry in entries:
        if entry.kind == _CREATE:
            created.add((entry.topic_id, entry.partition))
        elif entry.kind == _DELETE:  # its files may be gone, and a newer topic's at their place
            deleted.add((entry.topic_id, entry.partition))
    for key, epochs in checkpoint.epochs.items():
        home = posixpath.join(path, str(checkpoint.logs[key].tp))
        if key in deleted or not disk.exists(home):
            continue
        found = read_topic_id(disk, home)
        if found != key[0]:
            known = known_ids(disk, path, checkpoint, entries) if known is None else known
            if (found, key[1]) in created or not is_damaged_id(found, key[0], known):
                continue  # the directory belongs to a newer topic of that name, or is another's: then the start refuses
            content = encode_partition_metadata(topic_id_text(key[0]))
            yield Restored(posixpath.join(home, PARTITION_METADATA), content)
        yield from _epochs(disk, home, epochs, clean=clean)


def deleted_here(disk: Disk, path: str) -> Iterator[LogKey]:
    """The partitions that have a `-delete` or `-stray` directory: what has their name is a newer topic's, journaled or
    not. But for a stray one that is here under its own name, too: Kafka had moved it aside, and has got it again since.
    """
    names = disk.list_directory(path)
    for name in names:
        is_stray = name.endswith(STRAY_SUFFIX)
        key = deleted_key(disk, posixpath.join(path, name)) if is_stray or name.endswith(DELETE_SUFFIX) else None
        if key is not None and not (is_stray and _is_back(disk, path, names, name, key)):
            yield key


def _is_back(disk: Disk, path: str, names: Iterable[str], stray: str, key: LogKey) -> bool:
    """stray: the directory's name; that of a long topic is cut off there."""
    tp = parse_partition_name(stray.rpartition(".")[0])
    for name in names:
        other = parse_partition_name(name)
        if tp is None or other is None or other.partition != key[1] or not other.topic.startswith(tp.topic):
            continue
        with suppress(NotADirectoryError):
            if (other.topic == tp.topic or len(stray) == LONGEST_NAME) and (
                read_topic_id(disk, posixpath.join(path, name)) == key[0]
            ):
                return True
    return False


def deleted_key(disk: Disk, home: str) -> LogKey | None:
    """Whose `-delete` or `-stray` directory it is; None where nobody can tell: nobody is kept from starting by that.

    OSError.
    """
    tp = parse_partition_name(posixpath.basename(home).rpartition(".")[0])
    try:
        topic_id = NO_TOPIC_ID if tp is None else read_topic_id(disk, home)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    return None if tp is None or topic_id == NO_TOPIC_ID else (topic_id, tp.partition)


def deleted_since(journal: JournalContents) -> set[LogKey]:
    """The partitions whose deletion is journaled behind the last checkpoint."""
    return {(entry.topic_id, entry.partition) for entry in journal.entries if entry.kind == _DELETE}


def known_ids(
    disk: Disk, path: str, checkpoint: DirectoryCheckpoint | None, entries: Iterable[JournalEntry]
) -> set[TopicId]:
    """Topics that there are, or were, by whoever knows some. OSError."""
    logs = () if checkpoint is None else checkpoint.logs
    return {key[0] for key in (*logs, *deleted_here(disk, path))} | {entry[2] for entry in entries}


def lone_manifest(disk: Disk, path: str, journal: JournalContents) -> DirectoryManifest | None:
    """The directory's `duramen-directory` where the checkpoint beside it is lost: if by the journal none was later.

    None, too, where Kafka, which may have made a topic anew, stopped last. OSError.
    """
    content = read_file(disk, posixpath.join(path, MANIFEST))
    manifest = None if content is None else decode_manifest(content)
    if manifest is None or kafka_was_here(disk, path):
        return None
    newest = (journal.generation - 1, 0) if journal.empty else (journal.generation, journal.checkpoint_lsn)
    return manifest if (manifest.generation, manifest.lsn) >= newest else None


def kept_ids(
    disk: Disk, path: str, checkpoint: DirectoryCheckpoint | None, journal: JournalContents
) -> dict[TopicPartition, TopicId]:
    """Topic ids of the logs that were there at our last checkpoint, and have not been deleted since. OSError.

    checkpoint: None where it is lost or not to be believed.
    """
    gone = deleted_since(journal) | set(deleted_here(disk, path))  # what has their names is being made
    if checkpoint is not None:
        logs = [(key, point.tp) for key, point in checkpoint.logs.items() if key not in gone]
        logs.sort(key=lambda each: each[0] in checkpoint.epochs)  # of two of one name the one that was served counts
        return {tp: key[0] for key, tp in logs}
    manifest = lone_manifest(disk, path, journal)
    return {} if manifest is None else {tp: key[0] for key, tp in manifest.logs.items() if key not in gone}


def journaled_ids(disk: Disk, path: str, contents: JournalContents) -> dict[TopicPartition, TopicId]:
    """Topic ids of the logs that were made since the last checkpoint, and not deleted. The journal is open. OSError."""
    made: dict[TopicPartition, TopicId] = {}
    gone = set(deleted_here(disk, path))
    for entry in contents.entries:
        key = entry.topic_id, entry.partition
        if entry.kind == _CREATE and key not in gone:
            name = bytes(contents.parts[entry.part].data(entry.data_position, entry.size))
            made[TopicPartition(name.decode(), entry.partition)] = entry.topic_id
        elif entry.kind == _DELETE:
            made = {tp: topic_id for tp, topic_id in made.items() if (topic_id, tp.partition) != key}
    return made


def _drop_seals(disk: Disk, path: str) -> None:
    for name in disk.list_directory(path):
        home = posixpath.join(path, name)
        if parse_partition_name(name) is None:
            continue
        try:
            names = disk.list_directory(home)
        except NotADirectoryError:
            continue
        gone = [inside for inside in names if inside.endswith(SEALS)]
        for inside in gone:
            disk.remove(posixpath.join(home, inside))
        if gone:
            disk.sync_directory(home)


def _offsets(disk: Disk, path: str, name: str, wanted: Mapping[TopicPartition, int]) -> Iterator[Restored]:
    """An offset checkpoint says what ours says."""
    file = posixpath.join(path, name)
    content = read_file(disk, file)
    if (decode_offsets(content) if content is not None else {}) != wanted:
        yield Restored(file, encode_offsets(wanted))


def _epochs(disk: Disk, home: str, epochs: Epochs, *, clean: bool) -> Iterator[Restored]:
    """The leader epochs are those of the checkpoint; recovery adds what the journal and the batches say on top."""
    path = posixpath.join(home, LEADER_EPOCHS)
    found = read_epochs(disk, path)
    if found is None or tuple(found) != epochs:
        # After another stop the file may rightly differ from what the checkpoint knew.
        yield Restored(path, encode_epochs(epochs), is_told=clean or found is None)
