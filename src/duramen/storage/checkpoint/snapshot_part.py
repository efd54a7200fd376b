"""A snapshot that another node sends in pieces: written as `.part`, checked whole, then given its name."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from duramen.errors import StorageError
from duramen.ports import Buffer, Disk
from duramen.storage.checkpoint.metadata_snapshot import SnapshotId, read_snapshot
from duramen.storage.files.atomic import remove_file
from duramen.wire.batch import Record


@dataclass(slots=True)
class SnapshotPart:
    """Of one snapshot. The methods return work for a lane, which keeps their order; OSError, StorageError there."""

    disk: Disk
    directory: str
    snapshot: SnapshotId
    size: int = 0
    """What has been asked for to be written."""

    @property
    def _part(self) -> str:
        return posixpath.join(self.directory, self.snapshot.name + ".part")

    def begin(self) -> Callable[[], object]:
        """Forget what an earlier try left."""
        return partial(remove_file, self.disk, self._part)

    def append(self, piece: Buffer) -> Callable[[], None]:
        """The next bytes."""
        position = self.size
        self.size += len(piece)
        return partial(self._write, bytes(piece), position)

    def finish(self, take: Callable[[bool, Record], None]) -> Callable[[], None]:
        """All is there: sync it, hand every record to `take` (whether it is a control record, the record), name it."""
        return partial(self._finish, take)

    def _write(self, piece: bytes, position: int) -> None:
        file = self.disk.open(self._part, create=True, write=True)
        try:
            file.pwritev([piece], position)
        finally:
            file.close()

    def _finish(self, take: Callable[[bool, Record], None]) -> None:
        file = self.disk.open(self._part, write=True)
        try:
            if file.size() != self.size:
                raise StorageError(f"{self._part} has {file.size()} bytes, {self.size} were written")
            file.sync()
        finally:
            file.close()
        for is_control, record in read_snapshot(
            self.disk, self.directory, self.snapshot, name=self.snapshot.name + ".part"
        ):
            take(is_control, record)
        self.disk.rename(self._part, posixpath.join(self.directory, self.snapshot.name))
        self.disk.sync_directory(self.directory)


def read_piece(disk: Disk, directory: str, snapshot: SnapshotId, position: int, length: int) -> tuple[int, bytes]:
    """(size of the whole, up to `length` bytes from `position`) of a snapshot. FileNotFoundError, OSError."""
    file = disk.open(posixpath.join(directory, snapshot.name))
    try:
        return file.size(), file.pread(length, position)
    finally:
        file.close()
