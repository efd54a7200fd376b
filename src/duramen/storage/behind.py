"""Where a segment can be read again behind damage.

An index names one batch in many, and the damage may have taken the way from one to the next. What is named behind it is
read from there; in front of that, the first batch from which whole ones lead to what is named, or to the segment's end.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.ports import File
from duramen.storage.damage import begun_behind, first_damaged, whole_at
from duramen.storage.index import OffsetIndex, StoredOffsetIndex
from duramen.storage.salvage import Landing, chain_behind
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal


class Stored(NamedTuple):
    """What is known of the segment. bounds: its base offset and its next offset; size: its bytes."""

    file: File
    entries: OffsetIndex | StoredOffsetIndex
    bounds: tuple[int, int]
    size: int
    seal: Seal | None

    def is_sealed(self, position: int) -> bool:
        """Whether the seal vouches for the byte there."""
        return self.seal is not None and position < self.seal.length


def sound_behind(stored: Stored, error: CorruptLogError, offset: int) -> tuple[int, int] | None:
    """(position, base offset) of the first sound batch behind damage, or of one that holds `offset` (-1: none).

    None where none is believed. Reads from the disk, as far as the next batch that the index names behind the offset,
    or the segment's end. OSError, CorruptLogError (of the index).
    """
    file, entries, (base, following), size, _ = stored
    sealed = stored.is_sealed(error.start)
    start = error.end if sealed else error.start + 1
    named = entries.entry_behind(offset - base, start - 1)
    whole = None
    landing = Landing(size, following, following)
    if named is not None and named[1] < size:
        landing = Landing(named[1], 0, base + named[0])
        whole = whole_at(file, landing.position, size)
        if whole is not None and whole.last_offset != landing.highest:
            return None
        if whole is not None and whole.base_offset <= offset:
            return landing.position, whole.base_offset
    if file.size() < landing.position:
        return None
    start = _behind_bad_blocks(stored, start, landing.position)
    likely = begun_behind(file, entries.positions, start, landing.position) if sealed else error.end
    first = first_damaged(file, entries.positions, stored.bounds, error.start)
    found = chain_behind(file, start, landing, from_offset=first + 1, likely=likely)
    if found is None and whole is not None and first < whole.base_offset:
        return landing.position, whole.base_offset
    return found


def _behind_bad_blocks(stored: Stored, start: int, stop: int) -> int:
    """`start`, or the end of the last block up to `stop` that is not what was sealed."""
    file, seal = stored.file, stored.seal
    if seal is None:
        return start
    position, _ = seal.block_range(start, start)
    while position < min(stop, seal.length):
        _, end = seal.block_range(position, position + 1)
        if crc32c(file.pread(end - position, position)) != seal.checksums[position // BLOCK_BYTES]:
            start = end
        position = end
    return start
