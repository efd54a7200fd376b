"""Logs in the models: how two histories are compared (KIP-101, -279, -320), by the epochs of their records."""

from __future__ import annotations

from functools import lru_cache

Record = tuple[int, int]
"""(epoch, number within it): no two appended records are the same."""
Log = tuple[Record, ...]


def last_epoch(log: Log) -> int:
    return log[-1][0] if log else 0


def is_prefix(one: Log, other: Log) -> bool:
    """Whether the shorter of them is how the longer one begins."""
    both = min(len(one), len(other))
    return one[:both] == other[:both]


def _end_of(log: Log, epoch: int) -> tuple[int, int]:
    """The greatest epoch of this log that is not above `epoch`, and where it ends."""
    end = sum(1 for each, _ in log if each <= epoch)
    return (log[end - 1][0] if end else 0), end


@lru_cache(maxsize=100_000)
def diverges(log: Log, end: int, last: int) -> tuple[int, ...]:
    """What a leader with this log answers to a Fetch at `end` behind a record of epoch `last`: (epoch, end), or ()."""
    if end == 0:
        return ()
    epoch, epoch_end = _end_of(log, last)
    return (epoch, epoch_end) if epoch != last or epoch_end < end else ()


@lru_cache(maxsize=100_000)
def cut_point(log: Log, epoch: int, end: int) -> int:
    """What a follower with this log may keep of it by such an answer."""
    return min(end, _end_of(log, epoch)[1])
