"""A file that is read anew when it has changed."""

from __future__ import annotations

import os

LOOK_S = 1.0
"""How often files are looked at."""
_LENGTH_MAX = 4 << 20


class WatchedFile:
    """One of them. OSError where it cannot be read, at any of its calls."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def has_changed(self) -> bool:
        """Whether it is another one than at the call before; that it is gone counts once, as its content does."""
        try:
            status = os.stat(self.path)
            now = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            now = (0, 0, 0)
        changed, self._seen = now != self._seen, now
        return changed

    def text(self) -> str:
        """What is in it; its first 4 MiB."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read(_LENGTH_MAX)
