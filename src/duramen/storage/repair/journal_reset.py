"""Journal reset: go on without what a damaged journal held, and lose nothing still known by a crash at any point.

What the readable rest of the journal tells of acknowledged offsets would go with the journal. So it is put on stable
storage first (`duramen-forgone`), and only then the directory is recovered without the rest and stopped cleanly, and
each log's end is moved behind what was acknowledged: those offsets are a gap and not used again. While that file is
there no start serves the directory, and the same command finishes what was begun.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import METADATA_TOPIC, LogKey, TopicPartition
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoint.expected_segments import NOTHING_EXPECTED
from duramen.storage.checkpoint.identity import compare_identity, refuse_other_identity
from duramen.storage.checkpoint.kafka_files import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    JOURNAL_RESET,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    DirectoryCheckpoint,
    MetaProperties,
    decode_meta,
    encode_checkpoint,
    encode_offsets,
    read_checkpoint,
)
from duramen.storage.checkpoint.loss_record import record_loss
from duramen.storage.checkpoint.manifest import listed_segments, missing_segments
from duramen.storage.checkpoint.metadata_snapshot import find_snapshots, read_snapshot
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.atomic import read_file, remove_file, replace_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.repair.inspect_partition import survey_partition
from duramen.storage.repair.journal_salvage import JournalLoss, quarantine_journal
from duramen.storage.repair.rewrite_partition import DROPPED, PartitionRepair
from duramen.storage.segment.partition_metadata import read_topic_id
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import log_name, parse_base

JOURNAL = "(journal)"
"""In the list of losses: no partition, but the journal of all."""


class JournalReset(NamedTuple):
    """What has to hold when the journal is given up: the lines for the list of losses, and each log's least end."""

    lines: list[dict[str, Any]]
    ends: dict[LogKey, int]


def encode_reset(reset: JournalReset) -> bytes:
    """One JSON object, and a line with its CRC-32C."""
    ends = [[topic_id.hex(), partition, end] for (topic_id, partition), end in sorted(reset.ends.items())]
    return encode_lines([json.dumps({"lines": reset.lines, "ends": ends})])


def decode_reset(content: bytes) -> JournalReset | None:
    """Inverse of `encode_reset`; None when it is damaged."""
    found = decode_lines(content, '{"lines"')
    if found is None:
        return None
    fields = json.loads(found[0])
    ends = {(bytes.fromhex(topic_id), partition): end for topic_id, partition, end in fields["ends"]}
    return JournalReset(fields["lines"], ends)


def read_reset(disk: Disk, path: str) -> JournalReset | None:
    """What an interrupted run of this has begun in a data directory; None when there was none. StorageError."""
    name = posixpath.join(path, JOURNAL_RESET)
    content = read_file(disk, name)
    if content is None:
        return None
    reset = decode_reset(content)
    if reset is None:
        raise StorageError(
            f"{name} is damaged: it says which offsets must not be used again. Restore it from a copy; without it, "
            "remove it, and offsets that were acknowledged may be given to other records"
        )
    return reset


def begin_reset(disk: Disk, path: str, loss: JournalLoss, entropy: Entropy) -> list[dict[str, Any]]:
    """Go on without what lies behind the damage of a journal; what may be missing is returned and written down.

    The journal is put aside first. The segments keep what they have of it. The caller does not hold the lock. OSError,
    StorageError; after a crash, `finish_reset`.
    """
    copies = quarantine_journal(disk, path, loss)
    count = loss.last_lsn - loss.first_lsn + 1
    what = (
        f"{count} journal entries from {loss.first_lsn} on, {loss.intact} of them readable; the rest may have held "
        "records of any partition"
    )
    if loss.missing:
        what = f"{loss.missing}; they may have held records of any partition"
    elif not count:
        what = "nothing: every entry could be read, the damage is elsewhere"
    line = {"partition": JOURNAL, "kind": DROPPED, "first_offset": -1, "last_offset": -1, "what": what}
    ends = loss.ends | {key: max(end, loss.ends.get(key, -1)) for key, end in _snapshot_ends(disk, path)}
    reset = JournalReset([{**line, "side_file": copy} for copy in copies] or [line], ends)
    replace_file(disk, posixpath.join(path, JOURNAL_RESET), encode_reset(reset))
    return finish_reset(disk, path, reset, entropy)


def _snapshot_ends(disk: Disk, path: str) -> Iterator[tuple[LogKey, int]]:
    """The metadata log went up to its newest snapshot, which holds what the journal had of it. OSError."""
    tp = TopicPartition(METADATA_TOPIC, 0)
    home = posixpath.join(path, str(tp))
    for snapshot in find_snapshots(disk, home) if disk.exists(home) else ():
        with suppress(CorruptLogError):
            for _ in read_snapshot(disk, home, snapshot):
                pass
            yield (read_topic_id(disk, home), tp.partition), snapshot.offset


def finish_reset(disk: Disk, path: str, reset: JournalReset, entropy: Entropy) -> list[dict[str, Any]]:
    """Everything behind the note of what is acknowledged; again after a crash at any point is fine. OSError."""
    lines = list(reset.lines)
    record_loss(disk, path, lines)
    if not disk.exists(posixpath.join(path, CLEAN_SHUTDOWN)) or read_checkpoint(disk, path) is None:
        recover_and_stop(disk, path, 0, entropy, forgo=True)
    lock = disk.lock(posixpath.join(path, LOCK))
    try:
        lines += _move_ends(disk, path, reset.ends)
        remove_file(disk, posixpath.join(path, JOURNAL_RESET))
        disk.sync_directory(path)
    finally:
        lock.release()
    return lines


def _move_ends(disk: Disk, path: str, ends: dict[LogKey, int]) -> list[dict[str, Any]]:
    """Logs of a cleanly stopped directory that end before what was acknowledged end behind it; which, and what went."""
    lines: list[dict[str, Any]] = []
    checkpoint = read_checkpoint(disk, path)
    if checkpoint is None:
        raise StorageError(f"{posixpath.join(path, CHECKPOINT)} cannot be read")
    changed: dict[TopicPartition, LogPoint] = {}
    listed = listed_segments(disk, path, checkpoint) or {}
    for key, point in checkpoint.logs.items():
        end = ends.get(key, -1)
        if end <= point.recovery_point:
            continue
        line = {
            "partition": str(point.tp),
            "kind": DROPPED,
            "first_offset": point.recovery_point,
            "last_offset": end - 1,
            "what": "acknowledged; the segments do not have it, the journal that was put aside may",
        }
        record_loss(disk, path, [line])
        lines.append(line)
        missing = partial(missing_segments, listed=listed.get(point.tp, NOTHING_EXPECTED), point=point)
        repair = survey_partition(disk, path, str(point.tp), end, point, start=point.start_offset, missing=missing)
        repair.apply()
        changed[point.tp] = point_of_files(disk, repair, point._replace(recovery_point=end))
    if changed:
        write_points(disk, path, checkpoint, changed)
    return lines


def identity(disk: Disk, path: str) -> MetaProperties:
    """Whose data directory it is, as the next start finds out.

    StorageError when it is none, nobody knows, or two files say different things.
    """
    name = posixpath.join(path, META_PROPERTIES)
    content = read_file(disk, name)
    try:
        if content is None:
            raise StorageError(f"{path} is no data directory: it has no {META_PROPERTIES}")
        found = decode_meta(content, name)
    except StorageError:
        kept, _ = compare_identity(disk, path)  # a start makes the file again from what we keep of it
        if kept is None:
            raise
        return kept
    refuse_other_identity(disk, path)
    return found


def recover_and_stop(disk: Disk, path: str, now_ms: int, entropy: Entropy, *, forgo: bool = False) -> None:
    """Recover a directory that was not stopped cleanly, and stop it cleanly: then nothing needs its journal.

    forgo: see LogDirectory.open. StorageError, CorruptLogError when that cannot be done.
    """
    meta = identity(disk, path)
    settings = DirectorySettings(node_id=meta.node_id, cluster_id=meta.cluster_id)
    LogDirectory.open(disk, path, settings, now_ms=now_ms, entropy=entropy, forgo=forgo).close(clean=True)


def write_points(
    disk: Disk, path: str, checkpoint: DirectoryCheckpoint, changed: dict[TopicPartition, LogPoint]
) -> None:
    """Replace the points of some logs in the checkpoint of a clean stop, and in Kafka's. OSError.

    What these lost is written down: the next start asks for no segment of theirs.
    """
    logs = {key: changed.get(point.tp, point) for key, point in checkpoint.logs.items()}
    segments = {key: bases for key, bases in checkpoint.segments.items() if checkpoint.logs[key].tp not in changed}
    moved = checkpoint._replace(logs=logs, segments=segments)
    points = encode_offsets({point.tp: point.recovery_point for point in logs.values()})
    replace_file(disk, posixpath.join(path, RECOVERY_POINT), points)
    replace_file(disk, posixpath.join(path, CHECKPOINT), encode_checkpoint(moved))


def point_of_files(disk: Disk, repair: PartitionRepair, point: LogPoint) -> LogPoint:
    """The log's end as it lies in the files now: the offset is what it was."""
    bases = [base for base in map(parse_base, disk.list_directory(repair.path)) if base is not None]
    last = max(bases, default=point.segment_base)
    file = disk.open(posixpath.join(repair.path, log_name(last)))
    try:
        size = file.size()
    finally:
        file.close()
    return point._replace(segment_base=last, position=size, state=None)
