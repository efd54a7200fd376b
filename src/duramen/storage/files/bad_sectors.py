"""Files of which the disk cannot read some sectors (EIO): what is left of them, and where nothing is.

In the place of such sectors stand bytes that nobody writes: zeros would look like the end of what was written, or like
room that is reserved.
"""

from __future__ import annotations

import errno
import sys

from duramen.ports import File

UNREADABLE = "the disk cannot read it"
_PIECE_BYTES = 4096
"""What a disk loses at least, and a page: read by these, all is had that can be."""
_FILL = b"\xe5"


def read_whole(file: File, most: int = sys.maxsize) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of the file, at most so many, and where they cannot be read. OSError for all but that."""
    gaps: set[tuple[int, int]] = set()
    data = read(file, min(file.size(), most), 0, gaps)
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


def read(file: File, length: int, offset: int, gaps: set[tuple[int, int]]) -> bytes:
    """As `File.pread`; where that cannot be read is added to `gaps`. OSError for all but that."""
    try:
        return file.pread(length, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces = []
    position, stop = offset, min(offset + length, file.size())
    while position < stop:
        end = min(position - position % _PIECE_BYTES + _PIECE_BYTES, stop)
        try:
            pieces.append(file.pread(end - position, position))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            pieces.append(_FILL * (end - position))
            gaps.add((position, end))
        position = end
    return b"".join(pieces)
