"""What a reader has read, as fixed-size entries in a file: the demo's evidence.

A member appends one entry per record that it processed, in the order in which it did so. Nothing is ever looked up or
left out on the way in, so the file cannot hide a record that came twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENTRY = struct.Struct("<iqi8sII")


class Seen(NamedTuple):
    """One processed record. key: the tail number padded with zero bytes, empty for none; checksum: CRC-32 of value."""

    partition: int
    offset: int
    row: int
    key: bytes
    checksum: int
    size: int


def count(path: Path) -> int:
    """Complete entries in the file; 0 when it is not there yet."""
    return path.stat().st_size // ENTRY.size if path.exists() else 0


def entries(path: Path) -> Iterator[Seen]:
    """Every entry in the order it was written."""
    data = path.read_bytes()
    whole = len(data) - len(data) % ENTRY.size
    return map(Seen._make, ENTRY.iter_unpack(memoryview(data)[:whole]))
