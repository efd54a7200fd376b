"""The parts of a request in pieces that are worth a system call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.ports import FileSpan, Part

JOINED_BYTES: Final = 64 * 1024
"""Parts of a request up to this size are joined before they are sent."""


def request_pieces(parts: Sequence[Part]) -> list[bytes | bytearray | memoryview]:
    """Small parts joined; batches are not copied."""
    found: list[bytes | bytearray | memoryview] = []
    small: list[bytes | bytearray | memoryview] = []
    for part in parts:
        if isinstance(part, FileSpan):
            raise TypeError("a client sends no file spans")
        if len(part) > JOINED_BYTES:
            if small:
                found.append(b"".join(small))
                small = []
            found.append(part)
        else:
            small.append(part)
    if small:
        found.append(b"".join(small))
    return found
