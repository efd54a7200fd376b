"""Files of which the disk cannot read some sectors (EIO): what is left of them, and where nothing is.

In the place of such sectors stand bytes that nobody writes: zeros would look like the end of what was written, or like
room that is reserved.
"""

from __future__ import annotations

import errno
import posixpath
import sys
from typing import Any, cast

from duramen.ports import Disk, File

PIECE_BYTES = 4096
"""What a disk loses at least, and a page: read by these, all is had that can be."""
FILL = b"\xe5"

Gaps = dict[str, set[tuple[int, int]]]
"""By path: first byte and end of each place that could not be read."""


def read_whole(file: File, most: int = sys.maxsize) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of the file, at most so many, and where they cannot be read. OSError for all but that."""
    gaps: set[tuple[int, int]] = set()
    data = _read(file, min(file.size(), most), 0, gaps)
    return data, merged(gaps)


def merged(gaps: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def as_readable(disk: Disk, gaps: Gaps) -> Disk:
    """The disk as if all segments, and the list of losses, could be read.

    gaps: gets what could not be read, of what was asked for.
    """
    return cast(Disk, _Readable(disk, gaps))


class _Readable:
    def __init__(self, disk: Disk, gaps: Gaps) -> None:
        self._disk = disk
        self._gaps = gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        file = self._disk.open(path, create=create, write=write)
        name = posixpath.basename(path)
        return cast(File, _File(file, self._gaps)) if ".log" in name or name == "losses" else file


class _File:
    def __init__(self, file: File, gaps: Gaps) -> None:
        self._file = file
        self._gaps = gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, length: int, offset: int) -> bytes:
        found: set[tuple[int, int]] = set()
        data = _read(self._file, length, offset, found)
        if found:
            self._gaps.setdefault(self._file.path, set()).update(found)
        return data


def _read(file: File, length: int, offset: int, gaps: set[tuple[int, int]]) -> bytes:
    try:
        return file.pread(length, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces = []
    position, stop = offset, min(offset + length, file.size())
    while position < stop:
        end = min(position - position % PIECE_BYTES + PIECE_BYTES, stop)
        try:
            pieces.append(file.pread(end - position, position))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            pieces.append(FILL * (end - position))
            gaps.add((position, end))
        position = end
    return b"".join(pieces)
