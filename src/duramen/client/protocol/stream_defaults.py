"""What a topic is made with as a stream, whoever makes it, and how much one append of a gateway takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

APPEND_RECORDS_MAX: Final = 100_000
"""In one append by way of a gateway."""

BATCH_OVERHEAD: Final = 64 << 10
"""What the batch of the largest body of a request has beside it."""

STREAM_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str((8 << 20) + BATCH_OVERHEAD),
    }
)
"""Unless its namespaces or its maker say otherwise: its records stay until they are deleted."""
