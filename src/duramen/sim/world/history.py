"""What happened in a simulation, as lines of text, and the one hash that says whether two runs were equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class History:
    """Lines in the order of the events, each with its virtual time in microseconds."""

    def __init__(self, now: Callable[[], float], *, keep: bool = False) -> None:
        self.lines: list[str] = []
        self.count = 0
        self._now = now
        self._keep = keep
        self._hash = hashlib.sha256()

    def note(self, text: str) -> None:
        """Add one line."""
        line = f"{self._now() * 1e6:.0f} {text}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.count += 1
        if self._keep:
            self.lines.append(line)

    def digest(self) -> str:
        """SHA-256 of all lines, 64 hex digits."""
        return self._hash.hexdigest()
