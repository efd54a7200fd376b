"""How long the quorum waits for what."""

from __future__ import annotations

from typing import NamedTuple

PROMPT: float = 0.05
"""Up to this long a replica that knows the leader to be dead lets others begin (CLUSTER.md §3.6)."""
CHECK_QUORUM: float = 1.5
"""A leader resigns when so many fetch time-outs brought no Fetch from a majority."""


class RaftSettings(NamedTuple):
    """Seconds; Kafka's `controller.quorum.*`."""

    election_timeout: float = 1.0
    """Drawn up to twice as long."""
    fetch_timeout: float = 2.0
    backoff_max: float = 1.0
    """The longest pause after an election that was lost."""
    request_timeout: float = 2.0
    """After which the shell says that a request was lost."""
    retry_backoff: float = 0.02
    fetch_max_wait: float = 0.5
    """How long a leader may keep a Fetch that it has nothing for."""
    fetch_max_bytes: int = 8 << 20
