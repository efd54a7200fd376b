"""A batch boundary as the journal names it: offset, segment, byte."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """A batch boundary: its offset, the base offset of its segment and the byte in that segment."""

    offset: int
    segment_base: int
    position: int

    @property
    def place(self) -> tuple[int, int]:
        """Sort key by where it lies in the files."""
        return self.segment_base, self.position
