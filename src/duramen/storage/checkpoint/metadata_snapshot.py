"""Snapshots beside a log, as Kafka keeps them: `<end offset>-<epoch>.checkpoint`, whole or absent, checked when read.

A snapshot is a run of record batches from offset 0 on, with the leader epoch of its name. It begins with the control
record SnapshotHeader and ends with SnapshotFooter (KIP-630). Every byte is checked: the CRC of a batch covers what is
behind its first 21 bytes, and what those may be follows from the batch before and from the name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from duramen.errors import CorruptLogError, KafkaError
from duramen.ports import Disk
from duramen.storage.files.atomic import remove_file
from duramen.storage.segment.scan import scan
from duramen.wire.batch import BatchHeader, Record, records
from duramen.wire.errors import DecodeError
from duramen.wire.records.control import ControlType, decode, decode_key
from duramen.wire.records.versioned import Unknown

MAX_BATCH_BYTES = 64 << 20
"""Larger batches are not taken for ones; Kafka writes at most 8 MiB."""

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)


class SnapshotId(NamedTuple):
    """What a snapshot holds: everything below `offset`; `epoch` is the leader epoch of the last record below it."""

    offset: int
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.offset:020d}-{self.epoch:010d}{SUFFIX}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The id in a snapshot's file name; None when it is another file."""
    found = _NAME.fullmatch(name)
    return None if found is None else SnapshotId(int(found[1]), int(found[2]))


def find_snapshots(disk: Disk, directory: str) -> list[SnapshotId]:
    """Snapshots in a log's directory, oldest first; one that a crash left unfinished is removed."""
    found = []
    for name in disk.list_directory(directory):
        if name.endswith(PART_SUFFIX):
            disk.remove(posixpath.join(directory, name))
        elif (snapshot := parse_snapshot_name(name)) is not None:
            found.append(snapshot)
    return sorted(found)


@dataclass(slots=True)
class WriteSnapshotJob:
    """Writes one snapshot; `run` on any thread. batches: makes its batches in order, header and footer included."""

    disk: Disk
    directory: str
    snapshot: SnapshotId
    batches: Callable[[], Iterator[bytearray]]
    size: int = 0

    def run(self) -> None:
        """The file is complete and synced before it gets its name. OSError; then there is no such snapshot."""
        target = posixpath.join(self.directory, self.snapshot.name)
        part = posixpath.join(self.directory, self.snapshot.name + ".part")
        remove_file(self.disk, part)
        file = self.disk.open(part, create=True, write=True)
        try:
            for batch in self.batches():
                self.size += file.pwritev([batch], self.size)
            file.sync()
        finally:
            file.close()
        self.disk.rename(part, target)
        self.disk.sync_directory(self.directory)


def last_timestamp(disk: Disk, directory: str, snapshot: SnapshotId) -> int:
    """Timestamp (ms) of the last record in the log that the snapshot holds, as its header says. CorruptLogError."""
    for _, record in read_snapshot(disk, directory, snapshot, up_to=1):
        kind, message = decode(record.key or b"", record.value or b"")
        if kind == ControlType.SNAPSHOT_HEADER and not isinstance(message, Unknown):
            return int(message.last_contained_log_timestamp)
    return -1


def read_snapshot(
    disk: Disk, directory: str, snapshot: SnapshotId, *, up_to: int = -1, name: str = ""
) -> Iterator[tuple[bool, Record]]:
    """(whether it is a control record, record) of the whole snapshot, or of its first `up_to` batches.

    name: of its file, where it does not have its own yet.
    CorruptLogError when a byte is wrong or something is missing; records before that have been handed out by then.
    """
    path = posixpath.join(directory, name or snapshot.name)
    file = disk.open(path)
    try:
        size = file.size()
        expected = 0
        last: Record | None = None
        for number, (position, header, ok) in enumerate(scan(file, 0, size)):
            if number == up_to:
                return
            _check(path, snapshot, position, header, ok, expected)
            assert header is not None
            expected = header.next_offset
            try:
                batch = memoryview(file.pread(header.size, position))
                for record in records(batch, header, max_bytes=MAX_BATCH_BYTES):
                    if last is None and _kind(record, header) != ControlType.SNAPSHOT_HEADER:
                        raise CorruptLogError(path, 0, position + header.size, "it does not begin with its header")
                    last = record
                    yield header.is_control, record
            except (KafkaError, DecodeError) as error:
                raise CorruptLogError(path, position, position + header.size, str(error)) from error
        if last is None or last.key is None or decode_key(last.key) != ControlType.SNAPSHOT_FOOTER:
            raise CorruptLogError(path, size, size, "its footer is missing")
    finally:
        file.close()


def damaged_snapshots(disk: Disk, directory: str) -> Iterator[CorruptLogError]:
    """What is wrong with those in a log's directory that are not whole: no start uses them. Reads all. OSError."""
    for snapshot in filter(None, map(parse_snapshot_name, sorted(disk.list_directory(directory)))):
        try:
            for _ in read_snapshot(disk, directory, snapshot):
                pass
        except CorruptLogError as error:
            yield error


def _check(path: str, snapshot: SnapshotId, position: int, header: BatchHeader | None, ok: bool, expected: int) -> None:
    sound = ok and header is not None and header.size <= MAX_BATCH_BYTES
    if not sound or header is None or (header.base_offset, header.leader_epoch) != (expected, snapshot.epoch):
        end = position if header is None else position + header.size
        raise CorruptLogError(path, position, end, "a batch's header or CRC is wrong")


def _kind(record: Record, header: BatchHeader) -> int:
    return decode_key(record.key) if header.is_control and record.key is not None else -1
