"""Time limits of calls, and the pauses between their attempts; moments are those of any monotonic clock."""

from __future__ import annotations

from typing import Final

from duramen.client.protocol.outcomes import may_help
from duramen.errors import DeadlineError, DuramenError, ErrorCode

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
UNKNOWN_PATIENCE_S: Final = 1.0
"""How long a topic that is not there is looked for: a node that has just heard of it may need a moment."""
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Deadline:
    """The moment by which a call ends, whatever happens, and whether it is worth another attempt."""

    __slots__ = ("_pause", "_unknown_since", "end", "limit_s", "what")

    def __init__(self, what: str, limit_s: float, now: float) -> None:
        """what: the call, for the error; limit_s: seconds from now."""
        self.what = what
        self.limit_s = limit_s
        self.end = now + limit_s
        self._pause = FIRST_PAUSE_S
        self._unknown_since: float | None = None

    def at_most(self, limit_s: float, now: float) -> float:
        """Moment by which one attempt ends that may take `limit_s` of what is left."""
        return min(self.end, now + limit_s)

    def pause_s(self, error: DuramenError, now: float) -> float:
        """Seconds to wait before the next attempt, twice as long each time.

        Raises the error when another attempt cannot help, DeadlineError when no time is left for it.
        """
        if not may_help(error):
            raise error
        if error.code not in _UNKNOWN:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since > UNKNOWN_PATIENCE_S:
            raise error
        pause = self._pause
        if self.end - now <= pause:
            raise DeadlineError(f"{self.what}: not done within {self.limit_s:g} s", error) from error
        self._pause = min(pause * 2, LONGEST_PAUSE_S)
        return pause
