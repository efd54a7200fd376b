"""The lease of a broker: until when no controller can have given to others what this process leads (CLUSTER.md §5).

Every answered heartbeat renews it, from the moment at which that was *sent*: a controller that fences by silence counts
a session from when the heartbeat came, its successor from when it began, which is later still (an answer takes proof of
leadership). The lease is a tenth shorter, for clocks that do not go alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duramen.ports import Clock
from duramen.server.api.services import EventReport

SHARE: Final = 0.9
"""Of a session: two clocks of which one loses, and the other gains, a twentieth measure it alike."""


class BrokerLease:
    """Of one process. Nothing happens when it ends: whoever decides an answer looks at it.

    session_s: for how long a silent broker is not fenced. on_renewed: called when it holds again, and did not.
    """

    def __init__(self, clock: Clock, session_s: float, report: EventReport, on_renewed: Callable[[], None]) -> None:
        self._clock = clock
        self._session_s = self._controller_s = session_s
        self._report = report
        self._on_renewed = on_renewed
        self._until = float("-inf")
        self._is_over = False

    def now(self) -> float:
        """When a heartbeat is sent. A machine that is suspended does not stop this clock."""
        return self._clock.boottime()

    def holds(self) -> bool:
        """Whether this node leads what it was elected to, whatever it has not read yet."""
        return self._clock.boottime() < self._until

    def limit(self, session_s: float) -> None:
        """The active controller fences who is silent for so long: where that is less, the lease is shorter, too."""
        before, self._controller_s = self._seconds, session_s
        self._until -= max(0.0, before - self._seconds)
        if session_s != self._session_s:
            self._report("session-timeouts-differ", own_s=self._session_s, controller_s=session_s)

    @property
    def _seconds(self) -> float:
        return SHARE * min(self._session_s, self._controller_s)

    def end(self) -> None:
        """For good: this process reads no metadata any more, and would not learn that others lead."""
        self._is_over = True
        self._until = float("-inf")

    def renew(self, sent: float) -> None:
        """A heartbeat that was sent at that time was answered: this process is not fenced."""
        if self._is_over:
            return
        now = self._clock.boottime()
        before, until = self._until, sent + self._seconds
        if until <= before:
            return
        self._until = until
        if before <= now < until:
            if before > float("-inf"):
                self._report("lease-renewed", without_ms=round(1000 * (now - before)))
            self._on_renewed()
