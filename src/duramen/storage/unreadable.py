"""A file of which the disk cannot read some sectors (EIO): what is left of it, and where nothing is."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

from duramen.ports import File

_PIECE_BYTES = 4096
"""What a disk loses at least, and a page: read by these, all is had that can be."""


def read_whole(file: File, most: int = sys.maxsize) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of the file, at most so many, zeros where it cannot be read; and those places, first byte and end.

    OSError for all but that.
    """
    size = min(file.size(), most)
    try:
        return file.pread(size, 0), []
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    data = bytearray(size)
    gaps: list[tuple[int, int]] = []
    for start, piece in _pieces(file, size):
        if piece is not None:
            data[start : start + len(piece)] = piece
        elif gaps and gaps[-1][1] == start:
            gaps[-1] = gaps[-1][0], min(start + _PIECE_BYTES, size)
        else:
            gaps.append((start, min(start + _PIECE_BYTES, size)))
    return bytes(data), gaps


def _pieces(file: File, size: int) -> Iterator[tuple[int, bytes | None]]:
    for start in range(0, size, _PIECE_BYTES):
        try:
            yield start, file.pread(min(_PIECE_BYTES, size - start), start)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            yield start, None
