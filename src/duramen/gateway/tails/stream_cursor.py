"""The cursor of live reads, by which caches keep answers of different moments apart (Durable Streams, section 10.1)."""

from __future__ import annotations

import re

INTERVAL_S = 20
EPOCH_S = 1_728_432_000
"""2024-10-09T00:00:00Z."""
JITTER_MAX_S = 3600

_CURSOR = re.compile(r"[0-9]{1,15}", re.ASCII)


def interval_of(now_s: float) -> int:
    """The number of the interval of 20 s, since `EPOCH_S`."""
    return int(now_s - EPOCH_S) // INTERVAL_S


def known_interval(given: str | None) -> int:
    """The interval of a reader's cursor, which the next one has to be behind; -1 for none."""
    return -1 if given is None or not _CURSOR.fullmatch(given) else int(given)


def next_cursor(now_s: float, given: str | None, jitter_s: int) -> str:
    """The number of the interval of 20 s; where the reader's own is not smaller, one after that.

    jitter_s: 1 to 3600, by chance, so that readers of one moment part.
    """
    current, known = interval_of(now_s), known_interval(given)
    return str(current if known < current else known + max(1, jitter_s // INTERVAL_S))
