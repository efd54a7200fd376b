"""The batches of a partition's files in order, and the gaps between them (`duramen log dump`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from duramen.errors import StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import gap_behind
from duramen.storage.checkpoint.manifest import SEALS
from duramen.storage.repair.overlay_disk import as_readable
from duramen.storage.repair.salvage import next_batch
from duramen.storage.repair.verify import segments_of
from duramen.storage.repair.verify_segment import NO_OFFSET, only_zeros
from duramen.storage.segment.scan import scan
from duramen.storage.segment.segment import LOG, log_name, parse_base
from duramen.wire.batch import BatchHeader


class DamagedBytes(NamedTuple):
    """Bytes start..end of a segment hold no sound batch."""

    start: int
    end: int


class MissingOffsets(NamedTuple):
    """Offsets first..last that no segment holds."""

    first: int
    last: int


def walk_batches(
    disk: Disk, path: str, first: int
) -> Iterator[tuple[File, int, BatchHeader | DamagedBytes | MissingOffsets]]:
    """Every sound batch of a segment file, or of a partition's directory, that reaches offset `first`; and the gaps.

    A gap is a range of damaged bytes, or offsets that no segment holds where a file between two others is gone. Each
    comes with its file, which is open, and the byte it starts at. StorageError where there is no segment, OSError.
    """
    disk = as_readable(disk, {})
    paths = list(_segment_files(disk, path))
    bases = [parse_base(posixpath.basename(name)) for name in paths]
    for number, name in enumerate(paths):
        following = bases[number + 1] if number + 1 < len(bases) else None
        if following is not None and following <= first:
            continue
        file = disk.open(name)
        try:
            size = file.size()
            start, expected, below = 0, 0, NO_OFFSET if following is None else following
            is_sound = True
            while start < size:
                end = size
                for position, header, ok in scan(file, start, size, expect_offset=expected):
                    if not ok or header is None:
                        end = next_batch(file, position, size, from_offset=expected, below=below)
                        is_sound = False
                        if following is not None or not _is_reserved(disk, file, position, size):
                            yield file, position, DamagedBytes(position, end)
                        break
                    expected = header.next_offset
                    if header.last_offset >= first:
                        yield file, position, header
                start = end
            if is_sound and following is not None:
                directory, partition = posixpath.split(posixpath.abspath(path))
                gap = gap_behind(disk, directory, partition, max(expected, bases[number] or 0), following)
                if gap is not None and gap[1] >= first:
                    yield file, size, MissingOffsets(*gap)
        finally:
            file.close()


def _is_reserved(disk: Disk, file: File, start: int, end: int) -> bool:
    """Whether the rest of a log's last segment is space that was reserved and never written (`preallocate`)."""
    stem = file.path.removesuffix(LOG)
    if stem == file.path or any(disk.exists(stem + suffix) for suffix in SEALS):  # only Kafka reserves any
        return False
    return only_zeros(file, start, end)


def _segment_files(disk: Disk, path: str) -> Iterator[str]:
    if path.endswith(".log") or any(each in posixpath.basename(path) for each in (".log.dropped-", ".log.swap")):
        yield path
        return
    try:
        found = segments_of(disk, path)
    except NotADirectoryError:
        raise StorageError(f"{path} is neither a segment (.log) nor a partition's directory") from None
    if not found:
        raise StorageError(f"{path} holds no segments; name a partition's directory, such as {path}/TOPIC-0")
    for base in found:
        yield posixpath.join(path, log_name(base))
