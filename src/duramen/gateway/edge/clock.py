"""The time, as an argument of what depends on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class GatewayClock(NamedTuple):
    """now_ms: since 1970; monotonic_s: only goes forward."""

    now_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
