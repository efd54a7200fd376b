"""Logs of one directory with something to write, and how many bytes that may be before they are written early."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duramen.storage.log.log import Log


class FlushQueue(list["Log"]):
    """The logs, in the order in which they have to be written. Loop thread only.

    unwritten: bytes of batches that were queued since the last flush, at least. limit: of them.
    """

    __slots__ = ("_relieve", "limit", "unwritten")

    def __init__(self, limit: int = sys.maxsize, relieve: Callable[[int], None] = lambda size: None) -> None:
        super().__init__()
        self.unwritten = 0
        self.limit = limit
        self._relieve = relieve

    def take(self, size: int) -> None:
        """A batch of `size` bytes is about to be queued: `relieve(size)` comes first where it would be too much."""
        if self.unwritten + size > self.limit:
            self._relieve(size)
        self.unwritten += size
