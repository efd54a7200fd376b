"""Time limits of calls, and the pauses between their attempts."""

from __future__ import annotations

import time

from duramen.errors import DeadlineError, DuramenError

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Deadline:
    """The moment by which a call ends, whatever happens."""

    __slots__ = ("_pause", "_unknown_since", "end", "limit_s", "what")

    def __init__(self, what: str, limit_s: float) -> None:
        """what: the call, for the error; limit_s: seconds from now."""
        self.what = what
        self.limit_s = limit_s
        self.end = time.monotonic() + limit_s
        self._pause = FIRST_PAUSE_S
        self._unknown_since: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds left, 0 at the end."""
        return max(0.0, self.end - time.monotonic())

    def unknown_s(self, *, unknown: bool) -> float:
        """Seconds for which each attempt has said that what is called for is unknown; 0 when this one did not."""
        now = time.monotonic()
        if not unknown:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        return 0.0 if self._unknown_since is None else now - self._unknown_since

    def at_most(self, limit_s: float) -> float:
        """Moment (monotonic) by which one attempt ends that may take `limit_s` of what is left."""
        return min(self.end, time.monotonic() + limit_s)

    def pause(self, error: DuramenError) -> None:
        """Wait a while before the next attempt, twice as long each time; DeadlineError when there is none."""
        if self.left_s <= self._pause:
            raise DeadlineError(f"{self.what}: not done within {self.limit_s:g} s", error) from error
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
