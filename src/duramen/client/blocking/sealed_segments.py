"""Reading a sealed segment straight from its data directory, held against its seal, without a broker.

What to open comes from a plan (`client.segments`), whose lease keeps the files meanwhile. Nothing is believed: the
directory and topic ids, the seal's own checksum, and the CRC32C of every 64 KiB that is handed on.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from duramen.client.protocol.fetch import whole_batches
from duramen.client.protocol.segments import DescribedPartition, DescribedSegment
from duramen.config.properties import parse_properties
from duramen.errors import ConfigError, CorruptLogError, SegmentGoneError, StorageError, UnreachableStorageError
from duramen.model import topic_id_text
from duramen.page_cache import PastCache, room_for
from duramen.wire.batch import LOG_OVERHEAD
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal

CHUNK_BYTES: Final = 4 << 20
"""Bytes read and checked at once."""
SMALL_FILE_BYTES: Final = 64 << 20
"""No side file is larger; whatever claims to be is damaged."""


class SealedSegmentFile(NamedTuple):
    """Which file to read: plain values, which can be sent to another process of the same machine or a shared mount.

    log_dir: the data directory as this reader finds it; directory_id and topic_id: as text, to know it again.
    size_bytes: of the segment when it was planned.
    """

    log_dir: str
    directory_id: str
    topic: str
    partition: int
    topic_id: str
    base_offset: int
    size_bytes: int

    @property
    def path(self) -> str:
        """Of the `.log` file."""
        return posixpath.join(self.log_dir, f"{self.topic}-{self.partition}", f"{self.base_offset:020d}.log")


def sealed_segment(partition: DescribedPartition, segment: DescribedSegment, log_dir: str = "") -> SealedSegmentFile:
    """What a reader needs of one segment of a plan. log_dir: where the data directory is mounted, if elsewhere."""
    return SealedSegmentFile(
        log_dir or partition.log_dir,
        partition.directory_id,
        partition.tp.topic,
        partition.tp.partition,
        topic_id_text(partition.topic_id),
        segment.base_offset,
        segment.size_bytes,
    )


def check_directory(log_dir: str, directory_id: str) -> None:
    """UnreachableStorageError unless this process can read the data directory with this id here."""
    path = posixpath.join(log_dir, "meta.properties")
    try:
        found = parse_properties(_small_file(path).decode("latin-1")).get("directory.id", "")
    except (OSError, ConfigError) as error:
        raise UnreachableStorageError(f"{log_dir} cannot be read as a data directory from here: {error}") from error
    if found != directory_id:
        raise UnreachableStorageError(f"{log_dir} is the directory {found or 'without an id'}, not {directory_id}")


class SealedBytes(NamedTuple):
    """Whole batches; next_offset: after the last of them."""

    data: memoryview
    next_offset: int


class SealedReader:
    """One sealed segment, open for reading. Use it as a context manager, or `close` it.

    Raises UnreachableStorageError (read by the broker instead), SegmentGoneError (it was deleted, compacted, or is of
    another topic of that name: plan again), CorruptLogError (the bytes differ from the seal), StorageError (the seal is
    damaged: read by the broker), OSError.
    """

    def __init__(self, segment: SealedSegmentFile) -> None:
        check_directory(segment.log_dir, segment.directory_id)
        self.segment = segment
        self._cache = PastCache()
        self._seal_path = posixpath.splitext(segment.path)[0] + ".seal"
        try:
            self._check_topic()
            self._descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentGoneError(f"{segment.path} is not there any more") from error
        except PermissionError as error:
            raise UnreachableStorageError(f"{segment.path} may not be read from here: {error}") from error
        try:
            self.seal = self._read_seal()
            size = os.fstat(self._descriptor).st_size
            if not self.seal.length == size == segment.size_bytes:
                raise SegmentGoneError(
                    f"{segment.path} has {size} bytes, its seal {self.seal.length}; planned were {segment.size_bytes}"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; again has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def read(self, start: int = 0, end: int | None = None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[SealedBytes]:
        """The whole batches that begin in the file's bytes start..end, about `chunk_bytes` at a time.

        start: where a batch begins (a boundary of the plan); end: None for all. Each piece has memory of its own.
        """
        stop = self.seal.length if end is None else min(end, self.seal.length)
        position = start
        while position < stop:
            wanted = max(chunk_bytes, BLOCK_BYTES)
            while True:
                view = self._checked(position, min(position + wanted, self.seal.length))
                length, next_offset = self._batches(view, position, stop)
                if length:
                    break
                wanted = self._batch_size(view, position)
            yield SealedBytes(view[:length], next_offset)
            position += length

    def _batches(self, view: memoryview, position: int, stop: int) -> tuple[int, int]:
        """(length, next offset) of the whole batches at the front of `view` that begin before `stop`."""
        try:
            length, next_offset = whole_batches(view, self.segment.path, stop - position)
        except CorruptLogError as error:
            # The seal vouches for the bytes: it is the position that is another segment's.
            raise SegmentGoneError(f"{self.segment.path}: no batch begins where one was planned ({error})") from error
        return length, next_offset

    def _batch_size(self, view: memoryview, position: int) -> int:
        """Bytes of the batch at the front of `view`, which is larger than that."""
        left = self.seal.length - position
        size = int.from_bytes(view[8:12], "big", signed=True) + LOG_OVERHEAD if len(view) >= LOG_OVERHEAD else 0
        if not len(view) < size <= left:
            raise SegmentGoneError(f"{self.segment.path}: no batch begins at byte {position}")
        return size

    def _checked(self, start: int, end: int) -> memoryview:
        """These bytes, read past the page cache and held against the seal."""
        first, last = self.seal.block_range(start, end)
        room = room_for(last - first)
        count = self._cache.read_settled(self._descriptor, room, first)
        buffer = room[: last - first]
        path = self.segment.path
        try:
            if count < last - first:
                raise CorruptLogError(path, first + count, last, "the file is too short", self.segment.base_offset)
            self.seal.check(buffer, first, path, self.segment.base_offset)
        except CorruptLogError as error:
            self._if_replaced(error)
            raise
        return buffer[start - first : end - first]

    def _if_replaced(self, error: CorruptLogError) -> None:
        """SegmentGoneError if what is open and the seal are not, or not any more, of one piece."""
        try:
            same = os.path.samestat(os.fstat(self._descriptor), os.stat(self.segment.path))
            if same and self._read_seal().encode() == self.seal.encode():
                return
        except (OSError, StorageError):
            pass
        raise SegmentGoneError(f"{self.segment.path} was replaced while it was read") from error

    def _read_seal(self) -> Seal:
        try:
            return decode_seal(_small_file(self._seal_path), self._seal_path)
        except FileNotFoundError as error:
            raise SegmentGoneError(f"{self._seal_path} is not there (any more)") from error
        except PermissionError as error:
            raise UnreachableStorageError(f"{self._seal_path} may not be read from here: {error}") from error

    def _check_topic(self) -> None:
        """SegmentGoneError when the directory belongs to another topic that has this name now."""
        path = posixpath.join(posixpath.dirname(self.segment.path), "partition.metadata")
        lines = _small_file(path).decode("latin-1").splitlines()
        found = [line.partition(":")[2].strip() for line in lines if line.startswith("topic_id:")]
        if found != [self.segment.topic_id]:
            raise SegmentGoneError(f"{path} names the topic {found}, planned was {self.segment.topic_id}")


def _small_file(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(SMALL_FILE_BYTES + 1)
    if len(content) > SMALL_FILE_BYTES:
        raise StorageError(f"{path} is too large for this kind of file")
    return content
