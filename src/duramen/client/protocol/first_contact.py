"""For how long a client tries to reach a cluster that it has never reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.client.protocol.addresses import Address, addresses_text
from duramen.errors import NetworkError, NoConnectionError, NothingThereError

CONNECT_S: Final = 5.0
"""Most seconds for one attempt to connect while there are other nodes to ask."""
_LAST_ATTEMPT_S: Final = 1.0


class FirstContact:
    """The patience of one client. limit_s: of all attempts before the first connection; None: that of the calls."""

    def __init__(self, bootstrap: Sequence[Address], limit_s: float | None) -> None:
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._tried: float | None = None

    def begin(self, now: float) -> None:
        """Addresses are about to be tried."""
        if self._tried is None:
            self._tried = now

    def reached(self) -> None:
        """A connection stood: from here on only the limits of calls count."""
        self._limit_s = None

    def patience(self, now: float, until: float, addresses: int) -> float:
        """The moment by which one attempt to connect ends, where so many addresses are left."""
        if self._limit_s is not None and self._tried is not None:
            left_s = self._tried + self._limit_s - now
            return min(until, now + min(CONNECT_S, max(left_s, _LAST_ATTEMPT_S)))
        return until if addresses == 1 else now + min(CONNECT_S, (until - now) / addresses)

    def failure(self, errors: Sequence[NetworkError], now: float) -> NetworkError:
        """The error when every address failed: NothingThereError once that is sure."""
        if not errors:
            return NetworkError("no address is known")
        there = not all(isinstance(error, NoConnectionError) for error in errors)
        failed = errors[0] if len(errors) == 1 else NetworkError("; ".join(map(str, errors)))
        if there or self._limit_s is None or self._tried is None or now - self._tried < self._limit_s:
            return failed
        return NothingThereError(
            f"no node answers at bootstrap.servers={addresses_text(self._bootstrap)}: {failed}."
            " Is a node running, and is that its address?"
        )
