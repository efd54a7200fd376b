"""Sums of a segment's blocks as they were written, from which a checkpoint grows the `.sealing` file.

Taken while the bytes are in the processor's cache, they cost a quarter of reading these back, and they vouch for what
was meant to be written: what the memory or the disk made of it in the meantime does not get into the seal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duramen.ports import Buffer
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES

SUMMED_BYTES = 2 * BLOCK_BYTES
"""Less is not summed when it is written: single records would pay more for it than the checkpoint saves."""


class WrittenSums:
    """Of one segment, from one checkpoint to the next. The owner of the log adds; whoever `take`s may read anywhere."""

    __slots__ = ("_begun", "_blocks", "_end")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._end = -1
        self._begun: int | None = None
        """Sum of the unfinished block that ends with byte `_end`; None when not all of it was summed."""

    def add(self, buffers: Sequence[Buffer], start: int) -> None:
        """These bytes were written one behind the other, from byte `start` of the file on."""
        position = start
        total = self._begun if start == self._end else None
        for buffer in buffers:
            view = memoryview(buffer)
            taken = 0
            while taken < len(view):
                inside = position % BLOCK_BYTES
                if inside == 0:
                    total = 0
                piece = view[taken : taken + BLOCK_BYTES - inside]
                taken += len(piece)
                position += len(piece)
                if total is not None:
                    total = crc32c(piece, total)
                    if position % BLOCK_BYTES == 0:
                        self._blocks[position // BLOCK_BYTES - 1] = total
        self._end = position
        self._begun = total

    def take(self) -> Mapping[int, int]:
        """CRC-32C by number of the whole blocks since the last call, as they are up to now."""
        blocks, self._blocks = self._blocks, {}
        return blocks
